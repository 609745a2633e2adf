//! A segment: neighbouring shardable pipes, run as one unit of work over morsels of the input.
//!
//! A shardable chain distributes over concatenation, so its input may be cut anywhere. [`Segment`]
//! takes chunks from upstream ([`input`]), gives each to a worker as a *morsel* ([`spawning`]), and
//! puts the output back in order: strict, within a bounded distance, or as it comes ([`flight`]).
//! The output of a morsel flows through a queue of its own, so an archive of any size passes in
//! bounded memory. A morsel whose queue is full releases its worker until there is room.
//!
//! The number of morsels in flight follows measurements. Bytes are a further limit
//! (`budget.rs`): a morsel is begun when there are bytes for the estimated weight of one item, and
//! polled when there are bytes for the output of that poll.
//!
//! A hop to a worker and back costs some microseconds. The size of a morsel therefore follows the
//! cost of an item ([`cost`]). A chain that is cheaper than its hop even in large morsels runs on
//! the thread of its reader ([`inline`], with checkpoints [`mod@inline_morsels`]), until items become expensive. All of this is measured in
//! this module, at the edge.

mod cost;
mod flight;
mod inline;
mod inline_morsels;
mod input;
mod spawning;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{self, Poll};

pub(crate) use self::flight::Learned;
use self::inline::InlineChain;
pub(super) use self::inline_morsels::inline_morsels;
pub(crate) use self::input::InputLog;
use self::spawning::Spawning;
use crate::Work;
use crate::graph::{AnyChunk, AnyItems, ErasedChunks};
use crate::items::Demand;
use crate::run::morsel::{MorselShared, Spawner};
use crate::settings::Order;

type ChunkPoll = Poll<Option<AnyChunk>>;

/// Settings of a segment, given by the executor.
pub(crate) struct SegmentSettings {
    pub shared: Arc<MorselShared>,
    pub spawner: Box<dyn Spawner>,
    pub order: Order,
    /// Maximum number of morsels in flight.
    pub concurrency: usize,
    /// Number of morsels in flight at the start: of I/O, once the data is known not to be near; in
    /// processes, once the cost of an item is known.
    pub start: usize,
    pub workers: usize,
    /// True if the user fixed the concurrency, so that nothing runs inline.
    pub set_by_user: bool,
    /// True if the segment runs in child processes, so that nothing runs inline either.
    pub processes: bool,
    /// Set if reading the input may block. True if the input is read on this thread, as by an
    /// inline chain, false if on a thread of its own.
    pub here: Option<Arc<AtomicBool>>,
    pub learned: Arc<Learned>,
    pub log: InputLog,
}

impl SegmentSettings {
    fn may_be_inline(&self) -> bool {
        self.shared.work == Work::Cpu && !self.set_by_user && !self.processes
    }
}

/// The output of a segment: a chain of pipes, inline or on workers.
pub(crate) struct Segment {
    /// The chain on this thread, while its cost is low or not known.
    inline: Option<InlineChain>,
    /// The chain on workers, otherwise.
    spawning: Spawning,
}

impl Segment {
    pub(crate) fn new(input: AnyItems, settings: SegmentSettings) -> Self {
        let is_inline = settings.may_be_inline();
        let spawning = Spawning::new(input, settings);
        let inline = is_inline.then(|| InlineChain::new(&spawning, None));
        Segment { inline, spawning }
    }
}

impl ErasedChunks for Segment {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> ChunkPoll {
        loop {
            match &mut self.inline {
                Some(inline) => match inline.poll(cx, demand, &mut self.spawning.cost) {
                    Some(polled) => return polled,
                    None => self.inline = None,
                },
                None => match self.spawning.poll(cx, demand) {
                    Some(polled) => return polled,
                    None => self.inline = Some(InlineChain::new(&self.spawning, Some(0))),
                },
            }
        }
    }
}

#[cfg(test)]
pub(in crate::run) mod tests;
