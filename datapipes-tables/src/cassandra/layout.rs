//! The two tables of a data set: creating and reading their layout.

use datapipes::{Error, ErrorKind, Result};
use scylla::client::session::Session;
use scylla::statement::unprepared::Statement;
use scylla::value::CqlValue;

use super::fault;
use super::options::{CassandraOptions, Replication};
use crate::{ColumnType, Schema, Value};

/// The type of a metadata column in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Native {
    BigInt,
    Int,
    SmallInt,
    TinyInt,
    Double,
    Float,
    Text,
    Ascii,
    Boolean,
}

impl Native {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "bigint" => Native::BigInt,
            "int" => Native::Int,
            "smallint" => Native::SmallInt,
            "tinyint" => Native::TinyInt,
            "double" => Native::Double,
            "float" => Native::Float,
            "text" | "varchar" => Native::Text,
            "ascii" => Native::Ascii,
            "boolean" => Native::Boolean,
            _ => return None,
        })
    }

    fn column_type(self) -> ColumnType {
        match self {
            Native::BigInt | Native::Int | Native::SmallInt | Native::TinyInt => ColumnType::Int,
            Native::Double | Native::Float => ColumnType::Float,
            Native::Text | Native::Ascii => ColumnType::Text,
            Native::Boolean => ColumnType::Bool,
        }
    }

    /// Converts a value for a column of this type; `None` if it does not fit.
    pub(super) fn cql(self, value: &Value) -> Option<Option<CqlValue>> {
        Some(Some(match (self, value) {
            (_, Value::Null) => return Some(None),
            (Native::BigInt, Value::Int(n)) => CqlValue::BigInt(*n),
            (Native::Int, Value::Int(n)) => CqlValue::Int((*n).try_into().ok()?),
            (Native::SmallInt, Value::Int(n)) => CqlValue::SmallInt((*n).try_into().ok()?),
            (Native::TinyInt, Value::Int(n)) => CqlValue::TinyInt((*n).try_into().ok()?),
            (Native::Double, Value::Float(x)) => CqlValue::Double(*x),
            (Native::Float, Value::Float(x)) => CqlValue::Float(*x as f32),
            (Native::Text, Value::Text(text)) => CqlValue::Text(text.clone()),
            (Native::Ascii, Value::Text(text)) if text.is_ascii() => CqlValue::Ascii(text.clone()),
            (Native::Boolean, Value::Bool(bit)) => CqlValue::Boolean(*bit),
            _ => return None,
        }))
    }
}

/// Returns the CQL type of a new column.
fn cql_name(column: ColumnType) -> &'static str {
    match column {
        ColumnType::Int => "bigint",
        ColumnType::Float => "double",
        ColumnType::Text => "text",
        ColumnType::Bool => "boolean",
    }
}

/// Converts a value of the database; `None` if its type is not supported.
pub(super) fn value(cql: Option<CqlValue>) -> Option<Value> {
    Some(match cql {
        None => Value::Null,
        Some(CqlValue::BigInt(n)) => Value::Int(n),
        Some(CqlValue::Int(n)) => Value::Int(n.into()),
        Some(CqlValue::SmallInt(n)) => Value::Int(n.into()),
        Some(CqlValue::TinyInt(n)) => Value::Int(n.into()),
        Some(CqlValue::Double(x)) => Value::Float(x),
        Some(CqlValue::Float(x)) => Value::Float(x.into()),
        Some(CqlValue::Text(text) | CqlValue::Ascii(text)) => Value::Text(text),
        Some(CqlValue::Boolean(bit)) => Value::Bool(bit),
        Some(_) => return None,
    })
}

/// Layout of the tables.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) schema: Schema,
    pub(super) natives: Vec<Native>,
}

/// Returns the name of the table with labels and data, for CQL.
pub(super) fn data(options: &CassandraOptions) -> String {
    format!("\"{}\".\"{}_data\"", options.keyspace, options.table)
}

/// Returns the name of the table with metadata, for CQL.
pub(super) fn metadata(options: &CassandraOptions) -> String {
    format!("\"{}\".\"{}_metadata\"", options.keyspace, options.table)
}

/// Beginning of the comment on a metadata table that this crate created. The order of the columns
/// follows: the database sorts them by name.
const COMMENT: &str = "datapipes: ";

