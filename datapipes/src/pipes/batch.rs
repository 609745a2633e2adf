//! Groups consecutive items into batches.

use std::task::{self, Poll, ready};

use crate::{
    Chunk, Chunks, Context, Demand, Graph, Hints, Item, Items, Origin, Pipe, PipeSnapshot, Result,
    Role,
};

/// Groups consecutive items into batches of a fixed size; see [`Graph::batch`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Batch {
    pub(crate) size: usize,
    pub(crate) drop_last: bool,
}

impl Batch {
    /// Makes batches of `size` items; a shorter last batch is kept.
    pub fn new(size: usize) -> Self {
        Batch {
            size,
            drop_last: false,
        }
    }

    /// Leaves out a last batch that is not full; its items are counted as dropped.
    pub fn drop_last(mut self) -> Self {
        self.drop_last = true;
        self
    }
}

conversions! {
    /// Makes batches of this many items; a shorter last batch is kept.
    |size: usize| -> Batch { Batch::new(size) }
}

impl<T: Send + 'static> Pipe<T> for Batch {
    type Out = Vec<T>;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<Vec<T>> {
        let index = or_fail!(cx.restored()).unwrap_or(0);
        Items::from_chunks(Batches {
            input,
            size: self.size,
            drop_last: self.drop_last && !cx.is_partial(),
            index,
            clean: true,
            positions: Vec::new(),
            values: Vec::new(),
            origins: Vec::new(),
            cx: cx.clone(),
        })
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        let size = self.size.max(1) as u64;
        Some(if self.drop_last {
            input / size
        } else {
            input.div_ceil(size)
        })
    }
    fn snapshot_at(&self, outputs: u64, _: &Context) -> Result<Option<PipeSnapshot>> {
        PipeSnapshot::new(&outputs).map(Some)
    }
    fn hints(&self) -> Hints {
        // The order decides which items are left over.
        let hints = if self.drop_last {
            Hints::default()
        } else {
            Hints::any_order()
        };
        hints
            .is_resumable(true)
            .never_blocks(true)
            .buffered(self.size)
            .role(Role::Batch(self.size))
            .lineage(true)
            .settings(format_args!(
                "{}{}",
                self.size,
                if self.drop_last { ", drop_last" } else { "" }
            ))
            .problem((self.size == 0).then_some("a batch size of zero"))
    }
}

struct Batches<T> {
    input: Items<T>,
    size: usize,
    drop_last: bool,
    index: u64,
    /// True if no error came between the items that wait.
    clean: bool,
    /// Positions of the waiting items, if items come in any order.
    positions: Vec<u64>,
    values: Vec<T>,
    origins: Vec<Origin>,
    cx: Context,
}

impl<T: Send + 'static> Batches<T> {
    /// Returns the waiting items as a batch.
    fn close(&mut self) -> Item<Vec<T>> {
        let room = self.size.min(1 << 12);
        let values = std::mem::replace(&mut self.values, Vec::with_capacity(room));
        let origins = std::mem::replace(&mut self.origins, Vec::with_capacity(room));
        self.index += 1;
        if let Some(lineage) = self.cx.lineage() {
            lineage.gave(self.positions.drain(..values.len()).collect());
            self.cx.snapshot(|| self.index);
        }
        Item::new(values, Origin::joined(origins, self.index - 1))
    }
}

impl<T: Send + 'static> Chunks<Vec<T>> for Batches<T> {
    fn poll_chunk(
        &mut self,
        cx: &mut task::Context<'_>,
        demand: Demand,
    ) -> Poll<Option<Chunk<Vec<T>>>> {
        if self.clean {
            let (index, waiting) = (self.index, self.values.len() as u64);
            self.cx.snapshot_with(|held| {
                let next = self.cx.position(0);
                held.hold(next.saturating_sub(waiting)..next);
                index
            });
        }
        loop {
            // Take some cheap items ahead of need, or the last few of a batch come in tiny chunks.
            let needed = self.size - self.values.len();
            let wanted = Demand {
                max: needed.max(self.input.ahead()),
                ..demand
            }
            .needing(needed);
            let Some(chunk) = ready!(self.input.poll_chunk(cx, wanted)) else {
                if self.values.is_empty() || self.drop_last {
                    self.cx
                        .count_dropped(std::mem::take(&mut self.values).len() as u64);
                    return Poll::Ready(None);
                }
                return Poll::Ready(Some(std::iter::once(Ok(self.close())).collect()));
            };
            let out = self.take(chunk);
            if !out.is_empty() {
                return Poll::Ready(Some(out));
            }
        }
    }
}

