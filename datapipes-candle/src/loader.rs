//! A loader with candle's tensors and candle's errors.

use std::path::Path;

use candle_core::{Device, Error, Result};
use datapipes::{Checkpoint, DataLoader, Edited, Epoch, opaque_debug};

use crate::IntoCandle;
use crate::tensor::wrapped;

/// Runs a [`DataLoader`] and returns its batches as candle's tensors, on a device.
///
/// - On the CPU a batch is moved when the consumer takes it: nothing is copied if the tensors own
///   their numbers, as collated tensors do.
/// - On any other device a batch is uploaded by a thread of the loader, one batch ahead of the
///   consumer; see [`DataLoader::prefetch_to_device`]. That thread waits for the upload
///   ([`Device::synchronize`]), so that a batch is ready whichever stream the consumer uses. With
///   the feature `cuda` the numbers go through page-locked memory; see [the crate](crate#on-a-gpu).
/// - Errors are candle's, with the whole text of this library's error: node, item and cause. An
///   error ends the epoch.
///
/// Figures, the plan and the number of batches are those of the original loader,
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
pub struct CandleLoader<U> {
    loader: DataLoader<U>,
    device: Device,
}

/// An epoch of candle's tensors: a `Stream` of candle's results, or an iterator by
/// [`blocking`](Epoch::blocking) or in a `for` loop; see [`CandleLoader`].
///
/// # Examples
/// As a stream:
/// ```
/// use candle_core::Device;
/// use datapipes::{DataLoader, Graph};
/// use datapipes_candle::CandleLoader;
/// use futures::StreamExt;
///
/// # futures::executor::block_on(async {
/// let loader = DataLoader::builder(Graph::range(0..10).map(|n| n as i64).batch(4).collate()).build()?;
/// let mut batches = CandleLoader::new(&loader, &Device::Cpu).epoch(0);
/// let mut count = 0;
/// while let Some(batch) = batches.next().await {
///     count += batch?.elem_count();
/// }
/// assert_eq!(count, 10);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
/// As an iterator that ends on all ranks at once:
/// ```
/// use candle_core::Device;
/// use datapipes::{DataLoader, Graph};
/// use datapipes_candle::CandleLoader;
///
/// let graph = Graph::range(0..10).map(|n| n as f32).batch(2).collate();
/// let loader = CandleLoader::new(&DataLoader::builder(graph).resumable().build()?, &Device::Cpu);
/// // The others have three.
/// let mut left = 3;
/// let mut epoch = loader.epoch(0).blocking().agreed(|mine| {
///     left -= 1;
///     Ok(mine && left >= 0)
/// });
/// assert_eq!(epoch.by_ref().collect::<candle_core::Result<Vec<_>>>()?.len(), 3);
/// assert!(epoch.checkpoint()?.is_finished());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type CandleEpoch<U> = Epoch<U, Error>;

