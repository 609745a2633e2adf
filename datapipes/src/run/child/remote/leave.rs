//! The end of a worker process that its agent asks for.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::task::AtomicWaker;

use crate::Error;

/// Wish of this process to end, once its jobs are done.
#[derive(Default)]
pub(in crate::run::child) struct Leave {
    pub(super) wished: AtomicBool,
    /// Reason for which it cannot make the part.
    pub(super) unable: OnceLock<String>,
    /// True once jobs may be there, for which the end has to wait.
    pub(super) at_work: AtomicBool,
    pub waker: AtomicWaker,
}

impl Leave {
    /// Returns true if the process is to end.
    pub(in crate::run::child) fn is_wished(&self) -> bool {
        self.wished.load(Ordering::Relaxed)
    }

    /// Sets that the process cannot make its part.
    pub(in crate::run::child) fn set_unable(&self, why: &Error) {
        let _ = self.unable.set(why.to_string());
    }
}
