//! Inputs and checkpoint state of a node that runs inline.

use std::sync::Arc;

use super::wiring::{Wired, one};
use super::{Cursors, Engine, EpochRun};
use crate::checkpoint::{
    ByPosition, Cursor, Input, Lineage, NodeState, Point, Recorder, Saving, SegmentLog, Trace,
    Unordered,
};
use crate::graph::{AnyItems, Edge, Op};
use crate::plan::Place;
use crate::{Arity, Context, Wanted};

/// Positions, one range after another.
pub(super) type Runs = Vec<(u64, u64)>;

/// Inputs and checkpoint state of a node that runs inline.
pub(super) struct NodeInputs {
    pub context: Context,
    pub inputs: Vec<AnyItems>,
    /// Trace of a node without a recorder.
    pub trace: Option<InlineTrace>,
    /// Positions of each output's items, one range after another, if some of the items are not
    /// wanted.
    pub runs: Option<Vec<Runs>>,
    /// Recorder of a node that has a snapshot.
    pub recorder: Option<Arc<Recorder>>,
}

impl NodeInputs {
    fn new(context: Context, inputs: Vec<AnyItems>, trace: Option<InlineTrace>) -> Self {
        NodeInputs {
            context,
            inputs,
            trace,
            runs: None,
            recorder: None,
        }
    }
}

#[derive(Clone)]
pub(super) enum InlineTrace {
    Plain(Arc<dyn Trace>),
    SegmentLog(Arc<SegmentLog>),
}

impl InlineTrace {
    pub(super) fn into_trace(self) -> Arc<dyn Trace> {
        match self {
            InlineTrace::Plain(trace) => trace,
            InlineTrace::SegmentLog(pieces) => pieces,
        }
    }
}

/// Methods that stop and resume nodes that run inline.
impl EpochRun {
    pub(super) fn inputs_of(
        self: &Arc<Self>,
        id: usize,
        round: u64,
        wanted: Option<&Wanted>,
    ) -> NodeInputs {
        let node = &self.engine.flow.nodes[id];
        let hints = node.hints();
        let by_position = hints.by_position;
        match &node.node.op {
            _ if !self.engine.settings.resumable => self.of_no_states(id, round),
            _ if self.unordered[id] => self.of_any_order(id, round, wanted),
            Op::Source(_) if !hints.is_resumable => self.of_source(id, round, wanted),
            _ if !self.engine.plan.groups[id].is_empty() => self.of_group(id, round, wanted),
            Op::Pipe(_) if hints.arity == Arity::One && (by_position || hints.is_shardable) => {
                let Wired { items, trace } = one(self.above(id, round, wanted));
                let context = self.context(id, round).with_node_state(wants(wanted));
                NodeInputs::new(context, vec![items], trace.map(InlineTrace::Plain))
            }
            Op::Pipe(_) if by_position => {
                let inputs = self
                    .above(id, round, None)
                    .into_iter()
                    .map(|input| input.items)
                    .collect();
                let context = self.context(id, round).with_node_state(wants(wanted));
                NodeInputs::new(context, inputs, Some(self.by_position(id)))
            }
            Op::Rerun(_) => self.of_rerun(id, round, wanted),
            _ => self.of_whole(id, round, wanted),
        }
    }

    fn of_no_states(self: &Arc<Self>, id: usize, round: u64) -> NodeInputs {
        let inputs = match &self.engine.flow.nodes[id].node.op {
            Op::Rerun(_) => Vec::new(),
            _ => self
                .above(id, round, None)
                .into_iter()
                .map(|input| input.items)
                .collect(),
        };
        NodeInputs::new(self.context(id, round), inputs, None)
    }

    fn of_any_order(
        self: &Arc<Self>,
        id: usize,
        round: u64,
        wanted: Option<&Wanted>,
    ) -> NodeInputs {
        let node = &self.engine.flow.nodes[id];
        let identity = !node.hints().lineage;
        let (items, unordered) = self.unordered_input(id, node.inputs[0], round, wanted, identity);
        let edge = &self.engine.flow.nodes[node.inputs[0].0].node.edge;
        let items = edge.counted(items, Some(unordered.counter().clone()), None);
        let kept = self
            .cursor(id, wanted)
            .map(|cursor| cursor.kept.clone().into());
        let trace = InlineTrace::Plain(unordered.clone());
        let lineage = Some(Lineage::new(unordered)).filter(|_| !identity);
        let node_state = NodeState {
            kept,
            lineage,
            ..NodeState::default()
        };
        NodeInputs::new(
            self.context(id, round).with_node_state(node_state),
            vec![items],
            Some(trace),
        )
    }

    /// Makes the inputs of a source that opens anywhere, or that reads again what it read before.
    fn of_source(&self, id: usize, round: u64, wanted: Option<&Wanted>) -> NodeInputs {
        let by_position = self.engine.flow.nodes[id].hints().by_position;
        let context = self.context(id, round).with_node_state(wants(wanted));
        let runs = wanted
            .filter(|_| !by_position)
            .map(|_| vec![vec![(0, u64::MAX)]]);
        NodeInputs {
            runs,
            ..NodeInputs::new(context, Vec::new(), Some(self.by_position(id)))
        }
    }

