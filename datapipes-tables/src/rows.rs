//! Samples of a table by key, and by index.

use std::sync::Arc;

use async_trait::async_trait;
use datapipes::index::{Lookup, MapPipe};
use datapipes::{Error, Result};
use uuid::Uuid;

use super::{Label, Row, Table};

/// The samples of a table, looked up by their keys; see [`rows`].
#[derive(Clone, Debug)]
pub struct Rows(Arc<dyn Table>);

/// Looks up the samples of a table by their keys, label and data together: the argument for a join
/// of a graph of keys.
///
/// # Examples
/// ```
/// # #[cfg(feature = "sqlite")] {
/// use datapipes::Graph;
/// use datapipes::index::Lookup;
/// use datapipes_tables::{ColumnType, Label, NewRow, Row, Schema, Sqlite, Table, key, rows};
///
/// # futures::executor::block_on(async {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("a.db");
/// let table = Sqlite::create(&path, "photos", &Schema::default())?;
/// let row = Row { key: key("photos", "1.jpg"), label: Label::Class(3), data: "pixels".into() };
/// table.put(vec![NewRow { row, values: vec![] }]).await?;
///
/// let photos = rows(table);
/// let found = photos.get(key("photos", "1.jpg")).await?;
/// assert_eq!((found.label, &found.data[..]), (Label::Class(3), &b"pixels"[..]));
/// # datapipes::Ok(()) }).unwrap();
/// # }
/// ```
pub fn rows(table: impl Table) -> Rows {
    Rows(Arc::new(table))
}

#[async_trait]
impl Lookup<Uuid> for Rows {
    type Out = Row;

    async fn get(&self, key: Uuid) -> Result<Row> {
        self.0.get(key).await
    }
    async fn get_many(&self, keys: Vec<Uuid>) -> Vec<Result<Row>> {
        self.0.get_many(&keys).await
    }
    fn name(&self) -> String {
        "rows".to_owned()
    }
    fn sample_name(&self, key: &Uuid) -> Option<Arc<str>> {
        Some(format!("{}: {key}", self.0.url()).into())
    }
    fn weigh(&self, row: &Row) -> Option<usize> {
        Some(row.weight())
    }
}

/// The samples of a table in the order of a list of keys: a split, or the result of a query.
#[derive(Clone, Debug)]
pub struct RowsByIndex {
    rows: Rows,
    keys: Arc<[Uuid]>,
}

impl RowsByIndex {
    /// Returns these samples of a table.
    pub fn new(table: impl Table, keys: impl Into<Arc<[Uuid]>>) -> Self {
        RowsByIndex {
            rows: rows(table),
            keys: keys.into(),
        }
    }

    /// Returns the keys, in order.
    pub fn keys(&self) -> &[Uuid] {
        &self.keys
    }

    fn key(&self, index: u64) -> Result<Uuid> {
        usize::try_from(index)
            .ok()
            .and_then(|index| self.keys.get(index))
            .copied()
            .ok_or_else(|| {
                Error::not_found(format!(
                    "{}: no index {index} of {}",
                    self.rows.0.url(),
                    self.keys.len()
                ))
            })
    }
}

#[async_trait]
impl MapPipe for RowsByIndex {
    type Out = Row;

    fn len(&self) -> u64 {
        self.keys.len() as u64
    }
    async fn get(&self, index: u64) -> Result<Row> {
        self.rows.get(self.key(index)?).await
    }
    async fn get_many(&self, indices: &[u64]) -> Vec<Result<Row>> {
        let keys: Vec<_> = indices.iter().map(|&index| self.key(index)).collect();
        let known = keys
            .iter()
            .filter_map(|key| key.as_ref().ok().copied())
            .collect();
        let mut found = self.rows.get_many(known).await.into_iter();
        let answer =
            |key: Result<Uuid>| key.and_then(|_| found.next().expect("an answer for each key"));
        keys.into_iter().map(answer).collect()
    }
    fn name(&self) -> String {
        self.rows.name()
    }
    fn sample_name(&self, index: u64) -> Option<Arc<str>> {
        self.rows.sample_name(&self.key(index).ok()?)
    }
    fn weigh(&self, row: &Row) -> Option<usize> {
        self.rows.weigh(row)
    }
}

impl Row {
    /// Returns the number of bytes that the sample keeps alive.
    pub(crate) fn weight(&self) -> usize {
        let label = if let Label::Blob(blob) = &self.label {
            blob.len()
        } else {
            0
        };
        self.data.len() + label + size_of::<Self>()
    }
}
