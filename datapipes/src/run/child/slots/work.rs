//! The work of a supervisor that no child has, in its order, and who may take it.
//!
//! Each job has a number, in the order in which the segment asks for it. A child works and answers in
//! order. Of all that waits, a child without work takes:
//!
//! 1. a task that has to be done item by item, if it comes before all other work and the child is on
//!    the machine that may do it;
//! 2. a task that another worker is late with, if it comes before all other work and the child is a
//!    worker of another machine;
//! 3. the next job.
//!
//! A child with work takes the next job only, and leaves it to an idle one, if there is one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::{ChildState, SlotsShared};
use crate::run::child::job::{Job, Task};
use crate::run::child::late::LateKey;

/// Work that no child has.
#[derive(Default)]
pub(super) struct Backlog {
    /// Jobs, by number.
    pending: RefCell<BTreeMap<u64, Job>>,
    /// Tasks of workers that were lost, to be done item by item before any later work.
    redo: RefCell<BTreeMap<u64, Task>>,
    /// Number of the next job.
    next: Cell<u64>,
    /// Number below which jobs are cancelled.
    released: Cell<u64>,
    /// Number above those of all jobs that a child had.
    taken: Cell<u64>,
}

/// Jobs, in their order.
impl SlotsShared {
    pub(in crate::run::child) fn add(&self, job: Job) {
        if !self.epoch.replace(true) {
            self.done.set(Instant::now());
        }
        if let Some(error) = self.why_broken() {
            return job.fail(error, &self.plan.edge);
        }
        let number = self.work.next.replace(self.work.next.get() + 1);
        self.change_pending(|pending| pending.insert(number, job));
        self.wake();
    }

    /// Changes the jobs that no child has, and publishes their number.
    fn change_pending<R>(&self, change: impl FnOnce(&mut BTreeMap<u64, Job>) -> R) -> R {
        let mut pending = self.work.pending.borrow_mut();
        let changed = change(&mut pending);
        let number = &self.plan.figures.pending;
        number.store(pending.len() as u64, Ordering::Relaxed);
        changed
    }

    /// Cancels all work, at the end of an epoch.
    pub(in crate::run::child) fn release(&self) {
        self.work.released.set(self.work.next.get());
        self.epoch.set(false);
        let jobs = self.drain();
        self.forget_failures();
        self.wake();
        // Last, as values of users may panic when they are dropped.
        drop(jobs);
    }

    /// Returns true if anything waits for a child.
    pub(in crate::run::child) fn has_work(&self) -> bool {
        self.has_pending() || !self.work.redo.borrow().is_empty()
    }

    pub(super) fn has_pending(&self) -> bool {
        self.pending() > 0
    }

    /// Returns the number of jobs that no child has.
    pub(in crate::run::child) fn pending(&self) -> usize {
        self.work.pending.borrow().len()
    }

    /// Returns the next job, if it is later than the jobs of the child. A child works and answers
    /// in order, so an earlier job after a later one could wait for ever, for a consumer that waits
    /// for the earlier one.
    pub(in crate::run::child) fn take(&self, after: Option<u64>) -> Option<(u64, Job)> {
        let job = self.change_pending(|pending| {
            let entry = pending
                .first_entry()
                .filter(|first| after.is_none_or(|after| after < *first.key()))?;
            Some(entry.remove_entry())
        });
        // Whoever asked in vain would be woken, too, and ask again.
        if let Some((number, _)) = &job {
            self.work.taken.set(self.work.taken.get().max(number + 1));
            self.wake_for_redo();
        }
        job
    }

    pub(in crate::run::child) fn is_wanted(&self, number: u64) -> bool {
        number >= self.work.released.get()
    }

    /// Returns the number below which jobs are cancelled.
    pub(in crate::run::child) fn released(&self) -> u64 {
        self.work.released.get()
    }

    /// Returns a job that a child had not begun.
    pub(in crate::run::child) fn give_back(&self, number: u64, job: Job) {
        if self.why_broken().is_some() {
            self.fail(job);
        } else if self.is_wanted(number) {
            self.change_pending(|pending| pending.insert(number, job));
            self.wake();
        }
    }

