//! One pass over the data: a stream, or an iterator.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{self, Poll, ready};
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};

use super::prefetch_to_device::Figures;
use super::state::{Progress, saved};
use super::{OnError, Stats};
use crate::items::polled;
use crate::keep::{Place, Saving, Trace};
use crate::run::{Cursors, Engine, EpochRun, GoesOn, Running, block_on};
use crate::{Error, ErrorKind, Item, Result};

/// A graph that takes longer than this for an item is run ahead of the consumer by a thread of its own.
const WORTH_A_QUEUE: Duration = Duration::from_micros(50);

/// One pass over the data: a `Stream` of results, or by [`blocking`](Epoch::blocking) an iterator.
///
/// Nothing is read, spawned or allocated before the first poll. Dropping the epoch cancels everything that it
/// started: threads, tasks, requests and files, at the next item of each pipe; where items have been cheap, at the next
/// thousand. After an error that the
/// loader's policy does not skip, the epoch has ended.
///
/// As a stream it uses the caller's tokio runtime for I/O if that has several threads, else a small one of the
/// loader's.
///
/// # Examples
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
    engine: Arc<Engine>,
    number: u64,
    on_error: OnError,
    latest: Arc<Mutex<Option<Arc<EpochRun>>>>,
    /// Where it goes on, and each of its nodes.
    goes_on: Option<(super::State, GoesOn)>,
    /// Whether nothing is left, whatever the budget of steps.
    drained: bool,
    /// Where its nodes stood when it ended.
    ended: Option<std::result::Result<Cursors, Arc<Error>>>,
    blocking: bool,
    state: State<T>,
    /// For figures; outlives the state.
    run: Option<Arc<EpochRun>>,
    failed: u64,
    produce_ns: f64,
    delivered: u64,
    /// So many are delivered at most.
    budget: u64,
    /// Whether the last thing that came was an item, which the consumer has.
    taken: bool,
    /// Where it is read by a device stage.
    device: Option<Figures>,
}

enum State<T> {
    Fresh,
    Running(Box<Running<T>>),
    Done,
}

