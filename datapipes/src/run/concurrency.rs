//! Number of morsels of a segment in flight. It starts with a few. If the data turns out not to be
//! near, it grows to what the first output needs. After that it follows measurements.
//!
//! Without measurements a simple rule holds: the number grows by one for every four morsels that
//! complete, and only while the consumer waits. Requests thus never exceed 1.25 times the arrivals
//! (Versaci and Busonera, *Hiding Latencies in Network-Based Image Loading for Deep Learning*, 2024:
//! "for every four consumed, five requested").
//!
//! If morsels wait for a remote system, the number is what Little's law gives: the throughput of the
//! bottleneck times the duration of a morsel that meets no queue, and half as much again. Both are
//! measured, as BBR does for packets (Cardwell and others, *BBR: Congestion-Based Congestion
//! Control*, 2016):
//!
//! - The throughput is the second best of the last rounds. A round is as many morsels as are in
//!   flight, for at least [`LEAST_ROUND`].
//! - The duration is the least of the means of the rounds: means, because morsels differ in size and
//!   connections in speed. With many in flight every morsel meets a queue. When rounds take longer than
//!   before, half of the number is therefore tried, for as long as slow morsels take, and the mean
//!   of that trial is the duration. This also notices a changed distance or size, and reduces a number
//!   that was too large.
//!
//! However short the link is, what passes in [`QUEUE`] is allowed.
//!
//! The first requests are few, since many to a server nearby make a queue, and the time of the queue
//! would be taken for the time of the link. If none completes within [`PROBE_TIME`], the data is not near,
//! and what the first output needs follows at once: a distant server costs these 8 ms, and no round
//! trip. If they have not all come within [`FAR_TIME`] either, [`FAR`] times as many follow. No more
//! are asked for before that, since the link may be slow and the objects large, and the first output
//! would wait for the others' bytes. Morsels that are polled several times meanwhile are not distant,
//! but long.
//!
//! The first requests begin together. The times between their ends thus say at once what the
//! bottleneck can do, as a train of packets does, and the number jumps to what fills it. If they tell
//! too little, it doubles each round while those that connect meet no queue.
//!
//! A morsel with more in flight than ever before may have to connect, which takes a round trip or
//! more. As long as only such morsels are measured, the duration is too long by that, and the number
//! is not half as much again: it fills the link twice at most.
//!
//! The code reads no clock; the caller passes the time. The limit of one store, over all its
//! readers, is `Limit` of `datapipes-io`.

use std::collections::VecDeque;
use std::time::Duration;

/// Maximum number in flight at the start, until the distance is known.
pub(crate) const PROBE: usize = 8;
/// Time after which the data is not near, if none of the first morsels has completed.
const PROBE_TIME: Duration = Duration::from_millis(8);
/// Time after which what the first output needs begins even if answers are on the way.
const LAST: Duration = Duration::from_millis(72);
/// Time after which [`FAR`] times as many begin, if still nothing is on the way.
const FAR_TIME: Duration = Duration::from_millis(64);
const FAR: usize = 4;
/// Number of polls of a morsel in vain, on average, that show that its answer is on the way: a large
/// object comes in many pieces. A request that connects is polled four or five times.
const ARRIVING: u64 = 5;
/// Number of the first morsels whose times say what the bottleneck can do: the quickest of them, since
/// a few connections may be slow.
const TRAIN: usize = PROBE - 2;
/// Maximum factor by which the number grows after them.
const JUMP: f64 = 8.0;
/// Number in flight, in multiples of what fills the bottleneck.
const GAIN: f64 = 1.5;
/// Time, in nanoseconds, for which a request may wait in a queue: so short a queue costs neither memory
/// nor anybody else's time, keeps a server busy while its answers are read, and lets both sides do the
/// work of many requests together.
const QUEUE: f64 = 4e6;
/// Number in flight that is always allowed after the first round: what passes in that time, within
/// these bounds. Few large objects in flight stay in the caches.
const ALWAYS: (f64, f64) = (4.0, 64.0);
/// Multiple of the best duration of a morsel that indicates a queue.
const CROWDED: f64 = 1.3;
/// The same, up to which there is none, of morsels that may have had to connect.
const ALONE: f64 = 1.1;
/// Number of rounds whose throughput counts.
const ROUNDS: usize = 8;
/// Least duration of a round that measures, in nanoseconds: completions come in bursts, and those
/// that waited for a slow one are taken at once.
const LEAST_ROUND: u64 = 16_000_000;
/// Least number of morsels in a round, whose durations differ.
const LEAST_MORSELS: usize = 8;
/// Part of the number in flight that is tried to see a morsel that meets no queue: more than what
/// fills the link, if the number is twice that at most.
const PART: usize = 2;
/// Duration of morsels that need not connect, in multiples of those that may, that shows that
/// connecting takes time.
const CONNECTED: f64 = 0.75;
/// Throughput of a part, in multiples of its share, that shows that the whole fills the bottleneck.
const FILLED: f64 = 1.2;
/// Number of crowded rounds before the first such trial of an epoch that begins with what an earlier
/// one found, and before the next one if the number has changed.
const EARLY: u32 = 4;
/// Maximum number of crowded rounds between two such trials.
const MOST_HOLD: u32 = 256;

