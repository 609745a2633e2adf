//! Cuts files into records: whole ones, and those whose bytes are still arriving.
//!
//! A format says where the record at the beginning of some bytes ends ([`Framing`]); what keeps the
//! bytes, asks for more of them and gives them out in blocks is the same for all ([`Splitter`]).

use std::fmt;
use std::io::Read;
use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use datapipes::{Context, Error, ErrorKind, Result};

use super::compression::{Expansion, Packing, packing_of, unpack, unpacker};
use super::{Entries, Entry};

/// Position of a record in a file; in a compressed one, in what that inflates to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The byte at which it begins.
    pub offset: u64,
    /// How many records come before it, those that cannot be read included.
    pub record: u64,
    /// How many lines do, for a format that counts them.
    pub line: u64,
}

/// Result of looking for the end of a record.
#[derive(Debug)]
pub enum Frame {
    /// There is not enough to tell. So many bytes are wanted, or all that there are.
    More(usize),
    /// Bytes that belong together.
    Cut {
        /// Number of bytes; never 0.
        len: usize,
        /// Number of lines that end in them, for a format that counts lines.
        lines: u64,
        /// Their kind.
        part: Part,
    },
}

/// Kind of the bytes that were cut.
#[derive(Debug)]
pub enum Part {
    /// A record.
    Record,
    /// Several records, all that are in a batch.
    Records(u64),
    /// A record, without which those that follow it cannot be read.
    First,
    /// No record, and without it those that follow cannot be read: names of columns, a schema.
    Head,
    /// No record: a blank line, padding.
    Blank,
    /// A record that cannot be given, or the end of one.
    Bad(Error),
    /// Some of a record that is refused and is not to be kept in memory. The rest follows.
    Refused,
}

impl Frame {
    /// Cuts bytes in which no line ends.
    pub fn cut(len: usize, part: Part) -> Self {
        Frame::Cut {
            len,
            lines: 0,
            part,
        }
    }
}

/// Finds the records of a format in bytes that arrive piece by piece.
///
/// One value goes through one file, from its beginning. A [`Format`](super::Format) gives it by
/// [`Format::splitter`](super::Format::splitter), and can open whole files with it too
/// ([`Splitter::open`]).
///
/// # Examples
/// Records that each have their length before them:
/// ```
/// use bytes::Bytes;
/// use datapipes::{Context, Error, ErrorKind, Result};
/// use datapipes_io::formats::{Entries, Format, Frame, Framing, Part, Place, Splitter, records};
/// use datapipes_io::stores::Memory;
/// use datapipes_io::{File, prelude::*};
///
/// #[derive(Clone)]
/// struct Lengths;
///
/// impl Framing for Lengths {
///     type Item = Bytes;
///
///     fn frame(&mut self, data: &[u8], at: Place, ended: bool) -> Result<Frame> {
///         let len = 1 + usize::from(data[0]);
///         match data.len() < len {
///             false => Ok(Frame::cut(len, Part::Record)),
///             true if !ended => Ok(Frame::More(len)),
///             true => Err(Error::new(ErrorKind::Truncated, format!("the record at byte {}", at.offset))),
///         }
///     }
///     fn entries(self, data: Bytes, at: Place) -> Entries<Bytes> {
///         records(self, data, at, |_, data, range, _| Ok(data.slice(range.start + 1..range.end)))
///     }
/// }
///
/// impl Format for Lengths {
///     type Item = Bytes;
///
///     fn open(&self, file: File, cx: &Context) -> Result<Entries<Bytes>> {
///         Splitter::new(Lengths).open(file, cx)
///     }
///     fn splitter(&self) -> Option<Splitter<Bytes>> {
///         Some(Splitter::new(Lengths))
///     }
/// }
///
/// let store = Memory::from_iter([("f", "\x01a\x02bc")]);
/// // With a limit of 0 every file is read as it arrives.
/// assert_eq!(store.files(["f"]).stream_as(Lengths, 0).collect()?, ["a", "bc"]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub trait Framing: Clone + Send + 'static {
    /// Type of a record.
    type Item: Send + 'static;

    /// Finds the end of the record, or of what else `data` begins with. `data` is not empty and
    /// begins at `at`; if the file has `ended`, nothing follows it.
    ///
    /// It is asked again, from the same byte on, where it wanted more, and after what it cut else.
    /// So it may remember what it looked through in vain.
    ///
    /// # Errors
    /// What is there is no record, and nobody knows where the next one begins: the last that is
    /// read of the file.
    fn frame(&mut self, data: &[u8], at: Place, ended: bool) -> Result<Frame>;

    /// Checks that a file may end here, after its last record. By default it may.
    ///
    /// # Errors
    /// That it may not.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    /// Reads `data`, which begins at `at` and is whole records, or a whole file. Mostly by
    /// [`records`].
    fn entries(self, data: Bytes, at: Place) -> Entries<Self::Item>;

    /// Tells the length of the file, before anything else, where that is known and it is not
    /// compressed. By default it does not matter.
    fn begin(&mut self, _len: u64) {}

    /// Tells whether this file cannot be read as it arrives, by its first bytes; then it is read
    /// whole. By default none.
    fn is_whole(&self, _first: &[u8]) -> bool {
        false
    }
}

