//! A segment: neighbouring shardable pipes, run as one unit of work over morsels of the input.
//!
//! A shardable chain distributes over concatenation, so its input may be cut anywhere. [`Segment`]
//! takes chunks from upstream, gives each to a worker as a *morsel*, and puts the output back in
//! order: strict, within a bounded distance, or as it comes. The output of a morsel flows through a
//! queue of its own, so an archive of any size passes in bounded memory. A morsel whose queue is
//! full releases its worker until there is room.
//!
//! A [`Concurrency`] decides how many morsels are in flight. It starts with what the first output
//! needs and grows: five are begun for every four that completed, and for I/O only as long as that
//! pays. A complete morsel that waits for an earlier one does not count, up to a bound, so that one
//! slow connection does not idle the others. The learned values are kept for the next epoch.
//!
//! Bytes are a further limit (`budget.rs`). A morsel is begun when there are bytes for the
//! estimated weight of one item. It is polled when there are bytes for the output of that poll.
//!
//! A hop to a worker and back costs some microseconds. The size of a morsel therefore follows the
//! cost of an item. A chain that is cheaper than its hop even in large morsels runs inline: its
//! input goes through a [`Tap`], which can be shut when items become expensive later, and reopened.
//! All of this is measured in this module, at the edge.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{self, Poll, Waker};
use std::time::{Duration, Instant};

use crate::budget::{Account, Credit};
use crate::checkpoint::{SegmentLog, Unordered};
use crate::graph::{AnyChunk, AnyItems, ErasedChunks};
use crate::items::{self, Demand};
use crate::run::chain::Chain;
use crate::run::concurrency::Concurrency;
use crate::run::gauge::SegmentGauge;
use crate::run::morsel::{Line, Morsel, Spawner};
use crate::run::near::Waits;
use crate::run::restore::in_morsels;
use crate::settings::Order;
use crate::sync::lock;
use crate::{Arity, Error, ErrorKind, Work};

/// Least work of a morsel that is worth its hop.
const MORSEL_NS: u64 = 200_000;
/// Least work of a morsel that is worth its hop to another process and back.
const MORSEL_NS_APART: u64 = 4_000_000;
/// Greatest number of morsels in flight for each CPU worker, of work that seldom waits.
const NEAR_PER_WORKER: usize = 8;
/// Greatest number of items in a morsel.
const MAX_MORSEL: usize = 1024;
/// Cost of an item below which a chain runs inline. A chain that costs more than twice as much
/// leaves the inline mode.
const INLINE_NS: u64 = 150;
/// Number of chunks measured before a decision.
const PROBES: u32 = 4;
/// Pause between two searches for morsels to begin, while there is output to take.
const ROUND: Duration = Duration::from_micros(50);
/// Number of morsels, in multiples of the concurrency, that may be held while they wait for a slow
/// earlier one.
const REORDER: usize = 4;

/// Settings of a segment, given by the executor.
pub(crate) struct SegmentSettings {
    pub work: Work,
    pub order: Order,
    /// Greatest number of morsels in flight.
    pub concurrency: usize,
    /// Number of morsels in flight at the start, as the first output needs.
    pub start: usize,
    pub workers: usize,
    pub account: Account,
    pub arity: Arity,
    /// True if the user fixed the concurrency, so that nothing runs inline.
    pub set_by_user: bool,
    /// True if the segment runs in child processes, so that nothing runs inline either.
    pub processes: bool,
    /// Waits of the work, if it seldom waits: it is work for the CPU workers until it does.
    pub waits: Option<Arc<Waits>>,
    /// Set if reading the input may block. True if the input is read on this thread, as by an
    /// inline chain, false if on a thread of its own.
    pub here: Option<Arc<AtomicBool>>,
}

