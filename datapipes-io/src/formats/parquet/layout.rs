//! The footer of a file: the stated positions, validated against the file.
//!
//! Layout: <https://parquet.apache.org/docs/file-format/>.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatchReader;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use datapipes::{Error, Result};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder, RowSelection,
};
use parquet::basic::Compression;
use parquet::file::metadata::page_index::PageIndexBuilder;
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader,
    ParquetStatisticsPolicy, RowGroupMetaData,
};
use parquet::file::page_index::index_reader::{decode_column_index, decode_offset_index};
use parquet::file::reader::ChunkReader;
use parquet::schema::types::SchemaDescriptor;

use super::pages::{Pages, check_deltas};
use super::parquet_error;
use super::thrift::{I32, LIST, Reader, STRUCT};
use crate::formats::arrow::{guarded, no_column};
use crate::formats::compression::Expansion;

/// Size of the end of a file: the length of the footer, and the magic.
pub(super) const TAIL: usize = 8;
/// Magic at the beginning and the end of a file.
pub(super) const MAGIC: &[u8] = b"PAR1";
/// Maximum nesting depth of columns.
const DEPTH: usize = 64;

/// Returns the length of the footer, from the end of a file of `size` bytes.
pub(super) fn footer_length(end: &[u8], size: u64) -> Result<u64> {
    let tail = end
        .last_chunk::<TAIL>()
        .filter(|_| size >= (MAGIC.len() + TAIL) as u64);
    let Some([a, b, c, d, magic @ ..]) = tail else {
        return Err(Error::truncated(format!(
            "{size} bytes where a Parquet file is due"
        )));
    };
    if magic == b"PARE" {
        return Err(Error::unsupported("an encrypted Parquet file"));
    }
    if magic != MAGIC {
        return Err(Error::corrupt(
            "no Parquet file, or one whose end is missing",
        ));
    }
    let length = u64::from(u32::from_le_bytes([*a, *b, *c, *d]));
    if length > size - (MAGIC.len() + TAIL) as u64 {
        let what = format!("a footer of {length} bytes in a file of {size}");
        return Err(Error::corrupt(what));
    }
    Ok(length)
}

/// Layout of a file, and the wanted columns.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    reader: ArrowReaderMetadata,
    mask: ProjectionMask,
    leaves: Arc<[usize]>,
    footer: Bytes,
    /// Position of the footer, before which all data must end.
    end: u64,
    /// True if the statistics of the wanted columns were parsed, too.
    has_statistics: bool,
    /// True if the places of all pages of the wanted columns are known.
    has_pages: bool,
}

impl Layout {
    /// Parses the footer, which begins at byte `end`.
    pub fn new(footer: &Bytes, end: u64) -> Result<Self> {
        check_schema(footer).ok_or_else(|| Error::corrupt("the schema in the footer"))?;
        let reader = parsed(footer, ParquetStatisticsPolicy::SkipAll)?;
        let metadata = reader.metadata();
        let groups = metadata.row_groups();
        let rows = groups
            .iter()
            .map(|group| i128::from(group.num_rows().max(0)))
            .sum::<i128>();
        let stated = metadata.file_metadata().num_rows();
        if rows != i128::from(stated) || groups.iter().any(|group| group.num_rows() < 0) {
            return Err(Error::corrupt(format!(
                "{stated} rows by the footer, {rows} by its row groups"
            )));
        }
        // The check prevents that columns refer to the same bytes again and again.
        let columns = groups.iter().flat_map(RowGroupMetaData::columns);
        let bytes = columns
            .map(|column| i128::from(column.compressed_size().max(0)))
            .sum::<i128>();
        if bytes > i128::from(end) {
            return Err(Error::corrupt(format!(
                "{bytes} bytes of columns by the footer, {end} bytes are there"
            )));
        }
        let leaves = (0..metadata.file_metadata().schema_descr().num_columns()).collect();
        Ok(Layout {
            reader,
            mask: ProjectionMask::all(),
            leaves,
            footer: footer.clone(),
            end,
            has_statistics: false,
            has_pages: false,
        })
    }

