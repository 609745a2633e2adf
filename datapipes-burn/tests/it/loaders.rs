//! A loader used by burn.

use std::collections::BTreeSet;
use std::iter::from_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::ThreadId;
use std::time::Duration;

use burn_core::data::dataloader::DataLoader as BurnDataLoader;
use burn_core::data::dataloader::split::split_dataloader;
use burn_core::tensor::{Device, Int, Tensor};
use datapipes::{DataLoader, Edited, Error, ErrorKind, Graph, OnError, Rank, Result, Uneven};
use datapipes_burn::{BurnLoader, IntoBurn};

type Batch = (Tensor<2>, Tensor<1, Int>);
type Dyn<O> = Arc<dyn BurnDataLoader<O>>;

/// Makes points with their numbers as labels, shuffled, in batches of four.
fn points(len: u64) -> Graph<(datapipes::Tensor, datapipes::Tensor)> {
    Graph::range(0..len)
        .shuffle(1000)
        .map(|n| ([n as f32; 3], n as i64))
        .batch(4)
        .collate()
}

fn loader(len: u64, seed: u64) -> BurnLoader<(datapipes::Tensor, datapipes::Tensor), Batch> {
    let loader = DataLoader::builder(points(len))
        .seed(seed)
        .workers(2)
        .build()
        .unwrap();
    BurnLoader::new(loader, &Device::flex()).items(len as usize)
}

fn labels(loader: &dyn BurnDataLoader<Batch>) -> Vec<i64> {
    let labels = |batch: Result<Batch, _>| {
        let (points, labels) = batch.unwrap();
        let firsts = points
            .slice([0..labels.dims()[0], 0..1])
            .into_data()
            .iter::<i64>()
            .collect::<Vec<_>>();
        let labels = labels.into_data().iter::<i64>().collect::<Vec<_>>();
        assert_eq!(firsts, labels);
        labels
    };
    loader.iter().flat_map(labels).collect()
}

/// Has batches converted in `next`, or so many ahead of it.
fn by<B: Send + 'static, O: Send + 'static>(
    ahead: Option<usize>,
    loader: BurnLoader<B, O>,
) -> BurnLoader<B, O> {
    match ahead {
        None => loader,
        Some(depth) => loader.prefetch_to_device(depth),
    }
}

fn sorted(mut values: Vec<i64>) -> Vec<i64> {
    values.sort_unstable();
    values
}

#[test]
fn a_learner_sees_batches_and_progress() {
    let loader: Dyn<Batch> = Arc::new(loader(10, 0));
    assert_eq!(loader.num_items(), 10);
    let mut epoch = loader.iter();
    let mut seen = vec![(epoch.progress().items_processed, false)];
    let mut rows = Vec::new();
    while let Some(batch) = epoch.next() {
        let (points, labels) = batch.unwrap();
        rows.push(points.dims());
        assert_eq!(points.dims()[0], labels.dims()[0]);
        let progress = epoch.progress();
        assert_eq!(progress.items_total, 10);
        seen.push((progress.items_processed, progress.is_completed()));
    }
    assert_eq!(rows, [[4, 3], [4, 3], [2, 3]]);
    assert_eq!(seen, [(0, false), (4, false), (8, false), (10, true)]);
    assert!(epoch.next().is_none());
}

#[test]
fn each_iter_is_the_next_epoch_and_a_run_repeats_itself() {
    let first = loader(40, 7);
    let orders: Vec<_> = (0..3).map(|_| labels(&first)).collect();
    assert!(
        orders
            .iter()
            .all(|order| sorted(order.clone()) == (0..40).collect::<Vec<_>>())
    );
    assert!(orders[0] != orders[1] && orders[1] != orders[2]);
    let again = loader(40, 7);
    assert_eq!((0..3).map(|_| labels(&again)).collect::<Vec<_>>(), orders);
    assert_ne!(labels(&loader(40, 8)), orders[0]);
    // Continues after the second epoch: an epoch that is not read to its end counts, too.
    let resumed = loader(40, 7).epoch(1);
    drop(resumed.iter());
    assert_eq!(resumed.next_epoch(), 2);
    assert_eq!(labels(&resumed), orders[2]);
}

