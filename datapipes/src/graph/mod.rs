//! A typed, inert, cloneable handle on a node and everything upstream.

mod any_items;
pub(crate) mod check;
mod erased;
mod flow;
mod in_morsels;
mod instrument;
mod lengths;
mod part;

use std::any::TypeId;
use std::marker::PhantomData;
use std::mem::needs_drop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, slice};

pub(crate) use self::any_items::{AnyItems, typed};
pub use self::check::BuildError;
pub(crate) use self::erased::{AnyChunk, AnyPipe, Edge, ErasedChunks, Look};
pub(crate) use self::flow::{Flow, FlowNode, Output};
pub(crate) use self::in_morsels::{Gate, SharedGate};
pub(crate) use self::instrument::{Claim, Len};
pub(crate) use self::lengths::{ENDLESS, lengths, lengths_of_some};
pub(crate) use self::part::{Part, Recipe, signature};

use crate::pipe::{Inputs, Rerun, Split};
use crate::weigh::{self, Weigher};
use crate::{Arity, Context, Hints, Items, Join, Pipe, Source};
use erased::{EdgeOf, JoinOp, PipeOp, RerunOp, SourceOp, SplitOp, Unknown};

/// A description of where items come from: a node and everything upstream, typed by its output.
///
/// A graph is inert and cheap to clone; nothing is read, spawned or allocated before a
/// [`DataLoader`](crate::DataLoader) runs it and an epoch is polled. It knows nothing of threads,
/// processes or queues. Each method adds a node downstream and returns the longer graph.
///
/// A handle may feed one node only; use [`fork`](Graph::fork) for two consumers of one stream.
/// Building the loader finds handles that are used twice.
#[must_use = "a graph does nothing until a `DataLoader` runs it"]
pub struct Graph<T> {
    node: Arc<Node>,
    /// Number of the node's output.
    port: usize,
    out: PhantomData<fn() -> T>,
}

clone_fields!(Graph<T> { node, port, out });

