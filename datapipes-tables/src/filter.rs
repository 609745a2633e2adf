//! Filters on the metadata of samples.

use datapipes::index::filter::{Columns, Filter, Value};
use datapipes::{Error, Result};
use futures::StreamExt;
use futures::stream::BoxStream;

use super::{ColumnType, Metadata, Schema, Table, failing};

/// Name of the class in filters.
pub(super) const LABEL: &str = "label";

/// Checks the columns of the schema, and `label`, the class of a sample. A comparison of different
/// types, or with NaN, is the error `Shape`.
impl Columns for Schema {
    fn check(&self, column: &str, value: Option<&Value>) -> Result<()> {
        let kind = kind_of(self, column)?;
        let is_number = matches!(kind, ColumnType::Int | ColumnType::Float);
        let (fits, value) = match value {
            None | Some(Value::Null) => return Ok(()),
            Some(value @ (Value::Int(_) | Value::UInt(_))) => (is_number, value),
            Some(value @ Value::Float(number)) => (is_number && !number.is_nan(), value),
            Some(value @ Value::Text(_)) => (kind == ColumnType::Text, value),
            Some(value @ Value::Bool(_)) => (kind == ColumnType::Bool, value),
        };
        let what = || format!("the filter compares column {column:?} of {kind} with {value}");
        fits.then_some(()).ok_or_else(|| Error::shape(what()))
    }
}

fn kind_of(schema: &Schema, column: &str) -> Result<ColumnType> {
    if column == LABEL {
        return Ok(ColumnType::Int);
    }
    Ok(schema.columns[schema.places(&[column])?[0]].1)
}

/// Implements [`Table::find`] for databases that do not filter.
pub(super) fn scan_and_filter<T: Table + ?Sized>(
    table: &T,
    columns: &[&str],
    filter: &Filter,
) -> BoxStream<'static, Result<Metadata>> {
    if let Err(error) = filter.check(table.schema()) {
        return failing(error.within(table.url()));
    }
    let mut asked = columns.to_vec();
    asked.extend(
        filter
            .columns()
            .into_iter()
            .filter(|column| *column != LABEL && !columns.contains(column)),
    );
    let (names, wanted): (Vec<String>, _) = (
        asked.iter().map(|&name| name.to_owned()).collect(),
        columns.len(),
    );
    let filter = filter.clone();
    let keep = move |found: &Metadata| {
        let value_of = |column: &str| match names.iter().position(|name| name == column) {
            Some(place) => found.values[place].clone(),
            None => found.class.into(),
        };
        filter.matches(&value_of) == Some(true)
    };
    let kept = table.scan(&asked).filter_map(move |found| {
        let found = match found {
            Ok(found) if !keep(&found) => None,
            Ok(mut found) => {
                found.values.truncate(wanted);
                Some(Ok(found))
            }
            Err(error) => Some(Err(error)),
        };
        std::future::ready(found)
    });
    kept.boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::col;
    use datapipes::ErrorKind;

    #[test]
    fn what_cannot_be_compared_is_found_before() {
        let schema = Schema::new([("age", ColumnType::Int), ("sex", ColumnType::Text)]);
        let check = |filter: Filter| {
            filter
                .check(&schema)
                .map_err(|error| (error.kind(), error.to_string()))
        };
        assert_eq!(
            check(
                "age > 1.5 and sex in ('f', null) or label = 3"
                    .parse()
                    .unwrap()
            ),
            Ok(())
        );
        assert_eq!(check(col("age").eq("x")).unwrap_err().0, ErrorKind::Shape);
        assert_eq!(
            check(col("age").lt(f64::NAN)).unwrap_err().0,
            ErrorKind::Shape
        );
        let (kind, words) = check(col("size").is_null()).unwrap_err();
        assert_eq!(
            (kind, &*words),
            (
                ErrorKind::NotFound,
                r#"not found: no column "size"; there are: "age", "sex""#
            )
        );
        let deep = (0..100).fold(col("age").eq(1), |filter, _| filter.not());
        assert_eq!(check(deep).unwrap_err().0, ErrorKind::Limit);
    }
}
