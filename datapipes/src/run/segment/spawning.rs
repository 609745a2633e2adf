//! A segment's chain on workers: begins morsels as far as there is room, and takes their output.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{self, Poll, Waker, ready};
use std::time::{Duration, Instant};

use super::cost::ItemCost;
use super::flight::{Flight, Landed};
use super::input::{InputLog, SegmentInput};
use super::{ChunkPoll, SegmentSettings};
use crate::budget::Credit;
use crate::graph::{AnyChunk, AnyItems};
use crate::items::{self, Demand};
use crate::run;
use crate::run::TraceLevel;
use crate::run::morsel::{Morsel, MorselShared, Needed};
use crate::settings::Order;
use crate::sync::lock;
use crate::{Arity, Error, ErrorKind, Work};

/// Pause between two searches for morsels to begin, while there is output to take.
const ROUND: Duration = Duration::from_micros(50);

/// A chain that runs in morsels.
pub(super) struct Spawning {
    pub shared: Arc<MorselShared>,
    settings: SegmentSettings,
    pub input: Arc<Mutex<SegmentInput>>,
    pub flight: Flight,
    pub cost: ItemCost,
    /// Bytes of a morsel that is about to begin, with the tasks that wait for them.
    credit: Option<Credit>,
    /// True if there were no bytes for another morsel; asked again in the next poll.
    refused: bool,
    /// Number of items and errors taken so far.
    taken: usize,
    reader: ReaderNeed,
    /// Time of the last search for morsels to begin, after output was taken.
    filled: Option<Instant>,
    /// Time when the first requests were in flight, while it is not known how far the data is, and
    /// number of polls in vain before that, or before the last deadline, and nanoseconds of all polls
    /// before that.
    probing: Option<(Instant, u64, u64)>,
    /// Deadline of the first requests that the reader is woken for, by a thread that lives as long.
    alarm: Option<(Duration, Sender<()>)>,
    idle_since: Option<(Instant, Idle)>,
}

/// Items that the reader needs before it can go on, by the numbers of the items that it took.
#[derive(Default)]
struct ReaderNeed {
    took: usize,
    /// Number of the items after which it can go on.
    until: usize,
    /// Number that it needs each time; 0 before that is known.
    each: usize,
}

impl ReaderNeed {
    /// Records that the reader needs so many more.
    fn needs(&mut self, more: usize) {
        let until = self.took.saturating_add(more);
        if self.took >= self.until {
            // A buffer that fills needs many at first, and one at a time then.
            self.each = if self.until > 0 {
                until - self.until
            } else {
                0
            };
        }
        self.until = until;
    }

    /// Returns what it needs of the items from this number on.
    fn needed(&self, place: usize) -> Needed {
        let then = self.each.max(1);
        let first = match self.until.checked_sub(place) {
            Some(left) if left > 0 => left,
            _ => then - (place - self.until) % then,
        };
        Needed { first, then }
    }
}

/// Reason why no more morsels are begun: there is no input, or no room.
#[derive(Clone, Copy, PartialEq)]
enum Idle {
    Starved,
    Full,
}

/// Continuation after morsels were begun and output was looked for.
enum Step {
    /// Something has changed meanwhile.
    Again,
    /// The input has ended, and all output is taken.
    Ended,
    /// Nothing is in flight, and the chain had better run inline.
    Inline,
    Over(ChunkPoll),
}

/// Condition on which the reader is woken: this many morsels are complete, whichever they are
/// (`usize::MAX` if that does not matter), or the next one to take has this many items.
struct WakeRule {
    morsels: usize,
    items: usize,
}

impl Spawning {
    pub(super) fn new(input: AnyItems, settings: SegmentSettings) -> Self {
        let input = SegmentInput {
            chunks: settings.shared.chain.input.erase(input),
            here: settings.here.clone(),
            log: settings.log.clone(),
            ended: false,
            taken: 0,
            is_shut: true,
        };
        // Pieces of one item, as long as the cost is not known, cost processes more than threads.
        let known = match settings.processes {
            true => settings.learned.item_ns.load(Relaxed),
            false => 0,
        };
        Spawning {
            shared: settings.shared.clone(),
            input: Arc::new(Mutex::new(input)),
            flight: Flight::new(&settings),
            settings,
            cost: ItemCost::begin_with(known),
            credit: None,
            refused: false,
            taken: 0,
            reader: ReaderNeed::default(),
            filled: None,
            probing: None,
            alarm: None,
            idle_since: None,
        }
    }