impl<T: Send + 'static> Graph<T> {
    /// Starts a graph with a source; see [`Source`] for an example.
    pub fn source(source: impl Source<Out = T>) -> Self {
        let source = Arc::new(source);
        let (name, hints) = (source.name(), source.hints());
        let edge = {
            let source = source.clone();
            edge_of::<T>(&hints, None, move |item| source.weigh(item))
        };
        let op = Op::Source(Arc::new(SourceOp(source)));
        Graph::new(name, hints, vec![], op, edge)
    }

    /// Adds a pipe: one of [`pipes`](crate::pipes), with its settings, or [your own](Pipe).
    ///
    /// ```
    /// use datapipes::{Graph, pipes::Batch};
    /// let batches = Graph::range(0..5).pipe(Batch::new(2).drop_last());
    /// assert_eq!(batches.collect().unwrap(), [[0, 1], [2, 3]]);
    /// ```
    pub fn pipe<P: Pipe<T>>(self, pipe: P) -> Graph<P::Out> {
        let pipe = Arc::new(pipe);
        let hints = pipe.hints();
        let edge = {
            let (pipe, above) = (pipe.clone(), above::<P::Out>(&*self.node.edge));
            edge_of::<P::Out>(&hints, above, move |item| pipe.weigh(item))
        };
        let (part, no_crossing) = match hints.is_separate_process.then(|| pipe.crossing()) {
            None => (None, None),
            Some(Some(crossing)) => match Part::of_pipe(crossing) {
                Ok(part) => (Some(Arc::new(part)), None),
                Err(error) => (
                    None,
                    Some(format!(
                        "wants a process of its own, but cannot be sent to a child process: {error}"
                    )),
                ),
            },
            Some(None) => {
                let problem = "wants a process of its own, but has no `Pipe::crossing` to be sent to a child process";
                (None, Some(problem.to_owned()))
            }
        };
        let name = pipe.name();
        let op = Op::Pipe(Arc::new(PipeOp::<T, P>::new(pipe)));
        let graph = Graph::new(name, hints, vec![self.input()], op, edge);
        match (part, no_crossing) {
            (None, None) => graph,
            (part, no_crossing) => graph.edit(|node| {
                node.part = part;
                node.no_crossing = no_crossing;
            }),
        }
    }

    /// Adds a pipe that is a function from stream to stream. The function sees the stream as a
    /// whole, and runs in one place.
    ///
    /// ```
    /// use datapipes::{Graph, Items};
    /// use futures::StreamExt;
    ///
    /// let words = Graph::from_vec(vec!["a", "b", "b", "c"]).through(|input: Items<&'static str>| {
    ///     let mut last = None;
    ///     input.filter(move |item| {
    ///         let fresh = item.as_ref().map_or(true, |item| last.replace(**item) != Some(**item));
    ///         std::future::ready(fresh)
    ///     })
    /// });
    /// assert_eq!(words.collect().unwrap(), ["a", "b", "c"]);
    /// ```
    pub fn through<U, S, F>(self, f: F) -> Graph<U>
    where
        U: Send + 'static,
        S: futures::Stream<Item = crate::Result<crate::Item<U>>> + Send + 'static,
        F: Fn(Items<T>) -> S + Send + Sync + 'static,
    {
        self.pipe(f)
    }

    /// Joins several graphs into one node: a tuple of graphs for a `Join<(A, B)>`, a vector for a
    /// `Join<Vec<T>>`.
    ///
    /// ```
    /// use datapipes::{Graph, pipes::Zip};
    /// let inputs = (Graph::range(0..2), Graph::from_vec(vec!['a', 'b']), Graph::range(8..10));
    /// assert_eq!(Graph::join(inputs, Zip::new()).collect().unwrap(), [(0, 'a', 8), (1, 'b', 9)]);
    /// ```
    pub fn join<In, J>(inputs: In, join: J) -> Graph<T>
    where
        In: GraphInputs,
        J: Join<In::Items, Out = T>,
    {
        let join = Arc::new(join);
        let (name, hints) = (join.name(), join.hints());
        let inputs = inputs.inputs();
        let edge = {
            let join = join.clone();
            let mut edges = inputs.iter().map(|input| &*input.node.edge);
            let above = edges
                .find(|edge| !edge.is_unknown() && edge.item_type() == TypeId::of::<T>())
                .and_then(above::<T>);
            edge_of::<T>(&hints, above, move |item| join.weigh(item))
        };
        let op = Op::Join(Arc::new(JoinOp::<In::Items, J>::new(join)));
        Graph::new(name, hints, inputs, op, edge)
    }

    /// Adds a node with several outputs, and returns a graph for each.
    ///
    /// ```
    /// use datapipes::{Graph, pipes::Fork};
    /// let copies = Graph::range(0..3).split(Fork::new(2)); // or, if the number is fixed, `fork()`
    /// assert_eq!(Graph::concat(copies).collect().unwrap(), [0, 1, 2, 0, 1, 2]);
    /// ```
    pub fn split<S: Split<T>>(self, split: S) -> Vec<Graph<S::Out>> {
        let outputs = split.outputs();
        let edge = self.edge_below::<S::Out>();
        let (name, hints) = (split.name(), split.hints());
        let op = Op::Split(Arc::new(SplitOp::<T, S>::new(split)));
        let first = Graph::<S::Out>::new(name, hints, vec![self.input()], op, edge);
        (0..outputs)
            .map(|port| Graph {
                node: first.node.clone(),
                port,
                out: PhantomData,
            })
            .collect()
    }

    /// Adds a node that runs everything upstream more than once.
    ///
    /// ```
    /// use datapipes::{Graph, pipes::Repeat};
    /// assert_eq!(Graph::range(0..2).rerun(Repeat::new(2)).collect().unwrap(), [0, 1, 0, 1]);
    /// ```
    pub fn rerun<R: Rerun<T>>(self, rerun: R) -> Graph<R::Out> {
        let edge = self.edge_below::<R::Out>();
        let (name, hints) = (rerun.name(), rerun.hints());
        let op = Op::Rerun(Arc::new(RerunOp::<T, R>::new(rerun)));
        Graph::new(name, hints, vec![self.input()], op, edge)
    }

    /// Names the last node. Errors, figures and the plan show the name, and the node's randomness
    /// is keyed by it.
    ///
    /// Names are unique in a graph. A node without a name is called after its kind: `shuffle`,
    /// `shuffle#2`, …
    ///
    /// ```
    /// # use datapipes::{DataLoader, Graph};
    /// let graph = Graph::range(0..9).map(|n| n / 3).named("thirds");
    /// assert!(DataLoader::builder(graph).build()?.explain().contains("thirds"));
    /// # Ok::<(), datapipes::BuildError>(())
    /// ```
    pub fn named(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.edit(|node| node.given_name = Some(name))
    }

    /// Sets how many morsels of the last node's segment are in flight at once, instead of the planner's
    /// choice, or of the number that a segment that waits for I/O finds by itself.
    ///
    /// ```
    /// # use datapipes::{DataLoader, Error, Graph};
    /// // At most four requests at a time, to a service that allows no more.
    /// let asked = Graph::range(0..9).map_async(|n| async move { Ok::<_, Error>(n) }).concurrency(4);
    /// assert!(DataLoader::builder(asked).build()?.explain().contains("up to 4 in flight"));
    /// # Ok::<(), datapipes::BuildError>(())
    /// ```
    pub fn concurrency(self, morsels: usize) -> Self {
        self.edit(|node| node.concurrency = Some(morsels))
    }

    /// Sets how many bytes an item that leaves the last node keeps alive, for queues with a length
    /// in bytes. For a type that implements [`Weigh`](crate::Weigh): `.weighed(Weigh::weigh)`.
    ///
    /// ```
    /// # use datapipes::Graph;
    /// struct Picture { pixels: Box<[u8]> }
    ///
    /// let pictures = Graph::range(0..4).map(|n| Picture { pixels: vec![n as u8; 1000].into() });
    /// let pictures = pictures.weighed(|picture| picture.pixels.len());
    /// # assert_eq!(pictures.collect()?.len(), 4);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn weighed(self, weigh: impl Fn(&T) -> usize + Send + Sync + 'static) -> Self {
        let edge = EdgeOf::<T>::edge_with_weight(weigh);
        self.edit(|node| node.edge = edge)
    }

    /// Returns a function that weighs values as the edge after the last node does: the bytes that
    /// all values of a slice keep alive. For the [`weighed`](Graph::weighed) of a step whose
    /// outputs contain its inputs.
    ///
    /// ```
    /// # use datapipes::Graph;
    /// let texts = Graph::range(0..4).map(|n| n.to_string());
    /// let weigh = texts.weigher();
    /// let pairs = texts.map(|text| [text.clone(), text]).weighed(move |pair| weigh(pair));
    /// # assert_eq!(pairs.collect()?.len(), 4);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn weigher(&self) -> impl Fn(&[T]) -> usize + Clone + Send + Sync + use<T> {
        let weigh = self.weigher_of::<T>().expect("an edge has one type");
        move |items: &[T]| weigh(items)
    }

    /// Returns the function that weighs items leaving the last node, if they are of type `U`.
    fn weigher_of<U: 'static>(&self) -> Option<Weigher<U>> {
        erased::weigher::<U>(&*self.node.edge)
    }

    /// Returns an edge that weighs as the upstream edge does, if that is of the same type.
    fn edge_below<U: Send + 'static>(&self) -> Arc<dyn Edge> {
        match self.weigher_of::<U>() {
            Some(_) => self.node.edge.clone(),
            None => edge_of::<U>(&Hints::default(), None, |_| None),
        }
    }

    fn edit(self, change: impl FnOnce(&mut Node)) -> Self {
        // The outputs of a split share their node, so a change to one of them gets a node of its
        // own.
        let this = if matches!(self.node.op, Op::Split(_)) {
            self.pipe(Pass)
        } else {
            self
        };
        let mut node = (*this.node).clone();
        change(&mut node);
        Graph {
            node: Arc::new(node),
            ..this
        }
    }

    fn new(name: String, hints: Hints, inputs: Vec<Input>, op: Op, edge: Arc<dyn Edge>) -> Self {
        let node = Node {
            kind: name,
            given_name: None,
            concurrency: None,
            part: None,
            no_crossing: None,
            hints,
            inputs,
            op,
            edge,
        };
        Graph {
            node: Arc::new(node),
            port: 0,
            out: PhantomData,
        }
    }

    fn input(self) -> Input {
        Input {
            node: self.node,
            port: self.port,
        }
    }

    pub(crate) fn root(&self) -> Input {
        self.clone().input()
    }
}

