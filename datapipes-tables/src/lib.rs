//! Data sets in a database for [`datapipes`]: each sample is a row, found by its UUID, with
//! metadata to select by.
//!
//! ```
//! # #[cfg(feature = "sqlite")] {
//! use datapipes::Indexed;
//! use datapipes::index::split::Splitter;
//! use datapipes_tables::prelude::*;
//! use datapipes_tables::{ColumnType, Label, NewRow, Row, RowsByIndex, Schema, key};
//!
//! # futures::executor::block_on(async {
//! # let dir = tempfile::tempdir()?;
//! # let url = datapipes_tables::sqlite_url(dir.path().join("scans.db"), "scans")?;
//! let schema = Schema::new([("patient", ColumnType::Text)]);
//! let table = datapipes_tables::create(&url, &schema).await?;  // sqlite:///data/scans.db?table=scans
//! let scan = |n: i64| NewRow {
//!     row: Row { key: key("scans", n.to_string()), label: Label::Class(n % 2), data: "pixels".into() },
//!     values: vec![format!("patient {}", n / 4).into()],
//! };
//! table.put((0..100).map(scan).collect()).await?;
//!
//! let splitter = Splitter::fractions([("train", 0.8), ("test", 0.2)]).group_by("patient");
//! let splits = table.select(&[]).split(&splitter).await?;
//! let train = Indexed::new(RowsByIndex::new(table, splits.keys("train")?)).shuffle().fetch().batch(16);
//! assert_eq!(train.collect()?.len(), 5);
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! # }
//! ```
//!
//! - [`Table`] is the trait of a table in a database; [`open`] and [`create`] take a URL: SQLite
//!   (feature `sqlite`), Cassandra and ScyllaDB (feature `cassandra`). [`RetryTable`] around any
//!   table retries transient errors.
//! - [`Ingest`] writes samples into a table, from any graph, and from folders and archives (feature
//!   `files`).
//! - [`TableExt::select`] finds samples by their metadata, and splits them.
//! - [`rows()`] and [`RowsByIndex`] read the samples in a graph, one request each.
//! - `SqliteRows` (feature `sqlite`) reads any table of an SQLite file by index.
//! - `testing` (feature `testing`) checks a user's table.
//!
//! The layout is that of Versaci and Busonera, *Hiding Latencies in Network-Based Image Loading for
//! Deep Learning* (2024): data and metadata in two tables, written together; label and data in one
//! query.

#[cfg(feature = "cassandra")]
pub mod cassandra;
mod filter;
mod ingest;
mod retry;
mod rows;
mod select;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use datapipes::index::filter::{Column, Columns, Compare, Filter, Value, col};
pub use ingest::{Ingest, Written};
pub use retry::RetryTable;
pub use rows::{Rows, RowsByIndex, rows};
pub use select::{Select, TableExt};
#[cfg(feature = "sqlite")]
pub use sqlite::{Cell, Sqlite, SqliteRow, SqliteRows, sqlite_url};

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Error, ErrorKind, Reader, Result, Wire, Writer, wire_struct};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use uuid::Uuid;

/// Traits with the methods that this crate adds to tables.
pub mod prelude {
    pub use crate::TableExt;
}

/// The training target of a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Wire)]
#[non_exhaustive]
pub enum Label {
    /// Unlabelled.
    #[default]
    None,
    /// A class.
    Class(i64),
    /// Any other target: a mask as PNG, a tensor as NPY.
    Blob(Bytes),
}

/// A sample as it is read in training: label and data together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// Key of the sample.
    pub key: Uuid,
    /// Label of the sample.
    pub label: Label,
    /// Content of the sample, as in its file.
    pub data: Bytes,
}

wire_struct! { Row { key: encode_key, decode_key, label, data } }

fn encode_key(key: &Uuid, to: &mut Writer<'_>) -> Result<()> {
    to.raw(key.as_bytes());
    Ok(())
}

fn decode_key(from: &mut Reader<'_>) -> Result<Uuid> {
    Ok(Uuid::from_bytes(Wire::decode(from)?))
}

datapipes::words! {
    /// The type of a metadata column.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum ColumnType {
        /// [`Value::Int`].
        Int = "whole numbers",
        /// [`Value::Float`].
        Float = "numbers",
        /// [`Value::Text`].
        Text = "text",
        /// [`Value::Bool`].
        Bool = "true and false",
    }
}

