//! A folder in which several files in a row are opened.

#[cfg(target_os = "linux")]
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// A folder in which several files in a row are opened. The system then walks along its path once,
/// not for each file, which for a small file is a good part of all work. It is opened for the files
/// of one call only, and for a few milliseconds, so that a folder that is replaced is noticed soon.
///
/// Without effect on systems other than Linux.
#[derive(Debug, Default)]
pub(super) struct OpenFolder(Option<Open>);

#[derive(Debug)]
struct Open {
    /// Path of the folder, with the slash at its end.
    path: Vec<u8>,
    #[cfg(target_os = "linux")]
    handle: fs::File,
    since: Instant,
}

/// Number of files in a row in one folder for which it is opened.
const RUN: usize = 8;
/// Time for which a folder stays open.
const LONGEST: Duration = Duration::from_millis(5);

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
        // A relative path is another one after a change of the working directory.
        if !cfg!(target_os = "linux") || path.is_relative() {
            return;
        }
        let open = self
            .0
            .take_if(|open| open.path != folder || open.since.elapsed() > LONGEST);
        if open.is_none() && self.0.is_some() {
            return;
        }
        let last = later(RUN - 1).and_then(split);
        if last.is_some_and(|(other, _)| other == folder) {
            self.0 = Open::new(folder);
        }
    }

    /// Closes the folder.
    pub(super) fn close(&mut self) {
        self.0 = None;
    }

    /// Opens a file in the folder; `None` if it is in another one, or cannot be opened. The whole
    /// path then tells why.
    #[cfg(target_os = "linux")]
    pub(super) fn open(&self, path: &Path) -> Option<fs::File> {
        use rustix::fs::{Mode, OFlags, openat};
        let open = self.0.as_ref()?;
        let (folder, name) = split(path)?;
        if folder != open.path {
            return None;
        }
        // Opening a pipe without a writer would block.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        openat(&open.handle, name, flags, Mode::empty())
            .ok()
            .map(fs::File::from)
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn open(&self, _: &Path) -> Option<fs::File> {
        None
    }
}

impl Open {
    /// Opens a folder, as a place from which to open files.
    #[cfg(target_os = "linux")]
    fn new(folder: &[u8]) -> Option<Open> {
        use std::os::unix::ffi::OsStrExt;
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = fs::OpenOptions::new();
        options.read(true);
        options.custom_flags(libc::O_PATH | libc::O_DIRECTORY);
        Some(Open {
            path: folder.to_vec(),
            handle: options.open(OsStr::from_bytes(folder)).ok()?,
            since: Instant::now(),
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn new(_: &[u8]) -> Option<Open> {
        None
    }
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
        // A path that ends in a dot is a folder, not a file of the folder above.
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/1"), b"a").unwrap();
        let dot = dir.path().join("a/.");
        let below = dir.path().join("a/1");
        let mut other = OpenFolder::default();
        other.prepare(&dot, |_| Some(&below));
        let mut data = Vec::new();
        other.open(&below).unwrap().read_to_end(&mut data).unwrap();
        assert_eq!(data, b"a");
        // No file is opened by its name in the folder; the reader opens the whole path instead, and
        // reports the error of that.
        let missing = [dir.path().join("x"), dir.path().join("1/"), "1".into()];
        assert!(missing.iter().all(|path| folder.open(path).is_none()));
    }
}
