//! Looks from time to time whether an epoch stands still for want of bytes.

use std::sync::Weak;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::budget::Budget;

/// An epoch in which nothing moves for about two of them goes on above its bytes.
const TICK: Duration = Duration::from_secs(1);

/// Ticks until the budget is gone. A thread of its own, since a user's runtime may have no timers,
/// and pool threads and the consumer may be busy or gone; it exists in epochs that had to wait for
/// bytes.
pub(super) fn watch(budget: Weak<Budget>, ended: Receiver<()>) -> bool {
    let tick = move || {
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(TICK) {
            if let Some(budget) = budget.upgrade() {
                budget.tick();
            }
        }
    };
    super::spawn_thread("datapipes-memory".to_owned(), tick).is_ok()
}
