//! Reports of user-defined pipes about the items that they hold and give. The reports are checked,
//! and a stopped epoch is resumed by them.

use std::task::{self, Poll};

use datapipes::loader::Builder;
use datapipes::pipes::{BucketBatch, FromIterator};
use datapipes::{
    Arity, Checkpoint, Chunk, Chunks, Context, DataLoader, Dealing, Demand, Edited, Graph, Hints,
    Item, Items, Join, OnError, Order, Pipe, Result, Role, Uneven, testing,
};
use proptest::prelude::*;

use crate::graphs::config;
use crate::user_pipes::*;

#[test]
fn pipes_of_ones_own_keep_the_contract_with_errors_in_their_groups() {
    let numbers = || Vec::from_iter(0..testing::cases(11).max(7) as u64);
    for says in testing::some_of([Says::Lineage, Says::Role, Says::Both, Says::Neither]) {
        for size in testing::some_of([3, 20]) {
            testing::check_pipe(&Groups(size, says), numbers());
            testing::check_pipe(
                &Mixer {
                    buffer: size,
                    within_rank: false,
                    says,
                },
                numbers(),
            );
        }
    }
    for size in testing::some_of([1, 3, 20]) {
        testing::check_pipe(&Columns(size), numbers());
        testing::check_pipe(&Exchange(size), numbers());
    }
    testing::check_pipe(&Deal, numbers());
    testing::check_pipe(&Every, numbers());
    testing::check_pipe(&Count, numbers());
    testing::check_pipe(&Ahead(3, false), numbers());
    testing::check_pipe(&Ahead(3, true), numbers());
    let repeated = || vec![0, 0, 1, 1, 1, 2, 3, 3, 4u64];
    testing::check_pipe(&Fresh(1), repeated());
    testing::check_pipe(&Runs(10), repeated());
    testing::check_pipe(&Window(3), numbers());
    testing::check_pipe(&Echo(3), (0..7).collect());
    testing::check_join(&Pair, (Vec::from_iter(0..6u64), Vec::from_iter(10..15u64)));
    testing::check_join(
        &Alternate(2),
        (Vec::from_iter(0..7u64), Vec::from_iter(10..15u64)),
    );
    testing::check_source(&Ranges(20));
    testing::check_split(&Twice, Vec::from_iter(0..9u64));
    let ways = [GoesOn::Keeps, GoesOn::ByPosition, GoesOn::FromTheBeginning];
    for goes_on in testing::some_of(ways) {
        testing::check_source(&Numbers { items: 20, goes_on });
    }
}

/// A step over lists. Grouping concatenates lists, so that no number is lost.
#[derive(Clone, Debug)]
enum Stage {
    Map,
    Batch(usize),
    Bucket(usize),
    Shuffle(usize),
    Prefetch(usize),
    Groups(Groups),
    Mixer(Mixer),
}

fn stage() -> impl Strategy<Value = Stage> {
    prop_oneof![
        1 => Just(Stage::Map),
        1 => (1usize..6).prop_map(Stage::Batch),
        1 => (1usize..6).prop_map(Stage::Bucket),
        1 => (1usize..20).prop_map(Stage::Shuffle),
        1 => (1usize..9).prop_map(Stage::Prefetch),
        3 => (1usize..6, says()).prop_map(|(size, says)| Stage::Groups(Groups(size, says))),
        3 => (1usize..20, any::<bool>(), says()).prop_map(|(buffer, within_rank, says)| {
            Stage::Mixer(Mixer { buffer, within_rank, says })
        }),
    ]
}

impl Stage {
    fn add(&self, graph: Graph<Vec<u64>>) -> Graph<Vec<u64>> {
        let joined = |lists: Vec<Vec<u64>>| lists.concat();
        match *self {
            Stage::Map => graph.map(|list| list).concurrency(5),
            Stage::Batch(size) => graph.batch(size).map(joined),
            Stage::Bucket(size) => {
                let bucket = |list: &Vec<u64>| list.first().map_or(0, |n| (n % 10) as usize);
                graph
                    .pipe(BucketBatch::new(bucket, [4], [size, size + 1]))
                    .map(joined)
            }
            Stage::Shuffle(buffer) => graph.shuffle(buffer),
            Stage::Prefetch(items) => graph.prefetch(items),
            Stage::Groups(groups) => graph.pipe(groups).map(joined),
            Stage::Mixer(mixer) => graph.pipe(mixer),
        }
    }
}

