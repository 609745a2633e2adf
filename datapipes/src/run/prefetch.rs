//! Runs everything upstream on a thread of its own, ahead of its consumer, or on the consumer's
//! while it waits.

mod turns;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;

use self::turns::{Start, Turns};
use crate::budget::{Account, Credit, Limit};
use crate::graph::{AnyChunk, Edge, ErasedChunks};
use crate::items::{self, Demand};
use crate::queue::{Limits, Put, Take, ThreadPut, ThreadTake, Weight, thread};
use crate::run::gauge::{QueueGauge, Wait, WaitTime};
use crate::run::scope::Scope;
use crate::run::{JOIN_TIMEOUT, are_wakes_put_off};
use crate::{Error, ErrorKind};

pub(crate) struct PrefetchSettings {
    pub name: String,
    pub depth: Depth,
    pub account: Account,
    pub scope: Scope,
    pub edge: Arc<dyn Edge>,
    /// While it is set, the reader itself polls the upstream, after the ready items.
    pub here: Arc<AtomicBool>,
    /// True if the reader blocks its thread while it waits, so that it may poll the upstream
    /// meanwhile.
    pub reader_blocks: bool,
}

/// Length of a queue.
#[derive(Clone)]
pub(crate) struct Depth {
    /// Maximum number of items kept ready, which may change while the queue is read. With 0, no item
    /// is made before the consumer waits for it.
    pub items: Arc<AtomicUsize>,
    /// True if more items may be kept ready when they are quick to make.
    pub adaptive: bool,
}

/// A queue with a thread that fills it. Nothing starts before the first poll.
///
/// A reader that has to wait has nothing else to do: if it blocks its thread, and has seldom been
/// away for long, it polls the upstream itself, and is woken by what it waits for. Otherwise each
/// item would wake the thread, which wakes the reader, which wakes the thread for the next one. The
/// thread takes over when the reader stays away.
pub(crate) struct PrefetchThread {
    state: PrefetchState,
    gauge: Arc<QueueGauge>,
    here: Arc<AtomicBool>,
    /// Wait that the reader is in, since this time.
    wait: Option<(Instant, Wait)>,
    away: Away,
}

enum PrefetchState {
    Fresh(Box<dyn ErasedChunks>, PrefetchSettings),
    Running(Driver),
    Failed(Option<AnyChunk>),
}

struct Driver {
    /// Chunks, each with the time when it was put; `None` only in the drop.
    take: Option<ThreadTake<(Instant, AnyChunk)>>,
    consumed: Arc<AtomicUsize>,
    turns: Arc<Turns>,
    reader_blocks: bool,
    /// True if the reader asked for the upstream while the thread had it.
    has_asked: bool,
    ended: mpsc::Receiver<()>,
}

/// Time for which a reader is away before it asks for more.
#[derive(Default)]
struct Away {
    since: Option<Instant>,
    /// Average of the last times, in nanoseconds.
    ns: f64,
}

/// Average time away from which on a thread is to work meanwhile, at the price of its wakes.
const AWAY_NS: f64 = 50_000.0;
/// Time for which a reader that waits polls the upstream. A consumer that has waited for several
/// seconds may give up, and then nobody would.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 1000 });

impl Away {
    fn begin(&mut self) {
        self.since = Some(Instant::now());
    }

    /// Ends it. One long time alone changes little.
    fn end(&mut self) {
        if let Some(since) = self.since.take() {
            let ns = since.elapsed().as_nanos() as f64;
            self.ns = self.ns * 0.8 + ns.min(4.0 * AWAY_NS) * 0.2;
        }
    }

    fn is_short(&self) -> bool {
        self.ns < AWAY_NS
    }
}

/// Tells a task that a reader waits for it. The upstream may refuse to run ahead, and is asked
/// again then.
#[derive(Default)]
pub(super) struct Need {
    waits: AtomicBool,
    waker: AtomicWaker,
}

