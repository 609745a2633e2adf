//! Inflates zlib (RFC 1950) piece by piece: TensorFlow's other way to compress a file of records.

use std::io::{self, Read};

use bytes::Bytes;
use datapipes::{Error, ErrorKind};
use flate2::{Decompress, FlushDecompress, Status};

use crate::formats::compression::Expansion;

/// Whether the two bytes of a zlib header are there: deflate, without a dictionary.
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

pub(super) fn reader(data: Bytes, expansion: Expansion) -> Box<dyn Read + Send> {
    let most = expansion.most(data.len() as u64);
    Box::new(Zlib { data, most, inflate: Decompress::new(true), ended: false })
}

struct Zlib {
    data: Bytes,
    most: u64,
    inflate: Decompress,
    ended: bool,
}

impl Read for Zlib {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let wrong = |kind, what: String| io::Error::other(Error::new(kind, format!("zlib, {what}")));
        while !out.is_empty() && !self.ended {
            let (used, made) = (self.inflate.total_in(), self.inflate.total_out());
            // It counts what it took of these very bytes.
            let rest = &self.data[used as usize..];
            let status = self.inflate.decompress(rest, out, FlushDecompress::None).map_err(|error| {
                wrong(ErrorKind::Corrupt, format!("after {made} bytes of content: {error}"))
            })?;
            self.ended = status == Status::StreamEnd;
            if self.inflate.total_out() > self.most {
                let what = format!("{} bytes inflate to more than {}", self.data.len(), self.most);
                return Err(wrong(ErrorKind::Limit, what));
            }
            let new = self.inflate.total_out() - made;
            if new > 0 {
                return Ok(new as usize);
            }
            if !self.ended && self.inflate.total_in() == used {
                return Err(wrong(ErrorKind::Truncated, format!("after {made} bytes of content")));
            }
        }
        let behind = self.data.len() as u64 - self.inflate.total_in();
        if self.ended && behind > 0 {
            return Err(wrong(ErrorKind::Corrupt, format!("{behind} bytes behind its end")));
        }
        Ok(0)
    }
}
