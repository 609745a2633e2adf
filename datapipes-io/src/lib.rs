//! Stores and formats for [`datapipes`]: where bytes come from, and what is in them.
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
//! - [`stores`]: the local file system; a web server (`stores::Http`, with the feature `http`).
//! - [`formats`]: archives, compression, records, arrays, rows and samples, with a table of them;
//!   and [`Format`], the door for one of your own.
//! - [`datasets`]: MNIST, CIFAR, COCO and folders of images, as their files lie in a folder.
//! - [`SplitsFile`]: splits of a data set in a file.
//!
//! What graphs carry is [`Wire`](datapipes::Wire), so that it can go to other processes: files,
//! samples, arrays, records. Three are not. A [`FileRef`] into a store says so when it is sent:
//! load the file before. JSON, and rows of CSV and the like ([`formats::Row`]), are `serde_json`'s:
//! put them into `datapipes::Serde`. Record batches are Arrow's, and an `NpzMember` is a place in
//! an archive: take from them what you need before they are sent.
//!
//! Payloads are [`bytes::Bytes`], and stay where they were read: the members of an archive, and the
//! fields of a sample, are slices of the archive's buffer. A small slice therefore keeps its whole
//! archive in memory; copy it out (`Bytes::copy_from_slice`) before it enters a buffer in which it
//! waits for long.

pub mod datasets;
pub mod formats;
pub mod stores;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

mod file;
mod graph;
mod splits;
mod wire;

pub use file::{File, FileRef};
pub use formats::{Decompress, Format, Gunzip, ReadAs, Sample, Samples, Untar};
pub use graph::{CanMap, FileGraph, FileRefGraph, GraphOf, Readable, SampleGraph, StoreGraph};
pub use splits::SplitsFile;
pub use stores::LoadFiles;
#[cfg(feature = "mmap")]
pub use stores::local::MapFiles;
pub use stores::local::{ListFiles, list_files};

/// The methods that this crate adds to a [`Graph`](datapipes::Graph) and to
/// [`Splits`](datapipes::index::split::Splits).
pub mod prelude {
    pub use crate::{FileGraph, FileRefGraph, SampleGraph, SplitsFile, StoreGraph};
}
