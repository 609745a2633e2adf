//! The traits that a node of the graph implements.

pub(crate) mod crossing;

use std::fmt;
use std::sync::Arc;

use futures::Stream;

pub use self::crossing::Crossing;
use crate::{Context, Item, Items, Result};

/// Turns one stream of items into another.
///
/// A pipe is inert: [`apply`](Pipe::apply) does no work until the stream it returns is polled, and
/// dropping that stream releases everything it holds. A pipe may be applied any number of times,
/// also at the same time; what one application learns must not be seen by another.
///
/// It knows nothing of threads, processes or queues. What it says of itself by the other methods
/// (its *hints*) decides where the executor may run it:
///
/// - **shardable**: it distributes over concatenation, `apply(a ++ b) == apply(a) ++ apply(b)`.
///   Then the executor may cut its input into pieces of any size, apply it to each on any worker,
///   and put the results back in order.
/// - **work**: I/O, where hundreds may be in flight, or CPU, where as many run as there are
///   workers.
/// - **arity**: how many items come out for one that goes in.
///
/// A function from stream to stream is a pipe too: see [`Graph::through`](crate::Graph::through).
///
/// # Examples
/// ```
/// use datapipes::{Arity, Context, Error, ErrorKind, Facts, Graph, Items, Pipe};
///
/// /// Multiplies; what is not a number is an error.
/// #[derive(Clone, Debug)]
/// struct Scale(f32);
///
/// impl Pipe<f32> for Scale {
///     type Out = f32;
///     fn apply(&self, input: Items<f32>, cx: &Context) -> Items<f32> {
///         let by = self.0;
///         input.each(cx, move |item| {
///             Some(match item.is_nan() {
///                 true => Err(Error::new(ErrorKind::Corrupt, "not a number").of(item.origin())),
///                 false => Ok(item.map(|value| value * by)),
///             })
///         })
///     }
///     fn is_shardable(&self) -> bool {
///         true // one item at a time, and no state: the executor may spread it over workers
///     }
///     fn arity(&self) -> Arity {
///         Arity::One
///     }
///     fn facts(&self) -> Facts {
///         let problem = (self.0 == 0.0).then_some("a factor of zero");
///         Facts::any_order().with_settings(self.0).with_problem(problem)
///     }
/// }
///
/// let graph = Graph::from_vec(vec![1.0, f32::NAN]).pipe(Scale(2.0));
/// assert_eq!(graph.collect().unwrap_err().to_string(), "scale: 0:1: corrupt: not a number");
/// assert!(Graph::from_vec(vec![1.0]).pipe(Scale(0.0)).collect().is_err());
/// # #[cfg(feature = "testing")]
/// datapipes::testing::check_pipe(&Scale(2.0), (0..12).map(|n| n as f32).collect());
/// ```
/// In a test, `datapipes::testing::check_pipe` checks that it keeps the contract (feature
/// `testing`).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a pipe over `{In}`",
    note = "a pipe implements `Pipe<{In}>`, or is any `Fn(Items<{In}>) -> impl Stream<Item = Result<Item<Out>>>`"
)]
pub trait Pipe<In>: Send + Sync + 'static {
    /// Type of the output values.
    type Out: Send + 'static;

    /// Returns the output stream for `input`. Errors in the input are passed on, in their place.
    fn apply(&self, input: Items<In>, cx: &Context) -> Items<Self::Out>;

    /// Returns the node's name if the user gives none. Defaults to the type's name in snake case.
    fn name(&self) -> String {
        default_name::<Self>()
    }

    /// Returns true if the pipe distributes over concatenation. Defaults to false.
    fn is_shardable(&self) -> bool {
        false
    }

    /// Returns true if the pipe distributes over parents, though not over children: it groups the
    /// children of one parent (members of an archive into samples) and starts afresh with each
    /// parent. The pipe may then stand in a segment downstream of the fan-out that made the
    /// children. Defaults to false.
    fn is_shardable_by_parent(&self) -> bool {
        false
    }

    /// Returns true if the pipe should run in processes of its own, because it may crash, leak or
    /// is not thread-safe. The pipe must then be shardable, or `build()` fails, and
    /// [`crossing`](Pipe::crossing) tells how the pipe and its items are sent. Consecutive pipes of
    /// this kind share processes. The number of processes and their permissions are set by the
    /// loader: [`Builder::processes`](crate::loader::Builder::processes).
    fn is_separate_process(&self) -> bool {
        false
    }

    /// Returns the encoding of the pipe and its items for a pipe that [runs in a process of its
    /// own](Pipe::is_separate_process): [`Crossing::of`](crate::Crossing::of), which requires that
    /// the pipe, its input and its output are [`Wire`](crate::Wire).
    ///
    /// ```
    /// use datapipes::{Arity, Context, Crossing, Items, Pipe, Reader, Wire, Writer};
    ///
    /// struct Native { level: u32 }
    ///
    /// impl Pipe<Vec<u8>> for Native {
    ///     type Out = Vec<u8>;
    ///     fn apply(&self, input: Items<Vec<u8>>, cx: &Context) -> Items<Vec<u8>> {
    ///         let level = self.level as usize; // calls a library that crashes now and then
    ///         input.each(cx, move |item| Some(Ok(item.map(|bytes| bytes.repeat(level)))))
    ///     }
    ///     fn is_shardable(&self) -> bool { true }
    ///     fn arity(&self) -> Arity { Arity::One }
    ///     fn is_separate_process(&self) -> bool { true }
    ///     fn crossing(&self) -> Option<Crossing<Vec<u8>, Vec<u8>>> { Some(Crossing::of(self)) }
    /// }
    ///
    /// # #[cfg(feature = "testing")]
    /// datapipes::testing::check_pipe(&Native { level: 2 }, (0..9).map(|n| vec![n]).collect());
    ///
    /// impl Wire for Native { // or `#[derive(Wire)]`
    ///     fn encode<'a>(&'a self, to: &mut Writer<'a>) -> datapipes::Result<()> { self.level.encode(to) }
    ///     fn decode(from: &mut Reader<'_>) -> datapipes::Result<Self> { Ok(Native { level: u32::decode(from)? }) }
    /// }
    /// ```
    fn crossing(&self) -> Option<Crossing<In, Self::Out>> {
        None
    }

    /// Returns whether the pipe waits (I/O) or computes (CPU, the default).
    fn work(&self) -> Work {
        Work::Cpu
    }

    /// Returns the number of output items for each input item. Defaults to any number.
    fn arity(&self) -> Arity {
        Arity::Any
    }

    /// Returns the number of output items for `input` items if it is known; `u64::MAX` stands for
    /// an endless stream. The number is exact if no item fails. A shardable pipe is not asked about
    /// an endless input: its output is endless too.
    fn len_hint(&self, input: u64) -> Option<u64> {
        (self.arity() == Arity::One).then_some(input)
    }

    /// Returns the remaining facts for the checker and the planner.
    fn facts(&self) -> Facts {
        Facts::default()
    }

    /// Returns true if an epoch can be resumed in the middle of the pipe's output. Defaults to true
    /// for a shardable pipe, which has no state. A pipe that looks at the stream as a whole returns
    /// true if it takes a [snapshot](Context::snapshot) of its state and begins with the
    /// [restored](Context::restored) one, or if it goes [by position](Facts::by_position). Items
    /// that the pipe [holds](crate::Held) need not be in the snapshot: they come again by
    /// themselves. If the pipe returns false, [`build`](crate::loader::Builder::build) refuses a
    /// loader that is meant to be [resumed](crate::loader::Builder::resumable), and names the pipe.
    ///
    /// ```
    /// use datapipes::{Context, DataLoader, Facts, Graph, Items, Pipe, Wire};
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
    ///                 Ok(kept) => kept.flatten(),
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
    ///     fn is_resumable(&self) -> bool {
    ///         true
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
    fn is_resumable(&self) -> bool {
        self.is_shardable()
    }

    /// Returns the input positions that the pipe holds, ascending, according to its
    /// [restored](Context::restored) snapshot. Only for a pipe whose snapshot recorded no more than
    /// the [first position since which](crate::HeldPositions::hold_since) it holds items. Defaults
    /// to the positions recorded with the snapshot.
    fn held(&self, _cx: &Context) -> Option<Vec<u64>> {
        None
    }

    /// Returns about how many bytes an output item keeps alive; queues with a length in bytes count
    /// by it. `None` if the pipe cannot tell: an item of the same type as the input is then weighed
    /// as upstream, any other by its type (see [`Weigh`](crate::Weigh)).
    fn weigh(&self, _item: &Self::Out) -> Option<usize> {
        None
    }

    /// Returns true if [`weigh`](Pipe::weigh) may know more than the type of an item tells.
    #[doc(hidden)]
    fn tells_weight(&self) -> bool {
        true
    }
}

