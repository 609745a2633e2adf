//! Pipes, joins and sources as users write them, with what is public alone: they have the rights of those that are built in.

use std::collections::VecDeque;

use datapipes::pipes::BucketBatch;
use datapipes::{
    Arity, Context, DataLoader, Error, ErrorKind, Facts, Graph, Held, Item, Items, Join, OnError, Order,
    Pipe, Place, Result, Role, Source, testing,
};
use proptest::prelude::*;

use crate::graphs::config;

/// Whether a pipe says which inputs its outputs are made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Says {
    Lineage,
    /// It has the role of one that is built in, and says nothing besides.
    Role,
    Both,
    Neither,
}

impl Says {
    fn facts(self, role: Role) -> Facts {
        let facts = if matches!(self, Says::Lineage | Says::Both) {
            Facts::any_order().with_lineage()
        } else {
            Facts::any_order()
        };
        if matches!(self, Says::Role | Says::Both) { facts.with_role(role) } else { facts }
    }
}

/// Items and their places.
fn parts<T>(held: impl IntoIterator<Item = Held<T>>) -> (Vec<Item<T>>, Vec<Place>) {
    held.into_iter().map(Held::into_parts).unzip()
}

/// Batches of so many, as `batch` makes them.
#[derive(Clone, Copy, Debug)]
pub struct Groups(pub usize, pub Says);

impl<T: Send + 'static> Pipe<T> for Groups {
    type Out = Vec<T>;

    fn apply(&self, mut input: Items<T>, cx: &Context) -> Items<Vec<T>> {
        let (cx, size) = (cx.clone(), self.0);
        let mut batches: u64 = match cx.kept() {
            Ok(kept) => kept.unwrap_or(0),
            Err(error) => return Items::fail(error),
        };
        Items::generate(async move |out| {
            let mut batch = Vec::new();
            loop {
                out.keep(&cx, || batches);
                let next = out.hold_from(&cx, &mut input).await;
                let ended = next.is_none();
                batch.extend(next);
                if batch.len() == size || (ended && !batch.is_empty()) {
                    let (items, places) = parts(batch.drain(..));
                    batches += 1;
                    out.emit_of(places, Ok(Item::gather(items, batches - 1))).await;
                }
                if ended {
                    return;
                }
            }
        })
    }
    fn is_resumable(&self) -> bool {
        true
    }
    fn facts(&self) -> Facts {
        self.1.facts(Role::Batch(self.0)).with_buffered(self.0)
    }
}

/// Holds so many, and gives one of them, drawn by the item that comes.
#[derive(Clone, Copy, Debug)]
pub struct Mixer {
    pub buffer: usize,
    pub within_rank: bool,
    pub says: Says,
}

impl<T: Send + 'static> Pipe<T> for Mixer {
    type Out = T;

    fn apply(&self, mut input: Items<T>, cx: &Context) -> Items<T> {
        let (cx, size) = (cx.clone(), self.buffer);
        Items::generate(async move |out| {
            // In the order in which they came, in which they come again.
            let mut held: VecDeque<Held<T>> = VecDeque::new();
            loop {
                out.keep(&cx, || ());
                let next = out.hold_from(&cx, &mut input).await;
                let place = match &next {
                    Some(item) => cx.rng(item.origin()).below(size as u64 + 1) as usize,
                    None => 0,
                };
                let ended = next.is_none();
                held.extend(next);
                if held.len() > size || ended {
                    let Some(item) = held.remove(place) else { return };
                    let (item, place) = item.into_parts();
                    out.emit_of([place], Ok(item)).await;
                }
            }
        })
    }
    fn is_resumable(&self) -> bool {
        true
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input)
    }
    fn facts(&self) -> Facts {
        let role = if self.within_rank { Role::ShuffleWithinRank } else { Role::Shuffle };
        self.says.facts(role).with_buffered(self.buffer)
    }
}

/// A queue, and what it does to what passes: nothing, or it adds up.
#[derive(Clone, Copy, Debug)]
pub struct Ahead(pub usize, pub bool);

