//! Reads bzip2 streams.

use std::io::{self, Cursor, Read};

use bytes::Bytes;
use bzip2::bufread::BzDecoder;
use datapipes::ErrorKind;

use super::reader::fault;

/// All streams of a file, each with the checksums of its blocks and its own; what follows the last is an error.
pub(super) struct Streams {
    data: Bytes,
    at: usize,
    stream: Option<BzDecoder<Cursor<Bytes>>>,
}

impl Streams {
    pub(super) fn new(data: Bytes) -> Self {
        Streams { data, at: 0, stream: None }
    }

    /// Begins the next stream; `false` if there is none.
    fn begin(&mut self) -> io::Result<bool> {
        // One without a block has no other form. The decoder takes 4 MB for each, and there may be very many.
        while let [b'B', b'Z', b'h', b'1'..=b'9', 0x17, 0x72, 0x45, 0x38, 0x50, 0x90, 0, 0, 0, 0, ..] =
            self.data[self.at..]
        {
            self.at += 14;
        }
        let left = &self.data[self.at..];
        if left.is_empty() {
            return Ok(false);
        }
        if !left.starts_with(b"BZh") {
            return Err(match b"BZh".starts_with(left) {
                true => io::ErrorKind::UnexpectedEof.into(),
                false => {
                    fault(ErrorKind::Corrupt, format!("bzip2, what is at byte {} begins no stream", self.at))
                }
            });
        }
        self.stream = Some(BzDecoder::new(Cursor::new(self.data.slice(self.at..))));
        Ok(true)
    }
}

impl Read for Streams {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(stream) = &mut self.stream else {
                if !self.begin()? {
                    return Ok(0);
                }
                continue;
            };
            let read = stream.read(out)?;
            if read > 0 {
                return Ok(read);
            }
            self.at += stream.get_ref().position() as usize;
            self.stream = None;
        }
    }
}
