//! Number of morsels of a segment in flight. It starts with a few. If the data turns out not to be
//! near, it grows to what the first output needs. After that it follows measurements. A number that the
//! user gives is fixed.
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
//!   before, a third of the number is therefore tried, for as long as slow morsels take, and the mean
//!   of that trial is the duration. This also notices a changed distance or size, and reduces a number
//!   that was too large.
//!
//! However short the link is, what passes in [`QUEUE`] is allowed.
//!
//! The first requests are few, since many to a server nearby make a queue, and the time of the queue
//! would be taken for the time of the link. If none completes within [`PROBE_TIME`], the data is not near,
//! and the rest follows at once: a distant server costs these 8 ms, and no round trip. After twice
//! as long the number doubles, and again, so that it is larger the longer the round trip is. Where a
//! listing tells the sizes of objects, it goes on for longer, up to [`EARLY`] bytes: small objects fill no
//! link, and a few large ones do.
//! Morsels that are polled several times meanwhile are not distant, but long: they have more time. So do
//! those that keep the threads busy: more of them would come no sooner.
//! In the first round each morsel that met no queue makes room for one more, up to twice the number,
//! as in TCP's slow start, and near by up to what stays in the caches. The first answers also show how
//! large the objects are, so that large ones get fewer.
//!
//! If the objects turn out to be large, so that fewer fill the link, those in flight already make a queue,
//! and their durations are not measured. Half of the time until the first answers is taken for the
//! duration then, until a round or a trial corrects it. The next epoch learns that it is a guess, and
//! tries a part soon.
//!
//! A morsel that begins when more are in flight than ever before may have to connect first, so its
//! duration does not count after the first round.
//!
//! The code reads no clock; the caller passes the time. The limit of one store, over all its
//! readers, is `Limit` of `datapipes-io`.

use std::collections::VecDeque;
use std::time::Duration;

/// Maximum number in flight at the start, until the distance is known.
pub(crate) const PROBE: usize = 8;
/// Time after which the data is not near, if none of the first morsels has completed.
const PROBE_TIME: Duration = Duration::from_millis(8);
/// Time after which the number is raised no more before the first answer, since nobody knows yet what the
/// link can do. While answers arrive, raising it is put off.
const LAST: Duration = Duration::from_millis(64);
/// The same, if the sizes of objects are known.
const LAST_LISTED: Duration = Duration::from_millis(256);
/// Bytes that are in flight at most before the first answer, where the sizes of objects are known: as many
/// as fill 100 MB/s over 300 ms.
const EARLY: usize = 32 << 20;
/// Number of objects that may be in flight then, however large they are.
const LEAST_EARLY: usize = 32;
/// Number of polls without output that a morsel may need since the last look: to connect, if it has begun
/// since, and if it is an earlier one. More of them, on average, show that answers arrive: a large object
/// comes in many pieces.
const POLLS: (u64, u64) = (6, 2);
/// Divisor of the time since the last look: while threads, all together, spend more than that part of it
/// in the first morsels, no more begin. What arrives so fast is near, however long it takes.
const BUSY: u32 = 4;
/// Bytes a nanosecond, 2 GB/s, of a fast link. After the first answers, which show how large and how far
/// the objects are, no more are in flight than fill such a link.
const FAST_LINK: f64 = 2.0;
/// Bytes in flight up to which the first round goes on growing where the data is near: they stay in the
/// caches.
const CACHED: usize = 4 << 20;
/// Number in flight, in multiples of what fills the bottleneck.
const GAIN: f64 = 1.5;
/// Time, in nanoseconds, for which a request may wait in a queue: so short a queue costs neither memory
/// nor anybody else's time, keeps a server busy while its answers are read, and lets both sides do the
/// work of many requests together.
const QUEUE: f64 = 4e6;
/// Number in flight that is always allowed after the first round: what passes in that time, within
/// these bounds. Few large objects in flight stay in the caches.
const ALWAYS: (f64, f64) = (4.0, 64.0);
/// Number in flight besides what fills the bottleneck: the same, within these bounds. Two that share a
/// bottleneck come closer to each other by it.
const SPARE: (f64, f64) = (2.0, 8.0);
/// Multiple of the best duration of a morsel that indicates a queue.
const CROWDED: f64 = 1.3;
/// Multiple of the mean duration of the first morsels that indicates a queue in the first round, once it
/// has more than twice as many in flight as it began with.
const CROWDED_EARLY: f64 = 2.0;
/// Maximum factor by which the number grows in one round.
const MOST_GROWTH: f64 = 4.0;
/// Number of rounds whose throughput counts.
const ROUNDS: usize = 8;
/// Least duration of a round that measures, in nanoseconds: completions come in bursts, and those
/// that waited for a slow one are taken at once.
const LEAST_ROUND: u64 = 16_000_000;
/// Duration of a morsel below which a trial costs little, in nanoseconds.
const SHORT: f64 = 32e6;
/// Least number of morsels in a round, whose durations differ.
const LEAST_MORSELS: usize = 8;
/// Part of the number in flight that is tried to see a morsel that meets no queue.
const PART: usize = 3;
/// Least number that is tried: with one, the link is idle between a morsel and the next.
const LEAST_PART: usize = 2;
/// Throughput of a part, in multiples of its share, that shows that the whole fills the bottleneck.
const FILLED: f64 = 1.2;
/// Number of crowded rounds between two such trials, at first and at most; also before the first one
/// of an epoch that begins with what an earlier one found.
const HOLD: u32 = 32;
const MOST_HOLD: u32 = 256;

