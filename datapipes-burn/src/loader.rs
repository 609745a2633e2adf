//! A loader of this library as one of burn's.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn_core::data::dataloader::DataLoaderIterator;
use burn_core::tensor::Device;
use datapipes::{
    BoxError, Checkpoint, DataLoader, Edited, Epoch, Error, ErrorKind, Rank, Result, lock,
    opaque_debug,
};

use crate::count::{Count, GivenCounts};
use crate::epoch::{Batches, Convert, Made, Reading};
use crate::{IntoBurn, Waits};

/// A [`datapipes::DataLoader`] as a [`DataLoader`](burn_core::data::dataloader::DataLoader) of
/// burn, for its learner or a loop of your own.
///
/// - **Epochs.** Each [`iter`](burn_core::data::dataloader::DataLoader::iter) is the next epoch,
///   even if it is not read to its end: first number 0, or the number set by
///   [`epoch`](BurnLoader::epoch), then 1, and so on. A shuffle therefore has another
///   order each time, and the same orders when the program runs again. A clone, and a copy for
///   another device, continues from the current epoch, with a counter of its own.
/// - **Threads.** Reading and decoding run ahead, on the threads of the loader. A batch becomes
///   tensors in `next`, on the calling thread; on a GPU say
///   [`prefetch_to_device`](BurnLoader::prefetch_to_device), which uploads it while the step before
///   is computed. Dropping the iterator ends everything that the epoch started.
/// - **Errors** reach the learner as `Err` with the whole text (node, item, cause), end the epoch
///   and interrupt the training. Errors that the loader's [`OnError`](datapipes::OnError) skips do
///   not.
/// - **Items.** Burn counts items, not batches, for its progress bars and to know when an epoch is
///   complete, which is when its learner applies the last of the accumulated gradients; see
///   [`items`](BurnLoader::items).
/// - **Devices.** For training on several devices, see [`for_devices`](BurnLoader::for_devices).
///
/// # Examples
/// ```
/// use burn_core::data::dataloader::DataLoader as _;
/// use burn_core::tensor::{Device, Int, Tensor};
/// use datapipes::{DataLoader, Graph};
/// use datapipes_burn::BurnLoader;
///
/// let graph = Graph::range(0..10).shuffle(10).map(|n| ([n as f32; 3], n as i64)).batch(4).collate();
/// let loader = DataLoader::builder(graph).seed(42).build()?;
/// let loader: BurnLoader<_, (Tensor<2>, Tensor<1, Int>)> = BurnLoader::new(loader, &Device::flex()).items(10);
/// let mut rows = Vec::new();
/// for batch in loader.iter() {
///     let (points, _labels) = batch?;
///     rows.push(points.dims()[0]);
/// }
/// assert_eq!((rows, loader.num_items(), loader.next_epoch()), (vec![4, 4, 2], 10, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct BurnLoader<B, O> {
    loader: DataLoader<B>,
    /// The loader's batches as tensors on the device.
    made: DataLoader<Made<O>>,
    convert: Arc<Convert<B, O>>,
    device: Device,
    /// Number of batches that are converted ahead; none if they are converted in `next`.
    ahead: Option<usize>,
    /// True if batches report the number of their items.
    has_rows: bool,
    waits: Arc<Mutex<Waits>>,
    given: GivenCounts,
    parts: Option<Parts<B>>,
    /// Index of the device, if this is a slice.
    device_index: Option<usize>,
    /// Epochs of the slices that were begun last, by device.
    slices: Arc<Mutex<BTreeMap<usize, Reading<Made<O>>>>>,
    /// Reason why this part of a loader cannot be read.
    refused: Option<Arc<str>>,
    next: AtomicU64,
    /// Number of batches of an `iter`, if epochs are cut by steps.
    steps: Option<u64>,
    /// Epoch that this loader has begun last, for the next `iter` to continue.
    current: Mutex<Option<Reading<Made<O>>>>,
    /// Checkpoint from which the next epoch resumes.
    goes_on: Mutex<Option<(Checkpoint, Option<Edited>)>>,
    /// Epoch that was begun last, by this loader or a clone.
    reading: Arc<Mutex<Option<Reading<Made<O>>>>>,
}

/// Functions that make the loaders of several devices.
struct Parts<B> {
    devices: usize,
    make: Arc<dyn Fn(Rank) -> Result<DataLoader<B>> + Send + Sync>,
}

