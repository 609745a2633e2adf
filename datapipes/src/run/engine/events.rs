//! Events of an epoch for `tracing`: its span, the skipped items, and their sum at the end.

use std::sync::Mutex;

use tracing::Span;

use super::restore::RankShare;
use crate::error::quietly;
use crate::run::spanned;
use crate::sync::lock;
use crate::{Error, ErrorKind, Origin};

/// Items that the loader's policy skipped, of one node and one kind of error.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SkipStats {
    /// Node in which the items failed; empty if the error names none.
    pub node: String,
    /// Kind of the error.
    #[cfg_attr(feature = "serde", serde(with = "kind_text"))]
    pub kind: ErrorKind,
    /// Number of items.
    pub items: u64,
    /// First error in one line, cut after 500 characters.
    pub first: String,
    /// Last error, likewise.
    pub last: String,
}

/// An item that the loader's policy skipped.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Skipped {
    /// Node in which the item failed; empty if the error names none.
    pub node: String,
    /// Origin of the item, if the error is about one. serde writes its text, and reads none: a text
    /// does not lead back to the item.
    #[cfg_attr(
        feature = "serde",
        serde(serialize_with = "maybe_text", skip_deserializing)
    )]
    pub item: Option<Origin>,
    /// Kind of the error.
    #[cfg_attr(feature = "serde", serde(with = "kind_text"))]
    pub kind: ErrorKind,
    /// The whole error in one line.
    pub error: String,
}

impl Skipped {
    /// Returns the fields in which skipped items differ.
    pub(crate) fn key(&self) -> (&str, Option<&Origin>, &str) {
        (&self.node, self.item.as_ref(), &self.error)
    }
}

impl SkipStats {
    /// Returns true if these are the skipped items of this node and kind of error.
    pub(crate) fn is_of(&self, node: &str, kind: ErrorKind) -> bool {
        self.node == node && self.kind == kind
    }
}

formatted! {
    /// Prints their number, the node and the kind: ``3 in `decode` (corrupt)``.
    Display |skips: SkipStats| "{} in `{}` ({})", skips.items, skips.node, skips.kind;
    /// Prints the whole error in one line.
    Display |skipped: Skipped| "{}", skipped.error;
}

/// Kinds of errors as their texts.
#[cfg(feature = "serde")]
mod kind_text {
    use std::result::Result;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    use crate::ErrorKind;

    pub fn serialize<S: Serializer>(kind: &ErrorKind, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(kind)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<ErrorKind, D::Error> {
        let text = String::deserialize(from)?;
        let unknown = || D::Error::custom(format!("`{text}` is no kind of error"));
        ErrorKind::of_text(&text).ok_or_else(unknown)
    }
}

#[cfg(feature = "serde")]
fn maybe_text<S: serde::Serializer>(
    value: &Option<Origin>,
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    match value {
        Some(value) => to.collect_str(value),
        None => to.serialize_none(),
    }
}

/// Maximum number of skipped items that are kept with their names.
const KEPT: usize = 1000;
/// Maximum length of an error text.
const LONGEST: usize = 500;
/// Maximum number of nodes and kinds that are told apart. A graph has no more, unless its pipes
/// make up names.
const MOST: usize = 1000;

/// Log of one epoch.
pub(crate) struct EpochLog {
    span: Span,
    epoch: u64,
    rank: usize,
    skipped: Mutex<SkipLog>,
}

#[derive(Default)]
struct SkipLog {
    items: u64,
    by: Vec<SkipStats>,
    first: Vec<Skipped>,
}

impl EpochLog {
    pub(super) fn new(epoch: u64, share: RankShare) -> Self {
        let rank = share.rank.index;
        let span = spanned(|| tracing::info_span!("epoch", epoch, rank));
        EpochLog {
            span,
            epoch,
            rank,
            skipped: Mutex::default(),
        }
    }

    /// Returns the number of the epoch.
    #[cfg(feature = "monitor")]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Runs `work` inside the epoch's span.
    #[inline]
    pub(crate) fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        self.span.in_scope(work)
    }

    /// Logs a skipped item. The first ones are logged in full, later ones each time their number
    /// has doubled.
    pub(super) fn skip(&self, error: &Error) {
        let mut skipped = lock(&self.skipped);
        skipped.add(error);
        let count = skipped.items;
        drop(skipped);
        if count <= 5 || count.is_power_of_two() {
            let EpochLog {
                span, epoch, rank, ..
            } = self;
            quietly(
                || tracing::warn!(parent: span, epoch, rank, skipped = count, %error, "skipped an item"),
            );
        }
    }

    /// Logs the numbers of skipped items at the end of the epoch.
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

    /// Returns the numbers of skipped items, in the order in which each node and kind first
    /// appeared.
    pub(crate) fn skips(&self) -> Vec<SkipStats> {
        lock(&self.skipped).by.clone()
    }

    /// Returns the skipped items that are kept.
    pub(crate) fn skipped_items(&self) -> Vec<Skipped> {
        lock(&self.skipped).first.clone()
    }
}

impl Drop for EpochLog {
    fn drop(&mut self) {
        quietly(|| drop(std::mem::replace(&mut self.span, Span::none())));
    }
}

impl SkipLog {
    fn add(&mut self, error: &Error) {
        self.items += 1;
        let (node, kind) = (error.node().unwrap_or_default(), error.kind());
        let text = error.to_string();
        if self.first.len() < KEPT {
            self.first.push(Skipped {
                node: node.to_owned(),
                item: error.item().cloned(),
                kind,
                error: text.clone(),
            });
        }
        let text: String = text.chars().take(LONGEST).collect();
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

    /// Formats the number of each node and kind, the largest first.
    fn sum(&self) -> String {
        const SHOWN: usize = 8;
        let mut by: Vec<&SkipStats> = self.by.iter().collect();
        by.sort_by_key(|by| std::cmp::Reverse(by.items));
        let mut said: Vec<String> = by.iter().take(SHOWN).map(ToString::to_string).collect();
        let others = self.items - by.iter().take(SHOWN).map(|by| by.items).sum::<u64>();
        if others > 0 {
            said.push(format!("{others} others"));
        }
        said.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_and_long_texts_are_bounded() {
        let mut skipped = SkipLog::default();
        for n in 0..3000 {
            let node = format!("node {n}").as_str().into();
            skipped.add(&Error::corrupt("é".repeat(600)).at(&node));
        }
        assert_eq!((skipped.items, skipped.by.len()), (3000, MOST));
        assert_eq!(skipped.first.len(), KEPT);
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
