//! The last batches that a consumer took, while a report is being recorded.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::sync::lock;

/// Number of batches that are kept.
const MOST: usize = 512;
/// Mean time of an item below which the moments of single items are not looked at, since that takes
/// some 100 ns.
const SHORT: Duration = Duration::from_micros(5);

/// Moments of a batch at its consumer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchTimes {
    /// Moment at which the consumer asked for it.
    pub asked: Instant,
    /// Moment at which it had it.
    pub ready: Instant,
    /// Moment at which it asked for the next one.
    pub used: Instant,
}

/// The last batches of all epochs of a loader.
#[derive(Debug, Default)]
pub(crate) struct RecentBatches {
    /// Number of those who record them.
    watched: AtomicUsize,
    batches: Mutex<VecDeque<BatchTimes>>,
}

impl RecentBatches {
    /// Begins to record; ends with as many calls of [`end`](Self::end).
    pub fn begin(&self) {
        self.watched.fetch_add(1, Relaxed);
    }

    /// Ends recording, and returns the batches that were asked for since a moment.
    pub fn end(&self, since: Instant) -> Vec<BatchTimes> {
        let mut batches = lock(&self.batches);
        let recent = batches.iter().filter(|batch| batch.asked >= since);
        let recent = recent.copied().collect();
        if self.watched.fetch_sub(1, Relaxed) == 1 {
            *batches = VecDeque::new();
        }
        recent
    }

    /// Returns true if somebody records them.
    pub fn is_watched(&self) -> bool {
        self.watched.load(Relaxed) > 0
    }

    fn add(&self, batch: BatchTimes) {
        let mut batches = lock(&self.batches);
        if batches.len() == MOST {
            batches.pop_front();
        }
        batches.push_back(batch);
    }
}

/// Moments of the consumer of a rank.
#[derive(Debug, Default)]
pub(crate) struct ConsumerMoments {
    asked: Option<Instant>,
    /// Moments at which it asked for the batch that it has, and got it.
    using: Option<(Instant, Instant)>,
    /// Moment at which the graph was last polled, and the number of items that had been delivered.
    polled: Option<(Instant, u64)>,
}

impl ConsumerMoments {
    /// Records that the graph was polled for a batch that the consumer asked for at this moment, after
    /// so many others. Returns false if batches come so fast that the next ones are not recorded.
    pub fn polled(&mut self, asked: Instant, delivered: u64, to: &RecentBatches) -> bool {
        self.used(asked, to);
        let before = self.polled.replace((asked, delivered));
        let is_slow = before.is_none_or(|(then, earlier)| {
            let items = u32::try_from(delivered - earlier).unwrap_or(u32::MAX);
            asked - then >= SHORT * items
        });
        self.asked = is_slow.then_some(asked);
        is_slow
    }

    /// Records that the consumer has a batch.
    pub fn delivered(&mut self, to: &RecentBatches) {
        let now = Instant::now();
        self.used(now, to);
        self.using = Some((self.asked.take().unwrap_or(now), now));
    }

    fn used(&mut self, until: Instant, to: &RecentBatches) {
        if let Some((asked, ready)) = self.using.take() {
            to.add(BatchTimes {
                asked,
                ready,
                used: until,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_that_come_fast_are_not_looked_at() {
        let recent = RecentBatches::default();
        let begun = Instant::now();
        recent.begin();
        let mut moments = ConsumerMoments::default();
        let at = |us| begun + Duration::from_micros(us);
        assert!(moments.polled(at(0), 0, &recent));
        assert!(moments.polled(at(1000), 100, &recent), "10 µs each");
        assert!(!moments.polled(at(2000), 1000, &recent), "1 µs each");
        assert!(moments.polled(at(3000), 1001, &recent));
        moments.delivered(&recent);
        moments.polled(at(9_000_000), 1002, &recent);
        let batches = recent.end(begun);
        assert_eq!(batches.len(), 1);
        assert_eq!(batches[0].asked, at(3000));
        assert_eq!(batches[0].used, at(9_000_000));
    }
}
