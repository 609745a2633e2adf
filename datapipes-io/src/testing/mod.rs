//! For tests of stores, formats and of what reads from them: conformance suites, and a store that
//! follows a script.
//!
//! It needs the feature `testing`, best among the `[dev-dependencies]`: `datapipes-io = { …,
//! features = ["testing"] }`. What is in here panics, with what is wrong, where something does not
//! hold.

mod conformance;
mod formats;
mod scripted;

pub use conformance::{check_reads, check_store, fixtures};
pub use formats::{check_format, read_all, read_arriving};
#[cfg(test)]
pub(crate) use formats::{places, unnamed};
pub use scripted::{Reaction, Request, Scripted};
