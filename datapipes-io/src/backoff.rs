//! How often something is tried, and how long is waited between.

use std::time::Duration;

use datapipes::{Error, Result};
use tokio::time::Instant;

/// How often and how patiently a request is tried; see [`Retry`](crate::stores::wrappers::Retry)
/// and [`RetryTable`](crate::tables::RetryTable).
///
/// The pauses are exponential with *decorrelated jitter*: each is drawn evenly between
/// [`first`](Backoff::first) and three times the pause before, and is never above
/// [`most`](Backoff::most). (Marc Brooker, *Exponential Backoff and Jitter*, AWS Architecture Blog,
/// 2015.) Clients that failed together so do not come back together.
#[derive(Clone, Debug, PartialEq)]
pub struct Backoff {
    /// The most tries of one request, the first included. 0 counts as 1.
    pub tries: u32,
    /// The shortest pause.
    pub first: Duration,
    /// The longest pause, unless the service asks for a longer one.
    pub most: Duration,
    /// How long from the first try on another one may begin. No try is broken off by it; that is
    /// for [`Timeout`](crate::stores::wrappers::Timeout).
    pub deadline: Duration,
    /// The tries beyond the first that the whole store may make at once, before they are spread
    /// out. Of stores only.
    pub burst: u32,
    /// The tries beyond the first that the whole store may make in a second, once `burst` is used
    /// up. Of stores only.
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
    pub(crate) fn pause(&self, before: Duration, random: f64) -> Duration {
        let first = self.first.as_secs_f64();
        let highest = (before.as_secs_f64() * 3.0).max(first);
        Duration::from_secs_f64(first + (highest - first) * random).min(self.most)
    }

    /// Runs something until it works, fails for good, or was tried often enough; the last outcome.
    ///
    /// # Errors
    /// The last one.
    pub async fn run<T, F: Future<Output = Result<T>>>(
        &self,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T> {
        let mut pauses = self.begin();
        loop {
            match attempt().await {
                Err(error) => match pauses.next(&error) {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => return Err(error),
                },
                done => return done,
            }
        }
    }

    /// The pauses of one task, from now on.
    pub(crate) fn begin(&self) -> Pauses {
        Pauses {
            policy: self.clone(),
            begun: Instant::now(),
            tried: 0,
            last: Duration::ZERO,
        }
    }
}

/// The tries of one task.
pub(crate) struct Pauses {
    policy: Backoff,
    begun: Instant,
    tried: u32,
    last: Duration,
}

impl Pauses {
    /// How long to wait after this error; none if that was the last try.
    pub(crate) fn next(&mut self, error: &Error) -> Option<Duration> {
        self.tried += 1;
        if !error.is_transient() || self.tried >= self.policy.tries {
            return None;
        }
        self.last = self.policy.pause(self.last, random());
        let pause = self.last.max(error.retry_after().unwrap_or_default());
        (self.begun.elapsed().saturating_add(pause) <= self.policy.deadline).then_some(pause)
    }
}

/// A number in `0..1`. Nothing that is read depends on it, only when.
pub(crate) fn random() -> f64 {
    use std::hash::{BuildHasher, Hasher};
    // Each `RandomState` has keys of its own.
    let bits = std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish();
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

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
        assert_eq!(
            backoff.pause(Duration::from_millis(500), 0.5).as_millis(),
            800
        );
    }

    #[test]
    fn random_numbers_are_even() {
        let drawn: Vec<f64> = (0..10_000).map(|_| random()).collect();
        let mean = drawn.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.03, "{mean}");
        assert!(drawn.iter().all(|x| (0.0..1.0).contains(x)));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_are_bounded_and_obey() {
        let policy = Backoff {
            tries: 1000,
            ..Backoff::default()
        };
        let mut pauses = policy.begin();
        let mut last = policy.first;
        let passing = || Error::new(ErrorKind::Unavailable, "shaky").transient();
        for _ in 0..100 {
            let pause = pauses.next(&passing()).unwrap();
            assert!(
                pause >= policy.first && pause <= policy.most && pause <= last * 3,
                "{pause:?} after {last:?}"
            );
            last = pause;
        }
        let asked =
            Error::new(ErrorKind::Unavailable, "").with_retry_after(Duration::from_secs(60));
        assert_eq!(pauses.next(&asked), Some(Duration::from_secs(60)));
        let too_long =
            Error::new(ErrorKind::Unavailable, "").with_retry_after(Duration::from_secs(181));
        assert_eq!(pauses.next(&too_long), None);
        tokio::time::advance(Duration::from_millis(1)).await;
        let forever = Error::new(ErrorKind::Unavailable, "").with_retry_after(Duration::MAX);
        assert_eq!(pauses.next(&forever), None);
    }
}
