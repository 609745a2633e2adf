//! Retry policy: the number of attempts, and the pauses between them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use tokio::time::Instant;

use crate::{Error, Result};

/// A retry policy: the number of attempts, and the pauses between them.
///
/// Each pause is drawn uniformly between half of a bound and that bound, which is three times the
/// previous pause, and at most [`most`](Backoff::most). The first is between [`first`](Backoff::first)
/// and twice that. Pauses therefore grow at least by half until they come near the maximum, and clients
/// that failed at the same time do not retry at the same time.
///
/// # Examples
/// ```
/// use datapipes::{Backoff, Error, ErrorKind};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// let mut asked = 0;
/// let backoff = Backoff { tries: 3, ..Backoff::default() };
/// let answer = backoff.run(|| {
///     asked += 1;
///     let answer = if asked < 3 { Err(Error::unavailable("busy").transient()) } else { Ok(asked) };
///     async { answer }
/// });
/// assert_eq!(answer.await.unwrap(), 3);
/// # });
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Backoff {
    /// Maximum number of attempts at one request, the first included. 0 counts as 1.
    pub tries: u32,
    /// The shortest pause.
    pub first: Duration,
    /// The longest pause, unless the service asks for a longer one ([`Error::with_retry_after`]).
    pub most: Duration,
    /// Time after the first attempt within which another attempt may begin. A running attempt is
    /// not interrupted.
    pub deadline: Duration,
}

impl Default for Backoff {
    /// Returns a policy of 10 attempts, pauses of 100 ms to 15 s, and a deadline of 3 minutes. The nine
    /// pauses take 48 s together on average, less than 30 s in one of 140 cases, and at least 7 s.
    fn default() -> Self {
        Backoff {
            tries: 10,
            first: Duration::from_millis(100),
            most: Duration::from_secs(15),
            deadline: Duration::from_secs(180),
        }
    }
}

impl Backoff {
    /// Returns the pause after a pause of `last` (zero for the first).
    pub fn next_pause(&self, last: Duration) -> Duration {
        // Each `RandomState` has keys of its own. Only the timing of reads depends on this
        // randomness, never their content.
        let bits = RandomState::new().build_hasher().finish();
        self.drawn(last, (bits >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// Returns the pause for a `random` value that is uniform in `0..1`.
    fn drawn(&self, last: Duration, random: f64) -> Duration {
        let (first, most) = (self.first.as_secs_f64(), self.most.as_secs_f64());
        let highest = (last.as_secs_f64() * 3.0).max(first * 2.0).min(most);
        let drawn = Duration::try_from_secs_f64(highest * (0.5 + random / 2.0));
        drawn
            .unwrap_or(Duration::MAX)
            .max(self.first)
            .min(self.most)
    }

    /// Runs `attempt` until it succeeds, fails with an error that is not transient
    /// ([`Error::is_transient`]), or the attempts or the time are used up.
    ///
    /// # Errors
    /// The error of the last attempt.
    ///
    /// # Panics
    /// If it has to pause outside of a tokio runtime with a timer.
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

    /// Starts counting attempts at a task. Its deadline counts from now on.
    pub fn begin(&self) -> Attempts {
        Attempts {
            policy: self.clone(),
            begun: Instant::now(),
            tried: 0,
            last: Duration::ZERO,
        }
    }
}

/// Attempts at one task; see [`Backoff::begin`].
#[derive(Debug)]
pub struct Attempts {
    policy: Backoff,
    begun: Instant,
    tried: u32,
    last: Duration,
}

impl Attempts {
    /// Counts a failed attempt, and returns the pause before the next one; `None` if the failed
    /// attempt was the last.
    pub fn next(&mut self, error: &Error) -> Option<Duration> {
        self.tried += 1;
        if !error.is_transient() || self.tried >= self.policy.tries {
            return None;
        }
        self.last = self.policy.next_pause(self.last);
        let pause = self.last.max(error.retry_after().unwrap_or_default());
        (self.begun.elapsed().saturating_add(pause) <= self.policy.deadline).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the pauses if `random` is drawn for each.
    fn pauses(backoff: &Backoff, random: f64) -> Vec<Duration> {
        let pauses = std::iter::successors(Some(Duration::ZERO), |&last| {
            Some(backoff.drawn(last, random))
        });
        pauses.skip(1).take(9).collect()
    }

    #[test]
    fn pauses_grow_up_to_three_times_and_stay_within_bounds() {
        let backoff = Backoff::default();
        let highest = pauses(&backoff, 1.0);
        let highest: Vec<u128> = highest[..6].iter().map(Duration::as_millis).collect();
        assert_eq!(highest, [200, 600, 1800, 5400, 15_000, 15_000]);
        assert_eq!(
            backoff.drawn(Duration::from_secs(15), 0.0).as_millis(),
            7500
        );
        assert_eq!(
            backoff.drawn(Duration::from_millis(500), 0.5).as_millis(),
            1125
        );
        let endless = Backoff {
            first: Duration::MAX,
            ..backoff
        };
        assert_eq!(endless.drawn(Duration::ZERO, 0.5), endless.most);
    }

    /// The least lucky of 64 requests in flight decides if an epoch fails.
    #[test]
    fn ten_attempts_outlast_a_restart_whatever_is_drawn() {
        let least: Duration = pauses(&Backoff::default(), 0.0).iter().sum();
        assert!(least > Duration::from_secs(7), "{least:?}");
    }

    #[test]
    fn pauses_are_drawn_evenly() {
        let backoff = Backoff {
            most: Duration::MAX,
            ..Backoff::default()
        };
        let last = Duration::from_secs(1);
        let drawn: Vec<f64> = (0..10_000)
            .map(|_| backoff.next_pause(last).as_secs_f64())
            .collect();
        let mean = drawn.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 2.25).abs() < 0.1, "{mean}");
        assert!(drawn.iter().all(|pause| (1.5..3.0).contains(pause)));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_are_bounded_and_obey() {
        let policy = Backoff {
            tries: 1000,
            ..Backoff::default()
        };
        let mut pauses = policy.begin();
        let mut last = policy.first;
        let passing = || Error::unavailable("shaky").transient();
        for _ in 0..100 {
            let pause = pauses.next(&passing()).unwrap();
            assert!(
                pause >= policy.first && pause <= policy.most && pause <= last * 3,
                "{pause:?} after {last:?}"
            );
            last = pause;
        }
        let asked = Error::unavailable("").with_retry_after(Duration::from_secs(60));
        assert_eq!(pauses.next(&asked), Some(Duration::from_secs(60)));
        let too_long = Error::unavailable("").with_retry_after(Duration::from_secs(181));
        assert_eq!(pauses.next(&too_long), None);
        tokio::time::advance(Duration::from_millis(1)).await;
        let forever = Error::unavailable("").with_retry_after(Duration::MAX);
        assert_eq!(pauses.next(&forever), None);
    }
}
