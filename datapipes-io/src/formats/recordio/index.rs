//! Records of a RecordIO file by index, from the text file with their positions.

use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::index::MapPipe;
use datapipes::{Error, Result};

use super::place;
use super::records::first;
use crate::stores::{Get, Store, reads_store};

/// Positions of the records of a RecordIO file, each with a key.
///
/// The text form (`Display`, [`parse`](RecordIoIndex::parse)) has a line of key, tab and offset for
/// each record: MXNet's `.idx` file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordIoIndex {
    records: Vec<(Box<str>, u64)>,
}

impl RecordIoIndex {
    /// Makes the index of a file; the keys are the records' numbers.
    ///
    /// # Errors
    /// The first error of [`RecordIo`](super::RecordIo).
    pub fn of(file: &Bytes) -> Result<RecordIoIndex> {
        let (mut index, mut offset) = (RecordIoIndex::default(), 0);
        loop {
            let number = index.len();
            let here = |error: Error| error.within(place(number as u64, offset));
            let Some((len, record)) =
                first(&file.slice(offset as usize..), offset).map_err(here)?
            else {
                return Ok(index);
            };
            record.map_err(here)?;
            index.push(number.to_string(), offset);
            offset += len as u64;
        }
    }

    /// Parses a text with a line of key, tab and offset for each record.
    ///
    /// # Errors
    /// `Corrupt`, with the line, for any other text.
    pub fn parse(text: &[u8]) -> Result<RecordIoIndex> {
        let mut index = RecordIoIndex::default();
        for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let fields = std::str::from_utf8(line).ok().map(str::trim_ascii_end);
            if fields == Some("") {
                continue;
            }
            let fields = fields.and_then(|line| line.split_once('\t'));
            let offset = fields.and_then(|(key, offset)| Some((key, offset.parse().ok()?)));
            let Some((key, offset)) = offset.filter(|(_, offset)| *offset < u64::MAX) else {
                return Err(Error::corrupt(format!(
                    "line {} of the index: key, tab and offset are due",
                    number + 1
                )));
            };
            index.push(key.to_owned(), offset);
        }
        Ok(index)
    }

    pub(super) fn push(&mut self, key: String, offset: u64) {
        self.records.push((key.into(), offset));
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns true if there are no records.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns key and offset of each record, in the order of the text.
    pub fn records(&self) -> impl ExactSizeIterator<Item = (&str, u64)> {
        self.records.iter().map(|(key, offset)| (&**key, *offset))
    }
}

impl fmt::Display for RecordIoIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.records
            .iter()
            .try_for_each(|(key, offset)| writeln!(f, "{key}\t{offset}"))
    }
}

/// The records of a RecordIO file in a store, by index, in the order of the `.idx` file: one range
/// request for each record.
///
/// The index contains the begin of each record, which is also the end of the record before; the
/// last record is read up to the end of the file. If the index has only some of the records, more
/// is read than necessary.
///
/// # Errors
/// For a record: the errors of [`RecordIo`](super::RecordIo) and of the store.
///
/// # Examples
/// ```
/// use datapipes::index::Indexed;
/// use datapipes_io::formats::{IndexedRecordIo, RecordIoIndex, RecordIoWriter};
/// use datapipes_io::stores::InMemory;
///
/// let mut writer = RecordIoWriter::new(Vec::new());
/// for text in ["a", "b", "c"] {
///     writer.write(text.as_bytes())?;
/// }
/// let store = InMemory::from_iter([("train.rec", writer.finish()?.0)]);
/// let index = RecordIoIndex::parse(b"7\t24\n8\t0\n9\t12\n")?;
/// let records = Indexed::new(IndexedRecordIo::new(store, "train.rec", index));
/// assert_eq!(records.fetch().collect()?, ["c", "a", "b"]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct IndexedRecordIo {
    store: Arc<dyn Store>,
    key: Arc<str>,
    index: Arc<RecordIoIndex>,
    /// Offsets in ascending order.
    begins: Arc<[u64]>,
}

impl IndexedRecordIo {
    /// Returns the records of the object under a key.
    pub fn new(store: impl Store, key: impl Into<Arc<str>>, index: RecordIoIndex) -> Self {
        let mut begins: Vec<u64> = index.records().map(|(_, offset)| offset).collect();
        begins.sort_unstable();
        IndexedRecordIo {
            store: Arc::new(store),
            key: key.into(),
            index: Arc::new(index),
            begins: begins.into(),
        }
    }
}

#[async_trait]
impl MapPipe for IndexedRecordIo {
    type Out = Bytes;

    fn len(&self) -> u64 {
        self.index.len() as u64
    }
    async fn get(&self, index: u64) -> Result<Bytes> {
        let url = || self.store.url_of(&self.key);
        let record = usize::try_from(index)
            .ok()
            .and_then(|index| self.index.records.get(index));
        let Some((_, begin)) = record else {
            let what = format!("{}: no record {index} of {}", url(), self.index.len());
            return Err(Error::not_found(what));
        };
        let next = self.begins.partition_point(|other| other <= begin);
        let end = self.begins.get(next).copied().unwrap_or(u64::MAX);
        let data = self
            .store
            .get(&self.key, Get::range(*begin..end))
            .await?
            .bytes()
            .await?;
        let record = first(&data, 0).and_then(|found| found.map(|(_, record)| record).transpose());
        let here = |error: Error| error.within(place(index, *begin)).within(url());
        record
            .map_err(here)?
            .ok_or_else(|| here(Error::truncated("the file ends there")))
    }
    reads_store!(store);
    fn name(&self) -> String {
        "record_io".to_owned()
    }
    fn sample_name(&self, index: u64) -> Option<Arc<str>> {
        Some(format!("{}/{index}", self.key).into())
    }
    fn weigh(&self, record: &Bytes) -> Option<usize> {
        Some(record.len() + size_of::<Bytes>())
    }
}
