//! The members of gzip files.

use std::io::{self, Read};

use datapipes::ErrorKind;
use flate2::bufread::GzDecoder;

use super::input::{Input, Turn};
use super::reader::fault;

/// Maximum compression ratio of deflate.
const DEFLATE_RATIO: u64 = 1032;

pub(in crate::formats) fn is_gzip(data: &[u8]) -> bool {
    data.starts_with(&[0x1f, 0x8b])
}

/// A reader of all members of a file, which checks the checksum and length of each; data after the
/// last are an error.
pub(super) struct Members(Turn<GzDecoder<Input>>);

impl Members {
    pub(super) fn new(input: Input) -> Self {
        Members(Turn::Between(input))
    }
}

/// Returns true if a member begins here; false at the end.
fn begins(input: &mut Input) -> io::Result<bool> {
    let at = input.at();
    match input.peek(2)? {
        [] => Ok(false),
        head if is_gzip(head) => Ok(true),
        [0x1f] => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Err(fault(
            ErrorKind::Corrupt,
            format!("gzip, what is at byte {at} begins no member"),
        )),
    }
}

impl Read for Members {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0
            .read(out, begins, GzDecoder::new, GzDecoder::into_inner)
    }
}

/// Returns the length in the trailer of the last member, limited to possible values.
pub(super) fn likely_len(data: &[u8]) -> u64 {
    let trailer = data
        .last_chunk::<4>()
        .map_or(0, |bytes| u32::from_le_bytes(*bytes));
    u64::from(trailer).min(data.len() as u64 * DEFLATE_RATIO)
}
