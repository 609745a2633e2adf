//! The progress of an epoch: a small value that outlives the process.

mod bytes;
mod compare;
mod edited;
mod elastic;
mod file;
mod merge;
mod resume;
#[cfg(feature = "serde")]
mod serial;
#[cfg(test)]
mod tests;

pub use edited::Edited;

use std::sync::Arc;

use super::policy::Copies;
#[cfg(feature = "serde")]
use crate::checkpoint::serial::is_default;
use crate::checkpoint::{Cursor, Saving};
use crate::graph::{Flow, FlowNode};
use crate::run::{Cursors, RankShare};
use crate::settings::Settings;
use crate::stable_hash;
use crate::{Result, Uneven, Writer};

/// The progress of an epoch: returned by [`Epoch::checkpoint`](crate::Epoch::checkpoint) and
/// accepted by [`DataLoader::resume`](crate::DataLoader::resume).
///
/// A checkpoint holds numbers: seed and epoch, the number of items delivered, and for each node, by
/// name, its progress. It holds nothing of threads, workers, queues or machines, and no samples, as
/// far as this library's pipes go. The [snapshots](crate::Context::snapshot) of your own pipes are
/// in it as well, and so is the state of a [`scan_resumable`](crate::Graph::scan_resumable): with samples, if
/// they hold samples.
///
/// The size as bytes ([`to_bytes`](Checkpoint::to_bytes)) is:
/// - some tens of bytes for each node with a snapshot, also for a shuffle buffer of any size;
/// - up to 256 pieces, of two numbers each, for a segment that filters or fans out: some kB at
///   most;
/// - in bounded and arrival order, each position that was pending (taken upstream and not
///   delivered), by its distance to the one before: about a byte for each;
/// - seven bytes for each of the last 4096 failures that outputs of a [demux](crate::Graph::demux) have copies of.
///
/// With the feature `serde` it is a value for any of serde's formats, such as JSON. Both forms
/// carry a version and a checksum: a checkpoint that is cut, damaged or of a later version is
/// refused.
///
/// The format is part of the library's version: checkpoints of older versions are read.
///
/// Two checkpoints of the same place resume the same epoch, but need not be equal. Workers read
/// ahead, so the last snapshots of the steps may be closer to the place when a checkpoint is taken
/// again.
#[derive(Clone, PartialEq)]
pub struct Checkpoint(pub(super) Arc<[Saved]>);

/// The checkpoint of one rank. A `Checkpoint` has at least one, by ascending ranks of one job.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Saved {
    pub seed: u64,
    pub epoch: u64,
    /// True if everything was delivered.
    pub finished: bool,
    /// Items delivered to the consumer, and items that failed and were skipped.
    pub delivered: u64,
    pub skipped: u64,
    /// Errors among `skipped` that are copies of one failure.
    pub copies: Arc<Copies>,
    /// Number of ranks, and the index of this one.
    pub world: u64,
    pub rank: u64,
    /// Policy for items that do not divide among them.
    pub uneven: Option<Uneven>,
    pub nodes: Vec<SavedNode>,
}

/// A node of the graph, with its cursor if it has begun.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub(super) struct SavedNode {
    pub name: String,
    pub kind: String,
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_default"))]
    pub settings: String,
    /// Nodes that it reads, by their index in the list.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_default"))]
    pub inputs: Vec<u64>,
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_default"))]
    pub cursor: Option<Cursor>,
}

impl Checkpoint {
    /// Makes a checkpoint of the ranks of one job, each once.
    pub(super) fn of(mut ranks: Vec<Saved>) -> Checkpoint {
        debug_assert!(!ranks.is_empty());
        ranks.sort_by_key(|saved| saved.rank);
        Checkpoint(ranks.into())
    }

    /// Returns the values common to all ranks.
    fn first(&self) -> &Saved {
        &self.0[0]
    }

    /// Returns the number of its epoch.
    pub fn epoch(&self) -> u64 {
        self.first().epoch
    }

    /// Returns the seed of its loader.
    pub fn seed(&self) -> u64 {
        self.first().seed
    }

    /// Returns how many items (usually batches) were delivered since the epoch began, before and
    /// after stops. For a checkpoint of several ranks it is the sum of all.
    pub fn delivered(&self) -> u64 {
        self.0.iter().map(|saved| saved.delivered).sum()
    }

