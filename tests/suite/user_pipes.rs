//! Pipes, joins and sources as users write them, with the public API alone. They can do everything
//! that built-in ones can.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{self, Poll, Wake, Waker, ready};

use datapipes::{
    Arity, Chunk, Chunks, Collate, Context, Dealing, Demand, Error, Graph, Held, HeldPlace, Hints,
    Item, Items, Join, Origin, Pipe, PipeSnapshot, Rank, Result, Role, Source, Split, Tensor,
    Uneven, Wanted,
};
use futures::StreamExt;
use proptest::prelude::*;

use crate::graphs::{Pairs, fold};

/// The information that a pipe gives about the inputs of its outputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Says {
    Lineage,
    /// Has the role of one that is built in, and says nothing besides.
    Role,
    Both,
    Neither,
}

impl Says {
    fn hints(self, role: Role) -> Hints {
        let hints = Hints::any_order()
            .is_resumable(true)
            .lineage(matches!(self, Says::Lineage | Says::Both));
        if matches!(self, Says::Role | Says::Both) {
            hints.role(role)
        } else {
            hints
        }
    }
}

/// Items and their places.
pub fn parts<T>(held: impl IntoIterator<Item = Held<T>>) -> (Vec<Item<T>>, Vec<HeldPlace>) {
    held.into_iter().map(Held::into_parts).unzip()
}

/// Batches of this size, as `batch` makes them.
#[derive(Clone, Copy, Debug)]
pub struct Groups(pub usize, pub Says);

impl<T: Send + 'static> Pipe<T> for Groups {
    type Out = Vec<T>;

    fn apply(&self, mut input: Items<T>, cx: &Context) -> Items<Vec<T>> {
        let (cx, size) = (cx.clone(), self.0);
        let mut batches: u64 = match cx.restored() {
            Ok(restored) => restored.unwrap_or(0),
            Err(error) => return Items::fail(error),
        };
        Items::generate(async move |out| {
            let mut batch = Vec::new();
            loop {
                out.snapshot(&cx, || batches);
                let next = out.hold_from(&cx, &mut input).await;
                let ended = next.is_none();
                batch.extend(next);
                if batch.len() == size || (ended && !batch.is_empty()) {
                    let (items, places) = parts(batch.drain(..));
                    batches += 1;
                    out.emit_of(places, Ok(Item::gather(items, batches - 1)))
                        .await;
                }
                if ended {
                    return;
                }
            }
        })
    }
    fn snapshot_at(&self, outputs: u64, _: &Context) -> Result<Option<PipeSnapshot>> {
        PipeSnapshot::new(&outputs).map(Some)
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input.div_ceil(self.0 as u64))
    }
    fn hints(&self) -> Hints {
        self.1
            .hints(Role::Batch(self.0))
            .buffered(self.0)
            .settings(format_args!("of {}", self.0))
    }
}

/// Makes one batch of each group, as `collate` does. Where the items are rows of one batch in memory,
/// nothing is copied.
#[derive(Clone, Copy, Debug)]
pub struct Stack;

impl Pipe<Vec<Tensor>> for Stack {
    type Out = Tensor;

    fn apply(&self, input: Items<Vec<Tensor>>, cx: &Context) -> Items<Tensor> {
        input.each(cx, |batch| Some(batch.try_map(Tensor::collate)))
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::One).role(Role::Collate)
    }
}

/// Batches of this size, made of whole columns, as `batch` makes them.
#[derive(Clone, Copy, Debug)]
pub struct Columns(pub usize);

struct OpenColumns<T> {
    input: Items<T>,
    size: usize,
    cx: Context,
    batches: u64,
    values: Vec<T>,
    origins: Vec<Origin>,
    /// True if an error came between the items that wait.
    is_torn: bool,
}

impl<T> OpenColumns<T> {
    fn close(&mut self) -> Item<Vec<T>> {
        let (values, origins) = (&mut self.values, &mut self.origins);
        self.batches += 1;
        self.is_torn = false;
        let origin = Origin::joined(std::mem::take(origins), self.batches - 1);
        Item::new(std::mem::take(values), origin)
    }
}

