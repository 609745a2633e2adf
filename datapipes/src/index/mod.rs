//! Data that is read by index or key, instead of as a stream.
//!
//! A [`MapPipe`] has a length and gives any of its samples, so that order is decided on indices, which are cheap; the
//! samples follow. [`Lookup`] is the same for data that is known by a key: a name, a UUID.

pub mod split;

use async_trait::async_trait;

use crate::Result;

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
    /// `NotFound` where there is nothing under it; [passing](crate::Error::passing) what may work later.
    async fn get(&self, key: K) -> Result<Self::Out>;

    /// What is found under each of some keys, in their order. By default one after another; worth its own code where one
    /// request can ask for many.
    async fn get_many(&self, keys: Vec<K>) -> Vec<Result<Self::Out>> {
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            found.push(self.get(key).await);
        }
        found
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
    /// Of the sample; [passing](crate::Error::passing) what may work later.
    async fn get(&self, index: u64) -> Result<Self::Out>;

    /// The samples at some indices, in their order. By default one after another.
    async fn get_many(&self, indices: &[u64]) -> Vec<Result<Self::Out>> {
        let mut samples = Vec::with_capacity(indices.len());
        for &index in indices {
            samples.push(self.get(index).await);
        }
        samples
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
