//! Runs one sample through the graph again, and shows what each node made of it.

mod shown;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::DataLoader;
use crate::chunk::Chunk;
use crate::error::escape;
use crate::graph::Look;
use crate::run::{Carried, NodeResult, Replayer, Way};
use crate::{Error, Item, Origin, Result};
use shown::{SHOWN, shown};

/// The path of one sample through the graph, returned by [`DataLoader::replay`]. As text it is a
/// table, one line for each node.
pub struct Replay {
    epoch: u64,
    origin: Origin,
    steps: Vec<Step>,
    made: Vec<Box<dyn Any + Send>>,
}

/// Output of one node for the sample.
#[derive(Clone, Debug)]
pub struct Step {
    node: Arc<str>,
    kind: String,
    part: Origin,
    way: Way,
    origins: Vec<Origin>,
    errors: Vec<String>,
    bytes: usize,
    time: Duration,
    shown: Vec<String>,
    draws: Vec<u32>,
}

impl<T: Send + 'static> DataLoader<T> {
    /// Runs one sample of an epoch through the graph again, and shows the output of each node:
    /// which image gave the NaN, and where. The origin is that of an item
    /// ([`Epoch::items`](crate::Epoch::items)) or of an error ([`Error::item`]); for an item made
    /// of several, such as a batch, each part is replayed.
    ///
    /// Random numbers come from seed, epoch, node and origin, so augmentation is repeated exactly.
    /// Nodes that select (a shuffle, a shard, a mix, a repeat) are skipped. The replay ends before
    /// the first node that looks at the stream as a whole, such as a [`batch`](crate::Graph::batch)
    /// or a user's function over the stream, because the output of such a node depends on more than
    /// this sample. [`Replay::items`] returns the items made by then.
    ///
    /// A source that goes [by position](crate::Hints::by_position) is opened at the sample; any
    /// other is read from its beginning until the sample comes, which for a source without end may
    /// be never. For data [by index](crate::Indexed) the order of the epoch is gone through (some
    /// tens of nanoseconds for each sample). If siblings are grouped (members of an archive to
    /// samples) the whole archive is read. Nodes run on this thread, one after the other, including
    /// those that are meant for processes of their own. The replay reads, and blocks, and changes
    /// nothing: no cache is filled, and a running epoch is not disturbed. An item from a
    /// [`cache`](crate::Graph::cache) was made in the epoch that filled the cache: replay that
    /// epoch.
    ///
    /// In a [`repeat`](crate::Graph::repeat) upstream of nodes that make children, `0:17/3` may be
    /// round 3 of item 17 or child 3 of it in the first round; it is taken for the child if there
    /// is one.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such item, with what there is;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if its source can be read only once. A failure in a node is not
    /// an error of the replay, but is shown at its [`Step`].
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph};
    ///
    /// let graph = Graph::range(0..1000)
    ///     .map_with_rng(|n, rng| n as f32 - rng.range(1.0, 10.0) as f32)
    ///     .named("augment")
    ///     .map(f32::sqrt)
    ///     .named("root")
    ///     .shuffle(100)
    ///     .batch(10);
    /// let loader = DataLoader::builder(graph).seed(7).build()?;
    ///
    /// // A batch with a NaN in it: which sample, and whose fault?
    /// let mut batches = loader.epoch(3).blocking().items().map(Result::unwrap);
    /// let batch = batches.find(|batch| batch.iter().any(|x| x.is_nan())).unwrap();
    /// let place = batch.iter().position(|x| x.is_nan()).unwrap();
    /// let sample = &batch.origin().parts()[place];
    ///
    /// let replay = loader.replay(3, sample)?;
    /// println!("{replay}");
    /// let steps: Vec<_> = replay.steps().iter().map(|step| (step.node(), step.is_run())).collect();
    /// assert_eq!(steps, [("range", true), ("augment", true), ("root", true), ("shuffle", false), ("batch", false)]);
    /// assert!(replay.steps()[1].shown()[0].starts_with('-'));
    /// assert_eq!(replay.steps()[2].shown(), ["NaN"]);
    /// assert!(replay.items::<f32>()[0].is_nan());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn replay(&self, epoch: u64, origin: &Origin) -> Result<Replay> {
        self.replay_with(epoch, origin, |_, _| {})
    }

    /// Does the same, and calls `look` with each step and its values, of whatever type, whose
    /// origins are at the same indices of [`Step::origins`].
    ///
    /// # Errors
    /// Fails as [`replay`](DataLoader::replay) does.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph, Origin};
    ///
    /// let graph = Graph::from_vec(vec!["a", "b c"]).map(|text| text.split(' ').count()).map(|n| n > 1);
    /// let loader = DataLoader::builder(graph).build()?;
    /// let mut words = None;
    /// loader.replay_with(0, &Origin::root(0, 1), |_, values| {
    ///     words = words.or(values.first().and_then(|value| value.downcast_ref::<usize>()).copied());
    /// })?;
    /// assert_eq!(words, Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn replay_with(
        &self,
        epoch: u64,
        origin: &Origin,
        mut look: impl FnMut(&Step, &[&dyn Any]),
    ) -> Result<Replay> {
        let mut parts = Vec::new();
        parts_of(origin, &mut parts);
        if parts.is_empty() {
            return Err(Error::not_found(format!(
                "no item {origin}: it was made of none"
            )));
        }
        let mut replay = Replay {
            epoch,
            origin: origin.clone(),
            steps: Vec::new(),
            made: Vec::new(),
        };
        for part in parts {
            let replayer = Replayer::new(&self.engine, epoch, &part)?;
            let made = replayer.run(&mut |stage| {
                let (step, values) = Step::of(stage, &part);
                look(&step, &values);
                replay.steps.push(step);
            })?;
            replay
                .made
                .extend(made.into_iter().map(|made| made.chunk.chunk));
        }
        Ok(replay)
    }
}

