//! Data that is read by index or key, instead of as a stream.
//!
//! A [`MapPipe`] has a length and gives any of its samples, so that order is decided on indices,
//! which are cheap; the samples follow. [`Indexed`] is a handle on one and what is to be done to
//! it: transformed, shuffled as a whole, sharded, mixed, and still read by index, until
//! [`fetch`](Indexed::fetch) makes a [`Graph`](crate::Graph) of it. [`Lookup`] is the same for data
//! that is known by a key: a name, a UUID; there [`Graph::fetch`](crate::Graph::fetch) reads what
//! the keys of a graph stand for. A [`Sampler`] chooses which index comes at each position.
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
//! Nothing about order is materialised: a position's index is computed when it is wanted, so 2⁴⁰
//! samples start as quickly as ten.

mod cached;
mod combined;
mod fetch;
mod fetch_batches;
mod indexed;
mod order;
mod permutation;
mod sampler;
mod samplers;
mod sources;
mod transformed;

pub use fetch::Fetch;
pub use fetch_batches::FetchBatches;
pub use indexed::Indexed;
pub use permutation::Permutation;
pub use sampler::{Drawn, Draws, Sampler};
pub use samplers::{
    ClassBalanced, Distributed, LengthGrouped, Random, Replacement, Sequential, Subset, Weighted,
    WeightedOnce,
};

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

pub mod split;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::join_all;

use crate::{Error, Result};

/// Data that is read by key: a store of objects, a table, a function.
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
    /// What is found under a key.
    type Out: Send + 'static;

    /// What is found under a key.
    ///
    /// # Errors
    /// `NotFound` where there is nothing under it; [passing](crate::Error::transient) what may work
    /// later.
    async fn get(&self, key: K) -> Result<Self::Out>;

    /// What is found under each of some keys, in their order. By default asks for all of them at
    /// once, one by one; worth its own code where one request can ask for many.
    async fn get_many(&self, keys: Vec<K>) -> Vec<Result<Self::Out>> {
        join_all(keys.into_iter().map(|key| contained(self.get(key)))).await
    }

    /// What a node that reads from it is called if the user gives it no name.
    fn name(&self) -> String {
        "fetch".to_owned()
    }

    /// About how many bytes a sample keeps alive; `None` for its size alone.
    fn weigh(&self, _sample: &Self::Out) -> Option<usize> {
        None
    }
}

/// Data with a length, of which any sample can be read by its index; the RFC's `MapDataPipe`.
#[async_trait]
pub trait MapPipe: Send + Sync + 'static {
    /// A sample.
    type Out: Send + 'static;

    /// How many samples there are. Always the same number.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sample at an index below [`len`](MapPipe::len).
    ///
    /// # Errors
    /// Of the sample; [passing](crate::Error::transient) what may work later.
    async fn get(&self, index: u64) -> Result<Self::Out>;

    /// The samples at some indices, in their order. By default asks for all of them at once, one by
    /// one; worth its own code where one request can ask for many.
    async fn get_many(&self, indices: &[u64]) -> Vec<Result<Self::Out>> {
        join_all(indices.iter().map(|&index| contained(self.get(index)))).await
    }

    /// What a node that reads from it is called if the user gives it no name.
    fn name(&self) -> String {
        "fetch".to_owned()
    }

    /// About how many bytes a sample keeps alive; `None` for its size alone.
    fn weigh(&self, _sample: &Self::Out) -> Option<usize> {
        None
    }
}

/// Any `MapPipe` is looked up by index.
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
    fn weigh(&self, sample: &M::Out) -> Option<usize> {
        MapPipe::weigh(self, sample)
    }
}

/// What is shared is looked up too.
#[async_trait]
impl<K: Send + 'static, L: Lookup<K> + ?Sized> Lookup<K> for Arc<L> {
    type Out = L::Out;

    async fn get(&self, key: K) -> Result<L::Out> {
        (**self).get(key).await
    }
    async fn get_many(&self, keys: Vec<K>) -> Vec<Result<L::Out>> {
        (**self).get_many(keys).await
    }
    fn name(&self) -> String {
        (**self).name()
    }
    fn weigh(&self, sample: &L::Out) -> Option<usize> {
        (**self).weigh(sample)
    }
}

/// A panic becomes an error of the one sample it happened to.
async fn contained<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    AssertUnwindSafe(work)
        .catch_unwind()
        .await
        .unwrap_or_else(|payload| Err(Error::panic(payload)))
}

#[cfg(test)]
mod tests;
