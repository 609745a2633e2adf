//! The stream that joins two nodes: items, moved in chunks.

mod demand;
mod emitter;
mod held;

use std::any::Any;
use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{self, Poll, ready};
use std::time::Instant;

use futures::Stream;

use self::demand::AHEAD;
pub use self::demand::Demand;
pub use self::emitter::Emitter;
use self::emitter::Generate;
pub use self::held::{Held, HeldPlace};
use crate::{Chunk, ChunkIter, Context, Error, ErrorKind, Item, Origin, Result};

/// A stream of chunks: the implementation of an edge. Implement it for a pipe that gains from
/// seeing many items at once; a [`Stream`] of items or [`Items::generate`] is simpler.
pub trait Chunks<T>: Send {
    /// Returns the next items: at least one and not many more than `demand.max` (the rest waits for
    /// the next poll), without waiting for more than the first. A stream that holds items ready
    /// returns those it has.
    ///
    /// `None` is the end, after which the stream is not polled again. A chunk is never empty.
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>>;
}

/// The stream that joins two nodes: `Stream<Item = Result<Item<T>>>`, boxed once per edge.
///
/// An `Err` takes the place of the item that failed, and the stream goes on after it; the loader's
/// policy, not the pipe, decides whether the error ends the epoch. A pipe therefore passes errors
/// on, at once and in their place.
///
/// Items move in chunks internally. Polled item by item, an `Items` takes a few ahead of its
/// consumer if the upstream node makes them in well under a microsecond, and one at a time
/// otherwise. Dropping an `Items` releases everything it holds, and with it everything upstream.
pub struct Items<T> {
    chunks: Box<dyn Chunks<T>>,
    ready: ChunkIter<T>,
    /// Recent nanoseconds for each item; infinite before the first.
    cost_ns: f64,
    /// True if anybody asks for the cost: reading a clock costs more than making many an item.
    is_timed: Cell<bool>,
    polls: u32,
    /// Number of items that came so far.
    seen: usize,
    done: bool,
    /// Numbers of items taken by the reader and given by the producer; counted if an epoch may be
    /// resumed.
    taken: Option<Arc<AtomicU64>>,
    produced: Option<Arc<AtomicU64>>,
    /// Inputs of a pipe whose outputs are counted, too.
    inputs: Option<Arc<InputCount>>,
}

/// Number of items and errors that came as the input of a pipe.
#[derive(Default)]
pub(crate) struct InputCount {
    pub items: AtomicU64,
    /// True if there are no more.
    pub ended: AtomicBool,
}

/// Maximum number of items taken ahead of need.
const MAX_AHEAD: usize = 1024;
/// Maximum number of nanoseconds spent ahead of need.
pub(crate) const AHEAD_NS: f64 = 20_000.0;
/// Number of items that must have come for each further item that may be made at once.
const TRUST: usize = 64;

/// Returns how many items to make at once, from their recent cost and the number that came so far.
#[inline]
pub(crate) fn at_once(cost_ns: f64, seen: usize) -> usize {
    ((AHEAD_NS / cost_ns) as usize).clamp(1, 1 + seen / TRUST)
}

/// Returns the same for a thread that wakes another for the items: as many as are worth `hop_ns`.
pub(crate) fn at_once_across(hop_ns: f64, cost_ns: f64, seen: usize) -> usize {
    at_once(cost_ns * AHEAD_NS / hop_ns, seen)
}

/// Interval of timed polls if items are cheap.
const SAMPLE: u32 = 8;

/// Adds to a counter of one writer.
#[inline]
fn add(counter: &AtomicU64, items: usize) {
    counter.store(
        counter.load(Ordering::Relaxed) + items as u64,
        Ordering::Relaxed,
    );
}

