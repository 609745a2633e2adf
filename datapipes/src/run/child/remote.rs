//! Children on other machines.
//!
//! A worker of another machine is a child at the end of a connection: it makes the same part of the
//! graph, gets the same orders, and gives the same reports. Who listens is the trainer, so workers
//! may come and go at any time; nothing but the trainer's jobs knows what is done and what is not.
//!
//! - [`link`], [`tls`]: connections, encrypted or not.
//! - [`handshake`]: how both sides show that they run the same program and know the same secret.
//! - [`acceptor`]: the trainer's side, which lets workers in.
//! - [`workers`]: those that are connected to a supervisor.
//! - [`agent`]: a worker's side: the processes of its machine, each with a connection of its own.

mod acceptor;
mod agent;
mod handshake;
mod leave;
mod link;
#[cfg(feature = "remote-tls")]
mod tls;
mod workers;

use std::fmt;
use std::task::{Context, Poll};
use std::time::Duration;

use super::queue_ends::{PutEnd, TakeEnd};
use crate::Result;
use crate::error::escape;
use crate::processes::{Remote, Share};

use acceptor::Acceptor;
pub(super) use agent::{are_addresses, run as run_agent};
#[cfg(feature = "testing")]
pub(crate) use handshake::hear;
pub(super) use leave::Leave;
pub(super) use workers::Workers;

/// A worker that was let in.
pub(super) struct RemoteWorker {
    /// Number by which its machine reports how it ended.
    pub id: u64,
    /// Name of its machine, as it says.
    pub machine: String,
    /// Number of its process there.
    pub process: u32,
    /// Time of a message to it and its answer.
    pub round_trip: Duration,
}

/// A worker that was just let in, with the ends of its connection.
pub(super) struct Arrival {
    pub worker: RemoteWorker,
    pub orders: PutEnd,
    pub reports: TakeEnd,
}

/// Entrance of workers: the [`acceptor`], or that of a simulation. It prints that nobody came.
pub(super) trait Entrance: fmt::Display + Sized {
    /// Starts to let workers in. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if others let workers in by other rules; that of
    /// the system.
    fn open(remote: &Remote) -> Result<Self>;

    /// Ready with the next worker that is let in. While this part is not the first in line, no
    /// connections are accepted.
    fn poll_worker(&mut self, cx: &mut Context<'_>) -> Poll<Arrival>;

    fn share(&self) -> &Share;
}

formatted! {
    Display |worker: RemoteWorker|
        "{} (process {})", escape(&worker.machine), worker.process;
}

/// The crash of a worker process, as its machine reports it with the process that takes its place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Crash {
    pub id: u64,
    pub process: u32,
    pub how: String,
}

wire_struct!(Crash { id, process, how });

impl Crash {
    /// Returns a sentence about the crash, on a machine of this name.
    fn told(&self, machine: &str) -> String {
        let (machine, how) = (escape(machine), escape(&self.how));
        format!("at {machine} (process {}) {how}", self.process)
    }
}