    /// Returns the layout of these columns alone, with their statistics. Statistics that cannot be
    /// read are left out.
    pub fn with_statistics(&self, leaves: Vec<usize>) -> Layout {
        let policy = ParquetStatisticsPolicy::skip_except(&leaves);
        let reader = parsed(&self.footer, policy).unwrap_or_else(|_| self.reader.clone());
        Layout {
            reader,
            mask: ProjectionMask::leaves(self.schema(), leaves.iter().copied()),
            leaves: leaves.into(),
            has_statistics: true,
            has_pages: false,
            ..self.clone()
        }
    }

    /// Selects only these columns.
    pub fn choose(&mut self, names: &[String]) -> Result<()> {
        let schema = self.schema();
        let mut chosen = Vec::new();
        for name in names {
            let leaves = self.leaves_of(name);
            if leaves.is_empty() {
                let there = schema
                    .root_schema()
                    .get_fields()
                    .iter()
                    .map(|field| field.name());
                return Err(no_column(name, there));
            }
            chosen.extend(leaves);
        }
        chosen.sort_unstable();
        chosen.dedup();
        self.leaves = chosen.into();
        self.mask = ProjectionMask::leaves(self.schema(), self.leaves.iter().copied());
        self.has_pages = false;
        Ok(())
    }

    /// Returns the leaves of a column of the table, or of a path to a nested one.
    pub fn leaves_of(&self, name: &str) -> Vec<usize> {
        let schema = self.schema();
        let is_in = |leaf: &usize| {
            let path = schema.column(*leaf).path().string();
            path.strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        (0..schema.num_columns()).filter(is_in).collect()
    }

    pub fn schema(&self) -> &SchemaDescriptor {
        self.reader.parquet_schema()
    }

    /// Returns the columns as an Arrow schema, wanted or not.
    pub fn arrow_schema(&self) -> &SchemaRef {
        self.reader.schema()
    }

    /// Returns the wanted columns as an Arrow schema, as batches have it.
    pub fn chosen_schema(&self) -> Result<SchemaRef> {
        guarded("Parquet", || {
            let reader = self.builder(Bytes::new()).with_row_groups(Vec::new());
            Ok(RecordBatchReader::schema(
                &reader.build().map_err(parquet_error)?,
            ))
        })
    }

    /// Returns the names of the wanted columns in the order of the file, if these are not all.
    pub fn chosen_names(&self) -> Option<Vec<String>> {
        let schema = self.schema();
        let name = |&leaf: &usize| schema.column(leaf).path().string();
        let is_all = self.leaves.len() == schema.num_columns();
        (!is_all).then(|| self.leaves.iter().map(name).collect())
    }

    /// Returns the parsed footer.
    pub fn metadata(&self) -> &ParquetMetaData {
        self.reader.metadata()
    }

    /// Returns true if the places of all pages of the wanted columns are known.
    pub fn has_pages(&self) -> bool {
        self.has_pages
    }

    fn builder<R: ChunkReader + 'static>(&self, source: R) -> ParquetRecordBatchReaderBuilder<R> {
        ParquetRecordBatchReaderBuilder::new_with_metadata(source, self.reader.clone())
            .with_projection(self.mask.clone())
    }

    /// Returns the number of row groups.
    pub fn groups(&self) -> usize {
        self.reader.metadata().num_row_groups()
    }

    /// Returns the number of rows of a row group.
    pub fn rows(&self, group: usize) -> usize {
        usize::try_from(self.reader.metadata().row_group(group).num_rows())
            .expect("checked when made")
    }

    /// Returns the ranges of the wanted columns of a row group, in their order.
    pub fn ranges(&self, group: usize) -> Result<Vec<Range<u64>>> {
        let group = self.reader.metadata().row_group(group);
        self.leaves
            .iter()
            .map(|&leaf| self.range(group.column(leaf)))
            .collect()
    }

