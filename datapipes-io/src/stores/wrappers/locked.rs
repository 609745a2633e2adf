//! A store of the files of a lock.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use datapipes::{Error, ErrorKind, Result};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use super::{Expected, Verify};
use crate::stores::lock::{Lock, LockedFile, parse};
use crate::stores::{Get, Meta, Object, Store};

/// A store that gives the files of a lock, as they were locked; see
/// [`StoreExt::locked`](crate::StoreExt::locked).
///
/// - A listing is compared with the lock before it gives its first file. It is refused, with the
///   first five names and their places, if files are missing, have changed or are new. Names that
///   do not match the lock's pattern are left alone.
/// - A file that is read is compared again, by the size and version that it has now. A file that
///   the lock does not have is refused.
/// - These errors name the node that would use the files. They are of kind `Config`: they end an
///   epoch under every policy, since the order of the samples is another one. A lock with hashes
///   also [verifies](Verify) each file that is read as a whole; wrong content is `Corrupt`, in the
///   place of the file.
///
/// Memory holds the lock, and the whole listing until it was compared.
#[derive(Clone, Debug)]
pub struct Locked<S> {
    inner: Verify<S>,
    lock: Arc<Lock>,
    /// Places of the files in the lock.
    places: Arc<HashMap<String, usize>>,
}

impl<S: Store> Locked<S> {
    /// Wraps a store.
    pub fn new(inner: S, lock: &Lock) -> Self {
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
        Locked {
            inner: Verify::new(inner, lock.files().iter().filter_map(hash).collect()),
            places: Arc::new(places.collect()),
            lock: Arc::new(lock.clone()),
        }
    }

    /// Returns the error of a file that cannot be opened: a refusal if a locked file has gone.
    fn missing(&self, key: &str, error: Error) -> Error {
        match self.places.get(key) {
            Some(place) if error.kind() == ErrorKind::NotFound => {
                Lock::refuse(self.url(), &[format!("{key} (file {place}) is missing")])
            }
            _ => error,
        }
    }

    /// Checks what is known about a file before it is read.
    fn check(&self, meta: Meta) -> Result<()> {
        let name = meta.key.clone();
        let difference = match self.places.get(&name) {
            None => Some("is new".to_owned()),
            Some(&place) => self.lock.files()[place]
                .changed(&LockedFile::of(meta))
                .map(|what| format!("(file {place}) {what}")),
        };
        match difference {
            None => Ok(()),
            Some(what) => Err(Lock::refuse(self.url(), &[format!("{name} {what}")])),
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for Locked<S> {
    names_of!(inner);
    revision_of!(inner);

    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        let found = self.inner.get(key, get).await;
        let object = found.map_err(|error| self.missing(key, error))?;
        let meta = Meta {
            key: key.to_owned(),
            ..object.meta.clone()
        };
        self.check(meta)?;
        Ok(object)
    }

    async fn head(&self, key: &str) -> Result<Meta> {
        let found = self.inner.head(key).await;
        let meta = found.map_err(|error| self.missing(key, error))?;
        self.check(Meta {
            key: key.to_owned(),
            ..meta.clone()
        })?;
        Ok(meta)
    }

    async fn read(&self, key: &str) -> Result<bytes::Bytes> {
        // The size and version are those of the answer.
        self.get(key, Get::default()).await?.bytes().await
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
            let differences = this.below(&prefix).differences(&files);
            if !differences.is_empty() {
                return Err(Lock::refuse(&url, &differences));
            }
            Ok(stream::iter(listed.into_iter().map(Ok)))
        };
        stream::once(checked).try_flatten().boxed()
    }
}

#[cfg(test)]
mod tests {
    use datapipes::{DataLoader, OnError};

    use super::*;
    use crate::prelude::*;
    use crate::stores::Memory;
    use crate::testing::{check_store, fixtures};

    fn store() -> Memory {
        Memory::from_iter((0..8).map(|n| (format!("train/{n}.txt"), format!("{n}"))))
    }

    #[tokio::test]
    async fn keeps_the_contract_of_a_store() {
        let store = Memory::from_iter(fixtures());
        for hash in [false, true] {
            let lock = Lock::of(store.clone(), "**", hash).unwrap();
            check_store(&store.clone().locked(&lock)).await;
        }
    }

    /// Returns the error of an epoch over a store that was changed, under a policy that skips.
    fn refused(lock: &Lock, change: impl Fn(&Memory)) -> String {
        let store = store();
        change(&store);
        let graph = store.locked(lock).list_files("train/*").load_files();
        let loader = DataLoader::builder(graph).on_error(OnError::skip(100));
        let loader = loader.build().unwrap();
        let error = loader.epoch(0).blocking().find_map(Result::err).unwrap();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert_eq!(error.node(), Some("list_files"));
        error.to_string()
    }

    #[test]
    fn row_136_what_is_missing_new_or_changed_is_refused_by_name_before_the_first_file() {
        let lock = Lock::of(store(), "**/*.txt", false).unwrap();
        let text = refused(&lock, |store| store.remove("train/3.txt"));
        assert!(text.ends_with("train/3.txt (file 3) is missing"), "{text}");
        let text = refused(&lock, |store| store.put("train/00.txt", ""));
        assert!(text.ends_with("train/00.txt (file 1 now) is new"), "{text}");
        let text = refused(&lock, |store| store.put("train/7.txt", "longer"));
        assert!(
            text.ends_with("train/7.txt (file 7) has 6 bytes, and had 1"),
            "{text}"
        );
        let all = |store: &Memory| (0..8).for_each(|n| store.remove(&format!("train/{n}.txt")));
        assert!(refused(&lock, all).ends_with("; and 3 more"));
        // Names that the lock's pattern leaves out.
        let store = store();
        store.put("train/notes", "");
        let files = store.locked(&lock).list_files("train/*.txt");
        assert_eq!(files.load_files().collect().unwrap().len(), 8);
    }

    #[test]
    fn content_of_the_same_size_is_told_apart_by_its_hash() {
        let lock = Lock::of(store(), "train/*", true).unwrap();
        let store = store();
        store.put("train/5.txt", "x");
        let graph = store.locked(&lock).list_files("train/*").load_files();
        let error = graph.collect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("train/5.txt"), "{error}");
    }

    #[test]
    fn a_part_of_a_locked_store_is_compared_with_its_part_of_the_lock() {
        let store = store();
        store.put("test/1.txt", "");
        let lock = Lock::of(store.clone(), "**", false).unwrap();
        let files = store.clone().locked(&lock).list_files("train/*");
        assert_eq!(files.collect().unwrap().len(), 8);
        store.remove("test/1.txt");
        let files = store.clone().locked(&lock).list_files("train/*");
        assert_eq!(files.collect().unwrap().len(), 8);
        assert!(store.locked(&lock).list_files("**").collect().is_err());
    }

    #[test]
    fn a_file_by_its_key_is_checked_when_it_is_read() {
        let lock = Lock::of(store(), "**", false).unwrap();
        let store = store();
        store.put("train/1.txt", "longer");
        store.put("extra", "");
        store.remove("train/2.txt");
        for (key, what) in [
            ("train/1.txt", "has 6 bytes"),
            ("train/2.txt", "is missing"),
            ("extra", "is new"),
            ("nothing", "not found"),
        ] {
            let files = store.clone().locked(&lock).files([key]).load_files();
            let error = files.collect().unwrap_err().to_string();
            assert!(error.contains(key) && error.contains(what), "{error}");
            assert!(error.starts_with("load_files: "), "{error}");
        }
    }
}