/// Names and types of the metadata columns of a sample, in order. The columns `key` and `label`
/// exist in addition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    /// Name and type of each column. A name is a letter followed by letters, digits and `_`.
    pub columns: Vec<(String, ColumnType)>,
}

impl Schema {
    /// Returns a schema with these columns.
    pub fn new<N: Into<String>>(columns: impl IntoIterator<Item = (N, ColumnType)>) -> Self {
        Schema {
            columns: columns
                .into_iter()
                .map(|(name, kind)| (name.into(), kind))
                .collect(),
        }
    }

    /// Checks that every name is valid in a database.
    ///
    /// # Errors
    /// `Config` for a name that is not a letter followed by letters, digits and `_`; that is `key`,
    /// `label` or `data`; or that is a duplicate. The case of letters is ignored, as in databases.
    pub fn check(&self) -> Result<()> {
        let mut seen = std::collections::BTreeSet::new();
        for (name, _) in &self.columns {
            let small = name.to_ascii_lowercase();
            let wrong = if !is_name(name) {
                "is no letter followed by letters, digits and _"
            } else if matches!(&*small, "key" | "label" | "data") {
                "is there besides"
            } else if !seen.insert(small) {
                "is there twice"
            } else {
                continue;
            };
            return Err(Error::config(format!("the column {name:?} {wrong}")));
        }
        Ok(())
    }

    /// Checks that values match the columns, in order.
    ///
    /// # Errors
    /// `Shape` if their number or a type is different, or a value is NaN.
    pub fn accept(&self, values: &[Value]) -> Result<()> {
        let shape = |what| Err(Error::shape(what));
        if values.len() != self.columns.len() {
            return shape(format!(
                "{} values for {} columns",
                values.len(),
                self.columns.len()
            ));
        }
        for ((name, kind), value) in self.columns.iter().zip(values) {
            match (value, kind) {
                (Value::Float(number), _) if number.is_nan() => {
                    return shape(format!("column {name:?}: NaN is no value of a column"));
                }
                (Value::Null, _)
                | (Value::Int(_), ColumnType::Int)
                | (Value::Float(_), ColumnType::Float)
                | (Value::Text(_), ColumnType::Text)
                | (Value::Bool(_), ColumnType::Bool) => {}
                _ => return shape(format!("column {name:?} is of {kind}, and {value} is not")),
            }
        }
        Ok(())
    }

    /// Returns the positions of some columns, by name.
    ///
    /// # Errors
    /// `NotFound` for a missing column, naming the existing columns.
    pub fn places(&self, columns: &[&str]) -> Result<Vec<usize>> {
        let place = |wanted: &str| {
            self.columns
                .iter()
                .position(|(name, _)| name == wanted)
                .ok_or_else(|| {
                    let names: Vec<_> = self
                        .columns
                        .iter()
                        .map(|(name, _)| format!("{name:?}"))
                        .collect();
                    let there = if names.is_empty() {
                        "none".to_owned()
                    } else {
                        names.join(", ")
                    };
                    Error::not_found(format!("no column {wanted:?}; there are: {there}"))
                })
        };
        columns.iter().map(|wanted| place(wanted)).collect()
    }
}

/// Returns true if a text may be the name of a table or column: a letter followed by letters,
/// digits and `_`, all ASCII.
pub(crate) fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.len() <= 48
}

/// The metadata of a sample, with its values in the order of the requested columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Metadata {
    /// Key of the sample.
    pub key: Uuid,
    /// Class of the sample, if its label is one.
    pub class: Option<i64>,
    /// Values of the requested columns.
    pub values: Vec<Value>,
}

wire_struct! { Metadata { key: encode_key, decode_key, class, values } }

/// A sample to be written.
#[derive(Clone, Debug, PartialEq, Wire)]
pub struct NewRow {
    /// Key, label and data of the sample.
    pub row: Row,
    /// Metadata of the sample, a value for each column of the schema.
    pub values: Vec<Value>,
}