    fn range(&self, chunk: &ColumnChunkMetaData) -> Result<Range<u64>> {
        let start = chunk
            .dictionary_page_offset()
            .unwrap_or_else(|| chunk.data_page_offset());
        let (start, length) = (
            u64::try_from(start).ok(),
            u64::try_from(chunk.compressed_size()).ok(),
        );
        let range = start
            .zip(length)
            .and_then(|(start, length)| Some(start..start.checked_add(length)?));
        range.filter(|range| range.end <= self.end).ok_or_else(|| {
            let (at, length) = (chunk.data_page_offset(), chunk.compressed_size());
            let what = format!(
                "{length} bytes at byte {at}, and the footer begins at {}",
                self.end
            );
            Error::corrupt(what).within(column(chunk))
        })
    }

    /// Returns the number of batches of a row group, of at most this number of rows each.
    pub fn batches(&self, group: usize, most_rows: usize) -> u64 {
        self.rows(group).div_ceil(most_rows.max(1)) as u64
    }

    /// Returns the range of the Bloom filter of a column in a row group; `None` if there is none,
    /// or it is larger than the column.
    pub fn bloom_range(&self, group: usize, leaf: usize) -> Option<Range<u64>> {
        let chunk = self.metadata().row_group(group).column(leaf);
        let start = u64::try_from(chunk.bloom_filter_offset()?).ok()?;
        let length = u64::try_from(chunk.bloom_filter_length()?).ok()?;
        let most = u64::try_from(chunk.compressed_size()).ok()?;
        let end = start.checked_add(length)?;
        (length <= most && end <= self.end).then_some(start..end)
    }

