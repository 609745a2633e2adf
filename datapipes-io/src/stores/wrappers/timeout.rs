//! Timeouts for requests that make no progress.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Error, Result};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::time::{Instant, timeout};

use crate::stores::{Body, Get, Meta, Object, Store};

/// Time limits of a request; see [`Timeout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// Maximum time until the answer has begun, and for each step of a listing.
    pub first: Duration,
    /// Length of a period of waiting for a body.
    pub window: Duration,
    /// Minimum number of bytes that have to arrive in each period, unless the body ends. (A limit
    /// on each piece alone would never end a body of one byte a second.)
    pub bytes: u64,
    /// Maximum time for the whole request.
    pub total: Duration,
}

impl Default for TimeLimits {
    /// Returns the defaults: 30 s until the answer, then 1 KiB/s over 10 s; no limit for the whole
    /// request.
    fn default() -> Self {
        TimeLimits {
            first: Duration::from_secs(30),
            window: Duration::from_secs(10),
            bytes: 10 << 10,
            total: Duration::MAX,
        }
    }
}

/// A store that ends requests without progress; see
/// [`StoreExt::timeout`](crate::StoreExt::timeout).
///
/// Only the time spent in waiting for the store counts, not the time of the consumer between two
/// pieces. A timeout is a transient error of kind `Unavailable`. The store's own
/// [`read`](Store::read) is not used: a body is read piece by piece.
///
/// Each request costs a timer, and so does each piece that does not come at once.
#[derive(Clone, Debug)]
pub struct Timeout<S> {
    inner: Arc<S>,
    limits: TimeLimits,
}

impl<S> Timeout<S> {
    /// Wraps a store.
    pub fn new(inner: S, limits: TimeLimits) -> Self {
        Timeout {
            inner: Arc::new(inner),
            limits,
        }
    }
}

/// Waits at most for the given time, and returns the elapsed time.
async fn within<T>(most: Duration, wait: impl Future<Output = T>) -> (Option<T>, Duration) {
    let begun = Instant::now();
    (timeout(most, wait).await.ok(), begun.elapsed())
}

fn late(url: &str, what: String) -> Error {
    Error::unavailable(format!("{url}: {what}")).transient()
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for Timeout<S> {
    names_of!(inner);
    revision_of!(inner);

    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        let TimeLimits {
            first,
            window,
            bytes,
            total,
        } = self.limits;
        let most = first.min(total);
        let (object, waited) = within(most, self.inner.get(key, get)).await;
        let object =
            object.ok_or_else(|| late(&self.url_of(key), format!("no answer in {most:?}")))??;

        /// Remaining time of the body.
        struct Left {
            body: Body,
            url: String,
            total: Duration,
            window: Duration,
            bytes: u64,
        }
        let begin = Left {
            body: object.body,
            url: object.url.clone(),
            total: total.saturating_sub(waited),
            window,
            bytes,
        };
        let body = stream::unfold(Some(begin), move |left| async move {
            let mut left = left?;
            let most = left.window.min(left.total);
            let (piece, waited) = within(most, left.body.next()).await;
            left.window = left.window.saturating_sub(waited);
            left.total = left.total.saturating_sub(waited);
            let piece = match piece {
                Some(piece) => piece?,
                None if left.total.is_zero() => {
                    return Some((Err(late(&left.url, format!("not read in {total:?}"))), None));
                }
                None => {
                    let got = bytes - left.bytes;
                    let what = format!("stalled: {got} bytes in {window:?}, less than {bytes}");
                    return Some((Err(late(&left.url, what)), None));
                }
            };
            if let Ok(piece) = &piece {
                left.bytes = left.bytes.saturating_sub(piece.len() as u64);
                if left.bytes == 0 {
                    (left.window, left.bytes) = (window, bytes);
                }
            }
            Some((piece, Some(left)))
        });
        Ok(Object {
            body: Body::stream(body),
            ..object
        })
    }

    async fn head(&self, key: &str) -> Result<Meta> {
        let most = self.limits.first.min(self.limits.total);
        let (meta, _) = within(most, self.inner.head(key)).await;
        meta.ok_or_else(|| late(&self.url_of(key), format!("no answer in {most:?}")))?
    }

    async fn read(&self, key: &str) -> Result<Bytes> {
        self.get(key, Get::default()).await?.bytes().await
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        let (most, url) = (self.limits.first, self.url_of(prefix));
        stream::unfold(Some(self.inner.list(prefix)), move |listed| {
            let url = url.clone();
            async move {
                let mut listed = listed?;
                match timeout(most, listed.next()).await {
                    Ok(meta) => Some((meta?, Some(listed))),
                    Err(_) => Some((
                        Err(late(&url, format!("no more of the listing in {most:?}"))),
                        None,
                    )),
                }
            }
        })
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::{InMemory, StoreExt};
    use crate::testing::{Reaction, Scripted, check_store, fixtures};
    use datapipes::ErrorKind;

    const S: Duration = Duration::from_secs(1);

    fn store(reaction: Reaction) -> (Scripted, Timeout<Scripted>) {
        let store = Scripted::from_iter([("k", vec![7; 100_000])]);
        store.usual(reaction);
        (store.clone(), store.timeout(TimeLimits::default()))
    }

    async fn fails(reaction: Reaction, after: u64, words: &str) {
        let (script, store) = store(reaction);
        let begun = Instant::now();
        let error = store.read("k").await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unavailable && error.is_transient(),
            "{error}"
        );
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(begun.elapsed().as_secs(), after);
        assert_eq!(script.in_flight(), 0, "what was ended is dropped");
    }

    #[tokio::test]
    async fn keeps_the_contract_of_a_store() {
        check_store(&InMemory::from_iter(fixtures()).timeout(TimeLimits::default())).await;
    }

    #[tokio::test(start_paused = true)]
    async fn row_62_no_answer_a_stall_and_one_byte_a_second_are_ended() {
        fails(
            Reaction::default().after(31 * S),
            30,
            "scripted:///k: no answer in 30s",
        )
        .await;
        fails(Reaction::default().stall(0), 10, "stalled: 0 bytes in 10s").await;
        fails(
            Reaction::default().pieces(9000, S).stall(90_000),
            20,
            "stalled: 0 bytes in 10s",
        )
        .await;
        fails(
            Reaction::default().pieces(1, S),
            10,
            " bytes in 10s, less than 10240",
        )
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_steady_body_a_slow_consumer_and_a_small_object_are_not() {
        let (_, store) = store(Reaction::default().after(29 * S).pieces(1100, S));
        assert_eq!(store.read("k").await.unwrap().len(), 100_000);
        let mut body = store.get("k", Get::default()).await.unwrap().body;
        let mut got = 0;
        while let Some(piece) = body.next().await {
            got += piece.unwrap().len();
            tokio::time::sleep(100 * S).await;
        }
        assert_eq!(got, 100_000);
        let small = Scripted::from_iter([("k", "12345")]);
        small.usual(Reaction::default().pieces(1, S));
        assert_eq!(
            small
                .timeout(TimeLimits::default())
                .read("k")
                .await
                .unwrap(),
            "12345"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_whole_has_a_limit_too() {
        let (_, store) = store(Reaction::default().after(5 * S).pieces(2000, S));
        let store = store.timeout(TimeLimits {
            total: 20 * S,
            ..TimeLimits::default()
        });
        let begun = Instant::now();
        let error = store.read("k").await.unwrap_err().to_string();
        assert!(error.contains("not read in 20s"), "{error}");
        assert_eq!(begun.elapsed(), 20 * S);
    }
}
