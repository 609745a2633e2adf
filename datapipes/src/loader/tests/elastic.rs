//! Tests of checkpoints that are resumed by other ranks.

use proptest::prelude::*;

use super::ranks::{Deal, POLICIES, all, dealt, loader, range};
use super::*;
use crate::pipes::Batch;
use crate::testing::{cases, some_of};
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
                    all(&loader(global(deal, 240, world), rank, world, Uneven::Drop))
                        .into_iter()
                        .enumerate()
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
    let builder = DataLoader::builder(global(deal, items, world))
        .seed(3)
        .workers(workers)
        .rank(rank, world);
    builder.uneven(uneven).resumable().build().unwrap()
}

/// Stops after a number of steps on some ranks, and resumes on others as if the epoch had always
/// run there.
fn goes_on_elsewhere(
    deal: Deal,
    items: u64,
    uneven: Uneven,
    [then, now]: [usize; 2],
    stop: usize,
    workers: usize,
) {
    let what = format!("{deal:?}, {items} items, {uneven:?}, {then} to {now} ranks at {stop}");
    let states: Vec<Checkpoint> = (0..then)
        .map(|rank| {
            let mut epoch = resumable(deal, items, rank, then, uneven, workers)
                .epoch(1)
                .blocking();
            epoch
                .by_ref()
                .take(stop)
                .for_each(|batch| drop(batch.unwrap()));
            epoch.checkpoint().unwrap()
        })
        .collect();
    let merged = Checkpoint::merge(&states).unwrap_or_else(|error| panic!("{what}: {error}"));
    let merged = Checkpoint::from_bytes(&merged.to_bytes()).unwrap();
    for rank in 0..now {
        let whole = all(&resumable(deal, items, rank, now, uneven, 0));
        for state in [&merged, &states[rank % then]] {
            let loader = resumable(deal, items, rank, now, uneven, workers);
            let mut epoch = loader
                .resume(state)
                .unwrap_or_else(|error| panic!("{what}: {error}"))
                .blocking();
            let some: Vec<_> = epoch.by_ref().take(2).map(Result::unwrap).collect();
            // And once more, on the same rank.
            let again = loader
                .resume(&epoch.checkpoint().unwrap())
                .unwrap()
                .blocking();
            let all = [some, again.map(Result::unwrap).collect()].concat();
            assert_eq!(all, whole[stop.min(whole.len())..], "{what}, rank {rank}");
        }
    }
}

#[test]
fn row_118_another_world_size_goes_on() {
    let worlds = WORLDS
        .into_iter()
        .flat_map(|then| WORLDS.map(|now| [then, now]));
    for worlds in some_of(worlds) {
        goes_on_elsewhere(Deal::Index, 240, Uneven::Drop, worlds, 5, 0);
        goes_on_elsewhere(Deal::Filter, 240, Uneven::Drop, worlds, 5, 0);
    }
}

/// Graphs whose positions do not follow from the number of steps.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Filtered,
    Shuffled,
    Members,
    Skipping,
    Contiguous,
}

fn shaped(shape: Shape, items: u64) -> Graph<Vec<u64>> {
    let own = Graph::range(0..items).shuffle(9).sharding_filter();
    match shape {
        Shape::Filtered => own.filter(|n| n % 3 != 1).batch(3),
        Shape::Shuffled => own
            .shuffle(crate::pipes::Shuffle::new(6).within_rank())
            .batch(2),
        Shape::Members => own
            .flat_map(|n| (0..n % 4).map(move |k| n * 10 + k))
            .shuffle(8)
            .batch(5),
        Shape::Skipping => own
            .try_map(|n| if n % 7 == 5 { Err("bad") } else { Ok(n) })
            .batch(2),
        Shape::Contiguous => Indexed::range(items)
            .shuffle()
            .shard_contiguous()
            .fetch()
            .batch(3),
    }
}

/// Runs one rank of a job, up to a step, from the beginning or from a checkpoint.
fn ran(
    shape: Shape,
    items: u64,
    [rank, world]: [usize; 2],
    workers: usize,
    from: Option<&Checkpoint>,
    steps: usize,
) -> (Vec<Vec<u64>>, Checkpoint) {
    let builder = DataLoader::builder(shaped(shape, items))
        .seed(3)
        .workers(workers)
        .rank(rank, world);
    let loader = builder
        .uneven(Uneven::Drop)
        .ranks_agree()
        .on_error(OnError::skip(999))
        .resumable()
        .build()
        .unwrap();
    let epoch = from.map_or_else(|| loader.epoch(1), |state| loader.resume(state).unwrap());
    let mut epoch = epoch.blocking();
    let steps = epoch.by_ref().take(steps).map(Result::unwrap).collect();
    (
        steps,
        Checkpoint::from_bytes(&epoch.checkpoint().unwrap().to_bytes()).unwrap(),
    )
}