impl Pipe<u64> for Ahead {
    type Out = u64;

    fn apply(&self, mut input: Items<u64>, cx: &Context) -> Items<u64> {
        let cx = cx.clone();
        if !self.1 {
            return input;
        }
        Items::generate(async move |out| {
            let mut sum: u64 = match cx.kept() {
                Ok(kept) => kept.unwrap_or(0),
                Err(error) => return out.emit(Err(error)).await,
            };
            loop {
                out.keep(&cx, || sum);
                let Some(item) = out.next_from(&mut input).await else { return };
                sum = sum.wrapping_mul(3) ^ *item;
                out.emit(Ok(item.map(|_| sum))).await;
            }
        })
    }
    fn is_resumable(&self) -> bool {
        true
    }
    fn arity(&self) -> Arity {
        Arity::One
    }
    fn facts(&self) -> Facts {
        let facts = match self.1 {
            false => Facts::any_order().with_selection().with_positions(),
            true => Facts::default(),
        };
        facts.with_role(Role::Prefetch(self.0)).with_buffered(self.0)
    }
}

/// Leaves out what equals the one before, but for so much.
#[derive(Clone, Copy, Debug)]
pub struct Fresh(pub u64);

impl Pipe<u64> for Fresh {
    type Out = u64;

    fn apply(&self, mut input: Items<u64>, cx: &Context) -> Items<u64> {
        let (cx, by) = (cx.clone(), self.0);
        Items::generate(async move |out| {
            let mut last: Option<u64> = match cx.kept() {
                Ok(kept) => kept.flatten(),
                Err(error) => return out.emit(Err(error)).await,
            };
            loop {
                out.keep(&cx, || last);
                let Some(item) = out.next_from(&mut input).await else { return };
                if last.replace(*item / by) == Some(*item / by) {
                    cx.count_dropped(1);
                } else {
                    out.emit(Ok(item)).await;
                }
            }
        })
    }
    fn is_resumable(&self) -> bool {
        true
    }
    fn arity(&self) -> Arity {
        Arity::AtMostOne
    }
    fn facts(&self) -> Facts {
        Facts::default().with_selection()
    }
}

/// Groups neighbours that are alike, and gives how many there were with the first.
#[derive(Clone, Copy, Debug)]
pub struct Runs(pub u64);

impl Pipe<u64> for Runs {
    type Out = (u64, u64);

    fn apply(&self, mut input: Items<u64>, cx: &Context) -> Items<(u64, u64)> {
        let (cx, by) = (cx.clone(), self.0);
        Items::generate(async move |out| {
            let mut run: Vec<Held<u64>> = Vec::new();
            loop {
                out.keep(&cx, || ());
                let next = out.hold_from(&cx, &mut input).await;
                if let Some(first) = run.first()
                    && next.as_ref().is_none_or(|next| ***next % by != ***first % by)
                {
                    let len = run.len() as u64;
                    let (mut items, places) = parts(run.drain(..));
                    out.emit_of(places, Ok(items.swap_remove(0).map(|n| (n, len)))).await;
                }
                let Some(next) = next else { return };
                run.push(next);
            }
        })
    }
    fn is_resumable(&self) -> bool {
        true
    }
}

/// So many neighbours each, one further each time: what is held is used, too.
#[derive(Clone, Copy, Debug)]
pub struct Window(pub usize);

impl Pipe<u64> for Window {
    type Out = Vec<u64>;

    fn apply(&self, mut input: Items<u64>, cx: &Context) -> Items<Vec<u64>> {
        let (cx, size) = (cx.clone(), self.0);
        Items::generate(async move |out| {
            let mut window: VecDeque<Held<u64>> = VecDeque::new();
            loop {
                out.keep(&cx, || ());
                let Some(item) = out.hold_from(&cx, &mut input).await else { return };
                window.push_back(item);
                if window.len() == size {
                    let all: Vec<u64> = window.iter().map(|item| ***item).collect();
                    let last = Item::clone(window.back().expect("it is full"));
                    window.pop_front();
                    out.emit(Ok(last.map(|_| all))).await;
                }
            }
        })
    }
    fn is_resumable(&self) -> bool {
        true
    }
    fn facts(&self) -> Facts {
        Facts::default().with_buffered(self.0)
    }
}

