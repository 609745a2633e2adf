//! Sources from ranges, iterators, streams and channels.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::task::{self, Poll};

use futures::StreamExt;

use crate::{
    Chunk, Chunks, Context, Demand, Error, Graph, Hints, Item, Items, Result, Source, Wanted,
};

/// A source that makes a fresh iterator for each epoch; see [`Graph::from_iter_with`].
#[derive(Clone, Debug)]
#[must_use]
pub struct FromIterator<F> {
    make: F,
    len: Option<u64>,
}

impl<F> FromIterator<F> {
    /// Calls `make` for each epoch.
    pub fn new(make: F) -> Self {
        FromIterator { make, len: None }
    }

    /// Sets the number of items.
    pub fn len(mut self, len: u64) -> Self {
        self.len = Some(len);
        self
    }
}

impl<T, I, F> Source for FromIterator<F>
where
    T: Send + 'static,
    I: IntoIterator<Item = T, IntoIter: Send + 'static>,
    F: Fn() -> I + Clone + Send + Sync + 'static,
{
    type Out = T;

    fn open(&self, cx: &Context) -> Items<T> {
        let (make, cx) = (self.make.clone(), cx.clone());
        Items::from_chunks(OpenIter {
            make: Some(make),
            iter: None,
            panicked: None,
            at: 0,
            cx,
        })
    }
    fn name(&self) -> String {
        "from_iter".to_owned()
    }
    fn len_hint(&self) -> Option<u64> {
        self.len
    }
    fn hints(&self) -> Hints {
        let hints = Hints::any_order().weighs_by_type(true);
        match self.len {
            Some(len) => hints.settings(format_args!("{len} items")),
            None => hints,
        }
    }
}

struct OpenIter<F, I> {
    /// Present until the first poll.
    make: Option<F>,
    iter: Option<I>,
    panicked: Option<Box<dyn Any + Send>>,
    at: u64,
    cx: Context,
}

impl<T, I, F> Chunks<T> for OpenIter<F, I::IntoIter>
where
    I: IntoIterator<Item = T, IntoIter: Send>,
    F: Fn() -> I + Send,
{
    fn poll_chunk(&mut self, _: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>> {
        if let Some(make) = self.make.take() {
            self.iter = Some(make().into_iter());
        }
        let mut values = Vec::new();
        if let Some(payload) = self.panicked.take() {
            resume_unwind(payload);
        }
        if let Some(iter) = &mut self.iter {
            // Items from before a panic are given first.
            let taken = catch_unwind(AssertUnwindSafe(|| values.extend(iter.take(demand.max))));
            // An iterator may start again after its end, so it is not polled again.
            if values.len() < demand.max {
                self.iter = None;
            }
            match taken {
                Err(payload) if values.is_empty() => resume_unwind(payload),
                taken => self.panicked = taken.err(),
            }
        }
        if values.is_empty() {
            return Poll::Ready(None);
        }
        let at = self.at;
        self.at += values.len() as u64;
        Poll::Ready(Some(self.cx.run(values, at)))
    }
}

/// A source that makes a fresh stream for each epoch; see [`Graph::from_stream_with`].
#[derive(Clone, Debug)]
#[must_use]
pub struct FromStream<F> {
    make: F,
    once: bool,
    name: &'static str,
}

impl<F> FromStream<F> {
    /// Calls `make` for each epoch.
    pub fn new(make: F) -> Self {
        FromStream {
            make,
            once: false,
            name: "from_stream",
        }
    }

    /// Declares that the stream exists only once.
    pub fn once(self) -> Self {
        FromStream { once: true, ..self }
    }
}

impl<T, S, F> Source for FromStream<F>
where
    T: Send + 'static,
    S: futures::Stream<Item = Result<T>> + Send + 'static,
    F: Fn() -> Result<S> + Clone + Send + Sync + 'static,
{
    type Out = T;

    fn open(&self, cx: &Context) -> Items<T> {
        let (make, cx) = (self.make.clone(), cx.clone());
        let stream = futures::stream::once(async move { make() })
            .map(|made| match made {
                Ok(stream) => stream.left_stream(),
                Err(error) => futures::stream::iter([Err(error.fatal())]).right_stream(),
            })
            .flatten()
            .enumerate()
            .map(move |(index, value)| {
                let origin = cx.origin(index as u64);
                value
                    .map_err(|error| error.of(&origin))
                    .map(|value| Item::new(value, origin))
            });
        Items::from_stream(stream)
    }
    fn name(&self) -> String {
        self.name.to_owned()
    }
    fn hints(&self) -> Hints {
        Hints::any_order().once(self.once).weighs_by_type(true)
    }
}

/// Gives the elements of a vector.
struct Elements<T>(Arc<Vec<T>>);

impl<T: Clone + Send + Sync + 'static> Source for Elements<T> {
    type Out = T;

    fn open(&self, cx: &Context) -> Items<T> {
        Items::from_chunks(ElementsOpen {
            values: self.0.clone(),
            wanted: cx.wanted().cloned().unwrap_or_default(),
            next: 0,
            panicked: None,
            cx: cx.clone(),
        })
    }
    fn name(&self) -> String {
        "from_vec".to_owned()
    }
    fn len_hint(&self) -> Option<u64> {
        Some(self.0.len() as u64)
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .settings(format_args!("{} items", self.0.len()))
            .weighs_by_type(true)
            .by_position(true)
            .never_blocks(true)
    }
}

