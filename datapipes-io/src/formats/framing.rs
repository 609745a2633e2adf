//! Splits files into records: whole files, and files whose bytes are still arriving.
//!
//! A format implements [`Framing`], which finds the end of the record at the beginning of some
//! bytes. The rest is the same for all formats: [`RecordSplitter`] holds the bytes, asks for more of them
//! and returns them in blocks.

use std::io::Read;
use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use datapipes::{Context, Error, ErrorKind, Result, opaque_debug};

use super::compression::{Expansion, Packing, packing_of, unpack, unpacker};
use super::entry::{FileEntries, FileEntry};

/// Position of a record in a file; in a compressed file, in the decompressed content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordPosition {
    /// Position of the first byte.
    pub offset: u64,
    /// Number of records before it, including those that cannot be read.
    pub record: u64,
    /// Number of lines before it, for a format that counts lines.
    pub line: u64,
    /// True if the bytes are a block of a file: the splitter checks the end of the file.
    pub(crate) part: bool,
}

// The position in a checkpoint is never that of a block.
datapipes::wire_struct!(RecordPosition { offset, record, line; part = false });

/// Result of looking for the end of a record.
#[derive(Debug)]
pub enum Frame {
    /// The bytes do not suffice. At least this many bytes are needed, or all that there are.
    More(usize),
    /// Bytes that belong together.
    Cut {
        /// Number of bytes; never 0.
        len: usize,
        /// Number of lines that end in them, for a format that counts lines.
        lines: u64,
        /// Kind of the bytes.
        kind: FrameKind,
    },
}

/// Kind of the bytes that were cut.
#[derive(Debug)]
#[non_exhaustive]
pub enum FrameKind {
    /// A record.
    Record,
    /// All records of a batch, which [`batches`] reads.
    Records(u64),
    /// A record that is needed to read the records after it.
    First,
    /// A header that is needed to read the records after it: names of columns, a schema.
    Head,
    /// Bytes without a record: a blank line, padding.
    Blank,
    /// A record that cannot be read, or the end of one.
    Bad(Error),
    /// A part of a record that is refused and is not to be kept in memory. The rest follows.
    Refused,
}

impl Frame {
    /// Cuts bytes in which no line ends.
    pub fn cut(len: usize, kind: FrameKind) -> Self {
        Frame::Cut {
            len,
            lines: 0,
            kind,
        }
    }
}

