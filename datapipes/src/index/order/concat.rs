//! Concatenation of orders.

use std::sync::Arc;

use super::{Course, Entry, Index, Indices, check_position, join, order_hints};
use crate::{Context, Hints, Items, Join};

/// Orders, one after another.
pub(super) struct Concat {
    pub inputs: usize,
}

impl Join<Vec<Indices>> for Concat {
    type Out = Indices;

    fn join(&self, inputs: Vec<Items<Indices>>, cx: &Context) -> Items<Indices> {
        join(inputs, cx, |inputs| Ok(Row::of(inputs)))
    }
    fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64> {
        inputs
            .iter()
            .try_fold(0u64, |sum, len| Some(sum.saturating_add((*len)?)))
    }
    fn name(&self) -> String {
        "index_concat".to_owned()
    }
    fn hints(&self) -> Hints {
        order_hints().problem((self.inputs == 0).then_some("no inputs"))
    }
}

struct Row {
    inputs: Vec<Indices>,
    /// End of each order.
    ends: Vec<u64>,
}

impl Row {
    fn of(inputs: Vec<Indices>) -> Indices {
        let mut end = 0u64;
        let ends = inputs.iter().map(|input| {
            end = end.saturating_add(input.len());
            end
        });
        let ends = ends.collect();
        Arc::new(Row { inputs, ends })
    }
}

impl Course for Row {
    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }
    fn at(&self, position: u64) -> Entry {
        check_position(position, self.len());
        let input = self.ends.partition_point(|&end| end <= position);
        let begin = input.checked_sub(1).map_or(0, |before| self.ends[before]);
        let Entry { index, origin } = self.inputs[input].at(position - begin);
        Entry {
            index: Index::In(input, Box::new(index)),
            origin,
        }
    }
    fn again(&self, round: u64) -> Indices {
        Row::of(self.inputs.iter().map(|input| input.again(round)).collect())
    }
    fn dropped(&self) -> u64 {
        self.inputs.iter().map(|input| input.dropped()).sum()
    }
}
