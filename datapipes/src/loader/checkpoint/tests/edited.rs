//! A checkpoint, and a graph that has changed since.

use super::{Checkpoint, Edited};
use crate::{DataLoader, ErrorKind, Graph};

fn loader<T: Send + 'static>(graph: Graph<T>, seed: u64) -> DataLoader<T> {
    DataLoader::builder(graph)
        .seed(seed)
        .workers(0)
        .resumable()
        .build()
        .unwrap()
}

fn taken<T: Send + 'static>(loader: &DataLoader<T>, most: usize) -> (Vec<T>, Checkpoint) {
    let mut epoch = loader.epoch(0).blocking();
    let items = epoch.by_ref().take(most).map(Result::unwrap).collect();
    (
        items,
        Checkpoint::from_bytes(&epoch.checkpoint().unwrap().to_bytes()).unwrap(),
    )
}

/// Resumes a changed graph and returns its items; checks that `resume` refuses it.
fn matching<T: Send + 'static>(state: &Checkpoint, graph: Graph<T>, refused: &str) -> Vec<T> {
    let loader = loader(graph, 7);
    let problem = loader.resume(state).map(|_| ()).unwrap_err();
    assert_eq!(problem.kind(), ErrorKind::Config);
    assert!(
        problem
            .to_string()
            .ends_with(&format!("the checkpoint is of another run: {refused}")),
        "{problem}"
    );
    loader
        .resume_edited(state, Edited::Matching)
        .unwrap()
        .blocking()
        .map(Result::unwrap)
        .collect()
}

/// Makes a graph of 60 of 90 items, shuffled.
fn some() -> Graph<u64> {
    Graph::range(0..90).filter(|n| n % 3 != 1).shuffle(8)
}

#[test]
fn row_119_a_step_more_above_or_below_leaves_all_in_place() {
    let (whole, _) = taken(&loader(some().batch(4), 7), usize::MAX);
    for stop in [1, 6, 14] {
        let (_, state) = taken(&loader(some().batch(4), 7), stop);
        let left: Vec<Vec<u64>> = whole[stop..].to_vec();
        let more: Vec<Vec<u64>> = left
            .iter()
            .map(|b| b.iter().map(|n| n + 1000).collect())
            .collect();

        let between = some().map(|n| n + 1000).batch(4);
        let refused = "`batch` read `shuffle`, and reads `map`; `map` is new";
        assert_eq!(
            matching(&state, between, refused),
            more,
            "stopped at {stop}"
        );

        let below = some()
            .batch(4)
            .map(|batch| batch.into_iter().map(|n| n + 1000).collect::<Vec<_>>());
        assert_eq!(
            matching(&state, below, "`map` is new"),
            more,
            "stopped at {stop}"
        );

        let above = Graph::range(0..90)
            .map(|n| n)
            .filter(|n| n % 3 != 1)
            .shuffle(8)
            .batch(4);
        let refused = "`filter` read `range`, and reads `map`; `map` is new";
        assert_eq!(matching(&state, above, refused), left, "stopped at {stop}");

        // And removed again.
        let loader = loader(some().map(|n| n + 1000).batch(4), 7);
        let (_, state) = taken(&loader, stop);
        let refused = "`map` is gone; `batch` read `map`, and reads `shuffle`";
        assert_eq!(
            matching(&state, some().batch(4), refused),
            left,
            "stopped at {stop}"
        );
    }
}

#[test]
fn row_119_a_step_with_another_name_is_another_step() {
    let graph = |name: &str| some().map(|n| n * 2).named(name).batch(4);
    let (whole, _) = taken(&loader(graph("twice"), 7), usize::MAX);
    for stop in [1, 6, 14] {
        let (_, state) = taken(&loader(graph("twice"), 7), stop);
        let refused =
            "`twice` is gone; `batch` read `twice`, and reads `doubled`; `doubled` is new";
        assert_eq!(matching(&state, graph("doubled"), refused), whole[stop..]);
    }
}

