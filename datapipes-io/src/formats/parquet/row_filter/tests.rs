//! Filters against the same filters in memory, what they read, and their errors.

use std::collections::BTreeMap;

use arrow_array::types::Int32Type;
use arrow_array::{
    BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float32Array, Float64Array,
    Int8Array, Int32Array, Int64Array, StringArray, StructArray, TimestampMicrosecondArray,
    UInt64Array,
};
use bytes::Bytes;
use datapipes::index::filter::col;
use datapipes::testing::cases;
use datapipes::{DataLoader, Graph, Indexed, Items, MapPipe};
use futures::StreamExt;
use futures::executor::block_on;
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::FileMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use proptest::prelude::*;

use super::*;
use crate::formats::arrow::column_tensor;
use crate::formats::parquet::layout::{TAIL, footer_length};
use crate::formats::{Parquet, ParquetFile, ParquetRows, Row};
use crate::stores::InMemory;
use crate::testing::{Scripted, check_format, read_all};
use crate::{File, FileGraphExt};
use datapipes::ErrorKind;

/// Values of a row, as a filter in memory sees them.
type Values = BTreeMap<&'static str, Value>;

/// Columns with whole numbers.
const WHOLE: [&str; 3] = ["small", "int", "big"];
/// Milliseconds of the first moment in the column `at`.
const MOMENT: i64 = 1_709_208_000_000;

fn moment(at: i64) -> String {
    format!("2024-02-29T12:00:{at:02}")
}

/// Returns the numbers as columns of many types; the values repeat, and some are null.
fn columns_of(numbers: &[Option<i64>]) -> (RecordBatch, Vec<Values>) {
    let map = |f: &dyn Fn(i64) -> Value| -> Vec<Value> {
        let value = |number: &Option<i64>| number.map_or(Value::Null, f);
        numbers.iter().map(value).collect()
    };
    fn of<T>(numbers: &[Option<i64>], f: impl Fn(i64) -> T) -> impl Iterator<Item = Option<T>> {
        numbers.iter().map(move |number| number.map(&f))
    }
    let nan = |n: i64| if n == 7 { f64::NAN } else { n as f64 / 4.0 };
    let text = |n: i64| format!("{}{n}", "prefix ".repeat(n.unsigned_abs() as usize % 3));
    let day = |n: i64| 19_000 + n as i32;
    let big = |n: i64| u64::MAX - 20 + n.unsigned_abs();
    let cents = Decimal128Array::from_iter(of(numbers, i128::from));
    let x: ArrayRef = Arc::new(Int64Array::from_iter(of(numbers, |n| n)));
    let nested = StructArray::from(vec![(Arc::new(Field::new("x", DataType::Int64, true)), x)]);
    let words: DictionaryArray<Int32Type> = of(numbers, text)
        .collect::<Vec<_>>()
        .iter()
        .map(Option::as_deref)
        .collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        (
            "row",
            Arc::new(Int64Array::from_iter_values(0..numbers.len() as i64)),
        ),
        (
            "small",
            Arc::new(Int8Array::from_iter(of(numbers, |n| n as i8))),
        ),
        (
            "int",
            Arc::new(Int32Array::from_iter(of(numbers, |n| n as i32))),
        ),
        ("big", Arc::new(UInt64Array::from_iter(of(numbers, big)))),
        (
            "half",
            Arc::new(Float32Array::from_iter(of(numbers, |n| n as f32 / 2.0))),
        ),
        ("float", Arc::new(Float64Array::from_iter(of(numbers, nan)))),
        ("text", Arc::new(StringArray::from_iter(of(numbers, text)))),
        ("word", Arc::new(words)),
        (
            "odd",
            Arc::new(BooleanArray::from_iter(of(numbers, |n| n % 2 != 0))),
        ),
        (
            "price",
            Arc::new(cents.with_precision_and_scale(9, 2).unwrap()),
        ),
        ("day", Arc::new(Date32Array::from_iter(of(numbers, day)))),
        (
            "at",
            Arc::new(TimestampMicrosecondArray::from_iter(of(numbers, |n| {
                (MOMENT + n.abs() * 1000) * 1000
            }))),
        ),
        ("nested", Arc::new(nested)),
    ];
    let values: Vec<(&str, Vec<Value>)> = vec![
        ("small", map(&|n| n.into())),
        ("int", map(&|n| n.into())),
        ("big", map(&|n| big(n).into())),
        ("half", map(&|n| (n as f64 / 2.0).into())),
        ("float", map(&|n| nan(n).into())),
        ("text", map(&|n| text(n).into())),
        ("word", map(&|n| text(n).into())),
        ("odd", map(&|n| (n % 2 != 0).into())),
        ("price", map(&|n| (n as f64 / 100.0).into())),
        ("at", map(&|n| moment(n.abs()).into())),
        ("nested.x", map(&|n| n.into())),
    ];
    let row = |at| {
        values
            .iter()
            .map(move |(name, all)| (*name, Value::clone(&all[at])))
            .collect()
    };
    let rows = (0..numbers.len()).map(row).collect();
    (
        RecordBatch::try_from_iter_with_nullable(
            columns
                .into_iter()
                .map(|(name, column)| (name, column, true)),
        )
        .unwrap(),
        rows,
    )
}

