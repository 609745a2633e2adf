//! A pipe that looks up each key it receives.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::combined::too_few;
use super::{Lookup, contained};
use crate::{Arity, Context, Graph, Hints, Item, Items, Origin, Pipe, Result, Work};

/// Looks up each key it receives; see [`Graph::fetch`].
pub struct Fetch<L: ?Sized> {
    lookup: Arc<L>,
    /// True if keys are samples by index: the name is that of the top of their origins, not of a repeated
    /// copy below it.
    by_index: bool,
}

impl<L> Fetch<L> {
    /// Reads from a lookup.
    pub fn new(lookup: L) -> Self {
        Fetch::shared(Arc::new(lookup))
    }
}

impl<L: ?Sized> Fetch<L> {
    /// Reads from a shared lookup.
    pub fn shared(lookup: Arc<L>) -> Self {
        Fetch {
            lookup,
            by_index: false,
        }
    }

    /// Reads the samples of an [`Indexed`](super::Indexed).
    pub(super) fn by_index(lookup: Arc<L>) -> Self {
        Fetch {
            lookup,
            by_index: true,
        }
    }
}

clone_fields!(Fetch<L: ?Sized> { lookup, by_index });

opaque_debug!(Fetch<L: ?Sized> {});

/// Looks up several keys. A panic is reported for the key it happened to, even if several keys were
/// asked for at once.
pub(super) async fn get_all<K, L>(lookup: &L, mut keys: Vec<K>) -> Vec<Result<L::Out>>
where
    K: Clone + Send + 'static,
    L: Lookup<K> + ?Sized,
{
    if keys.len() <= 1 {
        return match keys.pop() {
            Some(key) => vec![contained(async { lookup.get(key).await }).await],
            None => Vec::new(),
        };
    }
    let asked = keys.len();
    // A panic over several keys does not tell which key caused it: each is looked up again, alone.
    let first = keys.clone();
    let together = contained(async { Ok(lookup.get_many(first).await) });
    let Ok(found) = together.await else {
        return futures::future::join_all(
            keys.into_iter()
                .map(|key| contained(async { lookup.get(key).await })),
        )
        .await;
    };
    if found.len() == asked {
        found
    } else {
        (0..asked).map(|_| Err(too_few())).collect()
    }
}

/// Returns the name of a sample. If there is none since its function panics, reading the sample says what
/// is wrong.
fn name_of<K: Send + 'static, L: Lookup<K> + ?Sized>(lookup: &L, key: &K) -> Option<Arc<str>> {
    catch_unwind(AssertUnwindSafe(|| lookup.sample_name(key))).unwrap_or(None)
}

/// Returns this origin with a name for the source item that it descends from.
fn with_top_named(
    origin: &Origin,
    name: impl FnMut() -> Option<Arc<str>> + Send + 'static,
) -> Origin {
    match origin.parent() {
        Some(parent) => with_top_named(parent, name).child(origin.index()),
        None => origin.clone().named_by(name),
    }
}

impl<K, L> Pipe<K> for Fetch<L>
where
    K: Clone + Send + 'static,
    L: Lookup<K> + ?Sized,
{
    type Out = L::Out;

    fn apply(&self, mut input: Items<K>, cx: &Context) -> Items<L::Out> {
        let (this, cx) = (self.clone(), cx.clone());
        Items::generate(async move |out| {
            while let Some(chunk) = input.next_chunk(out.wanted()).await {
                if cx.is_cancelled() {
                    return;
                }
                let mut keys = Vec::with_capacity(chunk.len());
                let places: Vec<Result<_>> = chunk
                    .into_iter()
                    .map(|item| {
                        let (key, origin) = item?.into_parts();
                        let (lookup, of) = (this.lookup.clone(), key.clone());
                        let name = move || name_of(&*lookup, &of);
                        let origin = match this.by_index {
                            true => with_top_named(&origin, name),
                            false => origin.named_by(name),
                        };
                        keys.push(key);
                        Ok(origin)
                    })
                    .collect();
                let mut found = get_all(&*this.lookup, keys).await.into_iter();
                for place in places {
                    let item = match place {
                        Err(error) => Err(error),
                        Ok(origin) => match found.next().expect("an answer for each key") {
                            Ok(sample) => Ok(Item::new(sample, origin)),
                            Err(error) => Err(error.of(&origin)),
                        },
                    };
                    out.emit(item).await;
                }
            }
        })
    }
    fn name(&self) -> String {
        self.lookup.name()
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .work(Work::Io)
            .seldom_waits(self.lookup.seldom_waits())
            .arity(Arity::One)
            .revision(self.lookup.revision())
    }
    fn weigh(&self, sample: &L::Out) -> Option<usize> {
        self.lookup.weigh(sample)
    }
}

impl<K: Clone + Send + 'static> Graph<K> {
    /// Looks up each key: the samples of a [`MapPipe`](super::MapPipe) by index, the rows of a
    /// table, the objects of a store, or anything else that is a [`Lookup`].
    ///
    /// Many lookups are in flight at once, on the async runtime. Their number is set by
    /// [`concurrency`](Graph::concurrency), or by the loader's
    /// [`concurrency`](crate::loader::Builder::concurrency). Order is kept if the loader's order is
    /// strict. Keys that are available together are looked up by one
    /// [`get_many`](Lookup::get_many).
    ///
    /// For data that should stay indexable, see [`Indexed`](super::Indexed). To make one request
    /// for a batch of keys, see [`fetch_batches`](Graph::fetch_batches). For a closure, see
    /// [`map_async`](Graph::map_async).
    ///
    /// # Errors
    /// An error of the lookup takes the item's place, with the names of the node and the item
    /// added.
    ///
    /// # Panics
    /// A panic of the lookup becomes an error that names the node and the item. If several keys
    /// were looked up together, each is looked up once more, alone.
    ///
    /// # Cancellation
    /// Dropping the epoch drops the requests in flight.
    ///
    /// # Examples
    /// ```
    /// use datapipes::index::{Lookup, Random, Sampler};
    /// use datapipes::{Error, ErrorKind, Graph, Result, async_trait};
    ///
    /// struct Lengths;
    ///
    /// #[async_trait]
    /// impl Lookup<&'static str> for Lengths {
    ///     type Out = usize;
    ///     async fn get(&self, key: &'static str) -> Result<usize> {
    ///         if key.is_empty() { Err(Error::not_found("an empty key")) } else { Ok(key.len()) }
    ///     }
    /// }
    ///
    /// assert_eq!(Graph::from_vec(vec!["a", "bcd"]).fetch(Lengths).collect()?, [1, 3]);
    /// let error = Graph::from_vec(vec!["a", ""]).fetch(Lengths).collect().unwrap_err();
    /// assert_eq!(error.to_string(), "fetch: 0:1: not found: an empty key");
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn fetch<L: Lookup<K>>(self, lookup: L) -> Graph<L::Out> {
        self.pipe(Fetch::new(lookup))
    }
}

#[cfg(test)]
mod tests;
