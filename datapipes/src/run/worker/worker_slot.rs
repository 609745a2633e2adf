//! One place of a supervisor: a child in it, the next when that ends, and what the child has to do.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use super::child::Child;
use super::protocol::{self, Counted};
use super::session::{End, Session};
use super::supervisor::{Job, Plan, Shared};
use super::vitals::{OomWatch, words};
use crate::queue::Put;
use crate::{Arity, Error, ErrorKind, Work};

/// Keeps one place of a supervisor busy, for ever.
pub(super) async fn station(shared: Rc<Shared>, place: usize) {
    let mut station = WorkerSlot {
        shared,
        place,
        redo: VecDeque::new(),
    };
    loop {
        poll_fn(|cx| {
            station.shared.register(place, cx.waker());
            let has_work = !station.redo.is_empty() || station.shared.has_pending();
            if has_work {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        station.employ().await;
    }
}

pub(super) struct WorkerSlot {
    pub shared: Rc<Shared>,
    pub place: usize,
    /// What ended a child, to be tried once more in a fresh one, item by item. Before anything
    /// else.
    pub redo: VecDeque<Task>,
}

/// A job at a station.
pub(super) struct Task {
    pub number: u64,
    pub job: Job,
    /// Items and errors that were handed on.
    pub delivered: usize,
    /// Where it is done item by item: the place of the item that is in work.
    pub alone: Option<usize>,
    /// Of what comes out item by item: how many were seen, of which those below `delivered` are
    /// known.
    pub seen: usize,
    /// How many of those are not of the item that is in work.
    before: usize,
    /// What was counted of it; where it is done item by item, of the item that is in work.
    counted: Counted,
}

impl WorkerSlot {
    pub(super) fn plan(&self) -> &Plan {
        &self.shared.plan
    }

    /// Starts a child, and works with it as long as there is one.
    async fn employ(&mut self) {
        let out_of_memory = OomWatch::now();
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
                // What was in the way may go away: descriptors, processes.
                return tokio::time::sleep(Duration::from_millis(10) * self.shared.deaths() as u32)
                    .await;
            }
        };
        self.plan().figures.started.fetch_add(1, Ordering::Relaxed);
        let running = Running {
            shared: self.shared.clone(),
            process: child.id(),
        };
        let mut session = Session::new(self, child);
        let end = poll_fn(|cx| session.poll(cx)).await;
        let Session {
            mut child,
            tasks,
            ready,
            ..
        } = session;
        self.shared.set_idle(self.place, false);
        drop(running);
        let place = self.place;
        let (mut kind, mut wait) = (ErrorKind::Crashed, Duration::ZERO);
        let how = match end {
            End::Dismissed => {
                // First the child, which may be writing to rows of theirs.
                drop(child);
                tasks
                    .into_iter()
                    .for_each(|task| self.shared.give_back(task.number, task.job));
                return;
            }
            // What was in the way may go away, as where it cannot be started.
            End::Refused(error) if error.kind() == ErrorKind::Worker => {
                wait = Duration::from_millis(10) * (self.shared.deaths() + 1) as u32;
                let (kind, said) = (error.kind().to_string(), error.cause());
                let said = said.strip_prefix(&format!("{kind}: ")).unwrap_or(&said);
                child.obituary(|_| format!("could not begin: {said}"))
            }
            End::Refused(error) => {
                drop(child);
                self.redo.extend(tasks);
                self.shared.break_off(error.at(&self.plan().node));
                return self.give_up();
            }
            End::Died => child.obituary(|status| words(status, out_of_memory.rose())),
            End::Silent(limit) => child.obituary(|_| format!("gave no answer within {limit:?}")),
            End::Garbage(error) => {
                child.obituary(|_| format!("sent what nobody can read: {}", error.cause()))
            }
            End::Closed => child.obituary(|_| "closed its queue, and was ended".to_owned()),
            End::Unsent(error) => {
                kind = error.kind();
                child.obituary(|_| format!("could not be given it: {}", error.cause()))
            }
        };
        drop(child);
        if tasks.iter().any(|task| task.is_guilty(ready)) {
            // To know that is to get on.
            self.shared.progress();
        }
        // One that had nothing to do takes nothing with it.
        let goes_on = self.shared.death(place, &how, ready && tasks.is_empty());
        self.sort_out(tasks, ready, kind, &how).await;
        if !goes_on {
            return self.give_up();
        }
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Fails what is left here, since there is no going on.
    fn give_up(&mut self) {
        self.redo
            .drain(..)
            .for_each(|task| self.shared.fail(task.job));
    }

    /// A child ended: what it was at is tried again item by item, and an item that was tried so
    /// already is given up.
    async fn sort_out(&mut self, tasks: VecDeque<Task>, begun: bool, kind: ErrorKind, how: &str) {
        let suspects = if begun { overlap(self.plan()) } else { 0 };
        let mut tasks = tasks;
        // First what others can do while this waits for room.
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
                None => {
                    // One by one; what was handed on already need not be made again, where it can
                    // be told what that was.
                    let from = if self.plan().arity == Arity::One {
                        task.delivered
                    } else {
                        0
                    };
                    if from < task.delivered {
                        task.uncount();
                    }
                    task.turn_to(from, from);
                }
                // All that comes of it has come, and it ended behind that.
                Some(item) if self.plan().arity <= Arity::AtMostOne && task.seen > task.before => {
                    task.turn_to(item + 1, task.seen);
                }
                // It did more the first time: this is not what ends children.
                Some(item) if !task.is_guilty(begun) => {
                    task.uncount();
                    task.turn_to(item, task.before);
                }
                Some(item) => {
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
                    if poll_fn(|cx| poll_room(&mut task.job, chunk.bytes, cx)).await {
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

    /// Puts a task where it is done item by item, or finishes it.
    fn go_on(&mut self, task: Task) {
        if task.alone.is_some_and(|item| item >= task.job.chunk.len) {
            task.job.finish();
        } else {
            // In order of their numbers: a later one may wait for a consumer that waits for an
            // earlier one.
            let place = self
                .redo
                .partition_point(|other| other.number < task.number);
            self.redo.insert(place, task);
        }
    }
}

impl Task {
    pub(super) fn new(number: u64, job: Job) -> Self {
        Task {
            number,
            job,
            delivered: 0,
            alone: None,
            seen: 0,
            before: 0,
            counted: Vec::new(),
        }
    }

    /// Goes on with this item alone, before which so many came out.
    pub(super) fn turn_to(&mut self, item: usize, before: usize) {
        (self.alone, self.seen, self.before) = (Some(item), before, before);
        self.counted.clear();
    }

    /// Adds what was counted.
    pub(super) fn count(&mut self, counted: Counted) {
        for (counters, more) in self.job.counters.iter().zip(&counted) {
            protocol::count(counters, more);
        }
        if self.counted.is_empty() {
            self.counted = counted;
            return;
        }
        for (all, more) in self
            .counted
            .iter_mut()
            .flatten()
            .zip(counted.into_iter().flatten())
        {
            *all = all.wrapping_add(more);
        }
    }

    /// Takes back what was counted, since it is done again.
    fn uncount(&mut self) {
        for (counters, counted) in self.job.counters.iter().zip(self.counted.drain(..)) {
            protocol::uncount(counters, &counted);
        }
    }

    /// Whether the item that is in work ended the process, in which it was alone.
    fn is_guilty(&self, begun: bool) -> bool {
        self.alone.is_some() && begun && self.seen >= self.delivered
    }
}

/// A child that is counted among those that run, until this is dropped.
struct Running {
    shared: Rc<Shared>,
    process: u32,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.plan.figures.gone(self.process);
    }
}

/// SegmentLog of work that a child may have open at once, besides waiting ones: more than one where
/// it waits for something.
pub(super) fn overlap(plan: &Plan) -> usize {
    plan.hello.overlap.max(1)
}

/// Whether a job's output of so many bytes has room; `false` if nobody wants it any more.
pub(super) fn poll_room(job: &mut Job, bytes: usize, cx: &mut Context<'_>) -> Poll<bool> {
    let mut room = job.put.poll_ready(cx).map(|room| room.is_some());
    if room == Poll::Ready(true) {
        let Job {
            credit, awaited, ..
        } = job;
        let id = credit.id();
        room = credit
            .poll_take(cx, bytes, || awaited.is(id))
            .map(|()| true);
    }
    if room.is_pending() {
        job.ringer.ring();
    }
    room
}

/// Whether a part waits for something, so that a child should begin several pieces of work at once.
pub(crate) fn overlap_of(works: impl Iterator<Item = Work>, share: usize) -> usize {
    /// SegmentLog of work that wait at once in one child.
    const WAITING: usize = 64;
    if works.into_iter().any(|work| work == Work::Io) {
        WAITING.min(share).max(1)
    } else {
        1
    }
}
