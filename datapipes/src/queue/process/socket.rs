//! Packets and descriptors on a Unix socket, without waiting.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};

use rustix::cmsg_space;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
    recvmsg, sendmsg, shutdown, socketpair,
};
use tokio::io::unix::AsyncFd;

use super::packet::FDS;
use crate::Error;
use crate::codec::damaged;

/// Makes two connected sockets; packets keep their bounds and order.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sent {
    All,
    /// The other end has to take something first.
    Later,
    Gone,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    Packet(usize),
    /// Nothing is there yet.
    Later,
    End,
}

/// Sends a packet as a whole, or nothing.
pub(super) fn send(socket: &impl AsFd, bytes: &[IoSlice<'_>], fds: &[OwnedFd]) -> io::Result<Sent> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other(format!(
            "{} descriptors in a packet",
            fds.len()
        )));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match retry_on_intr(|| sendmsg(socket, bytes, &mut control, flags)) {
        Ok(_) => Ok(Sent::All),
        Err(Errno::AGAIN) => Ok(Sent::Later),
        Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Ok(Sent::Gone),
        Err(Errno::TOOMANYREFS) => {
            let why = format!(
                "{} descriptors more than may be under way (RLIMIT_NOFILE)",
                fds.len()
            );
            Err(io::Error::other(Error::limit(why)))
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Receives a packet and its descriptors; unwanted descriptors are closed.
pub(super) fn receive(
    socket: &impl AsFd,
    into: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Result<Received, Error> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FDS))];
    // Descriptors left in it are closed when it is dropped.
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(into)], &mut control, flags)) {
            Ok(received) => break received,
            Err(Errno::AGAIN) => return Ok(Received::Later),
            // The other end has left without reading everything. This is reported once, before its
            // packets.
            Err(Errno::CONNRESET) => (),
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        let got = fds.len();
        return Err(if got < FDS {
            Error::limit(format!(
                "{got} descriptors received, then none was free (RLIMIT_NOFILE)"
            ))
        } else {
            damaged(format_args!("more than {FDS} descriptors in a packet"))
        });
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(damaged(format_args!(
            "a packet of more than {} bytes",
            into.len()
        )));
    }
    Ok(if received.bytes == 0 {
        Received::End
    } else {
        Received::Packet(received.bytes)
    })
}

/// A socket in a tokio runtime.
///
/// An operation is tried first. If it has to wait, the caller calls `poll_readable` or
/// `poll_writable`, and tries again when that is ready.
#[derive(Debug)]
pub(super) struct Socket(AsyncFd<OwnedFd>);

impl Socket {
    /// # Panics
    /// Panics outside of a runtime.
    #[expect(
        deprecated,
        reason = "unsound for what is not owned only; the one beside it is `unsafe`"
    )]
    pub(super) fn new(socket: OwnedFd) -> io::Result<Socket> {
        AsyncFd::new(socket).map(Socket)
    }

    pub(super) fn send(&self, bytes: &[IoSlice<'_>], fds: &[OwnedFd]) -> io::Result<Sent> {
        send(self.0.get_ref(), bytes, fds)
    }

    pub(super) fn receive(
        &self,
        into: &mut [u8],
        fds: &mut Vec<OwnedFd>,
    ) -> Result<Received, Error> {
        receive(self.0.get_ref(), into, fds)
    }

    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Only the readiness known before is cleared: new packets make the socket readable again.
        ready!(self.0.poll_read_ready(cx))?.clear_ready();
        Poll::Ready(Ok(()))
    }

    pub(super) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.0.poll_write_ready(cx))?.clear_ready();
        Poll::Ready(Ok(()))
    }

    /// Tells the other end that nothing more comes.
    pub(super) fn shut(&self) {
        let _ = shutdown(self.0.get_ref(), Shutdown::Both);
    }
}
