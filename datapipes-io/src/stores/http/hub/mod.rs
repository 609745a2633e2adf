//! Repositories of the Hugging Face Hub: `hf://`.

mod options;
mod repository;
mod targets;
mod tree;

pub use options::HubBuilder;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use datapipes::{Error, ErrorKind, Result, Revision, lock};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use reqwest::header::HeaderMap;
use reqwest::{Method, Url};
use serde::Deserialize;
use tokio::sync::OnceCell;
use tracing::{info, warn};

use super::address::check_key;
use super::answer::Answer;
#[cfg(feature = "testing")]
use super::list::corrupt;
use super::list::no_key;
use super::list::pages::folder_of;
use super::{Asked, Http};
use crate::stores::{Get, Meta, Object, Store};
use repository::Repository;
use targets::Targets;
use tree::Files;

/// A store of the files of a repository of the Hugging Face Hub: a data set, a model or a space.
/// Clones share connections and all known facts about the repository.
///
/// | URL | names |
/// |---|---|
/// | `hf://datasets/org/name` | a data set at its main branch |
/// | `hf://datasets/org/name@v1/train` | the folder `train` of a branch, tag or commit |
/// | `hf://datasets/org/name@refs/convert/parquet` | a data set that the hub converted to Parquet |
/// | `hf://datasets/org/name@refs/pr/7` | a pull request |
/// | `hf://datasets/org/name@feature%2Fx` | a branch with a `/` in its name |
/// | `hf://datasets/name`, `hf://datasets/name@main/train` | an old data set, without an organization; a folder of it needs a revision |
/// | `hf://org/name`, `hf://models/org/name` | a model |
/// | `hf://spaces/org/name` | a space |
///
/// # Revisions
/// A branch or tag is resolved to its commit once, before anything is read, and all that the store
/// and its clones read is of that commit, also if the branch moves meanwhile. The commit is the
/// [revision](Store::revision) of the store and the [version](Meta::version) of each file. A
/// checkpoint of a graph that lists the store ([`list_files`](crate::StoreExt::list_files)) has it:
/// an epoch that is resumed goes on with the commit that it began with, and a commit that is gone is
/// `NotFound`. If the store has read another commit before, resuming is an error that names both. A
/// graph of named files ([`files`](crate::StoreExt::files), [`index`](crate::StoreExt::index)) does
/// not record the commit. Write it into the URL there, and wherever several processes, such as the
/// ranks of a job, must read the same.
///
/// # Requests
/// - A folder is listed once and kept for the life of the store, also for folders inside; memory
///   holds the path of each file and 32 bytes, up to 4 million files and folders. The hub lists in an
///   order of its own: the first file comes after the last page, and the order is that of the bytes
///   of keys.
/// - A file is requested by `resolve`, which redirects to the host that holds it. The signed URL of
///   that host is used again for the next range of the file, at most for five minutes and half the
///   time that it is valid, since the hub counts such requests.
/// - Redirects are followed to any public host by `https`. A name that ends in `.local` or the like,
///   or has no dot, and an IP address are not public. A hub that is itself not public, such as one
///   on this machine, may also redirect to such hosts, but not to 169.254.0.0/16. The token goes to
///   the hub alone, and the next page of a listing is requested from no other host.
/// - All other rules are as for [`Http`]. The store retries nothing; [`stores::open`] adds
///   retries, which wait as long as the hub asks for (`Retry-After`, or `RateLimit` with a 429).
///
/// # Environment
/// The token comes from `HF_TOKEN`, else from `HUGGING_FACE_HUB_TOKEN`, else from the file
/// `$HF_TOKEN_PATH`, else `token` in `$HF_HOME`, else in `$XDG_CACHE_HOME/huggingface`, else in
/// `~/.cache/huggingface`. `HF_HUB_DISABLE_IMPLICIT_TOKEN` sends none of them. `HF_ENDPOINT` is the
/// URL of another hub. With `HF_HUB_OFFLINE` every request is an error. Files that are [cached on
/// disk](crate::StoreExt::cache_on_disk) can be read without the hub, by name, if the URL has the
/// full name of the commit. That cache is the one of this library: the official client does not find
/// files in it, nor are its files found.
///
/// # Errors
/// Those of [`Http`], and:
///
/// | cause | kind |
/// |---|---|
/// | no such repository, revision or file; a private repository | `NotFound` |
/// | conditions that the account has not accepted; an invalid token | `Denied` |
/// | a listing that is none, or never ends | `Corrupt` |
/// | a version that is not the commit that the store reads | `Changed` |
///
/// A repository that was renamed is found under its old name, with a warning (`tracing`).
///
/// # Examples
/// ```
/// use datapipes_io::stores::{Hub, Store};
/// let store = Hub::new("hf://datasets/org/name@v1/train")?;
/// assert_eq!(store.url_of("0.jsonl.gz"), "hf://datasets/org/name@v1/train/0.jsonl.gz");
/// # datapipes::Ok(())
/// ```
///
/// [`stores::open`]: crate::stores::open()
#[derive(Clone)]
pub struct Hub(Arc<Shared>);

