//! The morsels in flight: how many there may be, and the order in which their output is taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{self, Poll, ready};
use std::time::{Duration, Instant};

use super::SegmentSettings;
use crate::graph::AnyChunk;
use crate::queue::Arrivals;
use crate::run::concurrency::{Concurrency, Ended};
use crate::run::morsel::Morsel;
use crate::run::near::Waits;
use crate::settings::Order;
use crate::{Arity, Work};

/// Number of morsels with many items each, in multiples of the concurrency, that may be held while
/// they wait for a slow earlier one: each may hold a connection until it is taken.
const REORDER: usize = 4;
/// Maximum number of morsels in flight for each CPU worker, of I/O that seldom waits.
const NEAR_PER_WORKER: usize = 8;
/// Number of them at the start, unless the first output needs more.
const LEAST_NEAR: usize = 2;

/// Measured values that a segment passes on to the next epoch.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    concurrency: AtomicUsize,
    /// Best duration of a morsel, in nanoseconds; 0 before it is known.
    best_ns: AtomicU64,
    /// True if that is a guess.
    is_guess: AtomicBool,
    /// Cost of an item in child processes, or of I/O on the CPU workers, in nanoseconds; 0 before it is
    /// known.
    pub item_ns: AtomicU64,
    /// Waits of work that seldom waits.
    pub waits: Arc<Waits>,
    /// Number of output items that were taken.
    pub taken: Arc<AtomicUsize>,
    /// Bytes that an output item keeps alive: the recent maximum, 0 before the first item.
    pub weight: Arc<AtomicUsize>,
}

impl Learned {
    /// Begins with the number in flight that an earlier run found, and the best duration of a
    /// morsel, in nanoseconds.
    #[cfg(feature = "tune")]
    pub(crate) fn begin_with(&self, in_flight: usize, best_ns: u64) {
        self.concurrency.store(in_flight, Relaxed);
        self.best_ns.store(best_ns, Relaxed);
    }

    /// Returns the number in flight and the best duration of a morsel, if they are known.
    #[cfg(feature = "tune")]
    pub(crate) fn found(&self) -> Option<(usize, u64)> {
        let (in_flight, best_ns) = (self.concurrency.load(Relaxed), self.best_ns.load(Relaxed));
        (in_flight > 0 && best_ns > 0).then_some((in_flight, best_ns))
    }
}

/// Morsels in flight, in the order of the input.
///
/// Their number is that of [`Concurrency`]. A complete morsel that waits for an earlier one does not
/// count, so that one slow connection does not idle the others. All that are held are limited by
/// their bytes and by the greatest number of items in flight.
pub(super) struct Flight {
    /// Morsels by their numbers, which ascend.
    pub morsels: BTreeMap<u64, Morsel>,
    /// Number of their input items.
    items: usize,
    /// Number of those that began as I/O.
    io: usize,
    pub order: Order,
    /// Place where morsels say that they have output, if they may overtake others, and the numbers
    /// of those that said so and were not found empty. To look at thousands for each output would
    /// cost more than the output.
    pub arrivals: Option<Arc<Arrivals>>,
    arrived: BTreeSet<u64>,
    /// Kind of the work that begins now.
    pub work: Work,
    pub concurrency: Concurrency,
    /// The concurrency of the other kind of work, of I/O that seldom waits.
    other_concurrency: Concurrency,
    begun: Instant,
    /// Greatest number of incomplete morsels so far. Begins with the number that the previous epoch found,
    /// since a client still has those connections.
    peak: usize,
    /// Number of complete morsels, now and when the consumer last found nothing ready.
    complete: usize,
    wanted_at: usize,
    /// True if the consumer found nothing ready when it last looked.
    pub wanted: bool,
    /// Number of looks at the output of a morsel so far.
    #[cfg(test)]
    pub looks: usize,
}

/// Next event of the morsels in flight.
pub(super) enum Landed {
    /// Output, and the position of its first input, if that has to be known.
    Output(AnyChunk, u64),
    /// The morsel of this number has no more output.
    Complete(u64),
}

