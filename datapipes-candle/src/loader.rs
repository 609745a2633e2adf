//! A loader that gives candle's tensors and candle's errors.

mod agreed;

use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, ready};

pub use agreed::CandleAgreed;
use candle_core::{Device, Error, Result};
use datapipes::{
    Blocking, Checkpoint, DataLoader, DeviceBlocking, DeviceEpoch, DeviceLoader, Edited, Epoch,
    Item,
};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};

use crate::IntoCandle;
use crate::tensor::wrapped;

/// Runs a [`DataLoader`] and gives its batches as candle's tensors, on a device.
///
/// - On the CPU a batch is moved when the consumer takes it: nothing is copied where the tensors
///   own their numbers, as collated ones do.
/// - On any other device a batch is uploaded by a thread of the loader's own, one ahead of the
///   consumer; see [`DataLoader::prefetch_to_device`]. There the upload is waited for
///   ([`Device::synchronize`]), so that what the consumer gets is ready whichever stream it uses.
/// - Errors are candle's, with the whole text of ours: node, item and cause. The epoch ends behind
///   one.
///
/// Figures, the plan and the number of batches are those of the loader it was made of,
/// [`loader`](CandleLoader::loader).
///
/// # Examples
/// ```
/// use candle_core::Device;
/// use datapipes::{DataLoader, Graph};
/// use datapipes_candle::CandleLoader;
///
/// let graph = Graph::range(0..100).map(|n| n as f32).batch(32).collate();
/// let loader = DataLoader::builder(graph).build()?;
/// let sums = CandleLoader::new(&loader, &Device::Cpu)
///     .epoch(0)
///     .blocking()
///     .map(|batch| batch?.sum_all()?.to_scalar::<f32>())
///     .collect::<candle_core::Result<Vec<_>>>()?;
/// assert_eq!(sums.iter().sum::<f32>(), 4950.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CandleLoader<T, U> {
    loader: DataLoader<T>,
    device: Device,
    convert: Convert<T, U>,
    ahead: Option<DeviceLoader<T, U>>,
}

type Convert<T, U> = Arc<dyn Fn(T, &Device) -> Result<U> + Send + Sync>;

impl<T> CandleLoader<T, T::Batch>
where
    T: IntoCandle + Send + 'static,
    T::Batch: Send + 'static,
{
    /// The batches of a loader, on a device.
    pub fn new(loader: &DataLoader<T>, device: &Device) -> Self {
        CandleLoader::with(loader, device, T::into_candle)
    }
}

