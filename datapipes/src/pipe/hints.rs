//! Hints: the description that a node gives the checker and the planner of itself.

use std::fmt;

/// Description of a node for the checker and the planner. The node has to behave as it says; the
/// test kit ([`testing`](crate::testing)) checks that it does. The run itself checks only the
/// [`arity`](field@Hints::arity) of a pipe, by counts: state that a shardable pipe keeps from one
/// item to the next is not noticed there.
///
/// Begin with one of [`shardable`](Hints::shardable), [`any_order`](Hints::any_order) and
/// [`default`](Hints::default), and set what differs; the methods have the names of the fields.
///
/// ```
/// use datapipes::{Arity, Hints};
///
/// let item_by_item = Hints::shardable().arity(Arity::One).settings("size 64");
/// assert!(item_by_item.is_shardable && item_by_item.ignores_order);
/// let over_the_stream = Hints::default().buffered(32).is_resumable(true);
/// assert!(!over_the_stream.ignores_order);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct Hints {
    /// True if a pipe distributes over concatenation, `apply(a ++ b) == apply(a) ++ apply(b)`, so
    /// that its input may be cut anywhere and spread over workers. Of a pipe that keeps something from
    /// one item to the next this is not true, and its output would differ from run to run; only
    /// `check_pipe` of the [test kit](crate::testing) finds that. Defaults to false. Without meaning for
    /// other nodes than a pipe.
    pub is_shardable: bool,
    /// True if a pipe distributes over parents, though not over children: it groups the children of
    /// one parent (members of an archive into samples) and starts afresh with each parent. The pipe
    /// may then stand in a segment downstream of the fan-out that made the children. Defaults to
    /// false.
    pub is_shardable_by_parent: bool,
    /// True if a pipe should run in processes of its own, because it may crash, leak or is not
    /// thread-safe. The pipe must then be shardable, or `build()` fails, and
    /// [`Pipe::crossing`](crate::Pipe::crossing) tells how the pipe and its items are sent.
    /// Consecutive pipes of this kind share processes. The number of processes and their
    /// permissions are set by the loader:
    /// [`Builder::processes`](crate::loader::Builder::processes). Defaults to false.
    pub is_separate_process: bool,
    /// Kind of work that a pipe does: it waits (I/O) or computes (CPU, the default).
    pub work: Work,
    /// True if the [blocking work](crate::Context::blocking) of an I/O pipe usually ends without
    /// waiting, as reading a file in the page cache does, and never waits for work on other items,
    /// or for the async runtime, on whose thread it may run in a process. As long as measurements agree, the executor does it on the CPU workers, with few items in
    /// flight; otherwise as other I/O. Defaults to false.
    pub seldom_waits: bool,
    /// Number of output items of a pipe for each input item, errors included. Defaults to any number.
    /// A pipe that gives another number in all than it says here ends the epoch with an error of kind
    /// [`Config`](crate::ErrorKind::Config). A pipe that makes one item of several says so by
    /// [`buffered`](field@Hints::buffered), too.
    pub arity: Arity,
    /// True if an epoch can be resumed in the middle of the node's output: it takes
    /// [snapshots](crate::Context::snapshot) of its state and begins with the
    /// [restored](crate::Context::restored) one, or has no state. Items that it
    /// [holds](crate::Held) need not be in the snapshot: they come again by themselves. Not needed
    /// for a shardable pipe, which has no state.
    ///
    /// If a pipe, a join or a split says false, [`build`](crate::loader::Builder::build) refuses a
    /// loader that is meant to be [resumed](crate::loader::Builder::resumable), and names the node.
    /// A source that says false is opened from the beginning, and the items already delivered are
    /// left out downstream. Defaults to false.
    ///
    /// ```
    /// use datapipes::{Context, DataLoader, Graph, Hints, Items, Pipe};
    ///
    /// /// Leaves out what is not greater than all before it.
    /// struct Records;
    ///
    /// impl Pipe<u64> for Records {
    ///     type Out = u64;
    ///     fn apply(&self, mut input: Items<u64>, cx: &Context) -> Items<u64> {
    ///         let cx = cx.clone();
    ///         Items::generate(async move |out| {
    ///             let mut greatest = match cx.restored::<Option<u64>>() {
    ///                 Ok(saved) => saved.flatten(),
    ///                 Err(error) => return out.emit(Err(error)).await,
    ///             };
    ///             loop {
    ///                 out.snapshot(&cx, || greatest);
    ///                 let Some(item) = out.next_from(&mut input).await else { return };
    ///                 if greatest.is_none_or(|greatest| *item > greatest) {
    ///                     greatest = Some(*item);
    ///                     out.emit(Ok(item)).await;
    ///                 }
    ///             }
    ///         })
    ///     }
    ///     fn hints(&self) -> Hints {
    ///         Hints::default().is_resumable(true)
    ///     }
    /// }
    ///
    /// let graph = Graph::from_vec(vec![3, 1, 4, 1, 5, 9, 2, 6]).pipe(Records);
    /// let loader = DataLoader::builder(graph).resumable().build()?;
    /// let mut epoch = loader.epoch(0).blocking();
    /// assert_eq!(epoch.by_ref().take(2).collect::<datapipes::Result<Vec<_>>>()?, [3, 4]);
    /// let rest = loader.resume(&epoch.checkpoint()?)?.blocking();
    /// assert_eq!(rest.collect::<datapipes::Result<Vec<_>>>()?, [5, 9]);
    /// # #[cfg(feature = "testing")]
    /// datapipes::testing::check_pipe(&Records, vec![3, 1, 4, 1, 5, 9, 2, 6]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub is_resumable: bool,
    /// True if the order of the input does not decide which items come out, but at most their
    /// grouping or sequence. For other nodes, such as `take` or `zip`, everything upstream runs in
    /// strict order. Defaults to false.
    pub ignores_order: bool,
    /// True if polling the node never keeps its thread: it runs no function of the user and waits
    /// for nothing outside the process. What reads it then needs no thread of its own to deliver
    /// what is ready. Defaults to false.
    pub never_blocks: bool,
    /// Number of items that the node may take before it gives one: the size of a shuffle buffer or of
    /// a batch, `n` for a sum of `n` items. Decides how many requests upstream begin at once. Defaults
    /// to 0.
    pub buffered: usize,
    /// About how many bytes it holds besides items, of which the loader's
    /// [promise](crate::loader::Builder::memory) knows nothing: pieces of a file that it cuts, for
    /// instance. The printed plan says it. 0 unless said otherwise.
    pub buffered_bytes: usize,
    /// True if `weigh` knows no more of an item than its type tells, as for a node over any type.
    /// If the type does not tell either, the printed plan says that the weight is unknown. Of a
    /// node that does not say so, the plan knows after its first item. Defaults to false.
    pub weighs_by_type: bool,
    /// True if all outputs are children of the inputs (see [`Item::child`](crate::Item::child)), so
    /// that a node that groups siblings may stand in the same segment. Defaults to false.
    pub children: bool,
    /// True if the node may feed several nodes without a fork: it is cheap, gives the same output
    /// whenever it runs, and runs for each reader. Defaults to false.
    pub many_readers: bool,
    /// True if each output is, or begins as, one [`Context::row`](crate::Context::row) for each
    /// item. Defaults to false.
    pub rows: bool,
    /// True if the node goes by position: the output at a position depends on nothing before that
    /// position. It is a source that can [open anywhere](crate::Context::wanted), or a
    /// one-in-one-out pipe that uses no more than the item and its number. In a resumed epoch it
    /// gives the positions in [`Context::wanted`](crate::Context::wanted), and nothing else; a
    /// split gives to each output those of
    /// [`Context::wanted_of_outputs`](crate::Context::wanted_of_outputs). Defaults to false.
    pub by_position: bool,
    /// True if the output is a selection of the input (values and origins unchanged) in any order,
    /// so that the [replay](crate::DataLoader::replay) of one sample may skip the node. A node of
    /// several outputs with this hint decides by the item alone which outputs get it. Defaults to
    /// false.
    pub selects: bool,
    /// True if a node that [selects](field@Hints::selects) may give an item another origin in later
    /// rounds of a [`repeat`](crate::Graph::repeat), as a cache does: children of the origins of the
    /// first round. Everything upstream of such a node works as in round 0 of epoch 0, in each
    /// pass: what a cache keeps does not depend on the pass that filled it. The
    /// [replay](crate::DataLoader::replay) does not take a sample that it does not find for one
    /// that nothing makes. Defaults to false.
    pub renames: bool,
    /// True if a join pairs the items of its inputs by position, so that all inputs have to give
    /// the same samples in the same sequence. If this cannot be established for the inputs, the
    /// printed plan says so. Defaults to false.
    pub pairs: bool,
    /// True if a join passes on its first input only, and looks things up in the others: each rank
    /// reads those whole. Defaults to false.
    pub looks_up: bool,
    /// True if a pipe tells, where items come in any order, which inputs each output is made of. It
    /// emits all outputs with [`Emitter::emit_of`](crate::Emitter::emit_of), or tells by
    /// [`Context::lineage`](crate::Context::lineage). In a loader that can be
    /// [resumed](crate::loader::Builder::resumable), nodes upstream of such a pipe can run in any
    /// order. Upstream of any other pipe items stay in strict order, unless it gives one output for
    /// each input, by position. Useful only with [`ignores_order`](field@Hints::ignores_order).
    /// Defaults to false.
    ///
    /// ```
    /// use datapipes::{Context, DataLoader, Hints, Graph, Held, Item, Items, Order, Pipe};
    ///
    /// /// Groups items into batches of this size.
    /// struct Groups(usize);
    ///
    /// impl Pipe<u64> for Groups {
    ///     type Out = Vec<u64>;
    ///     fn apply(&self, mut input: Items<u64>, cx: &Context) -> Items<Vec<u64>> {
    ///         let (size, cx) = (self.0, cx.clone());
    ///         let mut batches: u64 = match cx.restored() {
    ///             Ok(saved) => saved.unwrap_or(0),
    ///             Err(error) => return Items::fail(error),
    ///         };
    ///         Items::generate(async move |out| {
    ///             let mut batch: Vec<Held<u64>> = Vec::new();
    ///             loop {
    ///                 out.snapshot(&cx, || batches);
    ///                 let next = out.hold_from(&cx, &mut input).await;
    ///                 let ended = next.is_none();
    ///                 batch.extend(next);
    ///                 if batch.len() == size || (ended && !batch.is_empty()) {
    ///                     let (items, places): (Vec<_>, Vec<_>) = batch.drain(..).map(Held::into_parts).unzip();
    ///                     out.emit_of(places, Ok(Item::gather(items, batches))).await;
    ///                     batches += 1;
    ///                 }
    ///                 if ended {
    ///                     return;
    ///                 }
    ///             }
    ///         })
    ///     }
    ///     fn hints(&self) -> Hints {
    ///         Hints::any_order().is_resumable(true).lineage(true).buffered(self.0)
    ///     }
    /// }
    ///
    /// let graph = Graph::range(0..100).map(|n| n).pipe(Groups(8));
    /// let loader = DataLoader::builder(graph).order(Order::Arrival).resumable().build()?;
    /// let mut epoch = loader.epoch(0).blocking();
    /// let mut all = epoch.by_ref().take(5).collect::<datapipes::Result<Vec<_>>>()?;
    /// all.extend(loader.resume(&epoch.checkpoint()?)?.blocking().collect::<datapipes::Result<Vec<_>>>()?);
    /// let mut all = all.concat();
    /// all.sort();
    /// assert_eq!(all, Vec::from_iter(0..100));
    /// # #[cfg(feature = "testing")]
    /// datapipes::testing::check_pipe(&Groups(3), (0..11).collect());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub lineage: bool,
    /// True if the items of a source exist only once, so that nothing can be read again. Defaults
    /// to false.
    pub once: bool,
    /// Reason why another process may find other data than this one, as where a branch has moved.
    /// `build()` refuses the node if an epoch has to be resumable. Set by
    /// [`revision`](Hints::revision).
    pub moving: Option<String>,
    /// Alternative that `build()` suggests if an epoch has to be
    /// [resumable](field@Hints::is_resumable) and the node is not, as in "it does not save its
    /// state; …".
    pub instead: Option<&'static str>,
    /// Effect of the node on the data set as a whole.
    pub role: Role,
    /// Mistakes that are visible before anything runs.
    pub problems: Vec<String>,
    /// Settings in words, for the printed plan and compared when a checkpoint is resumed (a node
    /// whose settings differ is refused): `1000`, `size 256, drop_last`.
    pub settings: String,
    /// Name of one setting that [`resume_edited`](crate::DataLoader::resume_edited) lets change,
    /// such as `weights`. It must be the last of the [settings](field@Hints::settings), after
    /// another: `…, weights 1:2`. What stands before `, weights ` is compared, the rest is not. The
    /// node's snapshot must contain the old value, by which it gives the first
    /// [`used_outputs`](crate::Context::used_outputs) items after a resume. For a node of one
    /// output.
    pub may_change: Option<&'static str>,
}