impl<T: Send + 'static> Chunks<Vec<T>> for OpenColumns<T> {
    fn poll_chunk(
        &mut self,
        task: &mut task::Context<'_>,
        demand: Demand,
    ) -> Poll<Option<Chunk<Vec<T>>>> {
        if !self.is_torn {
            self.cx.snapshot_with(|held| {
                let next = self.cx.position(0);
                held.hold(next.saturating_sub(self.values.len() as u64)..next);
                self.batches
            });
        }
        let mut out = Chunk::default();
        while out.is_empty() {
            let wanted = demand.needing(self.size - self.values.len());
            let Some(chunk) = ready!(self.input.poll_chunk(task, wanted)) else {
                if self.values.is_empty() {
                    return Poll::Ready(None);
                }
                out.push(Ok(self.close()));
                break;
            };
            let mut items = chunk.into_iter();
            while items.len() > 0 {
                let room = self.size - self.values.len();
                if items.move_to(room, &mut self.values, &mut self.origins) == room {
                    out.push(Ok(self.close()));
                } else if let Some(Err(error)) = items.next() {
                    out.push(Err(error));
                    self.is_torn = !self.values.is_empty();
                }
            }
        }
        Poll::Ready(Some(out))
    }
}

impl<T: Send + 'static> Pipe<T> for Columns {
    type Out = Vec<T>;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<Vec<T>> {
        let batches = match cx.restored() {
            Ok(restored) => restored.unwrap_or(0),
            Err(error) => return Items::fail(error),
        };
        Items::from_chunks(OpenColumns {
            input,
            size: self.0,
            cx: cx.clone(),
            batches,
            values: Vec::new(),
            origins: Vec::new(),
            is_torn: false,
        })
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input.div_ceil(self.0 as u64))
    }
    fn hints(&self) -> Hints {
        Hints::any_order().is_resumable(true).buffered(self.0)
    }
}

/// Keeps this rank's items, as `sharding_filter_padded` does, by whole rounds.
#[derive(Clone, Copy, Debug)]
pub struct Deal;

impl<T: Clone + Send + 'static> Pipe<T> for Deal {
    type Out = T;

    fn apply(&self, mut input: Items<T>, cx: &Context) -> Items<T> {
        let (cx, Rank { index, world }) = (cx.clone(), cx.rank());
        let pads = world > 1 && cx.uneven() == Some(Uneven::Pad);
        let mut rounds: u64 = match cx.restored() {
            Ok(restored) => restored.unwrap_or(0),
            Err(error) => return Items::fail(error),
        };
        Items::generate(async move |out| {
            // The first round, which pads the last, and the round that is dealt.
            let (mut first, mut round) = (Vec::new(), Vec::new());
            if pads && rounds > 0 {
                while first.len() < world
                    && let Some(item) = out.hold_from(&cx, &mut input).await
                {
                    first.push(item);
                }
            }
            loop {
                out.snapshot(&cx, || rounds);
                let Some(item) = out.hold_from(&cx, &mut input).await else {
                    break;
                };
                round.push(item);
                if round.len() == world {
                    rounds += 1;
                    out.emit(Ok(Item::clone(&round[index]))).await;
                    if pads && first.is_empty() {
                        first = std::mem::take(&mut round);
                    }
                    round.clear();
                }
            }
            if let (false, Some(Uneven::Drop)) = (round.is_empty(), cx.uneven()) {
                cx.count_dropped(u64::from(index < round.len()));
            } else if let (false, Some(Uneven::Error)) = (round.is_empty(), cx.uneven()) {
                let message = format!("{} items are left over", round.len());
                out.emit(Err(Error::config(message))).await;
            } else if let Some(item) = round.get(index) {
                out.emit(Ok(Item::clone(item))).await;
            } else if pads && !round.is_empty() && !first.is_empty() {
                out.emit(Ok(Item::clone(&first[index - round.len()]))).await;
            }
            // The last round is dealt: an epoch that goes on from here has nothing left of it.
            drop((first, round));
            out.snapshot(&cx, || rounds + 1);
        })
    }
    fn snapshot_at(&self, outputs: u64, cx: &Context) -> Result<Option<PipeSnapshot>> {
        let pads = cx.rank().world > 1 && cx.uneven() == Some(Uneven::Pad) && outputs > 0;
        let first = if pads { cx.rank().world as u64 } else { 0 };
        Ok(Some(PipeSnapshot::new(&outputs)?.hold(0..first)))
    }
    fn hints(&self) -> Hints {
        Hints::default()
            .is_resumable(true)
            .selects(true)
            .role(Role::Shard {
                can_pad: true,
                dealing: Dealing::InTurn,
            })
    }
}

