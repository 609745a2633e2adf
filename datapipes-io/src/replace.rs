//! Writes a small file whole or not at all.

use std::fs;
use std::io::Write;
use std::path::Path;

use datapipes::{Error, Result};

/// Writes a file beside `path`, and renames it to `path` once it is on the disk: a concurrent
/// reader sees the old or the new content.
///
/// # Errors
/// The errors of the file system, with the path.
pub(crate) fn replace(path: &Path, content: &(impl AsRef<[u8]> + ?Sized)) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let write = || {
        let mut file = fs::File::create(&temporary)?;
        file.write_all(content.as_ref())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        Error::io(error).within(path.display())
    })
}
