//! One pass over the data: a stream, or an iterator.

use std::fmt;
use std::ops::ControlFlow::{Break, Continue};
use std::pin::Pin;
use std::task::{self, Poll, ready};
use std::time::Instant;

use futures::Stream;

use super::autosave::Autosave;
use super::epoch_source::EpochSource;
use super::latest::Runs;
use super::left::Left;
use super::{Checkpoint, Stats};
use crate::run::{DeadlockCheck, EpochRun, QUIET, StarvedCheck, block_on_polls};
use crate::sync::lock;
use crate::{Error, Item, Result};

/// One pass over the data: a `Stream` of results, or an iterator by [`blocking`](Epoch::blocking)
/// or in a `for` loop.
///
/// Nothing is read, spawned or allocated before the first poll. Dropping the epoch cancels
/// everything that it started: threads, tasks, requests and files, at the next item of each pipe;
/// where items have been cheap, at the next thousand. After an error that the loader's policy does
/// not skip, the epoch has ended.
///
/// As a stream it uses the caller's tokio runtime for I/O if that has several threads, else a small
/// one of the loader's. With [workers](crate::loader::Builder::workers) no function of the graph
/// runs on the polling thread, nor are undelivered items dropped there; polling and dropping the
/// stream never wait for a function of the graph. Such an epoch begins on a thread of its own,
/// which hands items over by the thousand if they are cheap.
///
/// Items that are ready are delivered, whatever later items do. Items of less than 0.25 ms (in
/// processes: 0.2 ms) are made several at a time: where one of them never completes, it withholds at
/// most a sixty-fourth of the number before it. Near files that one batch needs are read several at a
/// time, too.
///
/// An epoch that gives nothing since a node left out all items, such as a filter that matches none or
/// a batch that is never full, ends with a warning of `tracing` that names the node.
///
/// An epoch cannot be read inside a function of its own loader's graph. Nor can it be read inside a
/// function of another loader's graph, if a function of this graph reads an epoch of that other
/// loader. In both cases the epoch would wait for itself, and returns an error of kind
/// [`Config`](crate::ErrorKind::Config). Any other loader's epoch can be read there. On a thread
/// that a function starts and waits for, the epoch is not refused. If such functions keep all
/// workers, it gets none, and the iterator returns an error of that kind after ten seconds. It does
/// so too if another epoch of the loader, which is still read, has a function that takes so long on
/// each worker; the next call waits on. A stream waits, and the iterator over the other epoch warns.
///
/// Batches that are [converted](crate::DataLoader::convert) or put on a
/// [device](crate::DataLoader::prefetch_to_device) have epochs of the same type. Errors are those
/// of this library, or the type that [`with_errors`](Epoch::with_errors) makes of them.
///
/// The iterator and the stream bound the number of remaining items from above by `size_hint`; a
/// progress bar ends at [`steps_left`](Epoch::steps_left).
///
/// # Examples
/// ```
/// use datapipes::{DataLoader, Graph};
///
/// let loader = DataLoader::builder(Graph::range(0..10).batch(4)).build()?;
/// let mut sizes = Vec::new();
/// for batch in loader.epoch(0) {
///     sizes.push(batch?.len());
/// }
/// assert_eq!(sizes, [4, 4, 2]);
/// # Ok::<(), datapipes::BoxError>(())
/// ```
/// `next` and the like come from `futures::StreamExt` or `tokio_stream::StreamExt`:
/// ```
/// use datapipes::{DataLoader, Graph};
/// use futures::StreamExt;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), datapipes::BoxError> {
/// let loader = DataLoader::builder(Graph::range(0..10).batch(4)).build()?;
/// let mut epoch = loader.epoch(0);
/// let mut sizes = Vec::new();
/// while let Some(batch) = epoch.next().await {
///     sizes.push(batch?.len());
/// }
/// assert_eq!(sizes, [4, 4, 2]);
/// # Ok(())
/// # }
/// ```
#[must_use = "an epoch does nothing until it is polled"]
pub struct Epoch<T, E = Error> {
    source: EpochSource<T>,
    number: u64,
    runs: Runs,
    autosave: Option<Autosave>,
    /// Converts errors.
    wrap: fn(Error) -> E,
}