struct Shared {
    http: Http,
    repository: Repository,
    url: String,
    pinned: OnceCell<Pinned>,
    /// Listings by their folders.
    listings: Mutex<HashMap<String, Arc<OnceCell<Files>>>>,
    targets: Targets,
    offline: bool,
}

/// The commit that is read, and the name under which the repository is now.
#[derive(Debug)]
struct Pinned {
    commit: String,
    id: String,
}

/// Answer to the question for a revision.
#[derive(Deserialize)]
struct Info {
    sha: String,
    id: Option<String>,
}

/// Maximum size of that answer. A hub that does not support `expand` sends all names, too.
const INFO: usize = 64 << 20;

impl Hub {
    /// Returns a store of the files of a repository, `hf://datasets/org/name@revision/folder`. Makes
    /// no request yet.
    ///
    /// # Errors
    /// `Config` for an invalid URL.
    pub fn new(url: &str) -> Result<Hub> {
        Hub::builder(url).build()
    }

    /// Returns a builder for a store with options.
    pub fn builder(url: &str) -> HubBuilder {
        HubBuilder::new(url)
    }

    /// Returns true if a URL names a whole repository, which is a folder also without a `/` at its
    /// end.
    ///
    /// ```
    /// use datapipes_io::stores::Hub;
    /// assert!(Hub::is_repository("hf://datasets/org/name@refs/convert/parquet"));
    /// assert!(!Hub::is_repository("hf://datasets/org/name/train"));
    /// assert!(!Hub::is_repository("https://host/org/name"));
    /// ```
    pub fn is_repository(url: &str) -> bool {
        Repository::parse(url).is_ok_and(|repository| repository.folder.is_empty())
    }

