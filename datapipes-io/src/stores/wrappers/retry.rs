//! Retries of transient errors, and resumption of bodies that were cut.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Backoff, Error, ErrorKind, Result, lock};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::bucket::Bucket;
use crate::stores::pieces::Pieces;
use crate::stores::{Body, Get, Meta, Object, Store};

/// A store that retries transient errors, and resumes bodies that were cut; see
/// [`StoreExt::retry`](crate::StoreExt::retry).
///
/// - Only [transient](Error::transient) errors are retried, after pauses given by [`Backoff`]. If a
///   service asks for a pause, the retry waits that long, but not beyond the deadline, at which the
///   last try is made.
/// - A body that was cut, or ends too early, is requested again from that position on, if the
///   object has a version, and only of that version. No byte is returned twice. No two versions are
///   mixed; if the object was replaced, the error is `Changed`. Without a version, a body is
///   requested again only if none of it was returned yet.
/// - [`read`](Store::read) returns nothing before the end, so it may also begin again from the
///   start, and does so if the object has no version, was replaced, or cannot be requested in part.
/// - A listing that breaks off begins again, and the keys and errors that were already returned are
///   skipped.
///   The listing must have the same order each time; otherwise the error is `Changed`.
/// - For one request, tries are counted over its whole body; each mebibyte that arrives resets the
///   count.
/// - All requests of the store share a *budget* of retries. It defaults to 500 at once and then 10
///   a second ([`with_budget`](Retry::with_budget)); each success gives one back. When the budget
///   is used up, retries queue, so that a service that is down gets some requests a second and not
///   one from each waiting request.
/// - The last error contains the number of tries, their duration, and the first error. Each pause
///   is an event of `tracing`: the first five of a store, and those at which their number has
///   doubled, are warnings, the others are at level debug.
///
/// Memory holds nothing of a body, except the object that `read` reads, and the last key of a
/// listing. Each body costs one box.
#[derive(Debug)]
pub struct Retry<S>(Arc<Shared<S>>);

datapipes::clone_fields!(Retry<S> { 0 });

#[derive(Debug)]
struct Shared<S> {
    inner: S,
    backoff: Backoff,
    budget: Mutex<Bucket>,
    began: Instant,
    /// Number of retries of all requests.
    retried: AtomicU64,
}

impl<S> Retry<S> {
    /// Wraps a store.
    pub fn new(inner: S, backoff: Backoff) -> Self {
        Retry::with_budget(inner, backoff, 500, 10.0)
    }

    /// Wraps a store with a budget: its requests may together make `burst` retries at once, and
    /// `per_second` in each second after that.
    pub fn with_budget(inner: S, backoff: Backoff, burst: u32, per_second: f64) -> Self {
        let budget = Mutex::new(Bucket::new(per_second, f64::from(burst)));
        Retry(Arc::new(Shared {
            inner,
            backoff,
            budget,
            began: Instant::now(),
            retried: AtomicU64::new(0),
        }))
    }
}

impl<S: Store> Retry<S> {
    /// Makes a request of one answer until it succeeds.
    async fn again<T, F: Future<Output = Result<T>>>(
        &self,
        url: String,
        request: impl Fn() -> F,
    ) -> Result<T> {
        let mut tries = Tries::of(url);
        loop {
            match request().await {
                Err(error) => tries.again(error, &self.0).await?,
                answer => return answer,
            }
        }
    }
}

/// Number of bytes that have to arrive after an error to reset the count of tries.
const FORGIVEN: u64 = 1 << 20;

/// The tries of one request, and their errors.
#[derive(Debug)]
struct Tries {
    url: String,
    /// Time from which the deadline counts.
    begun: Option<Instant>,
    failed: u32,
    pause: Duration,
    first: Option<String>,
}

impl Tries {
    fn of(url: String) -> Self {
        Tries {
            url,
            begun: Some(Instant::now()),
            failed: 0,
            pause: Duration::ZERO,
            first: None,
        }
    }

