//! Data sets in an SQLite file: no server, one file, many readers.

mod any;
mod connections;
mod sql;

#[cfg(test)]
mod tests;

pub use any::{Cell, SqliteRow, SqliteRows};

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use datapipes::{Error, ErrorKind, Result};
use futures::StreamExt;
use futures::future::{join_all, try_join_all};
use futures::stream::{self, BoxStream};
use rusqlite::{Connection, OpenFlags, TransactionBehavior, params_from_iter};
use url::Url;
use uuid::Uuid;

use self::connections::{Connections, failed};
use super::{Filter, Metadata, NewRow, Row, Schema, Table, Value, failing, is_name};

/// A data set in an SQLite file: data and labels in the SQL table `NAME_data`, metadata in
/// `NAME_metadata`.
///
/// - [`create`](Sqlite::create) makes a data set, and [`open`](Sqlite::open) opens an existing
///   file. Its URL is `sqlite:///folder/file.db?table=NAME`.
/// - Several connections read at once, one writes; each opens when it is first needed. Readers see
///   the data that were written when their query began. The file is in SQLite's WAL mode, which
///   does not work over network file systems.
/// - Queries run on the blocking threads of the async runtime ([`datapipes::blocking`]). A query
///   that has begun runs to its end, even if its future is dropped.
/// - A [`put`](Table::put) is one transaction: all of its rows are written, or none. After a power
///   failure the last rows may be missing.
/// - A query waits for the locks of other processes, 5 seconds unless set by
///   [`busy_timeout`](Sqlite::busy_timeout); then the error is transient.
///
/// Clones share the connections.
#[derive(Clone, Debug)]
pub struct Sqlite {
    connections: Arc<Connections>,
    table: Arc<str>,
    schema: Arc<Schema>,
    url: Arc<str>,
}

/// Default number of connections that read.
const READERS: usize = 4;
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Size of a page in bytes: rows of some 100 kB would be chains of many small pages.
const PAGE: u32 = 16384;
/// Maximum number of keys in a query for samples, in a query for metadata, and of rows in a page of
/// a scan.
const TOGETHER: usize = 64;
const KEYS: usize = 512;
const PAGE_ROWS: usize = 1000;
/// Maximum number of values in a condition that is passed to SQLite, which accepts 32766.
const MOST_VALUES: usize = 30_000;