impl<T: Send + 'static> Epoch<T> {
    pub(super) fn new(
        source: EpochSource<T>,
        number: u64,
        runs: Runs,
        autosave: Option<Autosave>,
    ) -> Self {
        let source = if autosave.is_some() {
            source.watched()
        } else {
            source
        };
        Epoch {
            source,
            number,
            runs,
            autosave,
            wrap: |error| error,
        }
    }

    /// Returns the epoch with errors of another type: of the framework whose functions the loop
    /// stands in, so that `?` works there.
    ///
    /// # Examples
    /// ```
    /// use std::io;
    /// use datapipes::{DataLoader, Graph};
    ///
    /// fn train() -> io::Result<u64> {
    ///     let loader = DataLoader::builder(Graph::range(0..10)).build().map_err(io::Error::other)?;
    ///     let mut sum = 0;
    ///     for n in loader.epoch(0).with_errors(io::Error::other) {
    ///         sum += n?;
    ///     }
    ///     Ok(sum)
    /// }
    /// assert_eq!(train()?, 45);
    /// # Ok::<(), io::Error>(())
    /// ```
    pub fn with_errors<E>(self, wrap: fn(Error) -> E) -> Epoch<T, E> {
        let Epoch {
            source,
            number,
            runs,
            autosave,
            ..
        } = self;
        Epoch {
            source,
            number,
            runs,
            autosave,
            wrap,
        }
    }
}

