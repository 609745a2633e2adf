//! Keeps the items that a predicate accepts.

use crate::items::by_chunk;
use crate::{Arity, Context, Facts, Graph, Items, Pipe};

/// Keeps the items that a predicate accepts; see [`Graph::filter`].
#[derive(Clone, Debug)]
pub struct Filter<F>(F);

impl<F> Filter<F> {
    /// Keeps what `keep` accepts.
    pub fn new(keep: F) -> Self {
        Filter(keep)
    }
}

impl<T, F> Pipe<T> for Filter<F>
where
    T: Send + 'static,
    F: Fn(&T) -> bool + Clone + Send + Sync + 'static,
{
    type Out = T;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<T> {
        let (keep, context) = (self.0.clone(), cx.clone());
        by_chunk(input, cx, move |chunk| {
            let (kept, dropped) =
                chunk.retain(&keep, |payload, origin| context.panicked(payload, origin));
            context.count_dropped(dropped as u64);
            kept
        })
    }
    fn is_shardable(&self) -> bool {
        true
    }
    fn arity(&self) -> Arity {
        Arity::AtMostOne
    }
    fn facts(&self) -> Facts {
        Facts::any_order()
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Keeps the items that a predicate accepts. What is left out is counted as dropped.
    ///
    /// The predicate runs on the CPU workers; order is kept.
    ///
    /// # Examples
    /// ```
    /// let even = datapipes::Graph::range(0..6).filter(|n| n % 2 == 0);
    /// assert_eq!(even.collect().unwrap(), [0, 2, 4]);
    /// ```
    pub fn filter(self, keep: impl Fn(&T) -> bool + Clone + Send + Sync + 'static) -> Graph<T> {
        self.pipe(Filter::new(keep))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn keeps_the_contract() {
        testing::check_pipe(
            &Filter::new(|n: &u64| n.is_multiple_of(3)),
            (0..20).collect(),
        );
    }

    #[test]
    fn row_45_a_filter_that_drops_everything_ends() {
        let loader = crate::DataLoader::builder(Graph::range(0..100_000).filter(|_| false))
            .build()
            .unwrap();
        assert_eq!(loader.epoch(0).blocking().count(), 0);
        assert_eq!(loader.stats().unwrap().nodes[1].dropped, 100_000);
    }
}