/// Finds the records of a format in bytes that arrive piece by piece.
///
/// One value processes one file, from its beginning. A [`Format`](super::Format) returns it from
/// [`Format::splitter`](super::Format::splitter), by which whole files are opened too.
///
/// # Examples
/// Records that each have their length before them:
/// ```
/// use bytes::Bytes;
/// use datapipes::{Error, Result};
/// use datapipes_io::formats::{FileEntries, Format, Frame, Framing, FrameKind, RecordPosition, RecordSplitter, records};
/// use datapipes_io::{prelude::*, stores::InMemory};
///
/// #[derive(Clone)]
/// struct Lengths;
///
/// impl Framing for Lengths {
///     type Item = Bytes;
///
///     fn frame(&mut self, data: &[u8], at: RecordPosition, ended: bool) -> Result<Frame> {
///         let len = 1 + usize::from(data[0]);
///         match data.len() < len {
///             false => Ok(Frame::cut(len, FrameKind::Record)),
///             true if !ended => Ok(Frame::More(len)),
///             true => Err(Error::truncated(format!("the record at byte {}", at.offset))),
///         }
///     }
///     fn entries(self, data: Bytes, at: RecordPosition) -> FileEntries<Bytes> {
///         records(self, data, at, |_, data, range, _| Ok(data.slice(range.start + 1..range.end)))
///     }
/// }
///
/// impl Format for Lengths {
///     type Item = Bytes;
///
///     fn splitter(&self) -> Option<RecordSplitter<Bytes>> {
///         Some(RecordSplitter::new(Lengths))
///     }
/// }
///
/// let store = InMemory::from_iter([("f", "\x01a\x02bc")]);
/// // With a limit of 0 every file is read as it arrives.
/// assert_eq!(store.files(["f"]).stream_as(Lengths, 0).collect()?, ["a", "bc"]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub trait Framing: Clone + Send + 'static {
    /// Type of a record.
    type Item: Send + 'static;

    /// Finds the end of the record, or of other content, at the beginning of `data`. `data` is not
    /// empty and begins at `at`; if the file has `ended`, nothing follows it.
    ///
    /// The method is called again, from the same byte on, after it asked for more bytes, and after
    /// each cut. It may therefore remember the bytes that it has already searched.
    ///
    /// # Errors
    /// Returns an error if the bytes are no record, and the next record cannot be found: the rest
    /// of the file is not read.
    fn frame(&mut self, data: &[u8], at: RecordPosition, ended: bool) -> Result<Frame>;

    /// Checks that a file may end here, after its last record. Defaults to success.
    ///
    /// # Errors
    /// Returns an error if the file may not end here.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    /// Reads `data`, which begins at `at` and holds whole records, or a whole file. Most
    /// implementations call [`records`], or [`batches`] where a frame has several records. Both
    /// call [`finish`](Framing::finish) at the end of a whole file.
    fn entries(self, data: Bytes, at: RecordPosition) -> FileEntries<Self::Item>;

    /// Receives the length of the file before anything else, if the length is known and the file is
    /// not compressed. Ignored by default.
    fn begin(&mut self, _len: u64) {}

    /// Receives the number of bytes to which the loader lets a part of a file
    /// [inflate](Context::max_inflated), before anything else, if it has such a limit. Of interest to
    /// a format with compressed records. Ignored by default.
    fn allow(&mut self, _most: u64) {}

    /// Returns true if, by its first bytes, this file cannot be read as it arrives; the file is
    /// then read whole. Defaults to false.
    fn is_whole(&self, _first: &[u8]) -> bool {
        false
    }
}

/// Returns the frame at the beginning of some bytes, which are not empty, if it is within them and has
/// an end: with an empty frame a file would have no end.
#[inline]
fn frame<F: Framing>(
    framing: &mut F,
    data: &[u8],
    at: RecordPosition,
    ended: bool,
) -> Result<Frame> {
    match framing.frame(data, at, ended)? {
        Frame::Cut { len, .. } if len == 0 || len > data.len() => Err(Error::config(format!(
            "the format cuts {len} of {} bytes, at byte {}",
            data.len(),
            at.offset
        ))),
        frame => Ok(frame),
    }
}

/// Reads the records of a block, cut by [`Framing::frame`], by a function of each record: the
/// bytes, the range of the record in them, and its position in the file.
pub fn records<F: Framing>(
    framing: F,
    data: Bytes,
    at: RecordPosition,
    read: impl Fn(&F, &Bytes, Range<usize>, RecordPosition) -> Result<F::Item> + Send + 'static,
) -> FileEntries<F::Item> {
    let mut cuts = Cuts::new(framing, data, at);
    Box::new(std::iter::from_fn(move || {
        Some(match cuts.cut()? {
            Ok((range, at)) => FileEntry::from_result(read(&cuts.framing, &cuts.data, range, at)),
            Err(entry) => entry,
        })
    }))
}

