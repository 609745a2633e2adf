//! The places of a supervisor, and the state that they share.
//!
//! - [`state`]: what the child at each place does, and which children are parked.
//! - [`work`]: the work that no child has, and who may take it.
//! - [`failures`]: ends of children, and the error that stops all work.
//! - [`workers`]: workers of other machines, and those that are handed over to another part.

mod failures;
mod state;
mod work;
mod workers;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;

use self::failures::Failures;
pub(super) use self::state::ChildState;
use self::state::Place;
use self::work::Backlog;
use self::workers::Connected;
use super::job::Task;
use super::late::LateTasks;
use super::plan::ChildrenPlan;

/// A place of a supervisor for one child, as sessions see it; `child_slot.rs` runs it.
pub(super) struct ChildSlot {
    pub shared: Rc<SlotsShared>,
    pub place: usize,
    /// Tasks that ended a child, to be tried once more in a new child, item by item, before any
    /// other work.
    pub redo: VecDeque<Task>,
    /// True if its worker is to be handed over to another part.
    pub handed_over: bool,
}

impl ChildSlot {
    pub(super) fn plan(&self) -> &ChildrenPlan {
        &self.shared.plan
    }
}

/// State shared by the child slots of a supervisor, all on one thread.
pub(super) struct SlotsShared {
    pub plan: Arc<ChildrenPlan>,
    work: Backlog,
    /// Tasks that a worker of another machine is late with.
    pub late: LateTasks,
    places: RefCell<Vec<Place>>,
    /// True once the active children stood still: none is parked from then on.
    needs_all: Cell<bool>,
    workers: Connected,
    failures: Failures,
    /// True from the first job of an epoch to its end.
    epoch: Cell<bool>,
    /// Time when something was last done, or a child began or ceased to have something to do.
    done: Cell<Instant>,
    /// Longest recent time between two answers of a child with work.
    silence: Cell<Option<Duration>>,
}

impl SlotsShared {
    pub(super) fn new(plan: Arc<ChildrenPlan>) -> Self {
        let places = (0..plan.processes.count).map(|_| Place::default());
        SlotsShared {
            places: RefCell::new(places.collect()),
            plan,
            work: Backlog::default(),
            late: LateTasks::default(),
            needs_all: Cell::new(false),
            workers: Connected::default(),
            failures: Failures::default(),
            epoch: Cell::new(false),
            done: Cell::new(Instant::now()),
            silence: Cell::new(None),
        }
    }

    /// Wakes all child slots.
    pub(super) fn wake(&self) {
        let mut places = self.places.borrow_mut();
        let wakers: Vec<Waker> = places
            .iter_mut()
            .filter_map(|place| place.waker.take())
            .collect();
        drop(places);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes a child slot when there is work, or when earlier work was cancelled.
    pub(super) fn register(&self, place: usize, waker: &Waker) {
        match &mut self.places.borrow_mut()[place].waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// Learns the time between two answers of a child with work.
    pub(super) fn heard_after(&self, silence: Duration) {
        let longest = self.silence.get().unwrap_or_default();
        // A silence is forgotten over some hundred answers.
        self.silence.set(Some(silence.max(longest - longest / 128)));
    }

    /// Returns the longest recent time between two answers; `None` before the first.
    pub(super) fn longest_silence(&self) -> Option<Duration> {
        self.silence.get()
    }
}