impl<T: Send + 'static> Batches<T> {
    /// Takes the items of a chunk. Returns the batches that become full, and the errors after the
    /// batches that were full before them.
    fn take(&mut self, chunk: Chunk<T>) -> Chunk<Vec<T>> {
        let lineage = self.cx.lineage().cloned();
        let positions = lineage.as_ref().map(|lineage| lineage.taken(chunk.len()));
        let mut positions = positions.unwrap_or_default().into_iter();
        let (mut items, mut out) = (chunk.into_iter(), Chunk::default());
        while items.len() > 0 {
            let room = self.size - self.values.len();
            let taken = items.move_to(room, &mut self.values, &mut self.origins);
            if lineage.is_some() {
                self.positions.extend(positions.by_ref().take(taken));
            }
            if taken == room {
                out.push(Ok(self.close()));
                self.clean = true;
            } else if let Some(Err(error)) = items.next() {
                out.push(Err(error));
                self.clean = self.values.is_empty();
                if let Some(lineage) = &lineage {
                    lineage.gave_each(positions.next().into_iter().collect());
                }
            }
        }
        out
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Groups consecutive items into batches of one size: a number, or a [`Batch`] with other
    /// settings. A shorter last batch is kept, unless [`Batch::drop_last`] is set.
    ///
    /// An item that fails is left out and the batch is filled up with the next items, never
    /// shortened. Order is kept. At most one batch is held. For batches of sequences see
    /// [`padded_batch`](Graph::padded_batch) and [`bucket_batch`](Graph::bucket_batch); to make one
    /// tensor of a batch add [`collate`](Graph::collate).
    ///
    /// # Examples
    /// ```
    /// use datapipes::{Graph, pipes::Batch};
    ///
    /// let numbers = Graph::range(0..5);
    /// assert_eq!(numbers.clone().batch(2).collect().unwrap(), [vec![0, 1], vec![2, 3], vec![4]]);
    /// assert_eq!(numbers.batch(Batch::new(2).drop_last()).collect().unwrap(), [vec![0, 1], vec![2, 3]]);
    /// ```
    pub fn batch(self, batch: impl Into<Batch>) -> Graph<Vec<T>> {
        let weigh = self.weigher();
        // A batch weighs as much as its items.
        self.pipe(batch.into()).weighed(move |batch| weigh(batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, ErrorKind, testing};

    #[test]
    fn keeps_the_contract() {
        for size in testing::some_of([1, 3, 20]) {
            testing::check_pipe(&Batch::new(size), (0..20u64).collect());
            testing::check_pipe(&Batch::new(size).drop_last(), (0..20u64).collect());
        }
    }

    #[test]
    fn a_failed_item_comes_in_its_place_and_shortens_no_batch() {
        let bad = [1, 2, 5];
        let items = (0..9u64).map(move |i| match bad.contains(&i) {
            true => Err(Error::new(ErrorKind::User, i.to_string())),
            false => Ok(Item::new(i, Origin::root(0, i))),
        });
        let out =
            testing::collect(Batch::new(2).apply(Items::from_results(items), &Context::default()));
        let shown: Vec<String> = out
            .into_iter()
            .map(|r| r.map_or_else(|e| e, |(v, o)| format!("{v:?} {o}")))
            .collect();
        let expected = [
            "error: 1",
            "error: 2",
            "[0, 3] [0:0, 0:3]",
            "error: 5",
            "[4, 6] [0:4, 0:6]",
            "[7, 8] [0:7, 0:8]",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn counts_what_drop_last_leaves_out() {
        let loader =
            crate::DataLoader::builder(Graph::range(0..10).batch(Batch::new(4).drop_last()))
                .build()
                .unwrap();
        assert_eq!(loader.len_hint(), Some(2));
        assert_eq!(loader.epoch(0).blocking().count(), 2);
        assert_eq!(loader.stats().unwrap().nodes[1].dropped, 2);
    }
}
