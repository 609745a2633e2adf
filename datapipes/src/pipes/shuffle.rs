//! Changes the order at random, within a buffer.

use std::task::{self, Poll, ready};

use crate::{
    Chunk, Chunks, Context, Demand, Graph, Hints, Items, Lineage, Origin, Pipe, Reader, Result,
    Rng, Role, Wire, Writer,
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

/// Makes a shuffle with a buffer of this many items.
impl From<usize> for Shuffle {
    fn from(buffer: usize) -> Self {
        Shuffle::new(buffer)
    }
}

impl<T: Send + 'static> Pipe<T> for Shuffle {
    type Out = T;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<T> {
        let (size, mut rng) = (self.buffer, cx.node_rng());
        let restored = match cx.restored::<ShuffleState>() {
            Ok(restored) => restored,
            Err(error) => return Items::fail(error),
        };
        let refill = restored
            .as_ref()
            .map(|state| Refill::new(state.slots(size, &mut rng)));
        let book = match cx.lineage() {
            Some(lineage) => Book::Lineage(lineage.clone(), Vec::new()),
            None if cx.is_resumable() => Book::Snapshots(Snapshots::new(cx.clone(), restored)),
            None => Book::Nothing,
        };
        Items::from_chunks(Shuffled {
            input,
            size,
            values: Vec::new(),
            origins: Vec::new(),
            rng,
            draining: false,
            refill,
            book,
        })
    }
    fn held(&self, cx: &Context) -> Option<Vec<u64>> {
        let state = cx.restored::<ShuffleState>().ok()??;
        let mut held = state.slots(self.buffer, &mut cx.node_rng());
        held.sort_unstable();
        Some(held.into_iter().map(|item| state.position(item)).collect())
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

/// The buffer. It is filled; then each new item takes the place of a random one, which leaves; at
/// the end of the input the rest is permuted and leaves.
struct Shuffled<T> {
    input: Items<T>,
    size: usize,
    values: Vec<T>,
    origins: Vec<Origin>,
    rng: Rng,
    /// True after the end of the input.
    draining: bool,
    /// Contents of the buffer when the epoch was stopped, while they come again.
    refill: Option<Refill<T>>,
    book: Book,
}

impl<T: Send + 'static> Chunks<T> for Shuffled<T> {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>> {
        while self.refill.is_some() {
            if let Some(errors) = ready!(self.poll_refill(cx, demand)) {
                return Poll::Ready(Some(errors));
            }
        }
        if let Book::Snapshots(book) = &mut self.book
            && (self.draining || self.values.len() == self.size)
        {
            book.snapshot(&self.rng, self.values.len(), self.draining);
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
                self.permute();
                self.draining = true;
                break;
            };
            if missing == 0 {
                self.exchange(&mut chunk);
                return Poll::Ready(Some(chunk));
            }
            let errors = self.fill(chunk);
            if !errors.is_empty() {
                return Poll::Ready(Some(errors));
            }
        }
        let rest = self.take_last(demand.max);
        Poll::Ready(Some(rest).filter(|rest| !rest.is_empty()))
    }
}

/// Steps of the algorithm.
impl<T> Shuffled<T> {
    /// Puts the items of a chunk into free places. Returns its errors, which pass at once.
    fn fill(&mut self, chunk: Chunk<T>) -> Chunk<T> {
        self.book.filled(&chunk);
        let (mut items, mut errors) = (chunk.into_iter(), Chunk::default());
        loop {
            items.move_to(usize::MAX, &mut self.values, &mut self.origins);
            let Some(error) = items.next() else {
                return errors;
            };
            errors.push(error);
        }
    }

    /// Puts each item of a chunk in the place of a random one, which leaves instead.
    fn exchange(&mut self, chunk: &mut Chunk<T>) {
        let buffer = (
            &mut self.values[..self.size],
            &mut self.origins[..self.size],
        );
        match &mut self.book {
            Book::Nothing => swap_in(chunk, buffer, &mut self.rng, |_| ()),
            Book::Snapshots(book) => {
                book.pass_errors(chunk);
                let note = book.swaps(chunk.values().len(), self.size);
                swap_in(chunk, buffer, &mut self.rng, note);
            }
            Book::Lineage(lineage, positions) => {
                let mut passing = lineage.taken(chunk.len());
                let places: Vec<usize> = value_places(chunk).collect();
                let mut values = places.into_iter();
                swap_in(chunk, buffer, &mut self.rng, |place| {
                    let value = values.next().expect("one place for each value");
                    std::mem::swap(&mut passing[value], &mut positions[place]);
                });
                lineage.gave_each(passing);
            }
        }
    }

    /// Permutes the items that are left at the end of the input.
    fn permute(&mut self) {
        if let Book::Snapshots(book) = &mut self.book {
            book.drains(&self.rng, self.values.len());
        }
        // The same draws permute all columns.
        let (values, origins, book) = (&mut self.values, &mut self.origins, &mut self.book);
        let len = values.len();
        let swap = |a: usize, b: usize| {
            values.swap(a, b);
            origins.swap(a, b);
            if let Book::Lineage(_, positions) = book {
                positions.swap(a, b);
            }
        };
        permute(&mut self.rng, swap, len);
    }

    /// Takes up to `most` items from the end of the buffer, so that the order does not depend on
    /// how many are asked for at once.
    fn take_last(&mut self, most: usize) -> Chunk<T> {
        let left = self.values.len().saturating_sub(most);
        if let Book::Lineage(lineage, positions) = &mut self.book {
            lineage.gave_each(reversed(positions.split_off(left)));
        }
        Chunk::from_columns(
            reversed(self.values.split_off(left)),
            reversed(self.origins.split_off(left)),
        )
    }
}

