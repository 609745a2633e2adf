//! Tests of checkpoints, and of epochs resumed from them.

mod bytes;
mod edited;
mod file;
mod in_flight;
mod order;

use super::*;
use crate::testing::some_of;
use crate::{DataLoader, Graph, OnError};

fn run<T: std::fmt::Debug + Send + 'static>(
    epoch: crate::Epoch<T>,
    most: usize,
) -> (Vec<String>, Checkpoint) {
    let mut epoch = epoch.blocking();
    let items = (&mut epoch)
        .take(most)
        .map(|item| format!("{item:?}"))
        .collect();
    (items, epoch.checkpoint().unwrap())
}

/// Stops at every place (in a plain run, at some), and again, with other workers each time; the
/// items are those of an uninterrupted run.
fn goes_on<T: std::fmt::Debug + Send + 'static>(graph: impl Fn() -> Graph<T>) {
    goes_on_as(graph, |loader| loader);
}

fn goes_on_as<T: std::fmt::Debug + Send + 'static>(
    graph: impl Fn() -> Graph<T>,
    set: impl Fn(crate::loader::Builder<T>) -> crate::loader::Builder<T>,
) {
    let loader = |workers| {
        set(DataLoader::builder(graph()))
            .seed(5)
            .workers(workers)
            .on_error(OnError::skip(1000))
            .ranks_agree()
            .resumable()
            .build()
            .unwrap()
    };
    // Made once, since each starts threads of its own.
    let loaders = [0, 1, 2].map(loader);
    let loader = |workers: usize| &loaders[workers];
    let (whole, end) = run(loader(0).epoch(1), usize::MAX);
    assert!(end.is_finished());
    for workers in [[0, 0, 0], [2, 0, 1], [0, 2, 2]] {
        for stop in some_of(0..=whole.len() + 1) {
            let (first, state) = run(loader(workers[0]).epoch(1), stop);
            let state = Checkpoint::from_bytes(&state.to_bytes()).unwrap();
            let (second, state) = run(loader(workers[1]).resume(&state).unwrap(), 3);
            let again = loader(workers[2]).resume(&state).unwrap();
            let (rest, end) = run(again, usize::MAX);
            assert!(end.is_finished());
            let all = [first, second, rest].concat();
            assert_eq!(
                all,
                whole,
                "stopped at {stop} of {}, workers {workers:?}, {:#?}",
                whole.len(),
                state.0
            );
            assert_eq!(run(loader(0).resume(&end).unwrap(), usize::MAX).0.len(), 0);
        }
    }
}

#[test]
fn short_graphs_go_on() {
    goes_on(|| Graph::range(0..20));
    goes_on(|| Graph::range(0..20).map(|n| n * 2).batch(3));
    goes_on(|| Graph::range(0..40).filter(|n| n % 3 != 0).batch(3));
    goes_on(|| {
        Graph::range(0..10)
            .flat_map(|n| (0..n).map(move |k| (n, k)))
            .batch(4)
    });
    goes_on(|| Graph::range(0..40).shuffle(7));
    goes_on(|| Graph::range(0..5).shuffle(7));
    goes_on(|| Graph::range(0..40).shuffle(7).batch(4));
    goes_on(|| {
        Graph::range(0..40)
            .try_map(|n| if n % 5 == 2 { Err("bad") } else { Ok(n) })
            .shuffle(7)
            .batch(4)
    });
    goes_on(|| {
        Graph::range(0..20)
            .flat_map(|n| vec![n; (n % 4) as usize])
            .shuffle(5)
            .filter(|n| n % 2 == 0)
            .shuffle(3)
            .batch(4)
            .unbatch()
    });
    goes_on(|| {
        let some = Graph::range(0..60)
            .filter(|n| n % 3 != 0)
            .flat_map(|n| vec![n; (n % 3) as usize]);
        let io = some.map_async(async |n| if n % 10 == 4 { Err("bad") } else { Ok(n) });
        io.shuffle(7).shuffle(2).batch(3)
    });
    goes_on(|| Graph::from_iter_with(|| 0..30u64).shuffle(4).batch(2));
}

