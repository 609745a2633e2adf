//! Measurements of a running epoch, which the threads that work for it write and statistics read.

use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::histogram::DurationRecorder;
use crate::run::timeline::SegmentTimeline;

/// Measurements of a segment.
#[derive(Debug, Default)]
pub(crate) struct SegmentGauge {
    pub busy_ns: AtomicU64,
    /// Number of polls of its work that found nothing yet.
    pub pending_polls: AtomicU64,
    pub items_in: AtomicU64,
    pub morsels: AtomicU64,
    pub timeline: SegmentTimeline,
    /// Time of each morsel that came to its end.
    pub morsel_time: DurationRecorder,
    pub starved_ns: AtomicU64,
    pub full_ns: AtomicU64,
    pub occupancy_sum: AtomicU64,
    pub occupancy_polls: AtomicU64,
    pub concurrency: AtomicU64,
    pub inline: AtomicBool,
    /// True if I/O is done by the CPU workers, as long as it does not wait.
    pub on_workers: AtomicBool,
}

/// Measurements of a queue before a consumer.
#[derive(Debug, Default)]
pub(crate) struct QueueGauge {
    /// Time the producer waited for room.
    pub full_ns: AtomicU64,
    /// Time the consumer waited for an item.
    pub empty_ns: AtomicU64,
    pub busy_ns: AtomicU64,
    /// Number of polls by the producer that found nothing.
    pub pending_polls: AtomicU64,
    /// True while the consumer polls the producer's stream itself.
    pub inline: AtomicBool,
    pub taken: AtomicU64,
    pub occupancy_sum: AtomicU64,
    pub occupancy_polls: AtomicU64,
    pub depth: AtomicU64,
}
