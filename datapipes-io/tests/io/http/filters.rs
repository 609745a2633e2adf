//! Rows of a Parquet file on a server: a filter requests only what may match.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datapipes::MapPipe;
use datapipes_io::formats::ParquetFile;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use super::*;

/// Returns a file of 4000 rows in row groups of 1000, of about 2 MB each.
fn file() -> Vec<u8> {
    let text = |n: i64| format!("{n}: {}", "x".repeat(2000 + n as usize % 7));
    let batch = RecordBatch::try_from_iter([
        (
            "row",
            Arc::new(Int64Array::from_iter_values(0..4000)) as ArrayRef,
        ),
        (
            "text",
            Arc::new(StringArray::from_iter_values((0..4000).map(text))),
        ),
    ]);
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(1000))
        .set_data_page_row_count_limit(50)
        .set_write_batch_size(50)
        .set_dictionary_enabled(false)
        .build();
    let batch = batch.expect("columns of one length");
    let mut data = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut data, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    data
}

/// Returns the number of bytes in the ranges of all requests so far.
fn requested(server: &BadHttp) -> u64 {
    let requests = server.requests_to("/k");
    let ranges = requests
        .iter()
        .filter_map(|request| request.header("range"));
    let size = |range: &str| {
        let (start, end) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some(end.parse::<u64>().ok()? + 1 - start.parse::<u64>().ok()?)
    };
    ranges
        .map(|range| size(range).expect("a range with two ends"))
        .sum()
}

#[tokio::test]
async fn a_filter_requests_only_pages_that_may_match() {
    let data = file();
    let server = BadHttp::start();
    server.on("/k", [object(data.clone())]);
    let file = ParquetFile::open(Arc::new(store_of(&server)), "k").await;
    let file = file.unwrap().columns(["text"]).unwrap();
    let filter = "row >= 2100 AND row < 2110".parse().unwrap();
    let filtered = file.clone().filter(filter).unwrap();
    let opened = requested(&server);
    let mut rows = 0;
    for group in 0..4 {
        rows += MapPipe::get(&filtered, group).await.unwrap().num_rows();
    }
    let with = requested(&server) - opened;
    for group in 0..4 {
        MapPipe::get(&file, group).await.unwrap();
    }
    let without = requested(&server) - opened - with;
    assert_eq!(rows, 10);
    assert!(without > 7_000_000, "{without} bytes without a filter");
    // The page index, and a page of each column: 50 texts of 2 kB.
    assert!(with < 150_000, "{with} of {without} bytes");
    println!("10 of 4000 rows: {with} bytes with a filter, {without} without");
}
