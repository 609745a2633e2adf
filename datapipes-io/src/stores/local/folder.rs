//! A folder in which several files in a row are opened.

use std::fs;
use std::path::Path;

/// A folder in which several files in a row are opened. The system then walks along its path once,
/// not for each file, which for a small file is a good part of all work. It is opened for the files
/// of one call only, so that a folder that is replaced is noticed soon.
///
/// Without effect on systems other than Linux.
#[derive(Debug, Default)]
pub(super) struct OpenFolder {
    /// Path of the folder, with the slash at its end.
    path: Vec<u8>,
    handle: Option<fs::File>,
}

/// Number of files in a row in one folder for which it is opened.
const RUN: usize = 8;

impl OpenFolder {
    /// Opens the folder of a file, unless it is open, if several of the files after it are in the
    /// same folder: `later` returns the file that comes so many places after this one.
    pub(super) fn prepare<'p>(
        &mut self,
        path: &Path,
        later: impl FnOnce(usize) -> Option<&'p Path>,
    ) {
        let Some((folder, _)) = split(path) else {
            return;
        };
        if !cfg!(target_os = "linux") || folder == self.path {
            return;
        }
        let last = later(RUN - 1).and_then(split);
        if last.is_some_and(|(other, _)| other == folder) {
            self.path = folder.to_vec();
            self.handle = handle(path);
        }
    }

    /// Opens a file in the folder; `None` if it is in another one, or cannot be opened. The whole
    /// path then tells why.
    #[cfg(target_os = "linux")]
    pub(super) fn open(&self, path: &Path) -> Option<fs::File> {
        use rustix::fs::{Mode, OFlags, openat};
        let handle = self.handle.as_ref()?;
        let (folder, name) = split(path)?;
        if folder != self.path {
            return None;
        }
        // Opening a pipe without a writer would block.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        openat(handle, name, flags, Mode::empty())
            .ok()
            .map(fs::File::from)
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn open(&self, _: &Path) -> Option<fs::File> {
        None
    }
}

/// Opens the folder of a file, as a place from which to open others.
#[cfg(target_os = "linux")]
fn handle(path: &Path) -> Option<fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::OpenOptions::new();
    options.read(true);
    options.custom_flags(libc::O_PATH | libc::O_DIRECTORY);
    options.open(path.parent()?).ok()
}

#[cfg(not(target_os = "linux"))]
fn handle(_: &Path) -> Option<fs::File> {
    None
}

/// Splits a path into that of its folder, with the slash at the end, and the name.
fn split(path: &Path) -> Option<(&[u8], &[u8])> {
    let path = path.as_os_str().as_encoded_bytes();
    let slash = path.iter().rposition(|&byte| byte == b'/')?;
    let (folder, name) = path.split_at(slash + 1);
    (!name.is_empty()).then_some((folder, name))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn files_in_a_row_are_opened_in_their_folder() {
        let dir = tempfile::tempdir().unwrap();
        let name = |n: usize| dir.path().join(n.to_string());
        let paths = Vec::from_iter((0..RUN).map(name));
        for (n, path) in paths.iter().enumerate() {
            std::fs::write(path, [n as u8]).unwrap();
        }
        let later = |places: usize| paths.get(places).map(|path| &**path);
        let mut folder = OpenFolder::default();
        // Too few follow, or another folder does.
        folder.prepare(&paths[0], |places| later(places + 1));
        folder.prepare(&paths[0], |_| Some(dir.path()));
        assert!(folder.open(&paths[0]).is_none());
        folder.prepare(&paths[0], later);
        for (n, path) in paths.iter().enumerate() {
            let mut data = Vec::new();
            let mut file = folder.open(path).unwrap();
            file.read_to_end(&mut data).unwrap();
            assert_eq!(data, [n as u8]);
        }
        // Where the folder is not enough, the path says why.
        let missing = [dir.path().join("x"), dir.path().join("1/"), "1".into()];
        assert!(missing.iter().all(|path| folder.open(path).is_none()));
    }
}
