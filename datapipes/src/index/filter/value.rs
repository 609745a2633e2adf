//! Values that a filter compares columns with.

use std::cmp::Ordering;
use std::fmt;

/// A value of a column, and of a comparison with it.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Null.
    Null,
    /// A whole number.
    Int(i64),
    /// A number, not NaN: databases differ in the meaning of NaN.
    Float(f64),
    /// Text.
    Text(String),
    /// A truth value.
    Bool(bool),
    /// A whole number above the greatest `i64`; smaller ones are [`Value::Int`].
    UInt(u64),
}

impl Value {
    /// Compares two values; `None` if one is missing or NaN, or their types differ. Numbers are
    /// compared without rounding, also a whole number with a float, and text by its bytes.
    ///
    /// # Examples
    /// ```
    /// use std::cmp::Ordering;
    /// use datapipes::index::filter::Value;
    ///
    /// let (int, float) = (Value::Int((1 << 53) + 1), Value::Float((1u64 << 53) as f64));
    /// assert_eq!(int.compare(&float), Some(Ordering::Greater));
    /// assert_eq!(int.compare(&Value::Null), None);
    /// ```
    pub fn compare(&self, other: &Value) -> Option<Ordering> {
        match (self, other) {
            (Value::Float(a), Value::Float(b)) => a.partial_cmp(b),
            (Value::Float(a), _) => int_and_float(other.whole()?, *a).map(Ordering::reverse),
            (_, Value::Float(b)) => int_and_float(self.whole()?, *b),
            (Value::Text(a), Value::Text(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
            (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
            _ => Some(self.whole()?.cmp(&other.whole()?)),
        }
    }

    fn whole(&self) -> Option<i128> {
        match self {
            Value::Int(value) => Some((*value).into()),
            Value::UInt(value) => Some((*value).into()),
            _ => None,
        }
    }
}

/// Compares without rounding.
fn int_and_float(int: i128, float: f64) -> Option<Ordering> {
    const END: f64 = 18_446_744_073_709_551_616.0; // 2^64, above all whole numbers that are values
    match float {
        _ if float.is_nan() => None,
        _ if float >= END => Some(Ordering::Less),
        _ if float < -END => Some(Ordering::Greater),
        // The truncated part is exact, and so is the cast.
        _ => Some(
            int.cmp(&(float.trunc() as i128))
                .then(0.0.partial_cmp(&float.fract())?),
        ),
    }
}

wire_enum!(Value { 0 Null, 1 Int(value), 2 Float(value), 3 Text(value), 4 Bool(value), 5 UInt(value) });

/// Formats the value as in a filter: text in quotes, and a floating-point number different from a
/// whole one.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Int(value) => write!(f, "{value}"),
            Value::Float(value) => write!(f, "{value:?}"),
            Value::Text(value) => write!(f, "\"{}\"", value.replace('"', "\"\"")),
            Value::Bool(value) => write!(f, "{value}"),
            Value::UInt(value) => write!(f, "{value}"),
        }
    }
}

macro_rules! from {
    ($($type:ty => $variant:ident)*) => {$(
        impl From<$type> for Value {
            fn from(value: $type) -> Self {
                Value::$variant(value.into())
            }
        }
    )*};
}

from!(i8 => Int i16 => Int i32 => Int i64 => Int u8 => Int u16 => Int u32 => Int);
from!(f32 => Float f64 => Float bool => Bool &str => Text String => Text);

conversions! {
    |value: u64| -> Value { i64::try_from(value).map_or(Value::UInt(value), Value::Int) }
}

impl<V: Into<Value>> From<Option<V>> for Value {
    fn from(value: Option<V>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn numbers_compare_by_what_they_are_worth() {
        let compare = |a: Value, b: Value| a.compare(&b);
        let big = (1i64 << 53) + 1;
        let cases: [(Value, Value, Ordering); 11] = [
            (big.into(), ((1i64 << 53) as f64).into(), Ordering::Greater),
            (
                i64::MAX.into(),
                9_223_372_036_854_775_807.0.into(),
                Ordering::Less,
            ),
            (
                i64::MIN.into(),
                (-9_223_372_036_854_775_808.0).into(),
                Ordering::Equal,
            ),
            (i64::MIN.into(), f64::NEG_INFINITY.into(), Ordering::Greater),
            ((-2).into(), (-2.5).into(), Ordering::Greater),
            (2.5.into(), 2.into(), Ordering::Greater),
            (0.into(), (-0.0).into(), Ordering::Equal),
            (u64::MAX.into(), i64::MAX.into(), Ordering::Greater),
            (
                u64::MAX.into(),
                18_446_744_073_709_551_616.0.into(),
                Ordering::Less,
            ),
            (
                (1u64 << 63).into(),
                ((1u64 << 63) as f64).into(),
                Ordering::Equal,
            ),
            (5u64.into(), 5.into(), Ordering::Equal),
        ];
        for (a, b, order) in cases {
            assert_eq!(compare(a.clone(), b.clone()), Some(order), "{a} {b}");
            assert_eq!(compare(b.clone(), a.clone()), Some(order.reverse()));
        }
        assert_eq!(compare(1.into(), f64::NAN.into()), None);
        assert_eq!(compare("1".into(), 1.into()), None);
    }

    #[test]
    fn values_travel_to_other_processes() {
        for value in [
            Value::Null,
            (-1).into(),
            2.5.into(),
            "ü".into(),
            true.into(),
            u64::MAX.into(),
        ] {
            testing::check_wire(&value);
        }
    }
}
