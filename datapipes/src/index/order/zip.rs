//! Samples at the same position of several orders.

use std::sync::Arc;

use super::{Course, Entry, Index, Indices, join, order_hints};
use crate::{Context, Hints, Items, Join};

/// Combines the samples at the same position of several orders; ends with the shortest.
pub(super) struct Zip;

impl Join<Vec<Indices>> for Zip {
    type Out = Indices;

    fn join(&self, inputs: Vec<Items<Indices>>, cx: &Context) -> Items<Indices> {
        join(inputs, cx, |inputs| Ok(Arc::new(Zipped(inputs))))
    }
    fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64> {
        inputs
            .iter()
            .copied()
            .collect::<Option<Vec<u64>>>()?
            .into_iter()
            .min()
    }
    fn name(&self) -> String {
        "index_zip".to_owned()
    }
    fn hints(&self) -> Hints {
        order_hints()
    }
}

struct Zipped(Vec<Indices>);

impl Course for Zipped {
    fn len(&self) -> u64 {
        self.0.iter().map(|input| input.len()).min().unwrap_or(0)
    }
    fn at(&self, position: u64) -> Entry {
        let mut places = self.0.iter().map(|input| input.at(position)).peekable();
        // Uses the origin of the first part: it belongs to a sample, while the position depends on
        // ranks and order.
        let origin = places.peek().expect("a zip has inputs").origin.clone();
        Entry {
            index: Index::Many(places.map(|place| place.index).collect()),
            origin,
        }
    }
    fn again(&self, round: u64) -> Indices {
        Arc::new(Zipped(
            self.0.iter().map(|input| input.again(round)).collect(),
        ))
    }
    fn dropped(&self) -> u64 {
        self.0.iter().map(|input| input.dropped()).sum()
    }
}
