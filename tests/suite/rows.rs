//! Pipes that fill the rows of batches: nothing is copied if the plan promises so, and nothing is
//! lost if rows cannot be filled in place.

use std::collections::HashSet;

use datapipes::{DataLoader, Graph, OnError, Order, Tensor};

use crate::graphs::{Pairs, Places};

/// The first numbers of all rows, and how many batches lie where their rows were filled: all of
/// them, since a batch may get the memory of a row that is gone.
fn run(
    graph: Graph<Tensor>,
    filled: &Places,
    workers: usize,
    order: Order,
) -> (Vec<Vec<u64>>, usize) {
    let loader = DataLoader::builder(graph)
        .workers(workers)
        .order(order)
        .on_error(OnError::skip(9))
        .build();
    let (mut values, mut in_place) = (Vec::new(), 0);
    for batch in loader.unwrap().epoch(0).blocking() {
        let batch = batch.unwrap();
        let (first, filled) = (batch.as_bytes().as_ptr() as usize, filled.lock().unwrap());
        let mut rows = (first..first + batch.as_bytes().len()).step_by(size_of::<[u64; 2]>());
        in_place += usize::from(rows.all(|row| filled.contains(&row)));
        values.push(
            batch
                .as_slice::<u64>()
                .unwrap()
                .iter()
                .step_by(2)
                .copied()
                .collect(),
        );
    }
    (values, in_place)
}

fn expected(all: impl Iterator<Item = u64>, size: usize) -> Vec<Vec<u64>> {
    all.collect::<Vec<_>>()
        .chunks(size)
        .map(<[u64]>::to_vec)
        .collect()
}

#[test]
fn a_batch_is_where_its_rows_were_filled() {
    for workers in [0, 1, 3] {
        let pairs = Pairs::default();
        let graph = Graph::range(0..103)
            .map(|n| n * 2)
            .pipe(pairs.clone())
            .batch(10)
            .collate();
        let (values, in_place) = run(graph, &pairs.filled, workers, Order::Strict);
        assert_eq!(
            values,
            expected((0..103).map(|n| n * 2), 10),
            "{workers} workers"
        );
        assert_eq!(in_place, 11, "{workers} workers");
    }
}

#[test]
fn labels_beside_it_and_a_queue_between_change_nothing() {
    let pairs = Pairs::default();
    let graph = Graph::range(0..50)
        .pipe(pairs.clone())
        .map(|row| (row, 1u8))
        .prefetch(4)
        .batch(8)
        .collate();
    let (values, in_place) = run(graph.map(|(rows, _)| rows), &pairs.filled, 2, Order::Strict);
    assert_eq!((values, in_place), (expected(0..50, 8), 7));
}

#[test]
fn what_is_skipped_costs_copies_and_no_batch_is_short() {
    for workers in [0, 2] {
        let pairs = Pairs {
            fails: &[3, 40],
            ..Pairs::default()
        };
        let graph = Graph::range(0..60).pipe(pairs.clone()).batch(7).collate();
        let (values, in_place) = run(graph, &pairs.filled, workers, Order::Strict);
        assert_eq!(
            values,
            expected((0..60).filter(|n| !pairs.fails.contains(n)), 7),
            "{workers} workers"
        );
        // A row that was given back is there for the next item; workers may be past it by then.
        assert!(
            in_place == 9 || workers > 0 && in_place < 9,
            "{in_place} with {workers} workers"
        );
    }
}

/// An error above, in the same piece of work, asks for no row: the batches after it find their way
/// again.
#[test]
fn what_fails_above_costs_some_copies_only() {
    for workers in [0, 2] {
        let pairs = Pairs::default();
        let fails = |n: u64| if n == 10 { Err("unlucky") } else { Ok(n) };
        let graph = Graph::range(0..4000)
            .try_map(fails)
            .pipe(pairs.clone())
            .concurrency(4)
            .batch(20)
            .collate();
        let (values, in_place) = run(graph, &pairs.filled, workers, Order::Strict);
        assert_eq!(
            values,
            expected((0..4000).filter(|&n| n != 10), 20),
            "{workers} workers"
        );
        assert!(in_place > 150, "{in_place} of 200 with {workers} workers");
    }
}

