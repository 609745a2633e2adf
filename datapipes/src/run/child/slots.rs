//! The places of a supervisor, and the state that they share.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::job::{Job, Task};
use super::late::{LateKey, LateTasks};
use super::plan::ChildrenPlan;
use crate::{Error, ErrorKind};

/// Time in which a child at work must do something, if there are jobs and other children are parked.
const STANDSTILL: Duration = Duration::from_secs(1);

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
    /// Jobs that no child has, by number.
    pending: RefCell<BTreeMap<u64, Job>>,
    /// Tasks of workers that were lost, to be done item by item before any later work.
    redo: RefCell<BTreeMap<u64, Task>>,
    /// Tasks that a worker of another machine is late with.
    pub late: LateTasks,
    /// Longest recent time between two answers of a child with work.
    silence: Cell<Option<Duration>>,
    /// Number of workers of other machines.
    workers: Cell<usize>,
    /// Number of them to be handed over that are not chosen yet.
    surplus: Cell<usize>,
    /// True from the first job of an epoch to its end.
    epoch: Cell<bool>,
    /// Time when something was last done, or a child began or ceased to have something to do.
    done: Cell<Instant>,
    next: Cell<u64>,
    /// Number below which jobs are cancelled.
    released: Cell<u64>,
    /// Number of children that ended in a row, without an item getting through.
    deaths: Cell<usize>,
    /// Error that stops all work until the next epoch.
    broken: RefCell<Option<(ErrorKind, String)>>,
    wakers: RefCell<Vec<Option<Waker>>>,
    /// True for each place whose child has made its part.
    ready: RefCell<Vec<bool>>,
    /// True for each place whose child is ready and has nothing to do.
    idle: RefCell<Vec<bool>>,
    /// True for each place whose child has something to do, and room for it.
    working: RefCell<Vec<bool>>,
    /// Number above those of all jobs that a child had.
    taken: Cell<u64>,
    /// True once the active children stood still: none is parked from then on.
    needs_all: Cell<bool>,
    /// Timers of the places that are parked.
    rests: RefCell<Vec<Option<Pin<Box<Sleep>>>>>,
}

impl SlotsShared {
    pub(super) fn new(plan: Arc<ChildrenPlan>) -> Self {
        let wakers = RefCell::new(vec![None; plan.processes.count]);
        let ready = RefCell::new(vec![false; plan.processes.count]);
        let idle = RefCell::new(vec![false; plan.processes.count]);
        let working = RefCell::new(vec![false; plan.processes.count]);
        let rests = (0..plan.processes.count).map(|_| None).collect();
        SlotsShared {
            plan,
            pending: RefCell::default(),
            redo: RefCell::default(),
            late: LateTasks::default(),
            silence: Cell::new(None),
            workers: Cell::new(0),
            surplus: Cell::new(0),
            epoch: Cell::new(false),
            done: Cell::new(Instant::now()),
            next: Cell::new(0),
            released: Cell::new(0),
            deaths: Cell::new(0),
            broken: RefCell::default(),
            wakers,
            ready,
            idle,
            working,
            taken: Cell::new(0),
            needs_all: Cell::new(false),
            rests: RefCell::new(rests),
        }
    }

    /// Returns true if the child at a place gets no work, since fewer are enough. It does what has
    /// to be done before work that another child has, since that one may wait for it. If a child at
    /// work does nothing for a while, no child is parked from then on.
    pub(super) fn is_parked(&self, place: usize, cx: &mut Context<'_>) -> bool {
        if self.needs_all.get() || !self.plan.is_parked(place) {
            return false;
        }
        let Some(first) = self.pending.borrow().keys().next().copied() else {
            self.rests.borrow_mut()[place] = None;
            return true;
        };
        if first < self.taken.get() {
            return false;
        }
        let rest = &mut self.rests.borrow_mut()[place];
        let rest = rest.get_or_insert_with(|| Box::pin(sleep(STANDSTILL)));
        while rest.as_mut().poll(cx).is_ready() {
            if self.working.borrow().contains(&true) && self.done.get().elapsed() >= STANDSTILL {
                self.needs_all.set(true);
                self.wake();
                return false;
            }
            rest.as_mut().reset(Instant::now() + STANDSTILL);
        }
        true
    }