proptest! {
    #![proptest_config(config(150))]

    /// Law 8 in any order, over pipes that group and reorder, ours and those of users: each item
    /// comes once, and each error.
    #[test]
    fn law_8_in_any_order_with_pipes_of_ones_own(
        items in 0u64..300, fails in 2u64..20, stages in prop::collection::vec(stage(), 1..5),
        workers in prop::collection::vec(0usize..4, 3), stops in [0usize..60, 0usize..60],
        orders in prop::collection::vec(
            prop_oneof![Just(Order::Arrival), Just(Order::Strict), (0usize..60).prop_map(Order::Bounded)], 3,
        ),
    ) {
        let graph = || {
            let lists = Graph::range(0..items)
                .try_map(move |n| if n % fails == 1 { Err("unlucky") } else { Ok(vec![n]) })
                .concurrency(5);
            stages.iter().fold(lists, |graph, stage| stage.add(graph))
        };
        let (mut state, mut seen, mut skipped) = (None, Vec::new(), 0);
        for part in 0..3 {
            let builder = DataLoader::builder(graph()).workers(workers[part]).order(orders[part]);
            let loader = builder.on_error(OnError::skip(u64::MAX)).resumable().build().unwrap();
            let epoch = state.as_ref().map_or_else(|| loader.epoch(0), |state| loader.resume(state).unwrap());
            let mut epoch = epoch.blocking();
            let most = stops.get(part).copied().unwrap_or(usize::MAX);
            for list in epoch.by_ref().take(most) {
                seen.extend(list.unwrap());
            }
            skipped += epoch.stats().map_or(0, |stats| stats.skipped);
            state = Some(epoch.checkpoint().unwrap());
        }
        seen.sort_unstable();
        let whole: Vec<u64> = (0..items).filter(|n| n % fails != 1).collect();
        prop_assert_eq!(seen, whole);
        prop_assert_eq!(skipped, items - (0..items).filter(|n| n % fails != 1).count() as u64);
    }
}

/// Returns the items of an epoch that is stopped after some of them, and resumed.
fn resumed<T: Send + 'static>(loader: &DataLoader<T>, stop: usize) -> Result<Vec<T>> {
    let mut epoch = loader.epoch(0).blocking();
    let mut seen = epoch.by_ref().take(stop).collect::<Result<Vec<_>>>()?;
    let state = epoch.checkpoint()?;
    drop(epoch);
    let rest = loader.resume(&state)?.blocking();
    seen.extend(rest.collect::<Result<Vec<_>>>()?);
    Ok(seen)
}

/// Items of an epoch that is stopped after some batches, and resumed.
fn stopped_after(graph: Graph<Vec<u64>>, order: Order, stop: usize) -> Result<Vec<u64>> {
    let loader = DataLoader::builder(graph)
        .workers(2)
        .order(order)
        .resumable()
        .build()
        .expect("a sound graph");
    let mut seen = resumed(&loader, stop)?.concat();
    seen.sort_unstable();
    Ok(seen)
}

const ORDERS: [Order; 3] = [Order::Strict, Order::Bounded(16), Order::Arrival];

fn numbers() -> Graph<u64> {
    Graph::range(0..400).map(|n| n).concurrency(8)
}

