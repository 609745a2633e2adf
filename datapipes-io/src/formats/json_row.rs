//! Rows of tables whose column types are not known in advance.

/// A row of a table: values by the names of their columns.
///
/// Columns are in the order of their names, not of the table, unless `serde_json` is built with
/// `preserve_order`.
pub type Row = serde_json::Map<String, serde_json::Value>;
