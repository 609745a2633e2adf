//! Second requests for the slowest reads.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::task::{self, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Error, Result, lock};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use tokio::time::{Instant, Sleep, sleep_until};
use tracing::debug;

use crate::stores::pieces::Pieces;
use crate::stores::{Get, Meta, Object, Store};

/// Settings for second requests; see [`Hedge`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HedgePolicy {
    /// Quantile of normal durations: a request that takes longer is hedged.
    pub quantile: f64,
    /// Maximum number of second requests, as a fraction of all requests.
    pub extra: f64,
    /// Minimum time before a second request.
    pub least: Duration,
}

impl Default for HedgePolicy {
    /// Returns the defaults: the 95th percentile; one in twenty; at least 1 ms.
    fn default() -> Self {
        HedgePolicy {
            quantile: 0.95,
            extra: 0.05,
            least: Duration::from_millis(1),
        }
    }
}

/// A store that makes a second request for the slowest reads; see
/// [`StoreExt::hedge`](crate::StoreExt::hedge).
///
/// If a request takes longer than 95 % of the earlier requests, a second request is made. The first
/// of the two to end counts, and the other is dropped (Dean and Barroso, *The Tail at Scale*,
/// 2013).
///
/// - The wrapper measures the time to the first byte and, for the body, the time per byte, so that
///   a large object is not mistaken for a slow one. It uses the last 256 of each. Nothing is hedged
///   before 32 reads.
/// - [`read`](Store::read) is hedged to its end, since a slow connection may answer quickly and
///   send its body slowly. The second request asks only for the missing part, of the same version;
///   without versions, for the whole object. Bytes are joined only if both parts are of the same
///   version.
/// - [`get`](Store::get) and [`head`](Store::head) are hedged until the answer has begun: bytes
///   that were returned cannot be replaced.
/// - If one of the two requests fails, the other counts; if both do, the error is that of the
///   first.
///
/// Memory holds the bytes read so far, and the pieces of both requests. Each request costs a timer.
pub struct Hedge<S> {
    inner: Arc<S>,
    policy: HedgePolicy,
    seen: Arc<Mutex<Seen>>,
}

datapipes::clone_fields!(Hedge<S> { inner, policy, seen });

impl<S: fmt::Debug> fmt::Debug for Hedge<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hedge")
            .field("inner", &self.inner)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// Number of measurements that are stored, and minimum number needed.
const KEPT: usize = 256;
const NEEDED: usize = 32;
/// Minimum length of a body in the measurements: the time of a short body says nothing about its
/// rate.
const SHORTEST: u64 = 16 << 10;
/// Maximum number of second requests in the budget.
const SAVED: f64 = 10.0;

/// Measurements of earlier requests.
#[derive(Debug, Default)]
struct Seen {
    /// Seconds to the first byte.
    first: Times,
    /// Seconds per byte of the body.
    byte: Times,
    /// Number of second requests that may be made now.
    budget: f64,
}

#[derive(Debug, Default)]
struct Times(VecDeque<f64>);

impl Times {
    fn push(&mut self, seconds: f64) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(seconds);
    }

    fn quantile(&self, quantile: f64) -> Option<f64> {
        if self.0.len() < NEEDED {
            return None;
        }
        let mut times: Vec<f64> = self.0.iter().copied().collect();
        let at = ((times.len() as f64 * quantile) as usize).min(times.len() - 1);
        Some(*times.select_nth_unstable_by(at, f64::total_cmp).1)
    }
}

impl<S> Hedge<S> {
    /// Wraps a store.
    pub fn new(inner: S, policy: HedgePolicy) -> Self {
        Hedge {
            inner: Arc::new(inner),
            policy,
            seen: Arc::default(),
        }
    }

    /// Counts a request, and returns the time at which its first byte is due.
    fn begin(&self) -> Option<Instant> {
        let mut seen = lock(&self.seen);
        seen.budget = (seen.budget + self.policy.extra).min(SAVED);
        let usual = seen.first.quantile(self.policy.quantile)?;
        Some(Instant::now() + Duration::from_secs_f64(usual).max(self.policy.least))
    }

    /// Returns the time at which the rest of a body is due.
    fn rest(&self, bytes: u64) -> Option<Instant> {
        let usual =
            lock(&self.seen).byte.quantile(self.policy.quantile)? * bytes.max(SHORTEST) as f64;
        Some(Instant::now() + Duration::from_secs_f64(usual).max(self.policy.least))
    }

