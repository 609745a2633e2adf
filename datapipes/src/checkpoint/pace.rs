//! The pace at which snapshots are taken.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::sync::lock;

/// Least time between snapshots without need: a snapshot costs about as much as some items.
const SELDOM_NS: u128 = 200_000;
const MOST_STEP: u64 = 1 << 16;

/// Decides when a snapshot is due: by the progress of a node, in steps that follow the clock.
#[derive(Debug)]
pub(super) struct Pace {
    /// Progress at which the next snapshot is due.
    due: AtomicU64,
    step: Mutex<Step>,
}

#[derive(Debug)]
struct Step {
    len: u64,
    /// Time of the last snapshot.
    last: Option<Instant>,
}

impl Pace {
    pub(super) fn new() -> Self {
        Pace {
            due: AtomicU64::new(0),
            step: Mutex::new(Step { len: 1, last: None }),
        }
    }

    /// Takes snapshots whenever possible, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn always(&self) {
        lock(&self.step).len = 0;
    }

    #[inline]
    pub(super) fn is_due(&self, progress: u64) -> bool {
        progress >= self.due.load(Ordering::Relaxed)
    }

    /// Records that a snapshot was taken at this progress, and `begun` at this time.
    pub(super) fn taken(&self, progress: u64, begun: Instant) {
        let step = &mut *lock(&self.step);
        let now = Instant::now();
        // A snapshot that is expensive is taken less often.
        let cost = (now - begun).as_nanos();
        match step.last.map(|last| begun.duration_since(last).as_nanos()) {
            Some(quick) if quick < SELDOM_NS.max(50 * cost) => {
                step.len = (step.len * 2).min(MOST_STEP)
            }
            Some(slow) if slow > 10 * SELDOM_NS.max(50 * cost) => {
                step.len = (step.len / 2).max(1.min(step.len))
            }
            _ => {}
        }
        step.last = Some(now);
        self.due.store(progress + step.len, Ordering::Relaxed);
    }
}
