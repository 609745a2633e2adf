//! All that a resumed epoch needs of the executor, and what a node records to be resumed.
//!
//! Before this, [`checkpoint`](crate::checkpoint) records where each node stands.
//!
//! - [`resume`]: the rank whose data an epoch reads, and the positions of its nodes.
//! - [`fits`]: the check that a checkpoint is one of this graph and plan.
//! - [`unordered`]: the nodes whose items come in any order.
//! - [`inputs`]: the part of its inputs that a node needs, and the kind of log that it keeps.
//! - [`node_log`]: the stream of a node, with the log of its items.
//! - [`skip_delivered`]: leaves out the items that had been delivered before.

mod fits;
mod inputs;
mod node_log;
mod resume;
mod skip_delivered;
mod unordered;

pub(super) use self::inputs::{NodeInputs, Ranges};
pub(super) use self::node_log::{NodeLog, Splits, Wired};
pub(crate) use self::resume::{Cursors, RankShare, Resume};
pub(super) use self::skip_delivered::SkipDelivered;
pub(super) use self::unordered::unordered;
