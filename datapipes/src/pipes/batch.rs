//! Groups consecutive items into batches.

use std::task::{self, Poll, ready};

use crate::items::{Chunk, Chunks, Demand};
use crate::{Context, Facts, Graph, Item, Items, Origin, Pipe};

/// Groups consecutive items into batches of a fixed size; see [`Graph::batch`].
#[derive(Clone, Debug)]
pub struct Batch {
    size: usize,
    drop_last: bool,
}

impl Batch {
    /// Batches of `size` items; a shorter last one is kept.
    pub fn new(size: usize) -> Self {
        Batch { size, drop_last: false }
    }

    /// Leaves out a last batch that is not full; its items are counted as dropped.
    pub fn drop_last(self) -> Self {
        Batch { drop_last: true, ..self }
    }
}

impl<T: Send + 'static> Pipe<T> for Batch {
    type Out = Vec<T>;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<Vec<T>> {
        let open = Open::new(self.size);
        Items::from_chunks(Batches { input, size: self.size, drop_last: self.drop_last, index: 0, open, cx: cx.clone() })
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        let size = self.size.max(1) as u64;
        Some(if self.drop_last { input / size } else { input.div_ceil(size) })
    }
    fn facts(&self) -> Facts {
        Facts::any_order()
            .with_buffered(self.size)
            .with_settings(format_args!("{}{}", self.size, if self.drop_last { ", drop_last" } else { "" }))
            .with_problem((self.size == 0).then_some("a batch size of zero"))
    }
}

/// The batch that is being filled.
struct Open<T> {
    values: Vec<T>,
    parts: Vec<Origin>,
}

impl<T> Open<T> {
    fn new(size: usize) -> Self {
        let size = size.min(1 << 12);
        Open { values: Vec::with_capacity(size), parts: Vec::with_capacity(size) }
    }
}

struct Batches<T> {
    input: Items<T>,
    size: usize,
    drop_last: bool,
    index: u64,
    open: Open<T>,
    cx: Context,
}

impl<T: Send + 'static> Batches<T> {
    fn close(&mut self) -> Item<Vec<T>> {
        let Open { values, parts } = std::mem::replace(&mut self.open, Open::new(self.size));
        let origin = Origin::joined(parts, self.index);
        self.index += 1;
        Item::new(values, origin)
    }
}

impl<T: Send + 'static> Chunks<Vec<T>> for Batches<T> {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, _: Demand) -> Poll<Option<Chunk<Vec<T>>>> {
        loop {
            let missing = (self.size - self.open.values.len()).max(256);
            let Some(chunk) = ready!(self.input.poll_chunk(cx, Demand::up_to(missing))) else {
                if self.drop_last || self.open.values.is_empty() {
                    self.cx.count_dropped(self.open.values.len() as u64);
                    return Poll::Ready(None);
                }
                return Poll::Ready(Some(vec![Ok(self.close())]));
            };
            let mut out = Vec::new();
            for item in chunk {
                match item {
                    Err(error) => out.push(Err(error)),
                    Ok(item) => {
                        let (value, origin) = item.into_parts();
                        self.open.values.push(value);
                        self.open.parts.push(origin);
                    }
                }
            }
            if self.open.values.len() >= self.size {
                out.push(Ok(self.close()));
            }
            if !out.is_empty() {
                return Poll::Ready(Some(out));
            }
        }
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Groups consecutive items into batches of `size`; a shorter last one is kept.
    ///
    /// An item that fails is left out and the batch is filled up with the next ones, never shortened. Order is
    /// kept. At most `size` items are held. For batches of sequences see [`padded_batch`](Graph::padded_batch) and
    /// [`bucket_batch`](Graph::bucket_batch); to make one tensor of a batch add [`collate`](Graph::collate).
    ///
    /// # Examples
    /// ```
    /// use datapipes::{Graph, pipes::Batch};
    /// let numbers = Graph::range(0..5);
    /// assert_eq!(numbers.clone().batch(2).collect().unwrap(), [vec![0, 1], vec![2, 3], vec![4]]);
    /// assert_eq!(numbers.pipe(Batch::new(2).drop_last()).collect().unwrap(), [vec![0, 1], vec![2, 3]]);
    /// ```
    pub fn batch(self, size: usize) -> Graph<Vec<T>> {
        self.pipe(Batch::new(size))
    }
}