    fn forget(&mut self) {
        (self.begun, self.failed, self.pause, self.first) = (None, 0, Duration::ZERO, None);
    }

    /// Handles a failure: waits and permits a retry, or returns the final error.
    async fn again<S>(&mut self, error: Error, shared: &Shared<S>) -> Result<()> {
        if error.is_transient() {
            self.wait(error, shared).await
        } else {
            Err(self.over(error, ""))
        }
    }

    /// Handles any error like [`again`](Tries::again), transient or not.
    async fn wait<S>(&mut self, error: Error, shared: &Shared<S>) -> Result<()> {
        let backoff = &shared.backoff;
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let left = backoff.deadline.saturating_sub(begun.elapsed());
        if self.failed + 1 >= backoff.tries || left.is_zero() {
            return Err(self.over(error, ""));
        }
        self.pause = backoff.next_pause(self.pause);
        let mut pause = self
            .pause
            .max(error.retry_after().unwrap_or_default())
            .min(left);
        {
            let mut budget = lock(&shared.budget);
            let queue = budget.take(shared.began.elapsed(), 1.0);
            if queue > left {
                budget.give(1.0);
                drop(budget);
                return Err(self.over(error, ", no more while so many fail"));
            }
            pause = pause.max(queue);
        }
        self.failed += 1;
        let retried = 1 + shared.retried.fetch_add(1, Ordering::Relaxed);
        let (url, failed) = (&self.url, self.failed);
        if retried <= 5 || retried.is_power_of_two() {
            warn!(url, failed, retried, ?pause, %error, "tries again");
        } else {
            debug!(url, failed, retried, ?pause, %error, "tries again");
        }
        self.first.get_or_insert_with(|| error.to_string());
        sleep(pause).await;
        Ok(())
    }

    /// Returns the final error.
    fn over(&self, error: Error, why: &str) -> Error {
        if self.failed == 0 {
            return error;
        }
        let took = self
            .begun
            .map(|begun| begun.elapsed())
            .unwrap_or_default()
            .as_secs_f64();
        let first = self
            .first
            .as_deref()
            .filter(|first| *first != error.to_string());
        let first = first
            .map(|first| format!("; at first: {first}; at last"))
            .unwrap_or_default();
        let words = format!(
            "{}: after {} tries in {took:.1} s{why}{first}",
            self.url,
            self.failed + 1
        );
        let mut last = Error::new(error.kind(), words);
        if error.is_transient() {
            last = last.transient();
        }
        last.with_source(error)
    }
}

impl<S: Store> Shared<S> {
    async fn open(&self, key: &str, get: &Get, tries: &mut Tries) -> Result<Object> {
        loop {
            match self.inner.get(key, get.clone()).await {
                Ok(object) => {
                    lock(&self.budget).give(1.0);
                    return Ok(object);
                }
                Err(error) => tries.again(error, self).await?,
            }
        }
    }
}

/// A body that is resumed where it was cut.
struct Resumed<S> {
    shared: Arc<Shared<S>>,
    key: String,
    version: Option<String>,
    get: Get,
    /// The announced range.
    range: Range<u64>,
    /// Position that was reached.
    at: u64,
    since: u64,
    body: Body,
    tries: Tries,
}

/// Reason for which a body ended early.
enum Broken {
    /// The body may be requested again from the start, as far as the tries permit.
    Here(Error),
    /// The error is final.
    ForGood(Error),
}