/// Ways to write a file, with few rows in row groups and pages.
#[derive(Clone, Debug)]
struct Written {
    group: usize,
    page: usize,
    statistics: EnabledStatistics,
    cut: Option<usize>,
    version: WriterVersion,
    dictionary: bool,
    indexed: bool,
    bloom: bool,
}

fn ways() -> impl Strategy<Value = Written> {
    use EnabledStatistics::{Chunk, None, Page};
    (
        1..30_usize,
        1..9_usize,
        prop::sample::select(vec![Page, Page, Page, Chunk, None]),
        prop::option::of(1..4_usize),
        prop::sample::select(vec![WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0]),
        any::<bool>(),
        prop::bool::weighted(0.8),
        any::<bool>(),
    )
        .prop_map(
            |(group, page, statistics, cut, version, dictionary, indexed, bloom)| Written {
                group,
                page,
                statistics,
                cut,
                version,
                dictionary,
                indexed,
                bloom,
            },
        )
}

fn written(batch: &RecordBatch, way: &Written) -> Bytes {
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(way.group))
        .set_data_page_row_count_limit(way.page)
        .set_write_batch_size(1)
        .set_statistics_enabled(way.statistics)
        .set_statistics_truncate_length(way.cut)
        .set_column_index_truncate_length(way.cut)
        .set_writer_version(way.version)
        .set_dictionary_enabled(way.dictionary)
        .set_offset_index_disabled(!way.indexed)
        .set_bloom_filter_max_ndv(way.group as u64)
        .set_bloom_filter_enabled(way.bloom)
        .build();
    let mut data = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut data, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    data.into()
}

/// Values close to those of the columns, sometimes between them.
fn values(name: &'static str) -> BoxedStrategy<Value> {
    let near = -12..12_i64;
    let value: BoxedStrategy<Value> = match name {
        "big" => near
            .prop_map(|n| (u64::MAX - 20).saturating_add_signed(n).into())
            .boxed(),
        "text" | "word" => (near, any::<bool>())
            .prop_map(|(n, cut)| {
                let text = format!("{}{n}", "prefix ".repeat(n.unsigned_abs() as usize % 3));
                text[..if cut { 1 } else { text.len() }].into()
            })
            .boxed(),
        "odd" => any::<bool>().prop_map(Value::from).boxed(),
        "price" => near.prop_map(|n| (n as f64 / 100.0).into()).boxed(),
        "at" => near.prop_map(|n| moment(n.abs()).into()).boxed(),
        name if WHOLE.contains(&name) => prop_oneof![
            near.clone().prop_map(Value::from),
            near.prop_map(|n| (n as f64 + 0.5).into())
        ]
        .boxed(),
        _ => near.prop_map(|n| (n as f64 / 4.0).into()).boxed(),
    };
    prop_oneof![9 => value, 1 => Just(Value::Null)].boxed()
}

