//! Reads the records of RecordIO files.

use bytes::Bytes;
use datapipes::{Error, Result};

use super::{HEAD, LENGTH_BITS, MAGIC, place};
use crate::formats::framing::{Frame, FrameKind, Framing, RecordPosition, RecordSplitter, records};
use crate::formats::{FileEntries, Format};

/// Reads the records of RecordIO files, as MXNet's `im2rec` writes them;
/// [`ImageRecord`](super::ImageRecord) decodes records of pictures.
///
/// - Records are slices of the file, and keep it in memory; of a file that is read as it arrives,
///   slices of the piece that they came in. A record in several parts is joined, which is a copy.
/// - A head without the magic, an invalid flag, or a cut ends the file with an error. A part
///   without its first or its last one is an error in its place, and the next record follows. The
///   format has no checksum: damaged data cannot be detected.
/// - An empty file has no records. A file cut exactly between two records cannot be told from a
///   whole file.
///
/// Errors contain the number of the record, from 0, and the position at which it begins.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_io::{File, formats::{RecordIo, RecordIoWriter}, prelude::*};
///
/// let mut writer = RecordIoWriter::new(Vec::new());
/// writer.write(b"one")?;
/// writer.write(b"two")?;
/// let (data, _) = writer.finish()?;
/// let records = Graph::from_vec(vec![File::new("a.rec", data)]).read_as(RecordIo::new());
/// assert_eq!(records.collect()?, ["one", "two"]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RecordIo {
    most: u64,
}

impl Default for RecordIo {
    fn default() -> Self {
        RecordIo { most: 1 << 30 }
    }
}

impl RecordIo {
    /// Returns the format with the default limit of [`max_record`](RecordIo::max_record).
    pub fn new() -> Self {
        RecordIo::default()
    }

    /// Ends a file with an error (`Limit`) at a record of more than `bytes`, including heads and
    /// padding. Defaults to 1 GiB.
    pub fn max_record(self, bytes: u64) -> Self {
        RecordIo { most: bytes }
    }
}

impl Format for RecordIo {
    type Item = Bytes;

    fn splitter(&self) -> Option<RecordSplitter<Bytes>> {
        Some(RecordSplitter::new(self.clone()).packing(|_, _| Ok(None)))
    }
}

impl Framing for RecordIo {
    type Item = Bytes;

    fn frame(&mut self, data: &[u8], at: RecordPosition, ended: bool) -> Result<Frame> {
        let here = |error: Error| error.within(place(at.record, at.offset));
        match frame(data, at.offset, ended, self.most).map_err(here)? {
            Frame::Cut {
                len,
                lines,
                kind: FrameKind::Bad(error),
            } => Ok(Frame::Cut {
                len,
                lines,
                kind: FrameKind::Bad(here(error)),
            }),
            frame => Ok(frame),
        }
    }

    fn entries(self, data: Bytes, at: RecordPosition) -> FileEntries<Bytes> {
        records(self, data, at, |_, data, range, _| {
            Ok(joined(&data.slice(range)))
        })
    }
}

/// Returns the record at the beginning of some bytes, and its length with heads and padding; `None`
/// if there are no bytes. An outer error ends the file, an inner error is that of the record alone.
pub(super) fn first(data: &Bytes, offset: u64) -> Result<Option<(usize, Result<Bytes>)>> {
    if data.is_empty() {
        return Ok(None);
    }
    match frame(data, offset, true, u64::MAX)? {
        Frame::Cut {
            len,
            kind: FrameKind::Bad(error),
            ..
        } => Ok(Some((len, Err(error)))),
        Frame::Cut { len, .. } => Ok(Some((len, Ok(joined(&data.slice(..len)))))),
        Frame::More(_) => Err(Error::truncated("the file ends there")),
    }
}

/// Returns the frame of all parts of a record, which begins at this position of the file.
fn frame(data: &[u8], offset: u64, ended: bool, most: u64) -> Result<Frame> {
    let bad = |len, what| Ok(Frame::cut(len, FrameKind::Bad(Error::corrupt(what))));
    let (mut at, mut joined) = (0, 0);
    loop {
        let (rest, here) = (&data[at..], offset + at as u64);
        if at > 0 && rest.is_empty() && ended {
            let what = format!("its last part is missing after {joined} bytes");
            return Err(Error::truncated(what));
        }
        let Some(head) = rest.first_chunk::<HEAD>() else {
            if !ended {
                return Ok(Frame::More(at + HEAD));
            }
            let what = format!("the head at byte {here} has {} of {HEAD} bytes", rest.len());
            return Err(Error::truncated(what));
        };
        let (flag, length) = flag_and_length(*head, here)?;
        if at > 0 && flag < 2 {
            return bad(
                at,
                format!("another record begins at byte {here} before its last part"),
            );
        }
        let (there, padded) = (rest.len() - HEAD, length.next_multiple_of(4));
        let end = at + HEAD + padded;
        if end as u64 > most {
            let what =
                format!("it has {end} bytes and more, at most {most} are allowed (`max_record`)");
            return Err(Error::limit(what));
        }
        if there < padded {
            if !ended {
                return Ok(Frame::More(end));
            }
            let what = format!("the part at byte {here} has {there} of {padded} bytes");
            return Err(Error::truncated(what));
        }
        if at == 0 && flag > 1 {
            return bad(end, format!("a part with flag {flag} follows no first one"));
        }
        joined += length + if at > 0 { MAGIC_BYTES.len() } else { 0 };
        at = end;
        if matches!(flag, 0 | 3) {
            return Ok(Frame::cut(at, FrameKind::Record));
        }
    }
}

const MAGIC_BYTES: [u8; 4] = MAGIC.to_le_bytes();

fn flag_and_length([a, b, c, d, word @ ..]: [u8; HEAD], offset: u64) -> Result<(u32, usize)> {
    let magic = u32::from_le_bytes([a, b, c, d]);
    if magic != MAGIC {
        let what = format!("byte {offset} begins with {magic:#010x}, not with {MAGIC:#010x}");
        return Err(Error::corrupt(what));
    }
    let word = u32::from_le_bytes(word);
    match word >> LENGTH_BITS {
        flag @ 0..=3 => Ok((flag, (word & ((1 << LENGTH_BITS) - 1)) as usize)),
        flag => Err(Error::corrupt(format!("flag {flag} at byte {offset}"))),
    }
}

/// Returns the data of a record whose parts are complete: a slice, if it has one part.
fn joined(record: &Bytes) -> Bytes {
    let mut parts = Vec::new();
    let mut at = 0;
    while let Some(head) = record[at..].first_chunk::<HEAD>() {
        let (_, length) = flag_and_length(*head, 0).expect("it was looked at before");
        parts.push(at + HEAD..at + HEAD + length);
        at += HEAD + length.next_multiple_of(4);
    }
    match &parts[..] {
        [one] => record.slice(one.clone()),
        parts => {
            let parts: Vec<&[u8]> = parts.iter().map(|part| &record[part.clone()]).collect();
            parts.join(&MAGIC_BYTES[..]).into()
        }
    }
}
