//! Sources of bytes: objects under keys, local or remote.
//!
//! A [`Store`] has three methods. Features that make a store robust and fast (retries, limits,
//! caches) are written once, as [`wrappers`] that are stores themselves.

mod braces;
#[cfg(any(feature = "cloud", feature = "http"))]
mod clients;
#[cfg(feature = "cloud")]
pub mod cloud;
mod ext;
#[cfg(feature = "http")]
pub mod http;
mod list;
mod list_files;
pub(crate) mod load;
pub mod local;
mod lock;
mod memory;
pub(crate) mod names;
mod object;
mod open;
mod pattern;
mod pieces;
mod redact;
mod refused;
#[cfg(any(feature = "cloud", feature = "http"))]
mod retry_after;
pub mod wrappers;

pub use braces::{expand_braces, expand_braces_to, shards};
pub use ext::StoreExt;
#[cfg(feature = "http")]
pub use http::{Http, Hub};
pub use list::ListStore;
pub use list_files::list_files;
pub use load::LoadFiles;
pub use lock::{LockedFile, Lockfile};
pub use memory::InMemory;
pub use object::{Body, Get, Meta, Object};
pub use open::{OpenOptions, open};
pub use redact::redacted;
pub use wrappers::resilient;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Error, Result, Revision};
use futures::future::{BoxFuture, ready};
use futures::stream::BoxStream;

/// Writes two methods of a [`MapPipe`](datapipes::MapPipe) that reads this store: the revision of the
/// data, and if reads seldom wait.
macro_rules! reads_store {
    ($($store:ident).+) => {
        fn revision(&self) -> datapipes::Revision {
            self.$($store).+.known_revision()
        }
        fn seldom_waits(&self) -> bool {
            self.$($store).+.folder().is_some()
        }
    };
}
pub(crate) use reads_store;

/// A collection of objects under keys: a bucket, a web server, a folder.
///
/// A key is a relative path with `/` between its parts, such as `train/0001.jpg`; it is never empty
/// and never begins with `/`.
///
/// # Errors
/// The kind of an error tells what is known: `NotFound`, `Denied`, `Changed`, `Truncated`,
/// `Protocol`, `Unavailable`, `Io`. An error is [transient](datapipes::Error::transient) if the
/// same request may succeed later, and only transient errors are retried. The message begins with
/// the URL of the object ([`Store::url_of`]). It never holds a secret: no user, password, signed
/// query, token or header.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Returns the URL of the store, without secrets, and with a `/` at its end:
    /// `s3://bucket/prefix/`.
    fn url(&self) -> &str;

    /// Opens an object, or a range of it. Returns once the answer has begun; the body follows.
    ///
    /// # Errors
    /// `NotFound` if there is no such object; `Changed` if it no longer is the requested version.
    async fn get(&self, key: &str, get: Get) -> Result<Object>;

    /// Returns the metadata of an object without its content. By default opens the object and drops
    /// the body.
    ///
    /// # Errors
    /// The errors of [`get`](Store::get).
    async fn head(&self, key: &str) -> Result<Meta> {
        Ok(self.get(key, Get::default()).await?.meta)
    }

    /// Lists the objects whose keys begin with `prefix`, in ascending order of the bytes of the
    /// keys, or in another order that is always the same. Pages are requested as the stream is
    /// polled; memory use does not grow with the number of pages where the system allows.
    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>>;

    /// Returns the URL of an object, without secrets, for messages.
    fn url_of(&self, key: &str) -> String {
        format!("{}{key}", self.url())
    }

    /// Returns a text that identifies the store, for data that are kept across runs. It is not
    /// shown anywhere, but must still hold no plain secrets. By default the URL; a store adds more
    /// if two places have the same URL, for example buckets of the same name at two endpoints.
    fn identity(&self) -> String {
        self.url().to_owned()
    }

    /// Returns the revision of the whole store that is read, if the store has revisions, as a
    /// repository has commits. Once it is known it stays the same for the life of the store.
    /// Caches and checkpoints keep it in addition to [`identity`](Store::identity). By default
    /// `None`; the first call may make a request.
    ///
    /// # Errors
    /// The errors of that request.
    fn revision(&self) -> BoxFuture<'_, Result<Option<String>>> {
        Box::pin(ready(Ok(None)))
    }

    /// Makes the store read this revision, so that a resumed epoch reads what it began with.
    ///
    /// # Errors
    /// `Config` if the store reads another revision already, or has no revisions.
    fn pin_revision(&self, revision: &str) -> Result<()> {
        let words = format!("{}: it has no revisions, such as {revision}", self.url());
        Err(Error::config(words))
    }

    /// Returns the revision that is read, as far as it is known without a request; of a store that
    /// has none, or does not say, [`Unknown`](Revision::Unknown). Graphs over objects by their keys
    /// compare it when an epoch is resumed.
    fn known_revision(&self) -> Revision {
        Revision::Unknown
    }

    /// Returns the whole content of an object.
    ///
    /// # Errors
    /// The errors of [`get`](Store::get) and [`Object::bytes`].
    async fn read(&self, key: &str) -> Result<Bytes> {
        self.get(key, Get::default()).await?.bytes().await
    }

    /// Returns the folder whose files are the objects, if the store is a plain folder: graphs then
    /// list and read the files directly. A wrapper has none, since it would be bypassed.
    fn folder(&self) -> Option<&Path> {
        None
    }
}

/// Implemented so that a shared store is a store too.
#[async_trait]
impl<S: Store + ?Sized> Store for Arc<S> {
    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        (**self).get(key, get).await
    }
    async fn head(&self, key: &str) -> Result<Meta> {
        (**self).head(key).await
    }
    datapipes::forward! { **self =>
        fn url(&self) -> &str;
        fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>>;
        fn url_of(&self, key: &str) -> String;
        fn identity(&self) -> String;
        fn revision(&self) -> BoxFuture<'_, Result<Option<String>>>;
        fn pin_revision(&self, revision: &str) -> Result<()>;
        fn known_revision(&self) -> Revision;
        fn folder(&self) -> Option<&Path>;
    }
    async fn read(&self, key: &str) -> Result<Bytes> {
        (**self).read(key).await
    }
}
