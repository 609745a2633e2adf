//! The folder with the sockets of a user's loaders.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Returns the folders in which loaders of this user have sockets, the preferred one first. They
/// need not be there.
pub(super) fn all() -> Vec<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // The variable may be that of another user, as after `su`.
    let is_own = |path: &PathBuf| {
        path.is_absolute()
            && fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == user)
    };
    let runtime = runtime.filter(is_own).map(|path| path.join("datapipes"));
    let temporary = std::env::temp_dir().join(format!("datapipes-{user}"));
    runtime.into_iter().chain([temporary]).collect()
}

/// Returns the folder for the sockets of this process's loaders, which is made if it is not there.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) if it cannot be made, or if others may enter it.
pub(super) fn own() -> Result<PathBuf> {
    let [folder, ..] = &all()[..] else {
        unreachable!("there is always the one for temporary files")
    };
    open(folder)?;
    Ok(folder.clone())
}

pub(super) fn open(folder: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            let message = format!(
                "{}: cannot make the folder for the sockets of monitored loaders",
                folder.display()
            );
            Err(Error::config(message).with_source(error))
        }
        _ => verify(folder),
    }
}

/// Fails unless the folder belongs to this user, and to nobody else.
pub(super) fn verify(folder: &Path) -> Result<()> {
    let path = folder.display();
    let cannot = |error| {
        let message = format!("{path}: cannot look at the folder of monitored loaders");
        Error::config(message).with_source(error)
    };
    let found = fs::symlink_metadata(folder).map_err(cannot)?;
    let problem = if !found.is_dir() {
        "is no folder".to_owned()
    } else if found.uid() != rustix::process::geteuid().as_raw() {
        format!("belongs to user {}", found.uid())
    } else if found.mode() & 0o077 != 0 {
        format!("may be used by others (mode {:o})", found.mode() & 0o777)
    } else {
        return Ok(());
    };
    let message = format!(
        "{path}: {problem}, so that no loader can be monitored there; remove it, or set \
         XDG_RUNTIME_DIR to a folder of your own"
    );
    Err(Error::config(message))
}
