//! The SQL of an SQLite table, and conversions of values.

use datapipes::{Error, Result};
use rusqlite::types::{ToSql, ToSqlOutput, Type, ValueRef};
use uuid::Uuid;

use crate::filter::LABEL;
use crate::{ColumnType, Filter, Label, Schema, Value};

/// Returns the statements that create the two tables of the paper: data and labels in one, metadata
/// in the other.
pub(super) fn create(table: &str, schema: &Schema) -> String {
    let columns: String = schema
        .columns
        .iter()
        .map(|(name, kind)| format!(", \"{name}\" {}", declared(*kind)))
        .collect();
    format!(
        "CREATE TABLE IF NOT EXISTS \"{table}_data\" (key BLOB PRIMARY KEY NOT NULL, label, data BLOB NOT NULL);\n\
         CREATE TABLE IF NOT EXISTS \"{table}_metadata\" (key BLOB PRIMARY KEY NOT NULL, label INTEGER{columns}) \
         WITHOUT ROWID;"
    )
}

fn declared(kind: ColumnType) -> &'static str {
    match kind {
        ColumnType::Int => "INTEGER",
        ColumnType::Float => "REAL",
        ColumnType::Text => "TEXT",
        ColumnType::Bool => "BOOLEAN",
    }
}

/// Returns the type of a column from the words of its declaration.
pub(super) fn column_type(declared: &str) -> Option<ColumnType> {
    match &*declared.to_ascii_uppercase() {
        "INTEGER" | "INT" | "BIGINT" => Some(ColumnType::Int),
        "REAL" | "DOUBLE" | "FLOAT" => Some(ColumnType::Float),
        "TEXT" => Some(ColumnType::Text),
        "BOOLEAN" | "BOOL" => Some(ColumnType::Bool),
        _ => None,
    }
}

/// Returns `?, ?, ?`.
pub(super) fn places(count: usize) -> String {
    let mut places = "?, ".repeat(count);
    places.truncate(places.len().saturating_sub(2));
    places
}

/// Returns a filter as a condition, and the values of its `?`. Names of columns were checked
/// before.
pub(super) fn condition<'a>(filter: &'a Filter, values: &mut Vec<&'a Value>) -> String {
    match filter {
        Filter::Compare(column, how, value) => {
            values.push(value);
            format!("{} {} ?", name(column), how.sign())
        }
        Filter::In(column, all) => {
            values.extend(all);
            format!("{} IN ({})", name(column), places(all.len()))
        }
        Filter::IsNull(column) => format!("{} IS NULL", name(column)),
        Filter::Not(inner) => format!("NOT ({})", condition(inner, values)),
        Filter::And(terms) => join(terms, "AND", "1", values),
        Filter::Or(terms) => join(terms, "OR", "0", values),
    }
}

fn name(column: &str) -> String {
    if column == LABEL {
        LABEL.to_owned()
    } else {
        format!("\"{column}\"")
    }
}

/// Joins terms in a tree of minimum depth: SQLite allows a depth of 1000.
fn join<'a>(terms: &'a [Filter], word: &str, of_none: &str, values: &mut Vec<&'a Value>) -> String {
    match terms {
        [] => of_none.to_owned(),
        [term] => format!("({})", condition(term, values)),
        _ => {
            let (left, right) = terms.split_at(terms.len() / 2);
            let left = join(left, word, of_none, values);
            format!("({left} {word} {})", join(right, word, of_none, values))
        }
    }
}

/// Returns a value as SQLite has it; it has no whole numbers above the greatest `i64`.
pub(super) fn bound(value: &Value) -> ToSqlOutput<'_> {
    ToSqlOutput::Borrowed(match value {
        Value::Null => ValueRef::Null,
        Value::Int(value) => ValueRef::Integer(*value),
        Value::UInt(value) => ValueRef::Real(*value as f64),
        Value::Float(value) => ValueRef::Real(*value),
        Value::Text(value) => ValueRef::Text(value.as_bytes()),
        Value::Bool(value) => ValueRef::Integer((*value).into()),
    })
}

impl ToSql for Label {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Label::None => ValueRef::Null,
            Label::Class(class) => ValueRef::Integer(*class),
            Label::Blob(blob) => ValueRef::Blob(blob),
        }))
    }
}

/// Returns the error of a value of another type than wanted.
fn not_a(found: ValueRef<'_>, wanted: &str) -> Error {
    let found = match found.data_type() {
        Type::Null => "nothing",
        Type::Integer => "a whole number",
        Type::Real => "a number",
        Type::Text => "text",
        Type::Blob => "bytes",
    };
    Error::shape(format!("{found} where {wanted} should be"))
}

pub(super) fn key(found: ValueRef<'_>) -> Result<Uuid> {
    match found {
        ValueRef::Blob(bytes) => {
            Uuid::from_slice(bytes).map_err(|_| not_a(found, "a key of 16 bytes"))
        }
        _ => Err(not_a(found, "a key of 16 bytes")),
    }
}

pub(super) fn label(found: ValueRef<'_>) -> Result<Label> {
    match found {
        ValueRef::Null => Ok(Label::None),
        ValueRef::Integer(class) => Ok(Label::Class(class)),
        ValueRef::Blob(blob) => Ok(Label::Blob(blob.to_vec().into())),
        _ => Err(not_a(found, "a label")),
    }
}

pub(super) fn data(found: ValueRef<'_>) -> Result<Vec<u8>> {
    match found {
        ValueRef::Blob(data) => Ok(data.to_vec()),
        _ => Err(not_a(found, "the data of a sample")),
    }
}

pub(super) fn class(found: ValueRef<'_>) -> Result<Option<i64>> {
    match found {
        ValueRef::Null => Ok(None),
        ValueRef::Integer(class) => Ok(Some(class)),
        _ => Err(not_a(found, "a class")),
    }
}

pub(super) fn value(found: ValueRef<'_>, column: &str, kind: ColumnType) -> Result<Value> {
    match (found, kind) {
        (ValueRef::Null, _) => Ok(Value::Null),
        (ValueRef::Integer(value), ColumnType::Int) => Ok(Value::Int(value)),
        (ValueRef::Real(value), ColumnType::Float) => Ok(Value::Float(value)),
        (ValueRef::Integer(value @ (0 | 1)), ColumnType::Bool) => Ok(Value::Bool(value == 1)),
        (ValueRef::Text(bytes), ColumnType::Text) => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Value::Text(text.to_owned())),
            Err(error) => {
                Err(Error::corrupt(format!("column {column:?} is not UTF-8")).with_source(error))
            }
        },
        _ => Err(not_a(found, &kind.to_string()).within(format!("column {column:?}"))),
    }
}
