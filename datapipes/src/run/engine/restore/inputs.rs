//! Decides which part of its inputs a node needs, and what log it keeps of its items for
//! checkpoints.
//!
//! Calls go one way. [`wiring`](super::super::wiring) asks for the [`NodeInputs`] of a node, opens
//! the streams that it names, and gives their histories back for the node's [`NodeLog`]. Nothing is
//! opened here, and nothing of `wiring` is called.

use std::slice;
use std::sync::Arc;

use super::node_log::{NodeLog, Wired};
use super::resume::Cursors;
use crate::checkpoint::{
    ByPosition, Cursor, History, InputCursor, Lineage, NodeState, Point, Recorder, Saving,
    SegmentLog, Unordered,
};
use crate::graph::{AnyItems, FlowNode, Op};
use crate::run::engine::EpochRun;
use crate::{Arity, Context, Wanted};

/// Positions, one range after another.
pub(in crate::run::engine) type Ranges = Vec<(u64, u64)>;

/// Log that a node keeps of its items, by what has to be known to resume it.
#[derive(Clone, Copy)]
enum LogKind {
    /// Nothing, since no checkpoints can be taken.
    None,
    /// None of its own: each output has the position of its input.
    OfInput,
    /// None of its own: the node makes any of its outputs by position, or makes all of them again.
    ByPosition,
    /// Inputs of each output, which come in any order; each output is of the next input if
    /// `identity` is true.
    Unordered { identity: bool },
    /// Numbers of outputs of each morsel of the input of a group of neighbours, of which
    /// `not_one_to_one` are not one-to-one. The log has the name of node `key`.
    Segment { key: usize, not_one_to_one: u64 },
    /// Snapshots that the node takes.
    Snapshots,
}

/// The part of its inputs that a node needs, or that neighbours which run as one need.
pub(in crate::run::engine) struct NodeInputs<'a> {
    run: &'a EpochRun,
    /// The node; of neighbours, the last.
    id: usize,
    round: u64,
    wanted: Option<&'a Wanted>,
    /// Position of the node, if an epoch is resumed in the middle of its output.
    cursor: Option<&'a Cursor>,
    kind: LogKind,
    /// Streams to open: an output of another node, and the wanted part if it is not all.
    pub inputs: Vec<((usize, usize), Option<Wanted>)>,
    /// Positions of each output's items, if some of the items are not wanted.
    pub outputs: Option<Vec<Ranges>>,
}

/// Decisions, before anything is opened.
impl<'a> NodeInputs<'a> {
    /// Decides for a node that runs inline.
    pub(in crate::run::engine) fn of_node(
        run: &'a EpochRun,
        id: usize,
        round: u64,
        wanted: Option<&'a Wanted>,
    ) -> Self {
        let node = &run.engine.flow.nodes[id];
        let (hints, group) = (node.hints(), &run.engine.plan.groups[id]);
        let kind = match &node.node.op {
            _ if !run.engine.settings.resumable => LogKind::None,
            _ if run.unordered[id] => LogKind::Unordered {
                identity: !hints.lineage,
            },
            Op::Source(_) if !hints.is_resumable => LogKind::ByPosition,
            _ if !group.is_empty() => {
                return Self::new(run, group, round, wanted, segment_log(run, group));
            }
            Op::Pipe(_)
                if hints.arity == Arity::One && (hints.by_position || hints.is_shardable) =>
            {
                LogKind::OfInput
            }
            Op::Pipe(_) if hints.by_position => LogKind::ByPosition,
            _ => LogKind::Snapshots,
        };
        Self::new(run, slice::from_ref(&id), round, wanted, kind)
    }

    /// Decides for a segment.
    pub(in crate::run::engine) fn of_segment(
        run: &'a EpochRun,
        number: usize,
        round: u64,
        wanted: Option<&'a Wanted>,
    ) -> Self {
        let segment = &run.engine.plan.segments[number];
        let nodes = &segment.nodes;
        let kind = match nodes.last() {
            _ if !run.engine.settings.resumable => LogKind::None,
            Some(&last) if run.unordered[last] => LogKind::Unordered { identity: false },
            _ if segment.arity == Arity::One => LogKind::OfInput,
            _ => segment_log(run, nodes),
        };
        Self::new(run, nodes, round, wanted, kind)
    }

    fn new(
        run: &'a EpochRun,
        nodes: &[usize],
        round: u64,
        wanted: Option<&'a Wanted>,
        kind: LogKind,
    ) -> Self {
        let id = *nodes.last().expect("at least one node runs");
        let key = match kind {
            LogKind::Segment { key, .. } => key,
            _ => id,
        };
        let mut node_inputs = NodeInputs {
            run,
            id,
            round,
            wanted,
            cursor: run.cursor(key, wanted),
            kind,
            inputs: Vec::new(),
            outputs: None,
        };
        let first = &run.engine.flow.nodes[nodes[0]];
        let inputs = match first.node.op {
            // It opens its input itself, round after round.
            Op::Rerun(_) => &[],
            _ => &first.inputs[..],
        };
        let (parts, outputs) = node_inputs.parts(inputs.len());
        node_inputs.inputs = inputs.iter().copied().zip(parts).collect();
        node_inputs.outputs = outputs;
        node_inputs
    }