/// Reads the records of a block, as [`records`] does, where a frame has several of them
/// ([`FrameKind::Records`]), such as a chunk of a log: by a function that returns the records of a
/// frame, one after the other, as many as the frame was said to have. If it returns fewer, best
/// after an error, the others are counted as dropped; more are not asked for.
///
/// # Examples
/// Chunks, each with the number of its records before it and with records of one byte, and a `.` at
/// the end of the file:
/// ```
/// use bytes::Bytes;
/// use datapipes::{Error, Result};
/// use datapipes_io::formats::{FileEntries, Format, Frame, FrameKind, Framing, RecordPosition, RecordSplitter, batches};
/// use datapipes_io::{prelude::*, stores::InMemory};
///
/// #[derive(Clone, Default)]
/// struct Log { ended: bool }
///
/// impl Framing for Log {
///     type Item = u8;
///
///     fn frame(&mut self, data: &[u8], at: RecordPosition, ended: bool) -> Result<Frame> {
///         if self.ended {
///             return Err(Error::corrupt(format!("more after the end, at byte {}", at.offset)));
///         }
///         self.ended = data[0] == b'.';
///         let (records, len) = (u64::from(data[0]), 1 + usize::from(data[0]));
///         match self.ended {
///             true => Ok(Frame::cut(1, FrameKind::Blank)),
///             false if len <= data.len() => Ok(Frame::cut(len, FrameKind::Records(records))),
///             false if !ended => Ok(Frame::More(len)),
///             false => Err(Error::truncated(format!("the chunk at byte {}", at.offset))),
///         }
///     }
///     fn finish(&mut self) -> Result<()> {
///         match self.ended {
///             true => Ok(()),
///             false => Err(Error::truncated("there is no end")),
///         }
///     }
///     fn entries(self, data: Bytes, at: RecordPosition) -> FileEntries<u8> {
///         batches(self, data, at, |_, data, range, _| data.slice(range).into_iter().skip(1).map(Ok))
///     }
/// }
///
/// impl Format for Log {
///     type Item = u8;
///
///     fn splitter(&self) -> Option<RecordSplitter<u8>> {
///         Some(RecordSplitter::new(self.clone()))
///     }
/// }
///
/// let store = InMemory::from_iter([("f", "\x02ab\x01c."), ("cut", "\x02ab")]);
/// assert_eq!(store.clone().files(["f"]).read_as(Log::default()).collect()?, *b"abc");
/// let error = store.files(["cut"]).read_as(Log::default()).collect().unwrap_err();
/// assert_eq!(error.to_string(), "log: cut: truncated: there is no end");
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn batches<F: Framing, I>(
    framing: F,
    data: Bytes,
    at: RecordPosition,
    read: impl Fn(&F, &Bytes, Range<usize>, RecordPosition) -> I + Send + 'static,
) -> FileEntries<F::Item>
where
    I: IntoIterator<Item = Result<F::Item>>,
    I::IntoIter: Send + 'static,
{
    let mut cuts = Cuts::new(framing, data, at);
    // The records of the current frame, and how many of them are to come.
    let mut batch: Option<(I::IntoIter, u64)> = None;
    Box::new(std::iter::from_fn(move || {
        loop {
            if let Some((records, left)) = &mut batch {
                if *left > 0
                    && let Some(record) = records.next()
                {
                    *left -= 1;
                    return Some(FileEntry::from_result(record));
                }
                let left = *left;
                batch = None;
                if left > 0 {
                    return Some(FileEntry::Skip(left));
                }
            }
            let before = cuts.at.record;
            match cuts.cut()? {
                Ok((range, at)) => {
                    let records = read(&cuts.framing, &cuts.data, range, at).into_iter();
                    batch = Some((records, cuts.at.record - before));
                }
                Err(entry) => return Some(entry),
            }
        }
    }))
}

/// A frame: its place in the block, and its position in the file.
type Cut = (Range<usize>, RecordPosition);

/// Cuts a block, or a whole file, into frames again.
struct Cuts<F> {
    framing: F,
    data: Bytes,
    at: RecordPosition,
    /// The first byte of the next frame; `None` after the end.
    next: Option<usize>,
}

impl<F: Framing> Cuts<F> {
    fn new(framing: F, data: Bytes, at: RecordPosition) -> Self {
        Cuts {
            framing,
            data,
            at,
            next: Some(0),
        }
    }

    /// Returns the next frame with records, or an entry that has none.
    #[inline]
    fn cut(&mut self) -> Option<Result<Cut, FileEntry<F::Item>>> {
        loop {
            let begin = self.next.take()?;
            if begin == self.data.len() {
                // After a part, the splitter checks the end, once there is one.
                return match self.at.part {
                    true => None,
                    false => self
                        .framing
                        .finish()
                        .err()
                        .map(|error| Err(FileEntry::Broken(error))),
                };
            }
            let (len, kind, place) =
                match frame(&mut self.framing, &self.data[begin..], self.at, true) {
                    Ok(Frame::Cut { len, lines, kind }) => {
                        (len, kind, advance(&mut self.at, len, lines))
                    }
                    Ok(Frame::More(_)) => {
                        let offset = self.at.offset;
                        let what = format!("more is wanted after byte {offset}, where it ends");
                        return Some(Err(FileEntry::Broken(Error::truncated(what))));
                    }
                    Err(error) => return Some(Err(FileEntry::Broken(error))),
                };
            self.next = Some(begin + len);
            match kind {
                FrameKind::Head | FrameKind::Blank | FrameKind::Refused => {}
                FrameKind::Bad(error) => {
                    self.at.record += 1;
                    return Some(Err(FileEntry::Bad(None, error)));
                }
                FrameKind::Record | FrameKind::Records(_) | FrameKind::First => {
                    self.at.record += match kind {
                        FrameKind::Records(some) => some,
                        _ => 1,
                    };
                    return Some(Ok((begin..begin + len, place)));
                }
            }
        }
    }
}