#[test]
fn a_pipe_with_a_role_that_does_not_say_what_it_gave_makes_what_is_above_it_strict() {
    for says in [Says::Role, Says::Neither] {
        for order in ORDERS {
            let batches = numbers().pipe(Groups(8, says));
            let plan = DataLoader::builder(batches.clone())
                .workers(2)
                .order(order)
                .resumable()
                .build()
                .unwrap();
            assert!(
                plan.explain().contains("strict order]"),
                "{}",
                plan.explain()
            );
            assert_eq!(
                stopped_after(batches, order, 10).unwrap(),
                Vec::from_iter(0..400),
                "{order}"
            );
            for within_rank in [false, true] {
                let mixer = Mixer {
                    buffer: 30,
                    within_rank,
                    says,
                };
                let mixed = numbers().pipe(mixer).map(|n| vec![n]);
                assert_eq!(
                    stopped_after(mixed, order, 80).unwrap(),
                    Vec::from_iter(0..400),
                    "{order}"
                );
            }
        }
    }
}

#[test]
fn a_pipe_that_says_what_it_gave_goes_on_in_every_order() {
    for says in [Says::Lineage, Says::Both] {
        for order in ORDERS {
            let batches = numbers().pipe(Groups(8, says));
            let plan = DataLoader::builder(batches.clone())
                .workers(2)
                .order(order)
                .resumable()
                .build()
                .unwrap();
            let is_strict = plan.explain().contains("strict order]");
            assert_eq!(is_strict, order == Order::Strict, "{}", plan.explain());
            for stop in [0, 1, 10, 49, 50] {
                assert_eq!(
                    stopped_after(batches.clone(), order, stop).unwrap(),
                    Vec::from_iter(0..400)
                );
            }
            let mixer = Mixer {
                buffer: 30,
                within_rank: false,
                says,
            };
            for stop in [0, 1, 80, 399] {
                let mixed = numbers().pipe(mixer).map(|n| vec![n]);
                assert_eq!(
                    stopped_after(mixed, order, stop).unwrap(),
                    Vec::from_iter(0..400),
                    "{order}"
                );
            }
        }
    }
}

/// Numbers dealt to ranks, in batches of 8 over all of them, by pipes of the library or of a user.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ranked {
    BuiltIn,
    Own,
    OwnPlain,
    OwnNumbered,
}

fn ranked(how: Ranked, world: usize) -> Graph<Vec<u64>> {
    let numbers = Graph::range(0..83).shuffle(9);
    let groups = Groups(8 / world, Says::Both);
    match how {
        Ranked::BuiltIn => numbers.sharding_filter_padded().batch(8 / world),
        Ranked::OwnPlain => numbers.pipe(Every).pipe(groups),
        Ranked::Own => numbers.pipe(Deal).map(|n| n).pipe(groups),
        Ranked::OwnNumbered => {
            let numbered = numbers.pipe(Deal).pipe(Count).pipe(groups);
            numbered.map(|batch| {
                batch
                    .into_iter()
                    .map(|(number, n)| number * 100 + n)
                    .collect()
            })
        }
    }
}

fn rank_loader<T: Send + 'static>(
    graph: Graph<T>,
    [rank, world]: [usize; 2],
    uneven: Uneven,
) -> DataLoader<T> {
    let loader = DataLoader::builder(graph).seed(5).workers(0).uneven(uneven);
    loader.rank(rank, world).resumable().build().unwrap()
}

/// Returns the checkpoint of all ranks after some steps, and what they gave.
fn stopped_ranks<T: Send + 'static>(
    graph: impl Fn() -> Graph<T>,
    world: usize,
    uneven: Uneven,
    steps: usize,
) -> (Checkpoint, Vec<T>) {
    let (mut states, mut seen) = (Vec::new(), Vec::new());
    for rank in 0..world {
        let mut epoch = rank_loader(graph(), [rank, world], uneven)
            .epoch(0)
            .blocking();
        seen.extend(epoch.by_ref().take(steps).map(Result::unwrap));
        states.push(epoch.checkpoint().unwrap());
    }
    let state = Checkpoint::merge(&states).unwrap();
    (Checkpoint::from_bytes(&state.to_bytes()).unwrap(), seen)
}