/// Reads the records of a block, cut by [`Framing::frame`], by a function of each: the bytes, the
/// range of the record in them, and its place in the file.
pub fn records<F: Framing>(
    mut framing: F,
    data: Bytes,
    mut at: Place,
    read: impl Fn(&F, &Bytes, Range<usize>, Place) -> Result<F::Item> + Send + 'static,
) -> Entries<F::Item> {
    let mut next = Some(0);
    Box::new(std::iter::from_fn(move || {
        loop {
            let begin = next?;
            if begin == data.len() {
                next = None;
                return framing.finish().err().map(Entry::Broken);
            }
            let (len, part, place) = match framing.frame(&data[begin..], at, true) {
                Ok(Frame::Cut { len, lines, part }) => (len, part, advance(&mut at, len, lines)),
                Ok(Frame::More(_)) => {
                    next = None;
                    let what = format!("more is wanted after byte {}, where it ends", at.offset);
                    return Some(Entry::Broken(Error::new(ErrorKind::Truncated, what)));
                }
                Err(error) => {
                    next = None;
                    return Some(Entry::Broken(error));
                }
            };
            next = Some(begin + len);
            match part {
                Part::Head | Part::Blank | Part::Refused => {}
                Part::Bad(error) => {
                    at.record += 1;
                    return Some(Entry::Bad(None, error));
                }
                Part::Record | Part::Records(_) | Part::First => {
                    at.record += 1;
                    return Some(Entry::from_result(read(
                        &framing,
                        &data,
                        begin..begin + len,
                        place,
                    )));
                }
            }
        }
    }))
}

/// Moves on; the place before that.
fn advance(at: &mut Place, len: usize, lines: u64) -> Place {
    let before = *at;
    at.offset += len as u64;
    at.line += lines;
    before
}

/// Bytes at the front of a file that were not cut yet.
///
/// They are slices of the pieces that arrive. What crosses from one to the next is joined: of the
/// next piece no more than it takes.
#[derive(Default)]
struct Window {
    joined: BytesMut,
    piece: Bytes,
    /// So much of the piece is at the end of what is joined, too.
    taken: usize,
    ended: bool,
}

/// Less of the next piece is not joined.
const JOINED: usize = 4 << 10;

impl Window {
    fn data(&self) -> &[u8] {
        if self.joined.is_empty() {
            &self.piece
        } else {
            &self.joined
        }
    }

    /// Whether nothing follows what is there.
    fn is_last(&self) -> bool {
        self.ended && (self.joined.is_empty() || self.taken == self.piece.len())
    }

    /// Makes what is there longer; `false` if that takes another piece.
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

    /// Another piece; [`grow`](Window::grow) asked for it.
    fn push(&mut self, piece: Bytes) {
        debug_assert!(self.piece.is_empty(), "there was more to use");
        self.piece = piece;
    }

    fn take(&mut self, len: usize) -> Bytes {
        if self.joined.is_empty() {
            return self.piece.split_to(len);
        }
        let taken = self.joined.split_to(len).freeze();
        // What is left is in the piece as well.
        if self.joined.len() <= self.taken {
            self.piece.advance(self.taken - self.joined.len());
            (self.joined, self.taken) = (BytesMut::new(), 0);
        }
        taken
    }
}

/// What follows in a file.
pub(super) enum Step<T> {
    Block(Block<T>),
    /// Another [piece](Splitter::push) is wanted, or word that there is [none](Splitter::end).
    More,
    End,
}

