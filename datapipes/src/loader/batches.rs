//! The batches of an epoch: those of its ranks, or a conversion of them.

use std::sync::Arc;
use std::task::{self, Poll};

use super::Checkpoint;
use super::checkpoint::Progress;
use super::left::Left;
use super::rank_epoch::Stand;
use crate::run::DevicePrefetchGauge;
use crate::{Item, Result};

/// Gives the items of an epoch, and its checkpoint.
pub(super) trait Batches<T>: Send {
    fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Result<Item<T>>>>;

    /// Returns the checkpoint of the epoch. With `back` it excludes the last item, which is delivered
    /// again after a resume.
    fn checkpoint(&self, back: bool) -> Result<Checkpoint>;

    fn left(&self) -> Left;

    /// Returns true if the last output was an item, which can still be given back.
    fn has_last(&self) -> bool;

    /// Makes sure that the last item is not given back any more.
    fn keep_last(&mut self);

    /// Ends the epoch without the last item, if there is one, and with nothing after it if it is
    /// `drained`.
    fn end_without_last(&mut self, drained: bool);

    /// Declares that the reading thread blocks while it waits.
    fn will_block(&mut self);

    /// Declares that ranks agree before each step.
    fn will_agree(&mut self);

    /// Hands the progress of each rank over to a conversion, before the first poll; `gauge`
    /// measures a device stage.
    fn hand_over(&mut self, gauge: Option<&Arc<DevicePrefetchGauge>>) -> Vec<Stand>;

    /// Returns the progress of the epoch with the last output, unless a conversion failed for that.
    fn progress(&self) -> Option<Progress>;
}
