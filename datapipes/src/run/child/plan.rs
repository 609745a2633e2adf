//! The settings that the children of a segment share, and their figures.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::protocol::Hello;
use crate::codec::ChunkWire;
use crate::graph::Edge;
use crate::sync::lock;
use crate::{Arity, Processes};

/// Settings shared by the children of a segment, in all epochs.
pub(crate) struct ChildrenPlan {
    pub processes: Processes,
    /// Number of processes of this machine that get work.
    pub active: Arc<AtomicUsize>,
    pub hello: Hello,
    /// Names of the part's nodes, for messages and errors.
    pub node: Arc<str>,
    pub input: Arc<dyn ChunkWire>,
    pub output: Arc<dyn ChunkWire>,
    /// Edge downstream of the part.
    pub edge: Arc<dyn Edge>,
    /// Number of output items for each input item.
    pub arity: Arity,
    /// True if its blocking work seldom waits: a child has many jobs only once it has waited.
    pub seldom_waits: bool,
    pub figures: ChildFigures,
}

impl ChildrenPlan {
    /// Returns true if fewer children than those up to this place are enough.
    pub(super) fn is_parked(&self, place: usize) -> bool {
        !self.processes.is_remote() && place >= self.active.load(Ordering::Relaxed)
    }
}

/// Figures about children, over all epochs of a loader.
#[derive(Debug, Default)]
pub(crate) struct ChildFigures {
    /// Number of children started.
    pub started: AtomicU64,
    /// Number of children that ended without being asked to.
    pub died: AtomicU64,
    /// Number of children replaced because of their memory.
    pub replaced: AtomicU64,
    /// Number of items that were given up.
    pub crashed: AtomicU64,
    /// Number of jobs that no child has.
    pub pending: AtomicU64,
    /// Number of late jobs that a second worker got, too.
    pub late: AtomicU64,
    alive: Mutex<BTreeMap<ChildKey, Alive>>,
}

/// Number of a child's process on its machine, and its place among the children of its part.
pub(crate) type ChildKey = (u32, usize);

/// A running child.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Alive {
    /// Name of its machine, if that is another one.
    pub machine: Option<String>,
    /// Private memory, in bytes, at the last check.
    pub resident: u64,
    /// Number of output items.
    pub items: u64,
    /// Number of jobs that it has.
    pub jobs: usize,
    /// Bytes of the output that came from it.
    pub bytes: u64,
    /// Time of its last answer, or of its first job since.
    pub heard: Instant,
    /// Recent time of a job; zero before the first has ended.
    pub job_time: Duration,
}

impl ChildFigures {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ChildKey, Alive>> {
        lock(&self.alive)
    }

    /// Returns the running children.
    pub(crate) fn alive(&self) -> BTreeMap<ChildKey, Alive> {
        self.lock().clone()
    }

    pub(super) fn set(&self, child: ChildKey, alive: Alive) {
        self.lock().insert(child, alive);
    }

    /// Sets what a child has done, and has to do.
    pub(super) fn count(&self, child: ChildKey, count: impl FnOnce(&mut Alive)) {
        self.lock().get_mut(&child).map(count);
    }

    pub(super) fn gone(&self, child: ChildKey) {
        self.lock().remove(&child);
    }
}
