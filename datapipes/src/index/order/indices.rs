//! The stream of indices of an order.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::{self, Poll, ready};

use super::{Index, Indices, order_hints};
use crate::{Chunk, Chunks, Context, Demand, Hints, Items, Pipe, Wanted};

/// Turns an order into a stream of the keys for its samples.
pub(in crate::index) struct Flatten<K>(pub fn(Index) -> K);

/// Returns the number of a sample of a single data set.
pub(in crate::index) fn single(index: Index) -> u64 {
    match index {
        Index::One(index) => index,
        _ => unreachable!("asked for over one data set only"),
    }
}

impl<K: Send + 'static> Pipe<Indices> for Flatten<K> {
    type Out = K;

    fn apply(&self, input: Items<Indices>, cx: &Context) -> Items<K> {
        Items::from_chunks(KeyStream {
            input,
            order: None,
            before: 0,
            wanted: cx.wanted().cloned().unwrap_or_default(),
            next: 0,
            key: self.0,
            panicked: None,
        })
    }
    fn name(&self) -> String {
        "indices".to_owned()
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input)
    }
    fn hints(&self) -> Hints {
        order_hints()
            .many_readers(false)
            .by_position(true)
            .is_resumable(true)
    }
}

struct KeyStream<K> {
    input: Items<Indices>,
    order: Option<Indices>,
    /// Number of positions in the orders before this one.
    before: u64,
    wanted: Wanted,
    /// Positions before it were given.
    next: u64,
    key: fn(Index) -> K,
    panicked: Option<Box<dyn Any + Send>>,
}

impl<K: Send + 'static> Chunks<K> for KeyStream<K> {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<K>>> {
        if let Some(payload) = self.panicked.take() {
            resume_unwind(payload);
        }
        loop {
            if let Some(order) = &self.order {
                let end = self.before + order.len();
                let places = self.wanted.next_range(self.next, demand.max as u64, end);
                self.next = places.end;
                let wanted = (places.end - places.start) as usize;
                let (mut keys, mut origins) =
                    (Vec::with_capacity(wanted), Vec::with_capacity(wanted));
                // Positions computed before a panic of the sampler are returned first.
                let taken = catch_unwind(AssertUnwindSafe(|| {
                    for position in places {
                        let place = order.at(position - self.before);
                        keys.push((self.key)(place.index));
                        origins.push(place.origin);
                    }
                }));
                match taken {
                    Err(payload) if keys.is_empty() => resume_unwind(payload),
                    taken => self.panicked = taken.err(),
                }
                if !keys.is_empty() {
                    return Poll::Ready(Some(Chunk::from_columns(keys, origins)));
                }
                self.before += order.len();
                self.order = None;
            }
            let Some(mut chunk) = ready!(self.input.poll_chunk(cx, Demand { max: 1, ..demand }))
            else {
                return Poll::Ready(None);
            };
            match chunk.split_to(1).into_iter().next() {
                Some(Ok(order)) => self.order = Some(order.into_inner()),
                Some(Err(error)) => return Poll::Ready(Some(Chunk::fail(error))),
                None => {}
            }
        }
    }
}