fn filters() -> impl Strategy<Value = Filter> {
    let names = [
        "small", "int", "big", "half", "float", "text", "word", "odd", "price", "at", "nested.x",
    ];
    let leaf = prop::sample::select(names.to_vec()).prop_flat_map(|name| {
        let how = prop::sample::select(vec![
            Compare::Eq,
            Compare::Ne,
            Compare::Lt,
            Compare::Le,
            Compare::Gt,
            Compare::Ge,
        ]);
        prop_oneof![
            6 => (how, values(name))
                .prop_map(move |(how, value)| Filter::Compare(name.to_owned(), how, value)),
            2 => prop::collection::vec(values(name), 0..8)
                .prop_map(move |values| col(name).is_in(values)),
            1 => Just(col(name).is_null()),
        ]
    });
    leaf.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(Filter::not),
            prop::collection::vec(inner.clone(), 0..3).prop_map(Filter::And),
            prop::collection::vec(inner, 0..3).prop_map(Filter::Or),
        ]
    })
}

fn numbers() -> impl Strategy<Value = Vec<Option<i64>>> {
    let some = prop::collection::vec(prop::option::weighted(0.8, -10..10_i64), 0..90);
    // In order, statistics exclude most.
    (some, any::<bool>()).prop_map(|(mut numbers, sorted)| {
        if sorted {
            numbers.sort_unstable();
        }
        numbers
    })
}

fn open(data: Bytes) -> ParquetFile {
    let store = Arc::new(InMemory::new());
    store.put("a.parquet", data);
    block_on(ParquetFile::open(store, "a.parquet")).unwrap()
}

fn rows_of(batch: &RecordBatch) -> Vec<i64> {
    let rows = column_tensor(batch, "row").unwrap();
    rows.into_vec::<i64>().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(64) as u32))]

    #[test]
    fn the_rows_are_those_of_the_filter_in_memory(
        numbers in numbers(),
        way in ways(),
        filters in prop::collection::vec(filters(), 4),
        batch_rows in 1..12_usize,
    ) {
        let (batch, values) = columns_of(&numbers);
        let data = written(&batch, &way);
        for filter in filters {
            let matches = |values: &Values| filter.matches(&|name| values[name].clone());
            let expected: Vec<i64> = (0_i64..)
                .zip(&values)
                .filter(|(_, values)| matches(values) == Some(true))
                .map(|(row, _)| row)
                .collect();
            let format = || Parquet::new().columns(["row"]).filter(filter.clone());

            let rows = read_all(ParquetRows::new(format()), data.clone());
            let rows: Vec<i64> =
                rows.into_iter().map(|row| row.unwrap()["row"].as_i64().unwrap()).collect();
            prop_assert_eq!(&rows, &expected, "rows where {}", filter);

            let batches = read_all(format().batch_rows(batch_rows), data.clone());
            let batches: Vec<RecordBatch> = batches.into_iter().map(Result::unwrap).collect();
            prop_assert!(batches.iter().all(|batch| (1..=batch_rows).contains(&batch.num_rows())));
            let rows: Vec<i64> = batches.iter().flat_map(rows_of).collect();
            prop_assert_eq!(&rows, &expected, "batches where {}", filter);

            let file = open(data.clone()).columns(["row"]).unwrap().filter(filter.clone()).unwrap();
            let groups = (0..MapPipe::len(&file)).map(|group| block_on(MapPipe::get(&file, group)));
            let rows: Vec<i64> = groups.flat_map(|batch| rows_of(&batch.unwrap())).collect();
            prop_assert_eq!(&rows, &expected, "row groups where {}", filter);

            let indexed = block_on(file.rows()).unwrap();
            prop_assert_eq!(MapPipe::len(&indexed), expected.len() as u64);
            let all: Vec<u64> = (0..MapPipe::len(&indexed)).collect();
            let rows = block_on(indexed.get_many(&all)).into_iter();
            let rows: Vec<i64> = rows.map(|row| row.unwrap()["row"].as_i64().unwrap()).collect();
            prop_assert_eq!(&rows, &expected, "by index where {}", filter);
        }
    }
}

