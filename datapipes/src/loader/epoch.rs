//! One pass over the data: a stream, or an iterator.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{self, Poll, ready};

use futures::Stream;

use super::autosave::{Autosave, Autosaved};
use super::checkpoint::Progress;
use super::left::Left;
use super::rank_epoch::{RankEpoch, Stand};
use super::{Checkpoint, Stats};
use crate::run::{DeadlockCheck, DevicePrefetchGauge, EpochRun, QUIET, block_on_unless};
use crate::sync::lock;
use crate::{Item, Result};

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
/// runs on the thread that polls it, nor is what is not delivered dropped there; polling and
/// dropping the stream never wait for one. An epoch begins on a thread of its own then, which hands
/// items over by the thousand where they are cheap.
///
/// An epoch cannot be read inside a function of its own loader's graph, nor inside one of another
/// loader whose epoch such a function reads: it would wait for itself, and is an error of kind
/// [`Config`](crate::ErrorKind::Config). An epoch of another loader can. A thread that such a
/// function starts by itself, and waits for, is not recognised.
///
/// As an iterator and as a stream it says how many items may come at most, `size_hint`; a progress
/// bar ends at [`steps_left`](Epoch::steps_left).
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
pub struct Epoch<T> {
    /// The rank of which the last item was, or the next one is.
    at: RankEpoch<T>,
    /// The other ranks that it reads in turn, where it goes on with what more ranks had begun.
    others: Vec<RankEpoch<T>>,
    /// Of which rank the last item was.
    last: usize,
    runs: Runs,
    /// Those of the loader's latest epoch, until this one has begun.
    latest: Option<Latest>,
    autosave: Option<Autosave>,
    /// It is of one rank, has begun, and saves nothing.
    is_plain: bool,
}

/// For figures: what is there of each rank that an epoch reads, once that has begun.
pub(super) type Runs = Arc<Mutex<Vec<Arc<EpochRun>>>>;
pub(super) type Latest = Arc<Mutex<Option<Runs>>>;

