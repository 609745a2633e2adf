//! Batches of neighbours in an order.

use std::sync::Arc;

use super::{Course, Entry, Index, Indices, check_position, each, order_hints};
use crate::{Context, Hints, Items, Origin, Pipe};

/// Batches of neighbours in the order upstream.
#[derive(Clone, Copy)]
pub(in crate::index) struct Batch {
    pub size: usize,
    pub drop_last: bool,
}

impl Batch {
    pub(super) fn len(&self, of: u64) -> u64 {
        let size = self.size.max(1) as u64;
        if self.drop_last {
            of / size
        } else {
            of.div_ceil(size)
        }
    }
}

impl Pipe<Indices> for Batch {
    type Out = Indices;

    fn apply(&self, input: Items<Indices>, cx: &Context) -> Items<Indices> {
        let (batch, context) = (*self, cx.clone());
        each(input, cx, move |above| {
            let batches = BatchedOrder { batch, above };
            context.count_dropped(batches.left_over());
            Ok(Arc::new(batches))
        })
    }
    fn name(&self) -> String {
        "index_batch".to_owned()
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(self.len(input))
    }
    fn hints(&self) -> Hints {
        let settings = format!(
            "{}{}",
            self.size,
            if self.drop_last { ", drop last" } else { "" }
        );
        order_hints()
            .settings(settings)
            .problem((self.size == 0).then_some("a batch size of zero"))
    }
}

struct BatchedOrder {
    batch: Batch,
    above: Indices,
}

impl BatchedOrder {
    fn left_over(&self) -> u64 {
        if self.batch.drop_last {
            self.above.len() % self.batch.size.max(1) as u64
        } else {
            0
        }
    }
}

impl Course for BatchedOrder {
    fn len(&self) -> u64 {
        self.batch.len(self.above.len())
    }
    fn at(&self, position: u64) -> Entry {
        check_position(position, self.len());
        let size = self.batch.size as u64;
        let places = (position * size..self.above.len().min((position + 1) * size))
            .map(|at| self.above.at(at));
        let (indices, origins): (Vec<_>, Vec<_>) =
            places.map(|place| (place.index, place.origin)).unzip();
        Entry {
            index: Index::Many(indices.into()),
            origin: Origin::joined(origins, position),
        }
    }
    fn again(&self, round: u64) -> Indices {
        Arc::new(BatchedOrder {
            batch: self.batch,
            above: self.above.again(round),
        })
    }
    fn dropped(&self) -> u64 {
        self.above.dropped() + self.left_over()
    }
}
