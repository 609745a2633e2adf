//! Positions of the lines of a file of JSON lines.

use std::io::BufRead;
use std::ops::Range;
use std::path::Path;
use std::thread::available_parallelism;

use bytes::Bytes;
use datapipes::{Error, ErrorKind, Result, whole_file};
use futures::{StreamExt, TryStreamExt, stream};

use crate::formats::Codec;
use crate::replace::{MOST, replace};
use crate::stores::{Get, Store};

/// Number of bytes that are read and searched at once.
const BLOCK: u64 = 4 << 20;
/// Number of bytes at each end of a file that tell its content from another, where the store has
/// no versions.
const END: u64 = 64 << 10;
const MAGIC: &[u8; 8] = b"DPLINES\0";
const VERSION: u32 = 1;
/// Length of the checksum at the end of the stored form.
const SUM: usize = blake3::OUT_LEN;
const BOM: &[u8] = b"\xef\xbb\xbf";

/// The positions of the lines of a file of JSON lines, for
/// [`IndexedJsonLines`](super::IndexedJsonLines).
///
/// - A sample is a line that is not blank, as for [`JsonLines`](super::JsonLines): LF or CRLF ends
///   a line, the last needs no end, and a byte order mark is dropped.
/// - An index takes 8 bytes for each line, and 24 for each run of blank lines, in memory and as a
///   file. A line itself is never in memory as a whole while the index is made.
/// - The stored form ([`to_bytes`](LineIndex::to_bytes)) has a version, a checksum, and size and
///   [version](crate::stores::Meta::version) of the file that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineIndex {
    size: u64,
    /// Place and version of the file; empty if they are not known.
    mark: String,
    /// Version of the file in its store.
    version: Option<String>,
    starts: Vec<u64>,
    gaps: Vec<Gap>,
}

/// Blank lines before a sample, or at the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    /// Number of the sample.
    sample: u64,
    /// Position of the first of the blank lines.
    start: u64,
    /// Number of blank lines from the beginning of the file to the sample.
    lines: u64,
}

/// Place of a line in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LinePlace {
    /// Bytes of the line, with its end.
    pub range: Range<u64>,
    /// Number of the line, from one.
    pub number: u64,
}

impl LineIndex {
    /// Makes the index of a text in memory.
    pub fn of(text: &[u8]) -> LineIndex {
        let mut scan = Scan::default();
        scan.add(pieces(text, 0));
        scan.finish(Source {
            size: text.len() as u64,
            ..Source::default()
        })
    }

    /// Makes the index of an object of a store. It is read in ranges of 4 MiB, as many at once as
    /// there are cores, and searched on the blocking threads of the async runtime (without a
    /// runtime, one after the other). No more than these ranges is in memory, besides the index.
    ///
    /// # Errors
    /// The errors of reading the object; `Changed` if it changes meanwhile and the store has
    /// versions; `Unsupported` if it is compressed, or the store does not know its size.
    pub async fn scan(store: &(impl Store + ?Sized), key: &str) -> Result<LineIndex> {
        let source = Source::of(store, key).await?;
        LineIndex::scan_source(store, key, source).await
    }

    /// Returns the index that is cached in `file`, a path on this machine, if it belongs to the
    /// object as it is now. Otherwise makes it by [`scan`](LineIndex::scan) and writes it there, as
    /// a whole: another process sees the old index or the new one.
    ///
    /// It belongs to the object if place, size and [version](crate::stores::Meta::version) are the
    /// same; of a store without versions, the first and last 64 KiB. An index that is damaged or of
    /// another version of the format is made again. If it cannot be written, that is logged, and
    /// the index is used.
    ///
    /// # Errors
    /// As [`scan`](LineIndex::scan).
    pub async fn cached(
        store: &(impl Store + ?Sized),
        key: &str,
        file: impl AsRef<Path>,
    ) -> Result<LineIndex> {
        let source = Source::of(store, key).await?;
        let file = file.as_ref().to_owned();
        let path = file.clone();
        let read = move || LineIndex::from_bytes(&whole_file::read(&path, MOST)?);
        match datapipes::blocking(read).await? {
            Ok(index) if (index.size, &index.mark) == (source.size, &source.mark) => {
                return Ok(LineIndex {
                    version: source.version,
                    ..index
                });
            }
            Ok(_) => tracing::debug!(file = %file.display(), "the index is of another file"),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(file = %file.display(), %error, "the index is made again"),
        }
        let index = LineIndex::scan_source(store, key, source).await?;
        let bytes = index.to_bytes();
        if let Err(error) = datapipes::blocking(move || replace(&file, &bytes)).await? {
            tracing::warn!(%error, "the index could not be cached");
        }
        Ok(index)
    }