/// Measured values that a segment passes on to the next epoch.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    concurrency: AtomicUsize,
    /// Best duration of a morsel, in nanoseconds; 0 before it is known.
    best_ns: AtomicU64,
    pub waits: Arc<Waits>,
    /// Bytes that an output item keeps alive: the recent maximum, 0 before the first item.
    pub weight: Arc<AtomicUsize>,
}

pub(crate) struct Segment {
    line: Line,
    settings: SegmentSettings,
    input: Arc<Mutex<Input>>,
    gauge: Arc<SegmentGauge>,
    mode: Mode,
    flight: VecDeque<Morsel>,
    flight_items: usize,
    /// Number of morsels allowed in flight now.
    concurrency: Concurrency,
    /// The same for the other kind of work, if it seldom waits.
    other_concurrency: Concurrency,
    begun: Instant,
    /// True if the consumer found nothing ready when it last looked.
    wanted: bool,
    /// Number of complete morsels when the consumer last found nothing ready.
    wanted_at: usize,
    learned: Arc<Learned>,
    /// Log of the input that each output belongs to, if it has to be known.
    pieces: Option<Arc<SegmentLog>>,
    unordered: Option<Arc<Unordered>>,
    /// Position of the next input item, for a one-to-one chain that runs inline.
    inline_at: u64,
    delivered: usize,
    /// Time of the last search for morsels to begin, after output was taken.
    filled: Option<Instant>,
    /// True if there were no bytes for another morsel; asked again in the next poll.
    refused: bool,
    /// Bytes of a morsel that is about to begin, with the tasks that wait for them.
    credit: Option<Credit>,
    /// Number of items taken so far.
    taken: usize,
    /// Nanoseconds per item, on average over the last ones.
    cost_ns: f64,
    probes: u32,
    idle_since: Option<(Instant, Idle)>,
    /// Time spent inline since items were last taken from the input.
    inline_ns: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Idle {
    Starved,
    Full,
}

enum Mode {
    /// Runs single items inline, to measure their cost.
    Probing(Box<dyn ErasedChunks>),
    Inline(Box<dyn ErasedChunks>, u32),
    Spawning,
}

struct Input {
    chunks: Box<dyn ErasedChunks>,
    ended: bool,
    /// True while the inline chain sees the end of its input.
    shut: bool,
    /// Time spent upstream, and number of items taken, while inline.
    above_ns: u64,
    items: u64,
    /// Number of items taken so far, without errors.
    taken: u64,
    limit: usize,
}

/// The input of an inline chain. When it is shut, the chain runs to its end.
struct Tap(Arc<Mutex<Input>>, Option<Arc<Unordered>>);

impl ErasedChunks for Tap {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<AnyChunk>> {
        let mut input = lock(&self.0);
        if input.shut || input.ended {
            return Poll::Ready(None);
        }
        let demand = demand.at_most(input.limit);
        let begun = Instant::now();
        let polled = input.chunks.poll_chunk(cx, demand);
        input.above_ns += begun.elapsed().as_nanos() as u64;
        match &polled {
            Poll::Ready(Some(chunk)) => {
                input.items += chunk.len as u64;
                input.taken += (chunk.len - chunk.errors) as u64;
                if let Some(unordered) = &self.1 {
                    unordered.took(chunk.len);
                }
            }
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
        spawner: Box<dyn Spawner>,
        gauge: Arc<SegmentGauge>,
        learned: Arc<Learned>,
        (pieces, unordered): (Option<Arc<SegmentLog>>, Option<Arc<Unordered>>),
    ) -> Self {
        let input = Input {
            chunks: chain.input.erase(input),
            ended: false,
            shut: true,
            above_ns: 0,
            items: 0,
            taken: 0,
            limit: usize::MAX,
        };
        let concurrency = match settings.work {
            Work::Cpu if settings.set_by_user => Concurrency::fixed(settings.concurrency),
            Work::Cpu => Concurrency::growing(4 * settings.workers, settings.concurrency),
            Work::Io => {
                let start = settings
                    .start
                    .max(learned.concurrency.load(Ordering::Relaxed));
                let best = Some(learned.best_ns.load(Ordering::Relaxed)).filter(|&best| best > 0);
                Concurrency::following(start, settings.concurrency, best.map(|best| best as f64))
            }
        };
        let line = Line {
            chain: Arc::new(chain),
            spawner,
            work: settings.work,
            waits: settings.waits.clone(),
            arity: settings.arity,
            bell: Arc::default(),
            account: settings.account.clone(),
            awaited: Arc::default(),
            pace: Arc::default(),
            busy: gauge.clone(),
        };
        let workers = settings.workers;
        let mut segment = Segment {
            line,
            settings,
            input: Arc::new(Mutex::new(input)),
            gauge,
            mode: Mode::Spawning,
            flight: VecDeque::new(),
            flight_items: 0,
            concurrency,
            other_concurrency: Concurrency::growing(4 * workers, NEAR_PER_WORKER * workers),
            begun: Instant::now(),
            wanted: true,
            wanted_at: 0,
            delivered: 0,
            filled: None,
            refused: false,
            credit: None,
            taken: 0,
            learned,
            pieces,
            unordered,
            inline_at: 0,
            cost_ns: 0.0,
            probes: 0,
            idle_since: None,
            inline_ns: 0,
        };
        if segment.may_be_inline() {
            segment.mode = Mode::Probing(segment.inline_chain());
        }
        segment
    }

