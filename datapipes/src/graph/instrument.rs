//! Instruments the output of every node: counts items, names errors, catches panics, ends a
//! cancelled epoch.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::task::{self, Poll};
use std::time::Instant;

use crate::budget;
use crate::items::{Chunks, Demand};
use crate::weigh::Weigher;
use crate::{Chunk, Context, Error, Items};

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
}

impl<T: Send + 'static> Instrumented<T> {
    pub(crate) fn new(
        input: Items<T>,
        context: Context,
        weigh: Weigher<T>,
        exact: Option<usize>,
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
    // An error that no policy skips ends the epoch, and is made of no input.
    let ends = chunk
        .iter()
        .filter_map(Result::err)
        .any(|error| !error.is_about_an_item());
    (!ends).then(|| error.at(context.node()))
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
                if let Some(error) = unrecorded(&self.context, &chunk) {
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
            Ok(other) => other,
            Err(payload) => {
                // Nothing is known about the stream's state any more: it ends here.
                self.dead = true;
                counters.errors.fetch_add(1, Ordering::Relaxed);
                Poll::Ready(Some(Chunk::fail(
                    Error::panic(payload).at(self.context.node()),
                )))
            }
        }
    }
}