impl Need {
    /// Records that a reader waits.
    pub(super) fn tell(&self) {
        self.waits.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Wakes the task, so that it looks at what else it may have to do.
    fn wake(&self) {
        self.waker.wake();
    }

    /// Records that no reader waits; returns true if one did.
    fn clear(&self) -> bool {
        self.waits.swap(false, Ordering::SeqCst)
    }

    /// Wakes the task when a reader waits.
    pub(super) fn register(&self, cx: &task::Context<'_>) {
        self.waker.register(cx.waker());
    }

    pub(super) fn waits(&self) -> bool {
        self.waits.load(Ordering::SeqCst)
    }
}

impl PrefetchThread {
    pub(crate) fn new(
        above: Box<dyn ErasedChunks>,
        settings: PrefetchSettings,
        gauge: Arc<QueueGauge>,
    ) -> Self {
        let here = settings.here.clone();
        PrefetchThread {
            state: PrefetchState::Fresh(above, settings),
            gauge,
            here,
            wait: None,
            away: Away::default(),
        }
    }

    /// Starts to work ahead. Otherwise the first poll does.
    pub(crate) fn start(&mut self) {
        if let PrefetchState::Fresh(..) = self.state {
            let PrefetchState::Fresh(above, settings) =
                std::mem::replace(&mut self.state, PrefetchState::Failed(None))
            else {
                unreachable!("matched in the line above")
            };
            self.gauge.inline.store(false, Ordering::Relaxed);
            self.state = Self::launch(above, settings, self.gauge.clone());
        }
    }

    fn launch(
        above: Box<dyn ErasedChunks>,
        settings: PrefetchSettings,
        gauge: Arc<QueueGauge>,
    ) -> PrefetchState {
        let limits = Limits {
            items: 1,
            bytes: usize::MAX,
        };
        let (put, take) = thread::<(Instant, AnyChunk)>(limits);
        let consumed = Arc::new(AtomicUsize::new(0));
        let (send_ended, ended) = mpsc::channel();
        let (name, scope, edge) = (
            settings.name.clone(),
            settings.scope.clone(),
            settings.edge.clone(),
        );
        let (here, reader_blocks) = (settings.here.clone(), settings.reader_blocks);
        let filler = QueueFiller::new(above, put, consumed.clone(), settings, gauge);
        let turns = Arc::new(Turns::new(filler, here));
        let shared = turns.clone();
        let body = move || {
            let _entered = scope.enter();
            // Unless its reader has found the end, the upstream is dropped here, on its own thread.
            let _ = catch_unwind(AssertUnwindSafe(|| shared.work_ahead()));
            drop(send_ended);
        };
        match super::spawn_thread_within(
            &tracing::Span::current(),
            format!("datapipes-{name}"),
            body,
        ) {
            Ok(_) => PrefetchState::Running(Driver {
                take: Some(take),
                consumed,
                turns,
                reader_blocks,
                has_asked: false,
                ended,
            }),
            Err(error) => {
                let error =
                    Error::new(ErrorKind::Worker, "cannot start a thread").with_source(error);
                PrefetchState::Failed(Some(edge.fail_chunk(error)))
            }
        }
    }
}

/// Amount of work an adaptive queue keeps ready, so that two threads need not wake each other for
/// each small item.
const READY_NS: f64 = 4e6;
/// Amount of work that is worth a wake of the consumer.
const HOP_NS: f64 = 200_000.0;
/// Maximum number of items an adaptive queue keeps ready.
const MAX_READY: usize = 1024;

/// A queue that is being filled: by the thread, or by a reader that waits.
///
/// The queue grows gradually: of every four items taken, one makes it longer, up to its full length,
/// so that the start of an epoch asks for no more than 1.25 times the steady rate.
struct QueueFiller {
    // The queue must end after the upstream is gone.
    above: Box<dyn ErasedChunks>,
    credit: Credit,
    started: Instant,
    /// Nanoseconds without room or bytes.
    full_ns: u64,
    /// Time since when there is no room, or no bytes.
    full_since: Option<Instant>,
    /// Number of items and errors that were made.
    made: usize,
    gauge: Arc<QueueGauge>,
    settings: PrefetchSettings,
    /// Number of items that were taken.
    consumed: Arc<AtomicUsize>,
    put: ThreadPut<(Instant, AnyChunk)>,
}

/// Outcome of a poll of the upstream.
enum Filled {
    Chunk(AnyChunk),
    /// An error, after which nothing comes.
    Last(AnyChunk),
    End,
}

impl QueueFiller {
    fn new(
        above: Box<dyn ErasedChunks>,
        put: ThreadPut<(Instant, AnyChunk)>,
        consumed: Arc<AtomicUsize>,
        settings: PrefetchSettings,
        gauge: Arc<QueueGauge>,
    ) -> Self {
        QueueFiller {
            above,
            credit: settings.account.credit(),
            started: Instant::now(),
            full_ns: 0,
            full_since: None,
            made: 0,
            gauge,
            settings,
            consumed,
            put,
        }
    }