/// Keeps this rank's items, however many the others have. Its snapshots are taken anywhere in a
/// round.
#[derive(Clone, Copy, Debug)]
pub struct Every;

impl<T: Send + 'static> Pipe<T> for Every {
    type Out = T;

    fn apply(&self, mut input: Items<T>, cx: &Context) -> Items<T> {
        let (cx, Rank { index, world }) = (cx.clone(), cx.rank());
        let mut taken: u64 = match cx.restored() {
            Ok(restored) => restored.unwrap_or(0),
            Err(error) => return Items::fail(error),
        };
        Items::generate(async move |out| {
            loop {
                out.snapshot(&cx, || taken);
                let Some(item) = out.next_from(&mut input).await else {
                    return;
                };
                taken += 1;
                if (taken - 1) % world as u64 == index as u64 {
                    out.emit(Ok(item)).await;
                }
            }
        })
    }
    fn snapshot_at(&self, outputs: u64, cx: &Context) -> Result<Option<PipeSnapshot>> {
        PipeSnapshot::new(&(outputs * cx.rank().world as u64)).map(Some)
    }
    fn hints(&self) -> Hints {
        Hints::default()
            .is_resumable(true)
            .selects(true)
            .role(Role::Shard {
                can_pad: false,
                dealing: Dealing::InTurn,
            })
    }
}

/// Numbers the items from 0.
#[derive(Clone, Copy, Debug)]
pub struct Count;

impl<T: Send + 'static> Pipe<T> for Count {
    type Out = (u64, T);

    fn apply(&self, mut input: Items<T>, cx: &Context) -> Items<(u64, T)> {
        let cx = cx.clone();
        let mut number: u64 = match cx.restored() {
            Ok(restored) => restored.unwrap_or(0),
            Err(error) => return Items::fail(error),
        };
        Items::generate(async move |out| {
            loop {
                out.snapshot(&cx, || number);
                let Some(item) = out.next_from(&mut input).await else {
                    return;
                };
                number += 1;
                out.emit(Ok(item.map(|item| (number - 1, item)))).await;
            }
        })
    }
    fn snapshot_at(&self, outputs: u64, _: &Context) -> Result<Option<PipeSnapshot>> {
        PipeSnapshot::new(&outputs).map(Some)
    }
    fn hints(&self) -> Hints {
        Hints::default().is_resumable(true).arity(Arity::One)
    }
}

/// Holds this many items, and gives one of them, drawn by the next input item.
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
                out.snapshot(&cx, || ());
                let next = out.hold_from(&cx, &mut input).await;
                let place = match &next {
                    Some(item) => cx.rng(item.origin()).below(size as u64 + 1) as usize,
                    None => 0,
                };
                let ended = next.is_none();
                held.extend(next);
                if held.len() > size || ended {
                    let Some(item) = held.remove(place) else {
                        return;
                    };
                    let (item, place) = item.into_parts();
                    out.emit_of([place], Ok(item)).await;
                }
            }
        })
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input)
    }
    fn hints(&self) -> Hints {
        let role = if self.within_rank {
            Role::ShuffleWithinRank
        } else {
            Role::Shuffle
        };
        self.says.hints(role).buffered(self.buffer)
    }
}

/// Puts each item in the place of a random one of this many, which leaves, as `shuffle` does. The
/// draws are those of the node.
#[derive(Clone, Copy, Debug)]
pub struct Exchange(pub usize);