/// Number of morsels that may be in flight.
#[derive(Debug)]
pub(crate) struct Concurrency {
    size: usize,
    most: usize,
    /// Size once the data is known not to be near; 0 after that.
    far_size: usize,
    /// Time at which more begin, unless morsels have completed; `None` if no more are due.
    due: Option<Duration>,
    /// Number of morsels completed since the last growth.
    since_growth: usize,
    /// Measurements that the number follows, if it follows any.
    measured: Option<Measured>,
}

#[derive(Debug)]
struct Measured {
    /// True until the first morsels have ended, if they begin together.
    probes: bool,
    /// Duration of a morsel that meets no queue, in nanoseconds, on average over a round.
    best: f64,
    /// True if that was measured of morsels that may have had to connect.
    connects: bool,
    /// Throughput of the last rounds, in morsels per nanosecond: of each as a whole, and while morsels
    /// were in flight. The first is less if a consumer wants many at times, and nothing in between.
    rates: VecDeque<(f64, f64)>,
    round: Round,
    /// Age of the morsels in flight at the end of the last round, in nanoseconds: those that take
    /// long are most of them. A trial takes as long to settle, and to measure.
    age: f64,
    /// Number in flight before a part of it was tried, and that part, while it is.
    tried: Option<(usize, usize)>,
    /// Number of crowded rounds until a part is tried, and the number after that.
    left: u32,
    hold: u32,
}

/// A morsel that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// Duration in nanoseconds.
    pub took: f64,
    /// True if more were in flight at its begin than ever before, so that it may have had to connect.
    pub is_new: bool,
    /// True if the consumer waited for it.
    pub wanted: bool,
}

/// A round of as many morsels as were in flight at its begin: about a round trip.
#[derive(Debug, Default)]
struct Round {
    /// Time, and number of morsels that had ended.
    begun: Option<(u64, usize)>,
    of: usize,
    morsels: usize,
    /// Durations of the first morsels.
    first: [f64; PROBE],
    /// Sum of the durations, and of their squares.
    took: f64,
    squares: f64,
    /// Number of morsels that did not have to connect, and the sum of their durations.
    connected: usize,
    connected_took: f64,
    wanted: bool,
    /// True if its morsels began with more in flight, so that it measures nothing.
    settles: bool,
}

impl Concurrency {
    /// Makes a concurrency that stays at `size`.
    pub(crate) fn fixed(size: usize) -> Self {
        Concurrency::growing(size, size)
    }

    /// Makes a concurrency that grows from `start` to `most`, for work that can always have more in
    /// flight.
    pub(crate) fn growing(start: usize, most: usize) -> Self {
        Concurrency {
            size: start.clamp(1, most.max(1)),
            most: most.max(1),
            far_size: 0,
            due: None,
            since_growth: 0,
            measured: None,
        }
    }

    /// Makes a concurrency that begins with `start` and follows measurements, up to `most`. `best`
    /// is the duration of a morsel that meets no queue, in nanoseconds, if known; if not, it begins
    /// with few, until it is known how far the data is.
    pub(crate) fn following(start: usize, most: usize, best: Option<f64>) -> Self {
        let is_probing = best.is_none() && start.min(most) > PROBE;
        let measured = Measured {
            probes: is_probing,
            best: best.unwrap_or(f64::INFINITY),
            connects: false,
            rates: VecDeque::with_capacity(ROUNDS),
            round: Round::default(),
            age: 0.0,
            tried: None,
            left: best.map_or(1, |_| EARLY),
            hold: EARLY,
        };
        Concurrency {
            measured: Some(measured),
            far_size: start,
            due: is_probing.then_some(PROBE_TIME),
            ..Concurrency::growing(if is_probing { PROBE } else { start }, most)
        }
    }

