//! Tests of a budget of steps.

use super::*;
use crate::Uneven;
use crate::testing::cases;

fn run<T: std::fmt::Debug + Send + 'static>(
    epoch: Epoch<T>,
    most: usize,
) -> (Vec<String>, Checkpoint) {
    let mut epoch = epoch.blocking();
    let items = (&mut epoch)
        .take(most)
        .map(|item| format!("{item:?}"))
        .collect();
    (items, epoch.checkpoint().unwrap())
}

#[test]
fn a_budget_ends_an_epoch_and_a_larger_one_goes_on() {
    let graph = || {
        Graph::from_vec((0..30u64).collect())
            .shuffle(9)
            .map(|n| n * 2)
            .batch(4)
    };
    let loader = |steps: Option<u64>, workers| {
        let builder = DataLoader::builder(graph())
            .seed(2)
            .workers(workers)
            .resumable();
        steps
            .map_or(builder, |steps| {
                DataLoader::builder(graph())
                    .seed(2)
                    .workers(workers)
                    .resumable()
                    .max_steps(steps)
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
        let state = Checkpoint::from_bytes(&state.to_bytes()).unwrap();
        // The epoch is over for the same budget and for less; with more it goes on, to the end
        // without a budget.
        for (budget, until) in [
            (Some(steps as u64), steps),
            (Some(0), steps),
            (Some(steps as u64 + 2), steps + 2),
            (None, 8),
        ] {
            let (rest, state) = run(loader(budget, 0).resume(&state).unwrap(), usize::MAX);
            assert_eq!(
                rest,
                whole[steps.min(8)..until.max(steps).min(8)],
                "{steps}, then {budget:?}"
            );
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
    assert_eq!(
        DataLoader::builder(graph()).build().unwrap().len_hint(),
        None
    );
    let loader = DataLoader::builder(graph())
        .max_steps(7)
        .workers(0)
        .build()
        .unwrap();
    assert_eq!(loader.len_hint(), Some(7));
    let epoch = |number| {
        loader
            .epoch(number)
            .blocking()
            .collect::<Result<Vec<_>>>()
            .unwrap()
    };
    assert_eq!(epoch(5).len(), 7);
    assert_eq!(epoch(5), epoch(5));
    assert_ne!(epoch(5), epoch(6));
    assert_eq!(
        DataLoader::builder(graph().take(4))
            .max_steps(7)
            .build()
            .unwrap()
            .len_hint(),
        Some(4)
    );
    assert_eq!(
        DataLoader::builder(Graph::range(0..3).repeat(4))
            .build()
            .unwrap()
            .len_hint(),
        Some(12)
    );
}

/// A cycle limited by `max_steps` has that length, whatever nodes are between them.
#[test]
fn a_cycle_with_max_steps_has_that_length_whatever_is_in_between() {
    use crate::pipes::{Batch, Demux, Schedule, Stop};
    let unknown = || Graph::from_iter_with(|| 0..10u64);
    let filtered = || Graph::range(0..10).filter(|n| n % 2 == 0).shuffle(4);
    let endless = || unknown().cycle();
    let graphs: Vec<(&str, Graph<u64>)> = vec![
        ("a length that is not known", unknown().cycle()),
        (
            "steps above",
            filtered().flat_map(|n| 0..n).batch(3).unbatch().cycle(),
        ),
        ("filter", endless().filter(|n| n % 3 == 0)),
        ("flat_map", endless().flat_map(|n| 0..n)),
        (
            "map",
            endless()
                .map(|n| n)
                .try_map(crate::Ok)
                .map_with_rng(|n, _| n),
        ),
        (
            "map_async",
            endless().map_async(|n| async move { crate::Ok(n) }),
        ),
        ("batch", endless().batch(3).map(|batch| batch[0])),
        (
            "a large batch",
            endless().batch(100_000).map(|batch| batch.len() as u64),
        ),
        (
            "drop_last",
            endless().batch(Batch::new(3).drop_last()).unbatch(),
        ),
        (
            "bucket_batch",
            endless()
                .bucket_batch(|n| *n as usize, [5], [2, 3])
                .unbatch(),
        ),
        (
            "padded_batch",
            endless()
                .map(|n| vec![n; 2])
                .padded_batch(2, 0u64)
                .map(|(batch, _)| batch.shape()[0] as u64),
        ),
        (
            "collate",
            endless()
                .batch(2)
                .collate()
                .map(|batch| batch.shape()[0] as u64),
        ),
        ("shuffle", endless().shuffle(7).prefetch(3)),
        (
            "enumerate",
            endless().enumerate().map(|(n, _)| n).inspect(|_| ()),
        ),
        ("skip", endless().skip(5)),
        ("sample_with", endless().sample_with(0.5)),
        ("retry", endless().retry(1, crate::pipes::Map::new(|n| n))),
        ("repeat", endless().repeat(3)),
        ("sharding_filter", endless().sharding_filter()),
        ("mix", Graph::mix([(endless(), 1.0), (unknown(), 2.0)])),
        (
            "mix of cycles",
            Graph::mix_until(Stop::FirstExhausted, [(endless(), 1.0), (endless(), 2.0)]),
        ),
        (
            "a mix that cycles",
            Graph::mix_until(Stop::CycleForever, [(unknown(), 1.0), (filtered(), 2.0)]),
        ),
        (
            "schedule",
            Graph::mix_scheduled(
                Stop::CycleForever,
                [unknown(), unknown()],
                Schedule::new(vec![1.0, 0.0]).then(9, vec![1.0, 1.0]),
            ),
        ),
        ("concat", Graph::concat([Graph::range(0..3), endless()])),
        ("mux", Graph::mux([endless(), endless()])),
        ("zip", endless().zip(endless()).map(|(a, _)| a)),
        (
            "join_by_key",
            endless()
                .join_by_key(Graph::range(2..7), |n| *n, |n| *n)
                .map(|(n, _)| n),
        ),
        (
            "left_join_by_key",
            endless()
                .left_join_by_key(Graph::range(2..7), |n| *n, |n| *n)
                .map(|(n, _)| n),
        ),
        (
            "merge_join_by_key",
            Graph::range(3..4)
                .cycle()
                .merge_join_by_key(Graph::range(2..7), |n| *n, |n| *n)
                .map(|(n, _)| n),
        ),
        ("fork", {
            let [a, b] = endless().fork();
            Graph::mux([a, b])
        }),
        (
            "demux",
            Graph::concat(endless().split(Demux::new(2, |n: &u64| (n % 2) as usize))),
        ),
    ];
    for (what, graph) in graphs {
        let loader = DataLoader::builder(graph.clone())
            .workers(0)
            .max_steps(5)
            .build()
            .unwrap();
        assert_eq!(
            (loader.len_hint(), loader.steps()),
            (Some(5), Some(5..=5)),
            "{what}"
        );
        assert_eq!(loader.epoch(0).steps_left(), Some(5), "{what}");
        if what != "a large batch" {
            assert_eq!(
                loader.epoch(0).blocking().map(Result::unwrap).count(),
                5,
                "{what}"
            );
        }
        // A step that ends the stream makes the length known again; an endless stream has no
        // length.
        assert_eq!(
            DataLoader::builder(graph.clone().take(7))
                .build()
                .unwrap()
                .len_hint(),
            Some(7),
            "{what}"
        );
        assert_eq!(
            DataLoader::builder(graph).build().unwrap().len_hint(),
            None,
            "{what}"
        );
    }
    // A step that may end the stream by itself has no known length.
    let scanned = endless().scan(0, |n, _: u64| {
        *n += 1;
        (*n < 3).then_some(*n)
    });
    assert_eq!(
        DataLoader::builder(scanned)
            .max_steps(5)
            .build()
            .unwrap()
            .len_hint(),
        None
    );
}

#[test]
fn an_epoch_knows_the_steps_that_are_left() {
    let graph = || Graph::range(0..10).batch(4);
    let loader = DataLoader::builder(graph()).resumable().build().unwrap();
    let mut epoch = loader.epoch(0).blocking();
    assert_eq!(epoch.size_hint(), (0, Some(4)));
    for left in [3, 2, 1] {
        assert_eq!(epoch.steps_left(), Some(left));
        epoch.next();
    }
    let state = epoch.checkpoint().unwrap();
    assert_eq!(
        (epoch.steps_left(), epoch.next().is_none()),
        (Some(0), true)
    );
    assert_eq!(
        (epoch.size_hint(), epoch.steps_left()),
        ((0, Some(0)), Some(0))
    );
    assert_eq!(loader.resume(&state).unwrap().steps_left(), Some(0));
    // The steps of an edited graph before the checkpoint are not known; its budget is.
    let edited = |loader: DataLoader<Vec<u64>>| {
        let epoch = loader
            .resume_edited(&state, Edited::Matching)
            .unwrap()
            .blocking();
        (epoch.steps_left(), epoch.size_hint().1)
    };
    assert_eq!(edited(loader.clone()), (None, None));
    assert_eq!(
        edited(
            DataLoader::builder(graph())
                .resumable()
                .max_steps(5)
                .build()
                .unwrap()
        ),
        (None, Some(2))
    );
    // An error is an item, too, and may come after all counted items.
    let failing = Graph::range(0..6).try_map(|n| if n == 5 { Err("five") } else { Ok(n) });
    let loader = DataLoader::builder(failing.batch(crate::pipes::Batch::new(5).drop_last()))
        .build()
        .unwrap();
    let epoch = loader.epoch(0).blocking();
    assert_eq!(
        (epoch.steps_left(), epoch.size_hint(), epoch.count()),
        (Some(1), (0, Some(2)), 2)
    );
}

/// The computed numbers of steps downstream of joins are right.
#[test]
fn steps_are_known_below_joins() {
    use crate::pipes::{Mux, Schedule, Stop, Zip};
    let mut rng = crate::Rng::from_key([5, 6, 7, 8]);
    let mut known = std::collections::BTreeMap::<usize, [u32; 2]>::new();
    for case in 0..cases(1500) {
        let count = 1 + rng.below(4) as usize;
        let lengths: Vec<u64> = (0..count).map(|_| rng.below(14)).collect();
        let inputs =
            || -> Vec<Graph<u64>> { lengths.iter().map(|&len| Graph::range(0..len)).collect() };
        let mut weights = || -> Vec<f64> {
            (0..count)
                .map(|_| [1.0, 2.0, 3.0, 0.7, 40.0][rng.below(5) as usize])
                .collect()
        };
        let (first, second) = (weights(), weights());
        let stop = [
            Stop::FirstExhausted,
            Stop::AllExhausted,
            Stop::CycleUntilAll,
            Stop::CycleForever,
        ][case % 4];
        let kind = case % 9;
        let graph = match kind {
            0 => Graph::concat(inputs()),
            1 => Graph::mux(inputs()),
            2 => Graph::join(inputs(), Mux::new(count).stop_at_first()),
            3 => Graph::interleave(
                inputs(),
                1 + rng.below(3) as usize,
                1 + rng.below(3) as usize,
            ),
            4 => Graph::greedy_join(inputs()),
            5 if count > 1 => inputs().remove(0).zip(inputs().remove(1)).map(|(a, _)| a),
            6 => Graph::mix_until(stop, inputs().into_iter().zip(first)),
            7 => {
                let step = 1 + rng.below(20);
                let mut zeros = first;
                zeros[0] = 0.0;
                let first = if count > 1 { zeros } else { second.clone() };
                let last = if rng.chance(0.3) && count > 1 {
                    let mut last = second.clone();
                    last[count - 1] = 0.0;
                    last
                } else {
                    second.clone()
                };
                let schedule = Schedule::new(first)
                    .then(step, second)
                    .then(step + 1 + rng.below(9), last);
                Graph::mix_scheduled(stop, inputs(), schedule)
            }
            _ => {
                let [a, b] = Graph::concat(inputs()).fork();
                let pairs = Graph::join((a, b.take(rng.below(40))), Zip::new());
                pairs.map(|(a, _)| a).repeat(1 + rng.below(2))
            }
        };
        const MANY: u64 = 3000;
        let what = format!("kind {kind}, {stop:?}, of {lengths:?}: {graph:?}");
        let build = |graph: Graph<u64>| {
            DataLoader::builder(graph)
                .workers(0)
                .max_steps(MANY)
                .build()
        };
        let loader = build(graph.batch(2).map(|batch| batch.len() as u64)).unwrap();
        let counted = loader.epoch(0).blocking().map(Result::unwrap).count() as u64;
        let seen = known.entry(kind).or_default();
        match loader.len_hint() {
            Some(len) => {
                assert_eq!(len, counted, "{what}");
                seen[0] += 1;
            }
            None => seen[1] += 1,
        }
    }
    for (kind, [known, unknown]) in &known {
        // Mixes that cycle inputs without items, and schedules that leave inputs out at the end,
        // have no known length.
        assert!(
            if [6, 7].contains(kind) {
                known > unknown
            } else {
                *unknown == 0
            },
            "{kind}: {known} of {unknown} more"
        );
    }
}

#[test]
fn steps_of_large_mixes_are_arithmetic() {
    use crate::pipes::Stop;
    let steps = |stop, inputs: [(u64, f64); 3]| {
        let inputs = inputs.map(|(len, weight)| (Graph::range(0..len), weight));
        DataLoader::builder(Graph::mix_until(stop, inputs))
            .build()
            .unwrap()
            .len_hint()
    };
    let inputs = [(1 << 40, 5.0), (1 << 38, 3.0), (1 << 20, 1e-8)];
    assert_eq!(
        steps(Stop::AllExhausted, inputs),
        Some((1 << 40) + (1 << 38) + (1 << 20))
    );
    // The second has 3 of 8 turns, but for one in a billion.
    let first = steps(Stop::FirstExhausted, inputs).unwrap();
    assert!(first.abs_diff((1 << 38) / 3 * 8) < 1 << 16, "{first}");
    assert_eq!(steps(Stop::CycleForever, inputs), None);
    // An endless input is not among them.
    let endless = Graph::range(0..3).cycle();
    let all = Graph::mix([(endless.clone(), 1.0), (Graph::range(0..5), 1.0)]);
    assert_eq!(
        DataLoader::builder(all.take(9)).build().unwrap().len_hint(),
        Some(9)
    );
}

#[test]
fn too_few_items_for_the_ranks_are_seen_through_joins() {
    let build = |graph: Graph<u64>, uneven| {
        let built = DataLoader::builder(graph.sharding_filter())
            .rank(0, 8)
            .uneven(uneven)
            .build();
        built
            .map(|loader| loader.steps())
            .map_err(|error| error.problems().join("; "))
    };
    let inputs = |lengths: [u64; 3]| lengths.map(|len| Graph::range(0..len));
    let few = build(Graph::concat(inputs([3, 2, 2])), Uneven::Drop).unwrap_err();
    assert_eq!(few, "sharding_filter: fewer items than ranks: 7 for 8");
    let mix = || Graph::mix(inputs([3, 4, 2]).into_iter().zip([1.0, 2.0, 3.0]));
    let left = build(mix(), Uneven::Error).unwrap_err();
    assert_eq!(
        left,
        "sharding_filter: 9 items do not divide among 8 ranks: 1 are left over"
    );
    assert_eq!(build(mix(), Uneven::Allow).unwrap(), Some(1..=2));
    let [a, b] = Graph::range(0..5).fork();
    let few = build(a.zip(b).map(|(a, _)| a), Uneven::Drop).unwrap_err();
    assert_eq!(few, "sharding_filter: fewer items than ranks: 5 for 8");
    // An endless stream divides evenly, and is not too short.
    let endless = || Graph::range(0..3).cycle();
    for uneven in [Uneven::Error, Uneven::Drop] {
        assert_eq!(
            build(Graph::concat([Graph::range(0..2), endless()]), uneven).unwrap(),
            None
        );
    }
}
