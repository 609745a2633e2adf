//! A Parquet file by its row groups, of which only the wanted columns are read.

mod rows;

use async_trait::async_trait;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use bytes::buf::Reader;
use bytes::{Buf, Bytes};
use datapipes::{Error, ErrorKind, MapPipe, Result};
use futures::future::try_join_all;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use super::layout::{Layout, MAGIC, TAIL, footer_length};
use super::{RecordBatch, next_batch, weight};
use crate::formats::compression::Expansion;
use crate::stores::{Get, Store};
pub use rows::IndexedParquetRows;

/// Number of bytes read at once from the end of a file; most footers fit.
const END: u64 = 64 << 10;
/// Maximum distance in bytes of columns that are read by one request.
const NEAR: u64 = 256 << 10;

/// A Parquet file in a store as data by index: sample `n` is row group `n`, as one record batch;
/// feature `parquet`.
///
/// - Opening it reads the footer. A sample reads only the wanted columns of its row group: columns
///   at most 256 KiB apart by one request, including the bytes between them, and all requests at
///   once. They are decoded on a blocking thread.
/// - [`rows`](ParquetFile::rows) has the rows by index instead.
/// - [`Indexed`](datapipes::Indexed) shuffles row groups, shards them over ranks, and
///   mixes or [concatenates](datapipes::Indexed::concat) files.
/// - The checks are those of [`Parquet`](super::Parquet). If the store has versions, a file that
///   was changed since is the error `Changed`.
///
/// Clones share everything except the choice of columns.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use datapipes::Indexed;
/// use datapipes_io::formats::ParquetFile;
/// use datapipes_io::stores::Memory;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let data = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/table.parquet"));
/// let store = Arc::new(Memory::new());
/// store.put("table.parquet", &data[..]);
/// let file = ParquetFile::open(store, "table.parquet").await?.columns(["index"])?;
/// let batches = Indexed::new(file).shuffle().fetch();
/// # datapipes::Ok(batches) }).and_then(|batches| {
/// let rows: usize = batches.map(|batch| batch.num_rows()).collect()?.into_iter().sum();
/// assert_eq!(rows, 10);
/// # datapipes::Ok(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use]
pub struct ParquetFile {
    object: Arc<Object>,
    layout: Layout,
    expansion: Expansion,
}

/// Location of the file.
struct Object {
    store: Arc<dyn Store>,
    key: String,
    version: Option<String>,
}

impl ParquetFile {
    /// Opens a file by its key in a store.
    ///
    /// # Errors
    /// The errors of the store; those of [`Parquet`](super::Parquet) for a file of another format,
    /// or with a damaged footer.
    pub async fn open(store: Arc<dyn Store>, key: impl Into<String>) -> Result<Self> {
        let key = key.into();
        let url = store.url_of(&key);
        let meta = store.head(&key).await?;
        let within = |error: Error| error.within(&url);
        let size = meta.size.ok_or_else(|| {
            within(Error::new(
                ErrorKind::Unsupported,
                "the store does not tell how long it is",
            ))
        })?;
        let object = Object {
            store,
            key,
            version: meta.version,
        };
        let mut end = object.get(size.saturating_sub(END)..size).await?;
        let length = footer_length(&end, size).map_err(within)?;
        let start = size - length - TAIL as u64;
        if length + TAIL as u64 > end.len() as u64 {
            end = object.get(start..size).await?;
        }
        let footer = end.slice(end.len() - TAIL - length as usize..end.len() - TAIL);
        let layout = datapipes::blocking(move || Layout::new(&footer, start))
            .await?
            .map_err(within)?;
        Ok(ParquetFile {
            object: Arc::new(object),
            layout,
            expansion: Expansion::default(),
        })
    }

    /// Reads only these columns; as [`Parquet::columns`](super::Parquet::columns).
    ///
    /// # Errors
    /// `NotFound` if there is no such column.
    pub fn columns<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Result<Self> {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        self.layout
            .choose(&names)
            .map_err(|error| error.within(self.object.url()))?;
        Ok(self)
    }

    /// Sets the limits, as [`Parquet::max_expansion`](super::Parquet::max_expansion); all values of
    /// a row group are in memory at once.
    pub fn max_expansion(self, bytes: u64, ratio: u64) -> Self {
        ParquetFile {
            expansion: Expansion {
                bytes,
                ratio,
                ..self.expansion
            },
            ..self
        }
    }

    /// Returns the columns of the file, wanted or not.
    pub fn schema(&self) -> &SchemaRef {
        self.layout.arrow_schema()
    }

