//! Answers what an epoch would be like with other settings, without running it.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::model::{Change, Model};
use super::{CacheGain, Prediction, Stats};
use crate::{Error, Result, Work};

/// A batch takes at least this long, in seconds, so that rates are finite.
const LEAST: f64 = 1e-9;
/// Largest number of workers, cores or requests that is taken for meant.
const MOST: usize = 1 << 20;

/// A question about a loader with other settings; see [`DataLoader::what_if`].
///
/// The figures of an epoch are the measurements of a model of its plan: what each part needs for a
/// batch, and so the slowest of them. Nothing runs to answer, and equal questions have equal
/// answers. The rate is that of an epoch that has started: time to the first batch is no part of
/// it. Figures of a whole epoch are best, since a buffer that was filled and not yet emptied counts
/// as work for the batches that came.
///
/// The model assumes:
/// - The cost of an item stays the same. With more workers on cores that share caches, memory or a
///   disk it is higher in truth.
/// - Time of work without a core counts as waiting, and all workers can wait at once. Work that
///   computes shares the [cores](Self::cores). The consumer's step needs none.
/// - Requests take the same time with more of them in flight. The exception are requests that set
///   the pace now, with fewer in flight than allowed: their source is taken to be at its limit.
/// - Buffers are long enough that neighbours do not wait for each other in turn.
///
/// [`DataLoader::what_if`]: crate::DataLoader::what_if
#[derive(Clone, Debug)]
#[must_use = "`WhatIf::predict` answers"]
pub struct WhatIf {
    stats: Stats,
    change: Change,
    /// The first wrong setting.
    wrong: Option<String>,
}

impl Stats {
    /// Begins a question about other settings, by the figures of this epoch.
    ///
    /// # Errors
    /// `Config` if nothing was delivered.
    pub fn what_if(&self) -> Result<WhatIf> {
        if self.delivered == 0 || self.nodes.is_empty() {
            return Err(no_figures());
        }
        Ok(WhatIf {
            stats: self.clone(),
            change: Change::default(),
            wrong: None,
        })
    }
}

/// Returns the error of a loader without figures.
pub(in crate::loader) fn no_figures() -> Error {
    config("what_if: there are no figures to predict from: run an epoch first")
}

fn config(message: impl Into<String>) -> Error {
    Error::config(message.into())
}

impl WhatIf {
    /// Sets the number of CPU workers, as [`Builder::workers`](crate::loader::Builder::workers);
    /// with 0 all runs on the consumer's thread.
    pub fn workers(mut self, workers: usize) -> Self {
        self.check("workers", workers, 0);
        self.change.workers = Some(workers);
        self
    }

    /// Sets the number of cores that work which computes can have. Defaults to those of this
    /// machine.
    pub fn cores(mut self, cores: usize) -> Self {
        self.check("cores", cores, 1);
        self.change.cores = Some(cores);
        self
    }

    /// Sets the number of requests in flight of each segment of I/O, as
    /// [`Builder::concurrency`](crate::loader::Builder::concurrency).
    pub fn concurrency(mut self, requests: usize) -> Self {
        self.check("concurrency", requests, 1);
        self.check_io("concurrency");
        self.change.concurrency = Some(requests);
        self
    }

    /// Sets the number of morsels in flight of the segment of a node, as
    /// [`Graph::concurrency`](crate::Graph::concurrency) after it.
    pub fn concurrency_of(mut self, node: &str, morsels: usize) -> Self {
        self.check("concurrency_of", morsels, 1);
        let letter = self.node(node).and_then(|id| self.stats.nodes[id].segment);
        let segments = &self.stats.segments;
        match segments.iter().position(|s| Some(s.letter) == letter) {
            Some(number) => self.change.concurrency_of.push((number, morsels)),
            None => self.fail(format!("`{node}` is in no segment")),
        }
        self
    }

    /// Sets the time of the consumer's step.
    pub fn step(mut self, step: Duration) -> Self {
        self.change.step = Some(step);
        self
    }

    /// Sets the round trip of a request: the shortest that was measured takes this long, and all
    /// others as much longer or shorter.
    pub fn round_trip(mut self, round_trip: Duration) -> Self {
        self.check_io("round_trip");
        self.change.round_trip = Some(round_trip);
        self
    }

