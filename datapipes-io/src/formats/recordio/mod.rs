//! RecordIO: the records of MXNet and dmlc-core, and the pictures in them.
//!
//! Layout (dmlc-core's `recordio.h`): `u32` magic | `u32` whose upper 3 bits are a flag and lower
//! 29 a length | data | zeros up to a multiple of 4, all little endian. If a record contains the
//! magic where a record may begin, it is cut there into parts, and the magic between two parts is
//! left out. Flag 0 is a whole record, 1 its first part, 2 a part between, and 3 its last part.
//! There is no checksum.

mod image;
mod index;
mod records;
mod writer;

pub use image::ImageRecord;
pub use index::{IndexedRecordIo, RecordIoIndex};
pub use records::RecordIo;
pub use writer::RecordIoWriter;

const MAGIC: u32 = 0xced7_230a;
/// Size of magic, flag and length.
const HEAD: usize = 8;
/// Number of bits of a length.
const LENGTH_BITS: u32 = 29;

/// Formats the number of a record, and its position.
fn place(number: u64, offset: u64) -> String {
    format!("record {number} at byte {offset}")
}

#[cfg(test)]
mod tests;