#[test]
fn a_copy_for_another_device_goes_on_by_itself() {
    let loader = loader(12, 3);
    let _first = labels(&loader);
    let device = Device::flex();
    let copy = loader.to_device(&device);
    assert_eq!(copy.num_items(), 12);
    let (here, there) = (labels(&loader), labels(&*copy));
    assert_eq!(here, there);
    let (batch, _) = copy.iter().next().unwrap().unwrap();
    assert_eq!(batch.device(), device);
    assert_eq!(loader.next_epoch(), 2);
}

fn rank_loader(rank: Rank) -> Result<DataLoader<datapipes::Tensor>, datapipes::BuildError> {
    let graph = Graph::range(0..23)
        .shuffle(100)
        .sharding_filter()
        .map(|n| n as i64)
        .batch(2)
        .collate();
    DataLoader::builder(graph)
        .rank(rank.index, rank.world)
        .uneven(Uneven::Drop)
        .seed(5)
        .build()
}

fn for_devices(devices: usize) -> BurnLoader<datapipes::Tensor, Tensor<1, Int>> {
    let whole = rank_loader(Rank::default()).unwrap();
    BurnLoader::new(whole, &Device::flex())
        .items(23)
        .for_devices(devices, rank_loader)
}

fn numbers(loader: &Dyn<Tensor<1, Int>>) -> Vec<i64> {
    loader
        .iter()
        .flat_map(|batch| batch.unwrap().into_data().iter::<i64>().collect::<Vec<_>>())
        .collect()
}

#[test]
fn the_slices_of_several_devices_share_the_data_in_equal_steps() {
    for devices in [2, 3, 4] {
        let whole: Dyn<Tensor<1, Int>> = Arc::new(for_devices(devices));
        let parts = split_dataloader(whole, &vec![Device::flex(); devices]);
        for _epoch in 0..2 {
            let got: Vec<Vec<i64>> = parts.iter().map(numbers).collect();
            let all: BTreeSet<i64> = got.iter().flatten().copied().collect();
            let each = 23 / devices;
            assert!(got.iter().all(|part| part.len() == each), "{got:?}");
            assert_eq!(all.len(), each * devices, "none comes twice");
        }
        for part in &parts {
            assert_eq!(part.num_items(), 23 / devices);
            let mut epoch = part.iter();
            while epoch.next().is_some() {}
            assert!(epoch.progress().is_completed());
        }
        assert_ne!(
            numbers(&parts[0]),
            numbers(&parts[0]),
            "another order in each epoch"
        );
    }
}

