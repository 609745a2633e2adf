//! The first steps that use items of a source, as far as they follow from the graph alone.

use std::any::{Any, TypeId};
use std::sync::{Arc, Weak};
use std::task::{self, Poll};

use super::{Engine, RankShare};
use crate::context::{FirstSteps, RunInfo};
use crate::graph::{AnyItems, Edge, Flow, FlowNode, Look, Op};
use crate::items::Demand;
use crate::settings::Order;
use crate::{Arity, Context, Origin, Role};

/// Number of items that are asked for at once.
const MANY: usize = 1024;

/// Computes first steps in the epoch of a rank, or of several that are read in turn.
pub(super) struct StepsOf {
    engine: Weak<Engine>,
    info: RunInfo,
    ranks: Arc<[RankShare]>,
}

impl StepsOf {
    pub fn new(engine: &Arc<Engine>, info: &RunInfo, ranks: Arc<[RankShare]>) -> Self {
        StepsOf {
            engine: Arc::downgrade(engine),
            ranks,
            info: RunInfo {
                // A trace does not record the calls of these nodes.
                poll_log: None,
                ..info.clone()
            },
        }
    }

    fn context(&self, node: &FlowNode, share: RankShare) -> Context {
        let info = RunInfo {
            rank: share.rank,
            uneven: share.uneven,
            // They run beside those of the epoch, and share no state with them.
            shared: Arc::default(),
            ..self.info.clone()
        };
        node.context(&info, 0, Arc::default())
    }

    /// Returns the steps in the epoch of one rank.
    fn of_rank(
        &self,
        share: RankShare,
        node: &str,
        (of_type, output): (TypeId, Box<dyn Any + Send>),
        of: &[Origin],
    ) -> Option<Vec<Option<u64>>> {
        let engine = self.engine.upgrade()?;
        let Engine { flow, settings, .. } = &*engine;
        let is_it = |one: &FlowNode| &*one.name == node;
        let source = flow.nodes.iter().position(is_it)?;
        let mut edge = &flow.nodes[source].node.edge;
        if settings.order != Order::Strict || edge.item_type() != of_type {
            return None;
        }
        let mut below = pipes_below(flow, source)?.into_iter().peekable();
        let mut items = edge.one(edge.weigh(output));
        let selects = |node: &FlowNode| node.hints().selects && !node.hints().renames;
        while let Some(node) = below.next_if(|&node| selects(node)) {
            let (hints, Op::Pipe(pipe)) = (node.hints(), &node.node.op) else {
                return None;
            };
            if hints.is_shardable && hints.arity == Arity::One {
                // Changes no place, and may count what passes, as a digest does.
                continue;
            }
            items = pipe.apply(items, &self.context(node, share));
            edge = &node.node.edge;
        }
        let mut places = Places::of(of, items, edge)?;
        for node in below {
            places.pass(node)?;
        }
        let most = settings.max_steps.unwrap_or(u64::MAX);
        let steps = places.places.into_iter();
        let steps = steps.map(|step| step.filter(|&step| step < most));
        let in_turn = |step| share.step_in_turn(step, &self.ranks);
        Some(steps.map(|step| step.map(in_turn)).collect())
    }
}

impl FirstSteps for StepsOf {
    fn first_steps(
        &self,
        node: &str,
        (of_type, output): (TypeId, &dyn Fn() -> Box<dyn Any + Send>),
        of: &[Origin],
    ) -> Option<Vec<Option<u64>>> {
        let mut first = vec![None; of.len()];
        for &share in &*self.ranks {
            let steps = self.of_rank(share, node, (of_type, output()), of)?;
            for (first, step) in first.iter_mut().zip(steps) {
                *first = [*first, step].into_iter().flatten().min();
            }
        }
        Some(first)
    }
}

/// Returns the nodes from a source to the consumer, if they are one pipe after the other.
fn pipes_below(flow: &Flow, source: usize) -> Option<Vec<&FlowNode>> {
    let (mut pipes, mut id) = (Vec::new(), flow.root.0);
    while id != source {
        let node = &flow.nodes[id];
        let (Op::Pipe(_), &[(above, _)]) = (&node.node.op, &node.inputs[..]) else {
            return None;
        };
        pipes.push(node);
        id = above;
    }
    pipes.reverse();
    Some(pipes)
}

/// Places of some items in a stream, and its length.
struct Places {
    places: Vec<Option<u64>>,
    len: u64,
}

impl Places {
    /// Finds where the items are, or what becomes of them first; `None` if the stream waits for
    /// something, or has an error.
    fn of(of: &[Origin], items: AnyItems, edge: &Arc<dyn Edge>) -> Option<Places> {
        let (mut places, mut len) = (vec![None; of.len()], 0);
        let mut chunks = edge.erase(items);
        let mut cx = task::Context::from_waker(task::Waker::noop());
        loop {
            let chunk = match chunks.poll_chunk(&mut cx, Demand::up_to(MANY)) {
                Poll::Ready(Some(chunk)) => chunk,
                Poll::Ready(None) => return Some(Places { places, len }),
                Poll::Pending => return None,
            };
            for look in edge.look(&chunk) {
                let Look::Item(origin, _) = look else {
                    return None;
                };
                for (item, place) in of.iter().zip(&mut places) {
                    if place.is_none() && origin.comes_from(item) {
                        *place = Some(len);
                    }
                }
                len += 1;
            }
        }
    }

    /// Goes on through a pipe; `None` if the pipe may put items to any place.
    fn pass(&mut self, node: &FlowNode) -> Option<()> {
        let (hints, Op::Pipe(pipe)) = (node.hints(), &node.node.op) else {
            return None;
        };
        match hints.role {
            Role::Batch(size) => {
                self.len = pipe.len_hint(self.len)?;
                for place in &mut self.places {
                    *place = place.map(|place| place / size.max(1) as u64);
                    // A last batch may be left out.
                    *place = place.filter(|&place| place < self.len);
                }
                Some(())
            }
            _ => (hints.arity == Arity::One && (hints.is_shardable || hints.by_position))
                .then_some(()),
        }
    }
}
