//! Reports of a child, and what becomes of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use super::{End, Session};
use crate::codec::{Parcel, damaged};
use crate::run::child::log::tell;
use crate::run::child::protocol::{Counted, Done, Report};
use crate::run::child::slots::ChildState;
use crate::{Error, ErrorKind, Reader, Result, Wire};

/// Greatest number of bytes that a child may ask for: more than a process can have.
const MOST_ASKED: usize = 1 << 48;

impl Session<'_> {
    /// Reads the child's reports, as long as their output can be delivered.
    pub(super) fn poll_reports(&mut self, cx: &mut Context<'_>) -> Result<Poll<End>> {
        loop {
            if let Some((chunk, counted, done)) = self.held.take() {
                let task = self
                    .tasks
                    .front_mut()
                    .ok_or_else(|| damaged("an output of nothing"))?;
                match task.job.poll_room(chunk.bytes, cx) {
                    Poll::Pending => {
                        self.held = Some((chunk, counted, done));
                        // The wait is not the child's fault.
                        self.heard = Instant::now();
                        self.had_no_room = self.heard;
                        return Ok(Poll::Pending);
                    }
                    Poll::Ready(false) => task.count(counted),
                    Poll::Ready(true) => {
                        task.count(counted);
                        task.delivered += chunk.len;
                        self.items += chunk.len as u64;
                        self.slot.shared.progress();
                        task.job.hand_on(chunk);
                    }
                }
                if let Some(done) = done {
                    self.done(done)?;
                }
            }
            match self.child.reports.poll_parcel(cx) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(None) => {
                    let meant = |error: &&Error| {
                        matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Limit)
                    };
                    if let Some(error) = self.child.reports.fault().filter(meant) {
                        return Err(error.copied());
                    }
                    if self.exited {
                        return Ok(Poll::Ready(End::Died));
                    }
                    // The child has closed its queue, so it is about to end, or will be killed.
                    self.closed.get_or_insert_with(Instant::now);
                    return Ok(Poll::Pending);
                }
                Poll::Ready(Some(parcel)) => {
                    if let Some(end) = self.report(&parcel)? {
                        return Ok(Poll::Ready(end));
                    }
                    if self.looked.elapsed() > self.look_every() {
                        self.look();
                    }
                }
            }
        }
    }

    /// Does what a report asks for. Returns an end if the child is not to go on.
    fn report(&mut self, parcel: &Parcel) -> Result<Option<End>> {
        let mut from = parcel.reader();
        let report = Report::decode(&mut from)?;
        if !matches!(report, Report::Output(..)) {
            from.end()?;
        }
        if !matches!(report, Report::Log(_) | Report::Alive(_)) {
            let now = Instant::now();
            if self.ready && self.is_busy() {
                self.slot.shared.heard_after(now - self.heard);
            }
            (self.heard, self.warned) = (now, false);
        }
        if self.is_of_others(&report)? {
            return Ok(None);
        }
        match report {
            Report::Ready if !self.ready => {
                self.ready = true;
                (self.slot.shared).set_state(self.slot.place, ChildState::Waiting);
            }
            Report::Leaving => self.leaving = true,
            Report::Alive(at) => self.answered_after(at),
            Report::Ready => return Err(damaged("ready twice")),
            Report::Refused(_) if self.ready => return Err(damaged("refused once it was ready")),
            Report::Refused(error) => {
                self.child.kill();
                return Ok(Some(End::Refused(error)));
            }
            Report::Log(log) => tell(&self.slot.plan().node, self.slot.place, &log),
            Report::Output(number, counted, done) => {
                self.output(number, (counted, done), from, parcel.len())?;
            }
            Report::Done(done) => self.done(done)?,
            Report::Ask(number, bytes) => {
                let task = self.tasks.iter_mut().find(|task| task.number == number);
                let task = task.ok_or_else(|| {
                    damaged(format_args!(
                        "a question about job {number}, which it does not have"
                    ))
                })?;
                if bytes > MOST_ASKED {
                    return Err(damaged(format_args!("a question about {bytes} bytes")));
                }
                task.asked = Some(bytes);
            }
        }
        Ok(None)
    }

    /// Takes output of the first task, which waits for room from now on; `encoded` is its length in
    /// bytes.
    fn output(
        &mut self,
        number: u64,
        (counted, done): (Counted, Option<Done>),
        from: Reader<'_>,
        encoded: usize,
    ) -> Result<()> {
        let task = self.tasks.front_mut().filter(|task| task.number == number);
        let task = task.ok_or_else(|| {
            damaged(format_args!(
                "an output of job {number}, which it does not have"
            ))
        })?;
        let granted = match task.alone {
            None => &mut task.job.granted[..],
            Some(item) => task.job.granted.get_mut(item..item + 1).unwrap_or_default(),
        };
        let plan = &self.slot.shared.plan;
        let mut from = from.with_grants(granted);
        let decode = || {
            let chunk = plan.output.decode(&mut from)?;
            Ok(plan.edge.weigh(chunk))
        };
        let decoded = catch_unwind(AssertUnwindSafe(decode));
        let mut chunk = decoded.unwrap_or_else(|payload| Err(damaged(Error::panic(payload))))?;
        from.end()?;
        task.asked = None;
        let known = task.delivered.saturating_sub(task.seen).min(chunk.len);
        task.seen += chunk.len;
        if known > 0 {
            chunk = plan.edge.without_first(chunk, known);
        }
        self.bytes += encoded as u64;
        // The encoded length is known here, whatever weight the steps report.
        chunk.bytes = chunk.bytes.max(encoded);
        if chunk.len > 0 {
            self.held = Some((chunk, counted, done));
            return Ok(());
        }
        task.count(counted);
        done.map_or(Ok(()), |done| self.done(done))
    }

    /// Ends the first task.
    fn done(&mut self, done: Done) -> Result<()> {
        let front = self.tasks.front();
        let is_front = front.is_some_and(|task| task.number == done.number);
        // If the report is wrong, the task stays, so that others do it.
        let task = is_front.then(|| self.tasks.pop_front()).flatten();
        let mut task = task.ok_or_else(|| {
            damaged(format_args!(
                "the end of job {}, which it does not have",
                done.number
            ))
        })?;
        self.input -= task.bytes;
        self.slot.shared.progress();
        self.publish();
        self.waits = done.waits;
        // A job that was cancelled before it began tells nothing.
        if done.spent > 0 && self.slot.shared.is_wanted(done.number) {
            self.learn(Duration::from_nanos(done.spent));
            if task.alone.is_none() {
                let time = task.sent.max(self.had_no_room).elapsed();
                if self.slot.shared.late.learn(time) {
                    // Those that wait since before can be late from now on.
                    self.slot.shared.wake();
                }
            }
        }
        task.count(done.counted);
        if let (Some(rows), Some((dtype, len))) = (&task.job.rows, done.wanted)
            && len.checked_mul(dtype.size()).is_some()
        {
            rows.want((dtype, len));
        }
        task.job.outcome.spend(done.spent);
        if let Some(events) = &mut task.job.events {
            let remote = self
                .child
                .machine()
                .map(|machine| (self.slot.place, machine));
            events.in_child(self.child.id(), remote, done.spent);
        }
        task.job
            .gauge
            .busy_ns
            .fetch_add(done.busy, Ordering::Relaxed);
        match task.alone {
            None => task.job.finish(),
            Some(item) => {
                task.turn_to(item + 1, task.seen);
                if item + 1 >= task.job.chunk.len {
                    task.job.finish();
                } else {
                    self.slot.redo.push_front(task);
                }
            }
        }
        Ok(())
    }
}
