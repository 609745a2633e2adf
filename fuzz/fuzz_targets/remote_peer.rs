//! Any bytes from another machine: as the start of a connection, of a worker and of a trainer, and as messages
//! after it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // Workers of other machines are there on Linux alone.
    #[cfg(target_os = "linux")]
    datapipes::testing::hear_machine(data);
    #[cfg(not(target_os = "linux"))]
    let _ = data;
});
