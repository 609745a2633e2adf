//! A segment: neighbouring shardable pipes, run as one piece of work over morsels of the input.
//!
//! A shardable chain distributes over concatenation, so its input may be cut anywhere. [`Segment`] takes chunks
//! from above, hands each to a worker as a *morsel*, and puts what comes out back in order: strict, within some
//! places of it, or as it comes. A morsel's output flows through a queue of its own, so an archive of any size
//! passes a bounded window; a morsel whose queue is full gives its worker back until there is room.
//!
//! How much is in flight grows from a few morsels ("for every four consumed, five requested") up to the plan's
//! number, and stays below a number of bytes by the size of what has come out so far.
//!
//! A hop to a worker and back costs some microseconds. So the size of a morsel follows the cost of an item, and a
//! chain that is cheaper than its hop even in large morsels runs inline: its input goes through a [`Tap`], which can
//! be shut when items become expensive later, and reopened. All that is measured in here, at the edge.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{self, Poll, Waker};
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;
use tokio::runtime::Handle;

use crate::graph::{AnyChunk, AnyItems, AnyPipe, Edge, ErasedChunks};
use crate::items::Demand;
use crate::loader::Order;
use crate::queue::{Limits, Put, Take, Weight, thread};
use crate::run::pool::Pool;
use crate::{Arity, Context, Error, ErrorKind, Work};

/// Work a morsel should carry, to be worth its hop.
const MORSEL_NS: u64 = 200_000;
/// Most items in a morsel.
const MAX_MORSEL: usize = 1024;
/// Cheaper chains than this, an item, run inline; dearer ones than twice this leave the inline mode.
const INLINE_NS: u64 = 150;
/// Chunks looked at before a decision.
const PROBES: u32 = 4;
/// Items that a morsel's queue may hold before its worker goes on to something else.
const SLOT_ITEMS: usize = 256;

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
}

impl Chain {
    fn apply(&self, mut items: AnyItems) -> AnyItems {
        for link in &self.links {
            items = link.edge.guard(link.pipe.apply(items, &link.context), link.context.clone());
        }
        items
    }

    fn name(&self, error: Error) -> Error {
        error.at(self.links[0].context.node())
    }

    fn output(&self) -> &Arc<dyn Edge> {
        &self.links.last().expect("a segment has a node").edge
    }
}

/// What the executor gives a segment to run with.
pub(crate) struct SegmentSettings {
    pub work: Work,
    pub order: Order,
    /// Morsels in flight, at most.
    pub in_flight: usize,
    pub workers: usize,
    /// Bytes that what came out may hold back, at most.
    pub bytes: usize,
    /// How far down the graph, for the pool's priority.
    pub depth: usize,
    pub arity: Arity,
    /// Whether the planner fixed the number in flight, so that nothing is run inline.
    pub fixed: bool,
}

/// What is measured at a segment.
#[derive(Debug, Default)]
pub(crate) struct SegmentGauge {
    pub busy_ns: AtomicU64,
    pub items_in: AtomicU64,
    pub morsels: AtomicU64,
    pub starved_ns: AtomicU64,
    pub full_ns: AtomicU64,
    pub occupancy_sum: AtomicU64,
    pub occupancy_polls: AtomicU64,
    pub window: AtomicU64,
    pub inline: AtomicBool,
    /// Nanoseconds an item, last measured.
    pub cost_ns: AtomicU64,
}

/// Where morsels run.
#[derive(Clone)]
pub(crate) enum Spawner {
    Pool(Arc<Pool>, Handle),
    Io(Handle),
}

/// Cancels a morsel when dropped.
enum Running {
    Pool { _task: async_task::Task<()> },
    Io(tokio::task::JoinHandle<()>),
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Running::Io(task) = self {
            task.abort();
        }
    }
}

/// Tells the consumer that morsels are through. Waking a thread for each costs more than many a morsel; so it says how
/// many it can wait for, which is what it needs anyway, and less than what keeps the workers busy.
#[derive(Default)]
struct Bell {
    /// Morsels in flight that are through, or have filled their queues. One too few for a moment where the consumer has
    /// already taken away a morsel that is about to ring.
    through: AtomicIsize,
    wanted: AtomicIsize,
    waker: AtomicWaker,
}

