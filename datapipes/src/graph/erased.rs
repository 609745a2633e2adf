//! Nodes and edges without their types. Types are erased once per chunk, never per item.

use std::any::{Any, TypeId};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{self, Poll, ready};

use super::any_items::{AnyItems, typed};
use super::in_morsels::{MorselInputs, MorselInputsOf, Next, OneByOne, SharedGate};
use super::instrument::Claim;
use crate::budget::Hold;
use crate::checkpoint::SegmentLog;
use crate::items::{Chunks, Demand, InputCount};
use crate::pipe::{Inputs, Rerun, Split};
use crate::weigh::Weigher;
use crate::{Chunk, Context, Error, Item, Items, Join, Origin, Pipe, PipeSnapshot, Result, Source};

/// A `Chunk<T>` whose `T` only the edge knows, with its size.
pub(crate) struct AnyChunk {
    pub chunk: Box<dyn Any + Send>,
    /// Number of items and errors.
    pub len: usize,
    pub errors: usize,
    pub bytes: usize,
    /// Counts the bytes until the consumer comes back for more.
    pub hold: Option<Hold>,
}

/// A stream of chunks whose `T` only the edge knows.
pub(crate) trait ErasedChunks: Send {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<AnyChunk>>;
}

/// An item or an error of a chunk, borrowed.
pub(crate) enum Look<'a> {
    Item(Origin, &'a dyn Any),
    Error(&'a Error),
}

/// Operations of the executor on an edge whose item type it does not know.
pub(crate) trait Edge: Send + Sync {
    /// Erases the type.
    fn erase(&self, items: AnyItems) -> Box<dyn ErasedChunks>;
    /// Restores the type.
    fn restore(&self, chunks: Box<dyn ErasedChunks>) -> AnyItems;
    /// Makes a stream of one chunk.
    fn one(&self, chunk: AnyChunk) -> AnyItems;
    /// Removes the first items and errors of a chunk.
    fn without_first(&self, chunk: AnyChunk, first: usize) -> AnyChunk;
    /// Appends the items and errors of the next chunk.
    fn append(&self, chunk: &mut AnyChunk, next: AnyChunk);
    /// Weighs a `Chunk<T>`.
    fn weigh(&self, chunk: Box<dyn Any + Send>) -> AnyChunk;
    /// Picks the items at these places of a chunk, ascending, and weighs them; also the errors
    /// after which nothing more comes, wherever they are.
    fn pick(&self, chunk: AnyChunk, places: &[std::ops::Range<usize>]) -> AnyChunk;
    /// Counts the items taken of a stream, and the items its producer gives.
    fn counted(
        &self,
        items: AnyItems,
        taken: Option<Arc<AtomicU64>>,
        produced: Option<Arc<AtomicU64>>,
    ) -> AnyItems;
    /// Makes a stream from which one piece after the other is taken.
    fn morsel_inputs(
        &self,
        items: AnyItems,
        gate: SharedGate,
        log: Arc<SegmentLog>,
    ) -> Box<dyn MorselInputs>;
    /// Concatenates streams.
    fn one_by_one(&self, next: Next) -> AnyItems;
    /// Counts the items that come as the input of a pipe.
    fn counted_as(&self, items: AnyItems, inputs: Arc<InputCount>) -> AnyItems;
    /// Instruments a node's output: counts items, names errors, catches panics, and checks what a
    /// pipe claims.
    fn instrument(&self, items: AnyItems, context: Context, claim: Option<Claim>) -> AnyItems;
    /// Makes a stream of one error.
    fn fail(&self, error: Error) -> AnyItems;
    /// Makes a chunk of one error.
    fn fail_chunk(&self, error: Error) -> AnyChunk;
    /// Returns the weight of an item if it is the size of its type.
    fn exact(&self) -> Option<usize>;
    /// Returns true if nobody set the weight of items, and their type does not tell.
    fn is_unknown(&self) -> bool;
    /// Returns where the edge records that the weight is unknown.
    fn unknown(&self) -> Unknown;
    /// Returns the function that weighs values: a `Weigher<T>`.
    fn weigher(&self) -> Box<dyn Any>;
    /// Replaces the origin of each item of a chunk.
    fn renamed(&self, chunk: AnyChunk, origin: &Origin) -> AnyChunk;
    /// Looks at the items and errors of a chunk, in order.
    fn look<'a>(&self, chunk: &'a AnyChunk) -> Vec<Look<'a>>;
    /// Returns the type of the items.
    fn item_type(&self) -> TypeId;
}