/// A file of 1000 rows in row groups of 100, in order.
fn in_order() -> Bytes {
    let text = |n: i64| format!("{n}: {}", "y".repeat(1000 + n as usize % 7));
    let batch = RecordBatch::try_from_iter([
        (
            "row",
            Arc::new(Int64Array::from_iter_values(0..1000)) as ArrayRef,
        ),
        (
            "third",
            Arc::new(Int64Array::from_iter_values((0..1000).map(|n| n % 3))),
        ),
        (
            "text",
            Arc::new(StringArray::from_iter_values((0..1000).map(text))),
        ),
    ]);
    let way = Written {
        group: 100,
        page: 10,
        statistics: EnabledStatistics::Page,
        cut: Some(64),
        version: WriterVersion::PARQUET_1_0,
        dictionary: false,
        indexed: true,
        bloom: false,
    };
    written(&batch.unwrap(), &way)
}

fn filtered(text: &str) -> ParquetRows {
    ParquetRows::new(
        Parquet::new()
            .columns(["row"])
            .filter(text.parse().unwrap()),
    )
}

/// Yields the origin of each item, with its row.
fn origins(items: Items<Row>) -> Items<(String, u64)> {
    Items::from_stream(items.map(|item| {
        let item = item?;
        let origin = item.origin().to_string();
        Ok(item.map(|row| (origin, row["row"].as_u64().unwrap())))
    }))
}

fn graph(text: &str) -> Graph<Row> {
    let files = ["a", "b"].map(|name| File::new(name, in_order()));
    Graph::from_vec(files.to_vec())
        .named("files")
        .read_as(filtered(text))
}

const SOME: &str = "third = 1 AND (row < 130 OR row >= 880) AND row != 7";

#[test]
fn origins_are_those_without_a_filter_and_others_are_counted() {
    let loader = |graph: Graph<Row>, workers| {
        DataLoader::builder(graph.through(origins))
            .workers(workers)
            .build()
            .unwrap()
    };
    let all: Vec<_> = loader(graph("true"), 0)
        .epoch(0)
        .blocking()
        .map(Result::unwrap)
        .collect();
    assert_eq!(all.len(), 2000);
    let expected: Vec<_> = all
        .into_iter()
        .filter(|(_, row)| row % 3 == 1 && !(130..880).contains(row) && *row != 7)
        .collect();
    for workers in [0, 1, 3] {
        let loader = loader(graph(SOME), workers);
        let read: Vec<_> = loader.epoch(0).blocking().map(Result::unwrap).collect();
        assert_eq!(read, expected, "{workers} workers");
        let stats = loader.stats().unwrap();
        let dropped: u64 = stats.nodes.iter().map(|node| node.dropped).sum();
        assert_eq!(dropped, 2000 - expected.len() as u64);
    }
}

#[test]
fn a_resumed_epoch_gives_the_rest() {
    for workers in [0, 2] {
        let rows = graph(SOME).map(|row| row["row"].as_u64());
        let loader = DataLoader::builder(rows)
            .workers(workers)
            .resumable()
            .build()
            .unwrap();
        let all: Vec<_> = loader.epoch(0).blocking().map(Result::unwrap).collect();
        for stop in [0, 1, 40, 41, 42, 83, 84, all.len()] {
            let mut epoch = loader.epoch(0).blocking();
            let first: Vec<_> = epoch.by_ref().take(stop).map(Result::unwrap).collect();
            let state = epoch.checkpoint().unwrap();
            drop(epoch);
            let rest = loader.resume(&state).unwrap().blocking();
            let rest: Vec<_> = rest.map(Result::unwrap).collect();
            assert_eq!([first, rest].concat(), all, "stopped after {stop}");
        }
    }
}

#[test]
fn a_batch_has_the_origin_of_the_batch_with_its_first_row() {
    let format = Parquet::new()
        .columns(["row"])
        .batch_rows(10)
        .filter("third = 0 AND row >= 215 AND row < 310".parse().unwrap());
    let numbers = |items: Items<RecordBatch>| {
        Items::from_stream(items.map(|item| {
            let item = item?;
            let origin = item.origin().to_string();
            Ok(item.map(|batch| (origin, rows_of(&batch)[0], batch.num_rows())))
        }))
    };
    let files = Graph::from_vec(vec![File::new("a", in_order())]).named("files");
    let read = files.read_as(format).through(numbers).collect().unwrap();
    // 28 rows of the third row group, and four of the fourth.
    let expected = [
        ("0:0/21", 216, 10),
        ("0:0/24", 246, 10),
        ("0:0/27", 276, 8),
        ("0:0/30", 300, 4),
    ];
    let read: Vec<_> = read
        .iter()
        .map(|(origin, row, rows)| (&**origin, *row, *rows))
        .collect();
    assert_eq!(read, expected);
}

