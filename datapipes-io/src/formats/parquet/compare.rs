//! Comparison of Arrow's values with those of a filter.

use std::cmp::Ordering;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrowPrimitiveType};
use arrow_buffer::i256;
use arrow_schema::{DataType, TimeUnit};
use datapipes::index::filter::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A value of a filter, for columns of one type.
#[derive(Clone, Debug)]
pub(super) enum Literal {
    /// Null: the comparison is neither true nor false.
    Null,
    /// A number, text or truth value.
    Plain(Value),
    /// A decimal number: the digits, and the number of those after the point.
    Decimal(i256, i64),
    /// Nanoseconds since 1970.
    Instant(i128),
}

impl Literal {
    /// Converts a value for columns of a type; `None` if it cannot be compared with them.
    pub fn new(value: &Value, kind: &DataType) -> Option<Literal> {
        use DataType::*;
        let kind = match kind {
            Dictionary(_, values) => values,
            kind => kind,
        };
        let is_number = kind.is_integer() || kind.is_floating();
        let is_decimal = matches!(
            kind,
            Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..)
        );
        let is_text = matches!(kind, Utf8 | LargeUtf8 | Utf8View);
        let is_time = matches!(kind, Date32 | Date64 | Timestamp(..));
        let is_truth = *kind == Boolean;
        match value {
            Value::Null => {
                (is_number || is_decimal || is_text || is_time || is_truth).then_some(Literal::Null)
            }
            Value::Float(number) if number.is_nan() => None,
            // Larger than all decimals, or less.
            Value::Float(number) if is_decimal && number.is_infinite() => Some(Literal::Decimal(
                i256::from(number.signum() as i64),
                i64::from(i32::MIN),
            )),
            // The shortest digits that mean this float are those that were written.
            Value::Float(number) if is_decimal => decimal(&format!("{number:e}")),
            Value::Int(_) | Value::UInt(_) if is_decimal => decimal(&value.to_string()),
            Value::Text(text) if is_decimal => decimal(text),
            Value::Text(text) if is_time => {
                let has_zone = matches!(kind, Timestamp(_, Some(_)));
                instant(text, has_zone).map(Literal::Instant)
            }
            Value::Int(_) | Value::UInt(_) | Value::Float(_) => {
                is_number.then(|| Literal::Plain(value.clone()))
            }
            Value::Text(_) => is_text.then(|| Literal::Plain(value.clone())),
            Value::Bool(_) => is_truth.then(|| Literal::Plain(value.clone())),
        }
    }

    /// Returns the order of two values for columns of one type; `None` for null, and for decimals
    /// with another number of digits after the point. If all values of a list have an order with
    /// the first, they have one with each other.
    pub fn order(&self, other: &Literal) -> Option<Ordering> {
        match (self, other) {
            (Literal::Plain(one), Literal::Plain(other)) => one.compare(other),
            (Literal::Decimal(one, after), Literal::Decimal(other, same)) => {
                (after == same).then(|| one.cmp(other))
            }
            (Literal::Instant(one), Literal::Instant(other)) => Some(one.cmp(other)),
            _ => None,
        }
    }
}

/// Parses digits with an optional sign, point and exponent.
fn decimal(text: &str) -> Option<Literal> {
    let (number, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = whole.strip_prefix(['-', '+']).unwrap_or(whole);
    if !is_digits(unsigned) || !is_digits(part) || unsigned.len() + part.len() == 0 {
        return None;
    }
    let digits = i256::from_string(&format!("{}{part}", whole.trim_start_matches('+')))?;
    let exponent: i32 = exponent.parse().ok()?;
    Some(Literal::Decimal(
        digits,
        part.len() as i64 - i64::from(exponent),
    ))
}

/// Parses a date, or a date and a time, as nanoseconds since 1970. Columns with a zone also
/// understand a distance from UTC, and are in UTC without one.
fn instant(text: &str, zone: bool) -> Option<i128> {
    let (date, time) = (text.get(..10)?, text.get(10..)?);
    let time = time.strip_prefix(['T', ' ']);
    let has_zone = time.is_some_and(|time| time.contains(['Z', 'z', '+', '-']));
    let utc = if has_zone { "" } else { "Z" };
    let whole = match time {
        Some(time) => format!("{date}T{time}{utc}"),
        None if text.len() == 10 => format!("{date}T00:00:00Z"),
        None => return None,
    };
    let parsed = OffsetDateTime::parse(&whole, &Rfc3339).ok()?;
    (zone || !has_zone).then(|| parsed.unix_timestamp_nanos())
}

/// A function from the position of a value to its order; `None` if it is null or NaN.
pub(super) type Compared<'a> = Box<dyn Fn(usize) -> Option<Ordering> + 'a>;

/// Compares the values of an array, of the type that the literal was made for.
pub(super) fn compared<'a>(array: &'a dyn Array, literal: &'a Literal) -> Compared<'a> {
    let values = not_null(array, literal);
    let nulls = array.logical_nulls();
    Box::new(move |at| {
        let is_null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(at));
        if is_null { None } else { values(at) }
    })
}