/// Returns the function that weighs the values of an edge, if they are of type `T`.
pub(super) fn weigher<T: 'static>(edge: &dyn Edge) -> Option<Weigher<T>> {
    edge.weigher().downcast().ok().map(|weigh| *weigh)
}

pub(crate) struct EdgeOf<T> {
    weigh: Weigher<T>,
    /// True if the weight was set explicitly; otherwise a value without a destructor weighs its
    /// size.
    explicit: bool,
    /// True if the weight is unknown.
    unknown: Unknown,
}

/// True if the weight of items is unknown; known before they come, or found when one comes whose
/// pipe and type do not tell.
pub(super) type Unknown = Arc<AtomicBool>;

impl<T: Send + 'static> EdgeOf<T> {
    /// Makes an edge that weighs many values with one call, which may find that the weights
    /// are unknown.
    pub(super) fn edge_by_slice(
        weigh: impl Fn(&[T]) -> usize + Send + Sync + 'static,
        unknown: Unknown,
    ) -> Arc<dyn Edge> {
        Arc::new(EdgeOf {
            weigh: Arc::new(weigh),
            explicit: false,
            unknown,
        })
    }

    /// Makes an edge with an explicitly set weight.
    pub(crate) fn edge_with_weight(
        weigh: impl Fn(&T) -> usize + Send + Sync + 'static,
    ) -> Arc<dyn Edge> {
        let weigh = Arc::new(move |values: &[T]| values.iter().map(&weigh).sum());
        Arc::new(EdgeOf {
            weigh,
            explicit: true,
            unknown: Unknown::default(),
        })
    }
}

impl<T: Send + 'static> EdgeOf<T> {
    fn wrap(&self, chunk: Chunk<T>) -> AnyChunk {
        let bytes = (self.weigh)(chunk.values());
        AnyChunk {
            len: chunk.len(),
            errors: chunk.errors(),
            bytes,
            chunk: Box::new(chunk),
            hold: None,
        }
    }
}