impl<T> fmt::Debug for Graph<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn chain(node: &Node, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match &node.inputs[..] {
                [] => {}
                [one] => {
                    chain(&one.node, f)?;
                    f.write_str(" → ")?;
                }
                many => {
                    f.write_str("(")?;
                    for (i, input) in many.iter().enumerate() {
                        f.write_str(if i == 0 { "" } else { ", " })?;
                        chain(&input.node, f)?;
                    }
                    f.write_str(") → ")?;
                }
            }
            f.write_str(node.given_name.as_deref().unwrap_or(&node.kind))
        }
        f.write_str("Graph(")?;
        chain(&self.node, f)?;
        f.write_str(")")
    }
}

/// Returns the weigher of an edge above, if its items are of type `T`.
fn above<T: 'static>(edge: &dyn Edge) -> Option<(Weigher<T>, Unknown)> {
    erased::weigher(edge).map(|weigh| (weigh, edge.unknown()))
}

/// Makes the edge of a node that weighs its items by `weigh`; those that it does not know, as the
/// edge `above` does, if that is of the same type, or by their type.
fn edge_of<T: Send + 'static>(
    hints: &Hints,
    above: Option<(Weigher<T>, Unknown)>,
    weigh: impl Fn(&T) -> Option<usize> + Send + Sync + 'static,
) -> Arc<dyn Edge> {
    let (known, unknown) = match above {
        Some((known, unknown)) => (Some(known), unknown),
        None => {
            let known = weigh::weigher::<T>();
            let unknown = hints.weighs_by_type && known.is_none() && needs_drop::<T>();
            (known, Arc::new(AtomicBool::new(unknown)))
        }
    };
    let found = unknown.clone();
    let by_type = move |items: &[T]| match &known {
        Some(known) => known(items),
        None => {
            if needs_drop::<T>() && !found.load(Ordering::Relaxed) {
                found.store(true, Ordering::Relaxed);
            }
            size_of_val(items)
        }
    };
    let all = move |items: &[T]| match items.first().map(&weigh) {
        Some(None) => by_type(items),
        _ => {
            let one = |item| weigh(item).unwrap_or_else(|| by_type(slice::from_ref(item)));
            items.iter().map(one).sum()
        }
    };
    EdgeOf::<T>::edge_by_slice(all, unknown)
}

