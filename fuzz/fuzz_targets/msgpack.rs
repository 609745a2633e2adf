//! Any bytes as MessagePack values.
#![no_main]

use datapipes_io::formats::MsgPack;

libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(datapipes_io::testing::read_all(
    MsgPack::values().max_expansion(1 << 24, 1 << 20),
    data.to_vec()
)));
