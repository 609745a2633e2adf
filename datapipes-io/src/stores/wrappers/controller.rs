//! Controller of the concurrency, as a pure function of events and their times.
//!
//! There are two rules; the lower of their limits applies:
//!
//! - **Overload**: no limit until the first answer that reports an overload; then additive
//!   increase, multiplicative decrease (Chiu and Jain, 1989). An overload halves the limit, and the
//!   controller stores the number of requests in flight at that time. Below this number, the limit
//!   recovers by an eighth in each round; above it, by one in sixteen rounds, as CUBIC does around
//!   the last loss (RFC 9438). Requests that began before a decrease are ignored.
//! - **Throughput**: as many requests as saturate the network, found by trial, as PCC does for
//!   packets (Dong and others, *PCC: Re-architecting Congestion Control for Consistent High
//!   Performance*, NSDI 2015): only the measured throughput counts. At first the concurrency
//!   doubles until doubling brings no more throughput twice in a row. Then, from time to time, half
//!   of it is tried, and kept (plus a fifth in reserve) if throughput does not fall; or half as
//!   much again is tried, and kept if throughput rises. If the throughput falls by itself, since
//!   the latency has grown, the concurrency doubles again. The result is between one and several
//!   times the concurrency that saturates the network.
//!
//! Rules based on latency (Vegas, BBR, gradients) need the latency without a queue. Here it would
//! have to be a mean, by Little's law. If a quarter of the connections is ten times slower, that
//! mean is known only after many requests, and a concurrency that follows a mean that is too low
//! lowers itself again and again.

use std::time::Duration;

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The request was answered, and its body was read.
    Done,
    /// The service was overloaded, or did not answer.
    Overload,
}

/// Measurement of a finished request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Time at which the request began.
    pub begun: Duration,
    /// Number of requests in flight when it had begun, itself included.
    pub level: usize,
    /// Time spent in the store, without the time that the consumer took in between.
    pub took: Duration,
    pub outcome: Outcome,
}

/// Controller of the number of requests in flight.
#[derive(Debug)]
pub(super) struct Controller {
    most: usize,
    overload: Overload,
    trials: Option<Trials>,
}

impl Controller {
    pub(super) fn fixed(most: usize) -> Self {
        Controller {
            most: most.max(1),
            overload: Overload {
                deaf: true,
                ..Overload::default()
            },
            trials: None,
        }
    }

    pub(super) fn on_overload() -> Self {
        Controller {
            most: usize::MAX,
            overload: Overload::default(),
            trials: None,
        }
    }

    pub(super) fn adaptive(most: usize) -> Self {
        Controller {
            most: most.max(1),
            overload: Overload::default(),
            trials: Some(Trials::default()),
        }
    }

    /// Returns the maximum number of requests in flight.
    pub(super) fn limit(&self) -> usize {
        let limit = self
            .trials
            .as_ref()
            .map_or(f64::INFINITY, |trials| trials.size)
            .min(self.overload.limit);
        (limit as usize).clamp(1, self.most)
    }

    /// Records the end of a request.
    pub(super) fn finished(&mut self, now: Duration, sample: Sample) {
        // The limit may have grown by an eighth since the request began.
        let used = sample.level as f64 * 1.2 + 1.0 >= self.limit() as f64;
        match sample.outcome {
            Outcome::Overload => self.overload.hit(now, sample),
            Outcome::Done => {
                if used {
                    self.overload.grow();
                }
                if let Some(trials) = &mut self.trials {
                    trials.done(now, sample, self.most as f64, self.overload.limit);
                }
            }
        }
    }
}

#[derive(Debug)]
struct Overload {
    deaf: bool,
    limit: f64,
    /// Maximum number of requests in flight that caused no overload, according to the last
    /// overload.
    ceiling: f64,
    /// Time at which the limit was lowered.
    lowered: Option<Duration>,
}

