//! Statistics of row groups and pages, and the truth of a comparison that they imply.
//!
//! For each part of the data: `Some(false)` means that the comparison is true for no row of it,
//! `Some(true)` that it is false for none, `None` that nothing is known, as in
//! [`Filter::evaluate`](datapipes::index::filter::Filter::evaluate).

use std::cmp::Ordering::{self, Equal, Greater, Less};

use arrow_array::{Array, ArrayRef, UInt64Array};
use arrow_schema::Field;
use datapipes::index::filter::{Compare, Value};
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::basic::{ColumnOrder, SortOrder, Type};
use parquet::bloom_filter::Sbbf;
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;

use super::compare::{Literal, compared};
use super::thrift::{I32, Reader};

/// Statistics of a column in some parts of the data. Null stands for unknown.
pub(super) struct Bounds {
    mins: ArrayRef,
    maxes: ArrayRef,
    nulls: UInt64Array,
    rows: Vec<u64>,
}

impl Bounds {
    /// Returns the statistics of a row group; `None` if there are none that can be trusted.
    pub fn of_group(
        metadata: &ParquetMetaData,
        leaf: usize,
        field: &Field,
        group: usize,
    ) -> Option<Bounds> {
        let group = metadata.row_group(group);
        // Writers of the deprecated fields did not agree on the order of texts and unsigned
        // numbers.
        group.column(leaf).statistics().filter(|known| {
            let has_no_bounds = known.min_bytes_opt().or(known.max_bytes_opt()).is_none();
            has_no_bounds || !known.is_min_max_deprecated()
        })?;
        let known = converter(metadata, leaf, field)?;
        let groups = [group];
        Some(Bounds {
            mins: known.row_group_mins(groups).ok()?,
            maxes: known.row_group_maxes(groups).ok()?,
            nulls: known.row_group_null_counts(groups).ok()?,
            rows: vec![u64::try_from(group.num_rows()).ok()?],
        })
    }

    /// Returns the statistics of the pages of a row group, which have these numbers of rows; `None`
    /// if there are none that can be trusted.
    pub fn of_pages(
        metadata: &ParquetMetaData,
        leaf: usize,
        field: &Field,
        group: usize,
        rows: Vec<u64>,
    ) -> Option<Bounds> {
        let index = metadata.page_index()?.as_ref();
        index.column_index(group, leaf)?;
        let known = converter(metadata, leaf, field)?;
        let bounds = Bounds {
            mins: known.data_page_mins(index, [&group]).ok()?,
            maxes: known.data_page_maxes(index, [&group]).ok()?,
            nulls: known.data_page_null_counts(index, [&group]).ok()?,
            rows,
        };
        let lengths = [bounds.mins.len(), bounds.maxes.len(), bounds.nulls.len()];
        (lengths == [bounds.rows.len(); 3]).then_some(bounds)
    }

    /// Returns the truth of a comparison with a value, as far as it is known.
    pub fn compare(&self, how: Compare, literal: &Literal) -> Vec<Option<bool>> {
        if matches!(literal, Literal::Null) {
            return vec![Some(false); self.rows.len()];
        }
        let mins = compared(&self.mins, literal);
        let maxes = compared(&self.maxes, literal);
        let truth = |at: usize| match self.null(at) {
            Some(true) => Some(false),
            _ => truth(how, mins(at), maxes(at)),
        };
        (0..self.rows.len()).map(truth).collect()
    }

    /// Returns the truth of `is null`, as far as it is known.
    pub fn is_null(&self) -> Vec<Option<bool>> {
        (0..self.rows.len()).map(|at| self.null(at)).collect()
    }

    /// Returns true if all values are null, false if none is.
    fn null(&self, at: usize) -> Option<bool> {
        let nulls = self.nulls.is_valid(at).then(|| self.nulls.value(at))?;
        match nulls {
            0 => Some(false),
            nulls if nulls == self.rows[at] => Some(true),
            _ => None,
        }
    }
}

