//! Readers of rows, after the stated sizes of what they will decode have been checked.

use std::ops::Range;

use datapipes::{Error, Result};
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::basic::Compression;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::ChunkReader;

use super::page_index::ColumnPages;
use super::{Layout, column, count};
use crate::formats::arrow::guarded;
use crate::formats::compression::Expansion;
use crate::formats::parquet::pages::{Pages, check_deltas};
use crate::formats::parquet::parquet_error;

/// Size of the values in bytes below which the ratio is not checked.
const FREE_CELLS: u64 = 256 << 20;

/// Stated sizes of what is read, in bytes.
#[derive(Default)]
struct Sizes {
    /// Pages, as they are in the file.
    compressed: u64,
    /// Pages, uncompressed.
    pages: u64,
    /// Values that are in memory at once, at least: eight bytes a value, or its fixed size.
    values: u64,
}

impl Sizes {
    fn add_pages(&mut self, range: &Range<u64>, pages: Pages) {
        self.compressed += range.end - range.start;
        self.pages += pages.bytes;
    }

    /// Adds values of a column.
    fn add_values(&mut self, chunk: &ColumnChunkMetaData, values: u64) {
        let fixed = u64::try_from(chunk.column_descr().type_length());
        let each = fixed.unwrap_or(0).max(8);
        self.values = self.values.saturating_add(each.saturating_mul(values));
    }

    fn check(&self, expansion: Expansion) -> Result<()> {
        let compressed = self.compressed;
        let most = expansion.most(compressed);
        // A column of one value takes next to no bytes, however many rows it has.
        let most_values = most.max(FREE_CELLS.min(expansion.bytes));
        let stated = [
            (self.pages, "of pages", most),
            (self.values, "of values", most_values),
        ];
        match stated.into_iter().find(|(stated, _, most)| stated > most) {
            None => Ok(()),
            Some((stated, what, most)) => Err(Error::limit(format!(
                "{stated} bytes {what} out of {compressed}, at most {most} are allowed (`max_expansion`, `max_inflated`)"
            ))),
        }
    }
}

impl Layout {
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

    /// Checks the stated sizes of the wanted columns of a row group.
    fn check<R: ChunkReader + Clone + 'static>(
        &self,
        index: usize,
        source: &R,
        most_rows: usize,
        expansion: Expansion,
    ) -> Result<()> {
        let (rows, group) = (self.rows(index), self.metadata().row_group(index));
        let mut sizes = Sizes::default();
        let mut deltas = Vec::new();
        for &leaf in &*self.leaves {
            let chunk = group.column(leaf);
            let range = self.range(chunk)?;
            check_supported(chunk)?;
            let pages = headers(source, &range, chunk)?;
            if !has_rows(chunk, pages.values, rows) {
                let what = format!(
                    "its pages have {} values, the row group {rows} rows",
                    pages.values
                );
                return Err(Error::corrupt(what).within(column(chunk)));
            }
            sizes.add_pages(&range, pages);
            let values = match is_repeated(chunk) {
                true => pages.values,
                false => most_rows as u64,
            };
            sizes.add_values(chunk, values);
            deltas.extend(pages.delta.then_some(chunk));
        }
        sizes.check(expansion)?;
        deltas.into_iter().try_for_each(|chunk| {
            guarded("Parquet", || {
                check_deltas(source, chunk, chunk.column_descr(), rows)
            })
            .map_err(|error| error.within(column(chunk)))
        })
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
        let metadata = self.metadata().row_group(group);
        let mut sizes = Sizes::default();
        let most_rows = most_rows.min(count(rows));
        for pages in columns {
            let chunk = metadata.column(pages.leaf);
            let Some(mut values) = check_pages(source, chunk, pages, &mut sizes)? else {
                return Ok(None);
            };
            if !is_repeated(chunk) {
                values = values.min(most_rows as u64);
            }
            sizes.add_values(chunk, values);
        }
        sizes.check(expansion)?;
        self.reader_of(group, Some(rows), source, most_rows)
            .map(Some)
    }
}

/// Checks pages of a column, adds their sizes, and returns the number of their values. `None` if a page
/// has an encoding that is checked over whole columns.
fn check_pages<R: ChunkReader>(
    source: &R,
    chunk: &ColumnChunkMetaData,
    pages: &ColumnPages,
    sizes: &mut Sizes,
) -> Result<Option<u64>> {
    check_supported(chunk)?;
    let (mut values, mut by_dictionary) = (0_u64, false);
    for page in &pages.pages {
        let (found, rows) = (headers(source, &page.bytes, chunk)?, page.rows.len());
        if found.delta {
            return Ok(None);
        }
        if found.count != 1 || !has_rows(chunk, found.values, rows) {
            let (count, values) = (found.count, found.values);
            let what = format!(
                "{count} pages of {values} values, where one of {rows} rows is due by the page index"
            );
            return Err(Error::corrupt(what).within(column(chunk)));
        }
        sizes.add_pages(&page.bytes, found);
        values = values.saturating_add(found.values);
        by_dictionary |= found.by_dictionary;
    }
    let range = &pages.dictionary;
    let length = (range.end - range.start) as usize;
    if by_dictionary || source.get_bytes(range.start, length).is_ok() {
        let dictionary = headers(source, range, chunk)?;
        if dictionary.count > 0 {
            let what = "a page that is not in its page index";
            return Err(Error::corrupt(what).within(column(chunk)));
        }
        sizes.add_pages(range, dictionary);
    }
    Ok(Some(values))
}

/// Reads the headers of the pages of a column in a range of the file, which may be empty.
fn headers<R: ChunkReader>(
    source: &R,
    range: &Range<u64>,
    chunk: &ColumnChunkMetaData,
) -> Result<Pages> {
    if range.is_empty() {
        return Ok(Pages::default());
    }
    let length = usize::try_from(range.end - range.start);
    let length = length.map_err(|_| Error::corrupt("its length"))?;
    let data = source.get_bytes(range.start, length).map_err(parquet_error);
    data.and_then(|data| Pages::of(&data))
        .map_err(|error| error.within(column(chunk)))
}

fn is_repeated(chunk: &ColumnChunkMetaData) -> bool {
    chunk.column_descr().max_rep_level() > 0
}

/// Returns true if so many values of a column can be so many rows.
fn has_rows(chunk: &ColumnChunkMetaData, values: u64, rows: usize) -> bool {
    match is_repeated(chunk) {
        true => values >= rows as u64,
        false => values == rows as u64,
    }
}

/// Refuses a column that is valid and not supported.
fn check_supported(chunk: &ColumnChunkMetaData) -> Result<()> {
    let what = match (chunk.compression(), chunk.file_path()) {
        (Compression::BROTLI(_), _) => "compressed by Brotli".to_owned(),
        (Compression::LZO, _) => "compressed by LZO".to_owned(),
        (_, Some(path)) => format!("its data is in another file, {path:?}"),
        _ => return Ok(()),
    };
    Err(Error::unsupported(what).within(column(chunk)))
}
