//! Checkpoints while items are in flight, and while others look on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use super::Checkpoint;
use crate::testing::cases;
use crate::{BoxError, DataLoader, Graph, Order, Rng};

const ITEMS: u64 = 240;

/// Number of times that each item was made.
type Ledger = Arc<Vec<AtomicU32>>;

fn made(ledger: &Ledger) -> Vec<u32> {
    ledger
        .iter()
        .map(|count| count.load(Ordering::Relaxed))
        .collect()
}

/// Takes some time, and now and then more.
fn work(n: u64) -> u64 {
    let rounds = if n % 7 == 3 { 20_000 } else { 500 };
    std::hint::black_box((0..rounds).fold(n, |sum, k| std::hint::black_box(sum ^ k)));
    n
}

fn counted(order: Order) -> (DataLoader<Vec<u64>>, Ledger) {
    let ledger: Ledger = Arc::new((0..ITEMS).map(|_| AtomicU32::new(0)).collect());
    let count = ledger.clone();
    let worked = Graph::range(0..ITEMS).map(move |n| {
        count[n as usize].fetch_add(1, Ordering::Relaxed);
        work(n)
    });
    let builder = DataLoader::builder(worked.shuffle(11).batch(3))
        .seed(5)
        .workers(2)
        .order(order);
    (builder.resumable().build().unwrap(), ledger)
}

/// Takes a checkpoint and drops the epoch at once, many times. Each item is delivered once, also
/// those in flight at the stop.
fn come_again_once(order: Order, on_device: bool) {
    let mut rng = Rng::from_key([121, 0, 0, 0]);
    let (mut concurrency, cases) = (0, cases(50));
    for case in 0..cases {
        let stop = rng.below(ITEMS / 3) as usize;
        let run = |state: Option<&Checkpoint>, most: usize| {
            let (loader, ledger) = counted(order);
            let (items, state) = if on_device {
                let loader = loader.prefetch_to_device(Ok::<_, BoxError>).device_depth(2);
                let epoch =
                    state.map_or_else(|| loader.epoch(0), |state| loader.resume(state).unwrap());
                let mut epoch = epoch.blocking();
                let items: Vec<Vec<u64>> = epoch.by_ref().take(most).map(Result::unwrap).collect();
                (items, epoch.checkpoint().unwrap())
            } else {
                let epoch =
                    state.map_or_else(|| loader.epoch(0), |state| loader.resume(state).unwrap());
                let mut epoch = epoch.blocking();
                let items: Vec<Vec<u64>> = epoch.by_ref().take(most).map(Result::unwrap).collect();
                (items, epoch.checkpoint().unwrap())
            };
            (
                items.concat(),
                Checkpoint::from_bytes(&state.to_bytes()).unwrap(),
                ledger,
            )
        };
        let (first, state, ledger) = run(None, stop);
        assert_eq!(state.delivered(), stop as u64);
        let (rest, end, again) = run(Some(&state), usize::MAX);
        assert!(end.is_finished());
        let mut delivered = vec![0; ITEMS as usize];
        first
            .iter()
            .chain(&rest)
            .for_each(|&n| delivered[n as usize] += 1);
        let wrong: Vec<_> = (0..)
            .zip(&delivered)
            .filter(|&(_, &times)| times != 1)
            .collect();
        assert_eq!(wrong, [], "case {case}, stopped at {stop}");
        // Items that had been made, and waited somewhere, were made once more; no item was made
        // twice in one run.
        let (before, behind) = (made(&ledger), made(&again));
        for n in 0..ITEMS {
            let (before, behind) = (before[n as usize], behind[n as usize]);
            assert!(
                before <= 1 && behind <= 1,
                "case {case}, item {n}: {before} and {behind}"
            );
            if !first.contains(&n) {
                assert_eq!(behind, 1, "case {case}, item {n}");
                concurrency += before;
            }
        }
    }
    assert!(
        concurrency as usize > cases * 5,
        "{concurrency} items were in flight, so that nothing was tried"
    );
}

#[test]
fn row_121_what_is_in_flight_comes_again_once() {
    come_again_once(Order::Strict, false);
    come_again_once(Order::Arrival, false);
}

#[test]
fn row_121_what_is_in_flight_to_a_device_comes_again_once() {
    come_again_once(Order::Strict, true);
    come_again_once(Order::Bounded(8), true);
}

