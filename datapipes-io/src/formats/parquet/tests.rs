//! Files written by pyarrow: their content, and the rest of it after damage.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use arrow_array::{ArrayRef, FixedSizeBinaryArray, Int64Array, StringArray};
use bytes::Bytes;
use datapipes::{ErrorKind, Graph, Indexed, MapPipe, Result};
use futures::stream::BoxStream;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::WriterProperties;

use super::pages::Pages;
use super::*;
use crate::FileGraphExt;
use crate::formats::arrow::column_tensor;
use crate::formats::compression::tests::refused;
use crate::stores::{Get, InMemory, Meta, Object, Store};
use crate::testing::{check_format, places, read_all};

macro_rules! data {
    ($name:literal) => {
        include_bytes!(concat!("../../../tests/data/", $name)).as_slice()
    };
}

const TABLE: &[u8] = data!("table.parquet");
const NONE: &[u8] = data!("none-v1.parquet");

fn expected() -> Vec<Row> {
    serde_json::from_str(include_str!("../../../tests/data/table.json")).unwrap()
}

fn rows_of(data: &[u8]) -> Vec<Row> {
    read_all(ParquetRows::default(), data.to_vec())
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

fn first_error(data: impl Into<Bytes>) -> Error {
    read_all(Parquet::new(), data)
        .into_iter()
        .find_map(Result::err)
        .unwrap()
}

/// Returns a file of these columns, written by the underlying crate.
fn written<const N: usize>(
    columns: [(&str, ArrayRef); N],
    properties: WriterProperties,
) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut data = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut data, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    data
}

#[test]
fn a_file_of_every_type_has_the_rows_that_were_written() {
    let rows = rows_of(TABLE);
    for (row, expected) in rows.iter().zip(expected()) {
        for (name, value) in &expected {
            assert_eq!(row[name], *value, "{name}");
        }
        assert_eq!(row.len(), expected.len());
    }
    assert_eq!(rows.len(), 10);
}

#[test]
fn every_codec_and_both_kinds_of_pages_are_read() {
    let files = [
        data!("none-v1.parquet"),
        data!("none-v2.parquet"),
        data!("snappy-v1.parquet"),
        data!("snappy-v2.parquet"),
        data!("gzip-v1.parquet"),
        data!("gzip-v2.parquet"),
        data!("zstd-v1.parquet"),
        data!("zstd-v2.parquet"),
        data!("lz4-v1.parquet"),
        data!("lz4-v2.parquet"),
    ];
    for (index, data) in files.into_iter().enumerate() {
        let rows = rows_of(data);
        assert_eq!(rows.len(), 10, "{index}");
        for (row, expected) in rows.iter().zip(expected()) {
            assert_eq!(row.len(), 4);
            row.iter()
                .for_each(|(name, value)| assert_eq!(*value, expected[name], "{index}: {name}"));
        }
    }
}

#[test]
fn row_104_a_codec_that_is_not_read_is_named() {
    for data in [data!("brotli-v1.parquet"), data!("brotli-v2.parquet")] {
        let read = read_all(Parquet::new(), data.to_vec());
        // Each row group by itself.
        assert_eq!(read.len(), 2);
        let error = read[1].as_ref().unwrap_err();
        let words = r#"row group 1: column "index": compressed by Brotli"#;
        assert!(
            error.kind() == ErrorKind::Unsupported && error.to_string().ends_with(words),
            "{error}"
        );
    }
}

