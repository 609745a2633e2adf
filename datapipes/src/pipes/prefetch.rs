//! Runs everything upstream ahead of everything downstream.

use crate::{Arity, Context, Graph, Hints, Items, Pipe, Role};

/// Runs everything upstream ahead of everything downstream; see [`Graph::prefetch`].
#[derive(Clone, Debug)]
pub struct Prefetch(usize);

impl Prefetch {
    /// Runs this many items ahead.
    pub fn new(items: usize) -> Self {
        Prefetch(items)
    }
}

impl<T: Send + 'static> Pipe<T> for Prefetch {
    type Out = T;

    fn apply(&self, input: Items<T>, _: &Context) -> Items<T> {
        input
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .arity(Arity::One)
            .is_resumable(true)
            .selects(true)
            .role(Role::Prefetch(self.0))
            .by_position(true)
            .never_blocks(true)
            .buffered(self.0)
            .settings(self.0)
            .problem((self.0 == 0).then_some("a prefetch of zero items"))
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Lets the executor run everything upstream separately, up to `items` items ahead of
    /// everything downstream.
    ///
    /// The loader keeps a queue of its own before the consumer, so this step is for the middle of a
    /// graph, where sequential parts upstream and downstream should overlap. Order is kept; the
    /// queue fills up gradually. With no workers it does nothing.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(datapipes::Graph::range(0..3).prefetch(2).collect().unwrap(), [0, 1, 2]);
    /// ```
    pub fn prefetch(self, items: usize) -> Graph<T> {
        self.pipe(Prefetch::new(items))
    }
}