    fn read_here(&self, is_here: bool) {
        if let Some(here) = &self.settings.here {
            here.store(is_here, Ordering::SeqCst);
        }
    }

    /// Returns true if work that seldom waits has begun to wait, or ceased to.
    fn work_turns(&self) -> bool {
        let is_far = self.line.work == Work::Io;
        let waits = self.settings.waits.as_ref();
        waits.is_some_and(|waits| waits.is_far() != is_far)
    }

    /// Decides which kind of work begins now.
    fn choose_work(&mut self) {
        if self.work_turns() {
            let work = match self.line.work {
                Work::Io => Work::Cpu,
                Work::Cpu => Work::Io,
            };
            self.line.work = work;
            self.gauge
                .on_workers
                .store(work == Work::Cpu, Ordering::Relaxed);
            std::mem::swap(&mut self.concurrency, &mut self.other_concurrency);
            // What an item costs is time on a worker, or time in flight.
            (self.cost_ns, self.probes) = (0.0, 0);
        }
    }

    fn input(&self) -> std::sync::MutexGuard<'_, Input> {
        lock(&self.input)
    }

    fn inline_chain(&mut self) -> Box<dyn ErasedChunks> {
        self.read_here(true);
        self.inline_at = self
            .unordered
            .as_ref()
            .map_or(0, |unordered| unordered.took(0));
        let first = {
            let mut input = self.input();
            input.shut = false;
            input.taken
        };
        let (tap, chain) = (
            Box::new(Tap(self.input.clone(), self.unordered.clone())),
            self.line.chain.clone(),
        );
        match &self.pieces {
            None => chain
                .output()
                .erase(chain.apply_caught(chain.input.restore(tap), first)),
            Some(pieces) => {
                let (input, output) = (chain.input.clone(), chain.output().clone());
                let taken = self.input.clone();
                let above = input.restore(tap);
                output.erase(in_morsels(
                    above,
                    &input,
                    &output,
                    pieces.clone(),
                    move |piece, _| {
                        let first = lock(&taken).taken;
                        chain.apply_caught(piece, first)
                    },
                ))
            }
        }
    }

