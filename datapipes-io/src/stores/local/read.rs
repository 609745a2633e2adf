//! Reads local files whole, one after another.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
#[cfg(target_os = "linux")]
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Context, ErrorKind};

use super::buffers::{Buffers, Stock};
use super::folder::OpenFolder;
use super::state::{self, State};
use super::{is_interrupted, retried};
use crate::FileRef;

/// Size below which a file gets memory of its own: the allocator has a quick way for it.
const POOLED: u64 = 1 << 10;
/// Size up to which a file may be read before its state is known.
const SMALL: u64 = 16 << 10;
/// Number of bytes after which the read checks if the epoch was dropped.
const STEP: usize = 8 << 20;

/// Reads local files whole, one after another.
pub(in crate::stores) struct FileReader<'a> {
    stock: Stock,
    /// Files above this size are not read.
    most: u64,
    cx: &'a Context,
    folder: OpenFolder,
    /// Time before all files are opened, in seconds.
    begun: i64,
    /// True if the last file was small and at rest.
    small: bool,
}

/// A file that was read, or is too large to be read.
#[derive(Debug)]
pub(in crate::stores) enum Content {
    Whole(Bytes),
    /// Size of a file that is too large.
    Large(u64),
}

/// A problem with a file that is no error of the system.
pub(in crate::stores) type Wrong = (ErrorKind, String);

impl<'a> FileReader<'a> {
    /// Returns a reader of files of at most this size.
    pub(in crate::stores) fn new(buffers: &Arc<Buffers>, most: u64, cx: &'a Context) -> Self {
        FileReader {
            stock: Stock::new(buffers),
            most,
            cx,
            folder: OpenFolder::default(),
            begun: state::now(),
            small: false,
        }
    }

    /// Returns the content, or a problem with the file itself. `later` are the files that are to be
    /// read after it.
    pub(in crate::stores) fn read(
        &mut self,
        path: &Path,
        later: &[FileRef],
    ) -> io::Result<Result<Content, Wrong>> {
        self.folder
            .prepare(path, |places| later.get(places - 1).map(|file| &*file.path));
        let cx = self.cx;
        retried(cx, || self.try_read(path, later.len()))
    }

    /// Reads a file, with as many `more` after it.
    fn try_read(&mut self, path: &Path, more: usize) -> io::Result<Result<Content, Wrong>> {
        let handle = match self.folder.open(path) {
            Some(handle) => handle,
            // Others may need its descriptor.
            None => open(path).inspect_err(|_| self.folder.close())?,
        };
        if self.small
            && let Some(data) = self.read_at_rest(&handle, more)
        {
            return Ok(Ok(Content::Whole(data)));
        }
        let before = State::of(&handle)?;
        let size = before.size;
        self.small = (1..=SMALL).contains(&size) && before.is_at_rest(self.begun);
        if let Some(what) = before.wrong {
            return Ok(Err((ErrorKind::Unsupported, what.to_owned())));
        }
        if size > self.most {
            return Ok(Ok(Content::Large(size)));
        }
        let data = if size == 0 {
            read_unsized(&handle)?
        } else {
            let stop = || self.cx.is_cancelled();
            let Some(data) = read_sized(&handle, size, &mut self.stock, more, &stop)? else {
                return Ok(Err(no_memory(size)));
            };
            data
        };
        let after = State::of(&handle)?;
        let whole = size == 0 || data.len() as u64 == size;
        if !whole || size != after.size || before.modified != after.modified {
            let what = format!(
                "changed while it was read: {size} bytes at first, then {} of {}",
                data.len(),
                after.size
            );
            return Ok(Err((ErrorKind::Corrupt, what)));
        }
        Ok(Ok(Content::Whole(data)))
    }
}

/// A file that nobody had changed for some time before it was opened, by its state after the read, did
/// not change while it was read: its state need not be known before. That saves a small file one call
/// of the system in five.
#[cfg(target_os = "linux")]
impl FileReader<'_> {
    /// Reads a small file that is at rest; `None` if it may be none, or fails. Nothing is taken from a
    /// pipe or another special file, whose position stays.
    fn read_at_rest(&mut self, handle: &fs::File, more: usize) -> Option<Bytes> {
        let mut space = [const { MaybeUninit::uninit() }; SMALL as usize];
        let (data, _) = rustix::io::pread(handle, &mut space[..], 0).ok()?;
        let (state, size) = (State::of(handle).ok()?, data.len() as u64);
        let is_whole =
            state.wrong.is_none() && state.size == size && (1..=self.most).contains(&size);
        if !is_whole || !state.is_at_rest(self.begun) {
            return None;
        }
        if size < POOLED {
            return Some(Bytes::copy_from_slice(data));
        }
        let mut buffer = self.stock.get(data.len(), more)?;
        buffer.space().copy_from_slice(data);
        Some(buffer.into_bytes(data.len()))
    }
}

#[cfg(not(target_os = "linux"))]
impl FileReader<'_> {
    fn read_at_rest(&mut self, _: &fs::File, _: usize) -> Option<Bytes> {
        None
    }
}

/// Opens a file for reading, without waiting if it is a pipe.
pub(in crate::stores) fn open(path: &Path) -> io::Result<fs::File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        // Opening a pipe without a writer would block.
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    }
    options.open(path)
}

/// Reads a file that says it is empty, to its end.
pub(in crate::stores) fn read_unsized(mut handle: &fs::File) -> io::Result<Bytes> {
    let mut data = Vec::new();
    handle.read_to_end(&mut data)?;
    Ok(data.into())
}

