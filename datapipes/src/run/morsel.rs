//! A morsel: a piece of a segment's input that passes through the segment's chain as a task, with a
//! queue for its output.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize};
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;

use crate::budget::{Account, Awaited, Credit, Limit};
use crate::graph::{AnyChunk, Edge, ErasedChunks, Look};
use crate::items::{self, Demand};
use crate::queue::{Arrivals, Limits, Put, ThreadPut, ThreadTake, Weight, arriving, thread};
use crate::run::chain::Chain;
use crate::run::gauge::{SegmentGauge, thread_cpu_ns};
use crate::run::near::Waits;
use crate::run::timeline::MorselEvents;
use crate::{Arity, Error, Work};

/// Number of items in a morsel's queue before its worker turns to other work. Bytes are counted for
/// all of a segment together.
const LIMITS: Limits = Limits {
    items: 256,
    bytes: usize::MAX,
};

/// Number of small items in that queue, as long as all that the morsel made is within [`SMALL_BYTES`].
/// A block of many of them is then made while its reader is at an earlier one.
const SMALL_ITEMS: usize = 4096;
const SMALL_BYTES: usize = 1 << 20;

/// Multiple of items to make in one poll if they seldom wait.
const TOGETHER: f64 = 5.0;

/// Executor of morsels: the pool, the async runtime or child processes.
pub(crate) trait Spawner: Send {
    /// Starts the work of a morsel. It is cancelled when the result is dropped.
    fn spawn(&self, job: MorselJob) -> MorselTask;

    /// Returns the number of copies of an input that exist while it is worked on.
    fn copies(&self) -> usize {
        1
    }
}

/// The work of a morsel, as its executor gets it. If it is dropped before its end, the segment
/// notices that it is lost.
pub(crate) struct MorselJob {
    pub shared: Arc<MorselShared>,
    /// Piece of the input, and the number of its first item.
    pub chunk: AnyChunk,
    pub first: u64,
    /// Number of its output items of which the reader needs all before it can go on.
    #[cfg_attr(
        not(target_os = "linux"),
        allow(dead_code, reason = "only child processes send items in messages")
    )]
    pub needed: Needed,
    /// Bytes of the input and the output.
    pub credit: Credit,
    /// Kind of the work: that of the segment, or of work that seldom waits, CPU.
    pub work: Work,
    pub fate: Arc<Fate>,
    // The queue must end before the bell rings, so it is dropped first.
    pub put: ThreadPut<AnyChunk>,
    pub ringer: Ringer,
}

/// Number of output items of a morsel that are of no use one by one: as long as the reader needs all
/// of them, as for a batch, they withhold nothing if they come together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Needed {
    /// Number of the first of them.
    pub first: usize,
    /// Number of those that follow, again and again.
    pub then: usize,
}

impl Needed {
    /// Items that are of use one by one.
    pub const ONE: Needed = Needed { first: 1, then: 1 };

    /// Returns how many may come together after `made` items.
    #[cfg(any(test, target_os = "linux"))]
    pub fn after(self, made: usize) -> usize {
        match self.first.checked_sub(made) {
            Some(left) if left > 0 => left,
            _ => self.then - (made - self.first) % self.then,
        }
    }
}

/// A running morsel, which is cancelled when dropped.
pub(crate) enum MorselTask {
    Pool {
        _task: async_task::Task<()>,
    },
    Io(tokio::task::JoinHandle<()>),
    /// Nothing runs in this process: a supervisor has the morsel and notices if nobody takes the
    /// output, or the morsel has failed already.
    Elsewhere,
}

impl Drop for MorselTask {
    fn drop(&mut self) {
        if let MorselTask::Io(task) = self {
            task.abort();
        }
    }
}

