use super::*;

#[test]
fn row_37_stop_rules_with_an_empty_input() {
    let inputs = || [(0, 1.0), (3, 2.0), (1, 1.0)].map(|(n, weight)| (Graph::range(0..n), weight));
    let mix = |stop| Graph::mix_until(stop, inputs()).take(9).collect().unwrap();
    assert_eq!(mix(Stop::FirstExhausted), [0u64; 0]);
    assert_eq!(mix(Stop::AllExhausted), [0, 1, 0, 2]);
    assert_eq!(mix(Stop::CycleUntilAll), [0, 1, 0, 2, 0]);
    assert_eq!(mix(Stop::CycleForever), [0, 1, 0, 2, 0, 0, 1, 2, 0]);
    let nothing = Graph::mix_until(Stop::CycleForever, [(Graph::range(0..0), 1.0)]);
    assert_eq!(nothing.collect().unwrap(), [0u64; 0]);
}

#[test]
fn wrong_weights_do_not_build() {
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e10] {
        let inputs = [(Graph::range(0..1), weight), (Graph::range(0..1), 1.0)];
        assert!(Graph::mix(inputs).collect().is_err(), "{weight}");
    }
    assert!(Graph::<u8>::mix([]).collect().is_err());
}

use crate::testing::some_of;
use crate::{Checkpoint, DataLoader, Edited, ErrorKind, Result};

fn loader<T: Send + 'static>(graph: Graph<T>, workers: usize) -> DataLoader<T> {
    DataLoader::builder(graph)
        .seed(3)
        .workers(workers)
        .resumable()
        .build()
        .unwrap()
}

fn some<T: Send + 'static>(epoch: crate::Epoch<T>, most: usize) -> (Vec<T>, Checkpoint) {
    let mut epoch = epoch.blocking();
    let items = epoch
        .by_ref()
        .take(most)
        .collect::<Result<Vec<T>>>()
        .unwrap();
    let state = Checkpoint::from_bytes(&epoch.checkpoint().unwrap().to_bytes()).unwrap();
    (items, state)
}

fn three(lengths: [u64; 3]) -> [Graph<u64>; 3] {
    let mut from = 0;
    lengths.map(|len| {
        from += 1000;
        Graph::range(from..from + len)
    })
}

const STOPS: [Stop; 5] = [
    Stop::FirstExhausted,
    Stop::AllExhausted,
    Stop::WITHOUT_REPLACEMENT,
    Stop::CycleUntilAll,
    Stop::CycleForever,
];

fn curriculum() -> Schedule {
    Schedule::new([1.0, 0.0, 0.0])
        .then(7, [2.0, 1.0, 0.0])
        .then(16, [0.0, 1.0, 3.0])
        .then(30, [1.0, 1.0, 1.0])
}

#[test]
fn a_curriculum_has_exact_shares_in_each_stage() {
    let schedule = curriculum();
    let mixed = Graph::mix_scheduled(Stop::FirstExhausted, three([90; 3]), schedule.clone())
        .collect()
        .unwrap();
    for (from, until) in [(0, 7), (7, 16), (16, 30), (30, 120)] {
        let weights = schedule.weights(from as u64);
        let total: f64 = weights.iter().sum();
        for end in from..=until.min(mixed.len()) {
            for (input, weight) in weights.iter().enumerate() {
                let count = mixed[from..end]
                    .iter()
                    .filter(|&&n| n / 1000 == input as u64 + 1)
                    .count();
                let due = (end - from) as f64 * weight / total;
                assert!(
                    (count as f64 - due).abs() < 3.0,
                    "{from}..{end}: {count} of input {input}"
                );
                assert!(*weight > 0.0 || count == 0);
            }
        }
    }
}

