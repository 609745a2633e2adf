//! Periodic check for an epoch that stands still for lack of bytes.

use std::sync::Weak;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::budget::Budget;

/// Time between two checks. An epoch without progress for about two ticks continues above its
/// budget.
const TICK: Duration = Duration::from_secs(1);

/// Ticks until the budget is gone. Runs on a thread of its own: a user's runtime may have no
/// timers, and pool threads and the consumer may be busy or gone. The thread is started only in
/// epochs that had to wait for bytes.
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
