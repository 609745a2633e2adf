//! Looks at every item and passes it on.

use crate::{Arity, Context, Graph, Hints, Items, Pipe};

/// Looks at every item and passes it on; see [`Graph::inspect`].
#[derive(Clone, Debug)]
pub struct Inspect<F>(F);

impl<F> Inspect<F> {
    /// Calls `f`.
    pub fn new(f: F) -> Self {
        Inspect(f)
    }
}

impl<T, F> Pipe<T> for Inspect<F>
where
    T: Send + 'static,
    F: Fn(&T) + Clone + Send + Sync + 'static,
{
    type Out = T;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<T> {
        let f = self.0.clone();
        input.each(cx, move |item| {
            f(&item);
            Some(Ok(item))
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::One)
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Calls a function with every item, and passes the item on.
    ///
    /// The function runs on the CPU workers, on many items at once, and ahead of the consumer; the
    /// calls therefore come in any order, while the items keep theirs.
    ///
    /// # Panics
    /// A panic of the function becomes an error in the item's place.
    ///
    /// # Examples
    /// ```
    /// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
    /// let seen = Arc::new(AtomicU64::new(0));
    /// let count = seen.clone();
    /// let graph = datapipes::Graph::range(0..5).inspect(move |_| {
    ///     count.fetch_add(1, Ordering::Relaxed);
    /// });
    /// assert_eq!(graph.collect().unwrap().len() as u64, seen.load(Ordering::Relaxed));
    /// ```
    pub fn inspect(self, f: impl Fn(&T) + Clone + Send + Sync + 'static) -> Graph<T> {
        self.pipe(Inspect::new(f))
    }
}
