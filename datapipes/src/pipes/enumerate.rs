//! Numbers the items.

use std::slice::from_ref;

use super::hash_join::weighed_by_parts;
use crate::{Arity, Context, Graph, Hints, Items, Pipe};

/// Numbers the items; see [`Graph::enumerate`].
#[derive(Clone, Debug, Default)]
pub struct Enumerate(());

impl Enumerate {
    /// Numbers from 0.
    pub fn new() -> Self {
        Enumerate(())
    }
}

impl<T: Send + 'static> Pipe<T> for Enumerate {
    type Out = (u64, T);

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<(u64, T)> {
        let mut places = cx.wanted().cloned().unwrap_or_default().positions(u64::MAX);
        input.each_chunk(cx, move |chunk| {
            // In this order, since the end of the chunk must not take a number.
            let numbered = chunk.into_iter().zip(&mut places);
            numbered
                .map(|(item, number)| item.map(|item| item.map(|value| (number, value))))
                .collect()
        })
    }
    fn hints(&self) -> Hints {
        Hints::default()
            .arity(Arity::One)
            .is_resumable(true)
            .by_position(true)
            .never_blocks(true)
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Numbers the items from 0, in order.
    ///
    /// The number is the place in the stream: an item that failed leaves its number out, so that
    /// the others keep theirs. Runs in one place and holds nothing. The item's
    /// [`origin`](crate::Item::origin) tells where it came from without this step.
    ///
    /// # Examples
    /// ```
    /// let graph = datapipes::Graph::from_vec(vec!["a", "b"]).enumerate();
    /// assert_eq!(graph.collect().unwrap(), [(0, "a"), (1, "b")]);
    /// ```
    pub fn enumerate(self) -> Graph<(u64, T)> {
        let weigh = self.weigher();
        let numbered = self.pipe(Enumerate::new());
        weighed_by_parts(numbered, move |(_, item)| {
            size_of::<u64>() + weigh(from_ref(item))
        })
    }
}
