//! The carriers of an edge: non-blocking, bounded by count and bytes, ordered, once only, between
//! two parties.
//!
//! The requirements are the DataPipes RFC's for its `DataLoaderQueue`. [`Put`] and [`Take`] are the
//! two ends; the executor uses nothing else of a queue, so a carrier between processes or machines
//! fits in. [`conformance`] is the suite that every carrier passes.

#[cfg(test)]
pub(crate) mod conformance;
#[cfg(target_os = "linux")]
mod process;
mod thread;

use std::task::{Context, Poll};

#[cfg(target_os = "linux")]
pub(crate) use process::{ProcessPut, ProcessTake, Shared, sockets};
pub(crate) use thread::{ThreadPut, ThreadTake, thread};

/// How much a queue may hold. At least one message always fits, however large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub items: usize,
    pub bytes: usize,
}

/// What a message weighs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Weight {
    pub items: usize,
    pub bytes: usize,
}

/// The end that puts messages in. Dropping it ends the stream, behind what was put.
pub(crate) trait Put<M>: Send {
    /// Ready with the number of items that there is room for, at least 1; or with `None` once
    /// nobody listens. Who has to wait is woken when half of the queue is free.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Option<usize>>;
    /// Puts a message in; it is a mistake to do so before `poll_ready` said that there is room.
    fn put(&mut self, message: M, weight: Weight);
    /// Changes how much may be held.
    fn set_limits(&mut self, limits: Limits);
}

/// The end that takes messages out. Dropping it drops what is in the queue and wakes the other end.
pub(crate) trait Take<M>: Send {
    /// The next message; `None` once the other end is gone and all was taken.
    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Option<M>>;
    /// What is in the queue.
    fn held(&self) -> Weight;
}
