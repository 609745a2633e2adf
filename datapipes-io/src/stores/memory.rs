//! Objects in memory: for tests, and as the shortest example of a store.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Error, Result};
use futures::StreamExt;
use futures::stream::BoxStream;

use super::{Get, Meta, Object, Store};

/// A store of objects in memory. Clones share the objects.
///
/// # Examples
/// ```
/// use datapipes_io::stores::{InMemory, Store};
/// # futures::executor::block_on(async {
/// let store = InMemory::from_iter([("a/1.txt", "one"), ("a/2.txt", "two")]);
/// assert_eq!(store.read("a/2.txt").await?, "two");
/// # datapipes::Ok(()) }).unwrap();
/// ```
#[derive(Clone, Debug, Default)]
pub struct InMemory(Arc<RwLock<BTreeMap<String, (u64, Bytes)>>>);

impl InMemory {
    /// Returns an empty store.
    pub fn new() -> Self {
        InMemory::default()
    }

    /// Stores an object under a key, and replaces the previous object of that key.
    pub fn put(&self, key: impl Into<String>, data: impl Into<Bytes>) {
        let mut objects = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let object = objects.entry(key.into()).or_default();
        *object = (object.0 + 1, data.into());
    }

    /// Removes an object.
    pub fn remove(&self, key: &str) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
    }

    fn meta(key: &str, (version, data): &(u64, Bytes)) -> Meta {
        Meta {
            key: key.to_owned(),
            size: Some(data.len() as u64),
            version: Some(version.to_string()),
        }
    }
}

impl<K: Into<String>, D: Into<Bytes>> FromIterator<(K, D)> for InMemory {
    fn from_iter<I: IntoIterator<Item = (K, D)>>(objects: I) -> Self {
        let store = InMemory::new();
        objects
            .into_iter()
            .for_each(|(key, data)| store.put(key, data));
        store
    }
}

#[async_trait]
impl Store for InMemory {
    fn url(&self) -> &str {
        "memory:///"
    }

    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        let url = self.url_of(key);
        let objects = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Some(object) = objects.get(key) else {
            return Err(Error::not_found(url));
        };
        let (meta, data) = (InMemory::meta(key, object), &object.1);
        if get.version.is_some() && get.version != meta.version {
            return Err(Error::changed(url));
        }
        Object::whole(url, meta, data.clone()).part(get.range)
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        let objects = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let from = objects
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix));
        let found: Vec<_> = from
            .map(|(key, object)| Ok(InMemory::meta(key, object)))
            .collect();
        futures::stream::iter(found).boxed()
    }
}
