//! Tries an item again if a pipe fails for it.

use std::sync::Arc;
use std::time::Duration;

use crate::{Backoff, Context, Error, Graph, Hints, Items, Pipe, catch_panic};

/// Runs another pipe, and tries an item again if the pipe fails for it; see [`Graph::retry`].
#[must_use]
pub struct Retry<P> {
    pipe: Arc<P>,
    again: u32,
    pauses: Backoff,
    worth: Arc<dyn Fn(&Error) -> bool + Send + Sync>,
}

impl<P> Retry<P> {
    /// Tries each item up to `again` times more, at once, whatever the error.
    pub fn new(pipe: P, again: u32) -> Self {
        let pauses = Backoff {
            first: Duration::ZERO,
            ..Backoff::default()
        };
        Retry {
            pipe: Arc::new(pipe),
            again,
            pauses,
            worth: Arc::new(|_| true),
        }
    }

    setters! {
        /// Waits before each further try: `first` to twice as long, then 1.5 to 3 times as long as before
        /// ([`Backoff`]), at most 15 seconds. The item waits; others go on meanwhile.
        backoff(first: Duration) => pauses.first = first;

        /// Tries again only after errors that `worth` accepts.
        only_if(worth: impl Fn(&Error) -> bool + Send + Sync + 'static) => worth = Arc::new(worth);
    }
}

opaque_debug!(Retry<P> { again, pause = self.pauses.first });

impl<T: Clone + Send + 'static, P: Pipe<T>> Pipe<T> for Retry<P> {
    type Out = P::Out;

    fn apply(&self, mut input: Items<T>, cx: &Context) -> Items<P::Out> {
        let (pipe, again, pauses, worth) = (
            self.pipe.clone(),
            self.again,
            self.pauses.clone(),
            self.worth.clone(),
        );
        let cx = cx.clone();
        Items::generate(async move |out| {
            while let Some(item) = out.next_from(&mut input).await {
                // Outputs from before the error are not given a second time: the pipe repeats
                // itself exactly.
                let (mut given, mut left, mut pause) = (0, again, Duration::ZERO);
                'tries: loop {
                    let mut output = pipe.apply(Items::from_results([Ok(item.clone())]), &cx);
                    let mut place = 0;
                    while let Some(result) = futures::StreamExt::next(&mut output).await {
                        match result {
                            Err(error)
                                if left > 0
                                    && place >= given
                                    && error.kind().is_about_an_item()
                                    && worth(&error) =>
                            {
                                left -= 1;
                                let retried = cx.count_retried();
                                if retried <= 5 || retried.is_power_of_two() {
                                    let node = &**cx.node();
                                    let _ = catch_panic(
                                        || tracing::warn!(node, retried, left, %error, "trying an item again"),
                                    );
                                }
                                pause = pauses.next_pause(pause);
                                if !pause.is_zero() {
                                    let _ = cx.blocking(move || std::thread::sleep(pause)).await;
                                }
                                continue 'tries;
                            }
                            result if place >= given => {
                                given += 1;
                                place += 1;
                                out.emit(result).await;
                            }
                            _ => place += 1,
                        }
                    }
                    break;
                }
            }
        })
    }
    forward! { self.pipe =>
        fn name(&self) -> String;
        fn len_hint(&self, input: u64) -> Option<u64>;
        fn weigh(&self, item: &P::Out) -> Option<usize>;
        fn expected_weight(&self, input: &T) -> Option<usize>;
    }
    fn hints(&self) -> Hints {
        let inner = self.pipe.hints();
        let problem = (!inner.is_shardable).then_some(
            "is tried again item by item, but is not shardable: it looks at the stream as a whole",
        );
        let comma = if inner.settings.is_empty() { "" } else { ", " };
        let settings = format!("{}{comma}{} more tries", inner.settings, self.again);
        inner.settings(settings).problem(problem)
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Adds a pipe, and tries an item again, up to `again` times more, if the pipe fails for it.
    ///
    /// The pipe must be shardable (it treats each item by itself) and repeat itself exactly; the
    /// item is cloned. After the last try the error stands, and the loader's
    /// [`OnError`](crate::OnError) decides. Panics are not tried again. Tries are counted
    /// ([`NodeStats::retried`](crate::loader::NodeStats::retried)); the first few of an epoch, and
    /// further ones whenever their number has doubled, are warnings to `tracing`. For pauses
    /// between tries, or for some errors only, see [`Retry`].
    ///
    /// # Examples
    /// ```
    /// use std::sync::atomic::{AtomicU32, Ordering};
    /// use std::sync::Arc;
    /// use datapipes::{Graph, pipes::TryMap};
    ///
    /// let calls = Arc::new(AtomicU32::new(0));
    /// let flaky = TryMap::new(move |n: u64| match calls.fetch_add(1, Ordering::Relaxed) % 3 {
    ///     0 | 1 => Err("the line is busy"),
    ///     _ => Ok(n),
    /// });
    /// assert_eq!(Graph::range(0..3).retry(2, flaky).collect().unwrap(), [0, 1, 2]);
    /// ```
    pub fn retry<P: Pipe<T>>(self, again: u32, pipe: P) -> Graph<P::Out>
    where
        T: Clone,
    {
        self.pipe(Retry::new(pipe, again))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::pipes::{Batch, Map, TryMap};
    use crate::{DataLoader, ErrorKind, OnError, testing};

    #[test]
    fn keeps_the_contract() {
        testing::check_pipe(&Retry::new(Map::new(|n: u64| n + 1), 2), (0..20).collect());
    }

    #[test]
    fn the_error_stands_after_the_last_try() {
        let tries = Arc::new(AtomicU64::new(0));
        let counted = tries.clone();
        let failing = TryMap::new(move |n: u64| {
            counted.fetch_add(1, Ordering::SeqCst);
            if n == 3 { Err("three") } else { Ok(n) }
        });
        for workers in [0, 2] {
            tries.store(0, Ordering::SeqCst);
            let graph = Graph::range(0..5)
                .pipe(Retry::new(failing.clone(), 4).backoff(Duration::from_micros(1)));
            let loader = DataLoader::builder(graph)
                .workers(workers)
                .on_error(OnError::skip(1))
                .build()
                .unwrap();
            assert_eq!(
                loader
                    .epoch(0)
                    .blocking()
                    .map(Result::unwrap)
                    .collect::<Vec<_>>(),
                [0, 1, 2, 4]
            );
            assert_eq!(tries.load(Ordering::SeqCst), 4 + 5);
        }
        let picky = Retry::new(failing.clone(), 4).only_if(|error| error.kind() == ErrorKind::Io);
        tries.store(0, Ordering::SeqCst);
        assert_eq!(
            Graph::range(3..4)
                .pipe(picky)
                .collect()
                .unwrap_err()
                .to_string(),
            "try_map: 0:0: three"
        );
        assert_eq!(tries.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_pipe_over_the_whole_stream_is_refused() {
        let error = DataLoader::builder(Graph::range(0..5).retry(1, Batch::new(2)))
            .build()
            .unwrap_err();
        assert!(
            error.problems()[0].starts_with("batch: is tried again item by item"),
            "{error}"
        );
    }
}
