//! Indexed data made of several samples or of several data sets.

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::{join, join_all};

use super::Lookup;
use super::order::Index;
use super::transformed::IndexLookup;
use crate::{Error, Result, Revision};

/// Pairs the samples of two data sets; both are read at once.
pub(super) struct Zipped<A, B>(pub IndexLookup<A>, pub IndexLookup<B>);

fn parts(key: Index) -> Box<[Index]> {
    match key {
        Index::Many(parts) => parts,
        _ => unreachable!("the order is as deep as the data"),
    }
}

fn two(key: Index) -> (Index, Index) {
    let mut parts = parts(key).into_iter();
    let mut part = || parts.next().expect("an index for each of two");
    (part(), part())
}

#[async_trait]
impl<A: Send + 'static, B: Send + 'static> Lookup<Index> for Zipped<A, B> {
    type Out = (A, B);

    async fn get(&self, key: Index) -> Result<(A, B)> {
        let (a, b) = two(key);
        // Both reads run to their end: the error that comes out must not depend on which is
        // quicker.
        let (a, b) = join(self.0.get(a), self.1.get(b)).await;
        Ok((a?, b?))
    }
    async fn get_many(&self, keys: Vec<Index>) -> Vec<Result<(A, B)>> {
        let (a, b) = keys.into_iter().map(two).unzip();
        let (a, b) = join(self.0.get_many(a), self.1.get_many(b)).await;
        a.into_iter().zip(b).map(|(a, b)| Ok((a?, b?))).collect()
    }
    fn name(&self) -> String {
        self.0.name()
    }
    /// Returns the names of both: either sample may be the cause of an error.
    fn sample_name(&self, key: &Index) -> Option<Arc<str>> {
        let Index::Many(parts) = key else { return None };
        match (self.0.sample_name(&parts[0]), self.1.sample_name(&parts[1])) {
            (Some(a), Some(b)) if a != b => Some(format!("{a} + {b}").into()),
            (a, b) => a.or(b),
        }
    }
    fn revision(&self) -> Revision {
        self.0.revision().and(self.1.revision())
    }
    fn seldom_waits(&self) -> bool {
        self.0.seldom_waits() && self.1.seldom_waits()
    }
    fn weigh(&self, (a, b): &(A, B)) -> Option<usize> {
        let (left, right) = (self.0.weigh(a), self.1.weigh(b));
        left.or(right)?;
        Some(left.unwrap_or(size_of_val(a)) + right.unwrap_or(size_of_val(b)))
    }
}

/// Samples of several data sets.
pub(super) struct OneOf<T>(pub Vec<IndexLookup<T>>);

fn which(key: Index) -> (usize, Index) {
    match key {
        Index::In(which, inner) => (which, *inner),
        _ => unreachable!("the order is as deep as the data"),
    }
}

#[async_trait]
impl<T: Send + 'static> Lookup<Index> for OneOf<T> {
    type Out = T;

    async fn get(&self, key: Index) -> Result<T> {
        let (which, key) = which(key);
        self.0[which].get(key).await
    }
    async fn get_many(&self, keys: Vec<Index>) -> Vec<Result<T>> {
        let mut order = Vec::with_capacity(keys.len());
        let mut asked: Vec<Vec<Index>> = self.0.iter().map(|_| Vec::new()).collect();
        for key in keys {
            let (which, key) = which(key);
            order.push(which);
            asked[which].push(key);
        }
        let found = self.0.iter().zip(asked).map(|(samples, keys)| async move {
            if keys.is_empty() {
                Vec::new()
            } else {
                samples.get_many(keys).await
            }
        });
        let mut found: Vec<_> = join_all(found)
            .await
            .into_iter()
            .map(Vec::into_iter)
            .collect();
        order
            .into_iter()
            .map(|which| found[which].next().unwrap_or_else(|| Err(too_few())))
            .collect()
    }
    fn name(&self) -> String {
        self.0
            .first()
            .map_or_else(|| "fetch".to_owned(), |first| first.name())
    }
    fn sample_name(&self, key: &Index) -> Option<Arc<str>> {
        let Index::In(which, key) = key else {
            return None;
        };
        self.0[*which].sample_name(key)
    }
    fn revision(&self) -> Revision {
        let all = self.0.iter().map(|samples| samples.revision());
        all.fold(Revision::Unknown, Revision::and)
    }
    fn seldom_waits(&self) -> bool {
        self.0.iter().all(|samples| samples.seldom_waits())
    }
    fn weigh(&self, sample: &T) -> Option<usize> {
        self.0.iter().find_map(|samples| samples.weigh(sample))
    }
}

/// Batches of samples of one data set.
pub(super) struct Batched<T>(pub IndexLookup<T>);

#[async_trait]
impl<T: Send + 'static> Lookup<Index> for Batched<T> {
    type Out = Vec<T>;

    async fn get(&self, key: Index) -> Result<Vec<T>> {
        let keys = parts(key).into_vec();
        let samples = self.0.get_many(keys.clone()).await;
        if samples.len() != keys.len() {
            return Err(too_few());
        }
        let named = |(sample, key): (Result<T>, Index)| {
            sample.map_err(|error| match self.0.sample_name(&key) {
                Some(name) => error.within(name),
                None => error.within(format_args!("sample {key}")),
            })
        };
        samples.into_iter().zip(keys).map(named).collect()
    }
    forward! { self.0 =>
        fn name(&self) -> String;
        fn revision(&self) -> Revision;
        fn seldom_waits(&self) -> bool;
    }
    fn weigh(&self, samples: &Vec<T>) -> Option<usize> {
        Some(weigh_all(&*self.0, samples))
    }
}

/// Returns the weight of a batch.
pub(super) fn weigh_all<K: Send + 'static, L: Lookup<K> + ?Sized>(
    lookup: &L,
    samples: &[L::Out],
) -> usize {
    let weigh = |sample| lookup.weigh(sample).unwrap_or(size_of_val(sample));
    samples.iter().map(weigh).sum()
}

/// Error for a `get_many` that does not return a result for each key.
pub(super) fn too_few() -> Error {
    Error::protocol("`get_many` gave another number of samples than it was asked for")
}
