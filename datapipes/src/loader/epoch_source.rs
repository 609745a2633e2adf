//! The input of an epoch: its ranks, or a conversion of their batches.

use std::sync::Arc;

use super::batches::Batches;
use super::rank_epoch::Start;
use super::ranks::Ranks;

/// Opens the input of an epoch.
pub(super) type Open<T> = Arc<dyn Fn(Start) -> EpochSource<T> + Send + Sync>;

/// The input of an epoch.
#[expect(
    clippy::large_enum_variant,
    reason = "the short way of an item leads through the large one"
)]
pub(super) enum EpochSource<T> {
    /// One rank without a wrapper: each of its items is delivered as it is.
    Plain(Ranks<T>),
    Other(Box<dyn Batches<T>>),
}

impl<T: Send + 'static> EpochSource<T> {
    pub fn open(start: Start) -> Self {
        let ranks = Ranks::new(start);
        let several = ranks.are_several();
        let source = EpochSource::Plain(ranks);
        if several { source.watched() } else { source }
    }

    pub fn get(&self) -> &dyn Batches<T> {
        match self {
            EpochSource::Plain(ranks) => ranks,
            EpochSource::Other(other) => &**other,
        }
    }

    pub fn get_mut(&mut self) -> &mut dyn Batches<T> {
        match self {
            EpochSource::Plain(ranks) => ranks,
            EpochSource::Other(other) => &mut **other,
        }
    }

    /// Returns the same input, with actions between items.
    pub fn watched(self) -> Self {
        match self {
            EpochSource::Plain(ranks) => EpochSource::Other(Box::new(ranks)),
            other => other,
        }
    }
}