impl<S: Store> Resumed<S> {
    fn new(shared: Arc<Shared<S>>, key: &str, get: Get, object: Object, mut tries: Tries) -> Self {
        // From here on the duration depends on the consumer.
        tries.begun = None;
        let Object {
            meta, range, body, ..
        } = object;
        let (key, at) = (key.to_owned(), range.start);
        Resumed {
            shared,
            key,
            version: meta.version,
            get,
            range,
            at,
            since: 0,
            body,
            tries,
        }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Broken> {
        loop {
            let error = match self.body.next().await {
                Some(Ok(piece)) if piece.is_empty() => continue,
                Some(Ok(piece)) => {
                    let len = piece.len() as u64;
                    if len > self.range.end - self.at {
                        let want = self.range.end - self.range.start;
                        let words =
                            format!("{}: more than the {want} bytes announced", self.tries.url);
                        return Err(Broken::ForGood(Error::protocol(words)));
                    }
                    self.at += len;
                    self.since += len;
                    if self.since >= FORGIVEN {
                        self.since = 0;
                        self.tries.forget();
                    }
                    return Ok(Some(piece));
                }
                // Nothing is missing.
                _ if self.at == self.range.end => return Ok(None),
                None if self.range.end == u64::MAX => return Ok(None),
                None => {
                    let (got, want) = (
                        self.at - self.range.start,
                        self.range.end - self.range.start,
                    );
                    let words = format!("{}: {got} of {want} bytes", self.tries.url);
                    Error::truncated(words).transient()
                }
                Some(Err(error)) => error,
            };
            self.resume(error).await?;
        }
    }

    async fn resume(&mut self, mut error: Error) -> Result<(), Broken> {
        self.since = 0;
        if self.version.is_none() && self.at > self.range.start && error.is_transient() {
            return Err(Broken::Here(error));
        }
        loop {
            self.tries
                .again(error, &self.shared)
                .await
                .map_err(Broken::ForGood)?;
            let get = match self.at == self.range.start {
                true => self.get.clone(),
                false => Get::range(self.at..self.range.end),
            };
            match self
                .shared
                .inner
                .get(&self.key, get.of_version(self.version.clone()))
                .await
            {
                Ok(object) => {
                    let same_end = [object.range.end, self.range.end].contains(&u64::MAX)
                        || object.range.end == self.range.end;
                    if object.meta.version != self.version || !same_end {
                        let words = format!("{}: while it was read", self.tries.url);
                        return Err(Broken::Here(Error::changed(words)));
                    }
                    if object.range.start != self.at {
                        let (want, got) = (self.at, object.range.start);
                        let words =
                            format!("{}: asked from byte {want} on, got {got}", self.tries.url);
                        return Err(Broken::ForGood(Error::protocol(words)));
                    }
                    self.body = object.body;
                    return Ok(());
                }
                Err(changed) if changed.kind() == ErrorKind::Changed => {
                    return Err(Broken::Here(changed));
                }
                // The server may not support ranges.
                Err(strange)
                    if strange.kind() == ErrorKind::Protocol && self.at > self.range.start =>
                {
                    return Err(Broken::Here(strange));
                }
                Err(next) => error = next,
            }
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for Retry<S> {
    names_of!(0.inner);

    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        let mut tries = Tries::of(self.url_of(key));
        let object = self.0.open(key, &get, &mut tries).await?;
        let (meta, range, url) = (
            object.meta.clone(),
            object.range.clone(),
            object.url.clone(),
        );
        let resumed = Resumed::new(self.0.clone(), key, get, object, tries);
        let body = Body::stream(stream::unfold(Some(resumed), |resumed| async {
            let mut resumed = resumed?;
            match resumed.next().await {
                Ok(piece) => Some((Ok(piece?), Some(resumed))),
                Err(Broken::Here(error)) => Some((Err(resumed.tries.over(error, "")), None)),
                Err(Broken::ForGood(error)) => Some((Err(error), None)),
            }
        }));
        Ok(Object {
            meta,
            range,
            body,
            url,
        })
    }

    async fn head(&self, key: &str) -> Result<Meta> {
        self.again(self.url_of(key), || self.0.inner.head(key))
            .await
    }

    fn revision(&self) -> BoxFuture<'_, Result<Option<String>>> {
        let url = self.url().to_owned();
        Box::pin(self.again(url, || self.0.inner.revision()))
    }

    async fn read(&self, key: &str) -> Result<Bytes> {
        let mut tries = Tries::of(self.url_of(key));
        let begun = tries.begun;
        loop {
            let object = self.0.open(key, &Get::default(), &mut tries).await?;
            let (meta, range, url) = (
                object.meta.clone(),
                object.range.clone(),
                object.url.clone(),
            );
            let mut resumed = Resumed::new(self.0.clone(), key, Get::default(), object, tries);
            resumed.tries.begun = begun;
            let mut pieces = Pieces::of(&range);
            let error = loop {
                match resumed.next().await {
                    Ok(Some(piece)) => pieces.push(piece),
                    Ok(None) => return Object::joined(url, meta, range, pieces).bytes().await,
                    Err(Broken::Here(error)) => break error,
                    Err(Broken::ForGood(error)) => return Err(error),
                }
            };
            tries = resumed.tries;
            tries.wait(error, &self.0).await?;
        }
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        let listing = Listing {
            listed: self.0.inner.list(prefix),
            tries: Tries {
                begun: None,
                ..Tries::of(self.url_of(prefix))
            },
            shared: self.0.clone(),
            prefix: prefix.to_owned(),
            last: None,
            given: 0,
            repeated: None,
            failed: 0,
            failed_again: 0,
            ascending: true,
        };
        let next = |listing: Option<Listing<S>>| async {
            let mut listing = listing?;
            match listing.next().await {
                Ok(meta) => Some((Ok(meta?), Some(listing))),
                // The store decides if anything follows a final error.
                Err((error, on)) => Some((Err(error), on.then_some(listing))),
            }
        };
        stream::unfold(Some(listing), next).boxed()
    }
}

struct Listing<S> {
    shared: Arc<Shared<S>>,
    prefix: String,
    listed: BoxStream<'static, Result<Meta>>,
    tries: Tries,
    /// The last key that was returned, the number of keys, and true if all were in ascending order.
    last: Option<String>,
    given: u64,
    ascending: bool,
    /// Number of entries that the current listing repeats so far; `None` if it is the first, or has given
    /// an entry that is new.
    repeated: Option<u64>,
    /// Number of errors that were returned, and of those in the current listing.
    failed: u64,
    failed_again: u64,
}

impl<S: Store> Listing<S> {
    /// Returns the next entry; or an error, and true if more entries may follow.
    async fn next(&mut self) -> Result<Option<Meta>, (Error, bool)> {
        loop {
            match self.listed.next().await {
                None if self.repeated.is_some_and(|known| known < self.given)
                    && !self.ascending =>
                {
                    return Err((self.changed(), false));
                }
                None => return Ok(None),
                Some(Err(error)) if error.is_transient() => {
                    self.tries
                        .again(error, &self.shared)
                        .await
                        .map_err(|error| (error, false))?;
                    self.listed = self.shared.inner.list(&self.prefix);
                    (self.repeated, self.failed_again) = (Some(0), 0);
                }
                Some(Err(error)) => {
                    self.failed_again += 1;
                    if self.failed_again > self.failed {
                        self.failed = self.failed_again;
                        return Err((error, true));
                    }
                }
                Some(Ok(meta)) => {
                    match (&mut self.repeated, &self.last) {
                        (Some(_), Some(last)) if self.ascending && meta.key <= *last => continue,
                        (Some(known), Some(last)) if !self.ascending && *known < self.given => {
                            *known += 1;
                            if *known == self.given && meta.key != *last {
                                return Err((self.changed(), false));
                            }
                            continue;
                        }
                        _ => {}
                    }
                    self.repeated = None;
                    self.ascending &= self.last.as_ref().is_none_or(|last| *last < meta.key);
                    self.last = Some(meta.key.clone());
                    self.given += 1;
                    self.tries.forget();
                    return Ok(Some(meta));
                }
            }
        }
    }

    fn changed(&self) -> Error {
        Error::changed(format!("{}: the listing became another", self.tries.url))
    }
}

#[cfg(test)]
mod tests;