/// Makes a method for each of these fields, which sets it.
macro_rules! setters {
    ($($field:ident: $type:ty,)*) => {$(
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Hints::", stringify!($field), ").")]
        pub fn $field(self, $field: $type) -> Self {
            Hints { $field, ..self }
        }
    )*};
}

impl Hints {
    /// Returns the hints of a pipe that goes item by item and has no state: it is shardable, and
    /// needs no order.
    pub fn shardable() -> Self {
        Hints::any_order().is_shardable(true)
    }

    /// Returns the hints of a node whose output, as a multiset of samples, does not depend on the
    /// order of its input.
    pub fn any_order() -> Self {
        Hints::default().ignores_order(true)
    }

    setters! {
        is_shardable: bool,
        is_shardable_by_parent: bool,
        is_separate_process: bool,
        work: Work,
        seldom_waits: bool,
        arity: Arity,
        is_resumable: bool,
        ignores_order: bool,
        never_blocks: bool,
        buffered: usize,
        buffered_bytes: usize,
        weighs_by_type: bool,
        children: bool,
        many_readers: bool,
        rows: bool,
        by_position: bool,
        selects: bool,
        renames: bool,
        pairs: bool,
        looks_up: bool,
        lineage: bool,
        once: bool,
        role: Role,
    }