/// A data set in a database.
///
/// # Errors
/// Every error names the table ([`Table::url`]) and the key, and never a secret. `NotFound` is a
/// missing row or table; `Denied` a wrong user or password; `Shape` a column of another type;
/// errors that may not occur again are [transient](datapipes::Error::transient).
#[async_trait]
pub trait Table: fmt::Debug + Send + Sync + 'static {
    /// Returns the URL of the table, without secrets: `cassandra://host/keyspace.table`.
    fn url(&self) -> &str;

    /// Returns the schema of the metadata.
    fn schema(&self) -> &Schema;

    /// Returns a sample, in one query.
    ///
    /// # Errors
    /// `NotFound` if there is no such row.
    async fn get(&self, key: Uuid) -> Result<Row>;

    /// Returns some samples, in the order of their keys, each with its own result.
    async fn get_many(&self, keys: &[Uuid]) -> Vec<Result<Row>>;

    /// Returns the metadata of all samples, page by page, in an order that is the same while
    /// nothing is written. `columns` are the names of the requested values.
    ///
    /// # Errors
    /// An error ends the stream, and is [fatal](datapipes::Error::fatal): how many rows are missing
    /// is unknown.
    fn scan(&self, columns: &[&str]) -> BoxStream<'static, Result<Metadata>>;

    /// Writes samples; for each sample, data and metadata are written together or not at all.
    /// Writing a sample again replaces it.
    ///
    /// # Errors
    /// `Shape` if values do not match the schema ([`Schema::accept`]); then nothing is written.
    async fn put(&self, rows: Vec<NewRow>) -> Result<()>;

    /// Returns true for each key that has a row, in the order of the keys. The default reads the
    /// rows, so an implementation should replace it.
    async fn contains(&self, keys: &[Uuid]) -> Result<Vec<bool>> {
        let known = |row: Result<Row>| match row {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        };
        self.get_many(keys).await.into_iter().map(known).collect()
    }

    /// Returns the same as [`scan`](Table::scan) for the rows that match a filter. The default
    /// scans all rows and filters them in this process; an implementation should replace it if the
    /// database can filter.
    fn find(&self, columns: &[&str], filter: &Filter) -> BoxStream<'static, Result<Metadata>> {
        filter::scan_and_filter(self, columns, filter)
    }
}

/// Implemented so that a shared table is a table too.
#[async_trait]
impl<T: Table + ?Sized> Table for Arc<T> {
    datapipes::forward! { **self =>
        fn url(&self) -> &str;
        fn schema(&self) -> &Schema;
        fn scan(&self, columns: &[&str]) -> BoxStream<'static, Result<Metadata>>;
        fn find(&self, columns: &[&str], filter: &Filter) -> BoxStream<'static, Result<Metadata>>;
    }
    async fn get(&self, key: Uuid) -> Result<Row> {
        (**self).get(key).await
    }
    async fn get_many(&self, keys: &[Uuid]) -> Vec<Result<Row>> {
        (**self).get_many(keys).await
    }
    async fn put(&self, rows: Vec<NewRow>) -> Result<()> {
        (**self).put(rows).await
    }
    async fn contains(&self, keys: &[Uuid]) -> Result<Vec<bool>> {
        (**self).contains(keys).await
    }
}

/// Returns the key of a sample by its name: the same name gives the same key, so that writing a
/// data set again writes the same rows. The `namespace` separates equal names in different data
/// sets.
///
/// The key is a UUID of version 8: the first 128 bits (less version and variant) of BLAKE3 over the
/// length of the namespace, 8 bytes little-endian, the namespace, and the name. This function never
/// changes.
pub fn key(namespace: &str, name: impl AsRef<[u8]>) -> Uuid {
    let mut hash = blake3::Hasher::new();
    hash.update(&(namespace.len() as u64).to_le_bytes())
        .update(namespace.as_bytes())
        .update(name.as_ref());
    let mut bytes = [0; 16];
    hash.finalize_xof().fill(&mut bytes);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// Opens the data set that a URL names: `sqlite:///folder/file.db?table=NAME`,
/// `cassandra://host/keyspace.table`.
///
/// # Errors
/// `Config` for any other URL, or if the URL needs a feature of this crate that is not enabled;
/// errors of opening the data set.
pub async fn open(url: &str) -> Result<Arc<dyn Table>> {
    match scheme(url) {
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let url = url.to_owned();
            Ok(Arc::new(
                datapipes::blocking(move || Sqlite::open_url(&url)).await??,
            ))
        }
        #[cfg(feature = "cassandra")]
        "cassandra" | "scylla" => Ok(Arc::new(RetryTable::new(
            cassandra::Cassandra::connect(url).await?,
            datapipes::Backoff::default(),
        ))),
        _ => Err(cannot(url)),
    }
}

