//! The contract of samplers: indices by position.

use super::Indexed;
use crate::{Facts, Graph, Rng};

/// Chooses indices, position by position: which sample comes first, second, and so on.
///
/// Nothing is materialised that the sampler does not hold already, so an epoch over any number of
/// samples starts at once. A sampler knows nothing of ranks: what it gives at a position is the
/// same for all of them, and [`Indexed::shard`] takes every `world`-th position.
///
/// # Examples
/// ```
/// use datapipes::index::{Drawn, Draws, Indexed, Sampler};
/// use datapipes::Rng;
///
/// /// From a random place on, around.
/// #[derive(Debug)]
/// struct Rotated;
///
/// impl Sampler for Rotated {
///     fn len(&self, len: u64) -> u64 {
///         len
///     }
///     fn start(&self, len: u64, rng: &mut Rng) -> Draws {
///         let from = rng.below(len.max(1));
///         Box::new(move |position| Drawn::once((from + position) % len))
///     }
/// }
///
/// let order = Rotated.indices(5).collect()?;
/// assert!(order.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 5));
/// let letters = Indexed::from_vec(vec!['a', 'b', 'c']).sampled(Rotated).fetch();
/// assert_eq!(letters.collect()?.len(), 3);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub trait Sampler: Send + Sync + 'static {
    /// How many indices it gives of data of `len` samples. Always the same number.
    fn len(&self, len: u64) -> u64;

    /// Starts a pass over data of `len` samples. `rng` is a function of seed, epoch, round and the
    /// node's name; draw the keys of the pass from it. What is returned is asked for any position
    /// below [`len`](Sampler::len), in any order, and answers the same each time. [`Rng::from_key`]
    /// with a key and the position gives a position random numbers of its own.
    ///
    /// # Panics
    /// A panic here or in what is returned, or an index that is not below `len`, ends the epoch
    /// with an error that names the node.
    fn start(&self, len: u64, rng: &mut Rng) -> Draws;

    /// What is wrong with it for data of `len` samples, if anything is. Asked when the loader is
    /// built, as far as the length is known then, and before each pass.
    fn problem(&self, _len: u64) -> Option<String> {
        None
    }

    /// What the node is called if the user gives it no name.
    fn name(&self) -> String {
        "sampler".to_owned()
    }

    /// What the checker should know: the role, settings for the printed plan, mistakes that do not
    /// depend on the data.
    fn facts(&self) -> Facts {
        Facts::any_order()
    }

    /// The indices as a graph, over data of `len` samples, for [`Graph::fetch`] or a step of your
    /// own.
    ///
    /// # Examples
    /// ```
    /// use datapipes::index::{Random, Sampler};
    /// let mut batches = Random::new().indices(10).batch(4).collect()?;
    /// assert_eq!(batches.len(), 3);
    /// assert_eq!(batches.pop().unwrap().len(), 2);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn indices(self, len: u64) -> Graph<u64>
    where
        Self: Sized,
    {
        Indexed::range(len).sampled(self).fetch()
    }
}

/// What a [`Sampler`] gives at each position of one pass.
pub type Draws = Box<dyn Fn(u64) -> Drawn + Send + Sync>;

/// An index that a [`Sampler`] chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// Which sample.
    pub index: u64,
    /// Which of the times that the sample comes, for a sampler that may give one more than once in
    /// a pass. The item's origin is this child of the sample's, so that no two draws get the same
    /// augmentation.
    pub draw: Option<u64>,
}

impl Drawn {
    /// From a sampler that gives each index once at most.
    pub fn once(index: u64) -> Self {
        Drawn { index, draw: None }
    }

    /// From a sampler that may give an index again: no two draws of an index have one number.
    pub fn again(index: u64, draw: u64) -> Self {
        Drawn {
            index,
            draw: Some(draw),
        }
    }
}
