//! Parquet, as record batches or rows, and by row group; feature `parquet`.

mod compare;
mod file;
mod layout;
mod pages;
mod prune;
mod row_filter;
mod row_groups;
mod thrift;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::index::filter::Filter;
use datapipes::{Context, Error, ErrorKind, Result};
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::errors::ParquetError;
use parquet::file::reader::ChunkReader;

pub use self::file::{IndexedParquetRows, ParquetFile};

use self::layout::{Layout, MAGIC, TAIL, footer_length, runs};
use self::row_filter::{FILTER_ROWS, RowFilter};
use self::row_groups::{Items, RowGroups};
use super::arrow::{RecordBatch, guarded, row, rows, unique_names, weight, wrong_columns};
use super::compression::{Expansion, content};
use super::parts::ByParts;
use super::{FileEntries, FileEntry, Format, Row};
use crate::File;

/// Reads Parquet files as record batches of Arrow; feature `parquet`.
///
/// - The reader goes row group by row group; batches have 1024 rows by default and never span two
///   row groups. Values are decoded, and therefore copied. A file is in memory as a whole, unless it
///   is read [by row group](Parquet::by_row_group); [`ParquetFile`] reads only the wanted parts.
/// - Uncompressed files, and compression by Snappy, gzip, LZ4 or Zstandard are supported. Brotli,
///   LZO and encryption are refused, with their names.
/// - [`column_tensor`](super::arrow::column_tensor) makes a tensor of a column of numbers.
/// - Checksums of pages are checked if there are any. The footer is trusted only as far as it
///   matches the file and the pages: a row group with too few values is an error, never fewer rows.
/// - A damaged row group is an error of its own; the other row groups follow. With a damaged footer
///   nothing is read.
/// - A panic of the underlying reader becomes an error of the file, unless panics abort; the panic
///   hook has already reported it.
/// - Layout: <https://parquet.apache.org/docs/file-format/>.
///
/// # Examples
/// ```
/// use datapipes_io::formats::Parquet;
/// use datapipes_io::{File, prelude::*};
///
/// # let data = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/table.parquet"));
/// let file = File::new("table.parquet", data.to_vec());
/// let batches = datapipes::Graph::from_vec(vec![file]).read_as(Parquet::new().columns(["index", "text"]));
/// let rows: Vec<usize> = batches.map(|batch| batch.num_rows()).collect()?;
/// assert_eq!(rows, [4, 4, 2]);
/// # datapipes::Ok(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Parquet {
    columns: Option<Arc<[String]>>,
    filter: Option<Filter>,
    batch_rows: usize,
    expansion: Expansion,
    by_row_group: bool,
}

impl Default for Parquet {
    fn default() -> Self {
        Parquet {
            columns: None,
            filter: None,
            batch_rows: 1024,
            expansion: Expansion::default(),
            by_row_group: false,
        }
    }
}

impl Parquet {
    /// Reads all columns.
    pub fn new() -> Self {
        Parquet::default()
    }

    /// Reads only these columns, in the order of the file; the others are not read. A name is that
    /// of a column of the table, or a path to a nested column with dots: `point.x`.
    pub fn columns<S: Into<String>>(self, names: impl IntoIterator<Item = S>) -> Self {
        Parquet {
            columns: Some(names.into_iter().map(Into::into).collect()),
            ..self
        }
    }

    /// Reads large files of a list ([`read_as`](crate::FileGraphExt::read_as),
    /// [`stream_as`](crate::FileGraphExt::stream_as)) row group by row group, the wanted columns
    /// alone: memory holds the row groups that workers decode, and at most 8 MiB or one row group
    /// ahead. By default files are loaded whole, many at a time.
    ///
    /// The files are read one after the other, by ranges. A file that is compressed as a whole, or
    /// whose end cannot be read by a range, is read whole. Items and their origins are the same, but
    /// for those after a damaged row group: they have the numbers that they have in a file without
    /// damage.
    pub fn by_row_group(mut self) -> Self {
        self.by_row_group = true;
        self
    }

