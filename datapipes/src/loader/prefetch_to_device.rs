//! Conversion of batches: ahead of the consumer, as to a device, or on its own thread.

use std::sync::{Arc, Mutex};
use std::task::{self, Poll, ready};

use super::batches::Batches;
use super::checkpoint::Progress;
use super::epoch_source::EpochSource;
use super::left::Left;
use super::rank_epoch::Stand;
use super::{Checkpoint, DataLoader};
use crate::run::{DevicePrefetch, DevicePrefetchGauge, PinnedThread, Upload, inside_itself};
use crate::sync::lock;
use crate::{BoxError, Error, ErrorKind, Item, Result};

/// Values shared by all epochs of a loader that converts its batches.
struct Conversion<T, U> {
    runs_on: RunsOn,
    convert: Upload<T, U>,
}

enum RunsOn {
    /// The consumer's thread; the name of the step in errors.
    Here(Arc<str>),
    DevicePrefetch(PinnedThread),
}

impl<T: Send + 'static> DataLoader<T> {
    /// Uploads each batch to a device while the consumer works on the batch before (double
    /// buffering): what tf.data and flax call `prefetch_to_device`.
    ///
    /// - `upload` runs on one thread, the same for all epochs of the returned loader and of its
    ///   clones, one batch at a time. GPU frameworks keep a stream and a memory pool for each
    ///   thread of the system: a single thread means one more of each, whatever the number of
    ///   epochs. The thread starts when the first epoch is first polled, and ends with the last
    ///   handle.
    /// - One batch is ready besides the batch that the consumer holds; see
    ///   [`device_depth`](DataLoader::device_depth). The next upload begins when a ready batch is
    ///   taken. Order is kept.
    /// - The thread is the consumer of the loader, so that with 0 workers everything runs on it.
    ///   I/O uses the loader's own runtime.
    /// - [`Stats::waited`](super::Stats::waited) then is the time that the consumer waited for a
    ///   batch on the device, and [`Stats::device`](super::Stats::device) the time that the uploads
    ///   took.
    ///
    /// The returned loader has batches on the device, with the epochs, the plan and the figures of
    /// this one. A checkpoint of either can be resumed by both; batches that are on the device but
    /// not delivered do not count in it, and come again. Epochs that are alive at once take turns
    /// on the thread.
    ///
    /// # Errors
    /// An error of `upload` reaches the consumer after the batches before, with the batch's origin,
    /// and ends the epoch, whatever the policy: the batch is gone. So does a panic, as
    /// [`ErrorKind::Panic`]. The next epoch begins anew.
    ///
    /// # Cancellation
    /// Dropping an epoch ends it as without a device, and drops the batches that are ready. An
    /// upload in progress runs to its end; the drop waits for it 100 ms at most, and the drop of
    /// the last handle as long once more.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{BoxError, DataLoader, Graph};
    ///
    /// /// Memory of a device.
    /// struct OnDevice(Vec<u64>);
    ///
    /// let loader = DataLoader::builder(Graph::range(0..10).batch(4)).build()?;
    /// let on_device = loader.prefetch_to_device(|batch: Vec<u64>| Ok::<_, BoxError>(OnDevice(batch)));
    /// for epoch in 0..2 {
    ///     let mut sum = 0;
    ///     for batch in on_device.epoch(epoch).blocking() {
    ///         sum += batch?.0.iter().sum::<u64>(); // meanwhile the next one is uploaded
    ///     }
    ///     assert_eq!(sum, 45);
    /// }
    /// assert_eq!(loader.stats().and_then(|stats| stats.device).map(|device| device.uploaded), Some(3));
    /// # Ok::<(), BoxError>(())
    /// ```
    pub fn prefetch_to_device<U, E, F>(&self, upload: F) -> DataLoader<U>
    where
        U: Send + 'static,
        E: Into<BoxError>, // With `?` in it a closure ends in `datapipes::Ok(..)`, or `Ok::<_, BoxError>(..)`.
        F: FnMut(T) -> Result<U, E> + Send + 'static,
    {
        // Only the thread ever locks it.
        let upload = Mutex::new(upload);
        self.converted(Conversion {
            runs_on: RunsOn::DevicePrefetch(PinnedThread::new("device")),
            convert: Arc::new(move |batch| lock(&upload)(batch).map_err(Error::user)),
        })
    }

    /// Sets the number of batches that [`prefetch_to_device`](DataLoader::prefetch_to_device) keeps
    /// ready on the device, besides the batch that the consumer holds: 1 by default and at least.
    /// More helps if uploads take unequally long, and each costs its memory on the device.
    pub fn device_depth(mut self, batches: usize) -> Self {
        self.device_depth = batches.max(1);
        self
    }

    /// Converts each batch on the thread that takes it, when it is taken: for values that belong to
    /// that thread, such as a framework's tensors. A conversion that can run anywhere is better a
    /// [`map`](crate::Graph::map) of the graph. Of an epoch that is a stream, it runs where the
    /// stream is polled: a conversion that takes long holds up the other tasks of that thread.
    /// Nothing is buffered, and order is kept. Errors call the step by its `name`.
    ///
    /// # Errors
    /// An error of `convert` reaches the consumer with the batch's origin, and ends the epoch,
    /// whatever the policy. A checkpoint is then from before that batch, which comes again.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph};
    ///
    /// let loader = DataLoader::builder(Graph::range(0..10).batch(4)).resumable().build()?;
    /// let sums = loader.convert("sum", |batch: Vec<u64>| match batch.iter().sum() {
    ///     17 => Err("an odd sum"),
    ///     sum => Ok(sum),
    /// });
    /// let mut epoch = sums.epoch(0).blocking();
    /// assert_eq!(epoch.next().unwrap()?, 6);
    /// assert_eq!(epoch.next().unwrap()?, 22);
    /// assert_eq!(epoch.next().unwrap().unwrap_err().to_string(), "sum: [0:8, 0:9]: an odd sum");
    /// assert_eq!(epoch.checkpoint()?.delivered(), 2);
    /// # Ok::<(), datapipes::BoxError>(())
    /// ```
    pub fn convert<U, E, F>(&self, name: &str, convert: F) -> DataLoader<U>
    where
        U: Send + 'static,
        E: Into<BoxError>, // With `?` in it a closure ends in `datapipes::Ok(..)`, or `Ok::<_, BoxError>(..)`.
        F: Fn(T) -> Result<U, E> + Send + Sync + 'static,
    {
        self.converted(Conversion {
            runs_on: RunsOn::Here(name.into()),
            convert: Arc::new(move |batch| convert(batch).map_err(Error::user)),
        })
    }

    fn converted<U: Send + 'static>(&self, conversion: Conversion<T, U>) -> DataLoader<U> {
        let (open, conversion) = (self.open.clone(), Arc::new(conversion));
        self.opened(Arc::new(move |start| {
            let depth = start.device_depth;
            EpochSource::Other(Box::new(Converted::new(
                open(start),
                depth,
                conversion.clone(),
            )))
        }))
    }
}

