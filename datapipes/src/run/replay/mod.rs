//! Replay of one sample through the graph, node by node, with the result of each node.
//!
//! Everything runs on the caller's thread, one node after another. When a node is applied, its
//! input is the sample alone (and, upstream of a node that groups siblings, its siblings). A node
//! that distributes over concatenation returns what it returned in the epoch, since random numbers
//! depend on nothing but seed, epoch, node and origin. Nodes that only select are passed by. Any
//! other node reads the stream as a whole, and the replay stops before it. [`mod@batch`] goes on
//! from there with the samples of a batch.

mod batch;
mod found;
mod pass;

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::batch::batch;
use crate::checkpoint::NodeState;
use crate::context::{Draws, RunInfo};
use crate::graph::{AnyChunk, AnyItems, Edge, FlowNode, Look, Op};
use crate::items::Demand;
use crate::run::{Engine, RankShare};
use crate::{Arity, Context, Error, Origin, Result, Wanted};
use pass::Pass;

/// Part of a node's output.
pub(crate) struct Carried {
    pub chunk: AnyChunk,
    pub edge: Arc<dyn Edge>,
    /// Position of the first item in the node's output of an epoch, if it is known.
    position: Option<u64>,
}

impl Carried {
    pub(crate) fn look(&self) -> Vec<Look<'_>> {
        self.edge.look(&self.chunk)
    }
}

/// Treatment of a node by the replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The sample began at the node, or the node was applied to it.
    Run,
    /// The node selects, and is passed by.
    Passed,
    /// The replay stops before the node, for this reason.
    Stopped(&'static str),
}

/// Result of a node for the sample.
pub(crate) struct NodeResult<'a> {
    pub node: &'a FlowNode,
    pub way: Way,
    pub time: Duration,
    pub made: &'a [&'a Carried],
    /// First words of the random numbers that the node asked for.
    pub draws: Option<[u32; 4]>,
}

/// Callback for the result of each node on the way.
pub(crate) type Show<'a> = &'a mut dyn FnMut(&NodeResult<'_>);

/// Runs one sample of one epoch again.
pub(crate) struct Replayer<'e> {
    engine: &'e Engine,
    info: RunInfo,
    scope: super::Scope,
    target: Origin,
    /// Source item that the sample comes from.
    top: Origin,
    /// Number of repeats between the source and the output of each node; `None` for nodes that are
    /// not downstream of the source.
    repeats: Vec<Option<usize>>,
    /// True for each node that has a node downstream that groups siblings.
    siblings: Vec<bool>,
}