    /// Returns the number of items for one morsel, by the cost of an item.
    fn morsel(&self) -> usize {
        let most = match self.settings.work {
            _ if self.cost_ns <= 0.0 => 1,
            // Small files share a hop; remote objects go one by one.
            Work::Io if self.settings.set_by_user => 1,
            Work::Io => (self.settings.concurrency / 4).max(1),
            // Items that come together from upstream are not to wait for each other.
            Work::Cpu if self.settings.processes => MAX_MORSEL,
            Work::Cpu => MAX_MORSEL.min(items::at_once(0.0, self.taken)),
        };
        let worth = if self.settings.processes {
            MORSEL_NS_APART
        } else {
            MORSEL_NS
        };
        ((worth as f64 / self.cost_ns) as usize).clamp(1, most)
    }

    /// Returns true if one more morsel may start, if there are bytes for it.
    fn has_room(&self) -> bool {
        if self.refused {
            return false;
        }
        if self.flight.is_empty() {
            return true;
        }
        let concurrency = self.concurrency.size();
        let most = match self.line.work {
            // Complete morsels that cannot be delivered yet make room for others.
            Work::Io if self.wanted => {
                (concurrency + self.line.bell.through()).min(concurrency * REORDER)
            }
            _ => concurrency,
        };
        if self.flight.len() >= most {
            return false;
        }
        self.line.work != Work::Io || self.flight_items < self.settings.concurrency
    }

    /// Returns true if there are bytes for another morsel. The first morsel never has to wait for
    /// them.
    fn has_bytes(&mut self, cx: &task::Context<'_>, ahead: bool) -> bool {
        let account = &self.line.account;
        let credit = self.credit.get_or_insert_with(|| account.credit());
        let has = credit.reserve(cx);
        if !has && self.flight.is_empty() && !ahead {
            credit.reserve_anyway();
            return true;
        }
        self.refused = !has;
        has
    }

    /// Starts a morsel, whose first item is number `first`.
    fn spawn(&mut self, chunk: AnyChunk, first: u64) {
        self.gauge
            .items_in
            .fetch_add(chunk.len as u64, Ordering::Relaxed);
        self.gauge.morsels.fetch_add(1, Ordering::Relaxed);
        self.flight_items += chunk.len;
        let mut credit = self.credit.take().expect("bytes were reserved before");
        credit.set_input(chunk.bytes * self.line.spawner.copies());
        if self.flight.is_empty() {
            self.line.awaited.lead(credit.id());
        }
        self.flight
            .push_back(Morsel::start(chunk, first, &self.line, credit));
    }

    /// Takes a chunk of the input, with the number of its first item, and its position if that has
    /// to be known.
    fn take_in(
        &mut self,
        cx: &mut task::Context<'_>,
        demand: Demand,
    ) -> Option<(AnyChunk, u64, u64)> {
        let most = self
            .pieces
            .as_ref()
            .map_or(usize::MAX, |pieces| pieces.limit());
        let mut input = self.input();
        if input.ended {
            return None;
        }
        let first = input.taken;
        let polled = input.chunks.poll_chunk(cx, demand.at_most(most));
        input.ended = matches!(polled, Poll::Ready(None));
        let Poll::Ready(Some(chunk)) = polled else {
            return None;
        };
        input.taken += (chunk.len - chunk.errors) as u64;
        drop(input);
        if let Some(pieces) = &self.pieces {
            pieces.took(chunk.len);
        }
        self.taken += chunk.len;
        let begin = self
            .unordered
            .as_ref()
            .map_or(0, |unordered| unordered.took(chunk.len));
        Some((chunk, first, begin))
    }

    /// Adds more of the input to a chunk that is to be a morsel. Large items come one by one from
    /// upstream, so that their bytes can be counted, and a morsel of one item would not be worth
    /// its hop. Gathering takes no longer than the items that are made together, and ends when no
    /// more input is ready.
    fn gather(
        &mut self,
        cx: &mut task::Context<'_>,
        chunk: &mut AnyChunk,
        most: usize,
        begun: Instant,
    ) {
        while chunk.len < most && chunk.errors == 0 {
            let spent = begun.elapsed().as_nanos() as f64;
            let credit = self.credit.as_mut().expect("bytes were reserved before");
            if spent + spent / chunk.len as f64 > items::AHEAD_NS
                || !credit.add_input(cx, chunk.bytes)
            {
                return;
            }
            let demand = Demand {
                ahead: true,
                ..Demand::up_to(most - chunk.len)
            };
            let Some((next, ..)) = self.take_in(cx, demand) else {
                return;
            };
            self.line.chain.input.append(chunk, next);
        }
    }

