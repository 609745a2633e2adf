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
    /// Number of ranks that this process reads in turn, which share its bytes.
    pub in_turn: usize,
}

/// Rank whose part of the data an epoch reads: the loader's own, or a rank of the job that began
/// the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RankShare {
    pub rank: Rank,
    pub uneven: Option<Uneven>,
}