impl<T: Send + 'static, E> Epoch<T, E> {
    /// Returns the epoch as a plain iterator, for training loops without async. Works on any
    /// thread, with or without an async runtime; inside a runtime it blocks the calling thread.
    /// Functions of the graph run on that thread, too, while it waits, and as long as a thread ahead
    /// of it would save less time than the queue between them costs.
    ///
    /// On the only thread of a runtime no task of that runtime runs while the iterator waits. If
    /// one of these tasks feeds the graph, no item can come. If no item came for 10 seconds,
    /// nothing of the epoch is in progress and there are such tasks, the iterator returns an error
    /// of kind [`Config`](crate::ErrorKind::Config), after which the epoch goes on. If such a
    /// standstill is only likely, it is a warning of `tracing`.
    pub fn blocking(mut self) -> Blocking<T, E> {
        self.source.get_mut().will_block();
        Blocking(self)
    }

    /// Declares that ranks agree before each step.
    pub(super) fn will_agree(&mut self) {
        self.source.get_mut().will_agree();
    }

    /// Returns the number of items (usually batches) that are still to come, if it is known without
    /// reading: [`len_hint`](crate::DataLoader::len_hint) or the budget of steps, less the items
    /// delivered, before and after stops. The number is exact if no item fails; a skipped item may
    /// make it one less, and an error that ends the epoch ends the count, too. Returns 0 at the
    /// end, and `None` for an epoch that was [resumed with another
    /// graph](crate::DataLoader::resume_edited).
    ///
    /// # Examples
    /// The length of a progress bar; with feature `progress`, [`progress`](Self::progress) draws one.
    /// ```
    /// use datapipes::{DataLoader, Graph};
    ///
    /// let loader = DataLoader::builder(Graph::range(0..10).batch(4)).build()?;
    /// let mut epoch = loader.epoch(0).blocking();
    /// let steps = epoch.steps_left().unwrap_or(0);
    /// assert_eq!((steps, epoch.by_ref().count(), epoch.steps_left()), (3, 3, Some(0)));
    /// # Ok::<(), datapipes::BoxError>(())
    /// ```
    pub fn steps_left(&self) -> Option<u64> {
        self.left().steps
    }

    fn left(&self) -> Left {
        self.source
            .get()
            .left()
            .with_errors_between(self.autosave.is_some())
    }

    /// Returns the next item, with its origin; `None` at the end.
    pub async fn next_item(&mut self) -> Option<Result<Item<T>, E>> {
        std::future::poll_fn(|cx| self.poll_next_item(cx)).await
    }

    /// Returns the epoch with the origin of each item.
    pub fn items(self) -> impl Stream<Item = Result<Item<T>, E>> + Send + Unpin {
        let mut this = self;
        futures::stream::poll_fn(move |cx| this.poll_next_item(cx))
    }

    /// Polls the next item with its origin, for a caller that takes a
    /// [`checkpoint`](Epoch::checkpoint) between two items.
    #[inline]
    pub fn poll_next_item(
        &mut self,
        cx: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Item<T>, E>>> {
        let polled = match self.pop_ready() {
            None => ready!(self.poll_more(cx)),
            ready => ready,
        };
        Poll::Ready(polled.map(|item| item.map_err(self.wrap)))
    }

    /// Reports that the consumer could not use the last item. As if the item had failed in the
    /// graph, the epoch ends, and its checkpoint is the place before that item, which comes again.
    /// Does nothing if no item was taken.
    pub fn fail_last(&mut self) {
        if self.source.get().has_last() {
            self.end_at(false);
        }
    }

    /// Ends the epoch without a step for the last item, as ranks have [agreed](Epoch::agreed): the
    /// item does not count, nothing comes after it, and the checkpoint is finished. For code that
    /// wraps an epoch, such as an adapter to a framework.
    pub fn end_without_last(&mut self) {
        self.end_at(true);
    }

    fn end_at(&mut self, drained: bool) {
        self.source.get_mut().end_without_last(drained);
        if let Some(autosave) = &mut self.autosave {
            autosave.at_end(|| self.source.get().checkpoint(false));
        }
    }

    /// Returns the epoch's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns figures of this epoch so far, also after its end; `None` before the first poll.
    pub fn stats(&self) -> Option<Stats> {
        Stats::of_all(&self.runs)
    }

    /// Returns a checkpoint of the epoch after the last item that was taken from it. Items made
    /// ahead do not count, and come again. The checkpoint is made when it is asked for, in some
    /// microseconds; ask as often as you like.
    ///
    /// After an error that ended the epoch, it is the place before the item that failed.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if the loader was not declared
    /// [resumable](crate::loader::Builder::resumable); any error of a pipe of yours in taking its
    /// snapshot.
    pub fn checkpoint(&self) -> Result<Checkpoint, E> {
        self.checkpoint_before(false)
    }

    /// Returns the runs of the epoch's ranks.
    #[cfg(feature = "progress")]
    pub(super) fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Returns the checkpoint. With `back` it excludes the last item, which is delivered again after
    /// a resume.
    pub(super) fn checkpoint_before(&self, back: bool) -> Result<Checkpoint, E> {
        self.source.get().checkpoint(back).map_err(self.wrap)
    }

    /// Converts an error made by code that wraps the epoch, as its own errors are.
    pub(super) fn wrapped(&self, error: Error) -> E {
        (self.wrap)(error)
    }

    /// Returns an item that is ready, for a caller without a waker: the shortest path of an item.
    #[inline]
    fn pop_ready(&mut self) -> Option<Result<Item<T>>> {
        match &mut self.source {
            EpochSource::Plain(ranks) => ranks.pop_ready(),
            EpochSource::Other(_) => None,
        }
    }

    /// Polls when nothing is ready. Saves the checkpoint before the next item if that is due, and
    /// always at the end.
    fn poll_more(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Result<Item<T>>>> {
        let source = self.source.get_mut();
        let Some(autosave) = &mut self.autosave else {
            return source.poll(cx);
        };
        if let Some(problem) = autosave.before_next(|| source.checkpoint(false)) {
            source.keep_last();
            return Poll::Ready(Some(Err(problem)));
        }
        let polled = ready!(source.poll(cx));
        Poll::Ready(match polled {
            Some(Ok(item)) => {
                autosave.count();
                Some(Ok(item))
            }
            Some(Err(error)) => {
                autosave.at_error(|| source.checkpoint(false));
                Some(Err(error))
            }
            None => autosave.at_end(|| source.checkpoint(false)).map(Err),
        })
    }

    /// Waits on this thread for the next item. Stops waiting if this thread itself is the reason
    /// that nothing comes.
    #[inline]
    pub(super) fn wait_next(&mut self) -> Option<Result<Item<T>, E>> {
        match self.pop_ready() {
            None => self.wait(),
            Some(ready) => Some(ready.map_err(self.wrap)),
        }
    }

    /// Waits for the next item; separate from the path of a ready item, which is some instructions
    /// long.
    #[inline(never)]
    fn wait(&mut self) -> Option<Result<Item<T>, E>> {
        let (mut deadlock, mut starved) = (DeadlockCheck::default(), StarvedCheck::default());
        let mut looked = None;
        block_on_polls(|cx, is_over| {
            if let Poll::Ready(next) = self.poll_next_item(cx) {
                return Break(next);
            }
            let looked = looked.get_or_insert_with(Instant::now);
            let left = QUIET.saturating_sub(looked.elapsed());
            // A graph that has woken the consumer again is at work.
            if !is_over || !left.is_zero() {
                return Continue(left);
            }
            *looked = Instant::now();
            let is_idle = || lock(&self.runs).iter().all(|run| run.is_idle());
            let found = deadlock.look(is_idle).or_else(|| {
                let runs = lock(&self.runs);
                let names = || runs[0].names_on_workers().join(", ");
                starved.look(EpochRun::starved(&runs), names)
            });
            match found {
                Some(error) => Break(Some(Err((self.wrap)(error)))),
                None => Continue(QUIET),
            }
        })
    }
}

impl<T, E> Unpin for Epoch<T, E> {}

impl<T: Send + 'static, E> Stream for Epoch<T, E> {
    type Item = Result<T, E>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Option<Result<T, E>>> {
        Poll::Ready(ready!(self.poll_next_item(cx)).map(|item| item.map(Item::into_inner)))
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left().size_hint()
    }
}

