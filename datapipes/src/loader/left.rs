//! How many items an epoch still gives: the end of a progress bar, and what an iterator says of
//! itself.

use super::builder::len;
use crate::graph::ENDLESS;
use crate::run::{Engine, Share};

/// How many items an epoch still gives, as far as that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    /// Where none fails, and none is skipped.
    pub steps: Option<u64>,
    /// At most, without an error.
    most: Option<u64>,
    /// Whether an error may come behind all of them.
    may_fail: bool,
}

impl Left {
    /// Nothing more.
    pub const NOTHING: Left = Left {
        steps: Some(0),
        most: Some(0),
        may_fail: false,
    };

    /// Of the epoch of one rank that has delivered so many. How many a graph has that was `edited`
    /// under way depends on where that was.
    pub fn of(engine: &Engine, share: Share, edited: bool, delivered: u64) -> Left {
        let Engine { flow, settings, .. } = engine;
        let budget = settings
            .max_steps
            .map(|steps| steps.saturating_sub(delivered));
        let len = if edited {
            None
        } else {
            len(flow, share.rank, share.uneven)
        };
        let counted = len
            .filter(|&len| len != ENDLESS)
            .map(|len| len.saturating_sub(delivered));
        Left {
            steps: least(counted, budget).filter(|_| len.is_some()),
            most: least(counted, budget),
            // One that none of them needed: the last of an incomplete batch, or another rank's.
            // What ends at its budget asks for no more.
            may_fail: counted.is_some_and(|left| budget.is_none_or(|budget| left < budget)),
        }
    }

    /// Of two ranks that are read in turn. The first error ends both.
    pub fn and(self, other: Left) -> Left {
        let sum = |a: Option<u64>, b: Option<u64>| a?.checked_add(b?);
        let may_fail = self.may_fail || other.may_fail;
        Left {
            steps: sum(self.steps, other.steps),
            most: sum(self.most, other.most),
            may_fail,
        }
    }

    /// Of an epoch that may give errors and go on, as one that saves its states does where one
    /// cannot be written.
    pub fn with_errors_between(self, may: bool) -> Left {
        Left {
            most: self.most.filter(|_| !may),
            ..self
        }
    }

    /// As an iterator or a stream says it. At least is nothing: any item may fail, and end the
    /// epoch.
    pub fn size_hint(self) -> (usize, Option<usize>) {
        let most = self
            .most
            .and_then(|most| most.checked_add(u64::from(self.may_fail)));
        (0, most.and_then(|most| usize::try_from(most).ok()))
    }
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}
