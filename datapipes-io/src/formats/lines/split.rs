//! Finds the ends of lines.

use std::io::BufRead;
use std::ops::Range;

use bytes::Bytes;
use datapipes::{Error, Result};

use crate::formats::FileEntries;
use crate::formats::framing::{Frame, FrameKind, Framing, RecordPosition, records};

const BOM: &[u8] = b"\xef\xbb\xbf";

/// A framing of lines, with a function of each line.
pub(super) struct LineFraming<T> {
    max_line: usize,
    /// True if lines of only white space are skipped.
    skip_blank: bool,
    read: fn(&Line<'_>) -> Result<T>,
    /// Position up to which the end of the next line was searched.
    searched: usize,
    refused: Option<Refused>,
}

/// A line that is too long to be kept; its beginning was skipped.
#[derive(Clone, Copy)]
struct Refused {
    offset: u64,
    /// True if a byte order mark is before it.
    marked: bool,
}

datapipes::clone_fields!(LineFraming<T> { max_line, skip_blank, read, searched, refused });

/// A line, without its end.
pub(in crate::formats) struct Line<'a> {
    pub(in crate::formats) text: &'a [u8],
    /// Position of the line in the text.
    pub(in crate::formats) offset: u64,
    /// Number of the line, from one.
    pub(in crate::formats) number: u64,
    /// True if the line ends with the text.
    pub(in crate::formats) last: bool,
    block: &'a Bytes,
}

impl Line<'_> {
    /// Returns a slice of the file, or of the piece that contains the line.
    pub(in crate::formats) fn to_bytes(&self) -> Bytes {
        self.block.slice_ref(self.text)
    }
}

impl<T> LineFraming<T> {
    pub(super) fn new(max_line: usize, skip_blank: bool, read: fn(&Line<'_>) -> Result<T>) -> Self {
        LineFraming {
            max_line,
            skip_blank,
            read,
            searched: 0,
            refused: None,
        }
    }
}

/// Returns the length of the line that begins here, including its end.
fn line_len(text: &[u8]) -> usize {
    let mut text = text;
    text.skip_until(b'\n').expect("memory can be read")
}

/// Returns the range of the text of a line that begins at `offset`: without its end, and without a
/// mark at the beginning of the file.
fn text_of(line: &[u8], offset: u64) -> Range<usize> {
    let begin = if offset == 0 && line.starts_with(BOM) {
        BOM.len()
    } else {
        0
    };
    let end = match line {
        [.., b'\r', b'\n'] => line.len() - 2,
        [.., b'\n'] => line.len() - 1,
        _ => line.len(),
    };
    begin..end
}

impl<T: Send + 'static> Framing for LineFraming<T> {
    type Item = T;

    fn frame(&mut self, data: &[u8], at: RecordPosition, ended: bool) -> Result<Frame> {
        let found = line_len(&data[self.searched..]);
        let len = self.searched + found;
        let is_whole = found > 0 && data[len - 1] == b'\n';
        if !is_whole && !ended {
            // The limit does not include line ends and the mark; the length here does.
            let is_short =
                self.refused.is_none() && len <= self.max_line.saturating_add(BOM.len() + 2);
            if is_short || len == 1 {
                self.searched = len;
                return Ok(Frame::More(len + 1));
            }
            let marked = at.offset == 0 && data.starts_with(BOM);
            self.refused.get_or_insert(Refused {
                offset: at.offset,
                marked,
            });
            self.searched = 0;
            // A byte is kept: it may be the CR of the line end, or the last byte of the file.
            return Ok(Frame::cut(len - 1, FrameKind::Refused));
        }
        self.searched = 0;
        let text = text_of(&data[..len], at.offset);
        let (begin, size) = match self.refused.take() {
            None => (at.offset + text.start as u64, text.len() as u64),
            Some(Refused { offset, marked }) => {
                let begin = if marked {
                    offset + BOM.len() as u64
                } else {
                    offset
                };
                (begin, at.offset + text.end as u64 - begin)
            }
        };
        let (lines, number) = (1, at.line + 1);
        let kind = match () {
            () if size > self.max_line as u64 => {
                let most = self.max_line;
                let what = format!(
                    "line {number} at byte {begin} has {size} bytes, and {most} are allowed (`max_line`)"
                );
                FrameKind::Bad(Error::limit(what))
            }
            // A byte order mark alone is no line.
            () if !is_whole && text.is_empty() => FrameKind::Blank,
            // The four characters that JSON calls white space; any other is an error.
            () if self.skip_blank
                && data[text]
                    .iter()
                    .all(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n')) =>
            {
                FrameKind::Blank
            }
            () => FrameKind::Record,
        };
        Ok(Frame::Cut { len, lines, kind })
    }

    fn entries(self, data: Bytes, at: RecordPosition) -> FileEntries<T> {
        let fresh = LineFraming {
            searched: 0,
            refused: None,
            ..self
        };
        records(fresh, data, at, |framing, block, range, place| {
            let line = &block[range];
            let text = text_of(line, place.offset);
            let (offset, last) = (
                place.offset + text.start as u64,
                line.last() != Some(&b'\n'),
            );
            (framing.read)(&Line {
                text: &line[text],
                offset,
                number: place.line + 1,
                last,
                block,
            })
        })
    }
}
