//! Instruments the output of every node: counts items, names errors, catches panics, ends a
//! cancelled epoch.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{self, Poll};
use std::time::Instant;

use crate::budget;
use crate::items::{Chunks, Demand, InputCount};
use crate::weigh::Weigher;
use crate::{Arity, Chunk, Context, Error, Hints, Items, Role};

/// Interval of timed polls if polls are quick; the time is scaled up.
const SAMPLE: u64 = 16;
/// Nanoseconds above which every poll is timed.
const SLOW_NS: u64 = 5_000;
/// Maximum number of items asked for at once, so that a dropped epoch ends soon.
const MAX_CHUNK: usize = 1024;

thread_local! {
    /// Nanoseconds of the timed nodes that ran inside the poll that this thread times; `None` if it
    /// times none.
    static INSIDE: Cell<Option<u64>> = const { Cell::new(None) };
}

pub(crate) struct Instrumented<T> {
    input: Items<T>,
    context: Context,
    polls: u64,
    last_ns: u64,
    dead: bool,
    weigh: Weigher<T>,
    /// Maximum number of items made together if all weigh the same.
    most: Option<usize>,
    /// True if the weight of items is learned from them.
    learns: bool,
    claim: Option<Claim>,
}

/// Number of outputs that a node says it gives, which the executor, checkpoints and ranks rely on.
pub(crate) struct Claim {
    arity: Arity,
    len: Len,
    inputs: Arc<InputCount>,
    given: u64,
}

/// Number of outputs that a node gives if no item fails, by its `len_hint`.
#[derive(Clone)]
pub(crate) enum Len {
    Unknown,
    /// Number in all.
    Whole(u64),
    /// Number for each input.
    OfEach(u64),
    /// Function from the number of inputs, which may not know it.
    OfAll(Arc<dyn Fn(u64) -> Option<u64> + Send + Sync>),
}

impl Len {
    /// Returns what a source says; a number may stand for an endless stream.
    pub(crate) fn of_source(hints: &Hints, len: Option<u64>) -> Len {
        let len = len.filter(|&len| len != u64::MAX && is_of_items(hints));
        len.map_or(Len::Unknown, Len::Whole)
    }

    /// Returns what a pipe says beyond its arity.
    pub(crate) fn of_pipe(
        hints: &Hints,
        len_hint: impl Fn(u64) -> Option<u64> + Send + Sync + 'static,
    ) -> Len {
        if hints.arity == Arity::One || !is_of_items(hints) {
            return Len::Unknown;
        }
        match len_hint(1) {
            None => Len::Unknown,
            // It distributes over concatenation.
            Some(each) if hints.is_shardable => Len::OfEach(each),
            Some(_) => Len::OfAll(Arc::new(len_hint)),
        }
    }

    /// Returns the number for this many inputs, which may be all.
    fn of(&self, inputs: u64, all: bool) -> Option<u64> {
        match self {
            Len::Unknown => None,
            Len::Whole(len) => Some(*len),
            Len::OfEach(each) => Some(inputs.saturating_mul(*each)),
            Len::OfAll(len_hint) if all => len_hint(inputs).filter(|&len| len != u64::MAX),
            Len::OfAll(_) => None,
        }
    }
}

/// Returns true if the length of a node is that of its output: not the number of samples in an order
/// of an index, nor the part of a rank, which the loader computes.
fn is_of_items(hints: &Hints) -> bool {
    !hints.many_readers && !matches!(hints.role, Role::Shard { .. })
}

impl Claim {
    /// Returns the claim of a node, if it makes one, and the count of its inputs.
    pub(crate) fn of(arity: Arity, len: Len) -> Option<(Claim, Arc<InputCount>)> {
        if arity == Arity::Any && matches!(len, Len::Unknown) {
            return None;
        }
        let inputs = Arc::<InputCount>::default();
        let claim = Claim {
            arity,
            len,
            inputs: inputs.clone(),
            given: 0,
        };
        Some((claim, inputs))
    }

