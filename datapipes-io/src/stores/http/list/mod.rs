//! The names of objects: from the pages that a server makes of its folders, or from a file that
//! holds them all.

mod json;
mod manifest;
mod pages;

use datapipes::{Error, ErrorKind, Result};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, Url};

use super::answer::Answer;
use super::fault::head;
use super::{Http, Meta, Store};

/// Where an [`Http`] store finds the names of its objects.
///
/// A listing asks for what it needs as it is polled. It ends at the first error, but for a name
/// that cannot be a key: that is an error in its place, and the listing goes on.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Listing {
    /// As [`Pages`](Listing::Pages) where the server makes such pages; else as
    /// [`Manifest`](Listing::Manifest) with the first that is there of `index.json`,
    /// `manifest.json`, `index.txt` and `manifest.txt`.
    #[default]
    Auto,
    /// The pages that servers make of folders: HTML as of nginx, Apache, lighttpd or Python, or
    /// JSON as of nginx (`autoindex_format json`) or Caddy. Folders are entered one by one, in
    /// ascending order of the bytes of keys; the names of one folder and of those above it are
    /// held, up to 4 million of each. JSON tells sizes, HTML none that are exact. A folder that is
    /// not there has no objects.
    Pages,
    /// A file below the store's URL that names all objects, in its order; read line by line,
    /// nothing is held.
    ///
    /// As text, a key a line; behind a tab its size, behind another its strong ETag, if they are
    /// known. As JSON (`.json`, or by content type), an array of keys, of objects with `name` or
    /// `key`, `size` and `etag`, or of arrays that begin with a key. The same key twice in a row is
    /// taken once.
    Manifest(String),
}

/// Where a manifest may be that nobody named.
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

/// What kind of listing there is.
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
    // A folder that is not there is empty, if the one above all can be listed.
    if first.kind() == ErrorKind::NotFound
        && !folder.is_empty()
        && pages::entries(http, "", true).await.is_ok()
    {
        return Ok(stream::empty().boxed());
    }
    let words = format!("{}: no manifest, and no listing", shown(http, folder));
    Err(Error::new(first.kind(), words).with_source(first))
}

/// Something to be read as a listing.
struct Text<S> {
    /// What errors call it.
    name: String,
    /// Where it was asked for.
    url: Url,
    kind: String,
    body: S,
}

/// Asks for a listing.
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
    let answer = Answer::check(&http.0, &name, found, None).await?;
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

/// That a text is none of what was hoped for.
fn corrupt(name: &str, why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{name}: {why}"))
}

/// The error of a name that cannot be a key.
fn no_key(name: &str, text: &str, why: &str) -> Error {
    corrupt(name, &format!("{:?} is no key: {why}", head(text, 256)))
}

/// The URL of a folder, for messages.
fn shown(http: &Http, folder: &str) -> String {
    format!("{}{folder}", http.url())
}