impl Default for Overload {
    fn default() -> Self {
        Overload {
            deaf: false,
            limit: f64::INFINITY,
            ceiling: f64::INFINITY,
            lowered: None,
        }
    }
}

impl Overload {
    fn hit(&mut self, now: Duration, sample: Sample) {
        if self.deaf || self.lowered.is_some_and(|lowered| sample.begun < lowered) {
            return;
        }
        self.ceiling = (sample.level as f64 - 1.0).max(1.0);
        self.limit = (self.limit.min(sample.level as f64) / 2.0).max(1.0);
        self.lowered = Some(now);
    }

    /// Raises the limit after a successful request.
    fn grow(&mut self) {
        self.limit += match self.limit < self.ceiling {
            true => (1.0f64 / 8.0).min(self.ceiling - self.limit),
            false => 1.0 / (16.0 * self.limit),
        };
    }
}

/// Initial and minimum concurrency.
const FIRST: f64 = 8.0;
const LEAST: f64 = 2.0;
/// Minimum number of requests in a measurement, which otherwise takes as many requests as the
/// concurrency: while it doubles, and later; and the maximum.
const SHORT: f64 = 16.0;
const LONG: f64 = 128.0;
const MOST: f64 = 512.0;
/// Factor of throughput that counts as an increase while the concurrency doubles.
const MORE: f64 = 1.25;
/// Factors of throughput at which a trial is accepted: of half the concurrency, and of half as much
/// again.
const KEPT: f64 = 0.97;
/// Factor by which the accepted concurrency exceeds the sufficient one, since measurements are
/// noisy.
const SPARE: f64 = 1.2;
const WON: f64 = 1.1;
/// Factor of throughput below which conditions have changed.
const LOST: f64 = 0.7;
/// Minimum time between trials; the minimum in measurements; the minimum in durations of the
/// longest request.
const ALONE: Duration = Duration::from_secs(10);
const ALONE_ROUNDS: f64 = 40.0;
const ALONE_LONGEST: f64 = 20.0;

#[derive(Debug)]
struct Trials {
    size: f64,
    phase: Phase,
    /// Requests per second at this concurrency; 0 if unknown.
    rate: f64,
    /// Time of the last trial, and true if it was of a larger concurrency.
    tried: Duration,
    larger: bool,
    /// Duration in seconds of the longest recent request.
    longest: f64,
    /// Number of requests, and end of the time, that still belong to the previous concurrency.
    settle: f64,
    until: Duration,
    round: Round,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Doubling: the concurrency at which it began, the best throughput, the concurrency of that
    /// throughput, and the number of doublings since then without a gain.
    Ramp {
        from: f64,
        best: f64,
        good: f64,
        idle: u32,
    },
    Steady,
    /// Trial of another concurrency.
    Try {
        from: f64,
    },
}

const RAMP: Phase = Phase::Ramp {
    from: 0.0,
    best: 0.0,
    good: FIRST,
    idle: 0,
};

#[derive(Clone, Copy, Debug, Default)]
struct Round {
    begun: Option<Duration>,
    done: f64,
    took: f64,
    longest: f64,
    peak: usize,
}

impl Default for Trials {
    fn default() -> Self {
        let (rate, tried, larger, longest, settle, until, round) = Default::default();
        Trials {
            size: FIRST,
            phase: RAMP,
            rate,
            tried,
            larger,
            longest,
            settle,
            until,
            round,
        }
    }
}

