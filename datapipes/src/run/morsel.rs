//! A morsel: a piece of a segment's input on its way through the segment's chain, as a task with a
//! queue for what comes out.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize, Ordering};
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;

use crate::batch_buffer::{RowCursor, Rows};
use crate::budget::{Account, Awaited, Credit};
use crate::graph::{AnyChunk, AnyItems, AnyPipe, Edge, ErasedChunks};
use crate::items::{self, Demand};
use crate::queue::{Limits, Put, ThreadPut, ThreadTake, Weight, thread};
use crate::run::pool::Pool;
use crate::run::scope::{Scope, Scoped};
use crate::run::segment::SegmentGauge;
#[cfg(target_os = "linux")]
use crate::run::worker::{Job, Lease, RunFacts};
use crate::{Arity, Context, Error, ErrorKind, Work};

/// What a morsel's queue may hold before its worker goes on to something else: items. Bytes are
/// counted for all of a segment together.
const LIMITS: Limits = Limits {
    items: 256,
    bytes: usize::MAX,
};

/// The chain of a segment, which every morsel passes.
pub(crate) struct Chain {
    pub links: Vec<Link>,
    /// The edge above the first node.
    pub input: Arc<dyn Edge>,
}

pub(crate) struct Link {
    pub pipe: Arc<dyn AnyPipe>,
    pub context: Context,
    pub edge: Arc<dyn Edge>,
    /// The rows of batches that it fills.
    pub rows: Option<Arc<Rows>>,
}

impl Chain {
    /// Applies the chain to items, the first of which is number `first` of the segment's input.
    pub(super) fn apply(&self, mut items: AnyItems, first: u64) -> AnyItems {
        for Link {
            pipe,
            context,
            edge,
            rows,
        } in &self.links
        {
            let output = match rows {
                None => pipe.apply(items, context),
                Some(rows) => pipe.apply(
                    items,
                    &context.with_rows(RowCursor::new(rows.clone(), first)),
                ),
            };
            items = edge.guard(output, context.clone());
        }
        items
    }

    /// The same in a poll, where a pipe that panics when it is applied is an error of its own.
    pub(super) fn apply_caught(&self, items: AnyItems, first: u64) -> AnyItems {
        catch_unwind(AssertUnwindSafe(|| self.apply(items, first)))
            .unwrap_or_else(|payload| self.output().fail(self.name(Error::panic(payload))))
    }

    pub(super) fn name(&self, error: Error) -> Error {
        error.at(self.links[0].context.node())
    }

    pub(super) fn output(&self) -> &Arc<dyn Edge> {
        &self.links.last().expect("a segment has a node").edge
    }
}

/// Where morsels run.
#[derive(Clone)]
pub(crate) enum Spawner {
    Pool(Arc<Pool>, Scope),
    Io(Scope),
    /// In processes of their own.
    #[cfg(target_os = "linux")]
    Supervisor(Arc<Lease>, RunFacts),
}

/// Cancels a morsel when dropped.
enum Running {
    Pool {
        _task: async_task::Task<()>,
    },
    Io(tokio::task::JoinHandle<()>),
    /// Nothing runs here: a supervisor has it, which sees that nobody takes what comes, or it has
    /// failed already.
    Elsewhere,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Running::Io(task) = self {
            task.abort();
        }
    }
}

/// What the morsels of one segment share.
pub(super) struct Line {
    pub chain: Arc<Chain>,
    pub spawner: Spawner,
    pub work: Work,
    /// How many come out for one that goes in.
    pub arity: Arity,
    /// For the pool's priority.
    pub depth: usize,
    pub bell: Arc<Bell>,
    /// The bytes of what comes out, and of what went in and is still there.
    pub account: Account,
    pub awaited: Arc<Awaited>,
    /// What items cost of late, and how many there were.
    pub pace: Arc<Pace>,
    pub busy: Arc<SegmentGauge>,
}

impl Line {
    /// How many there are of what goes in: the parent of processes keeps one, to send it again.
    pub(super) fn copies(&self) -> usize {
        match &self.spawner {
            #[cfg(target_os = "linux")]
            Spawner::Supervisor(..) => 2,
            _ => 1,
        }
    }
}

/// How many items may be made in one poll: what is made together comes out together, so that one
/// that takes for ever holds up the others. They are few where items are dear, and as long as
/// little is known.
#[derive(Default)]
pub(crate) struct Pace {
    /// Nanoseconds an item.
    cost: AtomicU64,
    seen: AtomicUsize,
}

impl Pace {
    fn at_once(&self) -> usize {
        items::at_once(
            self.cost.load(Ordering::Relaxed) as f64,
            self.seen.load(Ordering::Relaxed),
        )
    }

