//! What a resumed epoch runs again, and what it leaves out.
//!
//! - [`fits`]: whether an epoch can be resumed with this plan.
//! - [`in_morsels`](mod@in_morsels): runs a chain inline with a log of which output belongs to
//!   which input.
//! - [`skip_delivered`]: leaves out what had been delivered before.

mod fits;
mod in_morsels;
mod skip_delivered;

pub(super) use self::in_morsels::in_morsels;
pub(super) use self::skip_delivered::SkipDelivered;
