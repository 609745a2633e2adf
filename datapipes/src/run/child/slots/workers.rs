//! Workers of other machines: how many there are, and which are handed over to another part.

use std::cell::Cell;
#[cfg(feature = "remote")]
use std::time::Duration;

use super::{ChildState, SlotsShared};

/// The connected workers of other machines.
#[derive(Default)]
pub(super) struct Connected {
    count: Cell<usize>,
    /// Number of them to be handed over that are not chosen yet.
    surplus: Cell<usize>,
}

impl SlotsShared {
    /// Returns the number of workers of other machines that have made their part.
    pub(in crate::run::child) fn ready_workers(&self) -> usize {
        let here = self.plan.processes.here();
        let places = self.plan.processes.count - here;
        places - self.count(here, ChildState::NotReady)
    }

    /// Returns true if the worker at a place is the one to be handed over: one with nothing to do,
    /// or else with nothing that it can do, if there is one.
    pub(in crate::run::child) fn is_handed_over(&self, place: usize) -> bool {
        let surplus = self.workers.surplus.get();
        let here = self.plan.processes.here();
        let any_idle = || self.count(here, ChildState::Idle) > 0;
        let all_work = || self.count(here, ChildState::Working) >= self.workers.count.get();
        let state = self.places.borrow()[place].state;
        let is_it = match state {
            _ if surplus == 0 => false,
            ChildState::Idle => true,
            ChildState::Working => all_work() && !any_idle(),
            ChildState::NotReady | ChildState::Waiting => !any_idle(),
        };
        if is_it {
            self.workers.surplus.set(surplus - 1);
        }
        is_it
    }
}

#[cfg(feature = "remote")]
impl SlotsShared {
    /// Returns true if an epoch gives work.
    pub(in crate::run::child) fn has_epoch(&self) -> bool {
        self.epoch.get()
    }

    /// Returns true if nothing could be done for this time.
    pub(in crate::run::child) fn is_quiet_for(&self, time: Duration) -> bool {
        !self.is_any_working() && self.done.get().elapsed() >= time
    }

    /// Returns true if an epoch gives work, and no child can do any now.
    pub(in crate::run::child) fn is_stuck(&self) -> bool {
        let children = self.workers() + self.plan.processes.here();
        self.has_epoch() && children > 0 && !self.is_any_working()
    }

    /// Asks for one of the workers to be handed over to another part.
    pub(in crate::run::child) fn hand_over(&self) {
        self.workers.surplus.set(self.workers.surplus.get() + 1);
        self.wake();
    }

    /// Records that a worker left without having been asked to.
    pub(in crate::run::child) fn lost(&self) {
        let surplus = self.workers.surplus.get();
        self.workers.surplus.set(surplus.saturating_sub(1));
    }

    /// Counts a worker of another machine as connected, or not any more.
    pub(in crate::run::child) fn set_workers(&self, change: isize) {
        let count = self.workers().saturating_add_signed(change);
        self.workers.count.set(count);
        self.wake();
    }

    /// Returns the number of connected workers of other machines.
    pub(in crate::run::child) fn workers(&self) -> usize {
        self.workers.count.get()
    }
}
