//! Measurements of a running epoch, which the threads that work for it write and statistics read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::histogram::DurationRecorder;
use crate::run::timeline::SegmentTimeline;

/// Measurements of a segment.
#[derive(Debug, Default)]
pub(crate) struct SegmentGauge {
    pub busy_ns: AtomicU64,
    /// Part of `busy_ns`, of work on the pool, in which its threads had a core.
    pub cpu_ns: AtomicU64,
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

impl SegmentGauge {
    /// Adds a turn of the work of a morsel that took `ns` nanoseconds. `cpu_ns` is what
    /// [`thread_cpu_ns`] gave before it, for work on the pool.
    pub fn add_turn(&self, ns: u64, cpu_ns: Option<u64>) {
        self.busy_ns.fetch_add(ns, Relaxed);
        if let Some(before) = cpu_ns {
            let cpu_ns = thread_cpu_ns().map_or(ns, |now| now.saturating_sub(before).min(ns));
            self.cpu_ns.fetch_add(cpu_ns, Relaxed);
        }
    }
}

/// Returns the nanoseconds for which this thread has had a core; `None` where that is not known.
pub(crate) fn thread_cpu_ns() -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let ns = time.tv_sec.saturating_mul(1_000_000_000) + time.tv_nsec;
        u64::try_from(ns).ok()
    }
    #[cfg(not(target_os = "linux"))]
    None
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