/// A source whose items are converted.
struct Converted<T, U> {
    stage: Converting<T, U>,
    /// Progress of each rank that it reads.
    stands: Vec<Stand>,
    /// Rank of the last output, if that was a batch.
    last: Option<usize>,
    progress: Option<Progress>,
    gauge: Arc<DevicePrefetchGauge>,
    depth: usize,
    blocking: bool,
    /// Conversion that the stage works on; the field comes after `stage`, so that it is dropped
    /// later.
    conversion: Arc<Conversion<T, U>>,
}

enum Converting<T, U> {
    /// The source of a stage that has not begun, or of a conversion on the consumer's thread.
    Here(Box<EpochSource<T>>),
    DevicePrefetch(DevicePrefetch<U, Progress>),
    Done,
}

impl<T: Send + 'static, U: Send + 'static> Converted<T, U> {
    fn new(mut source: EpochSource<T>, depth: usize, conversion: Arc<Conversion<T, U>>) -> Self {
        let gauge = Arc::default();
        let is_ahead = matches!(conversion.runs_on, RunsOn::DevicePrefetch(_));
        let stands = source.get_mut().hand_over(is_ahead.then_some(&gauge));
        if is_ahead {
            // The thread of the stage is not a thread of an async runtime.
            source.get_mut().will_block();
        }
        let (stage, last, progress, blocking) =
            (Converting::Here(Box::new(source)), None, None, false);
        Converted {
            stage,
            stands,
            last,
            progress,
            gauge,
            depth,
            blocking,
            conversion,
        }
    }

