//! The pieces of a body, gathered.

use std::ops::Range;

use bytes::Bytes;
use datapipes::Result;

use super::{Body, Meta, Object};

/// Memory that is set aside for a body by its announced length alone.
const BELIEVED: u64 = 64 << 20;

/// A smaller piece is copied also if it is all there is: it may be a slice of a network's buffer of
/// some hundred kilobytes, which would stay as long as the piece is kept.
const LARGE: usize = 256 << 10;

/// The pieces of a body that have arrived, in one piece of memory. So the buffers they came in can
/// be used again.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// Where one piece is all there is.
    one: Bytes,
    data: Vec<u8>,
    space: usize,
}

impl Pieces {
    /// Of a body that holds this range. What a stranger announces is believed step by step.
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

    /// Keeps only what came first.
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
        // It grew beyond what it needed, or was announced to be longer.
        if self.data.capacity() > self.data.len() + self.data.len() / 8 {
            self.data.shrink_to_fit();
        }
        self.data.into()
    }

    /// One piece of memory, whose length is checked against what was announced.
    pub(super) async fn join(self, url: String, meta: Meta, range: Range<u64>) -> Result<Bytes> {
        Object {
            meta,
            range,
            body: Body::once(self.into_bytes()),
            url,
        }
        .bytes()
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn cut_and_joined_at_every_place() {
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
            assert_eq!(
                first
                    .join(String::new(), Meta::new("k"), 0..6)
                    .await
                    .unwrap(),
                "abcdef"
            );
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
        // Also behind another piece.
        let buffer = Bytes::from(vec![7; 2 * LARGE]);
        let mut pieces = Pieces::of(&(0..2 * LARGE as u64));
        pieces.push(buffer.slice(..LARGE));
        pieces.push(buffer.slice(LARGE..));
        assert!(buffer.is_unique() && pieces.into_bytes() == buffer);
    }
}