    /// Starts as many morsels as may be in flight. `ahead` is true if no reader waits for the first
    /// one either.
    fn fill(&mut self, cx: &mut task::Context<'_>, ahead: bool) -> Idle {
        self.read_here(false);
        self.choose_work();
        while self.has_room() && self.has_bytes(cx, ahead) {
            let ahead = ahead || !self.flight.is_empty();
            let demand = Demand {
                ahead,
                ..Demand::up_to(self.morsel())
            };
            let begun = Instant::now();
            let Some((mut chunk, first, begin)) = self.take_in(cx, demand) else {
                // Other edges may have the bytes meanwhile.
                self.credit = None;
                return Idle::Starved;
            };
            if self.line.work == Work::Cpu && self.pieces.is_none() {
                let most = match self.settings.work {
                    Work::Cpu => demand.max.min(items::at_once(0.0, self.taken)),
                    Work::Io => demand.max,
                };
                self.gather(cx, &mut chunk, most, begun);
            }
            self.spawn(chunk, first);
            self.flight.back_mut().expect("put there just now").begin = begin;
        }
        Idle::Full
    }

    /// Removes a complete morsel and learns from its measurements.
    fn finish(&mut self, place: usize) -> Option<AnyChunk> {
        let morsel = self.flight.remove(place).expect("a place in flight");
        self.flight_items -= morsel.items;
        if let (0, Some(first)) = (place, self.flight.front()) {
            self.line.awaited.lead(first.id);
            // The next morsel may have more of the bytes now.
            self.line.account.wake(first.id);
        }
        if let Some(pieces) = &self.pieces {
            pieces.push(morsel.items as u64, morsel.out as u64);
        }
        self.line.bell.taken();
        self.delivered += 1;
        let now = self.begun.elapsed().as_nanos() as u64;
        if morsel.work == self.line.work {
            // Output that was waited for often comes with the rest of its round trip.
            let waited = self.delivered - self.wanted_at <= self.concurrency.size();
            self.concurrency
                .through(morsel.cost() * morsel.items as f64, now, waited);
            self.learn_cost(morsel.cost());
        }
        if self.line.work == Work::Io {
            let size = self.concurrency.proven();
            self.learned.concurrency.store(size, Ordering::Relaxed);
            let best = self.concurrency.best().unwrap_or(0.0);
            self.learned.best_ns.store(best as u64, Ordering::Relaxed);
        }
        if morsel.is_complete() {
            return None;
        }
        let (kind, what) = match self.settings.processes {
            true => (
                ErrorKind::Panic,
                "the thread that looks after its processes ended",
            ),
            false => (ErrorKind::Config, "the async runtime was shut down"),
        };
        let error = Error::new(kind, format!("{what} with {} items in work", morsel.items));
        Some(
            self.line
                .chain
                .output()
                .fail_chunk(self.line.chain.name(error)),
        )
    }

    fn learn_cost(&mut self, cost: f64) {
        self.cost_ns = if self.probes == 0 {
            cost
        } else {
            self.cost_ns * 0.8 + cost * 0.2
        };
        self.probes = self.probes.saturating_add(1);
    }

