//! Snapshots of a shuffle, from which the contents of its buffer follow.

use super::permute;
use crate::{Chunk, Context, Reader, Result, Rng, Wire, Writer};

/// Snapshot of a shuffle. The contents of the buffer follow from it: the draws alone decide which
/// item went to which place, and they can be gone through from the last one back until every place
/// is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ShuffleState {
    /// Items that took the place of another.
    steps: u64,
    /// Words that were drawn for them.
    words: u64,
    /// Number of items that were in the buffer at the end of the input, and number left.
    draining: Option<(u64, u64)>,
    /// Errors that had passed before the oldest item in the buffer, or earlier; and the positions
    /// of later errors.
    before: u64,
    errors: Vec<u64>,
}

impl Wire for ShuffleState {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.number(self.steps);
        to.number(self.words);
        self.draining.encode(to)?;
        to.number(self.before);
        self.errors.encode(to)
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let (steps, words) = (from.number()?, from.number()?);
        let draining: Option<(u64, u64)> = Wire::decode(from)?;
        let (before, errors) = (from.number()?, Vec::decode(from)?);
        if steps > words
            || words > MAX_POSITION
            || before > MAX_POSITION
            || draining.is_some_and(|(all, left)| left > all)
            || !errors.is_sorted_by(|a, b| a < b)
        {
            return Err(Reader::damaged(
                "numbers of a shuffle that contradict each other",
            ));
        }
        Ok(ShuffleState {
            steps,
            words,
            draining,
            before,
            errors,
        })
    }
}

/// Bound on positions: a snapshot with greater ones is damaged.
const MAX_POSITION: u64 = 1 << 62;
/// Words gone through at once, from the last one back.
const BLOCK: u64 = 4096;

impl ShuffleState {
    /// Returns the number of the input item in each place. Leaves the generator where it was.
    pub fn slots(&self, size: usize, rng: &mut Rng) -> Vec<u64> {
        let filled = self
            .draining
            .map_or(size, |(all, _)| size.min(all as usize));
        let mut slots = vec![u64::MAX; filled];
        let (mut missing, mut step, mut end) = (filled, self.steps, self.words);
        let mut block = Vec::with_capacity(BLOCK as usize);
        while missing > 0 && end > 0 {
            let begin = end.saturating_sub(BLOCK);
            rng.seek(begin);
            block.clear();
            block.extend((begin..end).map(|_| rng.next_u32()));
            for place in block
                .iter()
                .rev()
                .filter_map(|&word| word_below(word, size as u32))
            {
                step = step.saturating_sub(1);
                if let Some(slot @ &mut u64::MAX) = slots.get_mut(place as usize) {
                    *slot = size as u64 + step;
                    missing -= 1;
                }
            }
            end = begin;
        }
        for (place, slot) in slots
            .iter_mut()
            .enumerate()
            .filter(|(_, slot)| **slot == u64::MAX)
        {
            *slot = place as u64;
        }
        rng.seek(self.words);
        if let Some((_, left)) = self.draining {
            permute(rng, |a, b| slots.swap(a, b), filled);
            slots.truncate(left as usize);
        }
        slots
    }

    /// Returns the position of an item in the input, where errors count, too.
    pub fn position(&self, item: u64) -> u64 {
        self.errors
            .iter()
            .fold(item + self.before, |position, &error| {
                position + u64::from(error <= position)
            })
    }
}

/// Returns the number below `n` that [`Rng::below`] makes of a word; `None` if it rejects the word.
fn word_below(word: u32, n: u32) -> Option<u32> {
    let product = u64::from(word) * u64::from(n);
    (product as u32 >= n.wrapping_neg() % n).then_some((product >> 32) as u32)
}

/// Bookkeeping for snapshots of a shuffle: the draws, and the numbers of the items in the buffer.
pub(super) struct Snapshots {
    cx: Context,
    state: ShuffleState,
    /// Number of the item in each place.
    items: Vec<u64>,
    /// Lower bound on the numbers of items in the buffer.
    oldest: u64,
    /// Step at which the oldest is to be looked for again.
    look: u64,
}

impl Snapshots {
    pub fn new(cx: Context, restored: Option<ShuffleState>) -> Self {
        // A shuffle that was put into a graph later may begin in the middle.
        let begins = || ShuffleState {
            before: cx.position(0),
            ..ShuffleState::default()
        };
        Snapshots {
            state: restored.unwrap_or_else(begins),
            cx,
            items: Vec::new(),
            oldest: 0,
            look: 0,
        }
    }

    /// Records that the first items of an epoch go to free places.
    pub fn fill(&mut self, items: usize) {
        let filled = self.items.len() as u64;
        self.items.extend(filled..filled + items as u64);
    }

    pub fn is_draining(&self) -> bool {
        self.state.draining.is_some()
    }

    /// Records the positions of the errors in a chunk that was taken just now.
    pub fn pass_errors<T>(&mut self, chunk: &Chunk<T>) {
        if chunk.errors() == 0 {
            return;
        }
        let begin = self.cx.position(0) - chunk.len() as u64;
        let errors = chunk.error_places().map(|place| begin + place as u64);
        self.state.errors.extend(errors);
    }

    /// Records that this many items take the places of others. The returned function gets the place
    /// of each.
    #[inline]
    pub fn swaps(&mut self, items: usize, size: usize) -> impl FnMut(usize) {
        let mut number = size as u64 + self.state.steps;
        self.state.steps += items as u64;
        let items = &mut self.items[..size];
        move |place| {
            items[place] = number;
            number += 1;
        }
    }

    /// Records that the input has ended with this many items in the buffer.
    pub fn drains(&mut self, rng: &Rng, buffered: usize) {
        self.state.words = rng.position();
        self.state.draining = Some((buffered as u64, buffered as u64));
    }

    /// Records that the buffer was filled again after a stop.
    pub fn refilled(&mut self, size: usize, buffered: usize, rng: &mut Rng) {
        self.items = self.state.slots(size, rng);
        self.items.truncate(buffered);
        self.oldest = self.items.iter().copied().min().unwrap_or(0);
    }

    /// Takes a snapshot if one is due.
    pub fn snapshot(&mut self, rng: &Rng, buffered: usize, draining: bool) {
        if !self.cx.is_due() {
            return;
        }
        if !draining {
            self.state.words = rng.position();
        }
        if self.state.steps >= self.look && !draining {
            self.oldest = self.items.iter().copied().min().unwrap_or(0);
            self.look = self.state.steps + self.items.len() as u64 / 4;
            let reach = self.state.position(self.oldest);
            let passed = self.state.errors.partition_point(|&error| error < reach);
            self.state.before += passed as u64;
            self.state.errors.drain(..passed);
        }
        let state = &mut self.state;
        if let Some((_, left)) = &mut state.draining {
            *left = buffered as u64;
        }
        let oldest = self.oldest;
        self.cx.snapshot_with(|held| {
            held.hold_since(state.position(oldest));
            state.clone()
        });
    }
}
