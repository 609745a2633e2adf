//! Tests of states that go on with other ranks.

use proptest::prelude::*;

use super::ranks_tests::{Deal, POLICIES, all, dealt, loader, range};
use super::*;
use crate::pipes::Batch;
use crate::{Indexed, Uneven};

const WORLDS: [usize; 7] = [1, 2, 3, 4, 6, 8, 12];

/// Batches of 24 items over all ranks.
fn global(deal: Deal, items: u64, world: usize) -> Graph<Vec<u64>> {
    dealt(deal, items).map(|n| n * 2).batch(24 / world)
}

#[test]
fn row_118_the_global_order_is_that_of_any_number_of_ranks() {
    for deal in [Deal::Filter, Deal::Index] {
        let steps = |world: usize| {
            let mut steps: Vec<Vec<u64>> = Vec::new();
            for rank in 0..world {
                for (step, batch) in
                    all(&loader(global(deal, 240, world), rank, world, Uneven::Drop)).into_iter().enumerate()
                {
                    steps.resize(steps.len().max(step + 1), Vec::new());
                    steps[step].extend(batch);
                }
            }
            steps.iter_mut().for_each(|step| step.sort());
            steps
        };
        let one = steps(1);
        assert_eq!(one.len(), 10);
        for world in WORLDS {
            assert_eq!(steps(world), one, "{deal:?}, {world} ranks");
        }
    }
}

fn resumable(
    deal: Deal,
    items: u64,
    rank: usize,
    world: usize,
    uneven: Uneven,
    workers: usize,
) -> DataLoader<Vec<u64>> {
    let builder = DataLoader::builder(global(deal, items, world)).seed(3).workers(workers).rank(rank, world);
    builder.uneven(uneven).resumable().build().unwrap()
}

/// Stopped after a number of steps on some ranks, it goes on on others as if it had always run there.
fn goes_on_elsewhere(
    deal: Deal,
    items: u64,
    uneven: Uneven,
    [then, now]: [usize; 2],
    stop: usize,
    workers: usize,
) {
    let what = format!("{deal:?}, {items} items, {uneven:?}, {then} to {now} ranks at {stop}");
    let states: Vec<State> = (0..then)
        .map(|rank| {
            let mut epoch = resumable(deal, items, rank, then, uneven, workers).epoch(1).blocking();
            epoch.by_ref().take(stop).for_each(|batch| drop(batch.unwrap()));
            epoch.state().unwrap()
        })
        .collect();
    let merged = State::merge(&states).unwrap_or_else(|error| panic!("{what}: {error}"));
    let merged = State::from_bytes(&merged.to_bytes()).unwrap();
    for rank in 0..now {
        let whole = all(&resumable(deal, items, rank, now, uneven, 0));
        for state in [&merged, &states[rank % then]] {
            let loader = resumable(deal, items, rank, now, uneven, workers);
            let mut epoch = loader.resume(state).unwrap_or_else(|error| panic!("{what}: {error}")).blocking();
            let some: Vec<_> = epoch.by_ref().take(2).map(Result::unwrap).collect();
            // And once more, of the same rank.
            let again = loader.resume(&epoch.state().unwrap()).unwrap().blocking();
            let all = [some, again.map(Result::unwrap).collect()].concat();
            assert_eq!(all, whole[stop.min(whole.len())..], "{what}, rank {rank}");
        }
    }
}