    /// Returns how many errors of items were skipped by the loader's policy since the epoch began,
    /// copies of one failure included ([echoes](crate::Error::echo) and those that are [counted
    /// once](crate::Error::counted_once)).
    pub fn skipped(&self) -> u64 {
        self.0.iter().map(|saved| saved.skipped).sum()
    }

    /// Returns true if the epoch had come to its end, or to its [budget of
    /// steps](crate::loader::Builder::max_steps): resuming it gives nothing unless the budget is
    /// raised, and training continues with the next epoch. A checkpoint of several ranks is
    /// finished if all of them are.
    pub fn is_finished(&self) -> bool {
        self.0.iter().all(|saved| saved.finished)
    }
}

impl Saved {
    /// Makes the checkpoint of a rank, with the cursor of each node.
    pub(super) fn new(flow: &Flow, progress: Progress, cursors: &Cursors) -> Saved {
        let Progress {
            seed,
            epoch,
            share,
            finished,
            delivered,
            skipped,
            copies,
            drained: _,
        } = progress;
        Saved {
            seed,
            epoch,
            finished,
            delivered,
            skipped,
            copies,
            world: share.rank.world as u64,
            rank: share.rank.index as u64,
            uneven: share.uneven,
            nodes: nodes(flow, |name| cursors.get(name).cloned()),
        }
    }

    /// Returns true if nothing is left, whatever the budget: the epoch has begun, and no node has a
    /// cursor any more.
    pub(super) fn is_at_end(&self) -> bool {
        self.finished && self.position() > 0 && self.nodes.iter().all(|node| node.cursor.is_none())
    }

    /// Returns the number of items and errors that came out of the graph.
    pub(super) fn position(&self) -> u64 {
        self.delivered + self.skipped
    }

    pub(super) fn cursors(&self) -> Cursors {
        let nodes = self.nodes.iter();
        nodes
            .filter_map(|node| Some((node.name.as_str().into(), node.cursor.clone()?)))
            .collect()
    }
}

/// The progress of an epoch.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    pub seed: u64,
    pub epoch: u64,
    /// The rank's share.
    pub share: RankShare,
    pub finished: bool,
    /// True if nothing is left, whatever the budget of steps.
    pub drained: bool,
    pub delivered: u64,
    pub skipped: u64,
    pub copies: Arc<Copies>,
}

/// Describes the nodes of a graph as a checkpoint records them.
pub(super) fn nodes(flow: &Flow, cursor: impl Fn(&str) -> Option<Cursor>) -> Vec<SavedNode> {
    let saved = |node: &FlowNode| SavedNode {
        name: node.name.to_string(),
        kind: node.node.kind.clone(),
        settings: node.hints().settings.clone(),
        inputs: node.inputs.iter().map(|&(id, _)| id as u64).collect(),
        cursor: cursor(&node.name),
    };
    flow.nodes.iter().map(saved).collect()
}

/// Returns the differences between saved nodes and those of a graph, node by node.
#[cfg(feature = "tune")]
pub(super) fn differences(then: &[SavedNode], flow: &Flow) -> Vec<String> {
    compare::compare(then, &nodes(flow, |_| None), |_| None)
}

/// Returns a number for the settings of a loader on which every rank has to agree.
pub(super) fn fingerprint(flow: &Flow, settings: &Settings) -> u64 {
    let mut writer = Writer::new();
    writer.number(settings.seed);
    writer.number(settings.rank.world as u64);
    writer.number(settings.max_steps.unwrap_or(u64::MAX));
    let uneven = settings
        .uneven
        .map_or(String::new(), |uneven| format!("{uneven:?}"));
    let mut text = |text: &str, numbers: &[u64]| {
        writer.number(text.len() as u64);
        writer.raw(text.as_bytes());
        numbers.iter().for_each(|&number| writer.number(number));
    };
    text(&uneven, &[]);
    for SavedNode {
        name,
        kind,
        settings,
        inputs,
        cursor: _,
    } in nodes(flow, |_| None)
    {
        text(&name, &[]);
        text(&kind, &[]);
        text(&settings, &[inputs.len() as u64]);
        text("", &inputs);
    }
    stable_hash(&writer.into_parts().0)
}

/// Returns the cursors of a finished `Saving`.
pub(super) fn saved(saving: Saving) -> Result<Cursors> {
    match saving.problem {
        Some(problem) => Err(problem),
        None => Ok(saving.cursors),
    }
}

opaque_debug!(Checkpoint { epoch = self.epoch(), delivered = self.delivered(), finished = self.is_finished() });