/// Advances `at`; returns the position before.
fn advance(at: &mut RecordPosition, len: usize, lines: u64) -> RecordPosition {
    let before = *at;
    at.offset += len as u64;
    at.line += lines;
    before
}

/// Bytes at the front of a file that were not cut yet.
///
/// The bytes are slices of the pieces that arrive. A record that spans two pieces is joined, with
/// as little of the next piece as possible.
#[derive(Default)]
struct Window {
    joined: BytesMut,
    piece: Bytes,
    /// Number of bytes of the piece that are also at the end of the joined buffer.
    taken: usize,
    ended: bool,
}

/// Minimum number of bytes of the next piece that are joined.
const JOINED: usize = 4 << 10;

impl Window {
    fn data(&self) -> &[u8] {
        if self.joined.is_empty() {
            &self.piece
        } else {
            &self.joined
        }
    }

    /// Returns true if nothing follows the bytes in the window.
    fn is_last(&self) -> bool {
        self.ended && (self.joined.is_empty() || self.taken == self.piece.len())
    }

    /// Makes the window longer; returns `false` if that needs another piece.
    fn grow(&mut self, wanted: usize) -> bool {
        if self.joined.is_empty() {
            self.joined
                .extend_from_slice(&std::mem::take(&mut self.piece));
        }
        let left = self.piece.len() - self.taken;
        let some = wanted
            .saturating_sub(self.joined.len())
            .max(self.joined.len() / 2)
            .max(JOINED)
            .min(left);
        self.joined
            .extend_from_slice(&self.piece[self.taken..self.taken + some]);
        self.taken += some;
        if some == 0 {
            (self.piece, self.taken) = (Bytes::new(), 0);
        }
        some > 0
    }

    /// Adds a piece that [`grow`](Window::grow) asked for.
    fn push(&mut self, piece: Bytes) {
        debug_assert!(self.piece.is_empty(), "there was more to use");
        self.piece = piece;
    }

    fn take(&mut self, len: usize) -> Bytes {
        if self.joined.is_empty() {
            return self.piece.split_to(len);
        }
        let taken = self.joined.split_to(len).freeze();
        // The remaining bytes are in the piece as well.
        if self.joined.len() <= self.taken {
            self.piece.advance(self.taken - self.joined.len());
            (self.joined, self.taken) = (BytesMut::new(), 0);
        }
        taken
    }
}

/// Next step in reading a file.
pub(super) enum Step<T> {
    Block(Block<T>),
    /// Another [piece](RecordSplitter::push) is needed, or a notice that there is [none](RecordSplitter::end).
    More,
    End,
}

/// Function that reads the records of a block.
type Open<T> = Box<dyn FnOnce(&Context) -> Result<FileEntries<T>> + Send>;

/// Consecutive records of a file that are not parsed yet.
pub(crate) struct Block<T> {
    /// Number of its first record.
    pub(super) first: u64,
    /// Size in bytes.
    pub(super) weight: usize,
    pub(super) open: Open<T>,
}

impl<T: 'static> Block<T> {
    /// Returns a block by the number of its first record, its size in bytes, and how it is opened.
    #[cfg(feature = "parquet")]
    pub(super) fn new(
        first: u64,
        weight: usize,
        open: impl FnOnce(&Context) -> Result<FileEntries<T>> + Send + 'static,
    ) -> Self {
        Block {
            first,
            weight,
            open: Box::new(open),
        }
    }

    /// Returns a block with only an error of the file.
    pub(super) fn failed(error: Error) -> Self {
        Block {
            first: 0,
            weight: 0,
            open: Box::new(move |_| Err(error)),
        }
    }
}