    async fn scan_source(
        store: &(impl Store + ?Sized),
        key: &str,
        source: Source,
    ) -> Result<LineIndex> {
        let cores = available_parallelism().map_or(1, usize::from);
        let version = &source.version;
        let blocks = (0..source.size).step_by(BLOCK as usize).map(async |start| {
            let range = start..source.size.min(start + BLOCK);
            let data = read(store, key, range, source.size, version).await?;
            if let (0, Some(codec)) = (start, Codec::of_magic(&data)) {
                let what = format!("compressed ({codec:?}): it has no lines by index");
                return Err(Error::unsupported(what).within(store.url_of(key)));
            }
            datapipes::blocking(move || pieces(&data, start)).await
        });
        let mut blocks = stream::iter(blocks).buffered(cores);
        let mut scan = Scan::default();
        while let Some(block) = blocks.try_next().await? {
            scan.add(block);
        }
        drop(blocks);
        Ok(scan.finish(source))
    }

    /// Returns the number of lines that are not blank.
    pub fn len(&self) -> u64 {
        self.starts.len() as u64
    }

    /// Returns true if there are no lines, or only blank ones.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Returns the size of the file in bytes.
    pub fn file_size(&self) -> u64 {
        self.size
    }

    /// Returns the version of the file, if it is known.
    pub(super) fn version(&self) -> &Option<String> {
        &self.version
    }

    /// Returns the place of a line by the number of its sample.
    pub(super) fn line(&self, sample: u64) -> Option<LinePlace> {
        let at = usize::try_from(sample).ok()?;
        let start = *self.starts.get(at)?;
        let gaps = self.gaps.partition_point(|gap| gap.sample <= sample);
        let blank = gaps.checked_sub(1).map_or(0, |last| self.gaps[last].lines);
        let after = self.gaps.get(gaps).filter(|gap| gap.sample == sample + 1);
        let end = match (after, self.starts.get(at + 1)) {
            (Some(gap), _) => gap.start,
            (None, Some(next)) => *next,
            (None, None) => self.size,
        };
        Some(LinePlace {
            range: start..end,
            number: sample + 1 + blank,
        })
    }

