//! The number of items that an epoch still gives: the end of a progress bar, and the size hint of
//! an iterator.

use crate::graph::{ENDLESS, Flow, Op, lengths_of_some};
use crate::run::{Engine, RankShare};
use crate::settings::Settings;
use crate::{Arity, Rank, Role, Uneven};

/// The number of items that an epoch still gives, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    /// Number of items if none fails and none is skipped.
    pub steps: Option<u64>,
    /// Maximum number of items, if there is no error.
    most: Option<u64>,
    /// True if an error may come after all items.
    may_fail: bool,
}

impl Left {
    /// The number at the end of an epoch.
    pub const NOTHING: Left = Left {
        steps: Some(0),
        most: Some(0),
        may_fail: false,
    };

    /// Returns the number for the epoch of one rank that has delivered this many. The length of a
    /// graph `edited` under way depends on the place where it was edited. `skips` is true if items
    /// that fail may be skipped.
    pub fn of(
        engine: &Engine,
        share: RankShare,
        edited: bool,
        skips: bool,
        delivered: u64,
    ) -> Left {
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
        let at_most = counted.filter(|_| !skips || !may_grow(flow, share.rank.world));
        Left {
            steps: least(counted, budget).filter(|_| len.is_some()),
            most: least(at_most, budget),
            // An error of an input that no output needed: the last of an incomplete batch, or
            // another rank's. An epoch that ends at its budget asks for no more.
            may_fail: counted.is_some_and(|left| budget.is_none_or(|budget| left < budget)),
        }
    }

    /// Returns the sum for two ranks that are read in turn. The first error ends both.
    pub fn and(self, other: Left) -> Left {
        let sum = |a: Option<u64>, b: Option<u64>| a?.checked_add(b?);
        let may_fail = self.may_fail || other.may_fail;
        Left {
            steps: sum(self.steps, other.steps),
            most: sum(self.most, other.most),
            may_fail,
        }
    }

    /// Returns the number for an epoch that may give errors and go on, as an epoch that saves
    /// checkpoints does if one cannot be written.
    pub fn with_errors_between(mut self, may: bool) -> Left {
        self.most = self.most.filter(|_| !may);
        self
    }

    /// Returns the size hint of an iterator or a stream. The lower bound is zero: any item may
    /// fail, and end the epoch.
    pub fn size_hint(self) -> (usize, Option<usize>) {
        let most = self
            .most
            .and_then(|most| most.checked_add(u64::from(self.may_fail)));
        (0, most.and_then(|most| usize::try_from(most).ok()))
    }
}

/// Returns true if a graph may give more results when some items fail:
/// - A batch or `take` replaces a failed item by the next one. The number of its outputs stays the
///   same, and the errors come in addition.
/// - Downstream of such a node, a join that takes turns spends a turn on each error, so that its
///   other inputs give more items before the first input ends. Likewise ranks deal out errors in
///   turn, so that one rank may get more items.
fn may_grow(flow: &Flow, ranks: usize) -> bool {
    let mut has_more: Vec<bool> = Vec::new();
    flow.nodes.iter().any(|node| {
        let hints = node.hints();
        let keeps_number = match node.node.op {
            Op::Pipe(_) => hints.arity == Arity::One || matches!(hints.role, Role::Shuffle),
            Op::Join(_) => hints.selects,
            Op::Source(_) | Op::Split(_) | Op::Rerun(_) => true,
        };
        let above = node.inputs.iter().any(|&(above, _)| has_more[above]);
        has_more.push(above || !keeps_number);
        let takes_turns =
            matches!(node.node.op, Op::Join(_)) && hints.selects && !hints.ignores_order;
        let deals = ranks > 1 && matches!(hints.role, Role::Shard { .. });
        above && (takes_turns || deals)
    })
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

/// Returns the number of items of the root within a budget of steps, if the nodes know it.
pub(super) fn len_hint(flow: &Flow, settings: &Settings) -> Option<u64> {
    let len = len(flow, settings.rank, settings.uneven)?;
    Some(len.min(settings.max_steps.unwrap_or(ENDLESS))).filter(|&len| len != ENDLESS)
}

/// Returns the number of items of the root, if the nodes know it, or [`ENDLESS`].
fn len(flow: &Flow, rank: Rank, uneven: Option<Uneven>) -> Option<u64> {
    lengths_of_some(flow, rank, uneven)[flow.root.0]
}
