//! The environment of a running pipe: its name, its randomness, its rank; nothing of threads or
//! queues.

mod snapshots;

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use futures::channel::oneshot;

use crate::batch_buffer::{RowCursor, spare};
use crate::checkpoint::NodeState;
use crate::histogram::DurationRecorder;
use crate::rng::{Rng, mix_bits};
use crate::sync::lock;
use crate::tensor::checked_len;
use crate::{Chunk, Element, Error, ErrorKind, Item, Origin, Rank, Result, Tensor, Uneven};

/// The environment of a running pipe. Cheap to clone.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    node: Arc<str>,
    node_key: u64,
    source: u16,
    run: RunInfo,
    round: u64,
    counters: Arc<Counters>,
    rows: Option<RowCursor>,
    node_state: Option<NodeState>,
}

/// Values shared by all nodes of one epoch.
#[derive(Clone, Default)]
pub(crate) struct RunInfo {
    pub seed: u64,
    pub epoch: u64,
    /// True if the node works for a cache: its work is that of epoch 0.
    pub for_cache: bool,
    pub rank: Rank,
    pub uneven: Option<Uneven>,
    pub max_inflated: Option<u64>,
    pub cancelled: Arc<AtomicBool>,
    pub offload: Option<Arc<dyn Offload>>,
    pub poll_log: Option<Arc<dyn PollLog>>,
    pub shared: Arc<SharedByNode>,
    /// Bytes that may be lost where items are made together; no limit if `None`.
    pub margin: Option<usize>,
    /// Bytes of the largest item, if they are known before.
    pub largest_item: Option<usize>,
    /// True if nodes are applied to a part of a batch.
    pub partial: bool,
    /// Records the streams of random numbers that nodes ask for, while an item is replayed.
    pub draws: Option<Arc<Draws>>,
    pub first_steps: Option<Arc<dyn FirstSteps>>,
}

/// The first stream of random numbers that each node asked for, for one item or for one that it comes
/// from or became.
pub(crate) struct Draws {
    item: Origin,
    /// Keys of the streams, by [`Inner::node_key`].
    keys: Mutex<HashMap<u64, [u64; 4]>>,
}

impl Draws {
    pub(crate) fn of(item: Origin) -> Self {
        Draws {
            item,
            keys: Mutex::default(),
        }
    }

    fn add(&self, node: u64, origin: &Origin, key: [u64; 4]) {
        // Siblings that come along may be many.
        if origin.is_related(&self.item) {
            lock(&self.keys).entry(node).or_insert(key);
        }
    }

    /// Returns the first `N` words of the stream of a node, and forgets all streams.
    pub(crate) fn take<const N: usize>(&self, node: &str) -> Option<[u32; N]> {
        let keys = std::mem::take(&mut *lock(&self.keys));
        let key = keys.get(&crate::stable_hash(node.as_bytes()))?;
        let mut rng = Rng::from_key(*key);
        Some(std::array::from_fn(|_| rng.next_u32()))
    }
}

/// Values shared by the applications of nodes while an epoch runs, by node and type.
#[derive(Default)]
pub(crate) struct SharedByNode(Mutex<SharedValues>);

/// Shared values, by node and type.
type SharedValues = HashMap<(Arc<str>, TypeId), Arc<dyn Any + Send + Sync>>;

impl SharedByNode {
    /// Drops the values, except those that a running stream still holds.
    pub(crate) fn clear(&self) {
        let shared = std::mem::take(&mut *lock(&self.0));
        drop(shared);
    }
}

/// Runs blocking work where it disturbs nobody; implemented by the executor.
pub(crate) trait Offload: Send + Sync {
    fn offload(&self, work: Box<dyn FnOnce() + Send>);
}

/// Runs blocking work where `offload` has it done.
pub(crate) async fn offloaded<R: Send + 'static>(
    offload: &dyn Offload,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R> {
    let (send, receive) = oneshot::channel();
    let guarded = || catch_unwind(AssertUnwindSafe(work));
    offload.offload(Box::new(move || drop(send.send(guarded()))));
    let outcome = receive
        .await
        .map_err(|_| Error::new(ErrorKind::Io, "the runtime stopped"))?;
    outcome.map_err(Error::panic)
}

/// Computes which steps use items first; implemented by the executor.
pub(crate) trait FirstSteps: Send + Sync {
    /// Returns the steps of items in the output of a source, a `Chunk` of this type; `None` if they
    /// do not follow from the graph.
    fn first_steps(
        &self,
        node: &str,
        output: (TypeId, &dyn Fn() -> Box<dyn Any + Send>),
        of: &[Origin],
    ) -> Option<Vec<Option<u64>>>;
}

