//! A checkpoint in a file.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::Checkpoint;
use crate::{Error, ErrorKind, Result};

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
        let beside = beside(path);
        let written = write(&beside, &self.to_bytes()).and_then(|()| fs::rename(&beside, path));
        written
            .and_then(|()| sync_folder(path))
            .map_err(|error| failed("written", path, error))
    }

    /// Reads the checkpoint that was [saved](Checkpoint::save) to a file.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no file, [`ErrorKind::Io`] if it cannot be read, and the
    /// errors of [`from_bytes`](Checkpoint::from_bytes); with the path.
    pub fn load(path: impl AsRef<Path>) -> Result<Checkpoint> {
        let path = path.as_ref();
        let bytes = fs::read(path).map_err(|error| failed("read", path, error))?;
        Checkpoint::from_bytes(&bytes).map_err(|error| {
            Error::new(error.kind(), format!("{}", path.display())).with_source(error)
        })
    }
}

/// Returns `folder/.name.new`.
fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Syncs the folder, so that the new name is on the disk, too, where folders can be opened.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    match cfg!(unix) {
        true => File::open(folder)?.sync_all(),
        false => Ok(()),
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
