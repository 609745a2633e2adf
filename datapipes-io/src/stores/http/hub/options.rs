//! Options of the hub, and where its token is found.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use datapipes::whole_file::read_text;
use datapipes::{ErrorKind, Result};
use reqwest::StatusCode;
use reqwest::header::HeaderMap;

use super::{Hub, Repository};
use crate::stores::http::HttpBuilder;
use crate::stores::http::address::Address;

/// The hub, unless another is named.
const ENDPOINT: &str = "https://huggingface.co";

/// Options of a [`Hub`] store; made by [`Hub::builder`].
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use datapipes_io::stores::{Hub, Store};
/// let store = Hub::builder("hf://datasets/org/name/train")
///     .revision("refs/convert/parquet")
///     .anonymous()
///     .http(|http| http.first_byte_timeout(Duration::from_secs(60)))
///     .build()?;
/// assert_eq!(store.url(), "hf://datasets/org/name@refs%2Fconvert%2Fparquet/train/");
/// # datapipes::Ok(())
/// ```
#[must_use = "it does nothing until `build`"]
pub struct HubBuilder {
    url: String,
    revision: Option<String>,
    endpoint: Option<String>,
    token: Token,
    http: HttpBuilder,
}

enum Token {
    /// The token of the environment, as the official client finds it.
    Found,
    Given(String),
    None,
}

impl HubBuilder {
    pub(super) fn new(url: &str) -> Self {
        HubBuilder {
            url: url.to_owned(),
            revision: None,
            endpoint: None,
            token: Token::Found,
            http: HttpBuilder::new(""),
        }
    }

    datapipes::setters! {
        /// Sets the branch, tag or commit; overrides the URL. Defaults to the main branch.
        revision(revision: &str) => revision = Some(revision.to_owned());

        /// Sets the URL of the hub, in place of `HF_ENDPOINT`. Defaults to `https://huggingface.co`.
        endpoint(url: &str) => endpoint = Some(url.to_owned());

        /// Sends this token to the hub; overrides the environment.
        token(token: &str) => token = Token::Given(token.trim().to_owned());

        /// Sends no token, also if the environment has one.
        anonymous() => token = Token::None;
    }

    /// Sets options of the requests: timeouts, proxies, certificates, hosts besides the public ones
    /// to which redirects are followed. URL, token and listing are those of the hub.
    pub fn http(mut self, change: impl FnOnce(HttpBuilder) -> HttpBuilder) -> Self {
        self.http = change(self.http);
        self
    }

    /// Returns the store. Makes no request yet; reads the file with the token, if there is one.
    ///
    /// # Errors
    /// `Config` for a URL or options that are invalid.
    pub fn build(self) -> Result<Hub> {
        let mut repository = Repository::parse(&self.url)?;
        if let Some(revision) = &self.revision {
            repository = repository.at(revision)?;
        }
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let endpoint = match self.endpoint {
            Some(endpoint) => endpoint,
            None => match variable("HF_ENDPOINT") {
                Some(endpoint) => endpoint.to_string_lossy().into_owned(),
                None => ENDPOINT.to_owned(),
            },
        };
        let token = match self.token {
            Token::Given(token) => Some(token),
            Token::Found => token(&variable),
            Token::None => None,
        };
        let mut http = self.http;
        if let Some(token) = &token {
            http = http.bearer(token);
        }
        let address = Address::parse(&endpoint);
        let (address, _) = address.map_err(|error| error.within("the endpoint of the hub"))?;
        let page = format!("{}{}", address.shown(), repository.path(&repository.id));
        let (whose, has_token) = (repository.clone(), token.is_some());
        let refused = move |status: StatusCode, headers: &HeaderMap| {
            refused(&whose, &page, has_token, status, headers)
        };
        let http = http.for_hub(&endpoint, Box::new(refused)).build()?;
        let offline = is_true(variable("HF_HUB_OFFLINE"));
        Ok(Hub::of(http, repository, offline))
    }
}

/// Shows no token.
impl fmt::Debug for HubBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = Repository::parse(&self.url).map(|repository| repository.to_string());
        f.debug_struct("HubBuilder")
            .field("url", &shown.unwrap_or_else(|_| "..".into()))
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}