impl<T: Send + 'static> Pipe<T> for Exchange {
    type Out = T;

    fn apply(&self, mut input: Items<T>, cx: &Context) -> Items<T> {
        let (cx, size, mut rng) = (cx.clone(), self.0, cx.node_rng());
        Items::generate(async move |out| {
            // The position of the draws, the number of items so far, and the number of the item in
            // each place.
            let (drawn, mut taken, places): (u64, u64, Vec<u64>) = match cx.restored() {
                Ok(restored) => restored.unwrap_or_default(),
                Err(error) => return out.emit(Err(error)).await,
            };
            rng.seek(drawn);
            let mut held: Vec<(u64, Held<T>)> = Vec::new();
            let mut numbers = places.clone();
            numbers.sort_unstable();
            for number in numbers {
                let item = out.hold_from(&cx, &mut input).await;
                held.extend(item.map(|item| (number, item)));
            }
            held.sort_by_key(|(number, _)| places.iter().position(|place| place == number));
            let numbers = |held: &[(u64, Held<T>)]| -> Vec<u64> {
                held.iter().map(|(number, _)| *number).collect()
            };
            loop {
                out.snapshot(&cx, || (rng.position(), taken, numbers(&held)));
                let Some(item) = out.hold_from(&cx, &mut input).await else {
                    break;
                };
                taken += 1;
                if held.len() < size {
                    held.push((taken, item));
                } else {
                    let place = rng.below(size as u64) as usize;
                    let (_, item) = std::mem::replace(&mut held[place], (taken, item));
                    let (item, place) = item.into_parts();
                    out.emit_of([place], Ok(item)).await;
                }
            }
            while !held.is_empty() {
                out.snapshot(&cx, || (rng.position(), taken, numbers(&held)));
                let place = rng.below(held.len() as u64) as usize;
                let (item, place) = held.swap_remove(place).1.into_parts();
                out.emit_of([place], Ok(item)).await;
            }
        })
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input)
    }
    fn hints(&self) -> Hints {
        Hints::any_order().is_resumable(true).buffered(self.0)
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
            let mut sum: u64 = match cx.restored() {
                Ok(restored) => restored.unwrap_or(0),
                Err(error) => return out.emit(Err(error)).await,
            };
            loop {
                out.snapshot(&cx, || sum);
                let Some(item) = out.next_from(&mut input).await else {
                    return;
                };
                sum = sum.wrapping_mul(3) ^ *item;
                out.emit(Ok(item.map(|_| sum))).await;
            }
        })
    }
    fn hints(&self) -> Hints {
        let sums = self.1;
        Hints::default()
            .ignores_order(!sums)
            .selects(!sums)
            .by_position(!sums)
            .arity(Arity::One)
            .is_resumable(true)
            .role(Role::Prefetch(self.0))
            .buffered(self.0)
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
            let mut last: Option<u64> = match cx.restored() {
                Ok(restored) => restored.flatten(),
                Err(error) => return out.emit(Err(error)).await,
            };
            loop {
                out.snapshot(&cx, || last);
                let Some(item) = out.next_from(&mut input).await else {
                    return;
                };
                if last.replace(*item / by) == Some(*item / by) {
                    cx.count_dropped(1);
                } else {
                    out.emit(Ok(item)).await;
                }
            }
        })
    }
    fn hints(&self) -> Hints {
        Hints::default()
            .arity(Arity::AtMostOne)
            .is_resumable(true)
            .selects(true)
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
                out.snapshot(&cx, || ());
                let next = out.hold_from(&cx, &mut input).await;
                if let Some(first) = run.first()
                    && next
                        .as_ref()
                        .is_none_or(|next| ***next % by != ***first % by)
                {
                    let len = run.len() as u64;
                    let (mut items, places) = parts(run.drain(..));
                    out.emit_of(places, Ok(items.swap_remove(0).map(|n| (n, len))))
                        .await;
                }
                let Some(next) = next else { return };
                run.push(next);
            }
        })
    }
    fn hints(&self) -> Hints {
        Hints::default().is_resumable(true)
    }
}

/// Gives each run of this many neighbours; the next run begins one item later. Items that are still
/// held are also used.
#[derive(Clone, Copy, Debug)]
pub struct Window(pub usize);

impl Pipe<u64> for Window {
    type Out = Vec<u64>;

