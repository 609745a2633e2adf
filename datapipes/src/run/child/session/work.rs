//! Work for a child: jobs, and leave to go on with them.

use std::task::{Context, Poll, Waker};

use tokio::time::Instant;

use super::Session;
use crate::Result;
use crate::queue::Put;
use crate::run::child::job::Task;
use crate::run::child::late::LateKey;
use crate::run::child::protocol::{JobFacts, Order};

impl Session<'_> {
    /// Allows the jobs that have asked to make an item to do so, as far as there is room.
    pub(super) fn allow(&mut self, cx: &mut Context<'_>) -> Result<()> {
        for at in 0..self.tasks.len() {
            let task = &mut self.tasks[at];
            let is_wanted = self.slot.shared.is_wanted(task.number);
            let Some(bytes) = task.asked.filter(|_| is_wanted) else {
                continue;
            };
            // The wait is not the child's fault. A later job does not count: its question says
            // nothing about the first, which may hang.
            if at == 0 && self.late.is_none() {
                self.heard = Instant::now();
                self.had_no_room = self.heard;
            }
            let room = match task.delivered {
                0 => task.job.poll_bytes(bytes, cx),
                _ => task.job.poll_room(bytes, cx),
            };
            if room.is_ready() {
                task.asked = None;
                let number = task.number;
                self.send(cx, &Order::Allow(number), None)?;
            }
        }
        Ok(())
    }

    /// Gives the child as much work as it may have at once. Returns true if anything was done.
    pub(super) fn give_work(&mut self, cx: &mut Context<'_>) -> Result<bool> {
        if self.closed.is_some() {
            return Ok(false);
        }
        if let Poll::Ready(Err(error)) = self.child.orders.poll_flush(cx) {
            return self.unreachable(error);
        }
        if let Some(last) = self.lose().or_else(|| self.cancel_released()) {
            return self.send(cx, &Order::Cancel(last), None);
        }
        match self.next_task(cx) {
            Some((task, late)) => self.begin(task, late, cx),
            None => Ok(false),
        }
    }

    /// Gives up jobs that were cancelled. Returns the number up to which the child is to cancel.
    fn cancel_released(&mut self) -> Option<u64> {
        let released = self.slot.shared.released();
        if self.cancelled >= released {
            return None;
        }
        self.cancelled = released;
        self.slot.redo.retain(|task| task.number >= released);
        self.first_job().filter(|&first| first < released)?;
        self.heard = Instant::now();
        Some(released - 1)
    }

    /// Returns true if the child may have one more task.
    fn has_room(&self) -> bool {
        // A child may stay for long with work that was cancelled.
        let is_alone =
            |task: &Task| task.alone.is_some() || !self.slot.shared.is_wanted(task.number);
        self.ready
            && !self.leaving
            && !self.tasks.front().is_some_and(is_alone)
            // A worker that has lost work is too slow for more until that is over.
            && self.lost.is_empty()
            && self.jobs() < self.most_jobs()
    }

    /// Chooses what the child does next, in the order that `slots/work.rs` describes. Returns a key,
    /// too, if another worker is late with the task.
    fn next_task(&mut self, cx: &mut Context<'_>) -> Option<(Task, Option<LateKey>)> {
        if !self.has_room() {
            return None;
        }
        let (shared, is_worker) = (self.slot.shared.clone(), self.is_worker());
        let is_busy = self.is_busy();
        if !self.slot.redo.is_empty() || shared.is_redo_first(is_worker) {
            if is_busy {
                return None;
            }
            let own = self.slot.redo.pop_front();
            let task = own.or_else(|| shared.take_redo(is_worker))?;
            return Some((task, None));
        }
        if !self.is_at_work(cx) {
            return None;
        }
        if is_worker
            && !is_busy
            && let Some((key, task)) = shared.take_late()
        {
            return Some((task, Some(key)));
        }
        if is_busy && shared.is_for_idle() {
            return None;
        }
        let (number, job) = shared.take(self.last_job())?;
        Some((Task::new(number, job), None))
    }

    /// Sends a task to the child. Returns true if anything was done.
    fn begin(
        &mut self,
        mut task: Task,
        late: Option<LateKey>,
        cx: &mut Context<'_>,
    ) -> Result<bool> {
        // Cancelled work is not begun.
        let mut noop = Context::from_waker(Waker::noop());
        if let Poll::Ready(None) = task.job.put.poll_ready(&mut noop) {
            return Ok(true);
        }
        let now = Instant::now();
        if !self.is_busy() {
            self.heard = now;
        }
        let all = 0..task.job.chunk.len;
        let places = task.alone.map_or(all, |item| item..item + 1);
        self.unlend_unused();
        let grants = self.grants(&mut task.job, places.clone());
        let facts = JobFacts {
            number: task.number,
            run: task.job.run,
            alone: task.alone.is_some(),
            heaviest: task.job.credit.heaviest(),
            taken: task.job.morsels.pace.taken(),
            needed: task.job.needed,
        };
        if late.is_none() {
            (task.asked, task.sent, task.answered) = (None, now, false);
        }
        self.tasks.push_back(task);
        let sent = self.send(cx, &Order::Job(facts, grants), Some(places))?;
        if let Some(key) = late {
            self.share_late(key, now);
        }
        Ok(sent)
    }
}