impl<T: Send + 'static> Edge for EdgeOf<T> {
    fn erase(&self, items: AnyItems) -> Box<dyn ErasedChunks> {
        Box::new(Erased {
            items: typed::<T>(items),
            edge: EdgeOf {
                weigh: self.weigh.clone(),
                unknown: self.unknown.clone(),
                ..*self
            },
        })
    }

    fn restore(&self, chunks: Box<dyn ErasedChunks>) -> AnyItems {
        Box::new(Items::from_chunks(Restored::<T> {
            chunks,
            hold: None,
            of: PhantomData,
        }))
    }

    fn one(&self, chunk: AnyChunk) -> AnyItems {
        Box::new(Items::from_chunk(unwrap::<T>(chunk)))
    }

    fn without_first(&self, chunk: AnyChunk, first: usize) -> AnyChunk {
        let mut chunk = unwrap::<T>(chunk);
        drop(chunk.split_to(first));
        self.wrap(chunk)
    }

    fn append(&self, chunk: &mut AnyChunk, mut next: AnyChunk) {
        match (&mut chunk.hold, next.hold.take()) {
            (Some(hold), Some(next)) => hold.join(next),
            (hold, next) => *hold = hold.take().or(next),
        }
        (chunk.len, chunk.errors, chunk.bytes) = (
            chunk.len + next.len,
            chunk.errors + next.errors,
            chunk.bytes + next.bytes,
        );
        let all = chunk
            .chunk
            .downcast_mut::<Chunk<T>>()
            .expect("edges are wired by type");
        all.extend(unwrap::<T>(next));
    }

    fn weigh(&self, chunk: Box<dyn Any + Send>) -> AnyChunk {
        self.wrap(
            *chunk
                .downcast::<Chunk<T>>()
                .expect("edges are wired by type"),
        )
    }

    fn pick(&self, chunk: AnyChunk, places: &[std::ops::Range<usize>]) -> AnyChunk {
        let (mut rest, mut at) = (unwrap::<T>(chunk), 0);
        let mut picked = Chunk::default();
        // An error that no policy skips ends the epoch wherever it stands, and its place is not
        // that of an item.
        let is_end =
            |item: &Result<Item<T>>| item.as_ref().is_err_and(|error| !error.is_about_an_item());
        for place in places {
            picked.extend(rest.split_to(place.start - at).into_iter().filter(is_end));
            picked.extend(rest.split_to(place.len()));
            at = place.end;
        }
        picked.extend(rest.into_iter().filter(is_end));
        self.wrap(picked)
    }

    fn counted(
        &self,
        items: AnyItems,
        taken: Option<Arc<AtomicU64>>,
        produced: Option<Arc<AtomicU64>>,
    ) -> AnyItems {
        Box::new(typed::<T>(items).counted(taken, produced))
    }

    fn morsel_inputs(
        &self,
        items: AnyItems,
        gate: SharedGate,
        log: Arc<SegmentLog>,
    ) -> Box<dyn MorselInputs> {
        Box::new(MorselInputsOf::<T>::new(items, gate, log))
    }

    fn one_by_one(&self, next: Next) -> AnyItems {
        Box::new(Items::from_chunks(OneByOne::<T>::new(next)))
    }

    fn counted_as(&self, items: AnyItems, inputs: Arc<InputCount>) -> AnyItems {
        Box::new(typed::<T>(items).counted_as(inputs))
    }

    fn instrument(&self, items: AnyItems, context: Context, claim: Option<Claim>) -> AnyItems {
        Box::new(Items::from_chunks(super::instrument::Instrumented::new(
            typed::<T>(items),
            context,
            self.weigh.clone(),
            self.exact(),
            claim,
        )))
    }

    fn fail(&self, error: Error) -> AnyItems {
        Box::new(Items::<T>::fail(error))
    }

    fn fail_chunk(&self, error: Error) -> AnyChunk {
        self.wrap(Chunk::fail(error))
    }

    fn exact(&self) -> Option<usize> {
        (!self.explicit && !std::mem::needs_drop::<T>()).then(size_of::<T>)
    }

    fn is_unknown(&self) -> bool {
        self.unknown.load(Ordering::Relaxed)
    }
    fn unknown(&self) -> Unknown {
        self.unknown.clone()
    }

    fn weigher(&self) -> Box<dyn Any> {
        Box::new(self.weigh.clone())
    }

    fn renamed(&self, chunk: AnyChunk, origin: &Origin) -> AnyChunk {
        let items = unwrap::<T>(chunk).into_iter();
        let renamed = |item: Item<T>| Item::new(item.into_inner(), origin.clone());
        self.wrap(items.map(|item| item.map(renamed)).collect())
    }

    fn look<'a>(&self, chunk: &'a AnyChunk) -> Vec<Look<'a>> {
        let chunk = chunk
            .chunk
            .downcast_ref::<Chunk<T>>()
            .expect("edges are wired by type");
        let look = chunk.iter().map(|item| match item {
            Ok((origin, value)) => Look::Item(origin, value as &dyn Any),
            Err(error) => Look::Error(error),
        });
        look.collect()
    }

    fn item_type(&self) -> TypeId {
        TypeId::of::<T>()
    }
}

fn unwrap<T: Send + 'static>(chunk: AnyChunk) -> Chunk<T> {
    *chunk
        .chunk
        .downcast::<Chunk<T>>()
        .expect("edges are wired by type")
}

struct Erased<T> {
    items: Items<T>,
    edge: EdgeOf<T>,
}

impl<T: Send + 'static> ErasedChunks for Erased<T> {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<AnyChunk>> {
        Poll::Ready(ready!(self.items.poll_chunk(cx, demand)).map(|chunk| self.edge.wrap(chunk)))
    }
}

struct Restored<T> {
    chunks: Box<dyn ErasedChunks>,
    /// Bytes of the last chunk: a consumer that comes back for more has used the chunk, or holds it
    /// by itself.
    hold: Option<Hold>,
    of: PhantomData<fn() -> T>,
}

impl<T: Send + 'static> Chunks<T> for Restored<T> {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>> {
        self.hold = None;
        let Some(mut chunk) = ready!(self.chunks.poll_chunk(cx, demand)) else {
            return Poll::Ready(None);
        };
        self.hold = chunk.hold.take();
        Poll::Ready(Some(unwrap::<T>(chunk)))
    }
}

pub(crate) trait AnySource: Send + Sync {
    fn open(&self, cx: &Context) -> AnyItems;
    fn len_hint(&self) -> Option<u64>;
}

pub(super) struct SourceOp<S>(pub(super) Arc<S>);

impl<S: Source> AnySource for SourceOp<S> {
    fn open(&self, cx: &Context) -> AnyItems {
        Box::new(self.0.open(cx))
    }

    fn len_hint(&self) -> Option<u64> {
        self.0.len_hint()
    }
}