impl<B: Send + 'static, O: Send + 'static> BurnLoader<B, O> {
    /// Converts batches by [`IntoBurn`].
    pub fn new(loader: DataLoader<B>, device: &Device) -> Self
    where
        B: IntoBurn<O>,
    {
        let convert = |batch: B, device: &Device| {
            let rows = batch.rows();
            Ok((batch.into_burn(device)?, Some(rows)))
        };
        BurnLoader::converted(loader, device, Arc::new(convert), true)
    }

    /// Converts batches by a function.
    ///
    /// # Errors
    /// An error of the function ends the epoch, with the names of the batch's items added.
    ///
    /// # Examples
    /// ```
    /// use burn_core::data::dataloader::DataLoader as _;
    /// use burn_core::tensor::{Device, Tensor};
    /// use datapipes::{DataLoader, Graph};
    /// use datapipes_burn::{BurnLoader, IntoBurn};
    ///
    /// let loader = DataLoader::builder(Graph::range(0..8).map(|n| [n as u8; 2]).batch(4).collate()).build()?;
    /// let loader = BurnLoader::with(loader, &Device::flex(), |batch: datapipes::Tensor, device: &Device| {
    ///     let bytes: Tensor<2, burn_core::tensor::Int> = batch.into_burn(device)?;
    ///     datapipes::Ok(bytes.float() / 255.0)
    /// });
    /// assert_eq!(loader.iter().next().unwrap()?.dims(), [4, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with<E, F>(loader: DataLoader<B>, device: &Device, convert: F) -> Self
    where
        E: Into<BoxError>, // With `?` in it a closure ends in `datapipes::Ok(..)`, or `Ok::<_, BoxError>(..)`.
        F: Fn(B, &Device) -> Result<O, E> + Send + Sync + 'static,
    {
        let convert = move |batch, device: &Device| {
            let made = convert(batch, device).map_err(Error::user)?;
            Ok((made, None))
        };
        BurnLoader::converted(loader, device, Arc::new(convert), false)
    }

    fn converted(
        loader: DataLoader<B>,
        device: &Device,
        convert: Arc<Convert<B, O>>,
        has_rows: bool,
    ) -> Self {
        BurnLoader {
            made: made(&loader, device, &convert, None),
            loader,
            convert,
            device: device.clone(),
            ahead: None,
            has_rows,
            waits: Arc::default(),
            given: GivenCounts::default(),
            parts: None,
            device_index: None,
            slices: Arc::default(),
            refused: None,
            next: AtomicU64::new(0),
            steps: None,
            current: Mutex::default(),
            goes_on: Mutex::default(),
            reading: Arc::default(),
        }
    }

