//! One run of a sample, from the sources to the end.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use futures::future::join_all;

use super::found::Found;
use super::{Carried, MANY, NodeResult, Replayer, Show, Way};
use crate::checkpoint::NodeState;
use crate::graph::{AnyChunk, AnyItems, ErasedChunks, FlowNode, Op};
use crate::items::Demand;
use crate::mix_bits;
use crate::sync::lock;
use crate::{Arity, Context, Error, Result, Role, Wanted};

pub(super) const WHOLE: &str = "it looks at the stream as a whole";
const PLACE: &str = "it uses the place of an item, which is not known here";
const OTHER_TYPE: &str = "what was passed by before it is of another type";
const REPEATS: &str = "it runs what is above more than once, in a way of its own";
/// Maximum distance between rounds of the same inner repeat. Rounds of a nested repeat are told
/// apart from other rounds by their distance from their first round.
const SAME_ROUND: u64 = 1 << 20;
const MOST_ROUNDS: u64 = 1 << 16;

/// A node before which the replay stopped.
#[derive(Clone, Copy)]
pub(super) struct Stop {
    pub node: usize,
    /// Round of a repeat downstream.
    pub round: u64,
    pub why: &'static str,
}

/// One run of the sample.
pub(super) struct Pass<'r, 'e, 's> {
    replayer: &'r Replayer<'e>,
    /// Round of the innermost repeat.
    pub round: u64,
    show: Show<'s>,
    splits: HashMap<(usize, u64), Vec<Vec<Carried>>>,
    pub ends: Vec<Carried>,
    /// Nodes before which the replay stopped.
    pub stops: Vec<Stop>,
    /// Output of a node that is not run, since it is known.
    pub given: Option<(usize, Carried)>,
    /// True if a node was passed by that makes children by itself.
    pub renamed: bool,
    /// True if the item itself was seen.
    pub found: bool,
}

impl<'r, 'e, 's> Pass<'r, 'e, 's> {
    /// Makes a pass in a round of the repeat next to the source.
    pub fn new(replayer: &'r Replayer<'e>, round: u64, show: Show<'s>) -> Self {
        Pass {
            replayer,
            round,
            show,
            splits: HashMap::new(),
            ends: Vec::new(),
            stops: Vec::new(),
            given: None,
            renamed: false,
            found: false,
        }
    }

    pub fn root(&mut self) -> Result<()> {
        let ends = self.visit(self.replayer.engine.flow.root, 0)?;
        self.ends.extend(ends);
        Ok(())
    }