impl<T: Send + 'static> Epoch<T> {
    /// Of one rank, or of several that are read in turn.
    pub(super) fn new(
        mut ranks: Vec<RankEpoch<T>>,
        latest: Latest,
        autosave: Option<Autosave>,
    ) -> Self {
        let runs = Runs::default();
        ranks.iter_mut().for_each(|rank| rank.runs = runs.clone());
        let at = ranks.remove(0);
        let last = at.share.rank.index;
        Epoch {
            at,
            others: ranks,
            last,
            runs,
            latest: Some(latest),
            autosave,
            is_plain: false,
        }
    }

    /// The epoch as a plain iterator, for training loops without async. Works on any thread, with
    /// or without an async runtime; inside one it blocks the thread it is called on. Where items
    /// cost microseconds, functions of the graph run on that thread, too.
    ///
    /// On the only thread of a runtime no task of that runtime runs while the iterator waits. If
    /// one of them feeds the graph, nothing comes. Where that is found (such tasks, nothing of the
    /// epoch under way, and no item for 10 seconds), it is an error of kind
    /// [`Config`](crate::ErrorKind::Config), behind which the epoch goes on; where it is no more
    /// than likely, a warning by `tracing`.
    pub fn blocking(mut self) -> Blocking<T> {
        self.ranks_mut().for_each(|epoch| epoch.blocking = true);
        Blocking(self)
    }

    /// Says that ranks agree before each step.
    pub(super) fn will_agree(&mut self) {
        self.ranks_mut().for_each(|epoch| epoch.agreed = true);
    }

    /// How many items (usually batches) it still gives, if that is known without reading: what
    /// [`len_hint`](crate::DataLoader::len_hint) says or the budget of steps, less what was
    /// delivered, before and after stops. Exact where no item fails; one that is skipped may make
    /// it one less, and one that ends the epoch ends this, too. 0 at the end. Not known of an epoch
    /// that was [resumed with another graph](crate::DataLoader::resume_edited).
    ///
    /// # Examples
    /// The length of a progress bar:
    /// ```
    /// use datapipes::{DataLoader, Graph};
    ///
    /// let loader = DataLoader::builder(Graph::range(0..10).batch(4)).build()?;
    /// let mut epoch = loader.epoch(0).blocking();
    /// let steps = epoch.steps_left().unwrap_or(0); // e.g. `indicatif::ProgressBar::new(steps)`
    /// assert_eq!((steps, epoch.by_ref().count(), epoch.steps_left()), (3, 3, Some(0)));
    /// # Ok::<(), datapipes::BoxError>(())
    /// ```
    pub fn steps_left(&self) -> Option<u64> {
        self.left().steps
    }

    fn left(&self) -> Left {
        let left = self
            .others
            .iter()
            .fold(self.at.left(), |left, rank| left.and(rank.left()));
        left.with_errors_between(self.autosave.is_some())
    }

    /// An epoch that goes on with a graph that is another by now.
    pub(super) fn edited(mut self) -> Self {
        self.ranks_mut().for_each(|rank| rank.edited = true);
        self
    }

    fn ranks_mut(&mut self) -> impl Iterator<Item = &mut RankEpoch<T>> {
        std::iter::once(&mut self.at).chain(&mut self.others)
    }

    /// The epoch, to be read by a device stage, where each of its ranks stands then, and when to
    /// save that.
    pub(super) fn on_device(
        mut self,
        gauge: &Arc<DevicePrefetchGauge>,
    ) -> (Self, Runs, Vec<Stand>, Option<Autosave>) {
        // The thread of the stage is none of an async runtime.
        self.ranks_mut().for_each(|epoch| epoch.blocking = true);
        let stands = self
            .ranks_mut()
            .map(|epoch| epoch.on_device(gauge))
            .collect();
        let (runs, autosave) = (self.runs.clone(), self.autosave.take());
        (self, runs, stands, autosave)
    }

    /// Each item, and how far the epoch has come with it.
    pub(super) fn tracked(self) -> impl Stream<Item = (Result<Item<T>>, Progress)> + Send + Unpin {
        let mut this = self;
        futures::stream::poll_fn(move |cx| {
            let item = ready!(this.poll_next_item(cx));
            Poll::Ready(item.map(|item| (item, this.at.progress())))
        })
    }

    /// The next item, with its origin; `None` at the end.
    pub async fn next_item(&mut self) -> Option<Result<Item<T>>> {
        std::future::poll_fn(|cx| self.poll_item(cx)).await
    }

    /// The epoch with the origin of each item.
    pub fn items(self) -> impl Stream<Item = Result<Item<T>>> + Send + Unpin {
        let mut this = self;
        futures::stream::poll_fn(move |cx| this.poll_next_item(cx))
    }

    /// The next item with its origin, for who asks for [`state`](Epoch::checkpoint) between two of
    /// them.
    pub fn poll_next_item(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Result<Item<T>>>> {
        self.poll_item(cx)
    }

    /// Says that the last item was of no use to who took it: as if it had failed in the graph, the
    /// epoch ends, and its state is the place before that item, which comes again. Does nothing
    /// where no item was taken.
    pub fn fail_last(&mut self) {
        let last = self.last;
        if self
            .ranks_mut()
            .any(|epoch| epoch.share.rank.index == last && epoch.taken)
        {
            self.end_at(true, false);
        }
    }

    /// Says that there is no step for the last item, as ranks have [agreed](Epoch::agreed): the
    /// epoch ends, the item does not count, and nothing comes behind: its state is finished. For
    /// who wraps an epoch, such as an adapter to a framework.
    pub fn end_without_last(&mut self) {
        let last = self.last;
        let taken = self
            .ranks_mut()
            .any(|epoch| epoch.share.rank.index == last && epoch.taken);
        self.end_at(taken, true);
    }

    /// Ends it, without the last item if that goes back, and with nothing behind it if it is
    /// `drained`.
    fn end_at(&mut self, back: bool, drained: bool) {
        let last = self.last;
        self.ranks_mut()
            .for_each(|epoch| epoch.end_at(back && epoch.share.rank.index == last, drained));
        self.save_end();
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.at.number
    }

    /// Figures of this epoch so far, also after its end; `None` before the first poll.
    pub fn stats(&self) -> Option<Stats> {
        Stats::of_all(&self.runs)
    }

    /// Where the epoch stands: behind the last item that was taken from it. What was made ahead
    /// does not count, and comes again. Made when it is asked for, in some microseconds; ask as
    /// often as you like.
    ///
    /// Behind an error that ended the epoch, it is the place before the item that failed.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if the loader was not told that it will be
    /// [resumed](crate::loader::Builder::resumable); what a pipe of yours fails with when it keeps
    /// its state.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        self.state_before(false)
    }

    /// The same, but before the last item if that goes `back`.
    pub(super) fn state_before(&self, back: bool) -> Result<Checkpoint> {
        let ranks = std::iter::once(&self.at).chain(&self.others);
        let saved = ranks.map(|epoch| epoch.saved(back && epoch.share.rank.index == self.last));
        Ok(Checkpoint::of(saved.collect::<Result<_>>()?))
    }

    /// What is there already, for who has no waker at hand.
    #[inline]
    fn pop_ready(&mut self) -> Option<Result<Item<T>>> {
        match self.is_plain {
            true => self.at.pop_ready(),
            false => None,
        }
    }

    #[inline]
    fn poll_item(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Result<Item<T>>>> {
        match self.is_plain {
            true => self.at.poll_item(cx),
            false => self.poll_saved(cx),
        }
    }

    fn poll_in_turn(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Result<Item<T>>>> {
        if let Some(latest) = self.latest.take() {
            *lock(&latest) = Some(self.runs.clone());
            self.is_plain = self.others.is_empty() && self.autosave.is_none();
        }
        loop {
            self.turn();
            let polled = ready!(self.at.poll_item(cx));
            match &polled {
                Some(Ok(_)) => self.last = self.at.share.rank.index,
                Some(Err(_)) => self.others.iter_mut().for_each(RankEpoch::end),
                None if self.others.iter().all(RankEpoch::is_done) => {}
                // The others go on.
                None => continue,
            }
            return Poll::Ready(polled);
        }
    }

    /// Lets the rank be the next that has given least, the first of those; one that has nothing
    /// more comes last. So all give equally many, one after the other, wherever they stood.
    fn turn(&mut self) {
        let key = |epoch: &RankEpoch<T>| (epoch.is_done(), epoch.delivered, epoch.share.rank.index);
        if let Some(least) = self.others.iter_mut().min_by_key(|other| key(other))
            && key(least) < key(&self.at)
        {
            std::mem::swap(least, &mut self.at);
        }
    }
}

impl<T: Send + 'static> Autosaved<Item<T>> for Epoch<T> {
    fn autosave(&mut self) -> Option<&mut Autosave> {
        self.autosave.as_mut()
    }
    fn stands(&self) -> Result<Checkpoint> {
        self.checkpoint()
    }
    fn keep_last(&mut self) {
        self.ranks_mut().for_each(|epoch| epoch.taken = false);
    }
    fn poll_unsaved(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Result<Item<T>>>> {
        self.poll_in_turn(cx)
    }
}

impl<T> Unpin for Epoch<T> {}

impl<T: Send + 'static> Stream for Epoch<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Option<Result<T>>> {
        Poll::Ready(ready!(self.poll_item(cx)).map(|item| item.map(Item::into_inner)))
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left().size_hint()
    }
}