#[test]
fn a_stage_that_nobody_is_left_for_gives_way_to_the_next() {
    let schedule = Schedule::new([1.0, 0.0]).then(100, [0.0, 1.0]);
    let mixed = Graph::mix_scheduled(
        Stop::AllExhausted,
        [Graph::range(0..3), Graph::range(10..12)],
        schedule,
    );
    assert_eq!(mixed.collect().unwrap(), [0, 1, 2, 10, 11]);
    // A last stage whose inputs with a weight are exhausted ends the mix.
    let schedule = Schedule::new([1.0, 1.0]).then(2, [1.0, 0.0]);
    let mixed = Graph::mix_scheduled(
        Stop::AllExhausted,
        [Graph::range(0..3), Graph::range(10..19)],
        schedule,
    );
    assert_eq!(mixed.collect().unwrap(), [0, 10, 1, 2]);
}

#[test]
fn an_input_that_may_be_left_out_stays_in_order() {
    let needs_order = |schedule: Schedule, by: Option<ByStep>| {
        let mix = Mix {
            by,
            ..Mix::new(schedule)
        };
        !Join::<Vec<u64>>::hints(&mix).ignores_order
    };
    let from_3 = |weights: [f64; 2]| Schedule::new([1.0, 0.0]).then(3, weights);
    assert!(!needs_order(from_3([1.0, 2.0]), None));
    assert!(needs_order(from_3([0.0, 1.0]), None));
    let by: ByStep = Arc::new(|_| vec![1.0, 1.0]);
    assert!(needs_order(Schedule::new([1.0, 1.0]), Some(by)));
}

#[test]
fn wrong_schedules_do_not_build() {
    for schedule in [
        Schedule::new([1.0]),
        Schedule::new([1.0, 0.0]),
        Schedule::new([1.0, 1.0]).then(0, [1.0, 2.0]),
        Schedule::new([1.0, 1.0]).then(5, [0.0, 0.0]),
        Schedule::new([1.0, 0.0]).then(5, [2.0, 0.0]),
        Schedule::new([1.0, 1.0]).then(5, [1.0, -1.0]),
        Schedule::new([1.0, 1.0]).then(5, [1.0; 3]),
    ] {
        let inputs = [Graph::range(0..9), Graph::range(0..9)];
        assert!(
            Graph::mix_scheduled(Stop::AllExhausted, inputs, schedule.clone())
                .collect()
                .is_err(),
            "{schedule}"
        );
    }
    let by = |weights: Vec<f64>| {
        let inputs = [Graph::range(0..9), Graph::range(0..9)];
        let weights = move |step| {
            if step < 3 {
                vec![1.0; 2]
            } else {
                weights.clone()
            }
        };
        let loader = DataLoader::builder(Graph::mix_by(Stop::AllExhausted, inputs, weights))
            .workers(0)
            .build();
        loader.unwrap().epoch(0).blocking().collect::<Vec<_>>()
    };
    for weights in [
        vec![],
        vec![1.0],
        vec![0.0, 0.0],
        vec![f64::NAN, 1.0],
        vec![1.0, -2.0],
    ] {
        let mut items = by(weights);
        assert_eq!(items.len(), 4);
        let error = items.pop().unwrap().unwrap_err();
        assert!(
            error.kind() == ErrorKind::Config && error.to_string().ends_with("at step 3"),
            "{error}"
        );
    }
}

#[test]
fn every_stop_rule_goes_on_with_a_schedule_and_with_a_function() {
    let by_step = |step: u64| vec![1.0, (step / 5 % 3) as f64, 2.0];
    for stop in STOPS {
        let scheduled = || Graph::mix_scheduled(stop, three([23, 9, 14]), curriculum());
        let by = || Graph::mix_by(stop, three([23, 9, 14]), by_step);
        for graph in [&scheduled as &dyn Fn() -> Graph<u64>, &by] {
            let below = || graph().take(90).shuffle(6).batch(4);
            let (whole, _) = some(loader(below(), 0).epoch(1), usize::MAX);
            for at in 0..whole.len() {
                let (first, state) = some(loader(below(), 2).epoch(1), at);
                let (second, state) = some(loader(below(), 0).resume(&state).unwrap(), 2);
                let (rest, _) = some(loader(below(), 0).resume(&state).unwrap(), usize::MAX);
                assert_eq!(
                    [first, second, rest].concat(),
                    whole,
                    "{stop:?}, stopped at {at}"
                );
            }
        }
    }
}

