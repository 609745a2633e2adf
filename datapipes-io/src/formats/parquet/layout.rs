//! The footer of a file: the stated positions, validated against the file.
//!
//! Layout: <https://parquet.apache.org/docs/file-format/>.

use std::ops::Range;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use bytes::Bytes;
use datapipes::{Error, ErrorKind, Result};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder, RowSelection,
};
use parquet::basic::Compression;
use parquet::file::metadata::{
    ColumnChunkMask, ColumnChunkMetaData, PageIndexPolicy, ParquetMetaDataOptions,
    ParquetMetaDataReader, ParquetStatisticsPolicy, RowGroupMetaData,
};
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
        return Err(Error::new(
            ErrorKind::Truncated,
            format!("{size} bytes where a Parquet file is due"),
        ));
    };
    if magic == b"PARE" {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "an encrypted Parquet file",
        ));
    }
    if magic != MAGIC {
        return Err(Error::new(
            ErrorKind::Corrupt,
            "no Parquet file, or one whose end is missing",
        ));
    }
    let length = u64::from(u32::from_le_bytes([*a, *b, *c, *d]));
    if length > size - (MAGIC.len() + TAIL) as u64 {
        let what = format!("a footer of {length} bytes in a file of {size}");
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    Ok(length)
}

/// Layout of a file, and the wanted columns.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    reader: ArrowReaderMetadata,
    mask: ProjectionMask,
    leaves: Arc<[usize]>,
    /// Position of the footer, before which all data must end.
    end: u64,
}

