//! A store in memory that follows a script (slow, refusing, cutting, stalling) and records its
//! requests.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Error, Result, lock, opaque_debug};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::time::{Instant, sleep};

use crate::stores::{Body, Get, InMemory, Meta, Object, Store};

/// A store in memory that follows a script, by tokio's clock: with `#[tokio::test(start_paused =
/// true)]` hours pass at once. Clones share everything.
///
/// Each request for a key takes the next [`Reaction`] of its script; without one, the usual
/// reaction.
///
/// # Examples
/// ```
/// use datapipes_io::stores::{Store, StoreExt};
/// use datapipes_io::testing::{Reaction, Scripted};
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// let store = Scripted::from_iter([("a", "content")]);
/// store.script("a", [Reaction::default().cut(3)]);
/// assert_eq!(store.clone().retry(Default::default()).read("a").await?, "content");
/// assert_eq!(store.requests()[1].get.range, Some(3..7));
/// # datapipes::Ok(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Scripted {
    objects: InMemory,
    state: Arc<Mutex<State>>,
    began: Instant,
}

#[derive(Default)]
struct State {
    usual: Reaction,
    scripts: HashMap<String, VecDeque<Reaction>>,
    listings: VecDeque<usize>,
    no_versions: bool,
    overload: Option<usize>,
    requests: Vec<Request>,
    in_flight: usize,
    most: usize,
}

/// A request to a [`Scripted`] store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Key of the object, or prefix of the listing if [`list`](Request::list).
    pub key: String,
    /// Requested range and version.
    pub get: Get,
    /// True for a listing.
    pub list: bool,
    /// Time since the store was made.
    pub at: Duration,
}

/// The answer of a [`Scripted`] store to one request. By default immediate, and in one piece.
#[derive(Clone, Default)]
#[must_use]
pub struct Reaction {
    latency: Duration,
    piece: usize,
    pause: Duration,
    fault: Fault,
}

#[derive(Clone, Default)]
enum Fault {
    #[default]
    None,
    Refuse(Arc<dyn Fn() -> Error + Send + Sync>),
    Cut(u64),
    Short(u64),
    Stall(u64),
    Flip(u64),
    Extra,
}

impl Reaction {
    /// Delays the answer.
    pub fn after(self, latency: Duration) -> Self {
        Reaction { latency, ..self }
    }

    /// Sends the body in pieces of this size in bytes, with a pause before each.
    pub fn pieces(mut self, bytes: usize, pause: Duration) -> Self {
        self.piece = bytes;
        self.pause = pause;
        self
    }

    /// Answers with an error. The URL is added before its message.
    pub fn refuse(mut self, error: impl Fn() -> Error + Send + Sync + 'static) -> Self {
        self.fault = Fault::Refuse(Arc::new(error));
        self
    }

    /// Answers with a transient error of kind `Unavailable`; see [`refuse`](Reaction::refuse).
    pub fn unavailable(self) -> Self {
        self.refuse(|| Error::unavailable("503").transient())
    }

    datapipes::setters! {
        /// Ends the body after this number of bytes with a transient error.
        cut(after: u64) => fault = Fault::Cut(after);

        /// Ends the body after this number of bytes without an error.
        short(after: u64) => fault = Fault::Short(after);

        /// Stalls the body after this number of bytes, without an end.
        stall(after: u64) => fault = Fault::Stall(after);

        /// Flips one bit of this byte of the body.
        flip(at: u64) => fault = Fault::Flip(at);

        /// Continues the body after its announced length.
        extra() => fault = Fault::Extra;
    }
}

opaque_debug!(Reaction { latency });

impl Scripted {
    /// Returns a store without objects.
    pub fn new() -> Self {
        Scripted {
            objects: InMemory::new(),
            state: Arc::default(),
            began: Instant::now(),
        }
    }

    /// Stores an object under a key, as a new version, and replaces the previous one.
    pub fn put(&self, key: impl Into<String>, data: impl Into<Bytes>) {
        self.objects.put(key, data);
    }

    /// Sets the answer to requests without a script from now on.
    pub fn usual(&self, reaction: Reaction) {
        lock(&self.state).usual = reaction;
    }

    /// Sets the answers to the next requests for a key, in sequence.
    pub fn script(&self, key: impl Into<String>, reactions: impl IntoIterator<Item = Reaction>) {
        lock(&self.state)
            .scripts
            .entry(key.into())
            .or_default()
            .extend(reactions);
    }

    /// Sets the numbers of keys after which the next listings break off, in sequence.
    pub fn cut_listings(&self, after: impl IntoIterator<Item = usize>) {
        lock(&self.state).listings.extend(after);
    }

    /// Removes the versions of objects from now on; none can be requested.
    pub fn without_versions(&self) {
        lock(&self.state).no_versions = true;
    }

    /// Refuses requests as `Unavailable`, after their latency, while more requests than this are in
    /// flight.
    pub fn overload_above(&self, in_flight: usize) {
        lock(&self.state).overload = Some(in_flight);
    }

