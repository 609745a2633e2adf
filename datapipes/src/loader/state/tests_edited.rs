//! A state, and a graph that is another by now.

use super::State;
use crate::{DataLoader, ErrorKind, Graph};

fn loader<T: Send + 'static>(graph: Graph<T>, seed: u64) -> DataLoader<T> {
    DataLoader::builder(graph).seed(seed).workers(0).resumable().build().unwrap()
}

fn taken<T: Send + 'static>(loader: &DataLoader<T>, most: usize) -> (Vec<T>, State) {
    let mut epoch = loader.epoch(0).blocking();
    let items = epoch.by_ref().take(most).map(Result::unwrap).collect();
    (items, State::from_bytes(&epoch.state().unwrap().to_bytes()).unwrap())
}

/// What comes of a changed graph; which `resume` refuses, and says so.
fn matching<T: Send + 'static>(state: &State, graph: Graph<T>, refused: &str) -> Vec<T> {
    let loader = loader(graph, 7);
    let problem = loader.resume(state).map(|_| ()).unwrap_err();
    assert_eq!(problem.kind(), ErrorKind::Config);
    assert!(problem.to_string().ends_with(&format!("the state is of another run: {refused}")), "{problem}");
    loader.resume_matching(state).unwrap().blocking().map(Result::unwrap).collect()
}

/// 60 of 90 items, in disorder.
fn some() -> Graph<u64> {
    Graph::range(0..90).filter(|n| n % 3 != 1).shuffle(8)
}

#[test]
fn row_119_a_step_more_above_or_below_leaves_all_in_place() {
    let (whole, _) = taken(&loader(some().batch(4), 7), usize::MAX);
    for stop in [1, 6, 14] {
        let (_, state) = taken(&loader(some().batch(4), 7), stop);
        let left: Vec<Vec<u64>> = whole[stop..].to_vec();
        let more: Vec<Vec<u64>> = left.iter().map(|b| b.iter().map(|n| n + 1000).collect()).collect();

        let between = some().map(|n| n + 1000).batch(4);
        let refused = "`batch` read `shuffle`, and reads `map`; `map` is new";
        assert_eq!(matching(&state, between, refused), more, "stopped at {stop}");

        let below = some().batch(4).map(|batch| batch.into_iter().map(|n| n + 1000).collect::<Vec<_>>());
        assert_eq!(matching(&state, below, "`map` is new"), more, "stopped at {stop}");

        let above = Graph::range(0..90).map(|n| n).filter(|n| n % 3 != 1).shuffle(8).batch(4);
        let refused = "`filter` read `range`, and reads `map`; `map` is new";
        assert_eq!(matching(&state, above, refused), left, "stopped at {stop}");

        // And away again.
        let loader = loader(some().map(|n| n + 1000).batch(4), 7);
        let (_, state) = taken(&loader, stop);
        let refused = "`map` is gone; `batch` read `map`, and reads `shuffle`";
        assert_eq!(matching(&state, some().batch(4), refused), left, "stopped at {stop}");
    }
}

#[test]
fn row_119_a_step_with_another_name_is_another_step() {
    let graph = |name: &str| some().map(|n| n * 2).named(name).batch(4);
    let (whole, _) = taken(&loader(graph("twice"), 7), usize::MAX);
    for stop in [1, 6, 14] {
        let (_, state) = taken(&loader(graph("twice"), 7), stop);
        let refused = "`twice` is gone; `batch` read `twice`, and reads `doubled`; `doubled` is new";
        assert_eq!(matching(&state, graph("doubled"), refused), whole[stop..]);
    }
}

#[test]
fn row_119_a_new_shuffle_begins_with_nothing_where_its_reader_stands() {
    let graph = || Graph::range(0..90).filter(|n| n % 3 != 1);
    let (whole, _) = taken(&loader(graph().batch(4), 7), usize::MAX);
    for stop in [1, 6, 14] {
        let (first, state) = taken(&loader(graph().batch(4), 7), stop);
        let refused = "`batch` read `filter`, and reads `shuffle`; `shuffle` is new";
        let rest = matching(&state, graph().shuffle(8).batch(4), refused);
        assert_eq!(first, whole[..stop]);
        // What was left, in an order that a buffer of 8 makes: the first of these comes out of the first 9.
        let flat = rest.concat();
        let left = whole[stop..].concat();
        assert_ne!(flat, left);
        let mut sorted = flat.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, left);
        for (place, item) in flat.iter().enumerate() {
            let came = left.iter().position(|other| other == item).unwrap();
            assert!(came <= place + 8, "item {item} of place {came} came at {place}");
        }
    }
}

/// A batch of another size stands where its reader does, and begins with nothing; what is above keeps its place.
#[test]
fn row_119_another_batch_size_goes_on_behind_what_was_taken() {
    for stop in [1usize, 5, 14] {
        let (first, state) = taken(&loader(some().batch(4), 7), stop);
        let rest = matching(&state, some().batch(3), "`batch` was batch(4), and is batch(3)");
        println!("{stop}: {first:?}, {rest:?}");
        let (first, state) = taken(&loader(Graph::range(0..60).batch(4), 7), stop);
        let rest = matching(&state, Graph::range(0..60).batch(3), "`batch` was batch(4), and is batch(3)");
        println!("{stop}: {first:?}, {rest:?}");
        let (first, state) = taken(&loader(Graph::range(0..60).shuffle(8).batch(4), 7), stop);
        let rest = matching(
            &state,
            Graph::range(0..60).batch(4),
            "`shuffle` is gone; `batch` read `shuffle`, and reads `range`",
        );
        println!("{stop}: {first:?}, {rest:?}");
    }
}

#[test]
fn row_119_another_seed_or_source_is_refused_by_name() {
    let (_, state) = taken(&loader(some().batch(4), 7), 5);
    for refusal in
        [loader(some().batch(4), 8).resume(&state), loader(some().batch(4), 8).resume_matching(&state)]
    {
        let problem = refusal.map(|_| ()).unwrap_err();
        assert_eq!(problem.kind(), ErrorKind::Config);
        assert!(problem.to_string().contains("seed 7, and 8 now"), "{problem}");
    }
    let longer = Graph::range(0..93).filter(|n| n % 3 != 1).shuffle(8).batch(4);
    let problem = loader(longer, 7).resume(&state).map(|_| ()).unwrap_err();
    assert_eq!(problem.kind(), ErrorKind::Config);
    let wanted = "the state is of another run: `range` was range(0..90), and is range(0..93)";
    assert!(problem.to_string().contains(wanted), "{problem}");
    // All that is other, at once.
    let other = Graph::range(0..93).filter(|n| n % 3 != 1).shuffle(9).batch(5);
    let problem = loader(other, 9).resume(&state).map(|_| ()).unwrap_err().to_string();
    for part in
        ["seed 7, and 9 now", "`range` was", "`shuffle` was shuffle(8), and is shuffle(9)", "`batch` was"]
    {
        assert!(problem.contains(part), "{problem}");
    }
    let list = |len: u64| Graph::from_vec((0..len).collect::<Vec<_>>()).batch(4);
    let (_, state) = taken(&loader(list(20), 7), 2);
    let problem = loader(list(19), 7).resume(&state).map(|_| ()).unwrap_err().to_string();
    assert!(problem.contains("20 items") && problem.contains("19 items"), "{problem}");
}