    /// Converts batches on a thread of the loader while the step before is computed, so that a GPU
    /// gets them meanwhile, and keeps `depth` of them ready besides the one that the step works on:
    /// at least 1. One thread does so for each device, in all epochs; see
    /// [`DataLoader::prefetch_to_device`].
    ///
    /// Without this setting a batch is converted in `next`, which is as fast on the CPU.
    ///
    /// # Examples
    /// ```
    /// use burn_core::data::dataloader::DataLoader as _;
    /// use burn_core::tensor::{Device, Tensor};
    /// use datapipes::{DataLoader, Graph};
    /// use datapipes_burn::BurnLoader;
    ///
    /// let graph = Graph::range(0..10).map(|n| n as f32).batch(4).collate();
    /// let device = Device::flex(); // or Device::cuda(0)
    /// let loader: BurnLoader<_, Tensor<1>> =
    ///     BurnLoader::new(DataLoader::builder(graph).build()?, &device).prefetch_to_device(1);
    /// assert_eq!(loader.iter().map(|batch| batch.unwrap().dims()[0]).collect::<Vec<_>>(), [4, 4, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefetch_to_device(mut self, depth: usize) -> Self {
        self.ahead = Some(depth);
        let (loader, device) = (self.loader.clone(), self.device.clone());
        self.on(loader, device)
    }

    /// Reads this loader on this device.
    fn on(mut self, loader: DataLoader<B>, device: Device) -> Self {
        self.made = made(&loader, &device, &self.convert, self.ahead);
        (self.loader, self.device) = (loader, device);
        self
    }

    datapipes::setters! {
        /// Sets the number of items in an epoch: the result of burn's `num_items`.
        ///
        /// Without this setting, the number is [`batch_size`](BurnLoader::batch_size) times the number
        /// of batches, if the graph knows that number ([`DataLoader::len_hint`]). Without both
        /// settings, batches are counted instead of items. If none of these numbers is known (samples
        /// from archives, a filter), an epoch is one error that reports this.
        ///
        /// The progress never exceeds this number. If the number of batches is known, the last one
        /// completes the epoch, however many items it has. Otherwise the number should be exact,
        /// without the items that a last batch leaves out. Bad samples that are skipped leave the
        /// progress below the number.
        items(items: usize) => given.items = Some(items);

        /// Sets the number of items in a batch, if batches do not report it themselves: those of
        /// [`new`](BurnLoader::new) do, by [`IntoBurn::rows`].
        batch_size(items: usize) => given.batch_size = Some(items);
    }

    /// Sets the epoch of the next `iter`: the number of finished epochs when a training is resumed.
    pub fn epoch(mut self, epoch: u64) -> Self {
        *self.next.get_mut() = epoch;
        self
    }

    /// Makes an epoch of burn from this many batches, at least 1. Each `iter` continues after the
    /// batches of the one before. If the data of an epoch of the loader ends, it continues with the
    /// loader's next epoch.
    ///
    /// Burn's learner validates and saves its checkpoints only at the end of its epochs. With this
    /// setting it does both in the middle of long ones; see `resumable_training` (feature `train`),
    /// which saves the loader's [`checkpoint`](BurnLoader::checkpoint) with them. Everything that
    /// the learner counts by epochs (`num_epochs`, its figures, early stopping) then counts these
    /// epochs. The learner applies accumulated gradients at their ends, so `batches` should be a
    /// multiple of the accumulated batches.
    ///
    /// Between two `iter`s the epoch stays, with the batches that were made ahead. An `iter` that
    /// is dropped midway is continued by the next. Burn's `num_items` is the number of items in
    /// this many batches, by their [`batch_size`](BurnLoader::batch_size), or the number of batches
    /// without it; [`items`](BurnLoader::items) is not needed. With [several
    /// devices](BurnLoader::for_devices) each device has this many batches.
    ///
    /// # Examples
    /// ```
    /// use burn_core::data::dataloader::DataLoader as _;
    /// use burn_core::tensor::{Device, Tensor};
    /// use datapipes::{DataLoader, Graph};
    /// use datapipes_burn::BurnLoader;
    ///
    /// let graph = Graph::range(0..20).map(|n| n as f32).batch(4).collate(); // epochs of 5 batches
    /// let loader: BurnLoader<_, Tensor<1>> =
    ///     BurnLoader::new(DataLoader::builder(graph).resumable().build()?, &Device::flex()).steps_per_epoch(3);
    /// assert_eq!((loader.iter().count(), loader.checkpoint()?.delivered()), (3, 3));
    /// assert_eq!((loader.iter().count(), loader.checkpoint()?.epoch(), loader.checkpoint()?.delivered()), (3, 1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn steps_per_epoch(mut self, batches: u64) -> Self {
        self.steps = Some(batches.max(1));
        self
    }

    /// Prepares training on several devices, for which burn cuts a loader into as many slices:
    /// slice `k` becomes the loader that `make` makes of rank `k` of `devices`. The graph needs a
    /// [`sharding_filter`](datapipes::Graph::sharding_filter) or
    /// [`shard`](datapipes::Indexed::shard). With [`Uneven::Drop`](datapipes::Uneven::Drop) every
    /// device gets equally many items, so that they step together.
    ///
    /// Burn asks for items `k * (items / devices)` and so on, and the last slice has the remainder.
    /// A stream cannot be cut at an item, and need not be: the sharding decides which items belong
    /// to which device, and assigns other items in each epoch if a shuffle precedes it. Burn gets
    /// the same number of items, not the same items. Any other slice, any slice without this
    /// setting, and any slice of fewer items than devices is refused: its epochs are one error that
    /// reports this.
    ///
    /// If a policy skips bad samples, one device may lack a batch and let the others wait for it:
    /// filter such samples out before, or let the epoch fail. Each slice counts its epochs by
    /// itself, as each clone does. Burn cuts once for a whole training; if you cut anew in each
    /// epoch, set the epoch by [`epoch`](BurnLoader::epoch).
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use burn_core::data::dataloader::{DataLoader as _, split::split_dataloader};
    /// use burn_core::tensor::{Device, Tensor};
    /// use datapipes::{DataLoader, Graph, Rank, Uneven};
    /// use datapipes_burn::BurnLoader;
    ///
    /// let devices = [Device::flex(), Device::flex()];
    /// let make = |rank: Rank| {
    ///     let graph = Graph::range(0..20).shuffle(20).sharding_filter().map(|n| n as f32).batch(5).collate();
    ///     DataLoader::builder(graph).rank(rank.index, rank.world).uneven(Uneven::Drop).build()
    /// };
    /// let loader: BurnLoader<_, Tensor<1>> = BurnLoader::new(make(Rank::default())?, &devices[0]);
    /// let loader = loader.items(20).for_devices(devices.len(), make);
    /// let parts = split_dataloader(Arc::new(loader), &devices); // as the learner does
    /// assert_eq!(parts.iter().map(|part| part.iter().count()).collect::<Vec<_>>(), [2, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn for_devices<E, F>(mut self, devices: usize, make: F) -> Self
    where
        E: Into<BoxError>, // With `?` in it a closure ends in `datapipes::Ok(..)`, or `Ok::<_, BoxError>(..)`.
        F: Fn(Rank) -> Result<DataLoader<B>, E> + Send + Sync + 'static,
    {
        let make = Arc::new(move |rank| make(rank).map_err(Error::user));
        self.parts = Some(Parts { devices, make });
        self
    }

    /// Returns the epoch of the next `iter`.
    pub fn next_epoch(&self) -> u64 {
        self.next.load(Relaxed)
    }

    /// Resumes the next `iter` after the batches of a [checkpoint](BurnLoader::checkpoint); later
    /// `iter`s are the epochs that follow. If the checkpoint is at the end of an epoch, the next
    /// epoch begins.
    ///
    /// Burn's learner counts its own epochs: let it resume the same one from its checkpoint. Its
    /// progress begins with the earlier batches; the number of their items is estimated if only
    /// batches report it.
    ///
    /// The checkpoint of a loader [for several devices](BurnLoader::for_devices) is that of all of
    /// its slices. It can be resumed for as many devices, or another number where
    /// [`Checkpoint::merge`] permits it.
    ///
    /// # Errors
    /// As [`DataLoader::resume`]; a problem that only a slice detects is the one error of that
    /// slice's epoch.
    ///
    /// # Examples
    /// ```
    /// use burn_core::data::dataloader::DataLoader as _;
    /// use burn_core::tensor::{Device, Tensor};
    /// use datapipes::{DataLoader, Graph};
    /// use datapipes_burn::BurnLoader;
    ///
    /// let loader = || {
    ///     let graph = Graph::range(0..20).shuffle(20).map(|n| n as f32).batch(4).collate();
    ///     let loader = DataLoader::builder(graph).resumable().build()?;
    ///     Ok::<_, Box<dyn std::error::Error>>(BurnLoader::<_, Tensor<1>>::new(loader, &Device::flex()).items(20))
    /// };
    /// let first = loader()?;
    /// assert_eq!(first.iter().take(3).count(), 3);
    /// let checkpoint = first.checkpoint()?;
    ///
    /// let second = loader()?.resume(&checkpoint)?;
    /// assert_eq!((second.iter().count(), second.next_epoch()), (2, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume(self, checkpoint: &Checkpoint) -> Result<Self> {
        self.resumed(checkpoint, None)
    }

    /// Resumes with a graph that has changed; see [`DataLoader::resume_edited`].
    ///
    /// # Errors
    /// As [`DataLoader::resume_edited`].
    pub fn resume_edited(self, checkpoint: &Checkpoint, edited: Edited) -> Result<Self> {
        self.resumed(checkpoint, Some(edited))
    }

    fn resumed(mut self, checkpoint: &Checkpoint, edited: Option<Edited>) -> Result<Self> {
        // Checked for this loader: another number of steps may leave something to read.
        let is_finished = resumed(&self.made, checkpoint, edited)?
            .checkpoint()?
            .is_finished();
        *self.next.get_mut() = checkpoint.epoch() + u64::from(is_finished);
        *lock(&self.goes_on) = (!is_finished).then(|| (checkpoint.clone(), edited));
        Ok(self)
    }

    /// Resumes from the checkpoint in a file; if there is no file, the next `iter` does not change.
    /// For a loop of your own, with [`autosave`](datapipes::loader::Builder::autosave) to the same
    /// path.
    ///
    /// # Errors
    /// As [`DataLoader::resume_or_start`].
    pub fn resume_or_start(self, path: impl AsRef<Path>) -> Result<Self> {
        match Checkpoint::load(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(self),
            checkpoint => self.resume(&checkpoint?),
        }
    }

    /// Returns the checkpoint of the epoch that was begun last, by this loader or a clone of it,
    /// such as the clone of burn's learner. The checkpoint is after the last batch that was taken,
    /// even if the epoch has ended or was dropped. A batch that could not be converted comes again.
    /// Waits while a batch is being taken, so a conversion must not ask for it. See [`Epoch::checkpoint`](datapipes::Epoch::checkpoint).
    /// With several devices it is the checkpoint of the slices' epochs together; ask for it when
    /// all have taken equally many batches.
    ///
    /// # Errors
    /// As [`Epoch::checkpoint`](datapipes::Epoch::checkpoint), and [`Checkpoint::merge`]; `Config`
    /// if no epoch was begun.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        let slices = lock(&self.slices).clone();
        if !slices.is_empty() && self.device_index.is_none() {
            let checkpoints = slices
                .values()
                .map(Reading::checkpoint)
                .collect::<Result<Vec<_>>>()?;
            return Checkpoint::merge(&checkpoints);
        }
        match lock(&self.reading).clone() {
            Some(reading) => reading.checkpoint(),
            None => Err(Error::config("no epoch was begun yet")),
        }
    }

    /// Returns the loader within, for its plan and figures.
    pub fn inner(&self) -> &DataLoader<B> {
        &self.loader
    }

    /// Returns the time that consumers have waited, over all epochs so far that have ended or were
    /// dropped, of this loader, its clones and its slices together.
    pub fn waits(&self) -> Waits {
        lock(&self.waits).clone()
    }
}

