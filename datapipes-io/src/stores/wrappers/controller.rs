//! How many requests to have in flight. Pure: it is told what happened and when.
//!
//! Two rules, of which the lower one holds:
//!
//! - **Overload**: no limit until the first answer that says so; then additive increase,
//!   multiplicative decrease (Chiu and Jain, 1989). An overload halves the limit, and remembers at
//!   how many requests in flight it came. Below that, the limit comes back by an eighth a round;
//!   above, it feels its way by one in sixteen rounds, as CUBIC does around the last loss (RFC
//!   9438). Requests that began before a decrease say nothing about it.
//! - **Window**: as many as fill the line, found by trying, as PCC does for packets (Dong and
//!   others, *PCC: Re-architecting Congestion Control for Consistent High Performance*, NSDI 2015):
//!   what counts is the throughput that was seen, not what it is thought to mean. At first the
//!   window doubles until that brings no more throughput twice in a row. Then, from time to time,
//!   half of it is tried, and kept (with a fifth to spare) if nothing is lost; or half as much
//!   again, and kept if something is won. Where the throughput falls by itself, since the latency
//!   has grown, the window doubles again. So it ends between once and some times what the line
//!   holds.
//!
//! Rules that reckon with latency (Vegas, BBR, gradients) need the latency without a queue. Here it
//! would have to be a mean, by Little's law, and where a quarter of the connections is ten times
//! slower, that is known only after many requests; a window that follows a mean that is too low
//! lowers itself again and again.

use std::time::Duration;

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was answered, and its body read.
    Done,
    /// The service had too much to do, or did not answer.
    Overload,
}

/// A request that ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// When it began.
    pub begun: Duration,
    /// How many were in flight when it had begun, itself included.
    pub level: usize,
    /// How long it took the store, without what the consumer did in between.
    pub took: Duration,
    pub outcome: Outcome,
}

/// How many requests to have in flight.
#[derive(Debug)]
pub(super) struct Controller {
    most: usize,
    overload: Overload,
    window: Option<Window>,
}

impl Controller {
    pub(super) fn fixed(most: usize) -> Self {
        Controller {
            most: most.max(1),
            overload: Overload {
                deaf: true,
                ..Overload::default()
            },
            window: None,
        }
    }

    pub(super) fn on_overload() -> Self {
        Controller {
            most: usize::MAX,
            overload: Overload::default(),
            window: None,
        }
    }

    pub(super) fn adaptive(most: usize) -> Self {
        Controller {
            most: most.max(1),
            overload: Overload::default(),
            window: Some(Window::default()),
        }
    }

    /// How many there may be.
    pub(super) fn limit(&self) -> usize {
        let limit = self
            .window
            .as_ref()
            .map_or(f64::INFINITY, |window| window.size)
            .min(self.overload.limit);
        (limit as usize).clamp(1, self.most)
    }

    /// A request has ended.
    pub(super) fn finished(&mut self, now: Duration, sample: Sample) {
        // Since it began, the limit may have grown by an eighth.
        let used = sample.level as f64 * 1.2 + 1.0 >= self.limit() as f64;
        match sample.outcome {
            Outcome::Overload => self.overload.hit(now, sample),
            Outcome::Done => {
                if used {
                    self.overload.grow();
                }
                if let Some(window) = &mut self.window {
                    window.done(now, sample, self.most as f64, self.overload.limit);
                }
            }
        }
    }
}

#[derive(Debug)]
struct Overload {
    deaf: bool,
    limit: f64,
    /// The most that were in flight without harm, as far as the last overload tells.
    ceiling: f64,
    /// When the limit was lowered.
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

    /// One of the requests of a round has ended well.
    fn grow(&mut self) {
        self.limit += match self.limit < self.ceiling {
            true => (1.0f64 / 8.0).min(self.ceiling - self.limit),
            false => 1.0 / (16.0 * self.limit),
        };
    }
}

/// The window at first, and the least one.
const FIRST: f64 = 8.0;
const LEAST: f64 = 2.0;
/// A measurement takes as many requests as the window has, but so many at least: while it doubles,
/// and later; and no more than this.
const SHORT: f64 = 16.0;
const LONG: f64 = 128.0;
const MOST: f64 = 512.0;
/// While the window doubles, this is more throughput.
const MORE: f64 = 1.25;
/// Half the window is kept if so much of the throughput is left; half as much again, if there is so
/// much more of it.
const KEPT: f64 = 0.97;
/// What is kept is so many times what was enough, since measurements err.
const SPARE: f64 = 1.2;
const WON: f64 = 1.1;
/// Below so much of it, something has changed.
const LOST: f64 = 0.7;
/// How long the window is left alone: at least; in measurements; in times of the longest request.
const ALONE: Duration = Duration::from_secs(10);
const ALONE_ROUNDS: f64 = 40.0;
const ALONE_LONGEST: f64 = 20.0;

#[derive(Debug)]
struct Window {
    size: f64,
    phase: Phase,
    /// Requests a second with this window; 0 if not known.
    rate: f64,
    /// When it was tried last whether another window is better, and whether that was a larger one.
    tried: Duration,
    larger: bool,
    /// Seconds of the longest request lately.
    longest: f64,
    /// So many requests, and until then, belong to what was before.
    settle: f64,
    until: Duration,
    round: Round,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Doubles: from which window on, the best throughput, with which window, and how often
    /// doubling brought nothing since.
    Ramp {
        from: f64,
        best: f64,
        good: f64,
        idle: u32,
    },
    Steady,
    /// Tries another window than this one.
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

impl Default for Window {
    fn default() -> Self {
        let (rate, tried, larger, longest, settle, until, round) = Default::default();
        Window {
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

impl Window {
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
        // One that hangs is not waited for.
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

    /// After a measurement of so many requests a second.
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
                // Before it was full once, a measurement that errs would stop it too early.
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
                    // It was not the latency that changed, and less may be enough.
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
                // How much is lost is known only later: part of the requests were from before.
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
                    // Perhaps less is enough, too.
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