/// Reads the layout of the tables.
///
/// # Errors
/// `NotFound` if one is missing, `Shape` if one has another layout.
pub(super) async fn read(session: &Session, options: &CassandraOptions) -> Result<Layout> {
    let url = &options.url;
    let mut columns = Vec::new();
    for (suffix, wanted) in [
        (
            "data",
            &[("class", "bigint"), ("label", "blob"), ("data", "blob")][..],
        ),
        ("metadata", &[("label", "bigint")]),
    ] {
        let table = format!("{}_{suffix}", options.table);
        columns = columns_of(session, options, &table).await?;
        if columns.is_empty() {
            let what = match has_keyspace(session, options).await? {
                true => format!("table {table}"),
                false => format!("keyspace {}", options.keyspace),
            };
            return Err(Error::not_found(format!("{url}: there is no {what}")));
        }
        let key = columns
            .iter()
            .filter(|column| column.kind == "partition_key" || column.kind == "clustering");
        let key: Vec<_> = key.map(|column| (&*column.name, &*column.cql)).collect();
        if key != [("key", "uuid")] {
            let what = format!("{url}: the primary key of {table} is not key uuid");
            return Err(Error::shape(what));
        }
        for (name, cql) in wanted {
            let found = columns
                .iter()
                .find(|column| column.name == *name)
                .map(|column| &*column.cql);
            if found != Some(cql) {
                let found = found.map_or("is missing".to_owned(), |found| format!("is {found}"));
                let what = format!("{url}: column {name} of {table} {found}, not {cql}");
                return Err(Error::shape(what));
            }
        }
    }
    columns.retain(|column| column.name != "key" && column.name != "label");
    let order = order_of(session, options).await?;
    columns.sort_by_key(|column| {
        order
            .iter()
            .position(|name| *name == column.name)
            .unwrap_or(order.len())
    });
    let known = columns
        .into_iter()
        .filter_map(|column| Some((column.name, Native::named(&column.cql)?)));
    let (names, natives): (Vec<_>, Vec<_>) = known.unzip();
    let types = natives.iter().map(|native: &Native| native.column_type());
    Ok(Layout {
        schema: Schema {
            columns: names.into_iter().zip(types).collect(),
        },
        natives,
    })
}

/// Creates missing tables.
///
/// # Errors
/// `Shape` if the tables exist with other columns.
pub(super) async fn create(
    session: &Session,
    options: &CassandraOptions,
    schema: &Schema,
    replication: &Replication,
) -> Result<Layout> {
    schema.check().map_err(|error| error.within(&options.url))?;
    // A user who may only write to existing tables may not run `CREATE … IF NOT EXISTS`.
    match read(session, options).await {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        other => return fits(options, other?, schema),
    }
    if !has_keyspace(session, options).await? {
        let replication = match replication {
            Replication::Copies(copies) => {
                format!("'class': 'SimpleStrategy', 'replication_factor': {copies}")
            }
            Replication::ByDatacenter(centres) => {
                let centres = centres
                    .iter()
                    .map(|(name, copies)| format!(", '{}': {copies}", name.replace('\'', "''")));
                format!(
                    "'class': 'NetworkTopologyStrategy'{}",
                    centres.collect::<String>()
                )
            }
        };
        let keyspace = &options.keyspace;
        define(
            session,
            options,
            format!(
                "CREATE KEYSPACE IF NOT EXISTS \"{keyspace}\" WITH replication = {{{replication}}}"
            ),
        )
        .await?;
    }
    let data = data(options);
    define(
        session,
        options,
        format!(
            "CREATE TABLE IF NOT EXISTS {data} (key uuid PRIMARY KEY, class bigint, label blob, data blob)"
        ),
    )
    .await?;
    let columns = schema
        .columns
        .iter()
        .map(|(name, kind)| format!(", \"{name}\" {}", cql_name(*kind)));
    let columns: String = columns.collect();
    let names: Vec<_> = schema.columns.iter().map(|(name, _)| name).collect();
    let names = serde_json::to_string(&names).expect("strings can be written");
    define(
        session,
        options,
        format!(
            "CREATE TABLE IF NOT EXISTS {} (key uuid PRIMARY KEY, label bigint{columns}) WITH comment = '{COMMENT}{names}'",
            metadata(options)
        ),
    )
    .await?;
    fits(options, read(session, options).await?, schema)
}

