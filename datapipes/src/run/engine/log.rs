//! What an epoch says to `tracing`: its span, what was skipped of it, and the sum of that at its
//! end.

use std::sync::Mutex;

use tracing::Span;

use super::Share;
use crate::error::{is_heard, quietly};
use crate::sync::lock;
use crate::{Error, ErrorKind};

/// Items that the loader's policy skipped, of one node and one kind of error.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SkipStats {
    /// The node in which they failed; empty where an error says none.
    pub node: String,
    /// What kind of error it was.
    pub kind: ErrorKind,
    /// How many.
    pub items: u64,
    /// The first error in one line, cut after 500 characters.
    pub first: String,
    /// The last one.
    pub last: String,
}

/// Errors are shown up to here.
const LONGEST: usize = 500;
/// Nodes and kinds that are told apart. A graph has no more, unless its pipes make up names.
const MOST: usize = 1000;

/// What one epoch says.
pub(crate) struct EpochLog {
    span: Span,
    epoch: u64,
    rank: usize,
    skipped: Mutex<Skipped>,
}

#[derive(Default)]
struct Skipped {
    items: u64,
    by: Vec<SkipStats>,
}

impl EpochLog {
    pub(super) fn new(epoch: u64, share: Share) -> Self {
        let rank = share.rank.index;
        let span = spanned(|| tracing::info_span!("epoch", epoch, rank));
        EpochLog {
            span,
            epoch,
            rank,
            skipped: Mutex::default(),
        }
    }

    /// Does something as part of the epoch: what it says to `tracing` is inside the epoch's span.
    #[inline]
    pub(crate) fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        self.span.in_scope(work)
    }

    /// An item was skipped. The first ones are told in full, the others when their number has
    /// doubled.
    pub(super) fn skip(&self, error: &Error) {
        let mut skipped = lock(&self.skipped);
        skipped.add(error);
        let count = skipped.items;
        drop(skipped);
        if is_heard(count) {
            let EpochLog {
                span, epoch, rank, ..
            } = self;
            quietly(
                || tracing::warn!(parent: span, epoch, rank, skipped = count, %error, "skipped an item"),
            );
        }
    }

    /// The epoch is over: says how many were skipped, of what.
    pub(super) fn finish(&self, delivered: u64) {
        let EpochLog {
            span,
            epoch,
            rank,
            skipped,
        } = self;
        let skipped = lock(skipped);
        if skipped.items == 0 {
            return;
        }
        let (count, by) = (skipped.items, skipped.sum());
        drop(skipped);
        quietly(|| {
            tracing::warn!(parent: span, epoch, rank, skipped = count, delivered, "skipped items in this epoch: {by}");
        });
    }

    /// What was skipped so far, in the order in which each node and kind began.
    pub(crate) fn skipped(&self) -> Vec<SkipStats> {
        lock(&self.skipped).by.clone()
    }
}

impl Drop for EpochLog {
    fn drop(&mut self) {
        quietly(|| drop(std::mem::replace(&mut self.span, Span::none())));
    }
}

impl Skipped {
    fn add(&mut self, error: &Error) {
        self.items += 1;
        let (node, kind) = (error.node().unwrap_or_default(), error.kind());
        let text: String = error.to_string().chars().take(LONGEST).collect();
        if let Some(by) = self
            .by
            .iter_mut()
            .find(|by| by.node == node && by.kind == kind)
        {
            by.items += 1;
            by.last = text;
        } else if self.by.len() < MOST {
            let (node, first) = (node.to_owned(), text.clone());
            self.by.push(SkipStats {
                node,
                kind,
                items: 1,
                first,
                last: text,
            });
        }
    }

    /// How many of which node and kind, the most first.
    fn sum(&self) -> String {
        const SHOWN: usize = 8;
        let mut by: Vec<&SkipStats> = self.by.iter().collect();
        by.sort_by_key(|by| std::cmp::Reverse(by.items));
        let shown = by
            .iter()
            .take(SHOWN)
            .map(|by| format!("{} in `{}` ({})", by.items, by.node, by.kind));
        let mut said: Vec<String> = shown.collect();
        let others = self.items - by.iter().take(SHOWN).map(|by| by.items).sum::<u64>();
        if others > 0 {
            said.push(format!("{others} others"));
        }
        said.join(", ")
    }
}

/// A span; none where the log panics.
pub(in crate::run) fn spanned(span: impl FnOnce() -> Span) -> Span {
    let mut made = Span::none();
    quietly(|| made = span());
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_and_long_texts_are_bounded() {
        let mut skipped = Skipped::default();
        for n in 0..3000 {
            let node = format!("node {n}").as_str().into();
            skipped.add(&Error::new(ErrorKind::Corrupt, "é".repeat(600)).at(&node));
        }
        assert_eq!((skipped.items, skipped.by.len()), (3000, MOST));
        assert!(
            skipped
                .by
                .iter()
                .all(|by| by.first.chars().count() == LONGEST && by.items == 1)
        );
        assert!(
            skipped
                .sum()
                .ends_with("1 in `node 7` (corrupt), 2992 others"),
            "{}",
            skipped.sum()
        );
    }
}