impl<T: Send + 'static, U: Send + 'static> CandleLoader<T, U> {
    /// The batches of a loader, made into what a function makes of them: for types of other crates,
    /// or to cast, pad or normalise on the device. The function runs where batches are moved; see
    /// [`CandleLoader`].
    ///
    /// # Examples
    /// ```
    /// use candle_core::{DType, Device};
    /// use datapipes::{DataLoader, Graph, Tensor};
    /// use datapipes_candle::{CandleLoader, to_candle};
    ///
    /// let pixels = Graph::range(0..8).map(|n| [n as u8; 12]).batch(4).collate();
    /// let loader = DataLoader::builder(pixels).build()?;
    /// // A quarter of the bytes are uploaded; the device makes floats of them.
    /// let loader = CandleLoader::with(&loader, &Device::Cpu, |batch: Tensor, device| {
    ///     to_candle(batch, device)?.to_dtype(DType::F32)? / 255.0
    /// });
    /// for batch in loader.epoch(0) {
    ///     assert_eq!(batch?.dtype(), DType::F32);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with(
        loader: &DataLoader<T>,
        device: &Device,
        convert: impl Fn(T, &Device) -> Result<U> + Send + Sync + 'static,
    ) -> Self {
        let convert: Convert<T, U> = Arc::new(convert);
        let ahead = (!device.is_cpu()).then(|| uploaded(loader, device, convert.clone()));
        CandleLoader {
            loader: loader.clone(),
            device: device.clone(),
            convert,
            ahead,
        }
    }

    /// How many batches are kept ready on a device that is not the CPU, besides the one that the
    /// consumer holds: 1 by default and at least.
    pub fn depth(self, batches: usize) -> Self {
        CandleLoader {
            ahead: self.ahead.map(|ahead| ahead.depth(batches)),
            ..self
        }
    }

    /// Epoch number `epoch`: a `Stream`, or by [`blocking`](CandleEpoch::blocking) an iterator.
    /// Inert until polled.
    pub fn epoch(&self, epoch: u64) -> CandleEpoch<T, U> {
        match &self.ahead {
            Some(ahead) => CandleEpoch(Way::Ahead(ahead.epoch(epoch))),
            None => self.here(self.loader.epoch(epoch)),
        }
    }

    /// The epoch of a state, behind the batches that had been taken then; see
    /// [`DataLoader::resume`]. The state may be one of another device.
    ///
    /// # Errors
    /// As [`DataLoader::resume`], in candle's form.
    ///
    /// # Examples
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use datapipes::{DataLoader, Graph};
    /// use datapipes_candle::CandleLoader;
    ///
    /// let graph = Graph::range(0..100).shuffle(20).map(|n| n as f32).batch(8).collate();
    /// let loader = CandleLoader::new(&DataLoader::builder(graph).resumable().build()?, &Device::Cpu);
    /// let mut epoch = loader.epoch(0).blocking();
    /// let first: Vec<Tensor> = epoch.by_ref().take(5).collect::<candle_core::Result<_>>()?;
    /// let state = epoch.checkpoint()?;
    ///
    /// let rest: Vec<Tensor> = loader.resume(&state)?.blocking().collect::<candle_core::Result<_>>()?;
    /// assert_eq!(first.len() + rest.len(), 13);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume(&self, state: &Checkpoint) -> Result<CandleEpoch<T, U>> {
        self.begun(|loader| loader.resume(state), |ahead| ahead.resume(state))
    }

    /// The epoch that training goes on with, by the state in a file: the epoch of the state, the
    /// one after it, or epoch 0; see [`DataLoader::resume_or_start`]. Its
    /// [number](CandleEpoch::number) says which it is.
    ///
    /// # Errors
    /// As [`DataLoader::resume_or_start`], in candle's form.
    ///
    /// # Examples
    /// A training that may be stopped at any moment, where the data alone has to go on
    /// ([`autosave`](datapipes::loader::Builder::autosave)):
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use datapipes::{DataLoader, Graph};
    /// use datapipes_candle::CandleLoader;
    /// # let folder = std::env::temp_dir().join(format!("datapipes-candle-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    ///
    /// let path = folder.join("train.state");
    /// let graph = Graph::range(0..100).shuffle(20).map(|n| n as f32).batch(8).collate();
    /// let loader = CandleLoader::new(&DataLoader::builder(graph).autosave(&path, 5).build()?, &Device::Cpu);
    /// let first = loader.resume_or_start(&path)?;
    /// let others = first.number() + 1..2;
    /// for epoch in std::iter::once(first).chain(others.map(|number| loader.epoch(number))) {
    ///     for batch in epoch.blocking() {
    ///         let _step: Tensor = batch?;
    ///     }
    /// }
    /// loader.loader().flush_autosave()?;
    /// assert_eq!(loader.resume_or_start(&path)?.number(), 2);
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    /// Where the weights have to be those of the very step, both are saved together: first the
    /// weights, to a file whose name says which step that is, then the state, which is the mark
    /// that the pair is there.
    /// ```
    /// use std::collections::HashMap;
    /// use candle_core::{DType, Device, Tensor, safetensors};
    /// use datapipes::{DataLoader, Graph, Checkpoint};
    /// use datapipes_candle::CandleLoader;
    /// # let folder = std::env::temp_dir().join(format!("datapipes-candle-pair-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    ///
    /// let graph = Graph::range(0..100).map(|n| n as f32).batch(8).collate();
    /// let loader = CandleLoader::new(&DataLoader::builder(graph).resumable().build()?, &Device::Cpu);
    /// let mut model = HashMap::from([("w".to_owned(), Tensor::zeros(3, DType::F32, &Device::Cpu)?)]);
    /// let (path, weights) = (folder.join("train.state"), |state: &Checkpoint| {
    ///     folder.join(format!("weights-{}-{}.safetensors", state.epoch(), state.delivered()))
    /// });
    /// if path.exists() {
    ///     model = safetensors::load(weights(&Checkpoint::load(&path)?), &Device::Cpu)?;
    /// }
    /// let mut batches = loader.resume_or_start(&path)?.blocking();
    /// let mut step = 0;
    /// while let Some(batch) = batches.next() {
    ///     let _batch = batch?; // and the step
    ///     step += 1;
    ///     if step % 5 == 0 {
    ///         let state = batches.checkpoint()?;
    ///         safetensors::save(&model, weights(&state))?;
    ///         state.save(&path)?;
    ///     }
    /// }
    /// assert!(weights(&Checkpoint::load(&path)?).exists());
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume_or_start(&self, path: impl AsRef<Path>) -> Result<CandleEpoch<T, U>> {
        let path = path.as_ref();
        self.begun(
            |loader| loader.resume_or_start(path),
            |ahead| ahead.resume_or_start(path),
        )
    }

    /// Resumes with a graph that is another by now; see [`DataLoader::resume_edited`].
    ///
    /// # Errors
    /// As [`DataLoader::resume_edited`], in candle's form.
    pub fn resume_edited(&self, state: &Checkpoint, edited: Edited) -> Result<CandleEpoch<T, U>> {
        self.begun(
            |loader| loader.resume_edited(state, edited),
            |ahead| ahead.resume_edited(state, edited),
        )
    }

    fn begun(
        &self,
        here: impl FnOnce(&DataLoader<T>) -> datapipes::Result<Epoch<T>>,
        ahead: impl FnOnce(&DeviceLoader<T, U>) -> datapipes::Result<DeviceEpoch<T, U>>,
    ) -> Result<CandleEpoch<T, U>> {
        match &self.ahead {
            Some(loader) => ahead(loader).map(|epoch| CandleEpoch(Way::Ahead(epoch))),
            None => here(&self.loader).map(|epoch| self.here(epoch)),
        }
        .map_err(wrapped)
    }

    fn here(&self, epoch: Epoch<T>) -> CandleEpoch<T, U> {
        CandleEpoch(Way::Here(epoch, self.convert.clone(), self.device.clone()))
    }

    /// How many batches an epoch has, if that is known without reading.
    pub fn len_hint(&self) -> Option<u64> {
        self.loader.len_hint()
    }

    /// The loader whose batches these are, with its plan and its figures.
    pub fn loader(&self) -> &DataLoader<T> {
        &self.loader
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

/// Uploads on a thread that stays, ahead of the consumer.
fn uploaded<T: Send + 'static, U: Send + 'static>(
    loader: &DataLoader<T>,
    device: &Device,
    convert: Convert<T, U>,
) -> DeviceLoader<T, U> {
    let device = device.clone();
    loader.prefetch_to_device(move |batch| {
        let batch = convert(batch, &device)?;
        // What is handed over is complete, whichever stream the consumer uses.
        device.synchronize()?;
        Ok::<_, Error>(batch)
    })
}

impl<T, U> Clone for CandleLoader<T, U> {
    fn clone(&self) -> Self {
        let CandleLoader {
            loader,
            device,
            convert,
            ahead,
        } = self;
        let (loader, device) = (loader.clone(), device.clone());
        CandleLoader {
            loader,
            device,
            convert: convert.clone(),
            ahead: ahead.clone(),
        }
    }
}

impl<T, U> fmt::Debug for CandleLoader<T, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CandleLoader")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// An epoch of candle's tensors: a `Stream` of candle's results, or an iterator by
/// [`blocking`](CandleEpoch::blocking) or in a `for` loop; see [`CandleLoader`].
#[must_use = "an epoch does nothing until it is iterated"]
pub struct CandleEpoch<T, U>(Way<T, U>);

enum Way<T, U> {
    Here(Epoch<T>, Convert<T, U>, Device),
    Ahead(DeviceEpoch<T, U>),
}

impl<T: Send + 'static, U: Send + 'static> CandleEpoch<T, U> {
    /// The epoch as a plain iterator, for training loops without async. Works on any thread.
    pub fn blocking(self) -> CandleBlocking<U> {
        CandleBlocking(match self.0 {
            Way::Ahead(epoch) => Box::new(epoch.blocking()),
            Way::Here(epoch, convert, device) => Box::new(Here(epoch.blocking(), convert, device)),
        })
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        match &self.0 {
            Way::Here(epoch, ..) => epoch.number(),
            Way::Ahead(epoch) => epoch.number(),
        }
    }

    /// The epoch as a `Stream` in a box.
    ///
    /// # Examples
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use datapipes::{DataLoader, Graph};
    /// use datapipes_candle::CandleLoader;
    /// use futures::StreamExt;
    ///
    /// # futures::executor::block_on(async {
    /// let loader = DataLoader::builder(Graph::range(0..10).map(|n| n as i64).batch(4).collate()).build()?;
    /// let mut batches = CandleLoader::new(&loader, &Device::Cpu).epoch(0).stream();
    /// let mut count = 0;
    /// while let Some(batch) = batches.next().await {
    ///     count += batch?.elem_count();
    /// }
    /// assert_eq!(count, 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn stream(self) -> BoxStream<'static, Result<U>> {
        self.boxed()
    }

    /// How many batches it still gives, if that is known; see [`Epoch::steps_left`].
    pub fn steps_left(&self) -> Option<u64> {
        match &self.0 {
            Way::Here(epoch, ..) => epoch.steps_left(),
            Way::Ahead(epoch) => epoch.steps_left(),
        }
    }

    /// Where the epoch stands: behind the last batch that was taken from it, whatever is on the
    /// device already. A batch that could not be made into candle's comes again. See
    /// [`Epoch::checkpoint`].
    ///
    /// # Errors
    /// As [`Epoch::checkpoint`], in candle's form.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        match &self.0 {
            Way::Here(epoch, ..) => epoch.checkpoint(),
            Way::Ahead(epoch) => epoch.checkpoint(),
        }
        .map_err(wrapped)
    }
}