    /// Reads only the rows that match, in addition to earlier filters.
    ///
    /// - Row groups and pages that their statistics exclude are not decoded, nor row groups whose
    ///   Bloom filters do (`=` and `IN`, whole numbers and text); of the others the columns of the
    ///   filter are, 8192 rows at a time, and then, of the wanted columns, the pages with rows that
    ///   match. The columns of the filter need not be among the wanted ones. Statistics are
    ///   trusted, as by other readers; where they are missing or of unknown order, all is read.
    /// - A filter names columns by name, or nested ones with dots: `point.x`. It compares numbers
    ///   and decimals with numbers, text with text, booleans with booleans, dates and times with
    ///   text: `day >= '2024-02-29' AND at < '2024-02-29T12:00:00'`. Times of a column with a time
    ///   zone are in UTC, unless they say `+01:00`; decimals of more than 15 digits are best
    ///   written as text. Of columns of other types (binary, lists, structs, times of day, …) it
    ///   may only ask whether they are null.
    /// - A comparison with null or NaN is neither true nor false. Floats are compared as they are:
    ///   a column of `float32` has no value that equals 0.8.
    /// - Rows have the origins that they have without a filter, and a batch the origin of the batch
    ///   that its first row is in without a filter. Batches are filled up within a row group. Rows
    ///   or batches that are left out are counted as dropped.
    ///
    /// A column that does not exist, or cannot be compared with the value, is an error of the file.
    ///
    /// # Examples
    /// ```
    /// use datapipes_io::formats::{Parquet, ParquetRows};
    /// use datapipes_io::{File, prelude::*};
    ///
    /// # let data = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/table.parquet"));
    /// let file = File::new("table.parquet", data.to_vec());
    /// let format = Parquet::new().columns(["index"]).filter("index > 6 AND text != 'one'".parse()?);
    /// let rows = datapipes::Graph::from_vec(vec![file]).read_as(ParquetRows::new(format)).collect()?;
    /// assert_eq!(rows.iter().map(|row| &row["index"]).collect::<Vec<_>>(), [7, 8]);
    /// # datapipes::Ok(())
    /// ```
    pub fn filter(self, filter: Filter) -> Self {
        let filter = match self.filter {
            Some(earlier) => earlier.and(filter),
            None => filter,
        };
        Parquet {
            filter: Some(filter),
            ..self
        }
    }

    datapipes::setters! {
        /// Sets the maximum number of rows of a batch. Defaults to 1024.
        batch_rows(rows: usize) => batch_rows = rows;

        /// Refuses a row group whose pages, or whose values that are in memory at once, are stated to
        /// be larger than `bytes`, or than `ratio` times the bytes read of the file for them once they
        /// are past 1 MiB. Defaults to 8 GiB and 1100 times. Values that are stored once for many rows
        /// are not bounded by these limits: such a batch is smaller with fewer rows.
        max_expansion(bytes: u64, ratio: u64) => expansion.limit(bytes, ratio);
    }

    fn batches(&self, file: File, cx: &Context) -> Result<(Batches<Bytes>, u64)> {
        let data = content(file.data, self.expansion, cx)?;
        let size = data.len() as u64;
        if !data.starts_with(MAGIC) && !data.starts_with(b"PARE") {
            let kind = if data.len() < MAGIC.len() {
                ErrorKind::Truncated
            } else {
                ErrorKind::Corrupt
            };
            return Err(Error::new(
                kind,
                format!("{size} bytes that do not begin as a Parquet file does"),
            ));
        }
        let end = size - footer_length(&data, size)? - TAIL as u64;
        let footer = data.slice(end as usize..data.len() - TAIL);
        let mut layout = Layout::new(&footer, end)?;
        if let Some(columns) = &self.columns {
            layout.choose(columns)?;
        }
        let filter = self.filter.as_ref();
        let mut filter = filter
            .map(|filter| RowFilter::new(filter, &layout))
            .transpose()?;
        if let Some(found) = &mut filter {
            // Without a page index that can be used, all pages of a row group are read.
            *found = found.with_index(&data).unwrap_or_else(|_| found.clone());
            if layout.index_ranges().is_some() {
                layout = layout.with_index(&data).unwrap_or(layout);
            }
        }
        let most = self.expansion.allowed(cx).most(size);
        let groups = 0..layout.groups();
        Ok((self.batches_of(data, layout, filter, groups, cx), most))
    }

