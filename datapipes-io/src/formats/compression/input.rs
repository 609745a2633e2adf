//! The compressed bytes of a file: whole in memory, or in pieces as they arrive.

use std::collections::VecDeque;
use std::io::{self, BufRead, ErrorKind, Read};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use datapipes::lock;

/// Input of a decoder. If the next piece has not arrived yet, reading fails with
/// [`ErrorKind::WouldBlock`](datapipes::ErrorKind::WouldBlock), nothing is lost, and the same call may be made again.
pub(in crate::formats) struct Input {
    now: Bytes,
    /// Number of bytes read.
    at: u64,
    rest: Arc<Mutex<Pieces>>,
}

#[derive(Default)]
struct Pieces {
    pieces: VecDeque<Bytes>,
    /// Total number of bytes of these and earlier pieces.
    pushed: u64,
    ended: bool,
}

/// Sender of the pieces of an [`Input`].
#[derive(Clone)]
pub(in crate::formats) struct Feeder(Arc<Mutex<Pieces>>);

impl Feeder {
    pub(in crate::formats) fn push(&self, piece: Bytes) {
        let mut pieces = lock(&self.0);
        pieces.pushed += piece.len() as u64;
        pieces.pieces.push_back(piece);
    }

    pub(in crate::formats) fn end(&self) {
        lock(&self.0).ended = true;
    }

    /// Returns the number of bytes that have arrived.
    pub(super) fn pushed(&self) -> u64 {
        lock(&self.0).pushed
    }
}

impl Input {
    /// Returns the input of a file that is whole in memory.
    pub(in crate::formats) fn whole(data: Bytes) -> Self {
        let (mut input, feeder) = Input::arriving();
        input.now = data;
        feeder.end();
        input
    }

    /// Returns an input that comes in pieces.
    pub(in crate::formats) fn arriving() -> (Self, Feeder) {
        let rest: Arc<Mutex<Pieces>> = Arc::default();
        (
            Input {
                now: Bytes::new(),
                at: 0,
                rest: rest.clone(),
            },
            Feeder(rest),
        )
    }

    /// Returns the position of the next byte.
    pub(in crate::formats) fn at(&self) -> u64 {
        self.at
    }

    /// Returns the next piece; `None` at the end.
    fn next(&mut self) -> io::Result<Option<Bytes>> {
        let mut rest = lock(&self.rest);
        match rest.pieces.pop_front() {
            None if rest.ended => Ok(None),
            None => Err(ErrorKind::WouldBlock.into()),
            piece => Ok(piece),
        }
    }

    /// Returns the next bytes in one piece, `len` of them or, at the end, fewer.
    pub(in crate::formats) fn peek(&mut self, len: usize) -> io::Result<&[u8]> {
        while self.now.len() < len {
            match self.next()? {
                Some(piece) if self.now.is_empty() => self.now = piece,
                Some(piece) => self.now = [&self.now[..], &piece].concat().into(),
                None => break,
            }
        }
        Ok(&self.now[..len.min(self.now.len())])
    }

    /// Returns true if this number of bytes, or the end, has arrived.
    #[cfg(feature = "lz4")]
    pub(super) fn has(&self, len: u64) -> bool {
        let rest = lock(&self.rest);
        let there: usize = rest.pieces.iter().map(Bytes::len).sum();
        rest.ended || (self.now.len() + there) as u64 >= len
    }
}

impl BufRead for Input {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.now.is_empty() {
            match self.next()? {
                Some(piece) => self.now = piece,
                None => break,
            }
        }
        Ok(&self.now)
    }

    fn consume(&mut self, len: usize) {
        self.at += len as u64;
        let _ = self.now.split_to(len);
    }
}

impl Read for Input {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let there = self.fill_buf()?;
        let len = there.len().min(out.len());
        out[..len].copy_from_slice(&there[..len]);
        self.consume(len);
        Ok(len)
    }
}

/// A sequence of decoders over the same input.
pub(super) enum Turn<D> {
    Between(Input),
    Inside(D),
    /// Placeholder during a change.
    Lost,
}

impl<D: Read> Turn<D> {
    /// Reads the content of one member, frame or stream after the other. The closures tell if
    /// another one `begins` (or the file ends), make its decoder, and return the input that the
    /// decoder leaves.
    pub(super) fn read(
        &mut self,
        out: &mut [u8],
        begins: impl FnOnce(&mut Input) -> io::Result<bool> + Copy,
        begin: impl Fn(Input) -> D,
        end: impl Fn(D) -> Input,
    ) -> io::Result<usize> {
        loop {
            match self {
                Turn::Between(input) => {
                    if !begins(input)? {
                        return Ok(0);
                    }
                }
                Turn::Inside(decoder) => {
                    let read = decoder.read(out)?;
                    if read > 0 {
                        return Ok(read);
                    }
                }
                Turn::Lost => return Ok(0),
            }
            *self = match std::mem::replace(self, Turn::Lost) {
                Turn::Between(input) => Turn::Inside(begin(input)),
                Turn::Inside(decoder) => Turn::Between(end(decoder)),
                Turn::Lost => Turn::Lost,
            };
        }
    }
}
