//! Files written by pyarrow: their content, and the rest of it after damage.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, FixedSizeListArray, Int32Array, ListViewArray};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field};
use bytes::Bytes;
use datapipes::{DType, ErrorKind, Result, Tensor};
use serde_json::{Value, json};

use super::*;
use crate::formats::Row;
use crate::testing::{check_format, gzip, places, read_all};

const FILE: &[u8] = include_bytes!("../../../tests/data/table.arrow");
const STREAM: &[u8] = include_bytes!("../../../tests/data/table.arrows");
const ZSTD: &[u8] = include_bytes!("../../../tests/data/zstd.arrow");
const LZ4: &[u8] = include_bytes!("../../../tests/data/lz4.arrows");
const DELTA: &[u8] = include_bytes!("../../../tests/data/delta.arrows");
const REPLACED: &[u8] = include_bytes!("../../../tests/data/replaced.arrows");

/// Returns the expected rows, as computed by the script that wrote the files.
pub(in crate::formats) fn expected() -> Vec<Row> {
    serde_json::from_str(include_str!("../../../tests/data/table.json")).unwrap()
}

fn batches(data: &[u8]) -> Vec<RecordBatch> {
    read_all(ArrowIpc::new(), data.to_vec())
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

fn rows_of(data: &[u8]) -> Vec<Row> {
    read_all(ArrowRows::default(), data.to_vec())
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

fn list<T: datapipes::Element>(values: Vec<T>) -> Tensor {
    let length = values.len();
    Tensor::from_vec(values, [length]).unwrap()
}

fn kinds<T>(read: &[Result<T>]) -> Vec<Option<ErrorKind>> {
    read.iter()
        .map(|item| item.as_ref().err().map(|error| error.kind()))
        .collect()
}

#[test]
fn files_and_streams_of_every_type_have_the_rows_that_were_written() {
    for data in [FILE, STREAM] {
        let rows = rows_of(data);
        for (row, expected) in rows.iter().zip(expected()) {
            for (name, value) in &expected {
                assert_eq!(row[name], *value, "{name}");
            }
            assert_eq!(row.len(), expected.len());
        }
        assert_eq!(rows.len(), 10);
        assert_eq!(
            batches(data)
                .iter()
                .map(RecordBatch::num_rows)
                .collect::<Vec<_>>(),
            [4, 4, 2]
        );
    }
}

#[test]
fn compressed_bodies_are_read() {
    for data in [ZSTD, LZ4] {
        let rows = rows_of(data);
        assert_eq!(rows.len(), 10);
        for (row, expected) in rows.iter().zip(expected()) {
            assert_eq!(row.len(), 4);
            row.iter()
                .for_each(|(name, value)| assert_eq!(*value, expected[name], "{name}"));
        }
    }
}

#[test]
fn dictionaries_that_grow_or_change_on_the_way_are_read() {
    for data in [DELTA, REPLACED] {
        let colors: Vec<Value> = rows_of(data)
            .into_iter()
            .map(|mut row| row["color"].take())
            .collect();
        assert_eq!(colors, ["red", "green", "blue", "red"]);
    }
}

#[test]
fn buffers_are_slices_of_the_file() {
    let data = Bytes::from(FILE.to_vec());
    let read = read_all(ArrowIpc::new(), data.clone());
    let place = |batch: &RecordBatch, name: &str| {
        let column = batch.column_by_name(name).unwrap().to_data();
        column
            .buffers()
            .iter()
            .map(|buffer| buffer.as_ptr())
            .collect::<Vec<_>>()
    };
    for batch in read.iter().flatten() {
        for name in ["i64", "text", "vector"] {
            for pointer in place(batch, name) {
                assert!(data.as_ptr_range().contains(&pointer), "{name}");
            }
        }
        let tensor = column_tensor(batch, "index").unwrap();
        assert!(data.as_ptr_range().contains(&tensor.as_bytes().as_ptr()));
        // Not multiplied by the number of columns.
        assert!(weight(batch) < data.len());
    }
    // If the file is not aligned, it is copied, and reads the same.
    let mut shifted = vec![0];
    shifted.extend_from_slice(FILE);
    let shifted = read_all(ArrowIpc::new(), Bytes::from(shifted).slice(1..));
    for (a, b) in read.iter().zip(&shifted) {
        assert_eq!(a.as_ref().unwrap(), b.as_ref().unwrap());
    }
    assert_eq!(read.len(), shifted.len());
}

#[test]
fn columns_are_chosen_by_name_and_come_in_the_order_of_the_file() {
    for data in [FILE, STREAM] {
        let format = || ArrowIpc::new().columns(["index", "text", "text"]);
        for batch in read_all(format(), data.to_vec()) {
            let names = batch
                .unwrap()
                .schema()
                .fields()
                .iter()
                .map(|field| field.name().clone())
                .collect::<Vec<_>>();
            assert_eq!(names, ["text", "index"]);
        }
        let rows = read_all(ArrowRows::new(format()), data.to_vec());
        assert_eq!(rows[9].as_ref().unwrap()["index"], 9);
        let error = read_all(ArrowIpc::new().columns(["txt"]), data.to_vec())
            .remove(0)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(
            error
                .to_string()
                .contains(r#"no column "txt", but "bool", "i8", "i16""#),
            "{error}"
        );
        assert!(error.to_string().ends_with("3 more"), "{error}");
    }
    let none: [&str; 0] = [];
    assert!(crate::Format::problem(&ArrowIpc::new().columns(none)).is_some());
}

#[test]
fn numbers_become_tensors() {
    let batch = &batches(FILE)[2];
    let tensor = |name| column_tensor(batch, name);
    assert_eq!(tensor("index").unwrap(), list(vec![8_i64, 9]));
    assert_eq!(tensor("u8").unwrap(), list(vec![0_u8, 255]));
    assert_eq!(tensor("f16").unwrap().dtype(), DType::F16);
    assert_eq!(tensor("bool").unwrap(), list(vec![true, false]));
    let vector = tensor("vector").unwrap();
    assert_eq!(
        vector,
        Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]).unwrap()
    );
    assert_eq!(
        tensor("point").unwrap().as_slice::<f32>().unwrap(),
        [8.0, 8.5, 9.0, 9.5]
    );
    assert_eq!(tensor("text").unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(tensor("nowhere").unwrap_err().kind(), ErrorKind::NotFound);
    let error = column_tensor(&batches(FILE)[0], "vector").unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"shape mismatch: column "vector": 1 of 4 values are null"#
    );
    // Parts of a batch.
    let part = batches(FILE)[1].slice(1, 2);
    assert_eq!(column_tensor(&part, "index").unwrap(), list(vec![5_i64, 6]));
    assert_eq!(
        column_tensor(&part, "point")
            .unwrap()
            .as_slice::<f32>()
            .unwrap(),
        [5.0, 5.5, 6.0, 6.5]
    );
    assert_eq!(
        column_tensor(&part, "bool").unwrap(),
        list(vec![false, true])
    );
}

#[test]
fn lists_in_lists_of_fixed_sizes_are_tensors_of_more_axes() {
    let numbers = Arc::new(Int32Array::from_iter_values(0..12));
    let field = |kind: &DataType| Arc::new(Field::new("item", kind.clone(), false));
    let inner = Arc::new(FixedSizeListArray::new(
        field(&DataType::Int32),
        3,
        numbers,
        None,
    ));
    let outer: Arc<dyn Array> = Arc::new(FixedSizeListArray::new(
        field(inner.data_type()),
        2,
        inner.clone(),
        None,
    ));
    let batch = RecordBatch::try_from_iter([("a", outer)]).unwrap();
    let tensor = column_tensor(&batch, "a").unwrap();
    assert_eq!((tensor.shape(), tensor.is_shared()), (&[2, 2, 3][..], true));
    assert_eq!(
        column_tensor(&batch.slice(1, 1), "a")
            .unwrap()
            .as_slice::<i32>()
            .unwrap(),
        [6, 7, 8, 9, 10, 11]
    );
}

#[test]
fn row_104_cut_files_are_errors() {
    for data in [FILE, ZSTD] {
        for cut in places(data.len()) {
            let read = read_all(ArrowIpc::new(), data[..cut].to_vec());
            assert!(read.iter().any(Result::is_err), "cut at {cut}");
        }
    }
}

#[test]
fn row_104_cut_streams_are_errors_unless_cut_between_batches() {
    let whole = batches(STREAM);
    let mut quiet = 0;
    let mut tried = 0;
    for cut in places(STREAM.len()) {
        tried += 1;
        let read = read_all(ArrowIpc::new(), STREAM[..cut].to_vec());
        let good = read.iter().take_while(|batch| batch.is_ok()).count();
        assert!(
            read.iter()
                .take(good)
                .zip(&whole)
                .all(|(read, whole)| read.as_ref().unwrap() == whole)
        );
        match read.len() - good {
            0 => quiet += 1,
            1 => {
                let error = read.last().unwrap().as_ref().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Truncated, "cut at {cut}: {error}");
            }
            more => panic!("cut at {cut}: {more} errors"),
        }
    }
    // After the schema, the dictionary and each of the three batches.
    assert!(
        if tried == STREAM.len() {
            quiet == 5
        } else {
            (1..=5).contains(&quiet)
        },
        "{quiet}"
    );
}

