//! The rows of a file that match a filter: those that statistics cannot exclude, and of them those
//! whose values match.

use std::cmp::Ordering;
use std::ops::Range;
use std::slice;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, Fields, SchemaRef};
use bytes::Bytes;
use datapipes::index::filter::{Columns, Compare, Filter, Value};
use datapipes::{Error, Result};
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::file::reader::ChunkReader;

use super::compare::{Literal, compared};
use super::layout::{Layout, count};
use super::next_batch;
use super::prune::{Bloom, Bounds};
use crate::formats::arrow::{guarded, no_column};

/// Number of rows whose columns of the filter are decoded at once.
pub(super) const FILTER_ROWS: usize = 8192;

/// A filter, for the columns of a file.
#[derive(Clone, Debug)]
pub(super) struct RowFilter {
    filter: Arc<Filter>,
    columns: Arc<[Column]>,
    /// The layout of the filter's columns alone.
    layout: Layout,
}

/// A column of a filter.
#[derive(Debug)]
struct Column {
    name: String,
    field: Field,
    /// The column of the file with the statistics, if they are of the rows.
    leaf: Option<usize>,
    /// True if the filter asks for values that equal another.
    is_equal: bool,
}

impl RowFilter {
    /// Finds the columns of a filter in a file.
    ///
    /// # Errors
    /// `NotFound` if there is no such column; `Shape` for a value that cannot be compared with it.
    pub fn new(filter: &Filter, file: &Layout) -> Result<RowFilter> {
        let schema = file.arrow_schema();
        filter.check(&FileColumns(schema))?;
        let mut equal = Vec::new();
        // For no rows, this visits all comparisons.
        filter.evaluate(0, &mut |leaf| {
            let is_equal = matches!(leaf, Filter::Compare(_, Compare::Eq, _) | Filter::In(..));
            equal.extend(is_equal.then(|| name_of(leaf).to_owned()));
            Ok(Vec::new())
        })?;
        let (mut columns, mut leaves) = (Vec::new(), Vec::new());
        for name in filter.columns() {
            let field = field(schema, name)?;
            let own = file.leaves_of(name);
            let leaf = match own[..] {
                [leaf] if !field.data_type().is_nested() => Some(leaf),
                _ => None,
            };
            // A column of lists has a value for each element.
            let leaf = leaf.filter(|&leaf| file.schema().column(leaf).max_rep_level() == 0);
            columns.push(Column {
                name: name.to_owned(),
                field,
                leaf,
                is_equal: equal.iter().any(|column| column == name),
            });
            leaves.extend(own);
        }
        leaves.sort_unstable();
        leaves.dedup();
        Ok(RowFilter {
            filter: Arc::new(filter.clone()),
            columns: columns.into(),
            layout: file.with_statistics(leaves),
        })
    }

    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Returns the layout of the filter's columns.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the filter with the page index of its columns, if there is one.
    pub fn with_index<R: ChunkReader>(&self, source: &R) -> Result<RowFilter> {
        let layout = match self.layout.index_ranges() {
            Some(_) => self.layout.with_index(source)?,
            None => self.layout.clone(),
        };
        Ok(RowFilter {
            layout,
            ..self.clone()
        })
    }

    fn column(&self, leaf: &Filter) -> &Column {
        let name = name_of(leaf);
        let column = self.columns.iter().find(|column| column.name == name);
        column.expect("all columns of the filter were found")
    }

    /// Returns the ranges of the Bloom filters of a row group that may help to exclude it.
    pub fn bloom_ranges(&self, group: usize) -> Result<Vec<Range<u64>>> {
        let columns = self.columns.iter().filter(|column| column.is_equal);
        let ranges = columns.filter_map(|column| self.layout.bloom_range(group, column.leaf?));
        let ranges: Vec<_> = ranges.collect();
        match ranges.is_empty() || self.excludes(group, &Bytes::new())? {
            true => Ok(Vec::new()),
            false => Ok(ranges),
        }
    }

