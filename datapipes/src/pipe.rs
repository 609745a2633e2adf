//! The traits that a node of the graph implements.

pub(crate) mod crossing;
mod hints;

use std::sync::Arc;

use futures::Stream;

pub use self::crossing::Crossing;
pub use self::hints::{Arity, Dealing, Hints, Revision, Role, Work};
use crate::{Context, Item, Items, PipeSnapshot, Result};

/// Turns one stream of items into another.
///
/// A pipe is inert: [`apply`](Pipe::apply) does no work until the stream it returns is polled, and
/// dropping that stream releases everything it holds. A pipe may be applied any number of times,
/// also at the same time; what one application learns must not be seen by another.
///
/// It knows nothing of threads, processes or queues. What it says of itself by [`hints`](Pipe::hints)
/// decides where the executor may run it, above all:
///
/// - [`is_shardable`](field@Hints::is_shardable): it distributes over concatenation,
///   `apply(a ++ b) == apply(a) ++ apply(b)`. Then the executor may cut its input into pieces of any
///   size, apply it to each on any worker, and put the results back in order. A pipe that keeps
///   something from one item to the next must not say so: it would begin afresh in each piece, at other
///   items in each run, and no run notices that.
/// - [`work`](field@Hints::work): I/O, where hundreds may be in flight, or CPU, where as many run as
///   there are workers.
/// - [`arity`](field@Hints::arity): how many items come out for one that goes in.
///
/// A function from stream to stream is a pipe too: see [`Graph::through`](crate::Graph::through).
///
/// # Examples
/// ```
/// use datapipes::{Arity, Context, Error, ErrorKind, Hints, Graph, Items, Pipe};
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
///                 true => Err(Error::corrupt("not a number").of(item.origin())),
///                 false => Ok(item.map(|value| value * by)),
///             })
///         })
///     }
///     fn hints(&self) -> Hints {
///         // One item at a time, and no state: the executor may spread it over workers.
///         let problem = (self.0 == 0.0).then_some("a factor of zero");
///         Hints::shardable().arity(Arity::One).settings(self.0).problem(problem)
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
/// `testing`): for a shardable pipe, that it gives the same however its input is cut.
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

    /// Returns what the checker and the planner have to know. Called when the pipe is added to a
    /// graph. Defaults to the hints of a pipe that looks at the stream as a whole, in its order.
    fn hints(&self) -> Hints {
        Hints::default()
    }

    /// Returns the encoding of the pipe and its items for a pipe that [runs in a process of its
    /// own](field@Hints::is_separate_process): [`Crossing::of`](crate::Crossing::of), which requires that
    /// the pipe, its input and its output are [`Wire`](crate::Wire).
    ///
    /// ```
    /// use datapipes::{Arity, Context, Crossing, Hints, Items, Pipe, Reader, Wire, Writer};
    ///
    /// struct Native { level: u32 }
    ///
    /// impl Pipe<Vec<u8>> for Native {
    ///     type Out = Vec<u8>;
    ///     fn apply(&self, input: Items<Vec<u8>>, cx: &Context) -> Items<Vec<u8>> {
    ///         let level = self.level as usize; // calls a library that crashes now and then
    ///         input.each(cx, move |item| Some(Ok(item.map(|bytes| bytes.repeat(level)))))
    ///     }
    ///     fn hints(&self) -> Hints {
    ///         Hints::shardable().arity(Arity::One).is_separate_process(true)
    ///     }
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

    /// Returns the number of output items for `input` items if it is known; `u64::MAX` stands for
    /// an endless stream. A shardable pipe is not asked about an endless input: its output is endless
    /// too.
    ///
    /// The number has to be exact if no item fails: ranks that train in step rely on it. A pipe that
    /// gives another number ends the epoch with an error of kind [`Config`](crate::ErrorKind::Config);
    /// return `None` for an estimate.
    fn len_hint(&self, input: u64) -> Option<u64> {
        (self.hints().arity == Arity::One).then_some(input)
    }

    /// Returns the input positions that the pipe holds, ascending, according to its
    /// [restored](Context::restored) snapshot. Only for a pipe whose snapshot recorded no more than
    /// the [first position since which](crate::HeldPositions::hold_since) it holds items. Defaults
    /// to the positions recorded with the snapshot.
    fn held(&self, _cx: &Context) -> Option<Vec<u64>> {
        None
    }

    /// Returns the snapshot that the pipe would take after this many outputs, if none of its input
    /// failed and the number tells it; `None`, the default, if it does not.
    ///
    /// A pipe that tells lets a checkpoint be [resumed on any number of
    /// ranks](crate::Checkpoint::merge). It is asked
    ///
    /// - if it deals items [in turn](crate::Dealing::InTurn): it has then taken `outputs` times
    ///   [the number of ranks](Context::rank) of the common input;
    /// - if it stands between that node and the consumer, and has the role [`Batch`](Role::Batch)
    ///   of `n`: it has then taken `outputs * n` items; or [one item comes out for
    ///   one](Arity::One): it has taken as many. A pipe that is shardable or goes by position has
    ///   no snapshot, and is not asked.
    ///
    /// The context has the rank and the policy for uneven ranks of the loader that resumes.
    ///
    /// # Errors
    /// Errors of encoding the state.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{Context, Hints, Held, Item, Items, Pipe, PipeSnapshot, Result, Role};
    ///
    /// /// Groups items into batches of this size.
    /// struct Groups(usize);
    ///
    /// impl Pipe<u64> for Groups {
    ///     type Out = Vec<u64>;
    ///     fn apply(&self, mut input: Items<u64>, cx: &Context) -> Items<Vec<u64>> {
    ///         let (size, cx) = (self.0, cx.clone());
    ///         Items::generate(async move |out| {
    ///             let mut batches: u64 = match cx.restored() {
    ///                 Ok(saved) => saved.unwrap_or(0),
    ///                 Err(error) => return out.emit(Err(error)).await,
    ///             };
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
    ///     fn snapshot_at(&self, outputs: u64, _: &Context) -> Result<Option<PipeSnapshot>> {
    ///         PipeSnapshot::new(&outputs).map(Some) // the same as above, and no item is held
    ///     }
    ///     fn hints(&self) -> Hints {
    ///         Hints::any_order().is_resumable(true).lineage(true).buffered(self.0)
    ///             .role(Role::Batch(self.0)).settings(self.0)
    ///     }
    /// }
    ///
    /// # #[cfg(feature = "testing")]
    /// datapipes::testing::check_pipe(&Groups(3), (0..11).collect());
    /// ```
    fn snapshot_at(&self, _outputs: u64, _cx: &Context) -> Result<Option<PipeSnapshot>> {
        Ok(None)
    }

    /// Returns about how many bytes an output item keeps alive; queues with a length in bytes count
    /// by it. `None` if the pipe cannot tell: an item of the same type as the input is then weighed
    /// as upstream, any other by its type (see [`Weigh`](crate::Weigh)).
    fn weigh(&self, _item: &Self::Out) -> Option<usize> {
        None
    }

    /// Returns about how many bytes the output of an input will keep alive, if the input tells: the size
    /// of a file in a listing. Of a distant server, as many are asked for before its first answer as
    /// their sizes allow. Defaults to `None`.
    fn expected_weight(&self, _input: &In) -> Option<usize> {
        None
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
    ///
    /// # Errors
    /// An error takes an item's place; one after which the source cannot go on is
    /// [fatal](crate::Error::fatal), so that no policy skips an unknown number of items.
    fn open(&self, cx: &Context) -> Items<Self::Out>;

    /// Returns the node's name if the user gives none.
    fn name(&self) -> String {
        default_name::<Self>()
    }

    /// Returns the number of items if it is known without reading; `u64::MAX` stands for an endless
    /// stream. The number has to be exact if no item fails, as that of [`Pipe::len_hint`].
    fn len_hint(&self) -> Option<u64> {
        None
    }

    /// Returns what the checker and the planner have to know; see [`Pipe::hints`].
    fn hints(&self) -> Hints {
        Hints::any_order()
    }

    /// Returns about how many bytes an item keeps alive; `None` for the size of its type.
    fn weigh(&self, _item: &Self::Out) -> Option<usize> {
        None
    }
}

