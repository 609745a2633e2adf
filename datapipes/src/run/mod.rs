//! The executor: the only code that starts work.
//!
//! - [`pool`]: threads for CPU work, which run the pieces of segments as async tasks.
//! - [`segment`]: neighbouring shardable pipes as one piece of work; cuts morsels, puts results in order.
//! - [`morsel`]: a piece of a segment's input on its way, as a task.
//! - [`background`]: runs what is above it on a thread of its own, ahead of its consumer.
//! - [`clock`]: looks whether an epoch stands still for want of bytes.
//! - [`driven`]: goes on with I/O that began on the consumer's thread, while the consumer does something else.
//! - [`pieced`]: what distributes over concatenation, inline, with a log of which output belongs to which input.
//! - [`sieve`]: leaves out what had been taken before an epoch was resumed.
//! - [`stable`]: a thread for work that has to stay on one, such as uploads to a device.
//! - [`standstill`]: notices a consumer that blocks the async runtime which its data come from.
//! - [`ahead`]: reads an epoch on such a thread and uploads what comes, ahead of the consumer.
//! - [`children`]: processes of their own for parts of a graph.
//! - [`replay`]: one sample once more, node by node.
//! - [`runtime`]: the async runtime for I/O, where the caller has none.
//! - [`scope`]: which epoch's functions run on a thread, and the runtime around them.
//! - [`engine`]: wires a flow by its plan.
//! - [`blocking`](blocking()): blocking work of stores and tables, which have no graph around them.

mod ahead;
mod background;
mod block_on;
mod blocking;
#[cfg(target_os = "linux")]
pub(crate) mod children;
mod clock;
mod driven;
mod engine;
mod morsel;
mod pieced;
mod pool;
mod replay;
mod runtime;
mod scope;
mod segment;
mod sieve;
mod stable;
mod standstill;
mod window;

pub(crate) use ahead::{Ahead, AheadGauge, Upload};
pub use block_on::block_on;
pub(crate) use block_on::block_on_unless;
pub use blocking::blocking;
pub use engine::SkipStats;
pub(crate) use engine::{Cursors, Engine, EpochRun, Resume, Running, Share};
pub(crate) use replay::{Carried, Replayer, Stage, Way};
pub(crate) use scope::{Scope, inside_itself};
pub(crate) use stable::StableThread;
pub(crate) use standstill::{QUIET, Standstill};

use std::future::Future;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a drop waits for a thread to end. It ends by itself a little later where a pipe is busy.
const PATIENCE: Duration = Duration::from_millis(100);

/// Whether a drop may wait on this thread: not inside an async runtime, whose tasks would wait with it.
fn may_wait() -> bool {
    tokio::runtime::Handle::try_current().is_err()
}

/// Starts a thread with a name. The only place that does. What it says to `tracing` is inside a span of that name.
fn spawn_thread(name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    spawn_thread_within(&tracing::Span::none(), name, body)
}

/// The same, within the span of an epoch that the thread does not outlive.
fn spawn_thread_within(
    span: &tracing::Span,
    name: String,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let span = engine::spanned(|| tracing::info_span!(parent: span, "worker", name));
    std::thread::Builder::new().name(name).spawn(move || span.in_scope(body))
}

/// Starts an async task. The only place that does; who calls it must abort it on drop.
#[expect(clippy::disallowed_methods, reason = "the one place that starts tasks")]
fn spawn_task(
    handle: &tokio::runtime::Handle,
    future: impl Future<Output = ()> + Send + 'static,
) -> tokio::task::JoinHandle<()> {
    handle.spawn(future)
}
