//! The order of an epoch as a value, which travels down a small graph of its own once an epoch.

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

use crate::{Context, Facts, Item, Items, Origin, Result};

pub(super) use indices::{Flatten, single};
pub(super) use mix::Rule;
pub(super) use shard::Shard;
pub(super) use step::{Kind, Step};

/// Which sample: its index in one data set, or where data sets were put together a path to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Index {
    /// The sample of a [`MapPipe`](super::MapPipe).
    One(u64),
    /// One of the data sets of a concat or a mix, and which sample of it.
    In(usize, Box<Index>),
    /// A sample of each part of a zip, or those of a batch.
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

/// Which sample stands at a position, and where it comes from.
pub(super) struct Place {
    pub index: Index,
    pub origin: Origin,
}

/// What stands at each position of a pass over the data, computed position by position. Fixed for
/// an epoch: seed, epoch and rank are in it.
pub(super) trait Course: Send + Sync {
    /// How many positions there are. The same in every round.
    fn len(&self) -> u64;

    /// What stands at a position below [`len`](Course::len).
    fn at(&self, position: u64) -> Place;

    /// The same with the random numbers and the origins of another round of a repeat, whichever
    /// this one is of.
    fn again(&self, round: u64) -> Indices;

    /// How many positions above are left out on purpose.
    fn dropped(&self) -> u64 {
        0
    }
}

/// A shared [`Course`]: what travels between the nodes that decide on order.
pub(super) type Indices = Arc<dyn Course>;

/// Says of a node over orders that its readers may each run it for themselves.
fn facts() -> Facts {
    Facts::any_order().with_many_readers()
}

/// Makes another order of each that passes: of one, in an epoch.
fn each(
    input: Items<Indices>,
    cx: &Context,
    change: impl Fn(Indices) -> Result<Indices> + Send + 'static,
) -> Items<Indices> {
    input.each(cx, move |item| Some(item.try_map(&change)))
}

/// Makes one order of one of each input.
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
