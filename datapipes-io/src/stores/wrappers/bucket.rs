//! A token bucket, as a pure function of the time that the caller passes in.

use std::time::Duration;

/// Tokens that arrive at a steady rate, up to a maximum. Taking more tokens than are available
/// leaves a debt, and the result is the time until the debt is paid: callers that wait for that
/// time keep the rate, in the order of their requests.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    per_second: f64,
    most: f64,
    level: f64,
    at: Duration,
}

impl Bucket {
    pub(super) fn new(per_second: f64, most: f64) -> Self {
        Bucket {
            per_second: per_second.max(f64::MIN_POSITIVE),
            most,
            level: most,
            at: Duration::ZERO,
        }
    }

    /// Takes tokens, and returns the time to wait.
    pub(super) fn take(&mut self, now: Duration, tokens: f64) -> Duration {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.level = (self.level + passed * self.per_second).min(self.most);
        self.at = self.at.max(now);
        self.level -= tokens;
        Duration::try_from_secs_f64((-self.level).max(0.0) / self.per_second)
            .unwrap_or(Duration::MAX)
    }

    /// Returns tokens to the bucket.
    pub(super) fn give(&mut self, tokens: f64) {
        self.level = (self.level + tokens).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate_holds() {
        let mut bucket = Bucket::new(10.0, 5.0);
        let at = Duration::from_millis;
        let waits: Vec<_> = (0..8)
            .map(|_| bucket.take(at(0), 1.0).as_millis())
            .collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 100, 200, 300]);
        assert_eq!(
            bucket.take(at(300), 1.0),
            at(100),
            "the debt was paid in the meantime"
        );
        assert_eq!(
            bucket.take(at(60_000), 5.0),
            at(0),
            "no more than the most is kept"
        );
        assert_eq!(bucket.take(at(60_000), 1.0), at(100));
        bucket.give(100.0);
        assert_eq!(bucket.take(at(60_000), 5.0), at(0));
    }
}
