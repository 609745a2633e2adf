//! A morsel that is worked on: one turn after another, each of which makes some of its items.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{self, Poll, ready};
use std::time::{Duration, Instant};

use super::{LIMITS, MorselOutcome, MorselShared, Needed, Notification, SMALL_BYTES};
use crate::budget::{Credit, Limit};
use crate::graph::{AnyChunk, Edge, ErasedChunks};
use crate::items::Demand;
use crate::queue::{Put, ThreadPut, Weight};
use crate::run::gauge::thread_cpu_ns;
use crate::run::near::{self, Waits};
use crate::run::timeline::MorselEvents;
use crate::{Arity, Error, Work};

/// A morsel that is worked on. The fields are dropped in this order: users' values first, then the
/// queue, then the bytes.
pub(super) struct RunningMorsel<'a> {
    /// Input, until the chain is applied to it.
    chunk: Option<AnyChunk>,
    /// Output of the chain, once it was applied.
    output: Option<Box<dyn ErasedChunks>>,
    buffer: OutputBuffer,
    outcome: Arc<MorselOutcome>,
    credit: Credit,
    events: Option<MorselEvents>,
    shared: &'a MorselShared,
    /// Waits of work that is taken for work that does not wait, for which they are news.
    waits: Option<&'a Arc<Waits>>,
    /// True if the segment was woken to hear of those waits.
    waits_reported: bool,
    work: Work,
    id: u64,
    /// Number of the first item in the input of the segment.
    first: u64,
    /// Output items of which the reader needs all before it can go on.
    needed: Needed,
    items: usize,
    /// Bytes of the input.
    input: usize,
    /// Number of items and errors that were made.
    given: usize,
    /// Nanoseconds for which this thread had had a core after the last turn, if nothing was waited for
    /// since.
    cpu_ns: Option<u64>,
    /// Start of the first poll.
    started: Option<Instant>,
    /// Time without room for output, or without bytes.
    waited: Duration,
}

/// One turn: from the time at which there is room for output to the next chunk.
#[derive(Default)]
pub(super) struct Turn {
    /// Nanoseconds spent in the chain.
    spent: u64,
    /// Number of items that the chain was asked for last.
    asked: usize,
    /// Time since when there are no bytes.
    refused: Option<Instant>,
}

impl<'a> RunningMorsel<'a> {
    pub(super) fn new(
        shared: &'a MorselShared,
        (chunk, first, needed): (AnyChunk, u64, Needed),
        work: Work,
        credit: Credit,
        buffer: OutputBuffer,
        outcome: Arc<MorselOutcome>,
        events: Option<MorselEvents>,
    ) -> Self {
        RunningMorsel {
            id: credit.id(),
            items: chunk.len,
            input: chunk.bytes,
            chunk: Some(chunk),
            output: None,
            buffer,
            outcome,
            credit,
            events,
            shared,
            waits: shared.waits.as_ref().filter(|_| work == Work::Cpu),
            waits_reported: false,
            work,
            first,
            needed,
            given: 0,
            cpu_ns: None,
            started: None,
            waited: Duration::ZERO,
        }
    }

    /// Waits for room in the queue, and returns how many items that is; `None` if nobody takes the
    /// output. `full` becomes the time since when there is none.
    pub(super) fn poll_room(
        &mut self,
        cx: &mut task::Context<'_>,
        full: &mut Option<Instant>,
    ) -> Poll<Option<usize>> {
        let room = self.buffer.put.poll_ready(cx);
        if room.is_pending() {
            full.get_or_insert_with(Instant::now);
            self.cpu_ns = None;
            self.buffer.stop();
        }
        room
    }

    /// Returns how many items to make before they are handed on.
    pub(super) fn begin_turn(&mut self, room: usize, full: Option<Instant>) -> usize {
        self.waited += full.map_or(Duration::ZERO, |since| since.elapsed());
        let pace = &self.shared.pace;
        room.min(match self.waits {
            // They withhold nothing from a reader that needs them all.
            Some(_) if !self.waits_reported => pace.at_once_near(self.needed.after(self.given)),
            _ => pace.at_once(self.work),
        })
    }