/// A graph of several inputs has to be unchanged, since its place in each would be unknown.
#[test]
fn row_119_a_mix_with_another_input_is_refused_once_it_has_begun() {
    let graph = |inputs: u64| {
        Graph::mix((0..inputs).map(|n| (Graph::range(n * 100..n * 100 + 50), 1.0))).batch(3)
    };
    let after = |taken_before| taken(&loader(graph(2), 7), taken_before).1;
    let message =
        "`mix` is new or has changed, and the checkpoint does not tell its place in its inputs";
    let refused = loader(graph(3), 7)
        .resume_edited(&after(2), Edited::Matching)
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(refused.ends_with(message), "{refused}");
    let whole = taken(&loader(graph(3), 7), usize::MAX).0;
    let fresh = loader(graph(3), 7)
        .resume_edited(&after(0), Edited::Matching)
        .unwrap()
        .blocking();
    assert_eq!(fresh.map(Result::unwrap).collect::<Vec<_>>(), whole);
}

/// Ranks have places of their own for the nodes upstream, so the graph may change downstream only.
#[test]
fn row_119_what_stands_above_the_ranks_stays() {
    let graph = |above: bool, below: bool| {
        let mut graph = Graph::range(0..200);
        if above {
            graph = graph.filter(|n| n % 3 > 0);
        }
        graph = graph.map(|n| n).sharding_filter();
        if below {
            graph = graph.filter(|n| n % 5 > 0);
        }
        graph.batch(2)
    };
    let loader = |above, below| {
        let loader = DataLoader::builder(graph(above, below))
            .workers(0)
            .rank(1, 2)
            .uneven(crate::Uneven::Allow);
        loader.resumable().build().unwrap()
    };
    let (_, state) = taken(&loader(false, false), 3);
    let refused = loader(true, false)
        .resume_edited(&state, Edited::Matching)
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(
        refused.ends_with("the change of `filter` would begin at a different item on each rank"),
        "{refused}"
    );
    let rest = loader(false, true)
        .resume_edited(&state, Edited::Matching)
        .unwrap()
        .blocking()
        .map(Result::unwrap);
    // Some of the last items may come again.
    let behind: Vec<u64> = rest.flatten().filter(|n| *n > 11).collect();
    assert_eq!(
        behind,
        (13..200)
            .step_by(2)
            .filter(|n| n % 5 > 0)
            .collect::<Vec<_>>()
    );

    let mixed = |weight| {
        let inputs = [(Graph::range(0..90), 1.0), (Graph::range(100..190), weight)];
        let loader = DataLoader::builder(Graph::mix(inputs).sharding_filter())
            .workers(0)
            .rank(1, 2);
        loader
            .uneven(crate::Uneven::Allow)
            .resumable()
            .build()
            .unwrap()
    };
    let (_, state) = taken(&mixed(1.0), 3);
    let refused = mixed(2.0)
        .resume_edited(&state, Edited::Weights)
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(
        refused.ends_with("the change of `mix` would begin at a different item on each rank"),
        "{refused}"
    );
}

/// Returns the position to which the checkpoint goes back in the input of a node.
fn from(state: &Checkpoint, name: &str) -> usize {
    let node = state
        .first()
        .nodes
        .iter()
        .find(|node| node.name == name)
        .unwrap();
    node.cursor.as_ref().unwrap().inputs[0].from as usize
}

#[test]
fn row_119_a_new_shuffle_begins_with_nothing_where_its_reader_stands() {
    let graph = || Graph::range(0..90).filter(|n| n % 3 != 1);
    let (whole, _) = taken(&loader(graph().batch(4), 7), usize::MAX);
    for stop in [1, 6, 14] {
        let (first, state) = taken(&loader(graph().batch(4), 7), stop);
        assert_eq!(first, whole[..stop]);
        let refused = "`batch` read `filter`, and reads `shuffle`; `shuffle` is new";
        let flat = matching(&state, graph().shuffle(8).batch(4), refused).concat();
        // The remaining items, and those that the batches go back to, in an order that a buffer of
        // 8 makes.
        let left = whole.concat()[from(&state, "batch")..].to_vec();
        assert!(left.len() >= whole[stop..].concat().len());
        let mut sorted = flat.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, left, "stopped at {stop}");
        assert!(flat != left || left.len() < 5);
        for (place, item) in flat.iter().enumerate() {
            let came = left.iter().position(|other| other == item).unwrap();
            assert!(
                came <= place + 8,
                "item {item} of place {came} came at {place}"
            );
        }
    }
}