impl Sqlite {
    /// Opens the only data set of a file. Reads its schema, and blocks meanwhile.
    ///
    /// # Errors
    /// `NotFound` if there is no such file, or no data set in it; `Config` if there are several,
    /// see [`open_table`](Sqlite::open_table); `Corrupt` if the file is no SQLite file or is
    /// damaged; `Shape` if a column has an unknown type.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let (connections, connection) = open(path.as_ref())?;
        let mut names =
            data_sets(&connection).map_err(|error| failed(error).within(&connections.url))?;
        let wrong =
            |kind, what: String| Err(Error::new(kind, format!("{}: {what}", connections.url)));
        match names.len() {
            0 => wrong(ErrorKind::NotFound, "no data set in it".to_owned()),
            1 => Sqlite::with(connections, &connection, &names.remove(0)),
            _ => wrong(
                ErrorKind::Config,
                format!("say which table: {}", names.join(", ")),
            ),
        }
    }

    /// Opens the data set of a name.
    ///
    /// # Errors
    /// The errors of [`open`](Sqlite::open); `NotFound` if the file has no such data set.
    pub fn open_table(path: impl AsRef<Path>, table: &str) -> Result<Self> {
        let (connections, connection) = open(path.as_ref())?;
        Sqlite::with(connections, &connection, table)
    }

    /// Creates a data set, in a new or an existing file. A data set of this name and schema is
    /// opened.
    ///
    /// # Errors
    /// `Config` for invalid names ([`Schema::check`]); `Shape` if there is a data set of this name
    /// and another schema; errors of the file system.
    pub fn create(path: impl AsRef<Path>, table: &str, schema: &Schema) -> Result<Self> {
        let connections = connect(path.as_ref())?;
        let fail = |error| failed(error).within(&connections.url);
        if !is_name(table) {
            let what =
                format!("the table {table:?} is no letter followed by letters, digits and _");
            return Err(Error::config(what).within(&connections.url));
        }
        schema
            .check()
            .map_err(|error| error.within(&connections.url))?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let mut connection = connections
            .open(flags)
            .map_err(|error| error.within(&connections.url))?;
        // Has no effect on a file that has pages already.
        connection
            .pragma_update(None, "page_size", PAGE)
            .map_err(fail)?;
        connection
            .pragma_update(None, "journal_mode", "WAL")
            .map_err(fail)?;
        let make = |connection: &mut Connection| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction.execute_batch(&sql::create(table, schema))?;
            transaction.commit()
        };
        make(&mut connection).map_err(fail)?;
        let made = Sqlite::with(connections.clone(), &connection, table)?;
        if *made.schema != *schema {
            let what = format!("{}: it is there with other columns", made.url);
            return Err(Error::shape(what));
        }
        Ok(made)
    }

    /// Opens the data set of a URL: `sqlite:///folder/file.db?table=NAME`, or without a name the
    /// only data set of the file.
    ///
    /// # Errors
    /// `Config` for any other URL; the errors of [`open`](Sqlite::open).
    pub fn open_url(url: &str) -> Result<Self> {
        let (path, table) = path_and_table(url)?;
        match table {
            Some(table) => Sqlite::open_table(path, &table),
            None => Sqlite::open(path),
        }
    }

    /// Creates the data set of a URL, as [`create`](Sqlite::create) does.
    ///
    /// # Errors
    /// `Config` for any other URL, or a URL without a name; the errors of
    /// [`create`](Sqlite::create).
    pub fn create_url(url: &str, schema: &Schema) -> Result<Self> {
        match path_and_table(url)? {
            (path, Some(table)) => Sqlite::create(path, &table, schema),
            (_, None) => Err(wrong_url("no name of a table")),
        }
    }

    /// Sets the number of connections that read. Defaults to 4.
    #[must_use]
    pub fn readers(self, readers: usize) -> Self {
        let busy_timeout = self.connections.busy_timeout;
        self.connected(readers, busy_timeout)
    }

    /// Sets the time for which queries wait for the locks of others.
    #[must_use]
    pub fn busy_timeout(self, busy_timeout: Duration) -> Self {
        let readers = self.connections.readers;
        self.connected(readers, busy_timeout)
    }

    fn connected(self, readers: usize, busy_timeout: Duration) -> Self {
        let Connections { path, url, .. } = &*self.connections;
        let connections = Connections::new(path.clone(), url.clone(), readers, busy_timeout);
        Sqlite {
            connections: Arc::new(connections),
            ..self
        }
    }

    fn with(connections: Arc<Connections>, connection: &Connection, table: &str) -> Result<Self> {
        let url = format!("{}?table={table}", connections.url);
        if !is_name(table) {
            let what = "is no letter followed by letters, digits and _";
            return Err(Error::config(format!(
                "{}: the table {table:?} {what}",
                connections.url
            )));
        }
        let schema = read_schema(connection, table).map_err(|error| error.within(&url))?;
        Ok(Sqlite {
            connections,
            table: table.into(),
            schema: schema.into(),
            url: url.into(),
        })
    }

    /// Reads the samples of at most [`TOGETHER`] keys, by one query, in order.
    async fn fetch(&self, keys: Vec<Uuid>) -> Vec<Result<Row>> {
        let (table, asked) = (self.table.clone(), keys.clone());
        let found = self
            .connections
            .read(move |connection| fetch(connection, &table, &asked).map_err(failed));
        let mut found = match found.await {
            Ok(found) => found,
            // All keys get the same error.
            Err(error) => {
                return keys
                    .iter()
                    .map(|key| Err(error.copied().within(self.of(*key))))
                    .collect();
            }
        };
        let answer = |key: &Uuid| match found.get_mut(key) {
            Some(Ok(row)) => Ok(row.clone()),
            Some(Err(error)) => Err(error.copied().within(self.of(*key))),
            None => Err(Error::not_found(self.of(*key))),
        };
        keys.iter().map(answer).collect()
    }

    fn of(&self, key: Uuid) -> String {
        format!("{}: {key}", self.url)
    }

    /// Returns metadata page by page, of rows for which a condition is true.
    fn pages(&self, columns: &[&str], filter: &Filter) -> BoxStream<'static, Result<Metadata>> {
        let places = match self.schema.places(columns) {
            Ok(places) => places,
            Err(error) => return failing(error.within(&self.url)),
        };
        let mut values = Vec::new();
        let condition = sql::condition(filter, &mut values);
        let values: Vec<Value> = values.into_iter().cloned().collect();
        let columns: Vec<_> = places
            .iter()
            .map(|&place| self.schema.columns[place].clone())
            .collect();
        let names: String = columns
            .iter()
            .map(|(name, _)| format!(", \"{name}\""))
            .collect();
        let query = format!(
            "SELECT key, label{names} FROM \"{}_metadata\" WHERE {condition}",
            self.table
        );
        let asked = Arc::new((query, values, columns));
        let page_after = move |this: Sqlite, after: Option<Uuid>| {
            let asked = asked.clone();
            async move {
                let read = move |connection: &Connection| {
                    let (query, values, columns) = &*asked;
                    page(connection, query, values, after, columns)
                };
                this.connections
                    .read(read)
                    .await
                    .map_err(|error| error.within(&this.url))
            }
        };
        let pages = stream::unfold(Some((self.clone(), None)), move |state| {
            let page_after = page_after.clone();
            async move {
                let (this, after) = state?;
                match page_after(this.clone(), after).await {
                    Ok(rows) if rows.is_empty() => None,
                    Ok(rows) => {
                        let last = rows.last().map(|row| row.key);
                        let next = (rows.len() == PAGE_ROWS).then_some((this, last));
                        Some((
                            stream::iter(rows.into_iter().map(Ok).collect::<Vec<_>>()),
                            next,
                        ))
                    }
                    Err(error) => Some((stream::iter(vec![Err(error)]), None)),
                }
            }
        });
        crate::until_error(pages.flatten())
    }
}

