//! Gives every item to several outputs.

use crate::pipes::shared_input::{Deal, Queues, share};
use crate::{Context, Graph, Hints, Item, Items, Result, Split};

/// Default number of items that may wait for an output.
pub(super) const BUFFER: usize = 1000;

/// Gives every item to several outputs; see [`Graph::fork`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Fork {
    outputs: usize,
    buffer: usize,
}

impl Fork {
    /// Makes a fork of this many outputs.
    pub fn new(outputs: usize) -> Self {
        Fork {
            outputs,
            buffer: BUFFER,
        }
    }

    /// Lets up to `items` items (by default 1000) wait for an output that is behind the others.
    pub fn buffer(mut self, items: usize) -> Self {
        self.buffer = items;
        self
    }
}

impl<T: Clone + Send + 'static> Split<T> for Fork {
    type Out = T;

    fn outputs(&self) -> usize {
        self.outputs
    }
    fn split(&self, input: Items<T>, cx: &Context) -> Vec<Items<T>> {
        share(input, self.outputs, self.buffer, ToAll, cx)
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input)
    }
    fn hints(&self) -> Hints {
        split_hints(self.outputs, self.buffer)
    }
}

pub(super) fn split_hints(outputs: usize, buffer: usize) -> Hints {
    let problem = match (outputs, buffer) {
        (0, _) => Some("no outputs"),
        (_, 0) => Some("a buffer of zero items"),
        _ => None,
    };
    Hints::any_order()
        .is_resumable(true)
        .selects(true)
        // In a resumed epoch each output gives its wanted items, and nothing else.
        .by_position(true)
        .settings(format_args!("{outputs} outputs, buffer {buffer}"))
        .buffered(buffer.saturating_mul(outputs.saturating_sub(1)))
        .problem(problem)
}

struct ToAll;

impl<T: Clone + Send + 'static> Deal<T> for ToAll {
    fn goes_to_one(&self) -> bool {
        false
    }
    fn deal(&mut self, item: Item<T>, to: &mut Queues<T>) -> Result<()> {
        let mut open: Vec<usize> = to.open().collect();
        let last = open.pop();
        for index in open {
            to.push(index, item.clone());
        }
        if let Some(last) = last {
            to.push(last, item);
        }
        Ok(())
    }
}

impl<T: Clone + Send + 'static> Graph<T> {
    /// Gives a clone of every item to each of `N` graphs (Multiply in PyTorch's [DataPipes RFC](https://github.com/pytorch/pytorch/issues/49440)). For a number known
    /// at run time: `graph.split(Fork::new(n))`.
    ///
    /// The outputs share everything upstream, which runs once: the output that is polled drives it,
    /// and items for the others wait, up to [`Fork::buffer`] each. An output that runs ahead of
    /// need waits when another's buffer is full. The clones have one origin. Errors go to every
    /// output, and a policy that skips counts each, unless a [`zip`](Graph::zip) joins them.
    ///
    /// A [`repeat`](Graph::repeat) in one branch runs everything upstream again for that branch. A
    /// loader that is to be [resumable](crate::loader::Builder::resumable) needs it above the fork, or
    /// below where the branches are joined.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if an item is needed from one output while
    /// another's buffer is full, since the reader would wait for ever. If one output is read to its
    /// end before the other is begun, the buffer must be as large as the data.
    ///
    /// # Examples
    /// ```
    /// let [numbers, copies] = datapipes::Graph::range(0..3).fork();
    /// let pairs = numbers.zip(copies.map(|n| n * n));
    /// assert_eq!(pairs.collect().unwrap(), [(0, 0), (1, 1), (2, 4)]);
    /// ```
    pub fn fork<const N: usize>(self) -> [Graph<T>; N] {
        array(self.split(Fork::new(N)))
    }
}