impl Trials {
    fn done(&mut self, now: Duration, sample: Sample, most: f64, overload: f64) {
        if self.settle >= 1.0 || now < self.until {
            self.settle -= 1.0;
            self.round.begun = Some(now);
            return;
        }
        let size = self.size.min(overload).min(most).floor();
        let ramp = matches!(self.phase, Phase::Ramp { .. });
        let round = &mut self.round;
        let begun = *round.begun.get_or_insert(sample.begun);
        let took = sample.took.as_secs_f64();
        round.done += 1.0;
        round.took += took;
        round.longest = round.longest.max(took);
        round.peak = round.peak.max(sample.level);
        let elapsed = now.saturating_sub(begun).as_secs_f64();
        let least = if ramp { SHORT } else { LONG };
        let long = ramp || elapsed >= self.longest;
        if round.done < size.clamp(least, MOST) || elapsed <= 0.0 || !long {
            return;
        }
        let round = std::mem::replace(
            &mut self.round,
            Round {
                begun: Some(now),
                ..Round::default()
            },
        );
        // A request that hangs is not waited for.
        self.longest = round.longest.min(16.0 * round.took / round.done);
        let before = self.size;
        self.next(
            now,
            round.done / elapsed,
            round.peak as f64 + 1.0 >= size,
            most,
        );
        if self.size != before {
            self.settle = before.max(self.size).min(overload).min(most);
            if !matches!(self.phase, Phase::Ramp { .. }) {
                self.until = now + Duration::from_secs_f64(self.longest);
            }
        }
    }

    /// Takes the next step after a measurement of `rate` requests per second.
    fn next(&mut self, now: Duration, rate: f64, used: bool, most: f64) {
        match self.phase {
            Phase::Ramp {
                from,
                best,
                good,
                idle,
            } => {
                let (best, good, idle) = if rate > best * MORE {
                    (rate, self.size, 0)
                } else {
                    (best, good, idle + 1)
                };
                // Before the concurrency was once saturated, one wrong measurement must not stop
                // the doubling.
                let enough = if good == from { 1 } else { 2 };
                if used && idle < enough && self.size < most {
                    self.phase = Phase::Ramp {
                        from,
                        best,
                        good,
                        idle,
                    };
                    self.size = (self.size * 2.0).min(most);
                } else if used && good == from {
                    // The latency is unchanged, and a lower concurrency may suffice.
                    (self.phase, self.rate, self.larger) = (Phase::Try { from }, best, false);
                    self.size = (from / 2.0).ceil().max(LEAST);
                } else {
                    if used {
                        self.size = (good * 2.0).min(most);
                    }
                    (self.phase, self.rate, self.tried) = (Phase::Steady, 0.0, now);
                }
            }
            Phase::Steady if self.rate == 0.0 => self.rate = rate,
            Phase::Steady if used && rate < LOST * self.rate => {
                // The loss is known only later: some of the requests belong to the previous
                // concurrency.
                self.phase = Phase::Ramp {
                    from: self.size,
                    best: 0.0,
                    good: self.size,
                    idle: 0,
                };
                self.settle = self.size.min(most);
            }
            Phase::Steady => {
                self.rate += (rate - self.rate) / 4.0;
                let alone =
                    (LONG.max(self.size) / rate * ALONE_ROUNDS).max(self.longest * ALONE_LONGEST);
                if now.saturating_sub(self.tried).as_secs_f64() > alone.max(ALONE.as_secs_f64()) {
                    let from = self.size;
                    self.larger = !self.larger && used && from < most;
                    let by = if self.larger { 1.5 } else { 0.5 };
                    self.phase = Phase::Try { from };
                    self.size = (from * by).ceil().clamp(LEAST, most.max(LEAST));
                }
            }
            Phase::Try { from } if self.larger => {
                (self.phase, self.tried) = (Phase::Steady, now);
                if used && rate >= WON * self.rate {
                    self.phase = Phase::Ramp {
                        from: 0.0,
                        best: rate,
                        good: self.size,
                        idle: 0,
                    };
                    self.size = (self.size * 2.0).min(most);
                } else {
                    self.size = from;
                }
            }
            Phase::Try { from } => {
                let enough = (self.size * SPARE).ceil();
                if rate >= KEPT * self.rate && enough < from {
                    // A lower concurrency may suffice, too.
                    self.phase = Phase::Try { from: enough };
                    self.size = (enough / 2.0).ceil().max(LEAST);
                } else {
                    (self.phase, self.size, self.tried) = (Phase::Steady, from, now);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