/// Makes a graph in which some items fail.
fn failing(items: std::ops::Range<u64>) -> Graph<u64> {
    Graph::range(items).try_map(|n| if n % 7 == 3 { Err("bad") } else { Ok(n) })
}

#[test]
fn what_counts_goes_on() {
    goes_on(|| failing(0..20).take(9));
    goes_on(|| failing(0..20).skip(9));
    goes_on(|| failing(0..20).skip(3).take(30).enumerate());
    goes_on(|| {
        failing(0..30)
            .shuffle(5)
            .enumerate()
            .filter(|(n, _)| n % 2 == 0)
            .enumerate()
    });
    goes_on(|| failing(0..20).shuffle(4).prefetch(3).batch(3));
}

#[test]
fn joins_go_on() {
    let three = || [failing(0..9), failing(3..4), failing(20..31).shuffle(4)];
    goes_on(move || Graph::concat(three()));
    goes_on(move || Graph::mux(three()));
    goes_on(move || {
        Graph::join(
            Vec::from(three()),
            crate::pipes::Mux::new(3).stop_at_first(),
        )
    });
    goes_on(move || Graph::greedy_join(three()));
    goes_on(|| failing(0..20).zip(failing(1..15).shuffle(4)));
    goes_on(|| failing(0..12).zip3(failing(1..15), failing(3..20).batch(2)));
    goes_on(|| {
        Graph::join(
            (failing(0..9), Graph::range(0..9)),
            crate::pipes::Zip::new().strict(),
        )
    });
    for (cycle, block) in [(1, 1), (2, 3), (3, 1), (2, 20)] {
        let five = || [5, 0, 9, 1, 6].map(|n| failing(10 * n..11 * n));
        goes_on(move || Graph::interleave(five(), cycle, block));
    }
}

#[test]
fn mixes_go_on() {
    use crate::pipes::Stop;
    for stop in [
        Stop::FirstExhausted,
        Stop::AllExhausted,
        Stop::CycleUntilAll,
        Stop::CycleForever,
    ] {
        let inputs = || {
            [
                (failing(0..9).shuffle(3), 2.0),
                (failing(0..4).shuffle(2), 1.0),
                (Graph::range(0..0), 1.0),
            ]
        };
        goes_on(move || Graph::mix_until(stop, inputs()).take(30));
    }
}

#[test]
fn rounds_go_on() {
    goes_on(|| failing(0..5).repeat(3));
    goes_on(|| failing(0..8).shuffle(3).repeat(3).batch(2));
    goes_on(|| {
        failing(0..4)
            .shuffle(3)
            .repeat(2)
            .shuffle(2)
            .repeat(2)
            .enumerate()
    });
    goes_on(|| {
        Graph::mux([failing(0..4).shuffle(3), Graph::range(7..9)])
            .cycle()
            .take(20)
    });
}

#[test]
fn what_holds_items_goes_on() {
    let length = |n: &u64| *n as usize % 10;
    goes_on(move || failing(0..40).bucket_batch(length, [3, 6], [4, 2, 5]));
    goes_on(move || {
        failing(0..40)
            .shuffle(9)
            .bucket_batch(length, [5], [3, 3])
            .unbatch()
            .bucket_batch(length, [5], [4, 3])
    });
    goes_on(move || {
        failing(0..30).pipe(crate::pipes::BucketBatch::new(length, [5], [4, 4]).drop_last())
    });
    goes_on(|| failing(0..40).sample(9));
    goes_on(|| failing(0..5).sample(9).batch(2));
    goes_on(|| {
        failing(0..40)
            .shuffle(5)
            .sample_with(0.4)
            .shuffle(3)
            .retry(2, crate::pipes::Map::new(|n| n + 1))
    });
    goes_on(|| {
        Graph::range(1..20)
            .map(|n| vec![n; n as usize % 5])
            .padded_batch(3, 0)
    });
}