impl Flight {
    pub(super) fn new(settings: &SegmentSettings) -> Self {
        let (most, learned) = (settings.concurrency, &settings.learned);
        let concurrency = match settings.shared.work {
            _ if settings.set_by_user => Concurrency::fixed(most),
            Work::Cpu if settings.processes && learned.item_ns.load(Relaxed) > 0 => {
                Concurrency::growing(settings.start.max(4 * settings.workers), most)
            }
            Work::Cpu => Concurrency::growing(4 * settings.workers, most),
            Work::Io => {
                let start = match learned.concurrency.load(Relaxed) {
                    0 => settings.start,
                    learned => learned,
                };
                let best = Some(learned.best_ns.load(Relaxed)).filter(|&best| best > 0);
                let found = Concurrency::following(start, most, best.map(|best| best as f64));
                match learned.is_guess.load(Relaxed) {
                    true => found.guessed(),
                    false => found,
                }
            }
        };
        Flight {
            morsels: BTreeMap::new(),
            items: 0,
            io: 0,
            order: settings.order,
            arrivals: (settings.order != Order::Strict).then(Arc::default),
            arrived: BTreeSet::new(),
            work: settings.shared.work,
            concurrency,
            // More whole files than the first output needs would keep the workers from their decoding.
            other_concurrency: Concurrency::growing(
                settings.start.max(LEAST_NEAR).min(4 * settings.workers),
                NEAR_PER_WORKER * settings.workers,
            ),
            begun: Instant::now(),
            peak: learned.concurrency.load(Relaxed),
            complete: 0,
            wanted_at: 0,
            wanted: true,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Returns true if one more morsel may start, where `ready` of those in flight are complete or
    /// have filled their queues.
    pub(super) fn has_room(&self, settings: &SegmentSettings, ready: usize) -> bool {
        let (size, in_flight) = (self.concurrency.size(), self.morsels.len());
        let most = match (self.work, settings.shared.arity) {
            _ if !self.wanted => size,
            (Work::Cpu, _) => size,
            // Complete morsels that cannot be delivered yet make room for others.
            (Work::Io, Arity::Any) => (size + ready).min(size * REORDER),
            (Work::Io, _) => size + ready,
        };
        let is_full = self.work == Work::Io && self.items >= settings.concurrency;
        in_flight == 0 || in_flight < most && !is_full
    }

    /// Goes on with the other kind of work: I/O that seldom waits has begun to wait, or ceased to.
    pub(super) fn turn(&mut self) {
        self.work = match self.work {
            Work::Io => Work::Cpu,
            Work::Cpu => Work::Io,
        };
        std::mem::swap(&mut self.concurrency, &mut self.other_concurrency);
    }

    /// Adds a morsel that has begun. `ready` of those in flight are complete, or have filled their
    /// queues.
    pub(super) fn push(&mut self, mut morsel: Morsel, ready: usize) {
        let at_work = (self.morsels.len() + 1).saturating_sub(ready);
        morsel.connects = at_work > self.peak;
        self.peak = self.peak.max(at_work);
        self.items += morsel.items;
        self.io += usize::from(morsel.work == Work::Io);
        self.morsels.insert(morsel.id, morsel);
    }

    /// Returns true if nothing has shown yet whether the data is near or far.
    pub(super) fn is_early(&self) -> bool {
        let is_first = self.complete == 0 && self.other_concurrency.deadline().is_some();
        is_first || self.concurrency.deadline().is_some()
    }

    /// Returns true if morsels that began as I/O are in flight.
    pub(super) fn has_io(&self) -> bool {
        self.io > 0
    }

    /// Begins more of the first morsels where none has completed by the deadline; see
    /// [`Concurrency::open`].
    pub(super) fn open(&mut self, polls: u64, busy: Duration) {
        let expected: Option<usize> = self.morsels.values().map(|morsel| morsel.expected).sum();
        let each = expected.and_then(|bytes| bytes.checked_div(self.items));
        self.concurrency.open(polls, busy, each);
    }

    /// Removes a complete morsel, and learns from it. `ready` of those in flight are complete, or have
    /// filled their queues.
    pub(super) fn remove(&mut self, id: u64, ready: usize, learned: &Learned) -> Morsel {
        let morsel = self.morsels.remove(&id).expect("a morsel in flight");
        self.items -= morsel.items;
        self.io -= usize::from(morsel.work == Work::Io);
        self.arrived.remove(&id);
        self.complete += 1;
        if morsel.work == self.work {
            let now = self.begun.elapsed().as_nanos() as u64;
            // Output that was waited for often comes with the rest of its round trip.
            let waited = self.complete - self.wanted_at <= self.concurrency.size();
            let took = morsel.cost() * morsel.items as f64;
            self.concurrency.completed(Ended {
                took,
                complete: self.complete + ready,
                now,
                wanted: waited,
                connects: morsel.connects,
                bytes: morsel.bytes,
            });
        }
        // An epoch that is shorter than a round has found nothing.
        if self.work == Work::Io
            && let Some((proven, best)) = self.concurrency.found()
        {
            learned.concurrency.store(proven, Relaxed);
            learned.best_ns.store(best as u64, Relaxed);
            let is_guess = self.concurrency.is_guess();
            learned.is_guess.store(is_guess, Relaxed);
        }
        morsel
    }

    /// Records that the consumer found nothing ready; returns true if it found something before.
    pub(super) fn miss(&mut self) -> bool {
        self.wanted_at = self.complete;
        !std::mem::replace(&mut self.wanted, true)
    }

    /// Returns what comes next in the requested order; `None` if nothing is in flight. A waiting
    /// reader is woken when a morsel has `needed` items, or if no more come for now.
    pub(super) fn poll(&mut self, cx: &task::Context<'_>, needed: usize) -> Poll<Option<Landed>> {
        if self.morsels.is_empty() {
            return Poll::Ready(None);
        }
        let Some(arrivals) = &self.arrivals else {
            let (&id, _) = self.morsels.first_key_value().expect("not empty");
            return self.look(id, cx, needed).map(Some);
        };
        self.arrived.extend(arrivals.take(cx, needed));
        while let Some(id) = self.next_arrived() {
            match self.look(id, cx, needed) {
                Poll::Ready(landed) => return Poll::Ready(Some(landed)),
                Poll::Pending => self.arrived.remove(&id),
            };
        }
        Poll::Pending
    }

    /// Takes what a morsel has.
    fn look(&mut self, id: u64, cx: &task::Context<'_>, needed: usize) -> Poll<Landed> {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        let morsel = self.morsels.get_mut(&id).expect("a morsel in flight");
        let Some(chunk) = ready!(morsel.slot.poll_take_of(cx, needed)) else {
            return Poll::Ready(Landed::Complete(id));
        };
        let position = morsel.position + morsel.out as u64;
        morsel.out += chunk.len;
        morsel.bytes += chunk.bytes;
        if let Order::Bounded(_) = self.order {
            for (_, earlier) in self.morsels.range_mut(..id) {
                earlier.overtaken += chunk.len;
            }
        }
        Poll::Ready(Landed::Output(chunk, position))
    }

    /// Returns the first morsel with output that may go before those that are earlier.
    fn next_arrived(&self) -> Option<u64> {
        let &first = self.arrived.first()?;
        let Order::Bounded(places) = self.order else {
            return Some(first);
        };
        let (_, oldest) = self.morsels.first_key_value()?;
        let mut earlier = 0;
        for morsel in self.morsels.range(..first).map(|(_, morsel)| morsel) {
            earlier += morsel.items.saturating_sub(morsel.out);
            if earlier > places {
                return None;
            }
        }
        let overtaken = oldest.overtaken + self.morsels[&first].items;
        (first == oldest.id || overtaken <= places).then_some(first)
    }

    /// Returns the number of items in one morsel that makes about `needed` in all that can be taken
    /// from.
    pub(super) fn share(&self, needed: usize) -> usize {
        match self.order {
            Order::Strict => needed,
            _ => needed.div_ceil(self.morsels.len().max(1)),
        }
    }
}