/// The kind of work a pipe does: waiting or computing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// The pipe computes: as many run at once as there are workers.
    Cpu,
    /// The pipe waits for something: many may be in flight at once, on the async runtime.
    Io,
}

/// Number of output items of a pipe for each input item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arity {
    /// Exactly one.
    One,
    /// One or none.
    AtMostOne,
    /// Any number.
    Any,
}

/// Facts about a node for the checker and the planner, besides its hints.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Facts {
    /// True if the order of the input decides which items come out (not only their grouping or
    /// sequence), as for `take` or `zip`. Everything upstream then runs in strict order. Defaults
    /// to true.
    pub needs_order: bool,
    /// Number of items the node may hold back: the size of a shuffle buffer or of a batch.
    pub buffered: usize,
    /// About how many bytes it holds besides items, of which the loader's
    /// [promise](crate::loader::Builder::memory) knows nothing: pieces of a file that it cuts, for
    /// instance. The printed plan says it. 0 unless said otherwise.
    pub buffered_bytes: usize,
    /// True if all outputs are children of the inputs (see [`Item::child`]), so that a node that
    /// groups siblings may stand in the same segment. Defaults to false.
    pub children: bool,
    /// True if the node may feed several nodes without a fork: it is cheap, gives the same output
    /// whenever it runs, and runs for each reader. Defaults to false.
    pub many_readers: bool,
    /// True if each output is, or begins as, one [`Context::row`] for each item. Defaults to false.
    pub rows: bool,
    /// True if the output at a position depends on nothing before that position: a source that can
    /// [open anywhere](Context::wanted), a one-in-one-out pipe that uses no more than the item and
    /// its number. Defaults to false, which is the right value for a [`Split`].
    pub by_position: bool,
    /// True if the output is a selection of the input (values and origins unchanged) in any order,
    /// so that the [replay](crate::DataLoader::replay) of one sample may skip the node. A node of
    /// several outputs with this fact decides by the item alone which outputs get it. Defaults to
    /// false.
    pub selects: bool,
    /// True if the node pairs the items of its inputs by position, so that all inputs have to give
    /// the same samples in the same sequence. If this cannot be established for the inputs, the
    /// printed plan says so. Defaults to false.
    pub pairs: bool,
    /// True if a join passes on its first input only, and looks things up in the others: each rank
    /// reads those whole. Defaults to false.
    pub looks_up: bool,
    /// True if the pipe tells for each output which inputs it is made of, where items come in any
    /// order. Upstream of a pipe that does not tell (and does not give one output for each input,
    /// by position), items stay in strict order in a loader that can be
    /// [resumed](crate::loader::Builder::resumable). Defaults to false.
    pub lineage: bool,
    /// True if the items exist only once, so that nothing can be read again. Defaults to false.
    pub once: bool,
    /// Alternative that `build()` suggests if an epoch has to be [resumable](Pipe::is_resumable)
    /// and the node is not.
    pub instead: Option<&'static str>,
    /// Effect of the node on the data set as a whole.
    pub role: Role,
    /// Mistakes that are visible before anything runs.
    pub problems: Vec<String>,
    /// Settings in words, for the printed plan and compared when a checkpoint is resumed: `1000`,
    /// `size 256, drop_last`.
    pub settings: String,
}

