//! Checkpoints of epochs whose items come in any order.

use super::Checkpoint;
use crate::testing::some_of;
use crate::{DataLoader, Graph, OnError, Order};

/// Takes much longer for one number in seven, so that other items overtake it.
fn uneven(n: u64) -> u64 {
    let rounds = if n % 7 == 3 { 20_000 } else { 10 };
    std::hint::black_box((0..rounds).fold(n, |sum, k| std::hint::black_box(sum ^ k)));
    n
}

/// Checks that in any order the items delivered before and after two stops are all items, once.
fn goes_on_in_any_order(graph: impl Fn() -> Graph<Vec<u64>>) {
    let loader = |workers, order| {
        let builder = DataLoader::builder(graph())
            .seed(5)
            .workers(workers)
            .order(order);
        builder
            .on_error(OnError::skip(1000))
            .resumable()
            .build()
            .unwrap()
    };
    let samples = |epoch: crate::Epoch<Vec<u64>>, most| {
        let mut epoch = epoch.blocking();
        let items: Vec<u64> = (&mut epoch)
            .take(most)
            .flat_map(|batch| batch.unwrap())
            .collect();
        (
            items,
            Checkpoint::from_bytes(&epoch.checkpoint().unwrap().to_bytes()).unwrap(),
        )
    };
    let (mut whole, _) = samples(loader(0, Order::Strict).epoch(0), usize::MAX);
    whole.sort();
    let orders = [Order::Arrival, Order::Bounded(16), Order::Strict];
    let stops = (0..12).flat_map(|case| (0..6).map(move |stop| (case, stop)));
    for (case, stop) in some_of(stops) {
        let order = |at: usize| orders[(case + at * (case / 3)) % 3];
        let workers = |at: usize| [2, 1, 0, 2][(case + at) % 4];
        let (first, state) = samples(loader(2, order(0)).epoch(0), stop);
        let (second, state) = samples(loader(workers(1), order(1)).resume(&state).unwrap(), 2);
        let (third, state) = samples(loader(workers(2), order(2)).resume(&state).unwrap(), 1);
        let (rest, end) = samples(
            loader(workers(3), order(1)).resume(&state).unwrap(),
            usize::MAX,
        );
        assert!(end.is_finished());
        let parts = [first.len(), second.len(), third.len(), rest.len()];
        let mut all = [first, second, third, rest].concat();
        all.sort();
        assert_eq!(
            all, whole,
            "stopped at {stop}, case {case}, parts {parts:?}"
        );
    }
}

#[test]
fn any_order_goes_on() {
    goes_on_in_any_order(|| Graph::range(0..60).map(uneven).batch(3));
    goes_on_in_any_order(|| {
        Graph::range(0..60)
            .map(uneven)
            .shuffle(7)
            .batch(3)
            .map(|batch| batch)
    });
    goes_on_in_any_order(|| {
        let some = Graph::range(0..90)
            .filter(|n| n % 3 != 0)
            .flat_map(|n| vec![n; (n % 3) as usize]);
        let io = some.map_async(async |n| {
            if n % 5 == 0 {
                tokio::task::yield_now().await;
            }
            if n % 10 == 4 { Err("bad") } else { Ok(n) }
        });
        io.map(uneven).shuffle(7).shuffle(2).batch(3)
    });
}
