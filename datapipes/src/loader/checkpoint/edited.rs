//! Graphs that were changed since their state was made.

use super::{Saved, SavedNode};
use crate::checkpoint::{Cursor, Input};
use crate::graph::{Flow, FlowNode, Op};
use crate::run::Cursors;
use crate::{Arity, Role};

/// How a graph may differ from the one of a state; see
/// [`DataLoader::resume_edited`](crate::DataLoader::resume_edited).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edited {
    /// A [mix](crate::Graph::mix) may have other weights than it had, or another
    /// [`Schedule`](crate::pipes::Schedule): each input resumes where it stood, and the exact
    /// shares of the new weights begin behind all that may have been used of the mix for what was
    /// delivered: what waited in a shuffle buffer or a started batch stays as it was mixed. Where
    /// nothing but one-in-one-out steps stands below the mix, that is the next item; below nodes
    /// that look at the stream as a whole it may be some items later, some thousands of items that
    /// cost next to nothing. Nothing is lost or comes twice. Steps of a schedule are counted from
    /// the beginning of the epoch.
    ///
    /// Inputs are as many, and of the same order, as they were. A mix of data by index
    /// ([`Indexed::mix`](crate::Indexed::mix)) cannot be mixed otherwise in the middle, since its
    /// order is a function of the position. Where there are several ranks, nor can a mix above what
    /// deals items to them: ranks would change its weights at different places.
    Weights,
    /// Nodes that are what they were (by name, kind and settings) keep their place, a mix also with
    /// other weights; one that is new or other begins with nothing.
    ///
    /// A new one stands where its reader does. One with other settings stands behind what it had
    /// taken, or, if it held items (a shuffle buffer), at the oldest of them. One-in-one-out steps
    /// may come and go, with everything else exact. What reads from another pipe that is new or
    /// other gives again what it goes back to, and begins with nothing at the oldest item that it
    /// held. So items of the last moments before the stop may come twice, and none is left out.
    ///
    /// A pipe that was more than one-in-one-out (a batch, a filter, a shuffle) has to be there
    /// still, under its name: what it held, and how much it had taken, nobody else could tell. What
    /// has several inputs or outputs has to be what it was. So has, where there are several ranks,
    /// whatever stands above the node that deals items to them and is more than one-in-one-out. A
    /// state whose items came in any order takes no changes.
    Matching,
}

/// The settings of a node; of a mix, without its weights.
pub(super) fn but_weights(node: &SavedNode) -> &str {
    match node.settings.split_once(", weights ") {
        Some((stop, _)) if node.kind == "mix" => stop,
        _ => &node.settings,
    }
}

/// What of a changed graph cannot be resumed, though the rest matches.
pub(super) fn edits_without_a_place(saved: &Saved, now: &[SavedNode], flow: &Flow) -> Vec<String> {
    let mut above_shard = vec![false; flow.nodes.len()];
    for (id, node) in flow.nodes.iter().enumerate().rev() {
        if above_shard[id] || matches!(node.hints().facts.role, Role::Shard { .. }) {
            node.inputs
                .iter()
                .for_each(|&(above, _)| above_shard[above] = true);
        }
    }
    let mut problems = Vec::new();
    for ((id, node), now) in flow.nodes.iter().enumerate().zip(now) {
        let was = saved
            .nodes
            .iter()
            .find(|was| was.name == now.name && was.kind == now.kind);
        let same = was.is_some_and(|was| {
            was.settings == now.settings && was.inputs.len() == now.inputs.len()
        });
        let reweighted = was.is_some_and(|was| {
            was.inputs.len() == now.inputs.len() && but_weights(was) == but_weights(now)
        });
        if same || node.inputs.is_empty() || passes(node) || node.hints().facts.by_position {
            continue;
        }
        if !reweighted && !matches!(node.node.op, Op::Pipe(_)) {
            problems.push(format!(
                "`{}` is new or other, and where it stood in its inputs is not known",
                node.name
            ));
        } else if saved.world > 1 && above_shard[id] {
            problems.push(format!(
                "`{}` would change at other places on other ranks",
                node.name
            ));
        }
    }
    problems
}

/// Says where pipes stand that are new, or other than they were: one that is new where its reader
/// does; one that has other settings at the oldest item that it held, or behind what it had taken.
/// What has such a pipe above it cannot tell by their positions which items it held, or which of
/// what it would give again it had given: it gives all of it again, and if it held items begins
/// with nothing as well. So some items may come twice, and none is left out.
pub(super) fn stand_in(saved: &Saved, flow: &Flow, cursors: &mut Cursors) {
    let is_pipe = |node: &FlowNode| matches!(node.node.op, Op::Pipe(_)) && !passes(node);
    let mut is_other = vec![false; flow.nodes.len()];
    for (id, node) in flow.nodes.iter().enumerate() {
        let above = node.inputs.iter().any(|&(above, _)| is_other[above]);
        is_other[id] = above || is_pipe(node) && !cursors.contains_key(&node.name);
    }
    let mut places = vec![None; flow.nodes.len()];
    places[flow.root.0] = Some(saved.delivered + saved.skipped);
    let at = |place| Input {
        from: place,
        reach: place,
        held: Vec::new(),
    };
    for (id, node) in flow.nodes.iter().enumerate().rev() {
        let Some(place) = places[id] else { continue };
        let inputs = match cursors.get_mut(&node.name) {
            Some(cursor) => {
                if is_other[id] && cursor.outputs.len() == 1 {
                    (cursor.outputs[0], cursor.pieces) = (place, Vec::new());
                    if let [input] = &mut cursor.inputs[..]
                        && input.reach < input.from
                    {
                        *input = at(input.reach);
                        (cursor.kept, cursor.unordered) = (Vec::new(), false);
                    }
                }
                cursor.inputs.clone()
            }
            None if passes(node) => vec![at(place)],
            None if is_pipe(node) && !node.hints().facts.by_position => {
                let was = saved
                    .nodes
                    .iter()
                    .find(|was| *was.name == *node.name && was.kind == node.node.kind);
                let input = was.and_then(|was| was.cursor.as_ref()?.inputs.first());
                let inputs = vec![at(input.map_or(place, |input| input.reach))];
                let cursor = Cursor {
                    outputs: vec![place],
                    inputs: inputs.clone(),
                    ..Cursor::default()
                };
                cursors.insert(node.name.clone(), cursor);
                inputs
            }
            None => continue,
        };
        for (&(above, _), input) in node.inputs.iter().zip(inputs) {
            places[above] = Some(input.from);
        }
    }
}

/// Whether it has no place of its own.
fn passes(node: &FlowNode) -> bool {
    node.hints().arity == Arity::One
}