    /// Returns true, and pays for it, if a second request may be made now.
    fn pay(&self, url: &str) -> bool {
        let mut seen = lock(&self.seen);
        let may = seen.budget >= 1.0;
        if may {
            seen.budget -= 1.0;
            drop(seen);
            debug!(url, "asks a second time");
        }
        may
    }

    /// Returns the first of two requests that succeeds; the second begins when the first takes too
    /// long.
    async fn race<T: Send, F: Future<Output = Result<T>> + Send>(
        &self,
        url: &str,
        request: impl Fn() -> F + Send,
    ) -> Result<T> {
        let begun = Instant::now();
        let mut timer = self.begin().map(|at| Box::pin(sleep_until(at)));
        let mut first = Some(Box::pin(request()));
        let mut second: Option<std::pin::Pin<Box<F>>> = None;
        let mut failed = None;
        let outcome = loop {
            enum Event<T> {
                First(Result<T>),
                Second(Result<T>),
                Late,
            }
            let event = poll_fn(|cx| {
                if let Some(Poll::Ready(outcome)) =
                    first.as_mut().map(|first| first.as_mut().poll(cx))
                {
                    return Poll::Ready(Event::First(outcome));
                }
                if let Some(Poll::Ready(outcome)) =
                    second.as_mut().map(|second| second.as_mut().poll(cx))
                {
                    return Poll::Ready(Event::Second(outcome));
                }
                poll_timer(&mut timer, cx).map(|()| Event::Late)
            });
            match event.await {
                Event::Late => {
                    timer = None;
                    second = self.pay(url).then(|| Box::pin(request()));
                }
                Event::First(Err(error)) if second.is_some() => {
                    first = None;
                    failed = Some(error);
                }
                Event::Second(Err(_)) if first.is_some() => second = None,
                Event::Second(Err(other)) => break Err(failed.unwrap_or(other)),
                Event::First(outcome) | Event::Second(outcome) => break outcome,
            }
        };
        if outcome.is_ok() {
            lock(&self.seen).first.push(begun.elapsed().as_secs_f64());
        }
        outcome
    }
}

fn poll_timer(
    timer: &mut Option<std::pin::Pin<Box<Sleep>>>,
    cx: &mut task::Context<'_>,
) -> Poll<()> {
    match timer {
        Some(timer) => timer.as_mut().poll(cx),
        None => Poll::Pending,
    }
}

/// One of two requests for the same object.
struct Runner {
    steps: BoxStream<'static, Result<Step>>,
    opened: Option<(Meta, Range<u64>, Instant)>,
    pieces: Pieces,
}

enum Step {
    Opened(Meta, Range<u64>),
    Piece(Bytes),
}

impl Runner {
    fn new<S: Store>(inner: Arc<S>, key: String, get: Get) -> Self {
        let opened = stream::once(async move { inner.get(&key, get).await });
        let steps = opened.map_ok(|object| {
            let begin = stream::once(std::future::ready(Ok(Step::Opened(
                object.meta,
                object.range,
            ))));
            begin.chain(object.body.map_ok(Step::Piece))
        });
        Runner {
            steps: steps.try_flatten().boxed(),
            opened: None,
            pieces: Pieces::default(),
        }
    }

    /// Returns `Opened` once, then `Read` once the body is complete. Pieces are stored.
    fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<Now>> {
        loop {
            match std::task::ready!(self.steps.poll_next_unpin(cx)) {
                None => return Poll::Ready(Ok(Now::Read)),
                Some(Err(error)) => return Poll::Ready(Err(error)),
                Some(Ok(Step::Piece(piece))) => self.pieces.push(piece),
                Some(Ok(Step::Opened(meta, range))) => {
                    self.pieces = Pieces::of(&range);
                    self.opened = Some((meta, range, Instant::now()));
                    return Poll::Ready(Ok(Now::Opened));
                }
            }
        }
    }
}

enum Now {
    Opened,
    Read,
}

impl<S: Store> Hedge<S> {
    /// Returns a request for the part that the first one lacks, and the position of that part.
    fn second(&self, key: &str, first: &Runner) -> (Runner, u64) {
        let (get, from) = match &first.opened {
            Some((
                Meta {
                    version: Some(version),
                    ..
                },
                range,
                _,
            )) => {
                let from = first.pieces.len();
                let rest = (from > 0).then_some(from..range.end);
                (
                    Get {
                        range: rest,
                        version: Some(version.clone()),
                    },
                    from,
                )
            }
            _ => (Get::default(), 0),
        };
        (Runner::new(self.inner.clone(), key.to_owned(), get), from)
    }