    fn apply(&self, mut input: Items<u64>, cx: &Context) -> Items<Vec<u64>> {
        let (cx, size) = (cx.clone(), self.0);
        Items::generate(async move |out| {
            let mut window: VecDeque<Held<u64>> = VecDeque::new();
            loop {
                out.snapshot(&cx, || ());
                let Some(item) = out.hold_from(&cx, &mut input).await else {
                    return;
                };
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
    fn hints(&self) -> Hints {
        Hints::default().is_resumable(true).buffered(self.0)
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
            let mut given: u64 = match cx.restored() {
                Ok(restored) => restored.unwrap_or(0),
                Err(error) => return out.emit(Err(error)).await,
            };
            loop {
                out.snapshot(&cx, || given);
                let Some(item) = out.hold_from(&cx, &mut input).await else {
                    return;
                };
                while given < times {
                    out.snapshot(&cx, || given);
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
    fn hints(&self) -> Hints {
        Hints::default().is_resumable(true).children(true)
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
            let mut pairs: u64 = match cx.restored() {
                Ok(restored) => restored.unwrap_or(0),
                Err(error) => return out.emit(Err(error)).await,
            };
            loop {
                out.snapshot(&cx, || pairs);
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
                let Some(b) = out.hold_from(&cx, &mut right).await else {
                    return;
                };
                let (items, places) = parts(ahead.pop_front().into_iter().chain([b]));
                pairs += 1;
                let pair =
                    Item::gather(items, pairs - 1).map(|pair| pair[0].rotate_left(1) ^ pair[1]);
                out.emit_of(places, Ok(pair)).await;
            }
        })
    }
    fn hints(&self) -> Hints {
        Hints::default().is_resumable(true)
    }
}

/// Gives this many items of its first input, then one of the second, until either ends. The number
/// may be another when an epoch is resumed.
#[derive(Clone, Copy, Debug)]
pub struct Alternate(pub u64);

impl Join<(u64, u64)> for Alternate {
    type Out = u64;

    fn join(&self, (mut left, mut right): (Items<u64>, Items<u64>), cx: &Context) -> Items<u64> {
        let (cx, every) = (cx.clone(), self.0);
        Items::generate(async move |out| {
            // The number that is in force, and the items since the last of the second input.
            let (mut now, mut given) = match cx.restored() {
                Ok(restored) => restored.unwrap_or((every, 0)),
                Err(error) => return out.emit(Err(error)).await,
            };
            let mut used = cx.used_outputs();
            loop {
                if used == 0 && now != every {
                    (now, given) = (every, 0);
                }
                out.snapshot(&cx, || (now, given));
                let input = if given < now { &mut left } else { &mut right };
                let Some(item) = input.next().await else {
                    return;
                };
                given = if given < now { given + 1 } else { 0 };
                used = used.saturating_sub(1);
                out.emit(item).await;
            }
        })
    }
    fn hints(&self) -> Hints {
        Hints::default()
            .is_resumable(true)
            .selects(true)
            .settings(format_args!("alternate, every {}", self.0))
            .may_change("every")
    }
}

/// Numbers by the range.
#[derive(Clone, Copy, Debug)]
pub struct Ranges(pub u64);

struct OpenRanges {
    end: u64,
    next: u64,
    wanted: Wanted,
    cx: Context,
}

impl Chunks<u64> for OpenRanges {
    fn poll_chunk(
        &mut self,
        _: &mut task::Context<'_>,
        demand: Demand,
    ) -> Poll<Option<Chunk<u64>>> {
        let some = self
            .wanted
            .next_range(self.next, demand.max as u64, self.end);
        self.next = some.end;
        let first = some.start;
        Poll::Ready((!some.is_empty()).then(|| self.cx.run(some.collect(), first)))
    }
}

impl Source for Ranges {
    type Out = u64;

    fn open(&self, cx: &Context) -> Items<u64> {
        Items::from_chunks(OpenRanges {
            end: self.0,
            next: 0,
            wanted: cx.wanted().cloned().unwrap_or_default(),
            cx: cx.clone(),
        })
    }
    fn len_hint(&self) -> Option<u64> {
        Some(self.0)
    }
    fn hints(&self) -> Hints {
        Hints::any_order().by_position(true)
    }
}

/// Numbers, of which some fail.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    pub items: u64,
    pub goes_on: GoesOn,
}

/// The way in which a source resumes.
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
                true => Err(Error::corrupt("an unlucky number").of(&origin)),
                false => Ok(Item::new(n, origin)),
            }
        };
        if goes_on == GoesOn::ByPosition {
            return match cx.wanted() {
                None => Items::from_results((0..items).map(move |n| number(&cx, n))),
                Some(wanted) => {
                    Items::from_results(wanted.positions(items).map(move |n| number(&cx, n)))
                }
            };
        }
        let first: u64 = match cx.restored() {
            Ok(restored) => restored.unwrap_or(0),
            Err(error) => return Items::fail(error),
        };
        Items::generate(async move |out| {
            for n in first..items {
                out.snapshot(&cx, || n);
                out.emit(number(&cx, n)).await;
            }
            out.snapshot(&cx, || items);
        })
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .is_resumable(self.goes_on == GoesOn::Keeps)
            .by_position(self.goes_on == GoesOn::ByPosition)
    }
}

