//! Reads xz streams (The .xz File Format 1.2.1).

use std::io::{self, Cursor, Read};

use bytes::Bytes;
use datapipes::ErrorKind;
use lzma_rust2::XzReader;

use super::reader::fault;

const MAGIC: &[u8] = b"\xfd7zXZ\0";

/// All streams of a file, and the zeros between and behind them, which must be a multiple of four. Checks of blocks (none,
/// CRC-32, CRC-64 or SHA-256), index and footer are made. A dictionary above the limit is refused before it is made.
pub(super) struct Streams {
    data: Bytes,
    at: usize,
    stream: Option<XzReader<Cursor<Bytes>>>,
    /// Most bytes of dictionary.
    window: u64,
}

impl Streams {
    pub(super) fn new(data: Bytes, window: u64) -> Self {
        Streams { data, at: 0, stream: None, window }
    }

    /// Begins the next stream; `false` if there is none.
    fn begin(&mut self) -> io::Result<bool> {
        let left = &self.data[self.at..];
        let zeros = left.iter().position(|&byte| byte != 0).unwrap_or(left.len());
        let at = self.at + zeros;
        if zeros % 4 != 0 {
            let what = format!("xz, {zeros} bytes of padding before byte {at}, which is no multiple of 4");
            return Err(fault(ErrorKind::Corrupt, what));
        }
        let rest = &left[zeros..];
        if rest.is_empty() {
            return Ok(false);
        }
        if !rest.starts_with(MAGIC) {
            return Err(match MAGIC.starts_with(rest) {
                true => io::ErrorKind::UnexpectedEof.into(),
                false => fault(ErrorKind::Corrupt, format!("xz, what is at byte {at} begins no stream")),
            });
        }
        self.at = at;
        let data = Cursor::new(self.data.slice(at..));
        // The reader counts in KiB, and its own tables too.
        let limit = u32::try_from(self.window / 1024 + 128).unwrap_or(u32::MAX);
        self.stream = Some(XzReader::new_mem_limit(data, false, limit));
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
            match stream.read(out) {
                Ok(0) => {
                    self.at += stream.inner().position() as usize;
                    self.stream = None;
                }
                Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                    let what =
                        format!("xz, a dictionary larger than the {} bytes that are allowed", self.window);
                    return Err(fault(ErrorKind::Limit, what));
                }
                read => return read,
            }
        }
    }
}