/// An epoch stopped at one step on two devices is resumed on two devices, and on one device that
/// reads the rest of both.
#[test]
fn the_slices_of_several_devices_go_on() {
    let make = |devices: usize| {
        let of = |rank: Rank| {
            let graph = Graph::range(0..40)
                .shuffle(50)
                .sharding_filter()
                .filter(|n| n % 5 > 0)
                .batch(3)
                .collate();
            let loader = DataLoader::builder(graph)
                .rank(rank.index, rank.world)
                .uneven(Uneven::Drop);
            loader.workers(1).resumable().ranks_agree().build()
        };
        let whole =
            BurnLoader::<_, Tensor<1, Int>>::new(of(Rank::default()).unwrap(), &Device::flex());
        whole.items(40).for_devices(devices, of)
    };
    let slices =
        |loader: &BurnLoader<datapipes::Tensor, Tensor<1, Int>>, devices: usize| -> Vec<Dyn<_>> {
            (0..devices)
                .map(|k| loader.slice(k * 40 / devices, (k + 1) * 40 / devices))
                .collect()
        };
    let values = |epoch: &mut dyn Iterator<Item = Result<Tensor<1, Int>, _>>| -> Vec<Vec<i64>> {
        epoch
            .map(|batch: Result<_, burn_core::data::dataset::DatasetError>| {
                let batch: Tensor<1, Int> = batch.unwrap();
                batch.into_data().iter::<i64>().collect()
            })
            .collect()
    };
    let whole: Vec<_> = slices(&make(2), 2)
        .iter()
        .map(|part| values(&mut part.iter()))
        .collect();
    let loader = make(2);
    let parts = slices(&loader, 2);
    let mut epochs: Vec<_> = parts.iter().map(|part| part.iter()).collect();
    let seen: Vec<_> = epochs
        .iter_mut()
        .map(|epoch| values(&mut epoch.by_ref().take(2)))
        .collect();
    let state = loader.checkpoint().unwrap();
    assert_eq!(state.delivered(), 4);
    drop(epochs);

    let again = slices(&make(2).resume(&state).unwrap(), 2);
    let rest: Vec<_> = again.iter().map(|part| values(&mut part.iter())).collect();
    for k in 0..2 {
        assert_eq!([&seen[k][..], &rest[k]].concat(), whole[k], "device {k}");
    }
    let one = make(1).resume(&state).unwrap();
    let in_turn: Vec<_> = (0..)
        .map_while(|n| rest[n % 2].get(n / 2).cloned())
        .collect();
    assert_eq!(values(&mut one.iter())[..in_turn.len()], in_turn);
    assert_eq!(one.next_epoch(), 1);
}

/// The resumed graph has one step more.
#[test]
fn an_edited_graph_goes_on() {
    let make = |more: f32| {
        let graph = Graph::range(0..12).map(|n| n as f32);
        let graph = if more > 0.0 {
            graph.map(move |n| n + more).named("more")
        } else {
            graph
        };
        let loader = DataLoader::builder(graph.batch(4).collate())
            .workers(0)
            .resumable()
            .build()
            .unwrap();
        BurnLoader::<_, Tensor<1>>::new(loader, &Device::flex())
    };
    let loader = make(0.0);
    assert_eq!(loader.iter().take(2).count(), 2);
    let state = loader.checkpoint().unwrap();
    assert_eq!(
        make(100.0).resume(&state).map(drop).unwrap_err().kind(),
        ErrorKind::Config
    );
    let edited = make(100.0).resume_edited(&state, Edited::Matching).unwrap();
    let rest: Vec<Vec<f32>> = edited
        .iter()
        .map(|batch| batch.unwrap().into_data().iter::<f32>().collect())
        .collect();
    assert_eq!(rest, [[108.0, 109.0, 110.0, 111.0]]);
}

/// A checkpoint at the end of a budget of steps is finished for that budget only.
#[test]
fn a_larger_budget_of_steps_goes_on() {
    let make = |steps| {
        let loader = DataLoader::builder(Graph::range(0..20).map(|n| n as f32).batch(2).collate());
        let loader = loader
            .workers(0)
            .max_steps(steps)
            .resumable()
            .build()
            .unwrap();
        BurnLoader::<_, Tensor<1>>::new(loader, &Device::flex())
    };
    let loader = make(3);
    assert_eq!(loader.iter().count(), 3);
    let state = loader.checkpoint().unwrap();
    let (same, more) = (
        make(3).resume(&state).unwrap(),
        make(7).resume(&state).unwrap(),
    );
    assert_eq!((same.next_epoch(), more.next_epoch()), (1, 0));
    assert_eq!((more.iter().count(), more.next_epoch()), (4, 1));
}