/// Returns the numbers of requests and of bytes that a store was asked for since the last call.
fn asked(store: &Scripted, seen: &mut usize) -> (usize, u64) {
    let requests = store.requests();
    let new = requests[*seen..]
        .iter()
        .filter_map(|request| request.get.range.clone());
    let sizes: Vec<u64> = new.map(|range| range.end - range.start).collect();
    *seen = requests.len();
    (sizes.len(), sizes.iter().sum())
}

#[test]
fn only_what_may_match_is_read_of_a_far_file() {
    let data = in_order();
    let (store, mut seen) = (Arc::new(Scripted::new()), 0);
    store.put("a.parquet", data.clone());
    let file = block_on(ParquetFile::open(store.clone(), "a.parquet")).unwrap();
    asked(&store, &mut seen);
    let text = file.clone().columns(["text"]).unwrap();
    let mut read = |file: &ParquetFile, group: u64| {
        let rows = block_on(MapPipe::get(file, group)).unwrap().num_rows();
        let (requests, bytes) = asked(&store, &mut seen);
        (rows, requests, bytes)
    };
    let (_, _, whole) = read(&text, 3);
    assert!(whole > 100_000, "{whole} bytes of a row group");

    let filtered = text
        .clone()
        .filter("row >= 342 AND row < 345".parse().unwrap())
        .unwrap();
    // The page index, once. The row groups are excluded by their statistics.
    let (rows, requests, index) = read(&filtered, 0);
    assert!(
        (rows, requests) == (0, 1) && index < 25_000,
        "{index} bytes of page index"
    );
    assert_eq!(read(&filtered, 9), (0, 0, 0));
    // A page of the filter's column, and a page of the texts: an eleventh of the row group.
    let (rows, requests, bytes) = read(&filtered, 3);
    assert_eq!((rows, requests), (3, 2));
    assert!(bytes < whole / 9, "{bytes} of {whole} bytes");
    println!("3 of 1000 rows: {} of {} bytes", index + bytes, data.len());

    // Columns that were read for the filter are not read again.
    let both = file.columns(["row"]).unwrap();
    let (_, _, column) = read(&both, 3);
    let both = both.filter("row != 342".parse().unwrap()).unwrap();
    read(&both, 9);
    let (rows, _, bytes) = read(&both, 3);
    assert!(
        rows == 99 && bytes <= column,
        "{rows} rows, {bytes} of {column} bytes"
    );
}

#[test]
fn a_bloom_filter_excludes_row_groups_whose_bounds_do_not() {
    // Even numbers, mixed: the bounds of all row groups have all numbers.
    let number = |n: i64| 2 * (n * 7919 % 100_003);
    let columns: [(&str, ArrayRef); 3] = [
        (
            "id",
            Arc::new(Int64Array::from_iter_values((0..40_000).map(number))),
        ),
        (
            "hash",
            Arc::new(UInt64Array::from_iter_values(
                (0..40_000).map(|n| u64::MAX - number(n) as u64),
            )),
        ),
        (
            "name",
            Arc::new(StringArray::from_iter_values(
                (0..40_000).map(|n| format!("name {}", number(n))),
            )),
        ),
    ];
    let way = Written {
        group: 10_000,
        page: 10_000,
        statistics: EnabledStatistics::Page,
        cut: None,
        version: WriterVersion::PARQUET_1_0,
        dictionary: false,
        indexed: true,
        bloom: true,
    };
    let data = written(&RecordBatch::try_from_iter(columns).unwrap(), &way);
    let (store, mut seen) = (Arc::new(Scripted::new()), 0);
    store.put("a.parquet", data);
    let file = block_on(ParquetFile::open(store.clone(), "a.parquet")).unwrap();
    let mut read = |text: String| {
        let filtered = file.clone().filter(text.parse().unwrap()).unwrap();
        let columns = filtered.columns(["id"]).unwrap();
        asked(&store, &mut seen);
        let rows = block_on(columns.rows()).unwrap();
        (MapPipe::len(&rows), asked(&store, &mut seen).1)
    };
    let there = number(12_345);
    let hash = u64::MAX - there as u64;
    for (equal, other) in [
        (format!("id = {there}"), format!("id = {}", there + 1)),
        (format!("hash = {hash}"), format!("hash = {}", hash - 1)),
        (
            format!("name = 'name {there}'"),
            format!("name = 'name {}'", there + 1),
        ),
    ] {
        // At most a few of the four Bloom filters have a value by chance.
        let ((one, found), (none, not_found)) = (read(equal.clone()), read(other.clone()));
        assert_eq!((one, none), (1, 0), "{equal}, {other}");
        assert!(
            not_found < 100_000 && found < 250_000,
            "{equal}: {found}, {not_found} bytes"
        );
        let all = read(format!("not ({})", other)).0;
        assert_eq!(all, 40_000, "not {other}");
    }
}

