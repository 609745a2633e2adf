//! Changes the order at random, within a buffer.

use std::task::{self, Poll, ready};

use crate::items::{Chunks, Demand};
use crate::{
    Chunk, Context, Graph, Hints, Item, Items, Lineage, Origin, Pipe, Reader, Result, Rng, Role,
    Wire, Writer,
};

/// Changes the order at random, within a buffer; see [`Graph::shuffle`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Shuffle {
    buffer: usize,
    within_rank: bool,
}

impl Shuffle {
    /// Makes a shuffle with a buffer of this many items.
    pub fn new(buffer: usize) -> Self {
        Shuffle {
            buffer,
            within_rank: false,
        }
    }

    /// Declares that this shuffle stays within a rank's own part, so that the checker does not ask
    /// for a shuffle before the [`sharding_filter`](Graph::sharding_filter).
    pub fn within_rank(self) -> Self {
        Shuffle {
            within_rank: true,
            ..self
        }
    }
}

/// Makes a shuffle with a buffer of so many items.
impl From<usize> for Shuffle {
    fn from(buffer: usize) -> Self {
        Shuffle::new(buffer)
    }
}

impl<T: Send + 'static> Pipe<T> for Shuffle {
    type Out = T;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<T> {
        let (size, mut rng) = (self.buffer, cx.node_rng());
        let kept = match cx.restored::<Kept>() {
            Ok(kept) => kept,
            Err(error) => return Items::fail(error),
        };
        let refill = kept
            .as_ref()
            .map(|kept| Refill::new(kept.slots(size, &mut rng)));
        Items::from_chunks(Shuffled {
            input,
            size,
            values: Vec::new(),
            origins: Vec::new(),
            draining: false,
            refill,
            lineage: cx.lineage().map(|lineage| (lineage.clone(), Vec::new())),
            book: cx.recorder().map(|_| Book::new(cx.clone(), kept.as_ref())),
            rng,
        })
    }
    fn held(&self, cx: &Context) -> Option<Vec<u64>> {
        let kept = cx.restored::<Kept>().ok()??;
        let mut held = kept.slots(self.buffer, &mut cx.node_rng());
        held.sort_unstable();
        Some(held.into_iter().map(|item| kept.position(item)).collect())
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input)
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .never_blocks(true)
            .is_resumable(u32::try_from(self.buffer).is_ok())
            .selects(true)
            .buffered(self.buffer)
            .role(if self.within_rank {
                Role::ShuffleWithinRank
            } else {
                Role::Shuffle
            })
            .lineage(true)
            .settings(self.buffer)
            .problem((self.buffer == 0).then_some("a shuffle buffer of zero"))
    }
}

struct Shuffled<T> {
    input: Items<T>,
    size: usize,
    values: Vec<T>,
    origins: Vec<Origin>,
    rng: Rng,
    draining: bool,
    /// Contents of the buffer when the epoch was stopped, while they come again.
    refill: Option<Refill<T>>,
    /// Present if checkpoints can be taken.
    book: Option<Book>,
    /// Position of the item in each place, with the lineage, if items come in any order.
    lineage: Option<(Lineage, Vec<u64>)>,
}

/// Snapshot of a shuffle. The contents of the buffer follow from it: the draws alone decide which
/// item went to which place, and they can be gone through from the last one back until every place
/// is known.
#[derive(Clone, Debug, Default, PartialEq)]
struct Kept {
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

impl Wire for Kept {
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
            || words > FAR
            || before > FAR
            || draining.is_some_and(|(all, left)| left > all)
            || !errors.is_sorted_by(|a, b| a < b)
        {
            return Err(Reader::damaged(
                "numbers of a shuffle that contradict each other",
            ));
        }
        Ok(Kept {
            steps,
            words,
            draining,
            before,
            errors,
        })
    }
}

/// Bound on positions.
const FAR: u64 = 1 << 62;
/// Words gone through at once, from the last one back.
const BLOCK: u64 = 4096;

