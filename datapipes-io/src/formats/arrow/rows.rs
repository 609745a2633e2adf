//! Record batches as rows: Arrow's types converted to JSON.

use arrow_array::cast::AsArray;
use arrow_array::temporal_conversions::NANOSECONDS;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, IntervalUnit, TimeUnit};
use datapipes::{Error, Result};
use serde_json::{Number, Value};

use super::guard::guarded;
use crate::formats::{FileEntries, FileEntry, Row};

/// Returns the rows of batches; a row larger than `most` is an error.
pub(in crate::formats) fn rows(
    mut batches: FileEntries<RecordBatch>,
    most: u64,
) -> FileEntries<Row> {
    let mut current: Option<(RecordBatch, usize)> = None;
    Box::new(std::iter::from_fn(move || {
        loop {
            match &mut current {
                Some((batch, next)) if *next < batch.num_rows() => {
                    *next += 1;
                    return Some(FileEntry::from_result(row(batch, *next - 1, most)));
                }
                _ => current = None,
            }
            match batches.next()? {
                FileEntry::Item(_, batch) => match unique_names(&batch) {
                    Err(error) => return Some(FileEntry::Bad(None, error)),
                    Ok(()) => current = Some((batch, 0)),
                },
                FileEntry::Bad(name, error) => return Some(FileEntry::Bad(name, error)),
                FileEntry::Broken(error) => return Some(FileEntry::Broken(error)),
                FileEntry::Skip(items) => return Some(FileEntry::Skip(items)),
            }
        }
    }))
}

/// Returns the number of rows or errors that [`rows`] makes of a batch.
pub(super) fn count(batch: &Result<RecordBatch>) -> u64 {
    match batch {
        Ok(batch) if unique_names(batch).is_ok() => batch.num_rows() as u64,
        _ => 1,
    }
}

/// Checks that no two columns have one name.
pub(in crate::formats) fn unique_names(batch: &RecordBatch) -> Result<()> {
    let mut names = std::collections::HashSet::new();
    let mut fields = batch.schema_ref().fields().iter().map(|field| field.name());
    match fields.find(|name| !names.insert(*name)) {
        Some(name) => {
            let what = format!("two columns are called {name:?}");
            Err(Error::unsupported(what))
        }
        None => Ok(()),
    }
}

/// Returns a row of a batch, of at most about `most` bytes.
pub(in crate::formats) fn row(batch: &RecordBatch, index: usize, most: u64) -> Result<Row> {
    guarded("Arrow", || {
        let mut maker = Maker { left: most, most };
        let fields = batch.schema_ref().fields().iter().zip(batch.columns());
        let cell = |(field, column): (&arrow_schema::FieldRef, &ArrayRef)| {
            let value = maker.value(column.as_ref(), index);
            let at = |error: Error| error.within(format_args!("column {:?}", field.name()));
            Ok((field.name().clone(), value.map_err(at)?))
        };
        fields.map(cell).collect()
    })
}

struct Maker {
    /// Remaining number of bytes. Lists of shared parts expand to much larger values, so the output
    /// is counted.
    left: u64,
    most: u64,
}

impl Maker {
    fn take(&mut self, bytes: usize) -> Result<()> {
        let taken = self.left.checked_sub(bytes as u64);
        self.left = taken.ok_or_else(|| {
            let what = format!("a row of more than {} bytes", self.most);
            Error::limit(what)
        })?;
        Ok(())
    }

    fn text(&mut self, text: &str) -> Result<Value> {
        self.take(text.len())?;
        Ok(text.into())
    }