    /// Returns the next chunk of the morsels in flight, in the requested order. A waiting reader is
    /// woken when `needed` items are there, or if no more come for now.
    fn take(&mut self, cx: &task::Context<'_>, needed: usize) -> Poll<Option<AnyChunk>> {
        'again: loop {
            if self.flight.is_empty() {
                return Poll::Ready(None);
            }
            let mut earlier = 0;
            for place in 0..self.flight.len() {
                if place > 0 && !self.may_overtake(place, earlier) {
                    break;
                }
                match self.flight[place].slot.poll_take_of(cx, needed) {
                    Poll::Ready(Some(chunk)) => {
                        for morsel in self.flight.iter_mut().take(place) {
                            morsel.overtaken += chunk.len;
                        }
                        self.line.pace.take(chunk.len);
                        let morsel = &mut self.flight[place];
                        if let Some(unordered) = &self.unordered {
                            unordered.gave_run(morsel.begin + morsel.out as u64, chunk.len);
                        }
                        morsel.out += chunk.len;
                        return Poll::Ready(Some(chunk));
                    }
                    Poll::Ready(None) => match self.finish(place) {
                        Some(error) => return Poll::Ready(Some(error)),
                        None => continue 'again,
                    },
                    Poll::Pending => {
                        earlier += self.flight[place]
                            .items
                            .saturating_sub(self.flight[place].out)
                    }
                }
            }
            return Poll::Pending;
        }
    }

