//! A limit on requests and bytes per second.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Result, lock};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::time::{Instant, sleep};

use super::bucket::Bucket;
use crate::stores::{Body, Get, Meta, Object, Store};

/// Maximum load of a store per second; see [`Rate`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerSecond {
    /// Number of requests.
    pub requests: f64,
    /// Number of bytes of bodies.
    pub bytes: f64,
}

impl Default for PerSecond {
    /// Returns no limits.
    fn default() -> Self {
        PerSecond {
            requests: f64::INFINITY,
            bytes: f64::INFINITY,
        }
    }
}

/// A store with limits on requests and bytes per second; see
/// [`StoreExt::rate`](crate::StoreExt::rate).
///
/// Each of two token buckets holds at most the tokens of one second, which may pass at once after a
/// pause. Requests that come too early wait, in order. The bytes of a piece are counted when the
/// piece has arrived, and the piece is held back until the rate allows them. The limit thus applies
/// to the bytes that are returned, and slows the connection down.
///
/// A listing counts as one request. The store's own [`read`](Store::read) is not used: a body is
/// read piece by piece. Memory holds one piece of each body.
#[derive(Clone, Debug)]
pub struct Rate<S> {
    inner: Arc<S>,
    buckets: Arc<Buckets>,
}

#[derive(Debug)]
struct Buckets {
    began: Instant,
    requests: Option<Mutex<Bucket>>,
    bytes: Option<Mutex<Bucket>>,
}

impl<S> Rate<S> {
    /// Wraps a store.
    pub fn new(inner: S, most: PerSecond) -> Self {
        let bucket = |rate: f64| {
            rate.is_finite()
                .then(|| Mutex::new(Bucket::new(rate, rate.max(1.0))))
        };
        let (requests, bytes) = (bucket(most.requests), bucket(most.bytes));
        let buckets = Buckets {
            began: Instant::now(),
            requests,
            bytes,
        };
        Rate {
            inner: Arc::new(inner),
            buckets: Arc::new(buckets),
        }
    }
}

impl Buckets {
    async fn pay(&self, bucket: &Option<Mutex<Bucket>>, tokens: usize) {
        let Some(bucket) = bucket else { return };
        let now = self.began.elapsed();
        let wait = lock(bucket).take(now, tokens as f64);
        if wait > Duration::ZERO {
            sleep(wait).await;
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for Rate<S> {
    names_of!(inner);
    revision_of!(inner);

    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        self.buckets.pay(&self.buckets.requests, 1).await;
        let object = self.inner.get(key, get).await?;
        if self.buckets.bytes.is_none() {
            return Ok(object);
        }
        let buckets = self.buckets.clone();
        let body = object.body.then(move |piece| {
            let buckets = buckets.clone();
            async move {
                if let Ok(piece) = &piece {
                    buckets.pay(&buckets.bytes, piece.len()).await;
                }
                piece
            }
        });
        Ok(Object {
            body: Body::stream(body),
            ..object
        })
    }

    async fn head(&self, key: &str) -> Result<Meta> {
        self.buckets.pay(&self.buckets.requests, 1).await;
        self.inner.head(key).await
    }

    async fn read(&self, key: &str) -> Result<Bytes> {
        self.get(key, Get::default()).await?.bytes().await
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        let (buckets, listed) = (self.buckets.clone(), self.inner.list(prefix));
        let paid = async move {
            buckets.pay(&buckets.requests, 1).await;
            listed
        };
        stream::once(paid).flatten().boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::{InMemory, StoreExt};
    use crate::testing::{Reaction, Scripted, check_store, fixtures};

    #[tokio::test(start_paused = true)]
    async fn keeps_the_contract_of_a_store() {
        check_store(&InMemory::from_iter(fixtures()).rate(PerSecond::default())).await;
        check_store(&InMemory::from_iter(fixtures()).rate(PerSecond {
            requests: 10.0,
            bytes: 1e6,
        }))
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn requests_and_bytes_come_at_the_rate_that_was_asked() {
        let script = Scripted::from_iter([("k", vec![0; 1000])]);
        let store = script.clone().rate(PerSecond {
            requests: 20.0,
            ..PerSecond::default()
        });
        let begun = Instant::now();
        futures::future::join_all((0..120).map(|_| store.read("k"))).await;
        assert_eq!(
            begun.elapsed().as_millis(),
            5000,
            "20 at once, then 100 at 20 a second"
        );

        script.usual(Reaction::default().pieces(100, Duration::ZERO));
        let store = script.rate(PerSecond {
            bytes: 10_000.0,
            ..PerSecond::default()
        });
        let begun = Instant::now();
        let read = futures::future::join_all((0..60).map(|_| store.read("k"))).await;
        assert!(read.into_iter().all(|data| data.unwrap().len() == 1000));
        assert_eq!(begun.elapsed().as_millis(), 5000);
    }
}