/// Gives each item so often: held, it comes again until the last of it was given.
#[derive(Clone, Copy, Debug)]
pub struct Echo(pub u64);

impl Pipe<u64> for Echo {
    type Out = u64;

    fn apply(&self, mut input: Items<u64>, cx: &Context) -> Items<u64> {
        let (cx, times) = (cx.clone(), self.0);
        Items::generate(async move |out| {
            let mut given: u64 = match cx.kept() {
                Ok(kept) => kept.unwrap_or(0),
                Err(error) => return out.emit(Err(error)).await,
            };
            loop {
                out.keep(&cx, || given);
                let Some(item) = out.hold_from(&cx, &mut input).await else { return };
                while given < times {
                    out.keep(&cx, || given);
                    let children = item.origin().children();
                    let child = children.at(given);
                    given += 1;
                    out.emit(Ok(Item::new(**item ^ given, child))).await;
                }
                given = 0;
                drop(item);
            }
        })
    }
    fn is_resumable(&self) -> bool {
        true
    }
    fn facts(&self) -> Facts {
        Facts::default().with_children()
    }
}

/// One of each input, of which it takes one ahead.
#[derive(Clone, Copy, Debug)]
pub struct Pair;

impl Join<(u64, u64)> for Pair {
    type Out = u64;

    fn join(&self, (mut left, mut right): (Items<u64>, Items<u64>), cx: &Context) -> Items<u64> {
        let cx = cx.clone();
        Items::generate(async move |out| {
            let mut ahead: VecDeque<Held<u64>> = VecDeque::new();
            let mut pairs: u64 = match cx.kept() {
                Ok(kept) => kept.unwrap_or(0),
                Err(error) => return out.emit(Err(error)).await,
            };
            loop {
                out.keep(&cx, || pairs);
                if ahead.len() < 2 {
                    match out.hold_from(&cx, &mut left).await {
                        Some(item) => {
                            ahead.push_back(item);
                            continue;
                        }
                        None if ahead.is_empty() => return,
                        None => {}
                    }
                }
                let Some(b) = out.hold_from(&cx, &mut right).await else { return };
                let (items, places) = parts(ahead.pop_front().into_iter().chain([b]));
                pairs += 1;
                let pair = Item::gather(items, pairs - 1).map(|pair| pair[0].rotate_left(1) ^ pair[1]);
                out.emit_of(places, Ok(pair)).await;
            }
        })
    }
    fn is_resumable(&self) -> bool {
        true
    }
}

/// Numbers, of which some fail.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    pub items: u64,
    pub goes_on: GoesOn,
}

/// How a source goes on where it was stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GoesOn {
    Keeps,
    ByPosition,
    FromTheBeginning,
}

impl Source for Numbers {
    type Out = u64;

    fn open(&self, cx: &Context) -> Items<u64> {
        let (Numbers { items, goes_on }, cx) = (*self, cx.clone());
        let number = move |cx: &Context, n: u64| {
            let origin = cx.origin(n);
            match n % 13 == 5 {
                true => Err(Error::new(ErrorKind::Corrupt, "an unlucky number").of(&origin)),
                false => Ok(Item::new(n, origin)),
            }
        };
        if goes_on == GoesOn::ByPosition {
            return match cx.wanted() {
                None => Items::from_results((0..items).map(move |n| number(&cx, n))),
                Some(wanted) => Items::from_results(wanted.positions(items).map(move |n| number(&cx, n))),
            };
        }
        let first: u64 = match cx.kept() {
            Ok(kept) => kept.unwrap_or(0),
            Err(error) => return Items::fail(error),
        };
        Items::generate(async move |out| {
            for n in first..items {
                out.keep(&cx, || n);
                out.emit(number(&cx, n)).await;
            }
            out.keep(&cx, || items);
        })
    }
    fn keeps(&self) -> bool {
        self.goes_on == GoesOn::Keeps
    }
    fn facts(&self) -> Facts {
        let facts = Facts::any_order();
        if self.goes_on == GoesOn::ByPosition { facts.with_positions() } else { facts }
    }
}