    fn learn(&self, items: usize, ns: u64) {
        let (cost, known) = (ns / items.max(1) as u64, self.cost.load(Ordering::Relaxed));
        // Quick to believe that items are cheap: the first ones pay for cold caches.
        self.cost.store(
            if cost < known || known == 0 {
                cost
            } else {
                known - known / 4 + cost / 4
            },
            Ordering::Relaxed,
        );
        self.seen.fetch_add(items, Ordering::Relaxed);
    }
}

/// What became of a morsel.
#[derive(Default)]
pub(crate) struct Fate {
    /// Nanoseconds spent on it: of work for CPU work; for I/O from its start to its end, without
    /// waiting for room.
    spent: AtomicU64,
    /// It came to its end. If not, its runtime was shut down under it.
    complete: AtomicBool,
}

#[cfg(target_os = "linux")]
impl Fate {
    pub(crate) fn spend(&self, ns: u64) {
        self.spent.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn complete(&self) {
        self.complete.store(true, Ordering::SeqCst);
    }
}

/// A piece of the input on its way.
pub(super) struct Morsel {
    pub slot: ThreadTake<AnyChunk>,
    _running: Running,
    fate: Arc<Fate>,
    pub items: usize,
    /// How many items came out of it so far.
    pub out: usize,
    /// By which number it is known to who waits for it.
    pub id: u64,
    /// Which of the input its first item is, where that has to be known.
    pub begin: u64,
    /// How many items of later morsels went before those it still has.
    pub overtaken: usize,
}

impl Morsel {
    fn new(
        slot: ThreadTake<AnyChunk>,
        running: Running,
        fate: Arc<Fate>,
        items: usize,
        id: u64,
    ) -> Self {
        Morsel {
            slot,
            _running: running,
            fate,
            items,
            out: 0,
            id,
            begin: 0,
            overtaken: 0,
        }
    }

    /// One that failed as a whole.
    fn failed(error: Error, items: usize, line: &Line, id: u64) -> Morsel {
        let (mut put, take) = thread::<AnyChunk>(LIMITS);
        let ringer = Ringer(Some(line.bell.clone()));
        put.put(
            line.chain.output().fail_chunk(line.chain.name(error)),
            Weight { items: 1, bytes: 0 },
        );
        // The queue must end before the bell rings.
        drop(put);
        drop(ringer);
        let fate = Fate {
            spent: AtomicU64::new(0),
            complete: AtomicBool::new(true),
        };
        Morsel::new(take, Running::Elsewhere, Arc::new(fate), items, id)
    }

