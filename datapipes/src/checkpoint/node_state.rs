//! Restored snapshot of a node of a resumable loader, and the place for new ones.

use std::sync::Arc;

use super::{Lineage, Recorder, Wanted};

/// The values that a node of a resumable loader gets.
#[derive(Clone, Default)]
pub(crate) struct NodeState {
    pub recorder: Option<Arc<Recorder>>,
    pub state: Option<Arc<[u8]>>,
    pub wanted: Option<Wanted>,
    /// Lineage of a node to which items come in any order, and which tells the inputs of its
    /// outputs.
    pub lineage: Option<Lineage>,
    /// Number of repeated items that may have been used downstream before the stop.
    pub used: u64,
}