#[test]
fn any_other_slice_is_one_error_that_says_so() {
    let said = |part: Dyn<Tensor<1, Int>>| {
        let errors: Vec<_> = part
            .iter()
            .map(|batch| batch.unwrap_err().to_string())
            .collect();
        assert_eq!((errors.len(), part.num_items()), (1, 0));
        errors.concat()
    };
    let whole = for_devices(2);
    assert_eq!(
        said(whole.slice(3, 7)),
        "wrong configuration: items 3..7 of 23 are not one of 2 equal parts"
    );
    assert!(said(whole.slice(0, 12)).contains("items 0..12"));
    assert!(said(whole.slice(0, 11).slice(0, 5)).contains("say `for_devices`"));
    assert_eq!(whole.slice(0, 23).num_items(), 23);
    for (start, end) in [(0, 0), (0, 23)] {
        assert!(
            said(for_devices(40).slice(start, end)).contains("23 items are too few for 40 devices")
        );
    }
    let plain: BurnLoader<_, Tensor<1, Int>> =
        BurnLoader::new(rank_loader(Rank::default()).unwrap(), &Device::flex()).items(23);
    assert!(said(plain.slice(0, 11)).contains("items 0..11 of a stream of 23: say `for_devices`"));
    let unable = plain.for_devices(2, |_| {
        Err::<DataLoader<_>, _>(Error::not_found("no such shards"))
    });
    assert_eq!(
        said(unable.slice(0, 11)),
        "wrong configuration: part 0 of 2: not found: no such shards"
    );
}

#[test]
fn an_error_in_the_middle_names_the_sample_and_ends_the_epoch() {
    let graph = Graph::range(0..20)
        .try_map(|n| {
            if n == 9 {
                Err("a bad picture")
            } else {
                Ok(n as f32)
            }
        })
        .named("decode")
        .batch(4)
        .collate();
    let build = |on_error| {
        DataLoader::builder(graph.clone())
            .on_error(on_error)
            .workers(2)
            .build()
            .unwrap()
    };
    let loader: BurnLoader<_, Tensor<1>> =
        BurnLoader::new(build(OnError::fail()), &Device::flex()).items(20);
    let mut epoch = loader.iter();
    assert_eq!(epoch.next().unwrap().unwrap().dims(), [4]);
    assert_eq!(epoch.next().unwrap().unwrap().dims(), [4]);
    let error = epoch.next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "decode: 0:9: a bad picture");
    let source = std::error::Error::source(&error)
        .unwrap()
        .downcast_ref::<Error>()
        .unwrap();
    assert_eq!(
        (source.kind(), source.node()),
        (ErrorKind::User, Some("decode"))
    );
    assert!(epoch.next().is_none());
    assert_eq!(epoch.progress().items_processed, 8);
}

#[test]
fn a_batch_that_does_not_become_what_was_asked_for_is_named() {
    let graph = Graph::range(0..4).map(|n| n as u8).batch(2).collate();
    let build = || DataLoader::builder(graph.clone()).build().unwrap();
    let loader: BurnLoader<_, Tensor<1>> = BurnLoader::new(build(), &Device::flex()).items(4);
    let error = loader.iter().next().unwrap().unwrap_err().to_string();
    assert_eq!(
        error,
        "into burn: [0:0, 0:1]: shape mismatch: a tensor of u8 was asked for floats"
    );
    let loader = BurnLoader::with(
        build(),
        &Device::flex(),
        |batch: datapipes::Tensor, _: &Device| {
            let first = batch.as_slice::<u8>()?[0];
            if first == 2 {
                Err(datapipes::BoxError::from("two"))
            } else {
                Ok(first)
            }
        },
    );
    let got: Vec<_> = loader
        .iter()
        .map(|batch| batch.map_err(|error| error.to_string()))
        .collect();
    assert_eq!(got, [Ok(0), Err("into burn: [0:2, 0:3]: two".to_owned())]);
}

