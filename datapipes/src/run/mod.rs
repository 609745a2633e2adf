//! The executor: the only code that starts work.
//!
//! - [`pool`]: threads for CPU work, which run the pieces of segments as async tasks.
//! - [`segment`]: neighbouring shardable pipes as one piece of work; cuts morsels, puts results in
//!   order.
//! - [`morsel`]: a piece of a segment's input on its way, as a task.
//! - [`prefetch`]: runs what is above it on a thread of its own, ahead of its consumer.
//! - [`memory_watch`]: looks whether an epoch stands still for want of bytes.
//! - [`io_driver`]: goes on with I/O that began on the consumer's thread, while the consumer does
//!   something else.
//! - [`restore`]: what a resumed epoch runs again, and leaves out.
//! - [`pinned_thread`]: a thread for work that has to stay on one, such as uploads to a device.
//! - [`deadlock`]: notices a consumer that blocks the async runtime which its data come from.
//! - [`device_prefetch`]: reads an epoch on such a thread and uploads what comes, ahead of the
//!   consumer.
//! - [`worker`]: processes of their own for parts of a graph.
//! - [`replay`]: one sample once more, node by node.
//! - [`runtime`]: the async runtime for I/O, where the caller has none.
//! - [`scope`]: which epoch's functions run on a thread, and the runtime around them.
//! - [`engine`]: wires a flow by its plan.
//! - [`blocking`](blocking()): blocking work of stores and tables, which have no graph around them.

mod block_on;
mod blocking;
mod concurrency;
mod deadlock;
mod device_prefetch;
mod engine;
mod io_driver;
mod memory_watch;
mod morsel;
mod pinned_thread;
mod pool;
mod prefetch;
mod replay;
mod restore;
mod runtime;
mod scope;
mod segment;
#[cfg(target_os = "linux")]
pub(crate) mod worker;

pub use block_on::block_on;
pub(crate) use block_on::block_on_unless;
pub use blocking::blocking;
pub(crate) use deadlock::{DeadlockCheck, QUIET};
pub(crate) use device_prefetch::{DevicePrefetch, DevicePrefetchGauge, Upload};
pub use engine::SkipStats;
pub(crate) use engine::{Cursors, Engine, EpochRun, Resume, Running, Share};
pub(crate) use pinned_thread::PinnedThread;
pub(crate) use replay::{Carried, Replayer, Stage, Way};
pub(crate) use scope::{Scope, inside_itself};

use std::future::Future;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a drop waits for a thread to end. It ends by itself a little later where a pipe is
/// busy.
const PATIENCE: Duration = Duration::from_millis(100);

/// Whether a drop may wait on this thread: not inside an async runtime, whose tasks would wait with
/// it.
fn may_wait() -> bool {
    tokio::runtime::Handle::try_current().is_err()
}

/// Starts a thread with a name. The only place that does. What it says to `tracing` is inside a
/// span of that name.
fn spawn_thread(
    name: String,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    spawn_thread_within(&tracing::Span::none(), name, body)
}

/// The same, within the span of an epoch that the thread does not outlive.
fn spawn_thread_within(
    span: &tracing::Span,
    name: String,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let span = engine::spanned(|| tracing::info_span!(parent: span, "worker", name));
    std::thread::Builder::new()
        .name(name)
        .spawn(move || span.in_scope(body))
}

/// Starts an async task. The only place that does; who calls it must abort it on drop.
#[expect(clippy::disallowed_methods, reason = "the one place that starts tasks")]
fn spawn_task(
    handle: &tokio::runtime::Handle,
    future: impl Future<Output = ()> + Send + 'static,
) -> tokio::task::JoinHandle<()> {
    handle.spawn(future)
}