/// Properties shared by the morsels of one segment.
pub(crate) struct MorselShared {
    pub chain: Chain,
    pub work: Work,
    /// Waits of the work, if it seldom waits: it is work for the CPU workers until it does.
    pub waits: Option<Arc<Waits>>,
    /// Number of output items for each input item.
    pub arity: Arity,
    pub bell: Arc<Bell>,
    /// Bytes of the output, and of the input that is still there.
    pub account: Account,
    pub awaited: Arc<Awaited>,
    /// Recent cost of items, and the number of those that were taken.
    pub pace: MorselPace,
    pub gauge: Arc<SegmentGauge>,
}

/// Number of items that may be made in one poll. Items made together come out together, so an item
/// that never completes holds up the others. The number is small if items are expensive, or as long
/// as their cost is not known.
#[derive(Default)]
pub(crate) struct MorselPace {
    /// Nanoseconds per item.
    cost: AtomicU64,
    /// Number of items that the reader took, in all epochs. Those that later morsels have made do not
    /// count, or the items before an early one that blocks would wait with it.
    taken: Arc<AtomicUsize>,
}

impl MorselPace {
    /// Begins after the items of earlier epochs, whose number it keeps up to date.
    pub(super) fn after(taken: Arc<AtomicUsize>) -> Self {
        MorselPace {
            taken,
            ..MorselPace::default()
        }
    }

    /// Returns how many items to make in one poll: more of those that seldom wait.
    fn at_once(&self, seldom_waits: bool) -> usize {
        let cost = self.cost.load(Relaxed) as f64;
        items::at_once(
            if seldom_waits { cost / TOGETHER } else { cost },
            self.taken(),
        )
    }

    fn learn(&self, items: usize, ns: u64) {
        let cost = ns / items.max(1) as u64;
        // Adapts quickly to cheap items: the first ones pay for cold caches.
        let learned = match self.cost.load(Relaxed) {
            known if cost < known || known == 0 => cost,
            known => known - known / 4 + cost / 4,
        };
        self.cost.store(learned, Relaxed);
    }

    /// Returns the number of items that the reader took.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// Records that the reader took items.
    pub(super) fn take(&self, items: usize) {
        self.taken.fetch_add(items, Relaxed);
    }
}

/// Outcome of a morsel.
#[derive(Default)]
pub(crate) struct Fate {
    /// Nanoseconds spent on the morsel. For CPU work, the time of the work; for I/O, the time from
    /// start to end without waits for room.
    spent: AtomicU64,
    /// True if the morsel came to its end. If it did not, its runtime was shut down.
    complete: AtomicBool,
}

impl Fate {
    #[cfg(any(test, target_os = "linux"))]
    pub(crate) fn spend(&self, ns: u64) {
        self.spent.fetch_add(ns, Relaxed);
    }

    pub(crate) fn complete(&self) {
        self.complete.store(true, SeqCst);
    }
}

/// A piece of the input on its way.
pub(super) struct Morsel {
    pub slot: ThreadTake<AnyChunk>,
    _running: MorselTask,
    fate: Arc<Fate>,
    pub items: usize,
    /// Number of items that came out so far.
    pub out: usize,
    /// Number that identifies the morsel to the tasks that wait for it.
    pub id: u64,
    /// Kind of the work at its start.
    pub work: Work,
    /// Position of its first item in the input, if it has to be known.
    pub position: u64,
    /// Number of items of later morsels that were delivered before the remaining items of this one.
    pub overtaken: usize,
}

