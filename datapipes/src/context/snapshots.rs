//! The part of a pipe's context that is about checkpoints.

use std::sync::Arc;

use crate::checkpoint::{HeldPositions, Lineage, NodeState, Recorder, Unordered, Wanted};
use crate::codec::{pack, unpack};
use crate::{Context, Error, Result, Wire};

impl Context {
    /// Returns true if checkpoints of this epoch can be taken, so that pipes have to take
    /// snapshots.
    pub fn is_resumable(&self) -> bool {
        self.node_state().is_some()
    }

    /// Returns the last snapshot of this pipe from before the epoch was stopped; `None` in an epoch
    /// that begins, or if the pipe had taken none.
    ///
    /// # Errors
    /// `Config`, which no policy skips, if the snapshot is not of this type.
    pub fn restored<S: Wire>(&self) -> Result<Option<S>> {
        match self
            .node_state()
            .and_then(|node_state| node_state.state.as_ref())
        {
            Some(state) if !state.is_empty() => unpack(state).map(Some).map_err(|error| {
                let message = "the checkpoint has something else for it than its snapshot";
                Error::config(message).with_source(error).at(self.node())
            }),
            _ => Ok(None),
        }
    }

    /// Returns the wanted positions of this node's output in a resumed epoch, if the node [goes by
    /// position](crate::Hints::by_position). `None` in an epoch that begins.
    pub fn wanted(&self) -> Option<&Wanted> {
        self.node_state()?.wanted.as_ref()
    }

    /// Returns the wanted part of each output of a split that [goes by
    /// position](field@crate::Hints::by_position). It has the number of items that were dealt to
    /// the output before, and the positions that the output has to give from there on (`None` for
    /// all). `None` in place of the list if no checkpoints can be taken. To be called when the
    /// first item is dealt, not before: an output that is opened later has its unwanted items left
    /// out downstream.
    pub fn wanted_of_outputs(&self) -> Option<Vec<(u64, Option<Wanted>)>> {
        self.recorder().map(|recorder| recorder.wanted())
    }

    /// Takes a snapshot to go on from here, for a pipe that [declares itself
    /// resumable](field@crate::Hints::is_resumable).
    ///
    /// "Here" is between two items: the value of `state` has to be right for exactly the items that
    /// were taken from the inputs and those that were given out. In a [`Chunks`](crate::Chunks)
    /// that is the beginning of `poll_chunk`; where items are emitted one by one it is
    /// [`Emitter::snapshot`](crate::Emitter::snapshot). Call it as often as you can: `state` is
    /// called only now and then, about five thousand times a second at most. A resumed epoch
    /// applies the pipe again. The pipe finds the last snapshot that it needs by
    /// [`restored`](Context::restored), and its input begins after the items taken by then, except
    /// that [held](crate::Held) items come again first. Outputs that it repeats are left out
    /// downstream. Does nothing if the loader was not declared
    /// [resumable](crate::loader::Builder::resumable).
    #[inline]
    pub fn snapshot<S: Wire>(&self, state: impl FnOnce() -> S) {
        self.snapshot_encoded(0, |_| pack(&state()));
    }

    /// Takes a snapshot for a pipe that records by [position](Context::position) which inputs it
    /// holds: a pipe that takes chunks, and so gets no [`Held`](crate::Held) items. Errors have
    /// positions, too, so after an error inside a group of `len` items these are no longer the last
    /// `len` positions; where it can, a pipe prefers [`hold_from`](crate::Emitter::hold_from) with
    /// [`emit_of`](crate::Emitter::emit_of).
    #[inline]
    pub fn snapshot_with<S: Wire>(&self, state: impl FnOnce(&mut HeldPositions) -> S) {
        self.snapshot_encoded(0, |held| pack(&state(held)));
    }