    /// Returns the wanted part of each of `inputs` inputs, and the positions of the outputs.
    fn parts(&self, inputs: usize) -> (Vec<Option<Wanted>>, Option<Vec<Ranges>>) {
        let node = self.node();
        let is_source = matches!(node.node.op, Op::Source(_));
        match (self.kind, self.cursor.zip(self.wanted)) {
            (LogKind::None, _) => (vec![None; inputs], None),
            (LogKind::OfInput, _) => (vec![self.wanted.cloned()], None),
            // A source that cannot be opened anywhere reads again what it read before.
            (LogKind::ByPosition, _) => {
                let again = is_source && !node.hints().by_position && self.wanted.is_some();
                (vec![None; inputs], again.then(|| endless(&[0])))
            }
            (LogKind::Unordered { .. }, cursor) => {
                let resumed = cursor.and_then(|(cursor, _)| cursor.inputs.first());
                let part = resumed.map(InputCursor::wanted).or(self.wanted.cloned());
                (vec![part], None)
            }
            (LogKind::Segment { .. }, Some((cursor, wanted))) => {
                let (part, outputs) = SegmentLog::to_repeat(cursor, wanted);
                (vec![Some(part)], Some(vec![outputs]))
            }
            (LogKind::Segment { .. }, None) => (vec![self.wanted.cloned()], None),
            (LogKind::Snapshots, Some((cursor, _))) => (
                self.resumed_parts(cursor, inputs),
                Some(endless(&cursor.outputs)),
            ),
            // A node that was not in the earlier graph stands where its reader does; a source has
            // to be opened from the beginning.
            (LogKind::Snapshots, None) => {
                let opened = is_source && self.wanted.is_some();
                (
                    vec![self.wanted.cloned(); inputs],
                    opened.then(|| endless(&[0])),
                )
            }
        }
    }

    /// Returns the wanted part of each input of a node that resumes from a snapshot.
    fn resumed_parts(&self, cursor: &Cursor, inputs: usize) -> Vec<Option<Wanted>> {
        let mut parts: Vec<_> = (0..inputs)
            .map(|at| cursor.inputs.get(at).map(InputCursor::wanted))
            .collect();
        if let Op::Pipe(pipe) = &self.node().node.op
            && let Some(input) = cursor.inputs.first()
            && let Some(held) = pipe.held(
                &self
                    .run
                    .context(self.id, self.round)
                    .with_node_state(restored(self.cursor)),
            )
        {
            let sound = held.is_sorted_by(|a, b| a < b)
                && held.last().is_none_or(|&last| last < input.from);
            // A list that has no valid places in the input fails when the pipe reads its snapshot.
            let held = if sound { held } else { Vec::new() };
            parts[0] = Some(Wanted::new(held, input.from));
        }
        parts
    }

    fn node(&self) -> &'a FlowNode {
        &self.run.engine.flow.nodes[self.id]
    }
}

