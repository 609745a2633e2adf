//! The queue between two processes: small packets on a Unix socket, large slices in shared memory.
//!
//! The two ends are the two sockets of a pair that has no name, so nothing is in the file system and nothing can be
//! stale. What a message is made of is in [`packet`]. A slice of [`PAYLOAD`](crate::wire::PAYLOAD) bytes and more is copied
//! once, into a slot: a memfd that both processes have mapped, and that is used again when the last clone of the
//! slice is dropped over there. To say so is one store into the [control page](memory::Control), which also has the
//! counters of what was put and taken: as long as nobody has to wait, taking costs no system call but the
//! one that reads the packet.
//!
//! Each end takes what comes from the other for numbers that anybody may have written. A process that has gone mad may
//! spoil the bytes that it sends, nothing else: lengths are checked, memory is mapped only when it can neither shrink nor has
//! holes, and no more is allocated than has arrived.
//!
//! memfd, seals and passing descriptors: memfd_create(2), fcntl(2), unix(7) of the Linux manual.

mod lent;
mod memfd;
mod memory;
mod packet;
mod put;
mod slots;
mod socket;
mod take;
#[cfg(test)]
mod typed;

#[cfg(test)]
mod mean;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod two;

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub(crate) use lent::Shared;
pub(crate) use put::ProcessPut;
pub(crate) use take::ProcessTake;
#[cfg(test)]
use typed::{TypedPut, TypedTake};

use memfd::Memfd;
use memory::{Control, ControlPage};
use packet::Packet;
use socket::{Received, Sent};

/// The two ends of a new queue, for [`ProcessPut::new`] and [`ProcessTake::new`], here or in a child that inherits one of
/// them. They are closed on exec, and do not block.
///
/// # Errors
/// What the system says when it has no more descriptors or memory.
pub(crate) fn sockets() -> io::Result<(OwnedFd, OwnedFd)> {
    let (put, take) = socket::pair()?;
    let control = Memfd::new(Control::SIZE).map_err(io::Error::other)?;
    // Both find it when they start: each has it from its first moment, and neither waits for the other.
    for end in [&put, &take] {
        let fd = control.share()?;
        match socket::send(end, &[IoSlice::new(&Packet::hello())], &[fd])? {
            Sent::All => (),
            Sent::Later | Sent::Gone => return Err(io::Error::other("a new socket takes nothing")),
        }
    }
    Ok((put, take))
}

/// The control page that waits in a socket of [`sockets`].
fn greeted(socket: &OwnedFd) -> io::Result<Arc<ControlPage>> {
    let mut buffer = [0; 64];
    let mut fds = Vec::new();
    let len = match socket::receive(socket, &mut buffer, &mut fds).map_err(io::Error::other)? {
        Received::Packet(len) => len,
        Received::Later | Received::End => return Err(io::Error::other("no socket of a queue")),
    };
    match (Packet::decode(&buffer[..len]).map_err(io::Error::other)?, fds.pop()) {
        (Packet::Hello, Some(fd)) if fds.is_empty() => {
            let control = Memfd::received(fd, Control::SIZE as u64).map_err(io::Error::other)?;
            Ok(Arc::new(ControlPage::new(&control)?))
        }
        _ => Err(io::Error::other("no control page came first")),
    }
}
