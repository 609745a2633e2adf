//! A row of any table.

use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Error, Result, Wire, wire_struct};
use rusqlite::types::ValueRef;

/// A value of SQLite, with its own type, whatever the type of its column.
#[derive(Clone, Debug, PartialEq, Wire)]
pub enum Cell {
    /// Null.
    Null,
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Real(f64),
    /// Text.
    Text(String),
    /// Bytes.
    Blob(Bytes),
}

impl Cell {
    /// Returns the integer, if the value is one.
    pub fn as_i64(&self) -> Option<i64> {
        datapipes::matching!(self, Cell::Int(value) => *value)
    }

    /// Returns the number, if the value is one; also an integer.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Cell::Int(value) => Some(*value as f64),
            Cell::Real(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns the text, if the value is text.
    pub fn as_str(&self) -> Option<&str> {
        datapipes::matching!(self, Cell::Text(value) => value)
    }

    /// Returns the bytes, if the value is bytes.
    pub fn as_bytes(&self) -> Option<&Bytes> {
        datapipes::matching!(self, Cell::Blob(value) => value)
    }

    pub(super) fn of(value: ValueRef<'_>) -> Result<Cell> {
        Ok(match value {
            ValueRef::Null => Cell::Null,
            ValueRef::Integer(value) => Cell::Int(value),
            ValueRef::Real(value) => Cell::Real(value),
            ValueRef::Text(text) => {
                Cell::Text(String::from_utf8(text.to_vec()).map_err(|error| {
                    let at = error.utf8_error().valid_up_to();
                    Error::corrupt(format!("text that is not UTF-8 at byte {at}"))
                })?)
            }
            ValueRef::Blob(bytes) => Cell::Blob(Bytes::copy_from_slice(bytes)),
        })
    }

    fn weight(&self) -> usize {
        size_of::<Cell>()
            + match self {
                Cell::Text(text) => text.len(),
                Cell::Blob(bytes) => bytes.len(),
                _ => 0,
            }
    }
}

/// A row: values by the names of their columns, in the order of the columns.
#[derive(Clone, Debug, PartialEq)]
pub struct SqliteRow {
    pub(super) names: Arc<[String]>,
    pub(super) cells: Vec<Cell>,
}

wire_struct!(SqliteRow { names, cells } by SqliteRow::new);

impl SqliteRow {
    fn new(names: Arc<[String]>, cells: Vec<Cell>) -> Result<Self, String> {
        match cells.len() == names.len() {
            true => Ok(SqliteRow { names, cells }),
            false => Err(format!("{} values of {} columns", cells.len(), names.len())),
        }
    }

    /// Returns the value of a column.
    ///
    /// # Errors
    /// `NotFound` if there is no such column.
    pub fn get(&self, name: &str) -> Result<&Cell> {
        let place = self.names.iter().position(|known| known == name);
        place
            .map(|place| &self.cells[place])
            .ok_or_else(|| no_column(name, &self.names))
    }

    /// Returns the value of a column, and leaves null in its place.
    ///
    /// # Errors
    /// The error of [`get`](SqliteRow::get).
    pub fn take(&mut self, name: &str) -> Result<Cell> {
        let place = self.names.iter().position(|known| known == name);
        let place = place.ok_or_else(|| no_column(name, &self.names))?;
        Ok(std::mem::replace(&mut self.cells[place], Cell::Null))
    }

    /// Returns names and values, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Cell)> {
        self.names.iter().map(String::as_str).zip(&self.cells)
    }

    /// Returns the row as JSON: bytes as hexadecimal digits in lower case, infinities as null.
    pub fn to_json(&self) -> serde_json::Map<String, serde_json::Value> {
        let value = |cell: &Cell| match cell {
            Cell::Null => serde_json::Value::Null,
            Cell::Int(value) => (*value).into(),
            Cell::Real(value) => (*value).into(),
            Cell::Text(text) => text.as_str().into(),
            Cell::Blob(bytes) => format!("{bytes:x}").into(),
        };
        self.iter()
            .map(|(name, cell)| (name.to_owned(), value(cell)))
            .collect()
    }

    pub(super) fn weight(&self) -> usize {
        size_of::<SqliteRow>() + self.cells.iter().map(Cell::weight).sum::<usize>()
    }
}

pub(super) fn no_column(name: &str, there: &[String]) -> Error {
    let there: Vec<String> = there.iter().map(|name| format!("{name:?}")).collect();
    Error::not_found(format!("no column {name:?}, but {}", there.join(", ")))
}
