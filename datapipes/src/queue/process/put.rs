//! The end that puts messages in.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::task::{Context, Poll, ready};

use super::lent::SharedMemory;
use super::memfd::no_memory;
use super::memory::{Own, Puts, SharedTotals, Takes, Theirs};
use super::packet::{FDS, INLINE, MOST_PARTS, PARTS_ALONE, PARTS_WITH_HEAD, Packet, SlotPart};
use super::slots::Slots;
use super::socket::{Received, Sent, Socket};
use crate::codec::Writer;
use crate::queue::{Limits, Weight};
use crate::{Error, Result};

/// Number of packets read before other work gets its turn.
const AT_ONCE: usize = 16;

/// Puts messages into a queue to another process.
///
/// Bytes that the socket does not accept yet wait here, and [`poll_ready`](ProcessPut::poll_ready)
/// is pending until they are sent. At most one message waits, plus messages that were put without
/// asking.
///
/// Dropping it tells the other end that the stream is complete. The drop does not wait: bytes that
/// the socket does not accept at that moment are lost, and the other end reports a fault. Call
/// [`poll_flush`](ProcessPut::poll_flush) first to avoid that.
#[derive(Debug)]
pub(crate) struct ProcessPut {
    socket: Socket,
    pub(super) own: Own<Puts>,
    theirs: Theirs<Takes>,
    limits: Limits,
    put: Totals,
    /// Number of its last wait.
    waited: u32,
    slots: Slots,
    /// New slots that were not announced to the other end, and their descriptors.
    fresh: (Vec<SlotPart>, Vec<OwnedFd>),
    /// Packets that the socket did not accept yet.
    backlog: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// True if nobody listens, or nothing more can be sent.
    gone: bool,
    /// Fault that was not yet reported when it happened.
    fault: Option<Error>,
}

/// A message whose large slices are in shared memory already.
#[derive(Debug)]
pub(crate) struct Message {
    head: Vec<u8>,
    /// True if the first part is the head.
    far: bool,
    parts: Vec<SlotPart>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub messages: u64,
    pub items: u64,
    pub bytes: u64,
}

impl Totals {
    pub(super) fn add(&mut self, weight: Weight) {
        self.messages = self.messages.saturating_add(1);
        self.items = self.items.saturating_add(weight.items as u64);
        self.bytes = self.bytes.saturating_add(weight.bytes as u64);
    }

    pub(super) fn read(from: &SharedTotals) -> Totals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            messages: read(&from.messages),
            items: read(&from.items),
            bytes: read(&from.bytes),
        }
    }

    pub(super) fn write(self, to: &SharedTotals) {
        to.messages.store(self.messages, Ordering::Relaxed);
        to.items.store(self.items, Ordering::Relaxed);
        to.bytes.store(self.bytes, Ordering::Relaxed);
    }
}

