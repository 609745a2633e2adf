//! Any bytes as a compressed file, of the codec that the bytes select.
#![no_main]

use datapipes::Graph;
use datapipes_io::{Decompress, File};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let file = File::new("file", data.to_vec());
    let pipe = Decompress::new()
        .max_expansion(1 << 24, 1 << 20)
        .max_window(8 << 20);
    drop(Graph::from_vec(vec![file]).pipe(pipe).collect());
});