    /// Returns the next output; `None` if nothing is in flight, and the chain had better run
    /// inline.
    pub(super) fn poll(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Option<ChunkPoll> {
        self.reader.needs(demand.needed);
        // The search for morsels to begin costs more than many items.
        if self.filled.is_some_and(|filled| filled.elapsed() <= ROUND)
            && let ready @ Poll::Ready(Some(_)) = self.take_ready()
        {
            self.shared.awaited.clear();
            return Some(ready);
        }
        self.record_idle();
        self.refused = false;
        let polled = loop {
            match self.step(cx, demand) {
                Step::Again => {}
                Step::Ended => return Some(Poll::Ready(None)),
                Step::Inline => return None,
                Step::Over(polled) => break polled,
            }
        };
        self.record_in_flight(&polled);
        Some(polled)
    }

    /// Begins what may begin, takes what is there, and waits if there is nothing. Complete morsels
    /// make room, so output is taken first; but the workers must never be without work.
    fn step(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Step {
        let cheap = self.settings.may_be_inline() && self.cost.is_cheap();
        let idle = match cheap {
            true => Idle::Starved,
            false => self.fill(cx, demand.ahead),
        };
        let asked_ahead = !cheap && !self.flight.morsels.is_empty();
        let mut polled = self.take_ready();
        if polled.is_pending() {
            if !cheap && self.flight.miss() {
                self.fill(cx, true);
            }
            polled = self.wait(cx, demand);
        }
        match polled {
            Poll::Ready(Some(_)) => {
                self.flight.wanted = false;
                self.shared.awaited.clear();
                if !cheap {
                    self.fill(cx, true);
                    self.filled = Some(Instant::now());
                }
                Step::Over(polled)
            }
            Poll::Ready(None) if self.input_ended() => Step::Ended,
            Poll::Ready(None) if cheap => {
                // The inline chain waits for its own input.
                self.shared.awaited.clear();
                Step::Inline
            }
            // The last morsel in flight had no output; the input may have more.
            Poll::Ready(None) if idle == Idle::Full && !self.refused => Step::Again,
            Poll::Ready(None) if asked_ahead && !demand.ahead => {
                // Work that was refused while other morsels were in flight is now waited for.
                self.refused = false;
                Step::Again
            }
            Poll::Ready(None) => Step::Over(Poll::Pending),
            // A turn of the work before the notifier was set has woken nobody.
            Poll::Pending
                if idle == Idle::Full
                    && (self.has_room() || self.work_turns())
                    && !self.input_ended() =>
            {
                Step::Again
            }
            Poll::Pending => {
                self.idle_since = Some((Instant::now(), idle));
                Step::Over(polled)
            }
        }
    }

    /// Counts the time since no more morsels were begun.
    fn record_idle(&mut self) {
        if let Some((since, idle)) = self.idle_since.take() {
            let idle_ns = match idle {
                Idle::Starved => &self.shared.gauge.starved_ns,
                Idle::Full => &self.shared.gauge.full_ns,
            };
            idle_ns.fetch_add(since.elapsed().as_nanos() as u64, Relaxed);
        }
    }

    fn record_in_flight(&mut self, polled: &ChunkPoll) {
        let (in_flight, size) = (self.flight.morsels.len(), self.flight.concurrency.size());
        let gauge = &self.shared.gauge;
        gauge.occupancy_sum.fetch_add(in_flight as u64, Relaxed);
        gauge.occupancy_polls.fetch_add(1, Relaxed);
        gauge.concurrency.store(size as u64, Relaxed);
        if let Some(timeline) = gauge.timeline.slot.get(TraceLevel::Morsel) {
            timeline.in_flight(gauge.timeline.segment, in_flight, size);
        }
        if polled.is_ready() && in_flight >= size {
            self.idle_since = Some((Instant::now(), Idle::Full));
        }
    }

    fn input_ended(&self) -> bool {
        lock(&self.input).ended
    }

    /// Starts as many morsels as may be in flight. `ahead` is true if no reader waits for the first
    /// one either.
    fn fill(&mut self, cx: &mut task::Context<'_>, ahead: bool) -> Idle {
        self.choose_work();
        self.probe();
        while self.has_room() && self.has_bytes(cx, ahead) {
            let begun = Instant::now();
            let ahead = ahead || !self.flight.morsels.is_empty();
            let most = self.morsel();
            let demand = self.input_demand(most, ahead);
            let Some(mut taken) = lock(&self.input).take(cx, demand) else {
                // Other edges may have the bytes meanwhile.
                self.credit = None;
                if self.taken == 0 {
                    self.settings.spawner.prepare();
                }
                return Idle::Starved;
            };
            self.taken += taken.0.len;
            if self.flight.work == Work::Cpu && !matches!(self.settings.log, InputLog::InOrder(_)) {
                let most = match self.shared.work {
                    Work::Cpu => most.min(items::at_once(0.0, self.taken)),
                    Work::Io => most,
                };
                self.gather(cx, &mut taken.0, most, begun);
            }
            self.spawn(taken);
        }
        self.probe();
        Idle::Full
    }

    /// Returns true if the work seldom waits, and the workers do it.
    fn is_near(&self) -> bool {
        self.shared.waits.is_some() && self.flight.work == Work::Cpu
    }

    /// Returns the number of items for the next morsel. Of near files that a reader needs together, more
    /// than are worth a hop save hops, as long as each worker has several morsels of them.
    fn morsel(&self) -> usize {
        let items = self.cost.morsel(&self.settings, self.taken);
        match self.is_near() && self.settings.order == Order::Strict {
            // Not for the first batch, which waits for the slowest worker.
            true => {
                items.max((2 * items).min(self.reader.each / (4 * self.settings.workers.max(1))))
            }
            false => items,
        }
    }

    /// Returns the demand for a morsel of up to `most` items. If the reader needs several, and each
    /// input gives one of them, all that it needs, or a whole morsel, are worth a wake, and fewer
    /// items are not.
    fn input_demand(&self, most: usize, ahead: bool) -> Demand {
        let demand = Demand {
            ahead,
            ..Demand::up_to(most)
        };
        let needs_one = self.reader.until <= self.reader.took + 1;
        match self.reader.until.saturating_sub(self.taken) {
            _ if needs_one || self.shared.arity != Arity::One => demand,
            0 => demand.needing(most),
            left => demand.needing(most.min(left)),
        }
    }

    /// Begins more of the first requests where the data turns out not to be near: has the reader
    /// woken when the first ones have had the time to come back.
    fn probe(&mut self) {
        let concurrency = &mut self.flight.concurrency;
        let is_full = self.flight.morsels.len() >= concurrency.size();
        let Some(deadline) = concurrency.deadline() else {
            self.alarm = None;
            return;
        };
        if !is_full {
            return;
        }
        let gauge = &self.shared.gauge;
        let (polls, busy) = (
            gauge.pending_polls.load(Relaxed),
            gauge.busy_ns.load(Relaxed),
        );
        let begin = || (Instant::now(), polls, busy);
        let (since, before, busy_before) = self.probing.get_or_insert_with(begin);
        let is_over = match deadline.checked_sub(since.elapsed()) {
            None => true,
            Some(_) if self.alarm.as_ref().is_some_and(|alarm| alarm.0 == deadline) => false,
            Some(left) => {
                let (keep, gone) = channel();
                self.alarm = Some((deadline, keep));
                let notifier = self.shared.notifier.clone();
                // A thread, since a user's runtime may have no timers. It ends when it is not needed.
                let wake = move || {
                    if gone.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                        notifier.wake();
                    }
                };
                run::spawn_thread("datapipes-probe".to_owned(), wake).is_err()
            }
        };
        if is_over {
            let busy = busy - std::mem::replace(busy_before, busy);
            let polls = polls - std::mem::replace(before, polls);
            self.flight.open(polls, Duration::from_nanos(busy));
        }
    }

    /// Returns true if work that seldom waits has begun to wait, or ceased to.
    fn work_turns(&self) -> bool {
        let is_far = self.flight.work == Work::Io;
        let waits = self.shared.waits.as_ref();
        waits.is_some_and(|waits| waits.is_far() != is_far)
    }

    /// Decides which kind of work begins now.
    fn choose_work(&mut self) {
        if self.work_turns() {
            self.flight.turn();
            let on_workers = self.flight.work == Work::Cpu;
            self.shared.gauge.on_workers.store(on_workers, Relaxed);
            let waits = self.shared.waits.as_ref();
            if !on_workers && waits.is_some_and(|waits| waits.is_distant()) {
                // The work waited for long on the workers, so the data is not near: no probe is needed.
                self.flight.open(0, Duration::ZERO);
            }
            // The cost of an item is time on a worker for one kind of work, time in flight for the
            // other.
            let known = &self.settings.learned.item_ns;
            self.cost = match on_workers {
                true => ItemCost::begin_with(known.load(Relaxed)),
                false => ItemCost::default(),
            };
        }
    }

    fn has_room(&self) -> bool {
        let ready = self.shared.notifier.ready();
        !self.refused && self.flight.has_room(&self.settings, ready)
    }

    /// Returns true if there are bytes for another morsel. The first morsel never has to wait for
    /// them.
    fn has_bytes(&mut self, cx: &task::Context<'_>, ahead: bool) -> bool {
        let account = &self.shared.account;
        let credit = self.credit.get_or_insert_with(|| account.credit());
        let has = credit.reserve(cx);
        if !has && self.flight.morsels.is_empty() && !ahead {
            credit.reserve_anyway();
            return true;
        }
        self.refused = !has;
        has
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
            let demand = self.input_demand(most - chunk.len, true);
            let Some((next, ..)) = lock(&self.input).take(cx, demand) else {
                return;
            };
            self.taken += next.len;
            self.shared.chain.input.append(chunk, next);
        }
    }

