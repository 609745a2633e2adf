//! Input of the parser of rows: bounded, and with the position of each byte.

use std::io::{self, Read};

use bytes::Bytes;
use datapipes::Error;

use crate::formats::framing::RecordPosition;

/// Text after the end of the file. If it is parsed as a row of its own, all quotes were closed.
pub(super) const SENTINEL: &str = "\0";

/// Number of bytes by which a row may exceed the limit before it ends the file.
pub(super) const SLACK: u64 = 64 << 10;

/// A text, followed by a line end and [`SENTINEL`].
///
/// The input stores the position of the current row for errors: the parser's own lines are off by
/// one in files with CRLF, and its positions are those before blank lines.
pub(super) struct Input {
    text: Bytes,
    /// Number of bytes of the text that were read.
    read: u64,
    /// Position of the row.
    row: u64,
    /// Position up to which lines were counted, and the number of lines in the file up to it.
    counted: u64,
    lines: u64,
    /// Position of the text in the file.
    base: RecordPosition,
    max_row: usize,
    /// True if the whole text was read.
    pub(super) ended: bool,
}

impl Input {
    /// Returns the input for a text that begins at this position of a file.
    pub(super) fn new(text: Bytes, base: RecordPosition, max_row: usize) -> Self {
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

    /// Returns the length of the text.
    pub(super) fn len(&self) -> u64 {
        self.text.len() as u64
    }

    /// Sets the position of the current row in the text.
    pub(super) fn begin(&mut self, row: u64) {
        self.row = row;
    }

    /// Returns the line, from one, and the position in the file at which the row begins after blank
    /// lines and comments; the position in the text, and the rest of the bytes read from there.
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

/// Returns the error of a row that is much longer than allowed.
pub(super) fn endless(max_row: usize) -> Error {
    let what =
        format!("a row of more than {max_row} bytes (`max_row`), or a quote that is never closed");
    Error::limit(what)
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