    /// Takes a snapshot of the moment after `outputs` more items and errors will have come out: for a
    /// pipe that takes a chunk and gives one for it, as in
    /// [`Items::each_chunk`](crate::Items::each_chunk). The value of `state` has to be right for
    /// exactly the items taken so far, and those given out with the next `outputs`.
    ///
    /// ```
    /// use datapipes::{Arity, Context, DataLoader, Graph, Hints, Items, Pipe};
    ///
    /// /// Sums so far.
    /// struct Sums;
    ///
    /// impl Pipe<u64> for Sums {
    ///     type Out = u64;
    ///     fn apply(&self, input: Items<u64>, cx: &Context) -> Items<u64> {
    ///         let mut sum = match cx.restored() {
    ///             Ok(restored) => restored.unwrap_or(0u64),
    ///             Err(error) => return Items::fail(error),
    ///         };
    ///         let context = cx.clone();
    ///         input.each_chunk(cx, move |chunk| {
    ///             let chunk = chunk.map(|n| {
    ///                 sum += n;
    ///                 sum
    ///             });
    ///             context.snapshot_after(chunk.len(), || sum);
    ///             chunk
    ///         })
    ///     }
    ///     fn hints(&self) -> Hints {
    ///         Hints::default().arity(Arity::One).is_resumable(true)
    ///     }
    /// }
    ///
    /// let loader = DataLoader::builder(Graph::range(1..6).pipe(Sums)).resumable().build()?;
    /// let mut epoch = loader.epoch(0).blocking();
    /// assert_eq!(epoch.by_ref().take(3).collect::<datapipes::Result<Vec<_>>>()?, [1, 3, 6]);
    /// let rest = loader.resume(&epoch.checkpoint()?)?.blocking();
    /// assert_eq!(rest.collect::<datapipes::Result<Vec<_>>>()?, [10, 15]);
    /// # #[cfg(feature = "testing")]
    /// datapipes::testing::check_pipe(&Sums, (0..20).collect());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn snapshot_after<S: Wire>(&self, outputs: usize, state: impl FnOnce() -> S) {
        self.snapshot_encoded(outputs, |_| pack(&state()));
    }

    /// Takes a snapshot with a number of outputs that came out and were not counted yet.
    #[inline]
    pub(crate) fn snapshot_encoded(
        &self,
        pending: usize,
        write: impl FnOnce(&mut HeldPositions) -> Result<Vec<u8>>,
    ) {
        let Some(node_state) = self.node_state() else {
            return;
        };
        if let Some(recorder) = &node_state.recorder {
            if recorder.is_due(pending as u64) {
                recorder.record(pending as u64, write);
            }
        } else if let Some(lineage) = &node_state.lineage {
            lineage
                .unordered()
                .record(|| write(&mut HeldPositions::default()));
        }
    }

    /// Returns true if a snapshot is due now: for values that are expensive to compute.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.recorder().is_some_and(|recorder| recorder.is_due(0))
    }

    /// Returns how many outputs that this node gives again after a resume, items and errors, may
    /// have been used downstream before the stop; they are the first ones since its
    /// [restored](crate::Context::restored) snapshot. A node with a setting that [may
    /// change](field@crate::Hints::may_change) has to make these with the old value, which its
    /// snapshot contains. 0 for any other node, and in an epoch that begins.
    pub fn used_outputs(&self) -> u64 {
        self.node_state().map_or(0, |node_state| node_state.used)
    }

    /// Returns the position of the next item taken of an input: the number of items and errors
    /// before it since the epoch began. Later calls refer to items by it. It is 0 if no checkpoints
    /// can be taken, and for a node that [goes by position](crate::Hints::by_position).
    pub fn position(&self, input: usize) -> u64 {
        match self.node_state() {
            Some(NodeState {
                recorder: Some(recorder),
                ..
            }) => recorder.position(input),
            Some(NodeState {
                lineage: Some(lineage),
                ..
            }) => lineage.unordered().next(),
            _ => 0,
        }
    }

    /// Returns the recorder of the inputs of each output, for a pipe that [promises to tell
    /// them](crate::Hints::lineage); `None` if nobody has to know: in strict order, and if no
    /// checkpoints can be taken.
    pub fn lineage(&self) -> Option<&Lineage> {
        self.node_state()?.lineage.as_ref()
    }

    pub(crate) fn unordered(&self) -> Option<&Arc<Unordered>> {
        self.lineage().map(Lineage::unordered)
    }

    pub(crate) fn recorder(&self) -> Option<&Arc<Recorder>> {
        self.node_state()?.recorder.as_ref()
    }
}
