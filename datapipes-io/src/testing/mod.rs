//! Tools for tests of stores, formats and their users: contract tests, and a store that follows a
//! script.
//!
//! The module needs the feature `testing`, usually in the `[dev-dependencies]`: `datapipes-io = {
//! …, features = ["testing"] }`. Its functions panic with a message if a check fails.

mod conformance;
mod formats;
mod scripted;

pub use conformance::{check_reads, check_store, fixtures};
pub use formats::{check_format, read_all, read_arriving};
#[cfg(test)]
pub(crate) use formats::{gzip, places, unnamed};
pub use scripted::{Reaction, Request, Scripted};