    fn into_upstream(self) -> (Box<dyn ErasedChunks>, PrefetchSettings) {
        (self.above, self.settings)
    }

    /// Makes the next items once there is room for them. If there is none, or nothing comes yet, the
    /// task is woken.
    fn poll_ahead(&mut self, cx: &mut task::Context<'_>, need: &Need) -> Poll<Filled> {
        let (least, length, cost) = self.adapt_length();
        if least == 0 && !need.waits() {
            return self.wait();
        }
        let Poll::Ready(room) = self.put.poll_ready(cx) else {
            return self.wait();
        };
        // Nobody listens any more.
        let Some(room) = room else {
            return Poll::Ready(Filled::End);
        };
        // The order of the two checks matters: a reader that has just emptied the queue is not
        // waiting.
        let waits = room == length && need.waits();
        self.poll_upstream(cx, room, cost, waits)
    }

    /// Makes the next items for a reader that has found the queue empty.
    fn poll_awaited(&mut self, cx: &mut task::Context<'_>) -> Poll<Filled> {
        let (_, length, cost) = self.adapt_length();
        self.poll_upstream(cx, length, cost, true)
    }

    fn poll_upstream(
        &mut self,
        cx: &mut task::Context<'_>,
        room: usize,
        cost: f64,
        waits: bool,
    ) -> Poll<Filled> {
        let max = room.min(items::at_once_across(HOP_NS, cost, self.made));
        let Poll::Ready(max) = self.credit.poll_begin(cx, max, Limit::Share, || waits) else {
            return self.wait();
        };
        let demand = Demand {
            ahead: !waits,
            ..Demand::up_to(max)
        };
        let begun = Instant::now();
        let _busy = self.settings.scope.busy();
        if let Some(since) = self.full_since.take() {
            let waited = (begun - since).as_nanos() as u64;
            self.gauge.full_ns.fetch_add(waited, Ordering::Relaxed);
            self.full_ns += waited;
        }
        let polled = catch_unwind(AssertUnwindSafe(|| self.above.poll_chunk(cx, demand)));
        let busy = begun.elapsed().as_nanos() as u64;
        self.gauge.busy_ns.fetch_add(busy, Ordering::Relaxed);
        let (mut chunk, is_last) = match polled {
            Ok(Poll::Pending) => {
                self.gauge.pending_polls.fetch_add(1, Ordering::Relaxed);
                self.credit.poll_pending(max);
                return Poll::Pending;
            }
            Ok(Poll::Ready(None)) => return Poll::Ready(Filled::End),
            Ok(Poll::Ready(Some(chunk))) => (chunk, false),
            Err(payload) => (self.settings.edge.fail_chunk(Error::panic(payload)), true),
        };
        self.made += chunk.len;
        let counted = chunk.len - chunk.errors;
        chunk.hold = Some(self.credit.give(counted, chunk.bytes, 0));
        Poll::Ready(match is_last {
            true => Filled::Last(chunk),
            false => Filled::Chunk(chunk),
        })
    }

    /// Waits for room or bytes.
    fn wait(&mut self) -> Poll<Filled> {
        self.full_since.get_or_insert_with(Instant::now);
        Poll::Pending
    }

    fn put(&mut self, chunk: AnyChunk) {
        let weight = Weight {
            items: chunk.len,
            bytes: chunk.bytes,
        };
        self.put.put((Instant::now(), chunk), weight);
    }

