//! Any table or query of an SQLite file as data by index.

mod keys;
mod queries;
mod row;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use datapipes::{Error, MapPipe, Result};
use rusqlite::{Connection, Row, params_from_iter};

pub use row::{Cell, SqliteRow};

use self::keys::Keys;
use self::queries::{each, no_table, quoted, row_id, shown, wrong};
use self::row::no_column;
use super::connections::{Connections, failed};
use super::{open, sql};

/// Rows of any table or query of an SQLite file, as data by index: sample `n` is the row of the
/// `n`-th key; feature `sqlite`.
///
/// - The keys are read once, when the value is created, and held in memory: 8 bytes for each row if
///   they are integers. A row is then found by its key at once, and [`Indexed`](datapipes::Indexed)
///   shuffles, splits and shards the rows.
/// - The file is opened read-only. Four connections read at once, on blocking threads; rows that
///   are requested together are read by few queries. A query waits 5 seconds for the locks of other
///   processes; then the error is transient.
/// - A row that was removed since, or whose key was changed, is the error `Changed`. Rows that were
///   added since are not seen.
/// - Values are copied from SQLite's pages, once.
/// - Use [`Sqlite`](super::Sqlite) for data sets that this library writes, with schema and labels.
///
/// Clones share the connections and the keys.
///
/// # Examples
/// ```
/// use datapipes::Indexed;
/// use datapipes_tables::SqliteRows;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("things.db");
/// # std::fs::write(&path, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/things.db")))?;
/// let things = SqliteRows::table(&path, "things", &["name", "score"], "score > 0.5")?;
/// let rows = Indexed::new(things).shuffle().fetch();
/// let names = rows.try_map(|row| Ok::<_, datapipes::Error>(row.get("name")?.as_str().map(str::to_owned)));
/// assert_eq!(names.collect()?.len(), 4);
/// # datapipes::Ok(())
/// ```
#[derive(Clone)]
pub struct SqliteRows(Arc<Inner>);

struct Inner {
    connections: Arc<Connections>,
    /// Description of the rows, for messages.
    place: String,
    /// `SELECT key, …, column, … FROM … WHERE `, and the expression of the keys in it.
    select: String,
    key: Vec<String>,
    keys: Keys,
    names: Arc<[String]>,
}

/// Maximum number of keys in a query.
const TOGETHER: usize = 256;

impl SqliteRows {
    /// Reads the rows of a table for which a condition in SQL is true; all rows if it is empty. No
    /// columns means all columns. Rows are in the order of their `rowid`, or of their primary key
    /// if the table has no `rowid`. Reads the keys, and blocks.
    ///
    /// The condition becomes a part of a query unchanged: do not pass text from untrusted sources.
    ///
    /// # Errors
    /// `NotFound` if there is no such file, table or column; `Corrupt` if the file is no SQLite
    /// file or is damaged; `Config` for an invalid condition, and for a view, which has no key: see
    /// [`query`](SqliteRows::query).
    pub fn table(
        path: impl AsRef<Path>,
        table: &str,
        columns: &[&str],
        condition: &str,
    ) -> Result<Self> {
        let (connections, connection) = open(path.as_ref())?;
        let place = format!("{}: table {table:?}", connections.url);
        let made = || {
            let mut there = Vec::new();
            let mut key = Vec::new();
            let described = "SELECT name, pk FROM pragma_table_xinfo(?1)";
            each(&connection, described, [table], |row| {
                there.push(row.get::<_, String>(0).map_err(failed)?);
                let place = row.get::<_, i64>(1).map_err(failed)?;
                if place > 0 {
                    key.push((place, there.len() - 1));
                }
                Ok(())
            })?;
            if there.is_empty() {
                return Err(no_table(&connection, table)?);
            }
            key.sort_unstable();
            let key = key.into_iter().map(|(_, at)| quoted(&there[at])).collect();
            let names = match columns {
                [] => there.clone(),
                columns => columns.iter().map(|&name| name.to_owned()).collect(),
            };
            if let Some(name) = names.iter().find(|name| !there.contains(name)) {
                return Err(no_column(name, &there));
            }
            let key = match row_id(&connection, table, &there)? {
                Some(name) => vec![name.to_owned()],
                None => key,
            };
            let condition = if condition.trim().is_empty() {
                "TRUE"
            } else {
                condition
            };
            let order = key.join(", ");
            // The line break ends a comment in the condition.
            let keys = format!(
                "SELECT {order} FROM {} WHERE ({condition}\n) ORDER BY {order}",
                quoted(table)
            );
            Ok((keys, quoted(table), key, names))
        };
        let made = made().map_err(|error| error.within(&place))?;
        SqliteRows::new(connections, &connection, place, made)
    }

