//! Buffers for large files, reused once nothing refers to their content.
//!
//! New memory from the system costs a page fault every 4 KiB, which for a file in the page cache
//! takes as long as reading it. A buffer stays initialized, so that reusing it costs nothing.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// Size above which an allocation is first tried without aborting.
const ASK: usize = 1 << 30;
/// Maximum number of idle buffers.
const MAX_IDLE: usize = 64;

/// A pool of idle buffers, bounded in bytes.
#[derive(Debug)]
pub(in crate::stores) struct Buffers {
    max_bytes: usize,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    /// Idle buffers, the oldest first.
    buffers: Vec<Box<[u8]>>,
    bytes: usize,
}

impl Buffers {
    pub(in crate::stores) fn new(max_bytes: usize) -> Arc<Self> {
        Arc::new(Buffers {
            max_bytes,
            idle: Mutex::default(),
        })
    }

    /// Returns a buffer of at least `len` bytes and not much more; `None` if there is no memory for
    /// it.
    pub(in crate::stores) fn get(self: &Arc<Self>, len: usize) -> Option<Buffer> {
        let data = match self.reuse(len) {
            Some(data) => data,
            None => {
                let len = rounded(len);
                // Zeroed memory comes untouched from the system. A trial allocation, which does not
                // abort, would teach the allocator to keep such memory and to clear it itself; it
                // is made for huge sizes only.
                if len > ASK {
                    Vec::<u8>::new().try_reserve_exact(len).ok()?;
                }
                vec![0; len].into_boxed_slice()
            }
        };
        Some(Buffer {
            data,
            len,
            home: self.clone(),
        })
    }

    fn reuse(&self, len: usize) -> Option<Box<[u8]>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |size: usize| size >= len && size <= rounded(len) + rounded(len) / 4;
        let (place, _) = (idle.buffers.iter().map(|buffer| buffer.len()).enumerate())
            .filter(|(_, size)| fits(*size))
            .min_by_key(|(_, size)| *size)?;
        let buffer = idle.buffers.remove(place);
        idle.bytes -= buffer.len();
        Some(buffer)
    }

    fn put(&self, buffer: Box<[u8]>) {
        if buffer.len() > self.max_bytes {
            return;
        }
        let mut freed = Vec::new();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.bytes += buffer.len();
        idle.buffers.push(buffer);
        // The oldest buffers did not fit the recent files.
        while idle.bytes > self.max_bytes || idle.buffers.len() > MAX_IDLE {
            let oldest = idle.buffers.remove(0);
            idle.bytes -= oldest.len();
            freed.push(oldest);
        }
        drop(idle);
        drop(freed);
    }
}

/// Rounds a size up in steps of an eighth, so that files of similar size share buffers.
fn rounded(len: usize) -> usize {
    let step = (len.next_power_of_two() / 16).max(4096);
    len.checked_next_multiple_of(step).unwrap_or(len)
}

/// A buffer that returns to its pool when dropped.
#[derive(Debug)]
pub(in crate::stores) struct Buffer {
    data: Box<[u8]>,
    len: usize,
    home: Arc<Buffers>,
}

impl Buffer {
    /// Returns the whole buffer, initialized with old content.
    pub(in crate::stores) fn space(&mut self) -> &mut [u8] {
        &mut self.data[..self.len]
    }

    /// Returns the first `len` bytes.
    pub(in crate::stores) fn into_bytes(mut self, len: usize) -> Bytes {
        self.len = len;
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.data[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.put(std::mem::take(&mut self.data));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn idle(buffers: &Buffers) -> (usize, usize) {
        let idle = buffers.idle.lock().unwrap();
        assert_eq!(
            idle.bytes,
            idle.buffers
                .iter()
                .map(|buffer| buffer.len())
                .sum::<usize>()
        );
        (idle.buffers.len(), idle.bytes)
    }

    #[test]
    fn a_buffer_comes_back_when_its_last_slice_is_dropped() {
        let buffers = Buffers::new(64 * MIB);
        let mut buffer = buffers.get(MIB).unwrap();
        buffer.space()[7] = 9;
        let place = buffer.space().as_ptr();
        let slice = buffer.into_bytes(10).slice(7..8);
        assert_eq!((&slice[..], idle(&buffers).0), (&[9][..], 0));
        drop(slice);
        assert_eq!(idle(&buffers).0, 1);
        assert_eq!(buffers.get(MIB - 100).unwrap().space().as_ptr(), place);
    }

    #[test]
    fn a_small_file_does_not_take_a_large_buffer() {
        let buffers = Buffers::new(64 * MIB);
        drop((buffers.get(8 * MIB), buffers.get(16 * MIB)));
        assert!(buffers.get(MIB).unwrap().data.len() < 2 * MIB);
        assert!(buffers.get(15 * MIB).unwrap().data.len() <= 17 * MIB);
        assert!(rounded(30_000_000) < 33_000_000);
    }

    #[test]
    fn what_is_idle_is_bounded_and_the_oldest_goes_first() {
        let buffers = Buffers::new(4 * MIB);
        drop((0..9).map(|_| buffers.get(MIB)).collect::<Vec<_>>());
        assert_eq!(idle(&buffers), (4, 4 * MIB));
        drop(buffers.get(2 * MIB));
        assert_eq!(idle(&buffers), (3, 4 * MIB));
        drop(buffers.get(5 * MIB));
        assert_eq!(idle(&buffers), (3, 4 * MIB));
    }

    #[test]
    fn more_than_there_is_memory_is_refused() {
        assert!(Buffers::new(MIB).get(usize::MAX / 2).is_none());
    }
}
