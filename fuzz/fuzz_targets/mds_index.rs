#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(datapipes_io::formats::MdsIndex::parse(data)));
