//! Leaves out the items of a stream that had been taken before it was resumed.

use std::ops::Range;
use std::sync::Arc;
use std::task::{self, Poll, ready};

use crate::graph::{AnyChunk, AnyItems, Edge, ErasedChunks};
use crate::items::Demand;
use crate::{Error, Wanted};

/// Number of chunks without output after which other tasks get their turn.
const CHUNKS_PER_POLL: usize = 32;
/// Maximum number of items asked for at once if none of them is wanted.
const MANY: u64 = 1024;

/// Passes on the wanted items. It is an error if there are fewer items than had come before.
pub(in crate::run::engine) struct SkipDelivered {
    chunks: Box<dyn ErasedChunks>,
    edge: Arc<dyn Edge>,
    /// Positions of the incoming items, one range after another; the last range has no end.
    runs: std::vec::IntoIter<(u64, u64)>,
    run: (u64, u64),
    wanted: Wanted,
    node: Arc<str>,
    ended: bool,
    /// True if the stream may end before [`from`](Wanted::from) of the wanted items.
    may_end: bool,
}

impl SkipDelivered {
    /// Filters a stream whose items have these positions. `may_end` is true if the stream may end
    /// before `wanted.from()`.
    pub(in crate::run::engine) fn over(
        items: AnyItems,
        (edge, node): (&Arc<dyn Edge>, &Arc<str>),
        runs: Vec<(u64, u64)>,
        wanted: Wanted,
        may_end: bool,
    ) -> AnyItems {
        if let [(first, _)] = runs[..]
            && wanted.gap(first).is_none()
        {
            return items;
        }
        let (chunks, mut runs) = (edge.erase(items), runs.into_iter());
        let run = runs.next().expect("an open range comes last");
        edge.restore(Box::new(SkipDelivered {
            chunks,
            edge: edge.clone(),
            runs,
            run,
            wanted,
            node: node.clone(),
            ended: false,
            may_end,
        }))
    }

    /// Returns the wanted ranges among the next `len` items.
    fn places(&mut self, len: usize) -> Vec<Range<usize>> {
        let mut places: Vec<Range<usize>> = Vec::new();
        let mut at = 0;
        while at < len {
            let (position, end) = &mut self.run;
            if *position == *end {
                self.run = self.runs.next().expect("the last range has no end");
                continue;
            }
            let some = (*end - *position).min((len - at) as u64);
            // Within this range, the wanted items come in stretches.
            let (mut from, to) = (*position, *position + some);
            let base = from;
            loop {
                from = self.wanted.next(from);
                if from >= to {
                    break;
                }
                let until = self.wanted.gap(from).unwrap_or(to).min(to);
                let place = at + (from - base) as usize..at + (until - base) as usize;
                match places.last_mut() {
                    Some(last) if last.end == place.start => last.end = place.end,
                    _ => places.push(place),
                }
                from = until;
            }
            *position = to;
            at += some as usize;
        }
        places
    }

    fn is_past_delivered(&mut self) -> bool {
        while self.run.0 == self.run.1 {
            self.run = self.runs.next().expect("the last range has no end");
        }
        self.run.1 == u64::MAX && self.run.0 >= self.wanted.from()
    }
}

impl ErasedChunks for SkipDelivered {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<AnyChunk>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.is_past_delivered() {
            return self.chunks.poll_chunk(cx, demand);
        }
        for _ in 0..CHUNKS_PER_POLL {
            let unwanted = self.wanted.next(self.run.0).min(self.run.1) - self.run.0;
            let demand = match unwanted {
                0 => demand,
                some => Demand {
                    max: demand.max.max(some.min(MANY) as usize),
                    ..demand
                },
            };
            let Some(chunk) = ready!(self.chunks.poll_chunk(cx, demand)) else {
                self.ended = true;
                if self.may_end || self.is_past_delivered() {
                    return Poll::Ready(None);
                }
                let message = format!(
                    "ended after {} items and errors, and the epoch was stopped after {}: the data is not what it was, or \
                     the checkpoint is not one of it",
                    self.run.0,
                    self.wanted.from()
                );
                let error = Error::config(message).at(&self.node);
                return Poll::Ready(Some(self.edge.fail_chunk(error)));
            };
            let places = self.places(chunk.len);
            match &places[..] {
                [all] if *all == (0..chunk.len) => return Poll::Ready(Some(chunk)),
                [] if chunk.errors == 0 => {}
                some => {
                    let picked = self.edge.pick(chunk, some);
                    if picked.len > 0 {
                        return Poll::Ready(Some(picked));
                    }
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
