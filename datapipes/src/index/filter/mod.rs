//! Conditions on the columns of data, with the semantics of SQL.
//!
//! The code is pure: it knows no data. A table of a database translates a [`Filter`], or evaluates
//! it ([`Filter::matches`]); a file format also evaluates it for statistics, to leave out what
//! cannot match ([`Filter::evaluate`]).

mod parse;
mod value;

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use crate::{Error, Result};
pub use value::Value;

/// A condition on the columns of a row, or on the metadata of a sample.
///
/// A filter is made of [`col`], or parsed from text, as in `age > 30 and sex = 'f'`.
///
/// The semantics are the same as in SQL. A comparison with a missing value or NaN is neither true
/// nor false, and neither is its negation. A row matches only if the whole filter is true. Whole
/// numbers and floats are compared by value, without rounding; text is compared by its bytes.
///
/// In text, `or` has the lowest precedence, then `and`, then `not`. A comparison has a column and a
/// value, with `=` (or `==`), `!=` (or `<>`), `<`, `<=`, `>`, `>=`, `[not] in (…)`, `is [not]
/// null`. Text is in single or double quotes, and a quote inside is written twice. Keywords may be
/// in any case. `true` and `false` alone are filters, too. A column is words of letters, digits and
/// `_`, with dots between them; any other name, or a keyword, is in backticks, and a backtick inside
/// is written twice.
///
/// # Examples
/// ```
/// use datapipes::index::filter::{Filter, col};
///
/// let filter = col("age").gt(30).and(col("sex").eq("f").or(col("site").is_in(["a", "b"])));
/// assert_eq!(filter.to_string(), r#"age > 30 and (sex = "f" or site in ("a", "b"))"#);
/// assert_eq!(filter.to_string().parse::<Filter>()?, filter);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
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

/// Columns that a filter may name, for [`Filter::check`].
pub trait Columns {
    /// Checks that a column exists, and can be compared with a value if there is one.
    ///
    /// # Errors
    /// `NotFound` for a missing column; `Shape` for a value of another type.
    fn check(&self, column: &str, value: Option<&Value>) -> Result<()>;
}

/// Implemented so that shared columns are columns too.
impl<C: Columns + ?Sized> Columns for Arc<C> {
    fn check(&self, column: &str, value: Option<&Value>) -> Result<()> {
        (**self).check(column, value)
    }
}

