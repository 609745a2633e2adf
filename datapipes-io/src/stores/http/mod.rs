//! Objects on a web server: `http://` and `https://`.

mod address;
mod answer;
mod body;
mod fault;
mod hub;
mod list;
mod options;
mod send;

pub use hub::{Hub, HubBuilder};
pub use list::Listing;
pub use options::HttpBuilder;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use datapipes::{Error, ErrorKind, Result};
use futures::stream::BoxStream;
use reqwest::header::{HeaderMap, HeaderValue, IF_MATCH, RANGE};
use reqwest::{Method, StatusCode, Url};

use super::clients::Clients;
use super::{Body, Get, Meta, Object, Store};
use address::Address;
use answer::Answer;
use body::Rate;
use fault::Secrets;

/// A store of the objects on a web server: the URLs below a base URL, by GET and HEAD. Clones share
/// connections.
///
/// There is no limit on the number of requests in flight; each uses its own connection (HTTP/1.1),
/// which stays open for the next request. Only the bytes that the network brings for open bodies
/// are buffered. The store needs tokio: its futures are polled on a tokio runtime, as the futures
/// of a graph are. Runtimes share no connections.
///
/// The store accepts only these answers, so that no bytes are ever wrong:
/// - status 200 for a whole object, 206 with exactly the requested range for a range;
/// - an announced length, or chunks, so that a cut body is recognized (see
///   [`allow_unknown_length`](HttpBuilder::allow_unknown_length));
/// - no content encoding: `identity` is requested, and anything else is refused;
/// - a strong ETag is the [version](Meta::version). A read of one version requests that version
///   (`If-Match`), and also compares the version of the answer. A weak ETag or a modification time
///   is not precise enough and is ignored.
///
/// A server that answers 200 with a page for people (a login, a notice) cannot be told from a
/// server that answers with the object. The decoder of the data will fail.
///
/// Redirects within the scheme, host and port of the store are followed; others only if
/// [`allow_redirects_to`](HttpBuilder::allow_redirects_to) permits them. The proxies of the
/// environment are not used unless requested. If an idle connection turns out to have ended, the
/// request is sent again immediately, once. The store retries nothing else: use a wrapper for
/// retries.
///
/// # Errors
/// | cause | kind | transient |
/// |---|---|---|
/// | 404, 410; a redirect to the same name with a `/` at its end, as folders have | `NotFound` | no |
/// | 401, 403, 407; an untrusted certificate; a redirect or key that is not allowed | `Denied` | no |
/// | 412, another ETag than that of the version asked for | `Changed` | no |
/// | 408, 429, 5xx; no address, no connection, no answer, or a stalled body | `Unavailable` | yes, after `Retry-After` |
/// | 501, 505 | `Unsupported` | no |
/// | a body that ends early | `Truncated` | yes |
/// | any other status; a wrong range, length, chunk or encoding; a length together with chunks; too many headers | `Protocol` | no |
///
/// The message contains the beginning of a refusal's body, up to 1 KiB, without the secrets that
/// the store knows.
///
/// # Cancellation
/// Dropping a request or a body ends its transfer, and closes its connection unless the whole
/// answer has arrived.
///
/// # Examples
/// ```
/// use datapipes_io::stores::{Http, Store};
/// let store = Http::builder("https://data.example.org/train?signature=0f3a").bearer("token").build()?;
/// assert_eq!(store.url(), "https://data.example.org/train/");
/// assert_eq!(store.url_of("a b.jpg"), "https://data.example.org/train/a b.jpg");
/// # datapipes::Ok(())
/// ```
#[derive(Clone)]
pub struct Http(Arc<Inner>);

struct Inner {
    address: Address,
    clients: Clients,
    /// Sent only to the store's own origin.
    headers: HeaderMap,
    secrets: Secrets,
    first_byte: Duration,
    rate: Rate,
    /// Hosts to which redirects are followed, besides the store's own: `host` or `host:port`.
    follow: Vec<String>,
    /// True if they are followed also from public hosts to public hosts, see [`is_as_public`].
    ///
    /// [`is_as_public`]: address::is_as_public
    as_public: bool,
    /// Explains refusals by the store's own host, where their status does not say enough.
    refused: Option<Refused>,
    unknown_length: bool,
    listing: Listing,
}

/// Returns what went wrong, by the status and headers of a refusal.
type Refused = Box<dyn Fn(StatusCode, &HeaderMap) -> Option<(ErrorKind, String)> + Send + Sync>;

impl Http {
    /// Returns a store of the objects below a URL, `http://` or `https://`. `user:password@` in the
    /// URL authenticates; a query is sent with every request. Neither is ever shown.
    ///
    /// # Errors
    /// `Config` for an invalid URL.
    pub fn new(url: &str) -> Result<Http> {
        Http::builder(url).build()
    }

    /// Returns a builder for a store with options.
    pub fn builder(url: &str) -> HttpBuilder {
        HttpBuilder::new(url)
    }

    fn asked<'a>(&self, key: &'a str) -> Result<Asked<'a>> {
        Ok(Asked {
            key,
            name: self.url_of(key),
            url: self.0.address.of(key)?,
            version: None,
        })
    }
}

