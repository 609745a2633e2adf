//! Tests of rows by index: those of a whole file, and page indexes that lie.

use std::ops::Range;
use std::sync::Mutex;

use arrow_array::builder::{Int32Builder, ListBuilder};
use arrow_array::{ArrayRef, Float64Array, Int64Array, StringArray, StructArray};
use arrow_schema::{DataType, Field};
use bytes::Bytes;
use datapipes::Indexed;
use futures::executor::block_on;
use futures::stream::BoxStream;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};

use super::*;
use crate::formats::{Parquet, ParquetRows};
use crate::stores::{Get, InMemory, Meta, Object, Store};
use crate::testing::read_all;
use datapipes::ErrorKind;

/// Rows of a table with nulls, words that repeat, lists and structs.
const ROWS: usize = 1000;

fn table() -> RecordBatch {
    let number = Int64Array::from_iter_values(0..ROWS as i64);
    let sparse = Float64Array::from_iter((0..ROWS).map(|n| (n % 3 > 0).then_some(n as f64 / 8.0)));
    let words =
        StringArray::from_iter((0..ROWS).map(|n| (n % 5 > 0).then(|| format!("word {}", n % 7))));
    let texts =
        StringArray::from_iter_values((0..ROWS).map(|n| format!("{n}: {}", "y".repeat(n % 50))));
    let mut lists = ListBuilder::new(Int32Builder::new());
    for n in 0..ROWS as i32 {
        (0..n % 4).for_each(|at| lists.values().append_value(n * 10 + at));
        lists.append(n % 6 > 0);
    }
    let x: ArrayRef = Arc::new(number.clone());
    let field = Arc::new(Field::new("x", DataType::Int64, false));
    let structs = StructArray::from(vec![(field, x)]);
    let columns: [(&str, ArrayRef); 6] = [
        ("number", Arc::new(number)),
        ("sparse", Arc::new(sparse)),
        ("words", Arc::new(words)),
        ("texts", Arc::new(texts)),
        ("lists", Arc::new(lists.finish())),
        ("structs", Arc::new(structs)),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Returns a file of three row groups with pages of at most 37 rows.
fn written(version: WriterVersion, indexed: bool) -> Vec<u8> {
    let properties = WriterProperties::builder()
        .set_writer_version(version)
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(400))
        .set_data_page_row_count_limit(37)
        .set_write_batch_size(37)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(!indexed)
        .build();
    file_of(&table(), properties)
}

fn expected(data: &[u8]) -> Vec<Row> {
    let rows = read_all(ParquetRows::new(Parquet::new()), data.to_vec());
    rows.into_iter().map(Result::unwrap).collect()
}

/// A store in memory that records its requests.
#[derive(Debug, Default)]
struct Watched {
    memory: InMemory,
    asked: Mutex<Vec<Range<u64>>>,
}

#[async_trait]
impl Store for Watched {
    fn url(&self) -> &str {
        self.memory.url()
    }
    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        self.asked.lock().unwrap().extend(get.range.clone());
        self.memory.get(key, get).await
    }
    async fn head(&self, key: &str) -> Result<Meta> {
        self.memory.head(key).await
    }
    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        self.memory.list(prefix)
    }
}

/// Returns a file of one batch.
fn file_of(batch: &RecordBatch, properties: WriterProperties) -> Vec<u8> {
    let mut data = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut data, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    data
}

fn watched(data: &[u8]) -> Arc<Watched> {
    let store = Watched::default();
    store.memory.put("a.parquet", Bytes::copy_from_slice(data));
    Arc::new(store)
}

fn open(store: Arc<Watched>) -> ParquetFile {
    block_on(ParquetFile::open(store, "a.parquet")).unwrap()
}

fn rows_of(data: &[u8]) -> Result<IndexedParquetRows> {
    block_on(open(watched(data)).rows())
}

/// Returns the range of the places of all pages.
fn index_of(file: &ParquetFile) -> Range<u64> {
    let ranges = file.layout.index_ranges().unwrap();
    ranges[0].start..ranges.last().unwrap().end
}

#[test]
fn rows_are_those_of_the_whole_file() {
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        for indexed in [true, false] {
            let data = written(version, indexed);
            let (rows, expected) = (rows_of(&data).unwrap(), expected(&data));
            assert_eq!(
                (rows.len(), rows.layout.has_pages()),
                (ROWS as u64, indexed)
            );
            for at in (0..ROWS).step_by(if indexed { 1 } else { 97 }) {
                let row = block_on(rows.get(at as u64)).unwrap();
                assert_eq!(row, expected[at], "{version:?} {indexed} {at}");
            }
            // Together: in any order, over row groups, some twice, some that are not there.
            let some: Vec<u64> = (0..300).map(|n| n * 7919 % 1003).chain([5, 5, 4]).collect();
            for (at, row) in some.iter().zip(block_on(rows.get_many(&some))) {
                match expected.get(*at as usize) {
                    Some(expected) => assert_eq!(row.unwrap(), *expected, "{at}"),
                    None => assert_eq!(row.unwrap_err().kind(), ErrorKind::NotFound),
                }
            }
        }
    }
}

