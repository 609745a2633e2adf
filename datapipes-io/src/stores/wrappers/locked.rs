//! A store of the files of a lock.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use datapipes::{Error, ErrorKind, Result, lock};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use super::single_flight::Flights;
use super::{Expected, Verify};
use crate::stores::lock::{Difference, LockedFile, Lockfile, complete, parse};
use crate::stores::refused::Refused;
use crate::stores::{Get, Meta, Object, Store};

/// A store that gives the files of a lock, as they were locked; see
/// [`StoreExt::locked`](crate::StoreExt::locked).
///
/// - A listing is compared with the lock before it gives its first file. It is refused, with the
///   first five names and their places, if files are missing, have changed or are new; with the
///   first step that would use each of them, where
///   [that follows from the graph](datapipes::Context::first_steps). Names that do not match the
///   lock's pattern are left alone.
/// - A file that is read is compared again, by the size and version that it has now. A file that
///   the lock does not have is refused. If the lock has its hash, and its version is not the locked
///   one (it was copied, or rewritten), its content is compared before any byte of it is given. A
///   file of which ranges or pieces are asked for is read for that, once for each version that it
///   has in the life of the store.
/// - These errors name the node that would use the files. They are of kind `Config`: they end an
///   epoch under every policy, since the order of the samples is another one. A lock with hashes
///   also [verifies](Verify) each file that is read as a whole: bytes that were damaged on the way
///   are `Corrupt`, in the place of the file.
///
/// Memory holds the lock, the versions that were compared, and the whole listing until it was
/// compared.
#[derive(Clone, Debug)]
pub struct Locked<S> {
    inner: Verify<Arc<S>>,
    store: Arc<S>,
    lock: Arc<Lockfile>,
    /// Places of the files in the lock.
    places: Arc<HashMap<String, usize>>,
    /// Versions, other than the locked ones, whose content was found to be the locked one.
    same: Arc<Mutex<HashSet<FileVersion>>>,
    comparing: Arc<Flights<FileVersion, Option<LockedFile>>>,
}

/// Key of a file, and its version.
type FileVersion = (String, Option<String>);

impl<S: Store> Locked<S> {
    /// Wraps a store.
    pub fn new(inner: S, lock: &Lockfile) -> Self {
        let hash = |file: &LockedFile| {
            let hash = blake3::Hash::from_hex(file.blake3.as_ref()?).ok()?;
            let expected = Expected {
                size: file.size,
                blake3: Some(*hash.as_bytes()),
            };
            Some((file.name.clone(), expected))
        };
        let places = lock.by_name();
        let places = places
            .iter()
            .map(|(name, (place, _))| ((*name).to_owned(), *place));
        let store = Arc::new(inner);
        let hashes = lock.files().iter().filter_map(hash).collect();
        Locked {
            inner: Verify::new(store.clone(), hashes),
            store,
            places: Arc::new(places.collect()),
            lock: Arc::new(lock.clone()),
            same: Arc::default(),
            comparing: Arc::default(),
        }
    }

    /// Returns the error of a file that cannot be opened: a refusal if a locked file has gone.
    fn missing(&self, key: &str, error: Error) -> Error {
        match self.places.get(key) {
            Some(place) if error.kind() == ErrorKind::NotFound => {
                self.refuse(key, &format!("(file {place}) is missing"))
            }
            _ => error,
        }
    }

    /// Compares what is known about a file now with the lock.
    fn check(&self, now: &LockedFile) -> Result<()> {
        let difference = match self.places.get(&now.name) {
            None => Some("is new".to_owned()),
            Some(&place) => self.lock.files()[place]
                .changed(now)
                .map(|what| format!("(file {place}) {what}")),
        };
        match difference {
            None => Ok(()),
            Some(what) => Err(self.refuse(&now.name, &what)),
        }
    }

    /// Makes the error of one file.
    fn refuse(&self, name: &str, what: &str) -> Error {
        let difference = Difference {
            name: name.to_owned(),
            text: format!("{name} {what}"),
            is_new: !self.places.contains_key(name),
        };
        Refused::new(self.url(), vec![difference]).into_error()
    }