impl Kept {
    /// Returns the number of the input item in each place. Leaves the generator where it was.
    fn slots(&self, size: usize, rng: &mut Rng) -> Vec<u64> {
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
                .filter_map(|&word| Rng::word_below(word, size as u32))
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
    fn position(&self, item: u64) -> u64 {
        self.errors
            .iter()
            .fold(item + self.before, |position, &error| {
                position + u64::from(error <= position)
            })
    }
}

/// Permutes by Fisher and Yates, from the end.
fn permute(rng: &mut Rng, mut swap: impl FnMut(usize, usize), len: usize) {
    for last in (1..len).rev() {
        swap(last, rng.below(last as u64 + 1) as usize);
    }
}

/// The buffer, while it is filled again.
struct Refill<T> {
    /// Place of the next item, and of the items after it.
    places: std::vec::IntoIter<usize>,
    slots: Vec<Option<(T, Origin)>>,
}

impl<T> Refill<T> {
    fn new(slots: Vec<u64>) -> Self {
        let mut places: Vec<usize> = (0..slots.len()).collect();
        places.sort_unstable_by_key(|&place| slots[place]);
        Refill {
            slots: slots.iter().map(|_| None).collect(),
            places: places.into_iter(),
        }
    }
}

/// Bookkeeping for snapshots of a shuffle.
struct Book {
    cx: Context,
    kept: Kept,
    /// Number of the item in each place.
    items: Vec<u64>,
    /// Lower bound on the numbers of items in the buffer.
    oldest: u64,
    /// Step at which the oldest is to be looked for again.
    look: u64,
}

impl Book {
    fn new(cx: Context, kept: Option<&Kept>) -> Self {
        // A shuffle that was put into a graph later may begin in the middle.
        let begins = || Kept {
            before: cx.position(0),
            ..Kept::default()
        };
        let kept = kept.cloned().unwrap_or_else(begins);
        Book {
            cx,
            kept,
            items: Vec::new(),
            oldest: 0,
            look: 0,
        }
    }

    /// Records the errors of a chunk that was taken just now: the number of values before each.
    fn errors<'a>(&mut self, len: usize, errors: impl Iterator<Item = &'a usize>) {
        let begin = self.cx.position(0) - len as u64;
        self.kept.errors.extend(
            errors
                .enumerate()
                .map(|(errors, &values)| begin + (values + errors) as u64),
        );
    }

    fn keep(&mut self, rng: &Rng, buffered: usize, draining: bool) {
        if !self.cx.is_due() {
            return;
        }
        if !draining {
            self.kept.words = rng.words();
        }
        if self.kept.steps >= self.look && !draining {
            self.oldest = self.items.iter().copied().min().unwrap_or(0);
            self.look = self.kept.steps + self.items.len() as u64 / 4;
            let reach = self.kept.position(self.oldest);
            let passed = self.kept.errors.partition_point(|&error| error < reach);
            self.kept.before += passed as u64;
            self.kept.errors.drain(..passed);
        }
        let kept = &mut self.kept;
        if let Some((_, left)) = &mut kept.draining {
            *left = buffered as u64;
        }
        let oldest = self.oldest;
        self.cx.snapshot_with(|keep| {
            keep.hold_since(kept.position(oldest));
            kept.clone()
        });
    }
}

impl<T: Send + 'static> Chunks<T> for Shuffled<T> {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>> {
        while self.refill.is_some() {
            if let Some(errors) = ready!(self.poll_refill(cx, demand)) {
                return Poll::Ready(Some(errors));
            }
        }
        if let Some(book) = &mut self.book
            && (self.draining || self.values.len() == self.size)
        {
            book.keep(&self.rng, self.values.len(), self.draining);
        }
        while !self.draining {
            let missing = self.size - self.values.len();
            let wanted = match missing {
                0 => demand,
                _ => Demand {
                    max: missing,
                    ..demand
                }
                .needing(missing),
            };
            let Some(mut chunk) = ready!(self.input.poll_chunk(cx, wanted)) else {
                self.drain();
                break;
            };
            if let Some(book) = &mut self.book
                && chunk.errors() > 0
            {
                book.errors(chunk.len(), chunk.error_places());
            }
            if let Some((lineage, positions)) = &mut self.lineage {
                let rng = (missing == 0).then_some(&mut self.rng);
                chunk = exchange(
                    chunk,
                    &mut self.values,
                    &mut self.origins,
                    rng,
                    (lineage, positions),
                );
                if chunk.is_empty() {
                    continue;
                }
                return Poll::Ready(Some(chunk));
            }
            if missing == 0 {
                let columns = (
                    &mut self.values[..self.size],
                    &mut self.origins[..self.size],
                );
                match &mut self.book {
                    None => swap_in(&mut chunk, columns, &mut self.rng, |_| ()),
                    Some(book) => {
                        let (items, mut number) = (
                            &mut book.items[..self.size],
                            self.size as u64 + book.kept.steps,
                        );
                        book.kept.steps += (chunk.len() - chunk.errors()) as u64;
                        swap_in(&mut chunk, columns, &mut self.rng, move |place| {
                            items[place] = number;
                            number += 1;
                        });
                    }
                }
                return Poll::Ready(Some(chunk));
            }
            let errors: Chunk<T> = chunk
                .take_errors()
                .into_iter()
                .map(|(_, error)| Err(error))
                .collect();
            chunk.append_to(&mut self.values, &mut self.origins);
            if let Some(book) = &mut self.book {
                book.items
                    .extend(book.items.len() as u64..self.values.len() as u64);
            }
            if !errors.is_empty() {
                return Poll::Ready(Some(errors));
            }
        }
        let keep = self.values.len().saturating_sub(demand.max);
        // From the end on, so that the order does not depend on how many are asked for at once.
        let (mut values, mut origins) = (self.values.split_off(keep), self.origins.split_off(keep));
        values.reverse();
        origins.reverse();
        if let Some((lineage, positions)) = &mut self.lineage {
            let mut given = positions.split_off(keep);
            given.reverse();
            lineage.gave_each(given);
        }
        let chunk = Chunk::from_columns(values, origins);
        Poll::Ready(if chunk.is_empty() { None } else { Some(chunk) })
    }
}