    /// Returns the number of morsels that may be in flight now.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns the time, from the begin of the first morsels, at which [`open`](Self::open) is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.due
    }

    /// Records that the deadline has come, and how often those in flight were
    /// polled since the last one.
    pub(crate) fn open(&mut self, polls: u64) {
        let Some(due) = self.due else {
            return;
        };
        let are_arriving = polls > ARRIVING * self.size as u64;
        let far_size = std::mem::take(&mut self.far_size);
        self.due = match far_size {
            // More than the first output needs is worth it only over a long way.
            0 => {
                let times = if are_arriving { 1 } else { FAR };
                self.size = (self.size * times).min(self.most);
                None
            }
            _ if are_arriving && due < LAST => {
                self.far_size = far_size;
                Some(due * 2)
            }
            _ => {
                self.size = far_size.min(self.most);
                (due < FAR_TIME).then_some(FAR_TIME)
            }
        };
    }

    /// Returns the number found so far; during a trial, the number before it.
    pub(crate) fn proven(&self) -> usize {
        let tried = self.measured.as_ref().and_then(|measured| measured.tried);
        tried.map_or(self.size, |(whole, _)| whole)
    }

    /// Returns the duration of a morsel that meets no queue, in nanoseconds, if it is measured and
    /// known.
    pub(crate) fn best(&self) -> Option<f64> {
        self.measured
            .as_ref()
            .map(|measured| measured.best)
            .filter(|best| best.is_finite())
    }

    /// Returns what the next epoch is to begin with, once it was measured: the number found so far, and
    /// the duration of a morsel that meets no queue.
    pub(crate) fn found(&self) -> Option<(usize, f64)> {
        Some((self.proven(), self.best()?))
    }

    /// Records the end of a morsel at the time `now`, in nanoseconds, as one of `complete` that have
    /// ended so far: those that wait for an earlier one too.
    pub(crate) fn completed(&mut self, morsel: Ended, complete: usize, now: u64) {
        if let Some(measured) = &mut self.measured {
            self.size = measured
                .learn(self.size, morsel, complete, now)
                .min(self.most);
            // One of the first that is slow holds up what would say that more fill the bottleneck.
            self.due = self.due.filter(|_| measured.probes && self.far_size == 0);
            return;
        }
        if !morsel.wanted || self.size >= self.most {
            return;
        }
        self.since_growth += 1;
        if self.since_growth >= 4 || self.size == 1 {
            self.since_growth = 0;
            self.size += 1;
        }
    }
}

impl Round {
    fn add(&mut self, morsel: Ended) {
        if let Some(first) = self.first.get_mut(self.morsels) {
            *first = morsel.took;
        }
        self.morsels += 1;
        self.took += morsel.took;
        self.squares += morsel.took * morsel.took;
        self.wanted |= morsel.wanted;
        if !morsel.is_new {
            self.connected += 1;
            self.connected_took += morsel.took;
        }
    }

    /// Returns true if enough of its morsels did not have to connect.
    fn is_connected(&self) -> bool {
        self.connected >= LEAST_MORSELS
    }

    /// Returns the mean duration, of those that did not have to connect if there are enough.
    fn mean(&self) -> f64 {
        match self.is_connected() {
            true => self.connected_took / self.connected as f64,
            false => self.took / self.morsels as f64,
        }
    }

    /// Returns the shortest of the first durations.
    fn shortest(&self) -> f64 {
        self.first.into_iter().fold(f64::INFINITY, f64::min)
    }

    /// Returns the number that fills the bottleneck, by the first morsels, which began together; at
    /// least `size`.
    fn jump(&self, size: usize) -> usize {
        let mut first = self.first;
        first.sort_by(f64::total_cmp);
        let spread = (first[TRAIN - 1] - first[0]).max(1.0);
        let fills = (TRAIN - 1) as f64 / spread * first[0];
        size.max(fills.min(JUMP * size as f64) as usize)
    }
}

