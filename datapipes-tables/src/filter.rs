//! Conditions on the metadata of samples, with the semantics of SQL.

use std::cmp::Ordering;
use std::fmt;

use datapipes::{Error, ErrorKind, Result};
use futures::StreamExt;
use futures::stream::BoxStream;

use super::{ColumnType, Metadata, Schema, Table, Value, failing};

/// A condition on the metadata of a sample.
///
/// A filter is made of [`col`], or parsed from text, as in `age > 30 and sex = "f"`. The columns
/// are those of the [`Schema`], and `label`, the class of a sample.
///
/// The semantics are those of SQL: a comparison with a missing value is neither true nor false,
/// `not` of such a comparison is the same, and a sample matches only if the whole filter is true.
/// Whole numbers and floats are compared by value, without rounding; text is compared by its bytes.
///
/// # Examples
/// ```
/// use datapipes_tables::{Filter, col};
///
/// let filter = col("age").gt(30).and(col("sex").eq("f").or(col("site").is_in(["a", "b"])));
/// assert_eq!(filter.to_string(), r#"age > 30 and (sex = "f" or site in ("a", "b"))"#);
/// assert_eq!(filter.to_string().parse::<Filter>()?, filter);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Filter {
    /// A column compared with a value.
    Compare(String, Compare, Value),
    /// A column whose value is one of these.
    In(String, Vec<Value>),
    /// A column without a value.
    IsNull(String),
    /// The negation of a filter.
    Not(Box<Filter>),
    /// The conjunction of filters; true if empty.
    And(Vec<Filter>),
    /// The disjunction of filters; false if empty.
    Or(Vec<Filter>),
}

/// An operator that compares a column with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compare {
    /// `=`
    Eq,
    /// `!=`
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
}

/// A column in a filter; see [`col`].
#[derive(Clone, Debug)]
pub struct Column(String);

/// Begins a [`Filter`] on a column.
pub fn col(name: impl Into<String>) -> Column {
    Column(name.into())
}

impl Column {
    fn compare(self, how: Compare, value: impl Into<Value>) -> Filter {
        Filter::Compare(self.0, how, value.into())
    }
    /// Matches samples whose value equals `value`.
    pub fn eq(self, value: impl Into<Value>) -> Filter {
        self.compare(Compare::Eq, value)
    }
    /// Matches samples whose value differs from `value`.
    pub fn ne(self, value: impl Into<Value>) -> Filter {
        self.compare(Compare::Ne, value)
    }
    /// Matches samples whose value is less than `value`.
    pub fn lt(self, value: impl Into<Value>) -> Filter {
        self.compare(Compare::Lt, value)
    }
    /// Matches samples whose value is at most `value`.
    pub fn le(self, value: impl Into<Value>) -> Filter {
        self.compare(Compare::Le, value)
    }
    /// Matches samples whose value is greater than `value`.
    pub fn gt(self, value: impl Into<Value>) -> Filter {
        self.compare(Compare::Gt, value)
    }
    /// Matches samples whose value is at least `value`.
    pub fn ge(self, value: impl Into<Value>) -> Filter {
        self.compare(Compare::Ge, value)
    }
    /// Matches samples whose value is one of `values`.
    pub fn is_in<V: Into<Value>>(self, values: impl IntoIterator<Item = V>) -> Filter {
        Filter::In(self.0, values.into_iter().map(Into::into).collect())
    }
    /// Matches samples without a value.
    pub fn is_null(self) -> Filter {
        Filter::IsNull(self.0)
    }
}

/// Maximum nesting depth of conditions.
pub(super) const DEEPEST: usize = 64;

impl Filter {
    /// Returns a filter that matches every sample.
    pub fn all() -> Filter {
        Filter::And(Vec::new())
    }

    /// Returns the conjunction of this filter and another.
    pub fn and(self, other: Filter) -> Filter {
        match (self, other) {
            (Filter::And(mut terms), Filter::And(more)) => {
                terms.extend(more);
                Filter::And(terms)
            }
            (Filter::And(mut terms), other) => {
                terms.push(other);
                Filter::And(terms)
            }
            (this, Filter::And(terms)) => Filter::And(std::iter::once(this).chain(terms).collect()),
            (this, other) => Filter::And(vec![this, other]),
        }
    }

    /// Returns the disjunction of this filter and another.
    pub fn or(self, other: Filter) -> Filter {
        match self {
            Filter::Or(mut terms) => {
                terms.push(other);
                Filter::Or(terms)
            }
            this => Filter::Or(vec![this, other]),
        }
    }