#[test]
fn what_is_not_known_of_the_items_is_asked_for() {
    let graph = Graph::range(0..8).filter(|n| n % 2 == 0).batch(2).collate();
    let build = || DataLoader::builder(graph.clone()).build().unwrap();
    let loader: BurnLoader<_, Tensor<1, Int>> = BurnLoader::new(build(), &Device::flex());
    let errors: Vec<_> = loader
        .iter()
        .map(|batch| batch.unwrap_err().to_string())
        .collect();
    assert_eq!(
        errors,
        [
            "wrong configuration: burn wants to know how many items an epoch has, and the graph does not: give `items`"
        ]
    );
    assert_eq!(loader.items(4).iter().count(), 2);

    // The graph knows its length in batches, or in items if a batch size is given.
    let count = |loader: BurnLoader<datapipes::Tensor, Tensor<1, Int>>| {
        let mut epoch = loader.iter();
        let first = epoch.next().unwrap().unwrap().dims()[0];
        let progress = epoch.progress();
        (
            loader.num_items(),
            first,
            progress.items_processed,
            progress.unit.unwrap(),
        )
    };
    let graph = Graph::range(0..7).batch(4).collate();
    let build = || {
        BurnLoader::new(
            DataLoader::builder(graph.clone()).build().unwrap(),
            &Device::flex(),
        )
    };
    assert_eq!(count(build()), (2, 4, 1, "batches".to_owned()));
    assert_eq!(count(build().batch_size(4)), (8, 4, 4, "items".to_owned()));
}

#[test]
fn dropped_half_way_an_epoch_ends_and_the_next_begins() {
    struct Endless(u64, mpsc::Sender<()>);
    impl Iterator for Endless {
        type Item = u64;
        fn next(&mut self) -> Option<u64> {
            self.0 += 1;
            Some(self.0)
        }
    }
    impl Drop for Endless {
        fn drop(&mut self) {
            let _ = self.1.send(());
        }
    }
    let (ended, was_ended) = mpsc::channel();
    let graph = Graph::from_iter_with(move || Endless(0, ended.clone()))
        .map(|n| n as i64)
        .batch(8)
        .collate();
    let loader = DataLoader::builder(graph).workers(2).build().unwrap();
    let loader: BurnLoader<_, Tensor<1, Int>> = BurnLoader::new(loader, &Device::flex()).items(100);
    for _ in 0..3 {
        let mut epoch = loader.iter();
        for batch in epoch.by_ref().take(20) {
            assert_eq!(batch.unwrap().dims(), [8]);
        }
        assert_eq!(epoch.progress().items_processed, 100);
        drop(epoch);
        was_ended
            .recv_timeout(Duration::from_secs(60))
            .expect("the source is dropped");
    }
    assert_eq!(loader.waits().epochs, 3);
}

#[test]
fn tensors_are_made_on_the_thread_that_asks_or_on_one_ahead_of_it() {
    for ahead in [None, Some(2)] {
        made_on_one_thread(ahead);
    }
}

fn made_on_one_thread(ahead: Option<usize>) {
    let threads = Arc::new(Mutex::new(Vec::<ThreadId>::new()));
    let seen = threads.clone();
    let loader = DataLoader::builder(Graph::range(0..64).batch(4).collate())
        .workers(2)
        .build()
        .unwrap();
    let loader = BurnLoader::with(
        loader,
        &Device::flex(),
        move |batch: datapipes::Tensor, device: &Device| {
            seen.lock().unwrap().push(std::thread::current().id());
            IntoBurn::<Tensor<1, Int>>::into_burn(batch, device)
        },
    );
    let loader = by(ahead, loader);
    for _ in 0..2 {
        assert_eq!(loader.iter().filter_map(Result::ok).count(), 16);
    }
    let (here, threads) = (std::thread::current().id(), threads.lock().unwrap());
    assert_eq!(*threads, vec![threads[0]; 32]);
    assert_eq!(threads[0] == here, ahead.is_none());
}

