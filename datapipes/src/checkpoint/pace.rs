//! How often something is kept.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::sync::lock;

/// Keeping a value costs about as much as some items; it should not be done more often than this
/// without need.
const SELDOM_NS: u128 = 200_000;
const MOST_STEP: u64 = 1 << 16;

/// Says when something is to be kept again: by the progress of a node, in steps that follow the
/// clock.
#[derive(Debug)]
pub(super) struct Pace {
    /// The progress at which it is.
    due: AtomicU64,
    step: Mutex<Step>,
}

#[derive(Debug)]
struct Step {
    len: u64,
    /// When something was kept last.
    last: Option<Instant>,
}

impl Pace {
    pub(super) fn new() -> Self {
        Pace {
            due: AtomicU64::new(0),
            step: Mutex::new(Step { len: 1, last: None }),
        }
    }

    /// Whenever it can be done, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn always(&self) {
        lock(&self.step).len = 0;
    }

    #[inline]
    pub(super) fn is_due(&self, progress: u64) -> bool {
        progress >= self.due.load(Ordering::Relaxed)
    }

    /// Something was kept at this progress, with which one `begun` then.
    pub(super) fn kept(&self, progress: u64, begun: Instant) {
        let step = &mut *lock(&self.step);
        let now = Instant::now();
        // What is dear to keep is kept less often.
        let dear = (now - begun).as_nanos();
        match step.last.map(|last| begun.duration_since(last).as_nanos()) {
            Some(quick) if quick < SELDOM_NS.max(50 * dear) => {
                step.len = (step.len * 2).min(MOST_STEP)
            }
            Some(slow) if slow > 10 * SELDOM_NS.max(50 * dear) => {
                step.len = (step.len / 2).max(1.min(step.len))
            }
            _ => {}
        }
        step.last = Some(now);
        self.due.store(progress + step.len, Ordering::Relaxed);
    }
}