    /// Reads some rows of a row group, as batches of at most this number of rows. Pages without
    /// such rows are not read if their places are known.
    pub fn select<R: ChunkReader + Clone + 'static>(
        &self,
        group: usize,
        rows: &[Range<usize>],
        source: &R,
        most_rows: usize,
        expansion: Expansion,
    ) -> Result<ParquetRecordBatchReader> {
        if self.has_pages {
            let pages = self.pages(group, rows)?;
            let reader = self.read_pages(group, rows, &pages, source, most_rows, expansion)?;
            if let Some(reader) = reader {
                return Ok(reader);
            }
        }
        self.read(group, Some(rows), source, most_rows, expansion)
    }

    /// Reads some rows of a row group, or all, from whole columns, as batches of at most this
    /// number of rows. The stated sizes are checked before.
    pub fn read<R: ChunkReader + Clone + 'static>(
        &self,
        group: usize,
        rows: Option<&[Range<usize>]>,
        source: &R,
        most_rows: usize,
        expansion: Expansion,
    ) -> Result<ParquetRecordBatchReader> {
        let all = self.rows(group);
        let most_rows = most_rows.min(rows.map_or(all, count));
        self.check(group, source, most_rows, expansion)?;
        self.reader_of(group, rows, source, most_rows)
    }

    fn reader_of<R: ChunkReader + Clone + 'static>(
        &self,
        group: usize,
        rows: Option<&[Range<usize>]>,
        source: &R,
        most_rows: usize,
    ) -> Result<ParquetRecordBatchReader> {
        guarded("Parquet", || {
            let mut builder = self
                .builder(source.clone())
                .with_row_groups(vec![group])
                .with_batch_size(most_rows);
            if let Some(rows) = rows {
                let (rows, all) = (rows.iter().cloned(), self.rows(group));
                let selection = RowSelection::from_consecutive_ranges(rows, all);
                builder = builder.with_row_selection(selection);
            }
            builder.build().map_err(parquet_error)
        })
    }

    /// Returns the ranges of the page index: the places of all pages of the wanted columns, and
    /// their statistics if these of whole columns were parsed. `None` if the places are not
    /// complete, or not between the data and the footer.
    pub fn index_ranges(&self) -> Option<Vec<Range<u64>>> {
        let mut ranges = Vec::new();
        for group in self.metadata().row_groups() {
            for &leaf in &*self.leaves {
                let chunk = group.column(leaf);
                let data = self.range(chunk).ok()?.end;
                let is_index = |range: &Range<u64>| data <= range.start && range.start < range.end;
                let index = chunk.offset_index_range().filter(is_index)?;
                ranges.push(index);
                ranges.extend(self.statistics_range(chunk).filter(is_index));
            }
        }
        let ends = ranges.iter().map(|range| range.end);
        (ends.max()? <= self.end).then_some(ranges)
    }

    fn statistics_range(&self, chunk: &ColumnChunkMetaData) -> Option<Range<u64>> {
        let range = chunk.column_index_range().filter(|_| self.has_statistics);
        range.filter(|range| range.end <= self.end)
    }

    /// Returns the layout with the page index, from its [ranges](Layout::index_ranges). Statistics
    /// that cannot be read are left out.
    pub fn with_index<R: ChunkReader>(&self, source: &R) -> Result<Layout> {
        let metadata = self.metadata();
        let mut pages = PageIndexBuilder::default();
        let columns = self.schema().num_columns();
        pages.allocate_offset_indexes(self.groups(), columns);
        if self.has_statistics {
            pages.allocate_column_indexes(self.groups(), columns);
        }
        let bytes = |range: Range<u64>| {
            let length = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
            source.get_bytes(range.start, length).ok()
        };
        for (at, group) in metadata.row_groups().iter().enumerate() {
            for &leaf in &*self.leaves {
                let chunk = group.column(leaf);
                let wrong = || Error::corrupt("its page index").within(column(chunk));
                let places = chunk.offset_index_range().and_then(bytes);
                let places = places.filter(|places| check_index(places).is_some());
                let places = places.ok_or_else(wrong)?;
                let places = guarded("Parquet", || {
                    decode_offset_index(&places).map_err(parquet_error)
                });
                let places =
                    places.map_err(|error| error.within("its page index").within(column(chunk)))?;
                let count = places.page_locations().len();
                pages.put_offset_index(places, at, leaf);
                let statistics = self.statistics_range(chunk).and_then(bytes);
                let statistics = statistics.filter(|data| check_index(data).is_some());
                let statistics = statistics.and_then(|data| {
                    let decode =
                        || decode_column_index(&data, chunk.column_type()).map_err(parquet_error);
                    guarded("Parquet", decode).ok()
                });
                if let Some(known) = statistics.filter(|known| known.num_pages() == count as u64) {
                    pages.put_column_index(known, at, leaf);
                }
            }
        }
        let metadata = metadata.clone().into_builder();
        let metadata = metadata.set_page_index(Some(Arc::new(pages.build())));
        let within = |error| parquet_error(error).within("the page index");
        let reader = guarded("Parquet", || {
            ArrowReaderMetadata::try_new(Arc::new(metadata.build()), ArrowReaderOptions::new())
                .map_err(within)
        })?;
        Ok(Layout {
            reader,
            has_pages: true,
            ..self.clone()
        })
    }

    /// Returns the pages with some rows of a row group, for each wanted column. Ranges of rows are
    /// in ascending order.
    pub fn pages(&self, group: usize, rows: &[Range<usize>]) -> Result<Vec<ColumnPages>> {
        let metadata = self.reader.metadata();
        let (all, index) = (self.rows(group), metadata.page_index_for_row_group(group));
        let pages = |&leaf: &usize| {
            let chunk = metadata.row_group(group).column(leaf);
            let within = |error: Error| error.within(column(chunk));
            let wrong = || within(Error::corrupt("its page index"));
            let range = self.range(chunk)?;
            let places = index.page_locations(leaf).ok_or_else(wrong)?;
            let mut known = Vec::with_capacity(places.len());
            let (mut begin, mut first) = (range.start, 0);
            for (at, place) in places.iter().enumerate() {
                let start = u64::try_from(place.offset).ok();
                let length = u64::try_from(place.compressed_page_size).ok();
                let next = places
                    .get(at + 1)
                    .map_or(Some(all), |next| usize::try_from(next.first_row_index).ok());
                let row = usize::try_from(place.first_row_index).ok();
                let (Some(start), Some(length), Some(next)) = (start, length, next) else {
                    return Err(wrong());
                };
                let end = start.checked_add(length).filter(|&end| end <= range.end);
                let is_next = start >= begin && row == Some(first) && next > first;
                let end = end.filter(|_| is_next).ok_or_else(wrong)?;
                known.push(PagePlace {
                    bytes: start..end,
                    rows: first..next,
                });
                (begin, first) = (end, next);
            }
            if first != all {
                return Err(wrong());
            }
            let dictionary =
                range.start..known.first().map_or(range.start, |page| page.bytes.start);
            // Rows are in order, so pages are, too; a page has many rows.
            let mut wanted: Vec<PagePlace> = Vec::new();
            let mut next = 0;
            for rows in rows {
                let first = known.partition_point(|page| page.rows.end <= rows.start);
                let end = known.partition_point(|page| page.rows.start < rows.end);
                wanted.extend_from_slice(&known[first.max(next)..end.max(next)]);
                next = end.max(next);
            }
            Ok(ColumnPages {
                leaf,
                dictionary,
                pages: wanted,
            })
        };
        self.leaves.iter().map(pages).collect()
    }

    /// Reads some rows of a row group from their pages, as batches of at most this number of rows.
    /// The stated sizes are checked before. `None` if a page has an encoding that is checked over
    /// whole columns.
    pub fn read_pages<R: ChunkReader + Clone + 'static>(
        &self,
        group: usize,
        rows: &[Range<usize>],
        columns: &[ColumnPages],
        source: &R,
        most_rows: usize,
        expansion: Expansion,
    ) -> Result<Option<ParquetRecordBatchReader>> {
        let metadata = self.reader.metadata().row_group(group);
        let (mut compressed, mut bytes, mut cells) = (0_u64, 0_u64, 0_u64);
        let most_rows = most_rows.min(count(rows));
        for pages in columns {
            let mut values = 0_u64;
            let chunk = metadata.column(pages.leaf);
            let within = |error: Error| error.within(column(chunk));
            if let Some(what) = unsupported(chunk) {
                return Err(within(Error::unsupported(what)));
            }
            let repeated = chunk.column_descr().max_rep_level() > 0;
            let headers = |range: &Range<u64>| {
                let length = (range.end - range.start) as usize;
                if length == 0 {
                    return Ok(Pages::default());
                }
                let data = source.get_bytes(range.start, length);
                Pages::of(&data.map_err(|error| within(parquet_error(error)))?).map_err(within)
            };
            let mut by_dictionary = false;
            for page in &pages.pages {
                let (found, rows) = (headers(&page.bytes)?, page.rows.len() as u64);
                if found.delta {
                    return Ok(None);
                }
                let enough = if repeated {
                    found.values >= rows
                } else {
                    found.values == rows
                };
                if found.count != 1 || !enough {
                    let (count, values) = (found.count, found.values);
                    let what = format!(
                        "{count} pages of {values} values, where one of {rows} rows is due by the page index"
                    );
                    return Err(within(Error::corrupt(what)));
                }
                compressed += page.bytes.end - page.bytes.start;
                bytes += found.bytes;
                values = values.saturating_add(found.values);
                by_dictionary |= found.by_dictionary;
            }
            let length = pages.dictionary.end - pages.dictionary.start;
            let is_there = || {
                source
                    .get_bytes(pages.dictionary.start, length as usize)
                    .is_ok()
            };
            if by_dictionary || is_there() {
                let dictionary = headers(&pages.dictionary)?;
                if dictionary.count > 0 {
                    return Err(within(Error::corrupt(
                        "a page that is not in its page index",
                    )));
                }
                compressed += length;
                bytes += dictionary.bytes;
            }
            if !repeated {
                values = values.min(most_rows as u64);
            }
            cells = cells.saturating_add(cell(chunk).saturating_mul(values));
        }
        within_limits(compressed, bytes, cells, expansion)?;
        self.reader_of(group, Some(rows), source, most_rows)
            .map(Some)
    }

    /// Returns the most bytes of a row of this file.
    pub fn most(&self, expansion: Expansion) -> u64 {
        expansion.most(self.end)
    }

    fn check<R: ChunkReader + Clone + 'static>(
        &self,
        index: usize,
        source: &R,
        most_rows: usize,
        expansion: Expansion,
    ) -> Result<()> {
        let (rows, group) = (self.rows(index), self.reader.metadata().row_group(index));
        let (mut compressed, mut bytes, mut cells) = (0_u64, 0_u64, 0_u64);
        let mut deltas = Vec::new();
        for &leaf in &*self.leaves {
            let (chunk, range) = (group.column(leaf), self.range(group.column(leaf))?);
            let descriptor = chunk.column_descr();
            let within = |error: Error| error.within(column(chunk));
            if let Some(what) = unsupported(chunk) {
                return Err(within(Error::unsupported(what)));
            }
            let length = usize::try_from(range.end - range.start)
                .map_err(|_| Error::corrupt("its length"))?;
            let data = source
                .get_bytes(range.start, length)
                .map_err(|error| within(parquet_error(error)))?;
            let pages = Pages::of(&data).map_err(within)?;
            let repeated = descriptor.max_rep_level() > 0;
            let enough = if repeated {
                pages.values >= rows as u64
            } else {
                pages.values == rows as u64
            };
            if !enough {
                let what = format!(
                    "its pages have {} values, the row group {rows} rows",
                    pages.values
                );
                return Err(within(Error::corrupt(what)));
            }
            compressed += range.end - range.start;
            bytes += pages.bytes;
            // Minimum memory that is in use at once, at eight bytes a value or the fixed size of a
            // value.
            let values = if repeated {
                pages.values
            } else {
                most_rows as u64
            };
            cells = cells.saturating_add(cell(chunk).saturating_mul(values));
            deltas.extend(pages.delta.then_some((chunk, descriptor)));
        }
        within_limits(compressed, bytes, cells, expansion)?;
        for (chunk, descriptor) in deltas {
            guarded("Parquet", || check_deltas(source, chunk, descriptor, rows))
                .map_err(|error| error.within(column(chunk)))?;
        }
        Ok(())
    }
}