#[test]
fn waiting_is_measured_over_epochs_and_copies() {
    let loader = loader(12, 0);
    assert_eq!(loader.waits().epochs, 0);
    drop(loader.iter()); // never asked for a batch
    assert_eq!(
        (
            labels(&loader).len(),
            labels(&*loader.to_device(&Device::flex())).len()
        ),
        (12, 12)
    );
    let waits = loader.waits();
    assert_eq!((waits.epochs, waits.batches), (2, 6));
    assert!(waits.waited + waits.converted <= waits.wall && waits.share() <= 1.0);
    assert!(waits.to_string().starts_with("2 epochs, 6 batches in "));
    assert_eq!(loader.inner().stats().unwrap().delivered, 3);
}

#[test]
fn nothing_is_read_before_the_first_batch_is_asked_for() {
    let read = Arc::new(AtomicUsize::new(0));
    let counter = read.clone();
    let source = move || {
        let (counter, mut next) = (counter.clone(), 0u64..8);
        from_fn(move || {
            next.next()
                .inspect(|_| _ = counter.fetch_add(1, Ordering::Relaxed))
        })
    };
    let graph = Graph::from_iter_with(source).batch(4).collate();
    let loader = DataLoader::builder(graph).build().unwrap();
    let loader: BurnLoader<_, Tensor<1, Int>> = BurnLoader::new(loader, &Device::flex()).items(8);
    let mut epoch = loader.iter();
    assert_eq!(read.load(Ordering::Relaxed), 0);
    assert!(epoch.next().is_some());
    assert!(read.load(Ordering::Relaxed) >= 4);
}

#[test]
fn an_epoch_of_nothing_is_complete() {
    let loader: BurnLoader<_, Tensor<1, Int>> = BurnLoader::new(
        DataLoader::builder(Graph::range(0..0).batch(4).collate())
            .build()
            .unwrap(),
        &Device::flex(),
    );
    assert_eq!((loader.num_items(), loader.iter().count()), (0, 0));
    assert!(loader.iter().progress().is_completed());
}

