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

#[test]
fn a_budget_ends_an_epoch_and_a_larger_one_goes_on() {
    let graph = || Graph::from_vec((0..30u64).collect()).shuffle(9).map(|n| n * 2).batch(4);
    let loader = |steps: Option<u64>, workers| {
        let builder = DataLoader::builder(graph()).seed(2).workers(workers).resumable();
        steps
            .map_or(builder, |steps| {
                DataLoader::builder(graph()).seed(2).workers(workers).resumable().steps(steps)
            })
            .build()
            .unwrap()
    };
    let (whole, end) = run(loader(None, 0).epoch(4), usize::MAX);
    assert!(end.is_finished() && end.is_at_end() && whole.len() == 8);
    for steps in 0..=whole.len() + 1 {
        let first = loader(Some(steps as u64), 2);
        assert_eq!(first.len_hint(), Some(steps.min(8) as u64));
        let (items, state) = run(first.epoch(4), usize::MAX);
        assert_eq!(items, whole[..steps.min(8)]);
        assert!(state.is_finished());
        let state = State::from_bytes(&state.to_bytes()).unwrap();
        // For the same budget and for less it is over; with more it goes on, to the end without one.
        for (budget, until) in
            [(Some(steps as u64), steps), (Some(0), steps), (Some(steps as u64 + 2), steps + 2), (None, 8)]
        {
            let (rest, state) = run(loader(budget, 0).resume(&state).unwrap(), usize::MAX);
            assert_eq!(rest, whole[steps.min(8)..until.max(steps).min(8)], "{steps}, then {budget:?}");
            assert!(state.is_finished());
        }
    }
    // Before the budget it is not over.
    let (_, state) = run(loader(Some(5), 0).epoch(4), 4);
    assert!(!state.is_finished());
}

#[test]
fn epochs_of_a_stream_without_end_depend_on_their_number_alone() {
    let graph = || Graph::range(0..10).shuffle(10).cycle().batch(3);
    assert_eq!(DataLoader::builder(graph()).build().unwrap().len_hint(), None);
    let loader = DataLoader::builder(graph()).steps(7).workers(0).build().unwrap();
    assert_eq!(loader.len_hint(), Some(7));
    let epoch = |number| loader.epoch(number).blocking().collect::<Result<Vec<_>>>().unwrap();
    assert_eq!(epoch(5).len(), 7);
    assert_eq!(epoch(5), epoch(5));
    assert_ne!(epoch(5), epoch(6));
    assert_eq!(DataLoader::builder(graph().take(4)).steps(7).build().unwrap().len_hint(), Some(4));
    assert_eq!(DataLoader::builder(Graph::range(0..3).repeat(4)).build().unwrap().len_hint(), Some(12));
}
