//! A morsel: a piece of a segment's input that passes through the segment's chain as a task, with a
//! queue for its output.

mod running;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize};
use std::task::{self, Waker};

use futures::task::AtomicWaker;

use self::running::{OutputBuffer, RunningMorsel, Turn};
use crate::budget::{Account, Awaited, Credit};
use crate::graph::{AnyChunk, Look};
use crate::items;
use crate::queue::{Arrivals, Limits, Put, ThreadPut, ThreadTake, Weight, arriving, thread};
use crate::run::chain::Chain;
use crate::run::gauge::SegmentGauge;
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

/// Work that is worth a wake of the reader, which takes some ten microseconds of two threads.
const WAKE_NS: f64 = 500_000.0;
/// The same for work that seldom waits, such as reading files: what it has read is to be in a cache
/// still when the reader gets it.
const NEAR_WAKE_NS: f64 = 100_000.0;

/// Executor of morsels: the pool, the async runtime or child processes.
pub(crate) trait Spawner: Send {
    /// Starts the work of a morsel. It is cancelled when the result is dropped.
    fn spawn(&self, job: MorselJob) -> MorselTask;

    /// Starts the threads that are going to work, while nothing else is to be done.
    fn prepare(&self) {}

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
    pub needed: Needed,
    /// Bytes of the input and the output.
    pub credit: Credit,
    /// Kind of the work: that of the segment, or of work that seldom waits, CPU.
    pub work: Work,
    pub outcome: Arc<MorselOutcome>,
    // The queue must end before the notification is sent, so it is dropped first.
    pub put: ThreadPut<AnyChunk>,
    pub notification: Notification,
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

wire_struct!(Needed { first, then });

impl Needed {
    /// Items that are of use one by one.
    pub const ONE: Needed = Needed { first: 1, then: 1 };

    /// Returns how many may come together after `made` items.
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
    pub notifier: Arc<Notifier>,
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

    /// Returns how many items to make in one poll: of work on a worker as many as are worth a wake of
    /// the reader.
    fn at_once(&self, work: Work) -> usize {
        let (cost, taken) = (self.cost.load(Relaxed) as f64, self.taken());
        match work {
            Work::Io => items::at_once(cost, taken),
            Work::Cpu => items::at_once_across(WAKE_NS, cost, taken),
        }
    }

