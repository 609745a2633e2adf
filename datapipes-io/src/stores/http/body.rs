//! The body of an answer as it arrives: counted, and ended with an error if it is too slow.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use datapipes::{Error, ErrorKind, Result};
use futures::{Stream, StreamExt};
use tokio::time::{Instant, Sleep, sleep_until};

use super::fault;

/// Minimum rate of a body while it is awaited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub bytes: u64,
    pub over: Duration,
}

/// A body that ends with an error unless the announced length arrives in time.
///
/// Only the time in which the consumer waits for more bytes counts: a consumer may be as slow as it
/// likes.
pub(super) struct Watched<S> {
    inner: S,
    name: String,
    got: u64,
    want: Option<u64>,
    rate: Rate,
    /// Number of bytes that arrived since the measurement began.
    lately: u64,
    /// Remaining time in which enough bytes have to arrive.
    left: Duration,
    /// Time at which the current wait began.
    since: Option<Instant>,
    alarm: Option<Pin<Box<Sleep>>>,
    done: bool,
}

impl<S> Watched<S> {
    pub fn new(inner: S, name: String, want: Option<u64>, rate: Rate) -> Self {
        let left = rate.over;
        Watched {
            inner,
            name,
            got: 0,
            want,
            rate,
            lately: 0,
            left,
            since: None,
            alarm: None,
            done: false,
        }
    }

    /// Records bytes that arrived: subtracts the waiting time, and restores the full time once
    /// enough bytes have arrived.
    fn arrived(&mut self, bytes: u64) {
        self.got += bytes;
        self.lately += bytes;
        let enough = self.lately as f64 >= self.rate.bytes as f64 * self.rate.over.as_secs_f64();
        let waited = self
            .since
            .take()
            .map_or(Duration::ZERO, |since| since.elapsed());
        // The time is exceeded and yet bytes are there: the consumer polled late, the sender was
        // not slow.
        if enough || waited > self.left {
            (self.lately, self.left) = (0, self.rate.over);
        } else {
            self.left -= waited;
        }
    }

    /// Waits until bytes arrive or the time is up.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let Some(end) = since.checked_add(self.left).filter(|_| self.rate.bytes > 0) else {
            return Poll::Pending;
        };
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(end)));
        if alarm.deadline() != end {
            alarm.as_mut().reset(end);
        }
        ready!(alarm.as_mut().poll(cx));
        let (rate, over) = (self.rate.bytes, self.rate.over);
        let so_far = fault::so_far(self.got, self.want);
        let words = format!(
            "{}: stalled after {so_far}: less than {rate} bytes a second over {over:?}",
            self.name
        );
        Poll::Ready(Error::unavailable(words).transient())
    }

    fn end(&mut self) -> Option<Result<Bytes>> {
        let (got, want) = (self.got, self.want?);
        let error = |kind| {
            Error::new(
                kind,
                format!("{}: {}", self.name, fault::so_far(got, Some(want))),
            )
        };
        match got.cmp(&want) {
            std::cmp::Ordering::Less => Some(Err(error(ErrorKind::Truncated).transient())),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(Err(error(ErrorKind::Protocol))),
        }
    }
}

impl<S: Stream<Item = reqwest::Result<Bytes>> + Unpin> Stream for Watched<S> {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        let this = &mut *self;
        if this.done {
            return Poll::Ready(None);
        }
        let item = match this.inner.poll_next_unpin(cx) {
            Poll::Ready(Some(Ok(data))) => {
                this.arrived(data.len() as u64);
                Some(Ok(data))
            }
            Poll::Ready(Some(Err(error))) => {
                Some(Err(fault::body(&this.name, this.got, this.want, error)))
            }
            Poll::Ready(None) => this.end(),
            Poll::Pending => Some(Err(ready!(this.wait(cx)))),
        };
        this.done = !matches!(item, Some(Ok(_)));
        Poll::Ready(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;

    const RATE: Rate = Rate {
        bytes: 1024,
        over: Duration::from_secs(10),
    };

    /// Sends a piece of `size` bytes every `pause`, `count` times.
    fn pieces(
        size: usize,
        pause: Duration,
        count: usize,
    ) -> impl Stream<Item = reqwest::Result<Bytes>> + Unpin {
        Box::pin(stream::unfold(0, move |n| async move {
            if n == count {
                return None;
            }
            tokio::time::sleep(pause).await;
            Some((Ok(Bytes::from(vec![0; size])), n + 1))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn row_62_a_byte_a_second_is_a_stall() {
        let begun = Instant::now();
        let mut body = Watched::new(
            pieces(1, Duration::from_secs(1), 1000),
            "u".into(),
            Some(1000),
            RATE,
        );
        let error = loop {
            if let Err(error) = body.next().await.unwrap() {
                break error;
            }
        };
        assert!(
            error.kind() == ErrorKind::Unavailable && error.is_transient(),
            "{error}"
        );
        assert_eq!(begun.elapsed().as_secs(), 10);
        assert!(
            error
                .to_string()
                .contains("u: stalled after 10 of 1000 bytes"),
            "{error}"
        );
        assert!(body.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn row_62_silence_is_a_stall() {
        let body = Watched::new(
            pieces(1, Duration::from_secs(3600), 1),
            "u".into(),
            None,
            RATE,
        );
        let ends: Vec<_> = body.collect().await;
        assert!(ends.len() == 1 && ends[0].as_ref().is_err_and(Error::is_transient));
    }

    #[tokio::test(start_paused = true)]
    async fn row_62_a_slow_but_steady_body_takes_as_long_as_it_takes() {
        let body = Watched::new(
            pieces(2000, Duration::from_secs(1), 1000),
            "u".into(),
            Some(2_000_000),
            RATE,
        );
        assert!(body.all(|piece| async move { piece.is_ok() }).await);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_rate_a_body_may_rest() {
        for (bytes, over) in [(0, Duration::from_secs(1)), (1, Duration::MAX)] {
            let rate = Rate { bytes, over };
            let mut body = Watched::new(
                pieces(1, Duration::from_secs(9999), 2),
                "u".into(),
                Some(2),
                rate,
            );
            assert!(body.next().await.unwrap().is_ok() && body.next().await.unwrap().is_ok());
            assert!(body.next().await.is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_consumer_may_be_slow() {
        let mut body = Watched::new(
            pieces(1, Duration::from_millis(1), 20),
            "u".into(),
            Some(20),
            RATE,
        );
        while let Some(piece) = body.next().await {
            piece.unwrap();
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        // A consumer may also poll once and then do something else while the answer waits.
        let mut body = Watched::new(
            pieces(1, Duration::from_secs(9), 20),
            "u".into(),
            Some(20),
            RATE,
        );
        for _ in 0..20 {
            assert!(futures::poll!(body.next()).is_pending());
            tokio::time::sleep(Duration::from_secs(60)).await;
            body.next().await.unwrap().unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rows_57_and_58_the_length_is_what_was_announced() {
        for (want, kind) in [(3, ErrorKind::Protocol), (5, ErrorKind::Truncated)] {
            let body = Watched::new(pieces(4, Duration::ZERO, 1), "u".into(), Some(want), RATE);
            let ends: Vec<_> = body.collect().await;
            assert_eq!(ends.len(), 2);
            assert_eq!(ends[1].as_ref().unwrap_err().kind(), kind);
        }
    }
}
