//! What is wanted of a stream that is gone on with.

use std::sync::Arc;

/// Which items of a stream are wanted by a resumed epoch: those from some position on, and before
/// them those that had been taken and not been used, such as what was in a shuffle buffer.
/// Positions count items and errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    holes: Arc<[u64]>,
    from: u64,
}

impl Wanted {
    /// What is wanted from `from` on, and before it at `holes`, in ascending order.
    pub(crate) fn new(holes: Vec<u64>, from: u64) -> Self {
        debug_assert!(
            holes.is_sorted_by(|a, b| a < b) && holes.last().is_none_or(|&last| last < from)
        );
        Wanted {
            holes: holes.into(),
            from,
        }
    }

    /// What is wanted from `from` on, and nothing before it.
    pub(crate) fn since(from: u64) -> Self {
        Wanted::new(Vec::new(), from)
    }

    /// From here on everything is wanted.
    pub fn from(&self) -> u64 {
        self.from
    }

    /// The positions before it that are wanted, ascending.
    pub fn holes(&self) -> &[u64] {
        &self.holes
    }

    /// Whether everything is.
    pub fn is_all(&self) -> bool {
        self.from == 0
    }

    /// The wanted positions below `end`, ascending.
    pub fn positions(&self, end: u64) -> impl Iterator<Item = u64> + Send + use<> {
        let (holes, from) = (self.holes.clone(), self.from);
        let before = (0..holes.len())
            .map(move |at| holes[at])
            .take_while(move |&hole| hole < end);
        before.chain(from..end.max(from))
    }

    /// The first wanted position at or behind `position`.
    pub(crate) fn next(&self, position: u64) -> u64 {
        if position >= self.from {
            return position;
        }
        let at = self.holes.partition_point(|&hole| hole < position);
        self.holes.get(at).copied().unwrap_or(self.from)
    }

    /// The first position at or behind `position` that is not wanted; `None` if all are.
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

/// Goes through what is wanted.
#[derive(Debug)]
pub(crate) struct Positions {
    wanted: Option<Wanted>,
    at: u64,
}

impl Positions {
    /// Of what a node gives; in an epoch that begins, all.
    pub(crate) fn of(wanted: Option<&Wanted>) -> Self {
        Positions {
            wanted: wanted.cloned(),
            at: 0,
        }
    }

    /// The next consecutive positions that are wanted, at most so many, below `end`; empty at the
    /// end.
    pub(crate) fn next(&mut self, most: u64, end: u64) -> std::ops::Range<u64> {
        let from = self
            .wanted
            .as_ref()
            .map_or(self.at, |wanted| wanted.next(self.at))
            .min(end);
        let gap = self.wanted.as_ref().and_then(|wanted| wanted.gap(from));
        self.at = end
            .min(from.saturating_add(most))
            .min(gap.unwrap_or(u64::MAX))
            .max(from);
        from..self.at
    }
}