/// Rows 118: pipes of a user, which tell their snapshots, go on with any number of ranks as the
/// built-in ones do.
#[test]
fn row_118_pipes_of_ones_own_go_on_with_another_number_of_ranks() {
    for how in [Ranked::Own, Ranked::OwnNumbered, Ranked::OwnPlain] {
        for uneven in [Uneven::Drop, Uneven::Allow, Uneven::Pad] {
            for (then, now) in [(2, 4), (2, 1), (4, 2), (1, 8)] {
                for stop in [3, 10] {
                    let what = format!("{how:?}, {uneven:?}, {then} to {now} ranks at {stop}");
                    // One rank keeps no items to pad with.
                    let cannot_pad = then == 1 || how == Ranked::OwnPlain;
                    if (uneven == Uneven::Pad && cannot_pad)
                        || (uneven == Uneven::Drop && how == Ranked::OwnPlain)
                    {
                        continue;
                    }
                    let (state, mut seen) = stopped_ranks(|| ranked(how, then), then, uneven, stop);
                    for rank in 0..now {
                        let loader = rank_loader(ranked(how, now), [rank, now], uneven);
                        let whole: Vec<_> =
                            loader.epoch(0).blocking().map(Result::unwrap).collect();
                        if how == Ranked::Own {
                            let graph = ranked(Ranked::BuiltIn, now);
                            let loader = rank_loader(graph, [rank, now], uneven);
                            let built_in = loader.epoch(0).blocking().map(Result::unwrap);
                            assert_eq!(built_in.collect::<Vec<_>>(), whole, "{what}, rank {rank}");
                        }
                        let rest = loader
                            .resume(&state)
                            .unwrap_or_else(|error| panic!("{what}: {error}"));
                        let rest: Result<Vec<_>> = rest.blocking().collect();
                        let rest = rest.unwrap();
                        assert_eq!(rest, whole[stop..], "{what}, rank {rank}");
                        seen.extend(rest);
                    }
                    let mut seen: Vec<u64> = seen.concat().iter().map(|n| n % 100).collect();
                    seen.sort_unstable();
                    let given = seen.len();
                    seen.dedup();
                    match uneven {
                        Uneven::Pad => assert_eq!(
                            (seen.len(), given),
                            (83, 83usize.next_multiple_of(now)),
                            "{what}"
                        ),
                        Uneven::Drop => assert_eq!(
                            (seen.len(), given),
                            (83 / now * now, 83 / now * now),
                            "{what}"
                        ),
                        _ => assert_eq!((seen.len(), given), (83, 83), "{what}"),
                    }
                }
            }
        }
    }
}

/// Deals a range of ten items to each rank in turn.
#[derive(Clone, Copy, Debug)]
struct Tens;

impl Pipe<u64> for Tens {
    type Out = u64;

