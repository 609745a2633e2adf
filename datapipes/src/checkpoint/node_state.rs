//! What a node of a resumable loader is given.

use std::sync::Arc;

use super::{Lineage, Recorder, Wanted};

/// What a node of a resumable loader is given.
#[derive(Clone, Default)]
pub(crate) struct NodeState {
    pub recorder: Option<Arc<Recorder>>,
    pub kept: Option<Arc<[u8]>>,
    pub wanted: Option<Wanted>,
    /// For a node to which items come in any order, and that says which of them its outputs are
    /// made of.
    pub lineage: Option<Lineage>,
    /// So many items are given again that may have been used below before the stop.
    pub used: u64,
}