    fn show<'a>(
        &mut self,
        id: usize,
        way: Way,
        time: Duration,
        made: impl IntoIterator<Item = &'a Carried>,
    ) {
        let made: Vec<&Carried> = made.into_iter().collect();
        let Replayer { engine, info, .. } = self.replayer;
        let node = &engine.flow.nodes[id];
        let draws = info.draws.as_ref();
        (self.show)(&NodeResult {
            node,
            way,
            time,
            made: &made,
            draws: draws.and_then(|draws| draws.take(&node.name)),
        });
    }

    /// Returns the round of a repeat's input. `repeats` counts the repeats between the input and
    /// the source, including this one. Nested rounds are numbered as the executor numbers them.
    fn round_above(&self, repeats: usize) -> Result<u64> {
        let mut round = self.round;
        for _ in 1..repeats {
            if round >> 32 == 0 {
                return Ok(0);
            }
            let inner = round;
            let outer =
                (1..MOST_ROUNDS).find(|&outer| inner.wrapping_sub(mix_bits(outer)) < SAME_ROUND);
            round = outer.ok_or_else(|| {
                let message = format!(
                    "no item {}: no repeat has a round {inner}",
                    self.replayer.target
                );
                Error::not_found(message)
            })?;
        }
        Ok(round)
    }

    /// Returns the part of a node's output that belongs to the sample.
    fn visit(&mut self, (id, port): (usize, usize), round: u64) -> Result<Vec<Carried>> {
        let replayer = self.replayer;
        let node = &replayer.engine.flow.nodes[id];
        let Some(repeats) = replayer.repeats[id] else {
            return Ok(Vec::new());
        };
        if let Some((_, given)) = self.given.take_if(|given| given.0 == id) {
            return Ok(vec![given]);
        }
        if let Some(outputs) = self.splits.get_mut(&(id, round)) {
            return Ok(std::mem::take(&mut outputs[port]));
        }
        if Replayer::is_start(node) {
            return self.start(id, round);
        }
        let round_above = match node.node.op {
            Op::Rerun(_) => self.round_above(repeats)?,
            _ => round,
        };
        let mut inputs = Vec::new();
        for &input in &node.inputs {
            inputs.extend(self.visit(input, round_above)?);
        }
        inputs.retain(|input| input.chunk.len > input.chunk.errors);
        if inputs.is_empty() {
            return Ok(Vec::new());
        }
        let hints = node.hints();
        let is_of_type = |input: &Carried| {
            node.inputs.iter().any(|&(above, _)| {
                replayer.engine.flow.nodes[above].node.edge.item_type() == input.edge.item_type()
            })
        };
        let by_place = hints.by_position && hints.arity == Arity::One;
        let way = match &node.node.op {
            Op::Split(_) if hints.selects => Way::Run,
            _ if hints.selects => Way::Passed,
            Op::Pipe(_) if hints.is_shardable || hints.is_shardable_by_parent => Way::Run,
            Op::Pipe(_) if by_place && matches!(&inputs[..], [one] if one.position.is_some()) => {
                Way::Run
            }
            Op::Pipe(_) if by_place => Way::Stopped(PLACE),
            Op::Rerun(_) => Way::Stopped(REPEATS),
            _ => Way::Stopped(WHOLE),
        };
        match way {
            Way::Run if !inputs.iter().all(is_of_type) => {
                self.stop(id, round, OTHER_TYPE, inputs);
            }
            Way::Run => return self.apply(id, port, round, inputs),
            Way::Passed => {
                // Padding makes children, too.
                self.renamed |=
                    hints.renames || matches!(hints.role, Role::Shard { can_pad: true, .. });
                if hints.arity != Arity::One {
                    inputs.iter_mut().for_each(|input| input.position = None);
                }
                self.show(id, way, Duration::ZERO, &inputs);
                return Ok(inputs);
            }
            Way::Stopped(why) => self.stop(id, round, why, inputs),
        }
        Ok(Vec::new())
    }

    fn stop(&mut self, id: usize, round: u64, why: &'static str, inputs: Vec<Carried>) {
        self.stops.push(Stop {
            node: id,
            round,
            why,
        });
        self.show(id, Way::Stopped(why), Duration::ZERO, &[]);
        self.ends.extend(inputs);
    }

    /// Finds the item in the output of a source.
    fn start(&mut self, id: usize, round: u64) -> Result<Vec<Carried>> {
        let (replayer, begun) = (self.replayer, Instant::now());
        let node = &replayer.engine.flow.nodes[id];
        let edge = &node.node.edge;
        if node.hints().once {
            let message = "its items exist only once, and cannot be read again";
            return Err(Error::unsupported(message).at(&node.name));
        }
        let search = |from: Option<u64>| -> Result<Found> {
            let mut found = Found::default();
            let wanted = from.map(Wanted::since);
            let (items, context) = replayer.whole(id, round, wanted)?;
            let most = if from.is_some() { 1 } else { MANY };
            replayer.wait(replayer.drain(items, edge, &context, most, |chunk| {
                found.take(chunk, edge, &replayer.target, None, true);
                !(found.exact || (from.is_some() && found.seen > 0))
            }));
            Ok(found)
        };
        // Most sources that can begin anywhere have item `index` at that place.
        let jumps = matches!(node.node.op, Op::Source(_)) && node.hints().by_position;
        let index = replayer.top.index();
        let jumped = if jumps {
            Some(search(Some(index))?)
        } else {
            None
        };
        let found = match jumped {
            Some(mut found) if !found.kept.is_empty() => {
                found.kept.iter_mut().for_each(|kept| {
                    kept.position = kept.position.map(|position| position + index);
                });
                found
            }
            _ => search(None)?,
        };
        if found.kept.is_empty() {
            let what = match &node.node.op {
                Op::Source(_) => replayer.top.to_string(),
                _ => replayer.target.to_string(),
            };
            let because = found
                .error
                .as_ref()
                .map(|error| format!("; an error came, too: {error}"));
            let message = format!(
                "no item {what}: `{}` gave {}{}",
                node.name,
                found.instead(),
                because.unwrap_or_default()
            );
            return Err(Error::not_found(message));
        }
        self.found |= found.exact;
        self.show(id, Way::Run, begun.elapsed(), &found.kept);
        Ok(found.kept)
    }

    /// Applies a node to the sample.
    fn apply(
        &mut self,
        id: usize,
        port: usize,
        round: u64,
        inputs: Vec<Carried>,
    ) -> Result<Vec<Carried>> {
        let (replayer, begun) = (self.replayer, Instant::now());
        let node = &replayer.engine.flow.nodes[id];
        let (edge, hints) = (&node.node.edge, node.hints());
        let outputs = node.node.outputs();
        // Siblings stay with the sample as long as a node downstream groups them.
        let wide = replayer.siblings[id].then_some(&replayer.top);
        let founds: Vec<Mutex<Found>> = (0..outputs).map(|_| Mutex::default()).collect();
        let position = match &inputs[..] {
            [one] if hints.arity == Arity::One => one.position,
            _ => None,
        };
        let mut context = replayer.context(node, round);
        if hints.by_position {
            let wanted = position.map(Wanted::since);
            context = context.with_node_state(NodeState {
                wanted,
                ..NodeState::default()
            });
        }
        let applied = applied(node, inputs, &context);
        // All outputs are read at once: an unread output would hold up the others.
        replayer.wait(join_all(applied.into_iter().zip(&founds).map(
            |(items, found)| {
                replayer.drain(items, edge, &context, MANY, |chunk| {
                    lock(found).take(chunk, edge, &replayer.target, wide, false);
                    true
                })
            },
        )));
        let founds: Vec<Found> = founds
            .into_iter()
            .map(|found| found.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect();
        if founds.iter().all(|found| found.kept.is_empty())
            && let Some(found) = founds.iter().find(|found| found.seen > 0)
        {
            let message = format!(
                "no item {}: `{}` made {}",
                replayer.target,
                node.name,
                found.instead()
            );
            return Err(Error::not_found(message));
        }
        self.found |= founds.iter().any(|found| found.exact);
        let mut made: Vec<Vec<Carried>> = founds.into_iter().map(|found| found.kept).collect();
        // The node is one-to-one.
        made.iter_mut()
            .flatten()
            .for_each(|made| made.position = position);
        self.show(id, Way::Run, begun.elapsed(), made.iter().flatten());
        let output = made.get_mut(port).map(std::mem::take).unwrap_or_default();
        if outputs > 1 {
            self.splits.insert((id, round), made);
        }
        Ok(output)
    }
}

/// Applies a node to items that are in memory. Returns the stream of each output.
pub(super) fn applied(node: &FlowNode, inputs: Vec<Carried>, context: &Context) -> Vec<AnyItems> {
    let above = inputs[0].edge.clone();
    let given = InMemory(inputs.into_iter().map(|input| input.chunk).collect());
    let input = above.restore(Box::new(given));
    let applied = catch_unwind(AssertUnwindSafe(|| match &node.node.op {
        Op::Pipe(pipe) => vec![pipe.apply(input, context)],
        Op::Split(split) => split.split(input, context),
        _ => unreachable!("only pipes and splits are applied"),
    }));
    applied.unwrap_or_else(|payload| {
        let error = Error::panic(payload).at(&node.name);
        vec![node.node.edge.fail(error)]
    })
}

/// Chunks that are in memory already.
struct InMemory(VecDeque<AnyChunk>);

impl ErasedChunks for InMemory {
    fn poll_chunk(&mut self, _: &mut task::Context<'_>, _: Demand) -> Poll<Option<AnyChunk>> {
        Poll::Ready(self.0.pop_front())
    }
}
