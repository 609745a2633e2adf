//! A folder as a store.

use std::fs::{self, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Context, Error, ErrorKind, Result, blocking};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use super::buffers::{Buffers, MOST_IDLE, Stock};
use super::list::{FIRST_STEP, MAX_STEP, Walk};
use super::read::{self, Content, FileReader, Wrong};
use super::retried;
use crate::stores::pattern::Pattern;
use crate::stores::{Body, Get, Meta, Object, Store};

/// A folder of the local file system as a store. A key is the path of a file in the folder, with
/// `/` between its parts.
///
/// - Reading blocks, and runs off the async threads ([`blocking`]). Up to 4 MiB are read at once,
///   together with opening the file; a larger body is read in pieces of this size, each when it is
///   requested.
/// - The [version](Meta::version) consists of modification time, size and inode. Equal versions
///   have equal bytes unless a program wrote twice within the clock resolution of the file system,
///   or set the time back.
/// - A file that changes while it is read is `Changed`. A file that is replaced by a rename is read
///   to its end as it was.
/// - Lists are sorted by the bytes of keys, and read folders one at a time, as
///   [`list_files`](crate::list_files) does: links are followed, also out of the root, special
///   files are left out. Sizes and versions are not determined. A name that is not UTF-8 is an
///   error in its place.
/// - A key that leaves the root by `..`, is absolute or has empty parts is refused.
/// - Errors of a failing device and stale network handles are retried once; if too many files are
///   open, the read waits.
///
/// # Examples
/// ```
/// use datapipes_io::stores::local::Local;
/// use datapipes_io::stores::{Get, Store};
/// # let dir = tempfile::tempdir()?;
/// # let folder = dir.path();
/// std::fs::write(folder.join("a.txt"), "some text")?;
/// let store = Local::new(folder);
/// # futures::executor::block_on(async {
/// assert_eq!(store.get("a.txt", Get::range(5..9)).await?.bytes().await?, "text");
/// # datapipes::Ok(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Local {
    root: PathBuf,
    url: String,
    buffers: Arc<Buffers>,
}

/// Number of bytes read first of more than [`PIECE`], so that the first items of an archive come soon.
/// Each read after it is twice as long, up to that, since a member on the border of two pieces is copied.
const FIRST: u64 = 512 << 10;
/// Maximum number of bytes read at once.
const PIECE: u64 = 4 << 20;

impl Local {
    /// Returns a store of a folder. The folder is checked when it is used.
    pub fn new(root: impl AsRef<Path>) -> Self {
        let root = match root.as_ref() {
            root if root.as_os_str().is_empty() => Path::new("."),
            root => root,
        };
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        let mut url = format!("file://{}", root.display());
        if !url.ends_with('/') {
            url.push('/');
        }
        Local {
            root,
            url,
            buffers: Buffers::new(MOST_IDLE),
        }
    }

    fn path(&self, key: &str) -> Result<PathBuf> {
        match is_inside(key) {
            true => Ok(self.root.join(key)),
            false => Err(Error::unsupported(format!(
                "{}: not the path of a file in it",
                self.url_of(key)
            ))),
        }
    }

    /// Runs a blocking operation on a file, and adds its name to errors.
    async fn with<T: Send + 'static>(
        &self,
        key: &str,
        work: impl FnOnce(&Path) -> io::Result<Result<T, Wrong>> + Send + 'static,
    ) -> Result<T> {
        let path = self.path(key)?;
        match blocking(move || work(&path)).await? {
            Ok(Ok(found)) => Ok(found),
            Ok(Err((kind, what))) => Err(Error::new(kind, format!("{}: {what}", self.url_of(key)))),
            Err(error) => Err(named(&self.url_of(key), error)),
        }
    }
}

fn named(url: &str, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotADirectory => ErrorKind::NotFound,
        kind => Error::io(kind.into()).kind(),
    };
    Error::new(kind, url).with_source(error)
}