impl<B: Send + 'static, O: Send + 'static> BurnLoader<B, O> {
    /// Begins the next epoch. Returns it with the number of its batches that were delivered before.
    fn begin(&self) -> Result<(Reading<Made<O>>, u64)> {
        let number = self.next.fetch_add(1, Relaxed);
        let (epoch, delivered) = match lock(&self.goes_on).take() {
            Some((checkpoint, edited)) => {
                let epoch = resumed(&self.made, &checkpoint, edited)?;
                let delivered = epoch.checkpoint()?.delivered();
                (epoch, delivered)
            }
            None => (self.made.epoch(number), 0),
        };
        let reading = Reading::new(epoch.blocking());
        if let Some(index) = self.device_index {
            lock(&self.slices).insert(index, reading.clone());
        }
        *lock(&self.reading) = Some(reading.clone());
        *lock(&self.current) = self.steps.map(|_| reading.clone());
        Ok((reading, delivered))
    }

    fn count(&self) -> Result<Count> {
        match &self.refused {
            Some(why) => Err(Error::config(&**why)),
            None => match self.steps {
                Some(steps) => Count::new(
                    GivenCounts {
                        items: None,
                        ..self.given
                    },
                    Some(steps),
                    self.has_rows,
                ),
                None => Count::new(self.given, self.loader.len_hint(), self.has_rows),
            },
        }
    }

