//! Any bytes as a NumPy archive.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    drop(datapipes_io::testing::read_all(
        datapipes_io::formats::Npz::new(),
        data.to_vec(),
    ));
    drop(datapipes_io::testing::read_all(
        datapipes_io::formats::Npz::new().map(),
        data.to_vec(),
    ));
});
