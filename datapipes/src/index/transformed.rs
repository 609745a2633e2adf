//! Indexed data with a transform of each sample.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;

use super::order::Index;
use super::{Lookup, contained};
use crate::{BoxError, Error, Result, Revision};

/// Lookup of the samples of an [`Indexed`](super::Indexed).
pub(super) type IndexLookup<T> = Arc<dyn Lookup<Index, Out = T>>;

/// Samples with a function applied to each.
pub(super) struct Mapped<T, F> {
    pub above: IndexLookup<T>,
    pub f: F,
}

#[async_trait]
impl<T, U, F> Lookup<Index> for Mapped<T, F>
where
    T: Send + 'static,
    U: Send + 'static,
    F: Fn(T) -> Result<U> + Send + Sync + 'static,
{
    type Out = U;

    async fn get(&self, key: Index) -> Result<U> {
        (self.f)(self.above.get(key).await?)
    }
    async fn get_many(&self, keys: Vec<Index>) -> Vec<Result<U>> {
        // A panic costs the sample it happened to.
        let apply = |sample| catch_unwind(AssertUnwindSafe(|| (self.f)(sample)));
        let all = self.above.get_many(keys).await.into_iter();
        all.map(|sample| apply(sample?).unwrap_or_else(|payload| Err(Error::panic(payload))))
            .collect()
    }
    forward! { self.above =>
        fn name(&self) -> String;
        fn sample_name(&self, key: &Index) -> Option<Arc<str>>;
        fn revision(&self) -> Revision;
        fn seldom_waits(&self) -> bool;
    }
}

/// Samples with an async function applied to each.
pub(super) struct MappedAsync<T, F> {
    pub above: IndexLookup<T>,
    pub f: F,
}

#[async_trait]
impl<T, U, E, Fut, F> Lookup<Index> for MappedAsync<T, F>
where
    T: Send + 'static,
    U: Send + 'static,
    E: Into<BoxError> + 'static,
    Fut: Future<Output = Result<U, E>> + Send + 'static,
    F: Fn(T) -> Fut + Send + Sync + 'static,
{
    type Out = U;

    async fn get(&self, key: Index) -> Result<U> {
        (self.f)(self.above.get(key).await?)
            .await
            .map_err(Error::user)
    }
    async fn get_many(&self, keys: Vec<Index>) -> Vec<Result<U>> {
        let all = self.above.get_many(keys).await.into_iter();
        join_all(
            all.map(|sample| contained(async { (self.f)(sample?).await.map_err(Error::user) })),
        )
        .await
    }
    forward! { self.above =>
        fn name(&self) -> String;
        fn sample_name(&self, key: &Index) -> Option<Arc<str>>;
        fn revision(&self) -> Revision;
    }
}

/// Samples with a weight for each.
pub(super) struct Weighed<T, F> {
    pub above: IndexLookup<T>,
    pub weigh: F,
}

#[async_trait]
impl<T, F> Lookup<Index> for Weighed<T, F>
where
    T: Send + 'static,
    F: Fn(&T) -> usize + Send + Sync + 'static,
{
    type Out = T;

    async fn get(&self, key: Index) -> Result<T> {
        self.above.get(key).await
    }
    async fn get_many(&self, keys: Vec<Index>) -> Vec<Result<T>> {
        self.above.get_many(keys).await
    }
    forward! { self.above =>
        fn name(&self) -> String;
        fn sample_name(&self, key: &Index) -> Option<Arc<str>>;
        fn revision(&self) -> Revision;
        fn seldom_waits(&self) -> bool;
    }
    fn weigh(&self, sample: &T) -> Option<usize> {
        Some((self.weigh)(sample))
    }
}
