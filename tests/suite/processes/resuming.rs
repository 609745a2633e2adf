//! Checkpoints of epochs with processes: taken at any time, resumed with and without processes.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{self, Poll, Waker};

use datapipes::testing::some_of;
use datapipes::{Checkpoint, DataLoader, Graph, OnError, Processes};
use futures::StreamExt;

use super::crimes::{all_gone, soon};
use super::gates::{Gate, pass};
use super::pids;

/// The work of a part, and its place in the graph.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// One item for each, so that nothing has to be known of pieces.
    Each,
    /// Some are left out, others fail, and the rest become several; between shuffles, so that the
    /// part is a segment anywhere.
    Some,
    /// Two parts, one after the other, with a batch between them.
    Two,
}

fn part(shape: Shape, numbers: Graph<u64>) -> Graph<u64> {
    match shape {
        Shape::Each | Shape::Two => numbers
            .map(|n| n * 3)
            .map_with_rng(|n, rng| n * 10 + rng.below(10))
            .named("each"),
        Shape::Some => {
            let odd = numbers
                .filter(|n| n % 5 != 2)
                .try_map(|n| if n % 31 == 7 { Err("bad") } else { Ok(n) });
            odd.flat_map(|n| (0..n % 3).map(move |k| n * 10 + k))
        }
    }
}

fn graph(shape: Shape, apart: usize) -> Graph<u64> {
    let placed = |numbers: Graph<u64>| match (apart, shape) {
        (0, _) => part(shape, numbers),
        (_, Shape::Some) => numbers.in_processes(apart, |numbers| part(Shape::Some, numbers)),
        _ => numbers.in_processes(apart, |numbers| part(Shape::Each, numbers)),
    };
    let first = placed(Graph::range(0..160).shuffle(17));
    match shape {
        Shape::Two => {
            let batches = first.batch(3).unbatch();
            let second = match apart {
                0 => batches.map(|n| n + 1).named("second"),
                _ => batches.in_processes(1, |numbers| numbers.map(|n| n + 1).named("second")),
            };
            second.shuffle(5)
        }
        _ => first.shuffle(9),
    }
}

/// Settings with which a graph is run: processes, workers, morsels in flight, bytes, items ahead.
#[derive(Clone, Copy, Debug)]
struct How {
    apart: usize,
    workers: usize,
    limits: Option<(usize, usize)>,
    prefetch: usize,
}

const HOWS: [How; 7] = [
    How {
        apart: 0,
        workers: 0,
        limits: None,
        prefetch: 0,
    },
    How {
        apart: 0,
        workers: 1,
        limits: Some((1, 100)),
        prefetch: 1,
    },
    How {
        apart: 0,
        workers: 3,
        limits: None,
        prefetch: 16,
    },
    How {
        apart: 1,
        workers: 2,
        limits: Some((2, 1000)),
        prefetch: 1,
    },
    How {
        apart: 2,
        workers: 1,
        limits: None,
        prefetch: 8,
    },
    How {
        apart: 3,
        workers: 3,
        limits: Some((9, 4000)),
        prefetch: 2,
    },
    // Parts of processes that run here, since there are no workers.
    How {
        apart: 2,
        workers: 0,
        limits: None,
        prefetch: 3,
    },
];

type Given = Vec<(u64, String)>;

fn loader(shape: Shape, how: How) -> DataLoader<u64> {
    let builder = DataLoader::builder(graph(shape, how.apart))
        .seed(117)
        .workers(how.workers);
    let builder = builder
        .prefetch(how.prefetch)
        .on_error(OnError::skip(1000))
        .resumable();
    match how.limits {
        Some((in_flight, memory)) => builder
            .concurrency(in_flight)
            .memory(memory)
            .build()
            .unwrap(),
        None => builder.build().unwrap(),
    }
}

/// Reads at most `most` items, from a checkpoint or from the beginning. Returns them with their
/// origins, and the checkpoint after them, written to bytes and read again.
fn run(loader: &DataLoader<u64>, from: Option<&Checkpoint>, most: usize) -> (Given, Checkpoint) {
    let epoch = from.map_or_else(|| loader.epoch(2), |state| loader.resume(state).unwrap());
    let mut epoch = epoch.blocking();
    let mut given = Vec::new();
    while given.len() < most
        && let Some(item) = epoch.next_item()
    {
        let item = item.unwrap();
        given.push((*item, item.origin().to_string()));
    }
    (
        given,
        Checkpoint::from_bytes(&epoch.checkpoint().unwrap().to_bytes()).unwrap(),
    )
}