struct ElementsOpen<T> {
    values: Arc<Vec<T>>,
    wanted: Wanted,
    /// Positions before it were given.
    next: u64,
    panicked: Option<Box<dyn Any + Send>>,
    cx: Context,
}

impl<T: Clone + Send + Sync> Chunks<T> for ElementsOpen<T> {
    fn poll_chunk(&mut self, _: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>> {
        if let Some(payload) = self.panicked.take() {
            resume_unwind(payload);
        }
        let end = self.values.len() as u64;
        let places = self.wanted.next_range(self.next, demand.max as u64, end);
        self.next = places.end;
        let (first, mut values) = (
            places.start,
            Vec::with_capacity((places.end - places.start) as usize),
        );
        // Items from before a panic, of a clone, are given first.
        let taken = catch_unwind(AssertUnwindSafe(|| {
            values.extend(
                self.values[places.start as usize..places.end as usize]
                    .iter()
                    .cloned(),
            );
        }));
        match taken {
            Err(payload) if values.is_empty() => resume_unwind(payload),
            taken => self.panicked = taken.err(),
        }
        Poll::Ready((!values.is_empty()).then(|| self.cx.run(values, first)))
    }
}

/// Gives the integers of a range.
#[derive(Clone, Debug)]
struct Integers(Range<u64>);

impl Source for Integers {
    type Out = u64;

    fn open(&self, cx: &Context) -> Items<u64> {
        Items::from_chunks(IntegersOpen {
            range: self.0.clone(),
            wanted: cx.wanted().cloned().unwrap_or_default(),
            next: 0,
            cx: cx.clone(),
        })
    }
    fn name(&self) -> String {
        "range".to_owned()
    }
    fn len_hint(&self) -> Option<u64> {
        Some(self.0.end.saturating_sub(self.0.start))
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .settings(format_args!("{:?}", self.0))
            .by_position(true)
            .never_blocks(true)
    }
}

struct IntegersOpen {
    range: Range<u64>,
    wanted: Wanted,
    /// Positions before it were given.
    next: u64,
    cx: Context,
}

impl Chunks<u64> for IntegersOpen {
    fn poll_chunk(
        &mut self,
        _: &mut task::Context<'_>,
        demand: Demand,
    ) -> Poll<Option<Chunk<u64>>> {
        let len = self.range.end.saturating_sub(self.range.start);
        let places = self.wanted.next_range(self.next, demand.max as u64, len);
        self.next = places.end;
        if places.is_empty() {
            return Poll::Ready(None);
        }
        let first = places.start;
        Poll::Ready(Some(self.cx.run(
            places.map(|place| self.range.start + place).collect(),
            first,
        )))
    }
}

impl Graph<u64> {
    /// Gives the integers of a range, in order.
    ///
    /// ```
    /// # use datapipes::Graph;
    /// assert_eq!(Graph::range(3..6).collect()?, [3, 4, 5]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn range(range: Range<u64>) -> Graph<u64> {
        Graph::source(Integers(range))
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Gives the elements of a vector, in order, anew each epoch.
    ///
    /// ```
    /// # use datapipes::Graph;
    /// let words = Graph::from_vec(vec!["a", "bc"]);
    /// assert_eq!(words.map(|word| word.len()).collect()?, [1, 2]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn from_vec(values: Vec<T>) -> Graph<T>
    where
        T: Clone + Sync,
    {
        let values = Arc::new(values);
        Graph::source(Elements(values))
    }

