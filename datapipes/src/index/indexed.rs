//! A handle on data that is read by index, and what is to be done to it.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use super::cached::Cached;
use super::combined::{Batched, OneOf, Zipped};
use super::order::{Flatten, Index, Indices, Kind, Rule, Shard, Step, single};
use super::sources::{FromFn, FromVec, Itself, Samples};
use super::transformed::{Found, Mapped, MappedAsync, Weighed};
use super::{Fetch, MapPipe, Random, Sampler, Subset};
use crate::{BoxError, Error, Graph, Rank, Result, Uneven};

/// A description of data that is read by index: a [`MapPipe`], what is done to its samples, and in
/// which order they come.
///
/// As a [`Graph`] is for streams: typed, inert, cheap to clone; nothing is read before a loader
/// runs what [`fetch`](Indexed::fetch) makes of it. Until then all that concerns order (shuffle,
/// shard, subset, repeat, concat, mix, zip, batch) is arithmetic on positions: nothing is
/// materialised, and any number of samples starts at once. What concerns samples
/// ([`map`](Indexed::map), [`cache`](Indexed::cache)) is done where they are read, and it does not
/// matter whether it is said before or behind a shuffle.
///
/// Order is fixed at the start of an epoch, from seed, epoch and rank. An item's origin is its
/// sample's index, so that a sample gets the same augmentation wherever the order puts it and
/// whichever rank has it; a sample that comes again in one epoch (a round of a repeat, a second
/// draw, padding) is a child of it.
///
/// A handle may be used any number of times: `data.clone().zip(data.shuffle())` pairs every sample
/// with a random one. In a zip the same handle is the same order; in a concat or mix each use is
/// data of its own, with its own order.
#[must_use = "data by index does nothing until it is fetched"]
pub struct Indexed<T> {
    order: Arc<Step>,
    samples: Found<T>,
    /// What makes a graph of samples of the order.
    build: Build<T>,
    concurrency: Option<usize>,
}

type Build<T> = Arc<dyn Fn(Graph<Indices>, Option<usize>) -> Graph<T> + Send + Sync>;

impl<T> Clone for Indexed<T> {
    fn clone(&self) -> Self {
        Indexed {
            order: self.order.clone(),
            samples: self.samples.clone(),
            build: self.build.clone(),
            concurrency: self.concurrency,
        }
    }
}

impl<T> fmt::Debug for Indexed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Indexed").field(&self.order.graph()).finish()
    }
}

/// Reads all samples as one step.
fn fetched<T: Send + 'static>(samples: Found<T>) -> Build<T> {
    Arc::new(move |order, concurrency| {
        let fetched = order
            .pipe(Flatten(|index: Index| index))
            .pipe(Fetch::shared(samples.clone()));
        match concurrency {
            Some(pieces) => fetched.concurrency(pieces),
            None => fetched,
        }
    })
}

impl Indexed<u64> {
    /// The indices of `len` samples and nothing else: what is fetched from it is the index. For
    /// keys or data that something else reads.
    ///
    /// # Examples
    /// ```
    /// use datapipes::index::Indexed;
    /// assert_eq!(Indexed::range(10).subset(3..5).repeat(2).fetch().collect()?, [3, 4, 3, 4]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn range(len: u64) -> Indexed<u64> {
        Indexed {
            order: Step::new(Kind::Samples(len), vec![]),
            samples: Arc::new(Itself),
            build: Arc::new(|order, _| order.pipe(Flatten(single))),
            concurrency: None,
        }
    }
}

