//! Makes batches of sequences of different lengths.

use std::fmt;

use crate::pipes::Batch;
use crate::pipes::collate::collated;
use crate::{Arity, Context, Graph, Hints, Items, Padded, Pipe};

/// Pads the sequences of a batch; see [`Graph::pad`].
#[derive(Clone, Debug)]
pub struct Pad<P>(P);

impl<P> Pad<P> {
    /// Pads with a number, a [`Padding`](crate::Padding), or a tuple with the padding of each
    /// field.
    pub fn new(pad: P) -> Self {
        Pad(pad)
    }
}

impl<T, P> Pipe<Vec<T>> for Pad<P>
where
    T: Padded<P, Batch: Send + 'static> + Send + 'static,
    P: Clone + fmt::Debug + Send + Sync + 'static,
{
    type Out = T::Batch;

    fn apply(&self, input: Items<Vec<T>>, cx: &Context) -> Items<T::Batch> {
        let pad = self.0.clone();
        collated(
            input,
            cx,
            "; give this field a padding, too",
            move |samples| T::padded(samples, &pad),
        )
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .arity(Arity::One)
            .settings(format_args!("with {:?}", self.0))
    }
    fn weigh(&self, batch: &T::Batch) -> Option<usize> {
        T::weigh(batch)
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Groups consecutive samples into batches, in which sequences are padded to the longest of
    /// their batch.
    ///
    /// The step combines [`batch`](Graph::batch) and [`pad`](Graph::pad). A sequence is a `Vec` of
    /// numbers, or a [`Tensor`](crate::Tensor) whose first axis may differ. [`Padded`] lists the
    /// types of `pad`:
    ///
    /// - a number, for samples that are sequences: the output is a tensor `[size, longest, ..]`, of
    ///   the type of the sequences, and their lengths as `[size]` of `i64`;
    /// - a [`Padding`](crate::Padding), to pad to a multiple or to a fixed length, or along all
    ///   axes;
    /// - a tuple for samples that are tuples, with `()` for fields that are collated as they are,
    ///   such as labels;
    /// - `[(key, number)]` for samples that are maps;
    /// - `()` for a struct that declares its padded fields, by `#[derive(Collate)]` and
    ///   `#[collate(pad = 0)]`; this is [`collate`](Graph::collate).
    ///
    /// If lengths differ much, [`bucket_batch`](Graph::bucket_batch) pads less.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) in the place of a batch whose samples do not
    /// fit together, with the names of the field and of two items; also if their type cannot hold
    /// the number.
    ///
    /// # Examples
    /// ```
    /// let words = datapipes::Graph::from_vec(vec![vec![1u32], vec![2, 3, 4], vec![]]);
    /// let (ids, lengths) = words.padded_batch(3, 0).collect()?.remove(0);
    /// assert_eq!(ids.shape(), [3, 3]);
    /// assert_eq!(ids.as_slice::<u32>()?, [1, 0, 0, 2, 3, 4, 0, 0, 0]);
    /// assert_eq!(lengths.as_slice::<i64>()?, [1, 3, 0]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    /// With labels, and to a multiple of eight:
    /// ```
    /// use datapipes::{Graph, Padding};
    /// let words = Graph::from_vec(vec![(vec![1u32], 7u8), (vec![2, 3, 4], 8)]);
    /// let pad = (Padding::new(0).multiple_of(8), ());
    /// let ((ids, lengths), labels) = words.padded_batch(2, pad).collect()?.remove(0);
    /// assert_eq!((ids.shape(), lengths.as_slice::<i64>()?), (&[2, 8][..], &[1, 3][..]));
    /// assert_eq!(labels.as_slice::<u8>()?, [7, 8]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn padded_batch<P>(self, batch: impl Into<Batch>, pad: P) -> Graph<T::Batch>
    where
        T: Padded<P, Batch: Send + 'static>,
        P: Clone + fmt::Debug + Send + Sync + 'static,
    {
        self.batch(batch).pad(pad)
    }
}

impl<T: Send + 'static> Graph<Vec<T>> {
    /// Pads the sequences of each batch: the second half of [`padded_batch`](Graph::padded_batch),
    /// for batches that were made in another way.
    ///
    /// Runs on the CPU workers; order is kept.
    ///
    /// # Errors
    /// Fails as [`padded_batch`](Graph::padded_batch) does.
    ///
    /// # Examples
    /// ```
    /// let lists = datapipes::Graph::from_vec(vec![vec![vec![1u32], vec![2, 3]]]);
    /// let (values, lengths) = lists.pad(0u32).collect()?.remove(0);
    /// assert_eq!(values.as_slice::<u32>()?, [1, 0, 2, 3]); // of shape [2, 2]
    /// assert_eq!(lengths.as_slice::<i64>()?, [1, 2]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn pad<P>(self, pad: P) -> Graph<T::Batch>
    where
        T: Padded<P, Batch: Send + 'static>,
        P: Clone + fmt::Debug + Send + Sync + 'static,
    {
        self.pipe(Pad::new(pad))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use crate::{DType, ErrorKind, Graph, Padding, Tensor, testing};

    #[test]
    fn keeps_the_contract() {
        let samples = |n: u64| {
            (0..n % 4)
                .map(|k| (vec![n; k as usize], n))
                .collect::<Vec<_>>()
        };
        testing::check_pipe(&super::Pad::new((0, ())), (0..8).map(samples).collect());
    }

    #[test]
    fn padding_keeps_labels() {
        let texts =
            Graph::range(0..5).map(|n| (vec![n as u32; n as usize], n as u8, n.to_string()));
        let batches = texts.padded_batch(3, (1, (), ())).collect().unwrap();
        let shapes: Vec<_> = batches
            .iter()
            .map(|((ids, _), ..)| ids.shape().to_vec())
            .collect();
        assert_eq!(shapes, [[3, 2], [2, 4]]);
        let ((ids, lengths), labels, names) = &batches[1];
        assert_eq!(ids.as_slice::<u32>().unwrap(), [3, 3, 3, 1, 4, 4, 4, 4]);
        assert_eq!(lengths.as_slice::<i64>().unwrap(), [3, 4]);
        assert_eq!(
            (labels.as_bytes(), &names[..]),
            (&[3, 4][..], &["3".to_owned(), "4".to_owned()][..])
        );

        let maps = Graph::range(1..4).map(|n| {
            let tensor = |len| Tensor::from_vec(vec![n; len], [len]).unwrap();
            HashMap::from([
                ("ids".to_owned(), tensor(n as usize)),
                ("label".to_owned(), tensor(1)),
            ])
        });
        let (batch, lengths) = maps
            .padded_batch(3, [("ids", Padding::new(0))])
            .collect()
            .unwrap()
            .remove(0);
        assert_eq!(
            (batch["ids"].shape(), batch["label"].shape()),
            (&[3, 3][..], &[3, 1][..])
        );
        assert_eq!(lengths["ids"].as_slice::<i64>().unwrap(), [1, 2, 3]);
    }

    #[test]
    fn sequences_that_differ_elsewhere_are_named() {
        let shapes = Graph::from_vec(vec![[3, 2], [1, 2], [3, 4]]);
        let graph = shapes
            .try_map(|shape| Tensor::zeros(DType::F32, shape))
            .padded_batch(3, 0f32);
        let error = graph.collect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        assert!(
            error
                .to_string()
                .contains("0:0 has steps of shape [2], 0:2 has steps of shape [4]"),
            "{error}"
        );
        let labels =
            Graph::from_vec(vec![vec![1u8], vec![], vec![2]]).map(|label| (vec![1i64], label));
        let error = labels
            .padded_batch(3, (0, ()))
            .collect()
            .unwrap_err()
            .to_string();
        assert!(
            error
                .ends_with("1: 0:0 has length 1, 0:1 has length 0; give this field a padding, too"),
            "{error}"
        );
        let long =
            Graph::from_vec(vec![vec![1u8], vec![1; 9]]).padded_batch(2, Padding::new(0).length(4));
        let error = long.collect().unwrap_err().to_string();
        assert!(
            error.ends_with("shape mismatch: 0:1 has 9 steps, more than the 4 to pad to"),
            "{error}"
        );
    }

    #[test]
    fn row_30_no_items() {
        assert_eq!(
            Graph::from_vec(Vec::<Vec<u8>>::new())
                .padded_batch(3, 0u8)
                .collect()
                .unwrap(),
            []
        );
    }
}
