//! A segment's chain on the thread of its reader.

use std::sync::atomic::Ordering::Relaxed;
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
    log: InputLog,
    gauge: Arc<SegmentGauge>,
    /// Number of polls since the cost is known; `None` before.
    polls: Option<u32>,
    /// Position of the input of the next output, if it has to be known.
    position: u64,
    /// Time spent since items were last taken from the input.
    own_ns: u64,
    /// End of the last poll.
    polled_at: Instant,
    /// Number of polls since the last one that was timed.
    untimed: u32,
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
        let tapped = chain.input.restore(Box::new(InlineInput(input.clone())));
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
            position: log.position(),
            log,
            gauge,
            polls,
            own_ns: 0,
            polled_at: Instant::now(),
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
        let is_shut = {
            let mut input = lock(&self.input);
            (input.limit, input.is_timed) = (limit, is_timed);
            (input.above_ns, input.items) = (0, 0);
            input.is_shut
        };
        let begun = is_timed.then(Instant::now);
        let polled = self.chunks.poll_chunk(cx, demand);
        let now = Instant::now();
        let (above_ns, items) = {
            let input = lock(&self.input);
            (input.above_ns, input.items)
        };
        let own = match begun {
            Some(begun) => nanos(now - begun).saturating_sub(above_ns),
            None => cost.ns() * items,
        };
        self.gauge.busy_ns.fetch_add(own, Relaxed);
        // One item may give output for many polls; they are all part of its cost.
        self.own_ns += own;
        if items > 0 {
            self.gauge.items_in.fetch_add(items, Relaxed);
            let own = std::mem::take(&mut self.own_ns);
            if is_timed {
                cost.learn(own as f64 / items as f64);
            }
        }
        // The time since the last poll bounds what its items cost: if it is short, none was expensive, and
        // the next poll need not be timed.
        let is_quick = (nanos(now - self.polled_at) as f64) < INLINE_NS * items as f64;
        self.untimed = match is_quick && self.polls.is_some() {
            true => (self.untimed + 1) % SAMPLE,
            false => 0,
        };
        self.polled_at = now;
        match &polled {
            Poll::Ready(None) => return (!is_shut).then_some(polled),
            Poll::Ready(Some(chunk)) => {
                self.log.gave(self.position, chunk.len);
                self.position += chunk.len as u64;
            }
            Poll::Pending => {}
        }
        if !is_shut && (self.polls.is_some() || cost.is_known()) {
            let is_expensive = cost.is_expensive(self.polls.unwrap_or(0));
            if is_expensive {
                lock(&self.input).set_inline(false);
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
struct InlineInput(Arc<Mutex<SegmentInput>>);

impl ErasedChunks for InlineInput {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> ChunkPoll {
        let mut input = lock(&self.0);
        if input.is_shut {
            return Poll::Ready(None);
        }
        let demand = demand.at_most(input.limit);
        let begun = input.is_timed.then(Instant::now);
        let polled = input.poll(cx, demand);
        input.above_ns += begun.map_or(0, |begun| nanos(begun.elapsed()));
        if let Poll::Ready(Some(chunk)) = &polled {
            input.items += chunk.len as u64;
        }
        polled
    }
}
