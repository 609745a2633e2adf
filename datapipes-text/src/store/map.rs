//! Maps files into memory.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use datapipes::{Error, Result};
use memmap2::{Mmap, MmapOptions};

/// Maps a file.
pub(super) fn map(path: &Path) -> Result<Bytes> {
    Ok(map_advised(path)?.0)
}

/// Maps a file, with a handle to say how it will be read; an empty file has none.
pub(super) fn map_advised(path: &Path) -> Result<(Bytes, Option<Arc<Advice>>)> {
    let map = || -> io::Result<Option<Mmap>> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let len = usize::try_from(meta.len()).map_err(io::Error::other)?;
        if len == 0 {
            return Ok(None);
        }
        // SAFETY: the map is read-only and of exactly the file's length. That nobody writes to the
        // file or truncates it while it is mapped is required of those who open a store.
        unsafe { MmapOptions::new().len(len).map(&file) }.map(Some)
    };
    let Some(map) = map().map_err(|error| failed(path, error))? else {
        return Ok((Bytes::new(), None));
    };
    let is_random = AtomicBool::new(false);
    let map = Arc::new(Advice { map, is_random });
    Ok((Bytes::from_owner(Owner(map.clone())), Some(map)))
}

/// A map, and how it is read.
///
/// The system reads what is around a page that is missed, up to megabytes. Of that a random window
/// needs nothing.
#[derive(Debug)]
pub(super) struct Advice {
    map: Mmap,
    is_random: AtomicBool,
}

impl Advice {
    /// Announces that the file is read at random places from now on.
    pub fn random(&self) {
        self.is_random.store(true, Ordering::Relaxed);
        self.advise();
    }

    /// Announces that the file may be read in a row from now on.
    pub fn in_a_row(&self) {
        self.is_random.store(false, Ordering::Relaxed);
        self.advise();
    }

    /// Reads some places at random.
    pub fn at_random<T>(&self, read: impl FnOnce() -> T) -> T {
        let before = self.is_random.swap(true, Ordering::Relaxed);
        self.advise();
        let done = read();
        self.is_random.store(before, Ordering::Relaxed);
        self.advise();
        done
    }

    /// Tells the system. If it cannot be told, it reads more than it needs.
    fn advise(&self) {
        #[cfg(unix)]
        let _ = self
            .map
            .advise(match self.is_random.load(Ordering::Relaxed) {
                true => memmap2::Advice::Random,
                false => memmap2::Advice::Normal,
            });
    }
}

struct Owner(Arc<Advice>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0.map
    }
}

/// Adds the path to an error.
pub(super) fn failed(path: &Path, error: io::Error) -> Error {
    Error::io(error).within(path.display())
}
