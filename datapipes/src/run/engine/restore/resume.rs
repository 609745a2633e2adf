//! The rank whose data an epoch reads, and the positions at which it begins.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::checkpoint::Cursor;
use crate::{Rank, Uneven};

/// Position of each node, by name.
pub(crate) type Cursors = BTreeMap<Arc<str>, Cursor>;

/// Starting point of a resumed epoch.
#[derive(Clone, Debug)]
pub(crate) struct Resume {
    /// Number of items and errors that came out of the graph before.
    pub position: u64,
    pub cursors: Arc<Cursors>,
    /// True if other ranks began the epoch: the last step of all may have had fewer items than the
    /// others.
    pub other_ranks: bool,
    /// Ranks that this process reads in turn, and which share its bytes; empty if it
    /// reads one.
    pub in_turn: Arc<[RankShare]>,
}

/// Rank whose part of the data an epoch reads: the loader's own, or a rank of the job that began
/// the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RankShare {
    pub rank: Rank,
    pub uneven: Option<Uneven>,
}

impl RankShare {
    /// Returns the step that a step of this rank is where several ranks are read in turn.
    pub fn step_in_turn(self, step: u64, ranks: &[RankShare]) -> u64 {
        let turn = ranks.iter().position(|one| *one == self);
        step * ranks.len().max(1) as u64 + turn.unwrap_or(0) as u64
    }
}