/// Maximum nesting depth of conditions.
const DEEPEST: usize = 64;

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

    /// Checks that the filter is valid for these columns.
    ///
    /// # Errors
    /// The errors of [`Columns::check`]; `Limit` for a filter that is nested deeper than 64 levels.
    pub fn check(&self, columns: &(impl Columns + ?Sized)) -> Result<()> {
        self.check_at(columns, 0)
    }

    fn check_at(&self, columns: &(impl Columns + ?Sized), depth: usize) -> Result<()> {
        if depth > DEEPEST {
            let what = format!("a filter of more than {DEEPEST} levels");
            return Err(Error::limit(what));
        }
        match self {
            Filter::Compare(column, _, value) => columns.check(column, Some(value)),
            Filter::In(column, values) => {
                columns.check(column, None)?;
                let mut values = values.iter();
                values.try_for_each(|value| columns.check(column, Some(value)))
            }
            Filter::IsNull(column) => columns.check(column, None),
            Filter::Not(inner) => inner.check_at(columns, depth + 1),
            Filter::And(terms) | Filter::Or(terms) => terms
                .iter()
                .try_for_each(|term| term.check_at(columns, depth + 1)),
        }
    }

    /// Returns the columns that the filter uses, each once.
    pub fn columns(&self) -> Vec<&str> {
        let mut columns = Vec::new();
        self.each_column(&mut |name| {
            if !columns.contains(&name) {
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

    /// Evaluates the filter for a row; `None` if it is neither true nor false. `value_of` returns
    /// the value of a column.
    pub fn matches(&self, value_of: &dyn Fn(&str) -> Value) -> Option<bool> {
        match self {
            Filter::Compare(column, how, value) => {
                Some(how.holds(value_of(column).compare(value)?))
            }
            Filter::In(column, values) => {
                let found = value_of(column);
                any(values
                    .iter()
                    .map(|value| Some(found.compare(value)?.is_eq())))
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

    /// Evaluates the filter for many rows at once; `None` marks a row for which it is neither true
    /// nor false. `leaf` evaluates a comparison, `in` or `is null` for all rows.
    ///
    /// Leaves may also stand for statistics of a part of the data. `Some(false)` then means that
    /// the leaf is true for no row of the part, `Some(true)` that it is false for none, and `None`
    /// that nothing is known. The result has the same meaning.
    ///
    /// # Errors
    /// The first error of `leaf`.
    ///
    /// # Panics
    /// If `leaf` returns another number of values.
    ///
    /// # Examples
    /// ```
    /// use datapipes::index::filter::Filter;
    ///
    /// let ages = [Some(20), Some(40), None];
    /// let filter: Filter = "not age > 30".parse()?;
    /// let truths = filter.evaluate(3, &mut |_| Ok(ages.map(|age| Some(age? > 30)).to_vec()))?;
    /// assert_eq!(truths, [Some(true), Some(false), None]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn evaluate(
        &self,
        rows: usize,
        leaf: &mut dyn FnMut(&Filter) -> Result<Vec<Option<bool>>>,
    ) -> Result<Vec<Option<bool>>> {
        let (terms, negated) = match self {
            Filter::Compare(..) | Filter::In(..) | Filter::IsNull(_) => {
                let truths = leaf(self)?;
                assert_eq!(truths.len(), rows, "a truth value for each row");
                return Ok(truths);
            }
            Filter::Not(inner) => (std::slice::from_ref(&**inner), true),
            Filter::And(terms) => (&terms[..], true),
            Filter::Or(terms) => (&terms[..], false),
        };
        // "And" is the negation of an "or" of negated terms.
        let negated_terms = matches!(self, Filter::And(_));
        let negate = |truth: Option<bool>, negated| truth.map(|truth| truth != negated);
        let mut all = vec![Some(false); rows];
        for term in terms {
            for (truth, one) in all.iter_mut().zip(term.evaluate(rows, leaf)?) {
                *truth = any([*truth, negate(one, negated_terms)].into_iter());
            }
        }
        all.iter_mut()
            .for_each(|truth| *truth = negate(*truth, negated));
        Ok(all)
    }
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
    /// Returns true if the operator holds for a column and a value in this order.
    pub fn holds(self, order: Ordering) -> bool {
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
    pub fn sign(self) -> &'static str {
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
            Filter::Compare(column, how, value) => {
                write!(f, "{} {} {value}", parse::quoted_name(column), how.sign())
            }
            Filter::In(column, values) => {
                write!(f, "{} in (", parse::quoted_name(column))?;
                for (at, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if at == 0 { "" } else { ", " })?;
                }
                f.write_str(")")
            }
            Filter::IsNull(column) => write!(f, "{} is null", parse::quoted_name(column)),
            Filter::Not(inner) => write!(f, "not ({inner})"),
            Filter::And(terms) => join(f, terms, " and ", "true"),
            Filter::Or(terms) => join(f, terms, " or ", "false"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

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

    /// The columns `age`, a number, and `sex`, text.
    struct People;

    impl Columns for People {
        fn check(&self, column: &str, value: Option<&Value>) -> Result<()> {
            let fits = match column {
                "age" => !matches!(value, Some(Value::Text(_))),
                "sex" => matches!(value, None | Some(Value::Text(_) | Value::Null)),
                _ => return Err(Error::not_found(column.to_owned())),
            };
            let shape = || Error::shape(column.to_owned());
            fits.then_some(()).ok_or_else(shape)
        }
    }

    #[test]
    fn columns_and_levels_are_checked() {
        let check = |filter: Filter| filter.check(&People).map_err(|error| error.kind());
        let fine = "age > 1.5 and sex in ('f', null) or not age is null";
        assert_eq!(check(fine.parse().unwrap()), Ok(()));
        assert_eq!(check(col("age").eq("x")), Err(ErrorKind::Shape));
        assert_eq!(
            check("not sex in ('f', 1)".parse().unwrap()),
            Err(ErrorKind::Shape)
        );
        assert_eq!(check(col("size").is_null()), Err(ErrorKind::NotFound));
        let none: [i64; 0] = [];
        assert_eq!(check(col("size").is_in(none)), Err(ErrorKind::NotFound));
        let deep = (0..100).fold(col("age").eq(1), |filter, _| filter.not());
        assert_eq!(check(deep), Err(ErrorKind::Limit));
    }

    #[test]
    fn many_rows_are_evaluated_as_each_of_them() {
        let rows = [Value::Null, 1.into(), 2.into(), f64::NAN.into()];
        for text in [
            "a = 1",
            "not a = 1",
            "a in (1, null) or a is null",
            "not (a > 1 and a < 3)",
            "a > 1 and not a = 2 or not a is null",
            "true",
            "false",
        ] {
            let filter: Filter = text.parse().unwrap();
            let value = |row: &Value| {
                let row = row.clone();
                move |_: &str| row.clone()
            };
            let each: Vec<_> = rows.iter().map(|row| filter.matches(&value(row))).collect();
            let mut leaf =
                |leaf: &Filter| Ok(rows.iter().map(|row| leaf.matches(&value(row))).collect());
            assert_eq!(
                filter.evaluate(rows.len(), &mut leaf).unwrap(),
                each,
                "{text}"
            );
        }
    }
}
