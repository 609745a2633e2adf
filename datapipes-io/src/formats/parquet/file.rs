//! A Parquet file by its row groups. Only the wanted columns are read.

mod rows;

use async_trait::async_trait;
use std::ops::Range;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use bytes::buf::Reader;
use bytes::{Buf, Bytes};
use datapipes::index::filter::Filter;
use datapipes::{Context, Error, MapPipe, Result, Revision};
use futures::future::try_join_all;
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use tokio::sync::OnceCell;

use super::layout::{Layout, MAGIC, TAIL, footer_length, runs};
use super::row_filter::{FILTER_ROWS, RowFilter};
use super::{Parquet, RecordBatch, next_batch, weight};
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
/// - With a [`filter`](ParquetFile::filter), a sample is the rows of its row group that match, and
///   only the pages that may have such rows are read.
/// - [`Indexed`](datapipes::Indexed) shuffles row groups, shards them over ranks, and
///   mixes or [concatenates](datapipes::Indexed::concat) files.
/// - The checks are as for [`Parquet`](super::Parquet). If the store has versions, a file that
///   was changed since is the error `Changed`.
///
/// Clones share everything except the choice of columns and rows.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use datapipes::Indexed;
/// use datapipes_io::formats::ParquetFile;
/// use datapipes_io::stores::InMemory;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let data = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/table.parquet"));
/// let store = Arc::new(InMemory::new());
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
    filter: Option<RowFilter>,
    /// Set when pages are first asked for.
    paged: Arc<OnceCell<Paged>>,
}

