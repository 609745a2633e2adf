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
//! - [`stores`]: the local file system.
//! - [`formats`]: tar archives, gzip, and WebDataset's samples.
//! - [`tables`]: data sets in a database; in Cassandra and ScyllaDB with the feature `cassandra`.
//!
//! Payloads are [`bytes::Bytes`], and stay where they were read: the members of an archive, and the fields of a
//! sample, are slices of the archive's buffer. A small slice therefore keeps its whole archive in memory; copy it
//! out (`Bytes::copy_from_slice`) before it enters a buffer in which it waits for long.

pub mod formats;
pub mod stores;
pub mod tables;

mod file;
mod graph;

pub use file::{File, FileRef};
pub use formats::{Gunzip, Sample, Samples, Untar};
pub use graph::{FileGraph, FileRefGraph};
pub use stores::local::{ListFiles, LoadFiles, list_files};

/// The methods that this crate adds to a [`Graph`](datapipes::Graph).
pub mod prelude {
    pub use crate::{FileGraph, FileRefGraph};
}
