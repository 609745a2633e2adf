//! A part of a store: the objects below a prefix.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Result, Revision};
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::stores::{Get, Meta, Object, Store};

/// A store of the objects below a prefix of another; see
/// [`StoreExt::prefix`](crate::StoreExt::prefix).
///
/// It is a convenience, not a security boundary: a key with `..` in it is passed on unchanged.
#[derive(Clone, Debug)]
pub struct Prefix<S> {
    inner: Arc<S>,
    prefix: String,
    url: String,
}

impl<S: Store> Prefix<S> {
    /// Wraps a store; a `/` is added at the end of the prefix if it has none.
    pub fn new(inner: S, prefix: &str) -> Self {
        let mut prefix = prefix.trim_matches('/').to_owned();
        if !prefix.is_empty() {
            prefix.push('/');
        }
        let url = inner.url_of(&prefix);
        Prefix {
            inner: Arc::new(inner),
            prefix,
            url,
        }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

/// Removes the prefix from the key.
fn strip(prefix: &str, mut meta: Meta) -> Meta {
    if meta.key.starts_with(prefix) {
        meta.key.drain(..prefix.len());
    }
    meta
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for Prefix<S> {
    fn url(&self) -> &str {
        &self.url
    }

    fn url_of(&self, key: &str) -> String {
        self.inner.url_of(&self.key(key))
    }

    fn identity(&self) -> String {
        format!("{}\n{}", self.inner.identity(), self.prefix)
    }

    revision_of!(inner);

    datapipes::forward! { self.inner =>
        fn pin_revision(&self, revision: &str) -> Result<()>;
        fn known_revision(&self) -> Revision;
    }

    fn folder(&self) -> Option<&Path> {
        None
    }

    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        let object = self.inner.get(&self.key(key), get).await?;
        Ok(Object {
            meta: strip(&self.prefix, object.meta),
            ..object
        })
    }

    async fn head(&self, key: &str) -> Result<Meta> {
        Ok(strip(&self.prefix, self.inner.head(&self.key(key)).await?))
    }

    async fn read(&self, key: &str) -> Result<Bytes> {
        self.inner.read(&self.key(key)).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        let below = self.prefix.clone();
        let strip = move |meta: Result<Meta>| meta.map(|meta| strip(&below, meta));
        self.inner.list(&self.key(prefix)).map(strip).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::{InMemory, StoreExt};
    use crate::testing::{check_store, fixtures};

    #[tokio::test]
    async fn keeps_the_contract_of_a_store() {
        for prefix in ["far/away", "far/away/", "/far/away"] {
            let objects = fixtures()
                .into_iter()
                .map(|(key, data)| (format!("far/away/{key}"), data));
            let memory = InMemory::from_iter(objects);
            memory.put("far/away-too", "not below");
            check_store(&memory.prefix(prefix)).await;
        }
        check_store(&InMemory::from_iter(fixtures()).prefix("")).await;
    }

    #[tokio::test]
    async fn a_url_is_that_of_the_object_itself() {
        let store = InMemory::new().prefix("far").prefix("away");
        assert_eq!(
            (store.url(), &*store.url_of("k")),
            ("memory:///far/away/", "memory:///far/away/k")
        );
    }
}
