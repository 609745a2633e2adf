//! Sentences about what limits an epoch, and what would help.

use super::bottleneck::{Pace, Said};
use super::{CacheGain, Stats, model};

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
            let none = "No item was delivered, so nothing can be said about the pace".to_owned();
            let why = self.emptied().map(|emptied| format!("{none}: {emptied}."));
            let mut advice = vec![why.unwrap_or(none + ".")];
            advice.extend(self.skips_in_a_sentence());
            return advice;
        }
        let mut advice = vec![self.pace_in_sentences()];
        advice.extend(self.useful_worker());
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
        advice.extend(self.skips_in_a_sentence());
        advice
    }

    fn skips_in_a_sentence(&self) -> Option<String> {
        let most = self.skips.iter().max_by_key(|skips| skips.items);
        let of = most.map_or(String::new(), |skips| {
            format!(", most of them in `{}` ({})", skips.node, skips.kind)
        });
        let said = || format!("{} items failed and were skipped{of}.", self.skipped);
        (self.skipped > 0).then(said)
    }

    /// Returns what a cache after the slowest node of a segment would give, if it is worth it.
    fn useful_cache(&self) -> Option<CacheGain> {
        if !matches!(self.pace(), Pace::Cpu(..) | Pace::Io(_)) {
            return None;
        }
        let cache = self.what_if().ok()?.cache(self.slowest_node()?);
        (cache.gain >= WORTH && cache.bytes.is_some()).then_some(cache)
    }

    /// Returns the part that sets the pace, its figures and what would help.
    fn pace_in_sentences(&self) -> String {
        let Said {
            subject,
            figures,
            remedy,
        } = self.say_pace();
        let mut letters = subject.chars();
        let first = letters.next().map(char::to_uppercase);
        let subject: String = first.into_iter().flatten().chain(letters).collect();
        let said = format!("{subject} sets the pace: {figures}. {remedy}");
        said.trim_end().to_owned()
    }

    /// Returns what a worker more would give, if workers set the pace.
    fn useful_worker(&self) -> Option<String> {
        if !matches!(self.pace(), Pace::Cpu(segment, _) if segment.processes.is_none()) {
            return None;
        }
        let more = self.what_if().ok()?.workers(self.workers + 1);
        let more = more.cores(model::cores() + 1).predict().ok()?;
        Some(format!(
            "One more worker, on a core of its own, gives {:.2} times the rate.",
            more.gain
        ))
    }
}