fn says() -> impl Strategy<Value = Says> {
    prop_oneof![3 => Just(Says::Lineage), 2 => Just(Says::Both), 1 => Just(Says::Role), 1 => Just(Says::Neither)]
}

/// One of the pipes above, over integers.
#[derive(Clone, Copy, Debug)]
pub enum Own {
    Groups(Groups),
    /// Made, and taken apart.
    Regroup(Groups),
    Mixer(Mixer),
    Ahead(Ahead),
    Fresh(Fresh),
    Runs(Runs),
    Window(Window),
    Echo(Echo),
}

impl Own {
    pub fn add(self, graph: Graph<u64>, ranked: bool) -> Graph<u64> {
        let fold = |all: Vec<u64>| all.into_iter().fold(7u64, |a, b| a.wrapping_mul(33) ^ b);
        match self {
            Own::Groups(groups) => graph.pipe(groups).map(fold),
            Own::Regroup(groups) => graph.pipe(groups).unbatch(),
            Own::Mixer(mixer) => graph.pipe(Mixer { within_rank: mixer.within_rank || ranked, ..mixer }),
            Own::Ahead(ahead) => graph.pipe(ahead),
            Own::Fresh(fresh) => graph.pipe(fresh),
            Own::Runs(runs) => graph.pipe(runs).map(|(n, len)| n.rotate_left(5) ^ len),
            Own::Window(window) => graph.pipe(window).map(fold),
            Own::Echo(echo) => graph.pipe(echo),
        }
    }

    pub fn needs_order(self) -> bool {
        match self {
            Own::Groups(_) | Own::Regroup(_) | Own::Mixer(_) => false,
            Own::Ahead(Ahead(_, adds_up)) => adds_up,
            Own::Fresh(_) | Own::Runs(_) | Own::Window(_) | Own::Echo(_) => true,
        }
    }

    pub fn groups(self) -> bool {
        matches!(self, Own::Groups(_))
    }

    /// How many items come out for one, at most.
    pub fn times(self) -> u64 {
        if let Own::Echo(Echo(times)) = self { times } else { 1 }
    }
}

pub fn own() -> impl Strategy<Value = Own> {
    let groups = || (1usize..12, says()).prop_map(|(size, says)| Groups(size, says));
    prop_oneof![
        1 => groups().prop_map(Own::Groups),
        1 => groups().prop_map(Own::Regroup),
        2 => (1usize..30, any::<bool>(), says()).prop_map(|(buffer, within_rank, says)| {
            Own::Mixer(Mixer { buffer, within_rank, says })
        }),
        1 => (1usize..20, any::<bool>()).prop_map(|(items, adds)| Own::Ahead(Ahead(items, adds))),
        1 => (1u64..5).prop_map(|by| Own::Fresh(Fresh(by))),
        1 => (1u64..4).prop_map(|by| Own::Runs(Runs(by))),
        1 => (1usize..6).prop_map(|size| Own::Window(Window(size))),
        1 => (0u64..4).prop_map(|times| Own::Echo(Echo(times))),
    ]
}

pub fn goes_on() -> impl Strategy<Value = GoesOn> {
    prop_oneof![Just(GoesOn::Keeps), Just(GoesOn::ByPosition), Just(GoesOn::FromTheBeginning)]
}