/// Gives every item to two outputs, of which each keeps what the other has taken.
#[derive(Clone, Copy, Debug)]
pub struct Twice;

struct Dealt {
    input: Items<u64>,
    waiting: [VecDeque<Result<Item<u64>>>; 2],
    dealt: Vec<u64>,
    /// The wanted items of each output, `None` before the first item.
    wanted: Option<Vec<Option<Wanted>>>,
    wakers: Arc<Wakers>,
}

/// The readers of the outputs. Any may have to go on when the input does.
#[derive(Default)]
struct Wakers(Mutex<[Option<Waker>; 2]>);

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *self.0.lock().unwrap());
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Dealt {
    /// Polls for the next item of an output.
    fn poll(
        &mut self,
        output: usize,
        cx: &Context,
        task: &task::Context<'_>,
    ) -> Poll<Option<Result<Item<u64>>>> {
        self.wakers.0.lock().unwrap()[output] = Some(task.waker().clone());
        if self.wanted.is_none()
            && let Some(outputs) = cx.wanted_of_outputs()
        {
            let (dealt, wanted) = outputs.into_iter().unzip();
            (self.dealt, self.wanted) = (dealt, Some(wanted));
        }
        while self.waiting[output].is_empty() {
            cx.snapshot_with(|held| held.outputs(self.dealt.clone()));
            let waker = Waker::from(self.wakers.clone());
            let next = self
                .input
                .poll_next_unpin(&mut task::Context::from_waker(&waker));
            let Some(item) = ready!(next) else {
                return Poll::Ready(None);
            };
            let copies = match item {
                Ok(item) => [Ok(item.clone()), Ok(item)],
                Err(error) => {
                    [error.to_string(), error.to_string()].map(|text| Err(Error::user(text)))
                }
            };
            for (to, copy) in copies.into_iter().enumerate() {
                let position = self.dealt[to];
                self.dealt[to] += 1;
                let wanted = self.wanted.as_ref().and_then(|all| all[to].as_ref());
                if wanted.is_none_or(|wanted| wanted.contains(position)) {
                    self.waiting[to].push_back(copy);
                }
            }
        }
        Poll::Ready(self.waiting[output].pop_front())
    }
}

impl Split<u64> for Twice {
    type Out = u64;

    fn outputs(&self) -> usize {
        2
    }
    fn split(&self, input: Items<u64>, cx: &Context) -> Vec<Items<u64>> {
        let dealt = Dealt {
            input,
            waiting: Default::default(),
            dealt: vec![0; 2],
            wanted: None,
            wakers: Arc::default(),
        };
        let shared = Arc::new(Mutex::new(dealt));
        let outputs = (0..2).map(|output| {
            let (shared, cx) = (shared.clone(), cx.clone());
            let poll =
                move |task: &mut task::Context<'_>| shared.lock().unwrap().poll(output, &cx, task);
            Items::from_stream(futures::stream::poll_fn(poll))
        });
        outputs.collect()
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input)
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .is_resumable(true)
            .by_position(true)
            .selects(true)
    }
}

pub fn says() -> impl Strategy<Value = Says> {
    prop_oneof![3 => Just(Says::Lineage), 2 => Just(Says::Both), 1 => Just(Says::Role), 1 => Just(Says::Neither)]
}

/// One of the pipes above, over integers.
#[derive(Clone, Copy, Debug)]
pub enum Own {
    Groups(Groups),
    /// Made, and taken apart.
    Regroup(Groups),
    /// Groups of rows that are filled in place, as one tensor each.
    Stacked(Groups),
    Mixer(Mixer),
    Ahead(Ahead),
    Fresh(Fresh),
    Runs(Runs),
    Window(Window),
    Echo(Echo),
    Columns(Columns),
    Exchange(Exchange),
    Count,
}