#[test]
fn rows_by_index_read_the_columns_of_the_filter_once() {
    let (store, mut seen) = (Arc::new(Scripted::new()), 0);
    let data = in_order();
    store.put("a.parquet", data.clone());
    let file = block_on(ParquetFile::open(store.clone(), "a.parquet")).unwrap();
    asked(&store, &mut seen);
    let file = file.columns(["text"]).unwrap();
    let file = file
        .filter("row >= 342 AND third = 0 AND row < 500".parse().unwrap())
        .unwrap();
    let rows = block_on(file.rows()).unwrap();
    let (_, opened) = asked(&store, &mut seen);
    assert!(
        opened < data.len() as u64 / 20,
        "{opened} of {} bytes",
        data.len()
    );
    assert_eq!(MapPipe::len(&rows), 53);
    let row = block_on(rows.get(52)).unwrap();
    assert!(row["text"].as_str().unwrap().starts_with("498: "));
    let (requests, bytes) = asked(&store, &mut seen);
    assert!(
        requests == 1 && bytes < 12_000,
        "{requests} requests, {bytes} bytes"
    );
    let error = block_on(rows.get(53)).unwrap_err();
    assert!(
        error.to_string().ends_with("a.parquet: no row 53 of 53"),
        "{error}"
    );
    // A shuffle of the rows that match has each once.
    let number = |row: Row| row["text"].as_str().unwrap().len();
    assert_eq!(
        Indexed::new(rows)
            .shuffle()
            .fetch()
            .map(number)
            .collect()
            .unwrap()
            .len(),
        53
    );
}

#[test]
fn two_filters_are_both_applied_and_constants_are_filters() {
    let read = |format: Parquet| {
        let rows = read_all(ParquetRows::new(format), in_order());
        rows.into_iter().map(Result::unwrap).count()
    };
    let parse = |text: &str| text.parse::<Filter>().unwrap();
    let format = || Parquet::new().columns(["row"]);
    assert_eq!(
        read(format().filter(parse("row > 10")).filter(parse("row < 13"))),
        2
    );
    assert_eq!(read(format().filter(parse("true"))), 1000);
    assert_eq!(read(format().filter(parse("false"))), 0);
    let file = open(in_order()).filter(parse("row > 10")).unwrap();
    let file = file.filter(parse("row < 13")).unwrap();
    let group = |group| block_on(MapPipe::get(&file, group)).unwrap();
    assert_eq!((group(0).num_rows(), group(1).num_rows()), (2, 0));
    assert_eq!(group(0).schema(), group(1).schema());
    assert_eq!(MapPipe::len(&block_on(file.rows()).unwrap()), 2);
    for (text, rows) in [("true", 1000), ("false", 0)] {
        let file = open(in_order()).filter(parse(text)).unwrap();
        assert_eq!(MapPipe::len(&block_on(file.rows()).unwrap()), rows);
    }
    let settings = crate::Format::settings(&format().filter(parse("row > 10")));
    assert_eq!(settings, "columns row, where row > 10, 1024 rows a batch");
}

const TABLE: &[u8] = include_bytes!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/data/table.parquet"
));

