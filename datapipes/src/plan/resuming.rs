//! What it costs to resume an epoch: what each step takes again.

use super::{Place, Plan};
use crate::graph::{Flow, Op};
use crate::{Arity, Role};

/// A step that looks at the stream as a whole keeps its place now and then, mostly five thousand
/// times to five hundred times a second. Where items were quick to make and become slow, so many of
/// them may lie between two places, and what comes in one chunk besides.
pub(crate) const BETWEEN: u64 = (1 << 16) + 1024;

/// What lies between two places in most cases, which is what a resume costs in time.
const MOSTLY: &str = "mostly those of 2 ms";

impl Plan {
    /// What it costs to resume an epoch in the middle of what a node gives.
    pub(super) fn cost_of_resuming(&self, flow: &Flow, id: usize) -> Option<String> {
        let (node, hints) = (&flow.nodes[id], flow.nodes[id].hints());
        let in_pieces = match self.places[id] {
            Place::Segment(number) => {
                let segment = &self.segments[number];
                segment.nodes.last() == Some(&id) && segment.arity != Arity::One
            }
            _ => !self.groups[id].is_empty(),
        };
        let is_inline = self.places[id] == Place::Inline && !hints.shardable && !hints.by_parent;
        // Where order is not kept it is known of each item whether it was delivered.
        let is_mixed = self.unordered(flow)[id];
        match &node.node.op {
            Op::Source(_) if hints.facts.by_position => {
                Some("resume: opened at its place, nothing is read again".to_owned())
            }
            Op::Source(_) if hints.keeps => {
                Some(format!("resume: reads on, but for the last items again, {MOSTLY}, {BETWEEN} at most"))
            }
            Op::Source(_) => {
                Some("resume: read from its beginning, and what it had given is left out".to_owned())
            }
            Op::Pipe(_) if in_pieces && !is_mixed => Some(
                "resume: each item of its input (a file, an archive) that has not given all is taken again"
                    .to_owned(),
            ),
            Op::Pipe(_) if hints.facts.by_position || !is_inline => None,
            Op::Pipe(_) if is_mixed => (hints.facts.buffered > 0).then(|| {
                format!("resume: up to {} items that it holds are made again", hints.facts.buffered)
            }),
            Op::Pipe(_) => {
                let of_each = match (hints.facts.role, hints.arity) {
                    (Role::Batch(size), _) => Some(size as u64),
                    (Role::Shuffle | Role::ShuffleWithinRank, _) | (_, Arity::One) => Some(1),
                    _ => None,
                };
                let held = hints.facts.buffered as u64;
                let holds = if held == 0 {
                    String::new()
                } else {
                    format!("the {held} items that it may hold, and ")
                };
                Some(match of_each {
                    Some(each) => {
                        let again = BETWEEN.saturating_mul(each).saturating_add(held);
                        format!(
                            "resume: {holds}the last before are made again, {MOSTLY}, {again} items at most"
                        )
                    }
                    None => format!("resume: {holds}{}", last_given()),
                })
            }
            // What goes by position leaves out by itself what it had given; it takes it again all
            // the same.
            Op::Join(_) | Op::Split(_) | Op::Rerun(_) => {
                (hints.resumable && !hints.facts.many_readers).then(|| format!("resume: {}", last_given()))
            }
        }
    }
}

/// Where nobody knows how many items become one of those that it gives.
fn last_given() -> String {
    format!("what makes the last it gave is made again, {MOSTLY}, {BETWEEN} given items at most")
}

#[cfg(test)]
mod tests;