/// The layout of the wanted columns and that of the filter's, with the page index if there is one.
struct Paged {
    layout: Layout,
    filter: Option<RowFilter>,
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
        let meta = store.head(&key).await?;
        let size = meta.size.ok_or_else(|| {
            let what = "the store does not tell how long it is";
            Error::unsupported(what).within(store.url_of(&key))
        })?;
        ParquetFile::of(store, key, meta.version, size).await
    }

    /// Opens a file that was listed with a size.
    ///
    /// # Errors
    /// `Changed` if it has another; else those of [`open`](ParquetFile::open).
    pub(super) async fn open_sized(
        store: Arc<dyn Store>,
        key: String,
        listed: u64,
    ) -> Result<Self> {
        let meta = store.head(&key).await?;
        if let Some(size) = meta.size.filter(|size| *size != listed) {
            return Err(Error::changed(format!(
                "{}: listed with {listed} bytes, has {size}",
                store.url_of(&key)
            )));
        }
        ParquetFile::of(store, key, meta.version, listed).await
    }

    /// Reads the footer of a file of a known size.
    async fn of(
        store: Arc<dyn Store>,
        key: String,
        version: Option<String>,
        size: u64,
    ) -> Result<Self> {
        let object = Object {
            store,
            key,
            version,
        };
        let url = object.url();
        let within = |error: Error| error.within(&url);
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
            filter: None,
            paged: Arc::default(),
        })
    }

    /// Returns the file with the columns, rows and limits of a format.
    ///
    /// # Errors
    /// As for whole files in this format.
    pub(super) fn with_settings(mut self, format: &Parquet, cx: &Context) -> Result<Self> {
        if let Some(columns) = &format.columns {
            self.layout.choose(columns)?;
        }
        let filter = format.filter.as_ref();
        let filter = filter.map(|filter| RowFilter::new(filter, &self.layout));
        self.filter = filter.transpose()?;
        self.expansion = format.expansion.allowed(cx);
        Ok(self)
    }

    /// Returns the version of the content, if it is known; no other is read.
    pub(super) fn version(&self) -> Option<&String> {
        self.object.version.as_ref()
    }

    /// Returns the ranges that are read for a row group: all of the wanted columns and of the
    /// filter's, unless no row matches. Ranges that cannot be are left out: decoding names them.
    pub(super) fn ranges(&self, group: usize) -> Vec<Range<u64>> {
        let mut ranges = self.layout.ranges(group).unwrap_or_default();
        if let Some(filter) = &self.filter {
            match filter.candidates(group, &Bytes::new()) {
                Ok(rows) if rows.is_empty() => return Vec::new(),
                _ => ranges.extend(filter.layout().ranges(group).unwrap_or_default()),
            }
            ranges.extend(filter.bloom_ranges(group).unwrap_or_default());
        }
        joined(ranges)
    }

    /// Returns the number of row groups.
    pub(super) fn groups(&self) -> usize {
        self.layout.groups()
    }

    /// Returns the layout of the wanted columns, and the filter if there is one, with the page index
    /// where it helps.
    pub(super) async fn layouts(&self) -> (Layout, Option<RowFilter>) {
        let paged = match self.filter {
            Some(_) => self.paged().await.ok(),
            None => None,
        };
        match paged {
            Some(paged) => (paged.layout.clone(), paged.filter.clone()),
            // Without a page index that can be used, all pages of a row group are decoded.
            None => (self.layout.clone(), self.filter.clone()),
        }
    }

    /// Reads ranges of the file.
    pub(super) async fn read_ranges(&self, ranges: Vec<Range<u64>>) -> Result<Pieces> {
        self.object.pieces(Pieces::default(), ranges).await
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
        self.paged = Arc::default();
        Ok(self)
    }

    /// Reads only the rows that match, in addition to earlier filters; as
    /// [`Parquet::filter`](super::Parquet::filter). The columns of the filter need not be among the
    /// wanted ones.
    ///
    /// - Sample `n` remains row group `n`, with its rows that match; there may be none. A row group
    ///   that statistics exclude costs no request.
    /// - Another row group is read in three steps: Bloom filters, if there are any for a comparison
    ///   by `=` or `IN`; pages of the filter's columns that may have matching rows; pages of the
    ///   wanted columns that have matching rows. Without a page index, whole columns are read.
    /// - The page index of these columns is read at the first sample, and stays in memory.
    ///
    /// # Errors
    /// `NotFound` if there is no such column; `Shape` for a value that cannot be compared with it;
    /// `Limit` for a filter that is nested deeper than 64 levels.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use datapipes::Indexed;
    /// use datapipes_io::formats::ParquetFile;
    /// use datapipes_io::stores::InMemory;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let data = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/table.parquet"));
    /// let store = Arc::new(InMemory::new());
    /// store.put("table.parquet", &data[..]);
    /// let file = ParquetFile::open(store, "table.parquet").await?.columns(["text"])?;
    /// let batches = Indexed::new(file.filter("index >= 2 AND index < 5".parse()?)?).fetch();
    /// # datapipes::Ok(batches) }).and_then(|batches| {
    /// let rows: Vec<usize> = batches.map(|batch| batch.num_rows()).collect()?;
    /// assert_eq!(rows, [2, 1, 0]);
    /// # datapipes::Ok(()) }).unwrap();
    /// ```
    pub fn filter(mut self, filter: Filter) -> Result<Self> {
        let filter = match &self.filter {
            Some(earlier) => earlier.filter().clone().and(filter),
            None => filter,
        };
        let found = RowFilter::new(&filter, &self.layout);
        self.filter = Some(found.map_err(|error| error.within(self.object.url()))?);
        self.paged = Arc::default();
        Ok(self)
    }

    /// Sets the limits, as [`Parquet::max_expansion`](super::Parquet::max_expansion); all values of
    /// a row group are in memory at once.
    pub fn max_expansion(mut self, bytes: u64, ratio: u64) -> Self {
        self.expansion.limit(bytes, ratio);
        self
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
            Error::not_found(format!("there are {} row groups", self.layout.groups()))
        })?;
        self.read_group(group).await
    }

    async fn read_group(&self, group: usize) -> Result<RecordBatch> {
        if self.filter.is_none() {
            let rows = self.layout.rows(group);
            let work = move |reader| one_batch(reader, rows);
            let pieces = Pieces::default();
            let read = self.select(&self.layout, group, None, rows, pieces, work);
            return Ok(read.await?.0);
        }
        let layout = self.paged().await?.layout.clone();
        let (rows, pieces) = self.matching(group).await?;
        if rows.is_empty() {
            return Ok(RecordBatch::new_empty(layout.chosen_schema()?));
        }
        self.read_rows(&layout, group, &rows, pieces).await
    }

    /// Reads rows of a row group, in ascending order, as one batch.
    async fn read_rows(
        &self,
        layout: &Layout,
        group: usize,
        rows: &[usize],
        pieces: Pieces,
    ) -> Result<RecordBatch> {
        let wanted = rows.len();
        let work = move |reader| one_batch(reader, wanted);
        let read = self.select(layout, group, Some(runs(rows)), wanted, pieces, work);
        Ok(read.await?.0)
    }

    /// Returns the rows of a row group that match the filter, and the data that were read for it.
    async fn matching(&self, group: usize) -> Result<(Vec<usize>, Pieces)> {
        let filter = self.paged().await?.filter.clone();
        let filter = filter.expect("rows are asked for if there is a filter");
        let blooms = filter.bloom_ranges(group)?;
        let pieces = self.object.pieces(Pieces::default(), blooms).await?;
        let candidates = filter.candidates(group, &pieces)?;
        if candidates.is_empty() {
            return Ok((Vec::new(), pieces));
        }
        let (layout, chosen) = (filter.layout().clone(), candidates.clone());
        let work = move |reader| filter.matching(reader, &candidates);
        self.select(&layout, group, Some(chosen), FILTER_ROWS, pieces, work)
            .await
    }

    /// Returns the layouts with the page index, which is read the first time.
    async fn paged(&self) -> Result<&Paged> {
        let read = async || {
            let wanted = self.layout.index_ranges();
            let filters = self.filter.as_ref();
            let filters = filters.and_then(|filter| filter.layout().index_ranges());
            let ranges = wanted.iter().chain(&filters).flatten().cloned().collect();
            let pieces = self.object.pieces(Pieces::default(), ranges).await?;
            let (layout, filter) = (self.layout.clone(), self.filter.clone());
            let paged = datapipes::blocking(move || {
                datapipes::Ok(Paged {
                    layout: match wanted {
                        Some(_) => layout.with_index(&pieces)?,
                        None => layout,
                    },
                    filter: filter
                        .map(|filter| filter.with_index(&pieces))
                        .transpose()?,
                })
            });
            let within = |error: Error| error.within(self.object.url());
            paged.await?.map_err(within)
        };
        self.paged.get_or_try_init(read).await
    }

    /// Reads some rows of a row group, or all, as batches of at most `most_rows`, and gives them to
    /// `work` on a blocking thread. Returns its result, and all data that were read: what is in
    /// `pieces` is not read again.
    async fn select<T: Send + 'static>(
        &self,
        layout: &Layout,
        group: usize,
        rows: Option<Vec<Range<usize>>>,
        most_rows: usize,
        mut pieces: Pieces,
        work: impl FnOnce(ParquetRecordBatchReader) -> Result<T> + Send + 'static,
    ) -> Result<(T, Pieces)> {
        let expansion = self.expansion;
        let mut work = work;
        if let Some(rows) = rows.as_ref().filter(|_| layout.has_pages()) {
            let pages = layout.pages(group, rows)?;
            let ranges = pages.iter().flat_map(|column| column.ranges()).collect();
            pieces = self.object.pieces(pieces, ranges).await?;
            let needed = pages
                .iter()
                .filter_map(|column| column.needed_dictionary(&pieces));
            let needed = needed.collect();
            pieces = self.object.pieces(pieces, needed).await?;
            let (layout, rows, source) = (layout.clone(), rows.clone(), pieces.clone());
            let done = datapipes::blocking(move || {
                let reader = layout.read_pages(group, &rows, &pages, &source, most_rows, expansion);
                datapipes::Ok(match reader? {
                    Some(reader) => Ok(work(reader)?),
                    None => Err(work),
                })
            });
            match done.await?? {
                Ok(done) => return Ok((done, pieces)),
                Err(left) => work = left,
            }
        }
        pieces = self.object.pieces(pieces, layout.ranges(group)?).await?;
        let (layout, source) = (layout.clone(), pieces.clone());
        let done = datapipes::blocking(move || {
            work(layout.read(group, rows.as_deref(), &source, most_rows, expansion)?)
        });
        Ok((done.await??, pieces))
    }
}