/// Passes its input on unchanged.
struct Pass;

impl<T: Send + 'static> Pipe<T> for Pass {
    type Out = T;

    fn apply(&self, input: Items<T>, _: &Context) -> Items<T> {
        input
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .arity(Arity::One)
            .is_resumable(true)
            .by_position(true)
            .selects(true)
    }
}

/// The graphs that a [`Join`] takes: `(Graph<A>, Graph<B>)`, three of them, or `Vec<Graph<T>>`.
pub trait GraphInputs {
    /// Type of their outputs.
    type Items: Inputs;
    #[doc(hidden)]
    fn inputs(self) -> Vec<Input>;
}

impl<A: Send + 'static, B: Send + 'static> GraphInputs for (Graph<A>, Graph<B>) {
    type Items = (A, B);
    fn inputs(self) -> Vec<Input> {
        vec![self.0.input(), self.1.input()]
    }
}

impl<A: Send + 'static, B: Send + 'static, C: Send + 'static> GraphInputs
    for (Graph<A>, Graph<B>, Graph<C>)
{
    type Items = (A, B, C);
    fn inputs(self) -> Vec<Input> {
        vec![self.0.input(), self.1.input(), self.2.input()]
    }
}

impl<T: Send + 'static> GraphInputs for Vec<Graph<T>> {
    type Items = Vec<T>;
    fn inputs(self) -> Vec<Input> {
        self.into_iter().map(Graph::input).collect()
    }
}

/// The input of a node: an output of another node.
#[doc(hidden)]
#[derive(Clone)]
pub struct Input {
    pub(crate) node: Arc<Node>,
    pub(crate) port: usize,
}

formatted! { Debug |input: Input| "Input({}.{})", input.node.kind, input.port; }

/// One node, erased.
#[derive(Clone)]
pub(crate) struct Node {
    /// Name that the pipe gives itself.
    pub kind: String,
    pub given_name: Option<String>,
    pub concurrency: Option<usize>,
    /// Part in processes of its own that the node belongs to.
    pub part: Option<Arc<Part>>,
    /// Reason why a pipe that wants a process of its own cannot have one.
    pub no_crossing: Option<String>,
    pub hints: Hints,
    pub inputs: Vec<Input>,
    pub op: Op,
    /// Operations of the executor on the downstream edge, whose item type it does not know.
    pub edge: Arc<dyn Edge>,
}

impl Node {
    /// Returns the number of outputs.
    pub(crate) fn outputs(&self) -> usize {
        match &self.op {
            Op::Split(split) => split.outputs(),
            _ => 1,
        }
    }

    /// Returns true if an epoch can be resumed in the middle of the node's output.
    pub(crate) fn is_resumable(&self) -> bool {
        match &self.op {
            Op::Source(_) => !self.hints.once,
            Op::Pipe(_) => self.hints.is_resumable || self.hints.is_shardable,
            _ => self.hints.is_resumable,
        }
    }
}

/// The operation of a node, erased.
#[derive(Clone)]
pub(crate) enum Op {
    Source(Arc<dyn erased::AnySource>),
    Pipe(Arc<dyn erased::AnyPipe>),
    Join(Arc<dyn erased::AnyJoin>),
    Split(Arc<dyn erased::AnySplit>),
    Rerun(Arc<dyn erased::AnyRerun>),
}
