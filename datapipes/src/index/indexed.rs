//! A handle on indexed data and the steps applied to it.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use super::cached::Cached;
use super::combined::{Batched, OneOf, Zipped};
use super::order::{self, Flatten, Index, Indices, Kind, Mix, Rule, Shard, Step, single};
use super::sources::{FromFn, FromVec, Itself, Samples};
use super::transformed::{IndexLookup, Mapped, MappedAsync, Weighed};
use super::{Fetch, MapPipe, Random, Sampler, Subset};
use crate::pipes::Batch;
use crate::{BoxError, Error, Graph, Rank, Result, Uneven};

/// A description of indexed data: a [`MapPipe`], the transforms of its samples, and the order in
/// which the samples come.
///
/// Like a [`Graph`], it is typed, inert and cheap to clone. Nothing is read before a loader runs
/// the graph that [`fetch`](Indexed::fetch) makes. Until then all steps that concern order
/// (shuffle, shard, subset, repeat, concat, mix, zip, batch) are arithmetic on positions: nothing
/// is materialised, and any number of samples starts at once. Steps that concern samples
/// ([`map`](Indexed::map), [`cache`](Indexed::cache)) are done where the samples are read. It does
/// not matter if they are added before or after a shuffle.
///
/// The order is fixed at the start of an epoch, from seed, epoch and rank. The origin of an item is
/// the index of its sample. A sample therefore gets the same augmentation at any position and on
/// any rank. A sample that comes again in one epoch (in a round of a repeat, as a second draw, or
/// as padding) is a child of that origin.
///
/// A handle may be used any number of times: `data.clone().zip(data.shuffle())` pairs every sample
/// with a random one. In a zip the same handle has the same order. In a concat or mix each use is
/// separate data with an order of its own.
#[must_use = "data by index does nothing until it is fetched"]
pub struct Indexed<T> {
    order: Arc<Step>,
    samples: IndexLookup<T>,
    /// Builds a graph of samples from the order.
    build: BuildFetch<T>,
    concurrency: Option<usize>,
}

type BuildFetch<T> = Arc<dyn Fn(Graph<Indices>, Option<usize>) -> Graph<T> + Send + Sync>;

clone_fields!(Indexed<T> { order, samples, build, concurrency });

impl<T> fmt::Debug for Indexed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Indexed").field(&self.order.graph()).finish()
    }
}

/// Reads all samples in one step.
fn fetched<T: Send + 'static>(samples: IndexLookup<T>) -> BuildFetch<T> {
    Arc::new(move |order, concurrency| {
        let fetched = order
            .pipe(Flatten(|index: Index| index))
            .pipe(Fetch::by_index(samples.clone()));
        match concurrency {
            Some(pieces) => fetched.concurrency(pieces),
            None => fetched,
        }
    })
}

impl Indexed<u64> {
    /// Makes data of the indices below `len` alone: a fetched sample is its index. For keys, or for
    /// data that another step reads.
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
    /// Reads the samples of a [`MapPipe`], whose docs have an example.
    pub fn new(samples: impl MapPipe<Out = T>) -> Self {
        Indexed::shared(Arc::new(samples))
    }

    /// Reads the samples of a shared [`MapPipe`], whose docs have an example.
    pub fn shared<M: MapPipe<Out = T> + ?Sized>(samples: Arc<M>) -> Self {
        let order = Step::new(Kind::Samples(samples.len()), vec![]);
        Indexed::over(order, Arc::new(Samples(samples)), None)
    }

    /// Uses the elements of a vector as samples.
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

    /// Calls an async function for each index below `len`: a request, a query, a read. The futures
    /// run on the async runtime, many at once, and must not block or compute for long.
    ///
    /// # Errors
    /// An error of the function takes the sample's place, with the names of the node and the item
    /// added.
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

    fn over(order: Arc<Step>, samples: IndexLookup<T>, concurrency: Option<usize>) -> Self {
        Indexed {
            order,
            build: fetched(samples.clone()),
            samples,
            concurrency,
        }
    }