impl Morsel {
    /// Starts a piece of the input, whose first item has this number and this position. `credit` has
    /// bytes for its first item. A reader who takes morsels out of order waits at `arrivals`.
    /// Dropping the morsel cancels it.
    pub(super) fn start(
        (chunk, first, position): (AnyChunk, u64, u64),
        needed: Needed,
        work: Work,
        credit: Credit,
        shared: &Arc<MorselShared>,
        spawner: &dyn Spawner,
        arrivals: Option<&Arc<Arrivals>>,
    ) -> Morsel {
        let (id, items) = (credit.id(), chunk.len);
        let limits = Limits {
            items: if shared.chain.output().is_unknown() {
                LIMITS.items
            } else {
                SMALL_ITEMS
            },
            ..LIMITS
        };
        let (put, slot) = match arrivals {
            None => thread::<AnyChunk>(limits),
            Some(arrivals) => arriving::<AnyChunk>(limits, arrivals, id),
        };
        let fate = Arc::new(Fate::default());
        let running = spawner.spawn(MorselJob {
            shared: shared.clone(),
            chunk,
            first,
            needed,
            credit,
            work,
            fate: fate.clone(),
            put,
            ringer: Ringer(Some(shared.bell.clone())),
        });
        Morsel {
            slot,
            _running: running,
            fate,
            items,
            out: 0,
            id,
            work,
            position,
            overtaken: 0,
        }
    }

    /// Returns the nanoseconds spent: of CPU work, on a worker; of I/O, from start to end.
    pub(super) fn spent(&self) -> u64 {
        self.fate.spent.load(Relaxed)
    }

    /// Returns the nanoseconds spent per item.
    pub(super) fn cost(&self) -> f64 {
        self.spent() as f64 / self.items.max(1) as f64
    }

    /// Returns true if the morsel came to its end. If it did not, its runtime was shut down.
    pub(super) fn is_complete(&self) -> bool {
        self.fate.complete.load(SeqCst)
    }
}

