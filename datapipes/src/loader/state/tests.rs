use super::*;
use crate::{DataLoader, Graph, OnError};

fn run<T: Send + 'static>(epoch: crate::Epoch<T>, most: usize) -> (Vec<String>, State)
where
    T: std::fmt::Debug,
{
    let mut epoch = epoch.blocking();
    let items = (&mut epoch).take(most).map(|item| format!("{item:?}")).collect();
    (items, epoch.state().unwrap())
}

/// Stopped at every place, and again, with other workers each time, it gives what it gives in one go.
fn goes_on<T: std::fmt::Debug + Send + 'static>(graph: impl Fn() -> Graph<T>) {
    let loader = |workers| {
        DataLoader::builder(graph())
            .seed(5)
            .workers(workers)
            .on_error(OnError::skip(1000))
            .resumable()
            .build()
            .unwrap()
    };
    let (whole, end) = run(loader(0).epoch(1), usize::MAX);
    assert!(end.is_finished());
    for workers in [[0, 0, 0], [2, 0, 1], [0, 2, 2]] {
        for stop in 0..=whole.len() + 1 {
            let (first, state) = run(loader(workers[0]).epoch(1), stop);
            let state = State::from_bytes(&state.to_bytes()).unwrap();
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
    goes_on(|| Graph::range(0..10).flat_map(|n| (0..n).map(move |k| (n, k))).batch(4));
    goes_on(|| Graph::range(0..40).shuffle(7));
    goes_on(|| Graph::range(0..5).shuffle(7));
    goes_on(|| Graph::range(0..40).shuffle(7).batch(4));
    goes_on(|| {
        Graph::range(0..40).try_map(|n| if n % 5 == 2 { Err("bad") } else { Ok(n) }).shuffle(7).batch(4)
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
        let some = Graph::range(0..90).filter(|n| n % 3 != 0).flat_map(|n| vec![n; (n % 3) as usize]);
        let io = some.map_async(async |n| if n % 10 == 4 { Err("bad") } else { Ok(n) });
        io.map(uneven).shuffle(7).shuffle(2).batch(3)
    });
    goes_on(|| Graph::from_iter_with(|| 0..30u64).shuffle(4).batch(2));
}

/// An item that takes the longer the less its number is a power of two, so that others overtake it.
fn uneven(n: u64) -> u64 {
    let rounds = if n % 7 == 3 { 20_000 } else { 10 };
    std::hint::black_box((0..rounds).fold(n, |sum, k| std::hint::black_box(sum ^ k)));
    n
}

/// In any order: what was delivered before and behind two stops is everything, once.
fn goes_on_in_any_order(graph: impl Fn() -> Graph<Vec<u64>>) {
    use crate::Order;
    let loader = |workers, order| {
        let builder = DataLoader::builder(graph()).seed(5).workers(workers).order(order);
        builder.on_error(OnError::skip(1000)).resumable().build().unwrap()
    };
    let samples = |epoch: crate::Epoch<Vec<u64>>, most| {
        let mut epoch = epoch.blocking();
        let items: Vec<u64> = (&mut epoch).take(most).flat_map(|batch| batch.unwrap()).collect();
        (items, State::from_bytes(&epoch.state().unwrap().to_bytes()).unwrap())
    };
    let (mut whole, _) = samples(loader(0, Order::Strict).epoch(0), usize::MAX);
    whole.sort();
    let orders = [Order::Arrival, Order::Bounded(16), Order::Strict];
    for (case, stop) in (0..12).flat_map(|case| (0..10).map(move |stop| (case, stop))) {
        let order = |at: usize| orders[(case + at * (case / 3)) % 3];
        let workers = |at: usize| [2, 1, 0, 2][(case + at) % 4];
        let (first, state) = samples(loader(2, order(0)).epoch(0), stop);
        let (second, state) = samples(loader(workers(1), order(1)).resume(&state).unwrap(), 2);
        let (third, state) = samples(loader(workers(2), order(2)).resume(&state).unwrap(), 1);
        let (rest, end) = samples(loader(workers(3), order(1)).resume(&state).unwrap(), usize::MAX);
        assert!(end.is_finished());
        let parts = [first.len(), second.len(), third.len(), rest.len()];
        let mut all = [first, second, third, rest].concat();
        all.sort();
        assert_eq!(all, whole, "stopped at {stop}, case {case}, parts {parts:?}");
    }
}

#[test]
fn any_order_goes_on() {
    goes_on_in_any_order(|| Graph::range(0..60).map(uneven).batch(3));
    goes_on_in_any_order(|| Graph::range(0..60).map(uneven).shuffle(7).batch(3).map(|batch| batch));
    goes_on_in_any_order(|| {
        let some = Graph::range(0..90).filter(|n| n % 3 != 0).flat_map(|n| vec![n; (n % 3) as usize]);
        let io = some.map_async(async |n| {
            if n % 5 == 0 {
                tokio::task::yield_now().await;
            }
            if n % 10 == 4 { Err("bad") } else { Ok(n) }
        });
        io.map(uneven).shuffle(7).shuffle(2).batch(3)
    });
}
