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