/// Records calls of nodes while somebody writes them down; implemented by the executor.
pub(crate) trait PollLog: Send + Sync {
    /// Returns true if calls are recorded now.
    fn is_on(&self) -> bool;

    /// Records a call of a node that began at `begun`, ends now, and made this many items.
    fn polled(&self, node: &Arc<str>, begun: Instant, items: usize, first: Option<Origin>);
}

/// Counters of the edge downstream of a node.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub items: AtomicU64,
    pub chunks: AtomicU64,
    pub errors: AtomicU64,
    pub dropped: AtomicU64,
    /// Tries beyond the first.
    pub retried: AtomicU64,
    /// Nanoseconds spent inside the node and the nodes inline upstream of it, scaled up from a
    /// sample of the calls.
    pub busy_ns: AtomicU64,
    /// Time of an item in the node itself, of the calls that were timed.
    pub item_time: DurationRecorder,
    /// Bytes that an item keeps alive: the heaviest recent item, 0 before the first.
    pub weight: AtomicUsize,
    /// Bytes that a sample of the items keep alive, and the number of those items.
    pub sample_bytes: AtomicU64,
    pub sample_items: AtomicU64,
}

impl Context {
    pub(crate) fn new(
        node: Arc<str>,
        source: u16,
        run: RunInfo,
        round: u64,
        counters: Arc<Counters>,
    ) -> Self {
        let node_key = crate::stable_hash(node.as_bytes());
        Context(Arc::new(Inner {
            node,
            node_key,
            source,
            run,
            round,
            counters,
            rows: None,
            node_state: None,
        }))
    }

    /// Returns the context of a pipe that fills rows, from this row on.
    pub(crate) fn with_rows(&self, rows: RowCursor) -> Context {
        self.with(Some(rows), self.0.node_state.clone())
    }

    /// Returns the context of a resumable loader's node, before it has rows to fill.
    pub(crate) fn with_node_state(&self, node_state: NodeState) -> Context {
        self.with(None, Some(node_state))
    }

    /// Returns the context of a pipe whose blocking work is done by `offload`, before it has rows to
    /// fill.
    pub(crate) fn with_offload(&self, offload: Arc<dyn Offload>) -> Context {
        let mut context = self.with(None, self.0.node_state.clone());
        let inner = Arc::get_mut(&mut context.0).expect("it was made just now");
        inner.run.offload = Some(offload);
        context
    }

    fn with(&self, rows: Option<RowCursor>, node_state: Option<NodeState>) -> Context {
        let Inner {
            node,
            node_key,
            source,
            run,
            round,
            counters,
            rows: _,
            node_state: _,
        } = &*self.0;
        Context(Arc::new(Inner {
            node: node.clone(),
            node_key: *node_key,
            source: *source,
            run: run.clone(),
            round: *round,
            counters: counters.clone(),
            rows,
            node_state,
        }))
    }

    /// Returns the bytes of the largest item, if they are known before.
    pub(crate) fn largest_item(&self) -> Option<usize> {
        self.0.run.largest_item
    }

    /// Returns the limit on bytes lost where items are made together, if there is one.
    pub(crate) fn margin(&self) -> Option<usize> {
        self.0.run.margin
    }

    pub(crate) fn node_state(&self) -> Option<&NodeState> {
        self.0.node_state.as_ref()
    }

    /// Returns the name of the node, which errors and figures carry.
    pub fn node(&self) -> &Arc<str> {
        &self.0.node
    }

    /// Returns the seed of the loader.
    pub fn seed(&self) -> u64 {
        self.0.run.seed
    }

    /// Returns the epoch, from 0. A node upstream of a [cache](field@crate::Hints::renames) is always in
    /// epoch 0.
    pub fn epoch(&self) -> u64 {
        match self.0.run.for_cache {
            true => 0,
            false => self.0.run.epoch,
        }
    }

    /// Returns the epoch that runs, also upstream of a cache: for figures, not for what an item
    /// becomes.
    pub fn running_epoch(&self) -> u64 {
        self.0.run.epoch
    }

    /// Returns the number of the round in which a [`repeat`](crate::Graph::repeat), or another
    /// [`Rerun`](crate::Rerun), runs this node: 0, 1, 2 and so on, and 0 if there is none. Inside a
    /// second repeat, the numbers in later rounds of the outer one are arbitrary but fixed. In a
    /// round other than 0, the items of a source are children, with this number, of those of round
    /// 0; see [`Origin::without_round`](crate::Origin::without_round).
    pub fn round(&self) -> u64 {
        self.0.round
    }

    /// Returns the part of the data that this process takes.
    pub fn rank(&self) -> Rank {
        self.0.run.rank
    }

