//! Listings: the names of objects from the pages that a server makes of its folders, or from a file
//! that names all objects.

pub(super) mod json;
mod manifest;
pub(super) mod pages;

use datapipes::{Error, ErrorKind, Result};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, Url};

use super::answer::Answer;
use super::fault::head;
use super::{Asked, Http, Meta, Store};

/// Source of the names of the objects of an [`Http`] store.
///
/// A listing makes requests as it is polled. It ends at the first error, except for a name that
/// cannot be a key: that name is an error in its place, and the listing continues.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Listing {
    /// [`Pages`](Listing::Pages) if the server makes such pages; otherwise a
    /// [`Manifest`](Listing::Manifest), the first that exists of `index.json`, `manifest.json`,
    /// `index.txt` and `manifest.txt`.
    #[default]
    Auto,
    /// The pages that servers make of folders: HTML as of nginx, Apache, lighttpd or Python, or
    /// JSON as of nginx (`autoindex_format json`) or Caddy. Folders are entered one by one, in
    /// ascending order of the bytes of keys; the names in one folder and in its parent folders are
    /// held in memory, up to 4 million for each folder. JSON contains sizes; HTML contains no exact
    /// sizes. A missing folder has no objects.
    Pages,
    /// A file below the store's URL that names all objects, in its order; the file is read line by
    /// line and not held in memory.
    ///
    /// As text, the file has one key on each line, optionally followed by a tab and the size, and
    /// another tab and the strong ETag. As JSON (`.json`, or by content type), the file is an array
    /// of keys, of objects with `name` or `key`, `size` and `etag`, or of arrays that begin with a
    /// key. A key that is repeated immediately is listed once.
    Manifest(String),
}

/// Default names of a manifest.
const USUAL: [&str; 4] = ["index.json", "manifest.json", "index.txt", "manifest.txt"];

pub(super) fn list(http: Http, prefix: String) -> BoxStream<'static, Result<Meta>> {
    let opened = async move {
        open(&http, prefix)
            .await
            .unwrap_or_else(|error| stream::once(async { Err(error) }).boxed())
    };
    stream::once(opened).flatten().boxed()
}

async fn open(http: &Http, prefix: String) -> Result<BoxStream<'static, Result<Meta>>> {
    match &http.0.listing {
        Listing::Pages => pages::open(http, prefix).await,
        Listing::Manifest(key) => manifest::open(http, key, prefix).await,
        Listing::Auto => find(http, prefix).await,
    }
}

/// Finds out the kind of the listing.
async fn find(http: &Http, prefix: String) -> Result<BoxStream<'static, Result<Meta>>> {
    let absent = |error: &Error| {
        matches!(
            error.kind(),
            ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::Corrupt
        )
    };
    let folder = pages::folder_of(&prefix);
    let first = match pages::entries(http, folder, true).await {
        Ok(entries) => return Ok(pages::walk(http, prefix, entries)),
        Err(error) if absent(&error) => error,
        Err(error) => return Err(error),
    };
    for key in USUAL {
        match manifest::open(http, key, prefix.clone()).await {
            Err(error) if absent(&error) => {}
            opened => return opened,
        }
    }
    // A missing folder is empty, if the root can be listed.
    if first.kind() == ErrorKind::NotFound
        && !folder.is_empty()
        && pages::entries(http, "", true).await.is_ok()
    {
        return Ok(stream::empty().boxed());
    }
    let words = format!("{}: no manifest, and no listing", shown(http, folder));
    Err(Error::new(first.kind(), words).with_source(first))
}

/// A text to be parsed as a listing.
struct Text<S> {
    /// Name for errors.
    name: String,
    /// URL that was requested.
    url: Url,
    kind: String,
    body: S,
}

/// Requests a listing.
async fn ask(
    http: &Http,
    url: Url,
    name: String,
) -> Result<Text<impl Stream<Item = Result<bytes::Bytes>> + Unpin + use<>>> {
    const KINDS: HeaderValue =
        HeaderValue::from_static("application/json, text/html;q=0.9, */*;q=0.8");
    let headers = HeaderMap::from_iter([(ACCEPT, KINDS)]);
    let found = http
        .0
        .send(Method::GET, url.clone(), headers, &name)
        .await?;
    let asked = Asked::page(name, url);
    let answer = Answer::check(&http.0, &asked, found, None).await?;
    let Asked { name, url, .. } = asked;
    let (headers, body) = answer.into_stream(&http.0, name.clone());
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or("");
    let kind = kind
        .split(';')
        .next()
        .unwrap_or("")
        .trim()
        .to_ascii_lowercase();
    Ok(Text {
        name,
        url,
        kind,
        body,
    })
}

/// Returns the error of a text that is not a listing.
pub(super) fn corrupt(name: &str, why: &str) -> Error {
    Error::corrupt(format!("{name}: {why}"))
}

/// Returns the error of a name that cannot be a key.
pub(super) fn no_key(name: &str, text: &str, why: &str) -> Error {
    corrupt(name, &format!("{:?} is no key: {why}", head(text, 256)))
}

/// Returns the URL of a folder, for messages.
fn shown(http: &Http, folder: &str) -> String {
    format!("{}{folder}", http.url())
}