    /// Returns the stored form, in this order:
    ///
    /// - the magic `DPLINES\0`, and the version of the format as a `u32`;
    /// - the size of the file, the length of its mark, and the mark;
    /// - the number of lines, and the number of runs of blank lines;
    /// - the first byte of each line, and three numbers for each run;
    /// - 32 bytes of BLAKE3 of all this.
    ///
    /// All other numbers have 64 bits; all are little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(100 + 8 * self.starts.len() + 24 * self.gaps.len());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.size.to_le_bytes());
        bytes.extend((self.mark.len() as u64).to_le_bytes());
        bytes.extend(self.mark.as_bytes());
        bytes.extend((self.starts.len() as u64).to_le_bytes());
        bytes.extend((self.gaps.len() as u64).to_le_bytes());
        bytes.extend(self.starts.iter().flat_map(|start| start.to_le_bytes()));
        let numbers = self
            .gaps
            .iter()
            .flat_map(|gap| [gap.sample, gap.start, gap.lines]);
        bytes.extend(numbers.flat_map(u64::to_le_bytes));
        let sum = blake3::hash(&bytes);
        bytes.extend(sum.as_bytes());
        bytes
    }

    /// Reads the stored form. The version of the file is known to [`cached`](LineIndex::cached) alone.
    ///
    /// # Errors
    /// `Corrupt` if it is no index, is damaged or cut, or contradicts itself; `Unsupported` for
    /// another version of the format.
    pub fn from_bytes(bytes: &[u8]) -> Result<LineIndex> {
        let corrupt = |what: &str| Error::corrupt(format!("index of lines: {what}"));
        let version = bytes
            .strip_prefix(MAGIC)
            .and_then(|rest| rest.first_chunk())
            .ok_or_else(|| corrupt("it does not begin as one"))?;
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            let what = format!("index of lines: version {version}, not {VERSION}");
            return Err(Error::unsupported(what));
        }
        let (content, sum) = bytes
            .split_last_chunk::<SUM>()
            .ok_or_else(|| corrupt("it is cut"))?;
        if blake3::hash(content).as_bytes() != sum {
            return Err(corrupt("its checksum does not match"));
        }
        let index = parse(content).ok_or_else(|| corrupt("its numbers are not possible"))?;
        Ok(index)
    }
}

/// Reads the stored form without its checksum; `None` if the numbers contradict each other.
fn parse(content: &[u8]) -> Option<LineIndex> {
    let mut rest = content.get(MAGIC.len() + size_of::<u32>()..)?;
    let mut number = || {
        let (number, after) = rest.split_first_chunk()?;
        rest = after;
        Some(u64::from_le_bytes(*number))
    };
    let (size, mark) = (number()?, usize::try_from(number()?).ok()?);
    let (mark, after) = rest.split_at_checked(mark)?;
    let (count, after) = after.split_first_chunk()?;
    let (gap_count, after) = after.split_first_chunk()?;
    let starts_len = u64::from_le_bytes(*count).checked_mul(8)?;
    let gaps_len = u64::from_le_bytes(*gap_count).checked_mul(24)?;
    let (starts, gaps) = after.split_at_checked(usize::try_from(starts_len).ok()?)?;
    if gaps.len() as u64 != gaps_len {
        return None;
    }
    let numbers = |bytes: &[u8]| -> Vec<u64> {
        let (numbers, _) = bytes.as_chunks();
        numbers
            .iter()
            .map(|&number| u64::from_le_bytes(number))
            .collect()
    };
    let (starts, gaps) = (numbers(starts), numbers(gaps));
    let (gaps, _) = gaps.as_chunks();
    let gaps: Vec<Gap> = gaps
        .iter()
        .map(|&[sample, start, lines]| Gap {
            sample,
            start,
            lines,
        })
        .collect();
    let index = LineIndex {
        size,
        mark: String::from_utf8(mark.to_vec()).ok()?,
        version: None,
        starts,
        gaps,
    };
    index.is_possible().then_some(index)
}

impl LineIndex {
    /// Returns true if lines and runs of blank ones are in order, and within the file.
    fn is_possible(&self) -> bool {
        let begin = |sample: u64| self.starts.get(sample as usize).copied();
        let gap_fits = |gap: &Gap| {
            gap.sample <= self.len()
                && gap.start < begin(gap.sample).unwrap_or(self.size)
                && gap
                    .sample
                    .checked_sub(1)
                    .is_none_or(|before| begin(before) < Some(gap.start))
                && gap.lines <= self.size
        };
        self.starts.is_sorted_by(|a, b| a < b)
            && self.starts.last().is_none_or(|&last| last < self.size)
            && self
                .gaps
                .is_sorted_by(|a, b| a.sample < b.sample && a.lines < b.lines)
            && self.gaps.iter().all(gap_fits)
    }
}

/// Size of an object, and what tells it from others and from other versions.
#[derive(Default)]
struct Source {
    size: u64,
    mark: String,
    version: Option<String>,
}

