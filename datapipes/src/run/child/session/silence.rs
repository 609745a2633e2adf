//! Time for which a child may be silent.

use std::task::Context;
use std::time::Duration;

use tokio::time::Instant;

use super::{End, START, Session};
use crate::run::child::job::Task;
use crate::run::child::slots::ChildSlot;

/// Greatest time that a child may spend on cancelled work.
const GRACE: Duration = Duration::from_secs(1);
/// Time without an answer after which the log reports it, if there is no time limit.
const SILENCE: Duration = Duration::from_secs(60);
/// Greatest time that a child may take to end after it has closed its queue.
const CLOSING: Duration = Duration::from_millis(100);
/// A worker of another machine that is silent for so many times as long as the longest recent
/// silence, and at least the time that its `Remote` says, is given up. A cause in
/// the item itself makes the next worker as slow, so the time doubles.
const SLOW: u32 = 8;
/// Silence that is assumed before the first answer of any worker.
const FIRST_SILENCE: Duration = Duration::from_secs(5);

impl Session<'_> {
    /// Ends a child that exceeds a time limit.
    pub(super) fn poll_timer(&mut self, cx: &mut Context<'_>) -> Option<End> {
        loop {
            let (limit, since) = match self.closed {
                Some(closed) => (Some(CLOSING), closed),
                None => (self.limit(), self.heard),
            };
            // A limit that overflows is no limit.
            let deadline = since
                .checked_add(limit.unwrap_or(SILENCE))
                .unwrap_or(since + SILENCE);
            let limit = limit.filter(|limit| since.checked_add(*limit).is_some());
            if self.timer.deadline() != deadline {
                self.timer.as_mut().reset(deadline);
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return None;
            }
            match limit {
                Some(limit) => {
                    self.child.kill();
                    if self.closed.is_some() {
                        return Some(End::Closed);
                    }
                    if self.ready && self.is_cancelled() {
                        return Some(End::Dismissed);
                    }
                    if self.slow_limit().is_none() {
                        return Some(End::Silent(limit));
                    }
                    match (&self.late, self.tasks.front_mut()) {
                        (Some(late), _) => {
                            let late_tasks = &self.slot.shared.late;
                            late_tasks.with(late.key, |task| task.slow += 1);
                        }
                        (None, front) => front.into_iter().for_each(|front| front.slow += 1),
                    }
                    return Some(End::Slow(limit));
                }
                None => {
                    if self.is_busy() && !std::mem::replace(&mut self.warned, true) {
                        self.warn_of_silence();
                    }
                    self.heard = Instant::now();
                }
            }
        }
    }

    /// Warns that the child gives no answer. Work that it lost to others has no name any more.
    pub(super) fn warn_of_silence(&self) {
        let ChildSlot { shared, place, .. } = &*self.slot;
        let origin = |task: &Task| {
            let (chunk, item) = (&*task.job.chunk.chunk, task.alone.unwrap_or(0));
            shared.plan.input.origin(chunk, item)
        };
        let first = match &self.late {
            Some(late) => shared.late.with(late.key, |task| origin(task)),
            None => self
                .tasks
                .front()
                .filter(|_| self.lost.is_empty())
                .map(origin),
        };
        let item = first.flatten().map(|origin| origin.to_string());
        let item = item.unwrap_or_default();
        let (node, child) = (&*shared.plan.node, *place);
        crate::error::quietly(|| {
            tracing::warn!(
                node,
                child,
                item,
                "no answer for {SILENCE:?}, and no time limit"
            );
        });
    }

    /// Returns true if nobody wants what the child does.
    pub(super) fn is_cancelled(&self) -> bool {
        let first = self.first_job();
        first.is_some_and(|first| !self.slot.shared.is_wanted(first))
    }

    /// Returns the time that the child may be silent now.
    pub(super) fn limit(&self) -> Option<Duration> {
        if !self.ready {
            return Some(START);
        }
        if self.is_cancelled() {
            return Some(GRACE);
        }
        if !self.is_busy() {
            return None;
        }
        self.slot.plan().processes.time_limit.or(self.slow_limit())
    }

    /// Returns the time after which the work of a silent worker goes to another one, unless the
    /// user gave a limit.
    pub(super) fn slow_limit(&self) -> Option<Duration> {
        let processes = &self.slot.plan().processes;
        let late = || {
            let late = self.late.as_ref()?;
            self.slot.shared.late.with(late.key, |task| task.slow)
        };
        let front = || self.tasks.front().map(|front| front.slow);
        let slow = late().or_else(front).unwrap_or(0);
        if !self.ready || !self.is_busy() || processes.time_limit.is_some() {
            return None;
        }
        let workers = self.slot.shared.ready_workers();
        let has_others = match self.is_worker() {
            // Another part waits for one that is handed over.
            true => workers > 1 || processes.here() > 0 || self.slot.handed_over,
            false if workers == 0 => return None,
            false => true,
        };
        let at_least = processes.silence(has_others)?;
        let silence = self.slot.shared.longest_silence().unwrap_or(FIRST_SILENCE);
        let silence = silence.saturating_mul(SLOW).max(at_least);
        Some(silence.saturating_mul(1 << slow.min(16)))
    }
}