    /// Sets [`instead`](field@Hints::instead).
    pub fn instead(mut self, instead: &'static str) -> Self {
        self.instead = Some(instead);
        self
    }

    /// Sets [`settings`](field@Hints::settings), which are compared by their text.
    pub fn settings(mut self, settings: impl fmt::Display) -> Self {
        self.settings = settings.to_string();
        self
    }

    /// Tells which revision of its data the node reads. A fixed one is added to the
    /// [settings](field@Hints::settings), so that an epoch is not resumed on another; one that may
    /// [move](field@Hints::moving) is refused if an epoch has to be resumable.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{Hints, Revision};
    /// let hints = Hints::any_order().settings(2).revision(Revision::Fixed("commit 9a".into()));
    /// assert_eq!(hints.settings, "2, commit 9a");
    /// ```
    pub fn revision(mut self, revision: Revision) -> Self {
        match revision {
            Revision::Unknown => {}
            Revision::Fixed(text) if self.settings.is_empty() => self.settings = text,
            Revision::Fixed(text) => self.settings += &format!(", {text}"),
            Revision::Moving(why) => self.moving = Some(why),
        }
        self
    }

    /// Sets [`may_change`](field@Hints::may_change).
    pub fn may_change(mut self, setting: &'static str) -> Self {
        self.may_change = Some(setting);
        self
    }