    /// Returns how files are read by row group, if they are.
    fn parts<T: Send + 'static>(&self, items: Items<T>) -> Option<ByParts<T>> {
        self.by_row_group.then(|| RowGroups::by_parts(self, items))
    }

    /// Returns the batches of some row groups, which begin with the file or are one.
    fn batches_of<R>(
        &self,
        data: R,
        layout: Layout,
        filter: Option<RowFilter>,
        groups: Range<usize>,
        cx: &Context,
    ) -> Batches<R> {
        let before = 0..groups.start;
        let rows = before.clone().map(|group| layout.rows(group) as u64);
        let batches = before.map(|group| layout.batches(group, self.batch_rows));
        Batches {
            first: rows.sum(),
            batches: batches.sum(),
            data,
            layout,
            filter,
            settings: Parquet {
                expansion: self.expansion.allowed(cx),
                ..self.clone()
            },
            cx: cx.clone(),
            groups,
            current: None,
        }
    }
}

impl Format for Parquet {
    type Item = RecordBatch;

    fn open(&self, file: File, cx: &Context) -> Result<FileEntries<RecordBatch>> {
        let (batches, _) = self.batches(file, cx)?;
        Ok(batches.entries())
    }
    fn by_parts(&self) -> Option<ByParts<RecordBatch>> {
        let items = Items {
            count: Layout::batches,
            entries: |batches, _| batches.entries(),
        };
        self.parts(items)
    }
    fn settings(&self) -> String {
        let columns = self.columns.as_ref();
        let columns = columns.map(|columns| format!("columns {}, ", columns.join(", ")));
        let filter = self.filter.as_ref();
        let filter = filter.map(|filter| format!("where {filter}, "));
        format!(
            "{}{}{} rows a batch",
            columns.unwrap_or_default(),
            filter.unwrap_or_default(),
            self.batch_rows
        )
    }
    fn problem(&self) -> Option<String> {
        let no_rows = (self.batch_rows == 0).then(|| "batch_rows: batches of no rows".to_owned());
        no_rows.or_else(|| wrong_columns(self.columns.as_deref()))
    }
    fn weigh(&self, batch: &RecordBatch) -> Option<usize> {
        Some(weight(batch))
    }
}

/// Reads the files of [`Parquet`] as rows, with values as in [`ArrowRows`](super::ArrowRows).
///
/// # Examples
/// ```
/// use datapipes_io::formats::{Parquet, ParquetRows};
/// use datapipes_io::{File, prelude::*};
///
/// # let data = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/table.parquet"));
/// let file = File::new("table.parquet", data.to_vec());
/// let rows = datapipes::Graph::from_vec(vec![file]).read_as(ParquetRows::new(Parquet::new())).collect()?;
/// assert_eq!(rows[9]["index"], 9);
/// # datapipes::Ok(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ParquetRows(Parquet);

impl ParquetRows {
    /// Returns the format that reads the rows of these batches.
    pub fn new(batches: Parquet) -> Self {
        ParquetRows(batches)
    }
}

impl Format for ParquetRows {
    type Item = Row;

    fn open(&self, file: File, cx: &Context) -> Result<FileEntries<Row>> {
        let (batches, most) = self.0.batches(file, cx)?;
        Ok(batches.rows(most))
    }
    fn by_parts(&self) -> Option<ByParts<Row>> {
        let items = Items {
            count: |layout, group, _| layout.rows(group) as u64,
            entries: Batches::rows,
        };
        self.0.parts(items)
    }
    fn settings(&self) -> String {
        self.0.settings()
    }
    fn problem(&self) -> Option<String> {
        self.0.problem()
    }
}