    /// Starts a morsel.
    fn spawn(&mut self, taken: (AnyChunk, u64, u64)) {
        let (shared, chunk) = (&self.shared, &taken.0);
        shared.gauge.items_in.fetch_add(chunk.len as u64, Relaxed);
        shared.gauge.morsels.fetch_add(1, Relaxed);
        self.cost.input = chunk.bytes / chunk.len.max(1);
        let mut credit = self.credit.take().expect("bytes were reserved before");
        credit.set_input(chunk.bytes * self.settings.spawner.copies());
        if self.flight.morsels.is_empty() {
            shared.awaited.lead(credit.id());
        }
        // Only in order is it known which items the reader gets with these.
        let needed = match (self.settings.order, shared.arity) {
            (Order::Strict, Arity::One) => self.reader.needed(self.taken - chunk.len),
            _ => Needed::ONE,
        };
        let (work, spawner) = (self.flight.work, &*self.settings.spawner);
        let arrivals = self.flight.arrivals.as_ref();
        let is_early = self.flight.is_early();
        let expected = is_early.then(|| shared.chain.expected_weight(chunk));
        let mut morsel = Morsel::start(taken, needed, work, credit, shared, spawner, arrivals);
        morsel.expected = expected.flatten();
        self.flight.push(morsel, self.shared.notifier.ready());
    }

