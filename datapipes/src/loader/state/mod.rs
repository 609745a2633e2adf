//! Where an epoch stands: a small value that outlives the process.

mod bytes;
mod compare;
mod elastic;
mod file;
mod merge;
#[cfg(feature = "serde")]
mod serial;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_bytes;
#[cfg(test)]
mod tests_edited;
#[cfg(test)]
mod tests_file;
#[cfg(test)]
mod tests_in_flight;
#[cfg(test)]
mod tests_order;

pub(super) use compare::Edited;

use std::fmt;
use std::sync::Arc;

use crate::graph::{Flow, FlowNode};
use crate::keep::{Cursor, Saving};
use crate::rng::hash_bytes;
use crate::run::Cursors;
use crate::settings::Settings;
use crate::{Result, Writer};

/// Where an epoch stands: what [`Epoch::state`](crate::Epoch::state) gives and
/// [`DataLoader::resume`](crate::DataLoader::resume) takes.
///
/// It holds numbers: seed and epoch, how many items were delivered, and for each node, by name, how far it had come.
/// Nothing of threads, workers, queues or machines is in it, nor are samples, as far as this library's pipes go. What a
/// pipe of one's own [keeps](crate::Context::keep) is in it as well, and so is the state of a
/// [`scan_kept`](crate::Graph::scan_kept): samples, if it keeps samples.
///
/// As bytes ([`to_bytes`](State::to_bytes)) it is:
/// - some tens of bytes for each node that keeps something, also for a shuffle buffer of any size;
/// - up to 256 pieces, of two numbers each, for a segment that filters or fans out: some kB at most;
/// - in bounded and arrival order, each position that was pending (taken above and not delivered), by its distance to
///   the one before: about a byte for each.
///
/// With the feature `serde` it is a value for any of serde's formats, such as JSON. Both carry a version and a checksum:
/// what is cut, damaged or of a later version is refused.
///
/// The format is part of the library's version: states of older versions are read.
///
/// Two states of the same place resume the same, but need not be equal: workers read ahead, and what the steps kept last may
/// lie nearer to the place when it is asked for again.
#[derive(Clone, PartialEq)]
pub struct State(Arc<Saved>);

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Saved {
    pub seed: u64,
    pub epoch: u64,
    /// Whether everything was delivered.
    pub finished: bool,
    /// Items delivered to the consumer, and items that failed and were skipped.
    pub delivered: u64,
    pub skipped: u64,
    /// How many ranks there are.
    pub world: u64,
    /// Which of them it is of; none if it is of all.
    pub rank: Option<u64>,
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

impl State {
    /// Of an epoch, where each node stands.
    pub(super) fn new(flow: &Flow, settings: &Settings, progress: Progress, cursors: &Cursors) -> State {
        let Progress { epoch, finished, delivered, skipped, drained: _ } = progress;
        State(Arc::new(Saved {
            seed: settings.seed,
            epoch,
            finished,
            delivered,
            skipped,
            world: settings.rank.world as u64,
            rank: Some(settings.rank.index as u64),
            nodes: nodes(flow, |name| cursors.get(name).cloned()),
        }))
    }

    /// The number of its epoch.
    pub fn epoch(&self) -> u64 {
        self.0.epoch
    }

    /// The seed of its loader.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// How many items (usually batches) were delivered since the epoch began, before and after stops.
    pub fn delivered(&self) -> u64 {
        self.0.delivered
    }

    /// How many items failed and were skipped by the loader's policy since the epoch began.
    pub fn skipped(&self) -> u64 {
        self.0.skipped
    }

    /// Whether the epoch had come to its end, or to its [budget of steps](crate::loader::Builder::max_steps): what is resumed from
    /// here gives nothing unless that is raised, and training continues with the next epoch.
    pub fn is_finished(&self) -> bool {
        self.0.finished
    }

    /// Whether there is nothing left, whatever the budget: it has begun, and no node stands anywhere any more.
    pub(in crate::loader) fn is_at_end(&self) -> bool {
        self.0.finished && self.position() > 0 && self.0.nodes.iter().all(|node| node.cursor.is_none())
    }

    /// The same for a loader with another budget of steps.
    pub(super) fn within(&self, settings: &Settings) -> State {
        let spent = settings.max_steps.is_some_and(|steps| self.delivered() >= steps);
        State(Arc::new(Saved { finished: self.is_at_end() || spent, ..(*self.0).clone() }))
    }

    /// The items and errors that came out of the graph.
    pub(super) fn position(&self) -> u64 {
        self.0.delivered + self.0.skipped
    }

    pub(super) fn cursors(&self) -> Cursors {
        let nodes = self.0.nodes.iter();
        nodes.filter_map(|node| Some((node.name.as_str().into(), node.cursor.clone()?))).collect()
    }
}

/// How far an epoch has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub epoch: u64,
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
    let uneven = settings.uneven.map_or(String::new(), |uneven| format!("{uneven:?}"));
    let mut text = |text: &str, numbers: &[u64]| {
        writer.number(text.len() as u64);
        writer.raw(text.as_bytes());
        numbers.iter().for_each(|&number| writer.number(number));
    };
    text(&uneven, &[]);
    for SavedNode { name, kind, settings, inputs, cursor: _ } in nodes(flow, |_| None) {
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

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("epoch", &self.0.epoch)
            .field("delivered", &self.0.delivered)
            .field("finished", &self.0.finished)
            .finish_non_exhaustive()
    }
}
