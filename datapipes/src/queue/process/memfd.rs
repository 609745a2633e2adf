//! Memory that two processes share: it has no name, cannot shrink, and has no holes.

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    memfd_create,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Resource, getrlimit};

use crate::codec::damaged;
use crate::{Error, Result};

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// A memfd whose size is fixed by seals and whose memory is fully allocated: reading a mapping of
/// it raises no SIGBUS.
#[derive(Debug)]
pub(super) struct Memfd {
    fd: OwnedFd,
    len: usize,
}

impl Memfd {
    /// Makes new memory of zeros. The length is rounded up to a multiple of a page.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`](crate::ErrorKind::Limit) if memory or descriptors run out.
    pub(super) fn new(len: usize) -> Result<Memfd> {
        let len = len.next_multiple_of(rustix::param::page_size());
        let refused = |errno: Errno| no_memory(len, io::Error::from(errno));
        // Exceeding the limit on file sizes raises a signal that ends the process; the limit is
        // therefore checked first.
        if let Some(most) = getrlimit(Resource::Fsize).current
            && len as u64 > most
        {
            return Err(no_memory(
                len,
                format_args!("files may have {most} bytes (RLIMIT_FSIZE)"),
            ));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match memfd_create("datapipes", flags | MemfdFlags::NOEXEC_SEAL) {
            // Linux before 6.3 does not know this flag.
            Err(Errno::INVAL) => memfd_create("datapipes", flags),
            made => made,
        }
        .map_err(refused)?;
        retry_on_intr(|| fallocate(&fd, FallocateFlags::empty(), 0, len as u64))
            .map_err(refused)?;
        fcntl_add_seals(&fd, SEALS).map_err(refused)?;
        Ok(Memfd { fd, len })
    }

    /// Accepts a descriptor from another process, which must be such memory of exactly this length.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) if it is not.
    pub(super) fn received(fd: OwnedFd, len: u64) -> Result<Memfd> {
        let seals = fcntl_get_seals(&fd)
            .map_err(|_| damaged("a descriptor that is not of shared memory"))?;
        if !seals.contains(SEALS) {
            return Err(damaged("shared memory whose size may change"));
        }
        let stat = fstat(&fd).map_err(io::Error::from)?;
        let (size, there) = (
            stat.st_size as u64,
            (stat.st_blocks as u64).saturating_mul(512),
        );
        if size != len || size == 0 || there < size {
            return Err(damaged(format_args!(
                "shared memory of {size} bytes, {there} of them allocated, instead of {len}"
            )));
        }
        let len = usize::try_from(len)
            .map_err(|_| damaged(format_args!("{len} bytes of shared memory")))?;
        Ok(Memfd { fd, len })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn share(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

impl AsFd for Memfd {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(super) fn no_memory(len: usize, why: impl Display) -> Error {
    Error::limit(format!("{len} bytes of shared memory: {why}"))
}

/// Returns the size of the slot for `len` bytes: at most an eighth more, so that slots can be
/// reused.
pub(super) fn class(len: usize) -> usize {
    let page = rustix::param::page_size();
    let step = (1 << len.max(1).ilog2()) / 8;
    len.max(1).next_multiple_of(step.max(page))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn classes_are_pages_and_waste_an_eighth_at_most() {
        for len in [
            64 << 10,
            (64 << 10) + 1,
            600_000,
            602_112,
            1 << 20,
            (1 << 20) + 1,
            123_456_789,
        ] {
            let size = class(len);
            assert!(
                size >= len && size.is_multiple_of(rustix::param::page_size()),
                "{len}: {size}"
            );
            assert!(
                size - len <= len / 8 + rustix::param::page_size(),
                "{len}: {size}"
            );
            assert_eq!(class(size), size);
        }
    }

    #[test]
    fn memory_that_can_change_or_is_not_there_is_refused() {
        let page = rustix::param::page_size();
        let whole = Memfd::new(page).unwrap();
        assert!(Memfd::received(whole.share().unwrap(), page as u64).is_ok());
        let kind = |fd: OwnedFd, len: usize| Memfd::received(fd, len as u64).unwrap_err().kind();
        assert_eq!(kind(whole.share().unwrap(), 2 * page), ErrorKind::Protocol);

        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let unsealed = memfd_create("unsealed", flags).unwrap();
        rustix::fs::ftruncate(&unsealed, page as u64).unwrap();
        assert_eq!(kind(unsealed, page), ErrorKind::Protocol);

        let holes = memfd_create("holes", flags).unwrap();
        rustix::fs::ftruncate(&holes, 1 << 40).unwrap();
        fcntl_add_seals(&holes, SEALS).unwrap();
        assert_eq!(kind(holes, 1 << 40), ErrorKind::Protocol);

        assert_eq!(
            kind(rustix::pipe::pipe().unwrap().0, page),
            ErrorKind::Protocol
        );
        assert_eq!(
            kind(std::fs::File::open("/proc/self/exe").unwrap().into(), page),
            ErrorKind::Protocol
        );
    }
}