    /// Returns true if no row of a row group matches, by its statistics and those of its Bloom
    /// filters that are in `source`.
    fn excludes<R: ChunkReader>(&self, group: usize, source: &R) -> Result<bool> {
        let metadata = self.layout.metadata();
        let truth = self.filter.evaluate(1, &mut |leaf| {
            let column = self.column(leaf);
            let bounds = column
                .leaf
                .and_then(|leaf| known(|| Bounds::of_group(metadata, leaf, &column.field, group)));
            let bloom = column.leaf.filter(|_| column.is_equal).and_then(|leaf| {
                let range = self.layout.bloom_range(group, leaf)?;
                let length = (range.end - range.start) as usize;
                let data = source.get_bytes(range.start, length).ok()?;
                let stored = metadata.row_group(group).column(leaf).column_type();
                known(|| Bloom::read(&data, stored))
            });
            column.bounded(leaf, bounds, bloom, 1)
        })?;
        Ok(truth == [Some(false)])
    }

    /// Returns the ranges of rows of a row group that may match, by the statistics of the row group
    /// and its pages, and by the Bloom filters that are in `source`.
    pub fn candidates<R: ChunkReader>(
        &self,
        group: usize,
        source: &R,
    ) -> Result<Vec<Range<usize>>> {
        let (rows, metadata) = (self.layout.rows(group), self.layout.metadata());
        if rows == 0 || self.excludes(group, source)? {
            return Ok(Vec::new());
        }
        if !self.layout.has_pages() {
            return Ok(slice::from_ref(&(0..rows)).to_vec());
        }
        // The parts of the row group between the beginnings of pages of any column.
        let pages = self.layout.pages(group, slice::from_ref(&(0..rows)))?;
        let starts = pages.iter().flat_map(|column| &column.pages);
        let mut starts: Vec<usize> = starts.map(|page| page.rows.start).collect();
        starts.sort_unstable();
        starts.dedup();
        let truths = self.filter.evaluate(starts.len(), &mut |leaf| {
            let column = self.column(leaf);
            let pages = pages.iter().find(|pages| Some(pages.leaf) == column.leaf);
            let Some(pages) = pages.map(|column| &column.pages) else {
                return Ok(vec![None; starts.len()]);
            };
            let bounds = column.leaf.and_then(|leaf| {
                let rows = pages.iter().map(|page| page.rows.len() as u64).collect();
                known(|| Bounds::of_pages(metadata, leaf, &column.field, group, rows))
            });
            let truths = column.bounded(leaf, bounds, None, pages.len())?;
            let page_of = |start: &usize| pages.partition_point(|page| page.rows.end <= *start);
            Ok(starts.iter().map(|start| truths[page_of(start)]).collect())
        })?;
        let ends = starts.iter().skip(1).copied().chain([rows]);
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for ((&start, end), truth) in starts.iter().zip(ends).zip(truths) {
            match ranges.last_mut() {
                _ if truth == Some(false) => {}
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        Ok(ranges)
    }

    /// Returns the rows of a row group that match, from the filter's columns of these rows.
    pub fn matching(
        &self,
        mut columns: ParquetRecordBatchReader,
        candidates: &[Range<usize>],
    ) -> Result<Vec<usize>> {
        let mut rows = candidates.iter().cloned().flatten();
        let mut left = count(candidates);
        let mut matching = Vec::new();
        while left > 0 {
            let batch = next_batch(&mut columns)?.filter(|batch| batch.num_rows() > 0);
            let batch = batch.filter(|batch| batch.num_rows() <= left);
            let batch = batch.ok_or_else(|| {
                Error::corrupt(format!("{left} rows of the filter's columns are missing"))
            })?;
            left -= batch.num_rows();
            let truths = self.truths(&batch)?;
            let rows = rows.by_ref().take(truths.len());
            let kept = rows.zip(truths).filter(|(_, truth)| *truth == Some(true));
            matching.extend(kept.map(|(row, _)| row));
        }
        Ok(matching)
    }

    /// Evaluates the filter for each row of a batch.
    fn truths(&self, batch: &RecordBatch) -> Result<Vec<Option<bool>>> {
        let rows = batch.num_rows();
        self.filter.evaluate(rows, &mut |leaf| {
            let column = self.column(leaf);
            let (values, nulls) = values_of(batch, &column.name)?;
            let is_null = |at| nulls.as_ref().is_some_and(|nulls| nulls.is_null(at));
            if let Filter::In(_, list) = leaf
                && let Some(is_in) = column.sorted_list(list)?
            {
                let is_in = is_in.truths(&values);
                let truth = |at| if is_null(at) { None } else { is_in(at) };
                return Ok((0..rows).map(truth).collect());
            }
            let compare = |how: Compare, literal: &Literal| {
                let order = compared(&values, literal);
                let truth = |at| match is_null(at) {
                    true => None,
                    false => order(at).map(|order| how.holds(order)),
                };
                (0..rows).map(truth).collect()
            };
            let nulls = || (0..rows).map(|at| Some(is_null(at))).collect();
            column.truths(leaf, rows, compare, nulls)
        })
    }
}

impl Column {
    /// Returns what statistics say of a comparison in a number of parts of the data.
    fn bounded(
        &self,
        leaf: &Filter,
        bounds: Option<Bounds>,
        bloom: Option<Bloom>,
        parts: usize,
    ) -> Result<Vec<Option<bool>>> {
        // Writers may count the rows without a value above a nested column, or not.
        let is_top = self.field.name() == &self.name;
        let nulls = || match bounds.as_ref().filter(|_| is_top) {
            Some(bounds) => bounds.is_null(),
            None => vec![None; parts],
        };
        let compare = |how: Compare, literal: &Literal| {
            let bloom = bloom.as_ref();
            let is_absent = bloom.is_some_and(|bloom| bloom.excludes(literal, &self.field));
            match (how, &bounds) {
                (Compare::Eq, _) if is_absent => vec![Some(false); parts],
                (_, Some(bounds)) => bounds.compare(how, literal),
                (_, None) => vec![None; parts],
            }
        };
        self.truths(leaf, parts, compare, nulls)
    }

    /// Returns a list of an `in` in ascending order; `None` if it has no order, or nothing to look up.
    fn sorted_list(&self, list: &[Value]) -> Result<Option<SortedList>> {
        let kind = self.field.data_type();
        let literal =
            |value| Literal::new(value, kind).ok_or_else(|| incomparable(&self.name, kind, value));
        let mut values = list.iter().map(literal).collect::<Result<Vec<_>>>()?;
        values.retain(|value| !matches!(value, Literal::Null));
        let has_null = values.len() < list.len();
        if values.is_empty() || values.iter().any(|value| value.order(&values[0]).is_none()) {
            return Ok(None);
        }
        values.sort_by(|one, other| one.order(other).expect("they have an order"));
        Ok(Some(SortedList { values, has_null }))
    }

    /// Evaluates a comparison, `in` or `is null` by functions for a value and for nulls.
    fn truths(
        &self,
        leaf: &Filter,
        length: usize,
        compare: impl Fn(Compare, &Literal) -> Vec<Option<bool>>,
        nulls: impl Fn() -> Vec<Option<bool>>,
    ) -> Result<Vec<Option<bool>>> {
        let one = |how: Compare, value: &Value| {
            let kind = self.field.data_type();
            let literal = Literal::new(value, kind);
            let literal = literal.ok_or_else(|| incomparable(&self.name, kind, value))?;
            datapipes::Ok(compare(how, &literal))
        };
        match leaf {
            Filter::Compare(_, how, value) => one(*how, value),
            Filter::In(name, values) => {
                let equal =
                    |value: &Value| Filter::Compare(name.clone(), Compare::Eq, value.clone());
                let any = Filter::Or(values.iter().map(equal).collect());
                any.evaluate(length, &mut |leaf| match leaf {
                    Filter::Compare(_, how, value) => one(*how, value),
                    _ => unreachable!("all terms are comparisons"),
                })
            }
            _ => Ok(nulls()),
        }
    }
}

/// The values of an `in` in ascending order, in which a row is looked up by halving.
struct SortedList {
    values: Vec<Literal>,
    /// True if the list has a null: no row is known not to be in it.
    has_null: bool,
}

impl SortedList {
    /// Returns a function from the position of a value to whether it is in the list.
    fn truths<'a>(&'a self, array: &'a dyn Array) -> impl Fn(usize) -> Option<bool> + 'a {
        let orders: Vec<_> = self
            .values
            .iter()
            .map(|value| compared(array, value))
            .collect();
        let nulls = array.logical_nulls();
        move |at| {
            if nulls.as_ref().is_some_and(|nulls| nulls.is_null(at)) {
                return None;
            }
            let (mut low, mut high) = (0, orders.len());
            while low < high {
                let middle = low.midpoint(high);
                match orders[middle](at)? {
                    Ordering::Equal => return Some(true),
                    Ordering::Less => high = middle,
                    Ordering::Greater => low = middle + 1,
                }
            }
            (!self.has_null).then_some(false)
        }
    }
}

/// Returns statistics; none if the underlying reader cannot read them.
fn known<T>(read: impl FnOnce() -> Option<T>) -> Option<T> {
    guarded("Parquet", || Ok(read())).ok().flatten()
}

fn name_of(leaf: &Filter) -> &str {
    match leaf {
        Filter::Compare(name, ..) | Filter::In(name, _) | Filter::IsNull(name) => name,
        Filter::Not(_) | Filter::And(_) | Filter::Or(_) => unreachable!("it is no leaf"),
    }
}

/// The columns of a file. A filter may compare columns of plain types; of all others it may only ask
/// if they are null.
struct FileColumns<'a>(&'a SchemaRef);

impl Columns for FileColumns<'_> {
    fn check(&self, column: &str, value: Option<&Value>) -> Result<()> {
        let field = field(self.0, column)?;
        let kind = field.data_type();
        match value {
            Some(value) if Literal::new(value, kind).is_none() => {
                Err(incomparable(column, kind, value))
            }
            _ => Ok(()),
        }
    }
}

