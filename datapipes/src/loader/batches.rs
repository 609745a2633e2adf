//! What an epoch reads its items from: its ranks, or a conversion after them.

use std::sync::{Arc, Mutex};
use std::task::{self, Poll};

use super::checkpoint::{Progress, Saved};
use super::left::Left;
use super::rank_epoch::Stand;
use super::ranks::Ranks;
use super::{Checkpoint, OnError};
use crate::run::{DevicePrefetchGauge, Engine, EpochRun, Resume, Share};
use crate::{Item, Result};

/// For figures: what is there of each rank that an epoch reads, once that has begun.
pub(super) type Runs = Arc<Mutex<Vec<Arc<EpochRun>>>>;
pub(super) type Latest = Arc<Mutex<Option<Runs>>>;

/// An epoch, before any part of it is there.
pub(super) struct Start {
    pub engine: Arc<Engine>,
    pub number: u64,
    pub on_error: OnError,
    /// Whether it goes on with a graph that is another by now.
    pub edited: bool,
    /// The ranks that are read in turn, and where each goes on.
    pub ranks: Vec<(Share, Option<(Saved, Resume)>)>,
    pub runs: Runs,
    /// Those of the loader's latest epoch, until this one has begun.
    pub latest: Latest,
    pub device_depth: usize,
}

/// Makes what an epoch reads from.
pub(super) type Open<T> = Arc<dyn Fn(Start) -> Source<T> + Send + Sync>;

/// Gives the items of an epoch, and knows where it stands.
pub(super) trait Batches<T>: Send {
    fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Result<Item<T>>>>;

    /// Where the epoch stands, or stood before the last item if that goes `back`.
    fn state(&self, back: bool) -> Result<Checkpoint>;

    fn left(&self) -> Left;

    /// Whether the last thing that came was an item, which can still be given back.
    fn has_last(&self) -> bool;

    /// Sees to it that the last item is not given back any more.
    fn keep_last(&mut self);

    /// Ends the epoch without the last item, if there is one, and with nothing after that if it is
    /// `drained`.
    fn end_without_last(&mut self, drained: bool);

    /// Says that the thread that reads it waits for it.
    fn will_block(&mut self);

    /// Says that ranks agree before each step.
    fn will_agree(&mut self);

    /// Hands over to a conversion after it, before the first poll, where each rank stands; with
    /// what measures a device stage.
    fn hand_over(&mut self, gauge: Option<&Arc<DevicePrefetchGauge>>) -> Vec<Stand>;

    /// How far the epoch has come with what came last, unless a conversion failed for that.
    fn progress(&self) -> Option<Progress>;
}

/// What an epoch reads from.
#[expect(
    clippy::large_enum_variant,
    reason = "the short way of an item leads through the large one"
)]
pub(super) enum Source<T> {
    /// One rank, of which each item may be taken without further ado.
    Plain(Ranks<T>),
    Other(Box<dyn Batches<T>>),
}

impl<T: Send + 'static> Source<T> {
    pub fn get(&self) -> &dyn Batches<T> {
        match self {
            Source::Plain(ranks) => ranks,
            Source::Other(other) => &**other,
        }
    }

    pub fn get_mut(&mut self) -> &mut dyn Batches<T> {
        match self {
            Source::Plain(ranks) => ranks,
            Source::Other(other) => &mut **other,
        }
    }

    /// The same, where something is to be done between items.
    pub fn watched(self) -> Self {
        match self {
            Source::Plain(ranks) => Source::Other(Box::new(ranks)),
            other => other,
        }
    }
}
