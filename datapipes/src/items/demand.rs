//! Number of items that a consumer wants, and whether it waits for them.

use std::cell::Cell;

#[cfg(doc)]
use super::{Chunks, Items};

/// Number of items that a consumer wants.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Maximum number of items wanted; at least 1.
    pub max: usize,
    /// True if nobody waits for the items: they are asked for ahead of need. A source that must not
    /// run ahead may then answer "not now". A `Stream` cannot be told, so items polled inside a
    /// `Stream` look the answer up by their thread.
    pub ahead: bool,
    /// Number of items needed before anything can be made of them, as for a batch; 1 if each item
    /// is of use by itself. A producer that works on many at once need not wake its consumer for
    /// fewer.
    pub needed: usize,
    /// Number of items wanted of a single piece of work, such as reading several files in a row. It is
    /// more than `max` where no second request may be in progress when the first item is returned.
    pub together: usize,
}

impl Demand {
    /// Returns the demand of a consumer that waits for at least one of up to `max` items.
    pub fn up_to(max: usize) -> Self {
        Demand {
            max: max.max(1),
            ahead: false,
            needed: 1,
            together: 1,
        }
    }

    /// Sets the number of items without which the consumer cannot go on.
    pub fn needing(mut self, needed: usize) -> Self {
        self.needed = needed.max(1);
        self
    }

    /// Limits the demand to `max` items at once. What the consumer needs in all stays the same: it
    /// gets that with several polls.
    pub fn at_most(mut self, max: usize) -> Self {
        self.max = self.max.min(max).max(1);
        self.together = self.together.min(max).max(1);
        self
    }

    /// Limits the demand to one item at once, except for those that are needed and made together.
    pub(crate) fn one_request(self) -> Self {
        Demand {
            together: self.needed.min(self.max),
            max: 1,
            ..self
        }
    }

    /// Returns the maximum length of a chunk.
    pub(super) fn most(&self) -> usize {
        self.max.max(self.together)
    }

    /// Calls `poll`. Each [`Items`] that it polls as a `Stream` is asked [ahead](Demand::ahead) of
    /// need if this demand is; `max` and `needed` are not passed on. For [`Chunks`] that read
    /// streams.
    pub fn scope<R>(self, poll: impl FnOnce() -> R) -> R {
        struct Restore(bool);
        impl Drop for Restore {
            fn drop(&mut self) {
                AHEAD.set(self.0);
            }
        }
        let _restore = Restore(AHEAD.replace(self.ahead));
        poll()
    }
}

thread_local! {
    /// True if the stream polled on this thread right now is asked ahead of need; see
    /// [`Demand::scope`].
    pub(super) static AHEAD: Cell<bool> = const { Cell::new(false) };
}
