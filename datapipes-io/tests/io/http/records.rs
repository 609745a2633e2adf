//! Records of a file on a web server, read as it arrives.

use std::sync::Arc;
use std::time::Instant;

#[cfg(feature = "parquet")]
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use datapipes::{DataLoader, Graph};
use datapipes_io::FileRef;
use datapipes_io::formats::Lines;
#[cfg(feature = "parquet")]
use datapipes_io::formats::{Parquet, ParquetRows};
use datapipes_io::prelude::*;
use datapipes_io::stores::resilient;
#[cfg(feature = "parquet")]
use parquet::{arrow::ArrowWriter, file::properties::WriterProperties};

use super::*;

fn text() -> String {
    (0..40_000)
        .map(|n| format!("{n} {}\n", "x".repeat(90)))
        .collect()
}

#[test]
fn a_stopped_epoch_asks_a_web_server_for_the_rest_of_a_file() {
    let text = text();
    let expected: Vec<&str> = text.lines().collect();
    for workers in [0, 2] {
        let server = BadHttp::start();
        server.on("/k", [object(text.clone())]);
        let loader = || {
            let lines = store_of(&server).files(["k"]).stream_as(Lines::new(), 0);
            DataLoader::builder(lines)
                .workers(workers)
                .resumable()
                .build()
                .expect("a loader")
        };
        let first = loader();
        let mut epoch = first.epoch(0).blocking();
        let before: Vec<String> = epoch
            .by_ref()
            .take(30_000)
            .map(|line| line.expect("a line"))
            .collect();
        let state = epoch.checkpoint().expect("a state");
        drop(epoch);
        let asked = server.requests_to("/k").len();
        let rest = loader().resume(&state).expect("it goes on").blocking();
        let after: Vec<String> = rest.map(|line| line.expect("a line")).collect();
        assert_eq!([before, after].concat(), expected);
        let ranges: Vec<String> = server.requests_to("/k")[asked..]
            .iter()
            .filter_map(|request| request.header("range").map(str::to_owned))
            .collect();
        let begins: Vec<usize> = ranges
            .iter()
            .map(|range| {
                range
                    .trim_start_matches("bytes=")
                    .split('-')
                    .next()
                    .and_then(|n| n.parse().ok())
            })
            .map(|begin| begin.expect("a range has a beginning"))
            .collect();
        assert_eq!(begins.len(), 1, "{ranges:?}");
        assert!(
            begins[0] > text.len() / 4 && text.as_bytes()[begins[0] - 1] == b'\n',
            "{ranges:?}"
        );
    }
}

#[test]
fn a_file_of_unknown_length_is_read_as_it_arrives() {
    let text = text();
    let server = BadHttp::start();
    server.on("/k", [raw(chunked(text.as_bytes(), 5000))]);
    let lines = store_of(&server).files(["k"]).read_as(Lines::new());
    assert_eq!(
        lines.collect().expect("lines"),
        text.lines().collect::<Vec<_>>()
    );
}

/// Reads a file in the middle of which the consumer stops until the server has closed all
/// connections, as it does with those that are idle, several times. Returns the items; no connection
/// is left.
fn read_with_pauses<T: Send + 'static>(
    data: Vec<u8>,
    items: usize,
    workers: usize,
    graph: impl Fn(Graph<FileRef>) -> Graph<T>,
) -> Vec<T> {
    let server = BadHttp::start();
    let size = data.len() as u64;
    server.on("/k", [object(data)]);
    let store: Arc<dyn Store> = Arc::new(resilient(store_of(&server)));
    let files = Graph::from_vec(vec![FileRef::stored(store, "k", Some(size))]);
    let loader = DataLoader::builder(graph(files)).workers(workers);
    let loader = loader.build().expect("a loader");
    let mut epoch = loader.epoch(0).blocking();
    let mut read = Vec::new();
    for _ in 0..4 {
        read.extend(
            epoch
                .by_ref()
                .take(items / 5)
                .map(|item| item.expect("it goes on")),
        );
        server.drop_connections();
    }
    read.extend(epoch.by_ref().map(|item| item.expect("it goes on")));
    // A closed connection still gives the bytes in its socket's buffers, and workers may have read
    // ahead.
    let (is, least) = (server.connections(), if workers == 0 { 3 } else { 2 });
    assert!(is >= least, "{is} connections");
    drop((epoch, loader));
    let end = Instant::now() + Duration::from_secs(10);
    while server.open() > 0 {
        assert!(
            Instant::now() < end,
            "{} connections are left",
            server.open()
        );
        std::thread::yield_now();
    }
    read
}

#[test]
fn row_70_a_file_whose_connection_is_closed_between_its_blocks_is_read_on() {
    let text: String = (0..60_000)
        .map(|n| format!("{n} {}\n", "x".repeat(990)))
        .collect();
    for workers in [0, 2] {
        let read = read_with_pauses(text.clone().into(), 60_000, workers, |files| {
            files.stream_as(Lines::new(), 0)
        });
        assert!(read.iter().eq(text.lines()), "{} lines", read.len());
    }
}

#[cfg(feature = "parquet")]
#[test]
fn row_70_parquet_is_read_on_where_the_connection_was_closed_between_row_groups() {
    const ROWS: usize = 40;
    let text = |row: usize| format!("{row} {}", "word ".repeat(100_000));
    let texts = StringArray::from_iter_values((0..ROWS).map(text));
    let column: ArrayRef = Arc::new(texts);
    let batch = RecordBatch::try_from_iter([("text", column)]).expect("a column");
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(1))
        .set_dictionary_enabled(false)
        .build();
    let mut data = Vec::new();
    let mut writer =
        ArrowWriter::try_new(&mut data, batch.schema(), Some(properties)).expect("a writer");
    writer.write(&batch).expect("a batch");
    writer.close().expect("an end");
    for workers in [0, 2] {
        let read = read_with_pauses(data.clone(), ROWS, workers, |files| {
            files.stream_as(ParquetRows::new(Parquet::new().by_row_group()), 0)
        });
        let read = read
            .iter()
            .map(|row| row["text"].as_str().map(str::to_owned));
        assert!(read.eq((0..ROWS).map(|row| Some(text(row)))));
    }
}