/// As by [`blocking`](Epoch::blocking): a `for` loop over it blocks its thread. In async code poll
/// it as a stream.
impl<T: Send + 'static> IntoIterator for Epoch<T> {
    type Item = Result<T>;
    type IntoIter = Blocking<T>;

    fn into_iter(self) -> Blocking<T> {
        self.blocking()
    }
}

impl<T> fmt::Debug for Epoch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Epoch { at, others, .. } = self;
        let delivered: u64 = std::iter::once(at)
            .chain(others)
            .map(|epoch| epoch.delivered)
            .sum();
        f.debug_struct("Epoch")
            .field("number", &at.number)
            .field("delivered", &delivered)
            .finish()
    }
}

/// An epoch as an iterator; see [`Epoch::blocking`].
#[must_use = "an epoch does nothing until it is iterated"]
#[derive(Debug)]
pub struct Blocking<T>(pub(super) Epoch<T>);

/// Waits on this thread for what comes next, but not for ever where it is the thread's fault that
/// nothing comes. `is_idle` says whether nothing else is under way.
pub(super) fn wait_for<T>(
    runs: &Runs,
    is_idle: impl Fn() -> bool,
    next: impl Future<Output = Option<Result<T>>>,
) -> Option<Result<T>> {
    let mut deadlock = DeadlockCheck::default();
    let is_idle = || is_idle() && lock(runs).iter().all(|run| run.is_idle());
    block_on_unless(next, QUIET, || {
        deadlock.look(is_idle).map(|error| Some(Err(error)))
    })
}

impl<T: Send + 'static> Blocking<T> {
    /// The next item, with its origin; `None` at the end.
    #[inline]
    pub fn next_item(&mut self) -> Option<Result<Item<T>>> {
        match self.0.pop_ready() {
            None => self.wait(),
            ready => ready,
        }
    }

    /// Apart from the way of what is ready, which is some instructions long.
    #[inline(never)]
    fn wait(&mut self) -> Option<Result<Item<T>>> {
        wait_for(&self.0.runs.clone(), || true, self.0.next_item())
    }

    /// Says that the last item was of no use; see [`Epoch::fail_last`].
    pub fn fail_last(&mut self) {
        self.0.fail_last();
    }

    /// The iterator with the origin of each item.
    pub fn items(mut self) -> impl Iterator<Item = Result<Item<T>>> {
        std::iter::from_fn(move || self.next_item())
    }

    /// Where the epoch stands; see [`Epoch::checkpoint`].
    ///
    /// # Errors
    /// As [`Epoch::checkpoint`].
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        self.0.checkpoint()
    }

    /// Says that there is no step for the last item; see [`Epoch::end_without_last`].
    pub fn end_without_last(&mut self) {
        self.0.end_without_last();
    }

    /// Figures so far; see [`Epoch::stats`].
    pub fn stats(&self) -> Option<Stats> {
        self.0.stats()
    }

    /// How many items it still gives, if that is known; see [`Epoch::steps_left`].
    pub fn steps_left(&self) -> Option<u64> {
        self.0.steps_left()
    }
}

impl<T: Send + 'static> Iterator for Blocking<T> {
    type Item = Result<T>;

    #[inline]
    fn next(&mut self) -> Option<Result<T>> {
        match self.0.pop_ready() {
            Some(ready) => Some(ready.map(Item::into_inner)),
            None => self.wait().map(|item| item.map(Item::into_inner)),
        }
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.left().size_hint()
    }
}