/// Reads the records of a block.
type Open<T> = Box<dyn FnOnce(&Context) -> Result<Entries<T>> + Send>;

/// Consecutive records of a file that are not read yet.
pub(crate) struct Block<T> {
    /// Of its first record.
    pub(super) first: u64,
    /// How many bytes it holds.
    pub(super) weight: usize,
    pub(super) open: Open<T>,
}

impl<T: 'static> Block<T> {
    /// Nothing but an error of the file.
    pub(super) fn failed(error: Error) -> Self {
        Block {
            first: 0,
            weight: 0,
            open: Box::new(move |_| Err(error)),
        }
    }
}

/// So many bytes of records are given out together, or one more record. Where a block ends does not
/// depend on the pieces that arrive, so that a resumed epoch finds the same ones.
const BLOCK: usize = 256 << 10;

/// Cuts a file into blocks of whole records as it arrives; made of a [`Framing`].
pub struct Splitter<T> {
    split: Box<dyn Split<T>>,
    pub(super) expansion: Expansion,
    pub(super) packing: fn(&[u8], &str) -> Result<Option<Packing>>,
}

impl<T> fmt::Debug for Splitter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Splitter").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Splitter<T> {
    /// Cuts by this framing. A compressed file is inflated, by its first bytes, as
    /// [`Decompress`](super::Decompress) does.
    pub fn new<F: Framing<Item = T>>(framing: F) -> Self {
        let split = Splitting {
            framing,
            window: Window::default(),
            at: Place::default(),
            safe: Place::default(),
            heads: Vec::new(),
            begun: None,
            bad: None,
            done: false,
        };
        Splitter {
            split: Box::new(split),
            expansion: Expansion::default(),
            packing: packing_of,
        }
    }

    /// Sets other limits to what a compressed file may become.
    pub fn expansion(self, expansion: Expansion) -> Self {
        Splitter { expansion, ..self }
    }

    /// With another way to tell how a file is compressed.
    pub(super) fn packing(self, packing: fn(&[u8], &str) -> Result<Option<Packing>>) -> Self {
        Splitter { packing, ..self }
    }

    /// Reads a file that is all there: for [`Format::open`](super::Format::open). One that is not
    /// compressed is not copied.
    ///
    /// # Errors
    /// Its name says that it is compressed, and it is not.
    pub fn open(self, file: crate::File, cx: &Context) -> Result<Entries<T>> {
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

    /// Whether a file that begins so has to be read whole.
    pub(super) fn is_whole(&self, first: &[u8]) -> bool {
        self.split.is_whole(first)
    }

    /// How long the file is, if it is not compressed.
    pub(super) fn begin(&mut self, len: u64) {
        self.split.begin(len);
    }

    /// The next piece, when it is asked for.
    pub(super) fn push(&mut self, piece: Bytes) {
        self.split.push(piece);
    }

    /// There are no more pieces.
    pub(super) fn end(&mut self) {
        self.split.end();
    }

    pub(super) fn step(&mut self) -> Step<T> {
        self.split.step()
    }

    /// What there is of the next block: no more follows of it.
    pub(super) fn flush(&mut self) -> Option<Block<T>> {
        self.split.flush()
    }

    /// Where the next block begins, and which bytes before it are needed to read it.
    pub(super) fn place(&self) -> (Place, &[(u64, u64)]) {
        self.split.place()
    }

    /// Goes on at a place of a file, after the bytes before it that are needed.
    pub(super) fn resume(&mut self, at: Place, heads: Vec<((u64, u64), Bytes)>) -> Result<()> {
        self.split.resume(at, heads)
    }
}

trait Split<T>: Send {
    fn whole(self: Box<Self>, data: Bytes) -> Entries<T>;
    fn begin(&mut self, len: u64);
    fn is_whole(&self, first: &[u8]) -> bool;
    fn push(&mut self, piece: Bytes);
    fn end(&mut self);
    fn step(&mut self) -> Step<T>;
    fn flush(&mut self) -> Option<Block<T>>;
    fn place(&self) -> (Place, &[(u64, u64)]);
    fn resume(&mut self, at: Place, heads: Vec<((u64, u64), Bytes)>) -> Result<()>;
}

