use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

/// A simulated service: a latency, and a link that carries one request at a time.
#[derive(Clone)]
struct Link {
    /// Seconds until the answer, without a queue.
    latency: f64,
    /// Requests per second that the link carries.
    cap: f64,
    /// Number of requests in flight above which further ones are refused.
    refuse_above: usize,
    /// Every n-th request takes ten times as long.
    slow: usize,
}

impl Link {
    fn new(latency: f64, cap: f64) -> Self {
        Link {
            latency,
            cap,
            refuse_above: usize::MAX,
            slow: usize::MAX,
        }
    }
}

struct Run {
    controller: Controller,
    now: f64,
    free: f64,
    seed: u64,
    /// Requests in flight: end, begin, level, and true if it is refused.
    flying: BinaryHeap<Reverse<(u64, u64, usize, bool)>>,
}

impl Run {
    fn new(controller: Controller) -> Self {
        Run::seeded(controller, 1)
    }

    fn seeded(controller: Controller, seed: u64) -> Self {
        Run {
            controller,
            now: 0.0,
            free: 0.0,
            seed,
            flying: BinaryHeap::new(),
        }
    }

    /// Makes up to `wanted` requests at once, as the controller allows, for some seconds; returns
    /// the requests per second in the second half, and the mean limit in it.
    fn run(&mut self, link: &Link, seconds: f64, wanted: usize) -> (f64, f64) {
        let nanos = |seconds: f64| (seconds * 1e9) as u64;
        let (begun, end) = (self.now, self.now + seconds);
        let (mut done, mut limits, mut weight) = (0.0, 0.0, 0.0);
        while self.now < end {
            while self.flying.len() < self.controller.limit().min(wanted) {
                self.seed = self
                    .seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let random = (self.seed >> 33) as f64 / (1u64 << 31) as f64;
                let level = self.flying.len() + 1;
                let refused = level > link.refuse_above;
                let slow = if self.seed as usize >> 33 & 0xffff < 0xffff / link.slow {
                    10.0
                } else {
                    1.0
                };
                let latency = link.latency * (0.9 + 0.2 * random) * slow;
                let ends = if refused {
                    self.now + latency
                } else {
                    let here = self.now + link.latency;
                    self.free = self.free.max(here) + (0.5 + random) / link.cap;
                    self.free.max(self.now + latency)
                };
                self.flying
                    .push(Reverse((nanos(ends), nanos(self.now), level, refused)));
            }
            let Some(Reverse((ends, begun_at, level, refused))) = self.flying.pop() else {
                break;
            };
            let at = Duration::from_nanos(ends);
            if at.as_secs_f64() > begun + seconds / 2.0 {
                let step = at.as_secs_f64() - self.now.max(begun + seconds / 2.0);
                limits += self.controller.limit() as f64 * step;
                weight += step;
                done += if refused { 0.0 } else { 1.0 };
            }
            self.now = at.as_secs_f64();
            let begun = Duration::from_nanos(begun_at);
            let outcome = if refused {
                Outcome::Overload
            } else {
                Outcome::Done
            };
            self.controller.finished(
                at,
                Sample {
                    begun,
                    level,
                    took: at - begun,
                    outcome,
                },
            );
        }
        (done / weight, limits / weight)
    }
}

#[test]
fn a_line_is_filled_and_the_window_stays() {
    for latency in [0.001, 0.02, 0.15] {
        for cap in [100.0, 870.0, 5000.0] {
            let mut run = Run::new(Controller::adaptive(4096));
            let holds = (latency * cap + 1.0f64).max(1.0);
            for _ in 0..3 {
                let (rate, limit) = run.run(&Link::new(latency, cap), 60.0, usize::MAX);
                assert!(
                    rate >= 0.95 * cap,
                    "{latency} s, {cap}/s: {rate}, {limit} in flight"
                );
                assert!(
                    limit <= 4.0 * holds + 16.0,
                    "{latency} s, {cap}/s: {limit} in flight, it holds {holds}"
                );
            }
        }
    }
}

