//! How long to wait between tries. Pure: no clock, no randomness of its own.

use std::time::Duration;

/// How often and how patiently a request is tried; see [`Retry`](super::Retry).
///
/// The pauses are exponential with *decorrelated jitter*: each is drawn evenly between [`first`](Backoff::first) and
/// three times the pause before, and is never above [`most`](Backoff::most). (Marc Brooker, *Exponential Backoff and
/// Jitter*, AWS Architecture Blog, 2015.) Clients that failed together so do not come back together.
#[derive(Clone, Debug, PartialEq)]
pub struct Backoff {
    /// The most tries of one request, the first included. 0 counts as 1.
    pub tries: u32,
    /// The shortest pause.
    pub first: Duration,
    /// The longest pause, unless the service asks for a longer one.
    pub most: Duration,
    /// How long from the first try on another one may begin. No try is broken off by it; that is for
    /// [`Timeout`](super::Timeout).
    pub deadline: Duration,
    /// The tries beyond the first that the whole store may make at once, before they are spread out.
    pub burst: u32,
    /// The tries beyond the first that the whole store may make in a second, once `burst` is used up.
    pub per_second: f64,
}

impl Default for Backoff {
    /// 10 tries, pauses of 100 ms to 15 s, 3 minutes; 500 more tries at once, then 10 in a second.
    fn default() -> Self {
        Backoff {
            tries: 10,
            first: Duration::from_millis(100),
            most: Duration::from_secs(15),
            deadline: Duration::from_secs(180),
            burst: 500,
            per_second: 10.0,
        }
    }
}

impl Backoff {
    /// The pause after one of `before` (zero at first), where `random` is even in `0..1`.
    pub(super) fn pause(&self, before: Duration, random: f64) -> Duration {
        let first = self.first.as_secs_f64();
        let highest = (before.as_secs_f64() * 3.0).max(first);
        Duration::from_secs_f64(first + (highest - first) * random).min(self.most)
    }
}

/// A number in `0..1`. Nothing that is read depends on it, only when.
pub(super) fn random() -> f64 {
    use std::hash::{BuildHasher, Hasher};
    // Each `RandomState` has keys of its own.
    let bits = std::collections::hash_map::RandomState::new().build_hasher().finish();
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_three_times_and_stay_within_bounds() {
        let backoff = Backoff::default();
        let mut pause = Duration::ZERO;
        let mut highest = Vec::new();
        for _ in 0..7 {
            pause = backoff.pause(pause, 1.0);
            highest.push(pause.as_millis());
        }
        assert_eq!(highest, [100, 300, 900, 2700, 8100, 15_000, 15_000]);
        assert_eq!(backoff.pause(Duration::from_secs(15), 0.0), backoff.first);
        assert_eq!(backoff.pause(Duration::from_millis(500), 0.5).as_millis(), 800);
    }

    #[test]
    fn random_numbers_are_even() {
        let drawn: Vec<f64> = (0..10_000).map(|_| random()).collect();
        let mean = drawn.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.03, "{mean}");
        assert!(drawn.iter().all(|x| (0.0..1.0).contains(x)));
    }
}
