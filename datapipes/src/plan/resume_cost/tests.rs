use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::checkpoint::{ByPosition, NodeState, Point, Recorder, Saving, SnapshotHistory, Trim};
use crate::{Checkpoint, Context, DataLoader, Graph, Hints, Items, Pipe, Wanted};

/// Counts the items that pass, which are those that are asked for.
struct Tally(Arc<AtomicU64>);

impl<T: Send + 'static> Pipe<T> for Tally {
    type Out = T;
    fn apply(&self, input: Items<T>, cx: &Context) -> Items<T> {
        let count = self.0.clone();
        input.each(cx, move |item| {
            count.fetch_add(1, Ordering::Relaxed);
            Some(Ok(item))
        })
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .arity(Arity::One)
            .is_resumable(true)
            .by_position(true)
    }
}

/// Number of items asked for upstream of a shuffle, downstream of it, and upstream of a batch.
#[derive(Clone, Default)]
struct Tallies([Arc<AtomicU64>; 3]);

impl Tallies {
    fn take(&self) -> [u64; 3] {
        [0, 1, 2].map(|at| self.0[at].swap(0, Ordering::Relaxed))
    }
}

/// Archives and their members, shuffled, filtered and batched.
fn loader(tallies: &Tallies, size: usize, archives: u64, dear_from: u64) -> DataLoader<Vec<u64>> {
    let [a, b, c] = tallies.0.clone().map(Tally);
    let members = Graph::range(0..archives)
        .flat_map(|n| (0..16).map(move |m| 16 * n + m))
        .pipe(a);
    // Cheap items come first, so that saved positions are far apart, and expensive ones after them.
    let spin = move |n: u64| {
        let rounds = if n > dear_from { 300 } else { 1 };
        (0..rounds).fold(n, |n, _| std::hint::black_box(n))
    };
    let graph = members
        .shuffle(1000)
        .pipe(b)
        .filter(|n| n % 2 == 0)
        .map(spin)
        .pipe(c)
        .batch(size);
    DataLoader::builder(graph)
        .workers(0)
        .resumable()
        .build()
        .unwrap()
}

/// Returns the number printed at a node.
fn said(plan: &str, node: &str) -> u64 {
    let line = plan
        .lines()
        .find(|line| line.contains(&format!("─ {node}")))
        .unwrap();
    let (rest, _) = line
        .split_once(" items are made again")
        .unwrap_or_else(|| panic!("{line}"));
    rest.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn no_more_is_taken_again_than_the_plan_says() {
    let archives = 1500;
    for (size, dear_from) in [(8, u64::MAX), (8, 12_000), (1, u64::MAX)] {
        let tallies = Tallies::default();
        let loader = loader(&tallies, size, archives, dear_from);
        let plan = loader.explain();
        let (of_shuffle, of_batch) = (said(&plan, "shuffle"), said(&plan, "batch"));
        assert_eq!(
            (of_shuffle, of_batch),
            (BETWEEN + 1000, (BETWEEN + 1) * size as u64)
        );
        let run = |epoch: crate::Epoch<Vec<u64>>, most: usize| -> (u64, Checkpoint) {
            let mut epoch = epoch.blocking();
            let items = epoch
                .by_ref()
                .take(most)
                .map(|batch| batch.unwrap().len() as u64)
                .sum();
            (items, epoch.checkpoint().unwrap())
        };
        let (items, _) = run(loader.epoch(0), usize::MAX);
        let whole = tallies.take();
        assert_eq!(
            (whole, items),
            ([16 * archives, 16 * archives, 8 * archives], 8 * archives)
        );
        for stop in [1, 100, 1400] {
            let (before, state) = run(loader.epoch(0), stop);
            let first = tallies.take();
            let (behind, _) = run(loader.resume(&state).unwrap(), usize::MAX);
            let rest = tallies.take();
            assert_eq!(before + behind, items);
            let again = [0, 1, 2].map(|at| first[at] + rest[at] - whole[at]);
            assert!(
                again[2] <= of_batch,
                "{again:?} of {of_batch}, stopped after {stop}"
            );
            // A step takes again the items that its reader takes again, plus the number printed at
            // the step.
            assert!(
                again[0] <= again[1] + of_shuffle,
                "{again:?} and {of_shuffle}, stopped after {stop}"
            );
        }
    }
}

#[test]
fn no_more_than_the_whole_epoch_is_said_to_be_made_again() {
    let graph = Graph::range(0..20).shuffle(1000).batch(8);
    let loader = DataLoader::builder(graph).workers(0).resumable();
    let plan = loader.build().unwrap().explain();
    assert_eq!(
        (said(&plan, "shuffle"), said(&plan, "batch")),
        (20, 20),
        "{plan}"
    );
}

/// The distance between two saved positions is at most the printed one.
#[test]
fn places_are_kept_no_further_apart() {
    let input = Arc::new(ByPosition("input".into()));
    let inputs = vec![(Wanted::new(Vec::new(), 0), input as _)];
    let recorder = Recorder::new("node".into(), 0, 1, Trim::default(), inputs, None, false);
    let cx = Context::default().with_node_state(NodeState {
        recorder: Some(recorder.clone()),
        ..NodeState::default()
    });
    let (mut at, mut furthest) = (0, 0);
    let given = recorder.produced(0).clone();
    while at < 1_000_000 {
        cx.snapshot(|| at);
        let saving = Saving::all(&SnapshotHistory(recorder.clone(), 0), Point::at(at));
        furthest = furthest.max(at - saving.cursors["node"].outputs[0]);
        // A thousand at once, so that the items are as quick as possible.
        at += 1024;
        given.store(at, Ordering::Relaxed);
    }
    assert!(furthest <= BETWEEN, "{furthest} of {BETWEEN}");
    // Not every position is saved.
    assert!(furthest >= 1024);
}

#[test]
fn the_plan_says_in_words_what_a_resume_costs_at_each_step() {
    let inputs = [Graph::range(0..9), Graph::from_iter_with(|| 0..9u64)];
    let graph = Graph::mux(inputs)
        .filter(|_| true)
        .scan_resumable(0, |sum: &mut u64, n: u64| {
            *sum += n;
            Some(*sum)
        });
    let build = |order| {
        DataLoader::builder(graph.clone())
            .workers(2)
            .order(order)
            .resumable()
            .build()
    };
    let plan = build(crate::Order::Strict).unwrap().explain();
    for (node, words) in [
        ("range", "(resume: nothing is read again)"),
        ("from_iter", "(resume: read from its beginning)"),
        (
            "mux",
            "(resume: the inputs of at most 66560 outputs are made again)",
        ),
        (
            "filter",
            "(resume: each input (a file, an archive) with outputs left is taken again)",
        ),
        (
            "scan",
            "(resume: the inputs of at most 66560 outputs are made again)",
        ),
    ] {
        let line = plan
            .lines()
            .find(|line| line.contains(&format!("─ {node}")))
            .unwrap_or(&plan);
        assert!(line.contains(words), "{line}");
    }
    let once = plan.matches("2 ms").count();
    assert_eq!(once, 1, "{plan}");
    let shuffled = Graph::range(0..9).map(|n| n).shuffle(4).batch(3);
    let loader = DataLoader::builder(shuffled)
        .workers(2)
        .order(crate::Order::Arrival)
        .resumable();
    let plan = loader.build().unwrap().explain();
    assert!(plan.contains("nothing is delivered twice"), "{plan}");
    assert!(
        plan.contains("(resume: at most 4 items are made again)"),
        "{plan}"
    );
}
