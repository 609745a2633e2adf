//! JSON lines by index.

use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Error, MapPipe, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::index::{LineIndex, LinePlace, read};
use super::parse;
use crate::formats::value;
use crate::stores::{Store, reads_store};

/// Length of a line, in bytes, from which on it is parsed on a blocking thread.
const LONG: usize = 64 << 10;

/// The values of a file of JSON lines in a store, by index: each is read by one request for its
/// line, and parsed.
///
/// - Values and blank lines are as for [`JsonLines`](super::JsonLines); a compressed file has no
///   lines by index.
/// - The positions are in a [`LineIndex`]: made when the file is opened, or cached in a file.
/// - A file that was changed since is the error `Changed`: by its version, if the store has
///   versions (a folder has), else by its size and the ends of the line. Values of two versions are
///   never mixed, except where a store has no versions and a line was replaced by one of the same
///   length.
///
/// [`Indexed::concat`](datapipes::Indexed::concat) joins many files to one data set.
///
/// # Errors
/// For a value: those of [`JsonLines`](super::JsonLines), with file, line and byte; `Changed`;
/// those of the store.
///
/// # Examples
/// ```
/// use datapipes::{DataLoader, Indexed};
/// use datapipes_io::formats::IndexedJsonLines;
/// use datapipes_io::stores::local::Local;
/// use serde::Deserialize;
///
/// #[derive(Deserialize)]
/// struct Line {
///     text: String,
/// }
///
/// # let dir = tempfile::tempdir()?;
/// # let folder = dir.path();
/// let names = ["a.jsonl", "b.jsonl"];
/// for name in names {
///     std::fs::write(folder.join(name), "{\"text\": \"one\"}\n\n{\"text\": \"two\"}\n")?;
/// }
/// let files = names.map(|name| {
///     let index = folder.join(format!("{name}.lines"));     // where the index is cached
///     let file = IndexedJsonLines::<Line>::open_cached(Local::new(folder), name, index);
///     Ok(Indexed::new(futures::executor::block_on(file)?))
/// });
/// let files = files.into_iter().collect::<datapipes::Result<Vec<_>>>()?;
/// let graph = Indexed::concat(files).shuffle().shard().fetch().map(|line| line.text);
/// let loader = DataLoader::builder(graph).resumable().build()?;
/// assert_eq!(loader.epoch(0).blocking().count(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct IndexedJsonLines<T = Value> {
    store: Arc<dyn Store>,
    key: Arc<str>,
    index: Arc<LineIndex>,
    max_line: usize,
    value: PhantomData<fn() -> T>,
}

impl<T> IndexedJsonLines<T> {
    /// Returns the values of the object under a key, with a known index.
    pub fn new(store: impl Store, key: impl Into<Arc<str>>, index: LineIndex) -> Self {
        IndexedJsonLines {
            store: Arc::new(store),
            key: key.into(),
            index: Arc::new(index),
            max_line: 64 << 20,
            value: PhantomData,
        }
    }

    /// Opens an object, and makes its index by [`LineIndex::scan`], which reads all of it.
    ///
    /// # Errors
    /// Those of [`LineIndex::scan`].
    pub async fn open(store: impl Store, key: impl Into<Arc<str>>) -> Result<Self> {
        let key = key.into();
        let index = LineIndex::scan(&store, &key).await?;
        Ok(IndexedJsonLines::new(store, key, index))
    }

    /// Opens an object whose index is cached in `file`, a path on this machine: beside the object, or
    /// in a folder for such files. It is made if it is not there or not of this object, by
    /// [`LineIndex::cached`].
    ///
    /// # Errors
    /// The errors of [`LineIndex::cached`].
    pub async fn open_cached(
        store: impl Store,
        key: impl Into<Arc<str>>,
        file: impl AsRef<Path>,
    ) -> Result<Self> {
        let key = key.into();
        let index = LineIndex::cached(&store, &key, file).await?;
        Ok(IndexedJsonLines::new(store, key, index))
    }

    /// Refuses a line of more than `bytes`, not counting its end, before it is read. Defaults to
    /// 64 MiB.
    pub fn max_line(mut self, bytes: usize) -> Self {
        self.max_line = bytes;
        self
    }

    /// Returns the index.
    pub fn index(&self) -> &LineIndex {
        &self.index
    }

    fn url(&self) -> String {
        self.store.url_of(&self.key)
    }

    /// Reads a line, without its end, and if it has none.
    async fn read(&self, place: &LinePlace) -> Result<(Bytes, bool)> {
        let LinePlace { range, number } = place;
        let long = |size: &str| {
            let (begin, most) = (range.start, self.max_line);
            let what = format!(
                "line {number} at byte {begin} has {size}, and {most} are allowed (`max_line`)"
            );
            Error::limit(what).within(self.url())
        };
        // The limit does not include the line's end; the range does.
        let size = range.end - range.start;
        if size > (self.max_line as u64).saturating_add(2) {
            return Err(long(&format!("{size} bytes with its end")));
        }
        let whole = self.index.file_size();
        let version = self.index.version();
        let data = read(&self.store, &self.key, range.clone(), whole, version).await?;
        let text = match &data[..] {
            [text @ .., b'\r', b'\n'] | [text @ .., b'\n'] => text,
            text if range.end == whole => text,
            _ => &[],
        };
        // A range without text, or with several lines, shows that the file was replaced.
        if text.is_empty() || text.contains(&b'\n') {
            let what = format!(
                "no line {number} at byte {}, as its index says",
                range.start
            );
            return Err(Error::changed(what).within(self.url()));
        }
        if text.len() > self.max_line {
            return Err(long(&format!("{} bytes", text.len())));
        }
        Ok((data.slice_ref(text), text.len() == data.len()))
    }
}

datapipes::clone_fields!(IndexedJsonLines<T> { store, key, index, max_line, value });

impl<T> fmt::Debug for IndexedJsonLines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (url, lines) = (self.url(), self.index.len());
        write!(f, "IndexedJsonLines({url:?}, {lines} lines)")
    }
}

#[async_trait]
impl<T: DeserializeOwned + Send + 'static> MapPipe for IndexedJsonLines<T> {
    type Out = T;

    fn len(&self) -> u64 {
        self.index.len()
    }
    async fn get(&self, index: u64) -> Result<T> {
        let place = self.index.line(index).ok_or_else(|| {
            let what = format!("no line {index} of {}", self.index.len());
            Error::not_found(what).within(self.url())
        })?;
        let (text, last) = self.read(&place).await?;
        let long = text.len() >= LONG;
        let parse = move || parse::<T>(&text, place.number, place.range.start, last);
        let value = if long {
            datapipes::blocking(parse).await?
        } else {
            parse()
        };
        value.map_err(|error| error.within(self.url()))
    }
    reads_store!(store);
    fn name(&self) -> String {
        "json_lines".to_owned()
    }
    fn sample_name(&self, index: u64) -> Option<Arc<str>> {
        Some(format!("{}/{index}", self.key).into())
    }
    fn weigh(&self, value: &T) -> Option<usize> {
        value::weigh(value)
    }
}

#[cfg(test)]
mod tests;
