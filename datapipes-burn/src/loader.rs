//! A loader of this library as one of burn's.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn_core::data::dataloader::DataLoaderIterator;
use burn_core::tensor::Device;
use datapipes::{BoxError, Checkpoint, DataLoader, Edited, Epoch, Error, ErrorKind, Rank, Result};

use crate::count::{Count, Told};
use crate::epoch::{Batches, Reading};
use crate::{IntoBurn, Waits};

/// A [`datapipes::DataLoader`] as a [`DataLoader`](burn_core::data::dataloader::DataLoader) of
/// burn, for its learner or a loop of your own.
///
/// - **Epochs.** Each [`iter`](burn_core::data::dataloader::DataLoader::iter) is the next epoch,
///   whether it is read to its end or not: number 0, or what [`with_epoch`](BurnLoader::with_epoch)
///   says, then 1, and so on. So a shuffle gives another order each time, and the same ones when
///   the program runs again. A clone, and a copy for another device, goes on from where this one
///   is, with a counter of its own.
/// - **Threads.** Reading and decoding run ahead, on the threads of the loader. A batch becomes
///   tensors in `next`, on the thread that calls it: a GPU backend keeps a stream and a memory pool
///   for each thread that it meets. Dropping the iterator ends everything that the epoch started.
/// - **Errors** reach the learner as `Err` with the whole text (node, item, cause), end the epoch
///   and interrupt the training. What the loader's [`OnError`](datapipes::OnError) skips does not.
/// - **Items.** Burn counts items, not batches, for its progress bars and to know when an epoch is
///   complete, which is when its learner applies the last of the gradients that it accumulates: see
///   [`items`](BurnLoader::items).
/// - **Devices.** See [`for_devices`](BurnLoader::for_devices) for training on several.
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
/// assert_eq!((rows, loader.num_items(), loader.epoch()), (vec![4, 4, 2], 10, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BurnLoader<B, O> {
    loader: DataLoader<B>,
    pub(crate) device: Device,
    pub(crate) convert: Arc<Convert<B, O>>,
    /// How many items a batch has, if batches say.
    pub(crate) rows: Option<fn(&B) -> usize>,
    told: Told,
    parts: Option<Parts<B>>,
    /// Which of the devices this is for, if it is a slice.
    device_index: Option<usize>,
    /// The epochs of the slices that were begun last, by device.
    slices: Arc<Mutex<BTreeMap<usize, Reading<B>>>>,
    /// Why this part of a loader cannot be read.
    refused: Option<Arc<str>>,
    next: AtomicU64,
    /// How many batches an `iter` gives, where epochs are cut by that.
    steps: Option<u64>,
    /// The epoch that this loader has begun last, for the next `iter` to go on with.
    current: Mutex<Option<Reading<B>>>,
    /// Where the next epoch goes on.
    goes_on: Mutex<Option<(Checkpoint, Option<Edited>)>>,
    /// The epoch that was begun last, by this loader or a clone.
    reading: Arc<Mutex<Option<Reading<B>>>>,
    pub(crate) waits: Arc<Mutex<Waits>>,
}

/// What a batch becomes.
type Convert<B, O> = dyn Fn(B, &Device) -> Result<O> + Send + Sync;

/// What makes the loaders of several devices.
struct Parts<B> {
    devices: usize,
    make: Arc<dyn Fn(Rank) -> Result<DataLoader<B>> + Send + Sync>,
}

impl<B: 'static, O: 'static> BurnLoader<B, O> {
    /// Of batches that become what [`IntoBurn`] says.
    pub fn new(loader: DataLoader<B>, device: &Device) -> Self
    where
        B: IntoBurn<O>,
    {
        let rows = Some(<B as IntoBurn<O>>::rows as fn(&B) -> usize);
        BurnLoader {
            rows,
            ..BurnLoader::with(loader, device, B::into_burn)
        }
    }

