//! The two queues between a parent and a child, whether the child is a process of this machine or
//! of another one.

use std::task::{Context, Poll};

use crate::codec::{Parcel, Writer};
#[cfg(feature = "remote")]
use crate::queue::{Frame, RemotePut, RemoteTake};
use crate::queue::{Limits, Message, ProcessPut, ProcessTake, Weight};
use crate::{Error, Result};

/// The end that puts orders or reports in.
pub(super) enum PutEnd {
    Local(Box<ProcessPut>),
    #[cfg(feature = "remote")]
    Remote(RemotePut),
}

/// A message that is ready to be put; its values are not needed any more.
pub(super) enum Prepared {
    Local(Message),
    #[cfg(feature = "remote")]
    Remote(Frame),
}

/// Calls the same method of either end.
macro_rules! either {
    ($self:expr, $kind:ident, $end:ident => $call:expr) => {
        match $self {
            $kind::Local($end) => $call,
            #[cfg(feature = "remote")]
            $kind::Remote($end) => $call,
        }
    };
}

impl PutEnd {
    /// Does as [`ProcessPut::poll_ready`].
    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        either!(self, PutEnd, end => end.poll_ready(cx))
    }

    /// Does as [`ProcessPut::send`].
    pub(super) fn send(&mut self, writer: Writer<'_>, weight: Weight) -> Result<()> {
        either!(self, PutEnd, end => end.send(writer, weight))
    }

    /// Does as [`ProcessPut::prepare`].
    pub(super) fn prepare(&mut self, writer: Writer<'_>) -> Result<Prepared> {
        match self {
            PutEnd::Local(end) => end.prepare(writer).map(Prepared::Local),
            #[cfg(feature = "remote")]
            PutEnd::Remote(end) => end.prepare(writer).map(Prepared::Remote),
        }
    }

    /// Does as [`ProcessPut::put`].
    pub(super) fn put(&mut self, message: Prepared, weight: Weight) -> Result<()> {
        match (self, message) {
            (PutEnd::Local(end), Prepared::Local(message)) => end.put(message, weight),
            #[cfg(feature = "remote")]
            (PutEnd::Remote(end), Prepared::Remote(frame)) => {
                end.put(frame, weight);
                Ok(())
            }
            #[cfg(feature = "remote")]
            _ => unreachable!("a message is put where it was prepared"),
        }
    }

    /// Does as [`ProcessPut::poll_flush`].
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        either!(self, PutEnd, end => end.poll_flush(cx))
    }

    pub(super) fn set_limits(&mut self, limits: Limits) {
        either!(self, PutEnd, end => end.set_limits(limits));
    }

    /// Returns the end if the other process can share memory with this one.
    pub(super) fn shares_memory(&mut self) -> Option<&mut ProcessPut> {
        match self {
            PutEnd::Local(end) => Some(end),
            #[cfg(feature = "remote")]
            PutEnd::Remote(_) => None,
        }
    }
}

/// The end that takes orders or reports out.
pub(super) enum TakeEnd {
    Local(Box<ProcessTake>),
    #[cfg(feature = "remote")]
    Remote(Box<RemoteTake>),
}

impl TakeEnd {
    /// Does as [`ProcessTake::poll_parcel`].
    pub(super) fn poll_parcel(&mut self, cx: &mut Context<'_>) -> Poll<Option<Parcel>> {
        either!(self, TakeEnd, end => end.poll_parcel(cx))
    }

    /// Does as [`ProcessTake::fault`].
    pub(super) fn fault(&self) -> Option<&Error> {
        either!(self, TakeEnd, end => end.fault())
    }

    /// Returns the number of bytes that have come from another machine.
    #[cfg(feature = "remote")]
    pub(super) fn read_bytes(&self) -> u64 {
        match self {
            TakeEnd::Local(_) => 0,
            TakeEnd::Remote(end) => end.read_bytes(),
        }
    }

    /// Returns true if no more parcels come, which only an end between machines says without a
    /// poll.
    #[cfg(feature = "remote")]
    pub(super) fn has_ended(&self) -> bool {
        match self {
            TakeEnd::Local(_) => false,
            TakeEnd::Remote(end) => end.has_ended(),
        }
    }

    /// Returns the end if the other process can share memory with this one.
    pub(super) fn shares_memory(&self) -> Option<&ProcessTake> {
        match self {
            TakeEnd::Local(end) => Some(end),
            #[cfg(feature = "remote")]
            TakeEnd::Remote(_) => None,
        }
    }
}
