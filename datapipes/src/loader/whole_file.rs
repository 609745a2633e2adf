//! Files that are written whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
#[cfg(feature = "tune")]
use std::sync::atomic::{AtomicU64, Ordering};

/// Length in bytes from which a name is long; most file systems take 255.
const LONG: usize = 128;

/// Writes a file beside `path`, `.name.new`, which replaces it once everything is on the disk. For
/// one writer: what it leaves there if it is killed is written over the next time.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_by(&beside(path, ""), path, bytes)
}

/// Does as [`replace`], for a path that several ranks may write to at the same time.
#[cfg(feature = "tune")]
pub(super) fn replace_shared(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = beside(path, &unique());
    let replaced = replace_by(&beside, path, bytes);
    if replaced.is_err() {
        // It has a name that nobody uses again.
        let _ = fs::remove_file(&beside);
    }
    replaced
}

fn replace_by(beside: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    check_regular(path)?;
    write(beside, bytes)?;
    fs::rename(beside, path)?;
    sync_folder(path)
}

/// Fails if [`replace`] would fail, as far as that can be known before: for the begin of work whose
/// result goes to the path.
#[cfg(feature = "tune")]
pub(super) fn probe(path: &Path) -> io::Result<()> {
    check_regular(path)?;
    let beside = beside(path, &unique());
    File::create(&beside)?;
    fs::remove_file(&beside)
}

/// Fails if the path names no file, or if something else than a file is there: a device such as
/// `/dev/null` would be gone.
fn check_regular(path: &Path) -> io::Result<()> {
    if path.file_name().is_none() {
        let message = "it names no file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let message = "it exists, and is no regular file";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    Ok(())
}

/// Returns `folder/.name.new`, with something before its ending. A long name is replaced by its hash:
/// with the additions it might be longer than file systems take.
fn beside(path: &Path, middle: &str) -> PathBuf {
    let full = path.file_name().unwrap_or_default();
    let mut name = OsString::from(".");
    match full.as_encoded_bytes() {
        long if long.len() > LONG => name.push(format!("{:016x}", crate::stable_hash(long))),
        _ => name.push(full),
    }
    name.push(middle);
    name.push(".new");
    path.with_file_name(name)
}

/// Returns a part of a name that no other call returns, in this process or in another one.
#[cfg(feature = "tune")]
fn unique() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(".{}-{next}", std::process::id())
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