/// Creates the data set that a URL names, with this schema, or opens it if it exists with the same
/// schema.
///
/// # Errors
/// The errors of [`open`]; `Shape` if the data set exists with another schema; errors of creating
/// it.
#[cfg_attr(
    not(any(feature = "sqlite", feature = "cassandra")),
    expect(unused_variables, reason = "no table can be made")
)]
pub async fn create(url: &str, schema: &Schema) -> Result<Arc<dyn Table>> {
    match scheme(url) {
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let (url, schema) = (url.to_owned(), schema.clone());
            Ok(Arc::new(
                datapipes::blocking(move || Sqlite::create_url(&url, &schema)).await??,
            ))
        }
        #[cfg(feature = "cassandra")]
        "cassandra" | "scylla" => Ok(Arc::new(RetryTable::new(
            cassandra::Cassandra::create(url, schema, &cassandra::Replication::Copies(1)).await?,
            datapipes::Backoff::default(),
        ))),
        _ => Err(cannot(url)),
    }
}

fn scheme(url: &str) -> &str {
    url.split_once("://").map_or("", |(scheme, _)| scheme)
}

/// Returns the error of a URL that no table supports.
fn cannot(url: &str) -> Error {
    let needs = |feature| {
        format!("this needs the feature `{feature}` of datapipes-tables, which is not built in")
    };
    let what = match scheme(url) {
        "sqlite" => needs("sqlite"),
        "cassandra" | "scylla" => needs("cassandra"),
        _ => {
            let stores = "stores are opened by `datapipes_io::stores::open`";
            format!("a table's URL begins with sqlite:// or cassandra://; {stores}")
        }
    };
    // The rest of the URL may hold a password, and so may a text without a scheme.
    let shown = if url.contains("://") {
        format!("{}://…: ", scheme(url))
    } else {
        String::new()
    };
    Error::config(shown + &what)
}

/// Returns a stream of one error.
pub(crate) fn failing(error: Error) -> BoxStream<'static, Result<Metadata>> {
    until_error(futures::stream::iter([Err(error)]))
}

/// Ends a scan after its first error, which is fatal: the missing rows are unknown.
pub(crate) fn until_error(
    rows: impl Stream<Item = Result<Metadata>> + Send + 'static,
) -> BoxStream<'static, Result<Metadata>> {
    let mut failed = false;
    let sound = move |row: &Result<Metadata>| {
        std::future::ready(!std::mem::replace(&mut failed, row.is_err()))
    };
    let rows = rows.take_while(sound);
    rows.map(|row| row.map_err(Error::fatal)).boxed()
}

#[cfg(test)]
mod tests {
    use datapipes::testing::check_wire;

    use super::*;

    #[test]
    fn what_is_no_table_is_said_with_its_scheme_and_without_secrets() {
        let said = |url| {
            futures::executor::block_on(open(url))
                .unwrap_err()
                .to_string()
        };
        let what = "a table's URL begins with sqlite:// or cassandra://; \
                    stores are opened by `datapipes_io::stores::open`";
        assert_eq!(
            said("https://me:secret@host/x?sig=secret"),
            format!("wrong configuration: https://…: {what}")
        );
        assert_eq!(
            said("me:secret@host/x"),
            format!("wrong configuration: {what}")
        );
    }

    #[test]
    fn rows_travel_to_other_processes() {
        let row = Row {
            key: Uuid::from_u128(7),
            label: Label::Class(-1),
            data: "jpeg".into(),
        };
        check_wire(&row);
        check_wire(&Row {
            label: Label::Blob("mask".into()),
            ..row.clone()
        });
        let values = [
            Value::Null,
            1i64.into(),
            0.5.into(),
            "t".into(),
            true.into(),
        ]
        .to_vec();
        check_wire(&Metadata {
            key: Uuid::nil(),
            class: Some(3),
            values: values.clone(),
        });
        check_wire(&NewRow {
            row: Row {
                label: Label::None,
                ..row
            },
            values,
        });
        check_wire(&Written {
            written: 1,
            known: 2,
            bytes: 3,
        });
    }

    /// Asserts, when it is compiled, that values move between threads and are shared by them.
    fn shared<T: ?Sized + Send + Sync>() {}

    #[test]
    fn tables_and_their_values_move_between_threads_and_are_shared_by_them() {
        shared::<dyn Table>();
        shared::<Row>();
        shared::<Metadata>();
        shared::<Filter>();
        #[cfg(feature = "sqlite")]
        shared::<Sqlite>();
    }
}
