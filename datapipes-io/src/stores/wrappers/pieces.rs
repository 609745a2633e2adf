//! The pieces of a body, gathered.

use std::ops::Range;

use bytes::Bytes;
use datapipes::Result;

use crate::stores::{Body, Meta, Object};

/// The pieces of a body that have arrived.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    list: Vec<Bytes>,
    len: u64,
}

impl Pieces {
    pub(super) fn push(&mut self, piece: Bytes) {
        self.len += piece.len() as u64;
        self.list.push(piece);
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Keeps only what came first.
    pub(super) fn truncate(&mut self, len: u64) {
        while self.len > len {
            let last = self.list.pop().unwrap_or_default();
            self.len -= last.len() as u64;
            if self.len < len {
                self.push(last.slice(..(len - self.len) as usize));
            }
        }
    }

    pub(super) fn append(&mut self, after: Pieces) {
        after.list.into_iter().for_each(|piece| self.push(piece));
    }

    /// One piece of memory, whose length is checked against what was announced.
    pub(super) async fn join(self, url: String, meta: Meta, range: Range<u64>) -> Result<Bytes> {
        let body = Body::stream(futures::stream::iter(self.list.into_iter().map(Ok)));
        Object { meta, range, body, url }.bytes().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn cut_and_joined_at_every_place() {
        for cut in 0..=6 {
            let mut first = Pieces::default();
            ["ab", "", "cd", "ef"].iter().for_each(|piece| first.push(Bytes::from_static(piece.as_bytes())));
            let mut last = Pieces::default();
            last.push(Bytes::copy_from_slice(&b"abcdef"[cut..]));
            first.truncate(cut as u64);
            assert_eq!(first.len(), cut as u64);
            first.append(last);
            assert_eq!(first.join(String::new(), Meta::new("k"), 0..6).await.unwrap(), "abcdef");
        }
    }
}
