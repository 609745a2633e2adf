//! Any bytes as the field of a sample, by each rule.
#![no_main]

use bytes::Bytes;
use datapipes_io::Sample;
use datapipes_io::formats::FieldDecoder;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let decoder = FieldDecoder::new().max_expansion(1 << 20, 100);
    let data = Bytes::copy_from_slice(data);
    for field in ["cls", "txt", "json", "mp", "npy", "json.gz"] {
        drop(decoder.decode(Sample::new("key").with(field, data.clone())));
    }
});
