//! What is in the bytes: archives, compression, records, arrays, rows, samples.
//!
//! A format reads a [`File`](crate::File) and yields what is in it, one by one, through one door: [`Format`]. So
//! `files.read_as(format)` is a pipe like any other, with origins, errors that name their place, and spread over workers; a
//! format of your own is one `impl` in a file of yours.

#[cfg(feature = "arrow")]
pub mod arrow;
mod compression;
mod format;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(feature = "parquet")]
mod parquet;
mod rows;
mod samples;
mod tar;
mod untar;

#[cfg(feature = "parquet")]
pub use self::parquet::{Parquet, ParquetFile, ParquetRows};
#[cfg(feature = "arrow")]
pub use arrow::{ArrowIpc, ArrowRows};
pub use compression::{Codec, Expansion, Gunzip};
pub use format::{Entries, Entry, Format, ReadAs};
#[cfg(feature = "lmdb")]
pub use lmdb::{Lmdb, LmdbItems};
pub use rows::Row;
pub use samples::{Sample, Samples};
pub use untar::Untar;