/// Size in bytes of a block; a block may hold one more record. The ends of blocks do not depend on
/// the pieces that arrive, so that a resumed epoch finds the same blocks.
const BLOCK: usize = 256 << 10;

/// Splits a file into blocks of whole records as it arrives; made of a [`Framing`].
#[must_use]
pub struct RecordSplitter<T> {
    pub(super) split: Box<dyn Split<T>>,
    pub(super) expansion: Expansion,
    pub(super) packing: fn(&[u8], &str) -> Result<Option<Packing>>,
}

opaque_debug!(RecordSplitter<T> {});

impl<T: Send + 'static> RecordSplitter<T> {
    /// Splits with this framing. A compressed file, recognized by its first bytes, is decompressed
    /// as [`Decompress`](super::Decompress) does.
    pub fn new<F: Framing<Item = T>>(framing: F) -> Self {
        let split = Splitting {
            framing,
            window: Window::default(),
            at: RecordPosition::default(),
            safe: RecordPosition::default(),
            heads: Vec::new(),
            begun: None,
            bad: None,
            done: false,
            block: BLOCK,
        };
        RecordSplitter {
            split: Box::new(split),
            expansion: Expansion::default(),
            packing: packing_of,
        }
    }

    /// Sets the limits on the size of a decompressed file: bytes, and a multiple of the compressed
    /// size once it is past 1 MiB.
    pub fn max_expansion(mut self, bytes: u64, ratio: u64) -> Self {
        self.expansion.limit(bytes, ratio);
        self
    }

    pub(super) fn expansion(self, expansion: Expansion) -> Self {
        RecordSplitter { expansion, ..self }
    }

    /// Sets another function that recognizes compressed files.
    pub(super) fn packing(self, packing: fn(&[u8], &str) -> Result<Option<Packing>>) -> Self {
        RecordSplitter { packing, ..self }
    }

    /// Sets the size of blocks, so that a small file has several.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn blocks_of(mut self, bytes: usize) -> Self {
        self.split.set_block(bytes);
        self
    }

    /// Reads a file that is whole in memory: for [`Format::open`](super::Format::open). An
    /// uncompressed file is not copied.
    ///
    /// # Errors
    /// Returns an error if the name says that the file is compressed, and it is not.
    pub fn open(mut self, file: crate::File, cx: &Context) -> Result<FileEntries<T>> {
        self.allow(cx);
        let Some(packing) = (self.packing)(&file.data, &file.name)? else {
            return Ok(self.split.whole(file.data));
        };
        Ok(Box::new(Unpacked {
            split: self.split,
            reader: Some(unpacker(packing, file.data, self.expansion, cx)),
            entries: Box::new(std::iter::empty()),
            failed: None,
            cx: cx.clone(),
        }))
    }

    /// Tells the framing the loader's limit on what inflates.
    pub(super) fn allow(&mut self, cx: &Context) {
        if let Some(most) = cx.max_inflated() {
            self.split.allow(most);
        }
    }
}

/// A splitter without the type of its framing.
pub(super) trait Split<T>: Send {
    #[cfg(any(test, feature = "testing"))]
    fn set_block(&mut self, bytes: usize);
    fn whole(self: Box<Self>, data: Bytes) -> FileEntries<T>;
    /// Sets the length of the file, if it is not compressed.
    fn begin(&mut self, len: u64);
    /// Tells the framing the loader's limit on what inflates.
    fn allow(&mut self, most: u64);
    /// Returns true if a file that begins with these bytes has to be read whole.
    fn is_whole(&self, first: &[u8]) -> bool;
    /// Adds the next piece, when it is requested.
    fn push(&mut self, piece: Bytes);
    /// Ends the input: there are no more pieces.
    fn end(&mut self);
    fn step(&mut self) -> Step<T>;
    /// Returns the incomplete next block, for which no more bytes are expected.
    fn flush(&mut self) -> Option<Block<T>>;
    /// Returns the position of the next block, and the ranges before it that are needed to read it.
    fn place(&self) -> (RecordPosition, &[(u64, u64)]);
    /// Resumes at a position of a file, after the earlier bytes that are needed.
    fn resume(&mut self, at: RecordPosition, heads: Vec<((u64, u64), Bytes)>) -> Result<()>;
}

