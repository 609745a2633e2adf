//! The rows of a Parquet file by index, read from the pages that they are in.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use datapipes::{Error, MapPipe, Result, Revision};
use futures::future::join_all;
use futures::{StreamExt, TryStreamExt};

use super::super::layout::Layout;
use super::{ParquetFile, Pieces, RecordBatch};
use crate::formats::arrow::{row, unique_names};
use crate::formats::{Row, value};

/// The rows of a Parquet file by index, made by [`ParquetFile::rows`]; feature `parquet`.
///
/// - A row is read from its pages: of each wanted column the page that has it, and the dictionary,
///   ranges at most 256 KiB apart by one request, and all requests at once. A dictionary of more than
///   64 KiB is read after the page, if that refers to it. Several rows that are asked for together
///   ([`Indexed::batch`](datapipes::Indexed::batch)) share pages and requests.
/// - A file without a page index, or with pages in delta encodings of texts, is read by whole row
///   groups: one for each row, unless rows are asked for together. pyarrow writes a page index with
///   `write_page_index=True`, parquet-rs unless told otherwise.
/// - Even with a page index a row costs the decompression of a page in each column, often 1 MiB.
///   If neighbouring rows may follow each other, it is cheaper to shuffle the row groups of
///   [`ParquetFile`] and then their rows in a buffer.
/// - Values are the same as for [`ParquetRows`](crate::formats::ParquetRows).
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
/// use datapipes_io::stores::InMemory;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let data = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/table.parquet"));
/// let store = Arc::new(InMemory::new());
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
    /// The layout, with the page index if there is one.
    layout: Layout,
    /// The first row of each row group, and the number of rows.
    starts: Arc<[u64]>,
    /// The rows that match the filter, if there is one.
    matching: Option<Arc<[u64]>>,
}

/// Number of row groups whose rows are filtered at once.
const AT_ONCE: usize = 4;

impl ParquetFile {
    /// Returns the rows of the file by index, with the wanted columns. Reads the page index of these
    /// columns, if the file has one; it stays in memory, 24 bytes for each page.
    ///
    /// With a [`filter`](ParquetFile::filter), these are the rows that match, in their order. They
    /// are found here, once: of the row groups and pages that statistics do not exclude, the
    /// columns of the filter are read, four row groups at once, and of the wanted columns nothing.
    /// The numbers of the rows that match stay in memory, 8 bytes each.
    ///
    /// # Errors
    /// The errors of the store; `Corrupt` for a page index that cannot be read; with a filter also
    /// the errors of a row group.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use datapipes_io::formats::ParquetFile;
    /// # use datapipes_io::stores::InMemory;
    /// use datapipes::MapPipe;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let data = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/table.parquet"));
    /// # let store = Arc::new(InMemory::new());
    /// # store.put("table.parquet", &data[..]);
    /// let file = ParquetFile::open(store, "table.parquet").await?.filter("index > 6".parse()?)?;
    /// let rows = file.rows().await?;
    /// assert_eq!((rows.len(), &rows.get(0).await?["index"]), (3, &7.into()));
    /// # datapipes::Ok(()) }).unwrap();
    /// ```
    pub async fn rows(self) -> Result<IndexedParquetRows> {
        let layout = self.paged().await?.layout.clone();
        let mut starts = vec![0];
        for rows in self.row_counts() {
            starts.push(starts.last().expect("the first is 0") + rows);
        }
        let matching = match self.filter {
            Some(_) => Some(self.all_matching(&starts).await?),
            None => None,
        };
        Ok(IndexedParquetRows {
            file: self,
            layout,
            starts: starts.into(),
            matching,
        })
    }

    /// Returns the rows of the file that match the filter.
    async fn all_matching(&self, starts: &[u64]) -> Result<Arc<[u64]>> {
        let groups = futures::stream::iter(0..self.layout.groups());
        let found = groups.map(async |group| {
            let found = self.matching(group).await;
            let (rows, _) = found.map_err(|error| {
                error.within(format_args!("{}: row group {group}", self.object.url()))
            })?;
            datapipes::Ok((starts[group], rows))
        });
        let add = async |mut all: Vec<u64>, (start, rows): (u64, Vec<usize>)| {
            all.extend(rows.into_iter().map(|row| start + row as u64));
            Ok(all)
        };
        let all = found.buffered(AT_ONCE).try_fold(Vec::new(), add).await?;
        Ok(all.into())
    }
}

impl IndexedParquetRows {
    /// Returns row group and row of an index.
    fn place(&self, index: u64) -> Result<(usize, usize)> {
        if index >= self.len() {
            let what = format!("no row {index} of {}", self.len());
            return Err(Error::not_found(what).within(self.file.object.url()));
        }
        let index = self
            .matching
            .as_ref()
            .map_or(index, |rows| rows[index as usize]);
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
        let (file, pieces) = (&self.file, Pieces::default());
        let most = file.layout.most(file.expansion);
        let batch = file.read_rows(&self.layout, group, &rows, pieces).await?;
        datapipes::blocking(move || converted(&batch, most)).await?
    }
}

fn converted(batch: &RecordBatch, most: u64) -> Result<Vec<Row>> {
    unique_names(batch)?;
    let rows = 0..batch.num_rows();
    rows.map(|index| row(batch, index, most)).collect()
}

#[async_trait]
impl MapPipe for IndexedParquetRows {
    type Out = Row;

    fn len(&self) -> u64 {
        let all = *self.starts.last().expect("the number of rows is the last");
        let matching = self.matching.as_ref().map(|rows| rows.len() as u64);
        matching.unwrap_or(all)
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
    fn revision(&self) -> Revision {
        self.file.revision()
    }
    fn seldom_waits(&self) -> bool {
        self.file.seldom_waits()
    }
    fn sample_name(&self, index: u64) -> Option<Arc<str>> {
        let (group, row) = self.place(index).ok()?;
        let row = self.starts[group] + row as u64;
        Some(format!("{}/{row}", self.file.object.key).into())
    }
    fn name(&self) -> String {
        "parquet_rows".to_owned()
    }
    fn weigh(&self, row: &Row) -> Option<usize> {
        value::weigh(row)
    }
}

datapipes::formatted! {
    Debug |rows: IndexedParquetRows|
        "IndexedParquetRows({:?}, {} rows)", rows.file.object.url(), rows.len();
}

#[cfg(test)]
mod tests;