    /// Takes the items of a node from a cache that is full, which costs nothing. All work that is
    /// only for these items is gone.
    pub fn cache_after(mut self, node: &str) -> Self {
        self.change.cached = self.node(node);
        self
    }

    /// Predicts the epoch.
    ///
    /// # Errors
    /// `Config` for settings that cannot be, or that this graph has no place for, and for workers if
    /// the figures are of an epoch without: nothing ran beside anything else.
    pub fn predict(&self) -> Result<Prediction> {
        self.checked(&self.change)?;
        let model = Model::new(&self.stats);
        let (needs, now) = (model.needs(&self.change), model.needs(&Change::default()));
        let seconds = needs.seconds.max(LEAST);
        Ok(Prediction {
            batches_per_second: 1.0 / seconds,
            wait_share: (1.0 - needs.step / seconds).clamp(0.0, 1.0),
            parts: needs.parts,
            gain: now.seconds.max(LEAST) / seconds,
            memory_bytes: needs.memory_bytes as u64,
        })
    }

    /// Weighs up a cache after each node: the bytes that it needs for an epoch, and the rate that it
    /// gives; the greatest gain first, and of equal gains the one for fewer bytes.
    ///
    /// Each epoch that reads a cache gets the same items, shuffles and random changes upstream of it
    /// included. So the place for a cache is before the first of these that has to differ.
    ///
    /// # Errors
    /// The errors of [`predict`](Self::predict).
    pub fn caches(&self) -> Result<Vec<CacheGain>> {
        self.checked(&self.change)?;
        let mut caches: Vec<_> = (0..self.stats.nodes.len())
            .map(|id| self.cache(id))
            .collect();
        let bytes = |cache: &CacheGain| cache.bytes.unwrap_or(u64::MAX);
        caches.sort_by(|a, b| {
            let by_gain = b.gain.total_cmp(&a.gain);
            by_gain.then_with(|| bytes(a).cmp(&bytes(b)))
        });
        Ok(caches)
    }

    /// Weighs up a cache after the node with this index.
    pub(super) fn cache(&self, id: usize) -> CacheGain {
        let model = Model::new(&self.stats);
        let change = Change {
            cached: Some(id),
            ..self.change.clone()
        };
        let without = model.needs(&self.change).seconds.max(LEAST);
        let seconds = model.needs(&change).seconds.max(LEAST);
        let node = &self.stats.nodes[id];
        CacheGain {
            node: node.name.clone(),
            items: node.items / self.stats.epochs.max(1),
            bytes: node.bytes.map(|bytes| bytes / self.stats.epochs.max(1)),
            batches_per_second: 1.0 / seconds,
            gain: without / seconds,
        }
    }

    fn checked(&self, change: &Change) -> Result<()> {
        if let Some(wrong) = &self.wrong {
            return Err(config(format!("what_if: {wrong}")));
        }
        if self.stats.workers == 0 && change.workers.is_some_and(|workers| workers > 0) {
            return Err(config(
                "what_if: the figures are of an epoch without workers, in which nothing ran beside \
                 anything else: run an epoch with workers first",
            ));
        }
        Ok(())
    }

    fn fail(&mut self, problem: String) {
        self.wrong.get_or_insert(problem);
    }

    fn check(&mut self, name: &str, value: usize, least: usize) {
        if !(least..=MOST).contains(&value) {
            self.fail(format!("{name}: {value} is not from {least} to {MOST}"));
        }
    }

    fn check_io(&mut self, name: &str) {
        let mut segments = self.stats.segments.iter();
        if !segments.any(|segment| segment.work == Work::Io) {
            self.fail(format!(
                "{name}: no segment of the epoch was one of I/O, so it has no requests in flight"
            ));
        }
    }

    /// Returns the index of a node.
    fn node(&mut self, name: &str) -> Option<usize> {
        let place = self.stats.nodes.iter().position(|node| node.name == name);
        if place.is_none() {
            let nodes = self.stats.nodes.iter().map(|node| &*node.name);
            let nodes = nodes.collect::<Vec<_>>().join("`, `");
            self.fail(format!("there is no node `{name}`; there are `{nodes}`"));
        }
        place
    }
}