#[test]
fn weights_that_change_when_an_epoch_goes_on() {
    let mix = |weights: [f64; 3]| Graph::mix(three([40, 40, 40]).into_iter().zip(weights));
    let (old, new) = ([5.0, 3.0, 1.0], [1.0, 1.0, 7.0]);
    let (whole, _) = some(loader(mix(old), 0).epoch(0), usize::MAX);
    for at in [0, 1, 2, 9, 17, 31, 100, 119, 120] {
        let (first, state) = some(loader(mix(old), 0).epoch(0), at);
        assert_eq!(first, whole[..at]);
        // Only `resume_edited` accepts other weights.
        let other = loader(mix(new), 0);
        let refused = other.resume(&state).unwrap_err().to_string();
        assert!(
            at == 0
                || (refused
                    .contains("`mix` was mix(AllExhausted, weights [5.0, 3.0, 1.0]), and is")
                    && refused.ends_with(
                        "; to go on with it, use `resume_edited` with `Edited::Weights`"
                    )),
            "{refused}"
        );
        let (rest, _) = some(
            other.resume_edited(&state, Edited::Weights).unwrap(),
            usize::MAX,
        );
        // Everything once, each input in its order, and from here on the shares of the new weights.
        let mut all = [first.clone(), rest.clone()].concat();
        for input in 1..=3 {
            let own: Vec<u64> = all.iter().copied().filter(|n| n / 1000 == input).collect();
            assert_eq!(own, Vec::from_iter(input * 1000..input * 1000 + 40));
        }
        all.sort_unstable();
        assert_eq!(all.len(), 120);
        let left = |input: usize| {
            40 - first
                .iter()
                .filter(|&&n| n / 1000 == input as u64 + 1)
                .count()
        };
        for end in 1..rest.len() {
            let count = |input: usize| {
                rest[..end]
                    .iter()
                    .filter(|&&n| n / 1000 == input as u64 + 1)
                    .count()
            };
            if (0..3).any(|input| count(input) == left(input)) {
                break;
            }
            for (input, weight) in new.iter().enumerate() {
                assert!(
                    (count(input) as f64 - end as f64 * weight / 9.0).abs() < 3.0,
                    "stopped at {at}: {end}"
                );
            }
        }
    }
}

/// Stops again before the mix has repeated the items that were used: the change of weights stays
/// where it was.
#[test]
fn a_change_of_weights_stays_where_it_was() {
    let inputs = || three([60, 35, 47]);
    let graph = |weights: [f64; 3]| {
        let mixed = Graph::mix(inputs().into_iter().zip(weights)).shuffle(40);
        Graph::mux([mixed, Graph::range(9000..9200)])
    };
    let (old, new) = ([5.0, 3.0, 1.0], [1.0, 1.0, 7.0]);
    for stop in [1, 20, 61, 120] {
        let (first, state) = some(loader(graph(old), 0).epoch(0), stop);
        let (rest, _) = some(
            loader(graph(new), 0)
                .resume_edited(&state, Edited::Weights)
                .unwrap(),
            usize::MAX,
        );
        for again in [0, 1, 2, 30] {
            let (second, state) = some(
                loader(graph(new), 0)
                    .resume_edited(&state, Edited::Weights)
                    .unwrap(),
                again,
            );
            let (third, state) = some(loader(graph(new), 2).resume(&state).unwrap(), 1);
            let (fourth, _) = some(loader(graph(new), 0).resume(&state).unwrap(), usize::MAX);
            assert_eq!(
                [second, third, fourth].concat(),
                rest,
                "stopped at {stop}, and after {again} more"
            );
        }
        let mut all = [first, rest].concat();
        all.sort_unstable();
        let wanted = (1000..1060)
            .chain(2000..2035)
            .chain(3000..3047)
            .chain(9000..9200);
        assert_eq!(all, Vec::from_iter(wanted), "stopped at {stop}");
    }
}

