//! Rows that another process grants for a job.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::lender::{Destination, Lender, Window};
use super::slab::{Slab, SlabPart};
use super::{Pool, RowFormat};
use crate::Element;
use crate::sync::lock;

/// Rows in another process's memory, for a few items. Large ones are filled in place, the others in
/// memory of this process, which is written there when they are sent. The other process hands a row
/// out once it was told that the row is full, and grants the remaining rows again after the end of
/// the job. By then this process can no longer write to them ([`Granted::let_go`]).
#[derive(Default)]
pub(crate) struct Granted {
    rows: Vec<Option<Arc<Destination>>>,
    /// Shape of each of them.
    like: Option<RowFormat>,
    /// Pool of the memory that they are filled in.
    pool: Weak<Pool>,
    /// Shape that was last asked for.
    asked: Mutex<Option<RowFormat>>,
    windows: Mutex<Windows>,
}

#[derive(Default)]
struct Windows {
    /// Those that may be in use here.
    open: Vec<Weak<dyn Window>>,
    /// True after the job: no row is mapped any more.
    is_over: bool,
}

impl Granted {
    /// Makes rows of this many elements, from the memory and the place in it, in bytes.
    ///
    /// Returns `None` if a row is not inside of its memory.
    pub(crate) fn new(
        rows: Vec<Option<(Arc<dyn Lender>, usize)>>,
        like: RowFormat,
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
        let all = self.rows.iter().all(Option::is_some);
        all.then(|| len * dtype.size())
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
    pub(crate) fn asked(&self) -> Option<RowFormat> {
        *lock(&self.asked)
    }

    pub(super) fn take<T: Element>(&self, number: usize, len: usize) -> Option<SlabPart> {
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
