//! What stores yield: a reference to a file, and a file.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Error, ErrorKind, Reader, Result, Wire, Writer};

use crate::stores::Store;
use crate::wire::wire_struct;

/// A file that was listed, or is known by name, and has not been read.
///
/// It can go to other processes if it is a file of this machine; one of a [`store`](FileRef::store)
/// has to be read before.
///
/// ```
/// use datapipes_io::FileRef;
/// assert_eq!(FileRef::new("train/a.tar").name(), "train/a.tar");
/// ```
#[derive(Clone)]
pub struct FileRef {
    /// Where it is: below the root it was listed under, absolute if that was. For an object of a
    /// [`store`](FileRef::store) its key.
    pub path: PathBuf,
    /// How many bytes it has, where that was known without asking.
    pub size: Option<u64>,
    /// Where the name begins in the path.
    name_at: usize,
    store: Option<Arc<dyn Store>>,
}

impl FileRef {
    /// A file by its path; the whole path is its name.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        FileRef {
            path: path.into(),
            size: None,
            name_at: 0,
            store: None,
        }
    }

    /// An object of a store by its key, which is its name.
    pub fn stored(store: Arc<dyn Store>, key: impl Into<String>, size: Option<u64>) -> Self {
        FileRef {
            path: key.into().into(),
            size,
            name_at: 0,
            store: Some(store),
        }
    }

    /// The same, now that its size is known, or still is not.
    pub(crate) fn with_size(self, size: Option<u64>) -> Self {
        FileRef { size, ..self }
    }

    /// The store it is in; `None` for a file of this machine.
    pub fn store(&self) -> Option<&Arc<dyn Store>> {
        self.store.as_ref()
    }

    /// `relative` below `root`; an empty `relative` is the root itself, and called by its last
    /// part.
    pub(crate) fn below(root: &Path, relative: &Path) -> Self {
        let (path, name) = match relative.as_os_str().len() {
            0 => (
                root.to_owned(),
                root.file_name().map_or(0, |name| name.len()),
            ),
            len => (root.join(relative), len),
        };
        let name_at = path.as_os_str().len() - name;
        FileRef {
            path,
            size: None,
            name_at,
            store: None,
        }
    }

    /// Its name: the path relative to the root it was listed under.
    ///
    /// Bytes that are not UTF-8 are shown as `\xNN`, so that two files never share a name for that
    /// reason. The path itself is kept as it is.
    pub fn name(&self) -> Cow<'_, str> {
        let bytes = self.path.as_os_str().as_encoded_bytes();
        readable(bytes.get(self.name_at..).unwrap_or(bytes))
    }

    /// What tells it from others: its store, and its path there.
    fn identity(&self) -> (Option<&str>, &Path) {
        (self.store.as_ref().map(|store| store.url()), &self.path)
    }
}

impl fmt::Debug for FileRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (store, path) = self.identity();
        write!(
            f,
            "FileRef({:?})",
            Path::new(store.unwrap_or("")).join(path)
        )
    }
}

/// Files are equal if they are the same object of the same store.
impl PartialEq for FileRef {
    fn eq(&self, other: &Self) -> bool {
        // Paths are equal part by part; keys of a store are not the same with another number of
        // slashes.
        let same_key = || self.store.is_none() || self.path.as_os_str() == other.path.as_os_str();
        self.identity() == other.identity() && same_key()
    }
}

impl Eq for FileRef {}

impl Hash for FileRef {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

/// A file of this machine, with its size and name.
///
/// One of a [`store`](FileRef::store) cannot travel: a store is connections, credentials and
/// caches, which its URL does not tell. It is an error of [`Config`](ErrorKind::Config), which ends
/// the epoch. Read such files before they go to other processes, by
/// [`load_files`](crate::FileRefGraph::load_files): a [`File`] travels.
#[cfg(any(unix, windows))]
impl Wire for FileRef {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        if let Some(store) = &self.store {
            let message = format!(
                "a reference to {:?} in {} cannot travel to another process: read it before",
                self.path,
                store.url()
            );
            return Err(Error::new(ErrorKind::Config, message));
        }
        self.path.encode(to)?;
        self.size.encode(to)?;
        self.name_at.encode(to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let (path, size) = (PathBuf::decode(from)?, Wire::decode(from)?);
        Ok(FileRef {
            path,
            size,
            name_at: Wire::decode(from)?,
            store: None,
        })
    }
}

/// A file with its content: one of a store, or a member of an archive.
///
/// ```
/// use datapipes_io::File;
/// let file = File::new("a.txt", "some text");
/// assert_eq!((&*file.name, &file.data[..4]), ("a.txt", &b"some"[..]));
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct File {
    /// Its name: relative to the root it was listed under, or as it stands in the archive. Bytes
    /// that are not UTF-8 are shown as `\xNN`.
    pub name: Arc<str>,
    /// Its content. A member's is a slice of its archive's, and keeps that in memory.
    pub data: Bytes,
}

impl File {
    /// A file from a name and its content.
    pub fn new(name: impl Into<Arc<str>>, data: impl Into<Bytes>) -> Self {
        File {
            name: name.into(),
            data: data.into(),
        }
    }

    /// How many bytes it holds.
    pub(crate) fn weight(&self) -> usize {
        self.data.len() + self.name.len() + size_of::<Self>()
    }
}

wire_struct!(File { name, data });

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({:?}, {} bytes)", self.name, self.data.len())
    }
}

/// Text of bytes that should be UTF-8, with escapes for those that are not.
pub(crate) fn readable(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.into();
    }
    let mut text = String::with_capacity(bytes.len() + 8);
    for chunk in bytes.utf8_chunks() {
        text += chunk.valid();
        for byte in chunk.invalid() {
            text += &format!("\\x{byte:02x}");
        }
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_81_names_that_are_not_utf8_stay_apart() {
        assert_eq!(readable(b"a\xffb"), "a\\xffb");
        assert_ne!(readable(b"a\xff"), readable(b"a\xfe"));
        assert_eq!(readable("ü".as_bytes()), "ü");
    }

    #[test]
    fn keys_of_a_store_are_equal_if_they_are_the_same_text() {
        let store: Arc<dyn Store> = Arc::new(crate::stores::Memory::new());
        let stored = |key: &str| FileRef::stored(store.clone(), key, None);
        assert_eq!(stored("a/b"), stored("a/b"));
        for other in ["a//b", "a/b/", "a/./b"] {
            assert_ne!(stored("a/b"), stored(other));
        }
        assert_eq!(FileRef::new("a//b"), FileRef::new("a/b"));
    }

    #[test]
    fn a_name_is_relative_to_the_root() {
        assert_eq!(
            FileRef::below(Path::new("/data"), Path::new("a/b.jpg")).name(),
            "a/b.jpg"
        );
        assert_eq!(
            FileRef::below(Path::new("/data/"), Path::new("b.jpg")).name(),
            "b.jpg"
        );
        assert_eq!(
            FileRef::below(Path::new("/data/c.jpg"), Path::new("")).name(),
            "c.jpg"
        );
    }
}
