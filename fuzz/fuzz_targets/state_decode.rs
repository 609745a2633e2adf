//! Any bytes as the checkpoint of an epoch: the result is a checkpoint or an error. A checkpoint is
//! written as it was read.
#![no_main]

use datapipes::Checkpoint;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check(data);
    // A checksum that is right lets more come through.
    let mut sealed = [b"DPst\x01", data].concat();
    let sum = sealed.iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    sealed.extend(sum.to_le_bytes());
    check(&sealed);
});

fn check(bytes: &[u8]) {
    if let Ok(state) = Checkpoint::from_bytes(bytes) {
        let again =
            Checkpoint::from_bytes(&state.to_bytes()).expect("what was written can be read");
        assert!(again == state);
    }
}
