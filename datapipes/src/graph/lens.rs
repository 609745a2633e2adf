//! How many items come out of each node, as far as that is arithmetic.

use super::{Flow, Op};
use crate::{Rank, Role, Uneven};

/// Stands for more than can be counted: origins have 48 bits for the items of a source.
pub(crate) const ENDLESS: u64 = u64::MAX;

/// For each node, how many items come out of it (of each of its outputs) where no item fails, if that is known before
/// anything runs.
pub(crate) fn lens(flow: &Flow, rank: Rank, uneven: Option<Uneven>) -> Vec<Option<u64>> {
    let mut lens: Vec<Option<u64>> = Vec::new();
    for node in &flow.nodes {
        let hints = node.hints();
        let above = node.inputs.first().and_then(|&(id, _)| lens[id]);
        let len = match (&node.node.op, hints.facts.role) {
            (Op::Source(_), _) => hints.len,
            (Op::Pipe(_), Role::Shard { .. }) => {
                above.map(|len| rank.share(len, uneven.unwrap_or(Uneven::Allow)))
            }
            (Op::Pipe(pipe), _) => above.and_then(|len| pipe.len_hint(len)),
            (Op::Rerun(rerun), _) => above.and_then(|len| rerun.len_hint(len)),
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