/// Collects the items that an item was ultimately made of, without duplicates.
fn parts_of(origin: &Origin, to: &mut Vec<Origin>) {
    let mut above = Some(origin);
    while let Some(item) = above {
        if item.source().is_none() && item.parent().is_none() {
            return item.parts().iter().for_each(|part| parts_of(part, to));
        }
        above = item.parent();
    }
    if !to.contains(origin) {
        to.push(origin.clone());
    }
}

impl Replay {
    /// Returns the epoch's number.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the origin of the replayed item.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Returns the output of each node, sources first; for an item made of several, the steps of
    /// one part after the other.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the first step at which something failed.
    pub fn failed(&self) -> Option<&Step> {
        self.steps.iter().find(|step| !step.errors.is_empty())
    }

    /// Drops the final output.
    pub(super) fn forget_items(&mut self) {
        self.made = Vec::new();
    }

    /// Returns the final output: the items of the graph, or the input of the node that looks at the
    /// stream as a whole. Leaves out items that are not of this type.
    pub fn items<U: Send + 'static>(self) -> Vec<Item<U>> {
        let chunks = self
            .made
            .into_iter()
            .filter_map(|made| made.downcast::<Chunk<U>>().ok());
        chunks
            .flat_map(|chunk| chunk.into_iter().flatten())
            .collect()
    }
}

