#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(datapipes_io::testing::read_all(
    datapipes_io::formats::TfExamples::of(datapipes_io::formats::TfRecords::new().unchecked()),
    data.to_vec(),
)));