impl<T: Send + 'static> Epoch<T> {
    pub(super) fn new(
        engine: Arc<Engine>,
        number: u64,
        on_error: OnError,
        latest: Arc<Mutex<Option<Arc<EpochRun>>>>,
        goes_on: Option<(super::State, GoesOn)>,
    ) -> Self {
        let drained = goes_on.as_ref().is_some_and(|(state, _)| state.is_at_end());
        let state = if drained { State::Done } else { State::Fresh };
        let (delivered, failed) =
            goes_on.as_ref().map_or((0, 0), |(state, _)| (state.delivered(), state.skipped()));
        Epoch {
            budget: engine.settings.max_steps.unwrap_or(u64::MAX),
            engine,
            number,
            on_error,
            latest,
            drained,
            goes_on,
            ended: None,
            blocking: false,
            state,
            run: None,
            failed,
            produce_ns: 0.0,
            delivered,
            taken: false,
            device: None,
        }
    }

    /// The epoch as a plain iterator, for training loops without async. Works on any thread, with or without an
    /// async runtime; inside one it blocks the thread it is called on.
    pub fn blocking(mut self) -> Blocking<T> {
        self.blocking = true;
        Blocking(self)
    }

    /// The epoch, to be read by a device stage, and where its figures and its way will be.
    pub(super) fn on_device(mut self) -> (Self, Figures, Stand) {
        let figures = Figures::default();
        figures.taken.store(self.delivered + self.failed, Ordering::Relaxed);
        self.device = Some(figures.clone());
        let stand = Stand {
            engine: self.engine.clone(),
            goes_on: self.goes_on.as_ref().map(|(state, _)| state.clone()),
            way: figures.way.clone(),
        };
        (self, figures, stand)
    }

    fn progress(&self) -> Progress {
        Progress {
            epoch: self.number,
            finished: self.drained || self.is_spent(),
            drained: self.drained,
            delivered: self.delivered,
            skipped: self.failed,
        }
    }

    /// Whether its budget of steps is used up.
    fn is_spent(&self) -> bool {
        self.delivered >= self.budget
    }

    /// Each item, and how far the epoch has come with it.
    pub(super) fn tracked(self) -> impl Stream<Item = (Result<Item<T>>, Progress)> + Send + Unpin {
        let mut this = self;
        futures::stream::poll_fn(move |cx| {
            let item = ready!(this.poll_next_item(cx));
            Poll::Ready(item.map(|item| (item, this.progress())))
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

    /// The next item with its origin, for who asks for [`state`](Epoch::state) between two of them.
    pub fn poll_next_item(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Result<Item<T>>>> {
        self.poll_item(cx)
    }

    /// Says that the last item was of no use to who took it: as if it had failed in the graph, the epoch ends, and its
    /// state is the place before that item, which comes again. Does nothing where no item was taken.
    pub fn fail_last(&mut self) {
        if self.taken {
            self.end_at(true, false);
        }
    }

    /// Ends it, without the last item if that goes back, and with nothing behind it if it is `drained`.
    pub(super) fn end_at(&mut self, back: bool, drained: bool) {
        self.taken = false;
        self.delivered -= u64::from(back);
        self.drained = drained;
        self.end();
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Figures of this epoch so far, also after its end; `None` before the first poll.
    pub fn stats(&self) -> Option<Stats> {
        self.run.as_deref().map(Stats::of)
    }

    /// Where the epoch stands: behind the last item that was taken from it. What was made ahead does not count, and comes
    /// again. Made when it is asked for, in some microseconds; ask as often as you like.
    ///
    /// Behind an error that ended the epoch, it is the place before the item that failed.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if the loader was not told that it will be
    /// [resumed](crate::loader::Builder::resumable); what a pipe of yours fails with when it keeps its state.
    pub fn state(&self) -> Result<super::State> {
        let Engine { flow, settings, .. } = &*self.engine;
        if !settings.resumable {
            return Err(not_resumable());
        }
        let progress = self.progress();
        let cursors = match (&self.state, &self.ended, &self.goes_on) {
            (State::Running(running), ..) => {
                saved(running.save(self.delivered + self.failed).unwrap_or_default())?
            }
            (_, Some(ended), _) => {
                ended.clone().map_err(|error| Error::new(error.kind(), error.to_string()))?
            }
            // Of a graph that was changed they are not those of the state.
            (_, None, Some((_, goes_on))) => (*goes_on.cursors).clone(),
            (_, None, None) => Cursors::default(),
        };
        Ok(super::State::new(flow, settings, progress, &cursors))
    }

    /// Ends it; what its state would be is kept.
    fn end(&mut self) {
        if let State::Running(running) = &self.state
            && self.engine.settings.resumable
        {
            self.ended = match running.save(self.delivered + self.failed) {
                Some(saving) if !self.drained => Some(saved(saving).map_err(Arc::new)),
                _ => Some(Ok(Cursors::default())),
            };
        }
        self.state = State::Done;
    }

    /// Tells a device stage that nothing more comes.
    fn tell_end(&self) {
        if let Some(figures) = &self.device {
            let _ = figures.ended.set(self.progress());
        }
    }

    fn poll_item(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Result<Item<T>>>> {
        loop {
            if self.delivered >= self.budget && !matches!(self.state, State::Done) {
                self.end_at(false, false);
                self.tell_end();
            }
            let running = match &mut self.state {
                State::Done => return Poll::Ready(None),
                State::Running(running) => running,
                State::Fresh => match Running::start(
                    &self.engine,
                    self.number,
                    !self.blocking,
                    self.goes_on.as_ref().map(|(_, goes_on)| goes_on.clone()),
                ) {
                    Ok(running) => {
                        if let Some(Figures { gauge, run, way, .. }) = &self.device {
                            let _ = running.run.device.set(gauge.clone());
                            let _ = run.set(running.run.clone());
                            if let Some(trace) = running.way() {
                                let _ = way.set(trace);
                            }
                        }
                        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) =
                            Some(running.run.clone());
                        self.run = Some(running.run.clone());
                        self.state = State::Running(Box::new(running));
                        continue;
                    }
                    Err(error) => {
                        self.state = State::Done;
                        return Poll::Ready(Some(Err(error)));
                    }
                },
            };
            let polled = match running.items.pop_ready() {
                Some(ready) => Some(ready),
                None => {
                    if running.is_long() {
                        // What the consumer has, which may be behind what a device stage has read. The last item it may
                        // still give back.
                        let position = match &self.device {
                            Some(figures) => figures.taken.load(Ordering::Relaxed),
                            None => self.delivered + self.failed - u64::from(self.taken),
                        };
                        running.trim(position);
                    }
                    let begun = Instant::now();
                    let polled = {
                        let _entered = running.run.io.enter();
                        polled(false, || Pin::new(&mut running.items).poll_next(cx))
                    };
                    // If the consumer waits, or works inline for long, let the next items be made ahead.
                    let spent = begun.elapsed();
                    if running.is_inline() {
                        running.run.count_inline(spent);
                    }
                    self.produce_ns = self.produce_ns * 0.9 + spent.as_nanos() as f64 * 0.1;
                    let slow = polled.is_pending()
                        || spent > 4 * WORTH_A_QUEUE
                        || self.produce_ns > WORTH_A_QUEUE.as_nanos() as f64;
                    if slow && running.move_to_background() && polled.is_pending() {
                        // The waker is registered with the old place; poll again from the new one.
                        continue;
                    }
                    ready!(polled)
                }
            };
            match polled {
                None => {
                    self.end_at(false, true);
                    self.tell_end();
                    return Poll::Ready(None);
                }
                Some(Ok(item)) => {
                    self.delivered += 1;
                    self.taken = true;
                    running.run.count_delivered();
                    return Poll::Ready(Some(Ok(item)));
                }
                Some(Err(error)) => {
                    self.taken = false;
                    if let Some(error) = self.on_error.decide(self.number, self.failed, error) {
                        self.end();
                        return Poll::Ready(Some(Err(error)));
                    }
                    self.failed += 1;
                    running.run.count_skipped();
                }
            }
        }
    }
}

/// What it takes to say where an epoch stands that somebody else reads.
pub(super) struct Stand {
    engine: Arc<Engine>,
    goes_on: Option<super::State>,
    way: Arc<OnceLock<Arc<dyn Trace>>>,
}

impl Stand {
    /// Behind what the consumer has taken; `None` if that is nothing yet.
    pub(super) fn state(&self, number: u64, taken: Option<Progress>) -> Result<super::State> {
        let Engine { flow, settings, .. } = &*self.engine;
        if !settings.resumable {
            return Err(not_resumable());
        }
        let state = |progress, cursors: &Cursors| super::State::new(flow, settings, progress, cursors);
        let Some(progress) = taken else {
            let begun = Progress { epoch: number, ..Progress::default() };
            return Ok(self
                .goes_on
                .as_ref()
                .map_or_else(|| state(begun, &Cursors::default()), |goes_on| goes_on.within(settings)));
        };
        let cursors = match self.way.get().filter(|_| !progress.drained) {
            Some(way) => saved(Saving::all(&**way, Place::at(progress.delivered + progress.skipped)))?,
            None => Cursors::default(),
        };
        Ok(state(progress, &cursors))
    }
}

pub(super) fn not_resumable() -> Error {
    let message = "the loader keeps nothing to go on from; call `resumable` when it is built";
    Error::new(ErrorKind::Config, message)
}

impl<T> Unpin for Epoch<T> {}

impl<T: Send + 'static> Stream for Epoch<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Option<Result<T>>> {
        Poll::Ready(ready!(self.poll_item(cx)).map(|item| item.map(Item::into_inner)))
    }
}

impl<T> fmt::Debug for Epoch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoch").field("number", &self.number).field("delivered", &self.delivered).finish()
    }
}