impl Default for Facts {
    fn default() -> Self {
        Facts {
            needs_order: true,
            buffered: 0,
            buffered_bytes: 0,
            children: false,
            many_readers: false,
            rows: false,
            by_position: false,
            selects: false,
            pairs: false,
            looks_up: false,
            lineage: false,
            once: false,
            instead: None,
            role: Role::Plain,
            problems: Vec::new(),
            settings: String::new(),
        }
    }
}

/// Effect of a node on the data set as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// No effect that matters to the checker.
    Plain,
    /// Changes the order at random over all data that reaches the node.
    Shuffle,
    /// Changes the order at random, deliberately within a rank's part only.
    ShuffleWithinRank,
    /// Keeps this rank's part.
    Shard {
        /// True if the node can repeat items to make the parts equal.
        can_pad: bool,
    },
    /// Asks the executor to run everything upstream separately, this many items ahead.
    Prefetch(usize),
    /// Groups this many consecutive items, without leaving any out.
    Batch(usize),
    /// Makes one batch of each group, by [`Collate`](crate::Collate).
    Collate,
}

impl Facts {
    /// Returns the facts of a pipe whose output, as a multiset of samples, does not depend on the
    /// order of its input.
    pub fn any_order() -> Self {
        Facts {
            needs_order: false,
            ..Facts::default()
        }
    }

