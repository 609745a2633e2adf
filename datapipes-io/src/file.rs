//! Items that stores yield: a reference to a file, and a file with its content.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Error, Reader, Result, Wire, Writer, wire_struct};

use crate::stores::Store;

/// A file that was listed, or is known by name, and has not been read.
///
/// A reference to a local file can be sent to other processes; a file of a
/// [`store`](FileRef::store) has to be read before.
///
/// ```
/// use datapipes_io::FileRef;
/// assert_eq!(FileRef::new("train/a.tar").name(), "train/a.tar");
/// ```
#[derive(Clone)]
pub struct FileRef {
    /// Path of the file: below the root under which it was listed, absolute if the root was. For an
    /// object of a [`store`](FileRef::store), its key.
    pub path: PathBuf,
    /// Size in bytes, if it was known without an additional request.
    pub size: Option<u64>,
    /// Position in the path at which the name begins.
    name_at: usize,
    store: Option<Arc<dyn Store>>,
}

impl FileRef {
    /// Returns a reference to a local file; its name is the whole path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        FileRef {
            path: path.into(),
            size: None,
            name_at: 0,
            store: None,
        }
    }

    /// Returns a reference to an object of a store by its key, which is also its name.
    pub fn stored(store: Arc<dyn Store>, key: impl Into<String>, size: Option<u64>) -> Self {
        FileRef {
            path: key.into().into(),
            size,
            name_at: 0,
            store: Some(store),
        }
    }

    /// Returns the same reference with another `size`.
    pub(crate) fn with_size(self, size: Option<u64>) -> Self {
        FileRef { size, ..self }
    }

    /// Returns the store that holds the file; `None` for a local file.
    pub fn store(&self) -> Option<&Arc<dyn Store>> {
        self.store.as_ref()
    }

    /// Returns a reference to `relative` below `root`. If `relative` is empty, the file is the root
    /// itself, and its name is the last part of the root.
    pub(crate) fn below(root: &Path, relative: &Path) -> Self {
        let (path, name) = match relative.as_os_str().len() {
            0 => (
                root.to_owned(),
                root.file_name().map_or(0, |name| name.len()),
            ),
            len => {
                // Without the space that joining asks for at a second time.
                let mut path = PathBuf::with_capacity(root.as_os_str().len() + 1 + len);
                path.push(root);
                path.push(relative);
                (path, len)
            }
        };
        let name_at = path.as_os_str().len() - name;
        FileRef {
            path,
            size: None,
            name_at,
            store: None,
        }
    }

    /// Returns the name: the path relative to the root under which the file was listed.
    ///
    /// Bytes that are not UTF-8 are shown as `\xNN`, so that files that differ in such bytes have
    /// different names. The path itself is unchanged.
    pub fn name(&self) -> Cow<'_, str> {
        let bytes = self.path.as_os_str().as_encoded_bytes();
        readable(bytes.get(self.name_at..).unwrap_or(bytes))
    }

    /// Returns the values that identify the file: URL of its store, and path.
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

/// Two references are equal if they name the same object of the same store.
impl PartialEq for FileRef {
    fn eq(&self, other: &Self) -> bool {
        // Local paths are compared part by part; keys of a store differ if their number of slashes
        // does.
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

/// A local file is sent as its path, size and name.
///
/// A file of a [`store`](FileRef::store) cannot be sent: a store holds connections, credentials and
/// caches that its URL does not contain. Sending such a file is an error of kind
/// [`Config`](datapipes::ErrorKind::Config), which ends the epoch. Read the files with
/// [`load_files`](crate::FileGraphExt::load_files) before they are sent to other processes: a
/// [`File`] can be sent.
#[cfg(any(unix, windows))]
impl Wire for FileRef {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        if let Some(store) = &self.store {
            return Err(Error::config(format!(
                "a reference to {:?} in {} cannot travel to another process: read it before",
                self.path,
                store.url()
            )));
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

/// A file with its content: an object of a store, or a member of an archive.
///
/// ```
/// use datapipes_io::File;
/// let file = File::new("a.txt", "some text");
/// assert_eq!((&*file.name, &file.data[..4]), ("a.txt", &b"some"[..]));
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct File {
    /// Name of the file: relative to the root under which it was listed, or as stored in the
    /// archive. Bytes that are not UTF-8 are shown as `\xNN`.
    pub name: Arc<str>,
    /// Content of the file. The content of a member is a slice of its archive and keeps the archive
    /// in memory.
    pub data: Bytes,
}

impl File {
    /// Returns a file with the given name and content.
    pub fn new(name: impl Into<Arc<str>>, data: impl Into<Bytes>) -> Self {
        File {
            name: name.into(),
            data: data.into(),
        }
    }

    /// Returns the number of bytes that the file occupies in memory.
    pub(crate) fn weight(&self) -> usize {
        self.data.len() + self.name.len() + size_of::<Self>()
    }
}

wire_struct!(File { name, data });

datapipes::formatted! { Debug |file: File| "File({:?}, {} bytes)", file.name, file.data.len(); }

/// Decodes bytes that should be UTF-8, with escapes for invalid bytes.
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
        let store: Arc<dyn Store> = Arc::new(crate::stores::InMemory::new());
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
