//! The contract of samplers: an index for each position.

use crate::{Hints, Rng};

/// Chooses the index of the sample at each position.
///
/// Nothing is materialised except what the sampler holds itself, so an epoch over any number of
/// samples starts at once. A sampler does not depend on ranks: the index at a position is the same
/// for all of them, and [`Indexed::shard`](crate::Indexed::shard) takes every `world`-th position.
///
/// # Examples
/// ```
/// use datapipes::index::{Drawn, Draws, Indexed, Sampler, SamplerExt};
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
    /// Returns the number of positions for data of `len` samples. It must not change.
    fn len(&self, len: u64) -> u64;

    /// Starts a pass over data of `len` samples. `rng` is a function of seed, epoch, round and the
    /// node's name; draw the keys of the pass from it. The returned closure is called with any
    /// position below [`len`](Sampler::len), in any order, and must return the same value each
    /// time. To give each position random numbers of its own, call [`Rng::from_key`] with a key and
    /// the position.
    ///
    /// # Panics
    /// A panic here or in the returned closure, or an index that is not below `len`, ends the epoch
    /// with an error that names the node.
    fn start(&self, len: u64, rng: &mut Rng) -> Draws;

    /// Describes what is wrong with the sampler for data of `len` samples, if anything is. Called
    /// when the loader is built, if the length is known then, and before each pass.
    fn problem(&self, _len: u64) -> Option<String> {
        None
    }

    /// Returns the default name of the node.
    fn name(&self) -> String {
        "sampler".to_owned()
    }

    /// Returns hints for the checker: the role, settings for the printed plan, and mistakes that do
    /// not depend on the data.
    fn hints(&self) -> Hints {
        Hints::any_order()
    }
}

/// Draws of one pass: the index that a [`Sampler`] chooses at each position.
pub type Draws = Box<dyn Fn(u64) -> Drawn + Send + Sync>;

/// An index that a [`Sampler`] chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// Index of the sample.
    pub index: u64,
    /// Number of the draw of this sample, for a sampler that may choose an index more than once in
    /// a pass. The origin of the item is this child of the sample's origin, so that no two draws
    /// get the same augmentation.
    pub draw: Option<u64>,
}

impl Drawn {
    /// Makes a draw of a sampler that chooses each index at most once.
    pub fn once(index: u64) -> Self {
        Drawn { index, draw: None }
    }

    /// Makes a draw of a sampler that may choose an index again. No two draws of an index may have
    /// the same number.
    pub fn again(index: u64, draw: u64) -> Self {
        Drawn {
            index,
            draw: Some(draw),
        }
    }
}