    /// Returns true if a morsel may go before others that have `earlier` items left.
    fn may_overtake(&self, place: usize, earlier: usize) -> bool {
        match self.settings.order {
            Order::Strict => false,
            Order::Arrival => true,
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

    /// Returns true if filling stopped for lack of room, not of input.
    fn poll_again(&self, idle: Idle) -> bool {
        idle == Idle::Full && !self.input().ended
    }

    /// Returns the next chunk if it is ready and the search for morsels to begin was a moment ago:
    /// the search costs more than many items.
    fn take_soon(&mut self) -> Option<AnyChunk> {
        if self.filled?.elapsed() > ROUND {
            return None;
        }
        match self.take(&task::Context::from_waker(Waker::noop()), 1) {
            Poll::Ready(chunk) => chunk,
            Poll::Pending => None,
        }
    }

    /// Returns the number of items of one morsel that are worth a wake of the consumer. It is one
    /// if a morsel holds up others until it is taken, as requests do, and as output does that waits
    /// for room in its process. If morsels may overtake each other, together they have the needed
    /// number only if one of them has its share.
    fn needed(&self, demand: Demand) -> usize {
        match (self.line.work, self.settings.order) {
            _ if self.settings.processes => 1,
            (Work::Io, _) => 1,
            (Work::Cpu, Order::Strict) => demand.needed,
            (Work::Cpu, _) => demand.needed.div_ceil(self.flight.len().max(1)),
        }
    }

    fn poll_spawning(
        &mut self,
        cx: &mut task::Context<'_>,
        demand: Demand,
    ) -> Poll<Option<AnyChunk>> {
        if let Some(chunk) = self.take_soon() {
            return Poll::Ready(Some(chunk));
        }
        self.account_idle();
        self.refused = false;
        self.line.awaited.clear();
        let taken = loop {
            // Complete morsels make room, so output is taken first; but the workers must never be
            // without work.
            let cheap = self.cheap();
            let idle = if cheap {
                Idle::Starved
            } else {
                self.fill(cx, demand.ahead)
            };
            let asked_ahead = !cheap && !self.flight.is_empty();
            let taken = self.take(&task::Context::from_waker(Waker::noop()), 1);
            if taken.is_pending() && !cheap {
                self.wanted_at = self.delivered;
                if !std::mem::replace(&mut self.wanted, true) {
                    self.fill(cx, true);
                }
            }
            let taken = match taken {
                Poll::Pending => {
                    if !demand.ahead {
                        self.line.awaited.wait(&self.line.account);
                    }
                    // The reader may wait for several morsels at once if it needs several anyway. A
                    // chain that fans out may make all the needed items long before its morsel is
                    // complete. Requests may not complete before others are taken and dropped, if
                    // they hold a connection or a permit of which there are few. A morsel whose
                    // output waits for room holds up the later ones in its process.
                    let wanted = match (self.settings.arity, self.line.work) {
                        // Only the first can be taken, and says by itself that it has something.
                        _ if self.settings.processes && self.settings.order == Order::Strict => {
                            usize::MAX
                        }
                        _ if self.settings.processes => 1,
                        (Arity::Any, _) | (_, Work::Io) => 1,
                        (_, Work::Cpu) => {
                            (demand.needed / self.morsel()).min(self.flight.len() / 2)
                        }
                    };
                    let has_enough = self.line.bell.poll(cx, wanted.max(1));
                    if has_enough || wanted <= 1 || self.settings.processes {
                        self.take(cx, self.needed(demand))
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
                // The last morsel in flight had no output; the input may have more.
                Poll::Ready(None) if self.poll_again(idle) && !self.refused => continue,
                // Work that was refused while other morsels were in flight is now waited for.
                Poll::Ready(None) if asked_ahead && !demand.ahead => {
                    self.refused = false;
                    continue;
                }
                Poll::Ready(None) => break Poll::Pending,
                Poll::Ready(Some(chunk)) => {
                    self.wanted = false;
                    self.line.awaited.clear();
                    if !cheap {
                        self.fill(cx, true);
                        self.filled = Some(Instant::now());
                    }
                    break Poll::Ready(Some(chunk));
                }
                Poll::Pending => {
                    // A turn of the work before the bell was set has woken nobody.
                    if (self.has_room() || self.work_turns()) && self.poll_again(idle) {
                        continue;
                    }
                    self.idle_since = Some((Instant::now(), idle));
                    break Poll::Pending;
                }
            }
        };
        self.gauge
            .occupancy_sum
            .fetch_add(self.flight.len() as u64, Ordering::Relaxed);
        self.gauge.occupancy_polls.fetch_add(1, Ordering::Relaxed);
        self.gauge
            .concurrency
            .store(self.concurrency.size() as u64, Ordering::Relaxed);
        if taken.is_ready() && self.flight.len() >= self.concurrency.size() {
            self.idle_since = Some((Instant::now(), Idle::Full));
        }
        taken
    }

    fn may_be_inline(&self) -> bool {
        self.settings.work == Work::Cpu && !self.settings.set_by_user && !self.settings.processes
    }

    fn cheap(&self) -> bool {
        self.may_be_inline() && self.probes >= PROBES && self.cost_ns < INLINE_NS as f64
    }

    /// Polls the inline chain once, and measures the time without the upstream of the tap.
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
        // One item may give output for many polls; they are all part of its cost.
        self.inline_ns += own;
        if items > 0 {
            self.gauge.items_in.fetch_add(items, Ordering::Relaxed);
            let cost = std::mem::take(&mut self.inline_ns) as f64 / items as f64;
            self.learn_cost(cost);
        }
        if let (Some(unordered), Poll::Ready(Some(chunk))) = (&self.unordered, &polled) {
            unordered.gave_run(self.inline_at, chunk.len);
            self.inline_at += chunk.len as u64;
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
                        // The first items pay for cold caches, so the limit is generous.
                        true if self.cost_ns < INLINE_NS as f64 * 20.0 => {
                            self.gauge.inline.store(true, Ordering::Relaxed);
                            Mode::Inline(chunks, 0)
                        }
                        true => self.run_dry(chunks),
                    };
                    return polled;
                }
                Mode::Inline(mut chunks, polls) => {
                    // The size grows slowly to large chunks, in case items become expensive.
                    self.input().limit = 32 << (polls / 16).min(5);
                    let polled = self.poll_inline(&mut chunks, cx, demand);
                    if let Poll::Ready(None) = polled {
                        if !self.input().shut {
                            self.mode = Mode::Inline(chunks, polls);
                            return polled;
                        }
                        // The chain has run dry: back to the workers.
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

    /// Shuts the tap. The items that the chain still holds come out inline; then the workers take
    /// over.
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