    /// Sets the settings in words. They are printed in the plan, and compared when a checkpoint is
    /// resumed: a node whose settings differ is refused.
    pub fn with_settings(self, settings: impl fmt::Display) -> Self {
        Facts {
            settings: settings.to_string(),
            ..self
        }
    }

    /// Sets the number of items held back.
    pub fn with_buffered(self, buffered: usize) -> Self {
        Facts { buffered, ..self }
    }

    /// With [`buffered_bytes`](Facts::buffered_bytes).
    #[must_use]
    pub fn with_buffered_bytes(self, buffered_bytes: usize) -> Self {
        Facts {
            buffered_bytes,
            ..self
        }
    }

    /// Marks a pipe that makes children of its inputs, and nothing else.
    pub fn with_children(self) -> Self {
        Facts {
            children: true,
            ..self
        }
    }

    /// Marks a node that may feed several others, and runs for each of them.
    pub fn with_many_readers(self) -> Self {
        Facts {
            many_readers: true,
            ..self
        }
    }

    /// Marks a pipe that fills one [`Context::row`] for each item.
    pub fn with_rows(self) -> Self {
        Facts { rows: true, ..self }
    }

    /// Marks a node that goes by position: in a resumed epoch it gives the positions in
    /// [`Context::wanted`], and nothing else.
    pub fn with_positions(self) -> Self {
        Facts {
            by_position: true,
            ..self
        }
    }

    /// Marks a node that gives a selection of its inputs, unchanged, in any order.
    pub fn with_selection(self) -> Self {
        Facts {
            selects: true,
            ..self
        }
    }

    /// Marks a join that pairs the items of its inputs by position.
    pub fn with_pairs(self) -> Self {
        Facts {
            pairs: true,
            ..self
        }
    }

    /// Marks a join that looks things up in all inputs but the first.
    pub fn with_lookup(self) -> Self {
        Facts {
            looks_up: true,
            ..self
        }
    }

    /// Declares that the pipe reports the inputs of each of its outputs. In a loader that can be
    /// [resumed](crate::loader::Builder::resumable), nodes upstream of such a pipe can run in any
    /// order. The pipe reports the inputs by emitting all outputs with
    /// [`Emitter::emit_of`](crate::Emitter::emit_of), or by
    /// [`Context::lineage`](crate::Context::lineage). Useful only together with
    /// [`any_order`](Facts::any_order).
    ///
    /// ```
    /// use datapipes::{Context, DataLoader, Facts, Graph, Held, Item, Items, Order, Pipe};
    ///
    /// /// Batches of so many items.
    /// struct Groups(usize);
    ///
    /// impl Pipe<u64> for Groups {
    ///     type Out = Vec<u64>;
    ///     fn apply(&self, mut input: Items<u64>, cx: &Context) -> Items<Vec<u64>> {
    ///         let (size, cx) = (self.0, cx.clone());
    ///         let mut batches: u64 = match cx.restored() {
    ///             Ok(kept) => kept.unwrap_or(0),
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
    ///     fn is_resumable(&self) -> bool {
    ///         true
    ///     }
    ///     fn facts(&self) -> Facts {
    ///         Facts::any_order().with_lineage().with_buffered(self.0)
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
    pub fn with_lineage(self) -> Self {
        Facts {
            lineage: true,
            ..self
        }
    }