/// Puts each item of a chunk in the place of a random one, which leaves instead.
#[inline]
fn swap_in<T>(
    chunk: &mut Chunk<T>,
    (values, origins): (&mut [T], &mut [Origin]),
    rng: &mut Rng,
    mut note: impl FnMut(usize),
) {
    // One check of the place does for all columns, which are equally long.
    let origins = &mut origins[..values.len()];
    let (new_values, new_origins) = chunk.columns_mut();
    for (value, origin) in new_values.iter_mut().zip(new_origins) {
        let place = rng.below(values.len() as u64) as usize;
        std::mem::swap(value, &mut values[place]);
        std::mem::swap(origin, &mut origins[place]);
        note(place);
    }
}

/// Exchanges each item of a chunk for a random one of the buffer; without a generator the chunk
/// fills the buffer. Records positions along with the items.
fn exchange<T>(
    chunk: Chunk<T>,
    values: &mut Vec<T>,
    origins: &mut Vec<Origin>,
    mut rng: Option<&mut Rng>,
    (lineage, positions): (&Lineage, &mut Vec<u64>),
) -> Chunk<T> {
    let (mut out, mut given) = (Chunk::default(), Vec::new());
    for (position, item) in lineage.taken(chunk.len()).into_iter().zip(chunk) {
        match (item, &mut rng) {
            (Err(error), _) => {
                out.push(Err(error));
                given.push(position);
            }
            (Ok(item), None) => {
                let (value, origin) = item.into_parts();
                values.push(value);
                origins.push(origin);
                positions.push(position);
            }
            (Ok(item), Some(rng)) => {
                let (value, origin) = item.into_parts();
                let place = rng.below(values.len() as u64) as usize;
                let value = std::mem::replace(&mut values[place], value);
                let origin = std::mem::replace(&mut origins[place], origin);
                given.push(std::mem::replace(&mut positions[place], position));
                out.push(Ok(Item::new(value, origin)));
            }
        }
    }
    lineage.gave_each(given);
    out
}

impl<T> Shuffled<T> {
    fn drain(&mut self) {
        if let Some(book) = &mut self.book {
            book.kept.words = self.rng.words();
            book.kept.draining = Some((self.values.len() as u64, self.values.len() as u64));
        }
        // The same draws permute both columns.
        let (values, origins) = (&mut self.values, &mut self.origins);
        let (len, mut positions) = (
            values.len(),
            self.lineage.as_mut().map(|(_, positions)| positions),
        );
        let swap = |a: usize, b: usize| {
            values.swap(a, b);
            origins.swap(a, b);
            if let Some(positions) = &mut positions {
                positions.swap(a, b);
            }
        };
        permute(&mut self.rng, swap, len);
        self.draining = true;
    }

