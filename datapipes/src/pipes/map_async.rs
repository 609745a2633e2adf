//! Applies an async function to every item.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;

use crate::{Arity, BoxError, Context, Error, Graph, Hints, Item, Items, Pipe, Result, Work};

/// Applies an async function to every item; see [`Graph::map_async`].
#[derive(Clone, Debug)]
pub struct MapAsync<F>(F);

impl<F> MapAsync<F> {
    /// Applies `f`.
    pub fn new(f: F) -> Self {
        MapAsync(f)
    }
}

impl<In, Out, E, Fut, F> Pipe<In> for MapAsync<F>
where
    In: Send + 'static,
    Out: Send + 'static,
    E: Into<BoxError> + 'static,
    Fut: Future<Output = Result<Out, E>> + Send + 'static,
    F: Fn(In) -> Fut + Clone + Send + Sync + 'static,
{
    type Out = Out;

    fn apply(&self, mut input: Items<In>, cx: &Context) -> Items<Out> {
        let (f, cx) = (self.0.clone(), cx.clone());
        Items::generate(async move |out| {
            while let Some(item) = out.next_from(&mut input).await {
                if cx.is_cancelled() {
                    return;
                }
                let (value, origin) = item.into_parts();
                // A panic costs the item that caused it, as in `map`.
                let outcome = AssertUnwindSafe(async { f(value).await.map_err(Error::user) })
                    .catch_unwind()
                    .await;
                let result =
                    outcome.unwrap_or_else(|payload| Err(Error::panic(payload).at(cx.node())));
                let item = result
                    .map_err(|error| error.of(&origin))
                    .map(|value| Item::new(value, origin));
                out.emit(item).await;
            }
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .work(Work::Io)
            .arity(Arity::One)
            .weighs_by_type(true)
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Applies an async function to every item: a request, a query, a read.
    ///
    /// The futures run on the async runtime, many at once ([`concurrency`](Graph::concurrency) sets
    /// the number), and order is kept. They must not block or compute for long; use
    /// [`map`](Graph::map) for CPU work.
    ///
    /// # Errors
    /// An error of the function takes the item's place, with the names of node and item added.
    ///
    /// # Panics
    /// A panic of the function becomes an error that names the node and the item.
    ///
    /// # Cancellation
    /// Dropping the epoch drops the futures in flight.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{Error, Graph};
    /// let names = Graph::from_vec(vec!["a", "bcd"]);
    /// let lengths = names.map_async(|name| async move { Ok::<_, Error>(name.len()) });
    /// assert_eq!(lengths.collect().unwrap(), [1, 3]);
    /// ```
    pub fn map_async<U, E, Fut, F>(self, f: F) -> Graph<U>
    where
        U: Send + 'static,
        E: Into<BoxError> + 'static, // With `?` in it a closure ends in `datapipes::Ok(..)`, or `Ok::<_, BoxError>(..)`.
        Fut: Future<Output = Result<U, E>> + Send + 'static,
        F: Fn(T) -> Fut + Clone + Send + Sync + 'static,
    {
        self.pipe(MapAsync::new(f))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use futures::StreamExt;

    #[tokio::test]
    async fn an_error_and_a_panic_cost_one_item_each() {
        let pipe = MapAsync::new(|n: u64| async move {
            tokio::task::yield_now().await;
            match n {
                1 => Err("one".to_owned()),
                2 => panic!("two"),
                n => Ok(n * 10),
            }
        });
        let cx = Context::default();
        let input = Items::from_results((0..4).map(move |n| Ok(Item::new(n, cx.origin(n)))));
        let seen: Vec<_> = pipe.apply(input, &Context::default()).collect().await;
        assert_eq!(**seen[0].as_ref().unwrap(), 0);
        assert_eq!(seen[1].as_ref().unwrap_err().to_string(), "0:1: one");
        let panic = seen[2].as_ref().unwrap_err();
        assert_eq!(
            (panic.kind(), panic.to_string().as_str()),
            (ErrorKind::Panic, "pipe: 0:2: panicked: two")
        );
        assert_eq!(**seen[3].as_ref().unwrap(), 30);
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn the_number_in_flight_may_be_without_limit() {
        let items = crate::Graph::range(0..10);
        let items = items.map_async(|n| async move {
            tokio::task::yield_now().await;
            Ok::<_, crate::Error>(n)
        });
        let read = items.concurrency(usize::MAX).collect().unwrap();
        assert_eq!(read, (0..10).collect::<Vec<_>>());
    }
}
