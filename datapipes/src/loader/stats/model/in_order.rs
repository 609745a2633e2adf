//! The pace of morsels that are delivered in strict order: those after a slow one wait for it, if only
//! few are in flight. All times are in seconds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::loader::stats::SegmentStats;
use crate::{Histogram, mix_bits};

/// Number of durations of a histogram in a simulation, and how often they are drawn.
const SAMPLES: u64 = 1024;
const ROUNDS: u64 = 4;

/// Times of the morsels of a segment.
pub(super) struct Times<'a> {
    histogram: &'a Histogram,
    is_ordered: bool,
}

impl<'a> Times<'a> {
    pub(super) fn of(segment: &'a SegmentStats) -> Times<'a> {
        Times {
            histogram: &segment.morsel_time,
            is_ordered: segment.is_ordered,
        }
    }

    /// Returns the seconds from one morsel to the next with so many servers, if at most `window`
    /// morsels are between the first that is not delivered yet and the last that has begun.
    pub(super) fn pace(&self, servers: usize, window: usize, change: impl Fn(f64) -> f64) -> f64 {
        let mean = self.histogram.mean().as_secs_f64();
        let change = |seconds: f64| change(seconds).max(0.0);
        if !self.is_ordered || window as u64 >= SAMPLES {
            return change(mean) / servers as f64;
        }
        let samples: Vec<f64> = (0..SAMPLES)
            .map(|rank| (rank as f64 + 0.5) / SAMPLES as f64)
            .map(|share| self.histogram.quantile(share).as_secs_f64())
            .collect();
        // The quantiles are those of buckets, and a little too large.
        let scale = mean * SAMPLES as f64 / samples.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let mut draws: Vec<u64> = (0..ROUNDS * SAMPLES).collect();
        draws.sort_by_key(|&draw| (draw / SAMPLES, mix_bits(draw + 1)));
        let times = draws
            .iter()
            .map(|draw| change(samples[(draw % SAMPLES) as usize] * scale));
        in_order(times, servers, window) / draws.len() as f64
    }
}

/// Returns the seconds until morsels that take these times are delivered in order.
fn in_order(times: impl Iterator<Item = f64>, servers: usize, window: usize) -> f64 {
    // Times of the ends as bits, which are ordered as the numbers are, if none is negative.
    let mut free = BinaryHeap::from(vec![Reverse(0u64); servers.max(1)]);
    let mut delivered = vec![0.0f64; window.max(1)];
    let mut last = 0.0f64;
    for (number, time) in times.enumerate() {
        let room = delivered[number % window.max(1)];
        let Reverse(server) = free.pop().expect("as many as servers");
        let end = f64::from_bits(server).max(room) + time;
        free.push(Reverse(end.to_bits()));
        last = last.max(end);
        delivered[number % window.max(1)] = last;
    }
    last
}
