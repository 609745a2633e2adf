//! Rows of batches: memory that many workers fill at once, each its own row, and that becomes a
//! batch when they are done.
//!
//! A [`Slab`] has room for the rows of one batch. Its rows are handed out one by one as
//! [`SlabPart`]s, to be filled on any thread. [`Collate`](crate::Collate) finds that the parts of a
//! batch lie side by side in one slab and joins them, which copies nothing. If they do not (the
//! order is another), it copies them, as it would have without slabs. The row of an item is a guess
//! that affects speed alone: the number of items before it, less the rows of items that failed,
//! less a shift. If a batch begins in the middle of a slab, the guess was wrong by that distance,
//! and the shift is corrected for batches that have not been started.
//!
//! A slab whose parts are gone returns to its [`Pool`], so an epoch needs as many slabs as are in
//! use at once. Keeping a single row keeps all of its slab.

mod granted;
mod lender;
mod slab;

use std::any::Any;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};

use half::{bf16, f16};

pub(crate) use self::granted::Granted;
pub(crate) use self::lender::{Lender, Window};
use self::slab::Slab;
pub(crate) use self::slab::SlabPart;
use crate::dtype::with_dtype;
use crate::sync::lock;
use crate::{DType, Element, TypedVec};

/// Maximum number of slabs that a pool keeps for later.
const KEPT: usize = 4;
/// Maximum number of bytes of tensors that are kept for later tensors, in all of the process.
const SPARE: usize = 64 << 20;
/// Least bytes of a tensor whose memory is kept: smaller ones come from the allocator's own pools.
const LARGE: usize = 128 << 10;
/// Maximum number of bytes of a slab: a larger batch is better copied together than laid out ahead.
const MAX_SLAB: usize = 1 << 30;

/// Memory other than a vector: other processes write rows to it.
pub(crate) trait Memory: Send + Sync {
    /// Returns its start; aligned for any element.
    fn start(&self) -> NonNull<u8>;
    /// Returns its length in bytes, all of which are initialised and stay there as long as it
    /// lives.
    fn len(&self) -> usize;
    /// Returns it for a downcast.
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// Makes memory of this many bytes or more.
pub(crate) type Maker = Arc<dyn Fn(usize) -> Option<Arc<dyn Memory>> + Send + Sync>;

/// Memory of batches that are gone, for later batches.
pub(crate) struct Pool {
    kept: Mutex<Vec<TypedVec>>,
    kept_memory: Mutex<Vec<Arc<dyn Memory>>>,
    /// Shape of a row, if a pipe in another process asked for one.
    wanted: Mutex<Option<RowFormat>>,
    /// Bytes that may be kept.
    bytes: usize,
    /// True if the pool keeps no more bytes than are lent, with a minimum of an eighth of `bytes`
    /// and of one vector, so that it gives its memory up when its users have stopped.
    by_use: bool,
    /// Bytes of vectors that are lent.
    lent: AtomicUsize,
}

impl Pool {
    /// Makes a pool that keeps at most this many bytes, and no more than some batches.
    pub(crate) fn new(bytes: usize) -> Self {
        Pool {
            kept: Mutex::default(),
            kept_memory: Mutex::default(),
            wanted: Mutex::default(),
            bytes,
            by_use: false,
            lent: AtomicUsize::new(0),
        }
    }

    /// Makes a pool that keeps at most this many bytes, and little more than are in use.
    pub(crate) fn by_use(bytes: usize) -> Self {
        Pool {
            by_use: true,
            ..Pool::new(bytes)
        }
    }

    /// Takes a vector of this many numbers or more, of any value.
    fn take<T: Element>(&self, len: usize) -> Vec<T> {
        self.reuse(len).unwrap_or_else(|| vec![T::default(); len])
    }

    /// Makes zeros, in memory that was kept if there is some.
    fn zeros<T: Element>(self: &Arc<Self>, len: usize) -> SlabPart {
        let reused = self.reuse::<T>(len);
        self.whole(
            len,
            reused.map(|mut values| {
                values[..len].fill(T::default());
                values
            }),
        )
    }

    /// Makes values that are to be overwritten, in memory that was kept if there is some.
    fn old<T: Element>(self: &Arc<Self>, len: usize) -> SlabPart {
        self.whole(len, self.reuse::<T>(len))
    }

    /// Makes a part that is all of a slab, in this memory or in new.
    fn whole<T: Element>(self: &Arc<Self>, len: usize, values: Option<Vec<T>>) -> SlabPart {
        let values = values.unwrap_or_else(|| vec![T::default(); len]);
        let slab = Slab::new(values, len, 0, self, Default::default());
        SlabPart {
            slab: Arc::new(slab),
            start: 0,
            len,
            is_row: false,
        }
    }