/// Number of morsels that may be in flight.
#[derive(Debug)]
pub(crate) struct Concurrency {
    size: usize,
    most: usize,
    /// Size once the data is known not to be near.
    far_size: usize,
    /// Time at which more begin; `None` once a morsel has completed.
    due: Option<Duration>,
    /// Number in flight when that time came last.
    looked_at: usize,
    /// Number of morsels completed since the last growth.
    since_growth: usize,
    /// Measurements that the number follows, if it follows any.
    measured: Option<Measured>,
}

#[derive(Debug)]
struct Measured {
    /// Duration of a morsel that meets no queue, in nanoseconds, on average over a round.
    best: f64,
    /// True if that is a guess by the first answers, which no round and no trial has confirmed.
    is_guess: bool,
    /// Time after which answers had begun to arrive, in nanoseconds, or infinity if the first was complete
    /// before that was seen, or nothing more came. No round trip is longer.
    answered: f64,
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

/// The end of a morsel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ended {
    /// Duration, in nanoseconds.
    pub took: f64,
    /// Number of morsels that have ended so far: those that wait for an earlier one, too.
    pub complete: usize,
    /// Time, in nanoseconds.
    pub now: u64,
    /// True if the consumer waited for the morsel.
    pub wanted: bool,
    /// True if more were in flight at its begin than ever before: it may have had to connect.
    pub connects: bool,
    /// Bytes of its output.
    pub bytes: usize,
}

