//! Data that is read by index or key, instead of as a stream.
//!
//! A [`MapPipe`] has a length and reads any of its samples. The order is therefore decided on
//! indices, which are cheap, before samples are read. [`Indexed`] is a handle on a `MapPipe` and
//! the steps applied to it: the data is transformed, shuffled as a whole, sharded, mixed, and still
//! read by index, until [`fetch`](Indexed::fetch) makes a [`Graph`](crate::Graph) of it. [`Lookup`]
//! reads data by a key, such as a name or a UUID; [`Graph::fetch`](crate::Graph::fetch) looks up
//! the keys of a graph. A [`Sampler`] chooses the index at each position.
//!
//! ```
//! use datapipes::{DataLoader, Error, Uneven, index::Indexed};
//!
//! let images = Indexed::from_fn(1000, |index| async move { Ok::<_, Error>(format!("image {index}")) });
//! let labels = Indexed::from_vec((0..1000).map(|n| n % 10).collect());
//! let graph = images
//!     .zip(labels)
//!     .subset(0..900)     // the rest is for validation
//!     .shuffle()          // all of it, with nothing in memory
//!     .shard()            // this rank's part
//!     .fetch()            // many in flight, in order
//!     .batch(32);
//! let loader = DataLoader::builder(graph).seed(42).rank(0, 4).uneven(Uneven::Drop).build()?;
//! assert_eq!(loader.epoch(0).blocking().count(), 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! No order is materialised: the index at a position is computed when it is needed, so 2⁴⁰ samples
//! start as quickly as ten.

mod cached;
mod combined;
mod fetch;
mod fetch_batches;
mod indexed;
mod order;
mod permutation;
mod sampler;
mod sampler_ext;
mod samplers;
mod sources;
mod transformed;

pub use fetch::Fetch;
pub use fetch_batches::FetchBatches;
pub use indexed::Indexed;
pub use permutation::Permutation;
pub use sampler::{Drawn, Draws, Sampler};
pub use sampler_ext::SamplerExt;
pub use samplers::{
    ClassBalanced, Distributed, LengthGrouped, Random, Replacement, Sequential, Subset, Weighted,
    WeightedOnce,
};

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

pub mod filter;
pub mod split;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::join_all;

use crate::{Error, Result, Revision};

/// Data that is read by key: an object store, a table, a function.
///
/// The futures run on the async runtime, many at once; they must not block or compute for long.
///
/// # Examples
/// ```
/// use datapipes::index::Lookup;
/// use datapipes::{Error, ErrorKind, Result, async_trait};
///
/// struct Lengths;
///
/// #[async_trait]
/// impl Lookup<String> for Lengths {
///     type Out = usize;
///     async fn get(&self, key: String) -> Result<usize> {
///         Ok(key.len())
///     }
/// }
/// ```
#[async_trait]
pub trait Lookup<K: Send + 'static>: Send + Sync + 'static {
    /// Value found under a key.
    type Out: Send + 'static;

    /// Returns the value under a key.
    ///
    /// # Errors
    /// `NotFound` if there is nothing under the key. Mark an error that may pass as
    /// [transient](crate::Error::transient).
    async fn get(&self, key: K) -> Result<Self::Out>;

    /// Returns the values under some keys, in their order. By default calls [`get`](Lookup::get)
    /// for all of them at once. Override it if one request can ask for many keys.
    async fn get_many(&self, keys: Vec<K>) -> Vec<Result<Self::Out>> {
        join_all(keys.into_iter().map(|key| contained(self.get(key)))).await
    }

    /// Returns the default name of a node that reads from the lookup.
    fn name(&self) -> String {
        "fetch".to_owned()
    }

    /// Returns the name of the sample under a key, such as that of its file. Errors, replays and
    /// [`blame`](crate::DataLoader::blame) show it in place of a number. Called when one of them needs the name,
    /// also if there is no such sample.
    fn sample_name(&self, _key: &K) -> Option<Arc<str>> {
        None
    }

    /// Returns about how many bytes a sample keeps alive; `None` stands for the size of the value
    /// alone.
    fn weigh(&self, _sample: &Self::Out) -> Option<usize> {
        None
    }

    /// Returns the revision that is read, as far as it is known before the first sample is. A fixed
    /// one is compared when an epoch is resumed; see [`Hints::revision`](crate::Hints::revision).
    fn revision(&self) -> Revision {
        Revision::Unknown
    }

    /// Returns true if looking up usually ends without waiting, as reading a file in the page cache does;
    /// see [`Hints::seldom_waits`](field@crate::Hints::seldom_waits).
    fn seldom_waits(&self) -> bool {
        false
    }
}