    /// Returns the files on all pages of a listing, with their sizes, as the store reads them. For
    /// the fuzz target.
    ///
    /// # Errors
    /// `Corrupt` for a page that is no list of files and folders.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn parse_listing(pages: &[&[u8]]) -> Result<Vec<(Box<str>, Option<u64>)>> {
        let mut listing = tree::Pages::default();
        for page in pages {
            let read = listing.feed(page).and_then(|()| listing.end());
            read.map_err(|why| corrupt("a listing", why))?;
        }
        Ok(listing.into_files().to_vec())
    }

    fn of(http: Http, repository: Repository, offline: bool) -> Hub {
        let shared = Shared {
            http,
            url: repository.to_string(),
            repository,
            pinned: OnceCell::new(),
            listings: Mutex::default(),
            targets: Targets::default(),
            offline,
        };
        Hub(Arc::new(shared))
    }

    /// Returns the commit that is read.
    async fn pinned(&self) -> Result<&Pinned> {
        self.0.pinned.get_or_try_init(|| self.resolve()).await
    }

    /// Finds out the commit of the revision.
    async fn resolve(&self) -> Result<Pinned> {
        let repository = &self.0.repository;
        if let Some(commit) = repository.commit() {
            return Ok(self.pin(commit));
        }
        self.check_online()?;
        let http = &self.0.http.0;
        let revision = repository.revision.as_deref().unwrap_or("main");
        let path = format!("{}/revision/", repository.api(&repository.id));
        let mut url = self.on_hub(&path, "expand=sha");
        url.set_path(&format!("{}{}", url.path(), repository::escaped(revision)));
        let asked = Asked::page(self.0.url.clone(), url.clone());
        let found = http
            .send(Method::GET, url, HeaderMap::new(), &asked.name)
            .await?;
        let answer = Answer::check(http, &asked, found, None).await?;
        let (_, mut body) = answer.into_stream(http, asked.name.clone());
        let wrong = |why: &str| Error::protocol(format!("{}: {why}", asked.name));
        let mut text = Vec::new();
        while let Some(data) = body.try_next().await? {
            text.extend_from_slice(&data);
            if text.len() > INFO {
                return Err(wrong("too long an answer to the question for its commit"));
            }
        }
        let info: Info = serde_json::from_slice(&text)
            .ok()
            .filter(|info: &Info| repository::is_commit(&info.sha))
            .ok_or_else(|| wrong("the hub does not say its commit"))?;
        let mut pinned = self.pin(&info.sha);
        if let Some(id) = info.id.filter(|id| !id.eq_ignore_ascii_case(&pinned.id)) {
            if !id.split('/').all(repository::is_name) {
                return Err(wrong("it was renamed to what is no name"));
            }
            warn!(url = self.0.url, name = id, "was renamed on the hub");
            pinned.id = id;
        }
        info!(
            url = self.0.url,
            commit = pinned.commit,
            "reads this commit"
        );
        Ok(pinned)
    }

    fn pin(&self, commit: &str) -> Pinned {
        Pinned {
            commit: commit.to_owned(),
            id: self.0.repository.id.clone(),
        }
    }

    /// Returns a URL on the hub.
    fn on_hub(&self, path: &str, query: &str) -> Url {
        let address = &self.0.http.0.address;
        let mut url = address.below(path);
        url.query_pairs_mut()
            .extend_pairs(query.split('&').filter_map(|pair| pair.split_once('=')));
        if url.query() == Some("") {
            url.set_query(None);
        }
        url
    }

    fn check_online(&self) -> Result<()> {
        if !self.0.offline {
            return Ok(());
        }
        let words = format!(
            "{}: HF_HUB_OFFLINE is set, so that nothing is requested; without the hub, files that \
             are cached on disk can be read by a URL with the full name of the commit",
            self.0.url
        );
        Err(Error::unavailable(words))
    }

    async fn asked<'a>(&'a self, key: &'a str) -> Result<Asked<'a>> {
        let name = self.url_of(key);
        check_key(key).map_err(|why| Error::denied(format!("{name}: {why}")))?;
        let pinned = self.pinned().await?;
        self.check_online()?;
        let repository = &self.0.repository;
        let (path, folder) = (repository.path(&pinned.id), &repository.folder);
        let url = self.on_hub(
            &format!("{path}/resolve/{}/{folder}{key}", pinned.commit),
            "",
        );
        Ok(Asked {
            key,
            name,
            url,
            version: Some(&pinned.commit),
        })
    }

    /// Returns the finished listing of a folder, or of a folder around it.
    fn known(&self, folder: &str) -> Option<Files> {
        let listings = self.listings();
        let around = folder.match_indices('/').map(|(at, _)| &folder[..=at]);
        std::iter::once("")
            .chain(around)
            .find_map(|folder| listings.get(folder)?.get().cloned())
    }

    fn listings(&self) -> MutexGuard<'_, HashMap<String, Arc<OnceCell<Files>>>> {
        lock(&self.0.listings)
    }

    /// Lists a folder, unless it is known.
    async fn files(&self, folder: &str) -> Result<Files> {
        if let Some(files) = self.known(folder) {
            return Ok(files);
        }
        let cell = self
            .listings()
            .entry(folder.to_owned())
            .or_default()
            .clone();
        let files = cell.get_or_try_init(|| async {
            let pinned = self.pinned().await?;
            self.check_online()?;
            let api = self.0.repository.api(&pinned.id);
            let path = format!("{api}/tree/{}/{folder}", pinned.commit);
            let first = self.on_hub(path.trim_end_matches('/'), "recursive=true&expand=false");
            tree::list(&self.0.http, first, self.0.url.clone()).await
        });
        files.await.cloned()
    }

    /// Returns the metadata of a file that is listed.
    fn listed(&self, path: &str, size: Option<u64>) -> Result<Meta> {
        let key = path
            .strip_prefix(&self.0.repository.folder)
            .unwrap_or_default();
        check_key(key).map_err(|why| no_key(&self.0.url, path, why))?;
        Ok(Meta {
            key: key.to_owned(),
            size,
            version: self.0.pinned.get().map(|pinned| pinned.commit.clone()),
        })
    }

    async fn open_list(self, prefix: String) -> Result<BoxStream<'static, Result<Meta>>> {
        let prefix = format!("{}{prefix}", self.0.repository.folder);
        let folder = folder_of(&prefix);
        if folder
            .strip_suffix('/')
            .is_some_and(|folder| check_key(folder).is_err())
        {
            return Ok(stream::empty().boxed());
        }
        let files = self.files(folder).await?;
        let from = files.partition_point(|(path, _)| **path < *prefix);
        let count = files[from..]
            .iter()
            .take_while(|(path, _)| path.starts_with(&prefix))
            .count();
        let listed = move |at: usize| {
            let (path, size) = &files[at];
            self.listed(path, *size)
        };
        Ok(stream::iter((from..from + count).map(listed)).boxed())
    }
}

