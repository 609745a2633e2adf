//! Packets between the two ends.
//!
//! A message begins with any number of `Slots`, each with the descriptors of new shared memory. Any
//! number of `Parts` follow, which give the places of large slices. Its end is `Data`, with the
//! remaining places, the weight, and the bytes. `Retire` removes a slot. `End` is the last packet
//! of a put end without a fault. In the other direction there is only `Wake`.

use crate::Result;
use crate::codec::{Reader, Writer, damaged};
use crate::queue::Weight;

use super::memory::SLOTS;

/// Maximum length of a packet. Several fit into a socket's buffer as Linux makes it (208 KiB).
pub(super) const LONGEST: usize = 32 << 10;
/// Maximum length of a head inside a packet. A longer head travels in a slot: copying it twice
/// costs less than the system's work for a packet.
pub(super) const INLINE: usize = 16 << 10;
/// Maximum number of parts beside a head; earlier parts are in packets of their own.
pub(super) const PARTS_WITH_HEAD: usize = 200;
pub(super) const PARTS_ALONE: usize = 2000;
/// Maximum number of descriptors in a packet.
pub(super) const FDS: usize = 32;
/// Maximum number of payloads in a message.
pub(super) const MOST_PARTS: usize = 1 << 16;

/// Place of a payload: the first `len` bytes of a slot. `ONCE` is the next slot without a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotPart {
    pub slot: usize,
    pub len: usize,
}

/// Number that stands for a slot that is used once, and not returned.
pub(super) const ONCE: usize = SLOTS;

#[derive(Debug)]
pub(super) enum Packet<'a> {
    Hello,
    /// New slots, by number and size, with a descriptor for each.
    Slots(Vec<SlotPart>),
    Parts(Vec<SlotPart>),
    /// Last packet of a message. If it is `far`, the first of all parts is the head.
    Data {
        weight: Weight,
        far: bool,
        parts: Vec<SlotPart>,
        head: &'a [u8],
    },
    /// Discards the message begun so far.
    Abort,
    Retire(usize),
    Wake,
    /// Memory of the put end that the other end may write to: its number and size, and a
    /// descriptor.
    Lend(u64, usize),
    /// Ends the loan of memory.
    Unlend(u64),
    End,
    /// The put end cannot continue.
    Failed(&'a [u8]),
}

const HELLO: u8 = 0xd1;
const NEW_SLOTS: u8 = 1;
const PARTS: u8 = 2;
const DATA: u8 = 3;
const DATA_FAR: u8 = 4;
const ABORT: u8 = 5;
const RETIRE: u8 = 6;
const WAKE: u8 = 7;
const END: u8 = 8;
const FAILED: u8 = 9;
const LEND: u8 = 10;
const UNLEND: u8 = 11;

impl<'a> Packet<'a> {
    pub(super) fn hello() -> [u8; 1] {
        [HELLO]
    }

    pub(super) fn wake() -> [u8; 1] {
        [WAKE]
    }

    pub(super) fn end() -> [u8; 1] {
        [END]
    }

    pub(super) fn abort() -> [u8; 1] {
        [ABORT]
    }

    pub(super) fn retire(slot: usize) -> Vec<u8> {
        let mut to = begin(RETIRE);
        to.number(slot as u64);
        to.into_parts().0
    }

    #[cfg(test)]
    pub(super) fn failed(why: &str) -> Vec<u8> {
        let mut to = begin(FAILED);
        to.raw(&why.as_bytes()[..why.len().min(INLINE)]);
        to.into_parts().0
    }

    pub(super) fn lend(id: u64, len: usize) -> Vec<u8> {
        let mut to = begin(LEND);
        to.number(id);
        to.number(len as u64);
        to.into_parts().0
    }

    pub(super) fn unlend(id: u64) -> Vec<u8> {
        let mut to = begin(UNLEND);
        to.number(id);
        to.into_parts().0
    }

    pub(super) fn slots(slots: &[SlotPart]) -> Vec<u8> {
        let mut to = begin(NEW_SLOTS);
        write_parts(slots, &mut to);
        to.into_parts().0
    }

    pub(super) fn parts(parts: &[SlotPart]) -> Vec<u8> {
        let mut to = begin(PARTS);
        write_parts(parts, &mut to);
        to.into_parts().0
    }

    /// Encodes the bytes before the head.
    pub(super) fn data(weight: Weight, far: bool, parts: &[SlotPart]) -> Vec<u8> {
        let mut to = begin(if far { DATA_FAR } else { DATA });
        to.number(weight.items as u64);
        to.number(weight.bytes as u64);
        write_parts(parts, &mut to);
        to.into_parts().0
    }

    pub(super) fn decode(packet: &'a [u8]) -> Result<Packet<'a>> {
        let mut from = Reader::new(packet, &[]);
        let read = match from.raw(1)?[0] {
            HELLO => Packet::Hello,
            NEW_SLOTS => Packet::Slots(read_parts(&mut from)?),
            PARTS => Packet::Parts(read_parts(&mut from)?),
            kind @ (DATA | DATA_FAR) => {
                let weight = Weight {
                    items: size(&mut from)?,
                    bytes: size(&mut from)?,
                };
                let parts = read_parts(&mut from)?;
                Packet::Data {
                    weight,
                    far: kind == DATA_FAR,
                    parts,
                    head: from.raw(from.left())?,
                }
            }
            ABORT => Packet::Abort,
            RETIRE => Packet::Retire(slot(&mut from)?),
            LEND => Packet::Lend(from.number()?, size(&mut from)?),
            UNLEND => Packet::Unlend(from.number()?),
            WAKE => Packet::Wake,
            END => Packet::End,
            FAILED => Packet::Failed(from.raw(from.left())?),
            other => return Err(damaged(format_args!("{other} is no kind of packet"))),
        };
        from.end()?;
        Ok(read)
    }
}

fn begin(kind: u8) -> Writer<'static> {
    let mut to = Writer::new();
    to.raw(&[kind]);
    to
}

fn write_parts(parts: &[SlotPart], to: &mut Writer<'_>) {
    to.number(parts.len() as u64);
    for part in parts {
        to.number(part.slot as u64);
        to.number(part.len as u64);
    }
}

fn read_parts(from: &mut Reader<'_>) -> Result<Vec<SlotPart>> {
    let count = from.count()?;
    (0..count)
        .map(|_| {
            Ok(SlotPart {
                slot: slot(from)?,
                len: size(from)?,
            })
        })
        .collect()
}

fn slot(from: &mut Reader<'_>) -> Result<usize> {
    let slot = size(from)?;
    if slot > ONCE {
        return Err(damaged(format_args!("slot {slot} of {SLOTS}")));
    }
    Ok(slot)
}

fn size(from: &mut Reader<'_>) -> Result<usize> {
    let number = from.number()?;
    usize::try_from(number).map_err(|_| damaged(format_args!("{number} is no size")))
}
