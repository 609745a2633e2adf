//! Tries again what may pass, and goes on where a body was cut.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Backoff, Error, ErrorKind, Result};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::bucket::Bucket;
use crate::stores::pieces::Pieces;
use crate::stores::{Body, Get, Meta, Object, Store};

/// Tries again what may pass, and goes on where a body was cut; see
/// [`StoreExt::retry`](super::StoreExt::retry).
///
/// - Only errors that are [passing](Error::transient) are tried again, after pauses by [`Backoff`].
///   A service that says how long to leave it alone is left alone so long, though never past the
///   deadline: then it is asked one last time.
/// - A body that was cut, or ends too early, is asked for from there on, if the object has a
///   version, and only of that version. No byte is given out twice, and no two versions are mixed:
///   an object that became another is `Changed`. Without a version, only a body of which nothing
///   was given out yet is asked for again.
/// - [`read`](Store::read) gives nothing out before the end, so it may also begin again from
///   nothing, and does so where the object has no version, became another, or cannot be asked for
///   in part.
/// - A listing that breaks off begins again, and the keys that were given out are left out. It must
///   have the same order each time; where it has not, it is `Changed`.
/// - For one request, tries are counted over its whole body; a mebibyte that arrives pays for what
///   was before.
/// - All requests of the store share a *budget* of tries beyond the first: 500 at once, then 10 a
///   second, if not [set](Retry::with_budget) otherwise; each success gives one back. Where it is
///   used up they queue, so that a service that is down is asked some times a second and not by
///   each request by itself.
/// - The last error says how many tries there were, how long they took, and what the first one was.
///   Each pause is an event of `tracing`: the first five of a store, and those at which their
///   number has doubled, are warnings, the others are at level debug.
///
/// It holds nothing of a body, but all of an object that is read by `read`; a listing's last key.
/// It costs one box a body.
#[derive(Debug)]
pub struct Retry<S>(Arc<Shared<S>>);

impl<S> Clone for Retry<S> {
    fn clone(&self) -> Self {
        Retry(self.0.clone())
    }
}

#[derive(Debug)]
struct Shared<S> {
    inner: S,
    backoff: Backoff,
    budget: Mutex<Bucket>,
    began: Instant,
    /// Tries beyond the first, of all requests.
    retried: AtomicU64,
}

impl<S> Retry<S> {
    /// Wraps a store.
    pub fn new(inner: S, backoff: Backoff) -> Self {
        Retry::with_budget(inner, backoff, 500, 10.0)
    }

    /// Wraps a store whose requests may together make so many tries beyond the first at once, and
    /// so many in a second after that.
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

impl<S> Shared<S> {
    fn budget(&self) -> MutexGuard<'_, Bucket> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// So many bytes of a body that arrive after an error make up for it.
const FORGIVEN: u64 = 1 << 20;

/// The tries of one request, and what came of them.
#[derive(Debug)]
struct Tries {
    url: String,
    /// From when the deadline counts.
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

    /// After a failure: waits and says that it may be tried again, or gives the error back for
    /// good.
    async fn again<S>(&mut self, error: Error, shared: &Shared<S>) -> Result<()> {
        if error.is_transient() {
            self.wait(error, shared).await
        } else {
            Err(self.over(error, ""))
        }
    }

    /// As [`again`](Tries::again), for any error.
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
            let mut budget = shared.budget();
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

    /// The error that ends it.
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
                    self.budget().give(1.0);
                    return Ok(object);
                }
                Err(error) => tries.again(error, self).await?,
            }
        }
    }
}

/// A body that goes on where it was cut.
struct Resumed<S> {
    shared: Arc<Shared<S>>,
    key: String,
    version: Option<String>,
    get: Get,
    /// What was announced.
    range: Range<u64>,
    /// How far it came.
    at: u64,
    since: u64,
    body: Body,
    tries: Tries,
}

/// Why a body ended before its end.
enum Broken {
    /// It may be asked for again from nothing, as far as the tries go.
    Here(Error),
    /// That is all.
    ForGood(Error),
}

