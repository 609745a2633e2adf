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

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, Weak};

use half::{bf16, f16};

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
    wanted: Mutex<Option<Wanted>>,
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
pub(crate) type Wanted = (DType, usize);

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
    pub(crate) fn filled_elsewhere(self, make: Maker) -> Self {
        Rows {
            elsewhere: Some(make),
            ..self
        }
    }

    /// Records that a pipe in another process asked for a row like this.
    pub(crate) fn want(&self, wanted: Wanted) {
        *lock(&self.pool.wanted) = Some(wanted);
    }

    /// Returns the shape of a row, once a pipe in another process has asked.
    pub(crate) fn wanted(&self) -> Option<Wanted> {
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

/// Memory of another process that rows are written to.
pub(crate) trait Lender: Send + Sync {
    /// Returns its length in bytes.
    fn len(&self) -> usize;
    /// Writes all of `bytes` from a place on that has room for them; returns false if that is not
    /// possible, after some of it perhaps.
    fn write(&self, at: usize, bytes: &[u8]) -> bool;
    /// Maps a row of `len` bytes, to be filled in place; `None` if that is refused or not worth it.
    fn open(self: Arc<Self>, at: usize, len: usize) -> Option<Arc<dyn Window>>;
}

/// A row in another process's memory, mapped to be filled in place. Nobody else writes to it until
/// it is [detached](Window::detach), or dropped.
pub(crate) trait Window: Memory {
    /// Ends the filling: the row has all that was written, and this process can no longer write to
    /// it. Returns false if that is not possible.
    fn seal(&self) -> bool;
    /// Returns true between [`seal`](Window::seal) and [`detach`](Window::detach).
    fn is_sealed(&self) -> bool;
    /// Turns this into memory of this process alone, with the same contents at the same address.
    /// The other process may do with the row what it likes.
    fn detach(&self);
}

/// Rows in another process's memory, for a few items. Large ones are filled in place, the others in
/// memory of this process, which is written there when they are sent. The other process hands a row
/// out once it was told that the row is full, and grants the remaining rows again after the end of
/// the job. By then this process can no longer write to them ([`Granted::let_go`]).
#[derive(Default)]
pub(crate) struct Granted {
    rows: Vec<Option<Arc<Destination>>>,
    /// Shape of each of them.
    like: Option<Wanted>,
    /// Pool of the memory that they are filled in.
    pool: Weak<Pool>,
    /// Shape that was last asked for.
    asked: Mutex<Option<Wanted>>,
    windows: Mutex<Windows>,
}

#[derive(Default)]
struct Windows {
    /// Those that may be in use here.
    open: Vec<Weak<dyn Window>>,
    /// True after the job: no row is mapped any more.
    is_over: bool,
}

/// A row in another process's memory.
struct Destination {
    memory: Arc<dyn Lender>,
    /// Start in bytes.
    start: usize,
    /// Number of the row among those granted, and the job.
    number: usize,
    job: u64,
    /// True once it has its numbers.
    is_filled: AtomicBool,
    /// The row itself, if it is filled in place.
    window: OnceLock<Weak<dyn Window>>,
}

impl Destination {
    fn window(&self) -> Option<Arc<dyn Window>> {
        self.window.get()?.upgrade()
    }
}

impl Granted {
    /// Makes rows of this many elements, from the memory and the place in it, in bytes.
    ///
    /// Returns `None` if a row is not inside of its memory.
    pub(crate) fn new(
        rows: Vec<Option<(Arc<dyn Lender>, usize)>>,
        like: Wanted,
        job: u64,
        pool: &Arc<Pool>,
    ) -> Option<Granted> {
        let len = like.1.checked_mul(like.0.size()).filter(|&len| len > 0)?;
        let rows = rows.into_iter().enumerate().map(|(number, row)| {
            let Some((memory, start)) = row else {
                return Some(None);
            };
            let inside = start
                .checked_add(len)
                .is_some_and(|end| end <= memory.len());
            let is_filled = AtomicBool::new(false);
            inside.then(|| {
                Some(Arc::new(Destination {
                    memory,
                    start,
                    number,
                    job,
                    is_filled,
                    window: OnceLock::new(),
                }))
            })
        });
        let (rows, pool) = (rows.collect::<Option<_>>()?, Arc::downgrade(pool));
        Some(Granted {
            rows,
            like: Some(like),
            pool,
            ..Granted::default()
        })
    }

    /// Returns the bytes of a row, if there is one for each item.
    pub(crate) fn row_bytes(&self) -> Option<usize> {
        let (dtype, len) = self.like?;
        self.rows
            .iter()
            .all(Option::is_some)
            .then(|| len * dtype.size())
    }

    /// Makes rows that were sealed, but are still in use here, memory of this process alone: to be
    /// called before the other process is told of them. At the end of the job (`is_over`), all
    /// rows.
    pub(crate) fn let_go(&self, is_over: bool) {
        if is_over {
            // A later job may have the same number and other rows.
            for row in self.rows.iter().flatten() {
                row.is_filled.store(true, Ordering::Relaxed);
            }
        }
        let mut windows = lock(&self.windows);
        windows.is_over |= is_over;
        windows.open.retain(|window| {
            let Some(window) = window.upgrade() else {
                return false;
            };
            let stays = !is_over && !window.is_sealed();
            if !stays {
                window.detach();
            }
            stays
        });
    }

    /// Maps a row.
    fn open(&self, row: &Destination, len: usize) -> Option<Arc<dyn Window>> {
        let mut windows = lock(&self.windows);
        if windows.is_over {
            return None;
        }
        let window = row.memory.clone().open(row.start, len)?;
        windows.open.push(Arc::downgrade(&window));
        let _ = row.window.set(Arc::downgrade(&window));
        Some(window)
    }

    /// Returns the shape that the pipe asked for.
    pub(crate) fn asked(&self) -> Option<Wanted> {
        *lock(&self.asked)
    }

    fn take<T: Element>(&self, number: usize, len: usize) -> Option<SlabPart> {
        let wanted = Some((T::DTYPE, len));
        *lock(&self.asked) = wanted;
        let row = self
            .rows
            .get(number)?
            .as_ref()
            .filter(|_| self.like == wanted)?;
        let mut slab = match self.open(row, len * size_of::<T>()) {
            Some(window) => Slab::of::<T>(window, len, 0, Weak::new(), Default::default()),
            None => {
                let pool = self.pool.upgrade()?;
                Slab::new(pool.take::<T>(len), len, 0, &pool, Default::default())
            }
        };
        slab.destination = Some(row.clone());
        Some(SlabPart {
            slab: Arc::new(slab),
            start: 0,
            len,
            is_row: false,
        })
    }
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

/// The memory of one batch, taken apart from its `Vec` so that its rows can be lent to several
/// threads.
struct Slab {
    dtype: DType,
    values: NonNull<u8>,
    /// Elements that belong to the batch; the vector may have more.
    len: usize,
    vec_len: usize,
    capacity: usize,
    /// True for rows that were handed out.
    taken: Box<[AtomicBool]>,
    pool: Weak<Pool>,
    off: Arc<Off>,
    /// Shift when the slab was made.
    shift: i64,
    /// True if the vector was moved out, or there is none.
    empty: bool,
    /// The memory, if it is no vector.
    memory: Option<Arc<dyn Memory>>,
    /// Row of another process that the numbers are for.
    destination: Option<Arc<Destination>>,
}

// SAFETY: the slab owns plain numbers. They are only reached through parts, of which no two
// overlap.
unsafe impl Send for Slab {}
// SAFETY: as above; shared numbers are never written to, since writing takes a part by `&mut`.
unsafe impl Sync for Slab {}

impl Slab {
    fn new<T: Element>(
        values: Vec<T>,
        len: usize,
        rows: usize,
        pool: &Arc<Pool>,
        (off, shift): (Arc<Off>, i64),
    ) -> Slab {
        debug_assert!(values.len() >= len);
        let mut values = ManuallyDrop::new(values);
        let (vec_len, capacity) = (values.len(), values.capacity());
        pool.lent
            .fetch_add(vec_len * size_of::<T>(), Ordering::Relaxed);
        let values = NonNull::new(values.as_mut_ptr())
            .expect("a vector's pointer is not null")
            .cast();
        Slab {
            dtype: T::DTYPE,
            values,
            len,
            vec_len,
            capacity,
            taken: (0..rows).map(|_| AtomicBool::new(false)).collect(),
            pool: Arc::downgrade(pool),
            off,
            shift,
            empty: false,
            memory: None,
            destination: None,
        }
    }

    /// Makes a slab in memory that is no vector, and has room for this many elements.
    fn of<T: Element>(
        memory: Arc<dyn Memory>,
        len: usize,
        rows: usize,
        pool: Weak<Pool>,
        (off, shift): (Arc<Off>, i64),
    ) -> Slab {
        assert!(
            len * size_of::<T>() <= memory.len(),
            "{len} elements in {} bytes",
            memory.len()
        );
        Slab {
            dtype: T::DTYPE,
            values: memory.start(),
            len,
            vec_len: len,
            capacity: 0,
            taken: (0..rows).map(|_| AtomicBool::new(false)).collect(),
            pool,
            off,
            shift,
            empty: true,
            memory: Some(memory),
            destination: None,
        }
    }

    /// Returns the vector that the slab was made of, once. There are no parts when the slab is
    /// borrowed mutably.
    fn take_vec(&mut self) -> Option<TypedVec> {
        if std::mem::replace(&mut self.empty, true) {
            return None;
        }
        Some(with_dtype!(self.dtype, T => {
            let first = self.values.cast::<T>().as_ptr();
            // SAFETY: these are the parts of a `Vec<T>` of this type, whose elements stayed
            // initialised. The vector is put together again once, since `empty` was false, and
            // nobody else reaches the numbers, since parts keep the slab borrowed.
            T::wrap(unsafe { Vec::from_raw_parts(first, self.vec_len, self.capacity) })
        }))
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let Some(pool) = self.pool.upgrade() else {
            return drop(self.take_vec());
        };
        if let Some(memory) = self.memory.take() {
            return pool.give_back_memory(memory);
        }
        let bytes = self.vec_len * self.dtype.size();
        pool.lent.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(values) = self.take_vec() {
            pool.give_back(values);
        }
    }
}

/// Numbers in a slab that nobody else can reach.
pub(crate) struct SlabPart {
    slab: Arc<Slab>,
    /// Start in elements.
    start: usize,
    len: usize,
    /// True for a row that belongs to no batch yet.
    is_row: bool,
}

impl SlabPart {
    /// Makes a part that is all of a slab of its own, from the pool of this part.
    pub(crate) fn sibling<T: Element>(&self, len: usize) -> Option<SlabPart> {
        let pool = self.slab.pool.upgrade().filter(|_| len > 0)?;
        let slab = Arc::new(Slab::new(
            pool.take::<T>(len),
            len,
            0,
            &pool,
            (self.slab.off.clone(), 0),
        ));
        Some(SlabPart {
            slab,
            start: 0,
            len,
            is_row: false,
        })
    }

    /// Returns the memory that the part lies in, if that is no vector, and the place in it, in
    /// bytes.
    pub(crate) fn place(&self) -> Option<(Arc<dyn Memory>, usize)> {
        Some((
            self.slab.memory.clone()?,
            self.start * self.slab.dtype.size(),
        ))
    }

    /// Writes the numbers to the row that another process granted for this job, the first time that
    /// it is asked: later the other process may have handed the row out. Returns the number of the
    /// row.
    pub(crate) fn write_to_grant(&self, job: u64) -> Option<usize> {
        let row = self
            .slab
            .destination
            .as_ref()
            .filter(|row| row.job == job)?;
        if row.is_filled.swap(true, Ordering::Relaxed) {
            return None;
        }
        let is_there = match row.window() {
            Some(window) => window.seal(),
            None => row.memory.write(row.start, self.as_bytes()),
        };
        is_there.then_some(row.number)
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn dtype(&self) -> DType {
        self.slab.dtype
    }

    fn first(&self) -> NonNull<u8> {
        // SAFETY: a part lies inside of its slab, which is one allocation.
        unsafe { self.slab.values.add(self.start * self.slab.dtype.size()) }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        // SAFETY: these bytes are initialised, inside of one allocation that the slab keeps alive,
        // and only this part reaches them; the part is borrowed as long as they are. Elements have
        // no padding (`bytemuck::NoUninit`).
        unsafe {
            std::slice::from_raw_parts(self.first().as_ptr(), self.len * self.slab.dtype.size())
        }
    }

    /// Returns the numbers, if they are of this type.
    pub(crate) fn slice<T: Element>(&self) -> Option<&[T]> {
        // SAFETY: as above; the type is that of the vector that the slab was made of.
        (self.slab.dtype == T::DTYPE).then(|| unsafe {
            std::slice::from_raw_parts(self.first().cast::<T>().as_ptr(), self.len)
        })
    }

    /// Returns the numbers for writing, if they are of this type.
    pub(crate) fn slice_mut<T: Element>(&mut self) -> Option<&mut [T]> {
        // The other process may still read a row that was sent, so a change needs a copy of its
        // own.
        let window = self.slab.destination.as_ref().and_then(|row| row.window());
        if let Some(window) = window.filter(|window| window.is_sealed()) {
            window.detach();
        }
        // SAFETY: as above, and this part is borrowed mutably.
        (self.slab.dtype == T::DTYPE).then(|| unsafe {
            std::slice::from_raw_parts_mut(self.first().cast::<T>().as_ptr(), self.len)
        })
    }

    /// Returns true if `next` begins where this part ends.
    pub(crate) fn is_before(&self, next: &SlabPart) -> bool {
        Arc::ptr_eq(&self.slab, &next.slab) && self.start + self.len == next.start
    }

    /// Joins a part that begins where this one ends.
    pub(crate) fn join(&mut self, mut next: SlabPart) {
        assert!(self.is_before(&next), "parts are joined where they touch");
        next.is_row = false;
        self.len += next.len;
    }

    /// Records that this part is the first row of a batch. If it is not the first of its slab, the
    /// shift is corrected for later batches.
    pub(crate) fn is_first(&self) {
        let (slab, row) = (&*self.slab, (self.start / self.len) as i64);
        if self.is_row && row > 0 {
            // Batches that were on their way show the same error; only the first counts.
            let (was, is) = (slab.shift, slab.shift + row);
            let _ = slab
                .off
                .shift
                .compare_exchange(was, is, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Records that the part has become part of a batch, possibly by a copy.
    pub(crate) fn is_batched(&mut self) {
        self.is_row = false;
    }

    /// Returns the numbers as a vector. They are moved if the part begins at the start of the slab, is
    /// its last owner, and covers at least half of it; otherwise they are copied.
    pub(crate) fn into_typed(mut self) -> TypedVec {
        self.is_row = false;
        let copies =
            self.slab.memory.is_some() || self.start > 0 || self.len < self.slab.vec_len / 2;
        if copies || Arc::strong_count(&self.slab) > 1 {
            return self.copied();
        }
        let (slab, len) = (self.slab.clone(), self.len);
        drop(self);
        match Arc::try_unwrap(slab) {
            Ok(mut slab) => {
                let values = slab.take_vec().expect("only taken here and by drop");
                with_dtype!(values.dtype(), T => {
                    let mut values = T::unwrap(values).expect("the type is its own");
                    values.truncate(len);
                    T::wrap(values)
                })
            }
            // Another thread is about to take a row after these.
            Err(slab) => SlabPart {
                slab,
                start: 0,
                len,
                is_row: false,
            }
            .copied(),
        }
    }

    /// Returns a copy of the numbers.
    pub(crate) fn copied(&self) -> TypedVec {
        with_dtype!(self.dtype(), T => T::wrap(self.slice::<T>().expect("the type is its own").to_vec()))
    }
}

/// Gives a row that no batch took to the next item.
impl Drop for SlabPart {
    fn drop(&mut self) {
        if self.is_row {
            self.slab.taken[self.start / self.len].store(false, Ordering::Release);
            self.slab.off.returned.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl AsRef<[u8]> for SlabPart {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl fmt::Debug for SlabPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SlabPart({} {}..{})",
            self.dtype(),
            self.start,
            self.start + self.len
        )
    }
}

#[cfg(test)]
mod tests;
