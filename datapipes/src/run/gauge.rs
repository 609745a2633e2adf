//! Measurements of a running epoch, which the threads that work for it write and statistics read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use crate::histogram::DurationRecorder;
use crate::run::timeline::SegmentTimeline;

/// Duration of a turn below which all of it counts as time with a core, without a call of the system.
const SHORT_NS: u64 = 1_000;

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
    /// Adds a turn of the work of a morsel that took `ns` nanoseconds. `before` is what
    /// [`thread_cpu_ns`] gave before it, for work on the pool. Returns what it gives after it.
    pub fn add_turn(&self, ns: u64, before: Option<u64>) -> Option<u64> {
        self.busy_ns.fetch_add(ns, Relaxed);
        let before = before?;
        // Such as the poll at the end of a morsel that finds no more items.
        let after = if ns < SHORT_NS { None } else { thread_cpu_ns() };
        let cpu_ns = after.map_or(ns, |after| after.saturating_sub(before).min(ns));
        self.cpu_ns.fetch_add(cpu_ns, Relaxed);
        after.or(Some(before + ns))
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

/// Time that one reader has spent waiting, with the wait that it is in.
///
/// While it waits, the moment at which the wait began is subtracted. All waits together are shorter
/// than the time since the process began to measure, so that the number is negative then, and one
/// load tells the whole time.
#[derive(Debug)]
pub(crate) struct WaitTime(AtomicU64);

/// A wait, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Wait(Arc<WaitTime>);

/// Moment at which the process began to measure.
static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Returns the nanoseconds from the moment at which the process began to measure.
fn measured(moment: Instant) -> u64 {
    moment.saturating_duration_since(*FIRST).as_nanos() as u64
}

impl Default for WaitTime {
    fn default() -> Self {
        LazyLock::force(&FIRST);
        WaitTime(AtomicU64::new(0))
    }
}

impl WaitTime {
    /// Records that a wait began. The one before has ended.
    pub(crate) fn begin(&self, moment: Instant) {
        self.0.fetch_sub(measured(moment), Relaxed);
    }

    /// Records that the wait ended.
    pub(crate) fn end(&self, moment: Instant) {
        self.0.fetch_add(measured(moment), Relaxed);
    }

    /// Begins a wait that ends with the returned value.
    pub(crate) fn start(this: &Arc<Self>) -> Wait {
        this.begin(Instant::now());
        Wait(this.clone())
    }

    /// Returns the time of all waits, up to now.
    pub(crate) fn total(&self) -> Duration {
        let total = self.0.load(Relaxed);
        let is_waiting = (total as i64) < 0;
        let now = if is_waiting {
            measured(Instant::now())
        } else {
            0
        };
        // Waits of two readers at once would be negative together.
        Duration::from_nanos((total.wrapping_add(now) as i64).max(0) as u64)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.0.end(Instant::now());
    }
}

/// Measurements of a queue before a consumer.
#[derive(Debug, Default)]
pub(crate) struct QueueGauge {
    /// Time the producer waited for room.
    pub full_ns: AtomicU64,
    /// Time the consumer waited for an item.
    pub empty: Arc<WaitTime>,
    pub busy_ns: AtomicU64,
    /// Number of polls by the producer that found nothing.
    pub pending_polls: AtomicU64,
    /// True while the consumer polls the producer's stream itself.
    pub inline: AtomicBool,
    /// True if the consumer polled it itself when it last found the queue empty.
    pub polled_here: AtomicBool,
    pub taken: AtomicU64,
    /// Times that items were in the queue.
    pub item_wait: DurationRecorder,
    pub occupancy_sum: AtomicU64,
    pub occupancy_polls: AtomicU64,
    /// Length now, and at most.
    pub depth: AtomicU64,
    pub most_depth: AtomicU64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_counts_from_its_beginning() {
        let waits = Arc::new(WaitTime::default());
        assert_eq!(waits.total(), Duration::ZERO);
        for _ in 0..2 {
            let before = waits.total();
            let wait = WaitTime::start(&waits);
            while waits.total() == before {
                std::hint::spin_loop();
            }
            let during = waits.total();
            assert!(during > before);
            drop(wait);
            let after = waits.total();
            assert!(after >= during);
            assert_eq!(waits.total(), after);
        }
        let begun = Instant::now();
        waits.begin(begun);
        let before = waits.total();
        waits.end(begun + Duration::from_secs(9));
        assert!(waits.total() > before);
    }
}
