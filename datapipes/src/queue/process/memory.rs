//! Mappings of shared memory: all `unsafe` of the queue between processes is here.

use std::io;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::memfd::Memfd;

/// So many slots have a word in the control page. More payloads than that can be kept; they travel one way.
pub(super) const SLOTS: usize = 1024;

/// The whole of a [`Memfd`], mapped until dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: memory may be read, and unmapped, on any thread.
unsafe impl Send for Mapping {}
// SAFETY: through `&Mapping` it is only read, but for the atomics of a `Control`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// To be read only.
    pub(super) fn to_read(memory: &Memfd) -> io::Result<Mapping> {
        Mapping::new(memory, ProtFlags::READ)
    }

    fn new(memory: &Memfd, protection: ProtFlags) -> io::Result<Mapping> {
        let (len, flags) = (memory.len(), MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: the system chooses the place, so that nothing that was mapped before is touched. A `Memfd` has so many
        // bytes and keeps them, by its seals.
        let start = unsafe { mmap(ptr::null_mut(), len, protection, flags, memory, 0) }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Mapping { start, len })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The first bytes; all, if there are not so many.
    pub(super) fn first(&self, len: usize) -> &[u8] {
        // SAFETY: mapped for as long as `self` lives, and zero or written. The process that sent it writes
        // only while the slot is free: before it says that there is a payload, and after that was dropped here. One that
        // breaks this rule can change the bytes under the reader, as it could have written anything before; it
        // cannot take the memory away.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), len.min(self.len)) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new`, once, with this length; what borrows from it is gone. An error would leave it mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A mapping that this process writes to.
#[derive(Debug)]
pub(super) struct Writable(Mapping);

impl Writable {
    pub(super) fn new(memory: &Memfd) -> io::Result<Writable> {
        Mapping::new(memory, ProtFlags::READ | ProtFlags::WRITE).map(Writable)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len
    }

    /// Writes from the start.
    ///
    /// # Panics
    /// If that is too long.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let Mapping { start, len } = self.0;
        assert!(bytes.len() <= len, "{} bytes into a slot of {len}", bytes.len());
        // SAFETY: within the mapping, by the line above, and writable, by `new`. Nothing in safe code points to this
        // mapping, as nobody else has it (`&mut self`) and no slice of it is ever given out; so `bytes` lies elsewhere.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start.as_ptr(), bytes.len()) }
    }
}

/// Memory that several processes read and write. Which of them may do what where, and when, is not known here: it is as
/// long as this lives, and that is all.
#[derive(Debug)]
pub(super) struct Common(Mapping);

impl Common {
    pub(super) fn new(memory: &Memfd) -> io::Result<Common> {
        Mapping::new(memory, ProtFlags::READ | ProtFlags::WRITE).map(Common)
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.0.start
    }

    pub(super) fn len(&self) -> usize {
        self.0.len
    }
}

/// What both ends read and write without a system call. Any process that has it may have written anything.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Control {
    /// What was put in so far; the put end writes.
    pub put: Counters,
    /// The put end waits until this was taken; it writes.
    pub wake_at: Counters,
    /// 1 if the put end waits for a packet. It sets it, the take end takes it back.
    pub put_waits: Line<AtomicU32>,
    /// What was taken out so far; the take end writes.
    pub taken: Counters,
    /// For each slot, whether a payload is in it. The put end sets 1, the take end 0.
    pub states: [AtomicU32; SLOTS],
}

/// Totals since the start.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Counters {
    pub messages: AtomicU64,
    pub items: AtomicU64,
    pub bytes: AtomicU64,
}

/// Alone in its cache lines.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Line<T>(pub T);

impl Control {
    pub(super) const SIZE: usize = size_of::<Control>().next_multiple_of(64 << 10);
}

/// A mapped [`Control`].
#[derive(Debug)]
pub(super) struct ControlPage(Writable);

impl ControlPage {
    pub(super) fn new(memory: &Memfd) -> io::Result<ControlPage> {
        assert!(memory.len() >= size_of::<Control>(), "a control page of {} bytes", memory.len());
        Writable::new(memory).map(ControlPage)
    }
}

impl Deref for ControlPage {
    type Target = Control;

    fn deref(&self) -> &Control {
        // SAFETY: long enough, by `new`; aligned, as it begins a page; made of atomics only, which are valid
        // whatever is there and whoever writes.
        unsafe { self.0.0.start.cast::<Control>().as_ref() }
    }
}
