//! S3, Google Cloud Storage, Azure Blob Storage, and compatible services.

mod builder;
mod errors;
mod link;
mod profile;
#[cfg(test)]
mod tests;

pub use builder::CloudBuilder;
/// Crate of the stores of which a [`Cloud`] is made, in the version that
/// [`Cloud::from_object_store`] takes.
pub use object_store;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use datapipes::{Error, Result, lock};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{Extensions, GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore};

use self::link::{Connector, Seen};
use super::{Body, Get, Meta, Object, Store, redacted};

/// A bucket of S3, Google Cloud Storage or Azure, or a folder in a bucket. Clones share
/// connections.
///
/// - Credentials come from the builder, the environment, the usual files, or the machine's own
///   service; see [`CloudBuilder`]. If they expire while the store is used, they are requested
///   again, once for all requests that were refused by then.
/// - Requests are made once. An error is [transient](Error::transient) if a retry may help; retries
///   and the resumption of cut bodies are left to a wrapper.
/// - An answer has no time limit as a whole, so that a body may be read as slowly as it is used; an
///   answer that does not begin, or pauses, is ended after [30
///   seconds](CloudBuilder::stall_timeout).
/// - Each request in flight has a connection of its own (HTTP/1.1); idle connections are kept for a
///   minute and a half.
/// - A body is streamed: only the few kilobytes in transit are buffered.
/// - Lists are requested in pages of 1000 keys, and one page is held. S3 and Google list in
///   ascending order of the keys' bytes; S3 Express and Azure with a hierarchical namespace in an
///   order of their own. Empty objects whose keys end in `/`, which consoles use to mark folders,
///   are left out.
/// - Keys with empty parts (`a//b`), with the parts `.` and `..`, with control characters or a `/`
///   at the end cannot be read, and are an error in a listing.
/// - A [version](Meta::version) is the strong ETag.
///
/// # Examples
/// ```no_run
/// use datapipes_io::stores::Store;
/// use datapipes_io::stores::cloud::Cloud;
/// # async fn f() -> datapipes::Result<()> {
/// let store = Cloud::s3("bucket/imagenet").region("eu-west-1").build()?;
/// let picture = store.read("train/0001.jpg").await?;
///
/// // One of another provider, and one that anyone may read.
/// let minio = Cloud::s3("bucket").endpoint("http://127.0.0.1:9000").keys("id", "secret").build()?;
/// let public = Cloud::gcs("gcp-public-data-landsat").anonymous().build()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Cloud(Arc<Inner>);

struct Inner {
    url: String,
    prefix: String,
    client: Mutex<Arc<Client>>,
    /// Recipe to make another client; `None` for a store that the user made.
    recipe: Option<(CloudBuilder, Connector)>,
}

/// A connected store, with one set of credentials.
struct Client {
    objects: Arc<dyn ObjectStore>,
    pages: Option<Arc<dyn PaginatedListStore>>,
    /// Endpoint and account, if the URL does not contain them.
    place: String,
    made: Instant,
    /// True if a request succeeded.
    worked: AtomicBool,
}

/// Cause of a failed request, and the status of its answer.
struct Failed {
    error: Error,
    status: Option<u16>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed {
            error,
            status: None,
        }
    }
}

datapipes::conversions! {
    |failed: Failed| -> Error { failed.error }
}

/// Minimum time before credentials that never worked are requested again.
const AGAIN: Duration = Duration::from_secs(5);

impl Client {
    fn new(objects: Arc<dyn ObjectStore>, pages: Option<Arc<dyn PaginatedListStore>>) -> Self {
        Client {
            objects,
            pages,
            place: String::new(),
            made: Instant::now(),
            worked: AtomicBool::new(false),
        }
    }

    /// Sets the endpoint, if it is not the usual one, and the account, if there is one.
    fn at(self, endpoint: Option<String>, account: Option<String>) -> Self {
        let place = [endpoint.unwrap_or_default(), account.unwrap_or_default()].join("\n");
        Client { place, ..self }
    }
}

