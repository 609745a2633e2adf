//! Queries of a file with an unknown schema.

use datapipes::{Error, ErrorKind, Result};
use rusqlite::types::Value;
use rusqlite::{Connection, Row};

use crate::sqlite::connections::failed;

/// Calls a function for each row of a query.
pub(super) fn each(
    connection: &Connection,
    query: &str,
    values: impl rusqlite::Params,
    mut work: impl FnMut(&Row<'_>) -> Result<()>,
) -> Result<()> {
    let mut statement = connection.prepare_cached(query).map_err(wrong)?;
    let mut rows = statement.query(values).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        work(row)?;
    }
    Ok(())
}

/// Converts the error of a query that SQLite refuses into an error of the user's settings.
pub(super) fn wrong(error: rusqlite::Error) -> Error {
    let is_query = matches!(error, rusqlite::Error::SqlInputError { .. });
    let kind = if is_query {
        ErrorKind::Config
    } else {
        return failed(error);
    };
    Error::new(kind, "").with_source(error)
}

/// Quotes a name for a query.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

pub(super) fn shown(key: &[Value]) -> String {
    let shown = |value: &Value| match value {
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        Value::Text(text) => format!("{text:?}"),
        other => format!("{other:?}"),
    };
    key.iter().map(shown).collect::<Vec<_>>().join(", ")
}

/// Returns the name of the integer that identifies the rows of a table; `None` if it has none.
/// Blocks.
pub(super) fn row_id(
    connection: &Connection,
    table: &str,
    columns: &[String],
) -> Result<Option<&'static str>> {
    let mut kind = None;
    each(
        connection,
        "SELECT type, wr FROM pragma_table_list(?1) WHERE schema = 'main'",
        [table],
        |row| {
            let found: (String, bool) = (row.get(0).map_err(failed)?, row.get(1).map_err(failed)?);
            kind = Some(found);
            Ok(())
        },
    )?;
    match kind {
        Some((kind, _)) if kind == "view" => {
            let what = "a view has no key of its own; read it as a query";
            Err(Error::config(what))
        }
        Some((_, true)) => Ok(None),
        _ => {
            let free = |name: &&str| {
                !columns
                    .iter()
                    .any(|column| column.eq_ignore_ascii_case(name))
            };
            let name = ["rowid", "_rowid_", "oid"].into_iter().find(free);
            name.map(Some)
                .ok_or_else(|| Error::unsupported("all names of the rowid are columns"))
        }
    }
}

pub(super) fn no_table(connection: &Connection, table: &str) -> Result<Error> {
    let mut there = Vec::new();
    let query =
        "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name LIMIT 32";
    each(connection, query, [], |row| {
        there.push(format!("{:?}", row.get::<_, String>(0).map_err(failed)?));
        Ok(())
    })?;
    let what = format!(
        "no table {table:?}, but {}",
        if there.is_empty() {
            "none".into()
        } else {
            there.join(", ")
        }
    );
    Ok(Error::not_found(what))
}
