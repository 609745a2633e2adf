//! The cost of resuming an epoch: the items that each step takes again.

use super::{Placement, Plan};
use crate::graph::{Flow, Op};
use crate::{Arity, Role};

/// Maximum number of items between two saved positions. A step that reads the stream as a whole
/// saves its position from time to time, mostly five thousand to five hundred times a second. If
/// items were quick to make and become slow, this many may lie between two positions, plus the rest
/// of one chunk.
pub(crate) const BETWEEN: u64 = (1 << 16) + 1024;

impl Plan {
    /// Describes the cost of resuming an epoch in the middle of a node's output. `lengths` are those of
    /// the nodes, where they are known.
    pub(super) fn cost_of_resuming(
        &self,
        flow: &Flow,
        lengths: &[Option<u64>],
        id: usize,
    ) -> Option<String> {
        let (node, hints) = (&flow.nodes[id], flow.nodes[id].hints());
        let above = node.inputs.first().and_then(|&(above, _)| lengths[above]);
        let inputs = above.unwrap_or(u64::MAX);
        let between = lengths[id].map_or(BETWEEN, |len| len.min(BETWEEN));
        let held = inputs.min(hints.buffered as u64);
        let has_segment_log = match self.places[id] {
            Placement::Segment(number) => {
                let segment = &self.segments[number];
                segment.nodes.last() == Some(&id) && segment.arity != Arity::One
            }
            _ => !self.groups[id].is_empty(),
        };
        let is_inline = self.places[id] == Placement::Inline
            && !hints.is_shardable
            && !hints.is_shardable_by_parent;
        // If order is not kept, each item is known to be delivered or not.
        let is_mixed = self.unordered(flow)[id];
        match &node.node.op {
            // It decides on the order of data by index, and reads nothing.
            _ if hints.many_readers => None,
            Op::Source(_) if hints.by_position => Some("resume: nothing is read again".to_owned()),
            Op::Source(_) if hints.is_resumable => {
                Some(format!("resume: at most {between} items are read again"))
            }
            Op::Source(_) => Some("resume: read from its beginning".to_owned()),
            Op::Pipe(_) if has_segment_log && !is_mixed => Some(
                "resume: each input (a file, an archive) with outputs left is taken again"
                    .to_owned(),
            ),
            Op::Pipe(_) if hints.by_position || !is_inline => None,
            Op::Pipe(_) if is_mixed => {
                (hints.buffered > 0).then(|| format!("resume: at most {held} items are made again"))
            }
            Op::Pipe(_) => {
                let of_each = match (hints.role, hints.arity) {
                    (Role::Batch(size), _) => Some(size as u64),
                    (Role::Shuffle | Role::ShuffleWithinRank, _) | (_, Arity::One) => Some(1),
                    _ => None,
                };
                Some(match of_each {
                    Some(each) => {
                        let again = BETWEEN
                            .saturating_mul(each)
                            .saturating_add(held)
                            .min(inputs);
                        format!("resume: at most {again} items are made again")
                    }
                    None if held > 0 => format!(
                        "resume: the inputs of at most {between} outputs and {held} items are made again"
                    ),
                    None => last_given(between),
                })
            }
            // A node that goes by position leaves out its earlier output itself, but takes its
            // input again.
            Op::Join(_) | Op::Split(_) | Op::Rerun(_) => {
                hints.is_resumable.then(|| last_given(between))
            }
        }
    }
}

/// Describes the cost if the number of items for an output is not known.
fn last_given(between: u64) -> String {
    format!("resume: the inputs of at most {between} outputs are made again")
}

#[cfg(test)]
mod tests;
