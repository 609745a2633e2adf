//! Work for a child: jobs, and leave to go on with them.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use tokio::time::Instant;

use super::Session;
use super::late::Late;
use super::rows::memory_of;
use crate::Result;
use crate::queue::Put;
use crate::run::child::job::Task;
use crate::run::child::protocol::{JobFacts, Order};

/// Number of lent pieces of memory above which pieces without granted rows are taken back at once.
const LENT: usize = 16;

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
        if let Some(last) = self.lose() {
            return self.send(cx, &Order::Cancel(last), None);
        }
        let released = self.slot.shared.released();
        if self.cancelled < released {
            self.cancelled = released;
            self.slot.redo.retain(|task| task.number >= released);
            if self.first_job().is_some_and(|first| first < released) {
                self.heard = Instant::now();
                return self.send(cx, &Order::Cancel(released - 1), None);
            }
        }
        // A child may stay for long with work that was cancelled.
        let alone = self
            .tasks
            .front()
            .is_some_and(|task| task.alone.is_some() || !self.slot.shared.is_wanted(task.number));
        // A worker that has lost work is too slow for more until that is over.
        let is_full = !self.lost.is_empty() || self.jobs() >= self.most_jobs();
        if !self.ready || self.leaving || alone || is_full {
            return Ok(false);
        }
        let is_worker = self.is_worker();
        let has_redo = !self.slot.redo.is_empty() || self.slot.shared.is_redo_first(is_worker);
        if !has_redo && !self.is_at_work(cx) {
            return Ok(false);
        }
        let is_busy = self.is_busy();
        let take_late = || (is_worker && !is_busy).then(|| self.slot.shared.take_late())?;
        let (late, late_task) = if has_redo { None } else { take_late() }.unzip();
        let task = match has_redo {
            true if is_busy => return Ok(false),
            true => self
                .slot
                .redo
                .pop_front()
                .or_else(|| self.slot.shared.take_redo(is_worker)),
            false if late.is_some() => late_task,
            // An idle child is a better place for the next job.
            false if is_busy && self.slot.shared.has_idle() => None,
            false if is_busy && self.slot.shared.is_late_first() => None,
            false => self
                .slot
                .shared
                .take(self.last_job())
                .map(|(number, job)| Task::new(number, job)),
        };
        let Some(mut task) = task else {
            return Ok(false);
        };
        // Cancelled work is not begun.
        if let Poll::Ready(None) = task
            .job
            .put
            .poll_ready(&mut Context::from_waker(Waker::noop()))
        {
            return Ok(true);
        }
        let now = Instant::now();
        if !is_busy {
            self.heard = now;
        }
        let places = task
            .alone
            .map_or(0..task.job.chunk.len, |item| item..item + 1);
        if self.lent.len() >= LENT {
            let parts = self
                .tasks
                .iter()
                .flat_map(|task| task.job.granted.iter().flatten());
            let granted: HashSet<u64> = parts
                .filter_map(|part| Some(memory_of(part)?.0.id))
                .collect();
            self.unlend(|id, _| granted.contains(&id));
        }
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
        if let Some(key) = late
            && let Some(task) = self.tasks.pop_back()
        {
            self.input -= task.bytes;
            let second = Some(now);
            self.late = Some(Late { key, second });
            self.slot
                .plan()
                .figures
                .late
                .fetch_add(1, Ordering::Relaxed);
            self.slot.shared.late.share(key, task);
            // Others take what comes after it.
            self.slot.shared.wake();
        }
        Ok(sent)
    }
}