/// Items that had been mixed and were used, or wait in a shuffle buffer or a started batch, stay as
/// they were, however often weights change. Each input therefore comes in its order, with nothing
/// left out and nothing twice.
#[test]
fn what_was_used_below_stays_as_it_was_mixed() {
    let weights = [
        [5.0, 3.0, 1.0],
        [1.0, 1.0, 7.0],
        [2.0, 9.0, 2.0],
        [1.0, 1.0, 1.0],
    ];
    let inputs = || three([60, 35, 47]);
    let all = Vec::from_iter((1000..1060).chain(2000..2035).chain(3000..3047));
    type Shape = fn(Graph<u64>) -> Graph<Vec<u64>>;
    let shapes: [Shape; 4] = [
        |mixed| mixed.shuffle(11).batch(3),
        |mixed| mixed.take(500).shuffle(11).batch(3),
        |mixed| mixed.skip(0).filter(|_| true).take(500).batch(3),
        |mixed| {
            mixed
                .flat_map(|n| [n])
                .shuffle(5)
                .enumerate()
                .map(|(_, n)| n)
                .shuffle(4)
                .batch(3)
        },
    ];
    for (number, shape) in shapes.into_iter().enumerate() {
        for stops in [[3usize, 4, 5], [0, 6, 1], [2, 0, 1], [7, 1, 1], [1, 20, 12]] {
            let mut seen = Vec::new();
            let mut state: Option<Checkpoint> = None;
            for (round, most) in stops.into_iter().chain([usize::MAX]).enumerate() {
                let loader = loader(
                    shape(Graph::mix(inputs().into_iter().zip(weights[round]))),
                    round % 3,
                );
                let epoch = match &state {
                    None => loader.epoch(0),
                    Some(state) => loader.resume_edited(state, Edited::Weights).unwrap(),
                };
                let (items, now) = some(epoch, most);
                seen.extend(items.concat());
                state = Some(now);
            }
            seen.sort_unstable();
            assert_eq!(seen, all, "graph {number}, stopped after {stops:?}");
        }
    }
}

#[test]
fn all_mixes_keep_the_contract_of_joins() {
    let inputs = || {
        vec![
            (0..5).collect(),
            (10..13).collect(),
            (20..21).collect::<Vec<u64>>(),
        ]
    };
    for schedule in [Schedule::new([2.0, 1.0, 1.0]), curriculum()] {
        for stop in some_of([Stop::FirstExhausted, Stop::AllExhausted]) {
            let mix = Mix {
                schedule: schedule.clone(),
                by: None,
                stop,
                inputs: 3,
            };
            crate::testing::check_join(&mix, inputs());
        }
    }
    // Inputs that start again twice.
    let cycled = inputs().into_iter().map(|items| {
        let rounds = (0..3).map(|_| items.iter().copied().map(Some).chain([None]));
        rounds.flatten().collect()
    });
    let cycled: Vec<Vec<Option<u64>>> = cycled.collect();
    for stop in some_of([Stop::CycleUntilAll, Stop::CycleForever]) {
        let mix = Mix {
            schedule: Schedule::new([2.0, 1.0, 1.0]),
            by: None,
            stop,
            inputs: 3,
        };
        // The mix counts by rounds.
        crate::testing::check_but_len(&Cycled(mix), cycled.clone());
    }
    let by: ByStep = Arc::new(|step| vec![1.0, (step / 3) as f64, 2.0]);
    let mix = Mix {
        schedule: Schedule::new([1.0; 3]),
        by: Some(by),
        stop: Stop::AllExhausted,
        inputs: 3,
    };
    crate::testing::check_join(&mix, inputs());
}