/// The pages of a column with some rows of a row group.
pub(super) struct ColumnPages {
    pub leaf: usize,
    /// The bytes before the first page; there may be none.
    dictionary: Range<u64>,
    pub pages: Vec<PagePlace>,
}

/// Maximum size in bytes of a dictionary that is read with any page.
const SMALL_DICTIONARY: u64 = 64 << 10;

/// Place of a page in the file, and its rows in the row group.
#[derive(Clone)]
pub(super) struct PagePlace {
    bytes: Range<u64>,
    pub rows: Range<usize>,
}

/// Returns the number of rows in ranges.
pub(super) fn count(rows: &[Range<usize>]) -> usize {
    rows.iter().map(Range::len).sum()
}

/// Joins rows in ascending order into ranges.
pub(super) fn runs(rows: &[usize]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for &row in rows {
        match runs.last_mut() {
            Some(run) if run.end == row => run.end += 1,
            _ => runs.push(row..row + 1),
        }
    }
    runs
}

/// Parses a footer, with statistics by a policy.
fn parsed(footer: &Bytes, policy: ParquetStatisticsPolicy) -> Result<ArrowReaderMetadata> {
    let skip = || ParquetStatisticsPolicy::SkipAll;
    let options = ParquetMetaDataOptions::new()
        .with_column_stats_policy(policy)
        .with_encoding_stats_policy(skip())
        .with_size_stats_policy(skip());
    guarded("Parquet", || {
        let metadata = ParquetMetaDataReader::decode_metadata_with_options(footer, Some(&options))
            .map_err(|error| parquet_error(error).within("the footer"))?;
        ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::new())
            .map_err(|error| parquet_error(error).within("the schema"))
    })
}

