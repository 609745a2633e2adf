//! Files that are read whole, or written whole or not at all.

use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Length in bytes from which a name is long; most file systems take 255.
const LONG: usize = 128;

/// Writes a file beside `path`, `.name.new`, which replaces it once everything is on the disk. For
/// one writer: what it leaves there if it is killed is written over the next time.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_by(&beside(path, ""), path, bytes)
}

/// Does as [`replace`], for a path that several ranks may write to at the same time.
pub fn replace_shared(path: &Path, bytes: &[u8]) -> io::Result<()> {
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
pub fn probe(path: &Path) -> io::Result<()> {
    check_regular(path)?;
    let beside = beside(path, &unique());
    File::create(&beside)?;
    fs::remove_file(&beside)
}

/// Fails if the path names no file, or if something else than a file is there: a device such as
/// `/dev/null` would be gone.
pub fn check_regular(path: &Path) -> io::Result<()> {
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

/// Reads a file to its end. Fails if it has more than `most` bytes, or if it is no regular file and has
/// more than 64 MiB: a device such as `/dev/zero` has no end.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let found = fs::metadata(path)?;
    let most = match found.is_file() {
        true => most,
        false => most.min(64 << 20),
    };
    let mut bytes = Vec::new();
    if found.len() <= most {
        bytes.reserve_exact(found.len() as usize);
        let mut file = File::open(path)?.take(most.saturating_add(1));
        file.read_to_end(&mut bytes)?;
    }
    if found.len().max(bytes.len() as u64) > most {
        let message = format!("it has more than {most} bytes, the limit for such a file");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

/// Does as [`read`], for text in UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let text = String::from_utf8(read(path, most)?);
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
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

/// Returns a random part of a name: processes in containers, or of several machines, may write to one
/// folder and have the same number.
fn unique() -> String {
    format!(".{:016x}", RandomState::new().build_hasher().finish())
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Syncs the folder, so that the new name is on the disk, too, where folders can be opened and synced.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    if !cfg!(unix) {
        return Ok(());
    }
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // A folder that may not be read, or whose file system has no such call: the file is in its place.
        Err(error) if is_refusal(error.kind()) => Ok(()),
        synced => synced,
    }
}

fn is_refusal(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    matches!(kind, PermissionDenied | InvalidInput | Unsupported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn what_has_no_end_is_not_read() {
        let zero = read(Path::new("/dev/zero"), u64::MAX).unwrap_err();
        assert_eq!(zero.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_text(Path::new("/dev/null"), 9).unwrap(), "");
        let own = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/whole_file.rs"));
        let len = fs::metadata(own).unwrap().len();
        assert_eq!(read(own, len).unwrap().len() as u64, len);
        assert!(read(own, len - 1).is_err());
    }
}
