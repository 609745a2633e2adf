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
    goes_on(|| Graph::from_iter_with(|| 0..30u64).shuffle(4).batch(2));
}

/// Some items fail.
fn failing(items: std::ops::Range<u64>) -> Graph<u64> {
    Graph::range(items).try_map(|n| if n % 7 == 3 { Err("bad") } else { Ok(n) })
}

#[test]
fn what_counts_goes_on() {
    goes_on(|| failing(0..20).take(9));
    goes_on(|| failing(0..20).skip(9));
    goes_on(|| failing(0..20).skip(3).take(30).enumerate());
    goes_on(|| failing(0..30).shuffle(5).enumerate().filter(|(n, _)| n % 2 == 0).enumerate());
    goes_on(|| failing(0..20).shuffle(4).prefetch(3).batch(3));
}

#[test]
fn joins_go_on() {
    let three = || [failing(0..9), failing(3..4), failing(20..31).shuffle(4)];
    goes_on(move || Graph::concat(three()));
    goes_on(move || Graph::mux(three()));
    goes_on(move || Graph::join(Vec::from(three()), crate::pipes::Mux::new(3).stop_at_first()));
    goes_on(move || Graph::greedy_join(three()));
    goes_on(|| failing(0..20).zip(failing(1..15).shuffle(4)));
    goes_on(|| failing(0..12).zip3(failing(1..15), failing(3..20).batch(2)));
    goes_on(|| Graph::join((failing(0..9), Graph::range(0..12)), crate::pipes::Zip::new().strict()));
    for (cycle, block) in [(1, 1), (2, 3), (3, 1), (2, 20)] {
        let five = || [5, 0, 9, 1, 6].map(|n| failing(10 * n..11 * n));
        goes_on(move || Graph::interleave(five(), cycle, block));
    }
}

#[test]
fn mixes_go_on() {
    use crate::pipes::Stop;
    for stop in [Stop::FirstExhausted, Stop::AllExhausted, Stop::CycleUntilAll, Stop::CycleForever] {
        let inputs =
            || [(failing(0..9).shuffle(3), 2.0), (failing(0..4).shuffle(2), 1.0), (Graph::range(0..0), 1.0)];
        goes_on(move || Graph::mix_until(stop, inputs()).take(30));
    }
}

#[test]
fn rounds_go_on() {
    goes_on(|| failing(0..5).repeat(3));
    goes_on(|| failing(0..8).shuffle(3).repeat(3).batch(2));
    goes_on(|| failing(0..4).shuffle(3).repeat(2).shuffle(2).repeat(2).enumerate());
    goes_on(|| Graph::mux([failing(0..4).shuffle(3), Graph::range(7..9)]).cycle().take(20));
}
