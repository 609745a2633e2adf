//! Child processes that run parts of a graph.
//!
//! - [`init`]: makes a child of this program; [`executable`]: the executable that is started for it.
//! - [`part`]: information for the children of a segment.
//! - [`plan`]: the settings that the children of a segment share. [`job`]: the work of a child.
//! - [`supervisor`]: the children of a segment, managed by one thread.
//! - [`slots`]: the places of a supervisor, and the work that waits for them. [`late`]: work that a
//!   worker is late with.
//! - [`child_slot`]: the life of one place: its child, the replacement when the child ends, and the
//!   decision which item ended it.
//! - [`session`]: the life of one child: its jobs and its answers.
//! - [`child_handle`]: a child, as its parent sees it, with its [`queue_ends`].
//! - [`child_process`]: a child that is a process of this machine. [`remote`]: children on other
//!   machines (feature `remote`).
//! - [`child_main`]: the main loop of a child.
//! - [`protocol`], [`log`]: messages between parent and child.
//! - [`isolate`]: limits of a child. [`vitals`]: observations of a child.

mod child_handle;
mod child_main;
mod child_process;
mod child_slot;
mod executable;
mod init;
mod isolate;
mod job;
mod late;
mod log;
mod part;
mod plan;
mod protocol;
mod queue_ends;
#[cfg(feature = "remote")]
mod remote;
mod session;
mod slots;
mod supervisor;
mod vitals;

pub(crate) use executable::{is_child, is_ready};
pub(crate) use init::init;
pub(crate) use part::supervisors;
pub(crate) use protocol::RunFacts;
#[cfg(all(feature = "testing", feature = "remote"))]
pub(crate) use remote::hear;
pub(crate) use supervisor::{Supervisors, shared_memory};

#[cfg(test)]
mod tests;
