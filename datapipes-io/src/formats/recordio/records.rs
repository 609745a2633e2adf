//! Reads the records of RecordIO files.

use bytes::{Buf, Bytes, BytesMut};
use datapipes::{Context, Error, ErrorKind, Result};

use super::{HEAD, LENGTH_BITS, MAGIC, place};
use crate::File;
use crate::formats::{Entries, Entry, Format};

/// Reads the records of RecordIO files, as MXNet's `im2rec` writes them; [`ImageRecord`](super::ImageRecord) decodes those of
/// pictures.
///
/// - Records are slices of the file, and keep it in memory. One in several parts is joined, which is a copy.
/// - A head without the magic, a flag that there is not, or a cut ends the file with an error. A part without its first or
///   its last one is an error in its place, and the next record follows. The format has no checksum: damage of the data
///   cannot be seen.
/// - An empty file has no records. A file cut exactly between two records cannot be told from a whole one.
///
/// Errors name the record, from 0, and the byte where it begins.
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
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RecordIo;

impl RecordIo {
    /// Has no settings.
    pub fn new() -> Self {
        RecordIo
    }
}

impl Format for RecordIo {
    type Item = Bytes;

    fn open(&self, file: File, _: &Context) -> Result<Entries<Bytes>> {
        let (mut parts, mut number) = (Parts::new(file.data), 0);
        let mut broken = false;
        Ok(Box::new(std::iter::from_fn(move || {
            if broken {
                return None;
            }
            let begin = parts.offset;
            let here = |error: Error| error.within(place(number, begin));
            let entry = match parts.record() {
                Ok(None) => return None,
                Ok(Some(Ok(record))) => Entry::item(record),
                Ok(Some(Err(error))) => Entry::Bad(None, here(error)),
                Err(error) => {
                    broken = true;
                    Entry::Broken(here(error))
                }
            };
            number += 1;
            Some(entry)
        })))
    }
    fn weigh(&self, record: &Bytes) -> Option<usize> {
        Some(record.len() + size_of::<Bytes>())
    }
}

/// The parts of the records of a file.
pub(super) struct Parts {
    rest: Bytes,
    pub(super) offset: u64,
}

impl Parts {
    pub(super) fn new(data: Bytes) -> Self {
        Parts { rest: data, offset: 0 }
    }

    /// The next record. An error outside ends the file, one inside is of the record alone.
    pub(super) fn record(&mut self) -> Result<Option<Result<Bytes>>> {
        let Some((flag, first)) = self.part()? else { return Ok(None) };
        match flag {
            0 => return Ok(Some(Ok(first))),
            1 => {}
            _ => {
                let what = format!("a part with flag {flag} follows no first one");
                return Ok(Some(Err(Error::new(ErrorKind::Corrupt, what))));
            }
        }
        let mut joined = BytesMut::from(first);
        loop {
            let Some((flag, _)) = self.peek()? else {
                let what = format!("its last part is missing behind {} bytes", joined.len());
                return Err(Error::new(ErrorKind::Truncated, what));
            };
            if flag < 2 {
                let what = format!("another record begins at byte {} before its last part", self.offset);
                return Ok(Some(Err(Error::new(ErrorKind::Corrupt, what))));
            }
            let Some((_, part)) = self.part()? else { continue };
            joined.extend_from_slice(&MAGIC.to_le_bytes());
            joined.extend_from_slice(&part);
            if flag == 3 {
                return Ok(Some(Ok(joined.freeze())));
            }
        }
    }

    /// Flag and length of the next part.
    fn peek(&self) -> Result<Option<(u32, usize)>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let Some(&[a, b, c, d, word @ ..]) = self.rest.first_chunk::<HEAD>() else {
            let what = format!("the head at byte {} has {} of {HEAD} bytes", self.offset, self.rest.len());
            return Err(Error::new(ErrorKind::Truncated, what));
        };
        let magic = u32::from_le_bytes([a, b, c, d]);
        if magic != MAGIC {
            let what = format!("byte {} begins with {magic:#010x}, not with {MAGIC:#010x}", self.offset);
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        let word = u32::from_le_bytes(word);
        match word >> LENGTH_BITS {
            flag @ 0..=3 => Ok(Some((flag, (word & ((1 << LENGTH_BITS) - 1)) as usize))),
            flag => Err(Error::new(ErrorKind::Corrupt, format!("flag {flag} at byte {}", self.offset))),
        }
    }

    /// The next part: a slice.
    fn part(&mut self) -> Result<Option<(u32, Bytes)>> {
        let Some((flag, length)) = self.peek()? else { return Ok(None) };
        let (there, padded) = (self.rest.len() - HEAD, length.next_multiple_of(4));
        if there < padded {
            let what = format!("the part at byte {} has {there} of {padded} bytes", self.offset);
            return Err(Error::new(ErrorKind::Truncated, what));
        }
        let data = self.rest.slice(HEAD..HEAD + length);
        self.rest.advance(HEAD + padded);
        self.offset += (HEAD + padded) as u64;
        Ok(Some((flag, data)))
    }
}
