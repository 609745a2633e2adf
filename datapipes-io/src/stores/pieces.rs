//! Buffer that collects the pieces of a body.

use std::ops::Range;

use bytes::Bytes;

/// Maximum memory reserved for a body because of its announced length alone.
const BELIEVED: u64 = 64 << 20;

/// Size below which a piece is copied even if it is the whole body: it may be a slice of a network
/// buffer of some hundred kilobytes, which would stay in memory as long as the piece.
const LARGE: usize = 256 << 10;

/// The pieces of a body that have arrived, in one contiguous buffer, so that the buffers in which
/// they came can be reused.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// The only piece so far.
    one: Bytes,
    data: Vec<u8>,
    space: usize,
}

impl Pieces {
    /// Creates the buffer for a body of this range. Memory grows as bytes arrive, since the
    /// announced length may be wrong.
    pub(super) fn of(range: &Range<u64>) -> Self {
        let known = if range.end == u64::MAX {
            0
        } else {
            range.end.saturating_sub(range.start)
        };
        Pieces {
            space: known.min(BELIEVED) as usize,
            ..Pieces::default()
        }
    }

    pub(super) fn push(&mut self, piece: Bytes) {
        if self.len() == 0 && piece.len() >= LARGE {
            self.one = piece;
            return;
        }
        if self.data.capacity() == 0 {
            self.data
                .reserve_exact(self.space.max(self.one.len() + piece.len()));
        }
        self.data.extend_from_slice(&std::mem::take(&mut self.one));
        self.data.extend_from_slice(&piece);
    }

    pub(super) fn len(&self) -> u64 {
        (self.one.len() + self.data.len()) as u64
    }

    /// Drops the bytes after the first `len`.
    pub(super) fn truncate(&mut self, len: u64) {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.one.truncate(len);
        self.data.truncate(len);
    }

    pub(super) fn append(&mut self, after: Pieces) {
        self.push(after.into_bytes());
    }

    pub(super) fn into_bytes(mut self) -> Bytes {
        if self.data.is_empty() {
            return self.one;
        }
        // The buffer grew beyond its need, or the announced length was too large.
        if self.data.capacity() > self.data.len() + self.data.len() / 8 {
            self.data.shrink_to_fit();
        }
        self.data.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_and_joined_at_every_place() {
        for cut in 0..=6 {
            let mut first = Pieces::default();
            ["ab", "", "cd", "ef"]
                .iter()
                .for_each(|piece| first.push(Bytes::from_static(piece.as_bytes())));
            let mut last = Pieces::default();
            last.push(Bytes::copy_from_slice(&b"abcdef"[cut..]));
            first.truncate(cut as u64);
            assert_eq!(first.len(), cut as u64);
            first.append(last);
            assert_eq!(first.into_bytes(), "abcdef");
        }
    }

    #[test]
    fn a_piece_keeps_the_buffer_it_came_in_only_if_it_is_large() {
        for (len, keeps) in [(2000, false), (LARGE, true)] {
            let buffer = Bytes::from(vec![7; 2 * LARGE]);
            let mut pieces = Pieces::default();
            pieces.push(buffer.slice(..len));
            let kept = pieces.into_bytes();
            assert_eq!((kept.len(), buffer.is_unique()), (len, !keeps));
            drop(kept);
        }
        // Several pieces are copied together, so that they do not keep the buffer.
        let buffer = Bytes::from(vec![7; 2 * LARGE]);
        let mut pieces = Pieces::of(&(0..2 * LARGE as u64));
        pieces.push(buffer.slice(..LARGE));
        pieces.push(buffer.slice(LARGE..));
        assert!(buffer.is_unique() && pieces.into_bytes() == buffer);
    }
}
