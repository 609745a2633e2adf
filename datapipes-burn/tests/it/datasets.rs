//! Data by index, in both directions.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_core::data::dataloader::DataLoaderBuilder;
use burn_core::data::dataloader::batcher::Batcher;
use burn_core::data::dataset::transform::{MapperDataset, PartialDataset};
use burn_core::data::dataset::{Dataset, DatasetError, InMemDataset};
use burn_core::tensor::Device;
use datapipes::{DataLoader, Error, ErrorKind, Indexed, OnError};
use datapipes_burn::{BurnDataset, FromDataset};

fn squares() -> BurnDataset<u64> {
    BurnDataset::new(Indexed::from_fn(10, |index| async move {
        if index == 7 {
            Err(Error::corrupt("seven"))
        } else {
            Ok(index * index)
        }
    }))
}

#[test]
fn samples_are_read_by_index() {
    let data = squares();
    assert_eq!((data.len(), data.is_empty()), (10, false));
    assert_eq!(data.get(3).unwrap(), 9);
    assert_eq!(data.get_many(vec![9, 0, 9]).unwrap(), [81, 0, 81]);
    assert_eq!(data.get_many(vec![]).unwrap(), [] as [u64; 0]);
    let firsts: Vec<u64> = data.iter().take(4).map(Result::unwrap).collect();
    assert_eq!(firsts, [0, 1, 4, 9]);
    let part = PartialDataset::new(data, 2, 5);
    assert_eq!((part.len(), part.get(0).unwrap()), (3, 4));
}

#[test]
fn a_sample_that_fails_is_an_error_and_an_index_past_the_end_a_panic() {
    let data = squares();
    for error in [
        data.get(7).unwrap_err(),
        data.get_many(vec![6, 7, 8]).unwrap_err(),
    ] {
        assert_eq!(error.to_string(), "fetch: 0:7: corrupt: seven");
        let source = std::error::Error::source(&error)
            .unwrap()
            .downcast_ref::<Error>()
            .unwrap();
        assert_eq!(source.kind(), ErrorKind::Corrupt);
    }
    for index in [10, usize::MAX] {
        let panicked = catch_unwind(AssertUnwindSafe(|| data.get(index).is_ok())).unwrap_err();
        let said = panicked.downcast::<String>().unwrap();
        assert_eq!(*said, format!("index {index} of a data set of 10"));
    }
    assert!(catch_unwind(AssertUnwindSafe(|| data.get_many(vec![1, 10]).is_ok())).is_err());
}

#[test]
fn an_order_is_that_of_one_seed_and_epoch() {
    let data = || BurnDataset::new(Indexed::range(50).shuffle());
    let all = |data: BurnDataset<u64>| {
        (0..50)
            .map(|index| data.get(index).unwrap())
            .collect::<Vec<_>>()
    };
    let first = all(data());
    assert_eq!(data().get_many((0..50).collect()).unwrap(), first);
    assert_eq!(
        first,
        Indexed::range(50).shuffle().fetch().collect().unwrap()
    );
    assert_ne!(all(data().seed(1)), first);
    assert_ne!(all(data().epoch(1)), first);
    let mut sorted = first;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..50).collect::<Vec<_>>());
}

/// The sum of a batch and the number of its samples.
#[derive(Clone)]
struct Sums;

impl Batcher<u64, (u64, usize)> for Sums {
    fn batch(&self, items: Vec<u64>, _device: &Device) -> (u64, usize) {
        (items.iter().sum(), items.len())
    }
}

#[test]
fn burns_own_loader_reads_our_samples() {
    let loader = DataLoaderBuilder::new(Sums)
        .batch_size(4)
        .num_workers(2)
        .build(BurnDataset::new(Indexed::range(100).map(|n| n * 2)));
    assert_eq!(loader.num_items(), 100);
    let batches: Vec<_> = loader.iter().map(Result::unwrap).collect();
    assert_eq!(batches.iter().map(|batch| batch.0).sum::<u64>(), 9900);
    assert_eq!(batches.iter().map(|batch| batch.1).sum::<usize>(), 100);
}

#[test]
fn our_loader_reads_burns_samples() {
    let words = InMemDataset::new((0..200).map(|n| format!("word {n}")).collect());
    let lengths = MapperDataset::new(words, Length);
    let graph = Indexed::new(FromDataset::new(lengths))
        .shuffle()
        .fetch()
        .batch(16)
        .collate();
    let loader = DataLoader::builder(graph)
        .seed(1)
        .workers(2)
        .build()
        .unwrap();
    let all: Vec<datapipes::Tensor> = loader.epoch(0).blocking().map(Result::unwrap).collect();
    let sum: u64 = all
        .iter()
        .flat_map(|batch| batch.as_slice::<u64>().unwrap().to_vec())
        .sum();
    assert_eq!((all.len(), sum), (13, 10 * 6 + 90 * 7 + 100 * 8));
}

#[derive(Clone)]
struct Length;

impl burn_core::data::dataset::transform::Mapper<String, u64> for Length {
    fn map(&self, word: &String) -> u64 {
        word.len() as u64
    }
}

/// A data set that fails at 3 and panics at 5.
struct Flaky(AtomicUsize);

impl Dataset<usize> for Flaky {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        match index {
            3 => Err(DatasetError::new(std::io::Error::other("disk on fire"))),
            5 => panic!("at five"),
            _ => Ok(index),
        }
    }
    fn len(&self) -> usize {
        8
    }
}

#[test]
fn what_burns_data_cannot_give_costs_the_sample_it_happened_to() {
    let data: Arc<dyn Dataset<usize>> = Arc::new(Flaky(AtomicUsize::new(0)));
    let graph = Indexed::new(FromDataset::shared(data)).fetch();
    assert_eq!(
        graph.clone().collect().unwrap_err().to_string(),
        "dataset: 0:3: disk on fire"
    );
    for workers in [0, 2] {
        let skip = OnError::skip(10);
        let loader = DataLoader::builder(graph.clone())
            .workers(workers)
            .on_error(skip)
            .build()
            .unwrap();
        let mut epoch = loader.epoch(0).blocking();
        let (good, bad): (Vec<_>, Vec<_>) = epoch.by_ref().partition(Result::is_ok);
        let good: Vec<usize> = good.into_iter().map(Result::unwrap).collect();
        // A panic is not skipped: it ends the epoch.
        assert_eq!(good, [0, 1, 2, 4]);
        assert_eq!(bad.len(), 1);
        assert_eq!(
            bad[0].as_ref().unwrap_err().to_string(),
            "dataset: 0:5: panicked: at five"
        );
        assert_eq!(epoch.stats().unwrap().skipped, 1);
    }
}

#[test]
fn there_and_back_again() {
    let data = FromDataset::new(BurnDataset::new(Indexed::range(30).map(|n| n + 1)));
    let all = Indexed::new(data).fetch().collect().unwrap();
    assert_eq!(all, (1..31).collect::<Vec<u64>>());
}