#[test]
fn a_column_that_is_missing_or_cannot_be_compared_is_named_with_file_and_type() {
    let error = |text: &str| {
        let error = open(TABLE.to_vec().into())
            .filter(text.parse().unwrap())
            .unwrap_err();
        assert!(error.to_string().contains("a.parquet: "), "{error}");
        let format = Parquet::new().filter(text.parse().unwrap());
        let other = read_all(format, TABLE.to_vec()).remove(0).unwrap_err();
        assert_eq!(other.kind(), error.kind());
        (error.kind(), error.to_string())
    };
    for (text, says) in [
        (
            "i64 = 'x'",
            r#"compares column "i64" of type Int64 with "x""#,
        ),
        ("text > 5", r#"compares column "text" of type Utf8 with 5"#),
        (
            "bool = 1",
            r#"compares column "bool" of type Boolean with 1"#,
        ),
        ("list = 1", r#"compares column "list" of type List(Int32, "#),
        (
            "binary = 'x'",
            r#"compares column "binary" of type Binary with "x""#,
        ),
        (
            "date > 5",
            r#"of type Date32 with 5; write a time as "2024-02-29""#,
        ),
        (
            "decimal = 'x'",
            r#"compares column "decimal" of type Decimal128(9, 2) with "x""#,
        ),
        (
            "stamp_ms > '2024-02-29T12:00:00Z'",
            r#"column "stamp_ms" of type Timestamp(ms) with"#,
        ),
        (
            "struct in (1)",
            r#"compares column "struct" of type Struct("#,
        ),
    ] {
        let (kind, error) = error(text);
        assert!(kind == ErrorKind::Shape && error.contains(says), "{error}");
    }
    for text in ["missing = 1", "struct.z is null", "list.element = 1"] {
        assert_eq!(error(text).0, ErrorKind::NotFound, "{text}");
    }
    let nan = Filter::Compare("f64".to_owned(), Compare::Eq, f64::NAN.into());
    let refused = open(TABLE.to_vec().into()).filter(nan).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Shape);
}

/// pyarrow wrote the table, without statistics.
#[test]
fn columns_of_every_type_are_compared_or_asked_for_nulls() {
    let rows = |text: &str| -> Vec<u64> {
        let format = Parquet::new()
            .columns(["index"])
            .filter(text.parse().unwrap());
        let rows = read_all(ParquetRows::new(format), TABLE.to_vec()).into_iter();
        rows.map(|row| row.unwrap()["index"].as_u64().unwrap())
            .collect()
    };
    let expected: Vec<Row> = serde_json::from_str(include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/table.json"
    )))
    .unwrap();
    // NaN and infinities are null in the rows.
    for name in expected[0]
        .keys()
        .filter(|name| !["f16", "f32", "f64"].contains(&name.as_str()))
    {
        let nulls = expected.iter().filter(|row| row[name].is_null());
        let nulls: Vec<u64> = nulls.map(|row| row["index"].as_u64().unwrap()).collect();
        assert_eq!(rows(&format!("{name} is null")), nulls, "{name}");
    }
    for (text, expected) in [
        ("i8 = 127", &[1, 5, 7, 9][..]),
        ("u64 = 18446744073709551615", &[1, 5, 7, 9]),
        ("u64 >= 18446744073709551616.0", &[]),
        ("f16 < 0.5", &[1, 4, 7]),
        ("not f16 < 0.5", &[0, 6, 9]),
        ("f64 = -inf", &[7]),
        ("large_text = 'bc' and view > 'm'", &[]),
        ("decimal = -0.05", &[1, 5, 7, 9]),
        (
            "wide = '12345678901234567890123456789012345678901234.5678'",
            &[0, 1, 2, 4, 5, 6, 7, 8, 9],
        ),
        (
            "wide > '12345678901234567890123456789012345678901234.5678'",
            &[],
        ),
        ("date < '1970-01-01'", &[0, 2, 4, 6, 8]),
        ("stamp_ms >= '2024-02-29T12:34:56.789'", &[0, 2, 4, 6, 8]),
        (
            "stamp_zone = '2024-02-29T13:34:56.789+01:00'",
            &[0, 1, 2, 4, 5, 6, 7, 8, 9],
        ),
        ("dictionary in ('red', 'blue')", &[0, 2, 4, 6, 8]),
        ("struct.x = 1", &[0, 2, 4, 6, 8]),
        ("struct.y.z != 'deep'", &[]),
        ("struct.y.z is null and index < 4", &[1, 3]),
    ] {
        assert_eq!(rows(text), expected, "{text}");
    }
}

