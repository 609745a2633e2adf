//! Windows of a token store by their numbers, a batch at a time, as steps of a graph.

use datapipes::{Arity, Context, Graph, Hints, Items, Pipe, Tensor};

use super::TokenStore;
use crate::{PackedBatch, RowLayout};

/// Reads the ids of windows; see [`WindowGraphExt::window_batches`].
struct WindowBatches {
    store: TokenStore,
    length: usize,
}

impl Pipe<Vec<u64>> for WindowBatches {
    type Out = Tensor;

    fn apply(&self, numbers: Items<Vec<u64>>, cx: &Context) -> Items<Tensor> {
        let (store, length) = (self.store.clone(), self.length);
        numbers.each(cx, move |batch| {
            Some(batch.try_map(|numbers| store.window_batch(length, &numbers)))
        })
    }
    fn hints(&self) -> Hints {
        let problem = (self.length == 0).then_some("windows of no tokens");
        let settings = format_args!(", windows of {}", self.length);
        Hints::shardable()
            .arity(Arity::One)
            .problem(problem)
            .revision(self.store.revision(settings))
    }
}

/// Reads all fields of windows; see [`WindowGraphExt::row_batches`].
struct RowBatches {
    store: TokenStore,
    layout: RowLayout,
}

impl Pipe<Vec<u64>> for RowBatches {
    type Out = PackedBatch;

    fn apply(&self, numbers: Items<Vec<u64>>, cx: &Context) -> Items<PackedBatch> {
        let (store, layout) = (self.store.clone(), self.layout.clone());
        numbers.each(cx, move |batch| {
            Some(batch.try_map(|numbers| store.row_batch(layout.clone(), &numbers)))
        })
    }
    fn hints(&self) -> Hints {
        let windows = self.store.windows(self.layout.clone());
        let problem = windows.err().map(|error| error.to_string());
        let (length, layout) = (self.layout.length, self.layout.settings());
        let settings = format_args!(", windows of {length}{layout}");
        Hints::shardable()
            .arity(Arity::One)
            .problem(problem.as_deref())
            .revision(self.store.revision(settings))
    }
}

/// Batches of windows of a [`TokenStore`], for a graph of their numbers. Import it with the
/// [`prelude`](crate::prelude).
pub trait WindowGraphExt: crate::sealed::Sealed {
    /// Reads the ids of the windows of each batch, by [`TokenStore::window_batch`].
    ///
    /// Unlike in a closure that does so, the store is a setting of the step: an epoch is resumed
    /// over a store with the same contents alone. Runs on the CPU workers; the order is kept.
    ///
    /// # Errors
    /// `build()` refuses a length of 0; other errors of [`TokenStore::window_batch`] take the place
    /// of the batch.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Indexed;
    /// use datapipes_text::{TokenStore, TokenWidth, prelude::*};
    ///
    /// let tokens: Vec<u8> = (0..100u16).flat_map(u16::to_le_bytes).collect();
    /// let store = TokenStore::from_flat("tokens", tokens.into(), TokenWidth::U16, None)?;
    /// let windows = Indexed::range(store.len() / 10).shuffle().shard().fetch();
    /// let batches = windows.batch(2).window_batches(&store, 10);
    /// assert_eq!(batches.collect()?[4].shape(), [2, 10]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn window_batches(self, store: &TokenStore, length: usize) -> Graph<Tensor>;

    /// Reads all fields of the windows of each batch, by [`TokenStore::row_batch`]; see
    /// [`window_batches`](WindowGraphExt::window_batches).
    ///
    /// # Errors
    /// `build()` refuses what [`TokenStore::windows`] refuses; other errors of
    /// [`TokenStore::row_batch`] take the place of the batch.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Indexed;
    /// use datapipes_text::{TokenStore, TokenWidth, prelude::*};
    ///
    /// let tokens: Vec<u8> = (0..100u16).flat_map(u16::to_le_bytes).collect();
    /// let store = TokenStore::from_flat("tokens", tokens.into(), TokenWidth::U16, None)?;
    /// let windows = Indexed::range(store.len() / 10).shuffle().shard().fetch();
    /// let batches = windows.batch(2).row_batches(&store, 10);
    /// assert_eq!(batches.collect()?[4].labels.shape(), [2, 10]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn row_batches(self, store: &TokenStore, layout: impl Into<RowLayout>) -> Graph<PackedBatch>;
}

impl WindowGraphExt for Graph<Vec<u64>> {
    fn window_batches(self, store: &TokenStore, length: usize) -> Graph<Tensor> {
        store.read_at_random();
        let store = store.clone();
        self.pipe(WindowBatches { store, length })
    }

    fn row_batches(self, store: &TokenStore, layout: impl Into<RowLayout>) -> Graph<PackedBatch> {
        store.read_at_random();
        let (store, layout) = (store.clone(), layout.into());
        self.pipe(RowBatches { store, layout })
    }
}
