//! Where bytes come from: objects under keys, on this machine or far away.
//!
//! A [`Store`] is three methods. What makes one robust and fast (retries, limits, caches) is
//! written once, as [`wrappers`] that are stores themselves.

mod braces;
#[cfg(any(feature = "cloud", feature = "http"))]
mod clients;
#[cfg(feature = "cloud")]
pub mod cloud;
#[cfg(feature = "http")]
pub mod http;
mod list;
pub(crate) mod load;
pub mod local;
mod memory;
pub(crate) mod names;
mod object;
mod open;
mod pattern;
mod pieces;
mod redact;
pub mod wrappers;

pub use braces::{expand_braces, expand_braces_to, shards};
#[cfg(feature = "http")]
pub use http::Http;
pub use list::ListStore;
pub use load::LoadFiles;
pub use memory::Memory;
pub use object::{Body, Get, Meta, Object};
pub use open::{OpenOptions, open};
pub use redact::redacted;
pub use wrappers::{StoreExt, resilient};

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::Result;
use futures::stream::BoxStream;

/// Objects under keys: a bucket, a web server, a folder.
///
/// A key is a relative path with `/` between its parts, such as `train/0001.jpg`; never empty,
/// never beginning with `/`.
///
/// # Errors
/// Every error says what is known: `NotFound`, `Denied`, `Changed`, `Truncated`, `Protocol`,
/// `Unavailable`, `Io`. One is [passing](datapipes::Error::transient) if the same request may
/// succeed later, and only those are tried again. Its words begin with the URL of the object
/// ([`Store::url_of`]). It never holds a secret: no user, password, signed query, token or header.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Where it is, without anything secret, and with a `/` at its end: `s3://bucket/prefix/`.
    fn url(&self) -> &str;

    /// Opens an object, or a range of it. Returns once the answer has begun; the body follows.
    ///
    /// # Errors
    /// `NotFound` where there is no such object; `Changed` where it is no longer the version asked
    /// for.
    async fn get(&self, key: &str, get: Get) -> Result<Object>;

    /// What is known of an object without its content. By default opens it and drops the body.
    ///
    /// # Errors
    /// As [`get`](Store::get).
    async fn head(&self, key: &str) -> Result<Meta> {
        Ok(self.get(key, Get::default()).await?.meta)
    }

    /// The objects whose keys begin with `prefix`, in ascending order of their keys' bytes or
    /// another order that is always the same. Pages are asked for as the stream is polled; what is
    /// held does not grow with their number where the system allows.
    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>>;

    /// The URL of an object, without anything secret, for messages.
    fn url_of(&self, key: &str) -> String {
        format!("{}{key}", self.url())
    }

    /// What tells it from every other store, for what is kept across runs. It is shown nowhere, and
    /// yet has nothing secret as it is. By default its URL; more where two places have the same
    /// URL, as buckets of one name at two endpoints have.
    fn identity(&self) -> String {
        self.url().to_owned()
    }

    /// The whole content of an object.
    ///
    /// # Errors
    /// As [`get`](Store::get), and those of [`Object::bytes`].
    async fn read(&self, key: &str) -> Result<Bytes> {
        self.get(key, Get::default()).await?.bytes().await
    }

    /// The folder whose files the objects are, where they are nothing else: then graphs list and
    /// read them directly. A wrapper has none, or it would be passed by.
    fn folder(&self) -> Option<&Path> {
        None
    }
}

/// What is shared is a store too.
#[async_trait]
impl<S: Store + ?Sized> Store for Arc<S> {
    fn url(&self) -> &str {
        (**self).url()
    }
    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        (**self).get(key, get).await
    }
    async fn head(&self, key: &str) -> Result<Meta> {
        (**self).head(key).await
    }
    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        (**self).list(prefix)
    }
    fn url_of(&self, key: &str) -> String {
        (**self).url_of(key)
    }
    fn identity(&self) -> String {
        (**self).identity()
    }
    async fn read(&self, key: &str) -> Result<Bytes> {
        (**self).read(key).await
    }
    fn folder(&self) -> Option<&Path> {
        (**self).folder()
    }
}