    /// Marks a source whose items exist only once.
    pub fn with_once(self) -> Self {
        Facts { once: true, ..self }
    }

    /// Sets the alternative for a node with which no epoch can be resumed, as in "it does not keep
    /// its state; …".
    pub fn with_instead(self, instead: &'static str) -> Self {
        Facts {
            instead: Some(instead),
            ..self
        }
    }

    /// Sets the role.
    pub fn with_role(self, role: Role) -> Self {
        Facts { role, ..self }
    }

    /// Adds a problem, if there is one.
    pub fn with_problem(mut self, problem: Option<&str>) -> Self {
        self.problems.extend(problem.map(str::to_owned));
        self
    }
}

/// Produces items without an input: a list of files, a range, a table.
///
/// Most sources need no type of their own: [`Graph::from_iter_with`](crate::Graph::from_iter_with)
/// and [`from_stream_with`](crate::Graph::from_stream_with) take a closure.
///
/// # Examples
/// ```
/// use datapipes::{Context, Error, Graph, Item, Items, Source};
///
/// struct Lines(Vec<String>);
///
/// impl Source for Lines {
///     type Out = f32;
///     fn open(&self, cx: &Context) -> Items<f32> {
///         let (cx, lines) = (cx.clone(), self.0.clone());
///         Items::from_results((0..).zip(lines).map(move |(index, line)| {
///             let origin = cx.origin(index);
///             let number = line.parse().map_err(|error: std::num::ParseFloatError| Error::user(error).of(&origin))?;
///             Ok(Item::new(number, origin))
///         }))
///     }
///     fn len_hint(&self) -> Option<u64> {
///         Some(self.0.len() as u64)
///     }
/// }
///
/// let lines = |lines: [&str; 2]| Graph::source(Lines(lines.map(String::from).to_vec()));
/// assert_eq!(lines(["1", "2.5"]).collect()?, [1.0, 2.5]);
/// assert_eq!(lines(["1", "x"]).collect().unwrap_err().to_string(), "lines: 0:1: invalid float literal");
/// # #[cfg(feature = "testing")]
/// datapipes::testing::check_source(&Lines(["1", "x", "3", "x", "x", "6"].map(String::from).to_vec()));
/// # Ok::<(), datapipes::Error>(())
/// ```
/// In a test, `datapipes::testing::check_source` checks that a source keeps the contract (feature
/// `testing`).
pub trait Source: Send + Sync + 'static {
    /// Type of the output values.
    type Out: Send + 'static;

    /// Starts from the beginning. Nothing happens before the stream is polled. Items get their
    /// origins from [`Context::origin`].
    fn open(&self, cx: &Context) -> Items<Self::Out>;

    /// Returns the node's name if the user gives none.
    fn name(&self) -> String {
        default_name::<Self>()
    }

    /// Returns the number of items if it is known without reading.
    fn len_hint(&self) -> Option<u64> {
        None
    }

    /// Returns true if the source takes [snapshots](Context::snapshot): where it finds a
    /// [restored](Context::restored) one, it begins after the items it had given by then. Defaults
    /// to false: the source is opened from the beginning and the items already delivered are left
    /// out downstream, or it goes [by position](Facts::by_position).
    fn takes_snapshots(&self) -> bool {
        false
    }

    /// Returns the remaining facts for the checker and the planner.
    fn facts(&self) -> Facts {
        Facts::any_order()
    }

    /// Returns about how many bytes an item keeps alive; `None` for the size of its type.
    fn weigh(&self, _item: &Self::Out) -> Option<usize> {
        None
    }
}

