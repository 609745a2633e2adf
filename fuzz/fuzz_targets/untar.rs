//! Any bytes as a tar archive.
#![no_main]

use datapipes::Graph;
use datapipes_io::{File, FileGraph};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let files = Graph::from_vec(vec![File::new("file", data.to_vec())]);
    // `samples` sees the members that were read before an error.
    drop(files.untar().samples().collect());
});
