//! The wanted items of a stream in a resumed epoch.

use std::ops::Range;
use std::sync::Arc;

/// The items of a stream that are wanted by a resumed epoch. These are all items from some position
/// on, and earlier items that were taken and not used, such as the contents of a shuffle buffer.
/// Positions count items and errors. The default is everything, as in an epoch that begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    holes: Arc<[u64]>,
    from: u64,
}

impl Wanted {
    /// Makes a set of everything from `from` on, and of `holes` before it, in ascending order.
    pub(crate) fn new(holes: Vec<u64>, from: u64) -> Self {
        debug_assert!(
            holes.is_sorted_by(|a, b| a < b) && holes.last().is_none_or(|&last| last < from)
        );
        Wanted {
            holes: holes.into(),
            from,
        }
    }

    /// Makes a set of everything from `from` on, and nothing before it.
    pub(crate) fn since(from: u64) -> Self {
        Wanted::new(Vec::new(), from)
    }

    /// Returns the position from which everything is wanted.
    pub fn from(&self) -> u64 {
        self.from
    }

    /// Returns the wanted positions before it, ascending.
    pub fn holes(&self) -> &[u64] {
        &self.holes
    }

    /// Returns true if the item at this position is wanted.
    pub fn contains(&self, position: u64) -> bool {
        self.next(position) == position
    }

    /// Returns true if everything is wanted.
    pub fn is_all(&self) -> bool {
        self.from == 0
    }

    /// Iterates over the wanted positions below `end`, ascending.
    pub fn positions(&self, end: u64) -> impl Iterator<Item = u64> + Send + use<> {
        let (holes, from) = (self.holes.clone(), self.from);
        let before = (0..holes.len())
            .map(move |at| holes[at])
            .take_while(move |&hole| hole < end);
        before.chain(from..end.max(from))
    }

    /// Returns the next range of wanted positions without a gap: it begins at `position` or later,
    /// has at most `most` positions, and ends at `end` at the latest. Empty if none is wanted
    /// before `end`. A source that makes many items at once calls it again with the end of the
    /// range.
    ///
    /// ```
    /// let all = datapipes::Wanted::default();
    /// assert_eq!([all.next_range(0, 4, 6), all.next_range(4, 4, 6)], [0..4, 4..6]);
    /// assert!(all.next_range(6, 4, 6).is_empty());
    /// ```
    pub fn next_range(&self, position: u64, most: u64, end: u64) -> Range<u64> {
        let from = self.next(position).min(end);
        let gap = self.gap(from).unwrap_or(u64::MAX);
        let to = end.min(from.saturating_add(most)).min(gap);
        from..to.max(from)
    }

    /// Returns the first wanted position at or after `position`.
    pub(crate) fn next(&self, position: u64) -> u64 {
        if position >= self.from {
            return position;
        }
        let at = self.holes.partition_point(|&hole| hole < position);
        self.holes.get(at).copied().unwrap_or(self.from)
    }

    /// Returns the first position at or after `position` that is not wanted; `None` if all are.
    pub(crate) fn gap(&self, position: u64) -> Option<u64> {
        if position >= self.from {
            return None;
        }
        let mut at = self.holes.partition_point(|&hole| hole < position);
        let mut gap = position;
        while self.holes.get(at) == Some(&gap) {
            (at, gap) = (at + 1, gap + 1);
        }
        (gap < self.from).then_some(gap)
    }
}
