//! Buffers for files, reused once nothing refers to their content.
//!
//! New memory from the system costs a page fault every 4 KiB, which for a file in the page cache
//! takes as long as reading it. A buffer stays initialized, so that reusing it costs nothing. The
//! buffer that was used last is reused first: it may still be in the cache of a core.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

/// Size above which an allocation is first tried without aborting.
const ASK: usize = 1 << 30;
/// Time after which buffers that were idle all the time go back to the system.
const MAX_IDLE: Duration = Duration::from_secs(2);

/// A pool of idle buffers, bounded in bytes.
#[derive(Debug)]
pub(in crate::stores) struct Buffers {
    max_bytes: usize,
    idle: Mutex<Idle>,
}

/// A buffer, and its turn among all that became idle.
type IdleBuffer = (u64, Box<[u8]>);

#[derive(Debug)]
struct Idle {
    /// Idle buffers by their size, the oldest first.
    by_size: BTreeMap<usize, VecDeque<IdleBuffer>>,
    /// Number of buffers that became idle so far.
    turn: u64,
    bytes: usize,
    /// Least number of idle bytes since this time.
    least: usize,
    since: Instant,
}

impl Idle {
    fn take(&mut self, sizes: std::ops::RangeInclusive<usize>) -> Option<Box<[u8]>> {
        let (_, buffer) = (self.by_size.range_mut(sizes)).find_map(|(_, idle)| idle.pop_back())?;
        self.bytes -= buffer.len();
        self.least = self.least.min(self.bytes);
        Some(buffer)
    }

    fn put(&mut self, buffer: Box<[u8]>) {
        self.turn += 1;
        self.bytes += buffer.len();
        let idle = self.by_size.entry(buffer.len()).or_default();
        idle.push_back((self.turn, buffer));
    }

    /// Removes the oldest buffers until at most `bytes` are left.
    fn shrink(&mut self, bytes: usize) -> Vec<Box<[u8]>> {
        let mut removed = Vec::new();
        while self.bytes > bytes {
            let oldest = (self.by_size.values_mut())
                .filter(|idle| !idle.is_empty())
                .min_by_key(|idle| idle[0].0);
            let Some((_, buffer)) = oldest.and_then(VecDeque::pop_front) else {
                break;
            };
            self.bytes -= buffer.len();
            removed.push(buffer);
        }
        self.by_size.retain(|_, idle| !idle.is_empty());
        removed
    }
}

impl Buffers {
    pub(in crate::stores) fn new(max_bytes: usize) -> Arc<Self> {
        Arc::new(Buffers {
            max_bytes,
            idle: Mutex::new(Idle {
                by_size: BTreeMap::new(),
                turn: 0,
                bytes: 0,
                least: 0,
                since: Instant::now(),
            }),
        })
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
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
        let most = rounded(len).saturating_add(rounded(len) / 4);
        self.idle().take(len..=most)
    }

    fn put(&self, buffer: Box<[u8]>) {
        if buffer.len() > self.max_bytes {
            return;
        }
        let mut idle = self.idle();
        idle.put(buffer);
        let mut most = self.max_bytes;
        let is_due = idle.since.elapsed() > MAX_IDLE;
        if is_due {
            most = most.min(idle.bytes - idle.least.min(idle.bytes));
        }
        // The oldest buffers did not fit the recent files, or were too many.
        let freed = match idle.bytes > most {
            true => idle.shrink(most),
            false => Vec::new(),
        };
        if is_due {
            (idle.least, idle.since) = (idle.bytes, Instant::now());
        }
        drop(idle);
        drop(freed);
    }
}

/// Rounds a size up in steps of an eighth, so that files of similar size share buffers.
fn rounded(len: usize) -> usize {
    let step = (len.next_power_of_two() / 16).max(1024);
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
        let idle = buffers.idle();
        let sizes = |(size, idle): (&usize, &VecDeque<_>)| vec![*size; idle.len()];
        let sizes: Vec<usize> = idle.by_size.iter().flat_map(sizes).collect();
        assert_eq!(idle.bytes, sizes.iter().sum::<usize>());
        (sizes.len(), idle.bytes)
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
    fn the_buffer_that_was_used_last_is_used_first() {
        let buffers = Buffers::new(64 * MIB);
        let mut all: Vec<Buffer> = (0..3).map(|_| buffers.get(100_000).unwrap()).collect();
        let places: Vec<_> = all.iter_mut().map(|b| b.space().as_ptr()).collect();
        all.into_iter().for_each(drop);
        for place in places.into_iter().rev() {
            let mut buffer = buffers.get(100_001).unwrap();
            assert_eq!(buffer.space().as_ptr(), place);
            std::mem::forget(buffer);
        }
    }

    #[test]
    fn what_is_not_used_for_some_time_is_given_back() {
        let buffers = Buffers::new(64 * MIB);
        drop((0..9).map(|_| buffers.get(MIB)).collect::<Vec<_>>());
        // Two of the nine are used at once.
        let used = || drop((buffers.get(MIB), buffers.get(MIB)));
        {
            let mut idle = buffers.idle();
            (idle.least, idle.since) = (usize::MAX, Instant::now());
        }
        used();
        assert_eq!(idle(&buffers).0, 9);
        buffers.idle().since -= 2 * MAX_IDLE;
        used();
        assert_eq!(idle(&buffers), (2, 2 * MIB));
    }

    #[test]
    fn more_than_there_is_memory_is_refused() {
        assert!(Buffers::new(MIB).get(usize::MAX / 2).is_none());
    }
}