impl Bell {
    fn ring(&self) {
        if self.through.fetch_add(1, Ordering::SeqCst) + 1 >= self.wanted.load(Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// Whether so many are through; if not, wakes when they are.
    fn poll(&self, cx: &task::Context<'_>, wanted: usize) -> bool {
        let wanted = wanted as isize;
        self.wanted.store(wanted, Ordering::SeqCst);
        self.waker.register(cx.waker());
        self.through.load(Ordering::SeqCst) >= wanted
    }
}

/// Rings once, when the morsel fills its queue or ends, however it ends.
struct Ringer(Option<Arc<Bell>>);

impl Ringer {
    fn ring(&mut self) {
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

/// A future polled inside an async runtime, so that CPU work may use its timers and files.
#[pin_project::pin_project]
struct Entered<F> {
    io: Handle,
    #[pin]
    future: F,
}

impl<F: Future> Future for Entered<F> {
    type Output = F::Output;

    fn poll(self: std::pin::Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _entered = this.io.enter();
        this.future.poll(cx)
    }
}

/// Nothing more.
struct End;

impl ErasedChunks for End {
    fn poll_chunk(&mut self, _: &mut task::Context<'_>, _: Demand) -> Poll<Option<AnyChunk>> {
        Poll::Ready(None)
    }
}

/// What became of a morsel.
#[derive(Default)]
struct Fate {
    /// Nanoseconds spent on it.
    spent: AtomicU64,
    /// It came to its end. If not, its runtime was shut down under it.
    complete: AtomicBool,
}

struct Morsel {
    slot: Box<dyn Take<AnyChunk>>,
    _running: Running,
    fate: Arc<Fate>,
    items: usize,
    /// How many items came out of it so far, and what they keep alive.
    out: Weight,
    /// How many items of later morsels went before those it still has.
    overtaken: usize,
}

pub(crate) struct Segment {
    chain: Arc<Chain>,
    settings: SegmentSettings,
    spawner: Spawner,
    input: Arc<Mutex<Input>>,
    gauge: Arc<SegmentGauge>,
    mode: Mode,
    flight: VecDeque<Morsel>,
    flight_items: usize,
    /// Morsels allowed in flight now.
    window: usize,
    delivered: usize,
    /// Bytes an item that went in keeps alive once it is through, on average.
    bytes_per_item: f64,
    /// Nanoseconds an item, on average over the last ones.
    cost_ns: f64,
    probes: u32,
    idle_since: Option<(Instant, Idle)>,
    bell: Arc<Bell>,
    /// Time spent inline since items were last taken in.
    inline_ns: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Idle {
    Starved,
    Full,
}

enum Mode {
    /// Looking at single items, inline, to see what they cost.
    Probing(Box<dyn ErasedChunks>),
    Inline(Box<dyn ErasedChunks>, u32),
    Spawning,
}

struct Input {
    chunks: Box<dyn ErasedChunks>,
    ended: bool,
    /// While shut, the inline chain sees the end of its input.
    shut: bool,
    /// Time spent above, and items taken, while inline.
    above_ns: u64,
    items: u64,
    limit: usize,
}

/// The input of an inline chain; it can be shut, upon which the chain runs dry.
struct Tap(Arc<Mutex<Input>>);

impl ErasedChunks for Tap {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<AnyChunk>> {
        let mut input = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if input.shut || input.ended {
            return Poll::Ready(None);
        }
        let demand = demand.at_most(input.limit);
        let begun = Instant::now();
        let polled = input.chunks.poll_chunk(cx, demand);
        input.above_ns += begun.elapsed().as_nanos() as u64;
        match &polled {
            Poll::Ready(Some(chunk)) => input.items += chunk.len as u64,
            Poll::Ready(None) => input.ended = true,
            Poll::Pending => {}
        }
        polled
    }
}

impl Segment {
    pub(crate) fn new(
        chain: Chain,
        input: AnyItems,
        settings: SegmentSettings,
        spawner: Spawner,
        gauge: Arc<SegmentGauge>,
    ) -> Self {
        let input = Input {
            chunks: chain.input.erase(input),
            ended: false,
            shut: true,
            above_ns: 0,
            items: 0,
            limit: usize::MAX,
        };
        let window = match settings.work {
            _ if settings.fixed => settings.in_flight,
            Work::Cpu => settings.in_flight.min(4 * settings.workers),
            Work::Io => settings.in_flight.min(2),
        };
        let mut segment = Segment {
            chain: Arc::new(chain),
            settings,
            spawner,
            input: Arc::new(Mutex::new(input)),
            gauge,
            mode: Mode::Spawning,
            flight: VecDeque::new(),
            flight_items: 0,
            window,
            delivered: 0,
            bytes_per_item: 0.0,
            cost_ns: 0.0,
            probes: 0,
            idle_since: None,
            bell: Arc::default(),
            inline_ns: 0,
        };
        if segment.settings.work == Work::Cpu && !segment.settings.fixed {
            segment.mode = Mode::Probing(segment.inline_chain());
        }
        segment
    }

    fn input(&self) -> std::sync::MutexGuard<'_, Input> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inline_chain(&self) -> Box<dyn ErasedChunks> {
        self.input().shut = false;
        let tap = self.chain.input.restore(Box::new(Tap(self.input.clone())));
        self.chain.output().erase(self.chain.apply(tap))
    }

    /// Items to put in one morsel, by what an item costs.
    fn morsel(&self) -> usize {
        match self.settings.work {
            Work::Io => 1,
            Work::Cpu if self.cost_ns <= 0.0 => 1,
            Work::Cpu => ((MORSEL_NS as f64 / self.cost_ns) as usize).clamp(1, MAX_MORSEL),
        }
    }

    /// Whether one more morsel may start.
    fn has_room(&self) -> bool {
        if self.flight.is_empty() {
            return true;
        }
        if self.flight.len() >= self.window {
            return false;
        }
        let held = self.bytes_per_item * (self.flight_items + self.morsel()) as f64;
        held <= self.settings.bytes as f64
    }

    fn spawn(&mut self, chunk: AnyChunk) {
        let (put, take) = thread::<AnyChunk>(Limits { items: SLOT_ITEMS, bytes: self.settings.bytes });
        let items = chunk.len;
        let fate = Arc::new(Fate::default());
        let (chain, gauge, told) = (self.chain.clone(), self.gauge.clone(), fate.clone());
        let mut ringer = Ringer(Some(self.bell.clone()));
        let morsel = async move {
            // The queue must end before the bell rings.
            let mut put = put;
            let mut output = None;
            let mut chunk = Some(chunk);
            loop {
                let room = poll_fn(|cx| {
                    let room = put.poll_ready(cx);
                    if room.is_pending() {
                        ringer.ring();
                    }
                    room
                });
                let Some(room) = room.await else { return };
                let next = poll_fn(|cx| {
                    let begun = Instant::now();
                    let polled = catch_unwind(AssertUnwindSafe(|| {
                        let output = output.get_or_insert_with(|| {
                            let chunk = chunk.take().expect("taken once");
                            chain.output().erase(chain.apply(chain.input.one(chunk)))
                        });
                        output.poll_chunk(cx, Demand { max: room, ahead: true })
                    }));
                    let ns = begun.elapsed().as_nanos() as u64;
                    told.spent.fetch_add(ns, Ordering::Relaxed);
                    gauge.busy_ns.fetch_add(ns, Ordering::Relaxed);
                    match polled {
                        Ok(Poll::Pending) => Poll::Pending,
                        Ok(Poll::Ready(chunk)) => Poll::Ready(Ok(chunk)),
                        Err(payload) => Poll::Ready(Err(payload)),
                    }
                });
                match next.await.unwrap_or_else(|payload| {
                    // Guards catch what pipes do while they run; this is a pipe that panics when applied.
                    output = Some(Box::new(End));
                    Some(chain.output().fail_chunk(chain.name(Error::panic(payload))))
                }) {
                    Some(chunk) => {
                        let weight = Weight { items: chunk.len, bytes: chunk.bytes };
                        put.put(chunk, weight);
                    }
                    None => return told.complete.store(true, Ordering::SeqCst),
                }
            }
        };
        let running = match &self.spawner {
            Spawner::Pool(pool, io) => {
                let task = pool.spawn(self.settings.depth, Entered { io: io.clone(), future: morsel });
                Running::Pool { _task: task }
            }
            Spawner::Io(handle) => Running::Io(super::spawn_task(handle, morsel)),
        };
        self.gauge.items_in.fetch_add(items as u64, Ordering::Relaxed);
        self.gauge.morsels.fetch_add(1, Ordering::Relaxed);
        self.flight_items += items;
        self.flight.push_back(Morsel {
            slot: Box::new(take),
            _running: running,
            fate,
            items,
            out: Weight::default(),
            overtaken: 0,
        });
    }

    /// Starts as many morsels as may be in flight.
    fn fill(&mut self, cx: &mut task::Context<'_>) -> Idle {
        while self.has_room() {
            let demand = Demand { max: self.morsel(), ahead: !self.flight.is_empty() };
            let polled = {
                let mut input = self.input();
                if input.ended {
                    return Idle::Starved;
                }
                let polled = input.chunks.poll_chunk(cx, demand);
                input.ended |= matches!(polled, Poll::Ready(None));
                polled
            };
            match polled {
                Poll::Ready(Some(chunk)) => self.spawn(chunk),
                Poll::Ready(None) | Poll::Pending => return Idle::Starved,
            }
        }
        Idle::Full
    }

    /// A morsel is through: learn from it.
    fn finish(&mut self, place: usize) -> Option<AnyChunk> {
        let morsel = self.flight.remove(place).expect("a place in flight");
        self.flight_items -= morsel.items;
        self.bell.through.fetch_sub(1, Ordering::SeqCst);
        self.delivered += 1;
        if !self.settings.fixed && self.delivered.is_multiple_of(4) && self.window < self.settings.in_flight {
            self.window += 1;
        }
        let items = morsel.items.max(1) as f64;
        let bytes = morsel.out.bytes as f64 / items;
        self.bytes_per_item =
            if self.delivered == 1 { bytes } else { self.bytes_per_item * 0.9 + bytes * 0.1 };
        self.learn_cost(morsel.fate.spent.load(Ordering::Relaxed) as f64 / items);
        if morsel.fate.complete.load(Ordering::SeqCst) {
            return None;
        }
        let what = format!("the async runtime was shut down with {} items in work", morsel.items);
        Some(self.chain.output().fail_chunk(self.chain.name(Error::new(ErrorKind::Config, what))))
    }

    fn learn_cost(&mut self, cost: f64) {
        self.cost_ns = if self.probes == 0 { cost } else { self.cost_ns * 0.8 + cost * 0.2 };
        self.probes = self.probes.saturating_add(1);
        self.gauge.cost_ns.store(self.cost_ns as u64, Ordering::Relaxed);
    }

    /// The next chunk of the morsels in flight, in the order asked for.
    fn take(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<AnyChunk>> {
        'again: loop {
            if self.flight.is_empty() {
                return Poll::Ready(None);
            }
            let mut earlier = 0;
            for place in 0..self.flight.len() {
                if place > 0 && !self.may_overtake(place, earlier) {
                    break;
                }
                match self.flight[place].slot.poll_take(cx) {
                    Poll::Ready(Some(chunk)) => {
                        for morsel in self.flight.iter_mut().take(place) {
                            morsel.overtaken += chunk.len;
                        }
                        let out = &mut self.flight[place].out;
                        out.items += chunk.len;
                        out.bytes += chunk.bytes;
                        return Poll::Ready(Some(chunk));
                    }
                    Poll::Ready(None) => match self.finish(place) {
                        Some(error) => return Poll::Ready(Some(error)),
                        None => continue 'again,
                    },
                    Poll::Pending => {
                        earlier += self.flight[place].items.saturating_sub(self.flight[place].out.items)
                    }
                }
            }
            return Poll::Pending;
        }
    }

    /// Whether a morsel may go before others that have `earlier` items left.
    fn may_overtake(&self, place: usize, earlier: usize) -> bool {
        match self.settings.order {
            Order::Strict => false,
            Order::Arrival => true,
            // Where a pipe fans out nobody can say how many places an item moves.
            Order::Bounded(_) if self.settings.arity == Arity::Any => false,
            Order::Bounded(places) => {
                earlier <= places && self.flight[0].overtaken + self.flight[place].items <= places
            }
        }
    }

    fn account_idle(&mut self) {
        if let Some((since, idle)) = self.idle_since.take() {
            let ns = since.elapsed().as_nanos() as u64;
            match idle {
                Idle::Starved => self.gauge.starved_ns.fetch_add(ns, Ordering::Relaxed),
                Idle::Full => self.gauge.full_ns.fetch_add(ns, Ordering::Relaxed),
            };
        }
    }

    /// Whether filling up stopped for want of room, not of input.
    fn poll_again(&self, idle: Idle) -> bool {
        idle == Idle::Full && !self.input().ended
    }

    fn poll_spawning(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<AnyChunk>> {
        self.account_idle();
        let taken = loop {
            // What is finished makes room, so take first; but never leave the workers without work.
            let cheap = self.cheap();
            let idle = if cheap { Idle::Starved } else { self.fill(cx) };
            // With something in flight, the input was asked ahead of need, which it may have refused.
            let asked_ahead = !self.flight.is_empty();
            let taken = match self.take(&mut task::Context::from_waker(Waker::noop())) {
                Poll::Pending => {
                    // Several may be waited for at once, if that is what is needed anyway.
                    let wanted = (demand.max / self.morsel()).min(self.flight.len() / 2);
                    if self.bell.poll(cx, wanted.max(1)) || wanted <= 1 {
                        self.take(cx)
                    } else {
                        Poll::Pending
                    }
                }
                taken => taken,
            };
            match taken {
                Poll::Ready(None) if self.input().ended => return Poll::Ready(None),
                Poll::Ready(None) if cheap => {
                    self.gauge.inline.store(true, Ordering::Relaxed);
                    self.mode = Mode::Inline(self.inline_chain(), 0);
                    return self.poll(cx, demand);
                }
                // The last morsel in flight gave nothing; the input may have more.
                Poll::Ready(None) if asked_ahead || self.poll_again(idle) => continue,
                Poll::Ready(None) => break Poll::Pending,
                Poll::Ready(Some(chunk)) => {
                    if !cheap {
                        self.fill(cx);
                    }
                    break Poll::Ready(Some(chunk));
                }
                Poll::Pending => {
                    if self.has_room() && self.poll_again(idle) {
                        continue;
                    }
                    self.idle_since = Some((Instant::now(), idle));
                    break Poll::Pending;
                }
            }
        };
        self.gauge.occupancy_sum.fetch_add(self.flight.len() as u64, Ordering::Relaxed);
        self.gauge.occupancy_polls.fetch_add(1, Ordering::Relaxed);
        self.gauge.window.store(self.window as u64, Ordering::Relaxed);
        if taken.is_ready() && self.flight.len() >= self.window {
            self.idle_since = Some((Instant::now(), Idle::Full));
        }
        taken
    }

    fn cheap(&self) -> bool {
        self.settings.work == Work::Cpu
            && !self.settings.fixed
            && self.probes >= PROBES
            && self.cost_ns < INLINE_NS as f64
    }

    /// One poll of the inline chain, timed without what is above the tap.
    fn poll_inline(
        &mut self,
        chunks: &mut Box<dyn ErasedChunks>,
        cx: &mut task::Context<'_>,
        demand: Demand,
    ) -> Poll<Option<AnyChunk>> {
        {
            let mut input = self.input();
            (input.above_ns, input.items) = (0, 0);
        }
        let begun = Instant::now();
        let polled = chunks.poll_chunk(cx, demand);
        let total = begun.elapsed();
        let (above, items) = {
            let input = self.input();
            (Duration::from_nanos(input.above_ns), input.items)
        };
        let own = total.saturating_sub(above).as_nanos() as u64;
        self.gauge.busy_ns.fetch_add(own, Ordering::Relaxed);
        // One item may give output for many polls: they are all part of its cost.
        self.inline_ns += own;
        if items > 0 {
            self.gauge.items_in.fetch_add(items, Ordering::Relaxed);
            let cost = std::mem::take(&mut self.inline_ns) as f64 / items as f64;
            self.learn_cost(cost);
        }
        polled
    }

    fn poll(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<AnyChunk>> {
        loop {
            match std::mem::replace(&mut self.mode, Mode::Spawning) {
                Mode::Spawning => return self.poll_spawning(cx, demand),
                Mode::Probing(mut chunks) => {
                    self.input().limit = 1;
                    let polled = self.poll_inline(&mut chunks, cx, demand.at_most(1));
                    let decided = self.probes >= PROBES || self.cost_ns > MORSEL_NS as f64 / 10.0;
                    self.mode = match decided {
                        false => Mode::Probing(chunks),
                        // The first items pay for cold caches; be generous.
                        true if self.cost_ns < INLINE_NS as f64 * 20.0 => {
                            self.gauge.inline.store(true, Ordering::Relaxed);
                            Mode::Inline(chunks, 0)
                        }
                        true => self.run_dry(chunks),
                    };
                    return polled;
                }
                Mode::Inline(mut chunks, polls) => {
                    // Grow slowly into large chunks, in case items become expensive.
                    self.input().limit = 32 << (polls / 16).min(5);
                    let polled = self.poll_inline(&mut chunks, cx, demand);
                    if let Poll::Ready(None) = polled {
                        if !self.input().shut {
                            self.mode = Mode::Inline(chunks, polls);
                            return polled;
                        }
                        // Run dry: back to the workers.
                        continue;
                    }
                    let bar = if polls > 16 { 2 } else { 20 };
                    let dear = self.cost_ns > (bar * INLINE_NS) as f64 && !self.input().shut;
                    self.mode = match dear {
                        true => self.run_dry(chunks),
                        false => Mode::Inline(chunks, polls.wrapping_add(1)),
                    };
                    return polled;
                }
            }
        }
    }

    /// Shuts the tap. What the chain still holds comes out inline; then the workers take over.
    fn run_dry(&mut self, chunks: Box<dyn ErasedChunks>) -> Mode {
        let mut input = self.input();
        input.shut = true;
        drop(input);
        self.gauge.inline.store(false, Ordering::Relaxed);
        Mode::Inline(chunks, 0)
    }
}

impl ErasedChunks for Segment {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<AnyChunk>> {
        self.poll(cx, demand)
    }
}