/// Makes one stream of several. `In` is a tuple of item types, or `Vec<T>` for any number of inputs
/// of one type. In a test, `datapipes::testing::check_join` checks that a join keeps the contract
/// (feature `testing`).
pub trait Join<In: Inputs>: Send + Sync + 'static {
    /// Type of the output values.
    type Out: Send + 'static;

    /// Returns the output stream for `inputs`.
    fn join(&self, inputs: In::Streams, cx: &Context) -> Items<Self::Out>;

    /// Returns true if the node takes [snapshots](Context::snapshot), so that an epoch can be
    /// resumed in the middle of its output; see [`Pipe::is_resumable`].
    fn is_resumable(&self) -> bool {
        false
    }

    /// Returns the number of output items for these numbers of input items, if it is known. `None`
    /// stands for an input of unknown length, `u64::MAX` for an endless one. The number has to be
    /// exact if no item fails: ranks that train in step rely on it.
    fn len_hint(&self, _inputs: &[Option<u64>]) -> Option<u64> {
        None
    }

    /// Returns the node's name if the user gives none.
    fn name(&self) -> String {
        default_name::<Self>()
    }

    /// Returns the remaining facts for the checker and the planner.
    fn facts(&self) -> Facts {
        Facts::default()
    }

    /// Returns about how many bytes an item keeps alive; `None` for the size of its type.
    fn weigh(&self, _item: &Self::Out) -> Option<usize> {
        None
    }
}

/// The item types that enter a [`Join`]: `(A, B)`, `(A, B, C)` or `Vec<T>`.
pub trait Inputs: 'static {
    /// Streams of these items.
    type Streams;
    /// Restores the streams from their erased form, in order.
    #[doc(hidden)]
    fn restore(inputs: Vec<Box<dyn std::any::Any + Send>>) -> Self::Streams;
}

fn restore<T: Send + 'static>(input: Option<Box<dyn std::any::Any + Send>>) -> Items<T> {
    *input
        .expect("a join has all its inputs")
        .downcast()
        .expect("a join is wired by type")
}

impl<A: Send + 'static, B: Send + 'static> Inputs for (A, B) {
    type Streams = (Items<A>, Items<B>);
    fn restore(inputs: Vec<Box<dyn std::any::Any + Send>>) -> Self::Streams {
        let mut inputs = inputs.into_iter();
        (restore(inputs.next()), restore(inputs.next()))
    }
}

impl<A: Send + 'static, B: Send + 'static, C: Send + 'static> Inputs for (A, B, C) {
    type Streams = (Items<A>, Items<B>, Items<C>);
    fn restore(inputs: Vec<Box<dyn std::any::Any + Send>>) -> Self::Streams {
        let mut inputs = inputs.into_iter();
        (
            restore(inputs.next()),
            restore(inputs.next()),
            restore(inputs.next()),
        )
    }
}

impl<T: Send + 'static> Inputs for Vec<T> {
    type Streams = Vec<Items<T>>;
    fn restore(inputs: Vec<Box<dyn std::any::Any + Send>>) -> Self::Streams {
        inputs
            .into_iter()
            .map(|input| restore(Some(input)))
            .collect()
    }
}

/// Makes several streams of one: [`fork`](crate::Graph::fork), [`demux`](crate::Graph::demux). The
/// outputs share one input: the output that is polled drives the input for all, and items for the
/// other outputs wait in bounded buffers. In a test, `datapipes::testing::check_split` checks that
/// a split keeps the contract (feature `testing`).
pub trait Split<In>: Send + Sync + 'static {
    /// Type of the values of each output.
    type Out: Send + 'static;

    /// Returns the number of outputs.
    fn outputs(&self) -> usize;

    /// Returns the output streams for `input`.
    fn split(&self, input: Items<In>, cx: &Context) -> Vec<Items<Self::Out>>;

    /// Returns the number of items of each output for `input` items, if it is known and the same
    /// for all outputs; `u64::MAX` stands for an endless stream. The number has to be exact if no
    /// item fails.
    fn len_hint(&self, _input: u64) -> Option<u64> {
        None
    }

    /// Returns true if the node takes [snapshots](Context::snapshot), so that an epoch can be
    /// resumed in the middle of its output; see [`Pipe::is_resumable`].
    fn is_resumable(&self) -> bool {
        false
    }

    /// Returns the node's name if the user gives none.
    fn name(&self) -> String {
        default_name::<Self>()
    }

    /// Returns the remaining facts for the checker and the planner.
    fn facts(&self) -> Facts {
        Facts::default()
    }
}

