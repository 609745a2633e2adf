//! Batches that are on the device when the consumer asks for them.

use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{self, Poll, ready};

use futures::{Stream, StreamExt};

use super::autosave::{Autosave, Autosaved};
use super::checkpoint::Progress;
use super::epoch::{Runs, wait_for};
use super::left::Left;
use super::rank_epoch::Stand;
use super::{DataLoader, Edited, Epoch, Stats};
use crate::run::{DevicePrefetch, DevicePrefetchGauge, PinnedThread, Upload, inside_itself};
use crate::{BoxError, Error, ErrorKind, Item, Result};

/// A loader whose batches are uploaded to a device ahead of the consumer; see
/// [`DataLoader::prefetch_to_device`].
pub struct DeviceLoader<T, U> {
    loader: DataLoader<T>,
    uploader: Arc<Uploader<T, U>>,
    depth: usize,
}

/// What all epochs of a device loader share.
struct Uploader<T, U> {
    thread: PinnedThread,
    upload: Upload<T, U>,
}

impl<T: Send + 'static> DataLoader<T> {
    /// Uploads each batch to a device while the consumer works on the one before (double
    /// buffering): what tf.data and flax call `prefetch_to_device`.
    ///
    /// - `upload` runs on one thread, the same for all epochs of the [`DeviceLoader`] and its
    ///   clones, one batch at a time. GPU frameworks keep a stream and a memory pool for each
    ///   thread of the system: this makes them one more of each, whatever the number of epochs. The
    ///   thread starts when the first epoch is first polled, and ends with the last handle.
    /// - One batch is ready beside the one that the consumer holds; see
    ///   [`depth`](DeviceLoader::depth). The next upload begins when a ready one is taken. Order is
    ///   kept.
    /// - The thread is the consumer of the loader, so that with 0 workers everything runs on it.
    ///   I/O uses the loader's own runtime.
    /// - [`Stats::waited`] then says how long the consumer waited for a batch on the device, and
    ///   [`Stats::device`] how long the uploads took.
    ///
    /// # Errors
    /// An error of `upload` reaches the consumer behind the batches before, with the batch's
    /// origin, and ends the epoch, whatever the policy: the batch is gone. So does a panic, as
    /// [`ErrorKind::Panic`]. The next epoch begins anew.
    ///
    /// # Cancellation
    /// Dropping an epoch ends it as without a device, and drops the batches that are ready. An
    /// upload at hand runs to its end; the drop waits for it 100 ms at most, and the last handle as
    /// long once more.
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
    pub fn prefetch_to_device<U, E, F>(&self, mut upload: F) -> DeviceLoader<T, U>
    where
        U: Send + 'static,
        E: Into<BoxError>, // With `?` in it a closure ends in `datapipes::Ok(..)`, or `Ok::<_, BoxError>(..)`.
        F: FnMut(T) -> Result<U, E> + Send + 'static,
    {
        let upload = move |batch| upload(batch).map_err(Error::user);
        let uploader = Uploader {
            thread: PinnedThread::new("device"),
            upload: Arc::new(Mutex::new(upload)),
        };
        DeviceLoader {
            loader: self.clone(),
            uploader: Arc::new(uploader),
            depth: 1,
        }
    }
}

impl<T: Send + 'static, U: Send + 'static> DeviceLoader<T, U> {
    /// How many batches are kept ready on the device, besides the one that the consumer holds: 1 by
    /// default and at least. More helps where uploads take unequally long, and each costs its
    /// memory on the device.
    pub fn depth(self, batches: usize) -> Self {
        DeviceLoader {
            depth: batches.max(1),
            ..self
        }
    }

    /// Epoch number `epoch`: a `Stream`, or by [`blocking`](DeviceEpoch::blocking) an iterator.
    /// Inert until polled.
    ///
    /// Epochs that are alive at once take turns on the thread.
    pub fn epoch(&self, epoch: u64) -> DeviceEpoch<T, U> {
        self.uploaded(self.loader.epoch(epoch))
    }

