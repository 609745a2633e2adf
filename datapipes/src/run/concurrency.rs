//! Number of morsels of a segment in flight. The number starts with a few, continues with what the
//! first output needs if the data is not near, and then follows measurements.
//!
//! The concurrency grows by one for every four morsels that complete, so that the requests never
//! exceed 1.25 times the arrivals: "for every four consumed, five requested" (Versaci and Busonera,
//! *Hiding Latencies in Network-Based Image Loading for Deep Learning*, 2024). It grows only while
//! the consumer waits. If morsels wait for a remote system, it also grows only while that pays:
//!
//! - as long as a morsel takes less than 1.5 times its best duration, on average over a round trip.
//!   By Little's law the queue before the bottleneck is then half as long as the link itself (the
//!   reasoning of TCP Vegas, Brakmo and Peterson 1995, with a longer queue, since morsels are of
//!   unequal size);
//! - beyond that only if a quarter more in flight raises the throughput by a tenth. This is tried
//!   from time to time, since the best duration may be out of date: the latency of the link or the
//!   size of the objects may have grown.
//!
//! The first requests are few, since many to a server nearby make a queue, and the time of the queue
//! would be taken for the time of the link. If none completes within [`NEAR`], the data is not near,
//! and the rest follows at once: a distant server costs that time, and no round trip.
//!
//! The code reads no clock; the caller passes the time. The limit of one store, over all its
//! readers, is `Limit` of `datapipes-io`.

use std::time::Duration;

/// Greatest number in flight at the start, until the distance is known.
pub(crate) const PROBE: usize = 16;
/// Duration of a morsel below which the data is near.
pub(crate) const NEAR: Duration = Duration::from_millis(8);
/// Greatest concurrency that may always be reached.
const ALWAYS: usize = 32;
/// Multiple of the best duration of a morsel that indicates a queue.
const CROWDED: f64 = 1.5;
/// Multiple of the best duration of a morsel that marks the morsel as slow by itself: a slow
/// connection is not a queue.
const OUTLIER: f64 = 3.0;
/// Number of rounds without growth before a larger concurrency is tried.
const HOLD: u32 = 16;
/// Longest pause between two trials, in rounds.
const MOST_HOLD: u32 = 256;

/// Number of morsels that may be in flight.
#[derive(Debug)]
pub(crate) struct Concurrency {
    size: usize,
    most: usize,
    /// Size once the data is known not to be near; `None` if that is known.
    far_size: Option<usize>,
    /// Number of morsels completed since the last growth.
    through: usize,
    /// Rule that limits growth, if there is one.
    rule: Option<GrowthRule>,
}

#[derive(Debug)]
struct GrowthRule {
    /// Best average of a round, in nanoseconds per morsel.
    best: f64,
    phase: GrowthPhase,
    round: MorselRound,
    /// Pause before the next trial, in rounds.
    hold: u32,
}

#[derive(Debug, Clone, Copy)]
enum GrowthPhase {
    Growing,
    /// Not growing for this many more rounds.
    Holding(u32),
    /// Growing to `until`, to be compared with the rate at size `from`.
    Trying {
        from: usize,
        until: usize,
        rate: f64,
    },
    /// Measuring the trial: one round to settle, then one round that counts.
    Judging {
        from: usize,
        rate: f64,
        settled: bool,
    },
}

/// A round of as many morsels as are in flight at once: about a round trip.
#[derive(Debug, Default)]
struct MorselRound {
    begun: Option<u64>,
    pieces: usize,
    took: f64,
}

impl Concurrency {
    /// Makes a concurrency that stays at `size`.
    pub(crate) fn fixed(size: usize) -> Self {
        Concurrency {
            size: size.max(1),
            most: size.max(1),
            far_size: None,
            through: 0,
            rule: None,
        }
    }

    /// Makes a concurrency that grows from `start` to `most`, for work that can always have more in
    /// flight.
    pub(crate) fn growing(start: usize, most: usize) -> Self {
        Concurrency {
            size: start.clamp(1, most.max(1)),
            most: most.max(1),
            far_size: None,
            through: 0,
            rule: None,
        }
    }