impl ProcessPut {
    /// Makes a put end of one of the [`sockets`](super::sockets).
    ///
    /// # Errors
    /// Fails if the descriptor is not such a socket.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub(crate) fn new(socket: OwnedFd, limits: Limits) -> io::Result<ProcessPut> {
        let [puts, takes] = super::greeted(&socket)?;
        Ok(ProcessPut {
            socket: Socket::new(socket)?,
            own: Own::new(&puts)?,
            theirs: Theirs::new(&takes)?,
            limits,
            put: Totals::default(),
            waited: 0,
            slots: Slots::default(),
            fresh: Default::default(),
            backlog: VecDeque::new(),
            gone: false,
            fault: None,
        })
    }

    /// Makes this a put end that the other process trusts: sent payloads stay writable here, which
    /// saves two system calls for each slice.
    pub(crate) fn trusted(mut self) -> Self {
        self.slots.stay_open = true;
        self
    }

    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Polls for room, as [`Put::poll_ready`](crate::queue::Put::poll_ready) does.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        self.hear();
        if !self.gone && !self.backlog.is_empty() {
            self.fault = ready!(self.poll_flush(cx)).err();
        }
        loop {
            if self.gone {
                return Poll::Ready(None);
            }
            match self.room() {
                0 => (),
                room => {
                    let waits = &self.own.waits.0;
                    // Not written for each message: the other end reads it for each.
                    if waits.load(Ordering::Relaxed) != 0 {
                        waits.store(0, Ordering::Relaxed);
                    }
                    return Poll::Ready(Some(room));
                }
            }
            self.wait_for_half();
            // A take after this point sees that this end waits; an earlier take is seen here.
            if self.room() > 0 {
                continue;
            }
            if let Err(error) = ready!(self.socket.poll_readable(cx)) {
                self.fault = Some(self.broken(error));
            } else if self.hear() == AT_ONCE {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    /// Puts a message in. The large slices are copied into shared memory at once, and are not
    /// needed after that.
    ///
    /// If nobody listens, the message is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`](crate::ErrorKind::Limit) if shared memory or descriptors run out; then nothing was put, and the
    /// queue is unchanged. If the system refuses a packet, the queue is closed, and
    /// [`poll_ready`](ProcessPut::poll_ready) reports that.
    pub(crate) fn send(&mut self, writer: Writer<'_>, weight: Weight) -> Result<()> {
        let message = self.prepare(writer)?;
        self.put(message, weight)
    }

    /// Does the first half of [`send`](ProcessPut::send): copies the large slices. The message is
    /// to be [put](ProcessPut::put), or its slots are lost.
    ///
    /// # Errors
    /// As `send`.
    pub(crate) fn prepare(&mut self, writer: Writer<'_>) -> Result<Message> {
        let (head, payloads) = writer.into_parts();
        let far = head.len() > INLINE;
        let mut parts = Vec::with_capacity(payloads.len() + usize::from(far));
        if self.gone {
            return Ok(Message { head, far, parts });
        }
        let placed = self.place(
            far.then_some(&*head).into_iter().chain(payloads),
            &mut parts,
        );
        if let Err(error) = placed.and_then(|()| self.tell_of_slots()) {
            self.slots.take_back(&parts);
            self.tell_of_slots()?;
            self.push(&[&Packet::abort()], Vec::new())?;
            return Err(error);
        }
        Ok(Message { head, far, parts })
    }

    /// Does the second half: tells the other process of the message.
    ///
    /// # Errors
    /// Any error has closed the queue.
    pub(crate) fn put(&mut self, message: Message, weight: Weight) -> Result<()> {
        if self.gone {
            return Ok(());
        }
        let Message { head, far, parts } = message;
        self.put.add(weight);
        self.put.write(&self.own.put);
        let mut parts = &*parts;
        while parts.len() > PARTS_WITH_HEAD {
            let (first, rest) = parts.split_at(parts.len().min(PARTS_ALONE));
            self.push(&[&Packet::parts(first)], Vec::new())?;
            parts = rest;
        }
        let near = if far { &[] } else { &*head };
        self.push(&[&Packet::data(weight, far, parts), near], Vec::new())
    }

    /// Lets the other process write to memory, which later messages refer to.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`](crate::ErrorKind::Limit) if descriptors run out; then the queue is unchanged.
    pub(crate) fn lend(&mut self, memory: &SharedMemory) -> Result<()> {
        let fd = memory
            .memory
            .share()
            .map_err(|error| no_memory(memory.memory.len(), error))?;
        self.push(&[&Packet::lend(memory.id, memory.memory.len())], vec![fd])
    }

    /// Tells the other process that the memory is no longer lent.
    ///
    /// # Errors
    /// Any error has closed the queue.
    pub(crate) fn unlend(&mut self, id: u64) -> Result<()> {
        self.push(&[&Packet::unlend(id)], Vec::new())
    }

    /// Ready when the system has all packets.
    ///
    /// # Errors
    /// Fails if the system refuses a packet; the queue is closed then.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            if self.flush()? {
                return Poll::Ready(Ok(()));
            }
            if let Err(error) = ready!(self.socket.poll_writable(cx)) {
                return Poll::Ready(Err(self.broken(error)));
            }
        }
    }

    /// Returns the fault after [`poll_ready`](ProcessPut::poll_ready) has returned `None`, unless
    /// the other end left.
    #[cfg(test)]
    pub(crate) fn fault(&self) -> Option<&Error> {
        self.fault.as_ref()
    }

    /// Ends the stream with a fault, after the messages that were put.
    #[cfg(test)]
    pub(super) fn fail(&mut self, why: &Error) {
        let _ = self.push(&[&Packet::failed(&why.to_string())], Vec::new());
        if !self.backlog.is_empty() {
            // The fault counts, and the other end sees one in either case.
            let _ = self.flush();
        }
        self.close();
    }

    fn place<'a>(
        &mut self,
        payloads: impl Iterator<Item = &'a [u8]>,
        parts: &mut Vec<SlotPart>,
    ) -> Result<()> {
        let mut retired = Vec::new();
        for payload in payloads {
            if parts.len() == MOST_PARTS {
                let why = format!("more than {MOST_PARTS} slices of 64 KiB and more in a message");
                return Err(Error::limit(why));
            }
            let placed =
                self.slots
                    .place(payload, self.limits, &self.theirs.given_back, &mut retired);
            for slot in retired.drain(..) {
                self.push(&[&Packet::retire(slot)], Vec::new())?;
            }
            let placed = placed?;
            parts.push(placed.part);
            if let Some((slot, fd)) = placed.fresh {
                self.fresh.0.push(slot);
                self.fresh.1.push(fd);
                if self.fresh.0.len() == FDS {
                    self.tell_of_slots()?;
                }
            }
        }
        Ok(())
    }

    fn tell_of_slots(&mut self) -> Result<()> {
        if self.fresh.0.is_empty() {
            return Ok(());
        }
        let (slots, fds) = std::mem::take(&mut self.fresh);
        self.push(&[&Packet::slots(&slots)], fds)
    }

    /// Sends a packet, after those that wait.
    fn push(&mut self, pieces: &[&[u8]], fds: Vec<OwnedFd>) -> Result<()> {
        if self.gone {
            return Ok(());
        }
        if self.backlog.is_empty() {
            let mut slices = [IoSlice::new(&[]); 2];
            slices
                .iter_mut()
                .zip(pieces)
                .for_each(|(slice, piece)| *slice = IoSlice::new(piece));
            match self.socket.send(&slices[..pieces.len()], &fds) {
                Ok(Sent::All) => return Ok(()),
                Ok(Sent::Later) => (),
                Ok(Sent::Gone) => {
                    self.close();
                    return Ok(());
                }
                Err(error) => return Err(self.broken(error)),
            }
        }
        self.backlog.push_back((pieces.concat(), fds));
        Ok(())
    }

    /// Returns true if no packet waits any more.
    fn flush(&mut self) -> Result<bool> {
        while let Some((packet, fds)) = self.backlog.front() {
            match self.socket.send(&[IoSlice::new(packet)], fds) {
                Ok(Sent::All) => drop(self.backlog.pop_front()),
                Ok(Sent::Later) => return Ok(false),
                Ok(Sent::Gone) => self.close(),
                Err(error) => return Err(self.broken(error)),
            }
        }
        Ok(true)
    }

    fn broken(&mut self, error: io::Error) -> Error {
        self.close();
        Error::io(error).within("cannot send to another process")
    }

    fn close(&mut self) {
        self.gone = true;
        self.backlog.clear();
        self.socket.shut();
    }

    /// Reads packets of the other end, which only report that it took something; the counters are
    /// more exact. Returns the number of packets.
    fn hear(&mut self) -> usize {
        let mut heard = 0;
        let mut fds = Vec::new();
        while !self.gone && heard < AT_ONCE {
            match self.socket.receive(&mut [0; 8], &mut fds) {
                Ok(Received::Packet(_)) if fds.is_empty() => heard += 1,
                Ok(Received::Later) => break,
                Ok(Received::Packet(_) | Received::End) => self.close(),
                Err(error) => {
                    self.close();
                    self.fault = Some(error);
                }
            }
        }
        heard
    }

    /// Returns the number of items that there is room for; 0 if there is none.
    fn room(&self) -> usize {
        let taken = Totals::read(&self.theirs.taken);
        // The other process may have written anything: no more than everything can have been taken.
        let held =
            |put: u64, taken: u64| usize::try_from(put.saturating_sub(taken)).unwrap_or(usize::MAX);
        if held(self.put.messages, taken.messages) == 0 {
            self.limits.items.max(1)
        } else if held(self.put.bytes, taken.bytes) >= self.limits.bytes {
            0
        } else {
            self.limits
                .items
                .saturating_sub(held(self.put.items, taken.items))
        }
    }

    /// Asks for a packet once half of the queue is free.
    fn wait_for_half(&mut self) {
        let at = Totals {
            messages: self.put.messages,
            items: self.put.items.saturating_sub(self.limits.items as u64 / 2),
            bytes: self
                .put
                .bytes
                .saturating_add(1)
                .saturating_sub(self.limits.bytes as u64),
        };
        at.write(&self.own.wake_at);
        self.waited = self.waited.wrapping_add(1).max(1);
        self.own.waits.0.store(self.waited, Ordering::Release);
        // The taken totals are read after this store is visible; the other end does it in the
        // opposite order.
        fence(Ordering::SeqCst);
    }
}

impl Drop for ProcessPut {
    fn drop(&mut self) {
        // Nobody here can be told of a failure; the other end misses the last packet, and reports
        // that.
        let _ = self.push(&[&Packet::end()], Vec::new());
        let _ = self.flush();
    }
}
