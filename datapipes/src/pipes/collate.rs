//! Makes one batch of a list of samples.

use crate::{
    Arity, BoxError, Context, Error, Graph, Hints, Items, Mismatch, Origin, Pipe, Result, Role,
};

/// Makes one batch of a list of samples; see [`Graph::collate`].
#[derive(Clone, Debug, Default)]
pub struct Collate(());

impl Collate {
    /// Makes a pipe that uses the samples' own [`Collate`](crate::Collate).
    pub fn new() -> Self {
        Collate(())
    }
}

impl<T> Pipe<Vec<T>> for Collate
where
    T: crate::Collate<Batch: Send + 'static> + Send + 'static,
{
    type Out = T::Batch;

    fn apply(&self, input: Items<Vec<T>>, cx: &Context) -> Items<T::Batch> {
        collated(input, cx, PADDED, T::collate)
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::One).role(Role::Collate)
    }
    fn weigh(&self, batch: &T::Batch) -> Option<usize> {
        T::weigh(batch)
    }
}

/// Makes one batch of a list of samples by a function; see [`Graph::collate_with`].
#[derive(Clone, Debug)]
pub struct CollateWith<F>(F);

impl<F> CollateWith<F> {
    /// Makes a pipe that uses `f`.
    pub fn new(f: F) -> Self {
        CollateWith(f)
    }
}

impl<T, U, E, F> Pipe<Vec<T>> for CollateWith<F>
where
    T: Send + 'static,
    U: Send + 'static,
    E: Into<BoxError>,
    F: Fn(Vec<T>) -> Result<U, E> + Clone + Send + Sync + 'static,
{
    type Out = U;

    fn apply(&self, input: Items<Vec<T>>, cx: &Context) -> Items<U> {
        let f = self.0.clone();
        collated(input, cx, PADDED, move |samples| {
            f(samples).map_err(Error::user)
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::One).weighs_by_type(true)
    }
}

/// Advice for samples of different lengths.
const PADDED: &str = "; `padded_batch` makes them equally long";

/// Applies `f` to each batch. An error names samples that do not fit together, followed by `advice`
/// if they differ in length only.
pub(super) fn collated<T, U, F>(
    input: Items<Vec<T>>,
    cx: &Context,
    advice: &'static str,
    f: F,
) -> Items<U>
where
    T: Send + 'static,
    U: Send + 'static,
    F: Fn(Vec<T>) -> Result<U> + Send + 'static,
{
    input.each(cx, move |batch| {
        let (samples, origin) = batch.into_parts();
        let batch = f(samples).map_err(|error| name_items(error, &origin, advice).of(&origin));
        Some(batch.map(|batch| crate::Item::new(batch, origin)))
    })
}

/// Replaces the positions in the batch by the names of the items.
fn name_items(error: Error, batch: &Origin, advice: &str) -> Error {
    let cause = std::error::Error::source(&error);
    let Some(mismatch) = cause.and_then(|cause| cause.downcast_ref::<Mismatch>()) else {
        return error;
    };
    let parts = batch.parts();
    match mismatch.places().map(|place| parts.get(place)) {
        [Some(a), Some(b)] => {
            let advice = if mismatch.is_ragged() { advice } else { "" };
            Error::shape(mismatch.describe(a, b) + advice)
        }
        _ => error,
    }
}

/// The output of [`batch`](Graph::batch): a list of samples, the input of
/// [`collate`](Graph::collate), [`collate_with`](Graph::collate_with) and
/// [`unbatch`](Graph::unbatch).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no list of samples",
    label = "this step takes batches: put `.batch(n)` before it",
    note = "`collate`, `collate_with` and `unbatch` take a graph of `Vec`s, as `.batch(n)` gives them"
)]
pub trait Batched<S>: Sized + Send + 'static {
    /// Returns the same graph, as one of lists.
    fn lists(graph: Graph<Self>) -> Graph<Vec<S>>;
}

