//! What is in the bytes: archives, compression, records, arrays, rows, samples.
//!
//! A format reads a [`File`](crate::File) and yields what is in it, one by one, through one door: [`Format`]. So
//! `files.read_as(format)` is a pipe like any other, with origins, errors that name their place, and spread over workers; a
//! format of your own is one `impl` in a file of yours.

mod compression;
#[cfg(feature = "csv")]
mod csv;
mod format;
mod json_lines;
mod lines;
#[cfg(feature = "msgpack")]
mod msgpack;
#[cfg(feature = "safetensors")]
mod safetensors;
mod samples;
mod tar;
mod untar;

pub use compression::{Codec, Decompress, Expansion, Gunzip};
#[cfg(feature = "csv")]
pub use csv::{Csv, Row};
pub use format::{Entries, Entry, Format, ReadAs};
pub use json_lines::JsonLines;
pub use lines::{ByteLines, Lines};
#[cfg(feature = "msgpack")]
pub use msgpack::MsgPack;
#[cfg(feature = "safetensors")]
pub use safetensors::{SafeTensors, write_safetensors};
pub use samples::{Sample, Samples};
pub use untar::Untar;