impl<U: Send + 'static> CandleLoader<U> {
    /// Moves the batches of a loader to a device.
    pub fn new<T>(loader: &DataLoader<T>, device: &Device) -> Self
    where
        T: IntoCandle<Batch = U> + Send + 'static,
    {
        CandleLoader::with(loader, device, T::into_candle)
    }

    /// Converts the batches of a loader by a function: for types of other crates, or to cast, pad
    /// or normalise on the device. The function runs where batches are moved; see [`CandleLoader`].
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
    pub fn with<T: Send + 'static>(
        loader: &DataLoader<T>,
        device: &Device,
        convert: impl Fn(T, &Device) -> Result<U> + Send + Sync + 'static,
    ) -> Self {
        if !device.is_cpu() {
            return CandleLoader::ahead(loader, device, convert);
        }
        let on = device.clone();
        let loader = loader.convert("to_candle", move |batch| convert(batch, &on));
        CandleLoader {
            loader,
            device: device.clone(),
        }
    }

    /// Uploads ahead of the consumer, on one fixed thread.
    fn ahead<T: Send + 'static>(
        loader: &DataLoader<T>,
        device: &Device,
        convert: impl Fn(T, &Device) -> Result<U> + Send + 'static,
    ) -> Self {
        let on = device.clone();
        let loader = loader.prefetch_to_device(move |batch| {
            #[cfg(feature = "cuda")]
            if let Device::Cuda(cuda) = &on {
                crate::staging::begin(cuda);
            }
            let batch = convert(batch, &on)?;
            // A delivered batch is complete, whichever stream the consumer uses.
            on.synchronize()?;
            Ok::<_, Error>(batch)
        });
        CandleLoader {
            loader,
            device: device.clone(),
        }
    }

    /// Sets the number of batches kept ready on a device that is not the CPU, besides the one that
    /// the consumer holds. It is 1 by default and at least.
    #[must_use]
    pub fn depth(mut self, batches: usize) -> Self {
        self.loader = self.loader.device_depth(batches);
        self
    }

    /// Returns epoch number `epoch`: a `Stream`, or an iterator by [`blocking`](Epoch::blocking).
    /// It does nothing until polled.
    pub fn epoch(&self, epoch: u64) -> CandleEpoch<U> {
        self.loader.epoch(epoch).with_errors(wrapped)
    }

    /// Resumes the epoch of a checkpoint, after the batches that had been taken then; see
    /// [`DataLoader::resume`]. The checkpoint may come from another device.
    ///
    /// # Errors
    /// As [`DataLoader::resume`], as a candle error.
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
    /// let checkpoint = epoch.checkpoint()?;
    ///
    /// let rest: Vec<Tensor> = loader.resume(&checkpoint)?.blocking().collect::<candle_core::Result<_>>()?;
    /// assert_eq!(first.len() + rest.len(), 13);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume(&self, checkpoint: &Checkpoint) -> Result<CandleEpoch<U>> {
        begun(self.loader.resume(checkpoint))
    }

    /// Returns the epoch from which training continues, by the checkpoint in a file: the epoch of
    /// the checkpoint, the epoch after it, or epoch 0; see [`DataLoader::resume_or_start`]. Call
    /// [`number`](Epoch::number) to find which one it is.
    ///
    /// # Errors
    /// As [`DataLoader::resume_or_start`], as a candle error.
    ///
    /// # Examples
    /// A training that may be stopped at any moment, where only the data has to resume
    /// ([`autosave`](datapipes::loader::Builder::autosave)):
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use datapipes::{DataLoader, Graph};
    /// use datapipes_candle::CandleLoader;
    /// # let folder = std::env::temp_dir().join(format!("datapipes-candle-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    ///
    /// let path = folder.join("train.checkpoint");
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
    /// If the weights must be those of the same step, save both together: first the weights, to a
    /// file whose name contains the step, then the checkpoint, which marks the pair as complete.
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
    /// let (path, weights) = (folder.join("train.checkpoint"), |checkpoint: &Checkpoint| {
    ///     folder.join(format!("weights-{}-{}.safetensors", checkpoint.epoch(), checkpoint.delivered()))
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
    ///         let checkpoint = batches.checkpoint()?;
    ///         safetensors::save(&model, weights(&checkpoint))?;
    ///         checkpoint.save(&path)?;
    ///     }
    /// }
    /// assert!(weights(&Checkpoint::load(&path)?).exists());
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume_or_start(&self, path: impl AsRef<Path>) -> Result<CandleEpoch<U>> {
        begun(self.loader.resume_or_start(path))
    }

    /// Resumes with a graph that has changed; see [`DataLoader::resume_edited`].
    ///
    /// # Errors
    /// As [`DataLoader::resume_edited`], as a candle error.
    pub fn resume_edited(&self, checkpoint: &Checkpoint, edited: Edited) -> Result<CandleEpoch<U>> {
        begun(self.loader.resume_edited(checkpoint, edited))
    }

    /// Returns the number of batches in an epoch, if it is known without reading.
    pub fn len_hint(&self) -> Option<u64> {
        self.loader.len_hint()
    }

    /// Returns the loader of these batches, with the errors of this library, its plan and its
    /// figures.
    pub fn loader(&self) -> &DataLoader<U> {
        &self.loader
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

fn begun<U: Send + 'static>(epoch: datapipes::Result<Epoch<U>>) -> Result<CandleEpoch<U>> {
    epoch
        .map(|epoch| epoch.with_errors(wrapped))
        .map_err(wrapped)
}

datapipes::clone_fields!(CandleLoader<U> { loader, device });

opaque_debug!(CandleLoader<U> { device });

#[cfg(test)]
mod tests;
