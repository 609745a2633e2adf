//! The built-in pipes: one file each, with the method that adds it to a [`Graph`].
//!
//! A type of this module has the settings of its step. A method that takes one number takes the
//! settings in its place. Steps of closures, pipes or graphs are added with their settings by
//! [`Graph::pipe`], [`Graph::split`] and [`Graph::join`].
//! ```
//! use std::time::Duration;
//! use datapipes::{Graph, pipes::{Batch, Mux, Retry, TryMap}};
//!
//! let numbers = || Graph::range(0..10);
//! let full = numbers().batch(Batch::new(4).drop_last());
//! assert_eq!(full.collect()?.len(), 2);
//!
//! let double = TryMap::new(|n: u64| n.checked_mul(2).ok_or("too large"));
//! let retried = numbers().pipe(Retry::new(double, 2).backoff(Duration::from_millis(10)));
//! let mixed = Graph::join(vec![retried, Graph::range(0..2)], Mux::new(2).stop_at_first());
//! assert_eq!(mixed.collect()?, [0, 0, 2, 1, 4]);
//! # Ok::<(), datapipes::Error>(())
//! ```
//!
//! [`Graph`]: crate::Graph
//! [`Graph::pipe`]: crate::Graph::pipe
//! [`Graph::split`]: crate::Graph::split
//! [`Graph::join`]: crate::Graph::join

mod batch;
mod bucket_batch;
mod cache;
mod collate;
mod concat;
mod demux;
mod digest;
mod enumerate;
mod filter;
mod flat_map;
mod fork;
mod greedy_join;
mod hash_join;
mod inspect;
mod interleave;
mod map;
mod map_async;
mod map_init;
mod merge_join;
mod mix;
mod mux;
mod padded_batch;
mod prefetch;
mod repeat;
mod retry;
mod sample;
mod scan;
mod sharding_filter;
mod shared_input;
mod shuffle;
mod skip;
mod sort_window;
mod sources;
mod take;
mod unbatch;
mod zip;

pub use batch::Batch;
pub use bucket_batch::BucketBatch;
pub use cache::Cache;
pub use collate::{Batched, Collate, CollateWith};
pub use concat::Concat;
pub use demux::Demux;
pub use digest::{Digest, Digested};
pub use enumerate::Enumerate;
pub use filter::Filter;
pub use flat_map::FlatMap;
pub use fork::Fork;
pub use greedy_join::GreedyJoin;
pub use hash_join::{HashJoin, LeftJoin};
pub use inspect::Inspect;
pub use interleave::Interleave;
pub use map::{Map, MapWithRng, TryMap};
pub use map_async::MapAsync;
pub use map_init::{MapInit, MapInitWithRng};
pub use merge_join::MergeJoin;
pub(crate) use mix::fair_share;
pub use mix::{Mix, MixBySize, Schedule, Stop};
pub use mux::Mux;
pub use padded_batch::Pad;
pub use prefetch::Prefetch;
pub use repeat::Repeat;
pub use retry::Retry;
pub use sample::{Sample, SampleWith};
pub use scan::{Scan, ScanResumable};
pub use sharding_filter::{ShardingFilter, ShardingFilterPadded};
pub use shuffle::Shuffle;
pub use skip::Skip;
pub use sort_window::SortWindow;
pub use sources::{FromIterator, FromStream};
pub use take::Take;
pub use unbatch::Unbatch;
pub use zip::Zip;

#[cfg(test)]
mod tests {
    use crate::{DataLoader, Error, Graph};

    /// Runs each pipe of this folder between steps that run on many items at once.
    #[test]
    fn parallel_equals_sequential() {
        let numbers = || Graph::range(0..300).map(|n| n * 3);
        let parts = || (0..5).map(|k| Graph::range(0..40).map(move |n| 1000 * k + n));
        let graphs: Vec<Graph<u64>> = vec![
            numbers()
                .map_async(|n| async move { Ok::<_, Error>(n + 1) })
                .map(|n| n + 1),
            numbers()
                .flat_map(|n| n..n + n % 4)
                .sample_with(0.5)
                .map(|n| n + 1),
            numbers()
                .scan(0, |sum, n| {
                    (*sum < 9999).then(|| std::mem::replace(sum, *sum + n))
                })
                .inspect(|_| {}),
            numbers()
                .enumerate()
                .map(|(k, n)| k * n)
                .skip(7)
                .take(100)
                .prefetch(3)
                .map(|n| n + 1),
            numbers().repeat(3).sample(50).map(|n| n + 1),
            numbers().cycle().cache(5).map(|n| n + 1).take(700),
            numbers()
                .bucket_batch(|n| *n as usize % 30, [10, 20], [4, 3, 2])
                .map(|batch| batch.iter().sum()),
            numbers()
                .zip3(numbers().skip(3), numbers().map(|n| n + 1))
                .map(|(a, b, c)| a + b * c),
            Graph::concat(parts()).map(|n| n + 1),
            Graph::interleave(parts(), 3, 2).map(|n| n + 1),
            Graph::mux(parts()).map(|n| n + 1),
            Graph::mix(parts().zip([1.0, 2.0, 3.5, 0.2, 1.0])).map(|n| n + 1),
            Graph::mix_until(
                super::Stop::CycleUntilAll,
                parts().zip([5.0, 4.0, 3.0, 2.0, 1.0]),
            )
            .map(|n| n + 1),
            Graph::concat(parts().map(|part| Graph::mux(part.fork::<3>()))).map(|n| n + 1),
            Graph::mux(numbers().demux::<3>(|n| *n as usize % 3)).map(|n| n + 1),
        ];
        for (number, graph) in graphs.into_iter().enumerate() {
            let run = |workers| -> Vec<u64> {
                let loader = DataLoader::builder(graph.clone())
                    .seed(1)
                    .workers(workers)
                    .build()
                    .unwrap();
                loader.epoch(1).blocking().map(Result::unwrap).collect()
            };
            let expected = run(0);
            assert!(expected.len() > 20, "graph {number}");
            for workers in [1, 3] {
                assert_eq!(run(workers), expected, "graph {number}, {workers} workers");
            }
        }
    }
}