/// Makes one stream of several. `In` is a tuple of item types, or `Vec<T>` for any number of inputs
/// of one type. In a test, `datapipes::testing::check_join` checks that a join keeps the contract
/// (feature `testing`).
///
/// # Examples
/// ```
/// use datapipes::{Context, Graph, Item, Items, Join};
///
/// /// Adds first to first; ends with the shorter input.
/// struct Add;
///
/// impl Join<(u64, u64)> for Add {
///     type Out = u64;
///     fn join(&self, (mut left, mut right): (Items<u64>, Items<u64>), _: &Context) -> Items<u64> {
///         Items::generate(async move |out| {
///             for index in 0.. {
///                 let Some(a) = out.next_from(&mut left).await else { return };
///                 let Some(b) = out.next_from(&mut right).await else { return };
///                 out.emit(Ok(Item::gather(vec![a, b], index).map(|two| two[0] + two[1]))).await;
///             }
///         })
///     }
/// }
///
/// let sums = Graph::join((Graph::range(0..3), Graph::from_vec(vec![10, 20, 30, 40])), Add);
/// assert_eq!(sums.collect()?, [10, 21, 32]);
/// # #[cfg(feature = "testing")]
/// datapipes::testing::check_join(&Add, (vec![1, 2, 3], vec![10, 20]));
/// # Ok::<(), datapipes::Error>(())
/// ```
pub trait Join<In: Inputs>: Send + Sync + 'static {
    /// Type of the output values.
    type Out: Send + 'static;

    /// Returns the output stream for `inputs`.
    fn join(&self, inputs: In::Streams, cx: &Context) -> Items<Self::Out>;

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

    /// Returns what the checker and the planner have to know; see [`Pipe::hints`].
    fn hints(&self) -> Hints {
        Hints::default()
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
///
/// # Examples
/// ```
/// use datapipes::{Context, Graph, Items, Split, pipes::Fork};
///
/// /// The numbers, and their squares.
/// struct WithSquares;
///
/// impl Split<u64> for WithSquares {
///     type Out = u64;
///     fn outputs(&self) -> usize { 2 }
///     fn split(&self, input: Items<u64>, cx: &Context) -> Vec<Items<u64>> {
///         let mut outputs = Fork::new(2).split(input, cx); // they share the input, by buffers
///         let squares = outputs.pop().expect("it has two").each(cx, |item| Some(Ok(item.map(|n| n * n))));
///         outputs.push(squares);
///         outputs
///     }
/// }
///
/// let mut outputs = Graph::range(0..3).split(WithSquares);
/// let (squares, numbers) = (outputs.remove(1), outputs.remove(0));
/// assert_eq!(numbers.zip(squares).collect()?, [(0, 0), (1, 1), (2, 4)]);
/// # #[cfg(feature = "testing")]
/// datapipes::testing::check_split(&WithSquares, (0..9).collect());
/// # Ok::<(), datapipes::Error>(())
/// ```
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

    /// Returns the node's name if the user gives none.
    fn name(&self) -> String {
        default_name::<Self>()
    }

    /// Returns what the checker and the planner have to know; see [`Pipe::hints`].
    fn hints(&self) -> Hints {
        Hints::default()
    }
}