/// From each way to run to each other, stopped once more in a third, with loaders that stay.
fn goes_on_in_all_ways(shape: Shape) {
    let loaders = HOWS.map(|how| loader(shape, how));
    let (whole, _) = run(&loaders[0], None, usize::MAX);
    assert!(whole.len() > 100);
    let mut stops = (0..whole.len()).step_by(7).cycle().skip(3);
    let ways = (0..HOWS.len()).flat_map(|one| (0..HOWS.len()).map(move |other| (one, other)));
    let ways = ways.map(|(one, other)| (one, other, stops.next().unwrap()));
    for (one, other, stop) in some_of(ways) {
        let third = (one + 2 * other + 1) % HOWS.len();
        let said = format!(
            "{shape:?} at {stop}: {:?}, {:?}, {:?}",
            HOWS[one], HOWS[other], HOWS[third]
        );
        let (mut given, state) = run(&loaders[one], None, stop);
        let (some, state) = run(&loaders[other], Some(&state), 13);
        given.extend(some);
        let (rest, end) = run(&loaders[third], Some(&state), usize::MAX);
        given.extend(rest);
        assert_eq!(given, whole, "{said}");
        assert!(end.is_finished(), "{said}");
    }
}

#[test]
fn row_117_threads_and_processes_go_on_for_each_other_with_one_item_for_each() {
    goes_on_in_all_ways(Shape::Each);
}

#[test]
fn row_117_threads_and_processes_go_on_for_each_other_where_the_cut_stays() {
    goes_on_in_all_ways(Shape::Some);
}

#[test]
fn row_117_threads_and_processes_go_on_for_each_other_with_two_parts() {
    goes_on_in_all_ways(Shape::Two);
}

/// A checkpoint that another cut of the graph cannot resume is refused. No item is lost or
/// delivered twice.
#[test]
fn row_117_another_cut_goes_on_or_is_refused_by_name() {
    let cut = |apart| {
        let several = Graph::range(0..90).flat_map(|n| vec![n; n as usize % 3]);
        let filtered = |numbers: Graph<u64>| numbers.filter(|n| n % 4 != 1).named("odd");
        let graph = if apart {
            several.in_processes(1, filtered)
        } else {
            filtered(several)
        };
        DataLoader::builder(graph.shuffle(4))
            .workers(2)
            .resumable()
            .build()
            .unwrap()
    };
    for (then, now) in [(true, false), (false, true)] {
        let (_, state) = run(&cut(then), None, 20);
        let error = cut(now).resume(&state).unwrap_err();
        assert_eq!(error.kind(), datapipes::ErrorKind::Config);
        let said = error.to_string();
        assert!(said.contains("processes have changed"), "{said}");
        assert!(
            said.starts_with("flat_map: ") || said.starts_with("odd: "),
            "{said}"
        );
    }
}

/// A child is killed at work. Checkpoints are taken while there is no child, while the next child
/// has been started and is not ready, and while that child continues with the item.
#[test]
fn row_121_a_state_while_a_child_is_being_started_again() {
    /// The process that has no gates, the folder of the gates, and the item that is at work when
    /// its child is killed.
    type Settings = (u32, String, u64);
    fn part(numbers: Graph<u64>, (parent, folder, item): &Settings) -> Graph<u64> {
        let (folder, item) = (PathBuf::from(folder), *item);
        let in_child = std::process::id() != *parent;
        if in_child {
            pass(&folder.join("start"));
        }
        numbers.map(move |n| {
            if in_child && n == item {
                pass(&folder.join("work"));
            }
            n * 7
        })
    }
    let folder = tempfile::tempdir().unwrap();
    let loader = |workers, item| {
        let settings = (
            std::process::id(),
            folder.path().to_str().unwrap().to_owned(),
            item,
        );
        let graph =
            Graph::range(0..300)
                .shuffle(12)
                .in_processes_with(Processes::new(1), settings, part);
        let builder = DataLoader::builder(graph.shuffle(5).batch(2))
            .seed(3)
            .workers(workers);
        builder.resumable().build().unwrap()
    };
    let rest = |state: &Checkpoint, workers| batches(loader(workers, 1000).resume(state).unwrap());
    let whole = batches(loader(0, 1000).epoch(0));
    for item in [0, 100, 280] {
        let (work, start) = (folder.path().join("work"), folder.path().join("start"));
        let work = Gate::new(work);
        let apart = loader(1, item);
        let mut epoch = apart.epoch(0);
        let mut seen = Vec::new();
        // All that comes before the one that is at work.
        soon("a child is at work", || {
            let there = work.is_somebody_there();
            while let Poll::Ready(batch) =
                epoch.poll_next_unpin(&mut task::Context::from_waker(Waker::noop()))
            {
                seen.push(batch.expect("more than that").unwrap());
            }
            there
        });
        let mut states = vec![epoch.checkpoint().unwrap()];
        let start = Gate::new(start);
        let killed = pids(&apart);
        // SAFETY: ends a child of this process.
        killed
            .iter()
            .for_each(|&child| unsafe { _ = libc::kill(child as i32, libc::SIGKILL) });
        all_gone(&killed);
        states.push(epoch.checkpoint().unwrap());
        start.wait_for_one();
        states.push(epoch.checkpoint().unwrap());
        work.open();
        start.open();
        states.push(epoch.checkpoint().unwrap());
        assert!(
            states
                .iter()
                .all(|state| state.delivered() == seen.len() as u64)
        );
        for state in &states {
            assert_eq!(rest(state, 0), whole[seen.len()..], "{item} was at work");
        }
        assert_eq!(
            rest(&states[1], 1),
            whole[seen.len()..],
            "{item} was at work"
        );
        seen.extend(batches(epoch));
        assert_eq!(seen, whole, "{item} was at work");
        let processes = apart.stats().unwrap().segments[0]
            .processes
            .clone()
            .unwrap();
        assert_eq!(
            (processes.started, processes.died, processes.crashed),
            (2, 1, 0)
        );
    }
}

