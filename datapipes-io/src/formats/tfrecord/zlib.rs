//! The zlib format (RFC 1950), TensorFlow's second compression for files of records.

use std::io::{self, Read};

use datapipes::ErrorKind;
use flate2::bufread::ZlibDecoder;

use crate::formats::compression::{Input, Packing, fault};

/// Returns true if the data begin with the two bytes of a zlib header: deflate, without a
/// dictionary.
pub(super) fn is_zlib(data: &[u8]) -> bool {
    match *data {
        [method, flags, ..] => {
            method & 0x0f == 8
                && method >> 4 <= 7
                && flags & 0x20 == 0
                && u16::from_be_bytes([method, flags]).is_multiple_of(31)
        }
        _ => false,
    }
}

pub(super) const ZLIB: Packing = Packing {
    name: "zlib",
    decoder: |input, _| Box::new(Zlib(ZlibDecoder::new(input))),
};

/// A reader of one stream, with nothing after it.
struct Zlib(ZlibDecoder<Input>);

impl Read for Zlib {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(out)?;
        if read == 0 && !out.is_empty() {
            let input = self.0.get_mut();
            let (at, behind) = (input.at(), input.peek(1)?);
            if !behind.is_empty() {
                return Err(fault(
                    ErrorKind::Corrupt,
                    format!("zlib, what is at byte {at} is after its end"),
                ));
            }
        }
        Ok(read)
    }
}