    /// Reads the rows of a query in SQL, in its order. One of its columns is the key: its values
    /// must be unique, and it should have an index, since rows are found by it. Reads the keys, and
    /// blocks.
    ///
    /// The query is run unchanged: do not pass text from untrusted sources.
    ///
    /// # Errors
    /// The errors of [`table`](SqliteRows::table); `Config` for an invalid query, and for keys that
    /// are null or duplicate.
    pub fn query(path: impl AsRef<Path>, query: &str, key: &str) -> Result<Self> {
        let (connections, connection) = open(path.as_ref())?;
        let place = format!("{}: query {query:?}", connections.url);
        let made = || {
            let query = query.trim().trim_end_matches(';');
            let statement = connection.prepare(query).map_err(wrong)?;
            let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
            if !names.iter().any(|name| name == key) {
                return Err(no_column(key, &names));
            }
            let source = format!("({query}\n)");
            Ok((
                format!("SELECT {} FROM {source}", quoted(key)),
                source,
                vec![quoted(key)],
                names,
            ))
        };
        let made = made().map_err(|error| error.within(&place))?;
        SqliteRows::new(connections, &connection, place, made)
    }

    /// Creates the value from the query for the keys, the source of the rows, their key, and the
    /// wanted columns.
    fn new(
        connections: Arc<Connections>,
        connection: &Connection,
        place: String,
        (query, source, key, names): (String, String, Vec<String>, Vec<String>),
    ) -> Result<Self> {
        if let Some(name) = twice(&names) {
            // SQLite would return the first column for both.
            let what =
                format!("{place}: two columns are called {name:?}; call one another name by AS");
            return Err(Error::config(what));
        }
        let keys = Keys::read(connection, &query).map_err(|error| error.within(&place))?;
        let wanted: Vec<String> = key
            .iter()
            .cloned()
            .chain(names.iter().map(|name| quoted(name)))
            .collect();
        let select = format!("SELECT {} FROM {source} WHERE ", wanted.join(", "));
        let inner = Inner {
            connections,
            place,
            select,
            key,
            keys,
            names: names.into(),
        };
        Ok(SqliteRows(Arc::new(inner)))
    }

    /// Returns the names of the columns.
    pub fn columns(&self) -> &[String] {
        &self.0.names
    }
}

/// Returns a duplicate name, with names compared as in SQLite.
fn twice(names: &[String]) -> Option<&str> {
    let mut seen = HashSet::new();
    names
        .iter()
        .find(|name| !seen.insert(name.to_ascii_lowercase()))
        .map(String::as_str)
}