/// Puts each item of a chunk in the place of a random one, which leaves instead; `note` gets each
/// place.
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

/// Permutes by Fisher and Yates, from the end.
fn permute(rng: &mut Rng, mut swap: impl FnMut(usize, usize), len: usize) {
    for last in (1..len).rev() {
        swap(last, rng.below(last as u64 + 1) as usize);
    }
}

fn reversed<V>(mut list: Vec<V>) -> Vec<V> {
    list.reverse();
    list
}

/// Returns the place of each value in a chunk, where errors count, too.
fn value_places<T>(chunk: &Chunk<T>) -> impl Iterator<Item = usize> {
    let mut errors = chunk.error_places().peekable();
    (0..chunk.len()).filter(move |place| errors.next_if_eq(place).is_none())
}

/// Returns the number below `n` that [`Rng::below`] makes of a word; `None` if it rejects the word.
fn word_below(word: u32, n: u32) -> Option<u32> {
    let product = u64::from(word) * u64::from(n);
    (product as u32 >= n.wrapping_neg() % n).then_some((product >> 32) as u32)
}

/// Bookkeeping of the items in the buffer.
enum Book {
    /// Nothing, since no checkpoints can be taken.
    Nothing,
    /// Items come in order: snapshots tell what is in the buffer.
    Snapshots(Snapshots),
    /// Items come in any order: the position of the item in each place.
    Lineage(Lineage, Vec<u64>),
}

impl Book {
    /// Records that the items of a chunk go to free places, and that its errors pass.
    fn filled<T>(&mut self, chunk: &Chunk<T>) {
        match self {
            Book::Nothing => {}
            Book::Snapshots(book) => {
                book.pass_errors(chunk);
                let filled = book.items.len() as u64;
                book.items
                    .extend(filled..filled + chunk.values().len() as u64);
            }
            Book::Lineage(lineage, positions) => {
                let taken = lineage.taken(chunk.len());
                positions.extend(value_places(chunk).map(|place| taken[place]));
                lineage.gave_each(chunk.error_places().map(|place| taken[place]).collect());
            }
        }
    }
}

/// Snapshot of a shuffle. The contents of the buffer follow from it: the draws alone decide which
/// item went to which place, and they can be gone through from the last one back until every place
/// is known.
#[derive(Clone, Debug, Default, PartialEq)]
struct ShuffleState {
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
            || words > FAR
            || before > FAR
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

/// Bound on positions.
const FAR: u64 = 1 << 62;
/// Words gone through at once, from the last one back.
const BLOCK: u64 = 4096;

impl ShuffleState {
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
    fn position(&self, item: u64) -> u64 {
        self.errors
            .iter()
            .fold(item + self.before, |position, &error| {
                position + u64::from(error <= position)
            })
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

/// Bookkeeping for snapshots of a shuffle: the draws, and the numbers of the items in the buffer.
struct Snapshots {
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
    fn new(cx: Context, restored: Option<ShuffleState>) -> Self {
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

    /// Records the positions of the errors in a chunk that was taken just now.
    fn pass_errors<T>(&mut self, chunk: &Chunk<T>) {
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
    fn swaps(&mut self, items: usize, size: usize) -> impl FnMut(usize) {
        let mut number = size as u64 + self.state.steps;
        self.state.steps += items as u64;
        let items = &mut self.items[..size];
        move |place| {
            items[place] = number;
            number += 1;
        }
    }

    /// Records that the input has ended with this many items in the buffer.
    fn drains(&mut self, rng: &Rng, buffered: usize) {
        self.state.words = rng.position();
        self.state.draining = Some((buffered as u64, buffered as u64));
    }

    /// Records that the buffer was filled again after a stop.
    fn refilled(&mut self, size: usize, buffered: usize, rng: &mut Rng) {
        self.items = self.state.slots(size, rng);
        self.items.truncate(buffered);
        self.oldest = self.items.iter().copied().min().unwrap_or(0);
    }

    /// Takes a snapshot if one is due.
    fn snapshot(&mut self, rng: &Rng, buffered: usize, draining: bool) {
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

impl<T: Send + 'static> Shuffled<T> {
    /// Takes the contents of the buffer once more, to the places where they were. Gives the errors
    /// of items that fail this time.
    fn poll_refill(
        &mut self,
        cx: &mut task::Context<'_>,
        demand: Demand,
    ) -> Poll<Option<Chunk<T>>> {
        let Some(Refill { places, slots }) = &mut self.refill else {
            return Poll::Ready(None);
        };
        if places.len() > 0 {
            let wanted = Demand {
                max: places.len(),
                ..demand
            };
            let Some(chunk) = ready!(self.input.poll_chunk(cx, wanted)) else {
                *places = Vec::new().into_iter();
                return Poll::Ready(None);
            };
            let mut errors = Chunk::default();
            for (item, place) in chunk.into_iter().zip(places) {
                match item {
                    Ok(item) => slots[place] = Some(item.into_parts()),
                    Err(error) => errors.push(Err(error)),
                }
            }
            return Poll::Ready(Some(errors).filter(|errors| !errors.is_empty()));
        }
        // An item that is missing now leaves its place to the next.
        (self.values, self.origins) = std::mem::take(slots).into_iter().flatten().unzip();
        self.refill = None;
        if let Book::Snapshots(book) = &mut self.book {
            self.draining = book.state.draining.is_some();
            book.refilled(self.size, self.values.len(), &mut self.rng);
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
        for buffer in testing::some_of([1, 10, 20, 100]) {
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
