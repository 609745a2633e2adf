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
    ParquetRecordBatchReaderBuilder,
};
use parquet::basic::Compression;
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy,
    RowGroupMetaData,
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
            let each = u64::try_from(descriptor.type_length()).unwrap_or(0).max(8);
            cells = cells.saturating_add(each.saturating_mul(values));
            deltas.extend(pages.delta.then_some((chunk, descriptor)));
        }
        let most = expansion.most(compressed);
        // A column of one value takes next to no bytes, however many rows it has.
        let most_cells = most.max(FREE_CELLS.min(expansion.bytes));
        for (stated, what, most) in [(bytes, "of pages", most), (cells, "of values", most_cells)] {
            if stated > most {
                let what = format!(
                    "{stated} bytes {what} out of {compressed}, at most {most} are allowed"
                );
                return Err(Error::new(ErrorKind::Limit, what));
            }
        }
        for (chunk, descriptor) in deltas {
            guarded("Parquet", || check_deltas(source, chunk, descriptor, rows))
                .map_err(|error| error.within(column(chunk)))?;
        }
        Ok(())
    }
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
