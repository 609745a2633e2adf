//! Memory of another process that rows are written to.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};

use super::Memory;

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

/// A row in another process's memory.
pub(super) struct Destination {
    pub(super) memory: Arc<dyn Lender>,
    /// Start in bytes.
    pub(super) start: usize,
    /// Number of the row among those granted, and the job.
    pub(super) number: usize,
    pub(super) job: u64,
    /// True once it has its numbers.
    pub(super) is_filled: AtomicBool,
    /// The row itself, if it is filled in place.
    pub(super) window: OnceLock<Weak<dyn Window>>,
}

impl Destination {
    pub(super) fn window(&self) -> Option<Arc<dyn Window>> {
        self.window.get()?.upgrade()
    }
}
