//! Buffers for files, reused once nothing refers to their content.
//!
//! New memory from the system costs a page fault every 4 KiB, which for a file in the page cache
//! takes as long as reading it. A buffer stays initialized, so that reusing it costs nothing. The
//! buffer that was used last is reused first: it may still be in the cache of a core.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use datapipes::lock;

/// Most bytes of idle buffers of a pool, unless a user says otherwise.
pub(crate) const MOST_IDLE: usize = 256 << 20;
/// Size above which an allocation is first tried without aborting.
const ASK: usize = 1 << 30;
/// Time after which buffers that were idle all the time go back to the system.
const MAX_IDLE: Duration = Duration::from_secs(2);
/// Most bytes that a reader takes from the pool before it needs them.
const STOCK: usize = 128 << 10;
/// Number of bytes that become idle between two looks at the clock.
const CLOCK: usize = 1 << 20;

/// A pool of idle buffers, bounded in bytes.
#[derive(Debug)]
pub(crate) struct Buffers {
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
    /// Number of bytes that became idle since the last look at the clock.
    unclocked: usize,
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
        self.unclocked += buffer.len();
        let idle = self.by_size.entry(buffer.len()).or_default();
        idle.push_back((self.turn, buffer));
    }

    /// Returns true if the time is over after which buffers that were idle all the time go back.
    fn is_due(&mut self) -> bool {
        if self.unclocked < CLOCK {
            return false;
        }
        self.unclocked = 0;
        self.since.elapsed() > MAX_IDLE
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
    pub(crate) fn new(max_bytes: usize) -> Arc<Self> {
        Arc::new(Buffers {
            max_bytes,
            idle: Mutex::new(Idle {
                by_size: BTreeMap::new(),
                turn: 0,
                bytes: 0,
                least: 0,
                since: Instant::now(),
                unclocked: 0,
            }),
        })
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        lock(&self.idle)
    }

    #[cfg(test)]
    fn get(self: &Arc<Self>, len: usize) -> Option<Buffer> {
        Stock::new(self).get(len, 0)
    }

    fn put(&self, buffer: Box<[u8]>) {
        if buffer.len() > self.max_bytes {
            return;
        }
        let mut idle = self.idle();
        idle.put(buffer);
        let mut most = self.max_bytes;
        let is_due = idle.is_due();
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

/// Idle buffers of about one size that the reader of several files took from the pool together. If it
/// took each when it needs it, it would often wait for the lock while a consumer gives back those of
/// a batch.
#[derive(Debug)]
pub(in crate::stores) struct Stock {
    pool: Arc<Buffers>,
    buffers: Vec<Box<[u8]>>,
}

impl Stock {
    pub(in crate::stores) fn new(pool: &Arc<Buffers>) -> Self {
        Stock {
            pool: pool.clone(),
            buffers: Vec::new(),
        }
    }

    /// Returns a buffer of at least `len` bytes and not much more; `None` if there is no memory for
    /// it. As many `more` are going to be needed, perhaps of the same size.
    pub(in crate::stores) fn get(&mut self, len: usize, more: usize) -> Option<Buffer> {
        let sizes = len..=rounded(len).saturating_add(rounded(len) / 4);
        let next = self.buffers.last();
        if !next.is_some_and(|buffer| sizes.contains(&buffer.len())) {
            self.give_back();
            let mut idle = self.pool.idle();
            let found = std::iter::from_fn(|| idle.take(sizes.clone()));
            self.buffers.extend(found.take(1 + more.min(STOCK / len)));
        }
        let data = match self.buffers.pop() {
            Some(data) => data,
            None => new(rounded(len))?,
        };
        Some(Buffer {
            data,
            len,
            home: self.pool.clone(),
        })
    }

    fn give_back(&mut self) {
        self.buffers
            .drain(..)
            .for_each(|buffer| self.pool.put(buffer));
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Allocates a buffer; `None` if there is no memory for it.
fn new(len: usize) -> Option<Box<[u8]>> {
    // Zeroed memory comes untouched from the system. A trial allocation, which does not abort, would
    // teach the allocator to keep such memory and to clear it itself; it is made for huge sizes only.
    if len > ASK {
        Vec::<u8>::new().try_reserve_exact(len).ok()?;
    }
    Some(vec![0; len].into_boxed_slice())
}

/// Rounds a size up in steps of an eighth, so that files of similar size share buffers.
fn rounded(len: usize) -> usize {
    let step = (len.next_power_of_two() / 16).max(64);
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
    fn a_reader_takes_buffers_together_and_gives_back_what_it_did_not_need() {
        let buffers = Buffers::new(64 * MIB);
        let size = STOCK / 4;
        drop((0..9).map(|_| buffers.get(size)).collect::<Vec<_>>());
        let mut stock = Stock::new(&buffers);
        let first = stock.get(size, 2);
        assert_eq!(idle(&buffers).0, 6);
        // Those at hand are used first.
        let second = stock.get(size - 1, 100);
        assert_eq!(idle(&buffers).0, 6);
        drop(stock);
        assert_eq!(idle(&buffers).0, 7);
        let mut stock = Stock::new(&buffers);
        // No more are taken than are a small part of the pool.
        let third = stock.get(size, 100);
        assert_eq!(idle(&buffers).0, 2);
        // Another size needs others.
        let fourth = stock.get(3 * size, 100);
        assert_eq!(idle(&buffers).0, 6);
        drop((first, second, third, fourth, stock));
        assert_eq!(idle(&buffers), (10, 12 * size));
    }

    #[test]
    fn more_than_there_is_memory_is_refused() {
        assert!(Buffers::new(MIB).get(usize::MAX / 2).is_none());
    }
}
