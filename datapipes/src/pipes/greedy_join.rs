//! Takes from whatever input has an item first.

use std::task::Poll;

use futures::StreamExt;

use super::concat::sum;
use super::mux::by_turns;
use crate::{Context, Graph, Hints, Items, Join, Role};

/// Takes from whatever input has an item first; see [`Graph::greedy_join`].
#[derive(Clone, Debug)]
pub struct GreedyJoin {
    inputs: usize,
}

impl GreedyJoin {
    /// Makes a join of this many inputs.
    pub fn new(inputs: usize) -> Self {
        GreedyJoin { inputs }
    }
}

impl<T: Send + 'static> Join<Vec<T>> for GreedyJoin {
    type Out = T;

    fn join(&self, mut inputs: Vec<Items<T>>, cx: &Context) -> Items<T> {
        // An order that depends on timing cannot be repeated.
        if cx.is_resumable() {
            return by_turns(inputs, cx, false);
        }
        let mut turn = 0;
        Items::from_stream(futures::stream::poll_fn(move |cx| {
            let mut asked = 0;
            while asked < inputs.len() {
                turn %= inputs.len();
                match inputs[turn].poll_next_unpin(cx) {
                    Poll::Ready(Some(item)) => {
                        turn += 1;
                        return Poll::Ready(Some(item));
                    }
                    Poll::Ready(None) => drop(inputs.remove(turn)),
                    Poll::Pending => {
                        turn += 1;
                        asked += 1;
                    }
                }
            }
            if inputs.is_empty() {
                Poll::Ready(None)
            } else {
                Poll::Pending
            }
        }))
    }
    fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64> {
        sum(inputs)
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .is_resumable(true)
            .selects(true)
            .role(Role::Scatter)
            .problem((self.inputs == 0).then_some("no inputs"))
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Takes an item from whatever graph has one first, until all are exhausted.
    ///
    /// **The order depends on timing**, even if the loader is told to keep order: this is the only
    /// pipe whose output is not a function of seed and epoch. The items of one input stay in order,
    /// nothing is lost, and inputs that are ready take turns. If all inputs are always ready, the
    /// order is that of [`mux`](Graph::mux), which is the better choice if no input is slow for
    /// long. In a loader that can be [resumed](crate::loader::Builder::resumable), whose runs
    /// repeat themselves, it is `mux`. Runs in one place and holds nothing.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// let slow = Graph::from_stream_with(|| Ok(futures::stream::pending()));
    /// let graph = Graph::greedy_join([slow, Graph::range(0..3)]).take(3);
    /// assert_eq!(graph.collect().unwrap(), [0, 1, 2]);
    /// ```
    pub fn greedy_join(inputs: impl IntoIterator<Item = Graph<T>>) -> Graph<T> {
        let inputs = Vec::from_iter(inputs);
        let join = GreedyJoin::new(inputs.len());
        Graph::join(inputs, join)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_turns_where_all_are_ready() {
        let inputs = [Graph::range(0..3), Graph::range(0..0), Graph::range(10..12)];
        let mut seen = Graph::greedy_join(inputs).collect().unwrap();
        assert_eq!(seen, [0, 10, 1, 11, 2]);
        seen.sort();
        assert_eq!(seen, [0, 1, 2, 10, 11]);
        assert!(Graph::<u64>::greedy_join([]).collect().is_err());
    }
}
