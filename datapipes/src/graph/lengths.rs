//! Number of items that come out of each node, as far as it can be computed.

use super::{Flow, FlowNode, Hints, Op};
use crate::{Rank, Role, Uneven};

/// Stands for an endless stream, and for more items than can be counted: origins have 48 bits for
/// the items of a source.
pub(crate) const ENDLESS: u64 = u64::MAX;

/// Returns for each node the number of items of each of its outputs if no item fails, if it is
/// known before anything runs.
pub(crate) fn lengths(flow: &Flow, rank: Rank, uneven: Option<Uneven>) -> Vec<Option<u64>> {
    counted(flow, rank, uneven, |_, _| None)
}

/// Returns the nodes downstream of sharding whose number of outputs cannot be computed from their
/// inputs: ranks with equal numbers of inputs may leave them with unequal numbers of outputs.
pub(crate) fn uncounted(flow: &Flow, rank: Rank, uneven: Option<Uneven>) -> Vec<usize> {
    /// Stands for any number that all ranks have in common.
    const SAME: u64 = 1 << 20;
    let deals = |node: &FlowNode| matches!(node.hints().role, Role::Shard { .. });
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
        // An endless stream stays endless after any step.
        true if inputs.contains(&Some(ENDLESS)) => Some(ENDLESS),
        true => {
            uncounted.push(id);
            Some(SAME)
        }
        false => deals(&flow.nodes[id]).then_some(SAME),
    });
    uncounted
}

/// Returns the same as [`lengths`], assuming that no data turn out to be empty: a node that repeats
/// its input for ever then has no end, whatever the length of the input.
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

/// Returns the same as [`lengths`]; `unknown` computes the number of a node where it is not known,
/// from the numbers of its inputs.
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
        let len = match (&node.node.op, hints.role) {
            (Op::Source(source), _) => source.len_hint(),
            // An endless stream ends downstream only where a node ends the stream by itself.
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

/// Returns true if a pipe gives items as long as some come: a pipe that distributes over
/// concatenation has no last item of its own, and these roles are told of all that comes.
fn goes_on(hints: &Hints, role: Role) -> bool {
    let all = matches!(
        role,
        Role::Batch(_)
            | Role::Shuffle
            | Role::ShuffleWithinRank
            | Role::Prefetch(_)
            | Role::Shard { .. }
    );
    all || hints.is_shardable || hints.is_shardable_by_parent
}
