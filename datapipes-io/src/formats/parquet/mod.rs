//! Parquet, as record batches or rows, and by row group; feature `parquet`.

mod file;
mod layout;
mod pages;
mod thrift;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Context, Error, ErrorKind, Result};
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::errors::ParquetError;

pub use self::file::{IndexedParquetRows, ParquetFile};

use self::layout::{Layout, MAGIC, TAIL, footer_length};
use super::arrow::{RecordBatch, guarded, rows, weight, wrong_columns};
use super::compression::{Expansion, content};
use super::{Entries, Entry, Format, Row, value};
use crate::File;

/// Reads Parquet files as record batches of Arrow; feature `parquet`.
///
/// - The reader goes row group by row group; batches have 1024 rows by default and never span two
///   row groups. Values are decoded, and therefore copied. A file must be in memory as a whole;
///   [`ParquetFile`] reads only the wanted parts of a remote file.
/// - Uncompressed files, and compression by Snappy, gzip, LZ4 or Zstandard are supported. Brotli,
///   LZO and encryption are refused, with their names.
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
    batch_rows: usize,
    expansion: Expansion,
}

impl Default for Parquet {
    fn default() -> Self {
        Parquet {
            columns: None,
            batch_rows: 1024,
            expansion: Expansion::default(),
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

    /// Sets the maximum number of rows of a batch. Defaults to 1024.
    pub fn batch_rows(self, rows: usize) -> Self {
        Parquet {
            batch_rows: rows,
            ..self
        }
    }

    /// Refuses a row group whose pages, or whose values that are in memory at once, are stated to
    /// be larger than `bytes`, or than `ratio` times the bytes read of the file for them once they
    /// are past 1 MiB. Defaults to 8 GiB and 1100 times. Values that are stored once for many rows
    /// are not bounded by these limits: such a batch is smaller with fewer rows.
    pub fn max_expansion(self, bytes: u64, ratio: u64) -> Self {
        Parquet {
            expansion: Expansion {
                bytes,
                ratio,
                ..self.expansion
            },
            ..self
        }
    }

    fn batches(&self, file: File, cx: &Context) -> Result<(Batches, u64)> {
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
        let most = self.expansion.most(size);
        Ok((
            Batches {
                data,
                layout,
                settings: self.clone(),
                group: 0,
                current: None,
            },
            most,
        ))
    }
}

impl Format for Parquet {
    type Item = RecordBatch;

    fn open(&self, file: File, cx: &Context) -> Result<Entries<RecordBatch>> {
        Ok(Box::new(self.batches(file, cx)?.0))
    }
    fn settings(&self) -> String {
        let columns = self
            .columns
            .as_ref()
            .map(|columns| format!("columns {}, ", columns.join(", ")));
        format!(
            "{}{} rows a batch",
            columns.unwrap_or_default(),
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

    fn open(&self, file: File, cx: &Context) -> Result<Entries<Row>> {
        let (batches, most) = self.0.batches(file, cx)?;
        Ok(rows(Box::new(batches), most))
    }
    fn weigh(&self, item: &Row) -> Option<usize> {
        value::weigh(item)
    }
    fn settings(&self) -> String {
        self.0.settings()
    }
    fn problem(&self) -> Option<String> {
        self.0.problem()
    }
}

/// An iterator over the batches of a file.
struct Batches {
    data: Bytes,
    layout: Layout,
    settings: Parquet,
    group: usize,
    /// The current row group, and the number of its remaining rows.
    current: Option<(ParquetRecordBatchReader, usize)>,
}

impl Batches {
    /// Returns the next batch of the current row group; `None` after its last one.
    fn step(&mut self) -> Result<Option<RecordBatch>> {
        if self.current.is_none() {
            let Parquet {
                batch_rows,
                expansion,
                ..
            } = self.settings;
            let reader = self
                .layout
                .read(self.group, &self.data, batch_rows, expansion)?;
            self.current = Some((reader, self.layout.rows(self.group)));
        }
        let (reader, left) = self.current.as_mut().expect("set above");
        if *left == 0 {
            return Ok(None);
        }
        let batch = next_batch(reader)?.filter(|batch| (1..=*left).contains(&batch.num_rows()));
        let batch = batch.ok_or_else(|| {
            Error::new(
                ErrorKind::Corrupt,
                format!(
                    "{left} of {} rows are missing",
                    self.layout.rows(self.group)
                ),
            )
        })?;
        *left -= batch.num_rows();
        Ok(Some(batch))
    }
}

impl Iterator for Batches {
    type Item = Entry<RecordBatch>;

    fn next(&mut self) -> Option<Entry<RecordBatch>> {
        while self.group < self.layout.groups() {
            let step = self.step();
            if let Ok(Some(batch)) = step {
                return Some(Entry::item(batch));
            }
            self.current = None;
            self.group += 1;
            if let Err(error) = step {
                return Some(Entry::Bad(
                    None,
                    error.within(format_args!("row group {}", self.group - 1)),
                ));
            }
        }
        None
    }
}

fn next_batch(reader: &mut ParquetRecordBatchReader) -> Result<Option<RecordBatch>> {
    guarded("Parquet", || {
        reader.next().transpose().map_err(|error| match error {
            arrow_schema::ArrowError::ExternalError(error) => {
                match error.downcast::<ParquetError>() {
                    Ok(error) => parquet_error(*error),
                    Err(error) => Error::new(ErrorKind::Corrupt, "").with_source(error),
                }
            }
            error => Error::new(ErrorKind::Corrupt, "").with_source(error),
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
