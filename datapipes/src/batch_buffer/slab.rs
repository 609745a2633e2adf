//! The memory of a batch, and the parts of it that are lent.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use half::{bf16, f16};

use super::lender::Destination;
use super::{Memory, Off, Pool};
use crate::dtype::with_dtype;
use crate::{DType, Element, TypedVec};

/// The memory of one batch, taken apart from its `Vec` so that its rows can be lent to several
/// threads.
pub(super) struct Slab {
    pub(super) dtype: DType,
    pub(super) values: NonNull<u8>,
    /// Elements that belong to the batch; the vector may have more.
    pub(super) len: usize,
    pub(super) vec_len: usize,
    pub(super) capacity: usize,
    /// True for rows that were handed out.
    pub(super) taken: Box<[AtomicBool]>,
    pub(super) pool: Weak<Pool>,
    pub(super) off: Arc<Off>,
    /// Shift when the slab was made.
    pub(super) shift: i64,
    /// True if the vector was moved out, or there is none.
    pub(super) empty: bool,
    /// The memory, if it is no vector.
    pub(super) memory: Option<Arc<dyn Memory>>,
    /// Row of another process that the numbers are for.
    pub(super) destination: Option<Arc<Destination>>,
}

// SAFETY: the slab owns plain numbers. They are only reached through parts, of which no two
// overlap.
unsafe impl Send for Slab {}
// SAFETY: as above; shared numbers are never written to, since writing takes a part by `&mut`.
unsafe impl Sync for Slab {}

impl Slab {
    pub(super) fn new<T: Element>(
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
    pub(super) fn of<T: Element>(
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
    pub(super) fn take_vec(&mut self) -> Option<TypedVec> {
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
    pub(super) slab: Arc<Slab>,
    /// Start in elements.
    pub(super) start: usize,
    pub(super) len: usize,
    /// True for a row that belongs to no batch yet.
    pub(super) is_row: bool,
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

formatted! {
    Debug |part: SlabPart|
        "SlabPart({} {}..{})", part.dtype(), part.start, part.start + part.len;
}