    /// Of batches that become what a function makes of them.
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
        BurnLoader {
            loader,
            device: device.clone(),
            convert: Arc::new(move |batch, device| convert(batch, device).map_err(Error::user)),
            rows: None,
            told: Told::default(),
            parts: None,
            device_index: None,
            slices: Arc::default(),
            refused: None,
            next: AtomicU64::new(0),
            steps: None,
            current: Mutex::default(),
            goes_on: Mutex::default(),
            reading: Arc::default(),
            waits: Arc::default(),
        }
    }

    /// How many items an epoch has: what burn's `num_items` gives.
    ///
    /// Without it, and if the graph knows how many batches come ([`DataLoader::len_hint`]), it is
    /// [`batch_size`](BurnLoader::batch_size) times that, or without that too, batches are counted
    /// instead of items. If nothing of this is known (samples from archives, a filter), an epoch is
    /// one error that says so.
    ///
    /// Progress never passes this number. Where the number of batches is known, the last one
    /// completes the epoch, however many items it has; else the number should be exact, without
    /// what a last batch leaves out. Samples that are skipped because they are bad make it fall
    /// short.
    pub fn items(mut self, items: usize) -> Self {
        self.told.items = Some(items);
        self
    }

    /// How many items a batch has, if batches do not say themselves: those of
    /// [`new`](BurnLoader::new) do, by [`IntoBurn::rows`].
    pub fn batch_size(mut self, items: usize) -> Self {
        self.told.batch_size = Some(items);
        self
    }

    /// The epoch that the next `iter` is: say how many there have been when a training is resumed.
    pub fn with_epoch(mut self, epoch: u64) -> Self {
        *self.next.get_mut() = epoch;
        self
    }

    /// Lets what burn takes for an epoch be so many batches, at least 1: each `iter` goes on behind
    /// the batches of the one before, from one of the loader's epochs to the next, which begins as
    /// soon as the data of one has ended.
    ///
    /// Burn's learner validates and saves its checkpoints at the end of its epochs alone. With this
    /// it does so in the middle of long ones; see `Checkpoints` (feature `train`), which saves the
    /// loader's [`state`](BurnLoader::checkpoint) with them. What the learner counts by epochs
    /// (`num_epochs`, its figures, early stopping) then counts by these. What it accumulates of
    /// gradients it applies at their ends, so let `batches` be a multiple of that.
    ///
    /// Between two `iter`s the epoch stays, with what was made ahead. An `iter` that is dropped
    /// midway is gone on with by the next. Burn's `num_items` is that of so many batches, by their
    /// [`batch_size`](BurnLoader::batch_size), else counted in batches;
    /// [`items`](BurnLoader::items) is not needed. With [several devices](BurnLoader::for_devices)
    /// each has so many batches.
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

    /// For training on several devices, where burn cuts a loader into as many slices: slice `k`
    /// becomes the loader that `make` makes of rank `k` of `devices`. The graph needs a
    /// [`sharding_filter`](datapipes::Graph::sharding_filter) or
    /// [`shard`](datapipes::Indexed::shard); with [`Uneven::Drop`](datapipes::Uneven::Drop) every
    /// device gets equally many items, so that they step together.
    ///
    /// Burn asks for items `k * (items / devices)` and so on, the last slice with what is left
    /// over. A stream cannot be cut at an item, and need not be: which items are whose is the
    /// sharding's business, which gives each device other ones in each epoch, if a shuffle stands
    /// before it. What burn gets is as many items, not the same ones. Any other slice, any without
    /// this, and any of fewer items than devices is refused: its epochs are one error that says so.
    ///
    /// Where a policy skips bad samples, one device may come short of a batch and let the others
    /// wait for it: filter them out before, or let the epoch fail. Each slice counts its epochs by
    /// itself, as each clone does; burn cuts once for a whole training, and who cuts anew in each
    /// epoch says which by [`with_epoch`](BurnLoader::with_epoch).
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

    /// The epoch that the next `iter` is.
    pub fn epoch(&self) -> u64 {
        self.next.load(Relaxed)
    }

    /// Lets the next `iter` resume behind the batches of a [state](BurnLoader::checkpoint), and the
    /// ones after it be the epochs that follow. Where the state is that of an epoch at its end, the
    /// next one begins.
    ///
    /// Burn's learner counts its own epochs: let it resume the same one from its checkpoint. Its
    /// progress begins with the batches that have been; how many items those had is estimated where
    /// only batches say.
    ///
    /// The state of a loader [for several devices](BurnLoader::for_devices) is that of all of its
    /// slices; it can be resumed for as many devices, or [fewer](Checkpoint::merge).
    ///
    /// # Errors
    /// As [`DataLoader::resume`]; what only a slice finds wrong is the one error of that slice's
    /// epoch.
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
    /// let state = first.checkpoint()?;
    ///
    /// let second = loader()?.resume(&state)?;
    /// assert_eq!((second.iter().count(), second.epoch()), (2, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume(self, state: &Checkpoint) -> Result<Self>
    where
        B: Send,
    {
        self.resumed(state, None)
    }

    /// Resumes with a graph that is another by now; see [`DataLoader::resume_edited`].
    ///
    /// # Errors
    /// As [`DataLoader::resume_edited`].
    pub fn resume_edited(self, state: &Checkpoint, edited: Edited) -> Result<Self>
    where
        B: Send,
    {
        self.resumed(state, Some(edited))
    }

    fn resumed(mut self, state: &Checkpoint, edited: Option<Edited>) -> Result<Self>
    where
        B: Send,
    {
        // As this loader sees it: another budget of steps may leave something.
        let is_finished = resumed(&self.loader, state, edited)?
            .checkpoint()?
            .is_finished();
        *self.next.get_mut() = state.epoch() + u64::from(is_finished);
        *lock(&self.goes_on) = (!is_finished).then(|| (state.clone(), edited));
        Ok(self)
    }

    /// Resumes from the state in a file; where there is none, the next `iter` is what it was. For a
    /// loop of one's own, with [`autosave`](datapipes::loader::Builder::autosave) to the same path.
    ///
    /// # Errors
    /// As [`DataLoader::resume_or_start`].
    pub fn resume_or_start(self, path: impl AsRef<Path>) -> Result<Self>
    where
        B: Send,
    {
        match Checkpoint::load(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(self),
            state => self.resume(&state?),
        }
    }

    /// Where the epoch stands that was begun last, by this loader or a clone of it, such as the one
    /// that burn's learner made: behind the last batch that was taken from it, also when it has
    /// ended or was dropped. A batch that could not be made into burn's comes again. Waits while a
    /// batch is being taken. See [`Epoch::checkpoint`](datapipes::Epoch::checkpoint). With several
    /// devices it is that of the slices' epochs together; ask for it when all have taken equally
    /// many.
    ///
    /// # Errors
    /// As [`Epoch::checkpoint`](datapipes::Epoch::checkpoint), and [`Checkpoint::merge`]; of
    /// `Config` if no epoch was begun.
    pub fn checkpoint(&self) -> Result<Checkpoint>
    where
        B: Send,
    {
        let slices = lock(&self.slices).clone();
        if !slices.is_empty() && self.device_index.is_none() {
            let states = slices
                .values()
                .map(Reading::state)
                .collect::<Result<Vec<_>>>()?;
            return Checkpoint::merge(&states);
        }
        match lock(&self.reading).clone() {
            Some(reading) => reading.checkpoint(),
            None => Err(Error::new(ErrorKind::Config, "no epoch was begun yet")),
        }
    }

    /// The loader within, for its plan and figures.
    pub fn inner(&self) -> &DataLoader<B> {
        &self.loader
    }

    /// How long consumers have waited, over all epochs so far that have ended or were dropped, of
    /// this loader, its clones and its slices together.
    pub fn waits(&self) -> Waits {
        lock(&self.waits).clone()
    }
}