    /// The epoch of a state, behind what had been delivered then; see [`DataLoader::resume`]. The
    /// state may be one of the loader without a device, or with another.
    ///
    /// # Errors
    /// As [`DataLoader::resume`].
    ///
    /// # Examples
    /// ```
    /// use datapipes::{BoxError, DataLoader, Graph};
    ///
    /// let loader = DataLoader::builder(Graph::range(0..100).shuffle(20).batch(8)).resumable().build()?;
    /// let on_device = loader.prefetch_to_device(Ok::<_, BoxError>);
    /// let whole: Vec<_> = on_device.epoch(0).blocking().collect::<datapipes::Result<_>>()?;
    ///
    /// let mut epoch = on_device.epoch(0).blocking();
    /// let mut seen: Vec<_> = epoch.by_ref().take(5).collect::<datapipes::Result<_>>()?;
    /// let state = epoch.checkpoint()?; // behind the fifth batch; the sixth is on the device already, and comes again
    /// drop(epoch);
    /// seen.extend(on_device.resume(&state)?.blocking().collect::<datapipes::Result<Vec<_>>>()?);
    /// assert_eq!(seen, whole);
    /// # Ok::<(), BoxError>(())
    /// ```
    pub fn resume(&self, state: &super::Checkpoint) -> Result<DeviceEpoch<T, U>> {
        Ok(self.uploaded(self.loader.resume(state)?))
    }

    /// The epoch of the state in a file, or the first; see [`DataLoader::resume_or_start`].
    ///
    /// # Errors
    /// As [`DataLoader::resume_or_start`].
    pub fn resume_or_start(&self, path: impl AsRef<Path>) -> Result<DeviceEpoch<T, U>> {
        Ok(self.uploaded(self.loader.resume_or_start(path)?))
    }

    /// Resumes with a graph that is another by now; see [`DataLoader::resume_edited`].
    ///
    /// # Errors
    /// As [`DataLoader::resume_edited`].
    pub fn resume_edited(
        &self,
        state: &super::Checkpoint,
        edited: Edited,
    ) -> Result<DeviceEpoch<T, U>> {
        Ok(self.uploaded(self.loader.resume_edited(state, edited)?))
    }

    fn uploaded(&self, epoch: Epoch<T>) -> DeviceEpoch<T, U> {
        let (number, gauge) = (epoch.number(), Arc::default());
        let (epoch, runs, stands, autosave) = epoch.on_device(&gauge);
        let (depth, uploader) = (self.depth, self.uploader.clone());
        let stage = Stage::Fresh(Box::new(epoch));
        let (last, blocking) = (None, false);
        DeviceEpoch {
            stage,
            number,
            stands,
            last,
            runs,
            gauge,
            depth,
            blocking,
            autosave,
            uploader,
        }
    }

    /// The loader whose batches these are, with their number, its plan and its figures.
    pub fn loader(&self) -> &DataLoader<T> {
        &self.loader
    }
}

impl<T, U> Clone for DeviceLoader<T, U> {
    fn clone(&self) -> Self {
        DeviceLoader {
            loader: self.loader.clone(),
            uploader: self.uploader.clone(),
            depth: self.depth,
        }
    }
}

impl<T, U> fmt::Debug for DeviceLoader<T, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceLoader")
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}

/// An epoch whose batches are uploaded ahead: a `Stream` of results, or by
/// [`blocking`](DeviceEpoch::blocking) an iterator; see [`DataLoader::prefetch_to_device`].
#[must_use = "an epoch does nothing until it is polled"]
pub struct DeviceEpoch<T, U> {
    stage: Stage<T, U>,
    number: u64,
    /// Where each rank stands that it reads.
    stands: Vec<Stand>,
    /// Of which of them the last thing was that came, if that was a batch.
    last: Option<usize>,
    runs: Runs,
    gauge: Arc<DevicePrefetchGauge>,
    depth: usize,
    blocking: bool,
    autosave: Option<Autosave>,
    /// Behind the stage, which is at work on it.
    uploader: Arc<Uploader<T, U>>,
}

