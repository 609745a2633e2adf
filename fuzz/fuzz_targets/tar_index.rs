//! Any bytes as a tar archive to be indexed, and as an index.
#![no_main]

use datapipes_io::formats::TarIndex;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for index in [
        TarIndex::of(&data.to_vec().into()),
        TarIndex::from_json(data),
    ]
    .into_iter()
    .flatten()
    {
        assert_eq!(
            TarIndex::from_json(index.to_json()).expect("it was written by us"),
            index
        );
    }
});
