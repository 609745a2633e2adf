//! What the rows are read from: bounded, and with the place of each byte.

use std::io::{self, Read};

use bytes::Bytes;
use datapipes::ErrorKind;

use crate::formats::compression::{Opened, fault};

/// Behind the end of the text. Where this is a row of its own all quotes were closed.
pub(super) const SENTINEL: &str = "\0";

/// The text of a file and, behind it, a line end and [`SENTINEL`].
///
/// It keeps what was read since the row that is being read began, so that an error can tell its place: the parser's own
/// lines are off by one where they end with CRLF, and its places in the text are those before blank lines.
pub(super) struct Input {
    text: Text,
    /// What was read from `tail_at` on.
    tail: Vec<u8>,
    tail_at: u64,
    /// How many line feeds are before that.
    lines: u64,
    /// Where the row begins.
    row: u64,
    max_row: usize,
    /// How long the text is, once it has ended.
    pub(super) len: Option<u64>,
}

enum Text {
    Plain(io::Cursor<Bytes>),
    Packed(Box<dyn Read + Send>),
}

impl Input {
    pub(super) fn new(text: Opened, max_row: usize) -> Self {
        let text = match text {
            Opened::Plain(file) => Text::Plain(io::Cursor::new(file)),
            Opened::Packed(reader) => Text::Packed(reader),
        };
        Input { text, tail: Vec::new(), tail_at: 0, lines: 0, row: 0, max_row, len: None }
    }

    /// A row begins at this byte.
    pub(super) fn begin(&mut self, row: u64) {
        self.row = row;
    }

    /// Where the row begins, or the blank lines and comments before it.
    pub(super) fn row(&self) -> u64 {
        self.row
    }

    /// The line, from one, and the byte at which the row begins behind blank lines and comments, and what follows it of
    /// what is kept.
    pub(super) fn place(&self, comment: Option<u8>) -> (u64, u64, &[u8]) {
        let mut at = ((self.row - self.tail_at) as usize).min(self.tail.len());
        if self.row == 0 && self.tail.starts_with(b"\xef\xbb\xbf") {
            at = 3;
        }
        loop {
            match self.tail.get(at) {
                Some(b'\r' | b'\n') => at += 1,
                Some(byte) if Some(*byte) == comment => {
                    let end = self.tail[at..].iter().position(|&byte| byte == b'\n');
                    at = end.map_or(self.tail.len(), |end| at + end);
                }
                _ => break,
            }
        }
        (1 + self.lines + line_feeds(&self.tail[..at]), self.tail_at + at as u64, &self.tail[at..])
    }
}

fn line_feeds(text: &[u8]) -> u64 {
    text.iter().filter(|&&byte| byte == b'\n').count() as u64
}

impl Read for Input {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.len.is_some() || out.is_empty() {
            return Ok(0);
        }
        let before = ((self.row - self.tail_at) as usize).min(self.tail.len());
        self.lines += line_feeds(&self.tail[..before]);
        self.tail.drain(..before);
        self.tail_at += before as u64;
        if self.tail.len() > self.max_row {
            let what = format!("a row of more than {} bytes, or a quote that is never closed", self.max_row);
            return Err(fault(ErrorKind::Limit, what));
        }
        let mut read = match &mut self.text {
            Text::Plain(text) => text.read(out)?,
            Text::Packed(text) => text.read(out)?,
        };
        if read == 0 {
            self.len = Some(self.tail_at + self.tail.len() as u64);
            let end = [b"\n", SENTINEL.as_bytes()].concat();
            read = end.len();
            out[..read].copy_from_slice(&end);
            return Ok(read);
        }
        self.tail.try_reserve(read)?;
        self.tail.extend_from_slice(&out[..read]);
        Ok(read)
    }
}
