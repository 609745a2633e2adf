//! Any bytes as rows of CSV.
#![no_main]

use datapipes_io::formats::Csv;

libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(datapipes_io::testing::read_all(
    Csv::rows().max_expansion(1 << 24, 1 << 20),
    data.to_vec()
)));