    /// Counts an output, or the end. Returns an error if the node does not do as it says.
    fn check<T: Send + 'static>(&mut self, output: Option<&Chunk<T>>) -> Option<Error> {
        if output.is_some_and(|chunk| chunk.errors() > 0) {
            self.len = Len::Unknown;
        }
        if output.is_some_and(ends) {
            // The epoch ends with this error, so the number of later outputs is not checked.
            self.arity = Arity::Any;
        }
        self.given += output.map_or(0, |chunk| chunk.len() as u64);
        let inputs = self.inputs.items.load(Ordering::Relaxed);
        let ended = self.inputs.ended.load(Ordering::Relaxed);
        let is_kept = match (self.arity, output) {
            (Arity::Any, _) => true,
            (Arity::One, None) => self.given == inputs && ended,
            _ => self.given <= inputs,
        };
        if !is_kept {
            return Some(self.broken_arity(inputs, ended, output.is_some()));
        }
        let said = self.len.of(inputs, ended)?;
        let is_kept = match output {
            Some(_) => self.given <= said,
            None => self.given == said,
        };
        (!is_kept).then(|| self.broken_len(said, output.is_some()))
    }

    fn broken_arity(&self, inputs: u64, ended: bool, goes_on: bool) -> Error {
        let number = match self.arity {
            Arity::One => "one output",
            _ => "at most one output",
        };
        let until = match (ended, goes_on) {
            (true, _) => "",
            (false, true) => " so far",
            (false, false) => ", before its input had ended",
        };
        Error::config(format!(
            "says by `Hints::arity` that it gives {number} for each input, and gave {} for {inputs}{until}; a resumed \
             epoch would lose or double items",
            self.given
        ))
    }

    fn broken_len(&self, said: u64, goes_on: bool) -> Error {
        let until = if goes_on { " so far" } else { "" };
        Error::config(format!(
            "says by `len_hint` that it gives {said} items, and gave {}{until}; ranks that rely on the number would wait \
             for each other",
            self.given
        ))
    }
}

/// Returns true if an error that no policy skips is among the items: it is made of no input.
fn ends<T: Send + 'static>(chunk: &Chunk<T>) -> bool {
    let mut errors = chunk.iter().filter_map(Result::err);
    chunk.errors() > 0 && errors.any(|error| !error.is_about_an_item())
}

impl<T: Send + 'static> Instrumented<T> {
    pub(crate) fn new(
        input: Items<T>,
        context: Context,
        weigh: Weigher<T>,
        exact: Option<usize>,
        claim: Option<Claim>,
    ) -> Self {
        let is_counted = context.margin().is_some();
        let most = match (context.margin(), exact.max(context.largest_item())) {
            (Some(margin), Some(exact)) => Some((margin / exact.max(1)).max(1)),
            (Some(_), None) => None,
            (None, _) => Some(MAX_CHUNK),
        };
        Instrumented {
            input,
            context,
            polls: 0,
            last_ns: 0,
            dead: false,
            weigh,
            most,
            learns: exact.is_none() && is_counted,
            claim,
        }
    }

    /// Records a call that made items, or an error.
    #[cold]
    fn log(&self, begun: Instant, polled: &std::thread::Result<Poll<Option<Chunk<T>>>>) {
        if let (Some(log), Ok(Poll::Ready(Some(chunk)))) = (self.context.poll_log(), polled) {
            let first = chunk.iter().find_map(Result::ok);
            let origin = first.map(|(origin, _)| origin);
            log.polled(self.context.node(), begun, chunk.len(), origin);
        }
    }

    /// Ends the stream with an error.
    fn fail(&mut self, error: Error) -> Poll<Option<Chunk<T>>> {
        self.dead = true;
        let counters = self.context.counters();
        counters.errors.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Some(Chunk::fail(error.at(self.context.node()))))
    }

    /// Returns how many items may be made at once, which bounds the bytes of items that turn out
    /// much larger.
    fn most(&self) -> usize {
        let weight = &self.context.counters().weight;
        self.most
            .unwrap_or_else(|| budget::at_once(self.context.margin().unwrap_or(usize::MAX), weight))
    }
}