fn incomparable(column: &str, kind: &DataType, value: &Value) -> Error {
    let is_time = matches!(
        kind,
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..)
    );
    let hint = if is_time {
        "; write a time as \"2024-02-29\" or \"2024-02-29T12:00:00\""
    } else {
        ""
    };
    let what = format!("the filter compares column {column:?} of type {kind} with {value}{hint}");
    Error::shape(what)
}

/// Returns a column by its name, or its path with dots.
fn field(schema: &SchemaRef, name: &str) -> Result<Field> {
    let mut fields = schema.fields();
    let mut found = None;
    for at in path(fields, name)? {
        let field = &fields[at];
        if let DataType::Struct(inner) = field.data_type() {
            fields = inner;
        }
        found = Some(field.as_ref().clone());
    }
    Ok(found.expect("a path has a field"))
}

/// Returns the values of a column of a batch, and the nulls of the column and of all around it.
fn values_of(batch: &RecordBatch, name: &str) -> Result<(ArrayRef, Option<NullBuffer>)> {
    let path = path(batch.schema_ref().fields(), name)?;
    let mut values = Arc::clone(batch.column(path[0]));
    let mut nulls = values.logical_nulls();
    for at in &path[1..] {
        values = Arc::clone(values.as_struct().column(*at));
        nulls = NullBuffer::union(nulls.as_ref(), values.logical_nulls().as_ref());
    }
    Ok((values, nulls))
}

/// Returns the position of a column by its name, and of each nested one on the way to it.
fn path(fields: &Fields, name: &str) -> Result<Vec<usize>> {
    fn find(fields: &Fields, name: &str, above: &[usize], found: &mut Vec<Vec<usize>>) {
        for (at, field) in fields.iter().enumerate() {
            let here = || above.iter().copied().chain([at]).collect::<Vec<_>>();
            let rest = name.strip_prefix(field.name().as_str());
            match (rest, field.data_type()) {
                (Some(""), _) => found.push(here()),
                (Some(rest), DataType::Struct(inner)) => {
                    if let Some(rest) = rest.strip_prefix('.') {
                        find(inner, rest, &here(), found);
                    }
                }
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    find(fields, name, &[], &mut found);
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(no_column(
            name,
            fields.iter().map(|field| field.name().as_str()),
        )),
        _ => {
            let what = format!("two columns are called {name:?}");
            Err(Error::unsupported(what))
        }
    }
}

#[cfg(test)]
mod tests;