    fn hex(&mut self, bytes: &[u8]) -> Result<Value> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.take(2 * bytes.len())?;
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        Ok(digits
            .map(|digit| char::from(DIGITS[usize::from(digit)]))
            .collect::<String>()
            .into())
    }

    fn list(&mut self, items: &dyn Array) -> Result<Value> {
        (0..items.len())
            .map(|at| self.value(items, at))
            .collect::<Result<Vec<_>>>()
            .map(Value::Array)
    }

    /// Converts a value of an array to JSON; see [`ArrowRows`](super::ArrowRows).
    fn value(&mut self, array: &dyn Array, at: usize) -> Result<Value> {
        self.take(size_of::<Value>())?;
        if array.is_null(at) {
            return Ok(Value::Null);
        }
        Ok(match array.data_type() {
            DataType::Null => Value::Null,
            DataType::Boolean => array.as_boolean().value(at).into(),
            DataType::Int8 => number::<Int8Type>(array, at).into(),
            DataType::Int16 => number::<Int16Type>(array, at).into(),
            DataType::Int32 => number::<Int32Type>(array, at).into(),
            DataType::Int64 => number::<Int64Type>(array, at).into(),
            DataType::UInt8 => number::<UInt8Type>(array, at).into(),
            DataType::UInt16 => number::<UInt16Type>(array, at).into(),
            DataType::UInt32 => number::<UInt32Type>(array, at).into(),
            DataType::UInt64 => number::<UInt64Type>(array, at).into(),
            DataType::Float16 => float(number::<Float16Type>(array, at).to_f64()),
            DataType::Float32 => float(number::<Float32Type>(array, at).into()),
            DataType::Float64 => float(number::<Float64Type>(array, at)),
            DataType::Decimal32(_, _) => decimal::<Decimal32Type>(array, at),
            DataType::Decimal64(_, _) => decimal::<Decimal64Type>(array, at),
            DataType::Decimal128(_, _) => decimal::<Decimal128Type>(array, at),
            DataType::Decimal256(_, _) => decimal::<Decimal256Type>(array, at),
            DataType::Utf8 => self.text(array.as_string::<i32>().value(at))?,
            DataType::LargeUtf8 => self.text(array.as_string::<i64>().value(at))?,
            DataType::Utf8View => self.text(array.as_string_view().value(at))?,
            DataType::Binary => self.hex(array.as_binary::<i32>().value(at))?,
            DataType::LargeBinary => self.hex(array.as_binary::<i64>().value(at))?,
            DataType::BinaryView => self.hex(array.as_binary_view().value(at))?,
            DataType::FixedSizeBinary(_) => self.hex(array.as_fixed_size_binary().value(at))?,
            DataType::Date32 => date::<Date32Type>(array, at),
            DataType::Date64 => date::<Date64Type>(array, at),
            DataType::Time32(TimeUnit::Second) => time::<Time32SecondType>(array, at),
            DataType::Time32(_) => time::<Time32MillisecondType>(array, at),
            DataType::Time64(TimeUnit::Microsecond) => time::<Time64MicrosecondType>(array, at),
            DataType::Time64(_) => time::<Time64NanosecondType>(array, at),
            DataType::Timestamp(unit, zone) => timestamp(array, at, *unit, zone.is_some()),
            DataType::Duration(unit) => duration(array, at, *unit),
            DataType::Interval(unit) => interval(array, at, *unit),
            DataType::List(_) => self.list(&array.as_list::<i32>().value(at))?,
            DataType::LargeList(_) => self.list(&array.as_list::<i64>().value(at))?,
            DataType::ListView(_) => self.list(&array.as_list_view::<i32>().value(at))?,
            DataType::LargeListView(_) => self.list(&array.as_list_view::<i64>().value(at))?,
            DataType::FixedSizeList(_, _) => self.list(&array.as_fixed_size_list().value(at))?,
            DataType::Struct(fields) => {
                let fields = fields.iter().zip(array.as_struct().columns());
                let cell = |(field, column): (&arrow_schema::FieldRef, &ArrayRef)| {
                    self.take(field.name().len())?;
                    Ok((field.name().clone(), self.value(column, at)?))
                };
                Value::Object(fields.map(cell).collect::<Result<_>>()?)
            }
            DataType::Map(_, _) => {
                let entries = array.as_map().value(at);
                self.map(entries.column(0), entries.column(1))?
            }
            DataType::Dictionary(_, _) => {
                let dictionary = array.as_any_dictionary();
                let key = self.value(dictionary.keys(), at)?.as_u64();
                let key = key.and_then(|key| usize::try_from(key).ok());
                let key = key.expect("keys of dictionaries are checked when read");
                self.value(dictionary.values(), key)?
            }
            DataType::RunEndEncoded(ends, _) => match ends.data_type() {
                DataType::Int16 => self.run::<Int16Type>(array, at)?,
                DataType::Int32 => self.run::<Int32Type>(array, at)?,
                _ => self.run::<Int64Type>(array, at)?,
            },
            DataType::Union(_, _) => self.value(&array.as_union().value(at), 0)?,
        })
    }

    fn run<R: RunEndIndexType>(&mut self, array: &dyn Array, at: usize) -> Result<Value> {
        let runs = array.as_run::<R>();
        self.value(runs.values(), runs.get_physical_index(at))
    }

    fn map(&mut self, keys: &dyn Array, values: &dyn Array) -> Result<Value> {
        let mut pairs = Vec::new();
        let mut texts = matches!(
            keys.data_type(),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
        );
        for at in 0..keys.len() {
            let key = self.value(keys, at)?;
            texts &= key.is_string();
            pairs.push((key, self.value(values, at)?));
        }
        Ok(match texts {
            true => {
                let text = |key| {
                    if let Value::String(key) = key {
                        key
                    } else {
                        String::new()
                    }
                };
                Value::Object(
                    pairs
                        .into_iter()
                        .map(|(key, value)| (text(key), value))
                        .collect(),
                )
            }
            false => pairs
                .into_iter()
                .map(|(key, value)| Value::Array(vec![key, value]))
                .collect(),
        })
    }
}

