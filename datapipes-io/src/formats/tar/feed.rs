//! The bytes of an archive as they arrive, piece by piece.

use std::fmt::Display;

use bytes::Bytes;
use datapipes::ErrorKind;

use super::header::Fault;

/// Memory that is set aside because a header says so, before the bytes are there.
const BELIEVED: u64 = 8 << 20;

/// What is wanted is a slice where one piece has all of it, and else copied together, once. It is
/// asked for again with every piece until it is there; only then the place moves on.
#[derive(Default)]
pub(super) struct Feed {
    piece: Bytes,
    /// How much of the piece is used.
    used: usize,
    /// Where in the archive that begins which is wanted now.
    at: u64,
    /// How much of it came with earlier pieces.
    have: u64,
    part: Vec<u8>,
    /// What is wanted now is passed over.
    skipping: Option<u64>,
    /// The length of the archive, where it is known.
    len: Option<u64>,
    ended: bool,
}

impl Feed {
    /// Of an archive of so many bytes.
    pub(super) fn of_len(len: Option<u64>) -> Self {
        Feed {
            len,
            ..Feed::default()
        }
    }

    /// The next piece; the one before is used up.
    pub(super) fn push(&mut self, piece: Bytes) {
        debug_assert_eq!(self.used, self.piece.len(), "there was more to use");
        (self.piece, self.used) = (piece, 0);
    }

    /// There are no more pieces.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.len = Some(self.at + self.have + self.rest().len() as u64);
    }

    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn len(&self) -> Option<u64> {
        self.len
    }

    fn rest(&self) -> &[u8] {
        &self.piece[self.used..]
    }

    /// Whether the archive ends here, if nothing of what is wanted has come yet.
    pub(super) fn is_between(&self) -> Option<bool> {
        (self.have == 0 && self.rest().is_empty()).then_some(self.ended)
    }

    /// How much is left from here on, where that is known.
    pub(super) fn left(&self) -> Option<u64> {
        self.len.map(|len| len.saturating_sub(self.at))
    }

    /// The next bytes, all of them or an error, or `None` until they are there.
    pub(super) fn take(&mut self, size: u64, what: impl Display) -> Result<Option<Bytes>, Fault> {
        if self.have == 0 && size <= self.rest().len() as u64 {
            let data = self.piece.slice(self.used..self.used + size as usize);
            self.used += size as usize;
            self.at += size;
            return Ok(Some(data));
        }
        self.check(size, what)?;
        let here = (self.rest().len() as u64).min(size - self.have) as usize;
        self.reserve(size, here)?;
        self.part
            .extend_from_slice(&self.piece[self.used..self.used + here]);
        Ok(self
            .advance(size, here)
            .then(|| std::mem::take(&mut self.part).into()))
    }

    /// Passes over the next bytes; `false` until all are there.
    pub(super) fn skip(&mut self, size: u64, what: impl Display) -> Result<bool, Fault> {
        self.check(size, what)?;
        let here = (self.rest().len() as u64).min(size - self.have);
        let done = self.advance(size, here as usize);
        self.skipping = (!done).then_some(size);
        Ok(done)
    }

    /// Where the next piece has to begin, if what is passed over anyway need not be read.
    pub(super) fn jump(&mut self) -> u64 {
        if let Some(size) = self.skipping {
            self.have = self.left().map_or(size, |left| left.min(size));
        }
        self.at + self.have
    }

    fn advance(&mut self, size: u64, here: usize) -> bool {
        self.used += here;
        self.have += here as u64;
        if self.have < size {
            return false;
        }
        self.at += size;
        self.have = 0;
        true
    }

    fn check(&self, size: u64, what: impl Display) -> Result<(), Fault> {
        match self.left() {
            Some(left) if size > left => Err((
                ErrorKind::Truncated,
                format!("{what} has {left} of {size} bytes"),
            )),
            _ => Ok(()),
        }
    }

    fn reserve(&mut self, size: u64, here: usize) -> Result<(), Fault> {
        if self.part.capacity() - self.part.len() >= here {
            return Ok(());
        }
        let more = BELIEVED
            .max(self.have)
            .min(size - self.have)
            .max(here as u64);
        self.part
            .try_reserve_exact(more as usize)
            .map_err(|_| (ErrorKind::Limit, format!("no memory for {size} bytes")))
    }
}
