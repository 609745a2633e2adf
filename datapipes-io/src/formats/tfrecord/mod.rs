//! TFRecord: records with checksums, and `tf.train.Example` in them.
//!
//! Layout (TensorFlow's `record_writer.h`): `u64` length | `u32` masked CRC-32C of these 8 bytes |
//! data | `u32` masked CRC-32C of the data, all little endian.

mod example;
mod examples;
mod feature;
mod index;
mod maps;
mod records;
mod sequence;
mod wire;
mod writer;
mod zlib;

pub use example::Example;
pub use examples::TfExamples;
pub use feature::Feature;
pub use index::{IndexedTfRecords, TfRecordIndex};
pub use records::TfRecords;
pub use sequence::SequenceExample;
pub use writer::TfRecordWriter;

use datapipes::{Error, Result};

/// Size of the length and its checksum, before the data.
const HEAD: usize = 12;
/// Size of the checksum of the data, after them.
const FOOT: usize = 4;

/// Returns the CRC of data in masked form: an unmasked CRC of data that contain CRCs would be weak.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

/// Returns the length in the head of a record, if its checksum is right.
fn stated_len(head: [u8; HEAD]) -> Result<u64> {
    let [a, b, c, d, e, f, g, h, crc @ ..] = head;
    let (length, stated) = ([a, b, c, d, e, f, g, h], u32::from_le_bytes(crc));
    let got = masked_crc(&length);
    if got == stated {
        return Ok(u64::from_le_bytes(length));
    }
    let zeros = if head == [0; HEAD] {
        ", zeros where a record is due"
    } else {
        ""
    };
    let what = format!("the checksum of its length is {got:#010x}, {stated:#010x} stated{zeros}");
    Err(Error::corrupt(what))
}

/// Checks the checksum after the data.
fn check_data(data: &[u8], foot: [u8; FOOT]) -> Result<()> {
    let (got, stated) = (masked_crc(data), u32::from_le_bytes(foot));
    if got == stated {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "the checksum of its {} bytes is {got:#010x}, {stated:#010x} stated",
        data.len()
    )))
}

/// Formats the number of a record, and its position.
fn place(number: u64, offset: u64) -> String {
    format!("record {number} at byte {offset}")
}

#[cfg(test)]
mod tests;
