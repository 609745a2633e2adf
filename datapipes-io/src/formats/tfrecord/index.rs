//! Records of a TFRecord file by index, from the text file with their positions.

use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::index::MapPipe;
use datapipes::{Error, Result};

use super::{FOOT, HEAD, check_data, place, stated_len};
use crate::stores::{Get, Store, reads_store};

/// Positions and lengths of the records of a TFRecord file, including head and checksums.
///
/// The text form (`Display`, [`parse`](TfRecordIndex::parse)) has a line `offset length` for each
/// record, as DALI's `tfrecord2idx` and the Python package `tfrecord` write it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TfRecordIndex {
    records: Vec<(u64, u64)>,
}

/// Size of head and checksums of an empty record.
const LEAST: u64 = (HEAD + FOOT) as u64;

impl TfRecordIndex {
    /// Makes the index of an uncompressed file. The checksums of the lengths are checked, the data
    /// are not read.
    ///
    /// # Errors
    /// `Corrupt` for a wrong length, `Truncated` for a cut, with record and byte.
    pub fn of(file: &[u8]) -> Result<TfRecordIndex> {
        let mut index = TfRecordIndex::default();
        let (mut rest, mut offset) = (file, 0);
        while !rest.is_empty() {
            let here = |error: Error| error.within(place(index.records.len() as u64, offset));
            let cut = |want: u64| {
                let what = format!("it has {} of {want} bytes", rest.len());
                Error::truncated(what)
            };
            let head = rest.first_chunk::<HEAD>().ok_or_else(|| here(cut(LEAST)))?;
            let whole = stated_len(*head).map_err(here)?.saturating_add(LEAST);
            let after = usize::try_from(whole)
                .ok()
                .and_then(|whole| rest.get(whole..));
            rest = after.ok_or_else(|| here(cut(whole)))?;
            index.push(offset, whole);
            offset += whole;
        }
        Ok(index)
    }

    /// Parses a text with a line `offset length` for each record.
    ///
    /// # Errors
    /// `Corrupt`, with the line, for any line other than two numbers, for a length that is too
    /// short for a record, and for a record that ends after the maximum size of a file.
    pub fn parse(text: &[u8]) -> Result<TfRecordIndex> {
        let wrong = |line: usize, what: &str| {
            Error::corrupt(format!("line {} of the index: {what}", line + 1))
        };
        let mut index = TfRecordIndex::default();
        for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let line = std::str::from_utf8(line).map_err(|_| wrong(number, "it is not text"))?;
            let mut fields = line.split_ascii_whitespace();
            let (offset, length) = match (fields.next(), fields.next(), fields.next()) {
                (None, ..) => continue,
                (Some(offset), Some(length), None) => {
                    (offset.parse::<u64>(), length.parse::<u64>())
                }
                _ => return Err(wrong(number, "two numbers are due")),
            };
            let (Ok(offset), Ok(length)) = (offset, length) else {
                return Err(wrong(number, "two numbers are due"));
            };
            if length < LEAST || offset.checked_add(length).is_none_or(|end| end == u64::MAX) {
                return Err(wrong(
                    number,
                    &format!("no record has {length} bytes at {offset}"),
                ));
            }
            index.push(offset, length);
        }
        Ok(index)
    }

    pub(super) fn push(&mut self, offset: u64, length: u64) {
        self.records.push((offset, length));
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns true if there are no records.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns position and length of each record, including head and checksums.
    pub fn records(&self) -> &[(u64, u64)] {
        &self.records
    }
}

impl fmt::Display for TfRecordIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.records
            .iter()
            .try_for_each(|(offset, length)| writeln!(f, "{offset} {length}"))
    }
}

/// The records of a TFRecord file in a store, by index: one range request for each record. Both
/// checksums are checked. The file must not be compressed.
///
/// # Errors
/// For a record: `Corrupt` if the data are no record of the length in the index, or damaged;
/// `Truncated` if the file ends before its end; the errors of the store.
///
/// # Examples
/// ```
/// use datapipes::index::Indexed;
/// use datapipes_io::formats::{IndexedTfRecords, TfRecordWriter};
/// use datapipes_io::stores::InMemory;
///
/// let mut writer = TfRecordWriter::new(Vec::new());
/// for text in ["a", "b", "c"] {
///     writer.write(text.as_bytes())?;
/// }
/// let (file, index) = writer.finish()?;
/// let store = InMemory::from_iter([("train.tfrecord", file)]);
/// let records = Indexed::new(IndexedTfRecords::new(store, "train.tfrecord", index));
/// assert_eq!(records.subset(vec![2, 0]).fetch().collect()?, ["c", "a"]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct IndexedTfRecords {
    store: Arc<dyn Store>,
    key: Arc<str>,
    index: Arc<TfRecordIndex>,
}

impl IndexedTfRecords {
    /// Returns the records of the object under a key.
    pub fn new(store: impl Store, key: impl Into<Arc<str>>, index: TfRecordIndex) -> Self {
        IndexedTfRecords {
            store: Arc::new(store),
            key: key.into(),
            index: Arc::new(index),
        }
    }

    async fn read(&self, index: u64) -> Result<Bytes> {
        let record = usize::try_from(index)
            .ok()
            .and_then(|index| self.index.records.get(index));
        let Some(&(offset, length)) = record else {
            return Err(Error::not_found(format!(
                "{}: no record {index} of {}",
                self.store.url_of(&self.key),
                self.index.len()
            )));
        };
        let object = self
            .store
            .get(&self.key, Get::range(offset..offset + length))
            .await?;
        let data = object.bytes().await?;
        let here = |error: Error| {
            error
                .within(place(index, offset))
                .within(self.store.url_of(&self.key))
        };
        framed(data, length).map_err(here)
    }
}

/// Returns the data of a record that must be complete.
fn framed(data: Bytes, length: u64) -> Result<Bytes> {
    let got = data.len();
    let whole =
        (got as u64 == length).then(|| data.first_chunk::<HEAD>().zip(data.last_chunk::<FOOT>()));
    let Some((head, foot)) = whole.flatten() else {
        return Err(Error::truncated(format!("it has {got} of {length} bytes")));
    };
    let stated = stated_len(*head)?;
    if stated != length.saturating_sub(LEAST) {
        return Err(Error::corrupt(format!(
            "it has {stated} bytes, the index says {}",
            length.saturating_sub(LEAST)
        )));
    }
    let record = data.slice(HEAD..got - FOOT);
    check_data(&record, *foot)?;
    Ok(record)
}

#[async_trait]
impl MapPipe for IndexedTfRecords {
    type Out = Bytes;

    fn len(&self) -> u64 {
        self.index.len() as u64
    }
    async fn get(&self, index: u64) -> Result<Bytes> {
        self.read(index).await
    }
    reads_store!(store);
    fn name(&self) -> String {
        "tf_records".to_owned()
    }
    fn sample_name(&self, index: u64) -> Option<Arc<str>> {
        Some(format!("{}/{index}", self.key).into())
    }
    fn weigh(&self, record: &Bytes) -> Option<usize> {
        Some(record.len() + size_of::<Bytes>())
    }
}
