//! Rescales the checkpoint of one number of ranks for another.
//!
//! If a node deals items in turn, and downstream each item becomes one item and a fixed number of
//! these a batch, every position can be computed. After `t` steps whose batches have `g` items over
//! all ranks, the first `t * g` items of the common stream were delivered, `t * g / world` of them
//! by each rank. The pipes from the dealing node on tell their snapshots by these numbers
//! ([`Pipe::snapshot_at`](crate::Pipe::snapshot_at)); the nodes upstream, which do the same on each
//! rank, go on from their snapshots.

use std::sync::Arc;

use super::compare::compare;
use super::{Checkpoint, Saved, SavedNode, nodes};
use crate::checkpoint::Cursor;
use crate::context::RunInfo;
use crate::graph::{Flow, FlowNode, Op};
use crate::settings::Settings;
use crate::{Arity, Dealing, Role};

/// The nodes between the consumer and the node that deals items to the ranks.
struct Downstream<'a> {
    /// The dealing node, unless it deals positions, which are no part of a checkpoint.
    dealer: Option<&'a FlowNode>,
    batch: Option<(&'a FlowNode, u64)>,
    /// Nodes downstream of the dealing node, from the consumer on.
    below: Vec<&'a FlowNode>,
}

/// Converts a checkpoint of other ranks into one for this rank; returns the obstacles, with the
/// numbers, if that is impossible.
pub(super) fn rescaled(
    checkpoint: &Checkpoint,
    flow: &Flow,
    settings: &Settings,
) -> Result<Saved, String> {
    // If one rank has seen the end and another has not, the rest of all ranks is empty.
    let finished = checkpoint.is_finished();
    let ranks = checkpoint.0.iter();
    let going = ranks.filter(|saved| saved.finished == finished);
    let saved = going.clone().next().unwrap_or(checkpoint.first());
    check_one_place(checkpoint, saved)?;
    let chain = Downstream::of(flow)?;
    // At the end of a step, a rank may have taken items that are dealt to the ranks after it.
    let taken = |saved: &&Saved| chain.dealer.and_then(|dealer| saved.reach(dealer));
    let mut saved = going.min_by_key(taken).unwrap_or(saved).clone();
    let (then, now) = (saved.world, settings.rank.world as u64);
    let [was, is] = chain.resize_batch(&mut saved, now)?;
    // The places that a changed graph could keep would be guesswork.
    let differences = compare(&saved.nodes, &nodes(flow, |_| None), |_| None);
    if !differences.is_empty() {
        return Err(differences.join("; "));
    }
    (saved.world, saved.rank) = (now, settings.rank.index as u64);
    // A rank that came to its budget of steps has more items left.
    if saved.finished && saved.nodes.iter().all(|node| node.cursor.is_none()) {
        return Ok(saved);
    }
    let far = || "its numbers are too large".to_owned();
    let step = was.checked_mul(then).ok_or_else(far)?;
    let global = saved.delivered.checked_mul(step).ok_or_else(far)?;
    if global % (is * now) != 0 {
        return Err(format!(
            "{global} items were delivered, which do not divide among {now} ranks"
        ));
    }
    saved.delivered = global / now / is;
    if global == 0 {
        saved.nodes.iter_mut().for_each(|node| node.cursor = None);
        return Ok(saved);
    }
    chain.move_cursors(&mut saved, global, settings)?;
    Ok(saved)
}

/// Checks that all ranks are at the end of the same step, which numbers of items describe.
fn check_one_place(checkpoint: &Checkpoint, saved: &Saved) -> Result<(), String> {
    let ranks = &checkpoint.0;
    let is_whole = ranks.len() as u64 >= saved.world;
    let is_even = ranks.iter().all(|rank| rank.delivered == saved.delivered);
    if ranks.len() > 1 && !(is_whole && is_even) {
        return Err("its ranks are in the middle of a step".to_owned());
    }
    if checkpoint.skipped() > 0 {
        return Err(format!(
            "{} items were skipped, which ranks count differently",
            checkpoint.skipped()
        ));
    }
    let mut cursors = saved.nodes.iter().filter_map(|node| node.cursor.as_ref());
    if cursors.any(|cursor| cursor.unordered) {
        return Err("items came in any order, so that no two ranks stand at one place".to_owned());
    }
    Ok(())
}

/// Returns the cursor of a pipe that has taken and given this many items.
fn computed(node: &FlowNode, inputs: u64, outputs: u64, run: &RunInfo) -> Result<Cursor, String> {
    let cx = node.context(run, 0, Arc::default());
    let snapshot = match &node.node.op {
        Op::Pipe(pipe) => pipe.snapshot_at(outputs, &cx),
        _ => Ok(None),
    };
    match snapshot {
        Ok(Some(snapshot)) => Ok(snapshot.cursor(inputs, outputs)),
        Ok(None) => Err(format!(
            "`{}` does not tell where it stands by a number of items (`Pipe::snapshot_at`)",
            node.name
        )),
        Err(error) => Err(format!("`{}`: {error}", node.name)),
    }
}

/// Returns the size of a batch whose settings `then` differ from those now by the size alone.
fn size_then(batch: &FlowNode, size: u64, then: &str) -> Result<u64, String> {
    let (name, now, text) = (&batch.name, &batch.hints().settings, size.to_string());
    let parts = now
        .match_indices(&text)
        .map(|(at, _)| (&now[..at], &now[at + text.len()..]));
    let mut whole = parts.filter(|(before, after)| {
        !before.ends_with(|c: char| c.is_ascii_digit())
            && !after.starts_with(|c: char| c.is_ascii_digit())
    });
    let (Some((before, after)), None) = (whole.next(), whole.next()) else {
        return Err(format!(
            "`{name}` makes batches of {size}, which does not stand once in its settings, \"{now}\""
        ));
    };
    let number = then
        .strip_prefix(before)
        .and_then(|rest| rest.strip_suffix(after));
    number
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| format!("`{name}` was {then}, and is {now}"))
}