    /// Gives the elements of an iterator that `make` makes anew for each epoch, in order.
    ///
    /// The iterator runs where its consumer does, and must not block for long.
    ///
    /// ```
    /// # use datapipes::Graph;
    /// let squares = Graph::from_iter_with(|| (0u64..).map(|n| n * n).take_while(|&n| n < 20));
    /// assert_eq!(squares.collect()?, [0, 1, 4, 9, 16]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn from_iter_with<I, F>(make: F) -> Graph<T>
    where
        I: IntoIterator<Item = T, IntoIter: Send + 'static>,
        F: Fn() -> I + Clone + Send + Sync + 'static,
    {
        Graph::source(FromIterator::new(make))
    }

    /// Gives the elements of a stream that `make` makes anew for each epoch, in order.
    ///
    /// # Errors
    /// An error of `make` ends that epoch, whatever the [policy](crate::OnError). An error of the stream
    /// takes an item's place; mark it as [`Error::fatal`] if the stream cannot go on after it.
    ///
    /// # Examples
    /// ```
    /// # use datapipes::Graph;
    /// use futures::stream;
    ///
    /// let rows = Graph::from_stream_with(|| Ok(stream::iter(["a", "b"].map(Ok))));
    /// assert_eq!(rows.collect()?, ["a", "b"]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn from_stream_with<S, F>(make: F) -> Graph<T>
    where
        S: futures::Stream<Item = Result<T>> + Send + 'static,
        F: Fn() -> Result<S> + Clone + Send + Sync + 'static,
    {
        Graph::source(FromStream::new(make))
    }

    /// Gives the elements of a channel's receiver, or of any stream that exists once: one epoch
    /// long.
    ///
    /// # Errors
    /// A second epoch yields one error, since the items of the channel are gone.
    ///
    /// # Examples
    /// ```
    /// # use datapipes::Graph;
    /// let (send, receive) = futures::channel::mpsc::unbounded();
    /// std::thread::spawn(move || (0..3).try_for_each(|n| send.unbounded_send(n)));
    /// assert_eq!(Graph::from_channel(receive).collect()?, [0, 1, 2]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn from_channel<S>(receiver: S) -> Graph<T>
    where
        S: futures::Stream<Item = T> + Send + 'static,
    {
        let once = std::sync::Arc::new(Mutex::new(Some(receiver)));
        let make = move || match once.lock().ok().and_then(|mut slot| slot.take()) {
            Some(stream) => Ok(stream.map(Ok)),
            None => Err(Error::config("a channel can be read for one epoch only")),
        };
        Graph::source(FromStream {
            name: "from_channel",
            ..FromStream::new(make).once()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_source;
    use crate::{DataLoader, OnError};

    #[test]
    fn no_policy_skips_all_items_of_a_source_or_pipe_that_does_not_begin() {
        let closed = || Error::user("not there");
        let stream = Graph::<u64>::from_stream_with(move || {
            Err::<futures::stream::Empty<Result<u64>>, _>(closed())
        });
        let pipe = Graph::range(0..9).through(move |_: Items<u64>| Items::<u64>::fail(closed()));
        for graph in [stream, pipe] {
            let loader = DataLoader::builder(graph)
                .on_error(OnError::skip(9))
                .build();
            let all: Result<Vec<u64>> = loader.unwrap().epoch(0).blocking().collect();
            assert!(all.unwrap_err().to_string().ends_with("not there"));
        }
    }

    #[test]
    fn sources_keep_the_contract() {
        check_source(&Elements(Arc::new(vec!["a", "b", "c", "d", "e", "f", "g"])));
        check_source(&Integers(3..14));
        check_source(&Integers(3..3));
        check_source(&FromIterator::new(|| (0..9).filter(|n| n % 2 == 0)));
        check_source(&FromIterator::new(|| 0..9).len(9));
        let failing = |n: u64| {
            if n % 4 == 1 {
                Err(Error::user("one"))
            } else {
                Ok(n)
            }
        };
        check_source(&FromStream::new(move || {
            Ok(futures::stream::iter((0..9).map(failing)))
        }));
        let nothing =
            || Err::<futures::stream::Empty<Result<u64>>, _>(Error::user("nothing there"));
        check_source(&FromStream::new(nothing));
        let receiver = Arc::new(Mutex::new(Some(futures::stream::iter(0..5u64).map(Ok))));
        check_source(&FromStream::new(move || Ok(receiver.lock().unwrap().take().unwrap())).once());
    }
}
