//! The queue of an edge and its carriers: non-blocking, bounded by count and bytes, ordered, each
//! message delivered once, between two parties.
//!
//! The requirements are those of the DataPipes RFC for its `DataLoaderQueue`. [`Put`] and [`Take`]
//! are the two ends. The executor uses nothing else of a queue, so a carrier can be added. [`conformance`] is the suite that the carriers between
//! threads and processes pass; the carrier between machines knows only its own end's bounds.

#[cfg(test)]
pub(crate) mod conformance;
#[cfg(target_os = "linux")]
mod process;
#[cfg(all(target_os = "linux", feature = "remote"))]
mod remote;
mod thread;

use std::task::{Context, Poll};

#[cfg(target_os = "linux")]
pub(crate) use process::{Message, ProcessPut, ProcessTake, SharedMemory, sockets};
#[cfg(all(target_os = "linux", feature = "remote"))]
pub(crate) use remote::{Frame, ReadHalf, RemotePut, RemoteTake, WriteHalf};
pub(crate) use thread::{Arrivals, ThreadPut, ThreadTake, arriving, thread};

/// Limits of a queue. At least one message always fits, however large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub items: usize,
    pub bytes: usize,
}

/// Weight of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Weight {
    pub items: usize,
    pub bytes: usize,
}

/// The end that puts messages in. Dropping it ends the stream, after the messages that were put.
pub(crate) trait Put<M>: Send {
    /// Ready with the number of items that there is room for, at least 1, or with `None` once
    /// nobody listens. A waiting task is woken when half of the queue is free.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Option<usize>>;
    /// Puts a message in; must not be called before `poll_ready` has returned that there is room.
    fn put(&mut self, message: M, weight: Weight);
    /// Changes the limits.
    fn set_limits(&mut self, limits: Limits);
}

/// The end that takes messages out. Dropping it drops the messages in the queue and wakes the other
/// end.
pub(crate) trait Take<M>: Send {
    /// Returns the next message; `None` once the other end is gone and all messages were taken.
    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Option<M>>;
    /// Returns the total weight of the messages in the queue.
    fn held(&self) -> Weight;
}
