//! Reads whole files, from this machine or from a store.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Arity, Context, Error, ErrorKind, Hints, Item, Items, Pipe, Result, Work};
use futures::StreamExt;
use futures::stream::FuturesOrdered;

use super::local::buffers::Buffers;
use super::local::{failed, is_interrupted, retried};
use crate::file::readable;
use crate::stores::{Get, Store};
use crate::{File, FileRef};

/// Reads files whole; see [`FileGraphExt::load_files`](crate::FileGraphExt::load_files).
///
/// - A file is read in one pass into memory of its own. While reads end without waiting, as in the
///   page cache, the workers read, each a few files at a time. Once reads wait for a disk or a
///   network, threads of their own read, and the executor chooses how many files are read at once.
/// - Files of at least 16 KiB are read into buffers that return to a pool when the last slice of
///   the file is dropped, so that a stream of files causes no page faults. The
///   pool holds at most [`idle_bytes`](LoadFiles::idle_bytes) that are idle, and lives as long as
///   the graph. Buffers that are idle for some seconds while files are read go back to the system.
/// - A file whose length or modification time changes during the read is `Corrupt`: its content may
///   be a mix. A file that is replaced by a rename is read as it was when it was opened.
/// - An object of a [store](FileRef::store) is read by that store, with adaptive concurrency; an
///   object whose size differs from the listed size is `Changed`. The next points are about local
///   files.
/// - Symbolic links are followed. A path that is not a regular file is refused without waiting for
///   it. A file of length 0 is read nevertheless, since files of `/proc` report that length.
/// - Errors of a failing device and stale network handles are retried once; if too many files are
///   open, the read waits up to 10 seconds.
#[derive(Clone, Debug)]
#[must_use]
pub struct LoadFiles {
    buffers: Arc<Buffers>,
}

impl Default for LoadFiles {
    fn default() -> Self {
        LoadFiles {
            buffers: Buffers::new(256 << 20),
        }
    }
}

impl LoadFiles {
    /// Returns the pipe with up to 256 MiB of idle buffers.
    pub fn new() -> Self {
        LoadFiles::default()
    }

    /// Sets the maximum number of bytes in idle buffers; 0 for none.
    pub fn idle_bytes(self, bytes: usize) -> Self {
        LoadFiles {
            buffers: Buffers::new(bytes),
        }
    }
}

impl Pipe<FileRef> for LoadFiles {
    type Out = File;

    fn apply(&self, input: Items<FileRef>, cx: &Context) -> Items<File> {
        loaded(
            input,
            Loading {
                buffers: self.buffers.clone(),
                most: u64::MAX,
                cx: cx.clone(),
            },
            |loaded| {
                let Loaded::Whole(file) = loaded else {
                    unreachable!("no file is too large")
                };
                file
            },
        )
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .work(Work::Io)
            .seldom_waits(true)
            .arity(Arity::One)
    }
    fn weigh(&self, file: &File) -> Option<usize> {
        Some(file.weight())
    }
}

/// A file that was loaded, or is too large to be loaded.
#[derive(Clone, Debug)]
pub(crate) enum Loaded {
    Whole(File),
    Large(FileRef),
}

/// A pipe that loads files up to a size, and passes on the size of larger files, if it can be
/// known.
#[derive(Clone, Debug)]
pub(crate) struct OpenFiles {
    load: LoadFiles,
    most: u64,
}

impl OpenFiles {
    pub(crate) fn up_to(most: u64) -> Self {
        OpenFiles {
            load: LoadFiles::new(),
            most,
        }
    }
}

impl Pipe<FileRef> for OpenFiles {
    type Out = Loaded;

    fn apply(&self, input: Items<FileRef>, cx: &Context) -> Items<Loaded> {
        let (buffers, cx) = (self.load.buffers.clone(), cx.clone());
        loaded(
            input,
            Loading {
                buffers,
                most: self.most,
                cx,
            },
            |loaded| loaded,
        )
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .work(Work::Io)
            .seldom_waits(true)
            .arity(Arity::One)
            .settings(format_args!("whole up to {} bytes", self.most))
    }
    fn weigh(&self, loaded: &Loaded) -> Option<usize> {
        Some(match loaded {
            Loaded::Whole(file) => file.weight(),
            Loaded::Large(_) => size_of::<Loaded>(),
        })
    }
}

/// Settings for loading files.
#[derive(Clone)]
struct Loading {
    buffers: Arc<Buffers>,
    /// Files above this size are not loaded.
    most: u64,
    cx: Context,
}

fn loaded<T: Send + 'static>(
    mut input: Items<FileRef>,
    loading: Loading,
    made: fn(Loaded) -> T,
) -> Items<T> {
    Items::generate(async move |out| {
        // Files that are requested together share one task on a blocking thread.
        while let Some(files) = input.next_chunk(out.wanted().min(TOGETHER)).await {
            let is_local =
                |item: &Result<Item<FileRef>>| item.as_ref().is_ok_and(|f| f.store().is_none());
            let files: Vec<_> = files.into_iter().collect();
            if !files.iter().all(is_local) {
                // The wait for each file runs concurrently; together they take as long as the
                // slowest.
                let mut files: FuturesOrdered<_> = files
                    .into_iter()
                    .map(|item| loading.clone().load_any(item))
                    .collect();
                while let Some(file) = files.next().await {
                    out.emit(file.map(|file| file.map(made))).await;
                }
                continue;
            }
            let here = loading.clone();
            let read = loading.cx.blocking(move || {
                let load = |item: Item<FileRef>| named(item).try_map(|file| here.load(file));
                files
                    .into_iter()
                    .map(|item| item.and_then(load))
                    .collect::<Vec<_>>()
            });
            match read.await {
                Err(error) => out.emit(Err(error)).await,
                Ok(files) => {
                    for file in files {
                        out.emit(file.map(|file| file.map(made))).await;
                    }
                }
            }
        }
    })
}

