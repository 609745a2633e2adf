//! Cache of objects in a folder, kept across runs.

mod entry;
mod folder;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Error, Result, lock};
use futures::stream::BoxStream;
use tokio::time::Instant;
use tracing::{debug, warn};

use self::entry::{Entry, Id};
use self::folder::Folder;
use super::Evict;
use super::single_flight::Flights;
use crate::stores::{Get, Meta, Object, Store};

/// A store that caches objects in a folder across runs; see
/// [`StoreExt::cache_on_disk`](crate::StoreExt::cache_on_disk).
///
/// - **Bounded.** The files take at most `limit` bytes, files in progress included; the least
///   recently used entries are evicted ([`evict`](DiskCache::evict)). An object larger than an
///   eighth of the limit, or of unknown length, is not cached.
/// - **Right or absent.** An entry is written under another name, synced to the disk and renamed,
///   and holds key, version and a BLAKE3 sum of its name and whole content. The entry is read whole
///   and checked before its first byte is returned; an entry that is damaged, truncated, or in the
///   place of another, is removed and the object requested again. Neither a crash nor a power failure
///   leads to wrong data.
/// - **Versions.** Entries are returned without asking whether the store has a newer version,
///   unless a version is requested ([`Get::version`]) and differs, or
///   [`check_versions`](DiskCache::check_versions) is set. The entries of a store with revisions
///   ([`Store::revision`]) are of one revision each.
/// - **Shared.** Any number of processes of one user on one machine may use a folder. Each process
///   may then request the same object; within one process the object is requested once. A process
///   that dies blocks no other. (The locks are `flock`s: keep the folder on a local file system.)
/// - **Private.** The folder is created for its user alone. A folder that others may write to, that
///   belongs to another user, or that is a link, is refused. Files are named by hashes of URL, revision,
///   key and range, and no link is followed.
/// - **Never an obstacle.** A full or read-only disk costs one warning (`tracing`); objects are
///   still delivered, and writing is tried again after ten seconds.
/// - A range is an entry of its own, so that records of a large file can be cached. `head` and
///   listings are passed to the store.
///
/// Files are read and written on the blocking threads of the tokio runtime, and hashed on the
/// thread that polls. Memory holds the object that is read or written, and some 150 bytes for each
/// entry; a miss waits until its entry is on the disk.
#[derive(Clone, Debug)]
#[must_use]
pub struct DiskCache<S> {
    inner: Arc<S>,
    /// Identity of the store; see [`Store::identity`].
    identity: Arc<str>,
    folder: Arc<Folder>,
    path: PathBuf,
    limit: u64,
    evict: Evict,
    sync: bool,
    check: bool,
    flights: Arc<Flights<Asked, Option<Entry>>>,
    trouble: Arc<Trouble>,
}

/// An entry, and the requested version.
type Asked = (Id, Option<String>);

#[derive(Debug, Default)]
struct Trouble {
    said: AtomicBool,
    until: Mutex<Option<Instant>>,
}

/// Time without writes after a failure.
const REST: Duration = Duration::from_secs(10);

impl<S: Store> DiskCache<S> {
    /// Wraps a store. Lists the folder, which blocks for a moment.
    ///
    /// # Errors
    /// `Denied` if the folder is not private to this user; `Io` and others if it cannot be created
    /// or read.
    pub fn new(inner: S, folder: impl AsRef<Path>, limit: u64) -> Result<Self> {
        let path = folder.as_ref().to_owned();
        let folder = Folder::open(&path, limit).map_err(|error| {
            let words = format!("cache folder {}", path.display());
            Error::new(Error::io(error.kind().into()).kind(), words).with_source(error)
        })?;
        Ok(DiskCache {
            identity: inner.identity().into(),
            inner: Arc::new(inner),
            folder: Arc::new(folder),
            path,
            limit,
            evict: Evict::Oldest,
            sync: true,
            check: false,
            flights: Arc::default(),
            trouble: Arc::default(),
        })
    }

