//! The stream of a node that was wired, and the log of its items for checkpoints.

use std::collections::HashMap;
use std::sync::Arc;

use crate::checkpoint::{Recorder, SegmentLog, SnapshotTrace, Trace, Unordered};
use crate::graph::AnyItems;

/// A stream, with its trace for checkpoints.
pub(super) struct Wired {
    pub items: AnyItems,
    /// Set if checkpoints can be taken.
    pub trace: Option<Arc<dyn Trace>>,
}

impl Wired {
    pub(super) fn trace(&self) -> Arc<dyn Trace> {
        let trace = self.trace.clone();
        trace.expect("everything in a resumable loader has a trace")
    }
}

/// Log of a node's items.
#[derive(Clone)]
pub(super) enum NodeLog {
    None,
    /// Trace of a node without a log of its own.
    Trace(Arc<dyn Trace>),
    Unordered(Arc<Unordered>),
    Segment(Arc<SegmentLog>),
    Snapshots(Arc<Recorder>),
}

impl NodeLog {
    /// Returns the trace of one of the node's outputs, if checkpoints can be taken.
    pub(super) fn trace(&self, port: usize) -> Option<Arc<dyn Trace>> {
        match self {
            NodeLog::None => None,
            NodeLog::Trace(trace) => Some(trace.clone()),
            NodeLog::Unordered(log) => Some(log.clone()),
            NodeLog::Segment(log) => Some(log.clone()),
            NodeLog::Snapshots(recorder) => Some(Arc::new(SnapshotTrace(recorder.clone(), port))),
        }
    }

    pub(super) fn recorder(&self) -> Option<&Arc<Recorder>> {
        match self {
            NodeLog::Snapshots(recorder) => Some(recorder),
            _ => None,
        }
    }
}

/// Outputs of splits that were not asked for yet, by node and round.
pub(super) type Splits = HashMap<(usize, u64), (Vec<Option<Wired>>, NodeLog)>;
