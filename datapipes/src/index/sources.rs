//! Indexed data from a vector, a function, or the indices alone.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;

use super::order::{Index, single};
use super::{Lookup, MapPipe};
use crate::{BoxError, Error, Result, Revision};

/// The elements of a vector.
pub(super) struct FromVec<T>(pub Vec<T>);

#[async_trait]
impl<T: Clone + Send + Sync + 'static> MapPipe for FromVec<T> {
    type Out = T;

    fn len(&self) -> u64 {
        self.0.len() as u64
    }
    async fn get(&self, index: u64) -> Result<T> {
        let sample = usize::try_from(index)
            .ok()
            .and_then(|index| self.0.get(index));
        sample.cloned().ok_or_else(|| {
            let message = format!("index {index}, where there are {} samples", self.0.len());
            Error::not_found(message)
        })
    }
}

/// Results of a function called with each index.
pub(super) struct FromFn<F> {
    pub len: u64,
    pub get: F,
}

#[async_trait]
impl<T, E, Fut, F> MapPipe for FromFn<F>
where
    T: Send + 'static,
    E: Into<BoxError> + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    F: Fn(u64) -> Fut + Send + Sync + 'static,
{
    type Out = T;

    fn len(&self) -> u64 {
        self.len
    }
    async fn get(&self, index: u64) -> Result<T> {
        (self.get)(index).await.map_err(Error::user)
    }
}

/// Data whose samples are their indices.
pub(super) struct Itself;

#[async_trait]
impl Lookup<Index> for Itself {
    type Out = u64;

    async fn get(&self, key: Index) -> Result<u64> {
        Ok(single(key))
    }
}

/// Samples of a `MapPipe`.
pub(super) struct Samples<M: ?Sized>(pub Arc<M>);

#[async_trait]
impl<M: MapPipe + ?Sized> Lookup<Index> for Samples<M> {
    type Out = M::Out;

    async fn get(&self, key: Index) -> Result<M::Out> {
        self.0.get(single(key)).await
    }
    async fn get_many(&self, keys: Vec<Index>) -> Vec<Result<M::Out>> {
        let indices: Vec<u64> = keys.into_iter().map(single).collect();
        self.0.get_many(&indices).await
    }
    fn name(&self) -> String {
        self.0.name()
    }
    fn sample_name(&self, key: &Index) -> Option<Arc<str>> {
        self.0.sample_name(single(key.clone()))
    }
    forward! { self.0 =>
        fn revision(&self) -> Revision;
        fn seldom_waits(&self) -> bool;
        fn weigh(&self, sample: &M::Out) -> Option<usize>;
    }
}
