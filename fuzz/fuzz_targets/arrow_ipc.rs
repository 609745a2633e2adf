//! Arrow IPC, files and streams, as rows.

#![no_main]

use datapipes_io::formats::{ArrowIpc, ArrowRows};
use datapipes_io::testing::read_all;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    drop(read_all(ArrowRows::new(ArrowIpc::new().max_expansion(1 << 20, 16)), data.to_vec()));
});