/// pyarrow wrote what `make_rows.py` says.
#[test]
fn rows_of_files_of_pyarrow_are_read_by_their_page_index() {
    for data in [
        include_bytes!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/data/paged-v1.parquet"
        ))
        .as_slice(),
        include_bytes!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/data/paged-v2.parquet"
        )),
    ] {
        let rows = rows_of(data).unwrap();
        let pages = rows.layout.pages(0, std::slice::from_ref(&(0..180)));
        assert!(
            pages
                .unwrap()
                .iter()
                .all(|column| column.ranges().count() > 2)
        );
        for n in 0..rows.len() {
            let word = (n % 5 > 0).then(|| format!("word {}", n % 7));
            let list = (n % 6 > 0).then(|| (0..n % 4).map(|at| n * 10 + at).collect::<Vec<_>>());
            let expected = serde_json::json!({"index": n, "word": word, "list": list});
            let row = block_on(rows.get(n)).unwrap();
            assert_eq!(serde_json::Value::Object(row), expected);
        }
    }
}

/// pyarrow writes no page index unless it is told to.
#[test]
fn rows_of_a_file_without_a_page_index_are_read_by_row_groups() {
    let data = include_bytes!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/table.parquet"
    ));
    let (rows, expected) = (rows_of(data).unwrap(), expected(data));
    let read = block_on(rows.get_many(&Vec::from_iter(0..10)));
    assert!(read.into_iter().map(Result::unwrap).eq(expected));
    let error = block_on(rows.get(10)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        error.to_string().ends_with("a.parquet: no row 10 of 10"),
        "{error}"
    );
}

#[test]
fn a_large_dictionary_is_read_for_the_pages_that_refer_to_it() {
    // Texts that do not shrink: their dictionary ends at 1 MiB, and later pages have none.
    let text = |n: u64| -> String {
        let numbers = (0..20).map(|at| (n * 20 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        numbers.map(|number| format!("{number:016x}")).collect()
    };
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..8000).map(text)));
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_data_page_row_count_limit(100)
        .set_write_batch_size(100)
        .build();
    let batch = RecordBatch::try_from_iter([("text", texts)]).unwrap();
    let data = file_of(&batch, properties);

    let store = watched(&data);
    let rows = block_on(open(store.clone()).rows()).unwrap();
    let read = |index: u64| {
        store.asked.lock().unwrap().clear();
        let row = block_on(rows.get(index)).unwrap();
        assert_eq!(row["text"], text(index));
        let asked = store.asked.lock().unwrap();
        asked
            .iter()
            .map(|range| range.end - range.start)
            .sum::<u64>()
    };
    for index in [0, 99, 2000] {
        assert!(read(index) > 500_000, "{index}");
    }
    for index in [4000, 7999] {
        assert!(read(index) < 100_000, "{index}");
    }
}