    fn apply(&self, input: Items<u64>, cx: &Context) -> Items<u64> {
        let rank = cx.rank();
        input.each(cx, move |item| {
            let whose = (*item / 10) as usize % rank.world;
            (whose == rank.index).then_some(Ok(item))
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .arity(Arity::AtMostOne)
            .role(Role::Shard {
                can_pad: false,
                dealing: Dealing::Other,
            })
    }
}

/// Batches whose settings do not say how large they are.
#[derive(Clone, Copy, Debug)]
struct Unnamed(Groups);

impl Pipe<u64> for Unnamed {
    type Out = Vec<u64>;

    fn apply(&self, input: Items<u64>, cx: &Context) -> Items<Vec<u64>> {
        self.0.apply(input, cx)
    }
    fn hints(&self) -> Hints {
        Pipe::<u64>::hints(&self.0).settings("")
    }
}

#[test]
fn row_118_a_pipe_of_ones_own_that_cannot_tell_is_refused_by_name() {
    let refused = |graph: fn(usize) -> Graph<Vec<u64>>| {
        let (state, _) = stopped_ranks(|| graph(2), 2, Uneven::Allow, 4);
        let error = rank_loader(graph(4), [1, 4], Uneven::Allow)
            .resume(&state)
            .unwrap_err();
        let error = error.to_string();
        let problem = error
            .split("this is rank 1 of 4: ")
            .nth(1)
            .expect("the numbers");
        problem
            .strip_suffix("; and 4 ranks cannot share what 2 have left to read")
            .expect("both")
            .to_owned()
    };
    assert_eq!(
        refused(|_| Graph::range(0..80).pipe(Tens).map(|n| vec![n])),
        "`tens` deals items in another way for another number of ranks"
    );
    assert_eq!(
        refused(|_| Graph::range(0..80)
            .pipe(Deal)
            .pipe(Ahead(3, true))
            .map(|n| vec![n])),
        "`ahead` does not tell where it stands by a number of items (`Pipe::snapshot_at`)"
    );
    assert_eq!(
        refused(|_| Graph::range(0..80)
            .pipe(Deal)
            .pipe(Fresh(1))
            .map(|n| vec![n])),
        "`fresh` is below what deals the items, and does not give one item for each, in their order"
    );
    assert_eq!(
        refused(|world| Graph::range(0..80)
            .pipe(Deal)
            .pipe(Unnamed(Groups(8 / world, Says::Role)))),
        "`unnamed` makes batches of 2, which does not stand once in its settings, \"\""
    );
    assert_eq!(
        refused(|_| Graph::range(0..80).pipe(Deal).pipe(Groups(8, Says::Role))),
        "a step had 2 batches of 8 items from `groups`, one for each rank, and would have 4 of 8"
    );
}

/// Batches that are said to be made of something, but for the last.
struct Forgets;

impl Pipe<u64> for Forgets {
    type Out = Vec<u64>;

    fn apply(&self, mut input: Items<u64>, cx: &Context) -> Items<Vec<u64>> {
        let cx = cx.clone();
        Items::generate(async move |out| {
            let mut batch = Vec::new();
            while let Some(item) = out.hold_from(&cx, &mut input).await {
                batch.push(item);
                if batch.len() == 8 {
                    let (items, places) = parts(batch.drain(..));
                    out.emit_of(places, Ok(Item::gather(items, 0))).await;
                }
            }
            let (items, _) = parts(batch);
            out.emit(Ok(Item::gather(items, 0))).await;
        })
    }
    fn hints(&self) -> Hints {
        Hints::any_order().is_resumable(true).lineage(true)
    }
}

#[test]
fn an_output_of_which_nothing_was_said_ends_the_epoch_in_an_error() {
    let graph = Graph::range(0..20).map(|n| n).concurrency(4).pipe(Forgets);
    let loader = DataLoader::builder(graph)
        .workers(2)
        .order(Order::Arrival)
        .on_error(OnError::skip(9));
    let loader = loader.resumable().build().unwrap();
    let seen: Vec<_> = loader.epoch(0).blocking().collect();
    let [Ok(_), Ok(_), Err(error)] = &seen[..] else {
        panic!("{seen:?}")
    };
    let words = "names the inputs of its outputs (`Hints::lineage`), but has named those of 2 outputs, and given";
    assert!(
        error.to_string().starts_with("forgets: ") && error.to_string().contains(words),
        "{error}"
    );
}

/// Pairs that say that they go by position, though a join is not told which are wanted, and keep
/// nothing.
struct Placed;

impl Join<(u64, u64)> for Placed {
    type Out = u64;

    fn join(&self, (mut left, mut right): (Items<u64>, Items<u64>), _: &Context) -> Items<u64> {
        Items::generate(async move |out| {
            while let Some(a) = out.next_from(&mut left).await {
                let Some(b) = out.next_from(&mut right).await else {
                    return;
                };
                out.emit(Ok(a.map(|a| a + *b))).await;
            }
        })
    }
    fn hints(&self) -> Hints {
        Hints::default().is_resumable(true).by_position(true)
    }
}

#[test]
fn a_join_that_says_it_goes_by_position_repeats_nothing() {
    for workers in [0, 2] {
        let graph = Graph::join((Graph::range(0..50), Graph::range(0..50)), Placed);
        let loader = DataLoader::builder(graph)
            .workers(workers)
            .resumable()
            .build()
            .unwrap();
        for stop in [0, 1, 20, 50] {
            let seen = resumed(&loader, stop).unwrap();
            assert_eq!(
                seen,
                Vec::from_iter((0..50).map(|n| 2 * n)),
                "stopped after {stop}"
            );
        }
    }
}

/// A split that goes by position leaves out by itself what was delivered of each output.
#[test]
fn columns_and_draws_of_ones_own_go_on_where_they_were() {
    let graph = || {
        Graph::source(Ranges(1000))
            .pipe(Exchange(50))
            .pipe(Columns(7))
    };
    let batches = graph().collect().unwrap();
    assert_eq!(batches.concat().len(), 1000);
    assert!(!batches.concat().is_sorted());
    let loader = DataLoader::builder(graph()).resumable().build().unwrap();
    for stop in [0, 1, 30, 140] {
        assert_eq!(resumed(&loader, stop).unwrap(), batches);
    }
}

#[test]
fn a_setting_of_ones_own_that_may_change_changes_with_the_next_item() {
    let loader = |every| {
        let inputs = (Graph::range(0..40), Graph::range(100..140));
        let graph = Graph::join(inputs, Alternate(every));
        DataLoader::builder(graph).resumable().build().unwrap()
    };
    let mut epoch = loader(2).epoch(0).blocking();
    let first: Vec<u64> = epoch.by_ref().take(7).map(Result::unwrap).collect();
    assert_eq!(first, [0, 1, 100, 2, 3, 101, 4]);
    let checkpoint = epoch.checkpoint().unwrap();
    let error = loader(1).resume(&checkpoint).unwrap_err();
    let expected =
        "`alternate` was alternate(alternate, every 2), and is alternate(alternate, every 1)";
    assert!(error.to_string().contains(expected), "{error}");
    let rest = loader(1)
        .resume_edited(&checkpoint, Edited::Weights)
        .unwrap();
    let rest: Vec<u64> = rest.blocking().map(Result::unwrap).take(5).collect();
    assert_eq!(rest, [5, 102, 6, 103, 7]);
}

#[test]
fn a_split_of_ones_own_goes_on_in_each_output() {
    for workers in [0, 2] {
        let mut outputs = Graph::range(0..40).split(Twice).into_iter();
        let (a, b) = (outputs.next().unwrap(), outputs.next().unwrap());
        let late = b.map(|n| n + 100).batch(7);
        let graph = Graph::join(vec![a.batch(3), late], datapipes::pipes::Mux::new(2));
        let loader = DataLoader::builder(graph)
            .workers(workers)
            .resumable()
            .build()
            .unwrap();
        let whole = loader.epoch(0).blocking();
        let whole = whole.collect::<Result<Vec<_>>>().unwrap();
        for stop in 0..=whole.len() {
            let seen = resumed(&loader, stop).unwrap();
            assert_eq!(seen, whole, "{workers} workers, stopped after {stop}");
        }
    }
}

/// The queue comes after the pipe: the pipe is applied with workers and without.
#[test]
fn a_pipe_with_the_role_of_a_queue_is_applied() {
    let run = |workers| {
        let graph = Graph::range(0..50).map(|n| n).pipe(Ahead(3, true));
        let loader = DataLoader::builder(graph).workers(workers).build().unwrap();
        loader
            .epoch(0)
            .blocking()
            .collect::<Result<Vec<_>>>()
            .unwrap()
    };
    let inline = run(0);
    assert_ne!(inline, Vec::from_iter(0..50));
    assert_eq!(run(2), inline);
}

/// Leaves out items that equal the one before; see [`Graph::dedup`].
#[derive(Clone, Debug)]
pub struct Dedup;

impl<T: Clone + PartialEq + Send + 'static> Pipe<T> for Dedup {
    type Out = T;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<T> {
        let context = cx.clone();
        let mut last: Option<T> = None;
        input.each(cx, move |item| {
            if last.as_ref() == Some(&*item) {
                context.count_dropped(1);
                return None;
            }
            last = Some(T::clone(&item));
            Some(Ok(item))
        })
    }
    fn hints(&self) -> Hints {
        Hints::default().arity(Arity::AtMostOne)
    }
}

#[test]
fn the_first_pipe_of_contributing_keeps_the_contract() {
    let (guide, here) = (
        include_str!("../../CONTRIBUTING.md"),
        include_str!("own_pipes.rs"),
    );
    let begin = guide
        .find("/// Leaves out items that equal the one before; see")
        .expect("its type");
    let end = guide[begin..]
        .find("impl<T: Clone + PartialEq + Send + 'static> Graph<T>")
        .expect("its method");
    assert!(
        here.contains(&guide[begin..begin + end]),
        "the pipe in CONTRIBUTING.md is another than the one here"
    );
    testing::check_pipe(&Dedup, (0..20u64).map(|n| n / 3).collect());
}

/// A pipe that breaks the rule that no chunk is empty.
struct Empties;

struct WithEmpties(Items<u64>, bool);

impl Chunks<u64> for WithEmpties {
    fn poll_chunk(
        &mut self,
        cx: &mut task::Context<'_>,
        demand: Demand,
    ) -> Poll<Option<Chunk<u64>>> {
        self.1 = !self.1;
        match self.1 {
            true => Poll::Ready(Some(Chunk::default())),
            false => self.0.poll_chunk(cx, demand),
        }
    }
}

impl Pipe<u64> for Empties {
    type Out = u64;