/// Reads at most `size` bytes, and as many as there are unless told to stop, with as many files `more`
/// after it; `None` if there is no memory for them.
pub(super) fn read_sized(
    handle: &fs::File,
    size: u64,
    stock: &mut Stock,
    more: usize,
    stop: &dyn Fn() -> bool,
) -> io::Result<Option<Bytes>> {
    if size < POOLED {
        // Space that is not cleared first, and not more of it when the file grows.
        let mut data = Vec::with_capacity(size as usize);
        handle.take(size).read_to_end(&mut data)?;
        return Ok(Some(data.into()));
    }
    let space = usize::try_from(size).ok();
    let Some(mut buffer) = space.and_then(|size| stock.get(size, more)) else {
        return Ok(None);
    };
    let read = fill(handle, buffer.space(), stop)?;
    Ok(Some(buffer.into_bytes(read)))
}

pub(super) fn no_memory(size: u64) -> Wrong {
    (ErrorKind::Limit, format!("no memory for its {size} bytes"))
}

/// Reads until the end, until `space` is full, or until told to stop.
fn fill(mut reader: impl Read, space: &mut [u8], stop: &dyn Fn() -> bool) -> io::Result<usize> {
    let mut filled = 0;
    while filled < space.len() && !stop() {
        let end = space.len().min(filled + STEP);
        match reader.read(&mut space[filled..end]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if is_interrupted(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that yields one byte at a time, with every other call interrupted.
    struct Awkward<'a>(&'a [u8], bool);

    impl Read for Awkward<'_> {
        fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let len = space.len().min(1);
            self.0.read(&mut space[..len])
        }
    }

    #[test]
    fn row_78_short_and_interrupted_reads_are_invisible() {
        let data: Vec<u8> = (0..=255).collect();
        let mut space = vec![0; 300];
        assert_eq!(
            fill(Awkward(&data, false), &mut space, &|| false).unwrap(),
            256
        );
        assert_eq!(space[..256], data);
    }

    #[test]
    fn a_dropped_epoch_ends_a_read() {
        let mut space = vec![0; 300];
        assert_eq!(fill(io::repeat(1), &mut space, &|| true).unwrap(), 0);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests_at_rest {
    use super::*;

    /// Reads a file as one after a small one that is at rest, if all files are at rest that were
    /// changed before `late` seconds from now.
    fn read_at_rest(path: &Path, late: i64, most: u64) -> Option<Bytes> {
        let (cx, buffers) = (Context::default(), Buffers::new(1 << 20));
        let mut reader = FileReader::new(&buffers, most, &cx);
        reader.begun += late;
        reader.small = true;
        let handle = open(path).unwrap();
        let data = reader.read_at_rest(&handle, 0);
        // Whatever it found, the file can be read from its begin.
        if handle.metadata().unwrap().is_file() {
            let content = reader.read(path, &[]).unwrap();
            let expected = std::fs::read(path).unwrap();
            match content {
                Ok(Content::Whole(again)) => assert_eq!(again, expected),
                Ok(Content::Large(size)) => assert_eq!(size, expected.len() as u64),
                Err(wrong) => assert_eq!(wrong.0, ErrorKind::Corrupt),
            }
        }
        data
    }

    const HOUR: i64 = 3600;

    #[test]
    fn small_files_at_rest_are_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        for size in [1, POOLED - 1, POOLED, 4096, SMALL] {
            let data: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
            std::fs::write(&path, &data).unwrap();
            assert_eq!(read_at_rest(&path, HOUR, u64::MAX).unwrap(), data);
            assert_eq!(read_at_rest(&path, HOUR, size - 1), None);
        }
    }

    #[test]
    fn row_75_a_file_that_was_changed_just_now_is_read_with_care() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, [1; 4096]).unwrap();
        assert_eq!(read_at_rest(&path, 0, u64::MAX), None);
        // Not even if a program sets the time back, as one does that copies it with the file.
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
        open(&path).unwrap().set_modified(old).unwrap();
        assert_eq!(read_at_rest(&path, 0, u64::MAX), None);
        assert!(read_at_rest(&path, HOUR, u64::MAX).is_some());
        // A file of the future, such as one of a server with another clock, may change at any time.
        let late = std::time::SystemTime::now() + std::time::Duration::from_secs(7200);
        open(&path).unwrap().set_modified(late).unwrap();
        assert_eq!(read_at_rest(&path, HOUR, u64::MAX), None);
    }

    #[test]
    fn row_79_what_is_no_small_file_is_read_with_care() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("empty"), "").unwrap();
        std::fs::write(path("large"), vec![1; SMALL as usize + 1]).unwrap();
        std::fs::create_dir(path("folder")).unwrap();
        let fifo = path("pipe");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [path("empty"), path("large"), path("folder"), fifo.clone()] {
            assert_eq!(read_at_rest(&path, HOUR, u64::MAX), None);
        }
        // Bytes that wait in a pipe are not consumed by the attempt.
        let mut both = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&fifo)
            .unwrap();
        std::io::Write::write_all(&mut both, b"abc").unwrap();
        assert_eq!(read_at_rest(&fifo, HOUR, u64::MAX), None);
        let mut held = [0; 3];
        both.read_exact(&mut held).unwrap();
        assert_eq!(&held, b"abc");
        // Files that say another size than they have: 0, and a whole page.
        for path in [
            "/proc/version",
            "/sys/kernel/mm/transparent_hugepage/enabled",
        ] {
            let path = Path::new(path);
            assert!(!path.exists() || read_at_rest(path, HOUR, u64::MAX).is_none());
        }
    }
}
