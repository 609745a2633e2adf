//! Stores and formats for [`datapipes`]: sources of bytes, and parsers of their content.
//!
//! ```
//! use datapipes_io::prelude::*;
//!
//! # let dir = tempfile::tempdir()?;
//! # std::fs::write(dir.path().join("a.txt"), "one")?;
//! # std::fs::write(dir.path().join("b.txt"), "two")?;
//! # let folder = dir.path();
//! let texts = datapipes_io::list_files(folder, "*.txt").load_files().map(|file| file.data);
//! assert_eq!(texts.collect()?, ["one", "two"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`stores`]: the local file system; web servers (`stores::Http`) and the Hugging Face Hub
//!   (`stores::Hub`), feature `http`; S3, Google's and Azure's object stores (`stores::cloud`,
//!   feature `cloud`).
//! - [`formats`]: archives, compression, records, arrays, rows and samples, with a table of them;
//!   and [`Format`], the trait to implement for another format.
//! - [`datasets`]: MNIST, CIFAR, COCO and folders of images, read from their original file layouts.
//! - [`SplitsExt`]: saves the splits of a data set to a file.
//!
//! Items that graphs carry implement [`Wire`](datapipes::Wire) and can be sent to other processes:
//! files, samples, arrays, records. Three kinds of items cannot be sent as they are. A [`FileRef`]
//! into a store fails when it is sent: load the file before. JSON values, and rows of CSV and
//! similar formats ([`formats::Row`]), are types of `serde_json`: wrap them in `datapipes::Serde`.
//! Record batches are types of Arrow, and an `NpzMember` is a position in an archive: extract the
//! data that you need from them before they are sent.
//!
//! Payloads are [`bytes::Bytes`] and are not copied: the members of an archive, and the fields of a
//! sample, are slices of the archive's buffer. A small slice therefore keeps its whole archive in
//! memory; copy it (`Bytes::copy_from_slice`) before it enters a buffer in which it waits for long.

pub mod datasets;
pub mod formats;
pub mod stores;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

mod codec;
mod file;
mod graph_ext;
mod replace;
mod splits;

pub use file::{File, FileRef};
pub use formats::{Decompress, Format, ReadAs, Sample, Samples, Untar};
pub use graph_ext::{CanMap, FileGraphExt, GraphOf, Readable};
pub use splits::SplitsExt;
pub use stores::local::ListFiles;
#[cfg(feature = "mmap")]
pub use stores::local::MapFiles;
pub use stores::{LoadFiles, StoreExt, list_files};

/// Traits with the methods that this crate adds to a [`Graph`](datapipes::Graph), to a
/// [`Store`](crate::stores::Store) and to [`Splits`](datapipes::index::split::Splits).
pub mod prelude {
    pub use crate::{FileGraphExt, SplitsExt, StoreExt};
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts, when it is compiled, that values move between threads and are shared by them.
    fn shared<T: ?Sized + Send + Sync>() {}

    #[test]
    fn files_samples_and_stores_move_between_threads_and_are_shared_by_them() {
        shared::<File>();
        shared::<FileRef>();
        shared::<Sample>();
        shared::<dyn stores::Store>();
        shared::<stores::Meta>();
        shared::<stores::InMemory>();
        shared::<stores::ListStore>();
        shared::<stores::local::Local>();
        shared::<stores::OpenOptions>();
        #[cfg(feature = "http")]
        shared::<stores::Http>();
        #[cfg(feature = "http")]
        shared::<stores::Hub>();
        #[cfg(feature = "cloud")]
        shared::<stores::cloud::Cloud>();
    }
}