    /// Returns true if only the content can tell whether a file is the locked one.
    fn is_unknown(&self, meta: &Meta) -> bool {
        let Some(&place) = self.places.get(&meta.key) else {
            return false;
        };
        let file = &self.lock.files()[place];
        let is_locked = file.version.is_some() && file.version == meta.version;
        let now = (meta.key.clone(), meta.version.clone());
        file.blake3.is_some() && !is_locked && !lock(&self.same).contains(&now)
    }

    /// Reads a file of this version, and compares its content with the lock.
    /// Those who ask for it at the same time wait for one reader.
    async fn compare(&self, meta: Meta) -> Result<()> {
        let file = (meta.key.clone(), meta.version.clone());
        let compared = async {
            if !self.is_unknown(&meta) {
                return Ok(None);
            }
            let now = complete(&*self.store, meta.clone(), true).await?;
            if now.version != meta.version {
                let what = format!("{}: while it was compared", self.url_of(&meta.key));
                return Err(Error::changed(what).transient());
            }
            Ok(Some(now))
        };
        // Those who waited judge what was found, and do not read a file again that is another.
        if let Some(now) = self.comparing.join(&file, compared).await? {
            self.check(&now)?;
            lock(&self.same).insert(file);
        }
        Ok(())
    }

    /// Opens a file, whose content may still have to be compared.
    async fn open(&self, key: &str, get: Get) -> Result<(Object, Meta)> {
        let found = self.inner.get(key, get).await;
        let object = found.map_err(|error| self.missing(key, error))?;
        let meta = Meta {
            key: key.to_owned(),
            ..object.meta.clone()
        };
        self.check(&LockedFile::of(meta.clone()))?;
        Ok((object, meta))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for Locked<S> {
    names_of!(inner);
    revision_of!(inner);

    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        loop {
            let (object, meta) = self.open(key, get.clone()).await?;
            if !self.is_unknown(&meta) {
                return Ok(object);
            }
            // Asked for again after it: a server does not wait for a reader that long.
            drop(object);
            self.compare(meta).await?;
        }
    }

    async fn head(&self, key: &str) -> Result<Meta> {
        let found = self.inner.head(key).await;
        let meta = found.map_err(|error| self.missing(key, error))?;
        let now = Meta {
            key: key.to_owned(),
            ..meta.clone()
        };
        // Whoever reads it compares its content.
        self.check(&LockedFile::of(now))?;
        Ok(meta)
    }

    async fn read(&self, key: &str) -> Result<bytes::Bytes> {
        // The size and version are those of the answer, whose content is verified on the way.
        let (object, meta) = self.open(key, Get::default()).await?;
        let is_unknown = self.is_unknown(&meta);
        let data = object.bytes().await;
        match &data {
            Ok(_) if is_unknown => _ = lock(&self.same).insert((meta.key, meta.version)),
            Err(error)
                if is_unknown
                    && matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Truncated) =>
            {
                self.compare(meta).await?;
            }
            _ => {}
        }
        data
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        let (this, prefix) = (self.lock.clone(), prefix.to_owned());
        let (listed, url) = (self.inner.list(&prefix), self.url().to_owned());
        let checked = async move {
            let listed: Vec<Meta> = listed.try_collect().await?;
            let pattern = parse(this.pattern())?;
            let files: Vec<LockedFile> = listed
                .iter()
                .filter(|meta| pattern.accepts(Path::new(&meta.key)))
                .map(|meta| LockedFile::of(meta.clone()))
                .collect();
            let lock = this.below(&prefix);
            let differences = lock.compare(&files);
            if !differences.is_empty() {
                let refused = Refused::new(&url, differences).of_listings(lock, listed);
                return Err(refused.into_error());
            }
            Ok(stream::iter(listed.into_iter().map(Ok)))
        };
        stream::once(checked).try_flatten().boxed()
    }
}

#[cfg(test)]
mod tests;
