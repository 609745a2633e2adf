//! Maps files into memory.

use std::fs::File;
use std::io;
use std::path::Path;

use bytes::Bytes;
use datapipes::{Error, Result};
use memmap2::MmapOptions;

/// Maps a file.
pub(super) fn map(path: &Path) -> Result<Bytes> {
    let map = || -> io::Result<Bytes> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let len = usize::try_from(meta.len()).map_err(io::Error::other)?;
        if len == 0 {
            return Ok(Bytes::new());
        }
        // SAFETY: the map is read-only and of exactly the file's length. That nobody writes to the
        // file or truncates it while it is mapped is required of those who open a store.
        let map = unsafe { MmapOptions::new().len(len).map(&file)? };
        Ok(Bytes::from_owner(map))
    };
    map().map_err(|error| failed(path, error))
}

/// Adds the path to an error.
pub(super) fn failed(path: &Path, error: io::Error) -> Error {
    let error = Error::io(error);
    Error::new(error.kind(), path.display().to_string()).with_source(error)
}