#[test]
fn row_122_states_of_two_epochs_at_once_while_a_third_thread_reads() {
    let loader = |workers| {
        let graph = Graph::range(0..150)
            .map(work)
            .shuffle(11)
            .filter(|n| n % 5 > 0)
            .batch(3)
            .shuffle(4);
        DataLoader::builder(graph)
            .seed(5)
            .workers(workers)
            .resumable()
            .build()
            .unwrap()
    };
    let shared = loader(2);
    let all_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let onlooker = scope.spawn(|| {
            loop {
                // The epoch that began last.
                let stats = shared.stats();
                assert!(stats.is_none_or(|stats| !format!("{stats:?}").is_empty()));
                let plan = shared.explain();
                assert!(
                    plan.contains("shuffle#2") && plan.contains("range"),
                    "{plan}"
                );
                // Looked at once at least, however late this thread begins.
                if all_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let epochs = [0, 1].map(|number| {
            let (shared, loader) = (&shared, &loader);
            scope.spawn(move || {
                let mut epoch = shared.epoch(number).blocking();
                let (mut items, mut states) = (Vec::new(), vec![epoch.checkpoint().unwrap()]);
                while let Some(item) = epoch.next() {
                    items.push(item.unwrap());
                    states.push(epoch.checkpoint().unwrap());
                }
                for (at, state) in states.iter().enumerate() {
                    assert_eq!((state.epoch(), state.delivered()), (number, at as u64));
                    let rest = loader(0).resume(state).unwrap().blocking();
                    assert_eq!(
                        Vec::from_iter(rest.map(Result::unwrap)),
                        items[at..],
                        "epoch {number}"
                    );
                }
                items
            })
        });
        let [first, second] = epochs.map(|epoch| epoch.join());
        all_over.store(true, Ordering::Relaxed);
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_ne!(first, second);
        for (number, items) in [(0, first), (1, second)] {
            let alone = loader(0).epoch(number).blocking();
            assert_eq!(Vec::from_iter(alone.map(Result::unwrap)), items);
        }
        onlooker.join().unwrap();
    });
}

/// A place is the same however it was reached: the checkpoint of a resumed epoch is the one it was
/// resumed from, until something is taken; afterwards it leads to the same items as that of the
/// epoch that was not stopped.
#[test]
fn row_116_the_state_behind_a_resume_is_the_state() {
    let graphs: [fn() -> Graph<Vec<u64>>; 4] = [
        || Graph::range(0..60).shuffle(7).batch(3),
        || {
            Graph::range(0..60)
                .filter(|n| n % 3 > 0)
                .map(work)
                .batch(4)
                .shuffle(3)
        },
        || {
            Graph::range(0..9)
                .flat_map(|n| vec![n; (n % 4) as usize])
                .shuffle(3)
                .repeat(3)
                .batch(2)
        },
        || {
            Graph::mix([
                (Graph::range(0..30).shuffle(5), 2.0),
                (Graph::range(50..70), 1.0),
            ])
            .batch(2)
        },
    ];
    for (number, graph) in graphs.into_iter().enumerate() {
        for workers in [0, 2] {
            let loader = || {
                DataLoader::builder(graph())
                    .seed(5)
                    .workers(workers)
                    .resumable()
                    .build()
                    .unwrap()
            };
            let rest = |state: &Checkpoint| {
                let rest = loader().resume(state).unwrap().blocking();
                Vec::from_iter(rest.map(Result::unwrap))
            };
            let mut epoch = loader().epoch(2).blocking();
            let whole: Vec<Vec<u64>> = loader().epoch(2).blocking().map(Result::unwrap).collect();
            for at in 0..=whole.len() {
                let place = format!("graph {number}, {workers} workers, stopped at {at}");
                let state = epoch.checkpoint().unwrap();
                let mut resumed = loader().resume(&state).unwrap().blocking();
                let again = resumed.checkpoint().unwrap();
                assert!(
                    again == state && again.to_bytes() == state.to_bytes(),
                    "{place}"
                );
                // A second checkpoint is of the same place, and after one step both epochs are at
                // the same place.
                assert_eq!(epoch.checkpoint().unwrap().delivered(), state.delivered());
                let (next, next_resumed) = (epoch.next(), resumed.next());
                assert_eq!(
                    next.map(Result::unwrap),
                    next_resumed.map(Result::unwrap),
                    "{place}"
                );
                let (straight, resumed) =
                    (epoch.checkpoint().unwrap(), resumed.checkpoint().unwrap());
                assert_eq!(
                    (
                        straight.delivered(),
                        straight.is_finished(),
                        straight.epoch(),
                        straight.seed()
                    ),
                    (
                        resumed.delivered(),
                        resumed.is_finished(),
                        resumed.epoch(),
                        resumed.seed()
                    ),
                    "{place}"
                );
                let left = &whole[(at + 1).min(whole.len())..];
                assert_eq!(rest(&straight), left, "{place}");
                assert_eq!(rest(&resumed), left, "{place}");
            }
        }
    }
}
