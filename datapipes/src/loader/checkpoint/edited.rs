//! Graphs that were changed after their checkpoint was taken.

use super::{Saved, SavedNode};
use crate::checkpoint::{Cursor, InputCursor};
use crate::graph::{Flow, FlowNode, Op};
use crate::run::Cursors;
use crate::{Arity, Role};

/// The permitted differences between a graph and the graph of a checkpoint; see
/// [`DataLoader::resume_edited`](crate::DataLoader::resume_edited).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Edited {
    /// A [mix](crate::Graph::mix) may have other weights than before, or another
    /// [`Schedule`](crate::pipes::Schedule). Each input resumes where it was. Items that waited in
    /// a shuffle buffer or a started batch stay as they were mixed; the exact shares of the new
    /// weights begin after them. With only one-in-one-out steps downstream of the mix, they begin
    /// with the next item. Nodes that look at the stream as a whole delay them by some items, or by
    /// some thousands if items cost next to nothing. Nothing is lost or comes twice. Steps of a
    /// schedule are counted from the beginning of the epoch. The same holds for any node with a
    /// setting that [may change](field@crate::Hints::may_change).
    ///
    /// The inputs must have the same number and order as before. A mix of indexed data
    /// ([`Indexed::mix`](crate::Indexed::mix)) cannot change in the middle, since its order is a
    /// function of the position. With several ranks, a mix upstream of the node that deals items to
    /// them cannot change either: ranks would change its weights at different places.
    Weights,
    /// Nodes that are unchanged (by name, kind and settings) keep their place, a mix also with
    /// other weights; a new or changed node begins empty.
    ///
    /// A new node starts where its reader does. A node with other settings starts after the items
    /// it had taken, or, if it held items (a shuffle buffer), at the oldest of them. One-in-one-out
    /// steps may come and go, with everything else exact. A node that reads from another new or
    /// changed pipe repeats the items since its last snapshot; if it held items, it begins empty at
    /// the oldest of them. Items of the last moments before the stop may therefore come twice, and
    /// none is left out.
    ///
    /// A pipe that was more than one-in-one-out (a batch, a filter, a shuffle) has to remain, under
    /// its name: only the pipe itself could tell which items it held, and how many it had taken. A
    /// node with several inputs or outputs has to be unchanged. So has any node that is more than
    /// one-in-one-out upstream of a node that goes by the places of its items: a split
    /// ([`fork`](crate::Graph::fork), [`demux`](crate::Graph::demux)), and a join that
    /// [pairs](field@crate::Hints::pairs) them, as [`zip`](crate::Graph::zip) does. With several ranks,
    /// the same holds upstream of the node that deals items to them. A checkpoint whose items came
    /// in any order permits no changes.
    Matching,
}

/// Returns true if two nodes are of one kind and have the same settings, except for the one that
/// [may change](field@crate::Hints::may_change).
pub(super) fn is_alike(was: &SavedNode, now: &SavedNode, may_change: Option<&str>) -> bool {
    was.kind == now.kind && fixed(was, may_change) == fixed(now, may_change)
}

/// Returns the settings of a node before the one that may change.
fn fixed<'a>(node: &'a SavedNode, may_change: Option<&str>) -> &'a str {
    let end = may_change.and_then(|name| node.settings.find(&format!(", {name} ")));
    &node.settings[..end.unwrap_or(node.settings.len())]
}

/// Returns the parts of a changed graph that cannot be resumed, though the rest matches.
pub(super) fn edits_without_a_place(saved: &Saved, now: &[SavedNode], flow: &Flow) -> Vec<String> {
    let nearest_below = |is: fn(&FlowNode) -> bool| {
        let mut below = vec![None; flow.nodes.len()];
        for (id, node) in flow.nodes.iter().enumerate().rev() {
            if let Some(name) = is(node).then_some(&node.name).or(below[id]) {
                (node.inputs.iter()).for_each(|&(above, _)| below[above] = Some(name));
            }
        }
        below
    };
    let shard = nearest_below(|node| matches!(node.hints().role, Role::Shard { .. }));
    // Items that come again would be paired with other items, or go to another output.
    let by_place = nearest_below(|node| node.hints().pairs || matches!(node.node.op, Op::Split(_)));
    let mut problems = Vec::new();
    for ((id, node), now) in flow.nodes.iter().enumerate().zip(now) {
        let was = saved
            .nodes
            .iter()
            .find(|was| was.name == now.name && was.kind == now.kind);
        let same = was.is_some_and(|was| {
            was.settings == now.settings && was.inputs.len() == now.inputs.len()
        });
        let alike = was.is_some_and(|was| {
            was.inputs.len() == now.inputs.len() && is_alike(was, now, node.hints().may_change)
        });
        if same || node.inputs.is_empty() || passes(node) || node.hints().by_position {
            continue;
        }
        if !alike && !matches!(node.node.op, Op::Pipe(_)) {
            problems.push(format!(
                "`{}` is new or has changed, and the checkpoint does not tell its place in its inputs",
                node.name
            ));
        } else if let Some(below) = by_place[id].filter(|_| !alike) {
            problems.push(format!(
                "the change of `{}` would put other items into the places that `{below}` goes by",
                node.name
            ));
        } else if saved.world > 1 && shard[id].is_some() {
            problems.push(format!(
                "the change of `{}` would begin at a different item on each rank",
                node.name
            ));
        }
    }
    problems
}

/// Sets the cursors of pipes that are new or changed. A new pipe starts where its reader does. A
/// pipe with other settings starts at the oldest item that it held, or after the items it had
/// taken. A node downstream of one of these cannot tell by positions which items it held and which
/// outputs it had given, so it repeats its outputs, and begins empty if it held items. Some items
/// may therefore come twice, and none is left out.
pub(super) fn stand_in(saved: &Saved, flow: &Flow, cursors: &mut Cursors) {
    let is_pipe = |node: &FlowNode| matches!(node.node.op, Op::Pipe(_)) && !passes(node);
    let mut is_other = vec![false; flow.nodes.len()];
    for (id, node) in flow.nodes.iter().enumerate() {
        let above = node.inputs.iter().any(|&(above, _)| is_other[above]);
        is_other[id] = above || is_pipe(node) && !cursors.contains_key(&node.name);
    }
    let mut places = vec![None; flow.nodes.len()];
    places[flow.root.0] = Some(saved.delivered + saved.skipped);
    let at = |place| InputCursor {
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
                        (cursor.state, cursor.unordered) = (Vec::new(), false);
                    }
                }
                cursor.inputs.clone()
            }
            None if passes(node) => vec![at(place)],
            None if is_pipe(node) && !node.hints().by_position => {
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

/// Returns true if the node has no place of its own.
fn passes(node: &FlowNode) -> bool {
    node.hints().arity == Arity::One
}