    /// Adds a problem, if there is one.
    pub fn problem(mut self, problem: Option<&str>) -> Self {
        self.problems.extend(problem.map(str::to_owned));
        self
    }
}

/// State of the data that a node reads, among those that the data has over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Revision {
    /// Revisions are not known, as of a folder. An epoch is resumed on what is there.
    #[default]
    Unknown,
    /// Name of the revision that is read: the commit of a repository.
    Fixed(String),
    /// Reason why the revision is not known yet, as where a name leads to the newest, and what to
    /// do.
    Moving(String),
}

impl Revision {
    /// Returns the revision of two data sets that are read together.
    pub(crate) fn and(self, other: Revision) -> Revision {
        match (self, other) {
            (Revision::Unknown, one) | (one, Revision::Unknown) => one,
            // The files of one commit have one revision together.
            (Revision::Fixed(one), Revision::Fixed(other)) if one == other => Revision::Fixed(one),
            (Revision::Fixed(one), Revision::Fixed(other)) => {
                Revision::Fixed(format!("{one}, {other}"))
            }
            (moving @ Revision::Moving(_), _) | (_, moving) => moving,
        }
    }
}

/// The kind of work a pipe does: waiting or computing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Work {
    /// The pipe computes: as many run at once as there are workers.
    #[default]
    Cpu,
    /// The pipe waits for something: many may be in flight at once, on the async runtime.
    Io,
}

