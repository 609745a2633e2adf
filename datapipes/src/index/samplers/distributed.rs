//! The part of a rank in a random order, as with PyTorch's sampler of the same name.

use crate::Graph;
use crate::index::Indexed;

/// A rank's part of a random order: the order of PyTorch's `DistributedSampler`, configured by the
/// loader's settings.
///
/// | there | here |
/// |---|---|
/// | `num_replicas`, `rank` | [`Builder::rank`](crate::loader::Builder::rank) |
/// | `drop_last=True` | [`Uneven::Drop`](crate::Uneven::Drop) |
/// | `drop_last=False` | [`Uneven::Pad`](crate::Uneven::Pad): samples from the start of the order come again |
/// | `shuffle=False` | [`sequential`](Distributed::sequential) |
/// | `seed`, `set_epoch(n)` | [`Builder::seed`](crate::loader::Builder::seed), `loader.epoch(n)`; no epoch repeats another |
///
/// Rank `r` takes positions `r`, `r + world`, and so on of the one order that all ranks agree on.
/// `Distributed` is short for [`Indexed::range`], [`shuffle`](Indexed::shuffle) and
/// [`shard`](Indexed::shard).
///
/// # Examples
/// ```
/// use datapipes::index::Distributed;
/// use datapipes::{DataLoader, Uneven};
/// let graph = Distributed::new().sequential().indices(7);
/// let loader = DataLoader::builder(graph).rank(1, 3).uneven(Uneven::Pad).build()?;
/// let part: datapipes::Result<Vec<u64>> = loader.epoch(0).blocking().collect();
/// assert_eq!(part?, [1, 4, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Distributed {
    sequential: bool,
}

impl Distributed {
    /// Uses a random order.
    pub fn new() -> Self {
        Distributed { sequential: false }
    }

    /// Uses the order of the indices.
    pub fn sequential(self) -> Self {
        Distributed { sequential: true }
    }

    /// Returns the indices of this rank, over data of `len` samples.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Uneven, index::Distributed};
    /// let graph = Distributed::new().sequential().indices(8);
    /// let loader = DataLoader::builder(graph).rank(1, 2).uneven(Uneven::Drop).build()?;
    /// let indices = loader.epoch(0).blocking().collect::<datapipes::Result<Vec<_>>>()?;
    /// assert_eq!(indices, [1, 3, 5, 7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn indices(self, len: u64) -> Graph<u64> {
        let all = Indexed::range(len);
        let all = if self.sequential { all } else { all.shuffle() };
        all.shard().fetch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataLoader, Uneven};

    fn part(rank: usize, world: usize, uneven: Uneven, epoch: u64) -> Vec<u64> {
        let graph = Distributed::new().indices(50);
        let loader = DataLoader::builder(graph)
            .workers(0)
            .rank(rank, world)
            .uneven(uneven)
            .build()
            .unwrap();
        loader.epoch(epoch).blocking().map(Result::unwrap).collect()
    }

    /// Repeats the algorithm of that sampler: pad or cut the permuted list, then
    /// `[rank:total:num_replicas]`.
    #[test]
    fn gives_what_the_original_does() {
        for epoch in 0..3 {
            let whole = part(0, 1, Uneven::Drop, epoch);
            for world in 1..9usize {
                for rank in 0..world {
                    let mut padded = whole.clone();
                    let missing = 50usize.div_ceil(world) * world - 50;
                    padded.extend_from_slice(&whole[..missing]);
                    let strided =
                        |all: &[u64]| Vec::from_iter(all.iter().copied().skip(rank).step_by(world));
                    assert_eq!(part(rank, world, Uneven::Pad, epoch), strided(&padded));
                    assert_eq!(
                        part(rank, world, Uneven::Drop, epoch),
                        strided(&whole[..50 / world * world])
                    );
                }
            }
        }
        assert_ne!(part(0, 1, Uneven::Drop, 0), part(0, 1, Uneven::Drop, 1));
    }
}
