//! The states of the children: what each does, and which are parked since fewer are enough.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::SlotsShared;

/// Time in which a child at work must do something, if there are jobs and other children are parked.
const STANDSTILL: Duration = Duration::from_secs(1);

/// Work of the child at a place, or the reason why it does none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::run::child) enum ChildState {
    /// Absent: there is no child, or it makes its part.
    #[default]
    NotReady,
    /// Ready, with nothing to do: a better place for the next job than a busy child.
    Idle,
    /// Works, and has room for the output.
    Working,
    /// Waits for room for its output, or gets no work: it is parked, or leaves, or still has to cancel work
    /// that it lost to others.
    Waiting,
}

/// A place for a child.
#[derive(Default)]
pub(super) struct Place {
    pub state: ChildState,
    pub waker: Option<Waker>,
    /// Timer of the next look for a standstill, while the place is parked and there are jobs.
    rest: Option<Pin<Box<Sleep>>>,
}

impl SlotsShared {
    /// Sets what the child at a place does, and wakes those for whom this matters.
    pub(in crate::run::child) fn set_state(&self, place: usize, state: ChildState) {
        let was = std::mem::replace(&mut self.places.borrow_mut()[place].state, state);
        let changes = |to: ChildState| (was == to) != (state == to);
        if changes(ChildState::Working) {
            self.done.set(Instant::now());
        }
        // Processes of this machine work while no worker of another one does.
        let makes_room = changes(ChildState::NotReady) && self.plan.processes.is_remote();
        // Those that had left the work to an idle child look again once it has got some.
        let takes_work = was == ChildState::Idle && state != was && self.has_pending();
        if makes_room || takes_work {
            self.wake();
        }
    }

    /// Returns the number of children in a state, from a place on.
    pub(super) fn count(&self, from: usize, state: ChildState) -> usize {
        let places = self.places.borrow();
        let places = places[from..].iter();
        places.filter(|place| place.state == state).count()
    }

    /// Returns true if a child has something to do, and room for the output.
    pub(super) fn is_any_working(&self) -> bool {
        self.count(0, ChildState::Working) > 0
    }

    /// Returns true if the child at a place gets no work, since fewer are enough. It does what has
    /// to be done before work that another child has, since that one may wait for it. If a child at
    /// work does nothing for a while, no child is parked from then on.
    pub(in crate::run::child) fn is_parked(&self, place: usize, cx: &mut Context<'_>) -> bool {
        if self.needs_all.get() || !self.plan.is_parked(place) {
            return false;
        }
        let Some(first) = self.first_pending() else {
            self.places.borrow_mut()[place].rest = None;
            return true;
        };
        if self.was_reached(first) {
            return false;
        }
        let stands_still = || self.is_any_working() && self.done.get().elapsed() >= STANDSTILL;
        while self.poll_rest(place, cx) {
            if stands_still() {
                self.needs_all.set(true);
                self.wake();
                return false;
            }
        }
        true
    }

    /// Returns true each time that a parked place is to look for a standstill.
    fn poll_rest(&self, place: usize, cx: &mut Context<'_>) -> bool {
        let rest = &mut self.places.borrow_mut()[place].rest;
        let rest = rest.get_or_insert_with(|| Box::pin(sleep(STANDSTILL)));
        let is_over = rest.as_mut().poll(cx).is_ready();
        if is_over {
            rest.as_mut().reset(Instant::now() + STANDSTILL);
        }
        is_over
    }
}