#[test]
fn where_rows_cannot_be_foretold_they_are_copied() {
    let pairs = Pairs::default();
    let filtered = Graph::range(0..60)
        .pipe(pairs.clone())
        .filter(|row| row.as_slice::<u64>().unwrap()[0] % 3 > 0);
    let (values, _) = run(filtered.batch(7).collate(), &pairs.filled, 2, Order::Strict);
    assert_eq!(values, expected((0..60).filter(|n| n % 3 > 0), 7));
    let shuffled = Graph::range(0..60)
        .pipe(pairs.clone())
        .shuffle(20)
        .batch(7)
        .collate();
    let (values, in_place) = run(shuffled, &pairs.filled, 2, Order::Strict);
    let mut all = values.concat();
    all.sort_unstable();
    assert_eq!((all, in_place), ((0..60).collect(), 0));
    let fanned = Graph::range(0..20)
        .flat_map(|n| [n, n])
        .pipe(pairs.clone())
        .batch(7)
        .collate();
    let (values, _) = run(fanned, &pairs.filled, 2, Order::Strict);
    assert_eq!(values, expected((0..20).flat_map(|n| [n, n]), 7));
    let arrival = Graph::range(0..60).pipe(pairs.clone()).batch(7).collate();
    let (values, _) = run(arrival, &pairs.filled, 2, Order::Arrival);
    let mut all = values.concat();
    all.sort_unstable();
    assert_eq!(all, Vec::from_iter(0..60));
}

#[test]
fn the_memory_of_a_batch_is_used_again() {
    let pairs = Pairs::default();
    // On one thread the number of batches that are alive at once is known; with workers it depends
    // on who comes when.
    for (workers, most) in [(0, 40), (2, 250)] {
        let graph = Graph::range(0..1000).pipe(pairs.clone());
        let loader = DataLoader::builder(graph.batch(10).collate())
            .workers(workers)
            .prefetch(1)
            .concurrency(4)
            .build()
            .unwrap();
        let mut places = HashSet::new();
        for epoch in 0..3 {
            for batch in loader.epoch(epoch).blocking() {
                places.insert(batch.unwrap().as_bytes().as_ptr() as usize);
            }
        }
        let places = places.len();
        assert!(
            places < most,
            "{workers} workers: {places} buffers for 300 batches"
        );
        // Batches that the consumer holds are not written to again.
        let kept: Vec<Tensor> = loader.epoch(3).blocking().map(Result::unwrap).collect();
        let values = kept
            .iter()
            .flat_map(|batch| batch.as_slice::<u64>().unwrap().iter().step_by(2).copied());
        assert_eq!(Vec::from_iter(values), Vec::from_iter(0..1000));
    }
}

#[test]
fn the_plan_says_so() {
    let batched = Graph::range(0..9).pipe(Pairs::default()).batch(3).collate();
    let plan = DataLoader::builder(batched)
        .workers(2)
        .build()
        .unwrap()
        .explain()
        .to_string();
    assert!(plan.contains("pairs  [segment A"), "{plan}");
    assert!(plan.contains("(straight into batches of 3)"), "{plan}");
    // Nobody joins them.
    let kept = Graph::range(0..9).pipe(Pairs::default()).batch(3);
    let plan = DataLoader::builder(kept)
        .workers(2)
        .build()
        .unwrap()
        .explain()
        .to_string();
    assert!(!plan.contains("straight"), "{plan}");
    let shuffled = Graph::range(0..9)
        .pipe(Pairs::default())
        .shuffle(3)
        .batch(3)
        .collate();
    let plan = DataLoader::builder(shuffled)
        .workers(2)
        .build()
        .unwrap()
        .explain()
        .to_string();
    assert!(!plan.contains("straight"), "{plan}");
}