fn fits(options: &CassandraOptions, layout: Layout, schema: &Schema) -> Result<Layout> {
    if layout.schema == *schema {
        return Ok(layout);
    }
    Err(Error::shape(format!(
        "{}: is there with other columns: {:?}",
        options.url, layout.schema.columns
    )))
}

/// Changes the schema, which takes longer than reading.
async fn define(session: &Session, options: &CassandraOptions, cql: String) -> Result<()> {
    let mut statement = Statement::new(cql);
    statement.set_request_timeout(Some(options.timeout.saturating_mul(6)));
    let done = session.query_unpaged(statement, ()).await;
    done.map(drop)
        .map_err(|error| fault::execution(&error).error(&options.url, &error))
}

struct Column {
    name: String,
    cql: String,
    kind: String,
}

async fn columns_of(
    session: &Session,
    options: &CassandraOptions,
    table: &str,
) -> Result<Vec<Column>> {
    let cql = "SELECT column_name, type, kind FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?";
    let rows = rows::<(String, String, String)>(session, options, cql, &[&options.keyspace, table])
        .await?;
    Ok(rows
        .into_iter()
        .map(|(name, cql, kind)| Column { name, cql, kind })
        .collect())
}

async fn has_keyspace(session: &Session, options: &CassandraOptions) -> Result<bool> {
    let cql = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?";
    Ok(
        !rows::<(String,)>(session, options, cql, &[&options.keyspace])
            .await?
            .is_empty(),
    )
}

/// Returns the metadata columns in the order in which they were given at creation; `None` for a
/// table that this crate did not create.
async fn order_of(session: &Session, options: &CassandraOptions) -> Result<Vec<String>> {
    let cql = "SELECT comment FROM system_schema.tables WHERE keyspace_name = ? AND table_name = ?";
    let table = format!("{}_metadata", options.table);
    let rows =
        rows::<(Option<String>,)>(session, options, cql, &[&options.keyspace, &table]).await?;
    let comment = rows
        .into_iter()
        .next()
        .and_then(|(comment,)| comment)
        .unwrap_or_default();
    let names = comment
        .strip_prefix(COMMENT)
        .and_then(|names| serde_json::from_str(names).ok());
    Ok(names.unwrap_or_default())
}

async fn rows<R>(
    session: &Session,
    options: &CassandraOptions,
    cql: &str,
    values: &[&str],
) -> Result<Vec<R>>
where
    R: for<'f, 'm> scylla::deserialize::row::DeserializeRow<'f, 'm>,
{
    let answer = session.query_unpaged(cql, values).await;
    let answer = answer.map_err(|error| fault::execution(&error).error(&options.url, &error))?;
    let odd = |error: &dyn std::fmt::Display| {
        Error::protocol(format!("{}: system_schema: {error}", options.url))
    };
    let rows = answer.into_rows_result().map_err(|error| odd(&error))?;
    let rows = rows.rows::<R>().map_err(|error| odd(&error))?;
    rows.map(|row| row.map_err(|error| odd(&error))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fit_their_columns_or_are_refused() {
        assert_eq!(
            Native::Int.cql(&Value::Int(7)),
            Some(Some(CqlValue::Int(7)))
        );
        assert_eq!(Native::Int.cql(&Value::Int(1 << 40)), None);
        assert_eq!(Native::TinyInt.cql(&Value::Int(128)), None);
        assert_eq!(Native::Text.cql(&Value::Int(7)), None);
        assert_eq!(Native::Ascii.cql(&Value::Text("ü".into())), None);
        assert_eq!(Native::Boolean.cql(&Value::Null), Some(None));
    }

    #[test]
    fn values_come_back_as_they_went() {
        let natives = [
            Native::BigInt,
            Native::Int,
            Native::Double,
            Native::Text,
            Native::Boolean,
        ];
        let values = [
            Value::Int(1),
            Value::Int(2),
            Value::Float(0.5),
            Value::Text("x".into()),
            Value::Bool(true),
        ];
        for (native, put) in natives.iter().zip(values) {
            assert_eq!(value(native.cql(&put).unwrap()), Some(put));
        }
        assert_eq!(value(Some(CqlValue::Empty)), None);
    }
}
