//! Parquet, as rows.

#![no_main]

use datapipes_io::formats::{Parquet, ParquetRows};
use datapipes_io::testing::read_all;

// Few rows are enough to come to every value, and what refers to one value a thousand times stays small.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let format = ParquetRows::new(Parquet::new().batch_rows(16).max_expansion(64 << 20, 1100));
    drop(read_all(format, data.to_vec()));
});
