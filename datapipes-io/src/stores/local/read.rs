//! Reads local files whole, one after another.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Context, ErrorKind, Item};

use super::buffers::{Buffers, Stock};
use super::folder::OpenFolder;
use super::{is_interrupted, retried};
use crate::FileRef;

/// Size below which a file gets memory of its own: the allocator has a quick way for it.
const POOLED: u64 = 1 << 10;
/// Number of bytes after which the read checks if the epoch was dropped.
const STEP: usize = 8 << 20;

/// Reads local files whole, one after another.
pub(in crate::stores) struct FileReader<'a> {
    stock: Stock,
    /// Files above this size are not read.
    most: u64,
    cx: &'a Context,
    folder: OpenFolder,
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
        }
    }

    /// Returns the content, or a problem with the file itself. `later` are the files that are to be
    /// read after it.
    pub(in crate::stores) fn read(
        &mut self,
        path: &Path,
        later: &[datapipes::Result<Item<FileRef>>],
    ) -> io::Result<Result<Content, Wrong>> {
        self.folder.prepare(path, |places| {
            let item = later.get(places - 1)?;
            item.as_ref().ok().map(|file| &*file.path)
        });
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
        let before = State::of(&handle)?;
        let size = before.size;
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

/// Length, time and kind of an open file, as the system tells them.
struct State {
    size: u64,
    /// Seconds and nanoseconds.
    #[cfg(target_os = "linux")]
    modified: (i64, u64),
    #[cfg(not(target_os = "linux"))]
    modified: std::time::SystemTime,
    /// Reason why the file cannot be read.
    wrong: Option<&'static str>,
}

impl State {
    /// Asks by `fstat`, which for a small file in the page cache is noticeably less work than the
    /// `statx` of [`fs::File::metadata`].
    #[cfg(target_os = "linux")]
    fn of(handle: &fs::File) -> io::Result<State> {
        use rustix::fs::FileType;
        let stat = rustix::fs::fstat(handle)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        Ok(State {
            size: stat.st_size as u64,
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as u64),
            wrong: wrong(kind == FileType::RegularFile, kind == FileType::Directory),
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn of(handle: &fs::File) -> io::Result<State> {
        let known = handle.metadata()?;
        Ok(State {
            size: known.len(),
            modified: known.modified()?,
            wrong: wrong(known.is_file(), known.is_dir()),
        })
    }
}

fn wrong(is_file: bool, is_folder: bool) -> Option<&'static str> {
    match () {
        () if is_file => None,
        () if is_folder => Some("a folder, not a file"),
        () => Some("not a regular file"),
    }
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