pub(crate) trait AnyPipe: Send + Sync {
    fn apply(&self, input: AnyItems, cx: &Context) -> AnyItems;
    fn len_hint(&self, input: u64) -> Option<u64>;
    /// Returns the weight of what the items of a chunk become, if all of them tell.
    fn expected_weight(&self, input: &AnyChunk) -> Option<usize>;
    fn held(&self, cx: &Context) -> Option<Vec<u64>>;
    fn snapshot_at(&self, outputs: u64, cx: &Context) -> Result<Option<PipeSnapshot>>;
}

pub(super) struct PipeOp<In, P>(Arc<P>, PhantomData<fn(In)>);

impl<In, P> PipeOp<In, P> {
    pub(super) fn new(pipe: Arc<P>) -> Self {
        PipeOp(pipe, PhantomData)
    }
}

impl<In: Send + 'static, P: Pipe<In>> AnyPipe for PipeOp<In, P> {
    fn apply(&self, input: AnyItems, cx: &Context) -> AnyItems {
        Box::new(self.0.apply(typed::<In>(input), cx))
    }

    fn len_hint(&self, input: u64) -> Option<u64> {
        self.0.len_hint(input)
    }

    fn expected_weight(&self, input: &AnyChunk) -> Option<usize> {
        let chunk = input.chunk.downcast_ref::<Chunk<In>>()?;
        let weights = chunk
            .values()
            .iter()
            .map(|item| self.0.expected_weight(item));
        weights.sum()
    }

    fn held(&self, cx: &Context) -> Option<Vec<u64>> {
        self.0.held(cx)
    }

    fn snapshot_at(&self, outputs: u64, cx: &Context) -> Result<Option<PipeSnapshot>> {
        self.0.snapshot_at(outputs, cx)
    }
}

pub(crate) trait AnyJoin: Send + Sync {
    fn join(&self, inputs: Vec<AnyItems>, cx: &Context) -> AnyItems;
    fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64>;
}

pub(super) struct JoinOp<In, J>(Arc<J>, PhantomData<fn(In)>);

impl<In, J> JoinOp<In, J> {
    pub(super) fn new(join: Arc<J>) -> Self {
        JoinOp(join, PhantomData)
    }
}

impl<In: Inputs, J: Join<In>> AnyJoin for JoinOp<In, J> {
    fn join(&self, inputs: Vec<AnyItems>, cx: &Context) -> AnyItems {
        Box::new(self.0.join(In::restore(inputs), cx))
    }

    fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64> {
        self.0.len_hint(inputs)
    }
}

pub(crate) trait AnySplit: Send + Sync {
    fn split(&self, input: AnyItems, cx: &Context) -> Vec<AnyItems>;
    fn outputs(&self) -> usize;
    fn len_hint(&self, input: u64) -> Option<u64>;
}

pub(super) struct SplitOp<In, S>(S, PhantomData<fn(In)>);

impl<In, S> SplitOp<In, S> {
    pub(super) fn new(split: S) -> Self {
        SplitOp(split, PhantomData)
    }
}

impl<In: Send + 'static, S: Split<In>> AnySplit for SplitOp<In, S> {
    fn split(&self, input: AnyItems, cx: &Context) -> Vec<AnyItems> {
        self.0
            .split(typed::<In>(input), cx)
            .into_iter()
            .map(|items| Box::new(items) as AnyItems)
            .collect()
    }

    fn outputs(&self) -> usize {
        self.0.outputs()
    }

    fn len_hint(&self, input: u64) -> Option<u64> {
        self.0.len_hint(input)
    }
}

pub(crate) trait AnyRerun: Send + Sync {
    fn rerun(&self, upstream: Box<dyn FnMut(u64) -> AnyItems + Send>, cx: &Context) -> AnyItems;
    fn len_hint(&self, input: u64) -> Option<u64>;
}

pub(super) struct RerunOp<In, R>(R, PhantomData<fn(In)>);

impl<In, R> RerunOp<In, R> {
    pub(super) fn new(rerun: R) -> Self {
        RerunOp(rerun, PhantomData)
    }
}

impl<In: Send + 'static, R: Rerun<In>> AnyRerun for RerunOp<In, R> {
    fn rerun(
        &self,
        mut upstream: Box<dyn FnMut(u64) -> AnyItems + Send>,
        cx: &Context,
    ) -> AnyItems {
        Box::new(
            self.0
                .rerun(Box::new(move |round| typed::<In>(upstream(round))), cx),
        )
    }

    fn len_hint(&self, input: u64) -> Option<u64> {
        self.0.len_hint(input)
    }
}
