//! Makes batches of sequences of different lengths.

use std::fmt;

use crate::collate::pad;
use crate::pipes::collate::collated;
use crate::{Arity, Context, Element, Facts, Graph, Items, Pipe, Sequence, Tensor};

/// Pads the sequences of a batch to the longest; see [`Graph::pad`].
#[derive(Clone, Debug)]
pub struct Pad<E>(E);

impl<E: Element> Pad<E> {
    /// With this value.
    pub fn new(value: E) -> Self {
        Pad(value)
    }
}

impl<E: Element + fmt::Debug, S: Sequence<E> + Send + 'static> Pipe<Vec<S>> for Pad<E> {
    type Out = (Tensor, Tensor);

    fn apply(&self, input: Items<Vec<S>>, cx: &Context) -> Items<(Tensor, Tensor)> {
        let value = self.0;
        collated(input, cx, move |sequences| pad(&sequences, value))
    }
    fn is_shardable(&self) -> bool {
        true
    }
    fn arity(&self) -> Arity {
        Arity::One
    }
    fn facts(&self) -> Facts {
        Facts::any_order().with_settings(format_args!("with {:?}", self.0))
    }
    fn weigh(&self, (batch, lengths): &(Tensor, Tensor)) -> Option<usize> {
        Some(batch.byte_len() + lengths.byte_len())
    }
}

impl<S: Send + 'static> Graph<S> {
    /// Groups consecutive sequences into batches of `size`, each padded with `pad` to its longest.
    ///
    /// This is [`batch`](Graph::batch) and [`pad`](Graph::pad). A sequence is a `Vec` of numbers, or a [`Tensor`]
    /// whose first axis may differ. Comes out: a tensor `[size, longest, ..]`, and the lengths as `[size]` of `i64`.
    /// Where lengths differ much, [`bucket_batch`](Graph::bucket_batch) pads less.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) in the place of a batch whose sequences differ in more than
    /// the first axis, or are not of the type of `pad`.
    ///
    /// # Examples
    /// ```
    /// let words = datapipes::Graph::from_vec(vec![vec![1u32], vec![2, 3, 4], vec![]]);
    /// let (ids, lengths) = words.padded_batch(3, 0u32).collect()?.remove(0);
    /// assert_eq!(ids.shape(), [3, 3]);
    /// assert_eq!(ids.as_slice::<u32>()?, [1, 0, 0, 2, 3, 4, 0, 0, 0]);
    /// assert_eq!(lengths.as_slice::<i64>()?, [1, 3, 0]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn padded_batch<E: Element>(self, size: usize, pad: E) -> Graph<(Tensor, Tensor)>
    where
        S: Sequence<E>,
    {
        self.batch(size).pad(pad)
    }
}

impl<S: Send + 'static> Graph<Vec<S>> {
    /// Pads the sequences of each batch with `value` to the longest: the second half of
    /// [`padded_batch`](Graph::padded_batch), for batches that were made in another way.
    ///
    /// Runs on the CPU workers; order is kept.
    ///
    /// # Errors
    /// As [`padded_batch`](Graph::padded_batch).
    pub fn pad<E: Element>(self, value: E) -> Graph<(Tensor, Tensor)>
    where
        S: Sequence<E>,
    {
        self.pipe(Pad::new(value))
    }
}

#[cfg(test)]
mod tests {
    use crate::{DType, ErrorKind, Graph, Tensor};

    #[test]
    fn sequences_that_differ_elsewhere_are_named() {
        let shapes = Graph::from_vec(vec![[3, 2], [1, 2], [3, 4]]);
        let graph = shapes.try_map(|shape| Tensor::zeros(DType::F32, shape)).padded_batch(3, 0f32);
        let error = graph.collect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        assert!(
            error.to_string().contains("0:0 has steps of shape [2], 0:2 has steps of shape [4]"),
            "{error}"
        );
    }

    #[test]
    fn row_30_no_items() {
        assert_eq!(Graph::from_vec(Vec::<Vec<u8>>::new()).padded_batch(3, 0u8).collect().unwrap(), []);
    }
}