impl<T: Send + 'static> Items<T> {
    /// Makes a stream of items from chunks.
    pub fn from_chunks(chunks: impl Chunks<T> + 'static) -> Self {
        Items {
            chunks: Box::new(chunks),
            ready: Chunk::default().into_iter(),
            cost_ns: f64::INFINITY,
            is_timed: Cell::new(false),
            polls: 0,
            seen: 0,
            done: false,
            taken: None,
            produced: None,
            inputs: None,
        }
    }

    /// Counts the items that came and that come from here on, and records the end.
    pub(crate) fn counted_as(self, inputs: Arc<InputCount>) -> Self {
        inputs
            .items
            .store(self.ready.len() as u64, Ordering::Relaxed);
        Items {
            inputs: Some(inputs),
            ..self
        }
    }

    /// Counts the items taken from here on, and the items that come to be taken.
    pub(crate) fn counted(
        self,
        taken: Option<Arc<AtomicU64>>,
        produced: Option<Arc<AtomicU64>>,
    ) -> Self {
        Items {
            taken: taken.or(self.taken),
            produced: produced.or(self.produced),
            ..self
        }
    }

    /// Returns true if `counter` counts the items taken.
    pub(crate) fn is_counted_by(&self, counter: &Arc<AtomicU64>) -> bool {
        self.taken
            .as_ref()
            .is_some_and(|taken| Arc::ptr_eq(taken, counter))
    }

    #[inline]
    fn count(&self, items: usize) {
        if let Some(taken) = &self.taken {
            add(taken, items);
        }
    }

    /// Makes a stream of items from any stream. The stream may be endless or slow; it is polled
    /// only on demand.
    pub fn from_stream(stream: impl Stream<Item = Result<Item<T>>> + Send + 'static) -> Self {
        Items::from_chunks(Lossless::new(FromStream(Some(Box::pin(stream)))))
    }

    /// Makes a stream from an iterator of items, which is advanced on demand and must not block for
    /// long.
    pub fn from_results(
        iter: impl IntoIterator<Item = Result<Item<T>>, IntoIter: Send + 'static>,
    ) -> Self {
        Items::from_chunks(Lossless::new(FromIter(Some(iter.into_iter()))))
    }

    /// Makes an empty stream.
    pub fn empty() -> Self {
        Items::from_results([])
    }

    /// Makes a stream of items that are there already.
    pub fn from_chunk(chunk: Chunk<T>) -> Self {
        let mut items = Items::empty();
        items.ready = chunk.into_iter();
        items
    }

    /// Makes a stream of one error and nothing else. The error is [fatal](Error::fatal), since all
    /// items are lost.
    pub fn fail(error: Error) -> Self {
        Items::from_chunk(Chunk::fail(error.fatal()))
    }

    /// Makes a stream from an async function that emits items one after another: a pipe as a plain
    /// loop.
    ///
    /// `body` runs from the first poll on; [`Emitter::emit`] waits while nobody wants more.
    ///
    /// ```
    /// # use datapipes::{Items, Item};
    /// fn pairs(mut input: Items<u32>) -> Items<(u32, u32)> {
    ///     Items::generate(async move |out| {
    ///         let mut index = 0;
    ///         while let Some(a) = out.next_from(&mut input).await {
    ///             let Some(b) = out.next_from(&mut input).await else { break };
    ///             let pair = Item::gather(vec![a, b], index).map(|v| (v[0], v[1]));
    ///             out.emit(Ok(pair)).await;
    ///             index += 1;
    ///         }
    ///     })
    /// }
    /// ```
    pub fn generate<F, Fut>(body: F) -> Self
    where
        F: FnOnce(Emitter<T>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Items::from_chunks(Lossless::new(Generate::new(body)))
    }

    /// Applies `f` to every item, in its place; `None` leaves the item out. Errors pass through.
    ///
    /// Most one-in-one-out pipes are made with this method. An error that `f` returns names the
    /// item, and a panic of `f` becomes an error that names it. An epoch that was dropped ends
    /// between two calls of `f`.
    pub fn each<U, F>(self, cx: &Context, f: F) -> Items<U>
    where
        U: Send + 'static,
        F: FnMut(Item<T>) -> Option<Result<Item<U>>> + Send + 'static,
    {
        Items::from_chunks(Each {
            input: self,
            f,
            cx: cx.clone(),
        })
    }

    /// Applies `f` to every [`Chunk`] of items, for a pipe over millions of small items, which
    /// gains from working on columns; [`each`](Items::each) goes item by item.
    ///
    /// `f` gets chunks of any size, with their errors, and returns what comes out in their place,
    /// errors included; if that is empty, the next chunk is taken at once. If `f` leaves items out,
    /// larger chunks are taken in proportion, unless the consumer asks only for the items it needs.
    /// No item waits inside between two calls of `f`. A panic of `f` ends the stream; one inside
    /// [`Chunk::map`] or [`Chunk::retain`] costs a single item, and is an error that names node and
    /// item. A resumable pipe calls [`Context::snapshot_after`] at the end of `f`.
    ///
    /// ```
    /// use datapipes::{Arity, Chunk, Context, Graph, Hints, Items, Pipe};
    ///
    /// /// Squares of the even numbers.
    /// struct EvenSquares;
    ///
    /// impl Pipe<u64> for EvenSquares {
    ///     type Out = u64;
    ///     fn apply(&self, input: Items<u64>, cx: &Context) -> Items<u64> {
    ///         let context = cx.clone();
    ///         input.each_chunk(cx, move |mut chunk: Chunk<u64>| {
    ///             let before = chunk.len();
    ///             chunk.retain(|n| n.is_multiple_of(2));
    ///             context.count_dropped((before - chunk.len()) as u64);
    ///             chunk.map(|n| n * n)
    ///         })
    ///     }
    ///     fn hints(&self) -> Hints {
    ///         Hints::shardable().arity(Arity::AtMostOne)
    ///     }
    /// }
    ///
    /// assert_eq!(Graph::range(0..6).pipe(EvenSquares).collect()?, [0, 4, 16]);
    /// # #[cfg(feature = "testing")]
    /// datapipes::testing::check_pipe(&EvenSquares, (0..20).collect());
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn each_chunk<U, F>(self, cx: &Context, f: F) -> Items<U>
    where
        U: Send + 'static,
        F: FnMut(Chunk<T>) -> Chunk<U> + Send + 'static,
    {
        Items::from_chunks(EachChunk {
            input: self,
            f,
            cx: cx.clone(),
            given: 0,
        })
    }

    /// Returns the next chunk; see [`Chunks::poll_chunk`].
    pub fn poll_chunk(
        &mut self,
        cx: &mut task::Context<'_>,
        demand: Demand,
    ) -> Poll<Option<Chunk<T>>> {
        if self.ready.len() > 0 {
            let chunk: Chunk<T> = self.ready.by_ref().take(demand.most()).collect();
            self.count(chunk.len());
            return Poll::Ready(Some(chunk));
        }
        let chunk = match ready!(self.poll_more(cx, demand)) {
            Some(mut chunk) if chunk.len() > demand.most() => {
                let first = chunk.split_to(demand.most());
                self.ready = chunk.into_iter();
                Some(first)
            }
            chunk => chunk,
        };
        self.count(chunk.as_ref().map_or(0, Chunk::len));
        Poll::Ready(chunk)
    }

    /// Returns a chunk that may be longer than asked for; to be called if no item is ready.
    fn poll_more(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>> {
        if self.done {
            return Poll::Ready(None);
        }
        let timed =
            self.is_timed.get() && (self.cost_ns > AHEAD_NS || self.polls.is_multiple_of(SAMPLE));
        self.polls = self.polls.wrapping_add(1);
        let begun = timed.then(Instant::now);
        let chunk = ready!(self.chunks.poll_chunk(cx, demand));
        if chunk.as_ref().is_some_and(Chunk::is_empty) {
            // It would be taken for the end.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.done = chunk.is_none();
        if let Some(inputs) = &self.inputs {
            match &chunk {
                Some(chunk) => add(&inputs.items, chunk.len()),
                None => inputs.ended.store(true, Ordering::Relaxed),
            }
        }
        self.seen = self
            .seen
            .saturating_add(chunk.as_ref().map_or(0, Chunk::len));
        if let (Some(produced), Some(chunk)) = (&self.produced, &chunk) {
            add(produced, chunk.len());
        }
        if let (Some(begun), Some(chunk)) = (begun, &chunk) {
            let cost = begun.elapsed().as_nanos() as f64 / chunk.len().max(1) as f64;
            // The estimate falls quickly: the first items pay for cold caches.
            self.cost_ns = if cost < self.cost_ns {
                cost
            } else {
                self.cost_ns * 0.75 + cost * 0.25
            };
        }
        Poll::Ready(chunk)
    }

    /// Returns a reasonable number of items to ask for if one is needed. The number is more than
    /// one only if the latest items were cheap, so that running ahead costs at most some
    /// microseconds. It grows by one for every 64 items that have come, since an item that never
    /// completes withholds the others that are made with it.
    pub fn ahead(&self) -> usize {
        self.is_timed.set(true);
        at_once(self.cost_ns, self.seen).min(MAX_AHEAD)
    }

    /// Returns an item that was taken ahead, if there is one.
    #[inline]
    pub(crate) fn pop_ready(&mut self) -> Option<Result<Item<T>>> {
        // Counted first, so that the item need not be moved once more.
        if self.taken.is_some() && self.ready.len() > 0 {
            self.count(1);
        }
        self.ready.next()
    }

    /// Waits for the next chunk of at most `max` items.
    pub async fn next_chunk(&mut self, max: usize) -> Option<Chunk<T>> {
        std::future::poll_fn(|cx| {
            self.poll_chunk(
                cx,
                Demand {
                    ahead: AHEAD.get(),
                    ..Demand::up_to(max)
                },
            )
        })
        .await
    }
}

impl<T> Unpin for Items<T> {}

impl<T: Send + 'static> Stream for Items<T> {
    type Item = Result<Item<T>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(item) = self.pop_ready() {
            return Poll::Ready(Some(item));
        }
        let demand = Demand {
            ahead: AHEAD.get(),
            ..Demand::up_to(self.ahead())
        };
        match ready!(self.poll_more(cx, demand)) {
            None => Poll::Ready(None),
            Some(chunk) => {
                self.ready = chunk.into_iter();
                Poll::Ready(self.pop_ready())
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (
            self.ready.len(),
            if self.done {
                Some(self.ready.len())
            } else {
                None
            },
        )
    }
}

opaque_debug!(Items<T> { ready = self.ready.len(), done });

/// Fills a chunk item by item.
trait Fill<T>: Send {
    /// Adds up to this many items to an empty chunk. If the chunk stays empty, `Ready` means the
    /// end.
    fn fill(
        &mut self,
        cx: &mut task::Context<'_>,
        demand: Demand,
        chunk: &mut Chunk<T>,
    ) -> Poll<()>;
}

/// Gives the items made before a panic, and raises the panic with the next poll, so that the output
/// does not depend on how much was asked for at once.
struct Lossless<F> {
    fill: F,
    panicked: Option<Box<dyn Any + Send>>,
}

impl<F> Lossless<F> {
    fn new(fill: F) -> Self {
        Lossless {
            fill,
            panicked: None,
        }
    }
}

impl<T, F: Fill<T>> Chunks<T> for Lossless<F> {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>> {
        if let Some(payload) = self.panicked.take() {
            resume_unwind(payload);
        }
        let mut chunk = Chunk::default();
        let filled = catch_unwind(AssertUnwindSafe(|| self.fill.fill(cx, demand, &mut chunk)));
        match filled {
            Err(payload) if chunk.is_empty() => resume_unwind(payload),
            Err(payload) => self.panicked = Some(payload),
            Ok(Poll::Pending) if chunk.is_empty() => return Poll::Pending,
            Ok(_) => {}
        }
        Poll::Ready(if chunk.is_empty() { None } else { Some(chunk) })
    }
}

struct FromStream<S>(Option<Pin<Box<S>>>);

impl<T, S: Stream<Item = Result<Item<T>>> + Send> Fill<T> for FromStream<S> {
    fn fill(
        &mut self,
        cx: &mut task::Context<'_>,
        demand: Demand,
        chunk: &mut Chunk<T>,
    ) -> Poll<()> {
        let Some(stream) = &mut self.0 else {
            return Poll::Ready(());
        };
        while chunk.len() < demand.max {
            // After the first item nobody waits for more.
            let demand = Demand {
                ahead: demand.ahead || !chunk.is_empty(),
                ..demand
            };
            match demand.scope(|| stream.as_mut().poll_next(cx)) {
                Poll::Ready(Some(item)) => chunk.push(item),
                Poll::Ready(None) => {
                    self.0 = None;
                    break;
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }
}

struct FromIter<I>(Option<I>);

impl<T, I: Iterator<Item = Result<Item<T>>> + Send> Fill<T> for FromIter<I> {
    fn fill(
        &mut self,
        _: &mut task::Context<'_>,
        demand: Demand,
        chunk: &mut Chunk<T>,
    ) -> Poll<()> {
        if let Some(iter) = &mut self.0 {
            chunk.extend(iter.by_ref().take(demand.max));
            if chunk.len() < demand.max {
                self.0 = None;
            }
        }
        Poll::Ready(())
    }
}

struct EachChunk<T, F> {
    input: Items<T>,
    f: F,
    cx: Context,
    /// Number of items that came out so far.
    given: usize,
}

impl<T, F> EachChunk<T, F> {
    /// Returns the demand on the input: larger by the share left out so far, and by no more than
    /// [`at_once`] trusts. A consumer that asks for no more than it needs gets exactly that: only
    /// the demand ahead of need was bounded by the cost of items.
    fn wanted(&self, demand: Demand) -> Demand {
        if demand.max <= demand.needed || self.input.seen <= self.given {
            return demand;
        }
        let as_before =
            (demand.max as f64 * self.input.seen as f64 / self.given.max(1) as f64) as usize;
        Demand {
            max: demand.max.max(as_before.min(at_once(0.0, self.input.seen))),
            ..demand
        }
    }
}

impl<T, U, F> Chunks<U> for EachChunk<T, F>
where
    T: Send + 'static,
    F: FnMut(Chunk<T>) -> Chunk<U> + Send,
{
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<U>>> {
        for _ in 0..CHUNKS_PER_POLL {
            let wanted = self.wanted(demand);
            let Some(chunk) = ready!(self.input.poll_chunk(cx, wanted)) else {
                return Poll::Ready(None);
            };
            let mut out = (self.f)(chunk);
            // A chunk does not know the node in which its values panicked.
            let panics = out
                .errors_mut()
                .filter(|error| error.kind() == ErrorKind::Panic);
            panics.for_each(|error| error.name(self.cx.node()));
            if !out.is_empty() {
                self.given = self.given.saturating_add(out.len());
                return Poll::Ready(Some(out));
            }
            if self.cx.is_cancelled() {
                return Poll::Ready(None);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

struct Each<T, F> {
    input: Items<T>,
    f: F,
    cx: Context,
}

/// Number of chunks without output after which `Each` lets other tasks run.
const CHUNKS_PER_POLL: usize = 32;

impl<T, U, F> Chunks<U> for Each<T, F>
where
    T: Send + 'static,
    F: FnMut(Item<T>) -> Option<Result<Item<U>>> + Send,
{
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<U>>> {
        for _ in 0..CHUNKS_PER_POLL {
            let Some(chunk) = ready!(self.input.poll_chunk(cx, demand)) else {
                return Poll::Ready(None);
            };
            let mut out = Chunk::with_capacity(chunk.len());
            let mut rest = chunk.into_iter();
            let mut current = Origin::root(0, 0);
            // As in `Chunk::map`, a panic costs only the item that caused it.
            while let Err(payload) = catch_unwind(AssertUnwindSafe(|| {
                for item in rest.by_ref() {
                    match item {
                        Err(error) => out.push(Err(error)),
                        Ok(_) if self.cx.is_cancelled() => break,
                        Ok(item) => {
                            current.clone_from(item.origin());
                            if let Some(item) = (self.f)(item) {
                                out.push(item.map_err(|error| error.of(&current)));
                            }
                        }
                    }
                }
            })) {
                out.push(Err(Error::panic(payload).at(self.cx.node()).of(&current)));
            }
            if !out.is_empty() {
                return Poll::Ready(Some(out));
            }
            if self.cx.is_cancelled() {
                return Poll::Ready(None);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