#[test]
fn columns_are_chosen_by_name_also_inside_others() {
    let format = || Parquet::new().columns(["index", "struct.y", "list"]);
    let batch = read_all(format(), TABLE.to_vec()).remove(0).unwrap();
    let names: Vec<_> = batch
        .schema()
        .fields()
        .iter()
        .map(|field| field.name().clone())
        .collect();
    assert_eq!(names, ["list", "struct", "index"]);
    let row = read_all(ParquetRows::new(format()), TABLE.to_vec())
        .remove(0)
        .unwrap();
    assert_eq!(row["struct"], serde_json::json!({"y": {"z": "deep"}}));
    for (name, words) in [
        ("inde", r#"no column "inde", but "bool", "#),
        ("struct.z", r#"no column "struct.z""#),
    ] {
        let error = read_all(Parquet::new().columns([name]), TABLE.to_vec())
            .remove(0)
            .unwrap_err();
        assert!(
            error.kind() == ErrorKind::NotFound && error.to_string().contains(words),
            "{error}"
        );
    }
    let none: [&str; 0] = [];
    assert!(Parquet::new().columns(none).problem().is_some());
    assert!(Parquet::new().batch_rows(0).problem().is_some());
}

#[test]
fn batches_have_as_many_rows_as_asked_for_and_span_no_row_groups() {
    let sizes = |rows| -> Vec<usize> {
        let read = read_all(Parquet::new().batch_rows(rows), TABLE.to_vec());
        read.into_iter()
            .map(|batch| batch.unwrap().num_rows())
            .collect()
    };
    assert_eq!(sizes(3), [3, 1, 3, 1, 2]);
    assert_eq!(sizes(1000), [4, 4, 2]);
    let batches = read_all(Parquet::new(), TABLE.to_vec());
    assert_eq!(
        column_tensor(batches[1].as_ref().unwrap(), "index")
            .unwrap()
            .as_slice::<i64>()
            .unwrap(),
        [4, 5, 6, 7]
    );
}

#[test]
fn row_104_cut_files_are_errors() {
    for cut in places(NONE.len()) {
        let read = read_all(Parquet::new(), NONE[..cut].to_vec());
        assert!(read.len() == 1 && read[0].is_err(), "cut at {cut}");
    }
}

#[test]
fn row_104_damaged_pages_are_found_by_their_checksums_and_other_row_groups_follow() {
    let whole = rows_of(NONE);
    let length =
        u32::from_le_bytes(NONE[NONE.len() - 8..NONE.len() - 4].try_into().unwrap()) as usize;
    let (mut good, mut bad) = (0, 0);
    for at in 4..NONE.len() - 8 - length {
        let mut data = NONE.to_vec();
        data[at] ^= 0x10;
        let read = read_all(ParquetRows::default(), data);
        let rows: Vec<_> = read.iter().flatten().collect();
        match read.len() - rows.len() {
            // In a part of a header that does not affect values.
            0 => {
                assert!(
                    rows.iter().eq(&whole.iter().collect::<Vec<_>>()),
                    "byte {at}: other rows and no error"
                );
                good += 1;
            }
            1 => {
                assert!(
                    rows.iter().all(|row| whole.contains(row)),
                    "byte {at}: other rows beside an error"
                );
                assert!(rows.len() >= 5, "byte {at}: the other row group is missing");
                bad += 1;
            }
            more => panic!("byte {at}: {more} errors"),
        }
    }
    assert!(bad > 5 * good, "{bad} errors, {good} harmless");
}

#[test]
fn row_104_a_lying_footer_is_an_error() {
    let length = NONE.len() as u32;
    for (stated, kind) in [
        (length, ErrorKind::Corrupt),
        (u32::MAX, ErrorKind::Corrupt),
        (3, ErrorKind::Corrupt),
    ] {
        let mut data = NONE.to_vec();
        let at = data.len() - 8;
        data[at..at + 4].copy_from_slice(&stated.to_le_bytes());
        assert_eq!(first_error(data).kind(), kind);
    }
    let mut encrypted = NONE.to_vec();
    encrypted.splice(NONE.len() - 4.., *b"PARE");
    assert_eq!(first_error(encrypted).kind(), ErrorKind::Unsupported);
    // The first half of the row groups' bytes removed: nothing is at its stated position.
    let mut moved = NONE.to_vec();
    moved.drain(100..200);
    assert_eq!(first_error(moved).kind(), ErrorKind::Corrupt);
}

#[test]
fn row_104_a_schema_deeper_than_can_be_is_an_error() {
    // Field 2, a list of structs, each with field 4 (a name) and field 5 (its children).
    let schema = |children: &[u8]| {
        let mut footer = vec![0x15, 0x02, 0x19, 0xfc];
        footer.extend([children.len() as u8 | 0x80, (children.len() >> 7) as u8]);
        children
            .iter()
            .for_each(|&children| footer.extend([0x48, 0x01, b'a', 0x15, 2 * children, 0x00]));
        footer.push(0);
        footer
    };
    let deep = vec![1; 5000];
    for children in [&deep[..], &[60, 0, 0], &[63]] {
        let mut data = b"PAR1".to_vec();
        let footer = schema(children);
        data.extend(&footer);
        data.extend((footer.len() as u32).to_le_bytes());
        data.extend(b"PAR1");
        let error = first_error(data);
        assert!(
            error
                .to_string()
                .ends_with("corrupt: the schema in the footer"),
            "{error}"
        );
    }
}

#[test]
fn row_98_pages_and_values_beyond_the_limits_are_refused_before_there_is_room_for_them() {
    let zeros: ArrayRef = Arc::new(Int64Array::from(vec![0; 300_000]));
    let zstd = Compression::ZSTD(Default::default());
    let properties = WriterProperties::builder()
        .set_compression(zstd)
        .set_dictionary_enabled(false)
        .build();
    let data = written([("zeros", zeros)], properties);
    assert!(data.len() < 3000);
    let error = first_error(data.clone());
    assert!(
        error.kind() == ErrorKind::Limit && error.to_string().contains("240"),
        "{error}"
    );
    let unlimited = || Parquet::new().max_expansion(8 << 30, 1 << 20);
    // The loader may allow less than the format.
    let file = File::new("a.parquet", data.clone());
    let read = || Graph::from_vec(vec![file.clone()]).read_as(unlimited());
    let error = refused(read(), 1 << 20);
    assert!(error.contains("at most 1048576 are allowed"), "{error}");
    assert_eq!(refused(read(), 4 << 20), "");
    let allowed = read_all(unlimited(), data);
    assert_eq!(
        allowed
            .into_iter()
            .map(|batch| batch.unwrap().num_rows())
            .sum::<usize>(),
        300_000
    );
    // A page that states more than exists.
    let header = |bytes: u8| {
        [
            0x15, 0, 0x15, 0xfe, 0xff, 0xff, bytes, 0x0f, 0x15, 2, 0x2c, 0x15, 2, 0x15, 0, 0, 0, 7,
        ]
    };
    let pages = Pages::of(&header(0xff)).unwrap();
    assert!(pages.bytes > 1 << 30, "{pages:?}");
    let cut = Pages::of(&header(0xff)[..17]).unwrap_err();
    assert_eq!(cut.to_string(), "truncated: page 0 at byte 0: 0 of 1 bytes");
    assert_eq!(
        Pages::of(&[0x15, 0, 0x15]).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
}

#[test]
fn row_98_encodings_that_state_a_length_inside_are_looked_into() {
    for encoding in [
        Encoding::DELTA_LENGTH_BYTE_ARRAY,
        Encoding::DELTA_BYTE_ARRAY,
    ] {
        let texts: ArrayRef = Arc::new(StringArray::from_iter(
            (0..300).map(|n| (n % 7 > 0).then(|| format!("text {n}"))),
        ));
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_encoding(encoding)
            .build();
        let data = written([("texts", texts)], properties);
        let rows = rows_of(&data);
        assert_eq!((rows.len(), &rows[8]["texts"]), (300, &"text 8".into()));
        // 128 numbers a block, four parts of it, 257 values: the third states the number.
        let head = [0x80, 0x01, 0x04, 0x81, 0x02];
        let found = data
            .windows(head.len())
            .enumerate()
            .filter(|(_, bytes)| *bytes == head);
        let places: Vec<usize> = found.map(|(at, _)| at).collect();
        assert_eq!(
            places.len(),
            if encoding == Encoding::DELTA_BYTE_ARRAY {
                2
            } else {
                1
            }
        );
        for at in places {
            let mut data = data.clone();
            data[at + 4] = 0x7f;
            let error = first_error(data);
            assert!(
                error.kind() == ErrorKind::Corrupt
                    && error.to_string().contains("a page of 300 values"),
                "{error}"
            );
        }
    }
}

#[test]
fn fixed_lengths_and_empty_tables_are_read() {
    let values: ArrayRef =
        Arc::new(FixedSizeBinaryArray::try_from_iter((0..3).map(|n| [n; 2000])).unwrap());
    let rows = rows_of(&written([("fixed", values)], WriterProperties::default()));
    assert!(rows[2]["fixed"].as_str().unwrap().starts_with("0202"));
    let none: ArrayRef = Arc::new(Int64Array::from(Vec::<i64>::new()));
    assert_eq!(
        rows_of(&written([("a", none)], WriterProperties::default())),
        []
    );
}

#[test]
fn row_105_106_what_is_no_parquet_file_says_so() {
    assert_eq!(first_error(Vec::new()).kind(), ErrorKind::Truncated);
    for data in [
        &b"PAR1PAR1"[..],
        b"PAR1\0\0\0\0PAR1",
        b"ARROW1 and others",
        &[0; 100],
    ] {
        assert_eq!(
            first_error(data.to_vec()).kind() == ErrorKind::Corrupt,
            data.len() > 8,
            "{data:?}"
        );
    }
}

#[test]
fn survives_whatever_is_in_a_file() {
    check_format(ParquetRows::default, NONE);
    check_format(
        || ParquetRows::new(Parquet::new().columns(["text"])),
        data!("zstd-v2.parquet"),
    );
}

/// A store in memory that records its requests.
#[derive(Debug, Default)]
struct Watched {
    store: InMemory,
    asked: Mutex<Vec<Range<u64>>>,
}

#[async_trait::async_trait]
impl Store for Watched {
    fn url(&self) -> &str {
        self.store.url()
    }
    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        self.asked.lock().unwrap().extend(get.range.clone());
        self.store.get(key, get).await
    }
    async fn head(&self, key: &str) -> Result<Meta> {
        self.store.head(key).await
    }
    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        self.store.list(prefix)
    }
}

fn watched(data: &[u8]) -> Arc<Watched> {
    let store = Watched::default();
    store.store.put("a.parquet", Bytes::copy_from_slice(data));
    Arc::new(store)
}

#[tokio::test]
async fn row_groups_of_a_far_file_are_read_by_index() {
    let store = watched(TABLE);
    let file = ParquetFile::open(store.clone(), "a.parquet").await.unwrap();
    assert_eq!((MapPipe::len(&file), file.row_counts()), (3, vec![4, 4, 2]));
    assert_eq!(file.schema().fields().len(), expected()[0].len());
    let whole = read_all(Parquet::new(), TABLE.to_vec());
    for index in [2, 0, 1] {
        assert_eq!(
            MapPipe::get(&file, index).await.unwrap(),
            *whole[index as usize].as_ref().unwrap()
        );
    }
    let error = MapPipe::get(&file, 3).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::NotFound && error.to_string().contains("row group 3"),
        "{error}"
    );
    let some = file.clone().columns(["index", "struct.x"]).unwrap();
    assert_eq!(MapPipe::get(&some, 1).await.unwrap().num_columns(), 2);
    assert_eq!(
        file.columns(["none"]).unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

#[tokio::test]
async fn of_a_far_file_only_the_wanted_columns_are_read() {
    let column = |salt: u64| -> ArrayRef {
        let number = |n: u64| {
            (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt).wrapping_mul(0xbf58_476d_1ce4_e5b9)
                as i64
        };
        Arc::new(Int64Array::from_iter_values((0..40_000).map(number)))
    };
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .build();
    let data = written(
        [("a", column(1)), ("b", column(2)), ("c", column(3))],
        properties,
    );
    let store = watched(&data);
    let read = async |columns: &[&str]| {
        let file = ParquetFile::open(store.clone(), "a.parquet").await.unwrap();
        let file = file.columns(columns.iter().copied()).unwrap();
        store.asked.lock().unwrap().clear();
        let batch = MapPipe::get(&file, 0).await.unwrap();
        assert_eq!(
            (batch.num_rows(), batch.num_columns()),
            (40_000, columns.len())
        );
        let asked = store.asked.lock().unwrap().clone();
        (
            asked.len(),
            asked
                .iter()
                .map(|range| range.end - range.start)
                .sum::<u64>()
                / 320_000,
        )
    };
    assert_eq!(read(&["b"]).await, (1, 1));
    // The columns between them are not wanted.
    assert_eq!(read(&["a", "c"]).await, (2, 2));
    assert_eq!(read(&["b", "c"]).await, (1, 2));
}

#[tokio::test]
async fn a_far_file_that_is_damaged_or_changed_is_an_error() {
    let mut data = TABLE.to_vec();
    let store = watched(&data);
    let file = ParquetFile::open(store.clone(), "a.parquet").await.unwrap();
    data[60] ^= 1;
    store.store.put("a.parquet", Bytes::copy_from_slice(&data));
    assert_eq!(
        MapPipe::get(&file, 0).await.unwrap_err().kind(),
        ErrorKind::Changed
    );
    let file = ParquetFile::open(store.clone(), "a.parquet").await.unwrap();
    let error = MapPipe::get(&file, 0).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Corrupt
            && error.to_string().contains("a.parquet: row group 0: "),
        "{error}"
    );
    assert!(MapPipe::get(&file, 1).await.is_ok());
    let missing = ParquetFile::open(store.clone(), "b.parquet")
        .await
        .unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    for cut in [0, 3, 11, 12, 4000, TABLE.len() - 1] {
        let open = ParquetFile::open(watched(&TABLE[..cut]), "a.parquet").await;
        let kind = open.unwrap_err().kind();
        assert_eq!(
            kind,
            if cut < 12 {
                ErrorKind::Truncated
            } else {
                ErrorKind::Corrupt
            },
            "cut at {cut}"
        );
    }
}

#[test]
fn row_groups_are_shuffled_as_samples() {
    let file = futures::executor::block_on(ParquetFile::open(watched(TABLE), "a.parquet")).unwrap();
    let numbers = |batch: RecordBatch| {
        column_tensor(&batch, "index")
            .unwrap()
            .into_vec::<i64>()
            .unwrap()
    };
    let mut read = Indexed::new(file)
        .shuffle()
        .fetch()
        .map(numbers)
        .collect()
        .unwrap();
    assert_eq!(read.iter().map(Vec::len).sum::<usize>(), 10);
    read.sort();
    assert_eq!(read.concat(), Vec::from_iter(0..10));
}