    /// Returns the epoch that an `iter` reads: if epochs are cut by steps, the one that was begun
    /// already.
    fn read(&self) -> Result<(Count, Reading<Made<O>>)> {
        let mut count = self.count()?;
        let begun = lock(&self.current).clone().filter(Reading::is_running);
        let reading = match begun {
            Some(reading) => reading,
            None => {
                let (reading, delivered) = self.begin()?;
                if self.steps.is_none() {
                    count.begin_at(delivered);
                }
                reading
            }
        };
        Ok((count, reading))
    }

    /// Returns true if there are fewer items than devices, so that the parts that burn asks for
    /// cannot be told apart.
    fn is_too_small(&self, items: usize) -> bool {
        self.parts
            .as_ref()
            .is_some_and(|parts| parts.devices > 1 && items < parts.devices)
    }

    /// Returns the part that burn asks for when it cuts a loader of this many items for several
    /// devices, or the reason why there is none.
    fn part(&self, items: usize, start: usize, end: usize) -> Result<Self, String> {
        let Some(Parts { devices, make }) = &self.parts else {
            return Err(format!(
                "items {start}..{end} of a stream of {items}: say `for_devices` to train on several"
            ));
        };
        let (each, last) = (items / (*devices).max(1), devices.saturating_sub(1));
        if self.is_too_small(items) {
            return Err(format!("{items} items are too few for {devices} devices"));
        }
        let is_part =
            |&k: &usize| start == k * each && end == if k == last { items } else { start + each };
        let Some(index) = (0..*devices).find(is_part) else {
            return Err(format!(
                "items {start}..{end} of {items} are not one of {devices} equal parts"
            ));
        };
        let loader = make(Rank {
            index,
            world: *devices,
        });
        let loader = loader.map_err(|error| format!("part {index} of {devices}: {error}"))?;
        // Ranks have equally many items, while burn would assign more to the last one.
        let given = GivenCounts {
            items: self.given.items.map(|_| each),
            ..self.given
        };
        // The checkpoint of a part is not that of the whole.
        let (device_index, reading) = (Some(index), Arc::default());
        let part = BurnLoader {
            given,
            parts: None,
            device_index,
            reading,
            ..self.clone()
        };
        Ok(part.on(loader, self.device.clone()))
    }
}

