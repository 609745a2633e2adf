//! Finds the ends of rows.

use std::sync::Arc;

use bytes::Bytes;
use csv_core::ReadRecordResult;
use datapipes::{Error, Result};

use super::input::{BOM, SLACK, endless, line_feeds};
use super::read::{Head, Rows, parser};
use super::{Options, ReadRow};
use crate::formats::framing::{Frame, FrameKind, Framing, RecordPosition};
use crate::formats::{FileEntries, FileEntry};

pub(super) struct RowFraming<T> {
    options: Options,
    read: ReadRow<T>,
    /// Content of the first row.
    head: Option<Arc<Head>>,
    /// Parser, and the number of bytes of the next row that it has parsed.
    parser: Option<csv_core::Reader>,
    seen: usize,
}

impl<T> Clone for RowFraming<T> {
    /// Clones without the parsed part of the next row.
    fn clone(&self) -> Self {
        RowFraming {
            head: self.head.clone(),
            parser: None,
            seen: 0,
            ..*self
        }
    }
}

impl<T> RowFraming<T> {
    pub(super) fn new(options: Options, read: ReadRow<T>) -> Self {
        RowFraming {
            options,
            read,
            head: None,
            parser: None,
            seen: 0,
        }
    }

    /// Returns the length of the row that begins here, with blank lines and comments before it, and
    /// true if there is a row. `None` if more bytes are needed.
    fn row(&mut self, data: &[u8], at: RecordPosition, ended: bool) -> Option<(usize, bool)> {
        let (mut text, mut ends) = ([0; 1024], [0; 64]);
        let parser = self.parser.get_or_insert_with(|| {
            let mut parser = parser(&self.options);
            if at.offset > 0 {
                // After an empty row, the parser drops no byte order mark.
                parser.read_record(b"\r", &mut text, &mut ends);
            }
            parser
        });
        while self.seen < data.len() {
            let (result, seen, ..) = parser.read_record(&data[self.seen..], &mut text, &mut ends);
            self.seen += seen;
            if let ReadRecordResult::Record = result {
                return Some((self.seen, true));
            }
        }
        let mut more = |text_after: &[u8]| {
            let mut rest = text_after;
            while !rest.is_empty() {
                let (result, seen, ..) = parser.read_record(rest, &mut text, &mut ends);
                rest = &rest[seen..];
                if let ReadRecordResult::Record = result {
                    return true;
                }
            }
            false
        };
        // The end of the file ends a row. If another row could begin there, there was none;
        // otherwise a quote was not closed.
        ended.then(|| (data.len(), more(b"\n") || !more(b"\0\n")))
    }

    /// Returns the rows of a part of a file that begins at `at`.
    fn rows(&self, data: Bytes, at: RecordPosition) -> Result<Rows<T>> {
        if at.offset == 0 {
            return Rows::open(data, self.options, self.read);
        }
        let head = self.head.as_deref().cloned().unwrap_or_default();
        Ok(Rows::after(head, data, at, self.options, self.read))
    }

    /// Parses the first row, which is needed to read all others; returns `None` if it is no row.
    fn first(&self, row: &[u8], at: RecordPosition) -> Result<Option<Head>> {
        let mut rows = self.rows(Bytes::copy_from_slice(row), at)?;
        if !self.options.header {
            rows.next();
        }
        Ok(rows.head.fields.is_some().then_some(rows.head))
    }
}

impl<T: Send + 'static> Framing for RowFraming<T> {
    type Item = T;

    fn frame(&mut self, data: &[u8], at: RecordPosition, ended: bool) -> Result<Frame> {
        if !ended && at.offset == 0 && data.len() < BOM.len() {
            return Ok(Frame::More(BOM.len()));
        }
        let most = self.options.max_row;
        let row = self.row(data, at, ended);
        let len = row.map_or(data.len(), |(len, _)| len);
        if len as u64 > most as u64 + SLACK {
            return Err(endless(most));
        }
        let Some((len, is_row)) = row else {
            return Ok(Frame::More(data.len() + 1));
        };
        self.seen = 0;
        let lines = line_feeds(&data[..len]);
        let mut kind = if is_row {
            FrameKind::Record
        } else {
            FrameKind::Blank
        };
        if is_row && self.head.is_none() {
            let head = self.first(&data[..len], at)?;
            if head.is_some() {
                kind = if self.options.header {
                    FrameKind::Head
                } else {
                    FrameKind::First
                };
                self.head = head.map(Arc::new);
            }
        }
        Ok(Frame::Cut { len, lines, kind })
    }

    fn finish(&mut self) -> Result<()> {
        match self.options.header && self.head.is_none() {
            true => Err(Error::truncated("an empty file where a header is due")),
            false => Ok(()),
        }
    }

    fn entries(self, data: Bytes, at: RecordPosition) -> FileEntries<T> {
        match self.rows(data, at) {
            Ok(rows) => Box::new(rows),
            Err(error) => Box::new(std::iter::once(FileEntry::Broken(error))),
        }
    }
}
