//! Slots of the put end: the free ones, and new ones.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::memfd::{Memfd, class, no_memory};
use super::memory::{Fillable, SLOTS};
use super::packet::{ONCE, SlotPart};
use crate::Result;
use crate::codec::PAYLOAD;
use crate::queue::Limits;

/// Maximum ratio of a slot's size to its payload, except for the smallest slots.
const WIDEST: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Slots {
    /// True if slots can be written to after they were filled.
    pub stay_open: bool,
    /// Slots by number.
    all: Vec<Option<Fillable>>,
    /// Number of payloads that were put into each slot.
    uses: Vec<u32>,
    /// Numbers without memory.
    empty: Vec<usize>,
    /// Slots known to be free, by size. Slots returned since then are still in `busy`.
    free: BTreeMap<usize, Vec<usize>>,
    free_bytes: usize,
    busy: Vec<usize>,
}

/// Place of a payload.
#[derive(Debug)]
pub(super) struct Placed {
    pub part: SlotPart,
    /// Size and descriptor of the slot, if it is new to the other end.
    pub fresh: Option<(SlotPart, OwnedFd)>,
}

impl Slots {
    /// Copies a payload into a slot. Slots that were given up for it are added to `retired`, and
    /// have to be announced first.
    pub(super) fn place(
        &mut self,
        bytes: &[u8],
        limits: Limits,
        given_back: &[AtomicU32; SLOTS],
        retired: &mut Vec<usize>,
    ) -> Result<Placed> {
        if let Some(slot) = self.fitting(bytes.len()).or_else(|| {
            self.sweep(given_back);
            self.fitting(bytes.len())
        }) {
            let mapping = self.all[slot].as_mut().expect("a free slot has memory");
            let size = mapping.len();
            if let Err(error) = mapping.fill(bytes) {
                self.retire(slot, retired);
                return Err(no_memory(size, error));
            }
            self.is_used(slot);
            return Ok(Placed {
                part: SlotPart {
                    slot,
                    len: bytes.len(),
                },
                fresh: None,
            });
        }
        self.give_up(kept(limits), retired);

        let memory = Memfd::new(class(bytes.len().max(PAYLOAD)))?;
        let size = memory.len();
        let refused = |error| no_memory(size, error);
        let mut mapping = Fillable::new(&memory, self.stay_open).map_err(refused)?;
        mapping.fill(bytes).map_err(refused)?;
        let slot = self.number(retired);
        if slot != ONCE {
            self.all[slot] = Some(mapping);
            self.is_used(slot);
        }
        let fresh = Some((SlotPart { slot, len: size }, memory.into_fd()));
        Ok(Placed {
            part: SlotPart {
                slot,
                len: bytes.len(),
            },
            fresh,
        })
    }

    fn is_used(&mut self, slot: usize) {
        self.uses[slot] = self.uses[slot].wrapping_add(1);
        self.busy.push(slot);
    }

    /// Takes back payloads that were not announced to the other end.
    pub(super) fn take_back(&mut self, parts: &[SlotPart]) {
        for part in parts.iter().filter(|part| part.slot != ONCE) {
            self.uses[part.slot] = self.uses[part.slot].wrapping_sub(1);
        }
    }

    /// Takes the smallest free slot that fits.
    fn fitting(&mut self, len: usize) -> Option<usize> {
        let len = len.max(PAYLOAD);
        let (&size, slots) = self
            .free
            .range_mut(len..=len.saturating_mul(WIDEST))
            .next()?;
        // The slot freed last is the warmest in the cache.
        let slot = slots.pop();
        if slots.is_empty() {
            self.free.remove(&size);
        }
        self.free_bytes -= size;
        slot
    }

    /// Finds the slots that were returned.
    fn sweep(&mut self, given_back: &[AtomicU32; SLOTS]) {
        let Slots {
            all,
            uses,
            free,
            free_bytes,
            busy,
            ..
        } = self;
        busy.retain(|&slot| {
            let back = given_back[slot].load(Ordering::Relaxed) == uses[slot];
            if back {
                let size = all[slot].as_ref().expect("a slot in use has memory").len();
                free.entry(size).or_default().push(slot);
                *free_bytes += size;
            }
            !back
        });
        // Pairs with the stores of the readers: they cannot see what is written from now on.
        fence(Ordering::Acquire);
    }

    /// Returns memory of free slots to the system until no more than `keep` bytes are free, the
    /// largest slots first.
    fn give_up(&mut self, keep: usize, retired: &mut Vec<usize>) {
        while self.free_bytes > keep && self.give_up_one(retired) {}
    }

    fn give_up_one(&mut self, retired: &mut Vec<usize>) -> bool {
        let Some(mut largest) = self.free.last_entry() else {
            return false;
        };
        let size = *largest.key();
        let slot = largest.get_mut().pop().expect("no size is without slots");
        if largest.get().is_empty() {
            largest.remove();
        }
        self.free_bytes -= size;
        self.retire(slot, retired);
        true
    }

    fn retire(&mut self, slot: usize, retired: &mut Vec<usize>) {
        self.all[slot] = None;
        self.empty.push(slot);
        retired.push(slot);
    }

    /// Returns a number for a new slot; `ONCE` if all are in use.
    fn number(&mut self, retired: &mut Vec<usize>) -> usize {
        if self.empty.is_empty() && self.all.len() == SLOTS {
            self.give_up_one(retired);
        }
        match self.empty.pop() {
            Some(slot) => slot,
            None if self.all.len() < SLOTS => {
                self.all.push(None);
                self.uses.push(0);
                self.all.len() - 1
            }
            None => ONCE,
        }
    }
}

/// Returns the number of free bytes that are kept for later payloads.
fn kept(limits: Limits) -> usize {
    (2 * limits.bytes.min(128 << 20)).max(16 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_beyond_the_bound_is_given_up_the_largest_first() {
        let (mut slots, mut retired) = (Slots::default(), Vec::new());
        let given_back = [const { AtomicU32::new(0) }; SLOTS];
        let limits = Limits { items: 4, bytes: 0 };
        let mut place = |len: usize| {
            let placed = slots
                .place(&vec![7; len], limits, &given_back, &mut retired)
                .unwrap();
            (placed.part.slot, std::mem::take(&mut retired))
        };
        assert_eq!(place(6 << 20), (0, vec![]));
        assert_eq!(place(7 << 20), (1, vec![]));
        assert_eq!(place(5 << 20), (2, vec![]));
        given_back[..3]
            .iter()
            .for_each(|slot| slot.store(1, Ordering::Release));
        // 18 MiB are free: 2 too many. The number of the released slot is used again.
        assert_eq!(place(100 << 10), (1, vec![1]));
        // The smallest of the slots that fit.
        assert_eq!(place(4 << 20), (2, vec![]));
        assert_eq!(place(3 << 20), (0, vec![]));
        assert_eq!(place(3 << 20), (3, vec![]));
    }
}