impl<T: Send + 'static, U: Send + 'static> Stream for CandleEpoch<T, U> {
    type Item = Result<U>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Option<Result<U>>> {
        match &mut self.0 {
            Way::Ahead(epoch) => Pin::new(epoch).poll_next(cx).map_err(wrapped),
            Way::Here(epoch, convert, device) => {
                let Some(item) = ready!(epoch.poll_next_item(cx)) else {
                    return Poll::Ready(None);
                };
                let batch = moved(item, &**convert, device);
                if batch.is_err() {
                    epoch.fail_last();
                }
                Poll::Ready(Some(batch))
            }
        }
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Way::Ahead(epoch) => epoch.size_hint(),
            Way::Here(epoch, ..) => epoch.size_hint(),
        }
    }
}

/// As by [`blocking`](CandleEpoch::blocking): a `for` loop over it blocks its thread.
impl<T: Send + 'static, U: Send + 'static> IntoIterator for CandleEpoch<T, U> {
    type Item = Result<U>;
    type IntoIter = CandleBlocking<U>;

    fn into_iter(self) -> CandleBlocking<U> {
        self.blocking()
    }
}

/// A batch as candle's; an error with the whole text of ours.
fn moved<T, U>(
    item: datapipes::Result<Item<T>>,
    convert: &dyn Fn(T, &Device) -> Result<U>,
    device: &Device,
) -> Result<U> {
    let item = item.map_err(wrapped)?;
    let (batch, origin) = item.into_parts();
    convert(batch, device).map_err(|error| {
        wrapped(
            datapipes::Error::user(error)
                .at(&"to_candle".into())
                .of(&origin),
        )
    })
}