    /// Returns the negation. If this filter is neither true nor false, neither is its negation.
    #[expect(
        clippy::should_implement_trait,
        reason = "it stands beside `and` and `or`"
    )]
    pub fn not(self) -> Filter {
        Filter::Not(Box::new(self))
    }

    /// Checks that the filter is valid for a schema.
    ///
    /// # Errors
    /// `NotFound` for a missing column; `Shape` for a comparison of different types, or with NaN;
    /// `Limit` for a filter that is nested deeper than 64 levels.
    pub fn check(&self, schema: &Schema) -> Result<()> {
        self.check_at(schema, 0)
    }

    fn check_at(&self, schema: &Schema, depth: usize) -> Result<()> {
        if depth > DEEPEST {
            return Err(Error::new(
                ErrorKind::Limit,
                format!("a filter of more than {DEEPEST} levels"),
            ));
        }
        let fits = |column: &str, value: &Value| {
            let kind = kind_of(schema, column)?;
            let number = |kind| matches!(kind, ColumnType::Int | ColumnType::Float);
            let right = match value {
                Value::Null => true,
                Value::Int(_) => number(kind),
                Value::Float(value) => number(kind) && !value.is_nan(),
                Value::Text(_) => kind == ColumnType::Text,
                Value::Bool(_) => kind == ColumnType::Bool,
            };
            if right {
                return Ok(());
            }
            let what = format!("the filter compares column {column:?} of {kind} with {value}");
            Err(Error::new(ErrorKind::Shape, what))
        };
        match self {
            Filter::Compare(column, _, value) => fits(column, value),
            Filter::In(column, values) => {
                kind_of(schema, column)?;
                values.iter().try_for_each(|value| fits(column, value))
            }
            Filter::IsNull(column) => kind_of(schema, column).map(drop),
            Filter::Not(inner) => inner.check_at(schema, depth + 1),
            Filter::And(terms) | Filter::Or(terms) => terms
                .iter()
                .try_for_each(|term| term.check_at(schema, depth + 1)),
        }
    }

    /// Returns the columns that the filter uses, each once, without `label`.
    pub fn columns(&self) -> Vec<&str> {
        let mut columns = Vec::new();
        self.each_column(&mut |name| {
            if name != LABEL && !columns.contains(&name) {
                columns.push(name);
            }
        });
        columns
    }

    fn each_column<'a>(&'a self, f: &mut impl FnMut(&'a str)) {
        match self {
            Filter::Compare(column, ..) | Filter::In(column, _) | Filter::IsNull(column) => {
                f(column)
            }
            Filter::Not(inner) => inner.each_column(f),
            Filter::And(terms) | Filter::Or(terms) => {
                terms.iter().for_each(|term| term.each_column(f))
            }
        }
    }

    /// Evaluates the filter for a sample; `None` if it is neither true nor false. `value_of`
    /// returns the value of a column, also of `label`.
    pub fn matches(&self, value_of: &dyn Fn(&str) -> Value) -> Option<bool> {
        match self {
            Filter::Compare(column, how, value) => {
                Some(how.holds(order(&value_of(column), value)?))
            }
            Filter::In(column, values) => {
                let found = value_of(column);
                any(values
                    .iter()
                    .map(|value| Some(order(&found, value)?.is_eq())))
            }
            Filter::IsNull(column) => Some(value_of(column) == Value::Null),
            Filter::Not(inner) => inner.matches(value_of).map(|truth| !truth),
            Filter::And(terms) => any(terms
                .iter()
                .map(|term| term.matches(value_of).map(|truth| !truth)))
            .map(|truth| !truth),
            Filter::Or(terms) => any(terms.iter().map(|term| term.matches(value_of))),
        }
    }
}

/// Name of the class in filters.
pub(super) const LABEL: &str = "label";

fn kind_of(schema: &Schema, column: &str) -> Result<ColumnType> {
    if column == LABEL {
        return Ok(ColumnType::Int);
    }
    Ok(schema.columns[schema.places(&[column])?[0]].1)
}

/// Returns Kleene's "or": true if one is true, else unknown if one is unknown.
fn any(truths: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut known = true;
    for truth in truths {
        match truth {
            Some(true) => return Some(true),
            Some(false) => {}
            None => known = false,
        }
    }
    known.then_some(false)
}

impl Compare {
    fn holds(self, order: Ordering) -> bool {
        match self {
            Compare::Eq => order.is_eq(),
            Compare::Ne => order.is_ne(),
            Compare::Lt => order.is_lt(),
            Compare::Le => order.is_le(),
            Compare::Gt => order.is_gt(),
            Compare::Ge => order.is_ge(),
        }
    }

