//! The rows of a Parquet file by index, read from the pages that they are in.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datapipes::{Error, ErrorKind, MapPipe, Result};
use futures::future::join_all;

use super::super::layout::Layout;
use super::super::{RecordBatch, next_batch};
use super::ParquetFile;
use crate::formats::arrow::{row, unique_names};
use crate::formats::{Row, value};

/// The rows of a Parquet file by index, made by [`ParquetFile::rows`]; feature `parquet`.
///
/// - A row is read from its pages: of each wanted column the page that has it, and the dictionary,
///   ranges at most 256 KiB apart by one request, and all requests at once. Several rows that are
///   asked for together ([`Indexed::batch`](datapipes::Indexed::batch)) share pages and requests.
/// - A file without a page index, or with pages in delta encodings of texts, is read by whole row
///   groups: one for each row, unless rows are asked for together. pyarrow writes a page index with
///   `write_page_index=True`, parquet-rs unless told otherwise.
/// - Even with a page index a row costs the decompression of a page in each column, often 1 MiB.
///   If neighbouring rows may follow each other, it is cheaper to shuffle the row groups of
///   [`ParquetFile`] and then their rows in a buffer.
/// - Values are those of [`ParquetRows`](crate::formats::ParquetRows).
///
/// # Errors
/// For a row: `Corrupt` if the page index contradicts the pages, the footer or itself; the errors of
/// [`ParquetFile`]; with file and row group. What the index says of pages that are not read for a row
/// cannot be checked there.
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
/// let rows = Indexed::new(file.rows().await?).subset(vec![9, 3]).fetch();
/// # datapipes::Ok(rows) }).and_then(|rows| {
/// let rows = rows.collect()?;
/// assert_eq!((&rows[0]["index"], &rows[1]["index"]), (&9.into(), &3.into()));
/// # datapipes::Ok(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct IndexedParquetRows {
    file: ParquetFile,
    /// The layout with the page index, if there is one.
    paged: Option<Layout>,
    /// The first row of each row group, and the number of rows.
    starts: Arc<[u64]>,
}

impl ParquetFile {
    /// Returns the rows of the file by index, with the wanted columns. Reads the page index of these
    /// columns, if the file has one; it stays in memory, 24 bytes for each page.
    ///
    /// # Errors
    /// The errors of the store; `Corrupt` for a page index that cannot be read.
    pub async fn rows(self) -> Result<IndexedParquetRows> {
        let within = |error: Error| error.within(self.object.url());
        let paged = match self.layout.index_range() {
            Some(range) => {
                let index = self.object.get(range).await?;
                let layout = self.layout.clone();
                let paged = datapipes::blocking(move || layout.with_index(&index)).await?;
                Some(paged.map_err(within)?)
            }
            None => None,
        };
        let mut starts = vec![0];
        for rows in self.row_counts() {
            starts.push(starts.last().expect("the first is 0") + rows);
        }
        Ok(IndexedParquetRows {
            file: self,
            paged,
            starts: starts.into(),
        })
    }
}

impl IndexedParquetRows {
    /// Returns row group and row of an index.
    fn place(&self, index: u64) -> Result<(usize, usize)> {
        if index >= self.len() {
            let what = format!("no row {index} of {}", self.len());
            return Err(Error::new(ErrorKind::NotFound, what).within(self.file.object.url()));
        }
        let group = self.starts.partition_point(|&start| start <= index) - 1;
        Ok((group, (index - self.starts[group]) as usize))
    }

    /// Reads some rows of a row group, which are in ascending order.
    async fn read(&self, group: usize, rows: Vec<usize>) -> Result<Vec<Row>> {
        let place = |error: Error| {
            error.within(format_args!(
                "{}: row group {group}",
                self.file.object.url()
            ))
        };
        self.read_rows(group, rows).await.map_err(place)
    }

    async fn read_rows(&self, group: usize, rows: Vec<usize>) -> Result<Vec<Row>> {
        let file = &self.file;
        let most = file.layout.most(file.expansion);
        let chosen = rows.clone();
        if let Some(batch) = self.read_pages(group, rows).await? {
            let all: Vec<usize> = (0..batch.num_rows()).collect();
            return datapipes::blocking(move || converted(&batch, &all, most)).await?;
        }
        let batch = file.read_group(group).await?;
        datapipes::blocking(move || converted(&batch, &chosen, most)).await?
    }

    /// Reads rows from their pages, as a batch of them alone; `None` if that is not possible.
    async fn read_pages(&self, group: usize, rows: Vec<usize>) -> Result<Option<RecordBatch>> {
        let Some(layout) = &self.paged else {
            return Ok(None);
        };
        let columns = layout.pages(group, &rows)?;
        let ranges = columns.iter().flat_map(|column| column.ranges()).collect();
        let pieces = self.file.object.pieces(ranges).await?;
        let (layout, expansion) = (layout.clone(), self.file.expansion);
        let decode = move || {
            let reader = layout.read_pages(group, &rows, &columns, &pieces, expansion)?;
            let Some(mut reader) = reader else {
                return Ok(None);
            };
            let batch = next_batch(&mut reader)?.filter(|batch| batch.num_rows() == rows.len());
            let missing =
                || Error::new(ErrorKind::Corrupt, "it has not the rows of its page index");
            batch.ok_or_else(missing).map(Some)
        };
        datapipes::blocking(decode).await?
    }
}

/// Converts some rows of a batch.
fn converted(batch: &RecordBatch, rows: &[usize], most: u64) -> Result<Vec<Row>> {
    unique_names(batch)?;
    rows.iter().map(|&index| row(batch, index, most)).collect()
}

#[async_trait]
impl MapPipe for IndexedParquetRows {
    type Out = Row;

    fn len(&self) -> u64 {
        *self.starts.last().expect("the number of rows is the last")
    }
    async fn get(&self, index: u64) -> Result<Row> {
        let (group, row) = self.place(index)?;
        let rows = self.read(group, vec![row]).await?;
        Ok(rows.into_iter().next().expect("one row for each index"))
    }
    async fn get_many(&self, indices: &[u64]) -> Vec<Result<Row>> {
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (group, row) in indices.iter().filter_map(|&index| self.place(index).ok()) {
            groups.entry(group).or_default().push(row);
        }
        let read = groups.into_iter().map(async |(group, mut rows)| {
            rows.sort_unstable();
            rows.dedup();
            let read = self.read(group, rows.clone()).await.ok()?;
            Some(rows.into_iter().map(move |row| (group, row)).zip(read))
        });
        let read: HashMap<(usize, usize), Row> = join_all(read)
            .await
            .into_iter()
            .flatten()
            .flatten()
            .collect();
        let rows = indices.iter().map(async |&index| {
            match self.place(index).map(|place| read.get(&place)) {
                Ok(Some(row)) => Ok(row.clone()),
                // Read again alone, so that the error is that of this row and not of its group.
                Ok(None) => self.get(index).await,
                Err(error) => Err(error),
            }
        });
        join_all(rows).await
    }
    fn name(&self) -> String {
        "parquet_rows".to_owned()
    }
    fn weigh(&self, row: &Row) -> Option<usize> {
        value::weigh(row)
    }
}

impl fmt::Debug for IndexedParquetRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (url, rows) = (self.file.object.url(), self.len());
        write!(f, "IndexedParquetRows({url:?}, {rows} rows)")
    }
}

#[cfg(test)]
mod tests;