impl<T, U> fmt::Debug for CandleEpoch<T, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CandleEpoch").finish()
    }
}

/// An epoch as an iterator; see [`CandleEpoch::blocking`].
#[must_use = "an epoch does nothing until it is iterated"]
pub struct CandleBlocking<U>(Box<dyn Batches<U> + Send>);

/// What gives batches and says where it stands.
trait Batches<U> {
    fn next(&mut self) -> Option<Result<U>>;
    fn checkpoint(&self) -> datapipes::Result<Checkpoint>;
    fn steps_left(&self) -> Option<u64>;
    fn size_hint(&self) -> (usize, Option<usize>);
    fn fail_last(&mut self);
    fn end_without_last(&mut self);
}

/// Batches that are made candle's where they are taken.
struct Here<T, U>(Blocking<T>, Convert<T, U>, Device);

impl<T: Send + 'static, U> Batches<U> for Here<T, U> {
    fn next(&mut self) -> Option<Result<U>> {
        let Here(epoch, convert, device) = self;
        let batch = moved(epoch.next_item()?, &**convert, device);
        if batch.is_err() {
            epoch.fail_last();
        }
        Some(batch)
    }
    fn checkpoint(&self) -> datapipes::Result<Checkpoint> {
        self.0.checkpoint()
    }
    fn steps_left(&self) -> Option<u64> {
        self.0.steps_left()
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
    fn fail_last(&mut self) {
        self.0.fail_last();
    }
    fn end_without_last(&mut self) {
        self.0.end_without_last();
    }
}

impl<T: Send + 'static, U: Send + 'static> Batches<U> for DeviceBlocking<T, U> {
    fn next(&mut self) -> Option<Result<U>> {
        Iterator::next(self).map(|batch| batch.map_err(wrapped))
    }
    fn checkpoint(&self) -> datapipes::Result<Checkpoint> {
        DeviceBlocking::state(self)
    }
    fn steps_left(&self) -> Option<u64> {
        DeviceBlocking::steps_left(self)
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        Iterator::size_hint(self)
    }
    fn fail_last(&mut self) {
        DeviceBlocking::fail_last(self);
    }
    fn end_without_last(&mut self) {
        DeviceBlocking::end_without_last(self);
    }
}

impl<U> CandleBlocking<U> {
    /// Where the epoch stands; see [`CandleEpoch::checkpoint`].
    ///
    /// # Errors
    /// As [`CandleEpoch::checkpoint`].
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        self.0.checkpoint().map_err(wrapped)
    }

    /// How many batches it still gives, if that is known; see [`Epoch::steps_left`].
    pub fn steps_left(&self) -> Option<u64> {
        self.0.steps_left()
    }
}

impl<U> Iterator for CandleBlocking<U> {
    type Item = Result<U>;

    fn next(&mut self) -> Option<Result<U>> {
        self.0.next()
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<U> fmt::Debug for CandleBlocking<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CandleBlocking").finish()
    }
}

#[cfg(test)]
mod tests;