#[async_trait]
impl Table for Sqlite {
    fn url(&self) -> &str {
        &self.url
    }

    fn schema(&self) -> &Schema {
        &self.schema
    }

    async fn get(&self, key: Uuid) -> Result<Row> {
        self.fetch(vec![key]).await.remove(0)
    }

    async fn get_many(&self, keys: &[Uuid]) -> Vec<Result<Row>> {
        let together = keys
            .len()
            .div_ceil(self.connections.readers)
            .clamp(8, TOGETHER);
        let chunks = keys.chunks(together).map(|keys| self.fetch(keys.to_vec()));
        join_all(chunks).await.into_iter().flatten().collect()
    }

    fn scan(&self, columns: &[&str]) -> BoxStream<'static, Result<Metadata>> {
        self.pages(columns, &Filter::all())
    }

    async fn put(&self, rows: Vec<NewRow>) -> Result<()> {
        for new in &rows {
            self.schema
                .accept(&new.values)
                .map_err(|error| error.within(self.of(new.row.key)))?;
        }
        let (table, columns) = (self.table.clone(), self.schema.columns.len());
        let write = move |connection: &mut Connection| {
            put(connection, &table, columns, &rows).map_err(failed)
        };
        self.connections
            .write(write)
            .await
            .map_err(|error| error.within(&self.url))
    }

    async fn contains(&self, keys: &[Uuid]) -> Result<Vec<bool>> {
        let chunks = keys.chunks(KEYS).map(|keys| {
            let (table, keys) = (self.table.clone(), keys.to_vec());
            self.connections
                .read(move |connection| contains(connection, &table, &keys).map_err(failed))
        });
        let known = try_join_all(chunks)
            .await
            .map_err(|error| error.within(&self.url))?;
        Ok(known.into_iter().flatten().collect())
    }

    fn find(&self, columns: &[&str], filter: &Filter) -> BoxStream<'static, Result<Metadata>> {
        if let Err(error) = filter.check(&self.schema) {
            return failing(error.within(&self.url));
        }
        let mut values = Vec::new();
        sql::condition(filter, &mut values);
        if values.len() > MOST_VALUES {
            return super::filter::scan_and_filter(self, columns, filter);
        }
        self.pages(columns, filter)
    }
}

/// Reads the existing samples of some keys.
fn fetch(
    connection: &Connection,
    table: &str,
    keys: &[Uuid],
) -> rusqlite::Result<HashMap<Uuid, Result<Row>>> {
    let count = keys.len().next_power_of_two();
    let query = format!(
        "SELECT key, label, data FROM \"{table}_data\" WHERE key IN ({})",
        sql::places(count)
    );
    let mut statement = connection.prepare_cached(&query)?;
    let mut found = statement.query(params_from_iter(padded(keys, count)))?;
    let mut rows = HashMap::with_capacity(keys.len());
    while let Some(row) = found.next()? {
        // The row was found by its key, so the value is a key.
        let Ok(key) = sql::key(row.get_ref(0)?) else {
            continue;
        };
        let (label, data) = (sql::label(row.get_ref(1)?), sql::data(row.get_ref(2)?));
        rows.insert(
            key,
            label.and_then(|label| {
                Ok(Row {
                    key,
                    label,
                    data: data?.into(),
                })
            }),
        );
    }
    Ok(rows)
}

