//! Any bytes as lines, plain or compressed.
#![no_main]

use datapipes_io::formats::Lines;

libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(datapipes_io::testing::read_all(
    Lines::new().max_expansion(1 << 24, 1 << 20),
    data.to_vec()
)));
