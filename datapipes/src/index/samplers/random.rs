//! A sampler of every sample once, in random order.

use crate::index::{Drawn, Draws, Permutation, Sampler};
use crate::{Hints, Rng, Role};

/// Draws every sample once, in random order: a [`Permutation`] keyed by seed, epoch and the node's
/// name. This is a global shuffle that takes no memory and no time to start; see
/// [`Indexed::shuffle`](crate::Indexed::shuffle).
///
/// # Examples
/// ```
/// use datapipes::index::{Random, SamplerExt};
/// let mut order = Random::new().indices(100).collect()?;
/// assert!(!order.is_sorted());
/// order.sort();
/// assert_eq!(order, Vec::from_iter(0..100));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Random {
    within_rank: bool,
}

impl Random {
    /// Shuffles all data upstream.
    pub fn new() -> Self {
        Random { within_rank: false }
    }

    /// Declares that this shuffle is meant to stay within a rank's own part, so that the checker
    /// does not ask for a shuffle before the [`shard`](crate::Indexed::shard).
    pub fn within_rank(self) -> Self {
        Random { within_rank: true }
    }
}

impl Sampler for Random {
    fn len(&self, len: u64) -> u64 {
        len
    }
    fn start(&self, len: u64, rng: &mut Rng) -> Draws {
        let order = Permutation::new(len, rng.next_u64());
        Box::new(move |position| Drawn::once(order.get(position)))
    }
    fn name(&self) -> String {
        "index_shuffle".to_owned()
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .never_blocks(true)
            .role(if self.within_rank {
                Role::ShuffleWithinRank
            } else {
                Role::Shuffle
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::samplers::indices;

    #[test]
    fn keys_give_orders_of_their_own() {
        let (a, b) = (
            indices(&Random::new(), 50, 1),
            indices(&Random::new(), 50, 2),
        );
        assert_ne!(a, b);
        assert_eq!(a, indices(&Random::new(), 50, 1));
        assert!(indices(&Random::new(), 0, 1).is_empty());
    }
}