/// Reads a number of rows, which must be all of a reader, as one batch.
fn one_batch(mut reader: ParquetRecordBatchReader, rows: usize) -> Result<RecordBatch> {
    if rows == 0 {
        let schema = arrow_array::RecordBatchReader::schema(&reader);
        return Ok(RecordBatch::new_empty(schema));
    }
    let batch = next_batch(&mut reader)?.filter(|batch| batch.num_rows() == rows);
    batch.ok_or_else(|| Error::corrupt(format!("it has not the {rows} rows that it states")))
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
    /// Returns the revision of the store with the choice of columns and rows, which other samples
    /// have not.
    fn revision(&self) -> Revision {
        let of_store = self.object.store.known_revision();
        let columns = self.layout.chosen_names();
        let columns = columns.map(|names| format!("columns {}", names.join(", ")));
        let rows = self.filter.as_ref();
        let rows = rows.map(|filter| format!("where {}", filter.filter()));
        let chosen = columns.into_iter().chain(rows);
        match of_store {
            Revision::Moving(why) => Revision::Moving(why),
            Revision::Fixed(commit) => {
                let all: Vec<String> = std::iter::once(commit).chain(chosen).collect();
                Revision::Fixed(all.join(", "))
            }
            Revision::Unknown => match chosen.collect::<Vec<_>>() {
                chosen if chosen.is_empty() => Revision::Unknown,
                chosen => Revision::Fixed(chosen.join(", ")),
            },
        }
    }
    fn seldom_waits(&self) -> bool {
        self.object.store.folder().is_some()
    }
    fn name(&self) -> String {
        "parquet".to_owned()
    }
    fn sample_name(&self, index: u64) -> Option<Arc<str>> {
        Some(format!("{}/{index}", self.object.key).into())
    }
    fn weigh(&self, batch: &RecordBatch) -> Option<usize> {
        Some(weight(batch))
    }
}

