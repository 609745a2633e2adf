//! Finds the ends of lines, in a file or in what is inflated.

use std::io::{BufRead, Read};

use bytes::Bytes;
use datapipes::{Error, ErrorKind, Result};

use super::Entry;
use crate::formats::compression::{Opened, unpack};

const BOM: &[u8] = b"\xef\xbb\xbf";
/// So many bytes are inflated at once.
const BLOCK: usize = 64 << 10;

/// The lines of a file, one after the other.
pub(in crate::formats) struct Split {
    text: Text,
    /// What follows of the text begins here.
    offset: u64,
    /// The line that was given last, from one.
    number: u64,
    max_line: usize,
}

enum Text {
    /// A file that is not compressed, and where the next line begins.
    Plain(Bytes, usize),
    /// One that is.
    Packed(Window),
}

/// What was inflated and is not yet given.
struct Window {
    reader: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    /// Where the next line begins.
    at: usize,
    /// How far its end was looked for.
    searched: usize,
    ended: bool,
    /// What ended the reading, behind what was read before it.
    failed: Option<Error>,
}

/// A line, without its end.
pub(in crate::formats) struct Line<'a> {
    pub(in crate::formats) text: &'a [u8],
    /// Where it begins in the text.
    pub(in crate::formats) offset: u64,
    /// From one.
    pub(in crate::formats) number: u64,
    /// Nothing ends it but the end of the text.
    pub(in crate::formats) last: bool,
    file: Option<&'a Bytes>,
}

impl Line<'_> {
    /// A slice of its file if that is not compressed, else a copy.
    pub(in crate::formats) fn to_bytes(&self) -> Bytes {
        self.file.map_or_else(|| Bytes::copy_from_slice(self.text), |file| file.slice_ref(self.text))
    }
}

impl Split {
    pub(super) fn new(text: Opened, max_line: usize) -> Self {
        let text = match text {
            Opened::Plain(file) => Text::Plain(file, 0),
            Opened::Packed(reader) => Text::Packed(Window {
                reader,
                buffer: Vec::new(),
                at: 0,
                searched: 0,
                ended: false,
                failed: None,
            }),
        };
        Split { text, offset: 0, number: 0, max_line }
    }

    /// What `read` makes of the next line for which it makes anything; `None` behind the last.
    pub(in crate::formats) fn next<T>(
        &mut self,
        read: impl Fn(&Line<'_>) -> Option<Result<T>>,
    ) -> Option<Entry<T>> {
        loop {
            match self.line() {
                Ok(None) => return None,
                Ok(Some(Ok(line))) => match read(&line) {
                    None => {}
                    Some(result) => return Some(Entry::from_result(result)),
                },
                Ok(Some(Err(error))) => return Some(Entry::Bad(None, error)),
                Err(error) => return Some(Entry::Broken(error)),
            }
        }
    }

    /// The next line, or what is wrong with it.
    fn line(&mut self) -> Result<Option<Result<Line<'_>>>> {
        let mut offset = self.offset;
        // How long the line is with its end, and its beginning if that is kept.
        let (whole, mut text, file) = match &mut self.text {
            Text::Plain(file, at) => {
                let begin = *at;
                let len = line_len(&file[begin..]);
                *at += len;
                (len as u64, &file[begin..begin + len], Some(&*file))
            }
            Text::Packed(window) => {
                let (len, text) = window.line(self.max_line)?;
                (len, text, None)
            }
        };
        if whole == 0 {
            return Ok(None);
        }
        let kept = text.len() as u64;
        self.offset += whole;
        self.number += 1;
        let number = self.number;
        let last = text.last() != Some(&b'\n');
        if !last {
            text = &text[..text.len() - 1];
            text = text.strip_suffix(b"\r").unwrap_or(text);
        }
        if self.number == 1
            && let Some(behind) = text.strip_prefix(BOM)
        {
            (text, offset) = (behind, offset + BOM.len() as u64);
        }
        if whole > kept || text.len() > self.max_line {
            let (len, most) = (whole - kept + text.len() as u64, self.max_line);
            let what = format!("line {number} at byte {offset} has {len} bytes, and {most} are allowed");
            return Ok(Some(Err(Error::new(ErrorKind::Limit, what))));
        }
        // A byte order mark and nothing else is no line.
        if last && text.is_empty() {
            return Ok(None);
        }
        Ok(Some(Ok(Line { text, offset, number, last, file })))
    }
}

/// How long the line is that begins here, with its end.
fn line_len(text: &[u8]) -> usize {
    let mut text = text;
    text.skip_until(b'\n').expect("memory can be read")
}

impl Window {
    /// How long the next line is with its end, and the line, or less of it if that is longer than `most` and some.
    fn line(&mut self, most: usize) -> Result<(u64, &[u8])> {
        // The ends of a line and the mark before it are not counted; here they are.
        let most = most.saturating_add(BOM.len() + 2);
        let mut dropped = 0;
        loop {
            let found = line_len(&self.buffer[self.searched..]);
            let end = self.searched + found;
            if (found > 0 && self.buffer[end - 1] == b'\n') || self.ended {
                let begin = std::mem::replace(&mut self.at, end);
                self.searched = end;
                return Ok((dropped + (end - begin) as u64, &self.buffer[begin..end]));
            }
            self.searched = end;
            if end - self.at > most {
                dropped += (end - self.at) as u64;
                self.at = end;
            }
            self.buffer.drain(..std::mem::take(&mut self.at));
            self.searched = self.buffer.len();
            self.fill()?;
        }
    }

    /// Reads a block more, or what is left; an error comes behind what was read before it.
    fn fill(&mut self) -> Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let there = self.buffer.len();
        self.buffer.try_reserve(BLOCK).map_err(|_| {
            Error::new(ErrorKind::Limit, format!("no memory for a line of more than {there} bytes"))
        })?;
        self.buffer.resize(there + BLOCK, 0);
        let mut end = there;
        while end < self.buffer.len() && self.failed.is_none() && !self.ended {
            match self.reader.read(&mut self.buffer[end..]) {
                Ok(0) => self.ended = true,
                Ok(read) => end += read,
                Err(error) => self.failed = Some(unpack(error, ErrorKind::Corrupt, "compressed data")),
            }
        }
        self.buffer.truncate(end);
        match self.failed.take() {
            Some(error) if end == there => Err(error),
            failed => {
                self.failed = failed;
                Ok(())
            }
        }
    }
}
