//! Arrow IPC, files and streams, as rows by index.
//!
//! A panic of the reader underneath is caught and becomes an error about the file, without a call
//! of libFuzzer's hook. A panic of this library is still found.

#![no_main]

use datapipes::{ErrorKind, Graph, MapPipe};
use datapipes_io::File;
use datapipes_io::formats::{ArrowIpc, IndexedArrowRows};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let format = ArrowIpc::new().max_expansion(1 << 20, 16);
    let Ok(rows) = format.index(File::new("file", data.to_vec())) else {
        return;
    };
    let errors = Graph::from_vec(vec![rows])
        .map_async(|rows: IndexedArrowRows| async move {
            let mut errors = Vec::new();
            // From the last to the first: what was read before helps no row.
            for index in (0..rows.len().min(64)).rev() {
                errors.extend(rows.get(index).await.err());
            }
            datapipes::Ok(errors)
        })
        .collect()
        .expect("errors are items");
    let mut errors = errors.iter().flatten();
    if let Some(error) = errors.find(|error| error.kind() == ErrorKind::Panic) {
        eprintln!("{error}");
        std::process::abort();
    }
});