/// Data with a length whose samples can be read by index; `MapDataPipe` in PyTorch's DataPipes RFC.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use datapipes::{Indexed, MapPipe, Result, async_trait};
///
/// struct Squares(u64);
///
/// #[async_trait]
/// impl MapPipe for Squares {
///     type Out = u64;
///     fn len(&self) -> u64 { self.0 }
///     async fn get(&self, index: u64) -> Result<u64> { Ok(index * index) }
/// }
///
/// assert_eq!(Indexed::new(Squares(4)).fetch().collect()?, [0, 1, 4, 9]);
/// let shared = Indexed::shared(Arc::new(Squares(100)));
/// assert_eq!(shared.subset(vec![30, 20]).fetch().collect()?, [900, 400]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[async_trait]
pub trait MapPipe: Send + Sync + 'static {
    /// A sample.
    type Out: Send + 'static;

    /// Returns the number of samples. It must not change.
    fn len(&self) -> u64;

    /// Returns true if there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the sample at an index below [`len`](MapPipe::len). The futures of many samples run at once,
    /// on one thread unless the data [seldom wait](MapPipe::seldom_waits): they must not block or compute for long. Decode by a [`map`](crate::Graph::map) after
    /// [`fetch`](Indexed::fetch), which runs on all workers; call what blocks by [`blocking`](crate::blocking).
    ///
    /// # Errors
    /// Any error of the sample. Mark an error that may pass as
    /// [transient](crate::Error::transient).
    async fn get(&self, index: u64) -> Result<Self::Out>;

    /// Returns the samples at some indices, in their order. By default calls [`get`](MapPipe::get)
    /// for all of them at once. Override it if one request can ask for many samples.
    async fn get_many(&self, indices: &[u64]) -> Vec<Result<Self::Out>> {
        join_all(indices.iter().map(|&index| contained(self.get(index)))).await
    }

    /// Returns the default name of a node that reads from the data.
    fn name(&self) -> String {
        "fetch".to_owned()
    }

    /// Returns the name of the sample at an index, such as that of its file. Errors, replays and
    /// [`blame`](crate::DataLoader::blame) show it in place of a number. Called when one of them needs the name,
    /// also if there is no such sample.
    fn sample_name(&self, _index: u64) -> Option<Arc<str>> {
        None
    }

    /// Returns about how many bytes a sample keeps alive; `None` stands for the size of the value
    /// alone.
    fn weigh(&self, _sample: &Self::Out) -> Option<usize> {
        None
    }

    /// Returns the revision that is read, as far as it is known before the first sample is. A fixed
    /// one is compared when an epoch is resumed; see [`Hints::revision`](crate::Hints::revision).
    fn revision(&self) -> Revision {
        Revision::Unknown
    }

    /// Returns true if looking up usually ends without waiting, as reading a file in the page cache does;
    /// see [`Hints::seldom_waits`](field@crate::Hints::seldom_waits).
    fn seldom_waits(&self) -> bool {
        false
    }
}

/// Every `MapPipe` is a lookup by index.
#[async_trait]
impl<M: MapPipe> Lookup<u64> for M {
    type Out = M::Out;

    async fn get(&self, key: u64) -> Result<M::Out> {
        MapPipe::get(self, key).await
    }
    async fn get_many(&self, keys: Vec<u64>) -> Vec<Result<M::Out>> {
        MapPipe::get_many(self, &keys).await
    }
    fn name(&self) -> String {
        MapPipe::name(self)
    }
    fn sample_name(&self, key: &u64) -> Option<Arc<str>> {
        MapPipe::sample_name(self, *key)
    }
    fn weigh(&self, sample: &M::Out) -> Option<usize> {
        MapPipe::weigh(self, sample)
    }
    fn revision(&self) -> Revision {
        MapPipe::revision(self)
    }
    fn seldom_waits(&self) -> bool {
        MapPipe::seldom_waits(self)
    }
}

/// A shared lookup is a lookup, too.
#[async_trait]
impl<K: Send + 'static, L: Lookup<K> + ?Sized> Lookup<K> for Arc<L> {
    type Out = L::Out;

    async fn get(&self, key: K) -> Result<L::Out> {
        (**self).get(key).await
    }
    async fn get_many(&self, keys: Vec<K>) -> Vec<Result<L::Out>> {
        (**self).get_many(keys).await
    }
    forward! { **self =>
        fn name(&self) -> String;
        fn sample_name(&self, key: &K) -> Option<Arc<str>>;
        fn weigh(&self, sample: &L::Out) -> Option<usize>;
        fn revision(&self) -> Revision;
        fn seldom_waits(&self) -> bool;
    }
}

/// Turns a panic into an error of the one sample it happened to.
async fn contained<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    AssertUnwindSafe(work)
        .catch_unwind()
        .await
        .unwrap_or_else(|payload| Err(Error::panic(payload)))
}

#[cfg(test)]
mod tests;
