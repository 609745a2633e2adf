//! A loader that gives candle's tensors and candle's errors.

use std::fmt;
use std::path::Path;

use candle_core::{Device, Error, Result};
use datapipes::{Checkpoint, DataLoader, Edited, Epoch};

use crate::IntoCandle;
use crate::tensor::wrapped;

/// Runs a [`DataLoader`] and gives its batches as candle's tensors, on a device.
///
/// - On the CPU a batch is moved when the consumer takes it: nothing is copied where the tensors
///   own their numbers, as collated ones do.
/// - On any other device a batch is uploaded by a thread of the loader's own, one ahead of the
///   consumer; see [`DataLoader::prefetch_to_device`]. There the upload is waited for
///   ([`Device::synchronize`]), so that what the consumer gets is ready whichever stream it uses.
/// - Errors are candle's, with the whole text of ours: node, item and cause. The epoch ends after
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
    /// The batches of a loader, on a device.
    pub fn new<T>(loader: &DataLoader<T>, device: &Device) -> Self
    where
        T: IntoCandle<Batch = U> + Send + 'static,
    {
        CandleLoader::with(loader, device, T::into_candle)
    }

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

    /// Uploads on a thread that stays, ahead of the consumer.
    fn ahead<T: Send + 'static>(
        loader: &DataLoader<T>,
        device: &Device,
        convert: impl Fn(T, &Device) -> Result<U> + Send + 'static,
    ) -> Self {
        let on = device.clone();
        let loader = loader.prefetch_to_device(move |batch| {
            let batch = convert(batch, &on)?;
            // What is handed over is complete, whichever stream the consumer uses.
            on.synchronize()?;
            Ok::<_, Error>(batch)
        });
        CandleLoader {
            loader,
            device: device.clone(),
        }
    }

    /// How many batches are kept ready on a device that is not the CPU, besides the one that the
    /// consumer holds: 1 by default and at least.
    pub fn depth(self, batches: usize) -> Self {
        CandleLoader {
            loader: self.loader.device_depth(batches),
            ..self
        }
    }

    /// Epoch number `epoch`: a `Stream`, or by [`blocking`](Epoch::blocking) an iterator. Inert
    /// until polled.
    pub fn epoch(&self, epoch: u64) -> CandleEpoch<U> {
        self.loader.epoch(epoch).with_errors(wrapped)
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
    pub fn resume(&self, state: &Checkpoint) -> Result<CandleEpoch<U>> {
        begun(self.loader.resume(state))
    }

    /// The epoch that training goes on with, by the state in a file: the epoch of the state, the
    /// one after it, or epoch 0; see [`DataLoader::resume_or_start`]. Its [number](Epoch::number)
    /// says which it is.
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
    pub fn resume_or_start(&self, path: impl AsRef<Path>) -> Result<CandleEpoch<U>> {
        begun(self.loader.resume_or_start(path))
    }

    /// Resumes with a graph that is another by now; see [`DataLoader::resume_edited`].
    ///
    /// # Errors
    /// As [`DataLoader::resume_edited`], in candle's form.
    pub fn resume_edited(&self, state: &Checkpoint, edited: Edited) -> Result<CandleEpoch<U>> {
        begun(self.loader.resume_edited(state, edited))
    }

    /// How many batches an epoch has, if that is known without reading.
    pub fn len_hint(&self) -> Option<u64> {
        self.loader.len_hint()
    }

    /// The loader of these batches, with our errors; with its plan and its figures.
    pub fn loader(&self) -> &DataLoader<U> {
        &self.loader
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

fn begun<U: Send + 'static>(epoch: datapipes::Result<Epoch<U>>) -> Result<CandleEpoch<U>> {
    epoch
        .map(|epoch| epoch.with_errors(wrapped))
        .map_err(wrapped)
}

impl<U> Clone for CandleLoader<U> {
    fn clone(&self) -> Self {
        CandleLoader {
            loader: self.loader.clone(),
            device: self.device.clone(),
        }
    }
}

impl<U> fmt::Debug for CandleLoader<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CandleLoader")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