/// Iterates as [`blocking`](Epoch::blocking) does: a `for` loop over an epoch blocks its thread. In
/// async code poll the epoch as a stream.
impl<T: Send + 'static, E> IntoIterator for Epoch<T, E> {
    type Item = Result<T, E>;
    type IntoIter = Blocking<T, E>;

    fn into_iter(self) -> Blocking<T, E> {
        self.blocking()
    }
}

impl<T, E> fmt::Debug for Epoch<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let delivered: u64 = lock(&self.runs).iter().map(|run| run.counts().0).sum();
        f.debug_struct("Epoch")
            .field("number", &self.number)
            .field("delivered", &delivered)
            .finish()
    }
}

/// An epoch as an iterator; see [`Epoch::blocking`].
#[must_use = "an epoch does nothing until it is iterated"]
#[derive(Debug)]
pub struct Blocking<T, E = Error>(pub(super) Epoch<T, E>);

impl<T: Send + 'static, E> Blocking<T, E> {
    /// Returns the next item, with its origin; `None` at the end.
    #[inline]
    pub fn next_item(&mut self) -> Option<Result<Item<T>, E>> {
        self.0.wait_next()
    }

    /// Returns the iterator with the origin of each item.
    pub fn items(mut self) -> impl Iterator<Item = Result<Item<T>, E>> {
        std::iter::from_fn(move || self.next_item())
    }

    /// Returns a checkpoint of the epoch; see [`Epoch::checkpoint`].
    ///
    /// # Errors
    /// Fails as [`Epoch::checkpoint`] does.
    pub fn checkpoint(&self) -> Result<Checkpoint, E> {
        self.0.checkpoint()
    }

    /// Reports that the consumer could not use the last item; see [`Epoch::fail_last`].
    pub fn fail_last(&mut self) {
        self.0.fail_last();
    }

    /// Ends the epoch without a step for the last item; see [`Epoch::end_without_last`].
    pub fn end_without_last(&mut self) {
        self.0.end_without_last();
    }

    forward! { self.0 =>
        /// Returns the epoch's number.
        pub fn number(&self) -> u64;
        /// Returns the figures so far; see [`Epoch::stats`].
        pub fn stats(&self) -> Option<Stats>;
        /// Returns the number of items still to come, if it is known; see [`Epoch::steps_left`].
        pub fn steps_left(&self) -> Option<u64>;
    }
}

impl<T: Send + 'static, E> Iterator for Blocking<T, E> {
    type Item = Result<T, E>;

    #[inline]
    fn next(&mut self) -> Option<Result<T, E>> {
        // The short way of an item that is ready: no more than its value is moved.
        match self.0.pop_ready() {
            Some(Ok(item)) => Some(Ok(item.into_inner())),
            Some(Err(error)) => Some(Err(self.0.wrapped(error))),
            None => self.0.wait().map(|item| item.map(Item::into_inner)),
        }
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        Stream::size_hint(&self.0)
    }
}
