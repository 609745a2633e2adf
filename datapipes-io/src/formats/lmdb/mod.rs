//! LMDB databases, by key and by index; feature `lmdb`.

mod environment;

#[cfg(test)]
mod tests;

use async_trait::async_trait;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Error, ErrorKind, Lookup, MapPipe, Result};
use heed::{RoTxn, WithoutTls};

use self::environment::{Environment, Values, failed};
use crate::file::readable;

/// An LMDB database, read by key: data sets such as LSUN, and those made by Caffe; feature `lmdb`.
///
/// - A key is any type of bytes: `String`, `Vec<u8>`, `Bytes`. The meaning of the keys is defined
///   by the data set, as is a key for the number of samples that many data sets have.
/// - Values are copied, once, since they may not outlive the transaction in which they are read.
///   Keys that are requested together are read in one transaction and therefore from one consistent
///   version of the database.
/// - Reads run on blocking threads ([`datapipes::blocking`]), 32 at once for a file.
/// - The database is never written to. LMDB creates a lock file beside it, so that other processes
///   may write meanwhile. If the folder is read-only and the file cannot be created, the database
///   is read without locks, and nobody may write.
/// - LMDB opens a file once in a process; all handles share that environment. If the program has
///   opened the file by other means, the error is `Config`.
/// - Network file systems are not supported.
///
/// # Trust
/// LMDB maps the file into memory and trusts its content; it has no checksums. A file that was cut
/// short is an error when it is opened. A file that is damaged inside, made by an attacker, or
/// changed by something other than LMDB while it is open, may give wrong values or end the process.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_io::formats::Lmdb;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("train.mdb");
/// # std::fs::write(&path, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/plain.mdb")))?;
/// let database = Lmdb::open(&path)?;
/// let keys = Graph::from_vec(vec!["image-0002".to_owned(), "image-0001".to_owned()]);
/// let sizes = keys.fetch(database).map(|value| value.len());
/// assert_eq!(sizes.collect()?, [14, 7]);
/// # datapipes::Ok(())
/// ```
#[derive(Clone)]
pub struct Lmdb {
    environment: Arc<Environment>,
    values: Values,
    name: Option<Arc<str>>,
}

impl Lmdb {
    /// Opens the unnamed database of a file, or of a folder with a file `data.mdb`. Blocks.
    ///
    /// If the file has named databases, their names are keys of the unnamed one.
    ///
    /// # Errors
    /// `NotFound` if there is no such file; `Corrupt` if it is no LMDB file; `Truncated` if it is
    /// cut short; `Unsupported` if another version wrote it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Lmdb::with(path.as_ref(), None)
    }

    /// Opens the database of a name. Blocks.
    ///
    /// # Errors
    /// The errors of [`open`](Lmdb::open); `NotFound` if there is no database of this name.
    pub fn open_named(path: impl AsRef<Path>, name: &str) -> Result<Self> {
        Lmdb::with(path.as_ref(), Some(name))
    }

    fn with(path: &Path, name: Option<&str>) -> Result<Self> {
        let within = |error: Error| error.within(readable(path.as_os_str().as_encoded_bytes()));
        let environment = Environment::open(path).map_err(within)?;
        let values = environment.database(name).map_err(within)?;
        Ok(Lmdb {
            environment: Arc::new(environment),
            values,
            name: name.map(Into::into),
        })
    }

    /// Returns the same database by index, in the order of the keys. Reads all keys, blocks
    /// meanwhile, and holds them in memory.
    ///
    /// # Errors
    /// `Unsupported` if a key has several values.
    pub fn items(self) -> Result<LmdbItems> {
        let (mut keys, mut ends) = (Vec::new(), Vec::new());
        let read = self.environment.read_here(|transaction| {
            for entry in self.values.iter(transaction).map_err(failed)? {
                let (key, _) = entry.map_err(failed)?;
                let start = ends.iter().rev().nth(1).copied().unwrap_or(0);
                if ends
                    .last()
                    .is_some_and(|&end: &usize| keys[start..end] == *key)
                {
                    let what = format!("several values under the key {:?}", readable(key));
                    return Err(Error::unsupported(what));
                }
                keys.extend_from_slice(key);
                ends.push(keys.len());
            }
            Ok(())
        });
        read.map_err(|error| error.within(self.place()))?;
        Ok(LmdbItems {
            database: self,
            keys: keys.into(),
            ends: ends.into(),
        })
    }

    /// Returns the location, for messages.
    fn place(&self) -> String {
        let path = readable(self.environment.path.as_os_str().as_encoded_bytes()).into_owned();
        self.name
            .as_ref()
            .map_or_else(|| path.clone(), |name| format!("{path}: database {name:?}"))
    }

    fn value(&self, transaction: &RoTxn<'_, WithoutTls>, key: &[u8]) -> Result<Bytes> {
        let found = match key.is_empty() {
            true => Ok(None),
            false => self.values.get(transaction, key).map_err(failed),
        };
        let value = found.and_then(|value| {
            value
                .map(Bytes::copy_from_slice)
                .ok_or_else(|| Error::not_found("nothing is there"))
        });
        value.map_err(|error| {
            error.within(format_args!("{}: key {:?}", self.place(), readable(key)))
        })
    }

    async fn values<K: AsRef<[u8]> + Send + 'static>(&self, keys: Vec<K>) -> Vec<Result<Bytes>> {
        let (this, count) = (self.clone(), keys.len());
        let values = self.environment.read(move |transaction| {
            Ok(keys
                .iter()
                .map(|key| this.value(transaction, key.as_ref()))
                .collect::<Vec<_>>())
        });
        values.await.unwrap_or_else(|error| {
            let error = error.within(self.place());
            (0..count).map(|_| Err(error.copied())).collect()
        })
    }
}

