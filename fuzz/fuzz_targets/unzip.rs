//! Any bytes as a zip archive.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    drop(datapipes_io::testing::read_all(
        datapipes_io::formats::Unzip::new(),
        data.to_vec(),
    ));
});
