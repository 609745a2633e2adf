//! How many pieces of a segment are in flight: it starts with what the first output needs, and then
//! follows what is measured.
//!
//! The window grows by one for every four pieces that come through, so that what is asked for is
//! never more than 1.25 times what arrives: "for every four consumed, five requested" (Versaci and
//! Busonera, *Hiding Latencies in Network-Based Image Loading for Deep Learning*, 2024). It grows
//! only while the consumer waits, and where pieces wait for something far away only while that
//! pays:
//!
//! - as long as a piece takes less than 1.5 times as long as it did at its best, on average over a
//!   round trip. By Little's law the queue in front of the bottleneck is then half as long as the
//!   link itself (the reasoning of TCP Vegas, Brakmo and Peterson 1995, with a longer queue, since
//!   pieces are of unequal size);
//! - beyond that only where a quarter more in flight brings a tenth more through, which is tried
//!   now and then, since the best time may be out of date: a link that got longer, objects that got
//!   larger.
//!
//! There is no clock in here; it is told the time.

/// Windows up to this are not questioned.
const ALWAYS: usize = 32;
/// So many times the best duration of a piece say that there is a queue.
const CROWDED: f64 = 1.5;
/// So many times the best duration of a piece say that this piece was slow by itself: a slow
/// connection is no queue.
const OUTLIER: f64 = 3.0;
/// Rounds without growth before a larger window is tried.
const HOLD: u32 = 16;
/// Longest pause between two trials, in rounds.
const MOST_HOLD: u32 = 256;

/// How many pieces may be in flight.
#[derive(Debug)]
pub(crate) struct Concurrency {
    size: usize,
    most: usize,
    /// SegmentLog through since the last growth.
    through: usize,
    /// The rule that asks whether growth pays, where there is one.
    rule: Option<Rule>,
}

#[derive(Debug)]
struct Rule {
    /// The best average of a round, in nanoseconds a piece.
    best: f64,
    phase: Phase,
    round: Round,
    /// Pause before the next trial, in rounds.
    hold: u32,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Growing,
    /// Full, for so many rounds more.
    Holding(u32),
    /// Growing to `until`, to be compared with the rate at size `from`.
    Trying {
        from: usize,
        until: usize,
        rate: f64,
    },
    /// Measuring the trial: a round to settle, then one that counts.
    Judging {
        from: usize,
        rate: f64,
        settled: bool,
    },
}

/// As many pieces as are in flight at once: about a round trip.
#[derive(Debug, Default)]
struct Round {
    begun: Option<u64>,
    pieces: usize,
    took: f64,
}

impl Concurrency {
    /// Always so many.
    pub(crate) fn fixed(size: usize) -> Self {
        Concurrency {
            size: size.max(1),
            most: size.max(1),
            through: 0,
            rule: None,
        }
    }

    /// From `start` up to `most`, for work of which more can always be in flight.
    pub(crate) fn growing(start: usize, most: usize) -> Self {
        Concurrency {
            size: start.clamp(1, most.max(1)),
            most: most.max(1),
            through: 0,
            rule: None,
        }
    }

    /// From `start` up to `most`, as long as it pays. `best` is the best duration of a piece that
    /// is known already, in nanoseconds: a start with many in flight makes a queue at once, and
    /// would take its time for the link's.
    pub(crate) fn following(start: usize, most: usize, best: Option<f64>) -> Self {
        // What was found before has grown as far as it should.
        let phase = if best.is_some() {
            Phase::Holding(HOLD)
        } else {
            Phase::Growing
        };
        let best = best.unwrap_or(f64::INFINITY);
        let rule = Rule {
            best,
            phase,
            round: Round::default(),
            hold: HOLD,
        };
        Concurrency {
            rule: Some(rule),
            ..Concurrency::growing(start, most)
        }
    }

    /// How many may be in flight now.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// How many have proved worth it: the size, without what is only being tried.
    pub(crate) fn proven(&self) -> usize {
        match self.rule.as_ref().map(|rule| rule.phase) {
            Some(Phase::Trying { from, .. } | Phase::Judging { from, .. }) => from,
            _ => self.size,
        }
    }

    /// The best duration of a piece so far, in nanoseconds, if that is followed and known.
    pub(crate) fn best(&self) -> Option<f64> {
        self.rule
            .as_ref()
            .map(|rule| rule.best)
            .filter(|best| best.is_finite())
    }

    /// A piece is through, at the time `now`, and took so long, both in nanoseconds. `wanted` says
    /// whether the consumer waited for it.
    pub(crate) fn through(&mut self, took: f64, now: u64, wanted: bool) {
        let may_grow = match &mut self.rule {
            None => true,
            Some(rule) => {
                rule.learn(&mut self.size, self.most, took, now);
                match rule.phase {
                    Phase::Growing => true,
                    Phase::Trying { until, .. } => self.size < until,
                    Phase::Holding(_) | Phase::Judging { .. } => self.size < ALWAYS,
                }
            }
        };
        if !may_grow || !wanted || self.size >= self.most {
            return;
        }
        self.through += 1;
        if self.through >= 4 || self.size == 1 {
            self.through = 0;
            self.size += 1;
        }
    }
}

impl Rule {
    fn learn(&mut self, size: &mut usize, most: usize, took: f64, now: u64) {
        let begun = *self.round.begun.get_or_insert(now);
        self.round.pieces += 1;
        self.round.took += took.min(OUTLIER * self.best);
        if self.round.pieces < (*size).max(4) {
            return;
        }
        let round = std::mem::replace(
            &mut self.round,
            Round {
                begun: Some(now),
                ..Round::default()
            },
        );
        let mean = round.took / round.pieces as f64;
        let rate = round.pieces as f64 / (now - begun).max(1) as f64;
        self.best = self.best.min(mean);
        let larger = (*size + (*size / 4).max(1)).min(most);
        let crowded = mean > CROWDED * self.best;
        self.phase = match self.phase {
            Phase::Growing if !crowded => Phase::Growing,
            Phase::Growing => Phase::Holding(self.hold),
            Phase::Holding(_) if !crowded => {
                self.hold = HOLD;
                Phase::Growing
            }
            Phase::Holding(0) => Phase::Trying {
                from: *size,
                until: larger,
                rate,
            },
            Phase::Holding(rounds) => Phase::Holding(rounds - 1),
            Phase::Trying { from, until, rate } if *size >= until => Phase::Judging {
                from,
                rate,
                settled: false,
            },
            // Nobody wants more; no need to know.
            Phase::Trying { from, .. } if *size == from => Phase::Holding(self.hold),
            trying @ Phase::Trying { .. } => trying,
            Phase::Judging {
                from,
                rate,
                settled: false,
            } => Phase::Judging {
                from,
                rate,
                settled: true,
            },
            Phase::Judging { rate: before, .. } if rate > 1.1 * before => {
                self.hold = HOLD;
                Phase::Trying {
                    from: *size,
                    until: larger,
                    rate,
                }
            }
            Phase::Judging { from, .. } => {
                *size = from;
                self.hold = (self.hold * 2).min(MOST_HOLD);
                Phase::Holding(self.hold)
            }
        };
    }
}

#[cfg(test)]
mod tests;