struct Splitting<F> {
    framing: F,
    window: Window,
    at: Place,
    /// Where the next block begins.
    safe: Place,
    heads: Vec<(u64, u64)>,
    /// A block that waits for more: what reads it, where it begins, and how long it is.
    begun: Option<(F, Place, usize)>,
    /// What is wrong with the next record, which was passed over.
    bad: Option<Error>,
    done: bool,
}

impl<F: Framing> Splitting<F> {
    fn head(&mut self, begin: u64, end: u64) {
        match self.heads.last_mut() {
            Some((_, last)) if *last == begin => *last = end,
            _ => self.heads.push((begin, end)),
        }
    }

    /// A block of whole records, and what is wrong after them.
    fn block(
        &mut self,
        framing: F,
        len: usize,
        begin: Place,
        wrong: Option<Entry<F::Item>>,
    ) -> Block<F::Item> {
        let data = self.window.take(len);
        let open = move |_: &Context| -> Result<Entries<F::Item>> {
            if data.is_empty() {
                return Ok(Box::new(wrong.into_iter()));
            }
            Ok(Box::new(framing.entries(data, begin).chain(wrong)))
        };
        Block {
            first: begin.record,
            weight: len,
            open: Box::new(open),
        }
    }
}

impl<F: Framing> Split<F::Item> for Splitting<F> {
    fn whole(mut self: Box<Self>, data: Bytes) -> Entries<F::Item> {
        self.framing.begin(data.len() as u64);
        self.framing.entries(data, Place::default())
    }

    fn begin(&mut self, len: u64) {
        self.framing.begin(len);
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
                Some(Entry::Bad(None, error)),
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
                break self.framing.finish().err().map(Entry::Broken);
            }
            let frame = match rest.is_empty() {
                true => Ok(Frame::More(1)),
                false => self.framing.frame(rest, self.at, self.window.is_last()),
            };
            let (cut, before, part) = match frame {
                Ok(Frame::More(wanted)) => {
                    if self.window.grow(len.saturating_add(wanted)) {
                        continue;
                    }
                    self.begun = Some((framing, begin, len));
                    return Step::More;
                }
                Ok(Frame::Cut { len, lines, part }) => {
                    (len, advance(&mut self.at, len, lines), part)
                }
                Err(error) => {
                    self.done = true;
                    break Some(Entry::Broken(error));
                }
            };
            match part {
                Part::Record => self.at.record += 1,
                Part::Records(some) => self.at.record += some,
                Part::Blank => {}
                // What follows it is read by another framing.
                Part::First | Part::Head => {
                    self.at.record += u64::from(matches!(part, Part::First));
                    self.head(before.offset, self.at.offset);
                    len += cut;
                    break None;
                }
                // Not in the block, which is the same however much was there of what follows.
                Part::Bad(_) | Part::Refused => {
                    if let Part::Bad(error) = part {
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
            if len >= BLOCK {
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

    fn place(&self) -> (Place, &[(u64, u64)]) {
        (self.safe, &self.heads)
    }

    fn resume(&mut self, at: Place, heads: Vec<((u64, u64), Bytes)>) -> Result<()> {
        for ((begin, end), data) in heads {
            let mut place = Place {
                offset: begin,
                ..Place::default()
            };
            let mut rest = &data[..];
            while !rest.is_empty() {
                match self.framing.frame(rest, place, end == at.offset)? {
                    Frame::Cut { len, lines, .. } => {
                        advance(&mut place, len, lines);
                        rest = &rest[len..];
                    }
                    Frame::More(_) => {
                        let what =
                            format!("what begins at byte {} is not what it was", place.offset);
                        return Err(Error::new(ErrorKind::Changed, what));
                    }
                }
            }
            self.head(begin, end);
        }
        (self.at, self.safe) = (at, at);
        Ok(())
    }
}

/// A compressed file that is all there, inflated as its entries are wanted.
struct Unpacked<T> {
    split: Box<dyn Split<T>>,
    reader: Option<Box<dyn Read + Send>>,
    entries: Entries<T>,
    /// What ends it, after what was read before.
    failed: Option<Error>,
    cx: Context,
}

/// So many bytes are inflated at once.
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
    type Item = Entry<T>;

    fn next(&mut self) -> Option<Entry<T>> {
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
            return Some(Entry::Broken(broken));
        }
    }
}
