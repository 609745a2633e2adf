//! Keeps the items of the first pass in memory for the later ones.

use std::sync::{Arc, Mutex};

use futures::StreamExt;

use crate::{Arity, Context, Graph, Hints, Item, Items, Pipe, Rank, Uneven, catch_panic, lock};

/// Keeps the items of the first pass in memory for the later ones; see [`Graph::cache`].
pub struct Cache<T> {
    most: usize,
    kept: Arc<Mutex<Passes<T>>>,
}

/// Key of the items that reach a cache: the seed, the rank, and its policy.
type PassKey = (u64, Rank, Option<Uneven>);

/// Items kept for each seed and rank that ran here: usually one.
struct Passes<T>(Vec<(PassKey, CachedPass<T>)>);

impl<T> Passes<T> {
    fn of(&mut self, cx: &Context) -> &mut CachedPass<T> {
        let key = (cx.seed(), cx.rank(), cx.uneven());
        let at = self
            .0
            .iter()
            .position(|(of, _)| *of == key)
            .unwrap_or_else(|| {
                self.0.push((key, CachedPass::Nothing));
                self.0.len() - 1
            });
        &mut self.0[at].1
    }
}

enum CachedPass<T> {
    /// Empty: no pass has come to its end.
    Nothing,
    Everything(Arc<[Item<T>]>),
    /// Given up: there are more items than may be kept.
    TooMany,
}

impl<T> Cache<T> {
    /// Makes a cache of at most this many items; 0 keeps none.
    pub fn new(most: usize) -> Self {
        Cache {
            most,
            kept: Arc::new(Mutex::new(Passes(Vec::new()))),
        }
    }
}

opaque_debug!(Cache<T> { most });

impl<T: Clone + Send + Sync + 'static> Pipe<T> for Cache<T> {
    type Out = T;

    fn apply(&self, mut input: Items<T>, cx: &Context) -> Items<T> {
        let (most, kept, cx) = (self.most, self.kept.clone(), cx.clone());
        let wanted = cx.wanted().cloned().unwrap_or_default();
        Items::generate(async move |out| {
            let (ready, mut filling) = match lock(&kept).of(&cx) {
                CachedPass::Everything(items) => (Some(items.clone()), None),
                // A pass that is resumed in the middle does not see everything.
                CachedPass::Nothing if wanted.is_all() => (None, Some(Vec::new())),
                CachedPass::Nothing | CachedPass::TooMany => (None, None),
            };
            if let Some(items) = ready {
                drop(input);
                for place in wanted.positions(items.len() as u64) {
                    let item = items[place as usize].clone();
                    out.emit(Ok(in_round(item, cx.round()))).await;
                }
                return;
            }
            while let Some(item) = input.next().await {
                match (&item, &mut filling) {
                    (Ok(item), Some(items)) if items.len() < most => {
                        items.push(item.clone());
                    }
                    (Ok(_), Some(_)) => {
                        filling = None;
                        *lock(&kept).of(&cx) = CachedPass::TooMany;
                        let node = &**cx.node();
                        let _ = catch_panic(|| {
                            tracing::warn!(
                                node,
                                most,
                                "more items than the cache may keep; it keeps none"
                            );
                        });
                    }
                    // An item that failed now may succeed in the next pass.
                    (Err(_), _) => filling = None,
                    (Ok(_), None) => {}
                }
                out.emit(item.map(|item| in_round(item, cx.round()))).await;
            }
            // A cancelled epoch ends early.
            if let Some(items) = filling
                && !cx.is_cancelled()
                && let slot @ CachedPass::Nothing = lock(&kept).of(&cx)
            {
                *slot = CachedPass::Everything(items.into());
            }
        })
    }
    fn hints(&self) -> Hints {
        Hints::default()
            .arity(Arity::One)
            .is_resumable(true)
            .selects(true)
            .renames(true)
            .buffered(self.most)
            .settings(format_args!("up to {}", self.most))
            .by_position(true)
            .never_blocks(true)
    }
}

/// Returns an item of the first round as that of a later one.
fn in_round<T>(item: Item<T>, round: u64) -> Item<T> {
    if round == 0 {
        return item;
    }
    let (value, origin) = item.into_parts();
    Item::new(value, origin.child(round))
}

