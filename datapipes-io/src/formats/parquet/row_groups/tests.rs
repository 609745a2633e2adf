//! Compares files that are read row group by row group with the same files read whole.

use std::io::Write;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datapipes::{DataLoader, Graph, Items, Result};
use futures::StreamExt;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use crate::FileRef;
use crate::formats::{Format, Parquet, ParquetRows, Row};
use crate::prelude::*;
use crate::testing::Scripted;

const GROUPS: usize = 10;
const ROWS: usize = 300;

/// Returns a file of ten row groups of 300 rows: a number, a text, and what nobody reads, most of it.
fn file() -> Vec<u8> {
    let mut data = Vec::new();
    let number = |n: usize| (n * 7919 % 104_729) as i64;
    let rows = 0..GROUPS * ROWS;
    let text = |n: usize| format!("{} {}", number(n), "word ".repeat(n % 50));
    let columns: [(&str, ArrayRef); 4] = [
        (
            "n",
            Arc::new(Int64Array::from_iter_values(0..rows.len() as i64)),
        ),
        (
            "text",
            Arc::new(StringArray::from_iter_values(rows.clone().map(text))),
        ),
        (
            "other",
            Arc::new(Int64Array::from_iter_values(rows.clone().map(number))),
        ),
        (
            "bulk",
            Arc::new(StringArray::from_iter_values(
                rows.map(|n| format!("{n:0600}")),
            )),
        ),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(ROWS))
        .build();
    let mut writer = ArrowWriter::try_new(&mut data, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    data
}

/// Returns the items with their origins.
fn seen<T: std::fmt::Debug + Send + 'static>(graph: Graph<T>, workers: usize) -> Vec<String> {
    let shown = graph.through(|items: Items<T>| {
        Items::from_stream(items.map(|item| {
            let item = item?;
            let text = format!("{} {:?}", item.origin(), *item);
            Ok(item.map(|_| text))
        }))
    });
    let loader = DataLoader::builder(shown);
    let loader = loader.workers(workers).build().unwrap();
    loader.epoch(0).blocking().map(Result::unwrap).collect()
}

fn check<F: Format + Clone>(format: F)
where
    F::Item: std::fmt::Debug,
{
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(&file()).unwrap();
    let store = Scripted::from_iter([
        ("a", file()),
        ("b", packer.finish().unwrap()),
        ("c", file()),
    ]);
    let files = || store.clone().files(["a", "b", "c"]);
    let whole = seen(files().load_files().read_as(format.clone()), 0);
    for workers in [0, 2] {
        assert_eq!(seen(files().stream_as(format.clone(), 0), workers), whole);
    }
}

#[test]
fn row_groups_have_the_items_of_the_whole_file() {
    let parquet = || Parquet::new().columns(["text"]).by_row_group();
    check(ParquetRows::new(parquet()));
    check(parquet().batch_rows(128));
    let filter = || "n >= 450 AND n < 1000 OR other = 7919".parse().unwrap();
    check(ParquetRows::new(parquet().filter(filter())));
    check(parquet().batch_rows(128).filter(filter()));
}

#[test]
fn only_ranges_of_the_wanted_columns_are_read() {
    let data = file();
    let store = Scripted::from_iter([("a", data.clone())]);
    let rows = ParquetRows::new(Parquet::new().columns(["text"]).by_row_group());
    let files = vec![FileRef::stored(
        Arc::new(store.clone()),
        "a",
        Some(data.len() as u64),
    )];
    let read = Graph::from_vec(files).stream_as(rows, 0).collect().unwrap();
    assert_eq!(read.len(), GROUPS * ROWS);
    let sizes = store.requests().into_iter().filter_map(|request| {
        let range = request.get.range?;
        Some((range.end - range.start) as usize)
    });
    let sizes: Vec<usize> = sizes.collect();
    // The end of the file, and the text of each row group.
    assert_eq!(sizes.len(), 1 + GROUPS);
    assert!(
        sizes[1..]
            .iter()
            .all(|&size| size < data.len() / GROUPS / 3),
        "{sizes:?}"
    );
}

