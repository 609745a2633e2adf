//! Data sets in a database: a row a sample, found by its UUID, with metadata to choose by.
//!
//! The layout is that of Versaci and Busonera, *Hiding Latencies in Network-Based Image Loading for Deep Learning*
//! (2024): data and metadata in two tables, written together; label and data in one query.

#[cfg(feature = "cassandra")]
pub mod cassandra;
mod retry;

pub use retry::{Backoff, RetryTable};

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::Result;
use futures::stream::BoxStream;
use uuid::Uuid;

/// What a sample is trained towards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Label {
    /// There is none.
    #[default]
    None,
    /// A class.
    Class(i64),
    /// Anything else: a mask as PNG, a tensor as NPY.
    Blob(Bytes),
}

/// A sample as it is read in training: label and data together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// Its key.
    pub key: Uuid,
    /// Its label.
    pub label: Label,
    /// Its content, as the file had it.
    pub data: Bytes,
}

/// A value of a metadata column.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// Words.
    Text(String),
    /// Yes or no.
    Bool(bool),
}

/// The type of a metadata column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// [`Value::Int`].
    Int,
    /// [`Value::Float`].
    Float,
    /// [`Value::Text`].
    Text,
    /// [`Value::Bool`].
    Bool,
}

/// What the metadata of a sample is: names and types of columns, in order. `key` and `label` are there besides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    /// Name and type of each column. A name is a letter followed by letters, digits and `_`.
    pub columns: Vec<(String, ColumnType)>,
}

/// The metadata of a sample: its values are in the order of the columns asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Metadata {
    /// The key of the sample.
    pub key: Uuid,
    /// Its class, if its label is one.
    pub class: Option<i64>,
    /// The values.
    pub values: Vec<Value>,
}

/// A sample to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRow {
    /// The sample.
    pub row: Row,
    /// Its metadata, a value for each column of the schema.
    pub values: Vec<Value>,
}

/// A data set in a database.
///
/// # Errors
/// Every error names the table ([`Table::url`]) and the key, and never a secret. `NotFound` is a missing row or table;
/// `Denied` a wrong user or password; `Shape` a column of another type; [passing](datapipes::Error::passing) what may
/// work later.
#[async_trait]
pub trait Table: fmt::Debug + Send + Sync + 'static {
    /// Where it is, without anything secret: `cassandra://host/keyspace.table`.
    fn url(&self) -> &str;

    /// What the metadata is.
    fn schema(&self) -> &Schema;

    /// One sample, in one query.
    ///
    /// # Errors
    /// `NotFound` where there is no such row.
    async fn get(&self, key: Uuid) -> Result<Row>;

    /// Some samples, in the order of their keys, each with its own outcome.
    async fn get_many(&self, keys: &[Uuid]) -> Vec<Result<Row>>;

    /// The metadata of all samples, page by page, in an order that is the same while nothing is written. `columns` says
    /// which values, by name.
    fn scan(&self, columns: &[&str]) -> BoxStream<'static, Result<Metadata>>;

    /// Writes samples, data and metadata together or not at all each. Writing a sample again puts it in place of itself.
    ///
    /// # Errors
    /// `Shape` where values do not fit the schema.
    async fn put(&self, rows: Vec<NewRow>) -> Result<()>;
}