    /// Returns the requests so far, in order.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.state).requests.clone()
    }

    /// Returns the times between the requests so far.
    pub fn pauses(&self) -> Vec<Duration> {
        lock(&self.state)
            .requests
            .windows(2)
            .map(|pair| pair[1].at - pair[0].at)
            .collect()
    }

    /// Returns the number of requests that are unanswered or have a body that was neither read to
    /// its end nor dropped.
    pub fn in_flight(&self) -> usize {
        lock(&self.state).in_flight
    }

    /// Returns the maximum number of requests that were in flight at once.
    pub fn most_in_flight(&self) -> usize {
        lock(&self.state).most
    }

    fn record(&self, key: &str, get: Get, list: bool) {
        let at = self.began.elapsed();
        lock(&self.state).requests.push(Request {
            key: key.to_owned(),
            get,
            list,
            at,
        });
    }

    fn begin(&self, key: &str, get: &Get) -> (Reaction, Flying) {
        self.record(key, get.clone(), false);
        let mut state = lock(&self.state);
        state.in_flight += 1;
        state.most = state.most.max(state.in_flight);
        let flying = Flying(self.state.clone());
        let mut reaction = state.scripts.get_mut(key).and_then(VecDeque::pop_front);
        if state.overload.is_some_and(|most| state.in_flight > most) {
            reaction = Some(state.usual.clone().unavailable());
        }
        (reaction.unwrap_or_else(|| state.usual.clone()), flying)
    }
}

impl Default for Scripted {
    fn default() -> Self {
        Scripted::new()
    }
}

impl<K: Into<String>, D: Into<Bytes>> FromIterator<(K, D)> for Scripted {
    fn from_iter<I: IntoIterator<Item = (K, D)>>(objects: I) -> Self {
        let store = Scripted::new();
        objects
            .into_iter()
            .for_each(|(key, data)| store.put(key, data));
        store
    }
}

opaque_debug!(Scripted {});

/// A request in flight.
struct Flying(Arc<Mutex<State>>);

impl Drop for Flying {
    fn drop(&mut self) {
        lock(&self.0).in_flight -= 1;
    }
}

async fn wait(pause: Duration) {
    if !pause.is_zero() {
        sleep(pause).await;
    }
}

#[async_trait]
impl Store for Scripted {
    fn url(&self) -> &str {
        "scripted:///"
    }

    async fn get(&self, key: &str, mut get: Get) -> Result<Object> {
        let (reaction, flying) = self.begin(key, &get);
        wait(reaction.latency).await;
        let url = self.url_of(key);
        if let Fault::Refuse(error) = &reaction.fault {
            return Err(error().within(url));
        }
        let no_versions = lock(&self.state).no_versions;
        if no_versions {
            get.version = None;
        }
        let mut object = self.objects.get(key, get).await.map_err(|error| {
            Error::new(
                error.kind(),
                error.to_string().replace(self.objects.url(), self.url()),
            )
        })?;
        object.url = url.clone();
        if no_versions {
            object.meta.version = None;
        }
        let Object {
            meta, range, body, ..
        } = object;
        let data = body
            .map(|piece| piece.expect("bytes in memory"))
            .collect::<Vec<_>>()
            .await
            .concat();
        Ok(Object {
            meta,
            range,
            body: play(url.clone(), data, reaction, flying),
            url,
        })
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        self.record(prefix, Get::default(), true);
        let (cut, no_versions) = {
            let mut state = lock(&self.state);
            (state.listings.pop_front(), state.no_versions)
        };
        let all = self.objects.list(prefix).map(move |meta| {
            meta.map(|meta| Meta {
                version: meta.version.filter(|_| !no_versions),
                ..meta
            })
        });
        match cut {
            None => all.boxed(),
            Some(after) => {
                let error = Error::unavailable(format!("{}: listing cut", self.url()));
                all.take(after)
                    .chain(stream::iter([Err(error.transient())]))
                    .boxed()
            }
        }
    }
}

/// Returns the body of an answer.
fn play(url: String, mut data: Vec<u8>, reaction: Reaction, flying: Flying) -> Body {
    let Reaction {
        piece,
        pause,
        fault,
        ..
    } = reaction;
    if let Fault::Flip(at) = fault
        && let Some(byte) = data.get_mut(at as usize)
    {
        *byte ^= 1;
    }
    if let Fault::Extra = fault {
        data.push(0);
    }
    if let Fault::Cut(after) | Fault::Short(after) | Fault::Stall(after) = fault {
        data.truncate(after as usize);
    }
    let data = Bytes::from(data);
    let step = if piece == 0 { data.len().max(1) } else { piece };
    let state = Some((data, url, fault, flying));
    Body::stream(stream::unfold(state, move |state| async move {
        let (mut data, url, fault, flying) = state?;
        if !data.is_empty() {
            wait(pause).await;
            let piece = data.split_to(step.min(data.len()));
            return Some((Ok(piece), Some((data, url, fault, flying))));
        }
        match fault {
            Fault::Stall(_) => std::future::pending().await,
            Fault::Cut(after) => {
                let words = format!("{url}: connection reset after {after} bytes");
                Some((Err(Error::truncated(words).transient()), None))
            }
            _ => None,
        }
    }))
}
