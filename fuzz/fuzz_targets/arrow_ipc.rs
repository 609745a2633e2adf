//! Arrow IPC, files and streams, as rows.
//!
//! A panic of the reader underneath is caught and becomes an error about the file, without a call
//! of libFuzzer's hook. A panic of this library is still found.

#![no_main]

use datapipes::ErrorKind;
use datapipes_io::formats::{ArrowIpc, ArrowRows};
use datapipes_io::testing::read_all;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let format = ArrowRows::new(ArrowIpc::new().max_expansion(1 << 20, 16));
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