    fn apply(&self, input: Items<u64>, _: &Context) -> Items<u64> {
        Items::from_chunks(WithEmpties(input, false))
    }
}

#[test]
fn an_empty_chunk_is_not_the_end() {
    for workers in [0, 2] {
        let graph = Graph::range(0..50).map(|n| n + 1).pipe(Empties);
        let loader = DataLoader::builder(graph).workers(workers).build().unwrap();
        let seen: Vec<u64> = loader.epoch(0).blocking().map(Result::unwrap).collect();
        assert_eq!(seen, Vec::from_iter(1..51), "{workers} workers");
    }
}

/// Gives each number some times over.
#[derive(Clone, Copy)]
struct Times {
    times: fn(u64) -> u64,
    says: Arity,
    /// Number of outputs for each input, by `len_hint`.
    each: Option<u64>,
    is_shardable: bool,
}

impl Pipe<u64> for Times {
    type Out = u64;

    fn apply(&self, mut input: Items<u64>, _: &Context) -> Items<u64> {
        let times = self.times;
        Items::generate(async move |out| {
            while let Some(item) = out.next_from(&mut input).await {
                for _ in 0..times(*item) {
                    out.emit(Ok(item.clone())).await;
                }
            }
        })
    }
    fn hints(&self) -> Hints {
        let hints = match self.is_shardable {
            true => Hints::shardable(),
            false => Hints::default().by_position(true).is_resumable(true),
        };
        hints.arity(self.says)
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input * self.each?)
    }
}

