//! How long the consumer waited.

use std::fmt;
use std::time::Duration;

/// How long the consumer of a [`BurnLoader`](crate::BurnLoader) waited; see
/// [`waits`](crate::BurnLoader::waits). Prints as a line.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Waits {
    /// Epochs that have ended or were dropped, and of which a batch was asked for.
    pub epochs: u64,
    /// Batches that came.
    pub batches: u64,
    /// In `next`, for data; the start of each epoch is part of it.
    pub waited: Duration,
    /// In `next`, making tensors of batches.
    pub converted: Duration,
    /// From the first `next` of each epoch to its end: the training steps and all of the above.
    pub wall: Duration,
}

impl Waits {
    /// The share of the time in which the consumer waited for data, in `[0, 1]`.
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

/// `3 epochs, 120 batches in 41.203 s: waited 0.310 s (0.8 %) for data, 0.002 s to make tensors of
/// it`.
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
