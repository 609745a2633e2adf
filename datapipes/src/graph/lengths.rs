//! How many items come out of each node, as far as that is arithmetic.

use super::{Flow, FlowNode, Hints, Op};
use crate::{Rank, Role, Uneven};

/// Stands for no end, and for more than can be counted: origins have 48 bits for the items of a
/// source.
pub(crate) const ENDLESS: u64 = u64::MAX;

/// For each node, how many items come out of it (of each of its outputs) where no item fails, if
/// that is known before anything runs.
pub(crate) fn lengths(flow: &Flow, rank: Rank, uneven: Option<Uneven>) -> Vec<Option<u64>> {
    counted(flow, rank, uneven, |_, _| None)
}

/// Nodes below those that deal items to ranks whose own number of items is no arithmetic of what
/// comes in: ranks that come to them with equally many may leave them with unequally many.
pub(crate) fn uncounted(flow: &Flow, rank: Rank, uneven: Option<Uneven>) -> Vec<usize> {
    /// Stands for any number that all ranks have in common.
    const SAME: u64 = 1 << 20;
    let deals = |node: &FlowNode| matches!(node.hints().facts.role, Role::Shard { .. });
    let mut below: Vec<bool> = Vec::new();
    for node in &flow.nodes {
        below.push(
            node.inputs
                .iter()
                .any(|&(above, _)| below[above] || deals(&flow.nodes[above])),
        );
    }
    let mut uncounted = Vec::new();
    counted(flow, rank, uneven, |id, inputs| match below[id] {
        // What has no end has none after any step.
        true if inputs.contains(&Some(ENDLESS)) => Some(ENDLESS),
        true => {
            uncounted.push(id);
            Some(SAME)
        }
        false => deals(&flow.nodes[id]).then_some(SAME),
    });
    uncounted
}

/// As [`lengths`], if no data turn out to be empty: what goes on without end whatever the length of
/// what it runs again has no end then.
pub(crate) fn lengths_of_some(flow: &Flow, rank: Rank, uneven: Option<Uneven>) -> Vec<Option<u64>> {
    counted(flow, rank, uneven, |id, inputs| {
        let some: Vec<Option<u64>> = inputs.iter().map(|len| len.or(Some(1))).collect();
        let len = match &flow.nodes[id].node.op {
            Op::Rerun(rerun) => rerun.len_hint(some[0]?),
            Op::Join(join) => join.len_hint(&some),
            _ => None,
        };
        len.filter(|&len| len == ENDLESS)
    })
}

/// As [`lengths`], with what `unknown` says for a node of which the number is not known, by those
/// of its inputs.
fn counted(
    flow: &Flow,
    rank: Rank,
    uneven: Option<Uneven>,
    mut unknown: impl FnMut(usize, &[Option<u64>]) -> Option<u64>,
) -> Vec<Option<u64>> {
    let mut lengths: Vec<Option<u64>> = Vec::new();
    for (id, node) in flow.nodes.iter().enumerate() {
        let inputs: Vec<Option<u64>> = node
            .inputs
            .iter()
            .map(|&(above, _)| lengths[above])
            .collect();
        let hints = node.hints();
        let above = inputs.first().copied().flatten();
        let len = match (&node.node.op, hints.facts.role) {
            (Op::Source(_), _) => hints.len,
            // What has no end ends nowhere below but where a node ends the stream by itself.
            (Op::Pipe(_), role) if above == Some(ENDLESS) && goes_on(hints, role) => above,
            (Op::Pipe(_), Role::Shard { .. }) => {
                above.map(|len| rank.share(len, uneven.unwrap_or(Uneven::Allow)))
            }
            (Op::Pipe(pipe), _) => above.and_then(|len| pipe.len_hint(len)),
            (Op::Rerun(rerun), _) => above.and_then(|len| rerun.len_hint(len)),
            (Op::Join(join), _) => join.len_hint(&inputs),
            (Op::Split(split), _) => above.and_then(|len| split.len_hint(len)),
        };
        let len = len.or_else(|| unknown(id, &inputs));
        lengths.push(len.map(|len| if len >> 48 == 0 { len } else { ENDLESS }));
    }
    lengths
}

/// Whether a pipe gives items as long as some come: what distributes over concatenation has no last
/// one of its own, and these roles are told of all that comes.
fn goes_on(hints: &Hints, role: Role) -> bool {
    let all = matches!(
        role,
        Role::Batch(_)
            | Role::Shuffle
            | Role::ShuffleWithinRank
            | Role::Prefetch(_)
            | Role::Shard { .. }
    );
    all || hints.shardable || hints.by_parent
}