#[test]
fn pipes_of_ones_own_keep_the_contract_with_errors_in_their_groups() {
    let numbers = || Vec::from_iter(0..11u64);
    for says in [Says::Lineage, Says::Role, Says::Both, Says::Neither] {
        for size in [1, 3, 20] {
            testing::check_pipe(&Groups(size, says), numbers());
            testing::check_pipe(&Mixer { buffer: size, within_rank: false, says }, numbers());
        }
    }
    testing::check_pipe(&Ahead(3, false), numbers());
    testing::check_pipe(&Ahead(3, true), numbers());
    let repeated = || vec![0, 0, 1, 1, 1, 2, 3, 3, 4u64];
    testing::check_pipe(&Fresh(1), repeated());
    testing::check_pipe(&Runs(10), repeated());
    testing::check_pipe(&Window(3), numbers());
    testing::check_pipe(&Echo(3), (0..7).collect());
    testing::check_join(&Pair, (Vec::from_iter(0..6u64), Vec::from_iter(10..15u64)));
    for goes_on in [GoesOn::Keeps, GoesOn::ByPosition, GoesOn::FromTheBeginning] {
        testing::check_source(&Numbers { items: 20, goes_on });
    }
}

/// A step over lists: grouping puts them behind each other, so that nothing is lost by it.
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
                graph.pipe(BucketBatch::new(bucket, [4], [size, size + 1])).map(joined)
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

    /// Law 8 in any order, over pipes that group and reorder, ours and those of users: each item comes once, and each error.
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
        let policy = OnError::skip(u64::MAX);
        let (mut state, mut seen) = (None, Vec::new());
        for part in 0..3 {
            let builder = DataLoader::builder(graph()).workers(workers[part]).order(orders[part]);
            let loader = builder.on_error(policy.clone()).resumable().build().unwrap();
            let epoch = state.as_ref().map_or_else(|| loader.epoch(0), |state| loader.resume(state).unwrap());
            let mut epoch = epoch.blocking();
            let most = stops.get(part).copied().unwrap_or(usize::MAX);
            for list in epoch.by_ref().take(most) {
                seen.extend(list.unwrap());
            }
            state = Some(epoch.state().unwrap());
        }
        seen.sort_unstable();
        let whole: Vec<u64> = (0..items).filter(|n| n % fails != 1).collect();
        prop_assert_eq!(seen, whole);
        prop_assert_eq!(policy.skipped().len() as u64, items - (0..items).filter(|n| n % fails != 1).count() as u64);
    }
}

/// What an epoch gives that is stopped after some batches and goes on.
fn stopped_after(graph: Graph<Vec<u64>>, order: Order, stop: usize) -> Result<Vec<u64>> {
    let loader =
        DataLoader::builder(graph).workers(2).order(order).resumable().build().expect("a sound graph");
    let mut epoch = loader.epoch(0).blocking();
    let mut seen = epoch.by_ref().take(stop).collect::<Result<Vec<_>>>()?;
    let state = epoch.state()?;
    drop(epoch);
    seen.extend(loader.resume(&state)?.blocking().collect::<Result<Vec<_>>>()?);
    let mut seen = seen.concat();
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
            let plan =
                DataLoader::builder(batches.clone()).workers(2).order(order).resumable().build().unwrap();
            assert!(plan.explain().contains("strict order]"), "{}", plan.explain());
            assert_eq!(stopped_after(batches, order, 10).unwrap(), Vec::from_iter(0..400), "{order}");
            for within_rank in [false, true] {
                let mixer = Mixer { buffer: 30, within_rank, says };
                let mixed = numbers().pipe(mixer).map(|n| vec![n]);
                assert_eq!(stopped_after(mixed, order, 80).unwrap(), Vec::from_iter(0..400), "{order}");
            }
        }
    }
}

#[test]
fn a_pipe_that_says_what_it_gave_goes_on_in_every_order() {
    for says in [Says::Lineage, Says::Both] {
        for order in ORDERS {
            let batches = numbers().pipe(Groups(8, says));
            let plan =
                DataLoader::builder(batches.clone()).workers(2).order(order).resumable().build().unwrap();
            let is_strict = plan.explain().contains("strict order]");
            assert_eq!(is_strict, order == Order::Strict, "{}", plan.explain());
            for stop in [0, 1, 10, 49, 50] {
                assert_eq!(stopped_after(batches.clone(), order, stop).unwrap(), Vec::from_iter(0..400));
            }
            let mixer = Mixer { buffer: 30, within_rank: false, says };
            for stop in [0, 1, 80, 399] {
                let mixed = numbers().pipe(mixer).map(|n| vec![n]);
                assert_eq!(stopped_after(mixed, order, stop).unwrap(), Vec::from_iter(0..400), "{order}");
            }
        }
    }
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
    fn is_resumable(&self) -> bool {
        true
    }
    fn facts(&self) -> Facts {
        Facts::any_order().with_lineage()
    }
}