    /// Returns the operator as written in a filter, and in SQL.
    pub(super) fn sign(self) -> &'static str {
        match self {
            Compare::Eq => "=",
            Compare::Ne => "!=",
            Compare::Lt => "<",
            Compare::Le => "<=",
            Compare::Gt => ">",
            Compare::Ge => ">=",
        }
    }
}

/// Compares two values; `None` if one is missing, or the types differ.
fn order(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Float(a), Value::Float(b)) => a.partial_cmp(b),
        (Value::Int(a), Value::Float(b)) => int_and_float(*a, *b),
        (Value::Float(a), Value::Int(b)) => int_and_float(*b, *a).map(Ordering::reverse),
        (Value::Text(a), Value::Text(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        _ => None,
    }
}

/// Compares without rounding.
fn int_and_float(int: i64, float: f64) -> Option<Ordering> {
    const END: f64 = 9_223_372_036_854_775_808.0; // 2^63
    match float {
        _ if float.is_nan() => None,
        _ if float >= END => Some(Ordering::Less),
        _ if float < -END => Some(Ordering::Greater),
        // The truncated part is exact, and so is the cast.
        _ => Some(
            int.cmp(&(float.trunc() as i64))
                .then(0.0.partial_cmp(&float.fract())?),
        ),
    }
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
            .filter(|column| !columns.contains(column)),
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

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Inside of another term, terms of lower precedence get parentheses.
        let join = |f: &mut fmt::Formatter<'_>, terms: &[Filter], word: &str, of_none: &str| {
            if terms.is_empty() {
                return f.write_str(of_none);
            }
            for (at, term) in terms.iter().enumerate() {
                f.write_str(if at == 0 { "" } else { word })?;
                match term {
                    Filter::And(_) | Filter::Or(_) => write!(f, "({term})")?,
                    _ => write!(f, "{term}")?,
                }
            }
            Ok(())
        };
        match self {
            Filter::Compare(column, how, value) => write!(f, "{column} {} {value}", how.sign()),
            Filter::In(column, values) => {
                write!(f, "{column} in (")?;
                for (at, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if at == 0 { "" } else { ", " })?;
                }
                f.write_str(")")
            }
            Filter::IsNull(column) => write!(f, "{column} is null"),
            Filter::Not(inner) => write!(f, "not ({inner})"),
            Filter::And(terms) => join(f, terms, " and ", "true"),
            Filter::Or(terms) => join(f, terms, " or ", "false"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth(filter: &str, value: impl Into<Value>) -> Option<bool> {
        let value = value.into();
        filter
            .parse::<Filter>()
            .unwrap()
            .matches(&move |_| value.clone())
    }

    #[test]
    fn what_is_not_there_is_neither_true_nor_false() {
        for filter in [
            "a = 1",
            "a != 1",
            "not a = 1",
            "a in (1)",
            "a not in (1)",
            "a = 1 and true",
            "a = 1 or false",
        ] {
            assert_eq!(truth(filter, Value::Null), None, "{filter}");
        }
        assert_eq!(truth("a = 1 and false", Value::Null), Some(false));
        assert_eq!(truth("a = 1 or true", Value::Null), Some(true));
        assert_eq!(truth("a is null", Value::Null), Some(true));
        assert_eq!(truth("a in ()", Value::Null), Some(false));
        assert_eq!(truth("a in (1, null)", 1), Some(true));
        assert_eq!(truth("a in (1, null)", 2), None);
    }

    #[test]
    fn numbers_compare_by_what_they_are_worth() {
        let big = (1i64 << 53) + 1;
        assert_eq!(
            order(&big.into(), &((1i64 << 53) as f64).into()),
            Some(Ordering::Greater)
        );
        assert_eq!(
            order(&i64::MAX.into(), &9_223_372_036_854_775_807.0.into()),
            Some(Ordering::Less)
        );
        assert_eq!(
            order(&i64::MIN.into(), &(-9_223_372_036_854_775_808.0).into()),
            Some(Ordering::Equal)
        );
        assert_eq!(
            order(&i64::MIN.into(), &f64::NEG_INFINITY.into()),
            Some(Ordering::Greater)
        );
        assert_eq!(order(&(-2).into(), &(-2.5).into()), Some(Ordering::Greater));
        assert_eq!(order(&2.5.into(), &2.into()), Some(Ordering::Greater));
        assert_eq!(order(&0.into(), &(-0.0).into()), Some(Ordering::Equal));
    }

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