    fn reuse<T: Element>(&self, len: usize) -> Option<Vec<T>> {
        let mut kept = lock(&self.kept);
        // Memory that is much too large stays for a batch that needs it.
        let fits = |values: &TypedVec| {
            values.dtype() == T::DTYPE
                && values.len() >= len
                && match self.by_use {
                    // These count by their length alone.
                    true => values.len() - len <= len / 8,
                    false => values.len() / 2 <= len.max(1 << 12),
                }
        };
        // The vector used last may still be in a core's cache.
        let found = kept.iter().rposition(fits).map(|place| kept.remove(place));
        drop(kept);
        found.and_then(T::unwrap)
    }

    /// Takes memory of this many bytes or more that other processes can write to.
    fn take_memory(&self, len: usize, make: &Maker) -> Option<Arc<dyn Memory>> {
        let mut kept = lock(&self.kept_memory);
        let fits =
            |memory: &Arc<dyn Memory>| memory.len() >= len && memory.len() / 2 <= len.max(1 << 16);
        let found = kept
            .iter()
            .position(fits)
            .map(|place| kept.swap_remove(place));
        drop(kept);
        found.or_else(|| make(len))
    }

    fn give_back_memory(&self, memory: Arc<dyn Memory>) {
        let mut too_many = Vec::new();
        let mut kept = lock(&self.kept_memory);
        kept.push(memory);
        while kept.len() > KEPT
            || kept.iter().map(|memory| memory.len()).sum::<usize>() > self.bytes
        {
            too_many.push(kept.remove(0));
        }
        drop(kept);
        drop(too_many);
    }

    fn give_back(&self, values: TypedVec) {
        let size = |values: &TypedVec| values.as_bytes().len();
        let mut too_many = Vec::new();
        let mut kept = lock(&self.kept);
        kept.push(values);
        let mut bytes = kept.iter().map(size).sum::<usize>();
        let in_use = self.lent.load(Ordering::Relaxed).max(self.bytes / 8);
        while bytes > self.bytes
            || match self.by_use {
                true => kept.len() > 1 && bytes > in_use,
                false => kept.len() > KEPT,
            }
        {
            let oldest = kept.remove(0);
            bytes -= size(&oldest);
            too_many.push(oldest);
        }
        drop(kept);
        drop(too_many);
    }
}

/// Memory of tensors that are gone.
static SPARES: LazyLock<Arc<Pool>> = LazyLock::new(|| Arc::new(Pool::by_use(SPARE)));

fn is_large<T>(len: usize) -> bool {
    len >= LARGE / size_of::<T>()
}

/// Makes zeros in memory of tensors that are gone, if they are many; `None` for few.
pub(crate) fn spare_zeros<T: Element>(len: usize) -> Option<SlabPart> {
    is_large::<T>(len).then(|| SPARES.zeros::<T>(len))
}

/// Makes values that are to be overwritten, in memory of tensors that are gone, if they are many;
/// `None` for few.
pub(crate) fn spare<T: Element>(len: usize) -> Option<SlabPart> {
    is_large::<T>(len).then(|| SPARES.old::<T>(len))
}

/// Makes an empty vector with room for so many numbers, in memory of tensors that are gone if they
/// are many.
pub(crate) fn spare_vec<T: Element>(len: usize) -> Vec<T> {
    let spare = is_large::<T>(len).then(|| SPARES.reuse(len));
    let mut values = spare.flatten().unwrap_or_else(|| Vec::with_capacity(len));
    values.clear();
    values
}

/// Lends the numbers of a [`spare_vec`] to a tensor, if they are many; the numbers back if they are
/// few.
pub(crate) fn spare_part<T: Element>(mut values: Vec<T>) -> Result<SlabPart, Vec<T>> {
    let len = values.len();
    if !is_large::<T>(len) {
        return Err(values);
    }
    // A vector counts by its length, which has to stay what it was before it was used again.
    values.resize(values.capacity().min(len + len / 8), T::default());
    Ok(SPARES.whole(len, Some(values)))
}

/// The rows of one stream of items, which end up in batches of equal size.
pub(crate) struct Rows {
    pool: Arc<Pool>,
    batch: i64,
    /// Slabs that have rows left, by their number. The parts keep a slab alive.
    open: Mutex<Vec<(i64, Weak<Slab>)>>,
    off: Arc<Off>,
    /// Maker of memory for rows that other processes fill.
    elsewhere: Option<Maker>,
}

/// The rows that a pipe asks for: type and number of elements.
pub(crate) type RowFormat = (DType, usize);

/// The distance of rows from the number of their items.
#[derive(Default)]
struct Off {
    /// Rows that were given back.
    returned: AtomicI64,
    /// Remaining distance, as found from batches.
    shift: AtomicI64,
}

impl Rows {
    pub(crate) fn new(pool: Arc<Pool>, batch: usize) -> Self {
        Rows {
            pool,
            batch: batch.max(1) as i64,
            open: Mutex::default(),
            off: Arc::default(),
            elsewhere: None,
        }
    }