enum Stage<T, U> {
    Fresh(Box<Epoch<T>>),
    Running(DevicePrefetch<U, Progress>),
    Done,
}

impl<T: Send + 'static, U: Send + 'static> DeviceEpoch<T, U> {
    /// The epoch as a plain iterator, for training loops without async.
    pub fn blocking(mut self) -> DeviceBlocking<T, U> {
        self.blocking = true;
        DeviceBlocking(self)
    }

    /// Says that ranks agree before each step, if nothing came yet.
    pub(super) fn will_agree(&mut self) {
        if let Stage::Fresh(epoch) = &mut self.stage {
            epoch.will_agree();
        }
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Where the epoch stands: behind the last batch that was taken from it. Those that are on the
    /// device already do not count, and come again. See [`Epoch::checkpoint`]; what an upload
    /// failed for comes again as well.
    ///
    /// # Errors
    /// As [`Epoch::checkpoint`].
    pub fn checkpoint(&self) -> Result<super::Checkpoint> {
        self.state_before(false)
    }

    /// The same, but before the last batch if that goes `back`.
    pub(super) fn state_before(&self, back: bool) -> Result<super::Checkpoint> {
        let stands = (0..).zip(&self.stands);
        let saved = stands.map(|(at, stand)| stand.saved(back && self.last == Some(at)));
        Ok(super::Checkpoint::of(saved.collect::<Result<_>>()?))
    }

    /// Says that the last batch was of no use; see [`Epoch::fail_last`].
    pub fn fail_last(&mut self) {
        if self.last.is_some() {
            self.end_at(false);
        }
    }

    /// Says that there is no step for the last batch; see [`Epoch::end_without_last`]. What is on
    /// the device already is dropped.
    pub fn end_without_last(&mut self) {
        self.end_at(true);
    }

    /// Ends it without the last batch, if that is what came last, and with nothing behind it if it
    /// is `drained`.
    fn end_at(&mut self, drained: bool) {
        let last = self.last.take();
        // With it goes what is ready.
        self.stage = Stage::Done;
        let stands = (0..).zip(&mut self.stands);
        stands.for_each(|(at, stand)| stand.end_at(last == Some(at), drained));
        self.save_end();
    }

    /// Figures of this epoch so far, also after its end; `None` before it has begun.
    pub fn stats(&self) -> Option<Stats> {
        Stats::of_all(&self.runs)
    }

    /// How many batches it still gives, if that is known; see [`Epoch::steps_left`].
    pub fn steps_left(&self) -> Option<u64> {
        self.left().steps
    }

    fn left(&self) -> Left {
        match self.stage {
            Stage::Done => Left::NOTHING,
            _ => {
                let left = self
                    .stands
                    .iter()
                    .map(Stand::left)
                    .reduce(Left::and)
                    .unwrap_or_default();
                left.with_errors_between(self.autosave.is_some())
            }
        }
    }

    fn poll_uploaded(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Result<Item<U>>>> {
        if self.uploader.thread.is_here() {
            let ended = matches!(std::mem::replace(&mut self.stage, Stage::Done), Stage::Done);
            return Poll::Ready((!ended).then(|| Err(inside_itself())));
        }
        if let Stage::Fresh(_) = self.stage
            && let Stage::Fresh(epoch) = std::mem::replace(&mut self.stage, Stage::Done)
        {
            let Uploader { thread, upload } = &*self.uploader;
            let (upload, gauge, polled) = (upload.clone(), self.gauge.clone(), !self.blocking);
            match DevicePrefetch::start(thread, epoch.tracked(), upload, self.depth, gauge, polled)
            {
                Ok(running) => self.stage = Stage::Running(running),
                Err(error) => {
                    let error =
                        Error::new(ErrorKind::Io, "cannot start a thread").with_source(error);
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
        let Stage::Running(running) = &mut self.stage else {
            return Poll::Ready(None);
        };
        let polled = ready!(running.poll_next(cx));
        self.last = None;
        let Some((item, progress)) = polled else {
            self.stage = Stage::Done;
            self.stands.iter_mut().for_each(Stand::end);
            return Poll::Ready(None);
        };
        if let Some(progress) = progress {
            for (at, stand) in (0..).zip(&mut self.stands) {
                if stand.take(progress, item.is_ok()) && item.is_ok() {
                    self.last = Some(at);
                }
            }
        }
        Poll::Ready(Some(item))
    }
}

impl<T: Send + 'static, U: Send + 'static> Autosaved<Item<U>> for DeviceEpoch<T, U> {
    fn autosave(&mut self) -> Option<&mut Autosave> {
        self.autosave.as_mut()
    }
    fn stands(&self) -> Result<super::Checkpoint> {
        self.checkpoint()
    }
    fn keep_last(&mut self) {
        self.last = None;
    }
    fn poll_unsaved(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Result<Item<U>>>> {
        self.poll_uploaded(cx)
    }
}

impl<T, U> Unpin for DeviceEpoch<T, U> {}

impl<T: Send + 'static, U: Send + 'static> Stream for DeviceEpoch<T, U> {
    type Item = Result<U>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Option<Result<U>>> {
        Poll::Ready(ready!(self.poll_saved(cx)).map(|item| item.map(Item::into_inner)))
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left().size_hint()
    }
}

/// As by [`blocking`](DeviceEpoch::blocking): a `for` loop over it blocks its thread. In async code
/// poll it as a stream.
impl<T: Send + 'static, U: Send + 'static> IntoIterator for DeviceEpoch<T, U> {
    type Item = Result<U>;
    type IntoIter = DeviceBlocking<T, U>;

    fn into_iter(self) -> DeviceBlocking<T, U> {
        self.blocking()
    }
}

impl<T, U> fmt::Debug for DeviceEpoch<T, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceEpoch")
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}

/// A [`DeviceEpoch`] as an iterator; see [`DeviceEpoch::blocking`].
#[must_use = "an epoch does nothing until it is iterated"]
#[derive(Debug)]
pub struct DeviceBlocking<T, U>(pub(super) DeviceEpoch<T, U>);

impl<T: Send + 'static, U: Send + 'static> DeviceBlocking<T, U> {
    /// Where the epoch stands; see [`DeviceEpoch::checkpoint`].
    ///
    /// # Errors
    /// As [`DeviceEpoch::checkpoint`].
    pub fn checkpoint(&self) -> Result<super::Checkpoint> {
        self.0.checkpoint()
    }

    /// Says that the last batch was of no use; see [`Epoch::fail_last`].
    pub fn fail_last(&mut self) {
        self.0.fail_last();
    }

    /// Says that there is no step for the last batch; see [`DeviceEpoch::end_without_last`].
    pub fn end_without_last(&mut self) {
        self.0.end_without_last();
    }

    /// Figures so far; see [`DeviceEpoch::stats`].
    pub fn stats(&self) -> Option<Stats> {
        self.0.stats()
    }

    /// How many batches it still gives, if that is known; see [`Epoch::steps_left`].
    pub fn steps_left(&self) -> Option<u64> {
        self.0.steps_left()
    }
}

impl<T: Send + 'static, U: Send + 'static> Iterator for DeviceBlocking<T, U> {
    type Item = Result<U>;

    fn next(&mut self) -> Option<Result<U>> {
        let (runs, gauge) = (self.0.runs.clone(), self.0.gauge.clone());
        wait_for(&runs, || gauge.is_idle(), self.0.next())
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.left().size_hint()
    }
}

#[cfg(test)]
mod tests;