/// Returns true if a key stays in the root, and is the only key for its file.
pub(crate) fn is_inside(key: &str) -> bool {
    let foreign: &[char] = if cfg!(windows) {
        &['\0', '\\', ':']
    } else {
        &['\0']
    };
    !key.contains(foreign) && key.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

fn meta(key: &str, known: &Metadata) -> Meta {
    Meta {
        key: key.to_owned(),
        size: Some(known.len()),
        version: version(known),
    }
}

fn version(known: &Metadata) -> Option<String> {
    let changed = known.modified().ok()?;
    // Times before 1970 count, too.
    let changed = match changed.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    };
    #[cfg(unix)]
    let inode = std::os::unix::fs::MetadataExt::ino(known);
    #[cfg(not(unix))]
    let inode = 0;
    Some(format!("{changed}-{}-{inode}", known.len()))
}

/// Checks that the file is regular.
fn regular(known: Metadata) -> Result<Metadata, Wrong> {
    match () {
        () if known.is_file() => Ok(known),
        () if known.is_dir() => Err((ErrorKind::NotFound, "a folder, not a file".to_owned())),
        () => Err((ErrorKind::Unsupported, "not a regular file".to_owned())),
    }
}

fn changed() -> Wrong {
    (ErrorKind::Changed, "changed while it was read".to_owned())
}

/// A file that is being read.
struct Reader {
    file: fs::File,
    version: Option<String>,
    left: Range<u64>,
    /// Number of bytes to read next.
    next: u64,
    buffers: Arc<Buffers>,
}

impl Reader {
    /// Returns the next piece. The last piece is returned only if the file has not changed since it
    /// was opened.
    fn next(&mut self) -> io::Result<Result<Bytes, Wrong>> {
        let want = (self.left.end - self.left.start).min(self.next);
        self.next = (2 * self.next).min(PIECE);
        let mut stock = Stock::new(&self.buffers);
        let read = read::read_sized(&self.file, want, &mut stock, 0, &|| false)?;
        let Some(data) = read else {
            return Ok(Err(read::no_memory(want)));
        };
        self.left.start += data.len() as u64;
        let is_short = (data.len() as u64) < want;
        if is_short || self.left.is_empty() && version(&self.file.metadata()?) != self.version {
            return Ok(Err(changed()));
        }
        Ok(Ok(data))
    }
}

/// A file whose first piece was read.
struct Opened {
    known: Metadata,
    range: Range<u64>,
    first: Bytes,
    reader: Reader,
}

/// Opens a file, and reads the first piece of a range of it.
fn open(path: &Path, get: Get, buffers: Arc<Buffers>) -> io::Result<Result<Opened, Wrong>> {
    let file = retried(&Context::default(), || read::open(path))?;
    let known = match regular(file.metadata()?) {
        Ok(known) => known,
        Err(wrong) => return Ok(Err(wrong)),
    };
    let (size, version) = (known.len(), version(&known));
    if get.version.is_some() && get.version != version {
        return Ok(Err((
            ErrorKind::Changed,
            "it is another version".to_owned(),
        )));
    }
    let range = get.range.unwrap_or(0..size);
    if range.start > range.end {
        return Ok(Err((
            ErrorKind::Protocol,
            "a range that ends before it begins".to_owned(),
        )));
    }
    let range = range.start..range.end.min(size);
    if range.start > size {
        return Ok(Err((
            ErrorKind::Protocol,
            format!("it has {size} bytes, none at {}", range.start),
        )));
    }
    if range.start > 0 {
        (&file).seek(SeekFrom::Start(range.start))?;
    }
    let mut reader = Reader {
        file,
        version,
        left: range.clone(),
        next: if range.end - range.start > PIECE {
            FIRST
        } else {
            PIECE
        },
        buffers,
    };
    Ok(reader.next()?.map(|first| Opened {
        known,
        range,
        first,
        reader,
    }))
}

