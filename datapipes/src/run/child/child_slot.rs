//! One place of a supervisor: its child, the replacement when the child ends, and the child's
//! tasks.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use super::child_handle::Child;
use super::job::Task;
use super::plan::ChildKey;
#[cfg(feature = "remote")]
use super::remote::Arrival;
use super::session::{End, Session};
use super::slots::{ChildSlot, ChildState, SlotsShared};
use super::vitals::{OomWatch, words};
use crate::{Arity, Error, ErrorKind};

/// Number of workers of other machines that have to crash while they do an item alone before it is to
/// blame. The worker that ended with the whole task comes on top: three in all.
const FAULTS: usize = 2;
/// Number of workers that may end their connections for whatever reason while they do an item alone.
const ENDS: usize = 10;

/// Fault of the item that a child worked on, as far as the child's end tells.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Nothing.
    None,
    /// The item may be the cause, and its error is of this kind.
    Known(ErrorKind),
    /// The connection to this worker has ended. The item may be the cause if its machine reports that
    /// the process has crashed.
    Suspected(u64),
}

/// Runs one place of a supervisor for processes of this machine, for ever.
pub(super) async fn run_slot(shared: Rc<SlotsShared>, place: usize) {
    let mut slot = ChildSlot::new(shared, place);
    loop {
        poll_fn(|cx| {
            slot.shared.register(place, cx.waker());
            // Workers of other machines come first, where there are any.
            let has_work = match slot.shared.ready_workers() {
                0 if !slot.shared.is_parked(place, cx) => slot.shared.has_work(),
                _ => slot.shared.is_redo_first(false),
            };
            if !slot.redo.is_empty() || has_work {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        slot.start().await;
        if slot.plan().processes.is_remote() {
            // In the order of all work, since workers come and go.
            slot.shared.give_redo(slot.redo.drain(..));
        }
    }
}

/// Works with a worker of another machine at a place of a supervisor, until it leaves or is lost.
/// Its unfinished work goes to other workers.
#[cfg(feature = "remote")]
pub(super) async fn run_worker(shared: Rc<SlotsShared>, place: usize, arrival: Arrival) {
    let mut slot = ChildSlot::new(shared, place);
    match Child::of_worker(slot.plan(), arrival) {
        Ok(child) => slot.run_child(child).await,
        Err(error) => {
            let how = format!("could not be greeted: {}", error.cause());
            slot.shared.death(place, &how, false);
        }
    }
    slot.shared.give_redo(slot.redo.drain(..));
    if !slot.handed_over {
        slot.shared.lost();
    }
}

impl ChildSlot {
    fn new(shared: Rc<SlotsShared>, place: usize) -> Self {
        ChildSlot {
            shared,
            place,
            redo: VecDeque::new(),
            handed_over: false,
        }
    }

    /// Starts a child, and works with it until it ends.
    async fn start(&mut self) {
        let child = match Child::start(self.plan(), self.place) {
            Ok(child) => child,
            Err(error) => {
                let count = self.plan().processes.count;
                let how = format!(
                    "could not be started ({} of {count}): {}",
                    self.place + 1,
                    error.cause()
                );
                if !self.shared.death(self.place, &how, false) {
                    return self.give_up();
                }
                // The obstacle may be transient: descriptors, processes.
                return tokio::time::sleep(Duration::from_millis(10) * self.shared.deaths() as u32)
                    .await;
            }
        };
        self.run_child(child).await;
    }

    /// Works with a child until it ends.
    async fn run_child(&mut self, child: Child) {
        let out_of_memory = OomWatch::now();
        self.plan().figures.started.fetch_add(1, Ordering::Relaxed);
        let running = RunningChild {
            shared: self.shared.clone(),
            child: (child.id(), self.place),
        };
        let mut session = Session::new(self, child);
        let end = poll_fn(|cx| session.poll(cx)).await;
        let ready = session.ready;
        let (mut child, tasks) = session.into_parts();
        self.shared.set_state(self.place, ChildState::NotReady);
        drop(running);
        let place = self.place;
        let worker = child.worker();
        let mut wait = Duration::ZERO;
        let mut fault = Fault::Known(ErrorKind::Crashed);
        let how = match end {
            End::Dismissed => {
                // The child is dropped first: it may be writing to rows of its tasks.
                drop(child);
                tasks
                    .into_iter()
                    .for_each(|task| self.shared.give_back(task.number, task.job));
                return;
            }
            // No item is to blame, and nothing has failed.
            End::HandedOver => {
                drop(child);
                return self.requeue(tasks, ready, Fault::None, "").await;
            }
            // Others may be able to do it.
            End::Refused(error) if worker.is_some() => {
                let said = error.cause();
                child.exit_report(|_| format!("cannot make the part: {said}"))
            }
            // The obstacle may be transient, as when a child cannot be started.
            End::Refused(error) if error.kind() == ErrorKind::Worker => {
                wait = Duration::from_millis(10) * (self.shared.deaths() + 1) as u32;
                child.exit_report(|_| format!("could not begin: {}", error.said()))
            }
            End::Refused(error) => {
                drop(child);
                self.redo.extend(tasks);
                self.shared.break_off(error.at(&self.plan().node));
                return self.give_up();
            }
            End::Died => {
                if let Some(worker) = worker {
                    fault = Fault::Suspected(worker);
                }
                child.exit_report(|status| match status {
                    Some(status) => words(status, out_of_memory.rose()),
                    None => "ended its connection".to_owned(),
                })
            }
            End::Slow(limit) => {
                fault = Fault::None;
                child.exit_report(|_| {
                    format!("is silent for {limit:?}, and loses its work to another")
                })
            }
            End::Silent(limit) => child.exit_report(|_| format!("gave no answer within {limit:?}")),
            End::Garbage(error) => {
                child.exit_report(|_| format!("sent what nobody can read: {}", error.cause()))
            }
            End::Closed => child.exit_report(|_| "closed its queue, and was ended".to_owned()),
            End::Unsent(error) => {
                fault = Fault::Known(error.kind());
                child.exit_report(|_| format!("could not be given it: {}", error.cause()))
            }
        };
        drop(child);
        if tasks.iter().any(|task| task.is_guilty(ready)) {
            // Knowing the guilty item counts as progress.
            self.shared.progress();
        }
        #[cfg(feature = "remote")]
        if let (Some(worker), false, Some(remote)) = (worker, ready, &self.plan().processes.remote)
        {
            remote.set_unable(worker, &how, fault != Fault::Suspected(worker));
        }
        // A child without tasks loses nothing when it ends.
        // Workers of other machines may be taken away at any time, without a cause in the work.
        let goes_on = self
            .shared
            .death(place, &how, worker.is_some() || ready && tasks.is_empty());
        self.requeue(tasks, ready, fault, &how).await;
        if !goes_on {
            return self.give_up();
        }
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Fails the remaining tasks, since all work has stopped.
    fn give_up(&mut self) {
        self.redo
            .drain(..)
            .for_each(|task| self.shared.fail(task.job));
    }

    /// Sorts the tasks of a child that ended. A task in progress is tried again item by item, and
    /// an item that was tried that way already is given up.
    ///
    /// Without a fault of an item, the tasks are done again as a whole where nothing of them was
    /// delivered.
    async fn requeue(&mut self, tasks: VecDeque<Task>, begun: bool, fault: Fault, how: &str) {
        let suspects = if begun { self.plan().hello.overlap } else { 0 };
        let mut tasks = tasks;
        // Tasks that other children can do go first, as this slot may wait for room.
        for task in tasks.split_off(suspects.min(tasks.len())) {
            match task.alone {
                None => self.shared.give_back(task.number, task.job),
                Some(_) => self.go_on(task),
            }
        }
        for mut task in tasks {
            if !self.shared.is_wanted(task.number) {
                continue;
            }
            match task.alone {
                None if fault == Fault::None && task.delivered == 0 => task.uncount(),
                None => {
                    // Item by item. Items that were delivered already need not be made again if
                    // they are known.
                    let from = match self.plan().arity {
                        // A second worker may have made fewer than the first one delivered. Only
                        // its own are counted.
                        Arity::One => task.delivered.min(task.seen),
                        _ => {
                            task.uncount();
                            0
                        }
                    };
                    task.turn_to(from, from);
                }
                // All output of the item has come, and the process ended after it.
                Some(item) if self.plan().arity <= Arity::AtMostOne && task.seen > task.before => {
                    task.turn_to(item + 1, task.seen);
                }
                // The process got further the first time, so this item is not the cause of its end.
                Some(item) if !task.is_guilty(begun) => {
                    task.uncount();
                    task.turn_to(item, task.before);
                }
                Some(item) => {
                    let Some((kind, how)) = self.blame(&mut task, fault, how) else {
                        task.uncount();
                        task.turn_to(item, task.before);
                        self.go_on(task);
                        continue;
                    };
                    let error = Error::new(kind, format!("the process that worked on it {how}"));
                    let error = match self.plan().input.origin(&*task.job.chunk.chunk, item) {
                        Some(origin) => error.of(&origin),
                        None => error,
                    };
                    self.plan().figures.crashed.fetch_add(1, Ordering::Relaxed);
                    if let Some(last) = task.job.counters.last() {
                        last.errors.fetch_add(1, Ordering::Relaxed);
                    }
                    let chunk = self.plan().edge.fail_chunk(error.at(&self.plan().node));
                    if poll_fn(|cx| task.job.poll_room(chunk.bytes, cx)).await {
                        task.job.hand_on(chunk);
                    }
                    task.delivered += 1;
                    task.turn_to(item + 1, task.delivered);
                    self.shared.progress();
                }
            }
            self.go_on(task);
        }
    }

    /// Decides if the item that a task does alone has ended enough children to be given up. Returns
    /// the kind of its error, and how the last of them ended.
    fn blame(&self, task: &mut Task, fault: Fault, how: &str) -> Option<(ErrorKind, String)> {
        let kind = match fault {
            Fault::None => return None,
            Fault::Known(kind) if self.place < self.plan().processes.here() => {
                return Some((kind, how.to_owned()));
            }
            Fault::Known(kind) => {
                task.faults += 1;
                kind
            }
            Fault::Suspected(worker) => {
                task.suspects.push(worker);
                ErrorKind::Crashed
            }
        };
        task.ends += 1;
        let crashes = self.plan().processes.crashes(&task.suspects);
        if task.faults + crashes.len() < FAULTS && task.ends < ENDS {
            return None;
        }
        if self.plan().processes.here() > 0 {
            // Whatever the cause, it may be in those machines.
            task.here = true;
            return None;
        }
        let last = crashes.into_iter().next_back();
        Some((kind, last.unwrap_or_else(|| how.to_owned())))
    }

    /// Puts a task in the list of those done item by item, or finishes it.
    fn go_on(&mut self, task: Task) {
        if task.alone.is_some_and(|item| item >= task.job.chunk.len) {
            task.job.finish();
        } else {
            // In order of their numbers: a later task may wait for a consumer that waits for an
            // earlier one.
            let place = self
                .redo
                .partition_point(|other| other.number < task.number);
            self.redo.insert(place, task);
        }
    }
}

/// Counts a child as running, until it is dropped.
struct RunningChild {
    shared: Rc<SlotsShared>,
    child: ChildKey,
}

impl Drop for RunningChild {
    fn drop(&mut self) {
        self.shared.plan.figures.gone(self.child);
    }
}
