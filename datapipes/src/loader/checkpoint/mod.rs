//! Where an epoch stands: a small value that outlives the process.

mod bytes;
mod compare;
mod edited;
mod elastic;
mod file;
mod merge;
#[cfg(feature = "serde")]
mod serial;
#[cfg(test)]
mod tests;

pub use edited::Edited;

use std::fmt;
use std::sync::Arc;

use crate::checkpoint::{Cursor, Saving};
use crate::graph::{Flow, FlowNode};
use crate::rng::hash_bytes;
use crate::run::{Cursors, Share};
use crate::settings::Settings;
use crate::{Result, Uneven, Writer};

/// Where an epoch stands: what [`Epoch::checkpoint`](crate::Epoch::checkpoint) gives and
/// [`DataLoader::resume`](crate::DataLoader::resume) takes.
///
/// It holds numbers: seed and epoch, how many items were delivered, and for each node, by name, how
/// far it had come. Nothing of threads, workers, queues or machines is in it, nor are samples, as
/// far as this library's pipes go. What a pipe of one's own [keeps](crate::Context::snapshot) is in
/// it as well, and so is the state of a [`scan_kept`](crate::Graph::scan_kept): samples, if it
/// keeps samples.
///
/// As bytes ([`to_bytes`](Checkpoint::to_bytes)) it is:
/// - some tens of bytes for each node that keeps something, also for a shuffle buffer of any size;
/// - up to 256 pieces, of two numbers each, for a segment that filters or fans out: some kB at
///   most;
/// - in bounded and arrival order, each position that was pending (taken above and not delivered),
///   by its distance to the one before: about a byte for each.
///
/// With the feature `serde` it is a value for any of serde's formats, such as JSON. Both carry a
/// version and a checksum: what is cut, damaged or of a later version is refused.
///
/// The format is part of the library's version: states of older versions are read.
///
/// Two states of the same place resume the same, but need not be equal: workers read ahead, and
/// what the steps kept last may lie nearer to the place when it is asked for again.
#[derive(Clone, PartialEq)]
pub struct Checkpoint(pub(super) Arc<[Saved]>);

/// Where the epoch of one rank stands. A state has at least one, by ascending ranks of one job.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Saved {
    pub seed: u64,
    pub epoch: u64,
    /// Whether everything was delivered.
    pub finished: bool,
    /// Items delivered to the consumer, and items that failed and were skipped.
    pub delivered: u64,
    pub skipped: u64,
    /// How many ranks there are, and which of them this is.
    pub world: u64,
    pub rank: u64,
    /// What became of items that do not divide among them.
    pub uneven: Option<Uneven>,
    pub nodes: Vec<SavedNode>,
}

/// A node of the graph, and where it stands, if it has begun.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SavedNode {
    pub name: String,
    pub kind: String,
    pub settings: String,
    /// The nodes that it reads, by their place in the list.
    pub inputs: Vec<u64>,
    pub cursor: Option<Cursor>,
}

impl Checkpoint {
    /// Of the ranks of one job, each once.
    pub(super) fn of(mut ranks: Vec<Saved>) -> Checkpoint {
        debug_assert!(!ranks.is_empty());
        ranks.sort_by_key(|saved| saved.rank);
        Checkpoint(ranks.into())
    }

    /// What all ranks have in common.
    fn first(&self) -> &Saved {
        &self.0[0]
    }

    /// The number of its epoch.
    pub fn epoch(&self) -> u64 {
        self.first().epoch
    }

    /// The seed of its loader.
    pub fn seed(&self) -> u64 {
        self.first().seed
    }

    /// How many items (usually batches) were delivered since the epoch began, before and after
    /// stops. Of a state of several ranks it is what all of those have delivered.
    pub fn delivered(&self) -> u64 {
        self.0.iter().map(|saved| saved.delivered).sum()
    }

    /// How many items failed and were skipped by the loader's policy since the epoch began.
    pub fn skipped(&self) -> u64 {
        self.0.iter().map(|saved| saved.skipped).sum()
    }

    /// Whether the epoch had come to its end, or to its [budget of
    /// steps](crate::loader::Builder::max_steps): what is resumed from here gives nothing unless
    /// that is raised, and training continues with the next epoch. A state of several ranks is
    /// finished if all of them are.
    pub fn is_finished(&self) -> bool {
        self.0.iter().all(|saved| saved.finished)
    }
}

impl Saved {
    /// Of an epoch, where each node stands.
    pub(super) fn new(flow: &Flow, progress: Progress, cursors: &Cursors) -> Saved {
        let Progress {
            seed,
            epoch,
            share,
            finished,
            delivered,
            skipped,
            drained: _,
        } = progress;
        Saved {
            seed,
            epoch,
            finished,
            delivered,
            skipped,
            world: share.rank.world as u64,
            rank: share.rank.index as u64,
            uneven: share.uneven,
            nodes: nodes(flow, |name| cursors.get(name).cloned()),
        }
    }

    /// Whether there is nothing left, whatever the budget: it has begun, and no node stands
    /// anywhere any more.
    pub(super) fn is_at_end(&self) -> bool {
        self.finished && self.position() > 0 && self.nodes.iter().all(|node| node.cursor.is_none())
    }

    /// The items and errors that came out of the graph.
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

/// How far an epoch has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub seed: u64,
    pub epoch: u64,
    /// Of which rank.
    pub share: Share,
    pub finished: bool,
    /// Whether nothing is left, whatever the budget of steps.
    pub drained: bool,
    pub delivered: u64,
    pub skipped: u64,
}

/// The nodes of a graph as a state knows them.
fn nodes(flow: &Flow, cursor: impl Fn(&str) -> Option<Cursor>) -> Vec<SavedNode> {
    let saved = |node: &FlowNode| SavedNode {
        name: node.name.to_string(),
        kind: node.node.kind.clone(),
        settings: node.hints().facts.settings.clone(),
        inputs: node.inputs.iter().map(|&(id, _)| id as u64).collect(),
        cursor: cursor(&node.name),
    };
    flow.nodes.iter().map(saved).collect()
}

/// A number for what a loader was told and every rank has to agree on.
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
    hash_bytes(&writer.into_parts().0)
}

/// What became of asking for a state.
pub(super) fn saved(saving: Saving) -> Result<Cursors> {
    match saving.problem {
        Some(problem) => Err(problem),
        None => Ok(saving.cursors),
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint")
            .field("epoch", &self.epoch())
            .field("delivered", &self.delivered())
            .field("finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}
