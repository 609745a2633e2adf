//! The order of an epoch as a value, which passes through a small graph of its own once an epoch.

mod batch;
mod concat;
mod indices;
mod mix;
mod repeat;
mod sampled;
mod samples;
mod shard;
mod step;
mod zip;

use std::fmt;
use std::sync::Arc;

use futures::StreamExt;

use crate::{Context, Hints, Item, Items, Origin, Result};

pub(super) use batch::Batch;
pub(super) use indices::{Flatten, single};
pub(super) use mix::{Mix, Rule};
pub(super) use shard::Shard;
pub(super) use step::{Kind, Step};

/// Index of a sample: its index in one data set, or a path to it if data sets were combined.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Index {
    /// Sample of a [`MapPipe`](super::MapPipe).
    One(u64),
    /// Number of a data set in a concat or a mix, and the sample of that data set.
    In(usize, Box<Index>),
    /// Samples of the parts of a zip, or of a batch.
    Many(Box<[Index]>),
}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Index::One(index) => write!(f, "{index}"),
            Index::In(input, index) => write!(f, "{index} of input {input}"),
            Index::Many(parts) => {
                let parts: Vec<String> = parts.iter().map(Index::to_string).collect();
                write!(f, "({})", parts.join(", "))
            }
        }
    }
}

/// Sample that is at a position, with its origin.
pub(super) struct Entry {
    pub index: Index,
    pub origin: Origin,
}

/// Samples at the positions of a pass over the data, computed position by position. Fixed for an
/// epoch: seed, epoch and rank are part of it.
pub(super) trait Course: Send + Sync {
    /// Returns the number of positions. It is the same in every round.
    fn len(&self) -> u64;

    /// Returns the entry at a position below [`len`](Course::len).
    fn at(&self, position: u64) -> Entry;

    /// Returns the same course with the random numbers and origins of another round of a repeat.
    /// `round` counts from the first round, not from the round of this course.
    fn again(&self, round: u64) -> Indices;

    /// Returns the number of positions upstream that are left out on purpose.
    fn dropped(&self) -> u64 {
        0
    }
}

/// A shared [`Course`], which travels between the nodes that decide on order.
pub(super) type Indices = Arc<dyn Course>;

/// Panics for a position past the end.
#[inline]
fn check_position(position: u64, len: u64) {
    assert!(position < len, "position {position} of {len}");
}

/// Returns the hints of a node over orders: each of its readers may run the node again.
fn order_hints() -> Hints {
    Hints::any_order().many_readers(true).never_blocks(true)
}

/// Transforms each order that passes. There is one in an epoch.
fn each(
    input: Items<Indices>,
    cx: &Context,
    change: impl Fn(Indices) -> Result<Indices> + Send + 'static,
) -> Items<Indices> {
    input.each(cx, move |item| Some(item.try_map(&change)))
}

/// Combines one order from each input.
fn join(
    inputs: Vec<Items<Indices>>,
    cx: &Context,
    join: impl FnOnce(Vec<Indices>) -> Result<Indices> + Send + 'static,
) -> Items<Indices> {
    let cx = cx.clone();
    Items::generate(async move |out| {
        let mut orders = Vec::with_capacity(inputs.len());
        for mut input in inputs {
            match input.next().await {
                Some(Ok(order)) => orders.push(order.into_inner()),
                Some(Err(error)) => return out.emit(Err(error)).await,
                None => return,
            }
        }
        out.emit(join(orders).map(|order| Item::new(order, cx.origin(0))))
            .await;
    })
}