    /// Begins to convert ahead, if this is a device stage that has not begun.
    fn begin(&mut self) -> Result<()> {
        let RunsOn::DevicePrefetch(thread) = &self.conversion.runs_on else {
            return Ok(());
        };
        if thread.is_here() {
            let ended = matches!(
                std::mem::replace(&mut self.stage, Converting::Done),
                Converting::Done
            );
            return if ended { Ok(()) } else { Err(inside_itself()) };
        }
        if let Converting::Here(_) = self.stage
            && let Converting::Here(mut source) =
                std::mem::replace(&mut self.stage, Converting::Done)
        {
            let tracked = futures::stream::poll_fn(move |cx| {
                let item = ready!(source.get_mut().poll(cx));
                Poll::Ready(item.map(|item| (item, source.get().progress())))
            });
            let (upload, gauge) = (self.conversion.convert.clone(), self.gauge.clone());
            let ahead =
                DevicePrefetch::start(thread, tracked, upload, self.depth, gauge, !self.blocking);
            self.stage = Converting::DevicePrefetch(ahead.map_err(|error| {
                Error::new(ErrorKind::Io, "cannot start a thread").with_source(error)
            })?);
        }
        Ok(())
    }
}

impl<T, U> Conversion<T, U> {
    /// Converts an item on this thread, and returns the epoch's progress if that succeeded.
    fn here(
        &self,
        name: &Arc<str>,
        item: Result<Item<T>>,
        progress: Option<Progress>,
    ) -> (Result<Item<U>>, Option<Progress>) {
        let (batch, origin) = match item {
            Ok(item) => item.into_parts(),
            Err(error) => return (Err(error), progress),
        };
        match (self.convert)(batch) {
            Ok(batch) => (Ok(Item::new(batch, origin)), progress),
            Err(error) => (Err(error.at(name).of(&origin)), None),
        }
    }
}

impl<T: Send + 'static, U: Send + 'static> Batches<U> for Converted<T, U> {
    fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Result<Item<U>>>> {
        if let Err(error) = self.begin() {
            return Poll::Ready(Some(Err(error)));
        }
        let polled = match (&mut self.stage, &self.conversion.runs_on) {
            (Converting::Here(source), RunsOn::Here(name)) => {
                let item = ready!(source.get_mut().poll(cx));
                item.map(|item| self.conversion.here(name, item, source.get().progress()))
            }
            (Converting::DevicePrefetch(ahead), _) => ready!(ahead.poll_next(cx)),
            _ => return Poll::Ready(None),
        };
        self.last = None;
        let Some((item, progress)) = polled else {
            self.stage = Converting::Done;
            self.stands.iter_mut().for_each(Stand::end);
            return Poll::Ready(None);
        };
        self.progress = progress.clone();
        match progress {
            Some(progress) => {
                for (at, stand) in (0..).zip(&mut self.stands) {
                    if stand.take(progress.clone(), item.is_ok()) && item.is_ok() {
                        self.last = Some(at);
                    }
                }
            }
            // The batch is gone.
            None => self.stage = Converting::Done,
        }
        Poll::Ready(Some(item))
    }

    fn checkpoint(&self, back: bool) -> Result<Checkpoint> {
        let stands = (0..).zip(&self.stands);
        let saved = stands.map(|(at, stand)| stand.saved(back && self.last == Some(at)));
        Ok(Checkpoint::of(saved.collect::<Result<_>>()?))
    }

    fn left(&self) -> Left {
        match self.stage {
            Converting::Done => Left::NOTHING,
            _ => self
                .stands
                .iter()
                .map(Stand::left)
                .reduce(Left::and)
                .unwrap_or_default(),
        }
    }

    fn has_last(&self) -> bool {
        self.last.is_some()
    }

    fn keep_last(&mut self) {
        self.last = None;
    }

    fn end_without_last(&mut self, drained: bool) {
        let last = self.last.take();
        // The batches that are ready are dropped with it.
        self.stage = Converting::Done;
        let stands = (0..).zip(&mut self.stands);
        stands.for_each(|(at, stand)| stand.end_at(last == Some(at), drained));
    }

    fn will_block(&mut self) {
        self.blocking = true;
        if let Converting::Here(source) = &mut self.stage {
            source.get_mut().will_block();
        }
    }

    fn will_agree(&mut self) {
        if let Converting::Here(source) = &mut self.stage {
            source.get_mut().will_agree();
        }
    }

    fn hand_over(&mut self, gauge: Option<&Arc<DevicePrefetchGauge>>) -> Vec<Stand> {
        self.stands.clear();
        match &mut self.stage {
            Converting::Here(source) => source.get_mut().hand_over(gauge),
            _ => Vec::new(),
        }
    }

    fn progress(&self) -> Option<Progress> {
        self.progress.clone()
    }
}

#[cfg(test)]
mod tests;
