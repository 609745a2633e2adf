//! The samples of one data set, in order.

use std::sync::Arc;

use super::{Course, Entry, Index, Indices, order_hints};
use crate::{Context, Hints, Items, Source};

/// Samples of one data set, in order. Produces one order, whose length is counted.
pub(super) struct Samples {
    pub len: u64,
}

/// Limit on the number of samples: origins have 48 bits for an index.
const MOST: u64 = 1 << 48;

impl Source for Samples {
    type Out = Indices;

    fn open(&self, cx: &Context) -> Items<Indices> {
        let whole: Indices = Arc::new(Whole {
            len: self.len,
            cx: cx.clone(),
        });
        Items::from_chunk(cx.run(vec![whole], 0))
    }
    fn len_hint(&self) -> Option<u64> {
        Some(self.len)
    }
    fn hints(&self) -> Hints {
        order_hints()
            .settings(self.len)
            .problem((self.len > MOST).then_some("more than 2^48 samples"))
    }
}

struct Whole {
    len: u64,
    cx: Context,
}

impl Course for Whole {
    fn len(&self) -> u64 {
        self.len
    }
    fn at(&self, position: u64) -> Entry {
        assert!(
            position < self.len,
            "index {position} of {} samples",
            self.len
        );
        Entry {
            index: Index::One(position),
            origin: self.cx.origin(position),
        }
    }
    fn again(&self, round: u64) -> Indices {
        Arc::new(Whole {
            len: self.len,
            cx: self.cx.in_round(round),
        })
    }
}