    /// Returns the policy for items that do not divide evenly among the ranks, if the loader sets
    /// it.
    pub fn uneven(&self) -> Option<Uneven> {
        self.0.run.uneven
    }

    /// Returns the most bytes that a compressed file may inflate to, if the loader [sets
    /// it](crate::loader::Builder::max_inflated). Pipes that inflate files refuse those that become
    /// larger.
    pub fn max_inflated(&self) -> Option<u64> {
        self.0.run.max_inflated
    }

    /// Returns the random stream of an item in this node: a function of seed, epoch, node name and
    /// origin alone.
    pub fn rng(&self, origin: &Origin) -> Rng {
        let key = self.key(mix_bits(origin.key()) ^ ITEM);
        if let Some(draws) = &self.0.run.draws {
            draws.add(self.0.node_key, origin, key);
        }
        Rng::from_key(key)
    }

    /// Returns the random stream of the node itself, for a pipe that looks at the stream as a
    /// whole.
    pub fn node_rng(&self) -> Rng {
        Rng::from_key(self.key(NODE))
    }

    fn key(&self, last: u64) -> [u64; 4] {
        let epoch = if self.0.round == 0 {
            self.epoch()
        } else {
            mix_bits(mix_bits(self.epoch()) ^ self.0.round)
        };
        [self.seed(), epoch, self.0.node_key, last]
    }

    /// Returns the origin of item `index` of this source. In a [`repeat`](crate::Graph::repeat),
    /// each round has its own.
    #[inline]
    pub fn origin(&self, index: u64) -> Origin {
        let root = Origin::root(self.0.source, index);
        if self.0.round == 0 {
            root
        } else {
            root.child(self.0.round)
        }
    }

    /// Makes consecutive items of this source, from number `at` on.
    pub fn run<T>(&self, values: Vec<T>, at: u64) -> Chunk<T> {
        if self.0.round == 0 {
            Chunk::run(values, Origin::root(self.0.source, at))
        } else {
            let origins = (at..at + values.len() as u64)
                .map(|index| self.origin(index))
                .collect();
            Chunk::from_columns(values, origins)
        }
    }

    /// Returns the context of the same node in another round of a [`repeat`](crate::Graph::repeat),
    /// with the [origins](Context::origin) and random numbers of that round.
    pub fn in_round(&self, round: u64) -> Context {
        let inner = &*self.0;
        let (node, run) = (inner.node.clone(), inner.run.clone());
        Context::new(node, inner.source, run, round, inner.counters.clone())
    }

    /// Returns a tensor for this pipe to fill and give out. If the planner found that the pipe's
    /// output is batched and collated, the tensor is the next row of a batch:
    /// [`collate`](crate::Graph::collate) then copies nothing, and the memory is used again once
    /// the batch is dropped. Anywhere else it is an independent tensor. Keeping a single row of a
    /// batch, without cloning it, keeps the memory of the whole batch. In a child process,
    /// changes reach the batch until the row is sent; after that they stay in the process.
    ///
    /// A pipe that uses this method declares it by [`Hints::rows`](crate::Hints::rows),
    /// and asks for one tensor for each item, before any step that may fail. The tensor's numbers
    /// are zero, or left over from an earlier tensor.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if the shape is too large for the address space.
    pub fn row<T: Element>(&self, shape: impl Into<Vec<usize>>) -> Result<Tensor> {
        let shape = shape.into();
        let len = checked_len(&shape, T::DTYPE)?;
        let row = self.0.rows.as_ref().and_then(|rows| rows.next::<T>(len));
        match row.or_else(|| spare::<T>(len)) {
            Some(part) => Ok(Tensor::pooled(part, shape)),
            None => Tensor::zeros(T::DTYPE, shape),
        }
    }