/// A batch of another size begins empty after the batches that it had made; nodes upstream keep
/// their place.
#[test]
fn row_119_another_batch_size_loses_nothing() {
    let (whole, _) = taken(&loader(some().batch(4), 7), usize::MAX);
    for stop in [1usize, 5, 14] {
        let (_, state) = taken(&loader(some().batch(4), 7), stop);
        let from = from(&state, "batch");
        assert!(from <= 4 * stop);
        for size in [1, 3, 4 * stop + 5] {
            let refused = format!("`batch` was batch(4), and is batch({size})");
            let rest = matching(&state, some().batch(size), &refused);
            let left: Vec<Vec<u64>> = whole.concat()[from..]
                .chunks(size)
                .map(<[u64]>::to_vec)
                .collect();
            assert_eq!(rest, left, "stopped at {stop}");
        }
    }
}

/// A filter that shares a segment with a new neighbour has no place that could be computed.
#[test]
fn row_119_a_filter_beside_another_is_refused() {
    let (_, state) = taken(&loader(some().batch(4), 7), 5);
    let two = Graph::range(0..90)
        .filter(|n| n % 3 != 1)
        .filter(|n| n % 3 != 2)
        .shuffle(8)
        .batch(4);
    let problem = loader(two, 7)
        .resume_edited(&state, Edited::Matching)
        .map(|_| ())
        .unwrap_err();
    assert_eq!(problem.kind(), ErrorKind::Config);
    assert!(
        problem
            .to_string()
            .starts_with("filter: wrong configuration: its segment is another one"),
        "{problem}"
    );
    // Two filters, which are now apart because of their concurrency.
    let chain = || {
        Graph::range(0..90)
            .flat_map(|n| [n, n + 1])
            .filter(|n| n % 2 == 0)
    };
    let workers = |graph| {
        DataLoader::builder(graph)
            .workers(2)
            .resumable()
            .build()
            .unwrap()
    };
    let mut epoch = workers(chain().batch(2)).epoch(0).blocking();
    assert_eq!(epoch.by_ref().take(20).count(), 20);
    let problem = workers(chain().concurrency(3).batch(2))
        .resume(&epoch.checkpoint().unwrap())
        .map(|_| ())
        .unwrap_err();
    assert!(
        problem
            .to_string()
            .contains("concurrency or processes have changed"),
        "{problem}"
    );
}

/// An epoch that was resumed by an edited graph can be stopped again; resuming it gives the items
/// that would have come.
#[test]
fn row_119_a_changed_graph_is_stopped_again() {
    type Make = fn() -> Graph<Vec<u64>>;
    let changed: [Make; 5] = [
        || some().batch(3),
        || some().map(|n| n + 1000).batch(4),
        || some().shuffle(5).batch(4),
        || {
            Graph::range(0..90)
                .filter(|n| n % 3 != 1)
                .shuffle(12)
                .batch(4)
        },
        || some().batch(4).unbatch().filter(|n| n % 2 == 0).batch(2),
    ];
    let (whole, _) = taken(&loader(some().batch(4), 7), usize::MAX);
    for (number, graph) in changed.into_iter().enumerate() {
        for stop in [1, 5, 12] {
            let (_, state) = taken(&loader(some().batch(4), 7), stop);
            let changed = loader(graph(), 7);
            let epoch = || {
                changed
                    .resume_edited(&state, Edited::Matching)
                    .unwrap()
                    .blocking()
            };
            let rest: Vec<Vec<u64>> = epoch().map(Result::unwrap).collect();
            // No wanted item of the rest is left out.
            let came: Vec<u64> = rest.concat().iter().map(|n| n % 1000).collect();
            let wanted = |n: &&u64| match number {
                4 => n.is_multiple_of(2),
                _ => true,
            };
            let left = whole[stop..].concat();
            let missing: Vec<_> = left
                .iter()
                .filter(wanted)
                .filter(|n| !came.contains(n))
                .collect();
            assert!(
                missing.is_empty(),
                "graph {number}, stopped after {stop}: {missing:?}, {:#?}",
                state.0
            );
            for again in 0..=rest.len() {
                let mut epoch = epoch();
                let first: Vec<Vec<u64>> = epoch.by_ref().take(again).map(Result::unwrap).collect();
                let state =
                    Checkpoint::from_bytes(&epoch.checkpoint().unwrap().to_bytes()).unwrap();
                let more = loader(graph(), 7)
                    .resume(&state)
                    .unwrap()
                    .blocking()
                    .map(Result::unwrap);
                let all: Vec<Vec<u64>> = first.into_iter().chain(more).collect();
                assert_eq!(
                    all, rest,
                    "graph {number}, stopped after {stop}, and after {again} more"
                );
            }
        }
    }
}