impl<S: Store> Resumed<S> {
    fn new(shared: Arc<Shared<S>>, key: &str, get: Get, object: Object, mut tries: Tries) -> Self {
        // From now on it depends on the consumer how long it takes.
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
                        return Err(Broken::ForGood(Error::new(ErrorKind::Protocol, words)));
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
                    Error::new(ErrorKind::Truncated, words).transient()
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
                        return Err(Broken::Here(Error::new(ErrorKind::Changed, words)));
                    }
                    if object.range.start != self.at {
                        let (want, got) = (self.at, object.range.start);
                        let words =
                            format!("{}: asked from byte {want} on, got {got}", self.tries.url);
                        return Err(Broken::ForGood(Error::new(ErrorKind::Protocol, words)));
                    }
                    self.body = object.body;
                    return Ok(());
                }
                Err(changed) if changed.kind() == ErrorKind::Changed => {
                    return Err(Broken::Here(changed));
                }
                // It may not know ranges, as no server needs to.
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
    fn url(&self) -> &str {
        self.0.inner.url()
    }

    fn url_of(&self, key: &str) -> String {
        self.0.inner.url_of(key)
    }

    fn identity(&self) -> String {
        self.0.inner.identity()
    }

    fn folder(&self) -> Option<&Path> {
        None
    }

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
        let mut tries = Tries::of(self.url_of(key));
        loop {
            match self.0.inner.head(key).await {
                Err(error) => tries.again(error, &self.0).await?,
                meta => return meta,
            }
        }
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
                    Ok(None) => return pieces.join(url, meta, range).await,
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
            ascending: true,
        };
        let next = |listing: Option<Listing<S>>| async {
            let mut listing = listing?;
            match listing.next().await {
                Ok(meta) => Some((Ok(meta?), Some(listing))),
                // What follows a final error is the store's affair.
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
    /// What was given out: the last key, how many, and whether all were in ascending order.
    last: Option<String>,
    given: u64,
    ascending: bool,
}

impl<S: Store> Listing<S> {
    /// The next one; or an error, and whether more may follow it.
    async fn next(&mut self) -> Result<Option<Meta>, (Error, bool)> {
        // How many of the listing that runs now are known, while it has just begun again.
        let mut behind = None;
        loop {
            match self.listed.next().await {
                None if behind.is_some_and(|known| known < self.given) && !self.ascending => {
                    return Err((self.changed(), false));
                }
                None => return Ok(None),
                Some(Err(error)) if error.is_transient() => {
                    self.tries
                        .again(error, &self.shared)
                        .await
                        .map_err(|error| (error, false))?;
                    self.listed = self.shared.inner.list(&self.prefix);
                    behind = Some(0);
                }
                Some(Err(error)) => return Err((error, true)),
                Some(Ok(meta)) => {
                    match (&mut behind, &self.last) {
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
        Error::new(
            ErrorKind::Changed,
            format!("{}: the listing became another", self.tries.url),
        )
    }
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt;

    use super::*;
    use crate::stores::{Memory, StoreExt};
    use crate::testing::{Reaction, Scripted, check_store, fixtures};

    fn ok() -> Reaction {
        Reaction::default()
    }

    fn content(len: usize) -> Bytes {
        (0..len).map(|n| (n % 251) as u8).collect()
    }

    fn store(len: usize) -> (Scripted, Retry<Scripted>) {
        let store = Scripted::from_iter([("k", content(len))]);
        (store.clone(), store.retry(Backoff::default()))
    }

    /// The body as it is given out, until its end or first error.
    async fn stream(store: &impl Store, get: Get) -> (Vec<u8>, Option<Error>) {
        let mut body = match store.get("k", get).await {
            Ok(object) => object.body,
            Err(error) => return (Vec::new(), Some(error)),
        };
        let mut got = Vec::new();
        while let Some(piece) = body.next().await {
            match piece {
                Ok(piece) => got.extend_from_slice(&piece),
                Err(error) => {
                    assert!(body.next().await.is_none(), "an error ends the body");
                    return (got, Some(error));
                }
            }
        }
        (got, None)
    }

    async fn whole(store: &impl Store, get: Get) -> Vec<u8> {
        let (got, error) = stream(store, get).await;
        assert!(error.is_none(), "{}", error.unwrap());
        got
    }

    #[tokio::test]
    async fn keeps_the_contract_of_a_store() {
        check_store(&Memory::from_iter(fixtures()).retry(Backoff::default())).await;
    }

    #[tokio::test(start_paused = true)]
    async fn row_52_what_passes_is_tried_again_and_no_more_than_asked() {
        for failures in [1, 3, 9] {
            let (script, retry) = store(5);
            script.script("k", vec![ok().unavailable(); failures]);
            assert_eq!(retry.read("k").await.unwrap(), content(5));
            assert_eq!(script.requests().len(), failures + 1);
            let mut before = Duration::from_millis(100);
            for pause in script.pauses() {
                let most = (before * 3).min(Duration::from_secs(15)) + Duration::from_millis(2);
                assert!(
                    pause >= Duration::from_millis(99) && pause <= most,
                    "{pause:?} after {before:?}"
                );
                before = pause;
            }
        }
        let (script, retry) = store(5);
        script.usual(ok().unavailable());
        let error = retry.read("k").await.unwrap_err();
        assert_eq!(script.requests().len(), 10);
        assert!(error.kind() == ErrorKind::Unavailable && error.is_transient());
        let text = error.to_string();
        assert!(
            text.starts_with("unavailable: scripted:///k: after 10 tries in "),
            "{text}"
        );
        assert!(
            text.ends_with(": unavailable: scripted:///k: 503"),
            "{text}"
        );
    }

    /// How many warnings there were, and how many events below them.
    #[derive(Clone, Default)]
    struct Heard(Arc<[AtomicU64; 2]>);

    impl tracing::Subscriber for Heard {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.target().ends_with("wrappers::retry")
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            let warns = *event.metadata().level() == tracing::Level::WARN;
            self.0[usize::from(!warns)].fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[tokio::test(start_paused = true)]
    async fn tries_again_are_warnings_and_no_flood_of_them() {
        let heard = Heard::default();
        let _guard = tracing::subscriber::set_default(heard.clone());
        let (script, retry) = store(5);
        script.usual(ok().unavailable());
        for _ in 0..4 {
            retry.read("k").await.unwrap_err();
        }
        assert_eq!(script.requests().len(), 40);
        // Of 36 further tries the first five, the 8th, 16th and 32nd.
        assert_eq!(
            [0, 1].map(|at| heard.0[at].load(Ordering::Relaxed)),
            [8, 28]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn row_52_the_deadline_ends_it_and_the_first_cause_is_kept() {
        let script = Scripted::from_iter([("k", "v")]);
        let deadline = Duration::from_secs(20);
        let retry = script.clone().retry(Backoff {
            deadline,
            tries: u32::MAX,
            ..Backoff::default()
        });
        script.usual(ok().unavailable());
        script.script(
            "k",
            [ok().refuse(|| Error::new(ErrorKind::Io, "no route to host").transient())],
        );
        let begun = Instant::now();
        let text = retry.head("k").await.unwrap_err().to_string();
        assert!(
            begun.elapsed() >= deadline && begun.elapsed() < deadline + Duration::from_millis(50)
        );
        assert!(
            text.contains(
                "in 20.0 s; at first: I/O error: scripted:///k: no route to host; at last"
            ),
            "{text}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn row_54_what_is_final_is_not_tried_again() {
        let (script, retry) = store(5);
        script.script("k", [ok().refuse(|| Error::new(ErrorKind::Denied, "403"))]);
        assert_eq!(
            retry.read("k").await.unwrap_err().to_string(),
            "permission denied: scripted:///k: 403"
        );
        assert_eq!(script.requests().len(), 1);
        script.script(
            "k",
            [
                ok().unavailable(),
                ok().refuse(|| Error::new(ErrorKind::Denied, "403")),
            ],
        );
        let error = retry.read("k").await.unwrap_err();
        assert!(error.kind() == ErrorKind::Denied && !error.is_transient());
        assert!(error.to_string().contains("after 2 tries"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn row_53_a_pause_that_the_service_asks_for_is_kept_up_to_the_deadline() {
        for (asked, waited) in [(0, 0), (2, 2), (60, 60), (1_000_000_000, 180)] {
            let (script, retry) = store(5);
            let busy = move || {
                Error::new(ErrorKind::Unavailable, "429")
                    .with_retry_after(Duration::from_secs(asked))
            };
            script.script("k", [ok().refuse(busy)]);
            assert_eq!(
                retry.read("k").await.unwrap(),
                content(5),
                "one last time at the deadline"
            );
            let pause = script.pauses()[0].as_secs_f64();
            assert!((pause - waited as f64).abs() < 0.11, "{asked}: {pause}");
        }
        let (script, retry) = store(5);
        script.usual(
            ok().refuse(|| {
                Error::new(ErrorKind::Unavailable, "429").with_retry_after(Duration::MAX)
            }),
        );
        assert!(retry.read("k").await.is_err());
        assert_eq!(script.requests().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn row_57_a_cut_at_every_byte_gives_every_byte_once() {
        for cut in 0..=20 {
            for reaction in [
                ok().cut(cut),
                ok().short(cut),
                ok().pieces(3, Duration::ZERO).cut(cut),
            ] {
                let (script, retry) = store(20);
                script.script("k", [reaction.clone()]);
                assert_eq!(
                    whole(&retry, Get::default()).await,
                    content(20),
                    "cut at {cut}"
                );
                let second = script.requests().get(1).map(|request| request.get.clone());
                let version = Some("1".to_owned());
                assert_eq!(
                    second,
                    match cut {
                        0 => Some(Get {
                            range: None,
                            version
                        }),
                        20 => None,
                        _ => Some(Get {
                            range: Some(cut..20),
                            version
                        }),
                    }
                );

                script.script("k", [reaction]);
                let part = whole(&retry, Get::range(5..15)).await;
                assert_eq!(part, content(20)[5..15], "cut at {cut}");
                assert_eq!(script.in_flight(), 0);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn row_57_a_body_cut_again_and_again_ends_after_the_tries() {
        let (script, retry) = store(20);
        script.usual(ok().cut(1));
        let (got, error) = stream(&retry, Get::default()).await;
        assert_eq!(got, content(20)[..10]);
        let error = error.unwrap();
        assert_eq!(error.kind(), ErrorKind::Truncated);
        assert!(error.to_string().contains("after 10 tries"), "{error}");

        // A large one may break more often, as long as it goes forward.
        let (script, retry) = store(12 << 20);
        script.usual(ok().cut(1 << 20));
        assert_eq!(retry.read("k").await.unwrap(), content(12 << 20));
        assert!(script.requests().len() >= 12);
    }

    #[tokio::test(start_paused = true)]
    async fn row_57_a_slow_consumer_uses_up_no_deadline() {
        let (script, retry) = store(20);
        script.script("k", [ok().pieces(5, Duration::ZERO).cut(10)]);
        let mut body = retry.get("k", Get::default()).await.unwrap().body;
        let mut got = Vec::new();
        while let Some(piece) = body.try_next().await.unwrap() {
            sleep(Duration::from_secs(3600)).await;
            got.extend_from_slice(&piece);
        }
        assert_eq!(got, content(20));
    }

    #[tokio::test(start_paused = true)]
    async fn row_57_without_versions_only_a_whole_read_begins_again() {
        let (script, retry) = store(20);
        script.without_versions();
        script.script("k", [ok().cut(7)]);
        let (got, error) = stream(&retry, Get::default()).await;
        assert_eq!(got, content(20)[..7]);
        assert!(error.unwrap().is_transient());
        script.script("k", [ok().cut(0)]);
        assert_eq!(whole(&retry, Get::default()).await, content(20));
        script.script("k", [ok().cut(7), ok().short(9)]);
        assert_eq!(retry.read("k").await.unwrap(), content(20));
    }

    #[tokio::test(start_paused = true)]
    async fn row_58_a_body_that_is_too_long_is_an_error() {
        let (script, retry) = store(20);
        script.usual(ok().extra().pieces(5, Duration::ZERO));
        let (got, error) = stream(&retry, Get::default()).await;
        assert_eq!(got, content(20));
        assert_eq!(error.unwrap().kind(), ErrorKind::Protocol);
        assert_eq!(
            retry.read("k").await.unwrap_err().kind(),
            ErrorKind::Protocol
        );
    }

    #[tokio::test(start_paused = true)]
    async fn row_59_two_versions_are_never_mixed() {
        let (script, retry) = store(20);
        script.script("k", [ok().pieces(5, Duration::ZERO).cut(10)]);
        let mut body = retry.get("k", Get::default()).await.unwrap().body;
        let mut got = body.try_next().await.unwrap().unwrap().to_vec();
        script.put("k", vec![0; 20]);
        let error = loop {
            match body.next().await.unwrap() {
                Ok(piece) => got.extend_from_slice(&piece),
                Err(error) => break error,
            }
        };
        assert_eq!(
            (got, error.kind()),
            (content(20)[..10].to_vec(), ErrorKind::Changed)
        );

        // A whole read may begin again, with the new one.
        script.put("k", content(20));
        script.script("k", [ok().after(Duration::from_millis(10)).cut(10)]);
        let change = async {
            sleep(Duration::from_millis(20)).await;
            script.put("k", vec![9; 20]);
        };
        let (read, ()) = futures::join!(retry.read("k"), change);
        assert_eq!(read.unwrap(), vec![9; 20]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_is_down_is_not_hammered() {
        let script = Scripted::new();
        script.usual(ok().unavailable());
        let retry = Retry::with_budget(script.clone(), Backoff::default(), 20, 2.0);
        let reads = (0..200).map(async |n: u32| retry.read(&n.to_string()).await.is_err());
        let failed = futures::future::join_all(reads).await;
        assert!(failed.into_iter().all(|failed| failed));
        // The first tries, the burst, and two a second for three minutes.
        let requests = script.requests().len();
        assert!((400..=200 + 20 + 370).contains(&requests), "{requests}");
    }

    #[tokio::test(start_paused = true)]
    async fn row_66_a_listing_goes_on_where_it_broke_off() {
        let keys: Vec<String> = (0..50).map(|n| format!("k{n:02}")).collect();
        let script = Scripted::from_iter(keys.iter().map(|key| (key.clone(), "")));
        let retry = script.clone().retry(Backoff::default());
        script.cut_listings([0, 7, 7, 30, 49, 50]);
        let listed: Vec<Meta> = retry.list("k").try_collect().await.unwrap();
        assert_eq!(
            listed.into_iter().map(|meta| meta.key).collect::<Vec<_>>(),
            keys
        );
        assert_eq!(script.requests().len(), 7);

        script.cut_listings(vec![3; 10]);
        let listed: Vec<_> = retry.list("k").collect().await;
        assert_eq!(listed.len(), 4, "three keys and an error");
        assert!(
            listed[3]
                .as_ref()
                .unwrap_err()
                .to_string()
                .contains("after 10 tries")
        );
    }

    /// Lists in an order that is not ascending.
    #[derive(Debug)]
    struct Shelf(Scripted, Mutex<Vec<Vec<&'static str>>>);

    #[async_trait]
    impl Store for Shelf {
        fn url(&self) -> &str {
            self.0.url()
        }
        async fn get(&self, key: &str, get: Get) -> Result<Object> {
            self.0.get(key, get).await
        }
        fn list(&self, _: &str) -> BoxStream<'static, Result<Meta>> {
            let mut runs = self.1.lock().unwrap();
            let keys = runs.remove(0);
            let cut = (!runs.is_empty()).then(|| Err(Error::new(ErrorKind::Io, "cut").transient()));
            stream::iter(keys.into_iter().map(|key| Ok(Meta::new(key))).chain(cut)).boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn row_66_an_order_of_its_own_is_kept_and_a_new_one_noticed() {
        let list = async |runs: &[&[&'static str]]| {
            let runs = runs.iter().map(|run| run.to_vec()).collect();
            let retry = Shelf(Scripted::new(), Mutex::new(runs)).retry(Backoff::default());
            let listed: Vec<_> = retry
                .list("")
                .map(|meta| meta.map_err(|e| e.kind()).map(|m| m.key))
                .collect()
                .await;
            listed
        };
        let keys = |keys: &[&str]| {
            keys.iter()
                .map(|key| Ok((*key).to_owned()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            list(&[&["c", "a"], &["c", "a", "b", "d"]]).await,
            keys(&["c", "a", "b", "d"])
        );
        let changed = [keys(&["c", "a"]), vec![Err(ErrorKind::Changed)]].concat();
        assert_eq!(list(&[&["c", "a"], &["a", "c", "b"]]).await, changed);
        assert_eq!(list(&[&["c", "a"], &["c"]]).await, changed);
    }
}