    /// Returns the next chunk of the morsels in flight; see [`Flight::poll`].
    fn take(&mut self, cx: &task::Context<'_>, needed: usize) -> ChunkPoll {
        while let Some(landed) = ready!(self.flight.poll(cx, needed)) {
            match landed {
                Landed::Output(chunk, position) => {
                    self.shared.pace.take(chunk.len);
                    self.reader.took += chunk.len;
                    self.settings.log.gave(position, chunk.len);
                    return Poll::Ready(Some(chunk));
                }
                Landed::Complete(id) => {
                    if let Some(error) = self.finish(id) {
                        return Poll::Ready(Some(error));
                    }
                }
            }
        }
        Poll::Ready(None)
    }

    fn take_ready(&mut self) -> ChunkPoll {
        self.take(&task::Context::from_waker(Waker::noop()), 1)
    }

    /// Returns the next chunk, or wakes the reader when enough is there.
    fn wait(&mut self, cx: &task::Context<'_>, demand: Demand) -> ChunkPoll {
        // A later poll ahead of need does not end the wait, since a fork's other output may ask
        // next. If the reader that waited was dropped instead, one item too many is made.
        if !demand.ahead {
            self.shared.awaited.wait(&self.shared.account);
        }
        let wake = self.wake_rule(demand.needed);
        let are_complete = self.shared.notifier.poll(cx, wake.morsels);
        // A reader that waits for several morsels at once is not woken for the items of the first.
        if !are_complete && (2..usize::MAX).contains(&wake.morsels) {
            return Poll::Pending;
        }
        self.take(cx, wake.items)
    }