impl<B: Send + 'static, O> BurnLoader<B, O> {
    /// Begins the next epoch; how many of its batches have been.
    pub(crate) fn begin(&self) -> Result<(Reading<B>, u64)> {
        let number = self.next.fetch_add(1, Relaxed);
        let (epoch, delivered) = match lock(&self.goes_on).take() {
            Some((state, edited)) => {
                let epoch = resumed(&self.loader, &state, edited)?;
                let delivered = epoch.checkpoint()?.delivered();
                (epoch, delivered)
            }
            None => (self.loader.epoch(number), 0),
        };
        let reading = Reading::new(epoch.blocking());
        if let Some(index) = self.device_index {
            lock(&self.slices).insert(index, reading.clone());
        }
        *lock(&self.reading) = Some(reading.clone());
        *lock(&self.current) = self.steps.map(|_| reading.clone());
        Ok((reading, delivered))
    }
}

impl<B: Send + 'static, O: 'static> BurnLoader<B, O> {
    fn count(&self) -> Result<Count> {
        match &self.refused {
            Some(why) => Err(Error::new(ErrorKind::Config, &**why)),
            None => match self.steps {
                Some(steps) => Count::new(
                    Told {
                        items: None,
                        ..self.told
                    },
                    Some(steps),
                    self.rows.is_some(),
                ),
                None => Count::new(self.told, self.loader.len_hint(), self.rows.is_some()),
            },
        }
    }