/// Returns the truth for all values between the least and the greatest, by the orders of these two.
fn truth(how: Compare, min: Option<Ordering>, max: Option<Ordering>) -> Option<bool> {
    let not = |truth: Option<bool>| truth.map(|truth| !truth);
    match how {
        Compare::Eq => match (min, max) {
            (Some(Greater), _) | (_, Some(Less)) => Some(false),
            (Some(Equal), Some(Equal)) => Some(true),
            _ => None,
        },
        Compare::Lt => match (min, max) {
            (Some(Greater | Equal), _) => Some(false),
            (_, Some(Less)) => Some(true),
            _ => None,
        },
        Compare::Le => match (min, max) {
            (Some(Greater), _) => Some(false),
            (_, Some(Less | Equal)) => Some(true),
            _ => None,
        },
        Compare::Ne => not(truth(Compare::Eq, min, max)),
        Compare::Ge => not(truth(Compare::Lt, min, max)),
        Compare::Gt => not(truth(Compare::Le, min, max)),
    }
}

/// Returns the reader of a column's statistics; `None` if the file does not tell their order.
fn converter<'a>(
    metadata: &'a ParquetMetaData,
    leaf: usize,
    field: &'a Field,
) -> Option<StatisticsConverter<'a>> {
    let file = metadata.file_metadata();
    let order = file.column_orders()?.get(leaf)?;
    let is_known = match order {
        ColumnOrder::TYPE_DEFINED_ORDER(order) => *order != SortOrder::UNDEFINED,
        ColumnOrder::IEEE_754_TOTAL_ORDER => true,
        _ => false,
    };
    let known = StatisticsConverter::from_column_index(leaf, field, file.schema_descr());
    let known = known.map_err(|_: ParquetError| ()).ok()?;
    is_known.then(|| known.with_missing_null_counts_as_zero(false))
}

/// The Bloom filter of a column in a row group: values that it does not have.
pub(super) struct Bloom {
    filter: Sbbf,
    stored: Type,
}

impl Bloom {
    /// Reads a Bloom filter; `None` if it is not as long as it states, since it would then exclude
    /// values that are there.
    pub fn read(data: &[u8], stored: Type) -> Option<Bloom> {
        let (mut reader, mut length) = (Reader::new(data), None);
        reader.fields(|reader, field, kind| {
            if (field, kind) != (1, I32) {
                return Some(false);
            }
            length = usize::try_from(reader.i32()?).ok();
            Some(true)
        })?;
        let bits = data.get(reader.at()..)?;
        let is_whole = length == Some(bits.len()) && !bits.is_empty() && bits.len() % 32 == 0;
        is_whole.then(|| Bloom {
            filter: Sbbf::new(bits),
            stored,
        })
    }

    /// Returns true if no value equals a literal.
    pub fn excludes(&self, literal: &Literal, field: &Field) -> bool {
        let Literal::Plain(value) = literal else {
            return false;
        };
        let whole = match value {
            Value::Int(value) => i128::from(*value),
            Value::UInt(value) => i128::from(*value),
            Value::Text(text) => {
                return self.stored == Type::BYTE_ARRAY && !self.filter.check(text.as_str());
            }
            _ => return false,
        };
        // Unsigned numbers are stored as the signed ones with the same bits.
        let is_unsigned = field.data_type().is_unsigned_integer();
        let int = match is_unsigned {
            true => u32::try_from(whole).ok().map(|value| value as i32),
            false => i32::try_from(whole).ok(),
        };
        let long = match is_unsigned {
            true => u64::try_from(whole).ok().map(|value| value as i64),
            false => i64::try_from(whole).ok(),
        };
        let found = match self.stored {
            Type::INT32 => int.map(|value| self.filter.check(&value)),
            Type::INT64 => long.map(|value| self.filter.check(&value)),
            _ => None,
        };
        found == Some(false)
    }
}