#[test]
fn a_cache_goes_on() {
    // Each loader has a cache of its own, and a shared one is full.
    goes_on(|| failing(0..20).shuffle(4).cache(100).batch(3));
    goes_on(|| Graph::range(0..20).shuffle(4).cache(100).shuffle(3));
    goes_on(|| Graph::range(0..5).cache(100).shuffle(4).repeat(3));
    let shared = Graph::range(0..20).filter(|n| n % 3 > 0).cache(100);
    goes_on(|| shared.clone().shuffle(3));
}

#[test]
fn a_scan_goes_on_if_it_keeps_its_state() {
    let sum = |sum: &mut u64, n: u64| {
        *sum += n;
        (*sum < 100).then_some(*sum)
    };
    goes_on(move || failing(0..30).scan_resumable(0, sum));
    let build = DataLoader::builder(Graph::range(0..3).scan(0, sum))
        .resumable()
        .build();
    let problem = build.unwrap_err().to_string();
    assert!(
        problem.contains("scan: an epoch cannot be resumed")
            && problem.contains("`scan_resumable`"),
        "{problem}"
    );
}

#[test]
fn ranks_go_on() {
    for (rank, world) in [(0, 1u64), (0, 2), (2, 3)] {
        for uneven in [
            crate::Uneven::Drop,
            crate::Uneven::Pad,
            crate::Uneven::Allow,
            crate::Uneven::Error,
        ] {
            // An epoch that ends in an error has no end to resume.
            let ends = |items: u64| uneven != crate::Uneven::Error || items.is_multiple_of(world);
            for items in [3, 20, 25].into_iter().filter(|&items| ends(items)) {
                let graph = move || {
                    failing(0..items)
                        .filter(|_| true)
                        .shuffle(4)
                        .sharding_filter_padded()
                };
                goes_on_as(graph, |loader| {
                    loader.rank(rank, world as usize).uneven(uneven)
                });
            }
            if uneven != crate::Uneven::Pad && ends(21) {
                let graph = move || {
                    Graph::from_iter_with(|| 0..21u64)
                        .sharding_filter()
                        .batch(2)
                };
                goes_on_as(graph, |loader| {
                    loader.rank(rank, world as usize).uneven(uneven)
                });
            }
        }
    }
}

#[test]
fn what_is_shared_goes_on() {
    use crate::pipes::{Demux, Fork};
    goes_on(|| {
        let [a, b] = failing(0..30).shuffle(4).fork();
        a.map(|n| n + 1).zip(b.filter(|_| true))
    });
    goes_on(|| {
        let [a, b, c] = failing(0..20).fork();
        Graph::mux([a.shuffle(3), b.take(5), c.filter(|n| n % 3 == 1)])
    });
    goes_on(|| Graph::concat(failing(0..12).fork::<2>()));
    goes_on(|| {
        let [a, b] = failing(0..40).demux(|n| (*n % 2) as usize);
        Graph::mix([(a.shuffle(4), 1.0), (b.batch(2).unbatch(), 2.0)])
    });
    goes_on(|| Graph::mux(failing(0..40).demux::<2>(|n| usize::from(n % 3 == 0))));
    goes_on(|| Graph::mux(failing(0..4).shuffle(2).fork::<2>()).repeat(3));
    goes_on(|| {
        let [a, b] = Graph::range(0..20).fork();
        let [c, d] = Graph::concat([a.take(7), b]).demux(|n| usize::from(*n < 9));
        c.prefetch(3).zip(d.prefetch(2))
    });
    // Repeated items that are not wanted take no place in the buffers.
    let tight = || {
        let mut outputs = Graph::range(0..60).split(Fork::new(2).buffer(8));
        let (b, a) = (outputs.pop().unwrap(), outputs.pop().unwrap());
        a.shuffle(7).zip(b)
    };
    goes_on(tight);
    goes_on(|| {
        Graph::mux(Graph::range(0..60).split(Demux::new(3, |n: &u64| (*n % 3) as usize).buffer(2)))
    });
}