fn not_null<'a>(array: &'a dyn Array, literal: &'a Literal) -> Compared<'a> {
    use DataType::*;
    match (array.data_type(), literal) {
        (Dictionary(..), _) => {
            let dictionary = array.as_any_dictionary();
            let values = dictionary.values();
            let order = compared(values, literal);
            let orders: Vec<_> = (0..values.len()).map(order).collect();
            let keys = dictionary.normalized_keys();
            Box::new(move |at| orders[keys[at]])
        }
        (Int8, Literal::Plain(value)) => number::<Int8Type>(array, value),
        (Int16, Literal::Plain(value)) => number::<Int16Type>(array, value),
        (Int32, Literal::Plain(value)) => number::<Int32Type>(array, value),
        (Int64, Literal::Plain(value)) => number::<Int64Type>(array, value),
        (UInt8, Literal::Plain(value)) => number::<UInt8Type>(array, value),
        (UInt16, Literal::Plain(value)) => number::<UInt16Type>(array, value),
        (UInt32, Literal::Plain(value)) => number::<UInt32Type>(array, value),
        (UInt64, Literal::Plain(value)) => number::<UInt64Type>(array, value),
        (Float16, Literal::Plain(value)) => {
            let array = array.as_primitive::<Float16Type>();
            Box::new(|at| Value::Float(array.value(at).to_f64()).compare(value))
        }
        (Float32, Literal::Plain(value)) => number::<Float32Type>(array, value),
        (Float64, Literal::Plain(value)) => number::<Float64Type>(array, value),
        (Boolean, Literal::Plain(value)) => {
            let array = array.as_boolean();
            Box::new(|at| Value::Bool(array.value(at)).compare(value))
        }
        (Utf8, Literal::Plain(Value::Text(text))) => {
            let array = array.as_string::<i32>();
            Box::new(|at| Some(array.value(at).cmp(text)))
        }
        (LargeUtf8, Literal::Plain(Value::Text(text))) => {
            let array = array.as_string::<i64>();
            Box::new(|at| Some(array.value(at).cmp(text)))
        }
        (Utf8View, Literal::Plain(Value::Text(text))) => {
            let array = array.as_string_view();
            Box::new(|at| Some(array.value(at).cmp(text)))
        }
        (Decimal32(_, scale), Literal::Decimal(digits, after)) => {
            decimals::<Decimal32Type>(array, i256::from, scaled(*scale, *digits, *after))
        }
        (Decimal64(_, scale), Literal::Decimal(digits, after)) => {
            decimals::<Decimal64Type>(array, i256::from, scaled(*scale, *digits, *after))
        }
        (Decimal128(_, scale), Literal::Decimal(digits, after)) => {
            decimals::<Decimal128Type>(array, i256::from_i128, scaled(*scale, *digits, *after))
        }
        (Decimal256(_, scale), Literal::Decimal(digits, after)) => {
            decimals::<Decimal256Type>(array, |digits| digits, scaled(*scale, *digits, *after))
        }
        (Date32, Literal::Instant(instant)) => {
            time::<Date32Type>(array, 86_400_000_000_000, *instant)
        }
        (Date64, Literal::Instant(instant)) => time::<Date64Type>(array, 1_000_000, *instant),
        (Timestamp(unit, _), Literal::Instant(instant)) => match unit {
            TimeUnit::Second => time::<TimestampSecondType>(array, 1_000_000_000, *instant),
            TimeUnit::Millisecond => time::<TimestampMillisecondType>(array, 1_000_000, *instant),
            TimeUnit::Microsecond => time::<TimestampMicrosecondType>(array, 1000, *instant),
            TimeUnit::Nanosecond => time::<TimestampNanosecondType>(array, 1, *instant),
        },
        // A comparison with null is never true. Columns of other types have no literal.
        _ => Box::new(|_| None),
    }
}

fn number<'a, T: ArrowPrimitiveType>(array: &'a dyn Array, value: &'a Value) -> Compared<'a>
where
    Value: From<T::Native>,
{
    let array = array.as_primitive::<T>();
    Box::new(|at| Value::from(array.value(at)).compare(value))
}