/// Inputs, log and context of the node, after its inputs were opened.
impl NodeInputs<'_> {
    /// Makes the log, which reads the histories of the inputs.
    pub(in crate::run::engine) fn log(&self, opened: &[Wired]) -> NodeLog {
        let (run, node) = (self.run, self.node());
        let (name, trim) = (node.name.clone(), run.trim.clone());
        match self.kind {
            LogKind::None => NodeLog::None,
            LogKind::OfInput => NodeLog::History(opened[0].history()),
            LogKind::ByPosition => NodeLog::History(Arc::new(ByPosition(name))),
            LogKind::Unordered { identity } => {
                let ((above, _), part) = &self.inputs[0];
                let orders = (run.is_unordered(*above), identity);
                let begun = part.clone().unwrap_or_else(|| Wanted::since(0));
                NodeLog::Unordered(Unordered::new(
                    name,
                    opened[0].history(),
                    orders,
                    trim,
                    begun,
                    self.cursor,
                ))
            }
            LogKind::Segment {
                key,
                not_one_to_one,
            } => {
                let name = run.engine.flow.nodes[key].name.clone();
                let log = SegmentLog::new(name, not_one_to_one, trim, opened[0].history());
                if let (Some(cursor), Some(part)) = (self.cursor, &self.inputs[0].1) {
                    log.resume(cursor, part.holes().len() as u64);
                }
                NodeLog::Segment(log)
            }
            LogKind::Snapshots => {
                let parts = self
                    .inputs
                    .iter()
                    .map(|(_, part)| part.clone().unwrap_or_else(|| Wanted::since(0)));
                let histories = opened.iter().map(Wired::history);
                // A rerun that was not resumed yet leaves what is upstream as it was.
                let inputs = match node.node.op {
                    Op::Rerun(_) => self.untouched().into_iter().collect(),
                    _ => parts.zip(histories).collect(),
                };
                let outputs = node.node.outputs();
                NodeLog::Snapshots(Recorder::new(
                    name,
                    self.id,
                    outputs,
                    trim,
                    inputs,
                    self.cursor,
                    node.hints().may_change.is_some(),
                ))
            }
        }
    }

    /// Returns the inputs of a node, where the log counts what the node takes.
    pub(in crate::run::engine) fn counted(
        &self,
        opened: Vec<Wired>,
        log: &NodeLog,
    ) -> Vec<AnyItems> {
        let counted = |(at, Wired { items, .. }): (usize, Wired)| {
            let taken = match log {
                NodeLog::Unordered(log) => log.counter().clone(),
                NodeLog::Snapshots(recorder) => recorder.taken(at),
                _ => return items,
            };
            let ((above, _), _) = self.inputs[at];
            let edge = &self.run.engine.flow.nodes[above].node.edge;
            edge.counted(items, Some(taken), None)
        };
        opened.into_iter().enumerate().map(counted).collect()
    }

    /// Makes the context that the node is applied with.
    pub(in crate::run::engine) fn context(&self, log: &NodeLog) -> Context {
        let context = self.run.context(self.id, self.round);
        let state = match (log, self.kind) {
            (NodeLog::None, _) => return context,
            (NodeLog::Unordered(log), LogKind::Unordered { identity }) => NodeState {
                lineage: (!identity).then(|| Lineage::new(log.clone())),
                ..restored(self.cursor)
            },
            (NodeLog::Snapshots(recorder), _) => NodeState {
                recorder: Some(recorder.clone()),
                ..restored(self.cursor)
            },
            _ => NodeState {
                wanted: self.wanted.cloned(),
                ..NodeState::default()
            },
        };
        context.with_node_state(state)
    }

    /// Returns the input of a resumed node that has not asked for it yet.
    fn untouched(&self) -> Option<(Wanted, Arc<dyn History>)> {
        let input = self.cursor?.inputs.first()?;
        let cursors = self.run.cursors.clone()?;
        Some((
            input.wanted(),
            Arc::new(Untouched(cursors, self.run.names_above(self.id))),
        ))
    }
}

fn segment_log(run: &EpochRun, nodes: &[usize]) -> LogKind {
    let (key, not_one_to_one) = run
        .engine
        .flow
        .segment_key(nodes)
        .expect("one of them is not one in one out");
    LogKind::Segment {
        key,
        not_one_to_one,
    }
}

/// Returns ranges without end.
fn endless(starts: &[u64]) -> Vec<Ranges> {
    starts
        .iter()
        .map(|&start| vec![(start, u64::MAX)])
        .collect()
}

impl EpochRun {
    /// Returns the position of a node, if an epoch is resumed in the middle of its output.
    pub(in crate::run::engine) fn cursor(
        &self,
        id: usize,
        wanted: Option<&Wanted>,
    ) -> Option<&Cursor> {
        wanted?;
        self.cursors.as_ref()?.get(&self.engine.flow.nodes[id].name)
    }

    /// Returns true if a node's output comes in any order, so that a resumed epoch counts it anew.
    fn is_unordered(&self, id: usize) -> bool {
        let node = &self.engine.flow.nodes[id];
        let passes = node.hints().arity == Arity::One && !node.hints().lineage;
        let above = || {
            node.inputs
                .first()
                .is_some_and(|&(above, _)| self.is_unordered(above))
        };
        self.unordered[id] || (passes && above())
    }

    /// Returns the names of all nodes upstream of a node.
    fn names_above(&self, id: usize) -> Vec<Arc<str>> {
        let nodes = &self.engine.flow.nodes;
        let mut is_above = vec![false; nodes.len()];
        for node in (0..=id).rev() {
            if node == id || is_above[node] {
                nodes[node]
                    .inputs
                    .iter()
                    .for_each(|&(above, _)| is_above[above] = true);
            }
        }
        (0..id)
            .filter(|&node| is_above[node])
            .map(|node| nodes[node].name.clone())
            .collect()
    }
}

/// Returns the snapshot of a node.
fn restored(cursor: Option<&Cursor>) -> NodeState {
    let state = cursor.map(|cursor| cursor.state.clone().into());
    let used = cursor
        .and_then(|cursor| cursor.pieces.first())
        .map_or(0, |&(_, used)| used);
    NodeState {
        state,
        used,
        ..NodeState::default()
    }
}

/// Snapshot of the upstream of a node that has not asked for it yet: unchanged.
struct Untouched(Arc<Cursors>, Vec<Arc<str>>);

impl History for Untouched {
    fn save(&self, _: Point, to: &mut Saving) {
        for name in &self.1 {
            if let Some(cursor) = self.0.get(name) {
                to.cursor(name, cursor.clone());
            }
        }
    }

    fn forget(&self, _: u64) {}
}