impl Step {
    fn of<'a>(stage: &NodeResult<'a>, part: &Origin) -> (Step, Vec<&'a dyn Any>) {
        let mut step = Step {
            node: stage.node.name.clone(),
            kind: stage.node.node.kind.clone(),
            part: part.clone(),
            way: stage.way,
            origins: Vec::new(),
            errors: Vec::new(),
            bytes: 0,
            time: stage.time,
            shown: Vec::new(),
            draws: stage.draws.map_or(Vec::new(), Vec::from),
        };
        let mut values = Vec::new();
        for &made in stage.made {
            let made: &'a Carried = made;
            step.bytes += made.chunk.bytes;
            for look in made.look() {
                match look {
                    Look::Item(origin, value) => {
                        step.origins.push(origin);
                        if step.shown.len() < SHOWN {
                            step.shown.push(shown(value).unwrap_or_default());
                        }
                        values.push(value);
                    }
                    Look::Error(error) => step.errors.push(error.to_string()),
                }
            }
        }
        (step, values)
    }

    /// Returns the node's name.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns the kind of the node: `shuffle`, `map`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Returns the item that passes through this step: the one that was asked for, or a part of it.
    pub fn part(&self) -> &Origin {
        &self.part
    }

    /// Returns true if the node was run. If not, it selects and was skipped, or
    /// [`why_not`](Step::why_not) returns the reason.
    pub fn is_run(&self) -> bool {
        self.way == Way::Run
    }

    /// Returns the reason why the replay ends before this node; `None` if it does not.
    pub fn why_not(&self) -> Option<&'static str> {
        matching!(self.way, Way::Stopped(why) => why)
    }

    /// Returns the origins of the node's output.
    pub fn origins(&self) -> &[Origin] {
        &self.origins
    }

    /// Returns the failures in the node, in words.
    pub fn errors(&self) -> &[String] {
        &self.errors
    }

    /// Returns about how many bytes the values keep alive, as queues count them.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the time that the node took.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// Returns the first values in words, if they are numbers, text or tensors (for which it says
    /// how many numbers are NaN or infinite); else empty. At most four.
    pub fn shown(&self) -> &[String] {
        &self.shown
    }

    /// Returns the first four 32-bit words of the random numbers that the node asked for, of this
    /// item; empty if it asked for none. They determine all of its draws, however many it made:
    /// [`Rng::below`](crate::Rng::below) and [`Rng::f32`](crate::Rng::f32) take a word each,
    /// [`Rng::f64`](crate::Rng::f64) and [`Rng::chance`](crate::Rng::chance) two, of which the
    /// second counts for more. As text they are shares of 2³².
    pub fn draws(&self) -> &[u32] {
        &self.draws
    }
}

opaque_debug!(Replay { epoch, steps });

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "replay of {} in epoch {}",
            escape(&self.origin.to_string()),
            self.epoch
        )?;
        let width = self
            .steps
            .iter()
            .map(|step| step.node.chars().count())
            .max()
            .unwrap_or(0);
        let mut part = None;
        for step in &self.steps {
            if part != Some(&step.part) && (part.is_some() || step.part != self.origin) {
                write!(f, "\n {}", escape(&step.part.to_string()))?;
            }
            part = Some(&step.part);
            write!(f, "\n  {:width$}  ", step.node)?;
            match step.way {
                Way::Passed => f.write_str("passed by")?,
                Way::Stopped(why) => write!(f, "not run, nor what is below: {why}")?,
                Way::Run => write!(f, "{step}")?,
            }
        }
        Ok(())
    }
}

/// Prints the output in a line: number of items, origins, bytes, time, the values or the failures,
/// and the first random numbers.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.origins.len();
        match &self.origins[..] {
            [] if self.errors.is_empty() => f.write_str("nothing came out")?,
            [] => f.write_str("failed")?,
            [one] => f.write_str(&escape(&one.to_string()))?,
            [first, .., last] => {
                let ends = format!("{first} to {last}");
                write!(f, "{count} items, {}", escape(&ends))?;
            }
        }
        if count > 0 {
            write!(f, ", {} bytes", self.bytes)?;
        }
        write!(f, ", {:.1?}", self.time)?;
        let shown: Vec<&str> = self
            .shown
            .iter()
            .map(String::as_str)
            .filter(|shown| !shown.is_empty())
            .collect();
        if !shown.is_empty() {
            let dots = if count > SHOWN { ", …" } else { "" };
            write!(f, ": {}{dots}", shown.join(", "))?;
        }
        if !self.draws.is_empty() {
            let share = |word: &u32| format!("{:.3}", f64::from(*word) / (1u64 << 32) as f64);
            let shares: Vec<String> = self.draws.iter().map(share).collect();
            write!(f, "; draws {} …", shares.join(" "))?;
        }
        for error in &self.errors {
            write!(f, "; {error}")?;
        }
        Ok(())
    }
}