/// Number of output items of a pipe for each input item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arity {
    /// Exactly one.
    One,
    /// One or none.
    AtMostOne,
    /// Any number.
    #[default]
    Any,
}

/// Effect of a node on the data set as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Any other effect, which does not matter to the checker.
    #[default]
    Plain,
    /// Changes the order at random over all data that reaches the node.
    Shuffle,
    /// Changes the order at random, deliberately within a rank's part only.
    ShuffleWithinRank,
    /// Keeps this rank's part.
    Shard {
        /// True if the node can repeat items to make the parts equal.
        can_pad: bool,
        /// Division of the items among the ranks.
        dealing: Dealing,
    },
    /// Puts items that follow each other apart, other than by a shuffle: sorts them, draws some of
    /// them at random, or takes them from several inputs by turns. As after a shuffle, the files of
    /// a sample are then not neighbors.
    Scatter,
    /// Asks the executor to run everything upstream separately, this many items ahead.
    Prefetch(usize),
    /// Groups this many consecutive items, without leaving any out. If the number stands once in
    /// the [settings](field@Hints::settings), it may change with the number of ranks when a
    /// checkpoint is resumed, so that all ranks together group as many items as before.
    Batch(usize),
    /// Makes one batch of each group, by [`Collate`](crate::Collate).
    Collate,
}

/// Division of items among the ranks, by the node that [keeps a rank's part](Role::Shard).
///
/// It decides if a checkpoint can be [resumed on any number of ranks](crate::Checkpoint::merge).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dealing {
    /// Deals in turn: item `i` of the input goes to rank `i mod world`. Only at the end of the
    /// input, and around errors, may [`Uneven`](crate::Uneven) add to it or leave something out.
    InTurn,
    /// Each item of the input stands for a sequence, as a range of numbers does, and position `i`
    /// of it goes to rank `i mod world`. The node that reads the parts [goes by
    /// position](field@Hints::by_position), and gives one item for each position.
    PositionsInTurn,
    /// Another way, such as a range for each rank.
    Other,
}
