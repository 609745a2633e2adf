//! Any bytes from another machine: as the start of a connection, of a worker and of a trainer, and as messages
//! after it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    datapipes::testing::hear_machine(data);
});
