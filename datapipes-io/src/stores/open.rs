//! Opens a store by its URL.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use datapipes::{Backoff, Error, Result};
use percent_encoding::percent_decode_str;

use super::local::Local;
use super::wrappers::InFlight;
use super::{Store, StoreExt, redacted, resilient};

/// Opens the store that a URL names. Makes no connection yet.
///
/// A remote store is wrapped in [`resilient`]: transient errors are retried, bodies that were cut
/// are resumed at the point of the cut, and an overloaded service gets fewer concurrent requests.
/// The retries of a hub end after 400 seconds, not 180, since it counts requests over 300.
///
/// | URL | store | feature |
/// |---|---|---|
/// | `file:///folder`, or a path | [`Local`] | |
/// | `http://`, `https://` | a web server | `http` |
/// | `hf://datasets/org/name@revision/folder` | a repository of the Hugging Face Hub | `http` |
/// | `s3://bucket/prefix` | S3 and what speaks its protocol | `cloud` |
/// | `gs://bucket/prefix` | Google Cloud Storage | `cloud` |
/// | `az://container/prefix`, `abfss://container@account.dfs.core.windows.net/prefix` | Azure Blob Storage | `cloud` |
///
/// The documentation of each store lists the parameters that a query may hold. The parts of a path
/// in a URL are percent-encoded where they must be; a plain path is used unchanged.
///
/// # Errors
/// `Config` for an invalid URL, an unknown scheme, or a feature that is not built in; otherwise the
/// errors of the store. No error shows user, password or query.
///
/// # Examples
/// ```
/// use datapipes_io::stores::{self, Store};
/// # let dir = tempfile::tempdir()?;
/// # std::fs::write(dir.path().join("a.txt"), "one")?;
/// # let url = format!("file://{}", dir.path().display());
/// let store = stores::open(&url)?;
/// # futures::executor::block_on(async {
/// assert_eq!(store.read("a.txt").await?, "one");
/// # datapipes::Ok(()) })?;
/// assert!(stores::open("gopher://host/").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn open(url: &str) -> Result<Arc<dyn Store>> {
    OpenOptions::new().open(url)
}

/// Options for opening a store; see [`open`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct OpenOptions {
    bare: bool,
}

impl OpenOptions {
    /// Returns the options that [`open`] uses.
    pub fn new() -> Self {
        OpenOptions::default()
    }

    /// Leaves out the wrappers that are put around remote stores.
    pub fn bare(self) -> Self {
        OpenOptions { bare: true }
    }

    /// Opens the store that a URL names.
    ///
    /// # Errors
    /// The errors of [`open`].
    pub fn open(&self, url: &str) -> Result<Arc<dyn Store>> {
        let Some((scheme, _)) = url.split_once("://") else {
            return match url.split_once(':') {
                // A slash is missing. The rest may hold a password and is not shown.
                Some((scheme, _)) if SCHEMES.contains(&&*scheme.to_ascii_lowercase()) => {
                    let words = format!(
                        "{scheme}:…: a URL begins with {scheme}://, and a path of this name with ./"
                    );
                    Err(Error::config(words))
                }
                _ => Ok(Arc::new(Local::new(url))),
            };
        };
        if scheme.eq_ignore_ascii_case("file") {
            return Ok(Arc::new(Local::new(file(url)?)));
        }
        let scheme = scheme.to_ascii_lowercase();
        let store = far(&scheme, url)?;
        Ok(match &*scheme {
            _ if self.bare => store,
            // The hub counts requests in windows of five minutes.
            "hf" => {
                let backoff = Backoff {
                    deadline: Duration::from_secs(400),
                    ..Backoff::default()
                };
                Arc::new(store.limit(InFlight::OnOverload).retry(backoff))
            }
            _ => Arc::new(resilient(store)),
        })
    }
}

/// Schemes that are unlikely to be the beginning of a path.
const SCHEMES: &[&str] = &[
    "file", "hf", "http", "https", "s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss",
];

/// Returns true if a text begins with the scheme of a store.
pub(super) fn is_url(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| SCHEMES.contains(&&*scheme.to_ascii_lowercase()))
}