    /// Returns the number of the first job that no child has.
    pub(super) fn first_pending(&self) -> Option<u64> {
        self.work.pending.borrow().keys().next().copied()
    }

    /// Returns true if a child had this job or a later one.
    pub(super) fn was_reached(&self, number: u64) -> bool {
        number < self.work.taken.get()
    }

    /// Removes all work that no child has, and what workers are late with.
    pub(super) fn drain(&self) -> Vec<Job> {
        let pending = self.change_pending(std::mem::take).into_values();
        let redo = self.work.redo.take().into_values();
        let tasks = redo.chain(self.late.drain()).map(|task| task.job);
        pending.chain(tasks).collect()
    }

    /// Returns true if the next job is to be left to a child that has nothing to do: an idle one, or
    /// one that is to be free for a task that another worker is late with.
    pub(in crate::run::child) fn is_for_idle(&self) -> bool {
        let has_late = || self.ready_workers() > 1 && self.first_late().is_some();
        self.count(0, ChildState::Idle) > 0 || has_late()
    }
}

/// Tasks to be done item by item.
impl SlotsShared {
    /// Returns the number of the task of [`is_redo_first`](SlotsShared::is_redo_first).
    fn first_redo(&self, is_worker: bool) -> Option<u64> {
        let redo = self.work.redo.borrow();
        let mut tasks = redo.iter().filter(|(_, task)| !(is_worker && task.here));
        let (&first, task) = tasks.next()?;
        let is_first = self.first_pending().is_none_or(|job| first < job);
        let is_theirs = !is_worker && !task.here && self.ready_workers() > 0;
        (is_first && !is_theirs).then_some(first)
    }

    /// Returns true if there is a task to be done item by item that comes before all other work, by
    /// a worker of another machine or a process of this one. Work that is due earlier is done first:
    /// the task may wait for room, and so for a consumer that waits for that work.
    pub(in crate::run::child) fn is_redo_first(&self, is_worker: bool) -> bool {
        self.first_redo(is_worker).is_some()
    }

    /// Returns the task of [`is_redo_first`](SlotsShared::is_redo_first).
    pub(in crate::run::child) fn take_redo(&self, is_worker: bool) -> Option<Task> {
        let first = self.first_redo(is_worker)?;
        let task = self.work.redo.borrow_mut().remove(&first);
        self.wake_for_redo();
        task
    }

    /// Wakes processes of this machine: the first of all work may be theirs now.
    fn wake_for_redo(&self) {
        if self.work.redo.borrow().values().any(|task| task.here) {
            self.wake();
        }
    }

    /// Hands tasks to whichever child is free first.
    pub(in crate::run::child) fn give_redo(&self, tasks: impl Iterator<Item = Task>) {
        for task in tasks {
            if self.why_broken().is_some() {
                self.fail(task.job);
            } else if self.is_wanted(task.number) {
                self.work.redo.borrow_mut().insert(task.number, task);
            }
        }
        self.wake();
    }

    /// Returns true if something waits that is asked for before the job with a number, and that a
    /// worker, or a process of this machine, may do.
    pub(in crate::run::child) fn waits_before(&self, number: u64, is_worker: bool) -> bool {
        let does_all = is_worker || self.ready_workers() == 0;
        let has_pending = self.first_pending().is_some_and(|first| first < number);
        let may_do = |task: &Task| match task.here {
            true => !is_worker,
            false => does_all,
        };
        let redo = self.work.redo.borrow();
        (does_all && has_pending) || redo.range(..number).any(|(_, task)| may_do(task))
    }
}

/// Tasks that a worker of another machine is late with.
impl SlotsShared {
    /// Returns the number of a late task for a second worker, if it comes before the work that no
    /// worker has.
    fn first_late(&self) -> Option<LateKey> {
        let late = self.late.first()?;
        let is_first = self.first_pending().is_none_or(|job| late.number < job);
        is_first.then_some(late)
    }

    /// Returns a late task for a second worker, if it comes before the work that no worker has.
    pub(in crate::run::child) fn take_late(&self) -> Option<(LateKey, Task)> {
        let key = self.first_late()?;
        Some((key, self.late.take(key)?))
    }
}
