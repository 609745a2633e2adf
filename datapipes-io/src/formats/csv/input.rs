//! What the rows are read from: bounded, and with the place of each byte.

use std::io::{self, Read};

use bytes::Bytes;
use datapipes::{Error, ErrorKind};

use crate::formats::framing::Place;

/// Behind the end of the text. Where this is a row of its own all quotes were closed.
pub(super) const SENTINEL: &str = "\0";

/// A row may be longer than is allowed by so many bytes before it ends the file.
pub(super) const SLACK: u64 = 64 << 10;

/// A text, and behind it a line end and [`SENTINEL`].
///
/// It keeps the place of the row that is being read, so that an error can tell it: the parser's own
/// lines are off by one where they end with CRLF, and its places in the text are those before blank
/// lines.
pub(super) struct Input {
    text: Bytes,
    /// How much of the text was read.
    read: u64,
    /// Where the row begins.
    row: u64,
    /// Up to here lines were counted, and how many there are in the file.
    counted: u64,
    lines: u64,
    /// Where the text begins in the file.
    base: Place,
    max_row: usize,
    /// Whether all of it was read.
    pub(super) ended: bool,
}

impl Input {
    /// Of a text that begins at this place of a file.
    pub(super) fn new(text: Bytes, base: Place, max_row: usize) -> Self {
        Input {
            text,
            read: 0,
            row: 0,
            counted: 0,
            lines: base.line,
            base,
            max_row,
            ended: false,
        }
    }

    /// How long the text is.
    pub(super) fn len(&self) -> u64 {
        self.text.len() as u64
    }

    /// A row begins at this byte of the text.
    pub(super) fn begin(&mut self, row: u64) {
        self.row = row;
    }

    /// The line, from one, and the byte in the file at which the row begins behind blank lines and
    /// comments; that byte of the text, and what follows it of what was read.
    pub(super) fn place(&mut self, comment: Option<u8>) -> (u64, u64, u64, &[u8]) {
        let row = self.row.min(self.read);
        self.lines += line_feeds(&self.text[self.counted as usize..row as usize]);
        self.counted = row;
        let kept = &self.text[row as usize..self.read as usize];
        let is_first = self.base.offset == 0 && row == 0;
        let mut at = if is_first && kept.starts_with(BOM) {
            BOM.len()
        } else {
            0
        };
        loop {
            match kept.get(at) {
                Some(b'\r' | b'\n') => at += 1,
                Some(byte) if Some(*byte) == comment => {
                    let end = kept[at..].iter().position(|&byte| byte == b'\n');
                    at = end.map_or(kept.len(), |end| at + end);
                }
                _ => break,
            }
        }
        let begin = row + at as u64;
        (
            1 + self.lines + line_feeds(&kept[..at]),
            self.base.offset + begin,
            begin,
            &kept[at..],
        )
    }
}

pub(super) const BOM: &[u8] = b"\xef\xbb\xbf";

pub(super) fn line_feeds(text: &[u8]) -> u64 {
    text.iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// That a row is much longer than is allowed.
pub(super) fn endless(max_row: usize) -> Error {
    let what =
        format!("a row of more than {max_row} bytes (`max_row`), or a quote that is never closed");
    Error::new(ErrorKind::Limit, what)
}

impl Read for Input {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.ended || out.is_empty() {
            return Ok(0);
        }
        if self.read.saturating_sub(self.row) > self.max_row as u64 + SLACK {
            return Err(io::Error::other(endless(self.max_row)));
        }
        let mut read = (&self.text[self.read as usize..]).read(out)?;
        self.read += read as u64;
        if read == 0 {
            self.ended = true;
            let end = [b"\n", SENTINEL.as_bytes()].concat();
            read = end.len();
            out[..read].copy_from_slice(&end);
        }
        Ok(read)
    }
}
