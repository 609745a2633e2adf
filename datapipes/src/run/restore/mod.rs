//! The parts of a resumed epoch that run again, and the output that is left out.
//!
//! Before this, [`checkpoint`](crate::checkpoint) records where each node stands, and
//! [`engine::inputs`](super::engine) decides what each node gives again.
//!
//! - [`inline_morsels`](mod@inline_morsels): runs a chain inline with a log of the input that each output
//!   belongs to.
//! - [`skip_delivered`]: leaves out the items that had been delivered before.

mod inline_morsels;
mod skip_delivered;

pub(super) use self::inline_morsels::inline_morsels;
pub(super) use self::skip_delivered::SkipDelivered;