#[test]
fn only_the_pages_of_a_row_are_read() {
    // Numbers that do not shrink, so that pages are far from each other.
    let column = |salt: u64| -> ArrayRef {
        let number = |n: u64| (n ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64;
        Arc::new(Int64Array::from_iter_values((0..400_000).map(number)))
    };
    let batch = RecordBatch::try_from_iter([("a", column(1)), ("b", column(2))]).unwrap();
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_data_page_row_count_limit(1000)
        .set_write_batch_size(1000)
        .build();
    let data = file_of(&batch, properties);

    let store = watched(&data);
    let rows = block_on(open(store.clone()).rows()).unwrap();
    let asked = |indices: &[u64]| {
        store.asked.lock().unwrap().clear();
        let read = block_on(rows.get_many(indices));
        for row in read {
            row.unwrap();
        }
        let asked = store.asked.lock().unwrap();
        let bytes = asked
            .iter()
            .map(|range| range.end - range.start)
            .sum::<u64>();
        (asked.len(), bytes / 8000)
    };
    // A page of each column.
    assert_eq!(asked(&[5000]), (2, 2));
    // Two rows of a page are read once, and pages that are far from each other by themselves.
    assert_eq!(asked(&[5000, 5001, 300_000]), (4, 4));
}

#[test]
fn row_104_a_page_index_that_lies_is_an_error_and_never_another_row() {
    let data = written(WriterVersion::PARQUET_1_0, true);
    let file = open(watched(&data))
        .columns(["number", "sparse", "words"])
        .unwrap();
    let index = index_of(&file);
    let whole = block_on(file.rows()).unwrap();
    let some: Vec<u64> = (0..ROWS as u64).step_by(90).collect();
    let expected: Vec<Row> = block_on(whole.get_many(&some))
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let mut refused = 0;
    for at in index.start as usize..index.end as usize {
        let mut data = data.clone();
        data[at] ^= [1, 4, 0x80][at % 3];
        let file = open(watched(&data))
            .columns(["number", "sparse", "words"])
            .unwrap();
        let rows = match block_on(file.rows()) {
            Ok(rows) => rows,
            Err(error) => {
                assert!(error.to_string().contains("a.parquet"), "{error}");
                refused += 1;
                continue;
            }
        };
        for (row, expected) in block_on(rows.get_many(&some)).into_iter().zip(&expected) {
            match row {
                Ok(row) => assert_eq!(row, *expected, "byte {at}"),
                Err(error) => {
                    assert_ne!(error.kind(), ErrorKind::Panic, "{error}");
                    assert!(
                        error.to_string().contains("a.parquet: row group "),
                        "{error}"
                    );
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 300, "{refused}");
}

#[test]
fn row_98_a_page_index_of_more_places_than_bytes_is_refused() {
    let data = written(WriterVersion::PARQUET_1_0, true);
    let file = open(watched(&data));
    let index = index_of(&file);
    // The header of a list of eleven structs, and that of one of 2³¹ − 1.
    let places = &data[index.start as usize..];
    assert_eq!(places[..2], [0x19, 0xbc]);
    let mut lying = data.clone();
    let list = [0xfc, 0xff, 0xff, 0xff, 0xff, 0x07];
    lying[index.start as usize + 1..][..list.len()].copy_from_slice(&list);
    let error = rows_of(&lying).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("its page index"), "{error}");
}

#[test]
fn a_damaged_page_is_an_error_of_its_rows_alone() {
    let mut data = written(WriterVersion::PARQUET_1_0, true);
    let file = open(watched(&data)).columns(["number"]).unwrap();
    let paged = block_on(file.rows()).unwrap();
    let row = std::slice::from_ref(&(100..101));
    let pages = paged.layout.pages(1, row).unwrap();
    let page = pages[0].ranges().last().unwrap();
    data[page.start as usize..page.end as usize].fill(0xff);
    let file = open(watched(&data)).columns(["number"]).unwrap();
    let rows = block_on(file.rows()).unwrap();
    let read = block_on(rows.get_many(&[3, 500, 600]));
    assert_eq!(read[0].as_ref().unwrap()["number"], 3);
    assert!(
        read[1]
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("a.parquet: row group 1")
    );
    assert_eq!(read[2].as_ref().unwrap()["number"], 600);
}

#[test]
fn rows_are_shuffled_as_a_whole_also_in_batches() {
    let rows = rows_of(&written(WriterVersion::PARQUET_1_0, true)).unwrap();
    let rows = Indexed::new(rows).shuffle();
    let number = |row: Row| row["number"].as_u64().unwrap();
    let single = rows.clone().fetch().map(number).collect().unwrap();
    let batches = rows.batch(50).fetch().collect().unwrap();
    let together: Vec<u64> = batches.into_iter().flatten().map(number).collect();
    assert_eq!(single, together);
    let mut sorted = single.clone();
    sorted.sort_unstable();
    assert_ne!(single, sorted);
    assert_eq!(sorted, Vec::from_iter(0..ROWS as u64));
}

#[test]
fn row_59_a_file_that_changed_is_an_error() {
    let data = written(WriterVersion::PARQUET_1_0, true);
    let store = watched(&data);
    let rows = block_on(open(store.clone()).rows()).unwrap();
    store.memory.put("a.parquet", data);
    assert_eq!(
        block_on(rows.get(0)).unwrap_err().kind(),
        ErrorKind::Changed
    );
}

#[test]
fn other_columns_or_rows_are_refused_on_resume() {
    use datapipes::DataLoader;

    let data = written(WriterVersion::PARQUET_2_0, true);
    let file = |columns: &[&str], filter: Option<&str>| {
        let file = open(watched(&data)).columns(columns.to_vec()).unwrap();
        match filter {
            Some(filter) => file.filter(filter.parse().unwrap()).unwrap(),
            None => file,
        }
    };
    let loaders = |columns: &[&str], filter| {
        let groups = Indexed::new(file(columns, filter)).fetch().map(drop);
        let rows = Indexed::new(block_on(file(columns, filter).rows()).unwrap());
        let rows = rows.fetch().map(drop);
        [groups, rows].map(|graph| DataLoader::builder(graph).resumable().build().unwrap())
    };
    for filter in [None, Some("number > 5")] {
        let states = loaders(&["number", "words"], filter).map(|loader| {
            let mut epoch = loader.epoch(0).blocking();
            epoch.next().unwrap().unwrap();
            epoch.checkpoint().unwrap()
        });
        for (loader, state) in loaders(&["words", "number"], filter).iter().zip(&states) {
            assert!(loader.resume(state).is_ok());
        }
        for others in [
            loaders(&["number", "texts"], filter),
            loaders(&["number", "words"], Some("number > 6")),
        ] {
            for (loader, state) in others.iter().zip(&states) {
                let error = loader.resume(state).expect_err("other rows");
                assert_eq!(error.kind(), ErrorKind::Config);
            }
        }
    }
}