#[test]
fn a_pipe_that_gives_another_number_than_it_says_ends_the_epoch_in_an_error() {
    let fewer: fn(u64) -> u64 = |n| u64::from(n != 25);
    let more: fn(u64) -> u64 = |n| 1 + u64::from(n == 25);
    let cases = [
        (
            fewer,
            Arity::One,
            "gives one output for each input, and gave",
        ),
        (
            more,
            Arity::One,
            "gives one output for each input, and gave",
        ),
        (
            more,
            Arity::AtMostOne,
            "gives at most one output for each input, and gave",
        ),
    ];
    let ways = [true, false].map(|is_shardable| [(is_shardable, 0), (is_shardable, 2)]);
    for (times, says, what) in cases {
        for (is_shardable, workers) in ways.concat() {
            for (resumable, concurrency) in [(false, 3), (true, 3), (true, 1000)] {
                let pipe = Times {
                    times,
                    says,
                    each: None,
                    is_shardable,
                };
                let graph = Graph::range(0..50).map(|n| n + 1).concurrency(concurrency);
                let graph = graph.pipe(pipe).concurrency(concurrency).map(|n| n + 1);
                let builder = DataLoader::builder(graph).workers(workers);
                let builder = builder.on_error(OnError::skip(9));
                let builder = match resumable {
                    true => builder.resumable(),
                    false => builder,
                };
                let epoch = builder.build().unwrap().epoch(0).blocking();
                let error = epoch.last().unwrap().unwrap_err().to_string();
                assert!(
                    error.starts_with("times: wrong configuration: says"),
                    "{error}"
                );
                assert!(error.contains(what), "{error}");
            }
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_pipe_in_a_process_that_gives_more_than_it_says_ends_the_epoch_in_an_error() {
    let graph = Graph::range(0..50).in_processes(1, |numbers| {
        numbers.pipe(Times {
            times: |n| 1 + u64::from(n == 25),
            says: Arity::One,
            each: None,
            is_shardable: true,
        })
    });
    let loader = DataLoader::builder(graph).workers(2).build().unwrap();
    let error = loader.epoch(0).blocking().last().unwrap().unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("gives one output for each input, and gave"),
        "{said}"
    );
}

/// Returns the last result of an epoch, in which errors of items are skipped.
fn last(builder: Builder<u64>) -> Result<u64> {
    let loader = builder.on_error(OnError::skip(9)).build().unwrap();
    loader.epoch(0).blocking().last().unwrap()
}

#[test]
fn a_pipe_that_gives_another_number_than_its_len_hint_ends_the_epoch_in_an_error() {
    let right: fn(u64) -> u64 = |_| 2;
    let fewer: fn(u64) -> u64 = |n| 2 - u64::from(n == 25);
    let more: fn(u64) -> u64 = |n| 2 + u64::from(n == 25);
    for (times, is_shardable, workers) in [
        (right, true, 2),
        (right, false, 2),
        (fewer, true, 0),
        (fewer, true, 2),
        (fewer, false, 2),
        (more, true, 0),
        (more, true, 2),
        (more, false, 2),
    ] {
        let pipe = Times {
            times,
            says: Arity::Any,
            each: Some(2),
            is_shardable,
        };
        let builder = |failing: bool| {
            // The length is unknown before: files that are listed, for instance.
            let numbers = Graph::range(0..60).filter(|n| *n < 50);
            let numbers = numbers.try_map(move |n| match n == 7 && failing {
                true => Err("seven"),
                false => Ok(n),
            });
            DataLoader::builder(numbers.pipe(pipe).map(|n| n)).workers(workers)
        };
        let is_right = std::ptr::fn_addr_eq(times, right);
        match last(builder(false)) {
            Ok(n) => assert!(is_right && n == 49),
            Err(error) => {
                let said = error.to_string();
                assert!(!is_right, "{said}");
                assert!(
                    said.starts_with("times: wrong configuration: says by `len_hint`"),
                    "{said}"
                );
                if !is_shardable {
                    assert!(said.contains("gives 100 items, and gave "), "{said}");
                }
            }
        }
        // The number is not checked once an item has failed: nobody knows how many outputs it would have had.
        assert!(!is_right || last(builder(true)).is_ok());
    }
}

#[test]
fn a_source_that_gives_another_number_than_its_len_hint_ends_the_epoch_in_an_error() {
    let numbers = |len| Graph::source(FromIterator::new(|| 0..7u64).len(len));
    for workers in [0, 2] {
        let builder = |graph| DataLoader::builder(graph).workers(workers);
        assert_eq!(last(builder(numbers(7))).unwrap(), 6);
        for len in [9, 5, 0] {
            let said = last(builder(numbers(len))).unwrap_err().to_string();
            let what = format!(
                "from_iter: wrong configuration: says by `len_hint` that it gives {len} items, and gave "
            );
            assert!(said.starts_with(&what), "{said}");
        }
        // An epoch that does not ask for the end does not meet it.
        assert_eq!(last(builder(numbers(9).take(3))).unwrap(), 2);
        // Nor does one whose items fail know the number.
        let failing = numbers(7).try_map(|n| if n == 3 { Err("three") } else { Ok(n) });
        assert_eq!(last(builder(failing)).unwrap(), 6);
    }
}
