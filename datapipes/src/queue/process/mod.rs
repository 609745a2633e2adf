//! The queue between two processes: small packets on a Unix socket, large slices in shared memory.
//!
//! The two ends are the two sockets of an unnamed pair: nothing is in the file system, and nothing
//! can be stale. [`packet`] describes the parts of a message. A slice of
//! [`PAYLOAD`](crate::codec::PAYLOAD) bytes or more is copied once, into a slot, which is a memfd
//! that both processes have mapped. The slot is used again when the last clone of the slice is
//! dropped in the other process. The drop is reported by one store into a [control
//! page](memory::Page). Each end has a control page, which also counts the messages that it put or
//! took. As long as no end has to wait, taking costs one system call, which reads the packet.
//!
//! Each end treats all input from the other as untrusted. A faulty process can spoil only the bytes
//! that it is about to send. Lengths are checked. Memory is mapped only if it cannot shrink and has
//! no holes. No more is allocated than has arrived. Payloads that were sent can be written to by
//! nobody: the put end maps them [read-only](memory::Fillable), and does not decide when they are
//! free again.
//!
//! For memfd, seals and passing descriptors, see memfd_create(2), fcntl(2) and unix(7) of the Linux
//! manual.

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
mod tests;

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;

pub(crate) use lent::SharedMemory;
pub(crate) use put::{Message, ProcessPut};
pub(crate) use take::ProcessTake;
#[cfg(test)]
use typed::{TypedPut, TypedTake};

use memfd::Memfd;
use memory::PAGE;
use packet::Packet;
use socket::{Received, Sent};

/// Makes the two ends of a new queue, for [`ProcessPut::new`] and [`ProcessTake::new`], in this
/// process or in a child that inherits one of them. They are closed on exec, and do not block.
///
/// # Errors
/// The error of the system if descriptors or memory run out.
pub(crate) fn sockets() -> io::Result<(OwnedFd, OwnedFd)> {
    let (put, take) = socket::pair()?;
    let pages = [new_page()?, new_page()?];
    // Both control pages are there when an end starts: neither end waits for the other.
    for end in [&put, &take] {
        let fds = [pages[0].share()?, pages[1].share()?];
        match socket::send(end, &[IoSlice::new(&Packet::hello())], &fds)? {
            Sent::All => (),
            Sent::Later | Sent::Gone => return Err(io::Error::other("a new socket takes nothing")),
        }
    }
    Ok((put, take))
}

fn new_page() -> io::Result<Memfd> {
    Memfd::new(PAGE).map_err(io::Error::other)
}

/// Receives the control pages that wait in a socket of [`sockets`]: the put end's, and the take
/// end's.
fn greeted(socket: &OwnedFd) -> io::Result<[Memfd; 2]> {
    let mut buffer = [0; 64];
    let mut fds = Vec::new();
    let len = match socket::receive(socket, &mut buffer, &mut fds).map_err(io::Error::other)? {
        Received::Packet(len) => len,
        Received::Later | Received::End => return Err(io::Error::other("no socket of a queue")),
    };
    let page = |fd| Memfd::received(fd, PAGE as u64).map_err(io::Error::other);
    match (
        Packet::decode(&buffer[..len]).map_err(io::Error::other)?,
        <[OwnedFd; 2]>::try_from(fds),
    ) {
        (Packet::Hello, Ok([puts, takes])) => Ok([page(puts)?, page(takes)?]),
        _ => Err(io::Error::other("no control pages came first")),
    }
}