/// Returns the items of a rank that reads the rest of several ranks in turn.
fn in_turn(mut rests: Vec<impl ExactSizeIterator<Item = Vec<u64>>>) -> Vec<Vec<u64>> {
    let mut all = Vec::new();
    while rests.iter().any(|rest| rest.len() > 0) {
        all.extend(rests.iter_mut().filter_map(Iterator::next));
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(60) as u32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Fewer ranks resume any graph: each reads the rests of some old ranks, in turn, and nothing
    /// else; and again fewer.
    #[test]
    fn row_118_fewer_ranks_share_what_is_left_of_any_graph(
        shape in proptest::sample::select(
            &[Shape::Filtered, Shape::Shuffled, Shape::Members, Shape::Skipping, Shape::Contiguous][..],
        ),
        items in 12u64..150,
        worlds in proptest::sample::select(&[[4, 4, 2], [4, 2, 1], [6, 3, 1], [8, 2, 2], [2, 1, 1], [6, 6, 3]][..]),
        stops in [0usize..5, 0usize..7],
        workers in [0usize..3, 0usize..3, 0usize..3],
    ) {
        let [first, second, third] = worlds;
        let run = |world, workers, from: Option<&Checkpoint>, steps| -> (Vec<_>, Vec<_>) {
            (0..world).map(|rank| ran(shape, items, [rank, world], workers, from, steps)).unzip()
        };
        let (whole, _) = run(first, 0, None, usize::MAX);
        let (mut seen, states) = run(first, workers[0], None, stops[0]);
        // All ranks stop after one step, if it is not the last for some.
        let Ok(state) = Checkpoint::merge(&states) else { return Ok(()) };
        let (some, states) = run(second, workers[1], Some(&state), stops[1]);
        let rest = |rank: usize| whole[rank][seen[rank].len()..].iter().cloned();
        for (rank, some) in some.iter().enumerate() {
            let all = in_turn((rank..first).step_by(second).map(rest).collect());
            prop_assert_eq!(&all[..stops[1].min(all.len())], some.as_slice());
        }
        let Ok(state) = Checkpoint::merge(&states) else { return Ok(()) };
        let (last, ends) = run(third, workers[2], Some(&state), usize::MAX);
        prop_assert!(ends.iter().all(Checkpoint::is_finished));
        // Everything once.
        seen.extend(some);
        seen.extend(last);
        let sorted = |ranks: &[Vec<Vec<u64>>]| {
            let mut all = ranks.concat();
            all.sort();
            all
        };
        prop_assert_eq!(sorted(&seen), sorted(&whole));
    }
}

/// The rest of two ranks, read by one: also by a device stage, after an item that was given back,
/// with figures of both.
#[test]
fn one_rank_reads_the_rest_of_two() {
    let loader = |rank, world| {
        let loader = DataLoader::builder(shaped(Shape::Members, 60))
            .seed(3)
            .workers(2)
            .rank(rank, world);
        // One rank sets no policy for uneven ranks: the ranks that began did.
        let loader = if world > 1 {
            loader.uneven(Uneven::Drop).ranks_agree()
        } else {
            loader
        };
        loader.resumable().build().unwrap()
    };
    let whole: Vec<Vec<Vec<u64>>> = [0, 1].map(|rank| all(&loader(rank, 2))).into();
    let states = [0, 1].map(|rank| {
        let mut epoch = loader(rank, 2).epoch(1).blocking();
        assert_eq!(epoch.by_ref().take(3).count(), 3);
        epoch.checkpoint().unwrap()
    });
    let state = Checkpoint::merge(&states).unwrap();
    assert_eq!(
        (state.delivered(), state.epoch(), state.is_finished()),
        (6, 1, false)
    );
    let rest = in_turn(whole.iter().map(|rank| rank[3..].iter().cloned()).collect());
    assert!(rest.len() > 8);

    let one = loader(0, 1);
    let mut epoch = one.resume(&state).unwrap().blocking();
    assert!(epoch.checkpoint().unwrap() == state);
    let some: Vec<_> = epoch.by_ref().take(4).map(Result::unwrap).collect();
    assert_eq!(some, rest[..4]);
    assert_eq!(epoch.stats().unwrap().delivered, 4);
    assert_eq!(one.stats().unwrap().delivered, 4);

    // The last item was given back: it comes again, first of all.
    epoch.fail_last();
    assert!(epoch.next().is_none());
    let again = one.resume(&epoch.checkpoint().unwrap()).unwrap().blocking();
    assert_eq!(again.map(Result::unwrap).collect::<Vec<_>>(), rest[3..]);

    let on_device = one.prefetch_to_device(Ok::<_, crate::Error>);
    let mut epoch = on_device.resume(&state).unwrap().blocking();
    let mut all: Vec<_> = epoch.by_ref().take(5).map(Result::unwrap).collect();
    let state = epoch.checkpoint().unwrap();
    assert_eq!(epoch.stats().unwrap().device.unwrap().depth, 1);
    drop(epoch);
    let epoch = on_device.resume(&state).unwrap();
    assert_eq!(epoch.checkpoint().unwrap().delivered(), 11);
    let mut epoch = epoch.blocking();
    all.extend(epoch.by_ref().map(Result::unwrap));
    assert_eq!(all, rest);
    assert!(epoch.checkpoint().unwrap().is_finished());
    // The next epoch is that of one rank.
    assert_eq!(one.epoch(2).blocking().flat_map(Result::unwrap).count(), 90);
}

#[test]
fn an_error_of_one_rank_ends_all_that_are_read_in_turn() {
    let graph = || {
        Graph::range(0..40)
            .sharding_filter()
            .try_map(|n| if n == 21 { Err("bad") } else { Ok(n) })
    };
    let loader = |rank, world| {
        let loader = DataLoader::builder(graph().filter(|n| n % 4 < 2))
            .workers(0)
            .rank(rank, world);
        loader
            .uneven(Uneven::Drop)
            .ranks_agree()
            .resumable()
            .build()
            .unwrap()
    };
    let state = |rank| {
        let mut epoch = loader(rank, 2).epoch(0).blocking();
        assert_eq!(epoch.by_ref().take(2).map(Result::unwrap).count(), 2);
        epoch.checkpoint().unwrap()
    };
    let state = Checkpoint::merge(&[state(0), state(1)]).unwrap();
    let mut epoch = loader(0, 1).resume(&state).unwrap().blocking();
    let items: Vec<_> = epoch
        .by_ref()
        .take_while(Result::is_ok)
        .map(Result::unwrap)
        .collect();
    assert_eq!(items, [8, 9, 12, 13, 16, 17, 20]);
    assert!(epoch.next().is_none());
    // Another loader, which skips the failing item, resumes the epoch.
    let skips = DataLoader::builder(graph().filter(|n| n % 4 < 2))
        .workers(0)
        .on_error(OnError::skip(1));
    let rest = skips
        .resumable()
        .build()
        .unwrap()
        .resume(&epoch.checkpoint().unwrap())
        .unwrap()
        .blocking();
    assert_eq!(
        rest.map(Result::unwrap).collect::<Vec<_>>(),
        [25, 24, 29, 28, 33, 32, 37, 36]
    );
}

#[test]
fn row_119_another_rule_for_uneven_ranks_is_refused() {
    let loader = |uneven| {
        let loader = DataLoader::builder(shaped(Shape::Contiguous, 50))
            .workers(0)
            .rank(1, 4)
            .uneven(uneven);
        loader.resumable().build().unwrap()
    };
    let mut epoch = loader(Uneven::Drop).epoch(0).blocking();
    assert_eq!(epoch.by_ref().take(2).count(), 2);
    let error = loader(Uneven::Allow)
        .resume(&epoch.checkpoint().unwrap())
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with(
            "the checkpoint is of another run: uneven was Some(Drop), and is Some(Allow)"
        ),
        "{error}"
    );
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

/// A checkpoint at a budget of steps is finished for that budget only, on other ranks too.
#[test]
fn row_118_a_larger_budget_goes_on_with_other_ranks() {
    for deal in [Deal::Index, Deal::Filter] {
        let loader = |rank, world, steps| {
            let builder = DataLoader::builder(global(deal, 480, world))
                .seed(3)
                .workers(0)
                .rank(rank, world);
            builder
                .uneven(Uneven::Drop)
                .resumable()
                .max_steps(steps)
                .build()
                .unwrap()
        };
        let state = |rank| {
            let mut epoch = loader(rank, 4, 5).epoch(1).blocking();
            assert_eq!(epoch.by_ref().map(Result::unwrap).count(), 5);
            epoch.checkpoint().unwrap()
        };
        let merged = Checkpoint::merge(&[0, 1, 2, 3].map(state)).unwrap();
        assert!(merged.is_finished());
        for rank in 0..2 {
            let whole: Vec<_> = loader(rank, 2, 10)
                .epoch(1)
                .blocking()
                .map(Result::unwrap)
                .collect();
            let rest = loader(rank, 2, 10).resume(&merged).unwrap().blocking();
            assert_eq!(rest.map(Result::unwrap).collect::<Vec<_>>(), whole[5..]);
        }
    }
}

/// Returns the checkpoints of all ranks of a job after this many steps.
fn states(graph: impl Fn() -> Graph<Vec<u64>>, world: usize, steps: usize) -> Vec<Checkpoint> {
    let state = |rank| {
        let builder = DataLoader::builder(graph())
            .workers(0)
            .rank(rank, world)
            .uneven(Uneven::Allow);
        let mut epoch = builder
            .on_error(OnError::skip(9))
            .resumable()
            .build()
            .unwrap()
            .epoch(0)
            .blocking();
        epoch
            .by_ref()
            .take(steps)
            .for_each(|batch| drop(batch.unwrap()));
        epoch.checkpoint().unwrap()
    };
    (0..world).map(state).collect()
}

#[test]
fn row_118_what_is_not_elastic_is_refused_by_name_with_both_numbers() {
    let refused = |then: fn() -> Graph<Vec<u64>>, now: fn() -> Graph<Vec<u64>>, expected: &str| {
        let state = Checkpoint::merge(&states(then, 4, 2)).unwrap();
        let loader = DataLoader::builder(now())
            .workers(0)
            .rank(1, 3)
            .uneven(Uneven::Allow)
            .resumable();
        let error = loader
            .build()
            .unwrap()
            .resume(&state)
            .unwrap_err()
            .to_string();
        let expected = format!(
            "wrong configuration: the checkpoint is of all of 4 ranks, and this is rank 1 of 3: {expected}; and 3 ranks cannot \
             share what 4 have left to read"
        );
        assert_eq!(error, expected);
    };
    refused(
        || range().batch(2),
        || range().batch(3),
        "a step had 4 batches of 2 items from `batch`, one for each rank, and would have 3 of 3",
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
    let drops = || range().batch(Batch::new(2).drop_last());
    refused(
        drops,
        || range().batch(4),
        "`batch` was 2, drop_last, and is 4",
    );

    refused(
        || range().batch(3),
        || range().map(|n| n).batch(4),
        "`batch` read `indices`, and reads `map`; `map` is new",
    );

    // One rank keeps no items to pad with.
    let padded = |world: usize| {
        let graph = Graph::range(0..48)
            .sharding_filter_padded()
            .batch(4 / world);
        let loader = DataLoader::builder(graph)
            .workers(0)
            .rank(0, world)
            .uneven(Uneven::Pad);
        loader.resumable().build().unwrap()
    };
    let mut epoch = padded(1).epoch(0).blocking();
    epoch
        .by_ref()
        .take(2)
        .for_each(|batch| drop(batch.unwrap()));
    let error = padded(2)
        .resume(&epoch.checkpoint().unwrap())
        .unwrap_err()
        .to_string();
    assert!(
        error
            .contains("would repeat items from the start, which were not kept for it; and 2 ranks"),
        "{error}"
    );

    // Without a batch every item is a step.
    let state = Checkpoint::merge(&states(|| range().map(|n| vec![n]), 3, 5)).unwrap();
    let resume = |world| {
        let loader = DataLoader::builder(range().map(|n| vec![n]))
            .workers(0)
            .rank(0, world);
        loader
            .uneven(Uneven::Drop)
            .resumable()
            .build()
            .unwrap()
            .resume(&state)
            .map(|epoch| epoch.blocking())
    };
    assert_eq!(resume(5).unwrap().next().unwrap().unwrap(), [15]);
    let error = resume(2).unwrap_err().to_string();
    assert!(
        error.contains("15 items were delivered, which do not divide among 2 ranks; and"),
        "{error}"
    );
}

#[test]
fn a_state_of_another_rank_is_refused_where_ranks_differ() {
    let shuffled = || {
        range()
            .shuffle(crate::pipes::Shuffle::new(4).within_rank())
            .batch(2)
    };
    let states = states(shuffled, 2, 3);
    let resume = |state: &Checkpoint| {
        let loader = DataLoader::builder(shuffled())
            .workers(0)
            .rank(1, 2)
            .uneven(Uneven::Allow);
        loader
            .resumable()
            .build()
            .unwrap()
            .resume(state)
            .map(drop)
            .map_err(|error| error.to_string())
    };
    assert_eq!(resume(&states[1]), Ok(()));
    let error = resume(&states[0]).unwrap_err();
    assert!(
        error.contains("the checkpoint is of rank 0 of 2, and this is rank 1 of 2: `shuffle`"),
        "{error}"
    );
    assert!(
        error.ends_with("; and where rank 1 stands is not in it"),
        "{error}"
    );
    assert_eq!(resume(&Checkpoint::merge(&states).unwrap()), Ok(()));
}

#[test]
fn states_of_different_ranks_steps_or_runs_are_not_merged() {
    let four = states(|| range().batch(2), 4, 2);
    let merge = |states: &[&Checkpoint]| {
        let states: Vec<Checkpoint> = states.iter().map(|&state| state.clone()).collect();
        Checkpoint::merge(&states).unwrap_err().to_string().replace(
            "wrong configuration: the checkpoints cannot be merged: ",
            "",
        )
    };
    let [a, b, c, d] = &four[..] else {
        unreachable!()
    };
    assert_eq!(merge(&[]), "there are none");
    assert_eq!(merge(&[a, b, c]), "there are 3, of a job of 4 ranks");
    assert_eq!(merge(&[a, b, c, b]), "two are of rank 1");
    let later = &states(|| range().batch(2), 4, 3)[3];
    assert_eq!(
        merge(&[a, b, c, later]),
        "rank 3 has 3 steps delivered, and rank 0 has 2"
    );
    let other = &states(|| range().batch(3), 4, 2)[3];
    assert_eq!(
        merge(&[a, b, c, other]),
        "ranks 0 and 3 have different graphs: `batch` was batch(2), and is batch(3)"
    );
    let all = Checkpoint::merge(&[d.clone(), b.clone(), a.clone(), c.clone()]).unwrap();
    assert_eq!(merge(&[&all, b, c, d]), "two are of rank 1");
    let dropped = &{
        let loader = DataLoader::builder(range().batch(2))
            .workers(0)
            .rank(3, 4)
            .uneven(Uneven::Drop);
        let mut epoch = loader.resumable().build().unwrap().epoch(0).blocking();
        assert_eq!(epoch.by_ref().take(2).count(), 2);
        epoch.checkpoint().unwrap()
    };
    assert_eq!(
        merge(&[a, b, c, dropped]),
        "ranks 0 and 3 have different graphs: uneven was Some(Allow), and is Some(Drop)"
    );
    assert!(Checkpoint::merge(&four).unwrap() == all);
}

#[test]
fn row_118_many_items_go_on_behind_marks_that_are_seldom() {
    let graph = |world: usize| {
        let members = Graph::range(0..2000)
            .shuffle(300)
            .flat_map(|n| (0..n % 9).map(move |k| n * 10 + k));
        let own = members
            .shuffle(500)
            .sharding_filter()
            .map_with_rng(|n, rng| [n, rng.below(100)]);
        own.prefetch(8).batch(96 / world).collate()
    };
    let loader = |rank, world| {
        let loader = DataLoader::builder(graph(world))
            .seed(9)
            .workers(2)
            .rank(rank, world);
        loader.uneven(Uneven::Drop).resumable().build().unwrap()
    };
    for (then, now, stop) in some_of([(4, 3, 40), (1, 2, 61), (8, 1, 7), (2, 12, 70)]) {
        let states: Vec<Checkpoint> = (0..then)
            .map(|rank| {
                let mut epoch = loader(rank, then).epoch(2).blocking();
                epoch
                    .by_ref()
                    .take(stop)
                    .for_each(|batch| drop(batch.unwrap()));
                epoch.checkpoint().unwrap()
            })
            .collect();
        let state = Checkpoint::merge(&states).unwrap();
        for rank in [0, now - 1] {
            let numbers = |epoch: crate::Epoch<crate::Tensor>| -> Vec<Vec<u64>> {
                epoch
                    .blocking()
                    .map(|batch| batch.unwrap().as_slice::<u64>().unwrap().to_vec())
                    .collect()
            };
            let whole = numbers(loader(rank, now).epoch(2));
            assert!(whole.len() > 80);
            let rest = numbers(loader(rank, now).resume(&state).unwrap());
            assert_eq!(rest, whole[stop..], "{then} to {now} ranks at {stop}");
        }
    }
}