/// The object of a request.
struct Asked<'a> {
    key: &'a str,
    /// Name for errors.
    name: String,
    url: Url,
    /// Version of whatever is at the URL, if the URL names the version: it is then not requested,
    /// and ETags are ignored.
    version: Option<&'a str>,
}

impl Asked<'_> {
    /// Asks for a page that is no object of the store.
    fn page(name: String, url: Url) -> Self {
        Asked {
            key: "",
            name,
            url,
            version: None,
        }
    }
}

impl Inner {
    /// Opens an object. Returns also the URL that the answer came from.
    async fn get(&self, asked: &Asked<'_>, get: Get) -> Result<(Object, Url)> {
        let name = &asked.name;
        let version = get.version.as_deref();
        if asked.version.is_some() {
            answer::check_version(name, version, asked.version)?;
        }
        let mut headers = match &get.range {
            Some(range) if range.start > range.end => {
                let words = format!("{name}: a range that ends before it begins");
                return Err(Error::protocol(words));
            }
            Some(range) if range.is_empty() => {
                return self.nothing(asked, range.start, version).await;
            }
            Some(range) => range_header(range),
            None => HeaderMap::new(),
        };
        if let (Some(version), None) = (version, asked.version) {
            let tag = HeaderValue::from_str(version)
                .ok()
                .filter(|_| answer::is_strong(version));
            // The version cannot have come from this store, so it cannot be the current version.
            let tag = tag.ok_or_else(|| Error::changed(format!("{name}: not an ETag")))?;
            headers.insert(IF_MATCH, tag);
        }
        let url = asked.url.clone();
        let found = self.send(Method::GET, url, headers, name).await?;
        if let (416, Some(range)) = (found.status().as_u16(), &get.range)
            && answer::size_in_416(found.headers()) == Some(range.start)
        {
            return self.nothing(asked, range.start, version).await;
        }
        let from = found.url().clone();
        let answer = Answer::check(self, asked, found, get.range.as_ref()).await?;
        answer::check_version(name, version, answer.version.as_deref())?;
        Ok((answer.open(self, asked), from))
    }

    /// Requests HEAD, or the first byte if the server does not support HEAD. The first byte also of
    /// a URL that names the version: it leads to a signed URL, whose signature may be for GET.
    async fn look(&self, asked: &Asked<'_>) -> Result<Meta> {
        if asked.version.is_none() {
            let (url, none) = (asked.url.clone(), HeaderMap::new());
            let found = self.send(Method::HEAD, url, none, &asked.name).await?;
            if !matches!(found.status().as_u16(), 405 | 501) {
                return Ok(Answer::check_head(self, asked, found)
                    .await?
                    .meta(asked.key));
            }
        }
        let first = 0..1;
        let url = asked.url.clone();
        let found = self
            .send(Method::GET, url, range_header(&first), &asked.name)
            .await?;
        let part = match found.status().as_u16() {
            // The server may not support ranges either. Its answer for the whole object suffices.
            200 => None,
            416 => {
                return Ok(Meta {
                    size: answer::size_in_416(found.headers()),
                    version: asked.version.map(str::to_owned),
                    ..Meta::new(asked.key)
                });
            }
            _ => Some(&first),
        };
        Ok(Answer::check(self, asked, found, part)
            .await?
            .meta(asked.key))
    }

    /// Returns an object with an empty range.
    async fn nothing(
        &self,
        asked: &Asked<'_>,
        at: u64,
        version: Option<&str>,
    ) -> Result<(Object, Url)> {
        let (name, meta) = (&asked.name, self.look(asked).await?);
        answer::check_version(name, version, meta.version.as_deref())?;
        if let Some(size) = meta.size.filter(|size| at > *size) {
            return Err(Error::protocol(format!(
                "{name}: it has {size} bytes, none at {at}"
            )));
        }
        let object = Object {
            meta,
            range: at..at,
            body: Body::once(bytes::Bytes::new()),
            url: name.clone(),
        };
        Ok((object, asked.url.clone()))
    }
}

fn range_header(range: &std::ops::Range<u64>) -> HeaderMap {
    let text = match range.end {
        u64::MAX => format!("bytes={}-", range.start),
        end => format!("bytes={}-{}", range.start, end - 1),
    };
    HeaderMap::from_iter([(RANGE, HeaderValue::try_from(text).expect("digits"))])
}

#[async_trait]
impl Store for Http {
    fn url(&self) -> &str {
        self.0.address.shown()
    }

    /// Returns the URL, and a hash of its query, which may select the data set.
    fn identity(&self) -> String {
        match self.0.address.base().query() {
            Some(query) => format!("{}?{}", self.url(), blake3::hash(query.as_bytes())),
            None => self.url().to_owned(),
        }
    }

    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        let (object, _) = self.0.get(&self.asked(key)?, get).await?;
        Ok(object)
    }

    async fn head(&self, key: &str) -> Result<Meta> {
        self.0.look(&self.asked(key)?).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        list::list(self.clone(), prefix.to_owned())
    }
}

// Shows nothing secret.
datapipes::opaque_debug!(Http { url = self.url() });
