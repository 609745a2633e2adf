//! Memory of one process that another may write to: rows of batches, which are filled in place.

use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustix::io::retry_on_intr;
use rustix::process::{Resource, getrlimit};

use super::memfd::Memfd;
use super::memory::{Common, Region};
use crate::Result;
use crate::batch_buffer::{Lender, Memory, Window};
use crate::sync::lock;

static NEXT: AtomicU64 = AtomicU64::new(0);

/// Memory that can be lent to other processes, by [`ProcessPut::lend`](super::ProcessPut::lend).
#[derive(Debug)]
pub(crate) struct SharedMemory {
    pub id: u64,
    /// Kept for processes that start later.
    pub(super) memory: Memfd,
    mapping: Common,
}

impl SharedMemory {
    /// Makes new memory of zeros, of at least `len` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`](crate::ErrorKind::Limit) if memory or descriptors run out.
    pub(crate) fn new(len: usize) -> Result<Arc<SharedMemory>> {
        let memory = Memfd::new(len)?;
        let mapping = Common::new(&memory)?;
        Ok(Arc::new(SharedMemory {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            memory,
            mapping,
        }))
    }
}

impl Memory for SharedMemory {
    fn start(&self) -> NonNull<u8> {
        self.mapping.start()
    }
    fn len(&self) -> usize {
        self.mapping.len()
    }
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// Least bytes of a row that is mapped: it costs less to copy a smaller one.
const WORTH_MAPPING: usize = 64 << 10;
/// Maximum number of rows that a process has mapped at once. The system allows some 65,000
/// mappings.
const MAPPED: usize = 8192;

/// Number of rows mapped in this process.
static MAPPINGS: AtomicUsize = AtomicUsize::new(0);

/// Memory that was lent to this process. Of it are mapped, to be written to, only the rows that are
/// being filled: a stray write to any other goes elsewhere, or raises a signal.
#[derive(Debug)]
pub(crate) struct Lent {
    memory: Memfd,
    /// Rows that were filled before, mapped read-only until they are granted again: to map them
    /// afresh would cost as much as to copy them.
    known: Mutex<Vec<MappedRow>>,
}

/// A row that is counted as mapped.
#[derive(Debug)]
struct MappedRow(Region);

impl Drop for MappedRow {
    fn drop(&mut self) {
        MAPPINGS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lent {
    pub(super) fn new(memory: Memfd) -> Lent {
        Lent {
            memory,
            known: Mutex::default(),
        }
    }

    /// Maps a row, to be written to.
    fn map(&self, row: Range<usize>) -> Option<MappedRow> {
        let mut known = lock(&self.known);
        if let Some(place) = known.iter().position(|mapped| mapped.0.row() == row) {
            let mapped = known.swap_remove(place);
            drop(known);
            return mapped.0.set_writable(true).ok().map(|()| mapped);
        }
        drop(known);
        if MAPPINGS.load(Ordering::Relaxed) >= MAPPED {
            return None;
        }
        let region = Region::new(&self.memory, row).ok()?;
        MAPPINGS.fetch_add(1, Ordering::Relaxed);
        Some(MappedRow(region))
    }
}

impl Lender for Lent {
    fn len(&self) -> usize {
        self.memory.len()
    }
    fn write(&self, at: usize, bytes: &[u8]) -> bool {
        // Exceeding the limit on file sizes raises a signal that ends the process.
        let most = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        if (at + bytes.len()) as u64 > most {
            return false;
        }
        let mut done = 0;
        while done < bytes.len() {
            match retry_on_intr(|| {
                rustix::io::pwrite(&self.memory, &bytes[done..], (at + done) as u64)
            }) {
                Ok(0) | Err(_) => return false,
                Ok(written) => done += written,
            }
        }
        true
    }
    fn open(self: Arc<Self>, at: usize, len: usize) -> Option<Arc<dyn Window>> {
        if len < WORTH_MAPPING {
            return None;
        }
        let mapped = self.map(at..at + len)?;
        let state = Mutex::new(LendState::Open);
        Some(Arc::new(LentRow {
            memory: self,
            mapped: Some(mapped),
            state,
        }))
    }
}

/// A row that is being filled, or was filled and is still in use.
#[derive(Debug)]
struct LentRow {
    memory: Arc<Lent>,
    /// `None` once it is dropped.
    mapped: Option<MappedRow>,
    state: Mutex<LendState>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum LendState {
    /// Writable by this process.
    Open,
    /// Read-only again.
    Sealed,
    /// Unmapped: its memory here is no row any more.
    Private,
}

impl LentRow {
    fn region(&self) -> &Region {
        &self.mapped.as_ref().expect("there until it is dropped").0
    }

    /// Ends all writing to the row. If its mapping cannot be protected, it gets another.
    fn shut(&self, state: &mut LendState) {
        *state = match self.region().set_writable(false) {
            Ok(()) => LendState::Sealed,
            Err(_) => {
                self.region().detach(&self.memory.memory);
                LendState::Private
            }
        };
    }
}

impl Memory for LentRow {
    fn start(&self) -> NonNull<u8> {
        self.region().start()
    }
    fn len(&self) -> usize {
        self.region().row().len()
    }
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

impl Window for LentRow {
    fn seal(&self) -> bool {
        let mut state = lock(&self.state);
        let written =
            |(at, bytes): (usize, &[u8])| bytes.is_empty() || self.memory.write(at, bytes);
        if *state != LendState::Open || !self.region().apart().into_iter().all(written) {
            return false;
        }
        self.shut(&mut state);
        true
    }
    fn is_sealed(&self) -> bool {
        *lock(&self.state) == LendState::Sealed
    }
    fn detach(&self) {
        let mut state = lock(&self.state);
        if *state != LendState::Private {
            self.region().detach(&self.memory.memory);
            *state = LendState::Private;
        }
    }
}

impl Drop for LentRow {
    fn drop(&mut self) {
        let mut state = *lock(&self.state);
        if state == LendState::Open {
            self.shut(&mut state);
        }
        if state == LendState::Sealed {
            lock(&self.memory.known).extend(self.mapped.take());
        }
    }
}

#[cfg(test)]
mod tests;
