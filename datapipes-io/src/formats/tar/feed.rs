//! The bytes of an archive as they arrive, piece by piece.

use std::fmt::Display;

use bytes::Bytes;
use datapipes::ErrorKind;

use super::header::Fault;

/// Maximum memory reserved because of a header, before the bytes have arrived.
const BELIEVED: u64 = 8 << 20;

/// A buffer of pieces. Requested bytes are a slice if one piece has all of them, and else are
/// copied together, once. The request is repeated with every piece until the bytes are complete;
/// only then the position advances.
#[derive(Default)]
pub(super) struct Feed {
    piece: Bytes,
    /// Number of bytes of the piece that are used.
    used: usize,
    /// Position in the archive of the requested bytes.
    at: u64,
    /// Number of the requested bytes that came with earlier pieces.
    have: u64,
    part: Vec<u8>,
    /// Number of bytes to skip, if the request skips them.
    skipping: Option<u64>,
    /// Length of the archive, if it is known.
    len: Option<u64>,
    ended: bool,
}

impl Feed {
    /// Returns a feed of an archive with this length.
    pub(super) fn of_len(len: Option<u64>) -> Self {
        Feed {
            len,
            ..Feed::default()
        }
    }

    /// Adds the next piece; the previous piece is used up.
    pub(super) fn push(&mut self, piece: Bytes) {
        debug_assert_eq!(self.used, self.piece.len(), "there was more to use");
        (self.piece, self.used) = (piece, 0);
    }

    /// Ends the input: there are no more pieces.
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

    /// Returns true if the archive ends here, provided that none of the requested bytes has come
    /// yet.
    pub(super) fn is_between(&self) -> Option<bool> {
        (self.have == 0 && self.rest().is_empty()).then_some(self.ended)
    }

    /// Returns the number of remaining bytes, if it is known.
    pub(super) fn left(&self) -> Option<u64> {
        self.len.map(|len| len.saturating_sub(self.at))
    }

    /// Returns the next bytes, complete or an error, or `None` until they are complete.
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

    /// Skips the next bytes; returns `false` until all have arrived.
    pub(super) fn skip(&mut self, size: u64, what: impl Display) -> Result<bool, Fault> {
        self.check(size, what)?;
        let here = (self.rest().len() as u64).min(size - self.have);
        let done = self.advance(size, here as usize);
        self.skipping = (!done).then_some(size);
        Ok(done)
    }

    /// Returns the position at which the next piece has to begin, if bytes that are skipped anyway
    /// need not be read.
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
