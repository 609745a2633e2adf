//! A sampler by itself, as a graph of indices.

use super::{Indexed, Sampler};
use crate::Graph;

/// Methods of every [`Sampler`], in addition to its own.
pub trait SamplerExt: Sampler + Sized {
    /// Makes a graph of the indices over data of `len` samples, for [`Graph::fetch`] or a step of
    /// your own.
    ///
    /// # Examples
    /// ```
    /// use datapipes::index::{Random, SamplerExt};
    /// let mut batches = Random::new().indices(10).batch(4).collect()?;
    /// assert_eq!(batches.len(), 3);
    /// assert_eq!(batches.pop().unwrap().len(), 2);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn indices(self, len: u64) -> Graph<u64> {
        Indexed::range(len).sampled(self).fetch()
    }
}

impl<S: Sampler> SamplerExt for S {}
