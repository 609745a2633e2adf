//! Mappings of shared memory: all `unsafe` of the queue between processes is here.

use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect, munmap};

use super::memfd::Memfd;

/// So many slots have a word in the control pages. More payloads than that can be kept; they travel
/// one way.
pub(super) const SLOTS: usize = 1024;

/// The whole of a [`Memfd`], mapped until dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: memory may be read, and unmapped, on any thread.
unsafe impl Send for Mapping {}
// SAFETY: through `&Mapping` it is only read, but for the atomics of a `Page`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// To be read only.
    pub(super) fn to_read(memory: &Memfd) -> io::Result<Mapping> {
        Mapping::new(memory, ProtFlags::READ)
    }

    fn new(memory: &Memfd, protection: ProtFlags) -> io::Result<Mapping> {
        let (len, flags) = (memory.len(), MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: the system chooses the place, so that nothing that was mapped before is touched.
        // A `Memfd` has so many bytes and keeps them, by its seals.
        let start = unsafe { mmap(ptr::null_mut(), len, protection, flags, memory, 0) }?;
        let start =
            NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Mapping { start, len })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The first bytes; all, if there are not so many.
    pub(super) fn first(&self, len: usize) -> &[u8] {
        // SAFETY: mapped for as long as `self` lives, and zero or written. The process that sent it
        // writes to it only to fill the slot (`Fillable`), which it does while the slot is free:
        // before it says that there is a payload, and after that was dropped here. What writes by
        // mistake can write there at that time, too, or in a process that is trusted.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), len.min(self.len)) }
    }

    fn protect(&mut self, protection: MprotectFlags) -> io::Result<()> {
        // SAFETY: the whole of this mapping, which nothing in safe code points to: what is filled
        // here is not read here.
        unsafe { mprotect(self.start.as_ptr().cast(), self.len, protection) }.map_err(Into::into)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new`, once, with this length; what borrows from it is gone. An
        // error would leave it mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A slot as its put end has it. Unless it stays open, it can be written to while it is filled, and
/// at no other time: who writes by mistake to what was handed over gets a signal, and whoever reads
/// it sees nothing of that.
#[derive(Debug)]
pub(super) struct Fillable {
    mapping: Mapping,
    stays_open: bool,
}

impl Fillable {
    /// To be [filled](Fillable::fill) before it is shared.
    pub(super) fn new(memory: &Memfd, stays_open: bool) -> io::Result<Fillable> {
        let mapping = Mapping::new(memory, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Fillable {
            mapping,
            stays_open,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.mapping.len
    }

    /// Writes from the start.
    ///
    /// # Errors
    /// What the system says when it does not change what may be done there. Then it may be
    /// writable, and must not be shared.
    ///
    /// # Panics
    /// If that is too long.
    pub(super) fn fill(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Mapping { start, len } = self.mapping;
        assert!(
            bytes.len() <= len,
            "{} bytes into a slot of {len}",
            bytes.len()
        );
        if !self.stays_open {
            self.mapping
                .protect(MprotectFlags::READ | MprotectFlags::WRITE)?;
        }
        // SAFETY: within the mapping and writable, by the lines above. Nothing in safe code points
        // to this mapping, as nobody else has it (`&mut self`) and no slice of it is ever given
        // out; so `bytes` lies elsewhere.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start.as_ptr(), bytes.len()) }
        if self.stays_open {
            Ok(())
        } else {
            self.mapping.protect(MprotectFlags::READ)
        }
    }
}

/// Memory that this process writes to, and reads where others wrote. Who may do what where, and
/// when, is not known here: it is as long as this lives, and that is all.
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

/// The page of the put end.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Puts {
    /// What was put in so far.
    pub put: Counters,
    /// It waits until this was taken.
    pub wake_at: Counters,
    /// If it waits for a packet, a number that it has not waited by before; else 0.
    pub waits: Line<AtomicU32>,
}

/// The page of the take end.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Takes {
    /// What was taken out so far.
    pub taken: Counters,
    /// For each slot, how many payloads were in it and are not any more.
    pub given_back: [AtomicU32; SLOTS],
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

/// What one end writes and the other reads, without a system call. Each end has two: its own, and
/// that of the other, which it cannot write to. So an end that has gone mad can spoil what it says,
/// and not what it was told.
///
/// # Safety
/// Made of atomics only, which are valid whatever is there and whoever writes.
pub(super) unsafe trait Page {}

// SAFETY: as is seen above.
unsafe impl Page for Puts {}
// SAFETY: as is seen above.
unsafe impl Page for Takes {}

/// The bytes of a page.
pub(super) const PAGE: usize = 64 << 10;

/// The page that this end writes.
#[derive(Debug)]
pub(super) struct Own<P>(Mapping, PhantomData<P>);

/// The page that the other end writes. What is read of it may be anything.
///
/// Loads are `Relaxed`: others are not said to work where nothing can be written. Fences order
/// them.
#[derive(Debug)]
pub(super) struct Theirs<P>(Mapping, PhantomData<P>);

impl<P: Page> Own<P> {
    pub(super) fn new(memory: &Memfd) -> io::Result<Own<P>> {
        Mapping::new(memory, ProtFlags::READ | ProtFlags::WRITE)
            .map(|mapping| Own(mapping, PhantomData))
    }
}

impl<P: Page> Theirs<P> {
    pub(super) fn new(memory: &Memfd) -> io::Result<Theirs<P>> {
        Mapping::to_read(memory).map(|mapping| Theirs(mapping, PhantomData))
    }
}

impl Mapping {
    fn page<P: Page>(&self) -> &P {
        assert!(
            self.len >= size_of::<P>(),
            "a control page of {} bytes",
            self.len
        );
        // SAFETY: long enough, by the line above; aligned, as it begins a page; valid, since it is
        // a `Page`.
        unsafe { self.start.cast::<P>().as_ref() }
    }
}

impl<P: Page> Deref for Own<P> {
    type Target = P;

    fn deref(&self) -> &P {
        self.0.page()
    }
}

impl<P: Page> Deref for Theirs<P> {
    type Target = P;

    fn deref(&self) -> &P {
        self.0.page()
    }
}