/// Returns keys in bound form, with the last one repeated up to `count` keys, so that there are few
/// different statements.
fn padded(keys: &[Uuid], count: usize) -> impl Iterator<Item = &[u8]> {
    let last = keys.last();
    keys.iter()
        .chain(std::iter::repeat(last).flatten())
        .take(count)
        .map(|key| &key.as_bytes()[..])
}

fn contains(connection: &Connection, table: &str, keys: &[Uuid]) -> rusqlite::Result<Vec<bool>> {
    let count = keys.len().next_power_of_two();
    let query = format!(
        "SELECT key FROM \"{table}_metadata\" WHERE key IN ({})",
        sql::places(count)
    );
    let mut statement = connection.prepare_cached(&query)?;
    let mut rows = statement.query(params_from_iter(padded(keys, count)))?;
    let mut found = std::collections::HashSet::with_capacity(keys.len());
    while let Some(row) = rows.next()? {
        found.extend(sql::key(row.get_ref(0)?));
    }
    Ok(keys.iter().map(|key| found.contains(key)).collect())
}

fn put(
    connection: &mut Connection,
    table: &str,
    columns: usize,
    rows: &[NewRow],
) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut data = transaction.prepare_cached(&format!(
            "INSERT INTO \"{table}_data\" (key, label, data) VALUES (?, ?, ?) \
             ON CONFLICT (key) DO UPDATE SET label = excluded.label, data = excluded.data"
        ))?;
        let mut metadata = transaction.prepare_cached(&format!(
            "INSERT OR REPLACE INTO \"{table}_metadata\" VALUES ({})",
            sql::places(columns + 2)
        ))?;
        for NewRow { row, values } in rows {
            data.execute((&row.key.as_bytes()[..], &row.label, &row.data[..]))?;
            let class = match row.label {
                super::Label::Class(class) => Value::Int(class),
                _ => Value::Null,
            };
            metadata.raw_bind_parameter(1, &row.key.as_bytes()[..])?;
            for (place, value) in std::iter::once(&class).chain(values).enumerate() {
                metadata.raw_bind_parameter(place + 2, sql::bound(value))?;
            }
            metadata.raw_execute()?;
        }
    }
    transaction.commit()
}

/// Returns the metadata of the rows after a key, in the order of their keys.
fn page(
    connection: &Connection,
    query: &str,
    values: &[Value],
    after: Option<Uuid>,
    columns: &[(String, super::ColumnType)],
) -> Result<Vec<Metadata>> {
    let behind = if after.is_some() { "AND key > ?" } else { "" };
    let query = format!("{query} {behind} ORDER BY key LIMIT {PAGE_ROWS}");
    let mut statement = connection.prepare_cached(&query).map_err(failed)?;
    let bind = |statement: &mut rusqlite::CachedStatement<'_>| {
        for (place, value) in values.iter().enumerate() {
            statement.raw_bind_parameter(place + 1, sql::bound(value))?;
        }
        match &after {
            Some(key) => statement.raw_bind_parameter(values.len() + 1, &key.as_bytes()[..]),
            None => Ok(()),
        }
    };
    bind(&mut statement).map_err(failed)?;
    let mut rows = statement.raw_query();
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let at = |place| row.get_ref(place).map_err(failed);
        let key = sql::key(at(0)?)?;
        let read = || {
            let class = sql::class(at(1)?)?;
            let value = |(place, (name, kind)): (usize, &(String, _))| {
                sql::value(at(place + 2)?, name, *kind)
            };
            Ok(Metadata {
                key,
                class,
                values: columns
                    .iter()
                    .enumerate()
                    .map(value)
                    .collect::<Result<_>>()?,
            })
        };
        found.push(read().map_err(|error: Error| error.within(key))?);
    }
    Ok(found)
}

/// Returns the names of the data sets in a file.
fn data_sets(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(
        "SELECT substr(name, 1, length(name) - 5) AS data_set FROM sqlite_schema WHERE type = 'table' \
         AND name LIKE '%!_data' ESCAPE '!' AND data_set || '_metadata' IN (SELECT name FROM sqlite_schema) ORDER BY 1",
    )?;
    statement.query_map([], |row| row.get(0))?.collect()
}

