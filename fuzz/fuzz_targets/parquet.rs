//! Parquet, as rows.
//!
//! A panic of the reader underneath is caught and becomes an error about the file, without a call
//! of libFuzzer's hook. A panic of this library is still found.

#![no_main]

use datapipes::ErrorKind;
use datapipes_io::formats::{Parquet, ParquetRows};
use datapipes_io::testing::read_all;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // Values that many rows refer to stay small if there are few rows.
    let format = Parquet::new().batch_rows(16).max_expansion(64 << 20, 1100);
    let filter = "index > 3 and text != 'one' or f64 is null"
        .parse()
        .expect("a filter");
    let filtered = format.clone().filter(filter);
    let read = [format, filtered].map(|format| read_all(ParquetRows::new(format), data.to_vec()));
    if let Some(error) = read
        .iter()
        .flatten()
        .flat_map(|row| row.as_ref().err())
        .find(|error| error.kind() == ErrorKind::Panic)
    {
        eprintln!("{error}");
        std::process::abort();
    }
});