#[test]
fn row_119_another_seed_or_source_is_refused_by_name() {
    let (_, state) = taken(&loader(some().batch(4), 7), 5);
    for refusal in [
        loader(some().batch(4), 8).resume(&state),
        loader(some().batch(4), 8).resume_edited(&state, Edited::Matching),
    ] {
        let problem = refusal.map(|_| ()).unwrap_err();
        assert_eq!(problem.kind(), ErrorKind::Config);
        assert!(
            problem
                .to_string()
                .contains("seed 7, and 8 now, where a loader with `seed(7)` goes on"),
            "{problem}"
        );
    }
    let longer = Graph::range(0..93)
        .filter(|n| n % 3 != 1)
        .shuffle(8)
        .batch(4);
    let problem = loader(longer, 7).resume(&state).map(|_| ()).unwrap_err();
    assert_eq!(problem.kind(), ErrorKind::Config);
    let wanted = "the checkpoint is of another run: `range` was range(0..90), and is range(0..93)";
    assert!(problem.to_string().contains(wanted), "{problem}");
    // All differences, at once.
    let other = Graph::range(0..93)
        .filter(|n| n % 3 != 1)
        .shuffle(9)
        .batch(5);
    let problem = loader(other, 9)
        .resume(&state)
        .map(|_| ())
        .unwrap_err()
        .to_string();
    for part in [
        "seed 7, and 9 now",
        "`range` was",
        "`shuffle` was shuffle(8), and is shuffle(9)",
        "`batch` was",
    ] {
        assert!(problem.contains(part), "{problem}");
    }
    let list = |len: u64| Graph::from_vec((0..len).collect::<Vec<_>>()).batch(4);
    let (_, state) = taken(&loader(list(20), 7), 2);
    let problem = loader(list(19), 7)
        .resume(&state)
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(
        problem.contains("20 items") && problem.contains("19 items"),
        "{problem}"
    );
}

#[test]
fn row_119_a_change_above_what_goes_by_places_is_refused() {
    let pairs = |size| {
        let [left, right] = Graph::range(0..40).fork();
        left.zip(right.shuffle(size))
    };
    let (_, state) = taken(&loader(pairs(3), 7), 8);
    let refused = |state: &Checkpoint, graph: Graph<_>, below: &str| {
        let changed = loader(graph, 7);
        let problem = changed.resume_edited(state, Edited::Matching).unwrap_err();
        let said = format!(
            "the change of `shuffle` would put other items into the places that `{below}` goes by"
        );
        assert!(problem.to_string().ends_with(&said), "{problem}");
    };
    refused(&state, pairs(5), "zip");
    let [left, right] = Graph::range(0..40).fork();
    let same = left.zip(right.shuffle(3)).map(|(left, _)| left);
    let left = matching(&state, same, "`map` is new");
    assert_eq!(left, (8..40).collect::<Vec<_>>());

    let dealt = |size| {
        let dealt = Graph::range(0..40).shuffle(size);
        let [even, odd] = dealt.demux(|n| (n % 2) as usize);
        Graph::mux([even, odd]).map(|n| (n, n))
    };
    let (_, state) = taken(&loader(dealt(4), 7), 8);
    refused(&state, dealt(7), "demux");
}

/// The number of items that a removed step took is unknown.
#[test]
fn row_119_a_step_that_is_gone_is_refused() {
    let (_, state) = taken(&loader(Graph::range(0..60).shuffle(8).batch(4), 7), 5);
    let problem = loader(Graph::range(0..60).batch(4), 7)
        .resume_edited(&state, Edited::Matching)
        .map(|_| ())
        .unwrap_err();
    assert_eq!(problem.kind(), ErrorKind::Config);
    assert!(
        problem
            .to_string()
            .ends_with("`shuffle` is gone, and what it held with it"),
        "{problem}"
    );
}