impl Inner {
    /// Reads the rows at some positions, on a connection.
    fn read(&self, connection: &Connection, places: &[usize]) -> Result<Vec<Result<SqliteRow>>> {
        match &self.keys {
            Keys::Integers(keys) => {
                let asked: Vec<i64> = places.iter().map(|&place| keys[place]).collect();
                let mut found = HashMap::with_capacity(asked.len());
                for asked in asked.chunks(TOGETHER) {
                    let count = asked.len().next_power_of_two();
                    let query =
                        format!("{}{} IN ({})", self.select, self.key[0], sql::places(count));
                    let padded = asked.iter().chain(std::iter::repeat(&asked[0])).take(count);
                    each(connection, &query, params_from_iter(padded), |row| {
                        found.insert(row.get::<_, i64>(0).map_err(failed)?, self.row(row));
                        Ok(())
                    })?;
                }
                let row = |key: &i64| match found.get(key) {
                    Some(Ok(row)) => Ok(row.clone()),
                    Some(Err(error)) => Err(error.copied().within(self.of(key))),
                    None => Err(self.gone(key)),
                };
                Ok(asked.iter().map(row).collect())
            }
            Keys::Others(keys) => {
                let equal: Vec<String> =
                    self.key.iter().map(|name| format!("{name} = ?")).collect();
                let query = format!("{}{}", self.select, equal.join(" AND "));
                let row = |&place: &usize| {
                    let mut found = None;
                    each(connection, &query, params_from_iter(&keys[place]), |row| {
                        found = Some(self.row(row));
                        Ok(())
                    })?;
                    let key = shown(&keys[place]);
                    Ok(found.map_or_else(
                        || Err(self.gone(&key)),
                        |row| row.map_err(|error| error.within(self.of(&key))),
                    ))
                };
                places.iter().map(row).collect()
            }
        }
    }

    fn row(&self, row: &Row<'_>) -> Result<SqliteRow> {
        let cell = |(at, name): (usize, &String)| {
            let value = row.get_ref(self.key.len() + at).map_err(failed)?;
            Cell::of(value).map_err(|error| error.within(format_args!("column {name:?}")))
        };
        let cells = self
            .names
            .iter()
            .enumerate()
            .map(cell)
            .collect::<Result<_>>()?;
        Ok(SqliteRow {
            names: self.names.clone(),
            cells,
        })
    }

    fn of(&self, key: &dyn fmt::Display) -> String {
        format!("{}: key {key}", self.place)
    }

    fn gone(&self, key: &dyn fmt::Display) -> Error {
        Error::changed(format!("{}: it was taken away", self.of(key)))
    }
}

#[async_trait]
impl MapPipe for SqliteRows {
    type Out = SqliteRow;

    fn len(&self) -> u64 {
        self.0.keys.len() as u64
    }
    async fn get(&self, index: u64) -> Result<SqliteRow> {
        MapPipe::get_many(self, &[index]).await.remove(0)
    }
    async fn get_many(&self, indices: &[u64]) -> Vec<Result<SqliteRow>> {
        let count = self.0.keys.len();
        let place = |&index: &u64| usize::try_from(index).ok().filter(|&index| index < count);
        let places: Vec<Option<usize>> = indices.iter().map(place).collect();
        let (this, asked) = (
            self.0.clone(),
            places.iter().flatten().copied().collect::<Vec<_>>(),
        );
        let read = self
            .0
            .connections
            .read(move |connection| this.read(connection, &asked))
            .await;
        let (mut rows, failed) = match read {
            Ok(rows) => (rows.into_iter(), None),
            Err(error) => (Vec::new().into_iter(), Some(error)),
        };
        let row = |place: Option<usize>| match (place, &failed) {
            (None, _) => Err(Error::not_found(format!(
                "{}: it has {count} rows",
                self.0.place
            ))),
            // All rows get the same error.
            (Some(_), Some(error)) => Err(error.copied().within(&self.0.place)),
            (Some(_), None) => rows.next().expect("a row for each key"),
        };
        places.into_iter().map(row).collect()
    }
    fn name(&self) -> String {
        "sqlite".to_owned()
    }
    fn sample_name(&self, index: u64) -> Option<Arc<str>> {
        let index = usize::try_from(index).ok()?;
        let name = match &self.0.keys {
            Keys::Integers(keys) => self.0.of(keys.get(index)?),
            Keys::Others(keys) => self.0.of(&shown(keys.get(index)?)),
        };
        Some(name.into())
    }
    fn weigh(&self, row: &SqliteRow) -> Option<usize> {
        Some(row.weight())
    }
}

datapipes::formatted! { Debug |rows: SqliteRows| "SqliteRows({}, {} rows)", rows.0.place, rows.0.keys.len(); }
