//! Files that are written whole or not at all, and the bound of those that are read whole.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use datapipes::whole_file::replace_shared;
use datapipes::{Error, Result};

/// Maximum number of bytes of a file that is read whole: a lock has a line for each file.
pub(crate) const MOST: u64 = 4 << 30;

/// Writes a small file beside `path`, and renames it to `path` once it is on the disk: a concurrent
/// reader sees the old or the new content.
///
/// # Errors
/// The errors of the file system, with the path.
pub(crate) fn replace(path: &Path, content: &(impl AsRef<[u8]> + ?Sized)) -> Result<()> {
    replace_shared(path, content.as_ref()).map_err(|error| Error::io(error).within(path.display()))
}

/// A file that is removed on drop, unless it was renamed.
#[derive(Debug)]
pub(crate) struct Temporary(Option<PathBuf>);

impl Temporary {
    /// Creates a new file beside `path`, with a unique name. It has the first 40 characters of that of
    /// `path`, so that it is not too long for the file system.
    pub fn beside(path: &Path) -> io::Result<(File, Temporary)> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name: String = name.chars().take(40).collect();
        let mut n = 0;
        loop {
            let other = path.with_file_name(format!(".{name}.{}-{n}.tmp", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).open(&other) {
                Ok(file) => return Ok((file, Temporary(Some(other)))),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && n < 1000 => n += 1,
                Err(error) => return Err(error),
            }
        }
    }

    pub fn rename(mut self, path: &Path) -> io::Result<()> {
        if let Some(own) = &self.0 {
            fs::rename(own, path)?;
        }
        self.0 = None;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_have_the_longest_name() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["x".repeat(255), "ü".repeat(127)] {
            let path = folder.path().join(name);
            replace(&path, "old").unwrap();
            replace(&path, "new").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let error = replace(&path, "new").unwrap_err().to_string();
        assert!(
            error.ends_with("it exists, and is no regular file"),
            "{error}"
        );
        assert!(!fs::metadata(&path).unwrap().is_file());
    }
}