impl<'e> Replayer<'e> {
    /// Makes a replay of an item that was not made of several items.
    pub(crate) fn new(engine: &'e Engine, epoch: u64, target: &Origin) -> Result<Self> {
        let share = RankShare {
            rank: engine.settings.rank,
            uneven: engine.settings.uneven,
        };
        let (scope, mut info) = engine.begin(epoch, share, false)?;
        info.draws = Some(Arc::new(Draws::of(target.clone())));
        let nodes = &engine.flow.nodes;
        let source = target.source().unwrap_or(u16::MAX);
        let mut repeats: Vec<Option<usize>> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let above = node.inputs.iter().filter_map(|&(id, _)| repeats[id]).max();
            repeats.push(match node.node.op {
                Op::Source(_) => (node.source == source).then_some(0),
                Op::Rerun(_) => above.map(|above| above + 1),
                _ => above,
            });
        }
        if repeats[engine.flow.root.0].is_none() {
            let sources = nodes
                .iter()
                .filter(|node| matches!(node.node.op, Op::Source(_)));
            let sources: Vec<_> = sources
                .map(|source| format!("{} (`{}`)", source.source, source.name))
                .collect();
            let message = format!(
                "no item {target}: the sources of the graph have the numbers {}",
                sources.join(", ")
            );
            return Err(Error::not_found(message));
        }
        let mut siblings = vec![false; nodes.len()];
        for (id, node) in nodes.iter().enumerate().rev() {
            for &(above, _) in &node.inputs {
                siblings[above] |= siblings[id] || node.hints().is_shardable_by_parent;
            }
        }
        let (target, top) = (target.clone(), target.top().clone());
        Ok(Replayer {
            engine,
            info,
            scope,
            target,
            top,
            repeats,
            siblings,
        })
    }

    /// Runs the replay. Returns the last result: at the end of the graph, or before a node that
    /// reads the stream as a whole.
    pub(crate) fn run(&self, show: Show<'_>) -> Result<Vec<Carried>> {
        Ok(self.pass(show)?.ends)
    }

    /// Runs the replay, and returns where it ended.
    fn pass<'s>(&self, show: Show<'s>) -> Result<Pass<'_, 'e, 's>> {
        let (mut child, mut origin) = (0, &self.target);
        while let Some(parent) = origin.parent() {
            (child, origin) = (origin.index(), parent);
        }
        let nodes = &self.engine.flow.nodes;
        let repeats = self.repeats[self.engine.flow.root.0].unwrap_or(0);
        let makes_children = nodes.iter().zip(&self.repeats).any(|(node, repeats)| {
            let hints = node.hints();
            repeats.is_some()
                && hints.arity == Arity::Any
                && !hints.selects
                && matches!(node.node.op, Op::Pipe(_))
        });
        let round = match child {
            _ if repeats == 0 => 0,
            round if round == 0 || !makes_children => round,
            // The first child may be a round of a repeat, or a child made by a node of the graph.
            round => {
                let mut nothing = |_: &NodeResult<'_>| {};
                let mut first = Pass::new(self, 0, &mut nothing);
                match first.root() {
                    Ok(()) if first.found => 0,
                    _ => round,
                }
            }
        };
        let mut pass = Pass::new(self, round, show);
        pass.root()?;
        if !pass.found
            && pass.stops.is_empty()
            && !pass.renamed
            && pass.ends.iter().any(|end| !end.look().is_empty())
        {
            let only_above = pass
                .ends
                .iter()
                .flat_map(Carried::look)
                .all(|look| match look {
                    Look::Item(origin, _) => !origin.comes_from(&self.target),
                    Look::Error(_) => false,
                });
            if only_above {
                let message = format!(
                    "no item {}: no node made children of {}",
                    self.target, self.top
                );
                return Err(Error::not_found(message));
            }
        }
        Ok(pass)
    }

    fn context(&self, node: &FlowNode, round: u64) -> Context {
        node.context(&self.info, round, Arc::default())
    }

    /// Returns true if a node can begin at any place, so that no more than one item of it is
    /// needed.
    fn is_start(node: &FlowNode) -> bool {
        match node.node.op {
            Op::Source(_) => true,
            Op::Pipe(_) => node.hints().by_position && node.hints().arity != Arity::One,
            _ => false,
        }
    }

    /// Returns the whole output of a node.
    fn whole(&self, id: usize, round: u64, wanted: Option<Wanted>) -> Result<(AnyItems, Context)> {
        let node = &self.engine.flow.nodes[id];
        let mut context = self.context(node, round);
        if wanted.is_some() {
            context = context.with_node_state(NodeState {
                wanted,
                ..NodeState::default()
            });
        }
        let mut inputs = Vec::new();
        for &(above, _) in &node.inputs {
            let (items, context) = self.whole(above, round, None)?;
            inputs.push(
                self.engine.flow.nodes[above]
                    .node
                    .edge
                    .instrument(items, context, None),
            );
        }
        let applied = catch_unwind(AssertUnwindSafe(|| match &node.node.op {
            Op::Source(source) => Some(source.open(&context)),
            Op::Pipe(pipe) => inputs.pop().map(|input| pipe.apply(input, &context)),
            Op::Join(join) => Some(join.join(inputs, &context)),
            Op::Split(_) | Op::Rerun(_) => None,
        }));
        match applied {
            Ok(Some(items)) => Ok((items, context)),
            Ok(None) => {
                let message = "a node that gives by position, below one that splits or repeats, is not replayed";
                Err(Error::unsupported(message).at(&node.name))
            }
            Err(payload) => Err(Error::panic(payload).at(&node.name)),
        }
    }

    /// Takes output chunk by chunk, until `take` returns that it is enough.
    async fn drain(
        &self,
        items: AnyItems,
        edge: &Arc<dyn Edge>,
        context: &Context,
        most: usize,
        mut take: impl FnMut(AnyChunk) -> bool,
    ) {
        let mut chunks = edge.erase(edge.instrument(items, context.clone(), None));
        while let Some(chunk) = poll_fn(|cx| chunks.poll_chunk(cx, Demand::up_to(most))).await {
            if !take(chunk) {
                return;
            }
        }
    }

    fn wait<R>(&self, future: impl Future<Output = R>) -> R {
        let _entered = self.scope.enter();
        super::block_on(future)
    }
}

/// Number of items asked for at once.
const MANY: usize = 64;