/// Returns what a refusal of the hub means, and what can be done.
fn refused(
    repository: &Repository,
    page: &str,
    has_token: bool,
    status: StatusCode,
    headers: &HeaderMap,
) -> Option<(ErrorKind, String)> {
    let code = headers
        .get("x-error-code")
        .and_then(|code| code.to_str().ok());
    let (kind, id) = (repository.kind(), &repository.id);
    let advice = if has_token {
        "a token of an account that may read it"
    } else {
        "HF_TOKEN to a token that may read it"
    };
    Some(match code {
        Some("GatedRepo") => {
            let what = if has_token {
                "the account of the token has not accepted its conditions".to_owned()
            } else {
                "it can be read by those who accepted its conditions".to_owned()
            };
            (
                ErrorKind::Denied,
                format!("{what}: accept them at {page}, and set {advice}"),
            )
        }
        Some("RepoNotFound") => {
            let mut what = format!("there is no {kind} {id}, or it is private: set {advice}");
            if !repository.folder.is_empty() && repository.revision.is_none() {
                what += "; a name without an organization is followed by @ and a revision";
            }
            (ErrorKind::NotFound, what)
        }
        Some("RevisionNotFound") => {
            let revision = repository.revision.as_deref().unwrap_or("main");
            let what = format!("the {kind} {id} has no branch, tag or commit {revision}");
            (ErrorKind::NotFound, what)
        }
        Some("EntryNotFound") => (
            ErrorKind::NotFound,
            format!("no such file in the {kind} {id}"),
        ),
        _ if status == StatusCode::UNAUTHORIZED && has_token => {
            let what =
                "the hub does not know the token: make another at its settings, or unset HF_TOKEN";
            (ErrorKind::Denied, what.to_owned())
        }
        _ if status == StatusCode::UNAUTHORIZED => (ErrorKind::Denied, format!("set {advice}")),
        _ => return None,
    })
}

fn is_true(value: Option<OsString>) -> bool {
    let value = value.unwrap_or_default().to_string_lossy().to_uppercase();
    matches!(&*value, "1" | "ON" | "YES" | "TRUE")
}

/// Returns the token of the environment, from where the official client has it.
fn token(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<String> {
    if is_true(variable("HF_HUB_DISABLE_IMPLICIT_TOKEN")) {
        return None;
    }
    let named = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]
        .iter()
        .find_map(|name| variable(name));
    let text = match named {
        Some(token) => token.into_string().ok(),
        None => {
            let path = |name: &str| variable(name).map(PathBuf::from);
            let below = |folder: PathBuf, name: &str| folder.join(name);
            let file = path("HF_TOKEN_PATH").or_else(|| {
                let home = path("HF_HOME").or_else(|| {
                    let cache = path("XDG_CACHE_HOME")
                        .or_else(|| Some(below(std::env::home_dir()?, ".cache")))?;
                    Some(below(cache, "huggingface"))
                })?;
                Some(below(home, "token"))
            })?;
            read_text(&expanded(&file), 1 << 20).ok()
        }
    };
    text.map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty())
}

/// Returns a path with the user's folder in the place of `~`.
fn expanded(path: &Path) -> PathBuf {
    match (path.strip_prefix("~"), std::env::home_dir()) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_token_is_where_the_official_client_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, format!(" {name}\n")).unwrap();
            path.into_os_string()
        };
        let mut set: Vec<(&str, OsString)> = Vec::new();
        let found = |set: &[(&str, OsString)]| {
            token(&|name| {
                set.iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, value)| value.clone())
            })
        };
        file("cache/huggingface/token");
        file("home/token");
        // Each takes precedence over those before it.
        for (name, value, expected) in [
            (
                "XDG_CACHE_HOME",
                folder.path().join("cache").into(),
                "cache/huggingface/token",
            ),
            ("HF_HOME", folder.path().join("home").into(), "home/token"),
            ("HF_TOKEN_PATH", file("mine"), "mine"),
            ("HUGGING_FACE_HUB_TOKEN", "old".into(), "old"),
            ("HF_TOKEN", "new\n".into(), "new"),
        ] {
            set.push((name, value));
            assert_eq!(found(&set).as_deref(), Some(expected));
        }
        set.push(("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1".into()));
        assert_eq!(found(&set), None);
        assert_eq!(
            found(&[("HF_TOKEN_PATH", folder.path().join("none").into())]),
            None
        );
    }

    #[test]
    fn options_that_make_no_sense_are_said_without_the_token() {
        let url = "hf://datasets/org/name";
        for builder in [
            Hub::builder(url).token("mar\nker"),
            Hub::builder(url).token("marker").endpoint("marker"),
            Hub::builder(url).token("marker").revision(""),
            Hub::builder("hf://marker:marker@/").token("marker"),
        ] {
            assert!(!format!("{builder:?}").contains("mar"), "{builder:?}");
            let error = builder.build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(!format!("{error:?} {error}").contains("marker"), "{error}");
        }
    }
}
