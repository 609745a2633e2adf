//! Keeps the items that a predicate accepts.

use crate::{Arity, Context, Graph, Hints, Items, Pipe};

/// Keeps the items that a predicate accepts; see [`Graph::filter`].
#[derive(Clone, Debug)]
pub struct Filter<F>(F);

impl<F> Filter<F> {
    /// Keeps the items that `keep` accepts.
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
        input.each_chunk(cx, move |mut chunk| {
            let before = chunk.len();
            chunk.retain(&keep);
            context.count_dropped((before - chunk.len()) as u64);
            chunk
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::AtMostOne)
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Keeps the items that a predicate accepts. Items that are left out are counted as dropped.
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
    use std::task::{self, Poll};

    use super::*;
    use crate::{Chunk, Chunks, Demand, Origin, testing};

    #[test]
    fn keeps_the_contract() {
        testing::check_pipe(
            &Filter::new(|n: &u64| n.is_multiple_of(3)),
            (0..20).collect(),
        );
    }

    /// A source of numbers that records how many were asked for.
    struct Asked(std::sync::mpsc::Sender<usize>, u64);

    impl Chunks<u64> for Asked {
        fn poll_chunk(
            &mut self,
            _: &mut task::Context<'_>,
            demand: Demand,
        ) -> Poll<Option<Chunk<u64>>> {
            self.0.send(demand.max).unwrap();
            let first = self.1;
            self.1 += demand.max as u64;
            Poll::Ready(Some(Chunk::run(
                (first..self.1).collect(),
                Origin::root(0, first),
            )))
        }
    }

    #[test]
    fn what_was_left_out_is_made_up_for_ahead_of_need_within_a_64th_of_what_came() {
        let (send, asked) = std::sync::mpsc::channel();
        let even = Filter::new(|n: &u64| n.is_multiple_of(2));
        let mut items = even.apply(Items::from_chunks(Asked(send, 0)), &Context::default());
        let mut poll = |demand| {
            let polled =
                items.poll_chunk(&mut task::Context::from_waker(task::Waker::noop()), demand);
            assert!(matches!(polled, Poll::Ready(Some(_))));
            asked.recv().unwrap()
        };
        let mut seen = 0;
        for _ in 0..200 {
            let is = poll(Demand::up_to(100));
            assert_eq!(is, 200.min(1 + seen / 64).max(100), "after {seen}");
            seen += is;
        }
        assert!(seen / 64 > 200);
        // A demand for one item makes one, and a batch is made of the items that are there.
        assert_eq!(poll(Demand::up_to(1)), 1);
        assert_eq!(poll(Demand::up_to(100).needing(100)), 100);
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
