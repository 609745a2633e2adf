//! The end that puts messages in.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::task::{Context, Poll, Waker, ready};

use super::{MOST_SLICES, WriteHalf, memory};
use crate::codec::Writer;
use crate::queue::{Limits, Weight};
use crate::{Error, Result};

/// Size up to which small messages are sent with one system call.
const TOGETHER: usize = 64 << 10;
/// Greatest number of bytes of a message whose memory is kept here for later ones, of all such memory,
/// and of its pieces.
const SMALL: usize = 1 << 20;
const KEPT: usize = 8 << 20;
const SPARES: usize = 16;

/// Puts messages into a queue to another machine.
///
/// Messages wait here until the socket accepts them. Dropping it ends the stream; bytes that wait
/// are lost, and the other end reports a fault. Call [`poll_flush`](RemotePut::poll_flush) first to
/// avoid that.
pub(crate) struct RemotePut {
    write: WriteHalf,
    /// Messages that wait, some of them together.
    waiting: VecDeque<Waiting>,
    /// Bytes of the first that were sent.
    sent: usize,
    /// Weight of all that wait.
    held: Weight,
    limits: Limits,
    /// Memory for the next messages.
    spare: Vec<Vec<u8>>,
    /// True if something was written since the last flush: TLS keeps the end of it until then.
    unflushed: bool,
    /// True if nobody listens.
    gone: bool,
}

struct Waiting {
    bytes: Vec<u8>,
    weight: Weight,
}

/// The rest of a message that was not written at once.
#[derive(Debug)]
pub(crate) struct Frame(pub(super) Vec<u8>);

opaque_debug!(RemotePut { held, gone });