impl Cloud {
    /// Returns a builder for a bucket of S3, or of a compatible service: `bucket` or
    /// `bucket/prefix`.
    pub fn s3(place: &str) -> CloudBuilder {
        CloudBuilder::s3(place)
    }

    /// Returns a builder for a bucket of Google Cloud Storage: `bucket` or `bucket/prefix`.
    pub fn gcs(place: &str) -> CloudBuilder {
        CloudBuilder::gcs(place)
    }

    /// Returns a builder for a container of Azure Blob Storage: `container` or `container/prefix`.
    pub fn azure(place: &str) -> CloudBuilder {
        CloudBuilder::azure(place)
    }

    /// Opens the store that a URL names; see [`CloudBuilder::parse`].
    ///
    /// # Errors
    /// The errors of [`CloudBuilder::parse`] and [`CloudBuilder::build`].
    pub fn open(url: &str) -> Result<Cloud> {
        CloudBuilder::parse(url)?.build()
    }

    /// Wraps a store that the user made, of any service that `object_store` can reach. The URL is
    /// for messages; user and query are removed from it. The store's own settings determine the
    /// number of retries, and the time limit of a body: by default 30 seconds, which is too short
    /// for bodies that are read slowly.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use datapipes_io::stores::Store;
    /// use datapipes_io::stores::cloud::{Cloud, object_store};
    /// use object_store::ObjectStoreExt;
    /// # futures::executor::block_on(async {
    /// let theirs = object_store::memory::InMemory::new();
    /// theirs.put(&"a.txt".into(), "one".into()).await.unwrap();
    /// let store = Cloud::from_object_store("theirs://place", Arc::new(theirs));
    /// assert_eq!(store.read("a.txt").await?, "one");
    /// assert_eq!(store.url_of("b"), "theirs://place/b");
    /// # datapipes::Ok(()) }).unwrap();
    /// ```
    pub fn from_object_store(url: &str, store: Arc<dyn ObjectStore>) -> Cloud {
        let mut url = redacted(url);
        if !url.ends_with('/') {
            url.push('/');
        }
        Cloud::new(url, String::new(), Client::new(store, None), None)
    }

    fn new(
        url: String,
        prefix: String,
        client: Client,
        recipe: Option<(CloudBuilder, Connector)>,
    ) -> Self {
        Cloud(Arc::new(Inner {
            url,
            prefix,
            client: Mutex::new(Arc::new(client)),
            recipe,
        }))
    }

    fn client(&self) -> Arc<Client> {
        lock(&self.0.client).clone()
    }

    /// Returns a client with newer credentials than `stale` has, if there may be any.
    fn renewed(&self, stale: &Arc<Client>) -> Result<Option<Arc<Client>>> {
        let Some((builder, connector)) = &self.0.recipe else {
            return Ok(None);
        };
        // The first caller makes the client; the others wait for it here, since at most files are
        // read.
        let mut client = lock(&self.0.client);
        if Arc::ptr_eq(&client, stale) {
            if !stale.worked.load(Ordering::Relaxed) && stale.made.elapsed() < AGAIN {
                return Ok(None);
            }
            *client = Arc::new(builder.connect(connector)?);
            tracing::debug!(store = self.0.url, "credentials are renewed");
        }
        Ok(Some(client.clone()))
    }