fn read_schema(connection: &Connection, table: &str) -> Result<Schema> {
    let columns_of = |table: String| {
        let mut statement = connection.prepare("SELECT name, type FROM pragma_table_info(?)")?;
        let columns = statement.query_map([table], |row| Ok((row.get(0)?, row.get(1)?)))?;
        columns.collect::<rusqlite::Result<Vec<(String, String)>>>()
    };
    let data = columns_of(format!("{table}_data")).map_err(failed)?;
    let metadata = columns_of(format!("{table}_metadata")).map_err(failed)?;
    if data.is_empty() || metadata.is_empty() {
        return Err(Error::not_found("no such data set in the file"));
    }
    let named = |columns: &[(String, String)], names: &[&str]| {
        columns.len() >= names.len()
            && names
                .iter()
                .zip(columns)
                .all(|(name, column)| *name == column.0)
    };
    if !named(&data, &["key", "label", "data"]) || !named(&metadata, &["key", "label"]) {
        return Err(Error::shape(
            "its tables do not begin with key, label and data",
        ));
    }
    let column = |(name, declared): &(String, String)| match sql::column_type(declared) {
        Some(kind) if is_name(name) => Ok((name.clone(), kind)),
        Some(_) => Err(Error::shape(format!(
            "column {name:?} has a name that is none"
        ))),
        None => Err(Error::shape(format!(
            "column {name:?} is of type {declared:?}, not INTEGER, REAL, TEXT or BOOLEAN"
        ))),
    };
    Ok(Schema {
        columns: metadata[2..].iter().map(column).collect::<Result<_>>()?,
    })
}

fn open(path: &Path) -> Result<(Arc<Connections>, Connection)> {
    let connections = connect(path)?;
    let connection = connections
        .open_to_read()
        .map_err(|error| error.within(&connections.url))?;
    Ok((connections, connection))
}

fn connect(path: &Path) -> Result<Arc<Connections>> {
    let path = std::path::absolute(path).map_err(Error::io)?;
    // A path that is no URL is shown unchanged.
    let url = url_of(&path).unwrap_or_else(|| format!("sqlite://{}", path.display()));
    Ok(Arc::new(Connections::new(path, url, READERS, BUSY_TIMEOUT)))
}

fn url_of(path: &Path) -> Option<String> {
    Url::from_file_path(path)
        .ok()
        .map(|url| url.as_str().replacen("file:", "sqlite:", 1))
}

/// Returns the URL of a data set in a file, with an absolute path:
/// `sqlite:///folder/file.db?table=NAME`.
///
/// # Errors
/// `Config` for an invalid name, and a path that cannot be made absolute.
///
/// # Examples
/// ```
/// # use datapipes_tables::sqlite_url;
/// assert_eq!(sqlite_url("/data/my pets.db", "pets")?, "sqlite:///data/my%20pets.db?table=pets");
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn sqlite_url(path: impl AsRef<Path>, table: &str) -> Result<String> {
    if !is_name(table) {
        return Err(wrong_url(
            "the name of the table is no letter followed by letters, digits and _",
        ));
    }
    let url = std::path::absolute(path)
        .ok()
        .and_then(|path| url_of(&path));
    Ok(format!(
        "{}?table={table}",
        url.ok_or_else(|| wrong_url("no path of a file"))?
    ))
}

fn wrong_url(what: &str) -> Error {
    Error::config(format!("{what}; expected sqlite:///FILE?table=NAME"))
}

/// Returns file and table of a URL. The error does not show the URL, which may hold secrets.
pub(super) fn path_and_table(url: &str) -> Result<(PathBuf, Option<String>)> {
    let parsed = Url::parse(url).map_err(|error| wrong_url("no URL").with_source(error))?;
    if parsed.scheme() != "sqlite" {
        return Err(wrong_url("no URL of SQLite"));
    }
    if parsed.host_str().is_some_and(|host| !host.is_empty()) || !parsed.username().is_empty() {
        return Err(wrong_url("a file has no host and no user"));
    }
    let path = parsed
        .to_file_path()
        .map_err(|()| wrong_url("no path of a file"))?;
    if path.file_name().is_none() {
        return Err(wrong_url("no path of a file"));
    }
    let mut table = None;
    for (name, value) in parsed.query_pairs() {
        if name != "table" {
            return Err(wrong_url("an option that there is not"));
        }
        table = Some(value.into_owned());
    }
    Ok((path, table))
}