    /// Makes the inputs of the last of some neighbours that run in morsels.
    fn of_group(self: &Arc<Self>, id: usize, round: u64, wanted: Option<&Wanted>) -> NodeInputs {
        let (items, pieces, runs) = self.pieces(&self.engine.plan.groups[id], round, wanted);
        let context = self.context(id, round).with_node_state(wants(wanted));
        let runs = runs.map(|runs| vec![runs]);
        NodeInputs {
            runs,
            ..NodeInputs::new(context, vec![items], pieces.map(InlineTrace::SegmentLog))
        }
    }

    fn of_rerun(self: &Arc<Self>, id: usize, round: u64, wanted: Option<&Wanted>) -> NodeInputs {
        let cursor = self.cursor(id, wanted);
        let untouched = cursor.and_then(|cursor| {
            let trace: Arc<dyn Trace> =
                Arc::new(Untouched(self.cursors.clone()?, self.names_above(id)));
            Some((cursor.inputs.first()?.wanted(), trace))
        });
        let recorder = self.recorder(id, untouched.into_iter().collect(), cursor);
        self.recorded(id, round, wanted, recorder, Vec::new())
    }

    /// Makes the inputs of a node that reads its inputs as a whole.
    fn of_whole(self: &Arc<Self>, id: usize, round: u64, wanted: Option<&Wanted>) -> NodeInputs {
        let node = &self.engine.flow.nodes[id];
        let cursor = self.cursor(id, wanted);
        let mut wanteds: Vec<Option<Wanted>> = (0..node.inputs.len())
            .map(|at| match cursor {
                Some(cursor) => cursor.inputs.get(at).map(Input::wanted),
                // A node that was not in the earlier graph stands where its reader does.
                None => wanted.cloned(),
            })
            .collect();
        if let (Op::Pipe(pipe), Some(cursor), Some(first)) =
            (&node.node.op, cursor, wanteds.first_mut())
            && let Some(held) = pipe.held(
                &self
                    .context(id, round)
                    .with_node_state(restored(Some(cursor))),
            )
            && let Some(input) = cursor.inputs.first()
        {
            let sound = held.is_sorted_by(|a, b| a < b)
                && held.last().is_none_or(|&last| last < input.from);
            // A list that has no valid places in the input fails when the pipe reads its snapshot.
            let held = if sound { held } else { Vec::new() };
            *first = Some(Wanted::new(held, input.from));
        }
        let (mut inputs, mut traces) = (Vec::new(), Vec::new());
        for (&input, wanted) in node.inputs.iter().zip(wanteds) {
            let Wired { items, trace } = self.stream(input, round, wanted.as_ref());
            inputs.push((items, &self.engine.flow.nodes[input.0].node.edge));
            let trace = trace.expect("everything in a resumable loader has a trace");
            traces.push((wanted.unwrap_or_else(|| Wanted::since(0)), trace));
        }
        let recorder = self.recorder(id, traces, cursor);
        let counted = |(at, (items, edge)): (usize, (AnyItems, &Arc<dyn Edge>))| {
            edge.counted(items, Some(recorder.taken(at)), None)
        };
        let inputs = inputs.into_iter().enumerate().map(counted).collect();
        self.recorded(id, round, wanted, recorder, inputs)
    }
}

/// Building blocks of the methods above.
impl EpochRun {
    /// Returns the position of a node, if an epoch is resumed in the middle of its output.
    pub(super) fn cursor(&self, id: usize, wanted: Option<&Wanted>) -> Option<&Cursor> {
        wanted?;
        self.cursors.as_ref()?.get(&self.engine.flow.nodes[id].name)
    }

    /// Makes the inputs of a node.
    fn above(self: &Arc<Self>, id: usize, round: u64, wanted: Option<&Wanted>) -> Vec<Wired> {
        let inputs = self.engine.flow.nodes[id].inputs.iter();
        inputs
            .map(|&input| self.stream(input, round, wanted))
            .collect()
    }

    fn by_position(&self, id: usize) -> InlineTrace {
        InlineTrace::Plain(Arc::new(ByPosition(
            self.engine.flow.nodes[id].name.clone(),
        )))
    }

    fn recorder(
        &self,
        id: usize,
        inputs: Vec<(Wanted, Arc<dyn Trace>)>,
        cursor: Option<&Cursor>,
    ) -> Arc<Recorder> {
        let node = &self.engine.flow.nodes[id];
        Recorder::new(
            node.name.clone(),
            id,
            node.node.outputs(),
            self.trim.clone(),
            inputs,
            cursor,
        )
    }