impl Saved {
    fn node(&mut self, node: &FlowNode) -> Option<&mut SavedNode> {
        self.nodes
            .iter_mut()
            .find(|saved| *saved.name == *node.name)
    }

    /// Returns the position from which the nodes upstream of a node can go on.
    fn reach(&self, node: &FlowNode) -> Option<u64> {
        let node = self.nodes.iter().find(|saved| *saved.name == *node.name)?;
        Some(node.cursor.as_ref()?.inputs.first()?.reach)
    }

    /// Checks that the nodes upstream can give what a node needs that goes on at a cursor, after
    /// `global` items of the common stream.
    fn can_read_from(&self, node: &FlowNode, cursor: &Cursor, global: u64) -> Result<(), String> {
        let (name, input, since) = (&node.name, &cursor.inputs[0], self.reach(node));
        if since.is_some_and(|since| since <= input.reach) {
            Ok(())
        } else if !input.held.is_empty() {
            Err(format!(
                "`{name}` would repeat items from the start, which were not kept for it"
            ))
        } else if let Some(since) = since {
            Err(format!(
                "`{name}` had taken {since} items, of which {global} were delivered; merge the checkpoints of all ranks"
            ))
        } else {
            Ok(())
        }
    }
}

impl<'a> Downstream<'a> {
    /// Collects the chain from the consumer upstream; returns the obstacle if there is none.
    fn of(flow: &'a Flow) -> Result<Downstream<'a>, String> {
        let (mut id, mut batch, mut below) = (flow.root.0, None, Vec::new());
        let another = |node: &FlowNode| {
            Err(format!(
                "`{}` deals items in another way for another number of ranks",
                node.name
            ))
        };
        loop {
            let node = &flow.nodes[id];
            let (name, hints) = (&*node.name, node.hints());
            let &[(above, _)] = &node.inputs[..] else {
                return Err(format!("`{name}` is not below one `sharding_filter`"));
            };
            if let Role::Shard { dealing, .. } = hints.role {
                return match dealing {
                    Dealing::InTurn => Ok(Downstream {
                        dealer: Some(node),
                        batch,
                        below,
                    }),
                    _ => another(node),
                };
            }
            let is_pipe = matches!(node.node.op, Op::Pipe(_));
            below.push(node);
            match (hints.role, flow.nodes[above].hints().role) {
                (Role::Batch(size), _) if is_pipe && batch.is_none() => {
                    batch = Some((node, size as u64));
                }
                _ if is_pipe && hints.arity == Arity::One => {}
                // It reads the positions dealt to this rank, from any of them on.
                (_, Role::Shard { dealing, .. }) if is_pipe && hints.by_position => {
                    return match dealing {
                        Dealing::PositionsInTurn => Ok(Downstream {
                            dealer: None,
                            batch,
                            below,
                        }),
                        _ => another(&flow.nodes[above]),
                    };
                }
                _ => {
                    return Err(format!(
                        "`{name}` is below what deals the items, and does not give one item for each, in their order"
                    ));
                }
            }
            id = above;
        }
    }

    /// Gives the batch the size that it has now, and returns the sizes before and now. They have
    /// to make steps of the same items over all ranks.
    fn resize_batch(&self, saved: &mut Saved, ranks: u64) -> Result<[u64; 2], String> {
        let then = saved.world;
        let Some((batch, is)) = self.batch else {
            return Ok([1, 1]);
        };
        let Some(node) = saved.node(batch) else {
            return Ok([1, 1]);
        };
        let was = size_then(batch, is, &node.settings)?;
        let all = was.checked_mul(then);
        if all.is_none() || all != is.checked_mul(ranks) {
            return Err(format!(
                "a step had {then} batches of {was} items from `{}`, one for each rank, and would have {ranks} of {is}",
                batch.name
            ));
        }
        node.settings = batch.hints().settings.clone();
        Ok([was, is])
    }

    /// Moves all nodes to where they stand after `global` items of the common stream.
    fn move_cursors(
        &self,
        saved: &mut Saved,
        global: u64,
        settings: &Settings,
    ) -> Result<(), String> {
        let run = RunInfo {
            seed: settings.seed,
            epoch: saved.epoch,
            rank: settings.rank,
            uneven: settings.uneven,
            ..RunInfo::default()
        };
        let (mut outputs, mut cursors) = (saved.delivered, Vec::new());
        for &node in &self.below {
            let inputs = match self.batch {
                Some((batch, size)) if batch.name == node.name => outputs * size,
                _ => outputs,
            };
            let has_none = node.hints().is_shardable || node.hints().by_position;
            let cursor = (!has_none).then(|| computed(node, inputs, outputs, &run));
            cursors.push((node, cursor.transpose()?));
            outputs = inputs;
        }
        if let Some(dealer) = self.dealer {
            let cursor = computed(dealer, global, outputs, &run)?;
            saved.can_read_from(dealer, &cursor, global)?;
            cursors.push((dealer, Some(cursor)));
        }
        for (node, cursor) in cursors {
            if let Some(node) = saved.node(node) {
                node.cursor = cursor;
            }
        }
        Ok(())
    }
}