    /// Takes the contents of the buffer once more, to the places where they were. Gives the errors
    /// of items that fail this time.
    fn poll_refill(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>>
    where
        T: Send + 'static,
    {
        let Some(Refill { places, slots }) = &mut self.refill else {
            return Poll::Ready(None);
        };
        let mut errors = Chunk::default();
        if places.len() > 0 {
            let Some(chunk) = ready!(self.input.poll_chunk(
                cx,
                Demand {
                    max: places.len(),
                    ..demand
                }
            )) else {
                *places = Vec::new().into_iter();
                return Poll::Ready(None);
            };
            for (item, place) in chunk.into_iter().zip(places) {
                match item {
                    Ok(item) => slots[place] = Some(item.into_parts()),
                    Err(error) => errors.push(Err(error)),
                }
            }
            return Poll::Ready(Some(errors).filter(|errors| !errors.is_empty()));
        }
        // An item that is missing now leaves its place to the next.
        let kept = self
            .book
            .as_ref()
            .map(|book| book.kept.clone())
            .unwrap_or_default();
        (self.values, self.origins) = std::mem::take(slots).into_iter().flatten().unzip();
        self.draining = kept.draining.is_some();
        self.refill = None;
        if let Some(book) = &mut self.book {
            book.items = kept.slots(self.size, &mut self.rng);
            book.items.truncate(self.values.len());
            book.oldest = book.items.iter().copied().min().unwrap_or(0);
        }
        Poll::Ready(None)
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Changes the order at random, within a buffer: a number of items, or a [`Shuffle`] with other
    /// settings.
    ///
    /// The buffer is filled; then each new item takes the place of a random one, which leaves; at
    /// the end the rest leaves in random order (the DataPipes RFC's and tf.data's algorithm). With a
    /// buffer of `n` items an item leaves at most `n` places early, and its stay in the buffer has a
    /// geometric distribution, without bound. A buffer as large as the data is a full shuffle:
    /// shuffle names while they are cheap, then samples in a smaller buffer. The order is a function
    /// of seed, epoch and the node's name.
    ///
    /// Runs in one place; holds the buffer. Errors pass at once.
    ///
    /// A shuffle belongs before the [`sharding_filter`](Graph::sharding_filter): after it, each rank
    /// would see the same part of the data in every epoch, in another order, and the checker refuses
    /// the graph. [`Shuffle::within_rank`] declares that this is meant.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph, Uneven, pipes::Shuffle};
    ///
    /// let mut numbers = Graph::range(0..100).shuffle(10).collect()?;
    /// assert!(!numbers.is_sorted());
    /// numbers.sort();
    /// assert_eq!(numbers, Vec::from_iter(0..100));
    ///
    /// let graph = Graph::range(0..100).sharding_filter().shuffle(Shuffle::new(50).within_rank());
    /// let loader = DataLoader::builder(graph).rank(1, 2).uneven(Uneven::Drop).build()?;
    /// assert!(loader.epoch(0).blocking().all(|n| n.unwrap() % 2 == 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shuffle(self, shuffle: impl Into<Shuffle>) -> Graph<T> {
        self.pipe(shuffle.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn keeps_the_contract() {
        for buffer in [1, 2, 10, 20, 100] {
            testing::check_pipe(&Shuffle::new(buffer), (0..20u64).collect());
        }
    }

    /// A change of this order is a breaking change.
    #[test]
    fn the_order_is_pinned() {
        let graph = Graph::range(0..12).shuffle(4);
        assert_eq!(
            graph.clone().collect().unwrap(),
            [0, 4, 2, 6, 3, 7, 9, 10, 8, 5, 11, 1]
        );
        let loader = crate::DataLoader::builder(graph)
            .seed(1)
            .workers(0)
            .build()
            .unwrap();
        let other: Vec<u64> = loader.epoch(0).blocking().map(Result::unwrap).collect();
        let next: Vec<u64> = loader.epoch(1).blocking().map(Result::unwrap).collect();
        assert_ne!(other, next);
    }

    #[test]
    fn an_item_leaves_at_most_a_buffer_early() {
        for (place, value) in Graph::range(0..1000)
            .shuffle(16)
            .collect()
            .unwrap()
            .into_iter()
            .enumerate()
        {
            assert!(value <= place as u64 + 16);
        }
    }

    /// Row 125: every item is equally likely in every place if the buffer holds all.
    #[test]
    fn row_125_a_full_shuffle_is_uniform() {
        const N: u64 = 8;
        let mut counts = [[0f64; N as usize]; N as usize];
        let rounds = 4000;
        let loader = crate::DataLoader::builder(Graph::range(0..N).shuffle(100))
            .workers(0)
            .build()
            .unwrap();
        for epoch in 0..rounds {
            for (place, value) in loader.epoch(epoch).blocking().enumerate() {
                counts[place][value.unwrap() as usize] += 1.0;
            }
        }
        let expected = rounds as f64 / N as f64;
        let chi: f64 = counts
            .iter()
            .flatten()
            .map(|c| (c - expected).powi(2) / expected)
            .sum();
        // 49 degrees of freedom: the 99.9 % point is 85.4.
        assert!(chi < 85.4, "{chi}");
    }
}