impl<S: Send + 'static> Batched<S> for Vec<S> {
    fn lists(graph: Graph<Self>) -> Graph<Vec<S>> {
        graph
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Makes one batch of each list of samples: numbers and tensors become one tensor, structures
    /// one of each field.
    ///
    /// [`Collate`](crate::Collate) lists the types of batches. Runs on the CPU workers, batch by
    /// batch; order is kept. For sequences of different lengths see
    /// [`padded_batch`](Graph::padded_batch), for anything else
    /// [`collate_with`](Graph::collate_with).
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) in the place of a batch whose samples do not fit together, with the
    /// names of two that differ.
    ///
    /// # Examples
    /// Without [`batch`](Graph::batch) before it, it does not compile:
    /// ```compile_fail,E0277
    /// datapipes::Graph::range(0..4).collate();
    /// ```
    /// ```
    /// let graph = datapipes::Graph::range(0..4).map(|n| ([n as f32; 3], n % 2 == 0)).batch(4).collate();
    /// let (values, even) = graph.collect()?.remove(0);
    /// assert_eq!(values.shape(), [4, 3]);
    /// assert_eq!(even.as_slice::<bool>()?, [true, false, true, false]);
    ///
    /// let ragged = datapipes::Graph::from_vec(vec![vec![1u8, 2], vec![3]]).batch(2).collate();
    /// let error = ragged.collect().unwrap_err();
    /// assert!(error.to_string().ends_with("0:0 has length 2, 0:1 has length 1; `padded_batch` makes them equally long"));
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn collate<S>(self) -> Graph<S::Batch>
    where
        T: Batched<S>,
        S: crate::Collate<Batch: Send + 'static> + Send + 'static,
    {
        T::lists(self).pipe(Collate::new())
    }

    /// Makes one batch of each list of samples by a function, which runs where that of
    /// [`collate`](Graph::collate) runs.
    ///
    /// # Errors
    /// An error of the function takes the batch's place. If it comes from a
    /// [`Mismatch`], as those of [`Tensor::stack`](crate::Tensor::stack) do, the
    /// two samples are named.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{Error, Graph};
    /// let graph = Graph::range(0..4).batch(4).collate_with(|batch| Ok::<_, Error>(batch.iter().sum::<u64>()));
    /// assert_eq!(graph.collect().unwrap(), [6]);
    /// ```
    pub fn collate_with<S, U, E, F>(self, f: F) -> Graph<U>
    where
        T: Batched<S>,
        S: Send + 'static,
        U: Send + 'static,
        E: Into<BoxError>, // With `?` in it a closure ends in `datapipes::Ok(..)`, or `Ok::<_, BoxError>(..)`.
        F: Fn(Vec<S>) -> Result<U, E> + Clone + Send + Sync + 'static,
    {
        T::lists(self).pipe(CollateWith::new(f))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::Tensor;

    #[test]
    fn both_items_are_named() {
        let shapes = Graph::from_vec(vec![[3, 2], [3, 2], [3, 4]]);
        let tensors = shapes
            .try_map(|shape| Tensor::zeros(crate::DType::U8, shape))
            .map(|image| (1u8, image));
        let error = tensors.batch(3).collate().collect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        assert_eq!(
            error.to_string(),
            "collate: [0:0, 0:1, 0:2]: shape mismatch: 1: 0:0 has shape [3, 2], 0:2 has shape [3, 4]"
        );
    }

    #[test]
    fn a_users_own_function_fails_as_it_says() {
        let graph = Graph::range(0..2)
            .batch(2)
            .collate_with(|_| Err::<(), _>("never"));
        assert_eq!(
            graph.collect().unwrap_err().to_string(),
            "collate_with: [0:0, 0:1]: never"
        );
        let stacked = Graph::range(1..3).map(|n| vec![0u8; n as usize]).batch(2);
        let stacked = stacked.collate_with(|rows| {
            Tensor::stack(
                &rows
                    .into_iter()
                    .map(|r| Tensor::from_vec(r.clone(), [r.len()]))
                    .collect::<Result<Vec<_>>>()?,
            )
        });
        let error = stacked.collect().unwrap_err().to_string();
        assert!(
            error.contains("0:0 has shape [1], 0:1 has shape [2]"),
            "{error}"
        );
    }

    #[test]
    fn ragged_samples_are_told_of_padded_batch() {
        let said = |graph: Graph<Vec<Tensor>>| {
            graph
                .map(|rows| rows.into_iter().map(|row| (0u8, row)).collect::<Vec<_>>())
                .collate()
                .collect()
                .unwrap_err()
                .to_string()
        };
        let rows = |shapes: [[usize; 2]; 2]| {
            Graph::from_vec(shapes.to_vec())
                .try_map(|shape| Tensor::zeros(crate::DType::U8, shape))
                .batch(2)
        };
        let error = said(rows([[3, 2], [4, 2]]));
        assert!(
            error.ends_with(
                "1: 0:0 has shape [3, 2], 0:1 has shape [4, 2]; `padded_batch` makes them equally long"
            ),
            "{error}"
        );
        // Padding does not help if another axis differs.
        assert!(!said(rows([[3, 2], [3, 4]])).contains("padded_batch"));
    }

    #[test]
    fn row_30_no_items() {
        assert_eq!(Graph::range(0..0).batch(3).collate().collect().unwrap(), []);
    }
}