impl<T: Send + 'static> Indexed<T> {
    /// The samples of a [`MapPipe`].
    pub fn new(samples: impl MapPipe<Out = T>) -> Self {
        Indexed::shared(Arc::new(samples))
    }

    /// The samples of a [`MapPipe`] that is shared.
    pub fn shared<M: MapPipe<Out = T> + ?Sized>(samples: Arc<M>) -> Self {
        let order = Step::new(Kind::Samples(samples.len()), vec![]);
        Indexed::over(order, Arc::new(Samples(samples)), None)
    }

    /// The elements of a vector.
    ///
    /// # Examples
    /// ```
    /// use datapipes::index::Indexed;
    /// let letters = Indexed::from_vec(vec!['a', 'b', 'c']).subset(vec![2, 0]).fetch();
    /// assert_eq!(letters.collect()?, ['c', 'a']);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn from_vec(samples: Vec<T>) -> Self
    where
        T: Clone + Sync,
    {
        Indexed::new(FromVec(samples))
    }

    /// What an async function gives for each index below `len`: a request, a query, a read. The
    /// futures run on the async runtime, many at once, and must not block or compute for long.
    ///
    /// # Errors
    /// An error of the function takes the sample's place, with the names of node and item added.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{Error, index::Indexed};
    /// let squares = Indexed::from_fn(4, |index| async move { Ok::<_, Error>(index * index) });
    /// assert_eq!(squares.fetch().collect()?, [0, 1, 4, 9]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn from_fn<E, Fut, F>(len: u64, get: F) -> Self
    where
        E: Into<BoxError> + 'static, // With `?` in it a closure ends in `datapipes::Ok(..)`, or `Ok::<_, BoxError>(..)`.
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        F: Fn(u64) -> Fut + Send + Sync + 'static,
    {
        Indexed::new(FromFn { len, get })
    }

    fn over(order: Arc<Step>, samples: Found<T>, concurrency: Option<usize>) -> Self {
        Indexed {
            order,
            build: fetched(samples.clone()),
            samples,
            concurrency,
        }
    }

    fn step(self, kind: Kind) -> Self {
        Indexed {
            order: Step::new(kind, vec![self.order.clone()]),
            ..self
        }
    }

    /// How many samples come in an epoch, over all ranks together; what comes more than once is
    /// counted so often.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{Rank, Uneven, index::Indexed};
    /// let part = Indexed::range(10).shard();
    /// assert_eq!(part.len(), 10);
    /// assert_eq!(part.len_for(Rank { index: 0, world: 4 }, Uneven::Allow), 3);
    /// ```
    pub fn len(&self) -> u64 {
        self.len_for(Rank::default(), Uneven::Allow)
    }

    /// Whether none come.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many samples come in an epoch of one rank.
    pub fn len_for(&self, rank: Rank, uneven: Uneven) -> u64 {
        self.order.len(rank, uneven)
    }

    /// Gives the last step of the order a name, which errors and the plan show, and by which its
    /// randomness is keyed: so a shuffle keeps its order when others are added to the graph. Not
    /// the node that reads the samples: for that there is [`Graph::named`], behind
    /// [`fetch`](Indexed::fetch).
    ///
    /// Names are unique in a graph. A step without one is called after its kind: `index_shuffle`,
    /// `index_shuffle#2`, …
    pub fn named(self, name: impl Into<String>) -> Self {
        Indexed {
            order: self.order.named(name.into()),
            ..self
        }
    }

    /// Changes the order at random, over all samples: a [`Permutation`](super::Permutation) keyed
    /// by seed, epoch and the step's name, of which any position is computed by itself in some tens
    /// of nanoseconds. Nothing is held.
    ///
    /// Put it before [`shard`](Indexed::shard), so that ranks get other parts each epoch.
    ///
    /// # Examples
    /// ```
    /// use datapipes::index::Indexed;
    /// let first = Indexed::range(1 << 40).shuffle().fetch().take(3).collect()?;
    /// assert_eq!(first.len(), 3);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn shuffle(self) -> Self {
        self.sampled(Random::new())
    }

    /// Takes what a [`Sampler`] chooses of the samples so far.
    ///
    /// # Examples
    /// ```
    /// use datapipes::index::{ClassBalanced, Indexed};
    /// let labels = vec![0, 0, 0, 1];
    /// let data = Indexed::from_vec(labels.clone()).sampled(ClassBalanced::new(labels).draws(100));
    /// assert_eq!(data.fetch().collect()?.iter().sum::<i32>(), 50);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn sampled(self, sampler: impl Sampler) -> Self {
        self.step(Kind::Sampled(Arc::new(sampler)))
    }

    /// Keeps this rank's part: positions `rank`, `rank + world`, and so on of the order that all
    /// ranks agree on (see [`Builder::rank`](crate::loader::Builder::rank)). No rank computes or
    /// reads what is another's.
    ///
    /// Of positions that do not divide evenly, as the loader's [`Uneven`] says:
    ///
    /// - `Drop`: the last are left out, and counted by the ranks that would have had them;
    /// - `Pad`: ranks that come short take samples from the start of the order once more, as draws
    ///   of their own;
    /// - `Allow`: some ranks get one more;
    /// - `Error`: the loader is not built, or where the number is not known then, the epoch begins
    ///   with an error.
    ///
    /// Fewer samples than ranks are an error unless `Allow` is said. With one rank it does nothing.
    pub fn shard(self) -> Self {
        self.step(Kind::Shard(Shard::InTurn))
    }

    /// Keeps this rank's part as one range of the order: of 10 samples, ranks 0 and 1 of 2 have 0
    /// to 4 and 5 to 9. For data that is read best in a row, such as records of one file; where the
    /// order above is shuffled, [`shard`](Indexed::shard) does as well. What batches of all ranks
    /// have together depends on how many ranks there are, so an epoch cannot be resumed on another
    /// number of them.
    ///
    /// Of positions that do not divide evenly, as the loader's [`Uneven`] says:
    ///
    /// - `Drop`: all have `len / world`, and the last of the order are left out;
    /// - `Pad`: all have `len / world`, rounded up; what is missing at the end is taken from the
    ///   start of the order once more, as draws of their own;
    /// - `Allow`: the first `len mod world` ranks have one more;
    /// - `Error`, and fewer samples than ranks: as for [`shard`](Indexed::shard).
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Indexed, Uneven};
    /// let part = |rank| {
    ///     let graph = Indexed::range(8).shard_contiguous().fetch();
    ///     let loader = DataLoader::builder(graph).rank(rank, 3).uneven(Uneven::Pad).build().unwrap();
    ///     loader.epoch(0).blocking().collect::<datapipes::Result<Vec<u64>>>()
    /// };
    /// assert_eq!(part(1)?, [3, 4, 5]);
    /// assert_eq!(part(2)?, [6, 7, 0]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn shard_contiguous(self) -> Self {
        self.step(Kind::Shard(Shard::Contiguous))
    }

    /// Takes some samples: a range, or a list of indices in their order. An index that is not there
    /// is found when the loader is built. A list takes 8 bytes an index.
    pub fn subset(self, which: impl Into<Subset>) -> Self {
        self.sampled(which.into())
    }

    /// Gives everything so far `rounds` times, one round after another. Each round has other random
    /// numbers, so that a shuffle before it gives another order in each; behind it, a shuffle mixes
    /// the rounds.
    ///
    /// # Examples
    /// ```
    /// use datapipes::index::Indexed;
    /// let twice = Indexed::range(100).shuffle().repeat(2).fetch().collect()?;
    /// assert_ne!(twice[..100], twice[100..]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn repeat(self, rounds: u64) -> Self {
        self.step(Kind::Repeat(rounds))
    }

    /// Puts data sets one behind the other.
    ///
    /// # Examples
    /// ```
    /// use datapipes::index::Indexed;
    /// let both = Indexed::concat([Indexed::from_vec(vec![1, 2]), Indexed::from_vec(vec![3])]);
    /// assert_eq!(both.fetch().collect()?, [1, 2, 3]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn concat(inputs: impl IntoIterator<Item = Indexed<T>>) -> Self {
        Indexed::one_of(Kind::Concat, Vec::from_iter(inputs))
    }

    /// Mixes data sets by weight, in exact shares, until all are exhausted: of any `n` samples in a
    /// row from the start, each has its part of the weights, to within one sample for each data
    /// set. One that is exhausted is left out, and the others share its part. As [`Graph::mix`], to
    /// the item.
    ///
    /// Whole weights are taken as they are, others to a millionth of the least. No random numbers:
    /// shuffle for that.
    ///
    /// # Examples
    /// ```
    /// use datapipes::index::Indexed;
    /// let (a, b) = (Indexed::from_vec(vec![0, 1, 2, 3, 4, 5]), Indexed::from_vec(vec![10, 11]));
    /// let mixed = Indexed::mix([(a.clone(), 3.0), (b.clone(), 1.0)]);
    /// assert_eq!(mixed.fetch().collect()?, [0, 1, 2, 10, 3, 4, 5, 11]);
    /// let even = Indexed::mix_to_first([(a, 1.0), (b.repeat(2), 1.0)]);
    /// assert_eq!(even.fetch().collect()?, [0, 10, 1, 11, 2, 10, 3, 11, 4]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn mix(inputs: impl IntoIterator<Item = (Indexed<T>, f64)>) -> Self {
        let (inputs, weights) = inputs.into_iter().unzip();
        Indexed::one_of(Kind::Mix(weights, Rule::AllExhausted), inputs)
    }

    /// Mixes data sets by weight, until it is the turn of one that is exhausted, so that the shares
    /// are exact to the end; otherwise as [`mix`](Indexed::mix). For small data sets to last
    /// longer, [`repeat`](Indexed::repeat) them.
    pub fn mix_to_first(inputs: impl IntoIterator<Item = (Indexed<T>, f64)>) -> Self {
        let (inputs, weights) = inputs.into_iter().unzip();
        Indexed::one_of(Kind::Mix(weights, Rule::FirstExhausted), inputs)
    }

    fn one_of(kind: Kind, inputs: Vec<Indexed<T>>) -> Self {
        let concurrency = inputs.iter().filter_map(|input| input.concurrency).max();
        let (orders, samples) = inputs
            .into_iter()
            .map(|input| (input.order, input.samples))
            .unzip();
        Indexed::over(
            Step::new(kind, orders),
            Arc::new(OneOf(samples)),
            concurrency,
        )
    }

    /// Pairs the samples at each position with those of other data, and ends with the shorter. Both
    /// are read at once. An item's origin is that of its first part.
    ///
    /// # Examples
    /// ```
    /// use datapipes::index::Indexed;
    /// let pairs = Indexed::from_vec(vec!["cat", "dog"]).zip(Indexed::range(10));
    /// assert_eq!(pairs.fetch().collect()?, [("cat", 0), ("dog", 1)]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn zip<U: Send + 'static>(self, other: Indexed<U>) -> Indexed<(T, U)> {
        let order = Step::new(Kind::Zip, vec![self.order, other.order]);
        Indexed::over(
            order,
            Arc::new(Zipped(self.samples, other.samples)),
            self.concurrency.or(other.concurrency),
        )
    }

    /// Makes one sample of `size` neighbours in the order; the last may be of fewer. Batches stay
    /// indexable: they can be shuffled and sharded whole, and each is read by one `get_many`, whose
    /// requests run at once.
    ///
    /// To batch what was fetched, one by one and with a number in flight of its own, use
    /// [`Graph::batch`].
    ///
    /// # Errors
    /// The first error among the samples, in order, takes the batch's place.
    ///
    /// # Examples
    /// ```
    /// use datapipes::index::{Indexed, LengthGrouped};
    /// let words = vec!["a", "abcd", "abc", "ab", "abcde", "abcdef"];
    /// let lengths: Vec<u64> = words.iter().map(|word| word.len() as u64).collect();
    /// let batches = Indexed::from_vec(words).sampled(LengthGrouped::new(lengths, 2).stretch(1)).batch(2).shard();
    /// assert_eq!(batches.fetch().collect()?.len(), 3);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn batch(self, size: usize) -> Indexed<Vec<T>> {
        self.batched(size, false)
    }

    /// As [`batch`](Indexed::batch), without a last batch of fewer, whose samples are counted as
    /// dropped.
    pub fn batch_drop_last(self, size: usize) -> Indexed<Vec<T>> {
        self.batched(size, true)
    }

    fn batched(self, size: usize, drop_last: bool) -> Indexed<Vec<T>> {
        let order = Step::new(Kind::Batch { size, drop_last }, vec![self.order]);
        Indexed::over(order, Arc::new(Batched(self.samples)), self.concurrency)
    }

    /// Applies a function to every sample.
    ///
    /// It becomes a [`Graph::map`] behind what reads the samples, and runs on the CPU workers; but
    /// if a zip, concat, mix, batch or cache follows, it is part of the reading and runs on the
    /// async runtime, where it must not compute for long. What is random belongs behind
    /// [`fetch`](Indexed::fetch), as [`Graph::map_with_rng`].
    ///
    /// # Examples
    /// ```
    /// use datapipes::index::Indexed;
    /// assert_eq!(Indexed::range(3).map(|n| n * 10).fetch().collect()?, [0, 10, 20]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn map<U, F>(self, f: F) -> Indexed<U>
    where
        U: Send + 'static,
        F: Fn(T) -> U + Clone + Send + Sync + 'static,
    {
        let (build, here) = (self.build, f.clone());
        Indexed {
            order: self.order,
            samples: Arc::new(Mapped {
                above: self.samples,
                f: move |sample| Ok(f(sample)),
            }),
            build: Arc::new(move |order, concurrency| build(order, concurrency).map(here.clone())),
            concurrency: self.concurrency,
        }
    }

    /// Applies a function that may fail to every sample; otherwise as [`map`](Indexed::map).
    ///
    /// # Errors
    /// An error of the function takes the sample's place, with the names of node and item added.
    pub fn try_map<U, E, F>(self, f: F) -> Indexed<U>
    where
        U: Send + 'static,
        E: Into<BoxError> + 'static, // With `?` in it a closure ends in `datapipes::Ok(..)`, or `Ok::<_, BoxError>(..)`.
        F: Fn(T) -> Result<U, E> + Clone + Send + Sync + 'static,
    {
        let (build, here) = (self.build, f.clone());
        Indexed {
            order: self.order,
            samples: Arc::new(Mapped {
                above: self.samples,
                f: move |sample| f(sample).map_err(Error::user),
            }),
            build: Arc::new(move |order, concurrency| {
                build(order, concurrency).try_map(here.clone())
            }),
            concurrency: self.concurrency,
        }
    }

    /// Applies an async function to every sample: a second request, say. The futures run on the
    /// async runtime, many at once, and must not block or compute for long.
    ///
    /// # Errors
    /// An error of the function takes the sample's place, with the names of node and item added.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{Error, index::Indexed};
    /// let names = Indexed::range(2).map_async(|n| async move { Ok::<_, Error>(format!("sample {n}")) });
    /// assert_eq!(names.fetch().collect()?, ["sample 0", "sample 1"]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn map_async<U, E, Fut, F>(self, f: F) -> Indexed<U>
    where
        U: Send + 'static,
        E: Into<BoxError> + 'static, // With `?` in it a closure ends in `datapipes::Ok(..)`, or `Ok::<_, BoxError>(..)`.
        Fut: Future<Output = Result<U, E>> + Send + 'static,
        F: Fn(T) -> Fut + Clone + Send + Sync + 'static,
    {
        // Behind other work of the runtime it would only wait for a second turn: one step reads and
        // applies it.
        let samples = Arc::new(MappedAsync {
            above: self.samples,
            f,
        });
        Indexed::over(self.order, samples, self.concurrency)
    }

    /// Keeps samples in memory, as many as fit into `bytes`; the later rounds and epochs get clones
    /// of them.
    ///
    /// What counts is what the [`MapPipe`] or [`weighed`](Indexed::weighed) says of a sample (else
    /// its size without what it points to), and some for the entry. What is kept stays, and what
    /// comes when it is full is read each time. A sample is read once even if it is asked for
    /// several times at once; errors are not kept. The samples are read one by one. The cache
    /// belongs to this handle and its clones, and is freed with the last of them.
    ///
    /// # Examples
    /// ```
    /// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
    /// use datapipes::{Error, index::Indexed};
    /// let reads = Arc::new(AtomicU64::new(0));
    /// let count = reads.clone();
    /// let data = Indexed::from_fn(10, move |index| {
    ///     count.fetch_add(1, Ordering::Relaxed);
    ///     async move { Ok::<_, Error>(index) }
    /// });
    /// assert_eq!(data.cache(1 << 20).repeat(5).fetch().collect()?.len(), 50);
    /// assert_eq!(reads.load(Ordering::Relaxed), 10);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn cache(self, bytes: usize) -> Self
    where
        T: Clone + Sync,
    {
        Indexed::over(
            self.order,
            Arc::new(Cached::new(self.samples, bytes)),
            self.concurrency,
        )
    }

    /// Tells how many bytes a sample keeps alive, for a [`cache`](Indexed::cache) and for queues
    /// with a length in bytes.
    pub fn weighed(self, weigh: impl Fn(&T) -> usize + Clone + Send + Sync + 'static) -> Self {
        let (build, here) = (self.build, weigh.clone());
        Indexed {
            order: self.order,
            samples: Arc::new(Weighed {
                above: self.samples,
                weigh,
            }),
            build: Arc::new(move |order, concurrency| {
                build(order, concurrency).weighed(here.clone())
            }),
            concurrency: self.concurrency,
        }
    }

    /// Sets how many samples are read at once, instead of the planner's choice:
    /// [`Graph::concurrency`] of the step that reads them, whatever follows.
    pub fn concurrency(self, samples: usize) -> Self {
        Indexed {
            concurrency: Some(samples),
            ..self
        }
    }

    /// Reads the samples in their order: a graph of the steps that decide on order, a step
    /// `indices` that computes the index of one position after another, and a step that reads what
    /// they stand for, many in flight at once, as [`Graph::fetch`] does.
    ///
    /// # Errors
    /// An error takes the sample's place, with the names of node and item added.
    ///
    /// # Panics
    /// A panic of what reads a sample becomes an error that names the node and the item.
    ///
    /// # Cancellation
    /// Dropping the epoch drops the reads in flight.
    pub fn fetch(self) -> Graph<T> {
        (self.build)(self.order.graph(), self.concurrency)
    }
}