    /// Sets the length of the queue. Returns the least that it may have, its length now, and the
    /// nanoseconds that an item costs.
    fn adapt_length(&mut self) -> (usize, usize, f64) {
        let depth = &self.settings.depth;
        let least = depth.items.load(Ordering::Relaxed);
        let mut most = least;
        let spent = self.started.elapsed().as_nanos() as f64 - self.full_ns as f64;
        let cost = spent / self.made.max(1) as f64;
        if depth.adaptive && self.made > 0 {
            most = ((READY_NS / cost) as usize).clamp(least, MAX_READY);
        }
        let grown = 1 + self.consumed.load(Ordering::Relaxed) / 4;
        let length = grown.min(most).max(1);
        self.put.set_limits(Limits {
            items: length,
            bytes: usize::MAX,
        });
        self.gauge.depth.store(length as u64, Ordering::Relaxed);
        let most = &self.gauge.most_depth;
        most.fetch_max(length as u64, Ordering::Relaxed);
        (least, length, cost)
    }
}

impl Driver {
    fn take(&mut self) -> &mut ThreadTake<(Instant, AnyChunk)> {
        self.take.as_mut().expect("there until dropped")
    }

    fn is_ready(&mut self) -> bool {
        self.take().held().items > 0
    }

    /// Takes what is ready.
    fn poll_ready(
        &mut self,
        gauge: &QueueGauge,
        cx: &mut task::Context<'_>,
    ) -> Poll<Option<AnyChunk>> {
        self.take().poll_take(cx).map(|taken| {
            taken.map(|(since, chunk)| {
                let in_queue = since.elapsed().as_nanos() as u64;
                gauge.item_wait.record(in_queue, chunk.len as u64);
                chunk
            })
        })
    }
}

impl ErasedChunks for PrefetchThread {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<AnyChunk>> {
        let here = self.here.load(Ordering::SeqCst);
        if !here {
            self.start();
        }
        let driver = match &mut self.state {
            PrefetchState::Fresh(above, _) => return above.poll_chunk(cx, demand),
            PrefetchState::Failed(error) => return Poll::Ready(error.take()),
            PrefetchState::Running(driver) => driver,
        };
        self.away.end();
        // Before the take: the thread must not find the queue empty and a reader that has just got
        // its item.
        let waited = driver.turns.need.clear();
        let held = driver.take().held().items as u64;
        self.gauge.occupancy_sum.fetch_add(held, Ordering::Relaxed);
        self.gauge.occupancy_polls.fetch_add(1, Ordering::Relaxed);
        let mut polled = driver.poll_ready(&self.gauge, cx);
        if std::mem::take(&mut driver.has_asked) && polled.is_ready() {
            driver.turns.leave(None);
        }
        self.gauge.polled_here.store(false, Ordering::Relaxed);
        if polled.is_pending() {
            let empty = &self.gauge.empty;
            let (since, _) = self
                .wait
                .get_or_insert_with(|| (Instant::now(), WaitTime::start(empty)));
            // Where wakes are put off, the thread is sooner.
            let is_ours = driver.reader_blocks
                && !demand.ahead
                && self.away.is_short()
                && since.elapsed() < PATIENCE
                && !are_wakes_put_off();
            match driver.turns.start(cx, here || is_ours) {
                // The thread has put something in meanwhile.
                Start::Ours(filler) if driver.is_ready() => {
                    driver.turns.leave(Some(filler));
                    polled = driver.poll_ready(&self.gauge, cx);
                }
                Start::Ours(filler) if here => {
                    let (above, settings) = filler.into_upstream();
                    self.wait = None;
                    self.gauge.inline.store(true, Ordering::Relaxed);
                    self.state = PrefetchState::Fresh(above, settings);
                    return self.poll_chunk(cx, demand);
                }
                Start::Ours(filler) => {
                    self.gauge.polled_here.store(true, Ordering::Relaxed);
                    polled = driver.turns.poll_awaited(cx, filler);
                }
                Start::Soon => driver.has_asked = true,
                Start::Theirs => {
                    // A poll ahead of need does not end the wait of an earlier one.
                    if waited || !demand.ahead {
                        driver.turns.need.tell();
                    }
                }
            }
        }
        if let Poll::Ready(chunk) = &polled {
            self.wait = None;
            if let Some(chunk) = chunk {
                driver.consumed.fetch_add(chunk.len, Ordering::Relaxed);
                let taken = &self.gauge.taken;
                taken.fetch_add(chunk.len as u64, Ordering::Relaxed);
            }
            self.away.begin();
        }
        polled
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.turns.close();
        drop(self.take.take());
        let _ = self.ended.recv_timeout(JOIN_TIMEOUT);
    }
}

#[cfg(test)]
mod tests;