impl Layout {
    /// Parses the footer, which begins at byte `end`.
    pub fn new(footer: &Bytes, end: u64) -> Result<Self> {
        check_schema(footer).ok_or_else(|| corrupt("the schema in the footer"))?;
        let policy = || ParquetStatisticsPolicy::SkipAll;
        let options = ParquetMetaDataOptions::new()
            .with_column_stats_policy(policy())
            .with_encoding_stats_policy(policy())
            .with_size_stats_policy(policy());
        let reader = guarded("Parquet", || {
            let metadata =
                ParquetMetaDataReader::decode_metadata_with_options(footer, Some(&options))
                    .map_err(|error| parquet_error(error).within("the footer"))?;
            ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::new())
                .map_err(|error| parquet_error(error).within("the schema"))
        })?;
        let metadata = reader.metadata();
        let groups = metadata.row_groups();
        let rows = groups
            .iter()
            .map(|group| i128::from(group.num_rows().max(0)))
            .sum::<i128>();
        let stated = metadata.file_metadata().num_rows();
        if rows != i128::from(stated) || groups.iter().any(|group| group.num_rows() < 0) {
            return Err(corrupt(format!(
                "{stated} rows by the footer, {rows} by its row groups"
            )));
        }
        // The check prevents that columns refer to the same bytes again and again.
        let columns = groups.iter().flat_map(RowGroupMetaData::columns);
        let bytes = columns
            .map(|column| i128::from(column.compressed_size().max(0)))
            .sum::<i128>();
        if bytes > i128::from(end) {
            return Err(corrupt(format!(
                "{bytes} bytes of columns by the footer, {end} bytes are there"
            )));
        }
        let leaves = (0..metadata.file_metadata().schema_descr().num_columns()).collect();
        Ok(Layout {
            reader,
            mask: ProjectionMask::all(),
            leaves,
            end,
        })
    }

    /// Selects only these columns.
    pub fn choose(&mut self, names: &[String]) -> Result<()> {
        let schema = self.schema();
        let is_in = |name: &str, leaf: usize| {
            let path = schema.column(leaf).path().string();
            path.strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let all = 0..schema.num_columns();
        for name in names {
            if !all.clone().any(|leaf| is_in(name, leaf)) {
                let there = schema
                    .root_schema()
                    .get_fields()
                    .iter()
                    .map(|field| field.name());
                return Err(no_column(name, there));
            }
        }
        let chosen = all.filter(|&leaf| names.iter().any(|name| is_in(name, leaf)));
        self.leaves = chosen.collect();
        self.mask = ProjectionMask::leaves(self.schema(), self.leaves.iter().copied());
        Ok(())
    }

    fn schema(&self) -> &SchemaDescriptor {
        self.reader.parquet_schema()
    }

    /// Returns the columns as an Arrow schema, wanted or not.
    pub fn arrow_schema(&self) -> &SchemaRef {
        self.reader.schema()
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
            corrupt(what).within(column(chunk))
        })
    }

    /// Reads a row group, as batches of at most this number of rows. The stated sizes are checked
    /// before.
    pub fn read<R: ChunkReader + Clone + 'static>(
        &self,
        group: usize,
        source: &R,
        most_rows: usize,
        expansion: Expansion,
    ) -> Result<ParquetRecordBatchReader> {
        let rows = self.rows(group);
        let most_rows = most_rows.min(rows);
        self.check(group, source, most_rows, expansion)?;
        guarded("Parquet", || {
            ParquetRecordBatchReaderBuilder::new_with_metadata(source.clone(), self.reader.clone())
                .with_row_groups(vec![group])
                .with_projection(self.mask.clone())
                .with_batch_size(most_rows)
                .build()
                .map_err(parquet_error)
        })
    }

    /// Returns the range of the page index, the places of all pages of the wanted columns; `None` if
    /// it is not complete, or not between the data and the footer. The range has one byte of the
    /// footer: the underlying reader refuses an index at the end of what there is.
    pub fn index_range(&self) -> Option<Range<u64>> {
        let (mut data, mut start) = (0, u64::MAX);
        for group in self.reader.metadata().row_groups() {
            for &leaf in &*self.leaves {
                let chunk = group.column(leaf);
                let index = chunk.offset_index_range()?;
                start = start.min(index.start);
                data = data.max(self.range(chunk).ok()?.end);
            }
        }
        (data <= start && start < self.end).then_some(start..self.end + 1)
    }

    /// Returns the layout with the page index, from the bytes of its [range](Layout::index_range).
    pub fn with_index(&self, index: &Bytes) -> Result<Layout> {
        let end = self.end + 1;
        let start = end - index.len() as u64;
        for group in self.reader.metadata().row_groups() {
            for &leaf in &*self.leaves {
                let chunk = group.column(leaf);
                let known = chunk.offset_index_range().and_then(|range| {
                    let at = |byte: u64| usize::try_from(byte.checked_sub(start)?).ok();
                    check_places(index.get(at(range.start)?..at(range.end)?)?)
                });
                known.ok_or_else(|| corrupt("its page index").within(column(chunk)))?;
            }
        }
        let reader = guarded("Parquet", || {
            let metadata = self.reader.metadata().as_ref().clone();
            let mut reader = ParquetMetaDataReader::new_with_metadata(metadata)
                .with_offset_index_policy(PageIndexPolicy::Required)
                .with_offset_index_mask(ColumnChunkMask::columns(self.leaves.iter().copied()));
            let within = |error| parquet_error(error).within("the page index");
            reader.read_page_indexes_sized(index, end).map_err(within)?;
            let metadata = reader.finish().map_err(within)?;
            ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::new())
                .map_err(within)
        })?;
        Ok(Layout {
            reader,
            ..self.clone()
        })
    }

    /// Returns the pages with some rows of a row group, for each wanted column. Rows are in ascending
    /// order.
    pub fn pages(&self, group: usize, rows: &[usize]) -> Result<Vec<ColumnPages>> {
        let metadata = self.reader.metadata();
        let (all, index) = (self.rows(group), metadata.page_index_for_row_group(group));
        let pages = |&leaf: &usize| {
            let chunk = metadata.row_group(group).column(leaf);
            let within = |error: Error| error.within(column(chunk));
            let wrong = || within(corrupt("its page index"));
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
            for &row in rows {
                if wanted.last().is_none_or(|page| page.rows.end <= row) {
                    let at = known.partition_point(|page| page.rows.end <= row);
                    wanted.push(known[at].clone());
                }
            }
            Ok(ColumnPages {
                leaf,
                dictionary,
                pages: wanted,
            })
        };
        self.leaves.iter().map(pages).collect()
    }

    /// Reads some rows of a row group, in ascending order, from their pages. The stated sizes are
    /// checked before. `None` if a page has an encoding that is checked over whole columns.
    pub fn read_pages<R: ChunkReader + Clone + 'static>(
        &self,
        group: usize,
        rows: &[usize],
        columns: &[ColumnPages],
        source: &R,
        expansion: Expansion,
    ) -> Result<Option<ParquetRecordBatchReader>> {
        let metadata = self.reader.metadata().row_group(group);
        let (mut compressed, mut bytes, mut cells) = (0_u64, 0_u64, 0_u64);
        for pages in columns {
            let chunk = metadata.column(pages.leaf);
            let within = |error: Error| error.within(column(chunk));
            if let Some(what) = unsupported(chunk) {
                return Err(within(Error::new(ErrorKind::Unsupported, what)));
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
            let dictionary = headers(&pages.dictionary)?;
            compressed += pages.dictionary.end - pages.dictionary.start;
            bytes += dictionary.bytes;
            if dictionary.count > 0 {
                return Err(within(corrupt("a page that is not in its page index")));
            }
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
                    return Err(within(corrupt(what)));
                }
                compressed += page.bytes.end - page.bytes.start;
                bytes += found.bytes;
                cells = cells.saturating_add(cell(chunk).saturating_mul(found.values));
            }
        }
        within_limits(compressed, bytes, cells, expansion)?;
        let chosen = rows.iter().map(|&row| row..row + 1);
        let selection = RowSelection::from_consecutive_ranges(chosen, self.rows(group));
        let reader = guarded("Parquet", || {
            ParquetRecordBatchReaderBuilder::new_with_metadata(source.clone(), self.reader.clone())
                .with_row_groups(vec![group])
                .with_projection(self.mask.clone())
                .with_row_selection(selection)
                .with_batch_size(rows.len())
                .build()
                .map_err(parquet_error)
        })?;
        Ok(Some(reader))
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
                return Err(within(Error::new(ErrorKind::Unsupported, what)));
            }
            let length =
                usize::try_from(range.end - range.start).map_err(|_| corrupt("its length"))?;
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
                return Err(within(corrupt(what)));
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
    leaf: usize,
    /// The bytes before the first page, of which there may be none.
    dictionary: Range<u64>,
    pages: Vec<PagePlace>,
}

/// Place of a page in the file, and its rows in the row group.
#[derive(Clone)]
struct PagePlace {
    bytes: Range<u64>,
    rows: Range<usize>,
}

impl ColumnPages {
    /// Returns the ranges of the pages, in their order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let dictionary = Some(self.dictionary.clone()).filter(|range| !range.is_empty());
        let pages = self.pages.iter().map(|page| page.bytes.clone());
        dictionary.into_iter().chain(pages)
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
            let what =
                format!("{stated} bytes {what} out of {compressed}, at most {most} are allowed");
            return Err(Error::new(ErrorKind::Limit, what));
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

fn corrupt(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, what)
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

/// Checks that the places of pages in a page index are as many as it states: the underlying reader
/// allocates room for the stated number.
fn check_places(places: &[u8]) -> Option<()> {
    Reader::new(places).fields(|reader, field, kind| {
        if field != 1 {
            return Some(false);
        }
        let (size, element) = (kind == LIST).then(|| reader.list()).flatten()?;
        (element == STRUCT).then_some(())?;
        for _ in 0..size {
            reader.fields(|_, _, _| Some(false))?;
        }
        Some(true)
    })
}