impl<T: Clone + Send + Sync + 'static> Graph<T> {
    /// Keeps the items of the first complete pass in memory; later epochs and rounds get clones of
    /// them, in the same order, and everything upstream does not run again.
    ///
    /// Put the cache before every shuffle and augmentation, which are frozen otherwise: everything
    /// downstream sees the items of round 0 of epoch 0, whenever the cache was filled, and also if
    /// it keeps nothing. So does another branch that reads the same data past the cache, by a
    /// [`fork`](Graph::fork) or a [`demux`](Graph::demux): put a shuffle that is to differ from epoch
    /// to epoch after the split. A pass that was dropped, or in which
    /// an item failed, keeps nothing, and the next pass tries again. With more than `most` items
    /// nothing is kept, every epoch runs everything upstream, and a warning is logged. The cache
    /// belongs to this node of the graph: all loaders of the graph with one seed share it, each rank
    /// keeps its own items, and it is freed with the last of the loaders. An epoch resumed in its middle
    /// ([`resume`](crate::DataLoader::resume)) uses the items that an earlier epoch in this process
    /// has left in memory, and keeps nothing itself. Items keep their origins;
    /// [`repeat`](Graph::repeat)'s later rounds get children of them.
    ///
    /// # Examples
    /// ```
    /// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
    /// use datapipes::{DataLoader, Graph};
    /// let reads = Arc::new(AtomicU64::new(0));
    /// let count = reads.clone();
    /// let graph = Graph::range(0..3).inspect(move |_| { count.fetch_add(1, Ordering::Relaxed); }).cache(100);
    /// let loader = DataLoader::builder(graph).workers(0).build()?;
    /// for epoch in 0..5 {
    ///     assert_eq!(loader.epoch(epoch).blocking().count(), 3);
    /// }
    /// assert_eq!(reads.load(Ordering::Relaxed), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cache(self, most: usize) -> Graph<T> {
        self.pipe(Cache::new(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataLoader, OnError};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Returns a graph of five items, and the number of items made.
    fn counted() -> (Graph<u64>, Arc<AtomicU64>) {
        let made = Arc::new(AtomicU64::new(0));
        let count = made.clone();
        let graph = Graph::range(0..5).inspect(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        (graph, made)
    }

    fn loader(graph: Graph<u64>) -> DataLoader<u64> {
        DataLoader::builder(graph)
            .workers(0)
            .on_error(OnError::skip(9))
            .build()
            .unwrap()
    }

    #[test]
    fn a_pass_that_was_dropped_keeps_nothing() {
        let (graph, made) = counted();
        let loader = loader(graph.cache(5));
        let mut epoch = loader.epoch(0).blocking();
        epoch.next().unwrap().unwrap();
        drop(epoch);
        let before = made.load(Ordering::Relaxed);
        for epoch in 0..2 {
            let seen: Vec<u64> = loader.epoch(epoch).blocking().map(Result::unwrap).collect();
            assert_eq!(seen, [0, 1, 2, 3, 4]);
        }
        assert_eq!(made.load(Ordering::Relaxed), before + 5);
    }

    #[test]
    fn a_pass_with_an_error_keeps_nothing() {
        let (graph, made) = counted();
        let failed = AtomicU64::new(0);
        let failed = Arc::new(failed);
        let flaky = graph.try_map(move |n| {
            if n == 2 && failed.fetch_add(1, Ordering::Relaxed) == 0 {
                Err("flaky")
            } else {
                Ok(n)
            }
        });
        let loader = loader(flaky.cache(5));
        let counts: Vec<usize> = (0..3)
            .map(|epoch| loader.epoch(epoch).blocking().count())
            .collect();
        assert_eq!(counts, [4, 5, 5]);
        assert_eq!(made.load(Ordering::Relaxed), 10);
    }

    #[test]
    fn too_many_items_are_not_kept() {
        let (graph, made) = counted();
        let loader = loader(graph.cache(4));
        assert!((0..3).all(|epoch| loader.epoch(epoch).blocking().count() == 5));
        assert_eq!(made.load(Ordering::Relaxed), 15);
    }

    #[test]
    fn each_rank_has_its_own() {
        let graph = Graph::range(0..6).sharding_filter().cache(6);
        let loader = |rank| {
            let loader = DataLoader::builder(graph.clone()).workers(0).rank(rank, 2);
            loader.uneven(crate::Uneven::Drop).build().unwrap()
        };
        let loaders = [loader(0), loader(1)];
        for epoch in 0..2 {
            let seen = |loader: &DataLoader<u64>| {
                loader
                    .epoch(epoch)
                    .blocking()
                    .map(Result::unwrap)
                    .collect::<Vec<u64>>()
            };
            assert_eq!(loaders.each_ref().map(seen), [vec![0, 2, 4], vec![1, 3, 5]]);
        }
    }

    #[test]
    fn each_seed_has_its_own() {
        let graph = || {
            Graph::range(0..50)
                .map_with_rng(|_, rng| rng.next_u64())
                .cache(50)
        };
        let epoch = |graph: Graph<u64>, seed| {
            let loader = DataLoader::builder(graph).workers(0).seed(seed).build();
            let loader = loader.unwrap();
            Vec::from_iter(loader.epoch(0).blocking().map(Result::unwrap))
        };
        let shared = graph();
        epoch(shared.clone(), 1);
        assert_eq!(epoch(shared, 2), epoch(graph(), 2));
    }

    #[test]
    fn rounds_of_a_repeat_use_it_and_have_origins_of_their_own() {
        let (graph, made) = counted();
        let graph = graph
            .cache(5)
            .repeat(3)
            .try_map(|n| if n == 4 { Err("four") } else { Ok(n) });
        let loader = loader(graph);
        let mut epoch = loader.epoch(0).blocking();
        assert_eq!(epoch.by_ref().count(), 12);
        assert_eq!(made.load(Ordering::Relaxed), 5);
    }
}
