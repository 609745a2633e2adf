//! Settings of a loader that change while its epochs run, and which epochs those are.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Settings of a loader that change while its epochs run. The order of items does not depend on them.
pub(crate) struct Live {
    /// Number of items kept ready before the consumer; see
    /// [`Depth`](crate::run::prefetch::Depth).
    pub depth: Arc<AtomicUsize>,
    /// Number of processes of each part that get work, if it has more on this machine.
    pub processes: Arc<AtomicUsize>,
    /// Settings that were tried, in words, the last one last.
    pub tried: Mutex<Vec<String>>,
    begun: AtomicU64,
    running: AtomicUsize,
}

/// Epochs that had begun at a moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct EpochsSeen {
    begun: u64,
    running: usize,
}

impl EpochsSeen {
    /// Returns true if only one epoch ran.
    pub(crate) fn is_alone(self) -> bool {
        self.running == 1
    }
}

impl Live {
    pub(super) fn new(depth: usize) -> Self {
        Live {
            depth: Arc::new(depth.into()),
            processes: Arc::new(usize::MAX.into()),
            tried: Mutex::default(),
            begun: AtomicU64::new(0),
            running: AtomicUsize::new(0),
        }
    }

    /// Records that the epoch of a rank begins.
    pub(super) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the epoch of a rank ended.
    pub(super) fn end(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the epochs so far: equal at two moments if none began or ended between them.
    pub(crate) fn epochs(&self) -> EpochsSeen {
        EpochsSeen {
            begun: self.begun.load(Ordering::Relaxed),
            running: self.running.load(Ordering::Relaxed),
        }
    }
}
