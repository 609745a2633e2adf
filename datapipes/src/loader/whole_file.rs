//! Files that are written whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes a file beside `path`, which replaces it once everything is on the disk.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = beside(path);
    write(&beside, bytes)?;
    fs::rename(&beside, path)?;
    sync_folder(path)
}

/// Fails if [`replace`] would fail, as far as that can be known before: for the begin of work whose
/// result goes to the path.
#[cfg(feature = "tune")]
pub(super) fn probe(path: &Path) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let message = "it exists, and is no regular file";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    let beside = beside(path);
    File::create(&beside)?;
    fs::remove_file(&beside)
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