/// Returns the folder that a `file://` URL names: an absolute local path.
fn file(url: &str) -> Result<PathBuf> {
    let path = url.split_once("://").map_or("", |(_, path)| path);
    let path = path.strip_prefix("localhost").unwrap_or(path);
    // `/C:/folder`
    let path = path
        .strip_prefix(if cfg!(windows) { "/" } else { "" })
        .unwrap_or(path);
    let bytes: Vec<u8> = percent_decode_str(path).collect();
    #[cfg(unix)]
    let decoded = Some(PathBuf::from(
        <std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(bytes),
    ));
    #[cfg(not(unix))]
    let decoded = String::from_utf8(bytes).ok().map(PathBuf::from);
    decoded
        .filter(|decoded| decoded.is_absolute() && !path.contains(['?', '#']))
        .ok_or_else(|| {
            wrong(
                url,
                "write file:///folder, with an absolute path, and ?, # and % percent-encoded",
            )
        })
}

/// Opens a remote store.
fn far(scheme: &str, url: &str) -> Result<Arc<dyn Store>> {
    match scheme {
        #[cfg(feature = "http")]
        "http" | "https" => Ok(Arc::new(super::Http::new(url)?)),
        #[cfg(feature = "http")]
        "hf" => Ok(Arc::new(super::Hub::new(url)?)),
        #[cfg(not(feature = "http"))]
        "hf" | "http" | "https" => missing(url, "http"),
        #[cfg(feature = "cloud")]
        "s3" | "s3a" | "gs" | "gcs" | "az" | "azure" | "abfs" | "abfss" => {
            Ok(Arc::new(super::cloud::Cloud::open(url)?))
        }
        #[cfg(not(feature = "cloud"))]
        "s3" | "s3a" | "gs" | "gcs" | "az" | "azure" | "abfs" | "abfss" => missing(url, "cloud"),
        "cassandra" | "scylla" | "sqlite" => Err(wrong(
            url,
            "this is a table, not a store; `datapipes_tables::open` opens it",
        )),
        _ => Err(wrong(url, "there is no store for this kind of URL")),
    }
}

#[cfg(not(all(feature = "http", feature = "cloud")))]
fn missing(url: &str, feature: &str) -> Result<Arc<dyn Store>> {
    Err(wrong(
        url,
        &format!("this needs the feature `{feature}` of datapipes-io, which is not built in"),
    ))
}

fn wrong(url: &str, what: &str) -> Error {
    Error::config(format!("{}: {what}", redacted(url)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    #[test]
    fn a_url_that_lacks_a_slash_is_no_path_and_is_not_shown() {
        for url in ["https:/me:secret@host/x", "S3:bucket/secret"] {
            let error = open(url).unwrap_err();
            assert!(
                error.kind() == ErrorKind::Config && !error.to_string().contains("secret"),
                "{error}"
            );
        }
        assert!(open("./https:/x").is_ok() && open("C:/data").is_ok());
    }

    #[test]
    fn a_path_and_a_file_url_are_folders() {
        assert_eq!(open("/data/a b%20").unwrap().url(), "file:///data/a b%20/");
        assert_eq!(
            open("file:///data/a%20b").unwrap().url(),
            "file:///data/a b/"
        );
        assert_eq!(
            open("FILE://localhost/data/").unwrap().url(),
            "file:///data/"
        );
        assert!(open("data").unwrap().url().ends_with("/data/"));
        for url in ["file://host/data", "file:///a?b", "file:///a#b"] {
            assert_eq!(open(url).unwrap_err().kind(), ErrorKind::Config, "{url}");
        }
    }

    #[test]
    fn row_73_what_cannot_be_opened_is_named_without_secrets() {
        for url in [
            "gopher://me:SECRET@host/a?SECRET",
            "cassandra://me:SECRET@host/a",
            "s3://me:SECRET@host/?SECRET",
            "hf://me:SECRET@host/?SECRET",
        ] {
            let error = open(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(
                error.to_string().contains("://host") && !error.to_string().contains("SECRET"),
                "{error}"
            );
        }
    }

    #[cfg(not(feature = "cloud"))]
    #[test]
    fn a_feature_that_is_missing_is_named() {
        for url in [
            "s3://bucket",
            "gs://bucket",
            "az://box",
            "abfss://box@account.dfs.core.windows.net",
        ] {
            assert!(
                open(url).unwrap_err().to_string().contains("`cloud`"),
                "{url}"
            );
        }
    }

    #[cfg(feature = "cloud")]
    #[test]
    fn buckets_are_opened_by_their_urls() {
        let store = open("s3://bucket/a?anonymous=true").unwrap();
        assert_eq!(
            (store.url(), &*store.url_of("k")),
            ("s3://bucket/a/", "s3://bucket/a/k")
        );
        assert_eq!(
            OpenOptions::new()
                .bare()
                .open("S3://bucket?anonymous=true")
                .unwrap()
                .url(),
            "s3://bucket/"
        );
    }
}
