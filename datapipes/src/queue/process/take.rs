//! The end that takes messages out.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use super::lent::Lent;
use super::memfd::Memfd;
use super::memory::{Mapping, Own, Puts, SLOTS, Takes, Theirs};
use super::packet::{FDS, LONGEST, MOST_PARTS, ONCE, Packet, SlotPart};
use super::put::Totals;
use super::socket::{Received, Socket};
use crate::codec::{Parcel, damaged};
use crate::queue::Weight;
use crate::{Error, Result};

/// Number of packets without a message that are read before other work gets its turn.
const AT_ONCE: usize = 256;

/// Takes messages out of a queue from another process.
///
/// The payloads of a message are in memory that both processes share. They may be kept for any
/// time, even after the queue is gone. They do not count as held.
#[derive(Debug)]
pub(crate) struct ProcessTake {
    socket: Socket,
    pub(super) own: Arc<Own<Takes>>,
    theirs: Theirs<Puts>,
    buffer: Box<[u8]>,
    slots: Vec<Option<Arc<PayloadSlot>>>,
    /// Number of payloads that were in each slot.
    uses: Vec<u32>,
    /// Memory for one payload each, in the order of the payloads.
    once: VecDeque<Once>,
    /// Parts of the next message that came so far.
    parts: Vec<Bytes>,
    taken: Totals,
    /// Number of the put end's wait at its last wake.
    pub(super) woken: u32,
    /// Memory that the other end lends to this process, if this end accepts loans.
    lent: Option<HashMap<u64, Arc<Lent>>>,
    /// Set at the end of the stream; contains the error if the other end did not end properly.
    end: Option<Option<Error>>,
}

/// A slot that the put end writes to when no payload is in it.
#[derive(Debug)]
struct PayloadSlot {
    memory: Mapping,
    control: Arc<Own<Takes>>,
    number: usize,
    /// True if a payload is in it, as far as this process knows.
    given_out: AtomicBool,
}

/// A payload in a slot, which is free when this is dropped.
struct SlotPayload {
    slot: Arc<PayloadSlot>,
    len: usize,
    /// Number of payloads that were in the slot, including this one.
    uses: u32,
}

impl AsRef<[u8]> for SlotPayload {
    fn as_ref(&self) -> &[u8] {
        self.slot.memory.first(self.len)
    }
}

impl Drop for SlotPayload {
    fn drop(&mut self) {
        self.slot.given_out.store(false, Ordering::Release);
        self.slot.control.given_back[self.slot.number].store(self.uses, Ordering::Release);
    }
}

/// Memory for one payload: mapped, or copied if the system allows no more mappings.
#[derive(Debug)]
enum Once {
    Mapped(Mapping),
    Copied(Vec<u8>),
}

struct OncePayload {
    memory: Mapping,
    len: usize,
}

impl AsRef<[u8]> for OncePayload {
    fn as_ref(&self) -> &[u8] {
        self.memory.first(self.len)
    }
}

