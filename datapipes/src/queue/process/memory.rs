//! Mappings of shared memory: all `unsafe` code of the queue between processes is here.

use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};

use super::memfd::Memfd;

/// Number of slots with a word in the control pages. More payloads than that can be kept; they
/// travel one way.
pub(super) const SLOTS: usize = 1024;

/// The whole of a [`Memfd`], mapped until dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: memory may be read, and unmapped, on any thread.
unsafe impl Send for Mapping {}
// SAFETY: through `&Mapping` it is only read, except for the atomics of a `Page`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps memory for reading only.
    pub(super) fn to_read(memory: &Memfd) -> io::Result<Mapping> {
        Mapping::new(memory, ProtFlags::READ)
    }

    fn new(memory: &Memfd, protection: ProtFlags) -> io::Result<Mapping> {
        let (len, flags) = (memory.len(), MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: the system chooses the place, so no existing mapping is affected. A `Memfd` has
        // this many bytes and keeps them, by its seals.
        let start = unsafe { mmap(ptr::null_mut(), len, protection, flags, memory, 0) }?;
        let start =
            NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Mapping { start, len })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the first bytes; all, if there are fewer.
    pub(super) fn first(&self, len: usize) -> &[u8] {
        // SAFETY: mapped for as long as `self` lives, and zero or written. The sending process
        // writes to it only to fill the slot (`Fillable`), which it does while the slot is free:
        // before it announces a payload, and after the payload was dropped here. A stray write can
        // also happen at that time only, or in a process that is trusted.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), len.min(self.len)) }
    }

    fn protect(&mut self, protection: MprotectFlags) -> io::Result<()> {
        // SAFETY: the whole of this mapping, which no safe code points to: memory that is filled
        // here is not read here.
        unsafe { mprotect(self.start.as_ptr().cast(), self.len, protection) }.map_err(Into::into)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new`, once, with this length; all borrows of it are gone. An
        // error would leave it mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A slot at its put end. Unless it stays open, it can be written to only while it is filled: a
/// stray write to a payload that was sent raises a signal, and its reader sees nothing of it.
#[derive(Debug)]
pub(super) struct Fillable {
    mapping: Mapping,
    stays_open: bool,
}

impl Fillable {
    /// Makes a slot to be [filled](Fillable::fill) before it is shared.
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

    /// Writes bytes from the start.
    ///
    /// # Errors
    /// The error of the system if it does not change the protection. The memory may be writable
    /// then, and must not be shared.
    ///
    /// # Panics
    /// Panics if the bytes are longer than the slot.
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
        // SAFETY: within the mapping and writable, by the lines above. No safe code points to this
        // mapping: nobody else has it (`&mut self`), and no slice of it is ever returned; `bytes`
        // therefore lies elsewhere.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start.as_ptr(), bytes.len()) }
        if self.stays_open {
            Ok(())
        } else {
            self.mapping.protect(MprotectFlags::READ)
        }
    }
}

/// A row in memory of another process, mapped so that it is filled in place. Only pages that lie
/// inside the row as a whole are shared. The row's parts of the pages at its ends are in memory of
/// this process, so that the neighbouring rows cannot be written to.
#[derive(Debug)]
pub(super) struct Region {
    pages: Mapping,
    row: Range<usize>,
}

impl Region {
    /// Maps a row of at least two pages, to be written to.
    ///
    /// # Errors
    /// The error of the system if it refuses the mapping, or cannot [detach](Region::detach) one
    /// (Linux before 5.14).
    pub(super) fn new(memory: &Memfd, row: Range<usize>) -> io::Result<Region> {
        let page = rustix::param::page_size();
        let len = row.end.next_multiple_of(page) - row.start / page * page;
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses the place, so no existing mapping is affected.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, writable, MapFlags::PRIVATE) }?;
        let start =
            NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        let pages = Mapping { start, len };
        let region = Region { pages, row };
        region.map(memory, MapFlags::SHARED)?;
        let (start, len) = region.shared();
        // A process that this one forks has no business with it.
        // SAFETY: inside of the mapping; that of this process stays.
        unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontFork) }?;
        Ok(region)
    }

    /// Maps the pages of the row that have nothing else, in place of what is there.
    fn map(&self, memory: &Memfd, flags: MapFlags) -> io::Result<()> {
        let page = rustix::param::page_size();
        let (start, len) = self.shared();
        let from = self.row.start.next_multiple_of(page);
        assert!(from + len <= memory.len(), "a row inside of its memory");
        let (flags, writable) = (flags | MapFlags::FIXED, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: it replaces pages of this mapping. At first nobody points to them; later they
        // have the same bytes, and no other process writes to this part of the memory.
        unsafe {
            mmap(
                start.as_ptr().cast(),
                len,
                writable,
                flags,
                memory,
                from as u64,
            )
        }?;
        // SAFETY: the same as writing to each page what it has.
        unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxPopulateWrite) }?;
        Ok(())
    }

    /// Returns the start and the length of the pages that are shared.
    fn shared(&self) -> (NonNull<u8>, usize) {
        let page = rustix::param::page_size();
        let (from, to) = (
            self.row.start.next_multiple_of(page),
            self.row.end / page * page,
        );
        // SAFETY: inside of the mapping, which begins with the page of the row's start.
        let start = unsafe { self.pages.start.add(from - self.row.start / page * page) };
        (start, to - from)
    }

    /// Returns the place of the row in its memory.
    pub(super) fn row(&self) -> Range<usize> {
        self.row.clone()
    }

    /// Returns the row's first byte, which has the place in a page that it has in its memory.
    pub(super) fn start(&self) -> NonNull<u8> {
        let page = rustix::param::page_size();
        // SAFETY: inside of the mapping, as above.
        unsafe { self.pages.start.add(self.row.start % page) }
    }

    /// Returns the bytes of the row that are in memory of this process, and their places in its
    /// memory: those at its ends.
    pub(super) fn apart(&self) -> [(usize, &[u8]); 2] {
        let page = rustix::param::page_size();
        let Range { start, end } = self.row.clone();
        let (head, tail) = (start.next_multiple_of(page) - start, end % page);
        let first = self.start();
        // SAFETY: inside of the mapping, initialised, and written to by nobody: the row is complete
        // when this is called.
        let bytes = |at, len| unsafe { std::slice::from_raw_parts(first.add(at).as_ptr(), len) };
        [
            (start, bytes(0, head)),
            (end - tail, bytes(end - tail - start, tail)),
        ]
    }

    /// Lets this process write to the row, or not.
    ///
    /// # Errors
    /// The error of the system if it does not change the protection.
    pub(super) fn set_writable(&self, is_writable: bool) -> io::Result<()> {
        let (start, len) = self.shared();
        let mut protection = MprotectFlags::READ;
        protection.set(MprotectFlags::WRITE, is_writable);
        // SAFETY: inside of the mapping. Who writes to the row asks before that (`slice_mut`).
        unsafe { mprotect(start.as_ptr().cast(), len, protection) }.map_err(Into::into)
    }

    /// Turns the row into memory of this process alone, with the same bytes. Others may read and
    /// write these at the same time: each page is replaced by its copy, as by the first write to a
    /// private mapping.
    ///
    /// Ends the process if there is no memory for that, as any allocation does.
    pub(super) fn detach(&self, memory: &Memfd) {
        if let Err(error) = self.map(memory, MapFlags::PRIVATE) {
            crate::error::print_line(format_args!(
                "no memory for a row that is still in use: {error}"
            ));
            std::process::abort();
        }
    }
}

/// Memory that this process writes to, and reads where others wrote. The type does not know who may
/// access which part and when; it only keeps the mapping alive.
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
    /// Totals that were put in so far.
    pub put: SharedTotals,
    /// Totals of the take end at which the put end is to be woken.
    pub wake_at: SharedTotals,
    /// A number that was not used for a wait before, if the put end waits for a packet; otherwise
    /// 0.
    pub waits: Line<AtomicU32>,
}

/// The page of the take end.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Takes {
    /// Totals that were taken out so far.
    pub taken: SharedTotals,
    /// Number of payloads that each slot had and that were dropped.
    pub given_back: [AtomicU32; SLOTS],
}

/// Totals since the start.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct SharedTotals {
    pub messages: AtomicU64,
    pub items: AtomicU64,
    pub bytes: AtomicU64,
}

/// A value alone in its cache lines.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Line<T>(pub T);

/// A page that one end writes and the other reads, without a system call. Each end has two: its
/// own, and that of the other end, which it cannot write to. A faulty end can therefore spoil only
/// what it sends, not what it received.
///
/// # Safety
/// The type must be made of atomics only, which are valid for any bytes and any writer.
pub(super) unsafe trait Page {}

// SAFETY: its definition has atomics only.
unsafe impl Page for Puts {}
// SAFETY: its definition has atomics only.
unsafe impl Page for Takes {}

/// Number of bytes in a page.
pub(super) const PAGE: usize = 64 << 10;

/// The page that this end writes.
#[derive(Debug)]
pub(super) struct Own<P>(Mapping, PhantomData<P>);

/// The page that the other end writes. Values read from it may be anything.
///
/// Loads are `Relaxed`: other orderings are not guaranteed to work on memory that is read-only.
/// Fences order them.
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