    /// Starts a piece of the input on its way, whose first item is number `first`. It has bytes for
    /// its first item. Dropping it cancels it.
    pub(super) fn start(chunk: AnyChunk, first: u64, line: &Line, mut credit: Credit) -> Morsel {
        let (id, items) = (credit.id(), chunk.len);
        if let Spawner::Pool(pool, _) = &line.spawner
            && let Err(error) = pool.start()
        {
            let error =
                Error::new(ErrorKind::Worker, "cannot start a worker thread").with_source(error);
            return Morsel::failed(error, items, line, id);
        }
        let (put, take) = thread::<AnyChunk>(LIMITS);
        let fate = Arc::new(Fate::default());
        let (chain, gauge, told) = (line.chain.clone(), line.busy.clone(), fate.clone());
        let (work, arity) = (line.work, line.arity);
        let (awaited, pace) = (line.awaited.clone(), line.pace.clone());
        let ringer = Ringer(Some(line.bell.clone()));
        #[cfg(target_os = "linux")]
        if let Spawner::Supervisor(lease, run) = &line.spawner {
            let counters = chain
                .links
                .iter()
                .map(|link| link.context.counters().clone())
                .collect();
            let rows = chain.links.iter().find_map(|link| link.rows.clone());
            let granted = Vec::new();
            lease.send(Job {
                run: *run,
                first,
                rows,
                granted,
                chunk,
                counters,
                gauge,
                fate: told,
                credit,
                awaited,
                put,
                ringer,
            });
            return Morsel::new(take, Running::Elsewhere, fate, items, id);
        }
        let morsel = async move {
            let mut outlet = Outlet {
                put,
                ringer,
                edge: chain.output().clone(),
                joined: None,
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
                // Nothing comes any more but the end, which weighs nothing.
                let is_over = arity == Arity::One && given >= items;
                let most = room.min(pace.at_once());
                let (mut spent, mut refused, mut asked) = (0, None, 0);
                let next = poll_fn(|cx| {
                    let max = if is_over {
                        1
                    } else {
                        let leads = arity != Arity::Any || awaited.leads(id);
                        let max = most.saturating_sub(outlet.len()).max(1);
                        match credit.poll_begin(cx, max, leads, || awaited.is(id)) {
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
                        told.spent.fetch_add(ns, Ordering::Relaxed);
                    }
                    gauge.busy_ns.fetch_add(ns, Ordering::Relaxed);
                    match polled {
                        Ok(Poll::Pending) => {
                            credit.poll_pending(max);
                            outlet.flush();
                            Poll::Pending
                        }
                        Ok(Poll::Ready(chunk)) => Poll::Ready(Ok(chunk)),
                        Err(payload) => Poll::Ready(Err(payload)),
                    }
                });
                match next.await.unwrap_or_else(|payload| {
                    // Guards catch what pipes do while they run; this is a pipe that panics when
                    // applied.
                    output = Some(Box::new(End));
                    Some(chain.output().fail_chunk(chain.name(Error::panic(payload))))
                }) {
                    Some(mut chunk) => {
                        given += chunk.len;
                        // Of what went in, the rest is still there.
                        let left = match arity {
                            Arity::One => input / items * items.saturating_sub(given),
                            _ => input,
                        };
                        chunk.hold = Some(credit.give(chunk.len - chunk.errors, chunk.bytes, left));
                        let failed = chunk.errors > 0;
                        awaited.made(id);
                        pace.learn(chunk.len, spent);
                        // Whoever gave less than it might has no more at hand.
                        let is_short = chunk.len < asked;
                        outlet.join(chunk);
                        if is_short || outlet.len() >= room.min(pace.at_once()) {
                            outlet.send();
                        }
                        if failed {
                            // Nobody needs others to go with an error.
                            outlet.flush();
                        }
                    }
                    None => {
                        if let (Work::Io, Some(started)) = (work, started) {
                            // The wait for the consumer tells nothing of the work.
                            let spent = started.elapsed().saturating_sub(waited);
                            told.spent.store(spent.as_nanos() as u64, Ordering::Relaxed);
                        }
                        outlet.send();
                        return told.complete.store(true, Ordering::SeqCst);
                    }
                }
            }
        };
        let running = match &line.spawner {
            Spawner::Pool(pool, scope) => Running::Pool {
                _task: pool.spawn(line.depth, Scoped::new(scope, morsel)),
            },
            Spawner::Io(scope) => {
                Running::Io(super::spawn_task(scope.io(), Scoped::new(scope, morsel)))
            }
            #[cfg(target_os = "linux")]
            Spawner::Supervisor(..) => unreachable!("sent to the supervisor above"),
        };
        Morsel::new(take, running, fate, items, id)
    }

    /// Nanoseconds that an item of it took.
    pub(super) fn cost(&self) -> f64 {
        self.fate.spent.load(Ordering::Relaxed) as f64 / self.items.max(1) as f64
    }

    /// Whether it came to its end. If not, its runtime was shut down under it.
    pub(super) fn is_complete(&self) -> bool {
        self.fate.complete.load(Ordering::SeqCst)
    }
}

/// Tells the consumer that morsels are through. Waking a thread for each costs more than many a
/// morsel; so it says how many it can wait for, which is what it needs anyway, and less than what
/// keeps the workers busy.
#[derive(Default)]
pub(crate) struct Bell {
    /// Morsels in flight that are through, or have filled their queues. One too few for a moment
    /// where the consumer has already taken away a morsel that is about to ring.
    through: AtomicIsize,
    wanted: AtomicIsize,
    waker: AtomicWaker,
}

impl Bell {
    /// A morsel was taken away.
    pub(super) fn taken(&self) {
        self.through.fetch_sub(1, Ordering::SeqCst);
    }

    /// Morsels in flight that are through, or have filled their queues.
    pub(super) fn through(&self) -> usize {
        self.through.load(Ordering::SeqCst).max(0) as usize
    }

    fn ring(&self) {
        if self.through.fetch_add(1, Ordering::SeqCst) + 1 >= self.wanted.load(Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// Whether so many are through; if not, wakes when they are.
    pub(super) fn poll(&self, cx: &task::Context<'_>, wanted: usize) -> bool {
        let wanted = isize::try_from(wanted).unwrap_or(isize::MAX);
        self.wanted.store(wanted, Ordering::SeqCst);
        self.waker.register(cx.waker());
        self.through.load(Ordering::SeqCst) >= wanted
    }
}

/// Rings once, when the morsel fills its queue or ends, however it ends.
pub(crate) struct Ringer(Option<Arc<Bell>>);

impl Ringer {
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

/// Where the output of a morsel goes. Items that are made one by one, since each must have its bytes
/// first, are joined here: to hand on each by itself costs more than many an item.
struct Outlet {
    // The queue must end before the bell rings.
    put: ThreadPut<AnyChunk>,
    ringer: Ringer,
    edge: Arc<dyn Edge>,
    joined: Option<AnyChunk>,
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
            self.put.put(chunk, weight);
        }
    }

    /// The same, and wakes who waits for more than that: no more come for now.
    fn flush(&mut self) {
        self.send();
        self.put.flush();
    }

    /// The same, until there is room.
    fn stop(&mut self) {
        self.flush();
        self.ringer.ring();
    }
}

/// Nothing more.
struct End;

impl ErasedChunks for End {
    fn poll_chunk(&mut self, _: &mut task::Context<'_>, _: Demand) -> Poll<Option<AnyChunk>> {
        Poll::Ready(None)
    }
}
