//! What a pipe sees of it.

use std::sync::Arc;

use crate::checkpoint::{HeldPositions, Lineage, NodeState, Recorder, Unordered, Wanted};
use crate::codec::{pack, unpack};
use crate::{Context, Error, Result, Wire};

impl Context {
    /// Whether states of this epoch can be asked for, so that pipes have to keep what it takes.
    pub fn is_resumable(&self) -> bool {
        self.node_state().is_some()
    }

    /// What this pipe kept last before the epoch was stopped; `None` in an epoch that begins, or if
    /// it had kept nothing.
    ///
    /// # Errors
    /// `Config`, which no policy skips, if what was kept is not of this type.
    pub fn restored<S: Wire>(&self) -> Result<Option<S>> {
        match self
            .node_state()
            .and_then(|node_state| node_state.kept.as_ref())
        {
            Some(kept) if !kept.is_empty() => unpack(kept).map(Some).map_err(|error| {
                let message = "the state holds something else for it than it keeps";
                Error::new(crate::ErrorKind::Config, message)
                    .with_source(error)
                    .at(self.node())
            }),
            _ => Ok(None),
        }
    }

    /// Which positions are wanted of what this node gives, where it said that it goes [by
    /// position](crate::Facts::by_position) and an epoch is resumed. `None` in an epoch that
    /// begins.
    pub fn wanted(&self) -> Option<&Wanted> {
        self.node_state()?.wanted.as_ref()
    }

    /// Keeps what it takes to go on from here, for a pipe that [says that it
    /// does](crate::Pipe::is_resumable).
    ///
    /// "Here" is between two items: what `state` says has to be right for exactly the items that
    /// were taken from the inputs and those that were given out. In a [`Chunks`](crate::Chunks)
    /// that is the beginning of `poll_chunk`; where items are emitted one by one it is
    /// [`Emitter::snapshot`](crate::Emitter::snapshot). Call it as often as you can: `state` is
    /// asked only now and then, about five thousand times a second at most. A resumed epoch applies
    /// the pipe again, which finds the last value that it needs by [`kept`](Context::restored) and
    /// its input behind what had been taken then, but for what is [held](crate::Held), which comes
    /// again first; what it gives again is left out behind it. Does nothing where the loader was
    /// not told that it will be [resumed](crate::loader::Builder::resumable).
    #[inline]
    pub fn snapshot<S: Wire>(&self, state: impl FnOnce() -> S) {
        self.snapshot_encoded(0, |_| pack(&state()));
    }

    /// The same for a pipe that says by [position](Context::position) what it holds of its input:
    /// one that takes chunks, and so gets no [`Held`](crate::Held) items.
    #[inline]
    pub fn snapshot_with<S: Wire>(&self, state: impl FnOnce(&mut HeldPositions) -> S) {
        self.snapshot_encoded(0, |keep| pack(&state(keep)));
    }

    /// The same, with so many that came out and were not counted yet.
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
                recorder.keep(pending as u64, write);
            }
        } else if let Some(lineage) = &node_state.lineage {
            lineage
                .unordered()
                .keep(|| write(&mut HeldPositions::default()));
        }
    }

    /// Says whether what would be kept now is asked for: for what is dear to find out.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.recorder().is_some_and(|recorder| recorder.is_due(0))
    }

    /// Says that a state is to tell how much of what this pipe gave may have been used below it.
    pub(crate) fn tell_used(&self) {
        if let Some(recorder) = self.recorder() {
            recorder.tell_used();
        }
    }

    /// How many of the items and errors that this pipe gives again, from what it
    /// [kept](Context::restored) on, may have been used by what is below it before the stop, if it
    /// [asked](Context::tell_used); 0 in an epoch that begins.
    pub(crate) fn used(&self) -> u64 {
        self.node_state().map_or(0, |node_state| node_state.used)
    }

    /// The position of what is taken next of an input, for what is to be said of it later: how many
    /// items and errors came before it since the epoch began. 0 where no states can be asked for,
    /// and for a node that [goes by position](crate::Facts::by_position).
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

    /// Returns what takes down which inputs each output is made of, for a pipe that [says that it
    /// tells](crate::Facts::with_lineage); `None` where nobody has to know: in strict order, and
    /// where no states can be asked for.
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