impl ProcessTake {
    /// Makes a take end of one of the [`sockets`](super::sockets).
    ///
    /// # Errors
    /// Fails if the descriptor is not such a socket.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<ProcessTake> {
        let [puts, takes] = super::greeted(&socket)?;
        Ok(ProcessTake {
            socket: Socket::new(socket)?,
            own: Arc::new(Own::new(&takes)?),
            theirs: Theirs::new(&puts)?,
            buffer: vec![0; LONGEST].into(),
            slots: Vec::new(),
            uses: Vec::new(),
            once: VecDeque::new(),
            parts: Vec::new(),
            taken: Totals::default(),
            woken: 0,
            lent: None,
            end: None,
        })
    }

    /// Makes this a take end whose other end may lend memory.
    pub(crate) fn borrowing(self) -> Self {
        ProcessTake {
            lent: Some(HashMap::new()),
            ..self
        }
    }

    /// Returns memory that was lent, and not taken back yet.
    pub(crate) fn lent(&self, id: u64) -> Option<&Arc<Lent>> {
        self.lent.as_ref()?.get(&id)
    }

    /// Returns the next message; `None` once the other end is gone, in whatever way, and all
    /// messages were taken. Nothing is returned of a message that did not arrive completely.
    pub(crate) fn poll_parcel(&mut self, cx: &mut Context<'_>) -> Poll<Option<Parcel>> {
        let mut fds = Vec::new();
        for _ in 0..AT_ONCE {
            if self.end.is_some() {
                return Poll::Ready(None);
            }
            let step = match self.socket.receive(&mut self.buffer, &mut fds) {
                Ok(Received::Packet(len)) => self.accept(len, std::mem::take(&mut fds)),
                Ok(Received::Later) => {
                    // All messages were taken, so the put end is woken in any case.
                    self.wake(|_| true);
                    ready!(self.socket.poll_readable(cx))
                        .map_err(Error::io)
                        .map(|()| None)
                }
                Ok(Received::End) if self.parts.is_empty() && self.once.is_empty() => {
                    Err(Error::truncated("the other process ended without a word"))
                }
                Ok(Received::End) => Err(Error::truncated(
                    "the other process ended in the middle of a message",
                )),
                Err(error) => Err(error),
            };
            match step {
                Ok(Some(parcel)) => return Poll::Ready(Some(parcel)),
                Ok(None) => (),
                Err(error) => self.ended(Some(error)),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Returns the error after the last message, if the other end did not end properly:
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) if it sent invalid data, [`ErrorKind::Truncated`](crate::ErrorKind::Truncated) if it ended
    /// without an end packet, [`ErrorKind::Limit`](crate::ErrorKind::Limit) if memory or descriptors ran out here.
    pub(crate) fn fault(&self) -> Option<&Error> {
        self.end.as_ref()?.as_ref()
    }

    /// Returns the weight that was put and not taken yet, as reported by the other end.
    #[cfg(test)]
    pub(crate) fn held(&self) -> Weight {
        let put = Totals::read(&self.theirs.put);
        let held =
            |put: u64, taken: u64| usize::try_from(put.saturating_sub(taken)).unwrap_or(usize::MAX);
        Weight {
            items: held(put.items, self.taken.items),
            bytes: held(put.bytes, self.taken.bytes),
        }
    }

    /// Ends the queue: nothing more is taken.
    pub(super) fn ended(&mut self, fault: Option<Error>) {
        self.end = Some(fault);
        self.slots.clear();
        self.once.clear();
        self.parts.clear();
        self.socket.shut();
    }

    /// Reads a packet. Returns the message that it completes.
    fn accept(&mut self, len: usize, fds: Vec<OwnedFd>) -> Result<Option<Parcel>> {
        // The buffer is put aside, as the packet borrows it.
        let buffer = std::mem::take(&mut self.buffer);
        let parcel =
            Packet::decode(&buffer[..len]).and_then(|packet| self.accept_packet(packet, fds));
        self.buffer = buffer;
        parcel
    }

    fn accept_packet(&mut self, packet: Packet<'_>, fds: Vec<OwnedFd>) -> Result<Option<Parcel>> {
        let wanted = match &packet {
            Packet::Slots(slots) => slots.len(),
            Packet::Lend(..) => 1,
            _ => 0,
        };
        if fds.len() != wanted || wanted > FDS {
            return Err(damaged(format_args!(
                "{} descriptors instead of {wanted}",
                fds.len()
            )));
        }
        match packet {
            Packet::Slots(slots) => slots
                .into_iter()
                .zip(fds)
                .try_for_each(|(slot, fd)| self.add(slot, fd))?,
            Packet::Parts(parts) => self.collect(&parts)?,
            Packet::Data {
                weight,
                far,
                parts,
                head,
            } => {
                self.collect(&parts)?;
                let mut payloads = std::mem::take(&mut self.parts);
                let head = match far {
                    false => Bytes::copy_from_slice(head),
                    true if !head.is_empty() || payloads.is_empty() => {
                        return Err(damaged("two heads, or none"));
                    }
                    true => payloads.remove(0),
                };
                if !self.once.is_empty() {
                    return Err(damaged(format_args!(
                        "{} payloads of no message",
                        self.once.len()
                    )));
                }
                self.count(weight);
                return Ok(Some(Parcel { head, payloads }));
            }
            Packet::Abort => {
                self.once.clear();
                self.parts.clear();
            }
            Packet::Retire(number) => match self.slots.get_mut(number).and_then(Option::take) {
                Some(slot) if !slot.given_out.load(Ordering::Acquire) => (),
                _ => {
                    return Err(damaged(format_args!(
                        "slot {number} is not there, or in use"
                    )));
                }
            },
            Packet::Lend(id, len) => self.borrow(id, len, fds)?,
            Packet::Unlend(id) => drop(self.lent.as_mut().and_then(|lent| lent.remove(&id))),
            Packet::End if self.parts.is_empty() && self.once.is_empty() => self.ended(None),
            Packet::End => return Err(damaged("the end in the middle of a message")),
            Packet::Failed(why) => return Err(damaged(String::from_utf8_lossy(why))),
            Packet::Hello | Packet::Wake => {
                return Err(damaged("a packet that makes no sense here"));
            }
        }
        Ok(None)
    }

    /// Maps new memory.
    fn add(&mut self, new: SlotPart, fd: OwnedFd) -> Result<()> {
        let (number, len) = (new.slot, new.len);
        let memory = Memfd::received(fd, len as u64)?;
        if number == ONCE {
            if self.once.len() == MOST_PARTS {
                return Err(damaged(format_args!(
                    "more than {MOST_PARTS} payloads in a message"
                )));
            }
            let once = match Mapping::to_read(&memory) {
                Ok(mapping) => Once::Mapped(mapping),
                Err(_) => Once::Copied(copy(&memory)?),
            };
            self.once.push_back(once);
            return Ok(());
        }
        debug_assert!(number < SLOTS, "checked when it was read");
        if self.slots.len() <= number {
            self.slots.resize(number + 1, None);
            self.uses.resize(number + 1, 0);
        }
        if self.slots[number].is_some() {
            return Err(damaged(format_args!("slot {number} twice")));
        }
        let memory = Mapping::to_read(&memory).map_err(|error| {
            Error::limit(format!("{len} bytes of shared memory cannot be mapped"))
                .with_source(error)
        })?;
        let control = self.own.clone();
        self.slots[number] = Some(Arc::new(PayloadSlot {
            memory,
            control,
            number,
            given_out: AtomicBool::new(false),
        }));
        Ok(())
    }

    fn borrow(&mut self, id: u64, len: usize, fds: Vec<OwnedFd>) -> Result<()> {
        let (Some(lent), Some(fd)) = (&mut self.lent, fds.into_iter().next()) else {
            return Err(damaged("memory that nobody wants"));
        };
        let memory = Memfd::received(fd, len as u64)?;
        lent.insert(id, Arc::new(Lent::new(memory)));
        Ok(())
    }

    /// Adds payloads to the next message.
    fn collect(&mut self, parts: &[SlotPart]) -> Result<()> {
        for &SlotPart { slot: number, len } in parts {
            if self.parts.len() == MOST_PARTS + 1 {
                return Err(damaged(format_args!(
                    "more than {MOST_PARTS} payloads in a message"
                )));
            }
            let too_long = |most| damaged(format_args!("{len} bytes in a slot of {most}"));
            let payload = if number == ONCE {
                match self.once.pop_front() {
                    None => return Err(damaged("a payload that did not come")),
                    Some(Once::Mapped(memory)) if len <= memory.len() => {
                        Bytes::from_owner(OncePayload { memory, len })
                    }
                    Some(Once::Copied(bytes)) if len <= bytes.len() => {
                        Bytes::from(bytes).slice(..len)
                    }
                    Some(Once::Mapped(memory)) => return Err(too_long(memory.len())),
                    Some(Once::Copied(bytes)) => return Err(too_long(bytes.len())),
                }
            } else {
                let Some(Some(slot)) = self.slots.get(number) else {
                    return Err(damaged(format_args!("slot {number} is not there")));
                };
                if len > slot.memory.len() {
                    return Err(too_long(slot.memory.len()));
                }
                if slot.given_out.swap(true, Ordering::Acquire) {
                    return Err(damaged(format_args!("slot {number} is in use")));
                }
                let uses = &mut self.uses[number];
                *uses = uses.wrapping_add(1);
                Bytes::from_owner(SlotPayload {
                    slot: slot.clone(),
                    len,
                    uses: *uses,
                })
            };
            self.parts.push(payload);
        }
        Ok(())
    }

    /// Counts a message as taken, and wakes the put end if it waits for that.
    fn count(&mut self, weight: Weight) {
        self.taken.add(weight);
        self.taken.write(&self.own.taken);
        // The wait of the other end is read after this store is visible; the other end does it in
        // the opposite order.
        fence(Ordering::SeqCst);
        let taken = self.taken;
        self.wake(|at| {
            let half = taken.items >= at.items && taken.bytes >= at.bytes;
            half || taken.messages >= at.messages
        });
    }

    /// Wakes the put end, once for each of its waits, if the awaited totals are reached.
    fn wake(&mut self, has_come: impl FnOnce(Totals) -> bool) {
        let waits = self.theirs.waits.0.load(Ordering::Relaxed);
        if waits == 0 || waits == self.woken {
            return;
        }
        fence(Ordering::Acquire);
        if has_come(Totals::read(&self.theirs.wake_at)) {
            self.woken = waits;
            // If the put end does not accept the packet, it has others to read, or is gone.
            let _ = self.socket.send(&[IoSlice::new(&Packet::wake())], &[]);
        }
    }
}

/// Copies the whole memory into memory of this process.
fn copy(memory: &Memfd) -> Result<Vec<u8>> {
    let mut bytes = vec![0; memory.len()];
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::retry_on_intr(|| {
            rustix::io::pread(memory, &mut bytes[done..], done as u64)
        }) {
            Ok(0) => return Err(damaged("shared memory that became shorter")),
            Ok(read) => done += read,
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
    }
    Ok(bytes)
}
