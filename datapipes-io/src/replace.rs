//! Files that are written whole or not at all, and the bound of those that are read whole.

use std::path::Path;

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

#[cfg(test)]
mod tests {
    use std::fs;

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