    /// Makes the inputs of a node that has a snapshot.
    fn recorded(
        &self,
        id: usize,
        round: u64,
        wanted: Option<&Wanted>,
        recorder: Arc<Recorder>,
        inputs: Vec<AnyItems>,
    ) -> NodeInputs {
        let cursor = self.cursor(id, wanted);
        let begins = |outputs: &[u64]| {
            outputs
                .iter()
                .map(|&output| vec![(output, u64::MAX)])
                .collect()
        };
        let runs = match (&self.engine.flow.nodes[id].node.op, cursor, wanted) {
            (_, Some(cursor), _) => Some(begins(&cursor.outputs)),
            // A source that was not in the earlier graph has to be opened from the beginning.
            (Op::Source(_), None, Some(_)) => Some(begins(&[0])),
            _ => None,
        };
        let node_state = NodeState {
            recorder: Some(recorder.clone()),
            ..restored(cursor)
        };
        let context = self.context(id, round).with_node_state(node_state);
        NodeInputs {
            runs,
            recorder: Some(recorder),
            ..NodeInputs::new(context, inputs, None)
        }
    }

    /// Makes the input of nodes that distribute over concatenation, with a log of morsels, and the
    /// filter of their output.
    pub(super) fn pieces(
        self: &Arc<Self>,
        nodes: &[usize],
        round: u64,
        wanted: Option<&Wanted>,
    ) -> (AnyItems, Option<Arc<SegmentLog>>, Option<Runs>) {
        let flow = &self.engine.flow;
        let above = flow.nodes[nodes[0]].inputs[0];
        let (key, through) = flow
            .piece(nodes)
            .expect("one of them is not one in one out");
        let cursor = self.cursor(key, wanted);
        let (of_input, runs) = match cursor.zip(wanted) {
            Some((cursor, wanted)) => {
                let (of_input, runs) = SegmentLog::to_repeat(cursor, wanted);
                (Some(of_input), Some(runs))
            }
            None => (wanted.cloned(), None),
        };
        let Wired { items, trace } = self.stream(above, round, of_input.as_ref());
        let name = flow.nodes[key].name.clone();
        let pieces = trace.map(|trace| SegmentLog::new(name, through, self.trim.clone(), trace));
        if let (Some(pieces), Some(cursor), Some(of_input)) = (&pieces, cursor, &of_input) {
            pieces.resume(cursor, of_input.holes().len() as u64);
        }
        (items, pieces, runs)
    }

    /// Makes the input of a node whose items arrive or leave in any order, with its log.
    pub(super) fn unordered_input(
        self: &Arc<Self>,
        id: usize,
        above: (usize, usize),
        round: u64,
        wanted: Option<&Wanted>,
        identity: bool,
    ) -> (AnyItems, Arc<Unordered>) {
        let cursor = self.cursor(id, wanted);
        let of_input = cursor
            .and_then(|cursor| cursor.inputs.first())
            .map(Input::wanted)
            .or(wanted.cloned());
        let Wired { items, trace } = self.stream(above, round, of_input.as_ref());
        let trace = trace.expect("everything in a resumable loader has a trace");
        let begun = of_input.unwrap_or_else(|| Wanted::since(0));
        let name = self.engine.flow.nodes[id].name.clone();
        let marks = (self.is_unordered(above.0), identity);
        (
            items,
            Unordered::new(name, trace, marks, self.trim.clone(), begun, cursor),
        )
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

/// Makes the state of a node that has no snapshot.
fn wants(wanted: Option<&Wanted>) -> NodeState {
    NodeState {
        wanted: wanted.cloned(),
        ..NodeState::default()
    }
}

/// Returns the snapshot of a node.
fn restored(cursor: Option<&Cursor>) -> NodeState {
    let kept = cursor.map(|cursor| cursor.kept.clone().into());
    let used = cursor
        .and_then(|cursor| cursor.pieces.first())
        .map_or(0, |&(_, used)| used);
    NodeState {
        kept,
        used,
        ..NodeState::default()
    }
}

/// Returns the nodes whose items arrive or leave in any order, if checkpoints can be taken; for a
/// resumed epoch, the nodes for which it was so before.
pub(super) fn unordered(engine: &Engine, resumed: Option<&Cursors>) -> Vec<bool> {
    let nodes = || engine.flow.nodes.iter();
    match resumed {
        _ if !engine.settings.resumable => vec![false; engine.flow.nodes.len()],
        Some(cursors) if !cursors.is_empty() => nodes()
            .map(|node| {
                cursors
                    .get(&node.name)
                    .is_some_and(|cursor| cursor.unordered)
            })
            .collect(),
        _ => {
            let unordered = engine.plan.unordered(&engine.flow);
            let own = |id: usize| match engine.plan.places[id] {
                Place::Segment(number) => engine.plan.segments[number].nodes.last() == Some(&id),
                Place::Inline => true,
                // A one-to-one node is unordered if its upstream is.
                Place::Queue(_) => engine.flow.nodes[id].hints().lineage,
            };
            (0..nodes().len())
                .map(|id| unordered[id] && own(id))
                .collect()
        }
    }
}

/// Snapshot of the upstream of a node that has not asked for it yet: unchanged.
struct Untouched(Arc<Cursors>, Vec<Arc<str>>);

impl Trace for Untouched {
    fn save(&self, _: Point, to: &mut Saving) {
        for name in &self.1 {
            if let Some(cursor) = self.0.get(name) {
                to.cursor(name, cursor.clone());
            }
        }
    }

    fn forget(&self, _: u64) {}
}