fn number<T: ArrowPrimitiveType>(array: &dyn Array, at: usize) -> T::Native {
    array.as_primitive::<T>().value(at)
}

fn decimal<T: DecimalType>(array: &dyn Array, at: usize) -> Value {
    array.as_primitive::<T>().value_as_string(at).into()
}

/// Converts a float; NaN and infinities are null.
fn float(value: f64) -> Value {
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

fn date<T: ArrowTemporalType>(array: &dyn Array, at: usize) -> Value
where
    i64: From<T::Native>,
{
    let date = array.as_primitive::<T>().value_as_date(at);
    text_or_number::<T>(array, at, date.map(|date| format!("{date:?}")))
}

fn time<T: ArrowTemporalType>(array: &dyn Array, at: usize) -> Value
where
    i64: From<T::Native>,
{
    let time = array.as_primitive::<T>().value_as_time(at);
    text_or_number::<T>(array, at, time.map(|time| format!("{time:?}")))
}

fn timestamp(array: &dyn Array, at: usize, unit: TimeUnit, zone: bool) -> Value {
    fn stamp<T: ArrowTimestampType>(array: &dyn Array, at: usize, zone: bool) -> Value {
        let time = array.as_primitive::<T>().value_as_datetime(at);
        let zone = if zone { "Z" } else { "" };
        text_or_number::<T>(array, at, time.map(|time| format!("{time:?}{zone}")))
    }
    match unit {
        TimeUnit::Second => stamp::<TimestampSecondType>(array, at, zone),
        TimeUnit::Millisecond => stamp::<TimestampMillisecondType>(array, at, zone),
        TimeUnit::Microsecond => stamp::<TimestampMicrosecondType>(array, at, zone),
        TimeUnit::Nanosecond => stamp::<TimestampNanosecondType>(array, at, zone),
    }
}

/// Returns the text, or the number itself if it is outside of the calendar.
fn text_or_number<T: ArrowPrimitiveType>(
    array: &dyn Array,
    at: usize,
    text: Option<String>,
) -> Value
where
    i64: From<T::Native>,
{
    text.map_or_else(|| i64::from(number::<T>(array, at)).into(), Value::from)
}

fn duration(array: &dyn Array, at: usize, unit: TimeUnit) -> Value {
    let (length, nanos) = match unit {
        TimeUnit::Second => (number::<DurationSecondType>(array, at), NANOSECONDS),
        TimeUnit::Millisecond => (number::<DurationMillisecondType>(array, at), 1_000_000),
        TimeUnit::Microsecond => (number::<DurationMicrosecondType>(array, at), 1000),
        TimeUnit::Nanosecond => (number::<DurationNanosecondType>(array, at), 1),
    };
    format!("PT{}S", seconds(i128::from(length) * i128::from(nanos))).into()
}

fn interval(array: &dyn Array, at: usize, unit: IntervalUnit) -> Value {
    let (months, days, nanos) = match unit {
        IntervalUnit::YearMonth => {
            return format!("P{}M", number::<IntervalYearMonthType>(array, at)).into();
        }
        IntervalUnit::DayTime => {
            let value = number::<IntervalDayTimeType>(array, at);
            (0, value.days, i128::from(value.milliseconds) * 1_000_000)
        }
        IntervalUnit::MonthDayNano => {
            let value = number::<IntervalMonthDayNanoType>(array, at);
            (value.months, value.days, i128::from(value.nanoseconds))
        }
    };
    format!("P{months}M{days}DT{}S", seconds(nanos)).into()
}

/// Formats nanoseconds as seconds, with as many decimal places as necessary.
fn seconds(nanos: i128) -> String {
    let (sign, nanos) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
    let (whole, part) = (nanos / NANOSECONDS as u128, nanos % NANOSECONDS as u128);
    let text = format!("{sign}{whole}.{part:09}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
