//! Sentences about what limits an epoch, and what would help.

use super::bottleneck::Pace;
use super::{CacheGain, SegmentStats, Stats};

/// Gain from which a cache is worth a sentence.
const WORTH: f64 = 1.1;

impl Stats {
    /// Returns what limits the epoch and what would help, in sentences with their numbers, the most
    /// important first. The gains are upper bounds, and each is stated with its assumption.
    ///
    /// # Examples
    /// ```
    /// # use datapipes::{DataLoader, Graph};
    /// let loader = DataLoader::builder(Graph::range(0..1000).batch(10)).build()?;
    /// loader.epoch(0).blocking().for_each(drop);
    /// for sentence in loader.stats().unwrap().advice() {
    ///     println!("- {sentence}");
    /// }
    /// # Ok::<(), datapipes::BoxError>(())
    /// ```
    pub fn advice(&self) -> Vec<String> {
        if self.delivered == 0 {
            return vec![
                "No item was delivered, so nothing can be said about the pace.".to_owned(),
            ];
        }
        let mut advice = vec![self.pace_in_numbers()];
        let waited = self.consumer_waited();
        if waited >= 0.05 && !matches!(self.pace(), Pace::Inline) {
            let own = self.wall.saturating_sub(self.waited);
            let gain = self.wall.as_secs_f64() / own.as_secs_f64().max(1e-9);
            let gain = match gain {
                gain if gain < 20.0 => format!(", at most {gain:.2} times as fast"),
                _ => String::new(),
            };
            advice.push(format!(
                "If data were always ready, the same loop would take {own:.1?} instead of {:.1?}{gain}.",
                self.wall
            ));
        }
        if let Some(cache) = self.useful_cache() {
            advice.push(format!(
                "{cache}, if its items may be the same in each epoch."
            ));
        }
        for segment in &self.segments {
            let [p50, p99] = [0.5, 0.99].map(|share| segment.morsel_time.quantile(share));
            if matches!(self.pace(), Pace::Io(slow) if slow.letter == segment.letter)
                && segment.morsel_time.count() >= 100
                && p99 > 8 * p50
            {
                advice.push(format!(
                    "The slowest requests of segment {} take {:.0} times as long as usual (p50 {p50:.1?}, p99 \
                     {p99:.1?}): hedged requests or `Order::Bounded` keep them from holding up the others.",
                    segment.letter,
                    p99.as_secs_f64() / p50.as_secs_f64().max(1e-9)
                ));
            }
        }
        if let Some(limit) = self.memory.limit
            && self.memory.most as f64 >= 0.95 * limit as f64
        {
            advice.push(format!(
                "The bound of memory was reached ({:.0} MiB): with more, more can be made ahead.",
                limit as f64 / f64::from(1 << 20)
            ));
        }
        if self.skipped > 0 {
            let most = self.skips.iter().max_by_key(|skips| skips.items);
            let of = most.map_or(String::new(), |skips| {
                format!(", most of them in `{}` ({})", skips.node, skips.kind)
            });
            advice.push(format!(
                "{} items failed and were skipped{of}.",
                self.skipped
            ));
        }
        advice
    }

    /// Returns what a cache after the slowest node of a segment would give, if it is worth it.
    fn useful_cache(&self) -> Option<CacheGain> {
        if !matches!(self.pace(), Pace::Cpu(..) | Pace::Io(_)) {
            return None;
        }
        let cache = self.what_if().ok()?.cache(self.slowest_node()?);
        (cache.gain >= WORTH && cache.bytes.is_some()).then_some(cache)
    }

    fn pace_in_numbers(&self) -> String {
        let node = self.slowest_name();
        let busy =
            |segment: &SegmentStats| segment.busy.as_secs_f64() / self.wall.as_secs_f64().max(1e-9);
        match self.pace() {
            Pace::Consumer => format!(
                "The consumer sets the pace: it waited for {:.1} % of the time, which is all that \
                 faster loading could gain.",
                self.consumer_waited() * 100.0
            ),
            Pace::Upload(share) => format!(
                "The upload to the device sets the pace: it is busy for {:.0} % of the time.",
                share * 100.0
            ),
            Pace::Inline if self.workers == 0 => format!(
                "The graph runs on the thread that reads it, most of the time in `{node}`: with \
                 `workers`, steps run beside each other and ahead of the consumer."
            ),
            Pace::Inline => format!(
                "The graph runs on the thread that reads it, most of the time in `{node}`: its \
                 steps are too short to be worth a queue."
            ),
            Pace::Cpu(segment, share) => format!(
                "`{node}` sets the pace: {:.1} of {} workers are busy, {:.1} of them in segment {}. \
                 One more worker, on a core of its own, gives at most {:.2} times the rate.",
                share * self.workers as f64,
                self.workers,
                busy(segment),
                segment.letter,
                (self.workers + 1) as f64 / self.workers.max(1) as f64
            ),
            Pace::Sequential(share) => format!(
                "`{node}` sets the pace: what looks at the stream as a whole runs on one thread, \
                 which is busy for {:.0} % of the time. More workers do not help; less work there \
                 does, such as moving steps to where they are shardable.",
                share * 100.0
            ),
            Pace::Io(segment) if segment.occupancy >= 0.9 * segment.concurrency as f64 => format!(
                "`{node}` sets the pace: {:.1} of at most {} requests are in flight, each for {:.1?} \
                 (p50). More at once (`concurrency`), or larger files, may help.",
                segment.occupancy,
                segment.concurrency,
                segment.morsel_time.quantile(0.5)
            ),
            Pace::Io(segment) => format!(
                "`{node}` waits for I/O, {:.1?} for each request (p50), with only {:.1} of at most \
                 {} in flight: its input comes too slowly, or memory is short.",
                segment.morsel_time.quantile(0.5),
                segment.occupancy,
                segment.concurrency
            ),
            Pace::Unclear {
                workers,
                sequential,
            } => format!(
                "No part in particular sets the pace: {:.1} of {} workers are busy, and the \
                 sequential part for {:.0} % of the time.",
                workers * self.workers as f64,
                self.workers,
                sequential * 100.0
            ),
        }
    }
}