    datapipes::setters! {
        /// Sets the behavior of a full cache for a new object. Defaults to [`Evict::Oldest`].
        evict(evict: Evict) => evict = evict;

        /// Does not wait until an entry is on the disk. That is faster on disks that sync slowly; after
        /// a power failure more entries may be damaged, and their objects are then requested again.
        without_sync() => sync = false;

        /// Asks for the version of an object ([`Store::head`]) each time before a cached entry is
        /// returned.
        check_versions() => check = true;
    }

    /// Records a failed write: logs it once, and pauses writing.
    fn failed(&self, error: &std::io::Error) {
        let until = Instant::now() + REST;
        *lock(&self.trouble.until) = Some(until);
        if !self.trouble.said.swap(true, Ordering::Relaxed) {
            warn!(folder = %self.path.display(), %error, "goes on without adding to the cache");
        }
    }

    fn rests(&self) -> bool {
        let until = *lock(&self.trouble.until);
        until.is_some_and(|until| Instant::now() < until)
    }
}

impl<S: Store> DiskCache<S> {
    fn id(&self, revision: Option<&str>, key: &str, get: &Get) -> Id {
        let mut hash = blake3::Hasher::new();
        for part in revision.into_iter().chain([&*self.identity, key]) {
            hash.update(&(part.len() as u64).to_le_bytes())
                .update(part.as_bytes());
        }
        if let Some(range) = &get.range {
            hash.update(&range.start.to_le_bytes())
                .update(&range.end.to_le_bytes());
        }
        hash.finalize()
    }

    /// Returns the entry, if it has the requested version.
    async fn here(&self, id: &Id, version: &Option<String>) -> Option<Entry> {
        let entry = self.folder.load(id).await?;
        (version.is_none() || *version == entry.meta.version).then_some(entry)
    }

    async fn fetch(
        &self,
        id: &Id,
        key: &str,
        get: Get,
        passed: &mut Option<Object>,
    ) -> Result<Option<Entry>> {
        if let Some(entry) = self.here(id, &get.version).await {
            return Ok(Some(entry));
        }
        let object = self.inner.get(key, get).await?;
        if object.len().is_none_or(|len| len > self.limit / 8) {
            *passed = Some(object);
            return Ok(None);
        }
        let (mut meta, range) = (object.meta.clone(), object.range.clone());
        let data = object.bytes().await?;
        key.clone_into(&mut meta.key);
        let entry = Entry {
            meta,
            start: range.start,
            data,
        };
        if !self.rests() {
            match self.folder.store(id, &entry, self.evict, self.sync).await {
                Ok(true) => {}
                Ok(false) => debug!(key, "no room in the cache"),
                Err(error) => self.failed(&error),
            }
        }
        Ok(Some(entry))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for DiskCache<S> {
    names_of!(inner);
    revision_of!(inner);

    async fn get(&self, key: &str, mut get: Get) -> Result<Object> {
        if self.check && get.version.is_none() {
            get.version = self.inner.head(key).await?.version;
        }
        let revision = self.inner.revision().await?;
        let id = self.id(revision.as_deref(), key, &get);
        let mut passed = None;
        let asked = (id, get.version.clone());
        let entry = self
            .flights
            .join(&asked, self.fetch(&id, key, get.clone(), &mut passed))
            .await?;
        match (passed, entry) {
            (Some(object), _) => Ok(object),
            (None, Some(Entry { meta, start, data })) => {
                let range = start..start + data.len() as u64;
                Ok(Object {
                    range,
                    ..Object::whole(self.url_of(key), meta, data)
                })
            }
            (None, None) => self.inner.get(key, get).await,
        }
    }

    async fn head(&self, key: &str) -> Result<Meta> {
        self.inner.head(key).await
    }

    async fn read(&self, key: &str) -> Result<Bytes> {
        self.get(key, Get::default()).await?.bytes().await
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        self.inner.list(prefix)
    }
}