#[test]
fn data_by_index_goes_on() {
    use crate::index::{ClassBalanced, Indexed, SamplerExt};
    let data = || Indexed::range(20).shuffle();
    goes_on(|| data().repeat(2).fetch().shuffle(5).batch(3));
    goes_on(|| data().zip(Indexed::range(15)).map(|pair| pair).fetch());
    goes_on(|| {
        Indexed::concat([data(), Indexed::range(5)])
            .shuffle()
            .batch(3)
            .fetch()
            .unbatch()
    });
    goes_on(|| {
        Indexed::mix([(data(), 2.0), (Indexed::range(7), 1.0)])
            .fetch()
            .repeat(2)
    });
    goes_on(|| ClassBalanced::new(vec![0, 0, 1, 0], 20).indices(4).batch(3));
    goes_on(|| {
        Indexed::from_fn(20, |n| async move {
            if n % 7 == 3 { Err("bad") } else { Ok(n) }
        })
        .shuffle()
        .fetch()
    });
    goes_on_as(
        || data().shard().fetch().batch(2),
        |loader| loader.rank(1, 3).uneven(crate::Uneven::Pad),
    );
}

/// A checkpoint with workers, if these are one segment, can be resumed without them, and the
/// reverse.
#[test]
fn chains_go_on_with_other_workers() {
    goes_on(|| failing(0..40).shuffle(5).sample_with(0.4).map(|n| n + 1));
    goes_on(|| {
        Graph::range(0..15)
            .flat_map(|n| 0..n % 4)
            .map(|n| n + 1)
            .filter(|n| n % 2 == 0)
            .batch(2)
            .unbatch()
    });
    goes_on(|| {
        let pairs = Graph::range(0..20)
            .map(|n| n + 1)
            .filter(|n| n % 3 > 0)
            .flat_map(|n| vec![n; 2]);
        pairs
            .map_async(|n| async move { if n % 5 == 0 { Err("five") } else { Ok(n) } })
            .filter(|n| n % 2 == 0)
            .shuffle(4)
    });
}

#[test]
fn row_119_less_data_than_before_is_an_error() {
    let loader = |items: u64| {
        let graph = Graph::from_iter_with(move || 0..items).shuffle(3);
        DataLoader::builder(graph)
            .workers(0)
            .resumable()
            .build()
            .unwrap()
    };
    let (first, state) = run(loader(20).epoch(0), 10);
    assert_eq!(first.len(), 10);
    let (rest, _) = run(loader(4).resume(&state).unwrap(), usize::MAX);
    let is_said =
        |text: &String| text.contains("items and errors, and the epoch was stopped after");
    assert!(rest.iter().any(is_said), "{rest:?}");
}

#[test]
fn an_error_that_ends_an_epoch_loses_no_item_that_a_step_held() {
    for workers in [0, 2] {
        let is_broken = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
        let broken = is_broken.clone();
        let graph = Graph::from_stream_with(move || {
            let stops = broken.load(std::sync::atomic::Ordering::Relaxed);
            let item = move |n: u64| match n == 6 && stops {
                true => Err(crate::Error::user("cut off").fatal()),
                false => Ok(n),
            };
            Ok(futures::stream::iter((0..10).map(item)))
        });
        let loader = DataLoader::builder(graph.shuffle(3).batch(4))
            .workers(workers)
            .on_error(OnError::skip(9))
            .resumable()
            .build()
            .unwrap();
        let (begun, state) = run(loader.epoch(0), usize::MAX);
        assert!(begun.last().unwrap().ends_with("cut off)"), "{begun:?}");
        is_broken.store(false, std::sync::atomic::Ordering::Relaxed);
        let (whole, _) = run(loader.epoch(0), usize::MAX);
        let (rest, _) = run(loader.resume(&state).unwrap(), usize::MAX);
        let delivered = &begun[..begun.len() - 1];
        assert_eq!([delivered, &rest].concat(), whole);
    }
}
