//! What a node that runs inline is given: its inputs, and what it takes to stop and to resume
//! there.

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

/// Positions, one range after the other.
pub(super) type Runs = Vec<(u64, u64)>;

/// What a node that runs inline is given.
pub(super) struct NodeInputs {
    pub context: Context,
    pub inputs: Vec<AnyItems>,
    /// Of a node without a recorder.
    pub trace: Option<InlineTrace>,
    /// For each output the positions of what it gives, one range after the other, where some of
    /// that is not wanted.
    pub runs: Option<Vec<Runs>>,
    /// Of a node that keeps something.
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

/// Nodes by how they are stopped and resumed where they run inline.
impl EpochRun {
    pub(super) fn inputs_of(
        self: &Arc<Self>,
        id: usize,
        round: u64,
        wanted: Option<&Wanted>,
    ) -> NodeInputs {
        let node = &self.engine.flow.nodes[id];
        let hints = node.hints();
        let by_position = hints.facts.by_position;
        match &node.node.op {
            _ if !self.engine.settings.resumable => self.of_no_states(id, round),
            _ if self.unordered[id] => self.of_any_order(id, round, wanted),
            Op::Source(_) if !hints.keeps => self.of_source(id, round, wanted),
            _ if !self.engine.plan.groups[id].is_empty() => self.of_group(id, round, wanted),
            Op::Pipe(_) if hints.arity == Arity::One && (by_position || hints.shardable) => {
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
        let identity = !node.hints().facts.lineage;
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

    /// A source that opens anywhere, or that gives again what it gave.
    fn of_source(&self, id: usize, round: u64, wanted: Option<&Wanted>) -> NodeInputs {
        let by_position = self.engine.flow.nodes[id].hints().facts.by_position;
        let context = self.context(id, round).with_node_state(wants(wanted));
        let runs = wanted
            .filter(|_| !by_position)
            .map(|_| vec![vec![(0, u64::MAX)]]);
        NodeInputs {
            runs,
            ..NodeInputs::new(context, Vec::new(), Some(self.by_position(id)))
        }
    }

    /// The last of some neighbours that run in pieces.
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

    /// A node that looks at its inputs as a whole.
    fn of_whole(self: &Arc<Self>, id: usize, round: u64, wanted: Option<&Wanted>) -> NodeInputs {
        let node = &self.engine.flow.nodes[id];
        let cursor = self.cursor(id, wanted);
        let mut wanteds: Vec<Option<Wanted>> = (0..node.inputs.len())
            .map(|at| match cursor {
                Some(cursor) => cursor.inputs.get(at).map(Input::wanted),
                // A node that was not there before: it stands where its reader does.
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
            // What is no list of places in the input fails where the pipe reads what it kept.
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

/// What they are made of.
impl EpochRun {
    /// Where a node stood, if an epoch is resumed in the middle of what it gives.
    pub(super) fn cursor(&self, id: usize, wanted: Option<&Wanted>) -> Option<&Cursor> {
        wanted?;
        self.cursors.as_ref()?.get(&self.engine.flow.nodes[id].name)
    }

    /// The inputs of a node.
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

    /// Of a node that keeps something.
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
            // A source that was not there before has to be opened from the beginning.
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

    /// The input of what distributes over concatenation, with a log of pieces, and what sifts its
    /// output.
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

    /// The input of a node whose items come, or leave, in any order, and the log of it.
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

    /// Whether what a node gives comes in any order, so that who resumes counts it anew.
    fn is_unordered(&self, id: usize) -> bool {
        let node = &self.engine.flow.nodes[id];
        let passes = node.hints().arity == Arity::One && !node.hints().facts.lineage;
        let above = || {
            node.inputs
                .first()
                .is_some_and(|&(above, _)| self.is_unordered(above))
        };
        self.unordered[id] || (passes && above())
    }

    /// The names of all nodes above one.
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

/// For a node that keeps nothing.
fn wants(wanted: Option<&Wanted>) -> NodeState {
    NodeState {
        wanted: wanted.cloned(),
        ..NodeState::default()
    }
}

/// What a node kept.
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

/// Nodes whose items come, or leave, in any order, where states can be asked for; of an epoch that
/// is resumed, those for which it was so.
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
                // What gives one for one is where what is above it is.
                Place::Queue(_) => engine.flow.nodes[id].hints().facts.lineage,
            };
            (0..nodes().len())
                .map(|id| unordered[id] && own(id))
                .collect()
        }
    }
}

/// What stands above a node that has not asked for it yet: as it was.
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