#[test]
fn row_104_a_damaged_batch_is_one_error_and_the_others_follow() {
    // The compressed text of the second batch, found by the magic of its LZ4 frame.
    let magic = [0x04, 0x22, 0x4d, 0x18];
    let frames: Vec<usize> = (0..LZ4.len() - 4)
        .filter(|&at| LZ4[at..at + 4] == magic)
        .collect();
    let mut data = LZ4.to_vec();
    data[frames[frames.len() / 2]] ^= 1;
    let read = read_all(ArrowIpc::new(), data);
    assert_eq!(
        kinds(&read).iter().filter(|kind| kind.is_some()).count(),
        1,
        "{:?}",
        kinds(&read)
    );
    assert_eq!(read.len(), 3);
    assert!(read[2].is_ok());
    let error = read.iter().find_map(|item| item.as_ref().err()).unwrap();
    assert!(error.to_string().contains("batch 1 at byte "), "{error}");
}

#[test]
fn row_104_lying_sizes_take_no_memory() {
    // The uncompressed size is stored before each LZ4 frame.
    let at = LZ4
        .windows(4)
        .position(|bytes| bytes == [0x04, 0x22, 0x4d, 0x18])
        .unwrap()
        - 8;
    for (size, kind) in [
        (1_u64 << 44, ErrorKind::Limit),
        (1 << 25, ErrorKind::Limit),
        (1 << 20, ErrorKind::Corrupt),
    ] {
        let mut data = LZ4.to_vec();
        data[at..at + 8].copy_from_slice(&size.to_le_bytes());
        let error = read_all(ArrowIpc::new(), data)
            .into_iter()
            .find_map(Result::err)
            .unwrap();
        assert_eq!(error.kind(), kind, "{error}");
    }
    let read = read_all(ArrowIpc::new().max_expansion(100, 1), ZSTD.to_vec());
    assert_eq!(
        read.into_iter().find_map(Result::err).unwrap().kind(),
        ErrorKind::Limit
    );
}