    /// Returns when to wake the reader, who needs this many items.
    fn wake_rule(&self, needed: usize) -> WakeRule {
        let each = WakeRule {
            morsels: 1,
            items: 1,
        };
        // In order only the first morsel can be taken. It says by itself that it has something, also
        // that its output waits for room, which holds up the later ones in its process.
        let first = WakeRule {
            morsels: usize::MAX,
            items: self.flight.share(needed),
        };
        if self.settings.processes {
            return match self.flight.order {
                Order::Strict => first,
                _ => each,
            };
        }
        // Some that began as I/O may still be in flight after the work has turned.
        let seldom_waits = self.shared.waits.is_some();
        if self.flight.work == Work::Io || seldom_waits && self.flight.has_io() {
            // Requests may not complete before others are taken and dropped, if they hold a
            // connection or a permit of which there are few.
            return each;
        }
        let morsels = match self.shared.arity {
            // A chain that fans out may make all the needed items long before its morsel is complete.
            Arity::Any => 1,
            // The reader may wait for several morsels at once if it needs several anyway.
            _ => {
                let in_flight = self.flight.morsels.len();
                let enough = needed / self.morsel();
                enough.min(in_flight / 2)
            }
        };
        match (self.flight.order, morsels) {
            (Order::Strict, ..=1) => first,
            (_, morsels) => WakeRule {
                morsels: morsels.max(1),
                ..first
            },
        }
    }

    /// Removes a complete morsel and learns from its measurements. Returns an error if it was lost.
    fn finish(&mut self, id: u64) -> Option<AnyChunk> {
        let shared = &self.shared;
        let ready = shared.notifier.ready();
        let morsel = self.flight.remove(id, ready, &self.settings.learned);
        if let Some((_, first)) = self.flight.morsels.first_key_value()
            && id < first.id
        {
            shared.awaited.lead(first.id);
            // The next morsel may have more of the bytes now.
            shared.account.wake(first.id);
        }
        self.settings.log.complete(morsel.items, morsel.out);
        shared.notifier.taken();
        if morsel.work == self.flight.work && morsel.spent() > 0 {
            match self.is_near() {
                true => self.cost.learn_near(morsel.cost()),
                false => self.cost.learn(morsel.cost()),
            }
            if self.settings.processes || self.shared.waits.is_some() && morsel.work == Work::Cpu {
                let known = &self.settings.learned.item_ns;
                known.store(self.cost.ns(), Relaxed);
            }
        }
        if morsel.is_complete() {
            shared.gauge.morsel_time.record(morsel.spent(), 1);
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
        let chain = &shared.chain;
        Some(chain.output().fail_chunk(chain.name(error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of items that may come together, from the item of this number on.
    fn together(reader: &ReaderNeed, place: usize, items: usize) -> Vec<usize> {
        let (needed, mut made, mut together) = (reader.needed(place), 0, Vec::new());
        while made < items {
            let next = needed.after(made).min(items - made);
            together.push(next);
            made += next;
        }
        together
    }

    #[test]
    fn items_of_different_batches_do_not_wait_for_each_other() {
        let mut reader = ReaderNeed::default();
        reader.needs(64);
        // The next reader may be content with one.
        assert_eq!(together(&reader, 62, 4), [2, 1, 1]);
        reader.took = 60;
        reader.needs(4);
        reader.took = 66;
        reader.needs(62);
        assert_eq!(together(&reader, 66, 4), [4]);
        assert_eq!(together(&reader, 126, 4), [2, 2]);
        assert_eq!(together(&reader, 190, 70), [2, 64, 4]);
        assert_eq!(together(&reader, 192, 3), [3]);
    }

    #[test]
    fn items_after_a_buffer_is_full_come_one_by_one() {
        let mut reader = ReaderNeed::default();
        reader.needs(100);
        reader.took = 100;
        reader.needs(1);
        assert_eq!(together(&reader, 100, 3), [1, 1, 1]);
    }
}
