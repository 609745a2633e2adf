//! Makes any number of items of each.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{Context, Error, Graph, Hints, Item, Items, Pipe};

/// Makes any number of items of each; see [`Graph::flat_map`].
#[derive(Clone, Debug)]
pub struct FlatMap<F>(F);

impl<F> FlatMap<F> {
    /// Applies `f`.
    pub fn new(f: F) -> Self {
        FlatMap(f)
    }
}

impl<In, I, F> Pipe<In> for FlatMap<F>
where
    In: Send + 'static,
    I: IntoIterator<Item: Send + 'static, IntoIter: Send + 'static>,
    F: Fn(In) -> I + Clone + Send + Sync + 'static,
{
    type Out = I::Item;

    fn apply(&self, mut input: Items<In>, cx: &Context) -> Items<I::Item> {
        let (f, cx) = (self.0.clone(), cx.clone());
        Items::generate(async move |out| {
            while let Some(item) = out.next_from(&mut input).await {
                let (value, parent) = item.into_parts();
                let children = parent.children();
                let mut index = 0;
                // A panic ends the item that caused it, after those of its children that were
                // there.
                let mut iter = catch_unwind(AssertUnwindSafe(|| f(value).into_iter()));
                loop {
                    if cx.is_cancelled() {
                        return;
                    }
                    let next = match &mut iter {
                        Ok(iter) => catch_unwind(AssertUnwindSafe(|| iter.next())),
                        Err(payload) => Err(std::mem::replace(payload, Box::new(()))),
                    };
                    match next {
                        Ok(Some(child)) => out.emit(Ok(Item::new(child, children.at(index)))).await,
                        Ok(None) => break,
                        Err(payload) => {
                            out.emit(Err(Error::panic(payload).at(cx.node()).of(&parent)))
                                .await;
                            break;
                        }
                    }
                    index += 1;
                }
            }
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable().weighs_by_type(true).children(true)
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Makes any number of items of each, in order.
    ///
    /// The function and the iterator it returns run on the CPU workers. The iterator is advanced on
    /// demand, so it may be very long; only the items in queues are in memory. The items are
    /// children of their input: the second of item `0:17` is `0:17/1`. To undo a batch use
    /// [`unbatch`](Graph::unbatch).
    ///
    /// # Panics
    /// A panic becomes an error that names the node and the item, and ends that item's children.
    ///
    /// # Examples
    /// ```
    /// let words = datapipes::Graph::from_vec(vec!["a b", "", "c"]).flat_map(|line| line.split_whitespace());
    /// assert_eq!(words.collect().unwrap(), ["a", "b", "c"]);
    /// ```
    pub fn flat_map<I, F>(self, f: F) -> Graph<I::Item>
    where
        I: IntoIterator<Item: Send + 'static, IntoIter: Send + 'static>,
        F: Fn(T) -> I + Clone + Send + Sync + 'static,
    {
        self.pipe(FlatMap::new(f))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;

    #[tokio::test]
    async fn an_endless_iterator_streams() {
        let pipe = FlatMap::new(|n: u64| n..);
        let input = Items::from_results([Ok(Item::new(5, Context::default().origin(9)))]);
        let seen: Vec<_> = pipe
            .apply(input, &Context::default())
            .take(1000)
            .collect()
            .await;
        let last = seen.last().unwrap().as_ref().unwrap();
        assert_eq!(
            (**last, last.origin().to_string().as_str()),
            (1004, "0:9/999")
        );
    }

    #[tokio::test]
    async fn a_panic_ends_its_item_only() {
        let pipe = FlatMap::new(|n: u64| {
            assert!(n != 1, "no");
            (0..3).map(move |k| {
                if n == 2 && k == 1 {
                    panic!("k")
                } else {
                    10 * n + k
                }
            })
        });
        let cx = Context::default();
        let input = Items::from_results((0..4).map(move |n| Ok(Item::new(n, cx.origin(n)))));
        let seen: Vec<_> = pipe.apply(input, &Context::default()).collect().await;
        let seen: Vec<_> = seen
            .into_iter()
            .map(|r| r.map(Item::into_inner).map_err(|e| e.to_string()))
            .collect();
        let [one, two] =
            ["pipe: 0:1: panicked: no", "pipe: 0:2: panicked: k"].map(|text| Err(text.to_owned()));
        assert_eq!(
            seen,
            [
                Ok(0),
                Ok(1),
                Ok(2),
                one,
                Ok(20),
                two,
                Ok(30),
                Ok(31),
                Ok(32)
            ]
        );
    }

    #[test]
    fn row_30_no_items() {
        assert_eq!(
            Graph::range(0..0).flat_map(|n| [n]).collect().unwrap(),
            [0u64; 0]
        );
        assert_eq!(
            Graph::range(0..9)
                .flat_map(|_| None::<u64>)
                .collect()
                .unwrap(),
            [0u64; 0]
        );
    }
}
