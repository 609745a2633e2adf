//! Waiting times of the consumer.

use std::fmt;
use std::time::Duration;

/// Time that the consumer of a [`BurnLoader`](crate::BurnLoader) waited; see
/// [`waits`](crate::BurnLoader::waits). Displayed as one line.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Waits {
    /// Number of epochs that have ended or were dropped, and of which a batch was asked for.
    pub epochs: u64,
    /// Number of batches delivered.
    pub batches: u64,
    /// Time in `next` waiting for data, including the start of each epoch, and for uploads that run
    /// [ahead](crate::BurnLoader::prefetch_to_device).
    pub waited: Duration,
    /// Time in `next` converting batches to tensors: zero if uploads run ahead.
    pub converted: Duration,
    /// Time from the first `next` of each epoch to its end: the training steps and all of the
    /// above.
    pub wall: Duration,
}

impl Waits {
    /// Returns the share of the time in which the consumer waited for data, in `[0, 1]`.
    pub fn share(&self) -> f64 {
        (self.waited.as_secs_f64() / self.wall.as_secs_f64().max(1e-9)).min(1.0)
    }

    pub(crate) fn add(&mut self, other: &Waits) {
        self.epochs += other.epochs;
        self.batches += other.batches;
        self.waited += other.waited;
        self.converted += other.converted;
        self.wall += other.wall;
    }
}

/// Formats the times: `3 epochs, 120 batches in 41.203 s: waited 0.310 s (0.8 %) for data, 0.002 s
/// to make tensors of it`.
impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waits {
            epochs,
            batches,
            waited,
            converted,
            wall,
        } = self;
        write!(
            f,
            "{epochs} epochs, {batches} batches in {:.3} s: waited {:.3} s ({:.1} %) for data, {:.3} s to make tensors of it",
            wall.as_secs_f64(),
            waited.as_secs_f64(),
            self.share() * 100.0,
            converted.as_secs_f64()
        )
    }
}