impl Own {
    pub fn add(self, graph: Graph<u64>, ranked: bool) -> Graph<u64> {
        match self {
            Own::Groups(groups) => graph.pipe(groups).map(fold),
            Own::Regroup(groups) => graph.pipe(groups).unbatch(),
            Own::Stacked(groups) => graph
                .pipe(Pairs::default())
                .pipe(groups)
                .pipe(Stack)
                .map(|batch| fold(batch.into_vec::<u64>().expect("of integers"))),
            Own::Mixer(mixer) => graph.pipe(Mixer {
                within_rank: mixer.within_rank || ranked,
                ..mixer
            }),
            Own::Ahead(ahead) => graph.pipe(ahead),
            Own::Fresh(fresh) => graph.pipe(fresh),
            Own::Runs(runs) => graph.pipe(runs).map(|(n, len)| n.rotate_left(5) ^ len),
            Own::Window(window) => graph.pipe(window).map(fold),
            Own::Echo(echo) => graph.pipe(echo),
            Own::Columns(columns) => graph.pipe(columns).map(fold),
            Own::Exchange(exchange) => graph.pipe(exchange),
            Own::Count => graph.pipe(Count).map(|(k, n)| n.rotate_left(7) ^ k),
        }
    }

    pub fn needs_order(self) -> bool {
        match self {
            Own::Groups(_) | Own::Regroup(_) | Own::Stacked(_) | Own::Mixer(_) => false,
            Own::Columns(_) | Own::Exchange(_) => false,
            Own::Ahead(Ahead(_, adds_up)) => adds_up,
            Own::Fresh(_) | Own::Runs(_) | Own::Window(_) | Own::Echo(_) | Own::Count => true,
        }
    }

    pub fn groups(self) -> bool {
        matches!(self, Own::Groups(_) | Own::Stacked(_) | Own::Columns(_))
    }

    /// Maximum number of output items for each input item.
    pub fn times(self) -> u64 {
        if let Own::Echo(Echo(times)) = self {
            times
        } else {
            1
        }
    }
}

pub fn own() -> impl Strategy<Value = Own> {
    let groups = || (1usize..12, says()).prop_map(|(size, says)| Groups(size, says));
    prop_oneof![
        1 => groups().prop_map(Own::Groups),
        1 => groups().prop_map(Own::Regroup),
        1 => groups().prop_map(Own::Stacked),
        2 => (1usize..30, any::<bool>(), says()).prop_map(|(buffer, within_rank, says)| {
            Own::Mixer(Mixer { buffer, within_rank, says })
        }),
        1 => (1usize..20, any::<bool>()).prop_map(|(items, adds)| Own::Ahead(Ahead(items, adds))),
        1 => (1u64..5).prop_map(|by| Own::Fresh(Fresh(by))),
        1 => (1u64..4).prop_map(|by| Own::Runs(Runs(by))),
        1 => (1usize..6).prop_map(|size| Own::Window(Window(size))),
        1 => (0u64..4).prop_map(|times| Own::Echo(Echo(times))),
        1 => (1usize..12).prop_map(|size| Own::Columns(Columns(size))),
        1 => (1usize..30).prop_map(|places| Own::Exchange(Exchange(places))),
        1 => Just(Own::Count),
    ]
}

/// A built-in filter that deals the items to the ranks, or one of the pipes above.
#[derive(Clone, Copy, Debug)]
pub enum Dealer {
    Filter,
    FilterPadded,
    Deal,
    Every,
}

impl Dealer {
    pub fn add(self, graph: Graph<u64>) -> Graph<u64> {
        match self {
            Dealer::Filter => graph.sharding_filter(),
            Dealer::FilterPadded => graph.sharding_filter_padded(),
            Dealer::Deal => graph.pipe(Deal),
            Dealer::Every => graph.pipe(Every),
        }
    }
}

/// A policy for ranks that do not come out even, and a dealer that can follow it.
pub fn dealt() -> impl Strategy<Value = (Dealer, Uneven)> {
    let pads = || prop_oneof![Just(Dealer::FilterPadded), Just(Dealer::Deal)];
    let any = prop_oneof![pads(), Just(Dealer::Filter)];
    let others = prop_oneof![Just(Uneven::Drop), Just(Uneven::Allow), Just(Uneven::Error)];
    prop_oneof![
        2 => (pads(), Just(Uneven::Pad)),
        6 => (any, others),
        // It minds no policy.
        1 => Just((Dealer::Every, Uneven::Allow)),
    ]
}

pub fn goes_on() -> impl Strategy<Value = GoesOn> {
    prop_oneof![
        Just(GoesOn::Keeps),
        Just(GoesOn::ByPosition),
        Just(GoesOn::FromTheBeginning)
    ]
}