#[test]
fn row_98_rows_that_refer_to_the_same_again_and_again_are_refused() {
    // Three levels of views, each of which repeats the level below a thousand times: 10^9 values
    // from 12 kB.
    let mut values: ArrayRef = Arc::new(Int32Array::from_iter_values(0..1000));
    for _ in 0..2 {
        let field = Arc::new(Field::new("item", values.data_type().clone(), true));
        let (offsets, sizes) = (vec![0; 1000], vec![1000; 1000]);
        values = Arc::new(ListViewArray::new(
            field,
            offsets.into(),
            sizes.into(),
            values,
            None,
        ));
    }
    let batch = RecordBatch::try_from_iter([("views", values)]).unwrap();
    let error = row(&batch, 0, 1 << 20).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"limit reached: column "views": a row of more than 1048576 bytes"#
    );
    assert_eq!(
        row(&batch, 0, 1 << 30).unwrap()["views"]
            .as_array()
            .unwrap()
            .len(),
        1000
    );
}

#[test]
fn row_105_106_what_is_no_arrow_file_says_so() {
    let first = |data: &[u8]| {
        read_all(ArrowIpc::new(), data.to_vec())
            .remove(0)
            .unwrap_err()
    };
    assert_eq!(
        first(b"").to_string(),
        "arrow_ipc: 0:0: truncated: an empty file where Arrow is due"
    );
    assert_eq!(first(b"FEA1............").kind(), ErrorKind::Unsupported);
    assert_eq!(first(&[0; 64]).kind(), ErrorKind::Corrupt);
    assert_eq!(
        first(b"PAR1 or any other text").kind(),
        ErrorKind::Truncated
    );
    let mut more = STREAM.to_vec();
    more.extend_from_slice(b"more");
    let read = read_all(ArrowIpc::new(), more);
    let error = read.last().unwrap().as_ref().unwrap_err();
    assert!(
        read.len() == 4 && error.to_string().contains("4 bytes after the end marker"),
        "{error}"
    );
}

