//! The input of an epoch: its ranks, or a conversion of their batches.

use std::sync::{Arc, Mutex};
use std::task::{self, Poll};

use super::checkpoint::{Progress, Saved};
use super::left::Left;
use super::rank_epoch::Stand;
use super::ranks::Ranks;
use super::{Checkpoint, OnError};
use crate::run::{DevicePrefetchGauge, Engine, EpochRun, Resume, Share};
use crate::{Item, Result};

/// Running epochs of all ranks that an epoch reads, each once it has begun; for figures.
pub(super) type Runs = Arc<Mutex<Vec<Arc<EpochRun>>>>;
pub(super) type Latest = Arc<Mutex<Option<Runs>>>;

/// The arguments for opening an epoch.
pub(super) struct Start {
    pub engine: Arc<Engine>,
    pub number: u64,
    pub on_error: OnError,
    /// True if it goes on with a graph that has changed since.
    pub edited: bool,
    /// Ranks that are read in turn, and the place where each goes on.
    pub ranks: Vec<(Share, Option<(Saved, Resume)>)>,
    pub runs: Runs,
    /// Runs of the loader's latest epoch, until this one has begun.
    pub latest: Latest,
    pub device_depth: usize,
}

/// Opens the input of an epoch.
pub(super) type Open<T> = Arc<dyn Fn(Start) -> EpochSource<T> + Send + Sync>;

/// Gives the items of an epoch, and its checkpoint.
pub(super) trait Batches<T>: Send {
    fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Result<Item<T>>>>;

    /// Returns the checkpoint of the epoch, before the last item if that goes `back`.
    fn state(&self, back: bool) -> Result<Checkpoint>;

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

/// The input of an epoch.
#[expect(
    clippy::large_enum_variant,
    reason = "the short way of an item leads through the large one"
)]
pub(super) enum EpochSource<T> {
    /// One rank, of which each item may be taken without further action.
    Plain(Ranks<T>),
    Other(Box<dyn Batches<T>>),
}

impl<T: Send + 'static> EpochSource<T> {
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