/// Runs everything upstream more than once: [`repeat`](crate::Graph::repeat).
///
/// # Examples
/// ```
/// use datapipes::{Context, Graph, Items, Rerun, Upstream};
///
/// /// Everything twice, with the number of the round.
/// struct Twice;
///
/// impl Rerun<u64> for Twice {
///     type Out = (u64, u64);
///     fn rerun(&self, mut upstream: Upstream<u64>, _: &Context) -> Items<(u64, u64)> {
///         Items::generate(async move |out| {
///             for round in 0..2 {
///                 let mut input = upstream(round);
///                 while let Some(item) = out.next_from(&mut input).await {
///                     out.emit(Ok(item.map(|n| (round, n)))).await;
///                 }
///             }
///         })
///     }
/// }
///
/// assert_eq!(Graph::range(5..7).rerun(Twice).collect()?, [(0, 5), (0, 6), (1, 5), (1, 6)]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub trait Rerun<In>: Send + Sync + 'static {
    /// Type of the output values.
    type Out: Send + 'static;

    /// Returns the output stream. Each call of `upstream` with another round starts the upstream
    /// part of the graph from the beginning, with other random numbers and origins.
    fn rerun(&self, upstream: Upstream<In>, cx: &Context) -> Items<Self::Out>;

    /// Returns the number of output items if one round has `input` items, if it is known;
    /// `u64::MAX` stands for an endless stream.
    fn len_hint(&self, _input: u64) -> Option<u64> {
        None
    }

    /// Returns the node's name if the user gives none.
    fn name(&self) -> String {
        default_name::<Self>()
    }

    /// Returns what the checker and the planner have to know; see [`Pipe::hints`].
    fn hints(&self) -> Hints {
        Hints::default()
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
    fn hints(&self) -> Hints {
        Hints::default().weighs_by_type(true)
    }
    /// Returns the function's name; for a closure `through`, the method that adds it to a graph.
    fn name(&self) -> String {
        function_name(std::any::type_name::<F>()).unwrap_or_else(|| "through".to_owned())
    }
}

impl<In: 'static, Out: Send + 'static> Pipe<In> for Arc<dyn Pipe<In, Out = Out>> {
    type Out = Out;

    forward! { **self =>
        fn apply(&self, input: Items<In>, cx: &Context) -> Items<Out>;
        fn name(&self) -> String;
        fn crossing(&self) -> Option<Crossing<In, Self::Out>>;
        fn len_hint(&self, input: u64) -> Option<u64>;
        fn hints(&self) -> Hints;
        fn weigh(&self, item: &Out) -> Option<usize>;
        fn expected_weight(&self, input: &In) -> Option<usize>;
        fn held(&self, cx: &Context) -> Option<Vec<u64>>;
        fn snapshot_at(&self, outputs: u64, cx: &Context) -> Result<Option<PipeSnapshot>>;
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
