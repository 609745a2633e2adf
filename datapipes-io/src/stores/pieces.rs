//! Buffer that collects the pieces of a body.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::local::buffers::{Buffer, Buffers, Stock};

/// Maximum memory reserved for a body because of its announced length alone.
const BELIEVED: u64 = 64 << 20;

/// Size below which a piece is copied even if it is the whole body: it may be a slice of a network
/// buffer of some hundred kilobytes, which would stay in memory as long as the piece. A part of a body
/// is always copied, so that the connection can fill the same buffer again.
const LARGE: usize = 256 << 10;

/// Announced length below which a body gets memory of its own: the allocator has a quick way for it.
const POOLED: u64 = 16 << 10;

tokio::task_local! {
    /// Pool for the bodies that a future reads, if they are not to stay in memory.
    static POOL: Option<Arc<Buffers>>;
}

/// Runs a future that reads bodies. Those whose length is announced are put into buffers of the pool,
/// unless another task reads them.
pub(super) async fn pooled<T>(pool: &Arc<Buffers>, read: impl Future<Output = T>) -> T {
    POOL.scope(Some(pool.clone()), read).await
}

/// Runs a future that reads bodies to keep them: a pool gives buffers that are larger, and lives no
/// longer than its graph.
pub(super) async fn unpooled<T>(read: impl Future<Output = T>) -> T {
    POOL.scope(None, read).await
}

/// The pieces of a body that have arrived, in one contiguous buffer, so that the buffers in which
/// they came can be reused.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// The only piece so far.
    one: Bytes,
    data: Space,
    space: usize,
    pool: Option<Arc<Buffers>>,
}

/// Memory for a body.
#[derive(Debug)]
enum Space {
    Own(Vec<u8>),
    /// A buffer of a pool, filled up to this length.
    Pooled(Buffer, usize),
}

impl Default for Space {
    fn default() -> Self {
        Space::Own(Vec::new())
    }
}

impl Space {
    /// Returns room for so many bytes, from the pool if it has some.
    fn new(len: usize, pool: Option<&Arc<Buffers>>) -> Self {
        match pool.and_then(|pool| Stock::new(pool).get(len, 0)) {
            Some(buffer) => Space::Pooled(buffer, 0),
            None => Space::Own(Vec::with_capacity(len)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Space::Own(data) => data.len(),
            Space::Pooled(_, len) => *len,
        }
    }

    fn push(&mut self, piece: &[u8]) {
        match self {
            Space::Own(data) => data.extend_from_slice(piece),
            Space::Pooled(buffer, len) => match buffer.space().get_mut(*len..*len + piece.len()) {
                Some(room) => {
                    room.copy_from_slice(piece);
                    *len += piece.len();
                }
                // Longer than announced.
                None => {
                    let data = [&buffer.space()[..*len], piece].concat();
                    *self = Space::Own(data);
                }
            },
        }
    }

    fn truncate(&mut self, most: usize) {
        match self {
            Space::Own(data) => data.truncate(most),
            Space::Pooled(_, len) => *len = most.min(*len),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Space::Own(mut data) => {
                // The buffer grew beyond its need, or the announced length was too large.
                if data.capacity() > data.len() + data.len() / 8 {
                    data.shrink_to_fit();
                }
                data.into()
            }
            Space::Pooled(buffer, len) => buffer.into_bytes(len),
        }
    }
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
        let is_pooled = (POOLED..=BELIEVED).contains(&known);
        Pieces {
            space: known.min(BELIEVED) as usize,
            pool: (POOL.try_with(Clone::clone).ok().flatten()).filter(|_| is_pooled),
            ..Pieces::default()
        }
    }

    pub(super) fn push(&mut self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        if self.len() == 0 && piece.len() >= LARGE.max(self.space) {
            self.one = piece;
            return;
        }
        if self.data.len() == 0 {
            let len = self.space.max(self.one.len() + piece.len());
            self.data = Space::new(len, self.pool.take().as_ref());
        }
        self.data.push(&std::mem::take(&mut self.one));
        self.data.push(&piece);
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

    pub(super) fn into_bytes(self) -> Bytes {
        match self.data.len() {
            0 => self.one,
            _ => self.data.into_bytes(),
        }
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

    #[tokio::test]
    async fn a_body_of_a_known_length_comes_from_the_pool_and_returns_there() {
        let pool = Buffers::new(1 << 20);
        let length = 2 * POOLED as usize;
        let read = async |announced: u64| {
            let mut pieces = Pieces::of(&(0..announced));
            let data = vec![5; length];
            let (first, second) = data.split_at(length / 2);
            [first, second]
                .iter()
                .for_each(|piece| pieces.push(Bytes::copy_from_slice(piece)));
            let read = pieces.into_bytes();
            assert!(read.len() == length && read.iter().all(|&byte| byte == 5));
            read
        };
        let announced = length as u64;
        let content = || {
            let mut buffer = Stock::new(&pool).get(length, 0).unwrap();
            buffer.space().to_vec()
        };
        assert_eq!(content(), [0; 2 * POOLED as usize]);
        let body = pooled(&pool, read(announced)).await;
        assert_eq!(content(), [0; 2 * POOLED as usize]);
        drop(body);
        assert_eq!(content(), [5; 2 * POOLED as usize]);
        // Longer than announced, of an unknown length, and of a reader without a pool.
        pooled(&pool, read(announced - 100)).await;
        pooled(&pool, read(u64::MAX)).await;
        read(announced).await;
    }
}
