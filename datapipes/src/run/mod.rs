//! The executor: the only code that starts work.
//!
//! - [`pool`]: threads for CPU work, which run the morsels of segments as async tasks.
//! - [`segment`]: neighbouring shardable pipes as one unit of work; cuts morsels and orders their
//!   results.
//! - [`morsel`]: a piece of a segment's input on its way, as a task.
//! - [`chain`]: the pipes that a morsel passes through.
//! - [`spawn`]: runs morsels on the pool or as tasks; children do it in [`child`].
//! - [`near`]: blocking work that seldom waits, in place on the CPU workers.
//! - [`gauge`]: measurements, which statistics read.
//! - [`prefetch`]: runs everything upstream on a thread of its own, ahead of its consumer.
//! - [`memory_watch`]: checks if an epoch stands still for lack of bytes.
//! - [`io_driver`]: continues I/O that began on the consumer's thread, while the consumer does
//!   something else.
//! - [`pinned_thread`]: a thread for work that has to stay on one thread, such as uploads to a
//!   device.
//! - [`observer_thread`]: a thread that reads the figures of a loader.
//! - [`deadlock`]: detects a consumer that blocks the async runtime its data comes from.
//! - [`device_prefetch`]: reads an epoch on a pinned thread and uploads its batches, ahead of the
//!   consumer.
//! - [`child`]: child processes for parts of a graph.
//! - [`replay`]: runs one sample again, node by node.
//! - [`runtime`]: the async runtime for I/O, for callers without one.
//! - [`scope`]: the epoch whose functions run on a thread, and the runtime around them.
//! - [`engine`]: wires a flow by its plan; `engine/restore/` has all that a resumed epoch needs.
//! - [`blocking`](blocking()): blocking work of stores and tables, which have no graph around them.

mod block_on;
mod blocking;
mod chain;
#[cfg(target_os = "linux")]
pub(crate) mod child;
mod concurrency;
mod deadlock;
mod device_prefetch;
mod engine;
mod gauge;
mod io_driver;
mod memory_watch;
mod morsel;
mod near;
#[cfg(any(feature = "metrics", feature = "monitor"))]
mod observer_thread;
mod pinned_thread;
mod pool;
mod prefetch;
mod recent_batches;
mod replay;
mod runtime;
mod scope;
mod segment;
mod spawn;
mod timeline;

pub use block_on::block_on;
pub(crate) use block_on::{are_wakes_put_off, block_on_polls};
pub use blocking::blocking;
pub(crate) use deadlock::{DeadlockCheck, QUIET, StarvedCheck};
pub(crate) use device_prefetch::{DevicePrefetch, DevicePrefetchGauge, Upload};
#[cfg(feature = "tune")]
pub(crate) use engine::Requests;
pub(crate) use engine::{Cursors, Engine, EpochRun, EpochsSeen, RankShare, Resume, Running};
pub use engine::{SkipStats, Skipped};
pub(crate) use gauge::QueueGauge;
#[cfg(any(feature = "metrics", feature = "monitor"))]
pub(crate) use observer_thread::ObserverThread;
pub(crate) use pinned_thread::PinnedThread;
pub(crate) use recent_batches::{BatchTimes, ConsumerMoments};
pub(crate) use replay::{Carried, NodeResult, Replayer, Way, batch};
pub(crate) use scope::{Scope, inside_itself};
pub use timeline::TraceLevel;
pub(crate) use timeline::{ConsumerEvents, Event, Timeline, TimelineSlot, Track};

use std::future::Future;
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::Span;

use crate::error::quietly;

/// Time that a drop waits for a thread to end. If a pipe is busy, the thread ends by itself a
/// little later.
const JOIN_TIMEOUT: Duration = Duration::from_millis(100);

/// Returns true in a child process of a loader, whose figures are its parent's.
#[cfg(any(feature = "metrics", feature = "monitor"))]
pub(crate) fn is_child_process() -> bool {
    #[cfg(target_os = "linux")]
    return child::is_child();
    #[cfg(not(target_os = "linux"))]
    return false;
}

/// Returns true if a drop may wait on this thread. It may not inside an async runtime, whose tasks
/// would wait, too.
fn may_wait() -> bool {
    tokio::runtime::Handle::try_current().is_err()
}

/// Starts a named thread. All threads are started here. Its `tracing` events are inside a span of
/// that name.
pub(crate) fn spawn_thread(
    name: String,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    spawn_thread_within(&Span::none(), name, body)
}

/// Starts a thread within the span of an epoch. The thread must not outlive the epoch.
fn spawn_thread_within(
    span: &Span,
    name: String,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let span = spanned(|| tracing::info_span!(parent: span, "worker", name));
    std::thread::Builder::new()
        .name(name)
        .spawn(move || span.in_scope(body))
}

/// Makes a span; none if the log panics.
fn spanned(span: impl FnOnce() -> Span) -> Span {
    let mut made = Span::none();
    quietly(|| made = span());
    made
}

/// Starts an async task. All tasks are started here; the caller must abort the task on drop.
#[expect(clippy::disallowed_methods, reason = "the one place that starts tasks")]
fn spawn_task(
    handle: &tokio::runtime::Handle,
    future: impl Future<Output = ()> + Send + 'static,
) -> tokio::task::JoinHandle<()> {
    handle.spawn(future)
}