fn in_two(workers: usize) -> DataLoader<Vec<u64>> {
    let numbers = Graph::range(0..240).shuffle(11);
    let graph = numbers.in_processes(2, |numbers| numbers.map(|n| n * 5).filter(|n| n % 3 != 1));
    DataLoader::builder(graph.shuffle(7).batch(3))
        .seed(5)
        .workers(workers)
        .resumable()
        .build()
        .unwrap()
}

fn batches(epoch: datapipes::Epoch<Vec<u64>>) -> Vec<Vec<u64>> {
    epoch.blocking().map(Result::unwrap).collect()
}

#[test]
fn row_122_states_of_two_epochs_at_once_with_processes() {
    let shared = in_two(1);
    std::thread::scope(|scope| {
        let epochs = [0, 1].map(|number| {
            let shared = &shared;
            scope.spawn(move || {
                let mut epoch = shared.epoch(number).blocking();
                let (mut items, mut states) = (Vec::new(), vec![epoch.checkpoint().unwrap()]);
                while let Some(item) = epoch.next() {
                    items.push(item.unwrap());
                    states.push(epoch.checkpoint().unwrap());
                }
                (number, items, states)
            })
        });
        for (number, items, states) in epochs.map(|epoch| epoch.join().unwrap()) {
            assert_eq!(items, batches(in_two(0).epoch(number)));
            for (at, state) in states.iter().enumerate() {
                assert_eq!((state.epoch(), state.delivered()), (number, at as u64));
                assert_eq!(
                    batches(in_two(0).resume(state).unwrap()),
                    items[at..],
                    "epoch {number}"
                );
            }
            // Some of them by the same children, which have worked for both.
            for at in [0, items.len() / 2, items.len()] {
                assert_eq!(
                    batches(shared.resume(&states[at]).unwrap()),
                    items[at..],
                    "epoch {number}"
                );
            }
        }
    });
}

/// An epoch is taken from by one thread at a time; any may have it, and ask where it stands.
#[test]
fn row_122_another_thread_asks_for_states_while_items_are_taken() {
    let shared = in_two(1);
    let epoch = Mutex::new((shared.epoch(0).blocking(), Vec::new()));
    let over = AtomicBool::new(false);
    let states = std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            let mut states: Vec<Checkpoint> = Vec::new();
            loop {
                let last = over.load(Ordering::SeqCst);
                let (epoch, items) = &mut *epoch.lock().unwrap();
                let state = epoch.checkpoint().unwrap();
                assert_eq!(state.delivered(), items.len() as u64);
                // One for each place, and the last one there: the end is known once it was looked
                // for.
                states.pop_if(|last| last.delivered() == state.delivered());
                states.push(state);
                if last {
                    return states;
                }
            }
        });
        loop {
            let (epoch, items) = &mut *epoch.lock().unwrap();
            let Some(item) = epoch.next() else { break };
            items.push(item.unwrap());
        }
        over.store(true, Ordering::SeqCst);
        asks.join().unwrap()
    });
    let (_, items) = epoch.into_inner().unwrap();
    assert_eq!(items, batches(in_two(0).epoch(0)));
    for state in &states {
        let at = state.delivered() as usize;
        assert_eq!(batches(in_two(0).resume(state).unwrap()), items[at..]);
    }
    assert!(states.last().unwrap().is_finished());
}
