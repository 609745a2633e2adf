//! Changes the order at random, within a buffer.

mod snapshots;

use std::task::{self, Poll, ready};

use self::snapshots::{ShuffleState, Snapshots};
use crate::{
    Chunk, Chunks, Context, Demand, Graph, Hints, Items, Lineage, Origin, Pipe, Rng, Role,
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
    pub fn within_rank(mut self) -> Self {
        self.within_rank = true;
        self
    }
}

conversions! {
    /// Makes a shuffle with a buffer of this many items.
    |buffer: usize| -> Shuffle { Shuffle::new(buffer) }
}

impl<T: Send + 'static> Pipe<T> for Shuffle {
    type Out = T;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<T> {
        let (size, mut rng) = (self.buffer, cx.node_rng());
        let restored = or_fail!(cx.restored::<ShuffleState>());
        let refill = restored
            .as_ref()
            .map(|state| Refill::new(state.slots(size, &mut rng)));
        let book = match cx.lineage() {
            Some(lineage) => Bookkeeping::Lineage(lineage.clone(), Vec::new()),
            None if cx.is_resumable() => {
                Bookkeeping::Snapshots(Snapshots::new(cx.clone(), restored))
            }
            None => Bookkeeping::Nothing,
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
            .instead("a buffer of at most 4294967295 items does")
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
    book: Bookkeeping,
}

impl<T: Send + 'static> Chunks<T> for Shuffled<T> {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>> {
        while self.refill.is_some() {
            if let Some(errors) = ready!(self.poll_refill(cx, demand)) {
                return Poll::Ready(Some(errors));
            }
        }
        if let Bookkeeping::Snapshots(book) = &mut self.book
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
            Bookkeeping::Nothing => swap_in(chunk, buffer, &mut self.rng, |_| ()),
            Bookkeeping::Snapshots(book) => {
                book.pass_errors(chunk);
                let note = book.swaps(chunk.values().len(), self.size);
                swap_in(chunk, buffer, &mut self.rng, note);
            }
            Bookkeeping::Lineage(lineage, positions) => {
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
        if let Bookkeeping::Snapshots(book) = &mut self.book {
            book.drains(&self.rng, self.values.len());
        }
        // The same draws permute all columns.
        let (values, origins, book) = (&mut self.values, &mut self.origins, &mut self.book);
        let len = values.len();
        let swap = |a: usize, b: usize| {
            values.swap(a, b);
            origins.swap(a, b);
            if let Bookkeeping::Lineage(_, positions) = book {
                positions.swap(a, b);
            }
        };
        permute(&mut self.rng, swap, len);
    }

    /// Takes up to `most` items from the end of the buffer, so that the order does not depend on
    /// how many are asked for at once.
    fn take_last(&mut self, most: usize) -> Chunk<T> {
        let left = self.values.len().saturating_sub(most);
        if let Bookkeeping::Lineage(lineage, positions) = &mut self.book {
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

/// Bookkeeping of the items in the buffer.
enum Bookkeeping {
    /// Nothing, since no checkpoints can be taken.
    Nothing,
    /// Items come in order: snapshots tell what is in the buffer.
    Snapshots(Snapshots),
    /// Items come in any order: the position of the item in each place.
    Lineage(Lineage, Vec<u64>),
}

impl Bookkeeping {
    /// Records that the items of a chunk go to free places, and that its errors pass.
    fn filled<T>(&mut self, chunk: &Chunk<T>) {
        match self {
            Bookkeeping::Nothing => {}
            Bookkeeping::Snapshots(book) => {
                book.pass_errors(chunk);
                book.fill(chunk.values().len());
            }
            Bookkeeping::Lineage(lineage, positions) => {
                let taken = lineage.taken(chunk.len());
                positions.extend(value_places(chunk).map(|place| taken[place]));
                lineage.gave_each(chunk.error_places().map(|place| taken[place]).collect());
            }
        }
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
        if let Bookkeeping::Snapshots(book) = &mut self.book {
            self.draining = book.is_draining();
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
