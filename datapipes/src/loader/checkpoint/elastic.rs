//! Rescales the checkpoint of one number of ranks for another.
//!
//! If a filter deals items in turn, and downstream each item becomes one item and a fixed number of
//! these a batch, every position can be computed. After `t` steps whose batches have `g` items over
//! all ranks, the first `t * g` items of the common stream were delivered, `t * g / world` of them
//! by each rank. The positions of the nodes downstream of the filter are computed anew; the nodes
//! upstream, which do the same on each rank, go on from their snapshots.

use super::compare::compare;
use super::{Checkpoint, Saved, SavedNode, nodes};
use crate::checkpoint::{Cursor, InputCursor};
use crate::codec::pack;
use crate::graph::{Flow, FlowNode, Op};
use crate::settings::Settings;
use crate::{Arity, Role};

/// The nodes between the consumer and the node that deals items to the ranks.
struct Chain<'a> {
    shard: &'a FlowNode,
    batch: Option<&'a FlowNode>,
    /// Names of the nodes downstream of the dealing node.
    below: Vec<&'a str>,
}

/// Converts a checkpoint of other ranks into one for this rank; returns the obstacles, with the
/// numbers, if that is impossible.
pub(super) fn rescaled(
    state: &Checkpoint,
    flow: &Flow,
    settings: &Settings,
) -> Result<Saved, String> {
    // If one rank has seen the end and another has not, the rest of all ranks is empty.
    let saved = state
        .0
        .iter()
        .find(|saved| !saved.finished)
        .unwrap_or(state.first());
    let (then, now) = (saved.world, settings.rank.world as u64);
    let some = state.0.len() as u64;
    if some > 1
        && (some < then
            || state
                .0
                .iter()
                .any(|other| other.delivered != saved.delivered))
    {
        return Err("its ranks are in the middle of a step".to_owned());
    }
    if state.skipped() > 0 {
        return Err(format!(
            "{} items were skipped, which ranks count differently",
            state.skipped()
        ));
    }
    if saved
        .nodes
        .iter()
        .filter_map(|node| node.cursor.as_ref())
        .any(|cursor| cursor.unordered)
    {
        return Err("items came in any order, so that no two ranks stand at one place".to_owned());
    }
    let chain = Chain::of(flow)?;
    let mut saved = saved.clone();
    let mut each = [1, 1];
    if let Some(batch) = chain.batch
        && let Some(node) = saved
            .nodes
            .iter_mut()
            .find(|node| *node.name == *batch.name)
    {
        let settings = &batch.hints().settings;
        let sizes = sized(&node.settings)
            .zip(sized(settings))
            .filter(|(was, is)| was.1 == is.1);
        let Some(((was, _), (is, _))) = sizes else {
            let message = format!("`{}` was {}, and is {settings}", batch.name, node.settings);
            return Err(message);
        };
        if was
            .checked_mul(then)
            .is_none_or(|all| is.checked_mul(now) != Some(all))
        {
            return Err(format!(
                "`{}` made batches of {was}, {then} ranks of them a step, and makes batches of {is} for {now}",
                batch.name
            ));
        }
        (each, node.settings) = ([was, is], settings.clone());
    }
    // The places that a changed graph could keep would be guesswork.
    let differences = compare(&saved.nodes, &nodes(flow, |_| None), false);
    if !differences.is_empty() {
        return Err(differences.join("; "));
    }
    // A rank that came to its budget of steps has more items left.
    if saved.finished && saved.nodes.iter().all(|node| node.cursor.is_none()) {
        (saved.world, saved.rank) = (now, settings.rank.index as u64);
        return Ok(saved);
    }
    let far = || "its numbers are too large".to_owned();
    let step = each[0].checked_mul(then).ok_or_else(far)?;
    let global = saved.delivered.checked_mul(step).ok_or_else(far)?;
    if global % (each[1] * now) != 0 {
        return Err(format!(
            "{global} items were delivered, which do not divide among {now} ranks"
        ));
    }
    let own = global / now;
    (saved.delivered, saved.world, saved.rank) = (own / each[1], now, settings.rank.index as u64);
    let steps = saved.delivered;
    let is_sharded = |node: &&mut SavedNode| *node.name == *chain.shard.name;
    if global == 0 {
        saved.nodes.iter_mut().for_each(|node| node.cursor = None);
        return Ok(saved);
    }
    for node in &mut saved.nodes {
        if chain.below.contains(&&*node.name) {
            node.cursor = None;
        }
        if chain.batch.is_some_and(|batch| *batch.name == *node.name) {
            node.cursor = Some(cursor(
                steps,
                own,
                0..0,
                pack(&steps).map_err(|error| error.to_string())?,
            ));
        }
    }
    if let Some(node) = saved.nodes.iter_mut().find(is_sharded)
        && chain.shard.node.kind != INDEX_SHARD
    {
        // The nodes upstream can give again the items that the filter reached back to.
        let pads = node
            .cursor
            .as_ref()
            .is_some_and(|cursor| cursor.inputs.iter().all(|input| input.reach == 0));
        let may_pad = settings.uneven == Some(crate::Uneven::Pad) && now > 1;
        if may_pad && !pads {
            return Err(format!(
                "`{}` would repeat items from the start, which were not kept for it",
                node.name
            ));
        }
        let held = 0..if may_pad { now.min(global) } else { 0 };
        let kept = pack(&(global, held.end)).map_err(|error| error.to_string())?;
        node.cursor = Some(cursor(own, global, held, kept));
    }
    Ok(saved)
}

