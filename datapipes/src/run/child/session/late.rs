//! Late work, at one of its workers: see [`LateTasks`](crate::run::child::late::LateTasks).

use std::sync::atomic::Ordering;
use std::task::Context;

use tokio::time::Instant;

use super::Session;
use crate::Result;
use crate::codec::damaged;
use crate::run::child::late::LateKey;
use crate::run::child::protocol::Report;

/// A late task, at one of its workers.
pub(super) struct Late {
    pub key: LateKey,
    /// Time when it was sent to this worker, if that is the second one.
    pub second: Option<Instant>,
}

impl Session<'_> {
    /// Lets a second worker do the first task, too, if it is late.
    pub(super) fn poll_late(&mut self, cx: &mut Context<'_>) {
        let Some(deadline) = self.late_deadline() else {
            return;
        };
        if self.late_timer.deadline() != deadline {
            self.late_timer.as_mut().reset(deadline);
        }
        if self.late_timer.as_mut().poll(cx).is_pending() {
            return;
        }
        let task = self.tasks.pop_front().expect("it has the deadline");
        self.input -= task.bytes;
        let (key, second) = (self.slot.shared.late.add(task), None);
        self.late = Some(Late { key, second });
        self.slot.shared.wake();
    }

    /// Returns the time from which the first task is late; `None` if a second worker cannot help.
    fn late_deadline(&self) -> Option<Instant> {
        let shared = &self.slot.shared;
        let front = self.tasks.front()?;
        let is_first = self.ready && self.late.is_none() && self.lost.is_empty();
        let waits_for_it = self.held.is_none() && front.asked.is_none() && !front.answered;
        let is_whole = front.alone.is_none() && shared.is_wanted(front.number);
        let has_others = self.is_worker() && shared.ready_workers() >= 2;
        if !(is_first && waits_for_it && is_whole && has_others) {
            return None;
        }
        let begun = front.sent.max(self.had_no_room);
        begun.checked_add(shared.late.after()?)
    }

    /// Shares the last task, which was sent now, with the worker that is late with it.
    pub(super) fn share_late(&mut self, key: LateKey, now: Instant) {
        let Some(task) = self.tasks.pop_back() else {
            return;
        };
        self.input -= task.bytes;
        let second = Some(now);
        self.late = Some(Late { key, second });
        let shared = &self.slot.shared;
        shared.plan.figures.late.fetch_add(1, Ordering::Relaxed);
        shared.late.share(key, task);
        // Others take what comes after it.
        shared.wake();
    }

    /// Returns true if a report is about a job that others do, and is to be dropped. A late task is
    /// this child's again if nobody answered before.
    pub(super) fn is_of_others(&mut self, report: &Report) -> Result<bool> {
        let (number, is_done) = match report {
            Report::Output(number, _, done) => (*number, done.is_some()),
            Report::Done(done) => (done.number, true),
            Report::Ask(number, _) => (*number, false),
            _ => return Ok(false),
        };
        let is_question = matches!(report, Report::Ask(..));
        let is_first = self.first_job() == Some(number);
        if !is_question && !is_first && (self.late.is_some() || !self.lost.is_empty()) {
            return Err(damaged(format_args!(
                "an output of job {number} before its turn"
            )));
        }
        if self.lost.contains(&number) {
            if is_done {
                self.lost.pop_front();
            }
            return Ok(true);
        }
        let Some(late) = self.late.take_if(|late| late.key.number == number) else {
            return Ok(false);
        };
        let Some(mut task) = self.slot.shared.late.take(late.key) else {
            if !is_done {
                self.late = Some(late);
            }
            return Ok(true);
        };
        if let Some(sent) = late.second {
            task.turn_to_second(sent);
        }
        task.answered = true;
        self.input += task.bytes;
        self.tasks.push_front(task);
        // Another one may have it, too.
        self.slot.shared.wake();
        Ok(false)
    }

    /// Gives up a late task if another worker has answered, and the tasks after it, which would wait
    /// for it. Returns the number of the last, up to which the child is to cancel.
    pub(super) fn lose(&mut self) -> Option<u64> {
        let shared = self.slot.shared.clone();
        let late = self.late.take_if(|late| !shared.late.contains(late.key))?;
        // The time that it has to end this begins now.
        self.heard = Instant::now();
        self.lost.push_back(late.key.number);
        self.lost.extend(self.tasks.iter().map(|task| task.number));
        self.give_back();
        self.lost.back().copied()
    }

    /// Returns the tasks, which others can do.
    pub(super) fn give_back(&mut self) {
        self.input = 0;
        for task in self.tasks.drain(..) {
            task.job.credit.stop_waiting();
            self.slot.shared.give_back(task.number, task.job);
        }
    }
}