    /// Makes a concurrency that grows from `start` to `most` as long as that pays. `best` is the
    /// best duration of a morsel, in nanoseconds, if known; if not, it begins with few, until it is
    /// known how far the data is.
    pub(crate) fn following(start: usize, most: usize, best: Option<f64>) -> Self {
        // A concurrency found in an earlier epoch is large enough already.
        let phase = if best.is_some() {
            GrowthPhase::Holding(HOLD)
        } else {
            GrowthPhase::Growing
        };
        let far_size = Some(start.min(most)).filter(|&start| best.is_none() && start > PROBE);
        let best = best.unwrap_or(f64::INFINITY);
        let rule = GrowthRule {
            best,
            phase,
            round: MorselRound::default(),
            hold: HOLD,
        };
        Concurrency {
            rule: Some(rule),
            far_size,
            ..Concurrency::growing(far_size.map_or(start, |_| PROBE), most)
        }
    }

    /// Returns the number of morsels that may be in flight now.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns true if it is not known yet how far the data is.
    pub(crate) fn is_probing(&self) -> bool {
        self.far_size.is_some()
    }

    /// Records that the data is not near: no morsel has completed within [`NEAR`].
    pub(crate) fn open(&mut self) {
        if let Some(size) = self.far_size.take() {
            self.size = self.size.max(size);
        }
    }

    /// Returns the concurrency that has paid: the size, without a trial that is not yet decided.
    pub(crate) fn proven(&self) -> usize {
        match self.rule.as_ref().map(|rule| rule.phase) {
            Some(GrowthPhase::Trying { from, .. } | GrowthPhase::Judging { from, .. }) => from,
            _ => self.size,
        }
    }

    /// Returns the best duration of a morsel so far, in nanoseconds, if it is tracked and known.
    pub(crate) fn best(&self) -> Option<f64> {
        self.rule
            .as_ref()
            .map(|rule| rule.best)
            .filter(|best| best.is_finite())
    }

    /// Records the end of a morsel at the time `now` after a duration of `took`, both in
    /// nanoseconds. `wanted` is true if the consumer waited for the morsel.
    pub(crate) fn through(&mut self, took: f64, now: u64, wanted: bool) {
        if took > NEAR.as_nanos() as f64 {
            self.open();
        }
        self.far_size = None;
        let may_grow = match &mut self.rule {
            None => true,
            Some(rule) => {
                rule.learn(&mut self.size, self.most, took, now);
                match rule.phase {
                    GrowthPhase::Growing => true,
                    GrowthPhase::Trying { until, .. } => self.size < until,
                    GrowthPhase::Holding(_) | GrowthPhase::Judging { .. } => self.size < ALWAYS,
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

impl GrowthRule {
    fn learn(&mut self, size: &mut usize, most: usize, took: f64, now: u64) {
        let begun = *self.round.begun.get_or_insert(now);
        self.round.pieces += 1;
        self.round.took += took.min(OUTLIER * self.best);
        if self.round.pieces < (*size).max(4) {
            return;
        }
        let round = std::mem::replace(
            &mut self.round,
            MorselRound {
                begun: Some(now),
                ..MorselRound::default()
            },
        );
        let mean = round.took / round.pieces as f64;
        let rate = round.pieces as f64 / (now - begun).max(1) as f64;
        self.best = self.best.min(mean);
        let larger = (*size + (*size / 4).max(1)).min(most);
        let crowded = mean > CROWDED * self.best;
        self.phase = match self.phase {
            GrowthPhase::Growing if !crowded => GrowthPhase::Growing,
            GrowthPhase::Growing => GrowthPhase::Holding(self.hold),
            GrowthPhase::Holding(_) if !crowded => {
                self.hold = HOLD;
                GrowthPhase::Growing
            }
            GrowthPhase::Holding(0) => GrowthPhase::Trying {
                from: *size,
                until: larger,
                rate,
            },
            GrowthPhase::Holding(rounds) => GrowthPhase::Holding(rounds - 1),
            GrowthPhase::Trying { from, until, rate } if *size >= until => GrowthPhase::Judging {
                from,
                rate,
                settled: false,
            },
            // The consumer did not wait, so the trial is pointless.
            GrowthPhase::Trying { from, .. } if *size == from => GrowthPhase::Holding(self.hold),
            trying @ GrowthPhase::Trying { .. } => trying,
            GrowthPhase::Judging {
                from,
                rate,
                settled: false,
            } => GrowthPhase::Judging {
                from,
                rate,
                settled: true,
            },
            GrowthPhase::Judging { rate: before, .. } if rate > 1.1 * before => {
                self.hold = HOLD;
                GrowthPhase::Trying {
                    from: *size,
                    until: larger,
                    rate,
                }
            }
            GrowthPhase::Judging { from, .. } => {
                *size = from;
                self.hold = (self.hold * 2).min(MOST_HOLD);
                GrowthPhase::Holding(self.hold)
            }
        };
    }
}

#[cfg(test)]
mod tests;
