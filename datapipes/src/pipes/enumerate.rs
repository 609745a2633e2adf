//! Numbers the items.

use futures::StreamExt;

use crate::{Arity, Context, Graph, Items, Pipe};

/// Numbers the items; see [`Graph::enumerate`].
#[derive(Clone, Debug, Default)]
pub struct Enumerate(());

impl Enumerate {
    /// From 0.
    pub fn new() -> Self {
        Enumerate(())
    }
}

impl<T: Send + 'static> Pipe<T> for Enumerate {
    type Out = (u64, T);

    fn apply(&self, input: Items<T>, _: &Context) -> Items<(u64, T)> {
        let number = |(index, item): (usize, crate::Result<crate::Item<T>>)| {
            item.map(|item| item.map(|value| (index as u64, value)))
        };
        Items::from_stream(input.enumerate().map(number))
    }
    fn arity(&self) -> Arity {
        Arity::One
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Numbers the items from 0, in order.
    ///
    /// The number is the place in the stream: an item that failed leaves its number out, so that the others keep
    /// theirs. Runs in one place and holds nothing. To know where an item came from, its
    /// [`origin`](crate::Item::origin) is there without this.
    ///
    /// # Examples
    /// ```
    /// let graph = datapipes::Graph::from_vec(vec!["a", "b"]).enumerate();
    /// assert_eq!(graph.collect().unwrap(), [(0, "a"), (1, "b")]);
    /// ```
    pub fn enumerate(self) -> Graph<(u64, T)> {
        self.pipe(Enumerate::new())
    }
}