#[test]
fn row_118_another_world_size_goes_on() {
    for then in WORLDS {
        for now in WORLDS {
            goes_on_elsewhere(Deal::Index, 240, Uneven::Drop, [then, now], 5, 0);
            goes_on_elsewhere(Deal::Filter, 240, Uneven::Drop, [then, now], 5, 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn row_118_any_stop_goes_on_with_any_ranks(
        items in 24u64..200,
        then in proptest::sample::select(&WORLDS[..]),
        now in proptest::sample::select(&WORLDS[..]),
        stop in 0usize..6,
        uneven in proptest::sample::select(&POLICIES[..2]),
        workers in 0usize..2,
    ) {
        goes_on_elsewhere(Deal::Index, items, uneven, [then, now], stop, workers);
        // One rank keeps no items to pad with.
        if uneven == Uneven::Drop || then > 1 || now == 1 {
            goes_on_elsewhere(Deal::Filter, items, uneven, [then, now], stop, workers);
        }
    }
}

/// A state at a budget of steps is finished for that budget only, on other ranks too.
#[test]
fn row_118_a_larger_budget_goes_on_with_other_ranks() {
    for deal in [Deal::Index, Deal::Filter] {
        let loader = |rank, world, steps| {
            let builder = DataLoader::builder(global(deal, 480, world)).seed(3).workers(0).rank(rank, world);
            builder.uneven(Uneven::Drop).resumable().max_steps(steps).build().unwrap()
        };
        let state = |rank| {
            let mut epoch = loader(rank, 4, 5).epoch(1).blocking();
            assert_eq!(epoch.by_ref().map(Result::unwrap).count(), 5);
            epoch.state().unwrap()
        };
        let merged = State::merge(&[0, 1, 2, 3].map(state)).unwrap();
        assert!(merged.is_finished());
        for rank in 0..2 {
            let whole: Vec<_> = loader(rank, 2, 10).epoch(1).blocking().map(Result::unwrap).collect();
            let rest = loader(rank, 2, 10).resume(&merged).unwrap().blocking();
            assert_eq!(rest.map(Result::unwrap).collect::<Vec<_>>(), whole[5..]);
        }
    }
}

/// The states of all ranks of a job after so many steps.
fn states(graph: impl Fn() -> Graph<Vec<u64>>, world: usize, steps: usize) -> Vec<State> {
    let state = |rank| {
        let builder = DataLoader::builder(graph()).workers(0).rank(rank, world).uneven(Uneven::Allow);
        let mut epoch = builder.on_error(OnError::skip(9)).resumable().build().unwrap().epoch(0).blocking();
        epoch.by_ref().take(steps).for_each(|batch| drop(batch.unwrap()));
        epoch.state().unwrap()
    };
    (0..world).map(state).collect()
}

#[test]
fn row_118_what_is_not_elastic_is_refused_by_name_with_both_numbers() {
    let refused = |then: fn() -> Graph<Vec<u64>>, now: fn() -> Graph<Vec<u64>>, expected: &str| {
        let state = State::merge(&states(then, 4, 2)).unwrap();
        let loader = DataLoader::builder(now()).workers(0).rank(1, 2).uneven(Uneven::Allow).resumable();
        let error = loader.build().unwrap().resume(&state).unwrap_err().to_string();
        let expected = format!(
            "wrong configuration: the state is of all of 4 ranks, and this is rank 1 of 2: {expected}"
        );
        assert_eq!(error, expected);
    };
    refused(
        || range().batch(2),
        || range().batch(3),
        "`batch` made batches of 2, 4 ranks of them a step, and makes batches of 3 for 2",
    );
    let filtered = || range().filter(|n| *n < 40).batch(2);
    refused(
        filtered,
        filtered,
        "`filter` is below what deals the items, and does not give one item for each, in their order",
    );
    let contiguous = || Indexed::range(48).shard_contiguous().fetch().batch(2);
    refused(
        contiguous,
        contiguous,
        "`index_shard_contiguous` deals items in another way for another number of ranks",
    );
    let drops = || range().pipe(Batch::new(2).drop_last());
    refused(drops, || range().batch(4), "`batch` was 2, drop_last, and is 4");

    refused(
        || range().batch(2),
        || range().map(|n| n).batch(4),
        "`batch` read `indices`, and reads `map`; `map` is new",
    );

    // One rank keeps no items to pad with.
    let padded = |world: usize| {
        let graph = Graph::range(0..48).sharding_filter_padded().batch(4 / world);
        let loader = DataLoader::builder(graph).workers(0).rank(0, world).uneven(Uneven::Pad);
        loader.resumable().build().unwrap()
    };
    let mut epoch = padded(1).epoch(0).blocking();
    epoch.by_ref().take(2).for_each(|batch| drop(batch.unwrap()));
    let error = padded(2).resume(&epoch.state().unwrap()).unwrap_err().to_string();
    assert!(error.ends_with("would repeat items from the start, which were not kept for it"), "{error}");

    // Without a batch every item is a step.
    let state = State::merge(&states(|| range().map(|n| vec![n]), 3, 5)).unwrap();
    let resume = |world| {
        let loader = DataLoader::builder(range().map(|n| vec![n])).workers(0).rank(0, world);
        loader.uneven(Uneven::Drop).resumable().build().unwrap().resume(&state).map(|epoch| epoch.blocking())
    };
    assert_eq!(resume(5).unwrap().next().unwrap().unwrap(), [15]);
    let error = resume(2).unwrap_err().to_string();
    assert!(error.ends_with("15 items were delivered, which do not divide among 2 ranks"), "{error}");
}

#[test]
fn a_state_of_another_rank_is_refused_where_ranks_differ() {
    let shuffled = || range().pipe(crate::pipes::Shuffle::new(4).within_rank()).batch(2);
    let states = states(shuffled, 2, 3);
    let resume = |state: &State| {
        let loader = DataLoader::builder(shuffled()).workers(0).rank(1, 2).uneven(Uneven::Allow);
        loader.resumable().build().unwrap().resume(state).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(resume(&states[1]), Ok(()));
    let error = resume(&states[0]).unwrap_err();
    assert!(error.contains("the state is of rank 0 of 2, and this is rank 1 of 2: `shuffle`"), "{error}");
    assert!(resume(&State::merge(&states).unwrap()).unwrap_err().contains("`shuffle`"));
}

#[test]
fn states_of_different_ranks_steps_or_runs_are_not_merged() {
    let four = states(|| range().batch(2), 4, 2);
    let merge = |states: &[&State]| {
        let states: Vec<State> = states.iter().map(|&state| state.clone()).collect();
        State::merge(&states)
            .unwrap_err()
            .to_string()
            .replace("wrong configuration: the states cannot be merged: ", "")
    };
    let [a, b, c, d] = &four[..] else { unreachable!() };
    assert_eq!(merge(&[]), "there are none");
    assert_eq!(merge(&[a, b, c]), "there are 3, of a job of 4 ranks");
    assert_eq!(merge(&[a, b, c, b]), "two are of rank 1");
    let later = &states(|| range().batch(2), 4, 3)[3];
    assert_eq!(merge(&[a, b, c, later]), "rank 3 has 3 steps delivered, and rank 0 has 2");
    let other = &states(|| range().batch(3), 4, 2)[3];
    assert_eq!(
        merge(&[a, b, c, other]),
        "ranks 0 and 3 have different graphs: `batch` was batch(2), and is batch(3)"
    );
    let all = State::merge(&[d.clone(), b.clone(), a.clone(), c.clone()]).unwrap();
    assert_eq!(merge(&[&all, b, c, d]), "one of them is of several ranks already");
    let skips = || range().try_map(|n| if n == 5 { Err("bad") } else { Ok(n) }).batch(2);
    let skipped = states(skips, 2, 3);
    let said = merge(&[&skipped[0], &skipped[1]]);
    assert_eq!(said, "rank 1 skipped 1 items, so that ranks are not at one place of the data");
}

#[test]
fn row_118_many_items_go_on_behind_marks_that_are_seldom() {
    let graph = |world: usize| {
        let members = Graph::range(0..2000).shuffle(300).flat_map(|n| (0..n % 9).map(move |k| n * 10 + k));
        let own = members.shuffle(500).sharding_filter().map_random(|n, rng| [n, rng.below(100)]);
        own.prefetch(8).batch(96 / world).collate()
    };
    let loader = |rank, world| {
        let loader = DataLoader::builder(graph(world)).seed(9).workers(2).rank(rank, world);
        loader.uneven(Uneven::Drop).resumable().build().unwrap()
    };
    for (then, now, stop) in [(4, 3, 40), (1, 2, 61), (8, 1, 7), (2, 12, 70)] {
        let states: Vec<State> = (0..then)
            .map(|rank| {
                let mut epoch = loader(rank, then).epoch(2).blocking();
                epoch.by_ref().take(stop).for_each(|batch| drop(batch.unwrap()));
                epoch.state().unwrap()
            })
            .collect();
        let state = State::merge(&states).unwrap();
        for rank in [0, now - 1] {
            let numbers = |epoch: crate::Epoch<crate::Tensor>| -> Vec<Vec<u64>> {
                epoch.blocking().map(|batch| batch.unwrap().as_slice::<u64>().unwrap().to_vec()).collect()
            };
            let whole = numbers(loader(rank, now).epoch(2));
            assert!(whole.len() > 80);
            let rest = numbers(loader(rank, now).resume(&state).unwrap());
            assert_eq!(rest, whole[stop..], "{then} to {now} ranks at {stop}");
        }
    }
}