#[test]
fn gzipped_files_are_inflated() {
    assert_eq!(rows_of(&gzip(FILE)), expected());
}

#[test]
fn rows_need_names_of_their_own() {
    let column = || -> ArrayRef { Arc::new(Int32Array::from(vec![1, 2])) };
    let field = || Field::new("a", DataType::Int32, true);
    let schema = Arc::new(arrow_schema::Schema::new(vec![field(), field()]));
    let batch = RecordBatch::try_new(schema, vec![column(), column()]).unwrap();
    let mut data = Vec::new();
    let mut writer = StreamWriter::try_new(&mut data, &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    drop(writer);
    assert_eq!(kinds(&read_all(ArrowIpc::new(), data.clone())), [None]);
    let read = read_all(ArrowRows::default(), data);
    assert_eq!(kinds(&read), [Some(ErrorKind::Unsupported)]);
}

#[test]
fn the_rarer_types_as_rows() {
    use arrow_array::types::{Int16Type, IntervalMonthDayNano};
    use arrow_array::*;
    let columns: Vec<(&str, ArrayRef)> = vec![
        (
            "run",
            Arc::new(RunArray::<Int16Type>::from_iter([
                Some("a"),
                Some("a"),
                None,
            ])),
        ),
        (
            "duration",
            Arc::new(DurationMillisecondArray::from(vec![1500, -1, i64::MIN])),
        ),
        (
            "interval",
            Arc::new(IntervalMonthDayNanoArray::from(
                vec![IntervalMonthDayNano::new(14, -3, 1_000); 3],
            )),
        ),
        (
            "never",
            Arc::new(TimestampSecondArray::from(vec![i64::MAX, 0, -1])),
        ),
        (
            "dictionary",
            Arc::new(
                "x y x"
                    .split(' ')
                    .collect::<DictionaryArray<types::UInt8Type>>(),
            ),
        ),
        (
            "bits",
            Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])),
        ),
        ("strings", Arc::new(StringArray::from(vec!["1", "2", "3"]))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let rows: Vec<Value> = (0..3)
        .map(|at| row(&batch, at, 1 << 20).unwrap().into())
        .collect();
    assert_eq!(
        rows[0],
        json!({"run": "a", "duration": "PT1.5S", "interval": "P14M-3DT0.000001S", "never": i64::MAX,
               "dictionary": "x", "bits": true, "strings": "1"})
    );
    assert_eq!(rows[1]["duration"], "PT-0.001S");
    assert_eq!(
        (&rows[1]["never"], &rows[1]["bits"]),
        (&json!("1970-01-01T00:00:00"), &Value::Null)
    );
    assert_eq!(
        (&rows[2]["run"], &rows[2]["duration"]),
        (&Value::Null, &json!("PT-9223372036854775.808S"))
    );
}

#[test]
fn survives_whatever_is_in_a_file() {
    check_format(ArrowRows::default, LZ4);
    check_format(ArrowRows::default, DELTA);
    check_format(|| ArrowRows::new(ArrowIpc::new().columns(["index"])), ZSTD);
}
