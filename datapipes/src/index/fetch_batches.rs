//! A pipe that looks up batches of keys.

use std::sync::Arc;

use super::Lookup;
use super::combined::weigh_all;
use super::fetch::get_all;
use crate::{Arity, Context, Graph, Hints, Item, Items, Pipe, Result, Work};

/// Looks up batches of keys; see [`Graph::fetch_batches`].
pub struct FetchBatches<L: ?Sized>(Arc<L>);

impl<L> FetchBatches<L> {
    /// Reads from a lookup.
    pub fn new(lookup: L) -> Self {
        FetchBatches(Arc::new(lookup))
    }
}

opaque_debug!(FetchBatches<L: ?Sized> {});

impl<K, L> Pipe<Vec<K>> for FetchBatches<L>
where
    K: Clone + Send + 'static,
    L: Lookup<K> + ?Sized,
{
    type Out = Vec<L::Out>;

    fn apply(&self, mut input: Items<Vec<K>>, cx: &Context) -> Items<Vec<L::Out>> {
        let (lookup, cx) = (self.0.clone(), cx.clone());
        Items::generate(async move |out| {
            while let Some(batch) = out.next_from(&mut input).await {
                if cx.is_cancelled() {
                    return;
                }
                let (keys, origin) = batch.into_parts();
                let found = get_all(&*lookup, keys).await;
                // A batch that was made of items has the origin of each.
                let named = |(place, sample): (usize, Result<_>)| {
                    sample.map_err(|error| error.of(origin.parts().get(place).unwrap_or(&origin)))
                };
                let samples: Result<Vec<_>> = found.into_iter().enumerate().map(named).collect();
                out.emit(samples.map(|samples| Item::new(samples, origin)))
                    .await;
            }
        })
    }
    fn name(&self) -> String {
        "fetch_batches".to_owned()
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .work(Work::Io)
            .seldom_waits(self.0.seldom_waits())
            .arity(Arity::One)
            .revision(self.0.revision())
    }
    fn weigh(&self, samples: &Vec<L::Out>) -> Option<usize> {
        Some(weigh_all(&*self.0, samples))
    }
}

impl<K: Clone + Send + 'static> Graph<Vec<K>> {
    /// Looks up the keys of each batch with one [`get_many`](Lookup::get_many) per batch. The
    /// default `get_many` sends the requests of a batch at once; a lookup can override it.
    ///
    /// Useful for batches that were chosen by their keys (of similar length, of one file, of one
    /// partition of a table), or where one request can ask for many keys. Otherwise use
    /// [`fetch`](Graph::fetch) and then [`batch`](Graph::batch): there the concurrency counts
    /// requests, here it counts batches. For data that is read by index, see
    /// [`Indexed::batch`](super::Indexed::batch).
    ///
    /// # Errors
    /// A batch is complete or fails: the first error among its samples, in order, takes its place.
    /// The error names the sample. To lose single samples instead, fetch them one by one and batch
    /// the rest.
    ///
    /// # Panics
    /// A panic of the lookup becomes an error of the batch.
    ///
    /// # Examples
    /// ```
    /// use datapipes::index::{Lookup, Random, SamplerExt};
    /// use datapipes::{Result, async_trait};
    ///
    /// struct Squares;
    ///
    /// #[async_trait]
    /// impl Lookup<u64> for Squares {
    ///     type Out = u64;
    ///     async fn get(&self, key: u64) -> Result<u64> {
    ///         Ok(key * key)
    ///     }
    /// }
    ///
    /// let batches = Random::new().indices(10).batch(4).fetch_batches(Squares).collect()?;
    /// assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2]);
    /// assert_eq!(batches.concat().iter().sum::<u64>(), 285);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn fetch_batches<L: Lookup<K>>(self, lookup: L) -> Graph<Vec<L::Out>> {
        self.pipe(FetchBatches::new(lookup))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, async_trait, testing};

    struct Halves;

    #[async_trait]
    impl Lookup<u64> for Halves {
        type Out = u64;
        async fn get(&self, key: u64) -> Result<u64> {
            match key % 2 {
                0 => Ok(key / 2),
                _ => Err(Error::not_found("odd")),
            }
        }
        fn weigh(&self, _: &u64) -> Option<usize> {
            Some(100)
        }
    }

    #[test]
    fn keeps_the_contract() {
        let batches = (0..12u64)
            .map(|n| (0..n % 4).map(|k| 2 * k + u64::from(n == 7)).collect())
            .collect();
        testing::check_pipe(&FetchBatches::new(Halves), batches);
    }

    #[test]
    fn a_batch_comes_whole_or_its_first_error_names_the_sample() {
        let graph = |keys: Vec<u64>| Graph::from_vec(keys).batch(3).fetch_batches(Halves);
        assert_eq!(
            graph(vec![0, 2, 4, 6]).collect().unwrap(),
            [vec![0, 1, 2], vec![3]]
        );
        let error = graph(vec![0, 2, 4, 6, 7, 9]).collect().unwrap_err();
        assert_eq!(error.to_string(), "fetch_batches: 0:4: not found: odd");
        let alone = Graph::from_vec(vec![vec![1u64]])
            .fetch_batches(Halves)
            .collect()
            .unwrap_err();
        assert_eq!(alone.to_string(), "fetch_batches: 0:0: not found: odd");
        assert_eq!(FetchBatches::new(Halves).weigh(&vec![1, 2]), Some(200));
        // A lookup without `weigh` weighs a sample by its size.
        struct Light;
        #[async_trait]
        impl Lookup<u64> for Light {
            type Out = [u64; 100];
            async fn get(&self, key: u64) -> Result<[u64; 100]> {
                Ok([key; 100])
            }
        }
        assert_eq!(
            FetchBatches::new(Light).weigh(&vec![[1; 100], [2; 100]]),
            Some(1600)
        );
    }
}
