//! Any bytes as a tar archive: members or errors.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    drop(datapipes_io::testing::read_all(
        datapipes_io::formats::Tar::new(),
        data.to_vec(),
    ));
});
