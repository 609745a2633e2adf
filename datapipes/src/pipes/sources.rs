//! Sources from ranges, iterators, streams and channels.

use std::ops::Range;
use std::sync::Mutex;

use futures::StreamExt;

use crate::{Context, Error, ErrorKind, Facts, Graph, Item, Items, Result, Source};

/// A source that makes a fresh iterator for each epoch; see [`Graph::from_iter_with`].
#[derive(Clone, Debug)]
pub struct FromIterator<F> {
    make: F,
    len: Option<u64>,
    name: &'static str,
}

impl<F> FromIterator<F> {
    /// Calls `make` for each epoch.
    pub fn new(make: F) -> Self {
        FromIterator { make, len: None, name: "from_iter" }
    }

    /// Says how many items there are.
    pub fn with_len(self, len: u64) -> Self {
        FromIterator { len: Some(len), ..self }
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
        // `once` keeps it lazy: the iterator is made at the first poll.
        let numbered = std::iter::once_with(move || make().into_iter())
            .flatten()
            .enumerate()
            .map(move |(index, value)| Ok(Item::new(value, cx.origin(index as u64))));
        Items::from_iter(numbered)
    }
    fn name(&self) -> String {
        self.name.to_owned()
    }
    fn len_hint(&self) -> Option<u64> {
        self.len
    }
    fn facts(&self) -> Facts {
        match self.len {
            Some(len) => Facts::any_order().with_settings(format_args!("{len} items")),
            None => Facts::any_order(),
        }
    }
}

/// A source that makes a fresh stream for each epoch; see [`Graph::from_stream_with`].
#[derive(Clone, Debug)]
pub struct FromStream<F>(F);

impl<F> FromStream<F> {
    /// Calls `make` for each epoch.
    pub fn new(make: F) -> Self {
        FromStream(make)
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
        let (make, cx) = (self.0.clone(), cx.clone());
        let stream = futures::stream::once(async move { make() })
            .map(|made| match made {
                Ok(stream) => stream.left_stream(),
                Err(error) => futures::stream::iter([Err(error)]).right_stream(),
            })
            .flatten()
            .enumerate()
            .map(move |(index, value)| {
                let origin = cx.origin(index as u64);
                value.map_err(|error| error.of(&origin)).map(|value| Item::new(value, origin))
            });
        Items::from_stream(stream)
    }
}

impl Graph<u64> {
    /// The integers of a range, in order.
    pub fn range(range: Range<u64>) -> Graph<u64> {
        let len = range.end.saturating_sub(range.start);
        Graph::source(FromIterator { make: move || range.clone(), len: Some(len), name: "range" })
    }
}

impl<T: Send + 'static> Graph<T> {
    /// The elements of a vector, in order, anew each epoch.
    pub fn from_vec(values: Vec<T>) -> Graph<T>
    where
        T: Clone + Sync,
    {
        let values = std::sync::Arc::new(values);
        let len = values.len() as u64;
        let make = move || {
            let values = values.clone();
            (0..values.len()).map(move |i| values[i].clone())
        };
        Graph::source(FromIterator { make, len: Some(len), name: "from_vec" })
    }

    /// The elements of an iterator that `make` makes anew for each epoch, in order.
    ///
    /// The iterator runs where its consumer does, and must not block for long.
    pub fn from_iter_with<I, F>(make: F) -> Graph<T>
    where
        I: IntoIterator<Item = T, IntoIter: Send + 'static>,
        F: Fn() -> I + Clone + Send + Sync + 'static,
    {
        Graph::source(FromIterator::new(make))
    }

    /// The elements of a stream that `make` makes anew for each epoch, in order.
    ///
    /// # Errors
    /// What `make` returns is the only item of that epoch; what the stream yields takes an item's place.
    pub fn from_stream_with<S, F>(make: F) -> Graph<T>
    where
        S: futures::Stream<Item = Result<T>> + Send + 'static,
        F: Fn() -> Result<S> + Clone + Send + Sync + 'static,
    {
        Graph::source(FromStream::new(make))
    }

    /// The elements of a channel's receiver, or of any stream that exists once: one epoch long.
    ///
    /// # Errors
    /// A second epoch yields one error, since what went through the channel is gone.
    pub fn from_channel<S>(receiver: S) -> Graph<T>
    where
        S: futures::Stream<Item = T> + Send + 'static,
    {
        let once = std::sync::Arc::new(Mutex::new(Some(receiver)));
        Graph::source(FromStream::new(move || match once.lock().ok().and_then(|mut slot| slot.take()) {
            Some(stream) => Ok(stream.map(Ok)),
            None => Err(Error::new(ErrorKind::Config, "a channel can be read for one epoch only")),
        }))
        .named_kind("from_channel")
    }
}
