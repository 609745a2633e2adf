//! Processes of a graph: parts that run in children of this process.
//!
//! - [`entry`]: where a program turns into a child.
//! - [`part`]: what the children of a segment are told.
//! - [`supervisor`]: the children of a segment, and the work that waits for them; one thread looks
//!   after them.
//! - [`station`]: one place of a supervisor: a child in it, the next when that ends, and who is to
//!   blame.
//! - [`session`]: the life of one child: what it is given, and what it answers.
//! - [`child`]: a child, as its parent has it.
//! - [`serve`]: what a child does.
//! - [`protocol`], [`log`]: what they say to each other.
//! - [`isolate`]: what a child may do. [`vitals`]: what is seen of it.

mod child;
mod child_main;
mod entry;
mod isolate;
mod log;
mod part;
mod protocol;
mod session;
mod supervisor;
mod vitals;
mod worker_slot;

pub(crate) use entry::{init, is_child, is_ready};
pub(crate) use part::supervisors;
pub(crate) use protocol::RunFacts;
pub(crate) use supervisor::{Job, Lease, Supervisors, shared_memory};