/// pyarrow wrote what `make_rows.py` says, with all statistics.
#[test]
fn statistics_of_pyarrow_exclude_what_does_not_match() {
    let data = include_bytes!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/statistics.parquet"
    ));
    let layout = layout_of(data);
    let candidates = |text: &str| -> Vec<Vec<Range<usize>>> {
        let filter = RowFilter::new(&text.parse().unwrap(), &layout).unwrap();
        let filter = filter.with_index(&Bytes::from_static(data)).unwrap();
        assert!(filter.layout().has_pages());
        let groups = 0..layout.groups();
        groups
            .map(|group| filter.candidates(group, &Bytes::new()).unwrap())
            .collect()
    };
    for (text, matches) in [
        (
            "index >= 130 and index < 140",
            (130..140).collect::<Vec<u64>>(),
        ),
        ("u32 >= 4294967290", (294..300).collect()),
        ("float < 3", (0..3).collect()),
        ("not float >= 3", (0..3).collect()),
        ("text = 'text 0151'", vec![151]),
        ("price >= 2.99", vec![299]),
        ("at < '2024-02-29T00:00:05'", (0..5).collect()),
        ("color = 'green'", (100..200).collect()),
        ("half is null", (200..300).collect()),
        ("half is not null and index in (5, 250)", vec![5]),
    ] {
        let may: usize = candidates(text).iter().flatten().map(Range::len).sum();
        let rows = read_all(filtered_by("index", text), &data[..]).into_iter();
        let rows: Vec<u64> = rows
            .map(|row| row.unwrap()["index"].as_u64().unwrap())
            .collect();
        assert_eq!(rows, matches, "{text}");
        // Pages have 20 rows.
        assert!(
            may <= matches.len().next_multiple_of(20) + 20,
            "{text}: {may} rows"
        );
    }
}

fn filtered_by(column: &str, text: &str) -> ParquetRows {
    ParquetRows::new(
        Parquet::new()
            .columns([column])
            .filter(text.parse().unwrap()),
    )
}

fn layout_of(data: &[u8]) -> Layout {
    let size = data.len() as u64;
    let end = data.len() - TAIL - footer_length(data, size).unwrap() as usize;
    let footer = Bytes::copy_from_slice(&data[end..data.len() - TAIL]);
    Layout::new(&footer, end as u64).unwrap()
}

#[test]
fn statistics_of_unknown_order_are_not_used() {
    let layout = layout_of(&in_order());
    let layout = layout.with_statistics(vec![0]);
    let (metadata, field) = (layout.metadata(), Field::new("row", DataType::Int64, true));
    assert!(Bounds::of_group(metadata, 0, &field, 3).is_some());
    let file = metadata.file_metadata();
    let without = FileMetaData::new(
        file.version(),
        file.num_rows(),
        None,
        None,
        file.schema_descr_ptr(),
        None,
    );
    let groups = metadata.row_groups().to_vec();
    let without = parquet::file::metadata::ParquetMetaData::new(without, groups);
    assert!(Bounds::of_group(&without, 0, &field, 3).is_none());
}

#[test]
fn row_104_damaged_files_with_a_filter_are_read_to_their_end_or_errors() {
    let (batch, _) = columns_of(
        &(0..20)
            .map(|n| (n % 7 > 0).then_some(n))
            .collect::<Vec<_>>(),
    );
    let batch = batch.project(&[0, 2, 6]).unwrap();
    let way = Written {
        group: 8,
        page: 3,
        statistics: EnabledStatistics::Page,
        cut: None,
        version: WriterVersion::PARQUET_2_0,
        dictionary: true,
        indexed: true,
        bloom: false,
    };
    let format = || filtered_by("row", "int > 3 and text != 'x'");
    assert_eq!(check_format(format, &written(&batch, &way)), 14);
}