/// An iterator over the batches of row groups of a file.
struct Batches<R> {
    data: R,
    layout: Layout,
    filter: Option<RowFilter>,
    settings: Parquet,
    cx: Context,
    /// The row group that is read, and those after it.
    groups: Range<usize>,
    /// Numbers of rows, and of batches if there were no filter, in the row groups before.
    first: u64,
    batches: u64,
    current: Option<Current>,
}

/// The row group that is being read.
struct Current {
    /// None if no row matches.
    reader: Option<ParquetRecordBatchReader>,
    /// Number of its remaining rows.
    left: usize,
    /// Rows that match the filter; empty if there is no filter.
    rows: Vec<usize>,
}

/// A batch of rows that match the filter.
struct Part {
    batch: RecordBatch,
    /// Numbers of the rows in the file.
    rows: Vec<u64>,
    /// Number of the batch that the first row is in without a filter.
    number: u64,
}

impl<R: ChunkReader + Clone + 'static> Batches<R> {
    /// Returns the batches, each with the number that it has without a filter.
    fn entries(mut self) -> FileEntries<RecordBatch> {
        if self.filter.is_none() {
            return Box::new(self);
        }
        let (first, layout) = (self.batches, &self.layout);
        let batches = self.groups.clone();
        let batches = batches.map(|group| layout.batches(group, self.settings.batch_rows));
        let end = first + batches.sum::<u64>();
        let parts = std::iter::from_fn(move || {
            Some(match self.advance()? {
                Ok(part) => (Some(part.number), FileEntry::item(part.batch)),
                Err(error) => (None, FileEntry::Bad(None, error)),
            })
        });
        Box::new(numbered(parts, first, end))
    }

    /// Returns the rows, each with the number that it has without a filter.
    fn rows(mut self, most: u64) -> FileEntries<Row> {
        if self.filter.is_none() {
            return rows(Box::new(self), most);
        }
        let (first, groups) = (self.first, self.groups.clone());
        let end = first
            + groups
                .map(|group| self.layout.rows(group) as u64)
                .sum::<u64>();
        let parts = std::iter::from_fn(move || self.advance());
        let parts = parts.flat_map(move |part| -> Box<dyn Iterator<Item = _> + Send> {
            match part.and_then(|part| unique_names(&part.batch).map(|()| part)) {
                Ok(Part { batch, rows, .. }) => {
                    let numbers = rows.into_iter().enumerate();
                    Box::new(numbers.map(move |(at, number)| {
                        (Some(number), FileEntry::from_result(row(&batch, at, most)))
                    }))
                }
                Err(error) => Box::new(std::iter::once((None, FileEntry::Bad(None, error)))),
            }
        });
        Box::new(numbered(parts, first, end))
    }

    /// Opens the current row group.
    fn open(&self) -> Result<Current> {
        let (group, data) = (self.groups.start, &self.data);
        let Parquet {
            batch_rows,
            expansion,
            ..
        } = self.settings;
        let Some(filter) = &self.filter else {
            let reader = self.layout.read(group, None, data, batch_rows, expansion)?;
            return Ok(Current {
                reader: Some(reader),
                left: self.layout.rows(group),
                rows: Vec::new(),
            });
        };
        let candidates = filter.candidates(group, data)?;
        let rows = if candidates.is_empty() {
            Vec::new()
        } else {
            let columns = filter.layout();
            let columns = columns.select(group, &candidates, data, FILTER_ROWS, expansion)?;
            filter.matching(columns, &candidates)?
        };
        let reader = (!rows.is_empty()).then(|| {
            let runs = runs(&rows);
            self.layout
                .select(group, &runs, data, batch_rows, expansion)
        });
        Ok(Current {
            reader: reader.transpose()?,
            left: rows.len(),
            rows,
        })
    }

    /// Returns the next batch of the current row group; `None` after its last one.
    fn step(&mut self) -> Result<Option<Part>> {
        let current = match self.current.take() {
            Some(current) => current,
            None => self.open()?,
        };
        let current = self.current.insert(current);
        let left = current.left;
        let Some(reader) = current.reader.as_mut().filter(|_| left > 0) else {
            return Ok(None);
        };
        let batch = next_batch(reader)?.filter(|batch| (1..=left).contains(&batch.num_rows()));
        let batch = batch.ok_or_else(|| {
            Error::corrupt(format!(
                "{left} of {} rows are missing",
                self.layout.rows(self.groups.start)
            ))
        })?;
        current.left -= batch.num_rows();
        let (rows, mut number) = (&current.rows, self.batches);
        let mut numbers = Vec::new();
        if !rows.is_empty() {
            let rows = &rows[rows.len() - left..][..batch.num_rows()];
            numbers.extend(rows.iter().map(|&row| self.first + row as u64));
            number += (rows[0] / self.settings.batch_rows.max(1)) as u64;
        }
        Ok(Some(Part {
            batch,
            rows: numbers,
            number,
        }))
    }

    /// Returns the next batch of the file.
    fn advance(&mut self) -> Option<Result<Part>> {
        while !self.groups.is_empty() && !self.cx.is_cancelled() {
            let (group, step) = (self.groups.start, self.step());
            if let Ok(Some(part)) = step {
                return Some(Ok(part));
            }
            self.current = None;
            self.first += self.layout.rows(group) as u64;
            self.batches += self.layout.batches(group, self.settings.batch_rows);
            self.groups.start += 1;
            if let Err(error) = step {
                return Some(Err(error.within(format_args!("row group {group}"))));
            }
        }
        None
    }
}