/// Opens a local file, called `url` in messages, whose pieces are read into memory of earlier ones.
pub(crate) async fn open_file(
    path: PathBuf,
    key: &str,
    url: String,
    get: Get,
    buffers: Arc<Buffers>,
) -> Result<Object> {
    let Opened {
        known,
        range,
        first,
        reader,
    } = match blocking(move || open(&path, get, buffers)).await? {
        Ok(Ok(opened)) => opened,
        Ok(Err((kind, what))) => return Err(Error::new(kind, format!("{url}: {what}"))),
        Err(error) => return Err(named(&url, error)),
    };
    let meta = meta(key, &known);
    if reader.left.is_empty() {
        return Ok(Object {
            meta,
            range,
            body: Body::once(first),
            url,
        });
    }
    let named_by = url.clone();
    let rest = futures::stream::try_unfold(reader, move |mut reader| {
        let url = named_by.clone();
        async move {
            if reader.left.is_empty() {
                return Ok(None);
            }
            let (reader, piece) = blocking(move || {
                let piece = reader.next();
                (reader, piece)
            })
            .await?;
            match piece {
                Ok(Ok(piece)) => Ok(Some((piece, reader))),
                Ok(Err((kind, what))) => Err(Error::new(kind, format!("{url}: {what}"))),
                Err(error) => Err(named(&url, error)),
            }
        }
    });
    let body = futures::stream::iter([Ok(first)]).chain(rest);
    Ok(Object {
        meta,
        range,
        body: Body::stream(body),
        url,
    })
}

#[async_trait]
impl Store for Local {
    fn url(&self) -> &str {
        &self.url
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.root)
    }

    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        let (path, url) = (self.path(key)?, self.url_of(key));
        open_file(path, key, url, get, self.buffers.clone()).await
    }

    async fn head(&self, key: &str) -> Result<Meta> {
        let known = self
            .with(key, |path| {
                Ok(regular(retried(&Context::default(), || {
                    fs::metadata(path)
                })?))
            })
            .await?;
        Ok(meta(key, &known))
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        let (folder, name) = prefix
            .rsplit_once('/')
            .map_or(("", prefix), |(folder, name)| (folder, name));
        let is_somewhere = folder.is_empty() && !prefix.starts_with('/') || is_inside(folder);
        if !is_somewhere {
            // No key begins with this prefix.
            return futures::stream::empty().boxed();
        }
        let pattern = match Pattern::below(folder, name) {
            Ok(pattern) => Arc::new(pattern),
            Err(problem) => {
                let error = Error::unsupported(format!("{}: {problem}", self.url_of(prefix)));
                return futures::stream::iter([Err(error)]).boxed();
            }
        };
        let walk = Walk::new(self.root.clone(), pattern, Context::default());
        let begin = (walk, FIRST_STEP);
        let found = futures::stream::try_unfold(begin, |(mut walk, step)| async move {
            let (walk, found) = blocking(move || {
                let found = walk.step(step);
                (walk, found)
            })
            .await?;
            let found = found
                .into_iter()
                .map(|found| found.map_err(|missed| missed.error));
            let more = (found.len() > 0).then(|| {
                (
                    futures::stream::iter(found),
                    (walk, (step * 4).min(MAX_STEP)),
                )
            });
            Ok::<_, Error>(more)
        });
        let (url, root, prefix) = (self.url.clone(), self.root.clone(), prefix.to_owned());
        let keys = found.try_flatten().filter_map(move |found| {
            let found = match found {
                Err(error) => Some(Err(error.within(&url))),
                Ok(file) => match file.path.strip_prefix(&root).ok().and_then(Path::to_str) {
                    // The root itself, which is a file.
                    Some("") => None,
                    Some(key) => {
                        let key = if cfg!(windows) {
                            key.replace('\\', "/")
                        } else {
                            key.to_owned()
                        };
                        key.starts_with(&prefix).then(|| Ok(Meta::new(key)))
                    }
                    None => Some(Err(Error::unsupported(format!(
                        "{url}{}: the name is not UTF-8",
                        file.name()
                    )))),
                },
            };
            futures::future::ready(found)
        });
        keys.boxed()
    }

    async fn read(&self, key: &str) -> Result<Bytes> {
        let buffers = self.buffers.clone();
        self.with(key, move |path| {
            let cx = Context::default();
            let read = FileReader::new(&buffers, u64::MAX, &cx).read(path, &[])?;
            match read {
                Ok(Content::Whole(data)) => Ok(Ok(data)),
                Ok(Content::Large(_)) => unreachable!("no file is too large"),
                Err((kind, what)) => Ok(Err(match kind {
                    ErrorKind::Corrupt => (ErrorKind::Changed, what),
                    _ if path.is_dir() => (ErrorKind::NotFound, what),
                    _ => (kind, what),
                })),
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests;