#[async_trait]
impl Store for Hub {
    fn url(&self) -> &str {
        &self.0.url
    }

    /// Returns the URLs of the hub and of the folder, without the revision.
    fn identity(&self) -> String {
        let (repository, endpoint) = (&self.0.repository, self.0.http.identity());
        format!(
            "{endpoint}\n{}\n{}",
            repository.path(&repository.id),
            repository.folder
        )
    }

    fn revision(&self) -> BoxFuture<'_, Result<Option<String>>> {
        Box::pin(async { Ok(Some(self.pinned().await?.commit.clone())) })
    }

    fn pin_revision(&self, revision: &str) -> Result<()> {
        let wrong = |what: &str| {
            let words = format!(
                "{}: the epoch began with {revision}, and {what}; open another store for it",
                self.0.url
            );
            Err(Error::config(words))
        };
        let named = self.0.repository.commit();
        if let Some(named) = named.filter(|named| *named != revision) {
            return wrong(&format!("the URL names {named}"));
        }
        if !repository::is_commit(revision) {
            return wrong("that is no commit");
        }
        let set = self.0.pinned.set(self.pin(revision));
        match self.0.pinned.get() {
            Some(pinned) if pinned.commit == revision => Ok(()),
            Some(pinned) => wrong(&format!("the store has read {}", pinned.commit)),
            // Another read asks for the commit of the branch at this moment.
            None => set.or_else(|_| wrong("the store is reading the commit of its branch")),
        }
    }

    fn known_revision(&self) -> Revision {
        let pinned = self.0.pinned.get().map(|pinned| &*pinned.commit);
        match pinned.or(self.0.repository.commit()) {
            Some(commit) => Revision::Fixed(format!("commit {commit}")),
            None => Revision::Moving(format!(
                "{} is read at the commit of a branch, which may move; open it with @ and the full name of the commit, \
                 or list its files by `list_files`, which keeps the commit in checkpoints",
                self.0.url
            )),
        }
    }

    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        let mut asked = self.asked(key).await?;
        let http = &self.0.http.0;
        let resolve = asked.url.clone();
        if let Some(target) = self.0.targets.get(&resolve) {
            asked.url = target;
            match http.get(&asked, get.clone()).await {
                Ok((object, _)) => return Ok(object),
                Err(error) => {
                    // Whatever is wrong there, the next try asks the hub again.
                    self.0.targets.forget(&resolve);
                    // The signature may be valid no longer.
                    if !matches!(error.kind(), ErrorKind::Denied | ErrorKind::NotFound) {
                        return Err(error);
                    }
                    asked.url = resolve.clone();
                }
            }
        }
        let (object, from) = http.get(&asked, get).await?;
        self.0.targets.keep(resolve, from);
        Ok(object)
    }

    async fn head(&self, key: &str) -> Result<Meta> {
        let asked = self.asked(key).await?;
        let path = format!("{}{key}", self.0.repository.folder);
        let files = self.known(folder_of(&path)).unwrap_or_default();
        match files.binary_search_by(|(known, _)| (**known).cmp(&path)) {
            Ok(at) => self.listed(&path, files[at].1),
            Err(_) => self.0.http.0.look(&asked).await,
        }
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        stream::once(self.clone().open_list(prefix.to_owned()))
            .try_flatten()
            .boxed()
    }
}

// Shows nothing secret.
datapipes::opaque_debug!(Hub { url = self.0.url });