impl MorselJob {
    /// Runs the chain over the piece.
    pub(super) async fn run(self) {
        let mut events = self.events();
        let MorselJob {
            shared,
            chunk,
            first,
            mut credit,
            work,
            fate,
            put,
            ringer,
            ..
        } = self;
        let MorselShared {
            chain,
            waits,
            arity,
            awaited,
            pace,
            gauge,
            ..
        } = &*shared;
        let arity = *arity;
        // Waits are news for a segment that takes its work for work that does not wait.
        let waits = waits.as_ref().filter(|_| work == Work::Cpu);
        let mut told = false;
        let (id, items) = (credit.id(), chunk.len);
        let mut outlet = Outlet {
            put,
            ringer,
            edge: chain.output().clone(),
            joined: None,
            small: Some(SMALL_BYTES),
        };
        let mut output = None;
        let input = chunk.bytes;
        let mut chunk = Some(chunk);
        let mut started = None;
        let (mut waited, mut given) = (Duration::ZERO, 0);
        loop {
            let mut full = None;
            let room = poll_fn(|cx| {
                let room = outlet.put.poll_ready(cx);
                if room.is_pending() {
                    full.get_or_insert_with(Instant::now);
                    outlet.stop();
                }
                room
            });
            let Some(room) = room.await else { return };
            waited += full.map_or(Duration::ZERO, |since| since.elapsed());
            // Only the end follows, which weighs nothing.
            let is_over = arity == Arity::One && given >= items;
            let most = room.min(pace.at_once(waits.is_some() && !told));
            let (mut spent, mut refused, mut asked) = (0, None, 0);
            let next = poll_fn(|cx| {
                let max = if is_over {
                    1
                } else {
                    let limit = match arity {
                        _ if awaited.leads(id) => Limit::BesideInputs,
                        Arity::Any => Limit::Most,
                        _ => Limit::Share,
                    };
                    let max = most.saturating_sub(outlet.len()).max(1);
                    match credit.poll_begin(cx, max, limit, || awaited.is(id)) {
                        Poll::Ready(max) => max,
                        Poll::Pending => {
                            refused.get_or_insert_with(Instant::now);
                            outlet.stop();
                            return Poll::Pending;
                        }
                    }
                };
                asked = max;
                let begun = Instant::now();
                let cpu_ns = (work == Work::Cpu).then(|| thread_cpu_ns().unwrap_or(0));
                waited += refused.take().map_or(Duration::ZERO, |since| begun - since);
                started.get_or_insert(begun);
                let polled = catch_unwind(AssertUnwindSafe(|| {
                    let output = output.get_or_insert_with(|| {
                        let chunk = chunk.take().expect("taken once");
                        chain
                            .output()
                            .erase(chain.apply(chain.input.one(chunk), first))
                    });
                    output.poll_chunk(
                        cx,
                        Demand {
                            ahead: true,
                            ..Demand::up_to(max)
                        },
                    )
                }));
                let ns = begun.elapsed().as_nanos() as u64;
                spent += ns;
                if work == Work::Cpu {
                    fate.spent.fetch_add(ns, Relaxed);
                }
                if let Some(events) = &mut events {
                    events.turn(begun, Duration::from_nanos(ns));
                }
                gauge.add_turn(ns, cpu_ns);
                if let Some(waits) = waits {
                    if matches!(polled, Ok(Poll::Pending)) && !waits.is_far() {
                        waits.wait();
                    }
                    if waits.is_far() && !std::mem::replace(&mut told, true) {
                        outlet.ringer.wake();
                    }
                }
                match polled {
                    Ok(Poll::Pending) => {
                        gauge.pending_polls.fetch_add(1, Relaxed);
                        credit.poll_pending(max);
                        outlet.flush();
                        Poll::Pending
                    }
                    Ok(Poll::Ready(chunk)) => Poll::Ready(Ok(chunk)),
                    Err(payload) => Poll::Ready(Err(payload)),
                }
            });
            match next.await.unwrap_or_else(|payload| {
                // Instruments catch panics of running pipes; this is a pipe that panics when
                // applied.
                output = Some(Box::new(EmptyChunks));
                Some(chain.output().fail_chunk(chain.name(Error::panic(payload))))
            }) {
                Some(mut chunk) => {
                    given += chunk.len;
                    // Part of the input is still there, or all of it and what was made of it.
                    let left = match arity {
                        Arity::One => input / items * items.saturating_sub(given),
                        Arity::AtMostOne => input,
                        Arity::Any => credit.keep(input),
                    };
                    chunk.hold = Some(credit.give(chunk.len - chunk.errors, chunk.bytes, left));
                    let failed = chunk.errors > 0;
                    awaited.made(id);
                    pace.learn(chunk.len, spent);
                    // A short chunk means that the input has no more at hand.
                    let is_short = chunk.len < asked;
                    outlet.join(chunk);
                    if is_short || outlet.len() >= most {
                        outlet.send();
                    }
                    if failed {
                        // An error is sent without waiting for more items.
                        outlet.flush();
                    }
                }
                None => {
                    if let (Work::Io, Some(started)) = (work, started) {
                        // Waiting for the consumer is no part of the work.
                        let spent = started.elapsed().saturating_sub(waited);
                        if let Some(events) = &mut events {
                            events.answered(started, spent);
                        }
                        fate.spent.store(spent.as_nanos() as u64, Relaxed);
                    }
                    outlet.send();
                    return fate.complete();
                }
            }
        }
    }

    /// Returns what records the events of the morsel, if a trace is written.
    pub(crate) fn events(&self) -> Option<MorselEvents> {
        let MorselShared { chain, gauge, .. } = &*self.shared;
        let origins = || {
            let looks = chain.input.look(&self.chunk).into_iter();
            let origins = looks.filter_map(|look| match look {
                Look::Item(origin, _) => Some(origin),
                Look::Error(error) => error.item().cloned(),
            });
            origins.collect()
        };
        gauge.timeline.morsel(self.work == Work::Io, origins)
    }

    /// Fails the piece as a whole.
    pub(super) fn fail(mut self, error: Error) {
        let error = self.shared.chain.output().fail_chunk(error);
        self.put.put(error, Weight { items: 1, bytes: 0 });
        self.fate.complete();
    }
}

/// Tells the consumer that morsels are complete. Waking a thread for each morsel costs more than
/// many morsels themselves. The consumer therefore gives the number it waits for, which is the
/// number it needs anyway, and less than the number that keeps the workers busy.
#[derive(Default)]
pub(crate) struct Bell {
    /// Number of morsels in flight that are complete or have filled their queues. Too low by one
    /// for a moment if the consumer has already removed a morsel that is about to ring.
    through: AtomicIsize,
    wanted: AtomicIsize,
    waker: AtomicWaker,
}