#[test]
fn a_stopped_epoch_reads_the_rest_of_the_row_groups() {
    let store = Scripted::from_iter([("a", file()), ("b", file())]);
    let loader = || {
        let rows = ParquetRows::new(Parquet::new().columns(["n"]).by_row_group());
        let graph = store.clone().files(["a", "b"]).stream_as(rows, 0);
        DataLoader::builder(graph)
            .workers(2)
            .resumable()
            .build()
            .unwrap()
    };
    let number = |row: Result<Row>| row.unwrap()["n"].as_u64().unwrap();
    let all: Vec<u64> = (0..GROUPS * ROWS)
        .chain(0..GROUPS * ROWS)
        .map(|n| n as u64)
        .collect();
    for taken in [1, 299, 300, 1750, 3000, 4001] {
        let first = loader();
        let mut epoch = first.epoch(0).blocking();
        let mut read: Vec<u64> = epoch.by_ref().take(taken).map(number).collect();
        let state = epoch.checkpoint().unwrap();
        drop((epoch, first));
        let asked = store.requests().len();
        read.extend(loader().resume(&state).unwrap().blocking().map(number));
        assert_eq!(read, all, "stopped after {taken}");
        let mut ranges = store.requests().split_off(asked);
        ranges.retain(|request| request.get.range.is_some());
        // A resumed epoch reads the footer of each file and the row groups that are not delivered.
        // Some more come again: of those that come faster than every 200 µs, as these do, only the
        // second, fourth, eighth … is a place to go on at.
        let delivered = taken / ROWS;
        let most = 2 + (2 * GROUPS - delivered) + delivered / 2 + 2;
        assert!(ranges.len() <= most, "{} requests, of {most}", ranges.len());
    }
}

#[test]
fn a_file_that_was_replaced_is_not_continued() {
    let store = Scripted::from_iter([("a", file())]);
    let loader = || {
        let graph = store
            .clone()
            .files(["a"])
            .stream_as(ParquetRows::new(Parquet::new().by_row_group()), 0);
        DataLoader::builder(graph).resumable().build().unwrap()
    };
    let first = loader();
    let mut epoch = first.epoch(0).blocking();
    assert_eq!(epoch.by_ref().take(400).count(), 400);
    let state = epoch.checkpoint().unwrap();
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(&file()).unwrap();
    for other in [file(), packer.finish().unwrap()] {
        store.put("a", other);
        let resumed = loader().resume(&state).unwrap();
        let error = resumed.blocking().find_map(Result::err);
        let said = error.unwrap().to_string();
        assert!(said.contains("cannot go on in this file"), "{said}");
    }
}

#[test]
fn what_is_wrong_with_a_file_is_told_as_of_a_whole_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let check = |data: &[u8], format: Parquet| {
        std::fs::write(&path, data).unwrap();
        let files = || Graph::from_vec(vec![FileRef::new(&path)]);
        let format = ParquetRows::new(format.by_row_group());
        let whole = files().load_files().read_as(format.clone()).collect();
        let parts = files().stream_as(format, 0).collect();
        let said = whole.unwrap_err().to_string();
        assert_eq!(
            parts
                .unwrap_err()
                .to_string()
                .replace("split_records", "parquet_rows"),
            said
        );
    };
    check(&file()[..9000], Parquet::new());
    check(b"no Parquet", Parquet::new());
    check(&file(), Parquet::new().columns(["absent"]));
    check(
        &file(),
        Parquet::new().filter("absent = 1".parse().unwrap()),
    );
    // A page of the third row group.
    let mut damaged = file();
    let at = damaged.len() / 4;
    damaged[at..at + 64].fill(0xff);
    check(&damaged, Parquet::new());
}