struct Splitting<F> {
    framing: F,
    window: Window,
    at: RecordPosition,
    /// Position of the next block.
    safe: RecordPosition,
    heads: Vec<(u64, u64)>,
    /// The current block: its framing, its position, and its length.
    begun: Option<(F, RecordPosition, usize)>,
    /// Error of the next record, which was skipped.
    bad: Option<Error>,
    done: bool,
    /// Size in bytes of a block.
    block: usize,
}

impl<F: Framing> Splitting<F> {
    fn head(&mut self, begin: u64, end: u64) {
        match self.heads.last_mut() {
            Some((_, last)) if *last == begin => *last = end,
            _ => self.heads.push((begin, end)),
        }
    }

    /// Returns a block of whole records, and the error after them.
    fn block(
        &mut self,
        framing: F,
        len: usize,
        begin: RecordPosition,
        wrong: Option<FileEntry<F::Item>>,
    ) -> Block<F::Item> {
        let data = self.window.take(len);
        let open = move |_: &Context| -> Result<FileEntries<F::Item>> {
            if data.is_empty() {
                return Ok(Box::new(wrong.into_iter()));
            }
            let part = RecordPosition {
                part: true,
                ..begin
            };
            Ok(Box::new(framing.entries(data, part).chain(wrong)))
        };
        Block {
            first: begin.record,
            weight: len,
            open: Box::new(open),
        }
    }
}

impl<F: Framing> Split<F::Item> for Splitting<F> {
    #[cfg(any(test, feature = "testing"))]
    fn set_block(&mut self, bytes: usize) {
        self.block = bytes;
    }

    fn whole(mut self: Box<Self>, data: Bytes) -> FileEntries<F::Item> {
        self.framing.begin(data.len() as u64);
        self.framing.entries(data, RecordPosition::default())
    }

    fn begin(&mut self, len: u64) {
        self.framing.begin(len);
    }

    fn allow(&mut self, most: u64) {
        self.framing.allow(most);
    }

    fn is_whole(&self, first: &[u8]) -> bool {
        self.framing.is_whole(first)
    }

    fn push(&mut self, piece: Bytes) {
        self.window.push(piece);
    }

    fn end(&mut self) {
        self.window.ended = true;
    }

    fn step(&mut self) -> Step<F::Item> {
        if let Some(error) = self.bad.take() {
            let begin = self.at;
            self.at.record += 1;
            self.safe = self.at;
            return Step::Block(self.block(
                self.framing.clone(),
                0,
                begin,
                Some(FileEntry::Bad(None, error)),
            ));
        }
        if self.done {
            return Step::End;
        }
        let (framing, begin, mut len) = self
            .begun
            .take()
            .unwrap_or_else(|| (self.framing.clone(), self.at, 0));
        let wrong = loop {
            let rest = &self.window.data()[len..];
            if rest.is_empty() && self.window.is_last() {
                self.done = true;
                break self.framing.finish().err().map(FileEntry::Broken);
            }
            let next = match rest.is_empty() {
                true => Ok(Frame::More(1)),
                false => frame(&mut self.framing, rest, self.at, self.window.is_last()),
            };
            let (cut, before, kind) = match next {
                Ok(Frame::More(wanted)) => {
                    if self.window.grow(len.saturating_add(wanted)) {
                        continue;
                    }
                    self.begun = Some((framing, begin, len));
                    return Step::More;
                }
                Ok(Frame::Cut { len, lines, kind }) => {
                    (len, advance(&mut self.at, len, lines), kind)
                }
                Err(error) => {
                    self.done = true;
                    break Some(FileEntry::Broken(error));
                }
            };
            match kind {
                FrameKind::Record => self.at.record += 1,
                FrameKind::Records(some) => self.at.record += some,
                FrameKind::Blank => {}
                // The records after it are read by another framing.
                FrameKind::First | FrameKind::Head => {
                    self.at.record += u64::from(matches!(kind, FrameKind::First));
                    self.head(before.offset, self.at.offset);
                    len += cut;
                    break None;
                }
                // The error is not part of the block, so that the block does not depend on the
                // bytes that have arrived after it.
                FrameKind::Bad(_) | FrameKind::Refused => {
                    if let FrameKind::Bad(error) = kind {
                        self.bad = Some(error);
                    }
                    let block = (len > 0).then(|| self.block(framing.clone(), len, begin, None));
                    drop(self.window.take(cut));
                    match block {
                        Some(block) => {
                            self.safe = before;
                            return Step::Block(block);
                        }
                        None if self.bad.is_some() => return self.step(),
                        None => continue,
                    }
                }
            }
            len += cut;
            if len >= self.block {
                break None;
            }
        };
        self.safe = self.at;
        if len == 0 && wrong.is_none() {
            return Step::End;
        }
        Step::Block(self.block(framing, len, begin, wrong))
    }