    /// Makes the next items; `None` at the end.
    pub(super) fn poll_turn(
        &mut self,
        cx: &mut task::Context<'_>,
        most: usize,
        turn: &mut Turn,
    ) -> Poll<Option<AnyChunk>> {
        let max = ready!(self.poll_bytes(cx, most, turn));
        turn.asked = max;
        let begun = Instant::now();
        if self.work == Work::Cpu {
            self.cpu_ns = self.cpu_ns.or_else(thread_cpu_ns).or(Some(0));
        }
        self.waited += turn
            .refused
            .take()
            .map_or(Duration::ZERO, |since| begun - since);
        self.started.get_or_insert(begun);
        let here = self.waits.map(near::enter);
        let polled = catch_unwind(AssertUnwindSafe(|| self.poll_chain(cx, max)));
        drop(here);
        turn.spent += self.count_turn(begun);
        self.report_waits(matches!(polled, Ok(Poll::Pending)));
        match polled {
            Ok(Poll::Pending) => {
                self.shared.gauge.pending_polls.fetch_add(1, Relaxed);
                self.credit.poll_pending(max);
                self.buffer.flush();
                self.cpu_ns = None;
                Poll::Pending
            }
            Ok(Poll::Ready(chunk)) => Poll::Ready(chunk),
            Err(payload) => Poll::Ready(Some(self.fail(payload))),
        }
    }

    /// Reserves bytes for the next items, and returns how many these may be.
    fn poll_bytes(
        &mut self,
        cx: &mut task::Context<'_>,
        most: usize,
        turn: &mut Turn,
    ) -> Poll<usize> {
        let MorselShared { arity, awaited, .. } = self.shared;
        let id = self.id;
        // Only the end follows, which weighs nothing.
        if *arity == Arity::One && self.given >= self.items {
            return Poll::Ready(1);
        }
        let limit = match arity {
            _ if awaited.leads(id) => Limit::BesideInputs,
            Arity::Any => Limit::Most,
            _ => Limit::Share,
        };
        let max = most.saturating_sub(self.buffer.len()).max(1);
        let polled = self.credit.poll_begin(cx, max, limit, || awaited.is(id));
        if polled.is_pending() {
            turn.refused.get_or_insert_with(Instant::now);
            self.cpu_ns = None;
            self.buffer.stop();
        }
        polled
    }

    /// Polls the chain, which is applied at the first time.
    fn poll_chain(&mut self, cx: &mut task::Context<'_>, max: usize) -> Poll<Option<AnyChunk>> {
        let output = self.output.get_or_insert_with(|| {
            let chunk = self.chunk.take().expect("taken once");
            let chain = &self.shared.chain;
            let input = chain.input.one(chunk);
            chain.output().erase(chain.apply(input, self.first))
        });
        let demand = Demand {
            ahead: true,
            ..Demand::up_to(max)
        };
        output.poll_chunk(cx, demand)
    }

    /// Counts a poll of the chain, and returns its nanoseconds.
    fn count_turn(&mut self, begun: Instant) -> u64 {
        let ns = begun.elapsed().as_nanos() as u64;
        if self.work == Work::Cpu {
            self.outcome.spent.fetch_add(ns, Relaxed);
        }
        if let Some(events) = &mut self.events {
            events.turn(begun, Duration::from_nanos(ns));
        }
        self.cpu_ns = self.shared.gauge.add_turn(ns, self.cpu_ns);
        ns
    }

    /// Tells the segment, once, that work which was taken for work that does not wait does.
    fn report_waits(&mut self, is_pending: bool) {
        let Some(waits) = self.waits else { return };
        if is_pending && !waits.is_far() {
            waits.wait();
        }
        if waits.is_far() && !std::mem::replace(&mut self.waits_reported, true) {
            self.buffer.notification.wake();
        }
    }

    /// Returns the panic of a pipe that was applied; nothing follows it. Panics of running pipes are
    /// caught by their instruments.
    fn fail(&mut self, payload: Box<dyn Any + Send>) -> AnyChunk {
        self.output = Some(Box::new(EmptyChunks));
        let chain = &self.shared.chain;
        chain.output().fail_chunk(chain.name(Error::panic(payload)))
    }