    /// Records the duration of a whole read.
    fn remember(&self, begun: Instant, runner: &Runner) {
        let mut seen = lock(&self.seen);
        match &runner.opened {
            None => seen.first.push(begun.elapsed().as_secs_f64()),
            Some((_, range, opened)) => {
                seen.first.push((*opened - begun).as_secs_f64());
                // For a body that was not read to its end this is too low; recording nothing would
                // be worse.
                let all = if range.end == u64::MAX {
                    runner.pieces.len()
                } else {
                    range.end - range.start
                };
                seen.byte
                    .push(opened.elapsed().as_secs_f64() / all.max(SHORTEST) as f64);
            }
        }
    }

    async fn hedged(&self, key: &str, url: &str) -> Result<Bytes> {
        let begun = Instant::now();
        let mut timer = self.begin().map(|at| Box::pin(sleep_until(at)));
        let mut first = Runner::new(self.inner.clone(), key.to_owned(), Get::default());
        let mut second: Option<(Runner, u64)> = None;
        let mut failed: Option<Error> = None;
        loop {
            enum Event {
                First(Result<Now>),
                Second(Result<Now>),
                Late,
            }
            let event = poll_fn(|cx| {
                if failed.is_none()
                    && let Poll::Ready(now) = first.poll(cx)
                {
                    return Poll::Ready(Event::First(now));
                }
                if let Some(Poll::Ready(now)) = second.as_mut().map(|(second, _)| second.poll(cx)) {
                    return Poll::Ready(Event::Second(now));
                }
                poll_timer(&mut timer, cx).map(|()| Event::Late)
            });
            match event.await {
                Event::Late => {
                    timer = None;
                    second = self.pay(url).then(|| self.second(key, &first));
                }
                Event::First(Ok(Now::Opened)) => {
                    let rest = first.opened.as_ref().and_then(|(_, range, _)| {
                        let known = range.end != u64::MAX && second.is_none();
                        known.then(|| self.rest(range.end - range.start)).flatten()
                    });
                    timer = rest.map(|at| Box::pin(sleep_until(at)));
                }
                Event::First(Ok(Now::Read)) => {
                    self.remember(begun, &first);
                    let (meta, range, _) = first.opened.expect("it was opened before it was read");
                    let object = Object::joined(url.to_owned(), meta, range, first.pieces);
                    return object.bytes().await;
                }
                Event::First(Err(error)) => {
                    if second.is_none() {
                        return Err(error);
                    }
                    failed = Some(error);
                    timer = None;
                }
                Event::Second(Ok(Now::Opened)) => {
                    let fits = second
                        .as_ref()
                        .is_none_or(|(second, from)| fits(&first, second, *from));
                    if !fits {
                        if let Some(error) = failed {
                            return Err(error);
                        }
                        second = None;
                    }
                }
                Event::Second(Ok(Now::Read)) => {
                    self.remember(begun, &first);
                    let (second, from) = second.expect("it has just been read");
                    let (meta, range, _) = second.opened.expect("it was opened before it was read");
                    let mut pieces = first.pieces;
                    pieces.truncate(from);
                    pieces.append(second.pieces);
                    let range = range.start - from..range.end;
                    let object = Object::joined(url.to_owned(), meta, range, pieces);
                    return object.bytes().await;
                }
                Event::Second(Err(_)) => match failed {
                    Some(error) => return Err(error),
                    None => second = None,
                },
            }
        }
    }
}

/// Returns true if the bytes of the second request continue those of the first.
fn fits(first: &Runner, second: &Runner, from: u64) -> bool {
    let (Some((first, all, _)), Some((second, range, _))) = (&first.opened, &second.opened) else {
        return from == 0;
    };
    range.start == from && (from == 0 || (first.version == second.version && range.end == all.end))
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for Hedge<S> {
    names_of!(inner);
    revision_of!(inner);

    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        self.race(&self.url_of(key), || self.inner.get(key, get.clone()))
            .await
    }

    async fn head(&self, key: &str) -> Result<Meta> {
        self.race(&self.url_of(key), || self.inner.head(key)).await
    }

    async fn read(&self, key: &str) -> Result<Bytes> {
        let url = self.url_of(key);
        self.hedged(key, &url).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        self.inner.list(prefix)
    }
}

#[cfg(test)]
mod tests;