    fn step(mut self, kind: Kind) -> Self {
        self.order = Step::new(kind, vec![self.order.clone()]);
        self
    }

    /// Returns the number of samples in an epoch, over all ranks together. A sample that comes
    /// several times is counted each time.
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

    /// Returns true if an epoch has no samples.
    ///
    /// # Examples
    /// ```
    /// assert!(datapipes::Indexed::range(10).subset(4..4).is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of samples in an epoch of one rank; see [`len`](Indexed::len) for an
    /// example.
    pub fn len_for(&self, rank: Rank, uneven: Uneven) -> u64 {
        self.order.len(rank, uneven)
    }

    /// Names the last step of the order. Errors and the printed plan show the name, and it is the
    /// key of the step's randomness: with a name, a shuffle keeps its order when other shuffles are
    /// added to the graph. To name the node that reads the samples, use [`Graph::named`] after
    /// [`fetch`](Indexed::fetch).
    ///
    /// Names are unique in a graph. A step without a name is called after its kind:
    /// `index_shuffle`, `index_shuffle#2`, …
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Indexed};
    /// let graph = Indexed::range(10).shuffle().named("order").fetch();
    /// assert!(DataLoader::builder(graph).build()?.explain().contains("order"));
    /// # Ok::<(), datapipes::BuildError>(())
    /// ```
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.order = self.order.named(name.into());
        self
    }

    /// Shuffles all samples with a [`Permutation`](super::Permutation) keyed by seed, epoch and the
    /// step's name. Each position is computed by itself in some tens of nanoseconds, and nothing is
    /// held in memory.
    ///
    /// Put it before [`shard`](Indexed::shard), so that a rank gets other samples in each epoch.
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

    /// Takes the samples that a [`Sampler`] chooses from the samples so far.
    ///
    /// # Examples
    /// ```
    /// use datapipes::index::{ClassBalanced, Indexed};
    /// let labels = vec![0, 0, 0, 1];
    /// let data = Indexed::from_vec(labels.clone()).sampled(ClassBalanced::new(labels, 100));
    /// assert_eq!(data.fetch().collect()?.iter().sum::<i32>(), 50);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn sampled(self, sampler: impl Sampler) -> Self {
        self.step(Kind::Sampled(Arc::new(sampler)))
    }

    /// Keeps this rank's part: positions `rank`, `rank + world`, and so on of the order that all
    /// ranks agree on (see [`Builder::rank`](crate::loader::Builder::rank)). A rank neither
    /// computes nor reads the samples of another.
    ///
    /// If the positions do not divide evenly, the loader's [`Uneven`] decides:
    ///
    /// - `Drop`: the last positions are left out, and counted by the ranks that would have had
    ///   them;
    /// - `Pad`: ranks with fewer samples take samples from the start of the order once more, as
    ///   draws of their own;
    /// - `Allow`: some ranks get one sample more;
    /// - `Error`: building the loader fails, or, if the number is not known then, the epoch begins
    ///   with an error.
    ///
    /// Fewer samples than ranks are an error unless `Allow` is set. With one rank the step does
    /// nothing.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Indexed, Uneven};
    /// let part = |rank| {
    ///     let graph = Indexed::range(8).shard().fetch();
    ///     let loader = DataLoader::builder(graph).rank(rank, 3).uneven(Uneven::Pad).build().unwrap();
    ///     loader.epoch(0).blocking().collect::<datapipes::Result<Vec<u64>>>()
    /// };
    /// assert_eq!(part(1)?, [1, 4, 7]);
    /// assert_eq!(part(2)?, [2, 5, 0]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn shard(self) -> Self {
        self.step(Kind::Shard(Shard::InTurn))
    }

    /// Keeps this rank's part as one range of the order: of 10 samples on 2 ranks, rank 0 has 0 to
    /// 4 and rank 1 has 5 to 9. For data that is read best in sequence, such as records of one
    /// file. If the order before this step is shuffled, [`shard`](Indexed::shard) does as well. The
    /// samples that the ranks have together after some batches depend on the number of ranks, so an
    /// epoch cannot be resumed on another number of ranks.
    ///
    /// If the positions do not divide evenly, the loader's [`Uneven`] decides:
    ///
    /// - `Drop`: every rank has `len / world` samples, and the last samples of the order are left
    ///   out;
    /// - `Pad`: every rank has `len / world` samples, rounded up; what is missing at the end is
    ///   taken from the start of the order once more, as draws of their own;
    /// - `Allow`: the first `len mod world` ranks have one sample more;
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

    /// Takes some samples: a range, or a list of indices in their order. An index that does not
    /// exist is reported when the loader is built. A list takes 8 bytes an index.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Indexed;
    /// let data = Indexed::from_vec(vec!['a', 'b', 'c', 'd']);
    /// assert_eq!(data.clone().subset(1..3).fetch().collect()?, ['b', 'c']);
    /// assert_eq!(data.subset(vec![3, 0, 3]).fetch().collect()?, ['d', 'a', 'd']);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn subset(self, which: impl Into<Subset>) -> Self {
        self.sampled(which.into())
    }

    /// Repeats everything so far `rounds` times, one round after another. Each round has other
    /// random numbers: a shuffle before this step gives another order in each round. A shuffle
    /// after this step mixes the rounds.
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

    /// Concatenates data sets, one after another.
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

    /// Mixes data sets by weight, in exact shares, until all are exhausted. Among the first `n`
    /// samples each data set has its share, to within one sample for each data set. An exhausted
    /// data set is left out, and the others divide its share. The order is that of [`Graph::mix`],
    /// item by item.
    ///
    /// Whole weights are used as they are, others are rounded to a millionth of the least weight.
    /// The mix uses no random numbers; shuffle its result for a random order.
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
        Indexed::mixed(inputs, Rule::AllExhausted)
    }

    /// Mixes data sets by weight and ends at the turn of a data set that is exhausted. The shares
    /// are therefore exact to the end. Otherwise like [`mix`](Indexed::mix), which has an example
    /// of both. To make small data sets last longer, [`repeat`](Indexed::repeat) them.
    pub fn mix_to_first(inputs: impl IntoIterator<Item = (Indexed<T>, f64)>) -> Self {
        Indexed::mixed(inputs, Rule::FirstExhausted)
    }

    fn mixed(inputs: impl IntoIterator<Item = (Indexed<T>, f64)>, rule: Rule) -> Self {
        let (inputs, weights) = inputs.into_iter().unzip();
        Indexed::one_of(Kind::Mix(Mix { weights, rule }), inputs)
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

    /// Pairs the samples at each position with those of other data, and ends with the shorter one.
    /// The two samples of a pair are read at once. The origin of an item is that of its first part.
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

    /// Groups neighbours in the order into batches of one size: a number, or a [`Batch`] with other
    /// settings. The last batch may be smaller, unless [`Batch::drop_last`] is set; then the samples
    /// left over are counted as dropped. Batches stay indexable: they can be shuffled and sharded as
    /// a whole. Each batch is read by one `get_many`, whose requests run at once.
    ///
    /// To batch samples that were fetched one by one, with a concurrency of their own, use
    /// [`Graph::batch`].
    ///
    /// # Errors
    /// The first error among the samples, in order, takes the place of the batch.
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
    pub fn batch(self, batch: impl Into<Batch>) -> Indexed<Vec<T>> {
        let Batch { size, drop_last } = batch.into();
        let kind = Kind::Batch(order::Batch { size, drop_last });
        let order = Step::new(kind, vec![self.order]);
        Indexed::over(order, Arc::new(Batched(self.samples)), self.concurrency)
    }

    /// Applies a function to every sample.
    ///
    /// The step becomes a [`Graph::map`] after the node that reads the samples, and runs on the CPU
    /// workers. If a zip, concat, mix, batch or cache follows, it is part of the reading instead:
    /// it runs on the async runtime, where it must not compute for long. Random transforms belong
    /// after [`fetch`](Indexed::fetch), as [`Graph::map_with_rng`].
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

    /// Applies a function that may fail to every sample. Otherwise like [`map`](Indexed::map).
    ///
    /// # Errors
    /// An error of the function takes the sample's place, with the names of the node and the item
    /// added.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Indexed;
    /// let numbers = Indexed::from_vec(vec!["1", "x"]).try_map(|text| text.parse::<u32>());
    /// assert_eq!(numbers.clone().subset(0..1).fetch().collect()?, [1]);
    /// let error = numbers.fetch().collect().unwrap_err();
    /// assert_eq!(error.to_string(), "try_map: 0:1: invalid digit found in string");
    /// # Ok::<(), datapipes::Error>(())
    /// ```
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

    /// Applies an async function to every sample, such as a second request. The futures run on the
    /// async runtime, many at once, and must not block or compute for long.
    ///
    /// # Errors
    /// An error of the function takes the sample's place, with the names of the node and the item
    /// added.
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
        // One step both reads and applies the function: a second step would only wait for another
        // turn of the runtime.
        let samples = Arc::new(MappedAsync {
            above: self.samples,
            f,
        });
        Indexed::over(self.order, samples, self.concurrency)
    }

    /// Caches samples in memory, as many as fit into `bytes`. Later rounds and epochs get clones of
    /// them.
    ///
    /// The size of a sample is given by the [`MapPipe`] or by [`weighed`](Indexed::weighed), plus
    /// some bytes for the entry. Without a weight it is the size of the value itself, without data
    /// on the heap. A cached sample is never evicted, and samples that come when the cache is full
    /// are read each time. A sample is read once even if it is asked for several times at once.
    /// Errors are not cached. The samples are read one by one. The cache belongs to this handle and
    /// its clones, and is freed with the last of them.
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

    /// Sets a function that gives the bytes a sample keeps alive, for a [`cache`](Indexed::cache)
    /// and for queues whose length is in bytes.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Indexed;
    /// let texts = Indexed::from_vec(vec!["a".repeat(1000); 5]).weighed(|text: &String| text.len());
    /// assert_eq!(texts.cache(4096).repeat(2).fetch().collect()?.len(), 10); // 3 of 5 stay in memory
    /// # Ok::<(), datapipes::Error>(())
    /// ```
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

    /// Sets the number of samples read at once, instead of the planner's choice. This is
    /// [`Graph::concurrency`] of the step that reads the samples, in whatever order the methods are
    /// called.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Error, Indexed};
    /// let asked = Indexed::from_fn(9, |n| async move { Ok::<_, Error>(n) }).concurrency(4).fetch();
    /// assert!(DataLoader::builder(asked).build()?.explain().contains("up to 4 in flight"));
    /// # Ok::<(), datapipes::BuildError>(())
    /// ```
    pub fn concurrency(mut self, samples: usize) -> Self {
        self.concurrency = Some(samples);
        self
    }

    /// Makes a graph that reads the samples in their order. The graph has the steps that decide on
    /// the order. A step `indices` then computes the index of each position in turn, and a last
    /// step reads the samples, many in flight at once, as [`Graph::fetch`] does.
    ///
    /// # Errors
    /// An error takes the sample's place, with the names of the node and the item added.
    ///
    /// # Panics
    /// A panic while a sample is read becomes an error that names the node and the item.
    ///
    /// # Cancellation
    /// Dropping the epoch drops the reads in flight.
    ///
    /// # Examples
    /// ```
    /// use datapipes::index::Indexed;
    /// let letters = Indexed::from_vec(vec!['a', 'b', 'c']).fetch();
    /// assert_eq!(letters.collect().unwrap(), ['a', 'b', 'c']);
    /// ```
    pub fn fetch(self) -> Graph<T> {
        (self.build)(self.order.graph(), self.concurrency)
    }
}
