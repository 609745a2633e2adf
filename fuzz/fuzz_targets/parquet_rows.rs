//! Parquet, as rows by index: of whole row groups, or of pages by the page index.
//!
//! A panic of the reader underneath is caught and becomes an error about the file, without a call
//! of libFuzzer's hook. A panic of this library is still found.

#![no_main]

use std::sync::Arc;

use datapipes::{Error, ErrorKind, Graph, MapPipe, Result};
use datapipes_io::formats::ParquetFile;
use datapipes_io::stores::InMemory;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for filter in [
        None,
        Some("index > 200 and word != 'word 1' or word is null"),
    ] {
        let errors = Graph::from_vec(vec![data.to_vec()])
            .map_async(move |data| async move { datapipes::Ok(read(data, filter).await) })
            .collect()
            .expect("errors are items");
        let mut errors = errors.iter().flatten();
        if let Some(error) = errors.find(|error| error.kind() == ErrorKind::Panic) {
            eprintln!("{error}");
            std::process::abort();
        }
    }
});

/// Reads some rows, each alone, from the last to the first; returns the errors.
async fn read(data: Vec<u8>, filter: Option<&str>) -> Vec<Error> {
    let rows = async {
        let store = Arc::new(InMemory::from_iter([("file", data)]));
        // Values that many rows refer to stay small if there are few rows.
        let mut file = ParquetFile::open(store, "file")
            .await?
            .max_expansion(64 << 20, 1100);
        if let Some(filter) = filter {
            file = file.filter(filter.parse()?)?;
        }
        file.rows().await
    };
    let rows = match rows.await {
        Ok(rows) => rows,
        Err(error) => return vec![error],
    };
    let mut errors = Vec::new();
    for index in (0..rows.len().min(16)).rev() {
        let row: Result<_> = rows.get(index).await;
        errors.extend(row.err());
    }
    errors
}