/// The node that deals the positions of indexed data, which takes no snapshot.
const INDEX_SHARD: &str = "index_shard";

fn cursor(output: u64, input: u64, held: std::ops::Range<u64>, kept: Vec<u8>) -> Cursor {
    let reach = if held.is_empty() { input } else { held.start };
    let inputs = vec![InputCursor {
        from: input,
        reach,
        held: held.collect(),
    }];
    Cursor {
        outputs: vec![output],
        inputs,
        kept,
        ..Cursor::default()
    }
}

/// Splits the settings of a batch into the number they begin with, and the rest.
fn sized(settings: &str) -> Option<(u64, &str)> {
    let end = settings
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(settings.len());
    settings[..end]
        .parse()
        .ok()
        .map(|size| (size, &settings[end..]))
}

impl<'a> Chain<'a> {
    /// Collects the chain from the consumer upstream; returns the obstacle if there is none.
    fn of(flow: &'a Flow) -> Result<Chain<'a>, String> {
        let (mut id, mut batch, mut below) = (flow.root.0, None, Vec::new());
        loop {
            let node = &flow.nodes[id];
            let (name, hints) = (&*node.name, node.hints());
            let &[(above, _)] = &node.inputs[..] else {
                return Err(format!("`{name}` is not below one `sharding_filter`"));
            };
            // A user's pipe may have the same name, and its snapshot is opaque.
            let kind = match &node.node.op {
                Op::Pipe(pipe) if pipe.is_built_in() => &*node.node.kind,
                _ => "",
            };
            let is_pipe = matches!(node.node.op, Op::Pipe(_));
            match hints.role {
                _ if kind == INDEX_SHARD
                    || kind == "sharding_filter"
                    || kind == "sharding_filter_padded" =>
                {
                    return Ok(Chain {
                        shard: node,
                        batch,
                        below,
                    });
                }
                Role::Shard { .. } => {
                    return Err(format!(
                        "`{name}` deals items in another way for another number of ranks"
                    ));
                }
                Role::Batch(_) if kind == "batch" && batch.is_none() => batch = Some(node),
                _ if kind == "indices"
                    && matches!(flow.nodes[above].hints().role, Role::Shard { .. }) => {}
                _ if is_pipe
                    && hints.arity == Arity::One
                    && (hints.is_shardable || hints.by_position) => {}
                _ => {
                    return Err(format!(
                        "`{name}` is below what deals the items, and does not give one item for each, in their order"
                    ));
                }
            }
            below.push(name);
            id = above;
        }
    }
}
