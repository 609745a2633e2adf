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
mod tests {
    use std::collections::BinaryHeap;

    use super::*;

    const MS: u64 = 1_000_000;

    /// A link: a round trip, and a bottleneck that serves one piece after another.
    struct Link {
        rtt: u64,
        /// Nanoseconds that the bottleneck needs for a piece.
        each: u64,
        free: u64,
    }

    impl Link {
        fn ask(&mut self, now: u64) -> u64 {
            let begin = self.free.max(now + self.rtt / 2);
            self.free = begin + self.each;
            self.free + self.rtt / 2
        }
    }

    /// Runs until `end`; the rate of the last quarter, in pieces a second, and the most that were
    /// in flight.
    fn run(window: &mut Concurrency, link: &mut Link, from: u64, end: u64) -> (f64, usize) {
        let mut flying = BinaryHeap::new();
        let (mut now, mut late, mut most) = (from, 0, 0);
        while now < end {
            while flying.len() < window.size() {
                flying.push(std::cmp::Reverse((link.ask(now), now)));
            }
            most = most.max(flying.len());
            let std::cmp::Reverse((done, asked)) = flying.pop().expect("something is in flight");
            now = done;
            window.through((done - asked) as f64, now, true);
            late += u64::from(now >= end - (end - from) / 4);
        }
        (late as f64 / ((end - from) as f64 / 4e9), most)
    }

    #[test]
    fn a_capped_link_is_filled_and_not_flooded() {
        for rtt in [0, 20, 150] {
            // 100 MB/s in pieces of 115 kB: 870 pieces/s.
            let mut link = Link {
                rtt: rtt * MS,
                each: 1_150_000,
                free: 0,
            };
            let mut window = Concurrency::following(64, 2048, None);
            let (rate, most) = run(&mut window, &mut link, 0, 60_000 * MS);
            assert!(rate > 0.97 * 869.5, "{rtt} ms: {rate}");
            let fills = (rtt as f64 / 1.15).max(32.0);
            assert!(
                (most as f64) < 3.5 * fills.max(64.0),
                "{rtt} ms: {most} in flight"
            );
        }
    }

    #[test]
    fn epoch_after_epoch_the_link_is_not_flooded() {
        let mut link = Link {
            rtt: 150 * MS,
            each: 1_150_000,
            free: 0,
        };
        let (mut learned, mut best) = (64, None);
        let mut sizes = Vec::new();
        for epoch in 0..8 {
            let mut window = Concurrency::following(learned, 2048, best);
            run(
                &mut window,
                &mut link,
                epoch * 20_000 * MS,
                (epoch + 1) * 20_000 * MS,
            );
            // All that is in flight arrives before the next epoch.
            link.free = 0;
            (learned, best) = (window.proven(), window.best());
            sizes.push(learned);
        }
        assert!(learned < 460, "{sizes:?}");
    }

    #[test]
    fn a_trial_ends_at_the_most_that_is_allowed() {
        // Crowded from the start, by what is known: only trials make it larger.
        let mut window = Concurrency::following(64, 70, Some(1.0));
        let mut judged = false;
        for n in 0..64 * 40 {
            window.through(1e6, n * MS, true);
            judged |= matches!(
                window.rule.as_ref().expect("it follows").phase,
                Phase::Judging { .. }
            );
        }
        assert!(judged && window.proven() == 64, "{window:?}");
    }

    #[test]
    fn an_uncapped_link_gets_all_there_is() {
        let mut link = Link {
            rtt: 150 * MS,
            each: 1_000,
            free: 0,
        };
        let mut window = Concurrency::following(64, 2048, None);
        let (rate, most) = run(&mut window, &mut link, 0, 20_000 * MS);
        assert_eq!(most, 2048);
        assert!(rate > 0.95 * 2048.0 / 0.15, "{rate}");
    }

    #[test]
    fn a_link_that_gets_longer_or_shorter_is_followed() {
        let mut link = Link {
            rtt: 20 * MS,
            each: 1_150_000,
            free: 0,
        };
        let mut window = Concurrency::following(64, 2048, None);
        run(&mut window, &mut link, 0, 20_000 * MS);
        let before = window.size();
        link.rtt = 150 * MS;
        let (rate, most) = run(&mut window, &mut link, 20_000 * MS, 140_000 * MS);
        assert!(rate > 0.9 * 869.5, "{before} at first, then {most}: {rate}");
        assert!(most < 800, "{most}");
    }

    #[test]
    fn five_are_asked_for_where_four_came_through() {
        let sizes: Vec<usize> = (1..8)
            .map(|trips| {
                let mut link = Link {
                    rtt: 100 * MS,
                    each: 1_000,
                    free: 0,
                };
                let mut window = Concurrency::following(64, 2048, None);
                run(&mut window, &mut link, 0, trips * 100 * MS);
                window.size()
            })
            .collect();
        assert!(
            sizes.windows(2).all(|pair| pair[1] <= pair[0] * 5 / 4 + 1),
            "{sizes:?}"
        );
        assert!(sizes[6] > 3 * 64, "{sizes:?}");
    }

    #[test]
    fn nothing_grows_for_a_consumer_that_does_not_wait() {
        let mut window = Concurrency::following(8, 2048, None);
        (0..10_000).for_each(|n| window.through(1e6, n * MS, false));
        assert_eq!(window.size(), 8);
    }

    #[test]
    fn slow_connections_are_no_crowd() {
        // Each fourth is ten times slower, and each tenth had to connect first.
        let mut window = Concurrency::following(32, 1024, None);
        let mut flying = BinaryHeap::new();
        let (mut seed, mut now) = (1u64, 0);
        for _ in 0..20_000 {
            while flying.len() < window.size() {
                seed = crate::rng::mix(seed);
                let times = if seed % 4 == 0 { 10 } else { 1 } + u64::from(seed % 10 == 1);
                flying.push(std::cmp::Reverse((now + times * 150 * MS, now)));
            }
            let std::cmp::Reverse((done, asked)) = flying.pop().expect("something is in flight");
            now = done;
            window.through((done - asked) as f64, now, true);
        }
        assert!(window.size() > 900, "{}", window.size());
    }

    #[test]
    fn unequal_sizes_are_no_crowd() {
        // A connection carries 1 MB/s, so that time follows size; there is no bottleneck.
        let mut window = Concurrency::following(8, 512, None);
        let (mut seed, mut now) = (1u64, 0);
        for _ in 0..20_000 {
            seed = crate::rng::mix(seed);
            let took = 10 + seed % 1000;
            now += took * MS / window.size() as u64;
            window.through((took * MS) as f64, now, true);
        }
        assert!(window.size() > 400, "{}", window.size());
    }
}
