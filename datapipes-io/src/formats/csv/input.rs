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
    /// How much of the text was read.
    read: u64,
    /// Where the row begins.
    row: u64,
    /// From here on the text is kept: up to the row, or less.
    kept_at: u64,
    /// How many line feeds are before that.
    lines: u64,
    max_row: usize,
    /// How long the text is, once it has ended.
    pub(super) len: Option<u64>,
}

enum Text {
    /// All of it is kept.
    Plain(Bytes),
    /// What inflates it, and what is kept.
    Packed(Box<dyn Read + Send>, Vec<u8>),
}

impl Input {
    pub(super) fn new(text: Opened, max_row: usize) -> Self {
        let text = match text {
            Opened::Plain(file) => Text::Plain(file),
            Opened::Packed(reader) => Text::Packed(reader, Vec::new()),
        };
        Input { text, read: 0, row: 0, kept_at: 0, lines: 0, max_row, len: None }
    }

    /// A row begins at this byte.
    pub(super) fn begin(&mut self, row: u64) {
        self.row = row;
    }

    /// What is kept of the text.
    fn kept(&self) -> &[u8] {
        match &self.text {
            Text::Plain(file) => &file[self.kept_at as usize..self.read as usize],
            Text::Packed(_, kept) => kept,
        }
    }

    /// Counts the lines before the row, which need not be kept.
    fn forget(&mut self) {
        let before = ((self.row - self.kept_at) as usize).min(self.kept().len());
        self.lines += line_feeds(&self.kept()[..before]);
        self.kept_at += before as u64;
        if let Text::Packed(_, kept) = &mut self.text {
            kept.drain(..before);
        }
    }

    /// The line, from one, and the byte at which the row begins behind blank lines and comments, and what follows it of
    /// what was read.
    pub(super) fn place(&mut self, comment: Option<u8>) -> (u64, u64, &[u8]) {
        self.forget();
        let kept = self.kept();
        let mut at = if self.row == 0 && kept.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
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
        (1 + self.lines + line_feeds(&kept[..at]), self.kept_at + at as u64, &kept[at..])
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
        if self.read.saturating_sub(self.row) > self.max_row as u64 {
            let what = format!("a row of more than {} bytes, or a quote that is never closed", self.max_row);
            return Err(fault(ErrorKind::Limit, what));
        }
        if matches!(self.text, Text::Packed(..)) {
            self.forget();
        }
        let mut read = match &mut self.text {
            Text::Plain(file) => (&file[self.read as usize..]).read(out)?,
            Text::Packed(reader, kept) => {
                let mut read = reader.read(out)?;
                // A mark at the beginning is looked for in the first piece.
                while self.read == 0 && (1..3).contains(&read) && read < out.len() {
                    match reader.read(&mut out[read..])? {
                        0 => break,
                        more => read += more,
                    }
                }
                kept.try_reserve(read)?;
                kept.extend_from_slice(&out[..read]);
                read
            }
        };
        self.read += read as u64;
        if read == 0 {
            self.len = Some(self.read);
            let end = [b"\n", SENTINEL.as_bytes()].concat();
            read = end.len();
            out[..read].copy_from_slice(&end);
        }
        Ok(read)
    }
}