/// Maximum number of files read in one task.
pub(super) const TOGETHER: usize = 32;
/// Size below which a file gets memory of its own.
const POOLED: u64 = 16 << 10;
/// Number of bytes after which the read checks if the epoch was dropped.
const STEP: usize = 8 << 20;

/// Returns the file with a name in its origin, which errors of this step and of later steps show.
pub(super) fn named(file: Item<FileRef>) -> Item<FileRef> {
    match file.origin().name() {
        Some(_) => file,
        None => {
            let name = file.name().into_owned();
            file.named(name)
        }
    }
}

impl Loading {
    /// Loads a file, local or of a store.
    async fn load_any(self, item: Result<Item<FileRef>>) -> Result<Item<Loaded>> {
        let item = named(item?);
        let Some(store) = item.store().cloned() else {
            let cx = self.cx.clone();
            return cx
                .blocking(move || item.try_map(|file| self.load(file)))
                .await?;
        };
        let outcome = self.load_stored(&item, &store).await;
        item.try_map(|_| outcome)
    }

    /// Loads an object of a store.
    async fn load_stored(&self, file: &FileRef, store: &Arc<dyn Store>) -> Result<Loaded> {
        let name = file.name();
        let large = |size| Ok(Loaded::Large(file.clone().with_size(size)));
        let data = match file.size {
            Some(size) if size > self.most => return large(Some(size)),
            None if self.most < u64::MAX => {
                // One request, whose answer contains the size.
                let object = store.get(&name, Get::default()).await?;
                match object.len() {
                    Some(size) if size <= self.most => object.bytes().await?,
                    size => return large(size),
                }
            }
            _ => store.read(&name).await?,
        };
        match file.size {
            Some(listed) if listed != data.len() as u64 => {
                let what = format!(
                    "{}: listed with {listed} bytes, has {}",
                    store.url_of(&name),
                    data.len()
                );
                Err(Error::new(ErrorKind::Changed, what))
            }
            _ => Ok(Loaded::Whole(File::new(name, data))),
        }
    }

    /// Loads a local file.
    fn load(&self, file: FileRef) -> Result<Loaded> {
        if self.most < u64::MAX
            && let Ok(known) = fs::metadata(&file.path)
            && known.is_file()
            && known.len() > self.most
        {
            return Ok(Loaded::Large(file.with_size(Some(known.len()))));
        }
        match retried(&self.cx, || read(&file, &self.buffers, &self.cx)) {
            Ok(Ok(data)) => Ok(Loaded::Whole(File::new(file.name(), data))),
            Ok(Err((kind, what))) => {
                let path = readable(file.path.as_os_str().as_encoded_bytes());
                Err(Error::new(kind, format!("{path}: {what}")))
            }
            Err(error) => Err(failed(&file.path, error)),
        }
    }
}

/// Returns the content, or a problem with the file itself.
pub(super) fn read(
    file: &FileRef,
    buffers: &Arc<Buffers>,
    cx: &Context,
) -> io::Result<Result<Bytes, (ErrorKind, String)>> {
    let handle = open(file)?;
    let before = handle.metadata()?;
    let size = before.len();
    if !before.is_file() {
        let what = if before.is_dir() {
            "a folder, not a file"
        } else {
            "not a regular file"
        };
        return Ok(Err((ErrorKind::Unsupported, what.to_owned())));
    }
    let data = if size == 0 {
        read_unsized(&handle)?
    } else if size < POOLED {
        // Space that is not cleared first, and not more of it when the file grows.
        let mut data = Vec::with_capacity(size as usize);
        (&handle).take(size).read_to_end(&mut data)?;
        data.into()
    } else {
        let space = usize::try_from(size)
            .ok()
            .and_then(|size| buffers.get(size));
        let Some(mut buffer) = space else {
            return Ok(Err((
                ErrorKind::Limit,
                format!("no memory for its {size} bytes"),
            )));
        };
        let read = fill(&handle, buffer.space(), &|| cx.is_cancelled())?;
        buffer.into_bytes(read)
    };
    let after = handle.metadata()?;
    let whole = size == 0 || data.len() as u64 == size;
    if !whole || size != after.len() || before.modified()? != after.modified()? {
        let what = format!(
            "changed while it was read: {size} bytes at first, then {} of {}",
            data.len(),
            after.len()
        );
        return Ok(Err((ErrorKind::Corrupt, what)));
    }
    Ok(Ok(data))
}

pub(super) fn open(file: &FileRef) -> io::Result<fs::File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        // Opening a pipe without a writer would block.
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    }
    options.open(&file.path)
}

/// Reads a file that says it is empty, to its end.
pub(super) fn read_unsized(mut handle: &fs::File) -> io::Result<Bytes> {
    let mut data = Vec::new();
    handle.read_to_end(&mut data)?;
    Ok(data.into())
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
