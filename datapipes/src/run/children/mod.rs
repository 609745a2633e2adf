//! Processes of a graph: parts that run in children of this process.
//!
//! - [`entry`]: where a program turns into a child.
//! - [`crew`]: the children of a segment, and the work that waits for them; one thread looks after them.
//! - [`station`]: one place of a crew: a child in it, the next when that ends, and who is to blame.
//! - [`shift`]: the life of one child: what it is given, and what it answers.
//! - [`child`]: a child, as its parent has it.
//! - [`serve`]: what a child does.
//! - [`protocol`], [`log`]: what they say to each other.
//! - [`isolate`]: what a child may do. [`vitals`]: what is seen of it.

mod child;
mod crew;
mod entry;
mod isolate;
mod log;
mod protocol;
mod serve;
mod shift;
mod station;
mod vitals;

pub(crate) use crew::{Crews, Figures, Job, Lease, Plan as ChildPlan, shared_memory};
pub(crate) use entry::{init, is_child, is_ready};
pub(crate) use log::number as log_level;
pub(crate) use protocol::{Hello, RunFacts};
pub(crate) use station::overlap_of;
