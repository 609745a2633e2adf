//! Ends of children: how many are too many, and the error that stops all work then.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::SlotsShared;
use crate::run::child::job::Job;
use crate::run::child::plan::ChildrenPlan;
use crate::{Error, ErrorKind};

/// Ends of children in an epoch.
#[derive(Default)]
pub(super) struct Failures {
    /// Number of children that ended in a row, without an item getting through.
    deaths: Cell<usize>,
    /// Error that stops all work until the next epoch.
    broken: RefCell<Option<Error>>,
}

impl SlotsShared {
    /// Returns the number of children that ended in a row, without an item getting through.
    pub(in crate::run::child) fn deaths(&self) -> usize {
        self.failures.deaths.get()
    }

    /// Records that an item got through, or that it is known not to.
    pub(in crate::run::child) fn progress(&self) {
        self.done.set(Instant::now());
        self.failures.deaths.set(0);
    }

    /// Records the end of a child. Returns true if another child is to be started. The end of an
    /// idle child is not counted.
    pub(in crate::run::child) fn death(&self, place: usize, how: &str, idle: bool) -> bool {
        let deaths = self.failures.deaths.get() + usize::from(!idle);
        self.failures.deaths.set(deaths);
        self.plan.figures.died.fetch_add(1, Ordering::Relaxed);
        let ChildrenPlan {
            node, processes, ..
        } = &*self.plan;
        crate::error::quietly(|| {
            tracing::warn!(node = &**node, child = place, "a process ended: {how}")
        });
        // Each child may end once before the guilty item is known, all of them at the same time.
        let others = if processes.restarts > 0 {
            processes.count - 1
        } else {
            0
        };
        if deaths <= processes.restarts.saturating_add(others) {
            return true;
        }
        let message = match deaths {
            1 => format!("1 process ended, where none may; it {how}"),
            _ => format!(
                "{deaths} processes ended one after the other, and no item got through; the last {how}"
            ),
        };
        self.break_off(Error::new(ErrorKind::Worker, message).at(node));
        false
    }

    /// Stops all work: everything that is asked for fails.
    pub(in crate::run::child) fn break_off(&self, error: Error) {
        // The error is about none of the items, whatever its kind: no policy may skip it.
        let kind = if error.kind().is_about_an_item() {
            ErrorKind::Worker
        } else {
            error.kind()
        };
        let error = Error::new(kind, error.said()).at(&self.plan.node);
        self.failures.broken.borrow_mut().get_or_insert(error);
        self.drain().into_iter().for_each(|job| self.fail(job));
        self.wake();
    }

    /// Fails a job with the error that stopped all work.
    pub(in crate::run::child) fn fail(&self, job: Job) {
        if let Some(error) = self.why_broken() {
            job.fail(error, &self.plan.edge);
        }
    }

    /// Returns the error that stopped all work, if one did.
    pub(super) fn why_broken(&self) -> Option<Error> {
        self.failures.broken.borrow().as_ref().map(Error::copied)
    }

    /// Forgets the ends, for the next epoch.
    pub(super) fn forget_failures(&self) {
        self.failures.deaths.set(0);
        self.failures.broken.take();
    }
}
