//! Lists files of a folder or of a store, whichever the root names.

use std::path::Path;

use datapipes::Graph;

use super::local::ListFiles;
use super::open::{is_url, open};
use super::{ListStore, StoreExt};
use crate::FileRef;

/// Lists the files below `root` that match `pattern`, sorted by the bytes of their relative paths.
///
/// The root is a folder, or the URL of a store, such as `hf://datasets/org/name`, which is opened by
/// [`stores::open`](crate::stores::open()) and listed as by
/// [`StoreExt::list_files`](crate::StoreExt::list_files). The rest of this page is about folders.
///
/// In a pattern `*` is any part of a name, `?` one character, `[ab]` one of several characters,
/// `{a,b}` one of several words, and `**` any number of folders. Hidden files are matched like
/// others, and the case matters. If `root` is a file, the pattern is matched against its name.
///
/// The listing is a stream: folders are read one at a time, and only if they can hold a match. The
/// first names of a tree of any size therefore come at once, and memory holds only the names in the
/// open folders. The listing is not atomic: files that are created or removed meanwhile may be
/// listed or not. Links are followed, also out of the root; a link that leads back to an enclosing
/// folder is not entered again. Pipes, sockets and devices are left out. Sizes are not determined.
///
/// # Errors
/// An invalid pattern or URL is an error when the loader is built. `NotFound` if the root does not exist,
/// if nothing matches (unless [allowed](ListFiles::allow_empty)), and for a broken link; `Denied`
/// for a folder that may not be read. The listing continues after an error where it can. An error after
/// which nothing comes, and an empty listing, are [fatal](datapipes::Error::fatal): no policy skips them.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let root = dir.path();
/// std::fs::create_dir(root.join("train"))?;
/// for name in ["train/b.tar", "train/a.tar", "train/notes.txt"] {
///     std::fs::write(root.join(name), "")?;
/// }
/// let files = datapipes_io::list_files(root, "**/*.tar").map(|file| file.name().into_owned());
/// assert_eq!(files.collect()?, ["train/a.tar", "train/b.tar"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn list_files(root: impl AsRef<Path>, pattern: &str) -> Graph<FileRef> {
    let url = root.as_ref().to_str().filter(|root| is_url(root));
    match url.map(open) {
        Some(Ok(store)) => store.list_files(pattern),
        Some(Err(error)) => Graph::source(ListStore::failing(error.cause())),
        None => Graph::source(ListFiles::new(root, pattern)),
    }
}
