//! What is in the bytes: archives, compression, records, arrays, rows, samples.
//!
//! A format reads a [`File`](crate::File) and yields what is in it, one by one, through one door: [`Format`]. So
//! `files.read_as(format)` is a pipe like any other, with origins, errors that name their place, and spread over workers; a
//! format of your own is one `impl` in a file of yours.

mod compression;
mod fields;
mod format;
mod idx;
mod samples;
mod tar;
mod untar;
mod value;

pub use compression::{Codec, Expansion, Gunzip};
pub use fields::{Decoded, FieldDecoder};
pub use format::{Entries, Entry, Format, ReadAs};
pub use idx::Idx;
pub use samples::{Sample, Samples};
pub use untar::Untar;
pub use value::Value;
pub(crate) use value::offset as json_offset;