/// A checkpoint covers the batches that burn took, also through a clone as burn's learner makes
/// one, and also after an error; progress is resumed, too.
#[test]
fn an_epoch_goes_on_behind_what_was_taken() {
    let make = |workers| {
        let graph = Graph::range(0..22)
            .shuffle(22)
            .map(|n| n as f32)
            .batch(4)
            .collate();
        let loader = DataLoader::builder(graph)
            .seed(2)
            .workers(workers)
            .resumable()
            .build()
            .unwrap();
        BurnLoader::<_, Tensor<1>>::new(loader, &Device::flex()).items(22)
    };
    fn values<E: std::fmt::Debug>(batch: Result<Tensor<1>, E>) -> Vec<f32> {
        batch.unwrap().into_data().iter::<f32>().collect()
    }
    assert_eq!(make(0).checkpoint().unwrap_err().kind(), ErrorKind::Config);
    let whole: Vec<_> = make(0).epoch(3).iter().map(values).collect();
    for (workers, stop) in (0..=7).flat_map(|stop| [(0, stop), (2, stop)]) {
        let loader = make(workers).epoch(3);
        let learners = loader.to_device(&Device::flex());
        let mut epoch = learners.iter();
        let taken: Vec<_> = epoch.by_ref().take(stop).map(values).collect();
        let during = loader.checkpoint().unwrap();
        drop(epoch);
        // The two checkpoints may differ, since the workers went on in between.
        for state in [during, loader.checkpoint().unwrap()] {
            let mut seen = taken.clone();
            let again = make(2 - workers).resume(&state).unwrap();
            assert_eq!(again.next_epoch(), if stop > 6 { 4 } else { 3 });
            if stop <= 6 {
                let mut epoch = again.iter();
                if let Some(batch) = epoch.next() {
                    seen.push(values(batch));
                    // Only the number of the batches before the stop is known.
                    let processed = epoch.progress().items_processed;
                    assert!(
                        processed.abs_diff((4 * (stop + 1)).min(22)) < 4,
                        "{processed} after {stop} and one"
                    );
                }
                seen.extend(epoch.map(values));
                assert_eq!(seen, whole, "stopped at {stop}, {workers} workers");
            }
            let next: Vec<_> = again.iter().map(values).collect();
            assert_eq!(
                next,
                make(0).epoch(4).iter().map(values).collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn a_batch_that_could_not_be_made_comes_again() {
    for ahead in [None, Some(1), Some(3)] {
        could_not_be_made(ahead);
    }
}

fn could_not_be_made(ahead: Option<usize>) {
    let loader = DataLoader::builder(Graph::range(0..10))
        .workers(0)
        .resumable()
        .build()
        .unwrap();
    let convert = |n: u64, _: &Device| if n == 4 { Err("four") } else { Ok(n) };
    let burn = by(
        ahead,
        BurnLoader::with(loader.clone(), &Device::flex(), convert),
    );
    assert_eq!(burn.iter().filter(|n| n.is_ok()).count(), 4);
    let rest = loader
        .resume(&burn.checkpoint().unwrap())
        .unwrap()
        .blocking();
    assert_eq!(
        rest.map(|n| n.unwrap()).collect::<Vec<_>>(),
        [4, 5, 6, 7, 8, 9]
    );
}

#[test]
fn an_epoch_of_burns_is_so_many_batches() {
    for ahead in [None, Some(1), Some(3)] {
        so_many_batches(ahead);
    }
}

fn so_many_batches(ahead: Option<usize>) {
    let cut = || {
        let loader = DataLoader::builder(points(20))
            .seed(3)
            .resumable()
            .build()
            .unwrap();
        let loader = BurnLoader::<_, Batch>::new(loader, &Device::flex());
        by(ahead, loader).batch_size(4).steps_per_epoch(3)
    };
    let whole = loader(20, 3);
    let expected = [labels(&whole), labels(&whole), labels(&whole)].concat();

    let loader: Dyn<Batch> = Arc::new(cut());
    assert_eq!(loader.num_items(), 12);
    let mut epoch = loader.iter();
    for step in 1..=3 {
        epoch.next().unwrap().unwrap();
        let progress = epoch.progress();
        assert_eq!(
            (progress.items_processed, progress.is_completed()),
            (4 * step, step == 3)
        );
    }
    assert!(epoch.next().is_none() && epoch.next().is_none());
    drop(epoch);
    // The last batches of an epoch, and the first ones of the next.
    assert_eq!(labels(&*loader), expected[12..24]);
    // An epoch is dropped midway.
    assert_eq!(loader.iter().take(2).count(), 2);
    assert_eq!(labels(&*loader), expected[32..44]);

    // Stops after any batch, also after the last one of an epoch.
    for steps in 1..7 {
        let first = cut().steps_per_epoch(steps as u64);
        let mut seen = labels(&first);
        let second = cut().resume(&first.checkpoint().unwrap()).unwrap();
        seen.extend(labels(&second));
        assert_eq!(seen, expected[..4 * (steps + 3)], "{steps}");
    }
}

#[test]
fn a_loop_over_burns_batches_saves_its_state() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("loop.state");
    let saving = || {
        let loader = DataLoader::builder(points(40))
            .seed(3)
            .autosave(&path, 2)
            .build()
            .unwrap();
        BurnLoader::<_, Batch>::new(loader, &Device::flex()).items(40)
    };
    let whole = labels(&loader(40, 3));
    let first = saving().resume_or_start(&path).unwrap();
    assert_eq!(first.iter().take(7).count(), 7);
    drop(first);
    let again = saving().resume_or_start(&path).unwrap();
    assert_eq!(labels(&again), whole[24..]);
    again.inner().flush_autosave().unwrap();
    assert_eq!(saving().resume_or_start(&path).unwrap().next_epoch(), 1);
}
