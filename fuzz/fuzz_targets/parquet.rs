//! Parquet, as rows.
//!
//! A panic of the reader underneath is caught, and an error about the file, of which libFuzzer's
//! hook hears nothing; a panic of our own is still found.

#![no_main]

use datapipes::ErrorKind;
use datapipes_io::formats::{Parquet, ParquetRows};
use datapipes_io::testing::read_all;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // What many rows refer to stays small if there are few of them.
    let format = ParquetRows::new(Parquet::new().batch_rows(16).max_expansion(64 << 20, 1100));
    let read = read_all(format, data.to_vec());
    if let Some(error) = read
        .iter()
        .flat_map(|row| row.as_ref().err())
        .find(|error| error.kind() == ErrorKind::Panic)
    {
        eprintln!("{error}");
        std::process::abort();
    }
});
