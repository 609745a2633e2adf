//! The work of a child: jobs, and what is known of one that a child has.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::time::Instant;

use super::protocol::{self, Counted, RunFacts};
use crate::Error;
use crate::batch_buffer::{Rows, SlabPart};
use crate::budget::{Awaited, Credit, Limit};
use crate::context::Counters;
use crate::graph::{AnyChunk, Edge};
use crate::queue::{Put, ThreadPut, Weight};
use crate::run::gauge::SegmentGauge;
use crate::run::morsel::{MorselJob, MorselOutcome, MorselShared, Needed, Notification};
use crate::run::timeline::MorselEvents;

/// A job on its way. If it is dropped before it is finished, it is lost, and the segment notices
/// that.
pub(crate) struct Job {
    pub run: RunFacts,
    /// Number of its first item in the segment's input.
    pub first: u64,
    /// See [`MorselJob::needed`](crate::run::morsel::MorselJob::needed).
    pub needed: Needed,
    /// Rows that the part fills.
    pub rows: Option<Arc<Rows>>,
    /// Rows that were granted to a child, by the places of the items; `None` once a row has been
    /// returned.
    pub granted: Vec<Option<SlabPart>>,
    /// Input, kept until all of its output has come.
    pub chunk: AnyChunk,
    pub counters: Vec<Arc<Counters>>,
    pub gauge: Arc<SegmentGauge>,
    /// Events of the job, if a trace is written.
    pub events: Option<MorselEvents>,
    pub outcome: Arc<MorselOutcome>,
    /// The segment's morsels, which count the items that their reader took.
    pub morsels: Arc<MorselShared>,
    /// Bytes of the input and the output.
    pub credit: Credit,
    pub awaited: Arc<Awaited>,
    // The queue must end before the notification is sent, so it is dropped first.
    pub put: ThreadPut<AnyChunk>,
    pub notification: Notification,
}

impl Job {
    /// Makes a job of a morsel's work.
    pub(super) fn new(job: MorselJob, run: RunFacts) -> Job {
        let links = &job.shared.chain.links;
        Job {
            events: job.events(),
            run,
            first: job.first,
            needed: job.needed,
            rows: links.iter().find_map(|link| link.rows.clone()),
            granted: Vec::new(),
            counters: links
                .iter()
                .map(|link| link.context.counters().clone())
                .collect(),
            chunk: job.chunk,
            gauge: job.shared.gauge.clone(),
            awaited: job.shared.awaited.clone(),
            morsels: job.shared,
            outcome: job.outcome,
            credit: job.credit,
            put: job.put,
            notification: job.notification,
        }
    }

    /// Hands on the job's output, for which there has to be room. Its input stays, here and in the
    /// child.
    pub(super) fn hand_on(&mut self, mut chunk: AnyChunk) {
        chunk.hold = Some(self.credit.give(
            chunk.len - chunk.errors,
            chunk.bytes,
            2 * self.chunk.bytes,
        ));
        self.awaited.made(self.credit.id());
        let weight = Weight {
            items: chunk.len,
            bytes: chunk.bytes,
        };
        let failed = chunk.errors > 0;
        self.put.put(chunk, weight);
        if failed {
            // An error may end the epoch; its reader is not to wait for later items.
            self.put.flush();
        }
    }

    /// Ready with `true` once the output has room for `bytes`, or with `false` if the job was
    /// cancelled.
    pub(super) fn poll_room(&mut self, bytes: usize, cx: &mut Context<'_>) -> Poll<bool> {
        let room = self.poll_bytes(bytes, cx);
        if room.is_pending() {
            // A reader that waits for more items takes those that are there.
            self.put.flush();
            self.notification.send();
        }
        room
    }

    /// Does as [`Job::poll_room`], for output that is not made yet.
    pub(super) fn poll_bytes(&mut self, bytes: usize, cx: &mut Context<'_>) -> Poll<bool> {
        if ready!(self.put.poll_ready(cx)).is_none() {
            return Poll::Ready(false);
        }
        let Job {
            credit, awaited, ..
        } = self;
        let id = credit.id();
        let limit = match awaited.leads(id) {
            true => Limit::BesideInputs,
            false => Limit::Share,
        };
        credit
            .poll_take(cx, bytes, limit, || awaited.is(id))
            .map(|()| true)
    }

    pub(super) fn finish(self) {
        self.outcome.complete();
    }

    /// Fails the job as a whole.
    pub(super) fn fail(mut self, error: Error, edge: &Arc<dyn Edge>) {
        self.put
            .put(edge.fail_chunk(error), Weight { items: 1, bytes: 0 });
        self.finish();
    }
}

/// A job at a child slot.
pub(super) struct Task {
    pub number: u64,
    pub job: Job,
    /// Number of items and errors that were delivered.
    pub delivered: usize,
    /// Place of the item in progress, if the task is done item by item.
    pub alone: Option<usize>,
    /// Number of processes that ended while they did the item in progress alone.
    pub ends: usize,
    /// Number of them that ended for a reason that is known to be no loss of a connection.
    pub faults: usize,
    /// Those of other machines whose connection ended.
    pub suspects: Vec<u64>,
    /// True if the item in progress ended workers of other machines, and a process of this machine is
    /// to try it.
    pub here: bool,
    /// Number of workers that were too slow with the task.
    pub slow: u32,
    /// Number of bytes of the message with which its process got it, as they are counted.
    pub bytes: usize,
    /// Number of outputs that its process gave; those below `delivered` were delivered before.
    pub seen: usize,
    /// Number of those outputs that belong to earlier items.
    pub before: usize,
    /// Time when it was sent to its process.
    pub sent: Instant,
    /// True if its process was late with it and answered before another one: it has the task for good.
    pub answered: bool,
    /// Bytes that the child asked for to make the task's next item, until they are allowed.
    pub asked: Option<usize>,
    /// Counts of the task; if it is done item by item, counts of the item in progress.
    counted: Counted,
}

impl Task {
    pub(super) fn new(number: u64, job: Job) -> Self {
        Task {
            number,
            job,
            delivered: 0,
            alone: None,
            ends: 0,
            faults: 0,
            suspects: Vec::new(),
            here: false,
            slow: 0,
            bytes: 0,
            seen: 0,
            before: 0,
            sent: Instant::now(),
            answered: false,
            asked: None,
            counted: Vec::new(),
        }
    }

    /// Continues with this item alone; `before` is the number of outputs before it.
    pub(super) fn turn_to(&mut self, item: usize, before: usize) {
        if self.alone != Some(item) {
            (self.ends, self.faults, self.here) = (0, 0, false);
            self.suspects.clear();
        }
        (self.alone, self.seen, self.before) = (Some(item), before, before);
        self.counted.clear();
    }

    /// Adds counts.
    pub(super) fn count(&mut self, counted: Counted) {
        for (counters, more) in self.job.counters.iter().zip(&counted) {
            protocol::count(counters, more);
        }
        protocol::add_up(&mut self.counted, counted);
    }

    /// Subtracts the counts of the item, since it is done again.
    pub(super) fn uncount(&mut self) {
        for (counters, counted) in self.job.counters.iter().zip(self.counted.drain(..)) {
            protocol::uncount(counters, &counted);
        }
    }

    /// Continues with what a second worker has begun, to which it was sent at this time.
    pub(super) fn turn_to_second(&mut self, sent: Instant) {
        self.uncount();
        (self.seen, self.sent) = (0, sent);
    }

    /// Returns true if the item in progress ended the process while it was alone there.
    pub(super) fn is_guilty(&self, begun: bool) -> bool {
        self.alone.is_some() && begun && self.seen >= self.delivered
    }
}
