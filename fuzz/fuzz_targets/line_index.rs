//! Any bytes as JSON lines to be indexed, and as an index.
#![no_main]

use datapipes_io::formats::LineIndex;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for index in [Ok(LineIndex::of(data)), LineIndex::from_bytes(data)]
        .into_iter()
        .flatten()
    {
        let again = LineIndex::from_bytes(&index.to_bytes()).expect("it was written by us");
        assert_eq!(again, index);
    }
});
