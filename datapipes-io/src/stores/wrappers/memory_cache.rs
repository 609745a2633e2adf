//! Cache of whole objects in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Result, lock};
use futures::stream::BoxStream;

use super::single_flight::Flights;
use crate::stores::pieces::unpooled;
use crate::stores::{Get, Meta, Object, Store};

/// Behavior of a full cache for a new object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Evict {
    /// Passes the new object on without caching it. Suits data that is read as a whole once an
    /// epoch, in a new order each time. A cache with room for a third of the data then saves a
    /// third of the requests, and no other rule saves more (Mohan and others, *Analyzing and
    /// Mitigating Data Stalls in DNN Training*, 2021).
    Never,
    /// Drops the least recently used object. Suits data with some objects that are read more often
    /// than others.
    #[default]
    Oldest,
}

/// A store that caches whole objects in memory; see
/// [`StoreExt::cache_in_memory`](crate::StoreExt::cache_in_memory).
///
/// - At most `limit` bytes of content are cached, plus some 200 bytes for each object. An object
///   larger than an eighth of the limit, or of unknown length, is not cached.
/// - Concurrent requests for an object are made once. Errors are not cached; after one, the next
///   caller that waits makes the request itself.
/// - Cached objects are returned without asking whether the store has a newer version. If a version
///   is requested ([`Get::version`]) and differs, the object is requested again.
/// - A range is a slice of the cached object; a range of an object that is not cached is passed to
///   the store. [`head`](Store::head) is answered from the cache; a listing is passed to the store.
/// - An object that is small enough is read whole before it is returned.
///
/// Clones share the cache. Returned bytes live as long as they are referenced, even after eviction.
#[derive(Clone, Debug)]
pub struct MemoryCache<S> {
    inner: Arc<S>,
    limit: u64,
    evict: Evict,
    flights: Arc<Flights<(String, Option<String>), Fetched>>,
    kept: Arc<Mutex<CachedObjects>>,
}

/// A cached object; `None` if the object is not cached, so that each caller requests it itself.
type Fetched = Option<(Meta, Bytes)>;

#[derive(Debug, Default)]
struct CachedObjects {
    objects: HashMap<String, (u64, Meta, Bytes)>,
    /// Keys by the time of their last use.
    order: BTreeMap<u64, String>,
    clock: u64,
    bytes: u64,
}

impl CachedObjects {
    fn get(&mut self, key: &str) -> Option<(Meta, Bytes)> {
        let (used, meta, data) = self.objects.get_mut(key)?;
        let name = self.order.remove(used)?;
        self.clock += 1;
        *used = self.clock;
        self.order.insert(self.clock, name);
        Some((meta.clone(), data.clone()))
    }

    fn remove(&mut self, key: &str) {
        if let Some((used, _, data)) = self.objects.remove(key) {
            self.order.remove(&used);
            self.bytes -= data.len() as u64;
        }
    }

    fn put(&mut self, meta: &Meta, data: &Bytes, limit: u64, evict: Evict) {
        self.remove(&meta.key);
        let len = data.len() as u64;
        while evict == Evict::Oldest && self.bytes + len > limit {
            let Some((_, oldest)) = self.order.first_key_value() else {
                break;
            };
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
        if self.bytes + len <= limit {
            self.clock += 1;
            self.bytes += len;
            self.order.insert(self.clock, meta.key.clone());
            self.objects
                .insert(meta.key.clone(), (self.clock, meta.clone(), data.clone()));
        }
    }
}

impl<S> MemoryCache<S> {
    /// Wraps a store.
    pub fn new(inner: S, limit: u64, evict: Evict) -> Self {
        let (flights, kept) = Default::default();
        MemoryCache {
            inner: Arc::new(inner),
            limit,
            evict,
            flights,
            kept,
        }
    }

    /// Returns the number of cached bytes.
    pub fn bytes(&self) -> u64 {
        lock(&self.kept).bytes
    }

    /// Returns the cached object, if it has the requested version.
    fn here(&self, key: &str, version: &Option<String>) -> Fetched {
        let mut kept = lock(&self.kept);
        let (meta, data) = kept.get(key)?;
        if version.is_some() && *version != meta.version {
            kept.remove(key);
            return None;
        }
        Some((meta, data))
    }
}

impl<S: Store> MemoryCache<S> {
    async fn fetch(&self, key: &str, get: Get, passed: &mut Option<Object>) -> Result<Fetched> {
        if let Some(here) = self.here(key, &get.version) {
            return Ok(Some(here));
        }
        let object = self.inner.get(key, get).await?;
        if object.len().is_none_or(|len| len > self.limit / 8) {
            *passed = Some(object);
            return Ok(None);
        }
        let mut meta = object.meta.clone();
        let mut data = Vec::from(unpooled(object.bytes()).await?);
        // Otherwise a part of a larger buffer would keep all of it.
        data.shrink_to_fit();
        let data = Bytes::from(data);
        key.clone_into(&mut meta.key);
        meta.size = Some(data.len() as u64);
        lock(&self.kept).put(&meta, &data, self.limit, self.evict);
        Ok(Some((meta, data)))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for MemoryCache<S> {
    names_of!(inner);
    revision_of!(inner);

    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        let mut here = self.here(key, &get.version);
        if here.is_none() {
            if get.range.is_some() {
                return self.inner.get(key, get).await;
            }
            let mut passed = None;
            let asked = (key.to_owned(), get.version.clone());
            here = self
                .flights
                .join(&asked, self.fetch(key, get.clone(), &mut passed))
                .await?;
            if let Some(object) = passed {
                return Ok(object);
            }
        }
        match here {
            Some((meta, data)) => Object::whole(self.url_of(key), meta, data).part(get.range),
            None => self.inner.get(key, get).await,
        }
    }

    async fn head(&self, key: &str) -> Result<Meta> {
        match self.here(key, &None) {
            Some((meta, _)) => Ok(meta),
            None => self.inner.head(key).await,
        }
    }

    async fn read(&self, key: &str) -> Result<Bytes> {
        self.get(key, Get::default()).await?.bytes().await
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        self.inner.list(prefix)
    }
}

#[cfg(test)]
mod tests;