#[test]
fn an_output_of_which_nothing_was_said_ends_the_epoch_in_an_error() {
    let graph = Graph::range(0..20).map(|n| n).concurrency(4).pipe(Forgets);
    let loader = DataLoader::builder(graph).workers(2).order(Order::Arrival).on_error(OnError::skip(9));
    let loader = loader.resumable().build().unwrap();
    let seen: Vec<_> = loader.epoch(0).blocking().collect();
    let [Ok(_), Ok(_), Err(error)] = &seen[..] else { panic!("{seen:?}") };
    let words =
        "says which inputs its outputs are made of (`Facts::with_lineage`), and said so of 2 by now, while";
    assert!(error.to_string().starts_with("forgets: ") && error.to_string().contains(words), "{error}");
}

/// Pairs that say that they go by position, though a join is not told which are wanted, and keep nothing.
struct Placed;

impl Join<(u64, u64)> for Placed {
    type Out = u64;

    fn join(&self, (mut left, mut right): (Items<u64>, Items<u64>), _: &Context) -> Items<u64> {
        Items::generate(async move |out| {
            while let Some(a) = out.next_from(&mut left).await {
                let Some(b) = out.next_from(&mut right).await else { return };
                out.emit(Ok(a.map(|a| a + *b))).await;
            }
        })
    }
    fn is_resumable(&self) -> bool {
        true
    }
    fn facts(&self) -> Facts {
        Facts::default().with_positions()
    }
}

#[test]
fn a_join_that_says_it_goes_by_position_repeats_nothing() {
    for workers in [0, 2] {
        let graph = Graph::join((Graph::range(0..50), Graph::range(0..50)), Placed);
        let loader = DataLoader::builder(graph).workers(workers).resumable().build().unwrap();
        for stop in [0, 1, 20, 50] {
            let mut epoch = loader.epoch(0).blocking();
            let mut seen = epoch.by_ref().take(stop).collect::<Result<Vec<_>>>().unwrap();
            let rest = loader.resume(&epoch.state().unwrap()).unwrap().blocking();
            seen.extend(rest.collect::<Result<Vec<_>>>().unwrap());
            assert_eq!(seen, Vec::from_iter((0..50).map(|n| 2 * n)), "stopped after {stop}");
        }
    }
}

/// The queue stands behind the pipe: with workers or without, what it does is done.
#[test]
fn a_pipe_with_the_role_of_a_queue_is_applied() {
    let run = |workers| {
        let graph = Graph::range(0..50).map(|n| n).pipe(Ahead(3, true));
        let loader = DataLoader::builder(graph).workers(workers).build().unwrap();
        loader.epoch(0).blocking().collect::<Result<Vec<_>>>().unwrap()
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
    fn arity(&self) -> Arity {
        Arity::AtMostOne
    }
}

#[test]
fn the_first_pipe_of_contributing_keeps_the_contract() {
    let (guide, here) = (include_str!("../../CONTRIBUTING.md"), include_str!("user_pipes.rs"));
    let begin = guide.find("/// Leaves out items that equal the one before; see").expect("its type");
    let end =
        guide[begin..].find("impl<T: Clone + PartialEq + Send + 'static> Graph<T>").expect("its method");
    assert!(
        here.contains(&guide[begin..begin + end]),
        "the pipe in CONTRIBUTING.md is another than the one here"
    );
    testing::check_pipe(&Dedup, (0..20u64).map(|n| n / 3).collect());
}