/// A round of as many morsels as were in flight at its begin: about a round trip.
#[derive(Debug, Default)]
struct Round {
    /// Time, and number of morsels that had ended.
    begun: Option<(u64, usize)>,
    of: usize,
    morsels: usize,
    /// Number of those whose durations count, with the sum of these, and of their squares.
    counted: usize,
    took: f64,
    squares: f64,
    /// Bytes of the output of all.
    bytes: usize,
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
            looked_at: 0,
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
            best: best.unwrap_or(f64::INFINITY),
            is_guess: false,
            answered: f64::INFINITY,
            rates: VecDeque::with_capacity(ROUNDS),
            round: Round::default(),
            age: 0.0,
            tried: None,
            left: best.map_or(1, |_| HOLD),
            hold: HOLD,
        };
        Concurrency {
            measured: Some(measured),
            far_size: start,
            due: is_probing.then_some(PROBE_TIME),
            ..Concurrency::growing(if is_probing { PROBE } else { start }, most)
        }
    }

    /// Takes the duration that it began with for a guess, so that a part is tried soon.
    pub(crate) fn guessed(mut self) -> Self {
        if let Some(measured) = &mut self.measured {
            (measured.is_guess, measured.left) = (true, 1);
        }
        self
    }

    /// Returns true if the duration of a morsel that meets no queue is a guess so far.
    pub(crate) fn is_guess(&self) -> bool {
        self.measured
            .as_ref()
            .is_some_and(|measured| measured.is_guess)
    }

    /// Returns the number of morsels that may be in flight now.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns the time, from the begin of the first morsels, at which [`open`](Self::open) is due
    /// unless one has completed.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.due
    }

    /// Records that no morsel has completed by the deadline, how often those in flight were polled since
    /// the last one, how long these polls took, and how many bytes a morsel has, if that is known.
    pub(crate) fn open(&mut self, polls: u64, busy: Duration, bytes: Option<usize>) {
        let Some(due) = self.due else {
            return;
        };
        let interval = if due > PROBE_TIME { due / 2 } else { due };
        let (earlier, now) = (self.looked_at as u64, self.size as u64);
        self.looked_at = self.size;
        self.due = Some(due * 2);
        let arrives = polls > POLLS.0 * (now - earlier) + POLLS.1 * earlier;
        if let Some(measured) = &mut self.measured {
            measured.answered = match arrives || busy > interval / 2 {
                true => measured.answered.min(due.as_nanos() as f64),
                // After that, nothing comes: what kept the threads busy was the client's own start.
                false if polls < now => f64::INFINITY,
                false => measured.answered,
            };
        }
        if arrives || busy > interval / BUSY {
            return;
        }
        let (last, most) = match bytes {
            None => (LAST, usize::MAX),
            Some(bytes) => (LAST_LISTED, (EARLY / bytes.max(1)).max(LEAST_EARLY)),
        };
        let times = due.min(last / 2).as_millis() / PROBE_TIME.as_millis();
        let size = (times as usize * self.far_size).min(most);
        self.size = size.max(self.size).min(self.most);
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

    /// Records the end of a morsel.
    pub(crate) fn completed(&mut self, ended: Ended) {
        self.due = None;
        if let Some(measured) = &mut self.measured {
            self.size = measured.learn(self.size, ended).min(self.most);
            return;
        }
        if !ended.wanted || self.size >= self.most {
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
    /// Returns how many of its morsels fill a link of [`FAST_LINK`] whose round trip takes `longest` at
    /// most, and [`usize::MAX`] if they have no bytes.
    fn fills(&self, longest: f64) -> usize {
        let took = self.took / self.counted as f64;
        (FAST_LINK * took.min(longest) * self.morsels as f64 / self.bytes as f64) as usize
    }

    /// Returns how many of its morsels stay in the caches.
    fn cached(&self) -> usize {
        (CACHED * self.morsels / self.bytes.max(1)).min(ALWAYS.1 as usize)
    }
}

impl Measured {
    /// Learns from a morsel, and returns the number to have in flight, which is `size` now.
    fn learn(&mut self, size: usize, ended: Ended) -> usize {
        let Ended {
            took,
            complete,
            now,
            ..
        } = ended;
        let is_first = self.best.is_infinite();
        let round = &mut self.round;
        let (begun, before) = *round.begun.get_or_insert((now, complete));
        if round.of == 0 {
            round.of = size.max(LEAST_MORSELS);
        }
        round.morsels += 1;
        round.bytes += ended.bytes;
        round.wanted |= ended.wanted;
        // The mean of the first round stays that of its first morsels: later ones wait for each other.
        let counts = match is_first {
            true => size <= 2 * round.of,
            false => !ended.connects,
        };
        if counts {
            round.counted += 1;
            round.took += took;
            round.squares += took * took;
        }
        let (spent, mean) = (now - begun, round.took / round.counted as f64);
        let is_long = match (self.tried, round.settles) {
            (Some(_), true) => spent as f64 >= self.age,
            (Some(_), false) => spent as f64 >= self.age.max(LEAST_ROUND as f64),
            (None, _) => spent >= LEAST_ROUND,
        };
        if round.morsels < round.of || !is_long {
            if !is_first || round.settles {
                return size;
            }
            if round.of > PROBE && round.morsels == LEAST_MORSELS {
                return self.fit(size);
            }
            let (most, crowded) = match size < 2 * round.of {
                true => (usize::MAX, CROWDED),
                false => (round.cached(), CROWDED_EARLY),
            };
            let most = round.fills(self.answered).min(most);
            let grows = ended.wanted && took < crowded * mean && size < most;
            return size + usize::from(grows);
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
        if let Some((whole, part)) = self.tried.take() {
            return match round.wanted && round.counted > 0 {
                true => self.judge(whole, part, mean, rate),
                // A consumer that does not wait hides the throughput, and connecting the duration.
                false => whole,
            };
        }
        if round.counted == 0 {
            return size;
        }
        self.age = round.squares / round.took.max(1.0);
        self.is_guess &= mean >= self.best;
        // One low mean among many may be an accident.
        self.best = match mean < self.best {
            true if self.rates.len() < ROUNDS || mean < self.best / 2.0 => mean,
            true => self.best - (self.best - mean) / 4.0,
            false => self.best,
        };
        if !round.wanted {
            return size;
        }
        // More may have been in flight than the round began with.
        self.record(rate, (size.min(round.of) as f64 / mean).max(rate));
        // A trial near by costs little, and what is known may be the time of a queue at first.
        let is_early = self.left == 1 && mean < SHORT && size <= 2 * PROBE;
        let part = (size / PART).max(LEAST_PART);
        let may_shrink = size > part.max(self.passes(ALWAYS) as usize);
        if may_shrink && (is_early || mean > CROWDED * self.best) {
            self.left -= 1;
            if self.left == 0 {
                self.left = self.hold;
                self.tried = Some((size, part));
                self.round.of = size;
                self.round.settles = true;
                return part;
            }
        }
        (self.enough().min(MOST_GROWTH * round.of as f64) as usize).max(size)
    }

    /// Returns the number to have in flight after the first answers, by their size and distance.
    fn fit(&mut self, size: usize) -> usize {
        let most = self.round.fills(self.answered).max(PROBE);
        if size <= most {
            return size;
        }
        // The requests in flight, and the first ones after them, are slowed by their queue, and not
        // measured. The first answers had to connect, so a round trip is about half of the time until they
        // came: a trial corrects a guess that is too short, but never one that is too long.
        (self.best, self.is_guess) = (self.answered / 2.0, self.answered.is_finite());
        self.round = Round {
            of: size + most,
            settles: true,
            ..Round::default()
        };
        most
    }

    /// Records the throughput of a round: as a whole, and while morsels were in flight.
    fn record(&mut self, whole: f64, busy: f64) {
        if self.rates.len() == ROUNDS {
            self.rates.pop_front();
        }
        self.rates.push_back((whole, busy));
    }

    /// Learns from the trial of a part of `whole`, and returns the number to have in flight.
    fn judge(&mut self, whole: usize, part: usize, mean: f64, rate: f64) -> usize {
        (self.best, self.is_guess) = (mean, false);
        // A part that has only its part of the throughput meets no queue, and nor does the whole.
        let fills = rate * whole as f64 > FILLED * self.rate() * part as f64;
        // Earlier rounds may have a lower throughput, since the number was still growing.
        self.record(rate, part as f64 / mean);
        let enough = match fills {
            true => self.enough().min(whole as f64),
            false => GAIN * whole as f64 + self.passes(SPARE),
        };
        // If the number changes by more than a quarter, another trial follows soon; later each time
        // that the number was too large again, since a trial costs throughput.
        self.hold = match enough / whole as f64 {
            0.75..=1.0 => (self.hold * 2).clamp(HOLD, MOST_HOLD),
            _ if self.hold >= HOLD => 1,
            change if change > 1.0 => self.hold,
            _ => (self.hold * 2).min(HOLD / 2),
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
        let fills = GAIN * self.rate() * self.best;
        (fills + self.passes(SPARE)).max(self.passes(ALWAYS))
    }
}

#[cfg(test)]
mod tests;