    pub(super) fn add(&self, job: Job) {
        if !self.epoch.replace(true) {
            self.done.set(Instant::now());
        }
        if let Some(error) = self.why_broken() {
            return job.fail(error, &self.plan.edge);
        }
        let number = self.next.replace(self.next.get() + 1);
        self.change_pending(|pending| pending.insert(number, job));
        self.wake();
    }

    /// Changes the jobs that no child has, and publishes their number.
    fn change_pending<R>(&self, change: impl FnOnce(&mut BTreeMap<u64, Job>) -> R) -> R {
        let mut pending = self.pending.borrow_mut();
        let changed = change(&mut pending);
        let number = &self.plan.figures.pending;
        number.store(pending.len() as u64, Ordering::Relaxed);
        changed
    }

    pub(super) fn release(&self) {
        self.released.set(self.next.get());
        self.epoch.set(false);
        let pending = self.change_pending(std::mem::take);
        let redo = self.redo.take();
        let late: Vec<Task> = self.late.drain().collect();
        self.deaths.set(0);
        self.broken.replace(None);
        self.wake();
        // Last, as values of users may panic when they are dropped.
        drop((pending, redo, late));
    }

    pub(super) fn wake(&self) {
        let wakers: Vec<Waker> = self
            .wakers
            .borrow_mut()
            .iter_mut()
            .filter_map(Option::take)
            .collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes a child slot when there is work, or when earlier work was cancelled.
    pub(super) fn register(&self, place: usize, waker: &Waker) {
        match &mut self.wakers.borrow_mut()[place] {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// Sets if the child at a place has made its part.
    pub(super) fn set_ready(&self, place: usize, ready: bool) {
        let was = std::mem::replace(&mut self.ready.borrow_mut()[place], ready);
        if was != ready && self.plan.processes.is_remote() {
            // Processes of this machine work while no worker of another one does.
            self.wake();
        }
    }

    /// Returns the number of workers of other machines that have made their part.
    pub(super) fn ready_workers(&self) -> usize {
        let ready = self.ready.borrow();
        let workers = &ready[self.plan.processes.here()..];
        workers.iter().filter(|ready| **ready).count()
    }

    /// Sets if the child at a place has nothing to do. When it gets work, child slots that had
    /// left the work to it look again.
    pub(super) fn set_idle(&self, place: usize, idle: bool) {
        let was = std::mem::replace(&mut self.idle.borrow_mut()[place], idle);
        if was && !idle && self.has_pending() {
            self.wake();
        }
    }

    pub(super) fn has_idle(&self) -> bool {
        self.idle.borrow().contains(&true)
    }

    /// Sets if the child at a place has something to do, and room for it.
    pub(super) fn set_working(&self, place: usize, working: bool) {
        let was = std::mem::replace(&mut self.working.borrow_mut()[place], working);
        if was != working {
            self.done.set(Instant::now());
        }
    }

    /// Returns true if an epoch gives work.
    #[cfg(feature = "remote")]
    pub(super) fn has_epoch(&self) -> bool {
        self.epoch.get()
    }

    /// Returns true if nothing could be done for this time.
    #[cfg(feature = "remote")]
    pub(super) fn is_quiet_for(&self, time: Duration) -> bool {
        !self.working.borrow().contains(&true) && self.done.get().elapsed() >= time
    }

    /// Asks for one of the workers to be handed over to another part.
    #[cfg(feature = "remote")]
    pub(super) fn hand_over(&self) {
        self.surplus.set(self.surplus.get() + 1);
        self.wake();
    }

    /// Returns true if the worker at a place is the one to be handed over: one with nothing to do,
    /// or else with nothing that it can do, if there is one.
    pub(super) fn is_handed_over(&self, place: usize) -> bool {
        let surplus = self.surplus.get();
        if surplus == 0 {
            return false;
        }
        let here = self.plan.processes.here();
        let (idle, working) = (self.idle.borrow(), self.working.borrow());
        let busy = working[here..].iter().filter(|working| **working).count();
        let others_wait = working[place] && busy < self.workers.get();
        if !idle[place] && (others_wait || idle[here..].contains(&true)) {
            return false;
        }
        self.surplus.set(surplus - 1);
        true
    }

    /// Records that a worker left without having been asked to.
    #[cfg(feature = "remote")]
    pub(super) fn lost(&self) {
        self.surplus.set(self.surplus.get().saturating_sub(1));
    }

    /// Returns true if an epoch gives work, and no child can do any now.
    #[cfg(feature = "remote")]
    pub(super) fn is_stuck(&self) -> bool {
        let children = self.workers() + self.plan.processes.here();
        self.has_epoch() && children > 0 && !self.working.borrow().contains(&true)
    }

    /// Returns the number of children that ended in a row, without an item getting through.
    pub(super) fn deaths(&self) -> usize {
        self.deaths.get()
    }

    pub(super) fn has_pending(&self) -> bool {
        self.pending() > 0
    }

    /// Returns the number of jobs that no child has.
    pub(super) fn pending(&self) -> usize {
        self.pending.borrow().len()
    }

    pub(super) fn has_redo(&self) -> bool {
        !self.redo.borrow().is_empty()
    }

    /// Returns true if there is a task to be done item by item that comes before all other work, by
    /// a worker of another machine or a process of this one. Work that is due earlier is done first:
    /// the task may wait for room, and so for a consumer that waits for that work.
    pub(super) fn is_redo_first(&self, is_worker: bool) -> bool {
        self.first_redo(is_worker).is_some()
    }

    fn first_redo(&self, is_worker: bool) -> Option<u64> {
        let (redo, pending) = (self.redo.borrow(), self.pending.borrow());
        let mut tasks = redo.iter().filter(|(_, task)| !(is_worker && task.here));
        let (&first, task) = tasks.next()?;
        let is_first = pending.keys().next().is_none_or(|&job| first < job);
        let is_theirs = !is_worker && !task.here && self.ready_workers() > 0;
        (is_first && !is_theirs).then_some(first)
    }

    /// Returns the task of [`is_redo_first`](SlotsShared::is_redo_first).
    pub(super) fn take_redo(&self, is_worker: bool) -> Option<Task> {
        let first = self.first_redo(is_worker)?;
        let task = self.redo.borrow_mut().remove(&first);
        self.wake_for_redo();
        task
    }

    /// Wakes processes of this machine: the first of all work may be theirs now.
    fn wake_for_redo(&self) {
        if self.redo.borrow().values().any(|task| task.here) {
            self.wake();
        }
    }

    /// Hands tasks to whichever child is free first.
    pub(super) fn give_redo(&self, tasks: impl Iterator<Item = Task>) {
        for task in tasks {
            if self.why_broken().is_some() {
                self.fail(task.job);
            } else if self.is_wanted(task.number) {
                self.redo.borrow_mut().insert(task.number, task);
            }
        }
        self.wake();
    }

    /// Returns true if anything waits for a child.
    pub(super) fn has_work(&self) -> bool {
        self.has_pending() || self.has_redo()
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

    /// Counts a worker of another machine as connected, or not any more.
    #[cfg(feature = "remote")]
    pub(super) fn set_workers(&self, change: isize) {
        self.workers
            .set(self.workers.get().saturating_add_signed(change));
        self.wake();
    }

    /// Returns the number of connected workers of other machines.
    #[cfg(feature = "remote")]
    pub(super) fn workers(&self) -> usize {
        self.workers.get()
    }

    /// Returns the next job, if it is later than the jobs of the child. A child works and answers
    /// in order, so an earlier job after a later one could wait for ever, for a consumer that waits
    /// for the earlier one.
    pub(super) fn take(&self, after: Option<u64>) -> Option<(u64, Job)> {
        let job = self.change_pending(|pending| {
            let entry = pending
                .first_entry()
                .filter(|first| after.is_none_or(|after| after < *first.key()))?;
            Some(entry.remove_entry())
        });
        // Whoever asked in vain would be woken, too, and ask again.
        if let Some((number, _)) = &job {
            self.taken.set(self.taken.get().max(number + 1));
            self.wake_for_redo();
        }
        job
    }

    /// Returns the number of a late task for a second worker, if it comes before the work that no
    /// worker has.
    fn first_late(&self) -> Option<LateKey> {
        let late = self.late.first()?;
        let pending = self.pending.borrow();
        let is_first = pending.keys().next().is_none_or(|&job| late.number < job);
        is_first.then_some(late)
    }

    /// Returns true if a worker is to take no other work while it has some, so that it is free for a
    /// late task.
    pub(super) fn is_late_first(&self) -> bool {
        self.ready_workers() > 1 && self.first_late().is_some()
    }

    /// Returns the task of [`is_late_first`](SlotsShared::is_late_first).
    pub(super) fn take_late(&self) -> Option<(LateKey, Task)> {
        let key = self.first_late()?;
        Some((key, self.late.take(key)?))
    }

    /// Returns true if something waits that is asked for before the job with a number, and that a
    /// worker, or a process of this machine, may do.
    pub(super) fn waits_before(&self, number: u64, is_worker: bool) -> bool {
        let does_all = is_worker || self.ready_workers() == 0;
        let pending = self.pending.borrow();
        let has_pending = pending.keys().next().is_some_and(|first| *first < number);
        let may_do = |task: &Task| match task.here {
            true => !is_worker,
            false => does_all,
        };
        let redo = self.redo.borrow();
        (does_all && has_pending) || redo.range(..number).any(|(_, task)| may_do(task))
    }

    /// Returns a job that a child had not begun.
    pub(super) fn give_back(&self, number: u64, job: Job) {
        if self.why_broken().is_some() {
            self.fail(job);
        } else if self.is_wanted(number) {
            self.change_pending(|pending| pending.insert(number, job));
            self.wake();
        }
    }

    pub(super) fn is_wanted(&self, number: u64) -> bool {
        number >= self.released.get()
    }

    /// Returns the number below which jobs are cancelled.
    pub(super) fn released(&self) -> u64 {
        self.released.get()
    }

    /// Records that an item got through, or that it is known not to.
    pub(super) fn progress(&self) {
        self.done.set(Instant::now());
        self.deaths.set(0);
    }

    /// Records the end of a child. Returns true if another child is to be started. The end of an
    /// idle child is not counted.
    pub(super) fn death(&self, place: usize, how: &str, idle: bool) -> bool {
        let deaths = self.deaths.get() + usize::from(!idle);
        self.deaths.set(deaths);
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
    pub(super) fn break_off(&self, error: Error) {
        // The error is about none of the items, whatever its kind: no policy may skip it.
        let kind = if error.kind().is_about_an_item() {
            ErrorKind::Worker
        } else {
            error.kind()
        };
        let said = error.cause();
        let said = said
            .strip_prefix(&format!("{kind}: "))
            .map(str::to_owned)
            .unwrap_or(said);
        self.broken.borrow_mut().get_or_insert((kind, said));
        let pending = self.change_pending(std::mem::take);
        let redo = std::mem::take(&mut *self.redo.borrow_mut());
        let tasks = redo.into_values().chain(self.late.drain());
        let tasks = tasks.map(|task| task.job);
        for job in pending.into_values().chain(tasks) {
            self.fail(job);
        }
        self.wake();
    }

    /// Fails a job with the error that stopped all work.
    pub(super) fn fail(&self, job: Job) {
        if let Some(error) = self.why_broken() {
            job.fail(error, &self.plan.edge);
        }
    }

    fn why_broken(&self) -> Option<Error> {
        let broken = self.broken.borrow();
        let (kind, said) = broken.as_ref()?;
        Some(Error::new(*kind, said).at(&self.plan.node))
    }
}