    /// Makes rows that other processes fill.
    pub(crate) fn filled_elsewhere(mut self, make: Maker) -> Self {
        self.elsewhere = Some(make);
        self
    }

    /// Records that a pipe in another process asked for a row like this.
    pub(crate) fn want(&self, wanted: RowFormat) {
        *lock(&self.pool.wanted) = Some(wanted);
    }

    /// Returns the shape of a row, once a pipe in another process has asked.
    pub(crate) fn wanted(&self) -> Option<RowFormat> {
        *lock(&self.pool.wanted)
    }

    /// Returns the row for item number `number` of the stream, for another process to fill.
    pub(crate) fn grant(&self, number: u64) -> Option<SlabPart> {
        // Not every byte is a `bool`, and the memory may contain anything.
        let (dtype, len) = self.wanted().filter(|(dtype, _)| *dtype != DType::Bool)?;
        with_dtype!(dtype, T => self.take::<T>(number, len))
    }

    /// Returns the row for item number `number` of the stream, if it is free: each is handed out
    /// once.
    fn take<T: Element>(&self, number: u64, len: usize) -> Option<SlabPart> {
        let rows = self.batch as usize;
        let all = len
            .checked_mul(rows)
            .filter(|&all| all > 0 && all <= MAX_SLAB / size_of::<T>())?;
        let shift = self.off.shift.load(Ordering::Relaxed);
        let place = number as i64 - self.off.returned.load(Ordering::Relaxed) - shift;
        let (number, row) = (
            place.div_euclid(self.batch),
            place.rem_euclid(self.batch) as usize,
        );
        let slab = self.open(number, None).or_else(|| {
            // Made outside of the lock; another worker may have been quicker.
            let slab = match &self.elsewhere {
                None => Slab::new(
                    self.pool.take::<T>(all),
                    all,
                    rows,
                    &self.pool,
                    (self.off.clone(), shift),
                ),
                Some(make) => {
                    let memory = self.pool.take_memory(all * size_of::<T>(), make)?;
                    Slab::of::<T>(
                        memory,
                        all,
                        rows,
                        Arc::downgrade(&self.pool),
                        (self.off.clone(), shift),
                    )
                }
            };
            self.open(number, Some(Arc::new(slab)))
        })?;
        let fits = slab.dtype == T::DTYPE && slab.len == all;
        if !fits || slab.taken[row].swap(true, Ordering::Acquire) {
            return None;
        }
        Some(SlabPart {
            slab,
            start: row * len,
            len,
            is_row: true,
        })
    }

    /// Returns the slab of this number, or the new one in its place.
    fn open(&self, number: i64, new: Option<Arc<Slab>>) -> Option<Arc<Slab>> {
        let mut open = lock(&self.open);
        let found = open
            .iter()
            .find(|(n, _)| *n == number)
            .and_then(|(_, slab)| slab.upgrade());
        if let (None, Some(slab)) = (&found, &new) {
            open.retain(|(n, slab)| *n != number && slab.strong_count() > 0);
            open.push((number, Arc::downgrade(slab)));
        }
        found.or(new)
    }
}

/// The position of a pipe in the stream whose rows it fills.
pub(crate) struct RowCursor {
    next: AtomicU64,
    rows: RowsOf,
}

enum RowsOf {
    /// Rows by the number of the item.
    Stream(Arc<Rows>),
    /// Rows that are written to another process's memory, one for each item.
    Granted(Arc<Granted>),
}

impl RowCursor {
    /// Makes a cursor from item number `first` of the stream on.
    pub(crate) fn new(rows: Arc<Rows>, first: u64) -> Self {
        RowCursor {
            rows: RowsOf::Stream(rows),
            next: AtomicU64::new(first),
        }
    }

    /// Makes a cursor over rows that another process grants.
    pub(crate) fn granted(rows: Arc<Granted>) -> Self {
        RowCursor {
            rows: RowsOf::Granted(rows),
            next: AtomicU64::new(0),
        }
    }

    /// Returns the row for the next item.
    pub(crate) fn next<T: Element>(&self, len: usize) -> Option<SlabPart> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        match &self.rows {
            RowsOf::Stream(rows) => rows.take::<T>(number, len),
            RowsOf::Granted(rows) => rows.take::<T>(number as usize, len),
        }
    }
}

#[cfg(test)]
mod tests;