impl ColumnPages {
    /// Returns the ranges of the pages, in their order. That of a large dictionary is among them only
    /// with the first page of the column: writers give it up once it is large, so that most pages do
    /// not refer to it.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let first = self.pages.first().map(|page| page.bytes.start);
        let is_read = |range: &Range<u64>| {
            !range.is_empty()
                && (first == Some(range.end) || range.end - range.start <= SMALL_DICTIONARY)
        };
        let dictionary = Some(self.dictionary.clone()).filter(is_read);
        let pages = self.pages.iter().map(|page| page.bytes.clone());
        dictionary.into_iter().chain(pages)
    }

    /// Returns the range of the dictionary, if one of the pages that were read refers to it.
    pub fn needed_dictionary<R: ChunkReader>(&self, read: &R) -> Option<Range<u64>> {
        let refers = |page: &PagePlace| {
            let length = (page.bytes.end - page.bytes.start) as usize;
            let data = read.get_bytes(page.bytes.start, length).ok()?;
            Some(Pages::of(&data).ok()?.by_dictionary)
        };
        // A page that cannot be read refers to nothing here: its error comes when it is decoded.
        let is_needed = self.pages.iter().any(|page| refers(page) == Some(true));
        (is_needed && !self.dictionary.is_empty()).then(|| self.dictionary.clone())
    }
}