fn decimals<'a, T: ArrowPrimitiveType>(
    array: &'a dyn Array,
    digits: fn(T::Native) -> i256,
    order: impl Fn(i256) -> Ordering + 'a,
) -> Compared<'a> {
    let array = array.as_primitive::<T>();
    Box::new(move |at| Some(order(digits(array.value(at)))))
}

fn time<T: ArrowPrimitiveType>(array: &dyn Array, nanos: i128, instant: i128) -> Compared<'_>
where
    i128: From<T::Native>,
{
    let array = array.as_primitive::<T>();
    Box::new(move |at| Some((i128::from(array.value(at)) * nanos).cmp(&instant)))
}

/// Returns the order of numbers with `scale` digits after the point and a number with `after`.
fn scaled(scale: i8, digits: i256, after: i64) -> impl Fn(i256) -> Ordering {
    let more = i64::from(scale) - after;
    let ten = i256::from_i128(10);
    let power = u32::try_from(more.unsigned_abs()).ok();
    let power = power.and_then(|power| ten.checked_pow(power));
    let times = move |number: i256| {
        if number == i256::ZERO {
            return Some(number);
        }
        number.checked_mul(power?)
    };
    move |number| {
        let (left, right) = match more >= 0 {
            true => (Some(number), times(digits)),
            false => (times(number), Some(digits)),
        };
        match (left, right) {
            (Some(left), Some(right)) => left.cmp(&right),
            // Too large for 256 bits: its sign decides.
            (None, _) => number.cmp(&i256::ZERO),
            (_, None) => i256::ZERO.cmp(&digits),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{Decimal128Array, TimestampMillisecondArray};

    use super::*;

    fn orders(array: &dyn Array, value: impl Into<Value>) -> Vec<Option<Ordering>> {
        let literal = Literal::new(&value.into(), array.data_type()).unwrap();
        let compared = compared(array, &literal);
        (0..array.len()).map(compared).collect()
    }

    #[test]
    fn decimals_compare_with_the_digits_that_were_written() {
        use Ordering::{Equal, Greater, Less};
        let prices = Decimal128Array::from(vec![Some(80), Some(-5), None, Some(10_i128.pow(37))])
            .with_precision_and_scale(38, 2)
            .unwrap();
        let equal = [Some(Equal), Some(Less), None, Some(Greater)];
        for value in [
            Value::from(0.8),
            "0.80".into(),
            "+8e-1".into(),
            "800e-3".into(),
        ] {
            assert_eq!(orders(&prices, value.clone()), equal, "{value}");
        }
        let more = [Some(Less), Some(Less), None, Some(Greater)];
        assert_eq!(orders(&prices, "0.8000000000000000000000000000001"), more);
        assert_eq!(orders(&prices, 1), more);
        let less = [Some(Greater), Some(Less), None, Some(Greater)];
        assert_eq!(orders(&prices, 0), less);
        assert_eq!(orders(&prices, 1e-300), less);
        for (value, order) in [(f64::INFINITY, Less), (-1e300, Greater), (1e300, Less)] {
            let all = [Some(order), Some(order), None, Some(order)];
            assert_eq!(orders(&prices, value), all, "{value}");
        }
        for wrong in ["", ".", "1.2.3", "e5", "1e", "one", "--1"] {
            assert!(
                Literal::new(&wrong.into(), prices.data_type()).is_none(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn times_compare_with_text() {
        use Ordering::{Equal, Greater, Less};
        let noon = 1_709_208_000_000; // 2024-02-29T12:00:00Z
        let naive = TimestampMillisecondArray::from(vec![noon, noon - 1, noon + 1]);
        for text in ["2024-02-29T12:00:00", "2024-02-29 12:00:00.000"] {
            assert_eq!(orders(&naive, text), [Equal, Less, Greater].map(Some));
        }
        assert_eq!(
            orders(&naive, "2024-02-29T12:00:00.0005"),
            [Less, Less, Greater].map(Some)
        );
        assert_eq!(orders(&naive, "2024-02-29"), [Greater; 3].map(Some));
        let with_zone = "2024-02-29T13:00:00+01:00";
        assert!(Literal::new(&with_zone.into(), naive.data_type()).is_none());
        let zoned = naive.clone().with_timezone("Europe/Berlin");
        for text in [with_zone, "2024-02-29T12:00:00Z", "2024-02-29T12:00:00"] {
            assert_eq!(orders(&zoned, text), [Equal, Less, Greater].map(Some));
        }
        assert!(Literal::new(&"yesterday".into(), naive.data_type()).is_none());
        assert!(Literal::new(&5.into(), naive.data_type()).is_none());
    }
}
