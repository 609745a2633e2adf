//! A checkpoint in a file.

use std::io;
use std::path::Path;

use super::Checkpoint;
use crate::whole_file::{read, replace};
use crate::{Error, ErrorKind, Result};

/// Maximum size of a file that is read.
const MOST: u64 = 1 << 30;

impl Checkpoint {
    /// Writes the checkpoint to a file, whole or not at all: to another file next to it, which
    /// replaces it once everything is on the disk. A process that ends at any moment leaves the
    /// previous checkpoint, or this one. One process at a time may write to a path.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], with the path ([`ErrorKind::NotFound`] if its folder does not exist). The
    /// previous file is unchanged then; only if the folder cannot be synced it may hold the new
    /// checkpoint already.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        replace(path, &self.to_bytes()).map_err(|error| failed("written", path, error))
    }

    /// Reads the checkpoint that was [saved](Checkpoint::save) to a file.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no file, [`ErrorKind::Io`] if it cannot be read,
    /// [`ErrorKind::Limit`] if it is larger than 1 GiB, and the errors of [`from_bytes`](Checkpoint::from_bytes); with the path.
    pub fn load(path: impl AsRef<Path>) -> Result<Checkpoint> {
        let path = path.as_ref();
        let bytes = read(path, MOST).map_err(|error| failed("read", path, error))?;
        Checkpoint::from_bytes(&bytes).map_err(|error| error.within(path.display()))
    }
}

fn failed(what: &str, path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Io,
    };
    Error::new(
        kind,
        format!("{}: the checkpoint cannot be {what}", path.display()),
    )
    .with_source(error)
}