impl<R: ChunkReader + Clone + 'static> Iterator for Batches<R> {
    type Item = FileEntry<RecordBatch>;

    fn next(&mut self) -> Option<FileEntry<RecordBatch>> {
        Some(match self.advance()? {
            Ok(part) => FileEntry::item(part.batch),
            Err(error) => FileEntry::Bad(None, error),
        })
    }
}

/// Puts an [`FileEntry::Skip`] where numbers are left out, of those from `next` to `end`. An entry
/// without a number has the next one.
fn numbered<T>(
    mut parts: impl Iterator<Item = (Option<u64>, FileEntry<T>)>,
    mut next: u64,
    end: u64,
) -> impl Iterator<Item = FileEntry<T>> {
    let mut held = None;
    std::iter::from_fn(move || {
        let part = held.take().or_else(|| parts.next());
        let due = part.as_ref().map_or(Some(end), |(number, _)| *number);
        let left_out = due.map_or(0, |due| due.saturating_sub(next));
        if left_out > 0 {
            held = part;
            next += left_out;
            return Some(FileEntry::Skip(left_out));
        }
        next += 1;
        part.map(|(_, entry)| entry)
    })
}

fn next_batch(reader: &mut ParquetRecordBatchReader) -> Result<Option<RecordBatch>> {
    guarded("Parquet", || {
        reader.next().transpose().map_err(|error| match error {
            arrow_schema::ArrowError::ExternalError(error) => {
                match error.downcast::<ParquetError>() {
                    Ok(error) => parquet_error(*error),
                    Err(error) => Error::corrupt("").with_source(error),
                }
            }
            error => Error::corrupt("").with_source(error),
        })
    })
}

/// Converts an error of the underlying reader.
fn parquet_error(error: ParquetError) -> Error {
    let kind = match &error {
        ParquetError::NYI(_) => ErrorKind::Unsupported,
        ParquetError::EOF(_) => ErrorKind::Truncated,
        _ => ErrorKind::Corrupt,
    };
    Error::new(kind, "").with_source(error)
}