    /// What an `iter` reads: where epochs are cut, the one that was begun already.
    fn read(&self) -> Result<(Count, Reading<B>)> {
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

    /// Whether there are fewer items than devices, so that the parts that burn asks for cannot be
    /// told apart.
    fn is_too_small(&self, items: usize) -> bool {
        self.parts
            .as_ref()
            .is_some_and(|parts| parts.devices > 1 && items < parts.devices)
    }

    /// The part that burn wants when it cuts a loader of so many items for several devices, or why
    /// there is none.
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
        // Ranks get equally many where burn would give the last one more.
        let told = Told {
            items: self.told.items.map(|_| each),
            ..self.told
        };
        // The state of a part is not that of the whole.
        let (device_index, reading) = (Some(index), Arc::default());
        Ok(BurnLoader {
            loader,
            told,
            parts: None,
            device_index,
            reading,
            ..self.clone()
        })
    }
}

fn resumed<B: Send + 'static>(
    loader: &DataLoader<B>,
    state: &Checkpoint,
    edited: Option<Edited>,
) -> Result<Epoch<B>> {
    match edited {
        Some(edited) => loader.resume_edited(state, edited),
        None => loader.resume(state),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B, O> Clone for BurnLoader<B, O> {
    fn clone(&self) -> Self {
        let parts = self.parts.as_ref();
        BurnLoader {
            loader: self.loader.clone(),
            device: self.device.clone(),
            convert: self.convert.clone(),
            rows: self.rows,
            told: self.told,
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
            waits: self.waits.clone(),
        }
    }
}

impl<B, O> fmt::Debug for BurnLoader<B, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BurnLoader")
            .field("loader", &self.loader)
            .field("device", &self.device)
            .field("told", &self.told)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl<B: Send + 'static, O: 'static> burn_core::data::dataloader::DataLoader<O>
    for BurnLoader<B, O>
{
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        Box::new(match self.read() {
            Ok((count, items)) => Batches::new(self, count, items, self.steps),
            Err(error) => Batches::refused(self, error),
        })
    }

    /// What [`items`](BurnLoader::items) says, or what follows from the graph.
    fn num_items(&self) -> usize {
        self.count().map_or(0, |count| count.total())
    }

    fn to_device(&self, device: &Device) -> Arc<dyn burn_core::data::dataloader::DataLoader<O>> {
        Arc::new(BurnLoader {
            device: device.clone(),
            ..self.clone()
        })
    }

    /// One of the equal parts that burn makes for several devices; see
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