/// Returns the bytes that a value takes at least: eight, or its fixed size.
fn cell(chunk: &ColumnChunkMetaData) -> u64 {
    let fixed = u64::try_from(chunk.column_descr().type_length());
    fixed.unwrap_or(0).max(8)
}

/// Checks the stated sizes of pages and of values, in bytes.
fn within_limits(compressed: u64, bytes: u64, cells: u64, expansion: Expansion) -> Result<()> {
    let most = expansion.most(compressed);
    // A column of one value takes next to no bytes, however many rows it has.
    let most_cells = most.max(FREE_CELLS.min(expansion.bytes));
    for (stated, what, most) in [(bytes, "of pages", most), (cells, "of values", most_cells)] {
        if stated > most {
            let what = format!(
                "{stated} bytes {what} out of {compressed}, at most {most} are allowed (`max_expansion`, `max_inflated`)"
            );
            return Err(Error::limit(what));
        }
    }
    Ok(())
}

/// Size of the values in bytes below which the ratio is not checked.
const FREE_CELLS: u64 = 256 << 20;

/// Returns the feature of a column that is valid and not supported.
fn unsupported(chunk: &ColumnChunkMetaData) -> Option<String> {
    match chunk.compression() {
        Compression::BROTLI(_) => Some("compressed by Brotli".to_owned()),
        Compression::LZO => Some("compressed by LZO".to_owned()),
        _ => chunk
            .file_path()
            .map(|path| format!("its data is in another file, {path:?}")),
    }
}

fn column(chunk: &ColumnChunkMetaData) -> String {
    format!("column {:?}", chunk.column_path().string())
}

/// Checks that the schema in a footer is a tree of limited depth, with no more children than there
/// are: the underlying reader follows it by recursion, and allocates room for the stated children.
fn check_schema(footer: &[u8]) -> Option<()> {
    Reader::new(footer).fields(|reader, field, kind| {
        if field != 2 {
            return Some(false);
        }
        let (size, element) = (kind == LIST).then(|| reader.list()).flatten()?;
        (element == STRUCT).then_some(())?;
        // Number of children that are still to come, by level.
        let mut open: Vec<u64> = Vec::new();
        for index in 0..size {
            let mut children = 0_i32;
            reader.fields(|reader, field, kind| {
                if field != 5 {
                    return Some(false);
                }
                (kind == I32).then_some(())?;
                children = reader.i32()?;
                Some(true)
            })?;
            let children = u64::try_from(children)
                .ok()
                .filter(|&children| children < size - index)?;
            if let Some(left) = open.last_mut() {
                *left -= 1;
            }
            open.push(children);
            while open.last() == Some(&0) {
                open.pop();
            }
            (open.len() <= DEPTH).then_some(())?;
        }
        Some(true)
    })
}

/// Checks that the lists of a page index are as long as they state: the underlying reader allocates
/// room for the stated number.
fn check_index(index: &[u8]) -> Option<()> {
    Reader::new(index).fields(|_, _, _| Some(false))
}