    fn flush(&mut self) -> Option<Block<F::Item>> {
        let (framing, begin, len) = self.begun.take()?;
        self.safe = self.at;
        (len > 0).then(|| self.block(framing, len, begin, None))
    }

    fn place(&self) -> (RecordPosition, &[(u64, u64)]) {
        (self.safe, &self.heads)
    }

    fn resume(&mut self, at: RecordPosition, heads: Vec<((u64, u64), Bytes)>) -> Result<()> {
        for ((begin, end), data) in heads {
            let mut place = RecordPosition {
                offset: begin,
                ..RecordPosition::default()
            };
            let mut rest = &data[..];
            while !rest.is_empty() {
                match frame(&mut self.framing, rest, place, end == at.offset)? {
                    Frame::Cut { len, lines, .. } => {
                        advance(&mut place, len, lines);
                        rest = &rest[len..];
                    }
                    Frame::More(_) => {
                        let what =
                            format!("what begins at byte {} is not what it was", place.offset);
                        return Err(Error::changed(what));
                    }
                }
            }
            self.head(begin, end);
        }
        (self.at, self.safe) = (at, at);
        Ok(())
    }
}

/// A compressed file that is whole in memory, decompressed as its entries are requested.
struct Unpacked<T> {
    split: Box<dyn Split<T>>,
    reader: Option<Box<dyn Read + Send>>,
    entries: FileEntries<T>,
    /// Error that ends the file, after the entries before it.
    failed: Option<Error>,
    cx: Context,
}

/// Number of bytes decompressed at once.
const PIECE: usize = 64 << 10;

impl<T> Unpacked<T> {
    fn fill(&mut self) -> Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let Some(reader) = &mut self.reader else {
            self.split.end();
            return Ok(());
        };
        let (mut piece, mut len) = (vec![0; PIECE], 0);
        while len < PIECE {
            match reader.read(&mut piece[len..]) {
                Ok(0) => {
                    self.reader = None;
                    break;
                }
                Ok(read) => len += read,
                Err(error) => {
                    let error = unpack(error, ErrorKind::Corrupt, "compressed data");
                    if len == 0 {
                        return Err(error);
                    }
                    self.failed = Some(error);
                    break;
                }
            }
        }
        piece.truncate(len);
        self.split.push(piece.into());
        Ok(())
    }
}

impl<T> Iterator for Unpacked<T> {
    type Item = FileEntry<T>;

    fn next(&mut self) -> Option<FileEntry<T>> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Some(entry);
            }
            let (block, failed) = match self.split.step() {
                Step::End => return None,
                Step::Block(block) => (Some(block), None),
                Step::More => match self.fill() {
                    Ok(()) => continue,
                    Err(error) => (self.split.flush(), Some(error)),
                },
            };
            let broken = match block.map(|block| (block.open)(&self.cx)) {
                Some(Ok(entries)) => {
                    (self.entries, self.failed) = (entries, failed.or(self.failed.take()));
                    continue;
                }
                Some(Err(error)) => error,
                None => failed.expect("there is a block, or an error"),
            };
            return Some(FileEntry::Broken(broken));
        }
    }
}