/// Converts the batches of a loader, in `next` or ahead of it.
fn made<B: Send + 'static, O: Send + 'static>(
    loader: &DataLoader<B>,
    device: &Device,
    convert: &Arc<Convert<B, O>>,
    ahead: Option<usize>,
) -> DataLoader<Made<O>> {
    let (convert, device) = (convert.clone(), device.clone());
    let Some(depth) = ahead else {
        return loader.convert("into burn", move |batch| {
            let begun = Instant::now();
            let (batch, rows) = convert(batch, &device)?;
            let took = begun.elapsed();
            datapipes::Ok(Made { batch, rows, took })
        });
    };
    let loader = loader.prefetch_to_device(move |batch| {
        let (batch, rows) = convert(batch, &device)?;
        let took = Duration::ZERO;
        datapipes::Ok(Made { batch, rows, took })
    });
    loader.device_depth(depth)
}

fn resumed<T: Send + 'static>(
    loader: &DataLoader<T>,
    checkpoint: &Checkpoint,
    edited: Option<Edited>,
) -> Result<Epoch<T>> {
    match edited {
        Some(edited) => loader.resume_edited(checkpoint, edited),
        None => loader.resume(checkpoint),
    }
}

impl<B, O> Clone for BurnLoader<B, O> {
    fn clone(&self) -> Self {
        let parts = self.parts.as_ref();
        BurnLoader {
            loader: self.loader.clone(),
            made: self.made.clone(),
            convert: self.convert.clone(),
            device: self.device.clone(),
            ahead: self.ahead,
            has_rows: self.has_rows,
            waits: self.waits.clone(),
            given: self.given,
            parts: parts.map(|parts| Parts {
                devices: parts.devices,
                make: parts.make.clone(),
            }),
            device_index: self.device_index,
            slices: self.slices.clone(),
            refused: self.refused.clone(),
            next: AtomicU64::new(self.next.load(Relaxed)),
            steps: self.steps,
            current: Mutex::default(),
            goes_on: Mutex::new(lock(&self.goes_on).clone()),
            reading: self.reading.clone(),
        }
    }
}

opaque_debug!(BurnLoader<B, O> { loader, device, given, next });

impl<B: Send + 'static, O: Send + 'static> burn_core::data::dataloader::DataLoader<O>
    for BurnLoader<B, O>
{
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        let (waits, begin) = (&*self.waits, Box::new(|| Ok(self.begin()?.0)));
        Box::new(match self.read() {
            Ok((count, items)) => Batches::new(waits, begin, count, items, self.steps),
            Err(error) => Batches::refused(waits, begin, error),
        })
    }

    /// Returns the number set by [`items`](BurnLoader::items), or the number that follows from the
    /// graph.
    fn num_items(&self) -> usize {
        self.count().map_or(0, |count| count.total())
    }

    fn to_device(&self, device: &Device) -> Arc<dyn burn_core::data::dataloader::DataLoader<O>> {
        Arc::new(self.clone().on(self.loader.clone(), device.clone()))
    }

    /// Returns one of the equal parts that burn makes for several devices; see
    /// [`for_devices`](BurnLoader::for_devices).
    fn slice(
        &self,
        start: usize,
        end: usize,
    ) -> Arc<dyn burn_core::data::dataloader::DataLoader<O>> {
        Arc::new(match self.count() {
            Ok(count) if (start, end) != (0, count.total()) || self.is_too_small(count.total()) => {
                self.part(count.total(), start, end)
                    .unwrap_or_else(|why| BurnLoader {
                        refused: Some(why.into()),
                        ..self.clone()
                    })
            }
            _ => self.clone(),
        })
    }
}
