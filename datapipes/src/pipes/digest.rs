//! Digests of the items that pass, for comparison with another process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::{Arity, Context, Graph, Hints, Items, Pipe, lock, mix_bits, stable_hash};

/// A digest of the items that passed a [`Graph::digest`], as one number for each epoch. A clone is
/// the same digest.
#[derive(Clone, Debug, Default)]
pub struct Digest(Arc<Mutex<BTreeMap<u64, Arc<Sums>>>>);

#[derive(Debug, Default)]
struct Sums {
    items: AtomicU64,
    sum: AtomicU64,
}

impl Digest {
    /// Makes a digest of nothing so far.
    pub fn new() -> Self {
        Digest::default()
    }

    /// Returns how many items passed in all runs of an epoch so far.
    pub fn items(&self, epoch: u64) -> u64 {
        self.of(epoch).items.load(Ordering::Relaxed)
    }

    /// Returns a number for the items that passed in all runs of an epoch so far. It is the same
    /// for the same items with the same places in their sources, in any order, and most likely
    /// differs for any others. It is no protection against somebody who wants two lists to look the
    /// same.
    pub fn value(&self, epoch: u64) -> u64 {
        let of = self.of(epoch);
        mix_bits(of.sum.load(Ordering::Relaxed) ^ mix_bits(of.items.load(Ordering::Relaxed)))
    }

    fn of(&self, epoch: u64) -> Arc<Sums> {
        let mut sums = lock(&self.0);
        sums.entry(epoch).or_default().clone()
    }
}

/// Passes everything on, and adds it to a digest; see [`Graph::digest`].
#[derive(Clone, Debug)]
pub struct Digested<F> {
    digest: Digest,
    bytes: F,
}

impl<F> Digested<F> {
    /// Adds the result of `bytes` for each item to a digest.
    pub fn new(digest: Digest, bytes: F) -> Self {
        Digested { digest, bytes }
    }
}

impl<T, B, F> Pipe<T> for Digested<F>
where
    T: Send + 'static,
    B: AsRef<[u8]>,
    F: Fn(&T) -> B + Clone + Send + Sync + 'static,
{
    type Out = T;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<T> {
        let (bytes, sums) = (self.bytes.clone(), self.digest.of(cx.running_epoch()));
        input.each(cx, move |item| {
            let hash = stable_hash(bytes(&item).as_ref()) ^ mix_bits(item.origin().key());
            sums.sum.fetch_add(mix_bits(hash), Ordering::Relaxed);
            sums.items.fetch_add(1, Ordering::Relaxed);
            Some(Ok(item))
        })
    }
    fn name(&self) -> String {
        "digest".to_owned()
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::One).selects(true)
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Passes every item on, and adds the result of `bytes` for it, such as its name, to a digest,
    /// by which ranks find out that they do not read the same list. Put it between the listing and
    /// [`sharding_filter`](Graph::sharding_filter), where every rank sees all items, and let ranks
    /// compare [`Digest::value`] when an epoch has ended; while the epoch runs, some have read
    /// farther ahead than others. If names are listed in a graph of their own, ranks can compare
    /// before the first step.
    ///
    /// In a [resumed](crate::DataLoader::resume) epoch the digest covers only the items after the
    /// stop: items that are not read again are not in it.
    ///
    /// # Panics
    /// A panic of the function becomes an error in the item's place.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph, Uneven, pipes::Digest};
    /// let names_of = |rank: usize| if rank == 2 { ["a", "b", "d"] } else { ["a", "b", "c"] };
    /// let digests = [0, 1, 2].map(|rank| {
    ///     let digest = Digest::new();
    ///     let names = Graph::from_vec(names_of(rank).to_vec());
    ///     let graph = names.digest(&digest, |name| *name).sharding_filter();
    ///     let loader = DataLoader::builder(graph).rank(rank, 3).uneven(Uneven::Drop).build().unwrap();
    ///     assert_eq!(loader.epoch(0).blocking().count(), 1);
    ///     digest.value(0)
    /// });
    /// assert_eq!(digests[0], digests[1]);
    /// assert_ne!(digests[0], digests[2]); // rank 2 has another list
    /// ```
    pub fn digest<B: AsRef<[u8]>>(
        self,
        digest: &Digest,
        bytes: impl Fn(&T) -> B + Clone + Send + Sync + 'static,
    ) -> Graph<T> {
        self.pipe(Digested::new(digest.clone(), bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn value(names: &[&str]) -> u64 {
        let digest = Digest::new();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Graph::from_vec(names)
            .digest(&digest, |name| name.clone())
            .collect()
            .unwrap();
        digest.value(0)
    }

    #[test]
    fn keeps_the_contract() {
        testing::check_pipe(
            &Digested::new(Digest::new(), |n: &u64| n.to_le_bytes()),
            (0..20).collect(),
        );
    }

    #[test]
    fn row_126_another_list_is_another_digest() {
        let whole = value(&["a", "b", "c"]);
        assert_eq!(whole, value(&["a", "b", "c"]));
        for other in [
            &["a", "b"][..],
            &["a", "c", "b"],
            &["a", "b", "d"],
            &["a", "b", "c", "c"],
            &["ab", "", "c"],
            &[],
        ] {
            assert_ne!(whole, value(other), "{other:?}");
        }
    }
}
