//! The footer of a file: the stated positions, validated against the file.
//!
//! Layout: <https://parquet.apache.org/docs/file-format/>. The places of single pages are in
//! [`page_index`], and [`checked`] reads rows.

mod checked;
mod page_index;

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
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader,
    ParquetStatisticsPolicy, RowGroupMetaData,
};
use parquet::file::reader::ChunkReader;
use parquet::schema::types::SchemaDescriptor;

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

    /// Returns the most bytes of a row of this file.
    pub fn most(&self, expansion: Expansion) -> u64 {
        expansion.most(self.end)
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