/// Runs everything upstream more than once: [`repeat`](crate::Graph::repeat).
pub trait Rerun<In>: Send + Sync + 'static {
    /// Type of the output values.
    type Out: Send + 'static;

    /// Returns the output stream. Each call of `upstream` with another round starts the upstream
    /// part of the graph from the beginning, with other random numbers and origins.
    fn rerun(&self, upstream: Upstream<In>, cx: &Context) -> Items<Self::Out>;

    /// Returns true if the node takes [snapshots](Context::snapshot), so that an epoch can be
    /// resumed in the middle of its output; see [`Pipe::is_resumable`].
    fn is_resumable(&self) -> bool {
        false
    }

    /// Returns the number of output items if one round has `input` items, if it is known;
    /// `u64::MAX` stands for an endless stream.
    fn len_hint(&self, _input: u64) -> Option<u64> {
        None
    }

    /// Returns the node's name if the user gives none.
    fn name(&self) -> String {
        default_name::<Self>()
    }

    /// Returns the remaining facts for the checker and the planner.
    fn facts(&self) -> Facts {
        Facts::default()
    }
}

/// Starts the part of the graph upstream of a [`Rerun`] from the beginning, for a round counted
/// from 0.
pub type Upstream<T> = Box<dyn FnMut(u64) -> Items<T> + Send>;