    /// Makes a request, and repeats it if only the credentials were too old.
    async fn ask<'a, T: Send>(
        &'a self,
        url: &'a str,
        request: impl Fn(Arc<Client>, Extensions) -> BoxFuture<'a, object_store::Result<T>>
        + Send
        + Sync,
    ) -> Result<T, Failed> {
        let mut client = self.client();
        let mut may_renew = true;
        loop {
            let seen = Seen::default();
            let mut extensions = Extensions::new();
            extensions.insert(seen.clone());
            let error = match request(client.clone(), extensions).await {
                Ok(found) => {
                    client.worked.store(true, Ordering::Relaxed);
                    return Ok(found);
                }
                Err(error) => error,
            };
            let answer = seen.take();
            if answer.status.is_none() && answer.fault.is_none() {
                // The request may not have been sent at all.
                let tokens = self
                    .0
                    .recipe
                    .as_ref()
                    .map(|(_, connector)| connector.tokens().take());
                if let Some(tokens) =
                    tokens.filter(|tokens| tokens.status.is_some() || tokens.fault.is_some())
                {
                    let had_some = client.worked.load(Ordering::Relaxed);
                    return Err(errors::of_credentials(url, &error, &tokens, had_some).into());
                }
            }
            let code = answer.code.as_deref().unwrap_or_default();
            let is_expired = answer
                .status
                .is_some_and(|status| errors::is_expired(status, code));
            if is_expired
                && std::mem::take(&mut may_renew)
                && let Some(fresh) = self.renewed(&client)?
            {
                client = fresh;
                continue;
            }
            return Err(Failed {
                error: errors::translate(url, &error, &answer),
                status: answer.status,
            });
        }
    }

    /// Returns the path of a key in the bucket.
    fn path(&self, key: &str, url: &str) -> Result<Path> {
        let full = format!("{}{key}", self.0.prefix);
        let path = Path::parse(&full)
            .ok()
            .filter(|path| path.as_ref() == full && !key.is_empty());
        path.ok_or_else(|| Error::unsupported(format!("{url}: not a key that can be read here")))
    }

    async fn get_opts(
        &self,
        url: &str,
        path: &Path,
        range: Option<GetRange>,
        version: Option<&str>,
        head: bool,
    ) -> Result<GetResult, Failed> {
        self.ask(url, |client, extensions| {
            let options = GetOptions {
                range: range.clone(),
                if_match: version.map(str::to_owned),
                head,
                extensions,
                ..GetOptions::default()
            };
            let path = path.clone();
            Box::pin(async move { client.objects.get_opts(&path, options).await })
        })
        .await
    }

    fn meta(key: &str, meta: &ObjectMeta) -> Meta {
        Meta {
            key: key.to_owned(),
            size: Some(meta.size),
            version: meta.e_tag.as_deref().and_then(version),
        }
    }

    /// Answers a request for an empty range, for which no service sends a body.
    async fn nothing(&self, key: &str, get: &Get, at: u64) -> Result<Object> {
        let meta = self.head(key).await?;
        let url = self.url_of(key);
        if get.version.is_some() && get.version != meta.version {
            return Err(Error::changed(url));
        }
        match meta.size {
            Some(size) if at > size => Err(Error::protocol(format!(
                "{url}: it has {size} bytes, none at {at}"
            ))),
            _ => Ok(Object {
                meta,
                range: at..at,
                body: Body::once(bytes::Bytes::new()),
                url,
            }),
        }
    }

    /// Returns the next page of a listing, and the position of the page after it.
    async fn page(
        &self,
        prefix: &str,
        token: Option<String>,
    ) -> Result<(Vec<ObjectMeta>, Option<String>)> {
        let found = self
            .ask(&self.0.url, |client, extensions| {
                let options = PaginatedListOptions {
                    page_token: token.clone(),
                    extensions,
                    ..Default::default()
                };
                let prefix = (!prefix.is_empty()).then(|| prefix.to_owned());
                Box::pin(async move {
                    let Some(pages) = &client.pages else {
                        unreachable!("asked for where there are pages only");
                    };
                    pages.list_paginated(prefix.as_deref(), options).await
                })
            })
            .await?;
        let next = found.page_token.filter(|token| !token.is_empty());
        if next.is_some() && next == token {
            let words = format!(
                "{}: the listing does not end: a page leads to itself",
                self.0.url
            );
            return Err(Error::protocol(words));
        }
        Ok((found.result.objects, next))
    }

    /// Returns the metadata of an object if it belongs to this store.
    fn of_prefix(&self, full: &str, found: &ObjectMeta) -> Option<Meta> {
        let location = found.location.as_ref();
        let key = location
            .strip_prefix(&*self.0.prefix)
            .filter(|key| !key.is_empty())?;
        location.starts_with(full).then(|| Cloud::meta(key, found))
    }
}