    /// Returns the same for work that seldom waits: of the items that the reader `needed` together as
    /// many as are worth a wake, however few it took before.
    fn at_once_near(&self, needed: usize) -> usize {
        let (cost, taken) = (self.cost.load(Relaxed) as f64, self.taken());
        let worth = if cost > 0.0 {
            (NEAR_WAKE_NS / cost) as usize
        } else {
            1
        };
        items::at_once_across(NEAR_WAKE_NS, cost, taken).max(needed.min(worth))
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
pub(crate) struct MorselOutcome {
    /// Nanoseconds spent on the morsel. For CPU work, the time of the work; for I/O, the time from
    /// start to end without waits for room.
    spent: AtomicU64,
    /// True if the morsel came to its end. If it did not, its runtime was shut down.
    complete: AtomicBool,
}

impl MorselOutcome {
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
    outcome: Arc<MorselOutcome>,
    pub items: usize,
    /// Number of items that came out so far.
    pub out: usize,
    /// Bytes of them.
    pub bytes: usize,
    /// Bytes that it will have, if its input tells and nothing has been answered yet.
    pub expected: Option<usize>,
    /// True if more morsels were at work at its begin than ever before: it may have to connect.
    pub connects: bool,
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
        let outcome = Arc::new(MorselOutcome::default());
        let running = spawner.spawn(MorselJob {
            shared: shared.clone(),
            chunk,
            first,
            needed,
            credit,
            work,
            outcome: outcome.clone(),
            put,
            notification: Notification(Some(shared.notifier.clone())),
        });
        Morsel {
            slot,
            _running: running,
            outcome,
            items,
            out: 0,
            bytes: 0,
            expected: None,
            connects: false,
            id,
            work,
            position,
            overtaken: 0,
        }
    }

    /// Returns the nanoseconds spent: of CPU work, on a worker; of I/O, from start to end.
    pub(super) fn spent(&self) -> u64 {
        self.outcome.spent.load(Relaxed)
    }

    /// Returns the nanoseconds spent per item.
    pub(super) fn cost(&self) -> f64 {
        self.spent() as f64 / self.items.max(1) as f64
    }

    /// Returns true if the morsel came to its end. If it did not, its runtime was shut down.
    pub(super) fn is_complete(&self) -> bool {
        self.outcome.complete.load(SeqCst)
    }
}

impl MorselJob {
    /// Runs the chain over the piece.
    pub(super) async fn run(self) {
        let events = self.events();
        let MorselJob {
            shared,
            chunk,
            first,
            needed,
            credit,
            work,
            outcome,
            put,
            notification,
        } = self;
        let buffer = OutputBuffer::new(put, notification, shared.chain.output().clone());
        let mut run = RunningMorsel::new(
            &shared,
            (chunk, first, needed),
            work,
            credit,
            buffer,
            outcome,
            events,
        );
        loop {
            let mut full = None;
            let room = poll_fn(|cx| run.poll_room(cx, &mut full));
            let Some(room) = room.await else { return };
            let most = run.begin_turn(room, full);
            let mut turn = Turn::default();
            match poll_fn(|cx| run.poll_turn(cx, most, &mut turn)).await {
                Some(chunk) => run.give(chunk, most, &turn),
                None => return run.end(),
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
        self.outcome.complete();
    }
}

/// Tells the consumer that morsels are complete. Waking a thread for each morsel costs more than
/// many morsels themselves. The consumer therefore gives the number it waits for, which is the
/// number it needs anyway, and less than the number that keeps the workers busy.
#[derive(Default)]
pub(crate) struct Notifier {
    /// Number of morsels in flight that are complete or have filled their queues. Too low by one
    /// for a moment if the consumer has already removed a morsel that is about to notify.
    ready: AtomicIsize,
    wanted: AtomicIsize,
    waker: AtomicWaker,
}

impl Notifier {
    /// Records that a morsel was removed.
    pub(super) fn taken(&self) {
        self.ready.fetch_sub(1, SeqCst);
    }

    /// Returns the number of morsels in flight that are complete or have filled their queues.
    pub(super) fn ready(&self) -> usize {
        self.ready.load(SeqCst).max(0) as usize
    }

    /// Wakes the consumer, whatever is complete.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Returns true if that woke the consumer.
    fn notify(&self) -> bool {
        let is_enough = self.ready.fetch_add(1, SeqCst) + 1 >= self.wanted.load(SeqCst);
        let waker = is_enough.then(|| self.waker.take()).flatten();
        waker.map(Waker::wake).is_some()
    }

    /// Returns true if `wanted` morsels are complete; otherwise wakes the task when they are.
    pub(super) fn poll(&self, cx: &task::Context<'_>, wanted: usize) -> bool {
        let wanted = isize::try_from(wanted).unwrap_or(isize::MAX);
        self.wanted.store(wanted, SeqCst);
        self.waker.register(cx.waker());
        self.ready.load(SeqCst) >= wanted
    }
}

/// Notifies once, when the morsel fills its queue or ends, however it ends.
pub(crate) struct Notification(Option<Arc<Notifier>>);

impl Notification {
    /// Wakes the consumer, which may begin more.
    fn wake(&self) {
        if let Some(notifier) = &self.0 {
            notifier.wake();
        }
    }

    /// Returns true if that woke the consumer.
    pub(crate) fn send(&mut self) -> bool {
        self.0.take().is_some_and(|notifier| notifier.notify())
    }
}

impl Drop for Notification {
    fn drop(&mut self) {
        self.send();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_earlier_epochs_are_a_reason_to_make_more_at_once() {
        let taken = Arc::<AtomicUsize>::default();
        let first = MorselPace::after(taken.clone());
        assert_eq!(first.at_once(Work::Cpu), 1);
        first.take(6400);
        let second = MorselPace::after(taken);
        assert_eq!((second.taken(), second.at_once(Work::Cpu)), (6400, 101));
    }

    #[test]
    fn short_items_come_together_as_far_as_they_are_worth_a_wake() {
        let pace = MorselPace::after(Arc::new(AtomicUsize::new(6400)));
        pace.learn(1, 10_000);
        assert_eq!((pace.at_once(Work::Cpu), pace.at_once_near(1)), (50, 10));
        let long = MorselPace::after(Arc::new(AtomicUsize::new(6400)));
        long.learn(1, 300_000);
        assert_eq!(long.at_once(Work::Cpu), 1);
        // A request reserves bytes for all that it may make.
        assert_eq!(pace.at_once(Work::Io), 2);
    }

    #[test]
    fn files_of_a_first_batch_come_together_once_one_was_quick() {
        let pace = MorselPace::default();
        assert_eq!(pace.at_once_near(256), 1);
        pace.learn(1, 5_000);
        assert_eq!(
            [256, 7, 1].map(|needed| pace.at_once_near(needed)),
            [20, 7, 1]
        );
        // Once they take long, each is alone.
        (0..40).for_each(|_| pace.learn(1, 5_000_000));
        assert_eq!(pace.at_once_near(256), 1);
    }
}
