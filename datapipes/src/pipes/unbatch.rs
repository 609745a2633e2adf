//! Takes batches apart.

use crate::pipes::Batched;
use crate::{Context, Graph, Hints, Item, Items, Pipe};

/// Takes batches apart; see [`Graph::unbatch`].
#[derive(Clone, Debug, Default)]
pub struct Unbatch(());

impl Unbatch {
    /// Makes the pipe.
    pub fn new() -> Self {
        Unbatch(())
    }
}

impl<T: Send + 'static> Pipe<Vec<T>> for Unbatch {
    type Out = T;

    fn apply(&self, mut input: Items<Vec<T>>, _: &Context) -> Items<T> {
        Items::generate(async move |out| {
            while let Some(batch) = out.next_from(&mut input).await {
                let (values, origin) = batch.into_parts();
                let parts = origin.parts();
                let own = parts.len() == values.len();
                let children = origin.children();
                for (index, value) in values.into_iter().enumerate() {
                    let origin = if own {
                        parts[index].clone()
                    } else {
                        children.at(index as u64)
                    };
                    out.emit(Ok(Item::new(value, origin))).await;
                }
            }
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Takes batches apart: the items of each, in order.
    ///
    /// The items get back the origins that they had before [`batch`](Graph::batch), as long as the
    /// batch has as many; else they are children of the batch.
    ///
    /// # Examples
    /// ```
    /// let graph = datapipes::Graph::range(0..5).batch(2).unbatch();
    /// assert_eq!(graph.collect().unwrap(), [0, 1, 2, 3, 4]);
    /// ```
    pub fn unbatch<S: Send + 'static>(self) -> Graph<S>
    where
        T: Batched<S>,
    {
        T::lists(self).pipe(Unbatch::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_get_their_origins_back() {
        let fails = |n| if n == 1 { Err("one") } else { Ok(n) };
        let whole = Graph::range(0..3).batch(3).unbatch().try_map(fails);
        assert_eq!(
            whole.collect().unwrap_err().to_string(),
            "try_map: 0:1: one"
        );
        let cut = Graph::range(0..3)
            .batch(3)
            .map(|v| v[1..].to_vec())
            .unbatch()
            .try_map(fails);
        assert_eq!(
            cut.collect().unwrap_err().to_string(),
            "try_map: [0:0, 0:1, 0:2]/0: one"
        );
    }

    #[test]
    fn row_30_no_items() {
        assert_eq!(
            Graph::range(0..0).batch(3).unbatch().collect().unwrap(),
            [0u64; 0]
        );
        assert_eq!(
            Graph::range(0..3)
                .map(|_| Vec::<u8>::new())
                .unbatch()
                .collect()
                .unwrap(),
            [0u8; 0]
        );
    }
}
