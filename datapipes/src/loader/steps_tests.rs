//! What a budget of steps does.

use super::*;

fn run<T: std::fmt::Debug + Send + 'static>(epoch: Epoch<T>, most: usize) -> (Vec<String>, State) {
    let mut epoch = epoch.blocking();
    let items = (&mut epoch).take(most).map(|item| format!("{item:?}")).collect();
    (items, epoch.state().unwrap())
}

#[test]
fn a_budget_ends_an_epoch_and_a_larger_one_goes_on() {
    let graph = || Graph::from_vec((0..30u64).collect()).shuffle(9).map(|n| n * 2).batch(4);
    let loader = |steps: Option<u64>, workers| {
        let builder = DataLoader::builder(graph()).seed(2).workers(workers).resumable();
        steps
            .map_or(builder, |steps| {
                DataLoader::builder(graph()).seed(2).workers(workers).resumable().max_steps(steps)
            })
            .build()
            .unwrap()
    };
    let (whole, end) = run(loader(None, 0).epoch(4), usize::MAX);
    assert!(end.is_finished() && end.0[0].is_at_end() && whole.len() == 8);
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
    let loader = DataLoader::builder(graph()).max_steps(7).workers(0).build().unwrap();
    assert_eq!(loader.len_hint(), Some(7));
    let epoch = |number| loader.epoch(number).blocking().collect::<Result<Vec<_>>>().unwrap();
    assert_eq!(epoch(5).len(), 7);
    assert_eq!(epoch(5), epoch(5));
    assert_ne!(epoch(5), epoch(6));
    assert_eq!(DataLoader::builder(graph().take(4)).max_steps(7).build().unwrap().len_hint(), Some(4));
    assert_eq!(DataLoader::builder(Graph::range(0..3).repeat(4)).build().unwrap().len_hint(), Some(12));
}
