//! A segment's chain on the thread of its reader.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use super::ChunkPoll;
use super::cost::{INLINE_NS, ItemCost};
use super::inline_morsels::inline_morsels;
use super::input::{InputLog, SegmentInput};
use super::spawning::Spawning;
use crate::graph::ErasedChunks;
use crate::items::Demand;
use crate::run::gauge::SegmentGauge;
use crate::sync::lock;

/// A chain that runs inline: item by item while its cost is being measured, then in chunks. When
/// items become expensive, its input is shut; what the chain still holds comes out inline.
pub(super) struct InlineChain {
    chunks: Box<dyn ErasedChunks>,
    input: Arc<Mutex<SegmentInput>>,
    /// True once the chain had better run on workers: it sees the end of its input, and gives what it holds.
    has_left: bool,
    taking: Arc<Taking>,
    log: InputLog,
    gauge: Arc<SegmentGauge>,
    /// Number of polls since the cost is known; `None` before.
    polls: Option<u32>,
    /// Position of the input of the next output, if it has to be known.
    position: u64,
    /// Time spent since items were last taken from the input.
    own_ns: u64,
    /// End of the last poll that took items from the input.
    taken_at: Instant,
    /// Number of polls since the last one that was timed.
    untimed: u32,
}

/// Items taken from the input in one poll of the chain. All of this is on one thread; a lock would cost as
/// much as some items.
#[derive(Default)]
struct Taking {
    /// Maximum number of items to take at once.
    limit: AtomicUsize,
    /// True if the poll is timed.
    is_timed: AtomicBool,
    /// Nanoseconds spent upstream, if so.
    above_ns: AtomicU64,
    /// Number of items taken.
    items: AtomicU64,
}

/// Interval of timed polls while they are quick: reading the clock four times costs as much as many
/// a chunk.
const SAMPLE: u32 = 8;

impl InlineChain {
    pub(super) fn new(spawning: &Spawning, polls: Option<u32>) -> Self {
        let (shared, input) = (spawning.shared.clone(), spawning.input.clone());
        let (first, log) = {
            let mut input = lock(&input);
            input.set_inline(true);
            (input.taken, input.log.clone())
        };
        let (chain, gauge) = (&shared.chain, shared.gauge.clone());
        gauge.inline.store(polls.is_some(), Relaxed);
        let taking = Arc::<Taking>::default();
        let tapped = chain.input.restore(Box::new(InlineInput {
            input: input.clone(),
            taking: taking.clone(),
        }));
        let items = match &log {
            InputLog::InOrder(log) => {
                let (above, shared) = (input.clone(), shared.clone());
                let apply = move |piece, _| {
                    let first = lock(&above).taken;
                    shared.chain.apply_caught(piece, first)
                };
                inline_morsels(tapped, &chain.input, chain.output(), log.clone(), apply)
            }
            _ => chain.apply_caught(tapped, first),
        };
        InlineChain {
            chunks: chain.output().erase(items),
            input,
            has_left: false,
            taking,
            position: log.position(),
            log,
            gauge,
            polls,
            own_ns: 0,
            taken_at: Instant::now(),
            untimed: 0,
        }
    }

    /// Returns the next chunk, and learns the cost; `None` once the chain is empty after its input
    /// was shut.
    pub(super) fn poll(
        &mut self,
        cx: &mut task::Context<'_>,
        demand: Demand,
        cost: &mut ItemCost,
    ) -> Option<ChunkPoll> {
        let (limit, demand) = match self.polls {
            None => (1, demand.at_most(1)),
            // The size grows slowly to large chunks, in case items become expensive.
            Some(polls) => (32 << (polls / 16).min(5), demand),
        };
        let is_timed = self.untimed == 0;
        let taking = &self.taking;
        taking.limit.store(limit, Relaxed);
        taking.is_timed.store(is_timed, Relaxed);
        taking.above_ns.store(0, Relaxed);
        taking.items.store(0, Relaxed);
        let begun = is_timed.then(Instant::now);
        let polled = self.chunks.poll_chunk(cx, demand);
        let now = Instant::now();
        let (above_ns, items) = (taking.above_ns.load(Relaxed), taking.items.load(Relaxed));
        let own = match begun {
            Some(begun) => nanos(now - begun).saturating_sub(above_ns),
            None => cost.ns() * items,
        };
        self.gauge.busy_ns.fetch_add(own, Relaxed);
        // One item may give output for many polls; they are all part of its cost.
        self.own_ns += own;
        let mut is_quick = false;
        if items > 0 {
            self.gauge.items_in.fetch_add(items, Relaxed);
            let own = std::mem::take(&mut self.own_ns);
            // The time since items were last taken bounds what these cost. If it is short, none was
            // expensive, and the next poll need not be timed.
            let most = nanos(now - self.taken_at) as f64 / items as f64;
            match is_timed {
                true => cost.learn(own as f64 / items as f64),
                // The single items that were measured first, each with a poll of its own, cost more than
                // those of a chunk, and are to be forgotten soon.
                false => cost.learn_at_most(most),
            }
            is_quick = most < INLINE_NS;
            self.taken_at = now;
        }
        self.untimed = match is_quick && self.polls.is_some() {
            true => (self.untimed + 1) % SAMPLE,
            false => 0,
        };
        match &polled {
            Poll::Ready(None) => return (!self.has_left).then_some(polled),
            Poll::Ready(Some(chunk)) => {
                self.log.gave(self.position, chunk.len);
                self.position += chunk.len as u64;
            }
            Poll::Pending => {}
        }
        if !self.has_left && (self.polls.is_some() || cost.is_known()) {
            let is_expensive = cost.is_expensive(self.polls.unwrap_or(0));
            if is_expensive {
                lock(&self.input).set_inline(false);
                self.has_left = true;
            }
            self.gauge.inline.store(!is_expensive, Relaxed);
            self.polls = Some(self.polls.map_or(0, |polls| polls.wrapping_add(1)));
        }
        Some(polled)
    }
}

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// The input of an inline chain.
struct InlineInput {
    input: Arc<Mutex<SegmentInput>>,
    taking: Arc<Taking>,
}

impl ErasedChunks for InlineInput {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> ChunkPoll {
        let (mut input, taking) = (lock(&self.input), &self.taking);
        if input.is_shut {
            return Poll::Ready(None);
        }
        let demand = demand.at_most(taking.limit.load(Relaxed));
        let begun = taking.is_timed.load(Relaxed).then(Instant::now);
        let polled = input.poll(cx, demand);
        if let Some(begun) = begun {
            taking.above_ns.fetch_add(nanos(begun.elapsed()), Relaxed);
        }
        if let Poll::Ready(Some(chunk)) = &polled {
            taking.items.fetch_add(chunk.len as u64, Relaxed);
        }
        polled
    }
}