/// Returns the default name of a node: `crate::pipes::Batch<T>` → `batch`.
fn default_name<P: ?Sized>() -> String {
    let name = std::any::type_name::<P>();
    let name = name.split('<').next().unwrap_or(name);
    let name = name.rsplit("::").next().unwrap_or(name);
    let mut snake = String::new();
    for (i, c) in name.chars().enumerate() {
        if c.is_uppercase() && i > 0 {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
    }
    snake
}

/// Returns the name of a function, `crate::steps::dedup::<u64>` → `dedup`. Returns `None` for a
/// closure, whose type is named after the function that contains it, and for a pointer to a
/// function.
fn function_name(type_name: &str) -> Option<String> {
    const NO_FUNCTIONS: [&str; 8] = [
        "fn(", "for<", "unsafe ", "extern ", "&", "alloc::", "core::", "std::",
    ];
    if NO_FUNCTIONS
        .iter()
        .any(|other| type_name.starts_with(other))
    {
        return None;
    }
    let path = type_name.replace("->", "");
    let mut depth = 0;
    let is_border = |c: char| {
        depth += i32::from(c == '>') - i32::from(c == '<');
        depth == 0 && c == ':'
    };
    let last = path.rsplit(is_border).next()?;
    let name = last.split('<').next()?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    is_name.then(|| name.to_owned())
}

impl<In, Out, S, F> Pipe<In> for F
where
    In: Send + 'static,
    Out: Send + 'static,
    S: Stream<Item = Result<Item<Out>>> + Send + 'static,
    F: Fn(Items<In>) -> S + Send + Sync + 'static,
{
    type Out = Out;

    fn apply(&self, input: Items<In>, _: &Context) -> Items<Out> {
        Items::from_stream(self(input))
    }
    /// Returns the function's name; for a closure `through`, the method that adds it to a graph.
    fn name(&self) -> String {
        function_name(std::any::type_name::<F>()).unwrap_or_else(|| "through".to_owned())
    }
}

impl<In: 'static, Out: Send + 'static> Pipe<In> for Arc<dyn Pipe<In, Out = Out>> {
    type Out = Out;

    fn apply(&self, input: Items<In>, cx: &Context) -> Items<Out> {
        (**self).apply(input, cx)
    }
    fn name(&self) -> String {
        (**self).name()
    }
    fn is_shardable(&self) -> bool {
        (**self).is_shardable()
    }
    fn is_shardable_by_parent(&self) -> bool {
        (**self).is_shardable_by_parent()
    }
    fn crossing(&self) -> Option<Crossing<In, Self::Out>> {
        (**self).crossing()
    }
    fn is_separate_process(&self) -> bool {
        (**self).is_separate_process()
    }
    fn work(&self) -> Work {
        (**self).work()
    }
    fn arity(&self) -> Arity {
        (**self).arity()
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        (**self).len_hint(input)
    }
    fn facts(&self) -> Facts {
        (**self).facts()
    }
    fn weigh(&self, item: &Out) -> Option<usize> {
        (**self).weigh(item)
    }
    fn is_resumable(&self) -> bool {
        (**self).is_resumable()
    }
    fn held(&self, cx: &Context) -> Option<Vec<u64>> {
        (**self).held(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::function_name;
    use crate::{Graph, Items};

    fn dedup(items: Items<u64>) -> Items<u64> {
        items
    }

    fn generic<T: Send + 'static>(items: Items<T>) -> Items<T> {
        items
    }

    struct Steps<T>(T);

    impl<T: Send + 'static> Steps<Vec<T>> {
        fn unique(items: Items<T>) -> Items<T> {
            items
        }
    }

    fn named<U: Send + 'static>(graph: Graph<U>) -> String {
        format!("{graph:?}")
    }

    #[test]
    fn a_closure_is_not_called_after_the_function_that_it_stands_in() {
        fn main() -> String {
            let closure = |items: Items<u64>| items;
            named(
                Graph::range(0..3)
                    .through(closure)
                    .through(|items: Items<u64>| items.take(2)),
            )
        }
        use futures::StreamExt;
        assert_eq!(main(), "Graph(range → through → through)");
        let error = Graph::range(0..3)
            .through(|_: Items<u64>| Items::<u64>::generate(async |_| panic!("no")));
        assert_eq!(
            error.collect().unwrap_err().to_string(),
            "through: panicked: no"
        );
        // A function has a name of its own.
        assert_eq!(
            named(Graph::range(0..3).through(dedup)),
            "Graph(range → dedup)"
        );
        assert_eq!(
            named(Graph::range(0..3).through(generic::<u64>)),
            "Graph(range → generic)"
        );
        assert_eq!(
            named(Graph::range(0..3).through(Steps::<Vec<u64>>::unique)),
            "Graph(range → unique)"
        );
        let pointer: fn(Items<u64>) -> Items<u64> = dedup;
        assert_eq!(
            named(Graph::range(0..3).through(pointer)),
            "Graph(range → through)"
        );
        let boxed: Box<dyn Fn(Items<u64>) -> Items<u64> + Send + Sync> = Box::new(dedup);
        assert_eq!(
            named(Graph::range(0..3).through(boxed)),
            "Graph(range → through)"
        );
    }

    #[test]
    fn names_of_functions_are_read_from_their_types() {
        for (text, name) in [
            ("a::steps::dedup", Some("dedup")),
            ("a::dedup<alloc::vec::Vec<u64>>", Some("dedup")),
            ("<a::Steps as a::More>::unique", Some("unique")),
            ("a::Steps<alloc::vec::Vec<u64>>::unique<u8>", Some("unique")),
            ("a::main::{{closure}}::inner", Some("inner")),
            ("a::main::{{closure}}", None),
            ("a::main::{{closure}}<a::B>", None),
            ("fn(a::Items<u64>) -> a::Items<u64>", None),
            ("&a::dedup", None),
            (
                "alloc::boxed::Box<dyn core::ops::function::Fn(a::Items<u64>) -> a::Items<u64>>",
                None,
            ),
        ] {
            assert_eq!(function_name(text).as_deref(), name, "{text}");
        }
    }
}
