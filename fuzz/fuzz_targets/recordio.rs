#![no_main]

use datapipes_io::formats::{ImageRecord, RecordIo};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for record in datapipes_io::testing::read_all(RecordIo::new(), data.to_vec())
        .into_iter()
        .flatten()
    {
        let _ = ImageRecord::parse(record);
    }
});