impl RemotePut {
    /// Makes a put end of a connection.
    pub(crate) fn new(write: WriteHalf, limits: Limits) -> RemotePut {
        RemotePut {
            write,
            waiting: VecDeque::new(),
            sent: 0,
            held: Weight::default(),
            limits,
            spare: Vec::new(),
            unflushed: false,
            gone: false,
        }
    }

    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Ready with the number of items that there is room for, or with `None` once nobody listens.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        let flushed = self.poll_flush(cx);
        if self.gone {
            return Poll::Ready(None);
        }
        let has_room = self.held.items < self.limits.items && self.held.bytes < self.limits.bytes;
        match flushed {
            Poll::Pending if !has_room => Poll::Pending,
            _ => Poll::Ready(Some(
                self.limits.items.saturating_sub(self.held.items).max(1),
            )),
        }
    }

    /// Puts a message in. The large slices are copied, and are not needed after that. If nobody
    /// listens, the message is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`](crate::ErrorKind::Limit) if the message has too many parts or memory runs out; then nothing was
    /// put.
    pub(crate) fn send(&mut self, writer: Writer<'_>, weight: Weight) -> Result<()> {
        let frame = self.prepare(writer)?;
        self.put(frame, weight);
        Ok(())
    }

    /// Does the first half of [`send`](RemotePut::send): writes what the socket accepts at once, and
    /// copies the rest. The message is to be [put](RemotePut::put).
    ///
    /// # Errors
    /// Those of `send`.
    pub(crate) fn prepare(&mut self, writer: Writer<'_>) -> Result<Frame> {
        let (head, slices) = writer.into_parts();
        if slices.len() > MOST_SLICES || u32::try_from(head.len()).is_err() {
            let why = format!(
                "a message of {} bytes and {} slices of 64 KiB and more: at most 4 GiB and {MOST_SLICES}",
                head.len(),
                slices.len()
            );
            return Err(Error::limit(why));
        }
        let most = 8 + 8 * slices.len() + head.len();
        let used = match most > SMALL {
            true => memory::take(most),
            false => self.spare.pop(),
        };
        let mut start = used.unwrap_or_default();
        start.clear();
        start.extend_from_slice(&(head.len() as u32).to_le_bytes());
        start.extend_from_slice(&(slices.len() as u32).to_le_bytes());
        for slice in &slices {
            start.extend_from_slice(&(slice.len() as u64).to_le_bytes());
        }
        start.extend_from_slice(&head);
        let len = start.len() + slices.iter().map(|slice| slice.len()).sum::<usize>();
        // Small messages go together. Large ones are not copied as far as there is room for them.
        let mut sent = 0;
        if self.waiting.is_empty() && len > TOGETHER && !self.gone {
            sent = self.write_now(std::iter::once(&start[..]).chain(slices.iter().copied()));
        }
        let mut frame = start;
        let mut skip = sent.saturating_sub(frame.len());
        frame.drain(..sent.min(frame.len()));
        let mut rest = len - sent;
        if rest > 0 && len > SMALL {
            // The next one of this length may need all of it.
            rest = len;
            let is_short = frame.capacity() < len;
            if let Some(mut memory) = is_short.then(|| memory::take(len)).flatten() {
                memory.clear();
                memory.append(&mut frame);
                self.keep(std::mem::replace(&mut frame, memory));
            }
        }
        frame.try_reserve_exact(rest - frame.len()).map_err(|_| {
            // The other end could not tell where the next message begins.
            self.gone |= sent > 0;
            let message = format!("no memory for a message of {len} bytes");
            Error::limit(message)
        })?;
        for slice in slices {
            let left = &slice[skip.min(slice.len())..];
            skip -= slice.len() - left.len();
            frame.extend_from_slice(left);
        }
        Ok(Frame(frame))
    }

    /// Writes as much as the socket accepts, and returns how much that is. An error shows at the
    /// next flush.
    fn write_now<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>) -> usize {
        // Together: a first part that is sent alone would wake the other end for itself.
        let mut parts: Vec<IoSlice<'_>> = parts.map(IoSlice::new).collect();
        let mut left = &mut parts[..];
        let mut sent = 0;
        let mut nobody = Context::from_waker(Waker::noop());
        while !left.is_empty() {
            let write = self.write.as_mut();
            let Poll::Ready(Ok(len @ 1..)) = write.poll_write_vectored(&mut nobody, left) else {
                break;
            };
            sent += len;
            IoSlice::advance_slices(&mut left, len);
        }
        self.unflushed |= sent > 0;
        sent
    }

    /// Does the second half of [`send`](RemotePut::send). What waits is written by the next
    /// [`poll_flush`](RemotePut::poll_flush) or [`poll_ready`](RemotePut::poll_ready).
    pub(crate) fn put(&mut self, Frame(bytes): Frame, weight: Weight) {
        if self.gone || bytes.is_empty() {
            return self.keep(bytes);
        }
        self.held.items += weight.items;
        self.held.bytes += weight.bytes;
        // The first may have been sent in part, and still takes more at its end.
        if let Some(last) = self.waiting.back_mut()
            && last.bytes.len() + bytes.len() <= TOGETHER
        {
            last.bytes.extend_from_slice(&bytes);
            last.weight.items += weight.items;
            last.weight.bytes += weight.bytes;
            self.keep(bytes);
        } else {
            self.waiting.push_back(Waiting { bytes, weight });
        }
    }

    /// Ready when the system has all messages.
    ///
    /// # Errors
    /// Fails if the connection is lost; the queue is closed then.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        while let Some(first) = self.waiting.front() {
            match ready!(
                self.write
                    .as_mut()
                    .poll_write(cx, &first.bytes[self.sent..])
            ) {
                Ok(0) => return Poll::Ready(Err(self.lost(std::io::ErrorKind::WriteZero.into()))),
                Ok(len) => self.sent += len,
                Err(error) => return Poll::Ready(Err(self.lost(error))),
            }
            self.unflushed = true;
            if self.sent == first.bytes.len() {
                self.sent = 0;
                if let Some(Waiting { bytes, weight }) = self.waiting.pop_front() {
                    self.held.items -= weight.items;
                    self.held.bytes -= weight.bytes;
                    self.keep(bytes);
                }
            }
        }
        if self.unflushed {
            if let Err(error) = ready!(self.write.as_mut().poll_flush(cx)) {
                return Poll::Ready(Err(self.lost(error)));
            }
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn keep(&mut self, bytes: Vec<u8>) {
        if bytes.capacity() > SMALL {
            return memory::keep(bytes);
        }
        let kept: usize = self.spare.iter().map(Vec::capacity).sum();
        if kept + bytes.capacity() <= KEPT && self.spare.len() < SPARES {
            self.spare.push(bytes);
        }
    }

    fn lost(&mut self, error: std::io::Error) -> Error {
        (self.gone, self.unflushed) = (true, false);
        self.waiting.clear();
        Error::io(error).within("cannot send to another machine")
    }
}
