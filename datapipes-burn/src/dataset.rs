//! Indexed data of this library for burn, and data sets of burn for this library.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use burn_core::data::dataset::{Dataset, DatasetError};
use datapipes::index::Indexed;
use datapipes::{DataLoader, Error, MapPipe, Rank, Result, Uneven, async_trait, opaque_debug};

/// An [`Indexed`] as a [`Dataset`] of burn, for burn's own loaders, splits and transformations.
///
/// Sample `index` is the sample at that position of the order. A shuffle has the order of
/// [`epoch`](BurnDataset::epoch) 0 with [`seed`](BurnDataset::seed) 0 unless set otherwise, and the
/// same order each time. To read a whole data set in parallel, with another order in each epoch,
/// use a [`BurnLoader`](crate::BurnLoader) instead.
///
/// Each `get` checks and runs a small graph on the calling thread, which costs about 0.1 ms besides
/// the reading. `get_many`, which burn's loaders call once for each batch, has that cost once for
/// all of its samples.
///
/// # Examples
/// ```
/// use burn_core::data::dataset::Dataset;
/// use datapipes::Indexed;
/// use datapipes_burn::BurnDataset;
///
/// let squares = BurnDataset::new(Indexed::range(100).map(|n| n * n));
/// assert_eq!((squares.len(), squares.get(12)?), (100, 144));
/// assert_eq!(squares.get_many(vec![3, 1, 3])?, [9, 1, 9]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct BurnDataset<T> {
    samples: Indexed<T>,
    len: usize,
    seed: u64,
    epoch: u64,
}

impl<T: Send + 'static> BurnDataset<T> {
    /// Makes a data set of all samples, as a single rank reads them.
    pub fn new(samples: Indexed<T>) -> Self {
        let len = samples.len_for(Rank::default(), Uneven::Allow);
        BurnDataset {
            samples,
            len: usize::try_from(len).unwrap_or(usize::MAX),
            seed: 0,
            epoch: 0,
        }
    }

    datapipes::setters! {
        /// Sets the seed of the order.
        seed(seed: u64) => seed = seed;

        /// Sets the epoch of the order.
        epoch(epoch: u64) => epoch = epoch;
    }

    fn read(&self, indexes: Vec<usize>) -> Result<Vec<T>> {
        if let Some(index) = indexes.iter().find(|&&index| index >= self.len) {
            panic!("index {index} of a data set of {}", self.len);
        }
        let graph = self.samples.clone().subset(
            indexes
                .iter()
                .map(|&index| index as u64)
                .collect::<Vec<_>>(),
        );
        let loader = DataLoader::builder(graph.fetch())
            .seed(self.seed)
            .workers(0)
            .build();
        let loader = loader.map_err(|error| Error::config(error.problems().join("; ")))?;
        loader.epoch(self.epoch).blocking().collect()
    }
}

/// Reading past the end panics, as burn's contract requires.
impl<T: Send + 'static> Dataset<T> for BurnDataset<T> {
    fn get(&self, index: usize) -> Result<T, DatasetError> {
        let sample = self.read(vec![index]).map(|mut samples| samples.pop());
        let none = || Error::truncated(format!("no sample came for index {index}"));
        sample
            .and_then(|sample| sample.ok_or_else(none))
            .map_err(DatasetError::new)
    }

    fn get_many(&self, indexes: Vec<usize>) -> Result<Vec<T>, DatasetError> {
        self.read(indexes).map_err(DatasetError::new)
    }

    fn len(&self) -> usize {
        self.len
    }
}

opaque_debug!(BurnDataset<T> { len });

/// A [`Dataset`] of burn as data of this library: a [`MapPipe`], for [`Indexed::new`].
///
/// Its `get` may block, so it runs on the blocking threads of the async runtime, as many at once as
/// the loader's [concurrency](datapipes::Indexed::concurrency). If `get` computes for long, for
/// example to decode images, read the data set on the CPU workers instead:
/// `Indexed::range(len).try_map(move |index| data.get(index as usize))`.
///
/// # Examples
/// ```
/// use burn_core::data::dataset::InMemDataset;
/// use datapipes::Indexed;
/// use datapipes_burn::FromDataset;
///
/// let words = FromDataset::new(InMemDataset::new(vec!["a", "bb", "ccc"]));
/// let lengths = Indexed::new(words).shuffle().map(|word| word.len()).fetch().collect()?;
/// assert_eq!(lengths.iter().sum::<usize>(), 6);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub struct FromDataset<D: ?Sized, T> {
    data: Arc<D>,
    sample: PhantomData<fn() -> T>,
}

impl<D: Dataset<T>, T> FromDataset<D, T> {
    /// Takes a data set.
    pub fn new(data: D) -> Self {
        FromDataset::shared(Arc::new(data))
    }
}

impl<D: Dataset<T> + ?Sized, T> FromDataset<D, T> {
    /// Takes a shared data set.
    pub fn shared(data: Arc<D>) -> Self {
        FromDataset {
            data,
            sample: PhantomData,
        }
    }
}

#[async_trait]
impl<D, T> MapPipe for FromDataset<D, T>
where
    D: Dataset<T> + ?Sized + 'static,
    T: Send + 'static,
{
    type Out = T;

    fn len(&self) -> u64 {
        self.data.len() as u64
    }
    async fn get(&self, index: u64) -> Result<T> {
        let (data, index) = (self.data.clone(), place(index));
        datapipes::blocking(move || data.get(index))
            .await?
            .map_err(failed)
    }
    /// Reads the samples one after another on one thread: a hop to the thread costs more than a
    /// sample that is in memory.
    async fn get_many(&self, indices: &[u64]) -> Vec<Result<T>> {
        let (data, indices) = (self.data.clone(), indices.to_vec());
        let asked = indices.len();
        let read = move || {
            indices
                .into_iter()
                .map(|index| data.get(place(index)).map_err(failed))
                .collect()
        };
        match datapipes::blocking::<Vec<Result<T>>>(read).await {
            Ok(samples) => samples,
            // The caller finds the sample that panicked by asking for each alone.
            Err(error) => std::panic::resume_unwind(Box::new(format!("{asked} samples: {error}"))),
        }
    }
    fn name(&self) -> String {
        "dataset".to_owned()
    }
}

opaque_debug!(FromDataset<D: ?Sized, T> {});

/// Converts an index below a length that was a `usize`.
fn place(index: u64) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX)
}

fn failed(error: DatasetError) -> Error {
    Error::user(Cause(error))
}

/// A [`DatasetError`] that does not repeat its source: its own text includes it.
#[derive(Debug)]
struct Cause(DatasetError);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Cause {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.0)?.source()
    }
}
