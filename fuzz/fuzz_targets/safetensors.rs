//! Any bytes as a safetensors file.
#![no_main]

use datapipes_io::formats::SafeTensors;

libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(datapipes_io::testing::read_all(
    SafeTensors::new().max_expansion(1 << 24, 1 << 20),
    data.to_vec()
)));
