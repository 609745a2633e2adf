//! Any bytes as an IDX array.
#![no_main]

use datapipes_io::formats::Idx;
use datapipes_io::testing::read_all;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let idx = || Idx::new().max_expansion(1 << 20, 100);
    drop(read_all(idx(), data.to_vec()));
    drop(read_all(idx().rows(), data.to_vec()));
});