impl Source {
    async fn of(store: &(impl Store + ?Sized), key: &str) -> Result<Source> {
        let url = store.url_of(key);
        let meta = store.head(key).await?;
        let size = meta.size.ok_or_else(|| {
            let what = format!("{url}: an index needs to know how many bytes it has");
            Error::unsupported(what)
        })?;
        let mark = match &meta.version {
            Some(version) => format!("{url}\n{version}"),
            None => {
                let first = read(store, key, 0..size.min(END), size, &None).await?;
                let last = read(store, key, size.saturating_sub(END)..size, size, &None).await?;
                let ends = blake3::hash(&[first, last].concat());
                format!("{url}\nends {ends}")
            }
        };
        Ok(Source {
            size,
            mark,
            version: meta.version,
        })
    }
}

/// Reads a range of an object of a known size, as a whole.
pub(super) async fn read(
    store: &(impl Store + ?Sized),
    key: &str,
    range: Range<u64>,
    size: u64,
    version: &Option<String>,
) -> Result<Bytes> {
    let want = range.end - range.start;
    if want == 0 {
        return Ok(Bytes::new());
    }
    let get = Get::range(range).of_version(version.clone());
    let object = store.get(key, get).await?;
    let (url, has) = (object.url.clone(), object.meta.size.unwrap_or(size));
    let data = object.bytes().await?;
    if has != size || data.len() as u64 != want {
        let what = format!("{url}: it has {has} bytes, in its index {size}");
        return Err(Error::changed(what));
    }
    Ok(data)
}

/// A line, or the part of it in a block.
struct Piece {
    end: u64,
    /// True if it has white space alone.
    blank: bool,
    /// True if it has the line's end.
    ended: bool,
}

/// The pieces of lines in a block.
struct Pieces {
    start: u64,
    pieces: Vec<Piece>,
}

/// Returns the pieces of lines of a block that begins at a byte of its file.
fn pieces(data: &[u8], start: u64) -> Pieces {
    let mark = if start == 0 && data.starts_with(BOM) {
        BOM.len()
    } else {
        0
    };
    let mut rest = &data[mark..];
    let start = start + mark as u64;
    let (mut end, mut pieces) = (start, Vec::new());
    while !rest.is_empty() {
        let mut after = rest;
        let len = after.skip_until(b'\n').expect("memory can be read");
        let line = &rest[..len];
        end += len as u64;
        pieces.push(Piece {
            end,
            blank: line.iter().all(|byte| b" \t\r\n".contains(byte)),
            ended: line.ends_with(b"\n"),
        });
        rest = after;
    }
    Pieces { start, pieces }
}

/// Joins the lines of consecutive blocks.
#[derive(Default)]
struct Scan {
    starts: Vec<u64>,
    gaps: Vec<Gap>,
    /// First byte of the line that the last block did not end, and if it is blank so far.
    open: Option<(u64, bool)>,
}

impl Scan {
    fn add(&mut self, block: Pieces) {
        let mut start = block.start;
        for piece in block.pieces {
            let (begin, before) = self.open.take().unwrap_or((start, true));
            let line = (begin, before && piece.blank);
            if piece.ended {
                self.push(line);
            } else {
                self.open = Some(line);
            }
            start = piece.end;
        }
    }

    fn push(&mut self, (start, blank): (u64, bool)) {
        if !blank {
            return self.starts.push(start);
        }
        let sample = self.starts.len() as u64;
        match self.gaps.last_mut() {
            Some(gap) if gap.sample == sample => gap.lines += 1,
            last => {
                let lines = last.map_or(0, |gap| gap.lines) + 1;
                self.gaps.push(Gap {
                    sample,
                    start,
                    lines,
                });
            }
        }
    }

    fn finish(mut self, source: Source) -> LineIndex {
        if let Some(line) = self.open.take() {
            self.push(line);
        }
        LineIndex {
            size: source.size,
            mark: source.mark,
            version: source.version,
            starts: self.starts,
            gaps: self.gaps,
        }
    }
}

#[cfg(test)]
mod tests;