datapipes::formatted! {
    Debug |file: ParquetFile|
        "ParquetFile({:?}, {} row groups)", file.object.url(), file.layout.groups();
}

impl Object {
    fn url(&self) -> String {
        self.store.url_of(&self.key)
    }

    /// Reads the ranges that are not in `pieces` yet, those that are near each other by one
    /// request.
    async fn pieces(&self, mut pieces: Pieces, ranges: Vec<Range<u64>>) -> Result<Pieces> {
        let is_new =
            |range: &Range<u64>| pieces.get(range.start, range.end - range.start).is_none();
        let ranges: Vec<_> = ranges.into_iter().filter(is_new).collect();
        let new = joined(ranges)
            .into_iter()
            .map(async |range| datapipes::Ok((range.start, self.get(range).await?)));
        let mut new = try_join_all(new).await?;
        new.extend(pieces.0.iter().cloned());
        pieces.0 = new.into();
        Ok(pieces)
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
            return Err(Error::truncated(what));
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

/// Data that were read of a file, with their positions. They may overlap.
#[derive(Clone, Default)]
pub(super) struct Pieces(Arc<[(u64, Bytes)]>);

impl Pieces {
    /// Returns the number of bytes in memory.
    pub fn weight(&self) -> usize {
        self.0.iter().map(|(_, data)| data.len()).sum()
    }

    /// Returns at least a number of bytes from a position on, and what was read after them.
    fn get(&self, start: u64, length: u64) -> Option<Bytes> {
        let from = |(at, data): &(u64, Bytes)| {
            let skip = usize::try_from(start.checked_sub(*at)?).ok()?;
            let is_in = skip as u64 + length <= data.len() as u64;
            is_in.then(|| data.slice(skip..))
        };
        self.0.iter().filter_map(from).max_by_key(Bytes::len)
    }
}

impl Length for Pieces {
    fn len(&self) -> u64 {
        let ends = self.0.iter().map(|(at, data)| at + data.len() as u64);
        ends.max().unwrap_or(MAGIC.len() as u64)
    }
}

impl ChunkReader for Pieces {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Reader<Bytes>, ParquetError> {
        let data = self.get(start, 0).ok_or_else(|| missing(start, 0))?;
        Ok(data.reader())
    }
    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let data = self.get(start, length as u64);
        Ok(data.ok_or_else(|| missing(start, length))?.slice(..length))
    }
}

fn missing(start: u64, length: usize) -> ParquetError {
    ParquetError::EOF(format!("{length} bytes at byte {start} were not read"))
}
