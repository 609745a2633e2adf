//! Changes the order at random, within a buffer.

use std::task::{self, Poll, ready};

use crate::items::{Chunks, Demand};
use crate::{Chunk, Context, Facts, Graph, Items, Origin, Pipe, Rng, Role};

/// Changes the order at random, within a buffer; see [`Graph::shuffle`].
#[derive(Clone, Debug)]
pub struct Shuffle {
    buffer: usize,
    within_rank: bool,
}

impl Shuffle {
    /// With a buffer of so many items.
    pub fn new(buffer: usize) -> Self {
        Shuffle { buffer, within_rank: false }
    }

    /// Says that this shuffle is meant to stay within a rank's own part, so that the checker does not ask for one
    /// before the [`sharding_filter`](Graph::sharding_filter).
    pub fn within_rank(self) -> Self {
        Shuffle { within_rank: true, ..self }
    }
}

impl<T: Send + 'static> Pipe<T> for Shuffle {
    type Out = T;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<T> {
        Items::from_chunks(Shuffled {
            input,
            size: self.buffer,
            values: Vec::new(),
            origins: Vec::new(),
            rng: cx.node_rng(),
            draining: false,
        })
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input)
    }
    fn facts(&self) -> Facts {
        Facts::any_order()
            .with_buffered(self.buffer)
            .with_role(if self.within_rank { Role::ShuffleWithinRank } else { Role::Shuffle })
            .with_settings(self.buffer)
            .with_problem((self.buffer == 0).then_some("a shuffle buffer of zero"))
    }
}

struct Shuffled<T> {
    input: Items<T>,
    size: usize,
    values: Vec<T>,
    origins: Vec<Origin>,
    rng: Rng,
    draining: bool,
}

impl<T: Send + 'static> Chunks<T> for Shuffled<T> {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>> {
        while !self.draining {
            let missing = self.size - self.values.len();
            let wanted = if missing > 0 { Demand { max: missing, ..demand } } else { demand };
            let Some(mut chunk) = ready!(self.input.poll_chunk(cx, wanted)) else {
                self.drain();
                break;
            };
            if missing == 0 {
                // Each new item takes the place of a random one, which leaves in its stead.
                let (values, origins) = chunk.columns_mut();
                for (value, origin) in values.iter_mut().zip(origins) {
                    let place = self.rng.below(self.size as u64) as usize;
                    std::mem::swap(value, &mut self.values[place]);
                    std::mem::swap(origin, &mut self.origins[place]);
                }
                return Poll::Ready(Some(chunk));
            }
            let errors: Chunk<T> = chunk.take_errors().into_iter().map(|(_, error)| Err(error)).collect();
            chunk.append_to(&mut self.values, &mut self.origins);
            if !errors.is_empty() {
                return Poll::Ready(Some(errors));
            }
        }
        let keep = self.values.len().saturating_sub(demand.max);
        // From the end on, so that the order does not depend on how many are asked for at once.
        let (mut values, mut origins) = (self.values.split_off(keep), self.origins.split_off(keep));
        values.reverse();
        origins.reverse();
        let chunk = Chunk::from_columns(values, origins);
        Poll::Ready(if chunk.is_empty() { None } else { Some(chunk) })
    }
}

impl<T> Shuffled<T> {
    fn drain(&mut self) {
        // The same draws permute both columns.
        for last in (1..self.values.len()).rev() {
            let other = self.rng.below(last as u64 + 1) as usize;
            self.values.swap(last, other);
            self.origins.swap(last, other);
        }
        self.draining = true;
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Changes the order at random, within a buffer of `buffer` items.
    ///
    /// The buffer is filled; then each new item takes the place of a random one, which leaves; at the end the rest
    /// leaves in random order (the DataPipes RFC's and tf.data's algorithm). An item leaves at most `buffer` places
    /// early, and stays any length of time with geometric odds. A buffer as large as the data is a full shuffle:
    /// shuffle names while they are cheap, then samples in a smaller buffer. The order is a function of
    /// seed, epoch and the node's name.
    ///
    /// Runs in one place; holds `buffer` items. Errors pass at once.
    ///
    /// # Examples
    /// ```
    /// let mut numbers = datapipes::Graph::range(0..100).shuffle(10).collect().unwrap();
    /// assert!(!numbers.is_sorted());
    /// numbers.sort();
    /// assert_eq!(numbers, Vec::from_iter(0..100));
    /// ```
    pub fn shuffle(self, buffer: usize) -> Graph<T> {
        self.pipe(Shuffle::new(buffer))
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
        assert_eq!(graph.clone().collect().unwrap(), [0, 4, 2, 6, 3, 7, 9, 10, 8, 5, 11, 1]);
        let loader = crate::DataLoader::builder(graph).seed(1).workers(0).build().unwrap();
        let other: Vec<u64> = loader.epoch(0).blocking().map(Result::unwrap).collect();
        let next: Vec<u64> = loader.epoch(1).blocking().map(Result::unwrap).collect();
        assert_ne!(other, next);
    }

    #[test]
    fn an_item_leaves_at_most_a_buffer_early() {
        for (place, value) in Graph::range(0..1000).shuffle(16).collect().unwrap().into_iter().enumerate() {
            assert!(value <= place as u64 + 16);
        }
    }

    /// Row 125: every item is equally likely in every place where the buffer holds all.
    #[test]
    fn row_125_a_full_shuffle_is_uniform() {
        const N: u64 = 8;
        let mut counts = [[0f64; N as usize]; N as usize];
        let rounds = 4000;
        let loader = crate::DataLoader::builder(Graph::range(0..N).shuffle(100)).workers(0).build().unwrap();
        for epoch in 0..rounds {
            for (place, value) in loader.epoch(epoch).blocking().enumerate() {
                counts[place][value.unwrap() as usize] += 1.0;
            }
        }
        let expected = rounds as f64 / N as f64;
        let chi: f64 = counts.iter().flatten().map(|c| (c - expected).powi(2) / expected).sum();
        // 49 degrees of freedom: the 99.9 % point is 85.4.
        assert!(chi < 85.4, "{chi}");
    }
}