impl Bell {
    /// Records that a morsel was removed.
    pub(super) fn taken(&self) {
        self.through.fetch_sub(1, SeqCst);
    }

    /// Returns the number of morsels in flight that are complete or have filled their queues.
    pub(super) fn through(&self) -> usize {
        self.through.load(SeqCst).max(0) as usize
    }

    /// Wakes the consumer, whatever is complete.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    fn ring(&self) {
        if self.through.fetch_add(1, SeqCst) + 1 >= self.wanted.load(SeqCst) {
            self.waker.wake();
        }
    }

    /// Returns true if `wanted` morsels are complete; otherwise wakes the task when they are.
    pub(super) fn poll(&self, cx: &task::Context<'_>, wanted: usize) -> bool {
        let wanted = isize::try_from(wanted).unwrap_or(isize::MAX);
        self.wanted.store(wanted, SeqCst);
        self.waker.register(cx.waker());
        self.through.load(SeqCst) >= wanted
    }
}

/// Rings once, when the morsel fills its queue or ends, however it ends.
pub(crate) struct Ringer(Option<Arc<Bell>>);

impl Ringer {
    /// Wakes the consumer, which may begin more.
    fn wake(&self) {
        if let Some(bell) = &self.0 {
            bell.wake();
        }
    }

    pub(crate) fn ring(&mut self) {
        if let Some(bell) = self.0.take() {
            bell.ring();
        }
    }
}

impl Drop for Ringer {
    fn drop(&mut self) {
        self.ring();
    }
}

/// The output of a morsel. Items that are made one by one, since each must have its bytes first, are
/// joined here, because handing on each by itself costs more than many an item.
struct Outlet {
    // The queue must end before the bell rings.
    put: ThreadPut<AnyChunk>,
    ringer: Ringer,
    edge: Arc<dyn Edge>,
    joined: Option<AnyChunk>,
    /// Bytes that may still be handed on while the items count as small; none once they do not.
    small: Option<usize>,
}

impl Outlet {
    /// Items and errors that are joined so far.
    fn len(&self) -> usize {
        self.joined.as_ref().map_or(0, |chunk| chunk.len)
    }

    /// Adds a chunk.
    fn join(&mut self, chunk: AnyChunk) {
        match &mut self.joined {
            Some(joined) => self.edge.append(joined, chunk),
            None => self.joined = Some(chunk),
        }
    }

    /// Hands on what is joined.
    fn send(&mut self) {
        if let Some(chunk) = self.joined.take() {
            let weight = Weight {
                items: chunk.len,
                bytes: chunk.bytes,
            };
            if let Some(left) = self.small {
                self.small = left.checked_sub(weight.bytes);
                if self.small.is_none() {
                    self.put.set_limits(LIMITS);
                }
            }
            self.put.put(chunk, weight);
        }
    }

    /// Hands on what is joined, and wakes a consumer that waits for more: no more come for now.
    fn flush(&mut self) {
        self.send();
        self.put.flush();
    }

    /// Hands on what is joined, and stops until there is room.
    fn stop(&mut self) {
        self.flush();
        self.ringer.ring();
    }
}

/// An empty stream.
struct EmptyChunks;

impl ErasedChunks for EmptyChunks {
    fn poll_chunk(&mut self, _: &mut task::Context<'_>, _: Demand) -> Poll<Option<AnyChunk>> {
        Poll::Ready(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_earlier_epochs_are_a_reason_to_make_more_at_once() {
        let taken = Arc::<AtomicUsize>::default();
        let first = MorselPace::after(taken.clone());
        assert_eq!(first.at_once(false), 1);
        first.take(6400);
        let second = MorselPace::after(taken);
        assert_eq!((second.taken(), second.at_once(false)), (6400, 101));
    }
}
