//! Memory of one process that another may write to: rows of batches, which are filled in place.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::retry_on_intr;
use rustix::process::{Resource, getrlimit};

use super::memfd::Memfd;
use super::memory::Common;
use crate::Result;
use crate::batch_buffer::{Lender, Memory};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// Memory that can be lent to other processes, by [`ProcessPut::lend`](super::ProcessPut::lend).
#[derive(Debug)]
pub(crate) struct Shared {
    pub id: u64,
    /// Kept for processes that start later.
    pub(super) memory: Memfd,
    mapping: Common,
}

impl Shared {
    /// Makes new memory of zeros, of at least `len` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`](crate::ErrorKind::Limit) if memory or descriptors run out.
    pub(crate) fn new(len: usize) -> Result<Arc<Shared>> {
        let memory = Memfd::new(len)?;
        let mapping = Common::new(&memory)?;
        Ok(Arc::new(Shared {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            memory,
            mapping,
        }))
    }
}

impl Memory for Shared {
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

/// Memory that was lent to this process. It is not mapped: a stray write goes elsewhere.
#[derive(Debug)]
pub(crate) struct Lent(pub(super) Memfd);

impl Lender for Lent {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn write(&self, at: usize, bytes: &[u8]) -> bool {
        // Exceeding the limit on file sizes raises a signal that ends the process.
        let most = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        if (at + bytes.len()) as u64 > most {
            return false;
        }
        let mut done = 0;
        while done < bytes.len() {
            match retry_on_intr(|| rustix::io::pwrite(&self.0, &bytes[done..], (at + done) as u64))
            {
                Ok(0) | Err(_) => return false,
                Ok(written) => done += written,
            }
        }
        true
    }
}