    /// Returns a value that all applications of this node share while an epoch runs, made by `make`
    /// if there is none yet: a pool of scratch memory, a client. An executor applies a shardable
    /// pipe to many pieces of its input at once, so a shared value must be a cache and never state:
    /// the node's output may not depend on it. Ask for it once in [`apply`](crate::Pipe::apply),
    /// not for each item.
    ///
    /// The value is dropped when the epoch ends or is dropped. Each process of a part in processes
    /// has its own value, until its first piece of another epoch.
    ///
    /// # Examples
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use datapipes::{Arity, Context, Graph, Hints, Items, Pipe};
    ///
    /// /// Counts items, for all workers together.
    /// struct Counted;
    ///
    /// impl Pipe<u64> for Counted {
    ///     type Out = u64;
    ///     fn apply(&self, input: Items<u64>, cx: &Context) -> Items<u64> {
    ///         let seen = cx.shared(AtomicU64::default);
    ///         input.each(cx, move |item| {
    ///             seen.fetch_add(1, Ordering::Relaxed);
    ///             Some(Ok(item))
    ///         })
    ///     }
    ///     fn hints(&self) -> Hints {
    ///         Hints::shardable().arity(Arity::One)
    ///     }
    /// }
    ///
    /// assert_eq!(Graph::range(0..3).pipe(Counted).collect()?, [0, 1, 2]);
    /// # #[cfg(feature = "testing")]
    /// datapipes::testing::check_pipe(&Counted, (0..20).collect());
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn shared<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut shared = lock(&self.0.run.shared.0);
        let value = shared
            .entry((self.node().clone(), TypeId::of::<T>()))
            .or_insert_with(|| Arc::new(make()));
        value.clone().downcast().expect("it is found by its type")
    }

    /// Counts items that are left out on purpose, so that the sums of the epoch add up.
    pub fn count_dropped(&self, items: u64) {
        if items > 0 {
            self.0.counters.dropped.fetch_add(items, Ordering::Relaxed);
        }
    }

    /// Counts one more try of an item that failed before, in
    /// [`NodeStats::retried`](crate::loader::NodeStats::retried). Returns the number of such tries
    /// of this node in this epoch so far, with this one, in this process.
    pub fn count_retried(&self) -> u64 {
        1 + self.0.counters.retried.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns true if the epoch was dropped. Long loops should check it now and then, and end
    /// their stream.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.0.run.cancelled.load(Ordering::Relaxed)
    }

    /// Runs blocking work, such as reading a local file, where it holds up no other I/O. That is
    /// the blocking pool of the async runtime. If the graph runs inline, or workers do the work
    /// because it [seldom waits](field@crate::Hints::seldom_waits), it runs at once on the calling
    /// thread.
    ///
    /// # Errors
    /// [`ErrorKind::Panic`] if the work panics.
    pub async fn blocking<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R> {
        match &self.0.run.offload {
            None => catch_unwind(AssertUnwindSafe(work)).map_err(Error::panic),
            Some(offload) => offloaded(&**offload, work).await,
        }
    }

    /// Returns the first step of this rank's epoch that would use each of some items of a source, if
    /// `output` returned all that the source gives: so that an error about files which are used much
    /// later can say when. The step is the place of the loader's output, counted from 0, with these
    /// items or what becomes of them. `output` is called once for each rank that is read in turn, if the
    /// epoch was begun by more ranks.
    ///
    /// It is computed without reading any data: downstream of the source there may be pipes that
    /// [select](field@crate::Hints::selects), which are run on `output`, with their functions, such
    /// as the key of a sort, and after them pipes of [one output for each input](crate::Arity::One) and
    /// [batches](crate::Role::Batch). `None` for an item that this rank does not use, and for all of
    /// them in other graphs, in an order in which steps depend on time, and in another process. Items
    /// that fail and are skipped are not taken into account.
    pub async fn first_steps<T: Send + 'static>(
        &self,
        output: impl Fn() -> Chunk<T> + Send + 'static,
        of: Vec<Origin>,
    ) -> Vec<Option<u64>> {
        let (count, node) = (of.len(), self.node().clone());
        let steps = self.0.run.first_steps.clone();
        let compute = move || {
            let erased = || Box::new(output()) as Box<dyn Any + Send>;
            steps?.first_steps(&node, (TypeId::of::<T>(), &erased), &of)
        };
        // A pipe that panics will do so again where it is seen.
        let computed = self.blocking(compute).await.ok().flatten();
        computed.unwrap_or_else(|| vec![None; count])
    }

    /// Returns true if the pipe is applied to some of the samples of a batch that it made before,
    /// as by [`DataLoader::bisect`](crate::DataLoader::bisect). A pipe that makes batches then
    /// makes one of them, however few they are, and leaves out nothing.
    pub fn is_partial(&self) -> bool {
        self.0.run.partial
    }

    /// Adds this node and an item to an error.
    pub fn fail<T>(&self, item: &Item<T>, error: Error) -> Error {
        error.at(self.node()).of(item.origin())
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.0.counters
    }

    /// Returns what calls of nodes are recorded in, if they are.
    pub(crate) fn poll_log(&self) -> Option<&dyn PollLog> {
        let log = self.0.run.poll_log.as_deref();
        log.filter(|log| log.is_on())
    }
}

const ITEM: u64 = 0x6974_656d;
const NODE: u64 = 0x6e6f_6465;

/// A context for tests of a single pipe: seed and epoch 0, rank 0 of 1, blocking work at once.
impl Default for Context {
    fn default() -> Self {
        Context::new("pipe".into(), 0, RunInfo::default(), 0, Arc::default())
    }
}

opaque_debug!(Context { node = self.0.node, seed = self.seed(), epoch = self.epoch(), rank = self.rank() });
