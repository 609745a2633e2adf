//! The stream of a node that was wired, and the log of its items for checkpoints.

use std::collections::HashMap;
use std::sync::Arc;

use crate::checkpoint::{History, Recorder, SegmentLog, SnapshotHistory, Unordered};
use crate::graph::AnyItems;

/// A stream, with its history for checkpoints.
pub(in crate::run::engine) struct Wired {
    pub items: AnyItems,
    /// Set if checkpoints can be taken.
    pub history: Option<Arc<dyn History>>,
}

impl Wired {
    pub(in crate::run::engine) fn history(&self) -> Arc<dyn History> {
        let history = self.history.clone();
        history.expect("everything in a resumable loader has a history")
    }
}

/// Log of a node's items.
#[derive(Clone)]
pub(in crate::run::engine) enum NodeLog {
    None,
    /// History of a node without a log of its own.
    History(Arc<dyn History>),
    Unordered(Arc<Unordered>),
    Segment(Arc<SegmentLog>),
    Snapshots(Arc<Recorder>),
}

impl NodeLog {
    /// Returns the history of one of the node's outputs, if checkpoints can be taken.
    pub(in crate::run::engine) fn history(&self, port: usize) -> Option<Arc<dyn History>> {
        match self {
            NodeLog::None => None,
            NodeLog::History(history) => Some(history.clone()),
            NodeLog::Unordered(log) => Some(log.clone()),
            NodeLog::Segment(log) => Some(log.clone()),
            NodeLog::Snapshots(recorder) => Some(Arc::new(SnapshotHistory(recorder.clone(), port))),
        }
    }

    pub(in crate::run::engine) fn recorder(&self) -> Option<&Arc<Recorder>> {
        matching!(self, NodeLog::Snapshots(recorder) => recorder)
    }
}

/// Outputs of splits that were not asked for yet, by node and round.
pub(in crate::run::engine) type Splits = HashMap<(usize, u64), (Vec<Option<Wired>>, NodeLog)>;