/// An epoch as an iterator; see [`Epoch::blocking`].
#[must_use = "an epoch does nothing until it is iterated"]
#[derive(Debug)]
pub struct Blocking<T>(Epoch<T>);

impl<T: Send + 'static> Blocking<T> {
    /// The next item, with its origin; `None` at the end.
    pub fn next_item(&mut self) -> Option<Result<Item<T>>> {
        block_on(self.0.next_item())
    }

    /// Says that the last item was of no use; see [`Epoch::fail_last`].
    pub fn fail_last(&mut self) {
        self.0.fail_last();
    }

    /// The iterator with the origin of each item.
    pub fn items(mut self) -> impl Iterator<Item = Result<Item<T>>> {
        std::iter::from_fn(move || self.next_item())
    }

    /// Where the epoch stands; see [`Epoch::state`].
    ///
    /// # Errors
    /// As [`Epoch::state`].
    pub fn state(&self) -> Result<super::State> {
        self.0.state()
    }

    /// Ends it, as [`Epoch::end_at`] does.
    pub(super) fn end_at(&mut self, back: bool, drained: bool) {
        self.0.end_at(back, drained);
    }

    /// Figures so far; see [`Epoch::stats`].
    pub fn stats(&self) -> Option<Stats> {
        self.0.stats()
    }
}

impl<T: Send + 'static> Iterator for Blocking<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        block_on(self.0.next())
    }
}