    /// Adds a chunk to the output, and hands the output on if it is enough.
    pub(super) fn give(&mut self, mut chunk: AnyChunk, most: usize, turn: &Turn) {
        let MorselShared {
            arity,
            awaited,
            pace,
            ..
        } = self.shared;
        self.given += chunk.len;
        // Part of the input is still there, or all of it and what was made of it.
        let left = match arity {
            Arity::One => self.input / self.items * self.items.saturating_sub(self.given),
            Arity::AtMostOne => self.input,
            Arity::Any => self.credit.keep(self.input),
        };
        chunk.hold = Some(
            self.credit
                .give(chunk.len - chunk.errors, chunk.bytes, left),
        );
        let failed = chunk.errors > 0;
        awaited.made(self.id);
        pace.learn(chunk.len, turn.spent);
        // A short chunk means that the input has no more at hand.
        let is_short = chunk.len < turn.asked;
        self.buffer.join(chunk);
        // The last item and the end that follows it are one message, and one wake of the reader.
        let is_last = *arity == Arity::One && self.given >= self.items;
        if (is_short || self.buffer.len() >= most) && !is_last {
            self.buffer.send();
        }
        if failed {
            // An error is sent without waiting for more items.
            self.buffer.flush();
        }
    }

    /// Hands the rest on, and ends the morsel.
    pub(super) fn end(&mut self) {
        // Who sees the end may start the next epoch: what this one holds is to be gone. If a user's
        // value panics as it goes, the items are there nevertheless.
        let gone = catch_unwind(AssertUnwindSafe(|| self.output = None));
        let _ = gone.map_err(Error::panic);
        if let (Work::Io, Some(started)) = (self.work, self.started) {
            // Waiting for the consumer is no part of the work.
            let spent = started.elapsed().saturating_sub(self.waited);
            if let Some(events) = &mut self.events {
                events.answered(started, spent);
            }
            self.outcome.spent.store(spent.as_nanos() as u64, Relaxed);
        }
        self.outcome.complete();
        self.buffer.end();
    }
}

/// The output of a morsel. Items that are made one by one, since each must have its bytes first, are
/// joined here, because handing on each by itself costs more than many an item.
pub(super) struct OutputBuffer {
    // The queue must end before the notification is sent.
    put: ThreadPut<AnyChunk>,
    notification: Notification,
    edge: Arc<dyn Edge>,
    joined: Option<AnyChunk>,
    /// Bytes that may still be handed on while the items count as small; none once they do not.
    small: Option<usize>,
}

impl OutputBuffer {
    pub(super) fn new(
        put: ThreadPut<AnyChunk>,
        notification: Notification,
        edge: Arc<dyn Edge>,
    ) -> Self {
        OutputBuffer {
            put,
            notification,
            edge,
            joined: None,
            small: Some(SMALL_BYTES),
        }
    }

    /// Items and errors that are joined so far.
    fn len(&self) -> usize {
        self.joined.as_ref().map_or(0, |chunk| chunk.len)
    }

    /// Adds a chunk.
    fn join(&mut self, chunk: AnyChunk) {
        match &mut self.joined {
            Some(joined) => self.edge.append(joined, chunk),
            None => self.joined = Some(chunk),
        }
    }

    /// Takes what is joined.
    fn take(&mut self) -> Option<(AnyChunk, Weight)> {
        let chunk = self.joined.take()?;
        let weight = Weight {
            items: chunk.len,
            bytes: chunk.bytes,
        };
        Some((chunk, weight))
    }

    /// Hands on what is joined, and ends the queue. A consumer that waits is woken once, or would
    /// find that there is something, wait again, and be woken for the end.
    fn end(&mut self) {
        let last = self.take();
        let waker = self.put.end(last);
        let is_woken = self.notification.send();
        if let Some(waker) = waker.filter(|_| !is_woken) {
            waker.wake();
        }
    }

    /// Hands on what is joined.
    fn send(&mut self) {
        if let Some((chunk, weight)) = self.take() {
            if let Some(left) = self.small {
                self.small = left.checked_sub(weight.bytes);
                if self.small.is_none() {
                    self.put.set_limits(LIMITS);
                }
            }
            self.put.put(chunk, weight);
        }
    }

    /// Hands on what is joined, and wakes a consumer that waits for more: no more come for now.
    fn flush(&mut self) {
        self.send();
        self.put.flush();
    }

    /// Hands on what is joined, and stops until there is room.
    fn stop(&mut self) {
        self.flush();
        self.notification.send();
    }
}

/// An empty stream.
struct EmptyChunks;

impl ErasedChunks for EmptyChunks {
    fn poll_chunk(&mut self, _: &mut task::Context<'_>, _: Demand) -> Poll<Option<AnyChunk>> {
        Poll::Ready(None)
    }
}
