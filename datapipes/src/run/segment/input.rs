//! The input of a segment: its items are numbered and recorded as they are taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{self, Poll};

use super::ChunkPoll;
use crate::checkpoint::{SegmentLog, Unordered};
use crate::graph::{AnyChunk, ErasedChunks};
use crate::items::Demand;

/// The record of the input that each output is made of, for checkpoints.
#[derive(Clone)]
pub(crate) enum InputLog {
    Off,
    /// Numbers of inputs and outputs of one morsel after the other.
    InOrder(Arc<SegmentLog>),
    /// Positions of the inputs.
    AnyOrder(Arc<Unordered>),
}

impl InputLog {
    /// Returns the position of the next input, if it has to be known.
    pub(super) fn position(&self) -> u64 {
        match self {
            InputLog::AnyOrder(log) => log.took(0),
            _ => 0,
        }
    }

    /// Records output of consecutive inputs, the first of which is at this position.
    pub(super) fn gave(&self, position: u64, len: usize) {
        if let InputLog::AnyOrder(log) = self {
            log.gave_run(position, len);
        }
    }

    /// Records a complete morsel: numbers of inputs and outputs.
    pub(super) fn complete(&self, items: usize, out: usize) {
        if let InputLog::InOrder(log) = self {
            log.push(items as u64, out as u64);
        }
    }
}

/// The input of a segment, from which morsels are taken, or an inline chain takes.
pub(super) struct SegmentInput {
    pub chunks: Box<dyn ErasedChunks>,
    /// See [`SegmentSettings::here`](super::SegmentSettings::here).
    pub here: Option<Arc<AtomicBool>>,
    pub log: InputLog,
    pub ended: bool,
    /// Number of items taken so far, without errors.
    pub taken: u64,
    /// True if an inline chain sees the end of its input.
    pub is_shut: bool,
}

impl SegmentInput {
    /// Lets an inline chain take items, or makes it see the end of its input.
    pub(super) fn set_inline(&mut self, is_inline: bool) {
        self.is_shut = !is_inline;
        if let Some(here) = &self.here {
            here.store(is_inline, Ordering::SeqCst);
        }
    }

    /// Returns the next chunk.
    pub(super) fn poll(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> ChunkPoll {
        if self.ended {
            return Poll::Ready(None);
        }
        let polled = self.chunks.poll_chunk(cx, demand);
        match &polled {
            Poll::Ready(Some(chunk)) => {
                self.taken += (chunk.len - chunk.errors) as u64;
                if let InputLog::AnyOrder(log) = &self.log {
                    log.took(chunk.len);
                }
            }
            Poll::Ready(None) => self.ended = true,
            Poll::Pending => {}
        }
        polled
    }

    /// Takes what is wanted for a morsel, if some is ready, with the number of the first item, and
    /// its position if that has to be known.
    pub(super) fn take(
        &mut self,
        cx: &mut task::Context<'_>,
        mut demand: Demand,
    ) -> Option<(AnyChunk, u64, u64)> {
        let (first, position) = (self.taken, self.log.position());
        if let InputLog::InOrder(log) = &self.log {
            demand = demand.at_most(log.limit());
        }
        let Poll::Ready(Some(chunk)) = self.poll(cx, demand) else {
            return None;
        };
        if let InputLog::InOrder(log) = &self.log {
            log.took(chunk.len);
        }
        Some((chunk, first, position))
    }
}