#[test]
fn the_ramp_takes_a_few_round_trips() {
    let mut run = Run::new(Controller::adaptive(4096));
    let (rate, _) = run.run(&Link::new(0.15, 870.0), 6.0, usize::MAX);
    assert!(rate >= 0.95 * 870.0, "{rate}");
}

#[test]
fn latency_and_capacity_that_change_are_followed() {
    let mut run = Run::new(Controller::adaptive(4096));
    for (latency, cap) in [
        (0.001, 870.0),
        (0.15, 870.0),
        (0.02, 870.0),
        (0.15, 4000.0),
        (0.15, 400.0),
        (0.5, 870.0),
    ] {
        let (rate, limit) = run.run(&Link::new(latency, cap), 120.0, usize::MAX);
        let holds = latency * cap + 1.0;
        assert!(
            rate >= 0.95 * cap,
            "{latency} s, {cap}/s: {rate}, {limit} in flight"
        );
        assert!(
            limit <= 4.0 * holds + 16.0,
            "{latency} s, {cap}/s: {limit} in flight, it holds {holds}"
        );
    }
}

#[test]
fn slow_connections_do_not_close_the_window() {
    for (latency, seed) in [(0.002, 2), (0.02, 3), (0.15, 4), (0.15, 5)] {
        let link = Link {
            slow: 4,
            ..Link::new(latency, 870.0)
        };
        let mut run = Run::seeded(Controller::adaptive(4096), seed);
        for _ in 0..3 {
            let (rate, limit) = run.run(&link, 60.0, usize::MAX);
            assert!(
                rate >= 0.95 * 870.0,
                "{latency} s: {rate}, {limit} in flight"
            );
        }
    }
}

#[test]
fn who_wants_little_does_not_open_the_window() {
    let mut run = Run::new(Controller::adaptive(4096));
    let (_, limit) = run.run(&Link::new(0.02, 1e6), 60.0, 4);
    assert!(limit <= FIRST, "{limit}");
    let mut run = Run::new(Controller::on_overload());
    run.run(&Link::new(0.02, 1e6), 5.0, 100);
    assert_eq!(run.controller.limit(), usize::MAX);
}

#[test]
fn an_overloaded_service_is_met_near_what_it_takes() {
    for k in [1, 2, 8, 64, 300] {
        let link = Link {
            refuse_above: k,
            ..Link::new(0.02, 1e6)
        };
        let mut run = Run::new(Controller::on_overload());
        run.run(&link, 10.0, 1000);
        let (rate, limit) = run.run(&link, 20.0, 1000);
        let (most, k) = (k as f64 / 0.02, k as f64);
        assert!(limit >= 0.75 * k && limit <= 1.1 * k + 1.0, "{k}: {limit}");
        assert!(rate >= 0.75 * most, "{k}: {rate} of {most} a second");

        let mut run = Run::new(Controller::adaptive(1000));
        run.run(&link, 10.0, 1000);
        let (rate, limit) = run.run(&link, 20.0, 1000);
        assert!(
            limit >= 0.7 * k && limit <= 1.1 * k + 2.0,
            "adaptive, {k}: {limit}"
        );
        assert!(
            rate >= 0.7 * most,
            "adaptive, {k}: {rate} of {most} a second"
        );
    }
}

#[test]
fn one_burst_of_overloads_counts_once() {
    let mut controller = Controller::on_overload();
    let sample = |begun, level| Sample {
        begun: Duration::from_millis(begun),
        level,
        took: Duration::from_millis(10),
        outcome: Outcome::Overload,
    };
    for level in 65..100 {
        controller.finished(Duration::from_millis(20), sample(10, level));
    }
    assert_eq!(controller.limit(), 32);
    controller.finished(Duration::from_millis(40), sample(30, 32));
    assert_eq!(controller.limit(), 16);
    let mut controller = Controller::fixed(7);
    controller.finished(Duration::from_millis(20), sample(10, 7));
    assert_eq!(controller.limit(), 7);
}