/// Returns the error of a pipe that has to tell the inputs of its outputs and did not do so for
/// these.
fn unrecorded<T: Send + 'static>(context: &Context, chunk: &Chunk<T>) -> Option<Error> {
    let error = context.lineage()?.unordered().unrecorded()?;
    (!ends(chunk)).then_some(error)
}

impl<T: Send + 'static> Chunks<T> for Instrumented<T> {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>> {
        if self.dead || self.context.is_cancelled() {
            return Poll::Ready(None);
        }
        let weight = match self.polls {
            _ if self.last_ns >= SLOW_NS => 1,
            polls if polls % SAMPLE == 0 => SAMPLE.min(polls.max(1)),
            _ => 0,
        };
        // Weighing may cost more than a slow poll, if a chunk has many values.
        let is_weighed = self.polls.is_multiple_of(SAMPLE);
        self.polls += 1;
        // A node inside a timed poll is timed as well, to be subtracted from the node around it.
        let around = INSIDE.get();
        let is_logged = self.context.poll_log().is_some();
        let begun = (weight > 0 || around.is_some() || is_logged).then(|| {
            INSIDE.set(Some(0));
            Instant::now()
        });
        let demand = demand.at_most(MAX_CHUNK.min(self.most()));
        let polled = catch_unwind(AssertUnwindSafe(|| self.input.poll_chunk(cx, demand)));
        let counters = self.context.counters();
        if let Some(begun) = begun {
            let ns = begun.elapsed().as_nanos() as u64;
            let inside = INSIDE.replace(around.map(|around| around + ns));
            if is_logged {
                self.log(begun, &polled);
            }
            if weight > 0 {
                self.last_ns = ns;
                counters.busy_ns.fetch_add(ns * weight, Ordering::Relaxed);
                if let Ok(Poll::Ready(Some(chunk))) = &polled {
                    let (own, items) = (ns.saturating_sub(inside.unwrap_or(0)), chunk.len() as u64);
                    counters
                        .item_time
                        .record(own / items.max(1), items * weight);
                    if is_weighed {
                        let values = (chunk.len() - chunk.errors()) as u64;
                        let bytes = (self.weigh)(chunk.values()) as u64;
                        counters.sample_bytes.fetch_add(bytes, Ordering::Relaxed);
                        counters.sample_items.fetch_add(values, Ordering::Relaxed);
                    }
                }
            }
        }
        match polled {
            Ok(Poll::Ready(Some(mut chunk))) => {
                let claim = self.claim.as_mut();
                let broken = unrecorded(&self.context, &chunk)
                    .or_else(|| claim.and_then(|claim| claim.check(Some(&chunk))));
                if let Some(error) = broken {
                    self.dead = true;
                    chunk = Chunk::fail(error);
                }
                let errors = chunk.errors();
                for error in chunk.errors_mut() {
                    error.name(self.context.node());
                }
                counters
                    .items
                    .fetch_add((chunk.len() - errors) as u64, Ordering::Relaxed);
                counters.chunks.fetch_add(1, Ordering::Relaxed);
                if self.learns {
                    budget::learn(
                        &counters.weight,
                        chunk.len() - errors,
                        (self.weigh)(chunk.values()),
                    );
                }
                if errors > 0 {
                    counters.errors.fetch_add(errors as u64, Ordering::Relaxed);
                }
                Poll::Ready(Some(chunk))
            }
            Ok(Poll::Ready(None)) => {
                let claim = self.claim.as_mut();
                match claim.and_then(|claim| claim.check::<T>(None)) {
                    // A cancelled epoch ends early.
                    Some(error) if !self.context.is_cancelled() => self.fail(error),
                    _ => Poll::Ready(None),
                }
            }
            Ok(Poll::Pending) => Poll::Pending,
            // Nothing is known about the stream's state any more: it ends here.
            Err(payload) => self.fail(Error::panic(payload)),
        }
    }
}