/// Returns the version that an ETag contains: `None` if it is weak. Some services leave out the
/// quotes in listings.
fn version(tag: &str) -> Option<String> {
    match tag {
        "" | "\"\"" => None,
        _ if tag.starts_with("W/") => None,
        _ if tag.starts_with('"') => Some(tag.to_owned()),
        _ => Some(format!("\"{tag}\"")),
    }
}

#[async_trait]
impl Store for Cloud {
    fn url(&self) -> &str {
        &self.0.url
    }

    /// Returns the URL, endpoint and account.
    fn identity(&self) -> String {
        format!("{}\n{}", self.0.url, self.client().place)
    }

    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        let url = self.url_of(key);
        let path = self.path(key, &url)?;
        let range = match &get.range {
            None => None,
            Some(range) if range.start > range.end => {
                let words = format!("{url}: a range that ends before it begins");
                return Err(Error::protocol(words));
            }
            Some(range) if range.is_empty() => return self.nothing(key, &get, range.start).await,
            Some(range) if range.end == u64::MAX => Some(GetRange::Offset(range.start)),
            Some(range) => Some(GetRange::Bounded(range.clone())),
        };
        let found = self
            .get_opts(&url, &path, range, get.version.as_deref(), false)
            .await;
        let found = match (found, &get.range) {
            (
                Err(Failed {
                    status: Some(416), ..
                }),
                Some(range),
            ) => {
                // The range has no bytes. If it begins where the object ends, that is no error.
                return match self.nothing(key, &get, range.start).await? {
                    object if object.meta.size == Some(range.start) => Ok(object),
                    _ => Err(Error::protocol(format!(
                        "{url}: 416, though it reaches that far"
                    ))),
                };
            }
            (found, _) => found?,
        };
        let meta = Cloud::meta(key, &found.meta);
        if get.version.is_some() && get.version != meta.version {
            // Not every service checks the condition.
            return Err(Error::changed(url));
        }
        let range = found.range.clone();
        let want = range.end.saturating_sub(range.start);
        let named = url.clone();
        let mut got = 0;
        let body = found.into_stream().map(move |piece| match piece {
            Ok(piece) => {
                got += piece.len() as u64;
                Ok(piece)
            }
            Err(error) => Err(errors::of_body(&named, &error, got, want)),
        });
        Ok(Object {
            meta,
            range,
            body: Body::stream(body),
            url,
        })
    }

    async fn head(&self, key: &str) -> Result<Meta> {
        let url = self.url_of(key);
        let path = self.path(key, &url)?;
        let found = self.get_opts(&url, &path, None, None, true).await?;
        Ok(Cloud::meta(key, &found.meta))
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        let store = self.clone();
        let full = format!("{}{prefix}", self.0.prefix);
        if self.client().pages.is_some() {
            let pages =
                futures::stream::try_unfold(Some(None), move |at: Option<Option<String>>| {
                    let (store, full) = (store.clone(), full.clone());
                    async move {
                        let Some(token) = at else {
                            return Ok::<_, Error>(None);
                        };
                        let (found, next) = store.page(&full, token).await?;
                        let found: Vec<_> = found
                            .iter()
                            .filter_map(|found| store.of_prefix(&full, found))
                            .map(Ok)
                            .collect();
                        Ok(Some((futures::stream::iter(found), next.map(Some))))
                    }
                });
            return pages.try_flatten().boxed();
        }
        // Stores that the user made list whole folders.
        let folder = &full[..full.rfind('/').map_or(0, |at| at + 1)];
        // `Path::from` would encode letters of the name.
        let Ok(folder) = Path::parse(folder) else {
            // No key begins like this.
            return futures::stream::empty().boxed();
        };
        let found = self.client().objects.list(Some(&folder));
        let found = found.map_err({
            let url = self.0.url.clone();
            move |error| errors::translate(&url, &error, &link::Answer::default())
        });
        found
            .try_filter_map(move |found| futures::future::ready(Ok(store.of_prefix(&full, &found))))
            .boxed()
    }
}

// Shows the location, and never the credentials.
datapipes::opaque_debug!(Cloud { url = self.0.url });
