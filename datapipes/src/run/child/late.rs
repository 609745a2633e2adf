//! Work that a worker of another machine is late with: an idle one does it, too, and the first answer
//! counts.
//!
//! A late task is here, and in no session, until one of its workers answers: that one takes the task
//! back for good, and all that the other one sends of it is dropped. A task that loses a worker stays here for
//! the other one; with the last, it is done again like any task whose worker ended.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use super::job::Task;

/// A task is late after so many times as long as nearly all take, and at least a time in which a
/// worker on a busy machine may get no turn.
const LATE: u32 = 2;
const LATE_AT_LEAST: Duration = Duration::from_millis(100);
/// Number of workers that may have a task: if it is the item that takes long, the others are needed
/// for other work.
const WORKERS: usize = 2;

/// The late tasks of a supervisor, and when a task is late.
#[derive(Default)]
pub(super) struct LateTasks {
    /// Time in which 95 of 100 recent tasks were done.
    usual: Cell<Option<Duration>>,
    tasks: RefCell<BTreeMap<u64, LateTask>>,
    /// Number of times that a task was late.
    times: Cell<u64>,
}

/// A task, and which time of being late it is: one that was taken back and is given up later may be
/// late again, with other workers.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct LateKey {
    pub number: u64,
    time: u64,
}

struct LateTask {
    task: Task,
    time: u64,
    /// Number of workers that have it.
    workers: usize,
}

impl LateTasks {
    /// Learns the time between the order and the end of a task. Returns true if it is the first.
    pub(super) fn learn(&self, time: Duration) -> bool {
        let known = self.usual.get();
        let usual = match known {
            None => time,
            // As many steps up as down where one in 19 tasks takes longer: 1.2 is 0.99 to the power of -18.
            Some(usual) if time > usual => usual + (usual / 5).max(Duration::from_micros(1)),
            Some(usual) => usual - usual / 100,
        };
        self.usual.set(Some(usual));
        known.is_none()
    }

    /// Returns the time after which a task is late; `None` before any was done.
    pub(super) fn after(&self) -> Option<Duration> {
        Some(self.usual.get()?.saturating_mul(LATE).max(LATE_AT_LEAST))
    }

    /// Adds a task that its worker is late with, and goes on with.
    pub(super) fn add(&self, task: Task) -> LateKey {
        self.times.set(self.times.get() + 1);
        let key = LateKey {
            number: task.number,
            time: self.times.get(),
        };
        self.insert(key, task, 1);
        key
    }

    /// Adds a task that was [taken](LateTasks::take), and that a second worker has now.
    pub(super) fn share(&self, key: LateKey, task: Task) {
        self.insert(key, task, WORKERS);
    }

    fn insert(&self, key: LateKey, task: Task, workers: usize) {
        let late = LateTask {
            task,
            time: key.time,
            workers,
        };
        self.tasks.borrow_mut().insert(key.number, late);
    }

    /// Returns the first task that a second worker may do.
    pub(super) fn first(&self) -> Option<LateKey> {
        let tasks = self.tasks.borrow();
        let mut open = tasks.iter().filter(|(_, late)| late.workers < WORKERS);
        open.next().map(|(&number, late)| LateKey {
            number,
            time: late.time,
        })
    }

    /// Returns a task to a worker that is to do it, or the first to answer.
    pub(super) fn take(&self, key: LateKey) -> Option<Task> {
        if !self.contains(key) {
            return None;
        }
        Some(self.tasks.borrow_mut().remove(&key.number)?.task)
    }

    /// Counts a worker less. Returns the task if that was the last one.
    pub(super) fn leave(&self, key: LateKey) -> Option<Task> {
        let is_last = {
            let mut tasks = self.tasks.borrow_mut();
            let late = tasks
                .get_mut(&key.number)
                .filter(|late| late.time == key.time)?;
            late.workers -= 1;
            late.workers == 0
        };
        is_last.then(|| self.take(key))?
    }

    pub(super) fn contains(&self, key: LateKey) -> bool {
        let tasks = self.tasks.borrow();
        let late = tasks.get(&key.number);
        late.is_some_and(|late| late.time == key.time)
    }

    /// Applies a function to a task.
    pub(super) fn with<R>(&self, key: LateKey, f: impl FnOnce(&mut Task) -> R) -> Option<R> {
        let mut tasks = self.tasks.borrow_mut();
        let late = tasks.get_mut(&key.number);
        late.filter(|late| late.time == key.time)
            .map(|late| f(&mut late.task))
    }

    /// Returns all tasks: what is sent of them is dropped from now on.
    pub(super) fn drain(&self) -> impl Iterator<Item = Task> {
        self.tasks.take().into_values().map(|late| late.task)
    }
}
