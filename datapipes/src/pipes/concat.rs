//! Concatenates inputs.

use std::task::{self, Poll, ready};

use crate::{Chunk, Chunks, Context, Demand, Graph, Hints, Items, Join};

/// Concatenates inputs; see [`Graph::concat`].
#[derive(Clone, Debug)]
pub struct Concat {
    inputs: usize,
}

impl Concat {
    /// Makes a concatenation of this many inputs.
    pub fn new(inputs: usize) -> Self {
        Concat { inputs }
    }
}

impl<T: Send + 'static> Join<Vec<T>> for Concat {
    type Out = T;

    fn join(&self, inputs: Vec<Items<T>>, cx: &Context) -> Items<T> {
        let ended: u64 = or_fail!(cx.restored()).unwrap_or(0);
        let mut inputs = inputs.into_iter();
        inputs
            .by_ref()
            .take(usize::try_from(ended).unwrap_or(usize::MAX))
            .for_each(drop);
        Items::from_chunks(Concatenated {
            current: inputs.next(),
            inputs,
            ended,
            cx: cx.clone(),
        })
    }
    fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64> {
        sum(inputs)
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .is_resumable(true)
            .selects(true)
            .problem((self.inputs == 0).then_some("no inputs"))
    }
}

struct Concatenated<T> {
    current: Option<Items<T>>,
    /// The inputs after it.
    inputs: std::vec::IntoIter<Items<T>>,
    /// Number of inputs before it, which have ended.
    ended: u64,
    cx: Context,
}

impl<T: Send + 'static> Chunks<T> for Concatenated<T> {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>> {
        let ended = self.ended;
        self.cx.snapshot(|| ended);
        while let Some(input) = &mut self.current {
            if let Some(chunk) = ready!(input.poll_chunk(cx, demand)) {
                return Poll::Ready(Some(chunk));
            }
            self.current = self.inputs.next();
            self.ended += 1;
        }
        Poll::Ready(None)
    }
}

/// Returns the number of items of all inputs together; endless if one of them is.
pub(super) fn sum(inputs: &[Option<u64>]) -> Option<u64> {
    if inputs.contains(&Some(u64::MAX)) {
        return Some(u64::MAX);
    }
    inputs
        .iter()
        .try_fold(0u64, |sum, len| Some(sum.saturating_add((*len)?)))
}

impl<T: Send + 'static> Graph<T> {
    /// Concatenates graphs: all items of the first, then all of the second, and so on.
    ///
    /// An input starts when the one before it has ended. To mix them see [`mux`](Graph::mux),
    /// [`interleave`](Graph::interleave) and [`mix`](Graph::mix).
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// let graph = Graph::concat([Graph::range(0..2), Graph::range(5..7)]);
    /// assert_eq!(graph.collect().unwrap(), [0, 1, 5, 6]);
    /// ```
    pub fn concat(inputs: impl IntoIterator<Item = Graph<T>>) -> Graph<T> {
        let inputs = Vec::from_iter(inputs);
        let concat = Concat::new(inputs.len());
        Graph::join(inputs, concat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_30_no_items_and_no_inputs() {
        assert_eq!(
            Graph::concat([Graph::range(0..0), Graph::range(3..4), Graph::range(0..0)])
                .collect()
                .unwrap(),
            [3]
        );
        assert!(
            Graph::<u64>::concat([])
                .collect()
                .unwrap_err()
                .to_string()
                .contains("concat: no inputs")
        );
    }
}
