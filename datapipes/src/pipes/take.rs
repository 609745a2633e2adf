//! Ends the stream after a number of items.

use crate::{Arity, Context, Graph, Hints, Items, Pipe};

/// Ends the stream after a number of items; see [`Graph::take`].
#[derive(Clone, Debug)]
pub struct Take(u64);

impl Take {
    /// Ends the stream after `items` items.
    pub fn new(items: u64) -> Self {
        Take(items)
    }
}

impl<T: Send + 'static> Pipe<T> for Take {
    type Out = T;

    fn apply(&self, mut input: Items<T>, cx: &Context) -> Items<T> {
        let mut left = or_fail!(cx.restored()).unwrap_or(self.0);
        let cx = cx.clone();
        Items::generate(async move |out| {
            loop {
                out.snapshot(&cx, || left);
                if left == 0 {
                    return;
                }
                let Some(item) = out.next_from(&mut input).await else {
                    return;
                };
                left -= 1;
                out.emit(Ok(item)).await;
            }
        })
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input.min(self.0))
    }
    fn hints(&self) -> Hints {
        Hints::default()
            .arity(Arity::AtMostOne)
            .is_resumable(true)
            .settings(self.0)
            .selects(true)
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Ends the stream after `items` items. Errors pass and do not count.
    ///
    /// The upstream stream is not polled again and is dropped with this one, so an error after the
    /// last item never arrives. The remaining items were never asked for and do not count as
    /// dropped. See also [`skip`](Graph::skip) and, for a part at random,
    /// [`sample`](Graph::sample).
    ///
    /// # Examples
    /// ```
    /// let graph = datapipes::Graph::from_iter_with(|| 0..).take(3);
    /// assert_eq!(graph.collect().unwrap(), [0, 1, 2]);
    /// ```
    pub fn take(self, items: u64) -> Graph<T> {
        self.pipe(Take::new(items))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, ErrorKind, Item};
    use futures::StreamExt;

    #[tokio::test]
    async fn row_28_nothing_is_waited_for_behind_the_last() {
        let cx = Context::default();
        let origin = cx.origin(0);
        let first = [Err(Error::new(ErrorKind::Io, "first")), Ok(1), Ok(2)];
        let first = first.map(|value| value.map(|value| Item::new(value, origin.clone())));
        let input = futures::stream::iter(first).chain(futures::stream::pending());
        let seen: Vec<_> = Take::new(2)
            .apply(Items::from_stream(input), &cx)
            .collect()
            .await;
        assert!(seen[0].is_err());
        assert_eq!(
            seen[1..]
                .iter()
                .map(|item| **item.as_ref().unwrap())
                .collect::<Vec<_>>(),
            [1, 2]
        );
        let never = futures::stream::poll_fn(|_| panic!("polled"));
        assert_eq!(
            Take::new(0)
                .apply(Items::<u8>::from_stream(never), &cx)
                .count()
                .await,
            0
        );
    }

    #[test]
    fn fewer_items_than_asked_for() {
        assert_eq!(Graph::range(0..2).take(5).collect().unwrap(), [0, 1]);
        assert_eq!(Graph::range(0..0).take(5).collect().unwrap(), [0u64; 0]);
    }
}