    /// Returns the number of rows of each row group.
    pub fn row_counts(&self) -> Vec<u64> {
        (0..self.layout.groups())
            .map(|group| self.layout.rows(group) as u64)
            .collect()
    }

    async fn read(&self, index: u64) -> Result<RecordBatch> {
        let group = usize::try_from(index)
            .ok()
            .filter(|&group| group < self.layout.groups());
        let group = group.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("there are {} row groups", self.layout.groups()),
            )
        })?;
        self.read_group(group).await
    }

    async fn read_group(&self, group: usize) -> Result<RecordBatch> {
        let pieces = self.object.pieces(self.layout.ranges(group)?).await?;
        let this = self.clone();
        datapipes::blocking(move || this.decode(group, &pieces)).await?
    }

    fn decode(&self, group: usize, pieces: &Pieces) -> Result<RecordBatch> {
        let rows = self.layout.rows(group);
        let mut reader = self.layout.read(group, pieces, rows, self.expansion)?;
        if rows == 0 {
            return Ok(RecordBatch::new_empty(
                arrow_array::RecordBatchReader::schema(&reader),
            ));
        }
        let batch = next_batch(&mut reader)?.filter(|batch| batch.num_rows() == rows);
        batch.ok_or_else(|| {
            Error::new(
                ErrorKind::Corrupt,
                format!("it has not the {rows} rows that it states"),
            )
        })
    }
}

#[async_trait]
impl MapPipe for ParquetFile {
    type Out = RecordBatch;

    fn len(&self) -> u64 {
        self.layout.groups() as u64
    }
    async fn get(&self, index: u64) -> Result<RecordBatch> {
        let place =
            |error: Error| error.within(format_args!("{}: row group {index}", self.object.url()));
        self.read(index).await.map_err(place)
    }
    fn name(&self) -> String {
        "parquet".to_owned()
    }
    fn weigh(&self, batch: &RecordBatch) -> Option<usize> {
        Some(weight(batch))
    }
}

impl fmt::Debug for ParquetFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ParquetFile({:?}, {} row groups)",
            self.object.url(),
            self.layout.groups()
        )
    }
}

impl Object {
    fn url(&self) -> String {
        self.store.url_of(&self.key)
    }

    /// Reads ranges, those that are near each other by one request.
    async fn pieces(&self, ranges: Vec<Range<u64>>) -> Result<Pieces> {
        let pieces = joined(ranges)
            .into_iter()
            .map(async |range| datapipes::Ok((range.start, self.get(range).await?)));
        Ok(Pieces(try_join_all(pieces).await?.into()))
    }

    /// Reads a range that must exist as a whole.
    async fn get(&self, range: Range<u64>) -> Result<Bytes> {
        let want = range.end - range.start;
        if want == 0 {
            return Ok(Bytes::new());
        }
        let data = self
            .store
            .get(
                &self.key,
                Get::range(range).of_version(self.version.clone()),
            )
            .await?;
        let data = data.bytes().await?;
        if data.len() as u64 != want {
            let what = format!("{}: {} of {want} bytes", self.url(), data.len());
            return Err(Error::new(ErrorKind::Truncated, what));
        }
        Ok(data)
    }
}

/// Joins sorted ranges that are near each other.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(NEAR) => {
                last.end = last.end.max(range.end)
            }
            _ => joined.push(range),
        }
    }
    joined
}

/// Data that were read of a file, by their positions.
#[derive(Clone)]
struct Pieces(Arc<[(u64, Bytes)]>);

impl Pieces {
    /// Returns the available bytes from a position on.
    fn from(&self, start: u64) -> Option<Bytes> {
        let place = self
            .0
            .partition_point(|(at, _)| *at <= start)
            .checked_sub(1)?;
        let (at, data) = &self.0[place];
        let skip = usize::try_from(start - at)
            .ok()
            .filter(|&skip| skip <= data.len())?;
        Some(data.slice(skip..))
    }
}

impl Length for Pieces {
    fn len(&self) -> u64 {
        self.0
            .last()
            .map_or(MAGIC.len() as u64, |(at, data)| at + data.len() as u64)
    }
}

impl ChunkReader for Pieces {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Reader<Bytes>, ParquetError> {
        let data = self.from(start).ok_or_else(|| missing(start, 0))?;
        Ok(data.reader())
    }
    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let data = self.from(start).filter(|data| data.len() >= length);
        Ok(data.ok_or_else(|| missing(start, length))?.slice(..length))
    }
}

fn missing(start: u64, length: usize) -> ParquetError {
    ParquetError::EOF(format!("{length} bytes at byte {start} were not read"))
}
