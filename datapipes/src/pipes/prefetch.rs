//! Runs what is above ahead of what is below.

use crate::{Arity, Context, Facts, Graph, Items, Pipe, Role};

/// Runs what is above ahead of what is below; see [`Graph::prefetch`].
#[derive(Clone, Debug)]
pub struct Prefetch(usize);

impl Prefetch {
    /// So many items ahead.
    pub fn new(items: usize) -> Self {
        Prefetch(items)
    }
}

impl<T: Send + 'static> Pipe<T> for Prefetch {
    type Out = T;

    fn apply(&self, input: Items<T>, _: &Context) -> Items<T> {
        input
    }
    fn is_resumable(&self) -> bool {
        true
    }
    fn arity(&self) -> Arity {
        Arity::One
    }
    fn facts(&self) -> Facts {
        Facts::any_order()
            .with_selection()
            .with_role(Role::Prefetch(self.0))
            .with_positions()
            .with_buffered(self.0)
            .with_settings(self.0)
            .with_problem((self.0 == 0).then_some("a prefetch of zero items"))
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Lets the executor run what is above on its own, up to `items` items ahead of what is below.
    ///
    /// The loader keeps a queue of its own in front of the consumer, so this is for the middle of a
    /// graph, where a sequential part above and one below should overlap. Order is kept; the queue
    /// fills up gradually. With no workers it does nothing.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(datapipes::Graph::range(0..3).prefetch(2).collect().unwrap(), [0, 1, 2]);
    /// ```
    pub fn prefetch(self, items: usize) -> Graph<T> {
        self.pipe(Prefetch::new(items))
    }
}