impl Measured {
    /// Learns from a morsel, and returns the number to have in flight, which is `size` now.
    fn learn(&mut self, size: usize, morsel: Ended, complete: usize, now: u64) -> usize {
        let round = &mut self.round;
        let (begun, before) = *round.begun.get_or_insert((now, complete));
        if round.of == 0 {
            round.of = size.max(LEAST_MORSELS);
        }
        round.add(morsel);
        let is_train = round.morsels == PROBE && std::mem::take(&mut self.probes) && morsel.wanted;
        let spent = now - begun;
        let least = match self.tried {
            Some(_) => self.age.max(LEAST_ROUND as f64),
            None => LEAST_ROUND as f64,
        };
        if round.morsels < round.of || (spent as f64) < least {
            return if is_train { round.jump(size) } else { size };
        }
        let next = Round {
            begun: Some((now, complete)),
            ..Round::default()
        };
        let round = std::mem::replace(round, next);
        if round.settles {
            return size;
        }
        let rate = (complete - before) as f64 / spent as f64;
        let mean = round.mean();
        if let Some((whole, part)) = self.tried.take() {
            return self.judge(whole, part, mean, rate);
        }
        let is_first = self.best.is_infinite();
        self.age = round.squares / round.took.max(1.0);
        self.learn_duration(&round);
        if !round.wanted {
            return size;
        }
        if self.rates.len() == ROUNDS {
            self.rates.pop_front();
        }
        self.rates
            .push_back((rate, size.min(round.of) as f64 / mean));
        if self.connects && !round.is_connected() && mean <= ALONE * self.best {
            // The throughput is only that of so few in flight, as long as there is no queue.
            return (self.enough() as usize).max(size).max(2 * round.of);
        }
        // Whether the first had to connect or met a queue is not known yet.
        let may_try = !(is_first && self.connects);
        let part = if may_try { self.part(size, mean) } else { None };
        if let Some(part) = part {
            self.tried = Some((size, part));
            self.round.of = size;
            self.round.settles = true;
            return part;
        }
        (self.enough() as usize).max(size)
    }

    /// Learns the duration of a morsel that meets no queue.
    fn learn_duration(&mut self, round: &Round) {
        let mean = round.mean();
        if self.best.is_infinite() {
            self.connects = !round.is_connected();
            // Those that came first met least of a queue.
            self.best = if self.connects {
                round.shortest()
            } else {
                mean
            };
        } else if self.connects && round.is_connected() && mean < CONNECTED * self.best {
            (self.best, self.connects) = (mean, false);
        } else {
            self.best = self.best.min(mean);
        }
    }

    /// Returns the part of the number in flight that is to be tried now, if any.
    fn part(&mut self, size: usize, mean: f64) -> Option<usize> {
        let part = (size / PART).max(ALWAYS.0 as usize);
        let may_shrink = size > part.max(self.passes(ALWAYS) as usize);
        if !may_shrink || !self.connects && mean <= CROWDED * self.best {
            return None;
        }
        self.left -= 1;
        if self.left > 0 {
            return None;
        }
        Some(part)
    }

    /// Learns from the trial of a part of `whole`, and returns the number to have in flight.
    fn judge(&mut self, whole: usize, part: usize, mean: f64, rate: f64) -> usize {
        (self.best, self.connects) = (mean, false);
        // A part that has only its part of the throughput meets no queue, and nor does the whole.
        let enough = match rate * whole as f64 > FILLED * self.rate() * part as f64 {
            true => self.enough().min(whole as f64),
            false => GAIN * whole as f64,
        };
        // If the number changes by more than a quarter, another trial follows soon; else later each
        // time, since a trial costs throughput.
        self.hold = match enough / whole as f64 {
            0.75..=1.0 => (self.hold * 2).min(MOST_HOLD),
            _ => EARLY,
        };
        self.left = self.hold;
        enough as usize
    }

    /// Returns the throughput of the bottleneck: the best but one, since a burst may be counted in
    /// the round after its own.
    fn rate(&self) -> f64 {
        let (mut best, mut second) = (0.0, 0.0);
        for &(rate, _) in &self.rates {
            if rate > best {
                (best, second) = (rate, best);
            } else if rate > second {
                second = rate;
            }
        }
        if self.rates.len() < 3 { best } else { second }
    }

    /// Returns the number that passes in the time of a queue, within bounds.
    fn passes(&self, (least, most): (f64, f64)) -> f64 {
        let peak = self.rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
        (peak * QUEUE).clamp(least, most)
    }

    /// Returns the number in flight that fills the bottleneck, with something to spare.
    fn enough(&self) -> f64 {
        let gain = if self.connects { 1.0 } else { GAIN };
        let fills = gain * self.rate() * self.best;
        fills.max(self.passes(ALWAYS))
    }
}

#[cfg(test)]
mod tests;