/// Returns the outputs of a split as an array.
pub(super) fn array<T, const N: usize>(outputs: Vec<Graph<T>>) -> [Graph<T>; N] {
    outputs
        .try_into()
        .unwrap_or_else(|_| unreachable!("it has N outputs"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataLoader, OnError};
    use futures::{FutureExt, StreamExt};

    #[test]
    fn row_36_diamond_with_a_filter_and_a_zip() {
        for workers in [0, 2] {
            let [a, b] = Graph::range(0..5000).fork();
            let joined = a.map(|n| n + 1).zip(b.map(|n| n * 2));
            let loader = DataLoader::builder(joined)
                .workers(workers)
                .build()
                .unwrap();
            for epoch in 0..2 {
                let seen: Vec<_> = loader.epoch(epoch).blocking().map(Result::unwrap).collect();
                assert_eq!(seen, (0..5000).map(|n| (n + 1, n * 2)).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn an_output_behind_a_full_buffer_is_an_error_and_no_deadlock() {
        let outputs = Graph::range(0..100).split(Fork::new(2).buffer(10));
        let error = Graph::concat(outputs).collect().unwrap_err().to_string();
        assert!(
            error.starts_with("fork: wrong configuration: output 0 ran 10 items ahead of output 1"),
            "{error}"
        );
        let outputs = Graph::range(0..100).split(Fork::new(2).buffer(100));
        assert_eq!(Graph::concat(outputs).collect().unwrap().len(), 200);
    }

    #[test]
    fn errors_and_panics_reach_every_output() {
        let bad = Graph::range(0..3).try_map(|n| if n == 1 { Err("one") } else { Ok(n) });
        let loader = DataLoader::builder(Graph::concat(bad.fork::<2>()))
            .workers(0)
            .on_error(OnError::skip(2));
        let loader = loader.build().unwrap();
        let mut epoch = loader.epoch(0).blocking();
        assert_eq!(
            epoch.by_ref().map(Result::unwrap).collect::<Vec<_>>(),
            [0, 2, 0, 2]
        );
    }

    #[tokio::test]
    async fn errors_are_told_alike_to_all() {
        let cx = Context::default();
        let error = |error: crate::Error| error.of(&cx.origin(7)).at(&"label".into());
        let pause = std::time::Duration::from_millis(7);
        for error in [
            error(crate::Error::user("no label")),
            error(crate::Error::user("no more labels").fatal()),
            error(crate::Error::new(crate::ErrorKind::Io, "cut").transient()),
            error(crate::Error::user("busy").with_retry_after(pause)),
        ] {
            let facts = |error: &crate::Error| {
                let (transient, pause) = (error.is_transient(), error.retry_after());
                (
                    error.to_string(),
                    error.is_about_an_item(),
                    transient,
                    pause,
                )
            };
            let expected = facts(&error);
            let input = Items::<u8>::from_results([Err(error)]);
            for output in Fork::new(3).split(input, &cx) {
                let seen: Vec<_> = output.collect().await;
                assert_eq!(facts(seen[0].as_ref().unwrap_err()), expected);
                assert_eq!(seen.len(), 1);
            }
        }
    }

    #[tokio::test]
    async fn a_dropped_output_holds_up_nobody() {
        let cx = Context::default();
        let origins = cx.clone();
        let input =
            Items::from_results((0..100u64).map(move |n| Ok(Item::new(n, origins.origin(n)))));
        let mut outputs = Fork::new(2).buffer(1).split(input, &cx);
        drop(outputs.pop());
        assert_eq!(outputs.remove(0).count().await, 100);
    }

    #[test]
    fn row_36_outputs_behind_threads_of_their_own() {
        for _ in 0..20 {
            let [a, b] = Graph::range(0..3000).fork();
            let joined = a.prefetch(8).zip(b.prefetch(8).map(|n| n * 2));
            let loader = DataLoader::builder(joined).workers(2).build().unwrap();
            let seen: Vec<_> = loader.epoch(0).blocking().map(Result::unwrap).collect();
            assert_eq!(seen, (0..3000).map(|n| (n, n * 2)).collect::<Vec<_>>());
        }
    }

    /// An output that is woken while it is given an item need not come back, so another that needs
    /// room in its buffer must not wait for it.
    #[test]
    fn nobody_waits_for_an_output_that_was_woken_while_it_got_its_item() {
        let cx = Context::default();
        let (mut n, origins) = (0, cx.clone());
        let input = futures::stream::poll_fn(move |task| {
            task.waker().wake_by_ref();
            n += 1;
            std::task::Poll::Ready(Some(Ok(Item::new(n, origins.origin(n)))))
        });
        let mut outputs = Fork::new(2).buffer(1).split(Items::from_stream(input), &cx);
        let mut next = |output: usize| outputs[output].next().now_or_never().flatten();
        assert_eq!(*next(0).unwrap().unwrap(), 1);
        assert_eq!(*next(1).unwrap().unwrap(), 1);
        assert_eq!(*next(1).unwrap().unwrap(), 2);
        let error = next(1).unwrap().unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Config);
    }

    #[tokio::test]
    async fn outputs_on_two_tasks_make_progress() {
        let cx = Context::default();
        let input = futures::stream::iter(0..1000u64).then(|n| async move {
            tokio::task::yield_now().await;
            Ok(Item::new(n, Context::default().origin(n)))
        });
        let mut outputs = Fork::new(2)
            .buffer(2000)
            .split(Items::from_stream(input), &cx);
        let (b, a) = (outputs.pop().unwrap(), outputs.pop().unwrap());
        let (a, b) = futures::join!(a.count(), b.count());
        assert_eq!((a, b), (1000, 1000));
    }
}
