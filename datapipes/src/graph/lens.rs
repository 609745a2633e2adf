//! How many items come out of each node, as far as that is arithmetic.

use super::{Flow, Hints, Op};
use crate::{Rank, Role, Uneven};

/// Stands for no end, and for more than can be counted: origins have 48 bits for the items of a source.
pub(crate) const ENDLESS: u64 = u64::MAX;

/// For each node, how many items come out of it (of each of its outputs) where no item fails, if that is known before
/// anything runs. What runs a graph of unknown length without end counts as endless: only data that turn out to be empty
/// end it.
pub(crate) fn lens(flow: &Flow, rank: Rank, uneven: Option<Uneven>) -> Vec<Option<u64>> {
    let mut lens: Vec<Option<u64>> = Vec::new();
    for node in &flow.nodes {
        let hints = node.hints();
        let above = node.inputs.first().and_then(|&(id, _)| lens[id]);
        let len = match (&node.node.op, hints.facts.role) {
            (Op::Source(_), _) => hints.len,
            // What has no end ends nowhere below but where a node ends the stream by itself.
            (Op::Pipe(_), role) if above == Some(ENDLESS) && goes_on(hints, role) => above,
            (Op::Pipe(_), Role::Shard { .. }) => {
                above.map(|len| rank.share(len, uneven.unwrap_or(Uneven::Allow)))
            }
            (Op::Pipe(pipe), _) => above.and_then(|len| pipe.len_hint(len)),
            (Op::Rerun(rerun), _) => match above {
                Some(len) => rerun.len_hint(len),
                None => rerun.len_hint(1).filter(|&len| len == ENDLESS),
            },
            (Op::Join(join), _) => {
                let inputs: Vec<Option<u64>> = node.inputs.iter().map(|&(id, _)| lens[id]).collect();
                join.len_hint(&inputs)
            }
            (Op::Split(split), _) => above.and_then(|len| split.len_hint(len)),
        };
        lens.push(len.map(|len| if len >> 48 == 0 { len } else { ENDLESS }));
    }
    lens
}

/// Whether a pipe gives items as long as some come: what distributes over concatenation has no last one of its own, and these
/// roles are told of all that comes.
fn goes_on(hints: &Hints, role: Role) -> bool {
    let all = matches!(
        role,
        Role::Batch(_) | Role::Shuffle | Role::ShuffleWithinRank | Role::Prefetch(_) | Role::Shard { .. }
    );
    all || hints.shardable || hints.by_parent
}
