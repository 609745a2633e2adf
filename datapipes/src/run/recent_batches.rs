//! The last batches that a consumer took, while a report is being recorded.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use crate::sync::lock;

/// Number of batches that are kept.
const MOST: usize = 512;

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
}

impl ConsumerMoments {
    /// Records that the consumer asked for a batch.
    pub fn asked(&mut self, at: Instant, to: &RecentBatches) {
        self.used(at, to);
        self.asked.get_or_insert(at);
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