#[async_trait]
impl<K: AsRef<[u8]> + Send + 'static> Lookup<K> for Lmdb {
    type Out = Bytes;

    async fn get(&self, key: K) -> Result<Bytes> {
        self.values(vec![key]).await.remove(0)
    }
    async fn get_many(&self, keys: Vec<K>) -> Vec<Result<Bytes>> {
        self.values(keys).await
    }
    fn name(&self) -> String {
        "lmdb".to_owned()
    }
    fn weigh(&self, value: &Bytes) -> Option<usize> {
        Some(value.len() + size_of::<Bytes>())
    }
}

datapipes::formatted! { Debug |database: Lmdb| "Lmdb({})", database.place(); }

/// The keys and values of an LMDB database by index, in the order of the keys; made by
/// [`Lmdb::items`].
///
/// The keys are those that existed when it was made. A key is a slice of the buffer of all keys, a
/// value a copy. Reading a key that was removed since is the error `Changed`.
///
/// # Examples
/// ```
/// use datapipes::Indexed;
/// use datapipes_io::formats::Lmdb;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("train.mdb");
/// # std::fs::write(&path, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/plain.mdb")))?;
/// let samples = Indexed::new(Lmdb::open(&path)?.items()?).shuffle().fetch();
/// assert_eq!(samples.collect()?.len(), 13);
/// # datapipes::Ok(())
/// ```
#[derive(Clone)]
pub struct LmdbItems {
    database: Lmdb,
    keys: Bytes,
    ends: Arc<[usize]>,
}

impl LmdbItems {
    /// Returns the key at an index; `None` after the last one.
    pub fn key(&self, index: u64) -> Option<Bytes> {
        let index = usize::try_from(index).ok()?;
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(self.keys.slice(start..end))
    }
}

#[async_trait]
impl MapPipe for LmdbItems {
    type Out = (Bytes, Bytes);

    fn len(&self) -> u64 {
        self.ends.len() as u64
    }
    async fn get(&self, index: u64) -> Result<(Bytes, Bytes)> {
        MapPipe::get_many(self, &[index]).await.remove(0)
    }
    async fn get_many(&self, indices: &[u64]) -> Vec<Result<(Bytes, Bytes)>> {
        let keys: Vec<Option<Bytes>> = indices.iter().map(|&index| self.key(index)).collect();
        let mut values = self
            .database
            .values(keys.iter().flatten().cloned().collect())
            .await
            .into_iter();
        let pair = |key: Option<Bytes>| match (key, &mut values) {
            (Some(key), values) => match values.next().expect("a value for each key") {
                Ok(value) => Ok((key, value)),
                Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::changed(format!(
                    "{}: key {:?} was taken away",
                    self.database.place(),
                    readable(&key)
                ))),
                Err(error) => Err(error),
            },
            (None, _) => Err(Error::not_found(format!(
                "{}: there are {} keys",
                self.database.place(),
                self.ends.len()
            ))),
        };
        keys.into_iter().map(pair).collect()
    }
    fn name(&self) -> String {
        "lmdb".to_owned()
    }
    fn sample_name(&self, index: u64) -> Option<Arc<str>> {
        let key = self.key(index)?;
        Some(format!("{}/{}", self.database.place(), readable(&key)).into())
    }
    fn weigh(&self, (key, value): &(Bytes, Bytes)) -> Option<usize> {
        Some(key.len() + value.len() + size_of::<(Bytes, Bytes)>())
    }
}

datapipes::formatted! {
    Debug |items: LmdbItems|
        "LmdbItems({}, {} keys)", items.database.place(), items.ends.len();
}
