//! Runs a graph epoch after epoch: seeds, order, errors, figures.

mod agreed;
mod ahead;
mod autosave;
mod batches;
mod bisect;
mod blame;
mod builder;
mod checkpoint;
mod epoch;
mod epoch_source;
mod headroom;
mod json;
mod latest;
mod left;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "monitor")]
pub mod monitor;
mod online;
mod policy;
mod prefetch_to_device;
#[cfg(feature = "progress")]
mod progress;
mod rank_epoch;
mod ranks;
mod replay;
mod report;
#[cfg(feature = "tune")]
mod settings_file;
mod stats;
#[cfg(test)]
mod tests;
mod trace;
#[cfg(feature = "tune")]
pub mod tune;

use std::path::Path;
use std::sync::{Arc, Mutex};

pub use crate::run::TraceLevel;
pub use crate::run::{SkipStats, Skipped};
pub use crate::settings::Order;
pub use agreed::Agreed;
pub use autosave::Every;
pub use bisect::{Bisection, Cause};
pub use blame::{Blame, BlamedBatch};
pub use builder::Builder;
pub use checkpoint::{Checkpoint, Edited};
pub use epoch::{Blocking, Epoch};
pub use headroom::Headroom;
pub use policy::OnError;
#[cfg(feature = "progress")]
pub use progress::WithProgress;
pub use replay::{Replay, Step};
pub use report::{ReportSummary, ReportWriter};
pub use stats::{
    CacheGain, ChildStats, DeviceStats, MemoryStats, NodeStats, PartKind, PartPace, Prediction,
    ProcessStats, QueueStats, SegmentStats, Stats, WhatIf,
};
pub use trace::{TraceSummary, TraceWriter};

use autosave::{Autosave, Saver};
use checkpoint::Saved;
use epoch_source::Open;
use latest::{Latest, Runs};
use online::OnlineTuner;
use rank_epoch::Start;

use crate::graph::lengths;
use crate::plan::Explain;
use crate::run::{Engine, RankShare, Resume};
use crate::settings::Settings;
#[cfg(feature = "tune")]
use crate::sync::lock;
use crate::{ErrorKind, Graph, Result};

/// Runs a [`Graph`] epoch after epoch.
///
/// A loader is cheap to keep and starts no work by itself: each [`epoch`](DataLoader::epoch) starts
/// when it is first polled and stops when it is dropped. In strict order, the items of an epoch are
/// a function of graph, seed and epoch number alone, for any number of workers.
///
/// ```
/// use datapipes::{DataLoader, Graph};
///
/// let graph = Graph::range(0..10).shuffle(10).map(|n| n * n).batch(4);
/// let loader = DataLoader::builder(graph).seed(42).workers(2).build()?;
/// for epoch in 0..3 {
///     for batch in loader.epoch(epoch) {
///         let batch: Vec<u64> = batch?;
///         assert!(batch.len() <= 4);
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DataLoader<T> {
    /// The latest epoch that was started, for figures.
    latest: Arc<Latest>,
    pub(crate) engine: Arc<Engine>,
    /// Changes settings while epochs run, if it may.
    tuner: Option<Arc<Mutex<OnlineTuner>>>,
    on_error: OnError,
    /// Saves the checkpoints of the loader's epochs.
    saver: Option<Arc<Saver>>,
    /// Opens the input of an epoch: ranks, and the conversion of their batches.
    open: Open<T>,
    device_depth: usize,
}

impl<T> Clone for DataLoader<T> {
    fn clone(&self) -> Self {
        self.opened(self.open.clone())
    }
}

impl<T> DataLoader<T> {
    /// Returns the same loader with another way of opening epochs.
    fn opened<U>(&self, open: Open<U>) -> DataLoader<U> {
        DataLoader {
            engine: self.engine.clone(),
            tuner: self.tuner.clone(),
            latest: self.latest.clone(),
            on_error: self.on_error.clone(),
            saver: self.saver.clone(),
            open,
            device_depth: self.device_depth,
        }
    }

    /// Returns the same loader for an experiment: its epochs save no checkpoint and tune nothing.
    fn without_autosave(&self) -> DataLoader<T> {
        DataLoader {
            saver: None,
            tuner: None,
            ..self.clone()
        }
    }
}

impl<T: Send + 'static> DataLoader<T> {
    /// Starts to set up a loader for a graph.
    pub fn builder(graph: Graph<T>) -> Builder<T> {
        Builder::new(graph)
    }

    /// Returns epoch number `epoch`: a `Stream`, or an iterator by [`blocking`](Epoch::blocking) or
    /// in a `for` loop. Inert until polled.
    ///
    /// The items depend on the number, not on earlier epochs, so any epoch can be the first one
    /// read. Several epochs, also of the same number, may be alive at once; each is complete by
    /// itself.
    pub fn epoch(&self, epoch: u64) -> Epoch<T> {
        let Settings { rank, uneven, .. } = self.engine.settings;
        self.begin(epoch, vec![(RankShare { rank, uneven }, None)], false)
    }

    /// Saves the settings of this loader, and the number of requests in flight that its epochs have
    /// found, to a file for [`Builder::settings_from`]: JSON, with a version and the nodes of the
    /// graph; feature `tune`. The next run then does not begin with few requests. Call it after an
    /// epoch, and with the same path for each run.
    ///
    /// Workers and prefetch are saved if they were set, and [`Builder::settings_from`] then sets them.
    /// They are also saved if the loader [tuned](Builder::tune) them itself and found others than it
    /// began with; the next run begins with those, and tunes them further. What follows from the
    /// cores of this machine is not saved.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such folder, [`ErrorKind::Io`] if the file cannot be
    /// written; with the path.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "tune")] {
    /// use datapipes::{DataLoader, Graph};
    ///
    /// let path = std::env::temp_dir().join(format!("settings-{}.json", std::process::id()));
    /// let graph = Graph::range(0..100).map_async(async |n| datapipes::Ok(n)).batch(10);
    /// let loader = DataLoader::builder(graph.clone()).build()?;
    /// loader.epoch(0).blocking().try_for_each(|batch| batch.map(drop))?;
    /// loader.save_settings(&path)?;
    /// // In the next run:
    /// let loader = DataLoader::builder(graph).settings_from(&path)?.build()?;
    /// # assert_eq!(loader.epoch(0).blocking().count(), 10);
    /// # std::fs::remove_file(&path)?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tune")]
    pub fn save_settings(&self, path: impl AsRef<Path>) -> Result<()> {
        let Settings {
            workers,
            cpu_share,
            prefetch,
            found,
            ..
        } = self.engine.settings;
        let tuner = self.tuner.as_ref();
        let kept = settings_file::SavedSettings {
            workers: (cpu_share.is_none() && workers > 0).then_some(workers),
            prefetch,
            found: tuner.map_or(found, |tuner| lock(tuner).found(&self.engine)),
            requests: self.engine.requests(),
        };
        let nodes = checkpoint::nodes(&self.engine.flow, |_| None);
        settings_file::save(path.as_ref(), &nodes, kept)
    }

    /// Makes an epoch of some ranks, each with the place where it goes on, maybe with a graph that
    /// was `edited` since.
    fn begin(
        &self,
        number: u64,
        ranks: Vec<(RankShare, Option<(Saved, Resume)>)>,
        edited: bool,
    ) -> Epoch<T> {
        let runs = Runs::default();
        let source = (self.open)(Start {
            engine: self.engine.clone(),
            tuner: self.tuner.clone(),
            number,
            on_error: self.on_error.clone(),
            edited,
            ranks,
            runs: runs.clone(),
            latest: self.latest.clone(),
            device_depth: self.device_depth,
        });
        Epoch::new(source, number, runs, self.saver.as_ref().map(Autosave::new))
    }

    /// Resumes the epoch of a checkpoint, after the last item delivered before it was taken: the
    /// epoch gives the items that would have come without the stop. Inert until polled. Workers,
    /// queues, order and the placement of parts may differ from the first run. The number of ranks
    /// may differ too, with a [checkpoint of all of them](Checkpoint::merge).
    ///
    /// An epoch keeps its kind of order to its end; another [order](Builder::order) begins with the
    /// next epoch. Names, kinds, settings and wiring of nodes are compared with the checkpoint; the
    /// code of closures, and the contents of a vector except its length, are not.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the checkpoint is of another graph or seed, with the differences,
    /// node by node; if it is of other ranks, with the node that stands in the way; or if the
    /// loader was not declared [resumable](Builder::resumable). [`ErrorKind::Corrupt`] if it is of
    /// this graph, but contains values that its nodes cannot have saved.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph, Checkpoint};
    ///
    /// let graph = Graph::range(0..1000).shuffle(100).batch(8);
    /// let loader = DataLoader::builder(graph).seed(7).resumable().build()?;
    /// let whole: Vec<_> = loader.epoch(0).blocking().collect::<datapipes::Result<_>>()?;
    ///
    /// let mut epoch = loader.epoch(0).blocking();
    /// let mut seen: Vec<_> = epoch.by_ref().take(50).collect::<datapipes::Result<_>>()?;
    /// let bytes = epoch.checkpoint()?.to_bytes(); // to a file, beside the weights
    /// drop(epoch);
    ///
    /// let rest = loader.resume(&Checkpoint::from_bytes(&bytes)?)?.blocking();
    /// seen.extend(rest.collect::<datapipes::Result<Vec<_>>>()?);
    /// assert_eq!(seen, whole);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume(&self, checkpoint: &Checkpoint) -> Result<Epoch<T>> {
        self.resumed(checkpoint, None)
    }

    /// Returns the epoch that training goes on with, by the checkpoint in a file. It is the epoch
    /// of the checkpoint, from the place where it was taken, or the next epoch if that one is
    /// [finished](Checkpoint::is_finished) for this loader. Without a file it is epoch 0. The
    /// epoch's [number](Epoch::number) tells which it is. Inert until polled.
    ///
    /// Use it as the first line of a training that may have been stopped, with
    /// [`autosave`](Builder::autosave) to the same path.
    ///
    /// # Errors
    /// Fails as [`Checkpoint::load`] does, except for a missing file, and as
    /// [`resume`](DataLoader::resume) does: a file that is damaged, or of another graph, is never
    /// treated as missing.
    pub fn resume_or_start(&self, path: impl AsRef<Path>) -> Result<Epoch<T>> {
        let checkpoint = match Checkpoint::load(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(self.epoch(0)),
            checkpoint => checkpoint?,
        };
        let epoch = self.resume(&checkpoint)?;
        // The loader decides whether the epoch is finished: another budget of steps may leave
        // something.
        Ok(if epoch.checkpoint()?.is_finished() {
            self.epoch(checkpoint.epoch() + 1)
        } else {
            epoch
        })
    }

    /// Waits until the checkpoint last handed over by [`autosave`](Builder::autosave) is on the
    /// disk. Returns at once if nothing is being written, or the loader saves no checkpoints.
    ///
    /// # Errors
    /// The reason why the last checkpoint could not be written, unless an epoch has already
    /// reported it.
    pub fn flush_autosave(&self) -> Result<()> {
        self.saver.as_ref().map_or(Ok(()), |saver| saver.flush())
    }

    /// Resumes with a graph that has changed since, within the limits of `edited`: other weights of
    /// a mix, or other nodes.
    ///
    /// # Errors
    /// Fails as [`resume`](DataLoader::resume) does, except for the permitted differences.
    ///
    /// # Examples
    /// Other weights, from the next item on:
    /// ```
    /// use datapipes::{DataLoader, Edited, Graph};
    ///
    /// let loader = |weights: [f64; 2]| {
    ///     let inputs = [Graph::range(0..100), Graph::range(100..200)];
    ///     DataLoader::builder(Graph::mix(inputs.into_iter().zip(weights))).resumable().build()
    /// };
    /// let mut epoch = loader([1.0, 1.0])?.epoch(0).blocking();
    /// assert_eq!(epoch.by_ref().take(4).collect::<Result<Vec<_>, _>>()?, [0, 100, 1, 101]);
    ///
    /// let rest = loader([1.0, 3.0])?.resume_edited(&epoch.checkpoint()?, Edited::Weights)?.blocking();
    /// assert_eq!(rest.take(4).collect::<Result<Vec<_>, _>>()?, [2, 102, 103, 104]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    /// An additional step:
    /// ```
    /// use datapipes::{DataLoader, Edited, Graph};
    ///
    /// let before = DataLoader::builder(Graph::range(0..100).batch(4)).resumable().build()?;
    /// let mut epoch = before.epoch(0).blocking();
    /// assert_eq!(epoch.by_ref().take(3).count(), 3);
    /// let checkpoint = epoch.checkpoint()?;
    ///
    /// let after = DataLoader::builder(Graph::range(0..100).map(|n| n * 10).batch(4)).resumable().build()?;
    /// let problem = after.resume(&checkpoint).unwrap_err().to_string();
    /// assert!(problem.ends_with("`batch` read `range`, and reads `map`; `map` is new"));
    /// let mut rest = after.resume_edited(&checkpoint, Edited::Matching)?.blocking();
    /// assert_eq!(rest.next().unwrap()?, [120, 130, 140, 150]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume_edited(&self, checkpoint: &Checkpoint, edited: Edited) -> Result<Epoch<T>> {
        self.resumed(checkpoint, Some(edited))
    }

    fn resumed(&self, checkpoint: &Checkpoint, edited: Option<Edited>) -> Result<Epoch<T>> {
        let Engine { flow, settings, .. } = &*self.engine;
        if !settings.resumable {
            return Err(rank_epoch::not_resumable());
        }
        let ranks = checkpoint.for_graph(flow, settings, edited)?;
        ranks
            .iter()
            .try_for_each(|(_, _, resume)| self.engine.fits(&resume.cursors))?;
        let ranks = ranks
            .into_iter()
            .map(|(share, saved, resume)| (share, Some((saved, resume))));
        Ok(self.begin(checkpoint.epoch(), ranks.collect(), edited.is_some()))
    }

    /// Returns the number of items (usually batches) in an epoch of this rank, if it is known
    /// without reading. Sources that know it, one-in-one-out pipes, batches, repeats, joins, forks
    /// and sharding keep it known. The number is exact if no item is skipped for an error. For a
    /// graph without end it is the [budget of steps](Builder::max_steps), if there is one. A graph
    /// is known to have no end if it has a [`cycle`](Graph::cycle), and downstream of it no step
    /// that may end a stream by itself ([`scan`](Graph::scan), [`through`](Graph::through)). This
    /// number is exact unless the data turn out to be empty. For an epoch that has begun, see
    /// [`Epoch::steps_left`].
    pub fn len_hint(&self) -> Option<u64> {
        left::len_hint(&self.engine.flow, &self.engine.settings)
    }

    /// Returns the numbers of steps that the ranks have in an epoch, from the smallest to the
    /// largest, if they are known without reading. The result is the same on every rank. The two
    /// ends differ under [`Uneven::Allow`](crate::Uneven) only; a job whose ranks go in step then
    /// stops after the smallest number. If nothing is known beforehand, ranks can
    /// [agree](crate::Blocking::agreed) before each step.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph, Uneven};
    /// let graph = Graph::range(0..100).sharding_filter().batch(8);
    /// let steps = |uneven| {
    ///     let loader = DataLoader::builder(graph.clone()).rank(1, 3).uneven(uneven).build().unwrap();
    ///     loader.steps().unwrap()
    /// };
    /// assert_eq!(steps(Uneven::Drop), 5..=5); // 33 items each
    /// # let graph = Graph::range(0..97).sharding_filter().batch(8);
    /// # let loader = DataLoader::builder(graph).rank(1, 3).uneven(Uneven::Allow).build().unwrap();
    /// # assert_eq!(loader.steps(), Some(4..=5));
    /// ```
    pub fn steps(&self) -> Option<std::ops::RangeInclusive<u64>> {
        let Engine { flow, settings, .. } = &*self.engine;
        let of = |index| {
            let rank = crate::Rank {
                index,
                world: settings.rank.world,
            };
            left::len_hint(
                flow,
                &crate::settings::Settings {
                    rank,
                    ..settings.clone()
                },
            )
        };
        // The first ranks have the items left over.
        Some(of(settings.rank.world - 1)?..=of(0)?)
    }

    /// Returns a number that is the same on every rank of a job. Two jobs most likely have
    /// different numbers if they differ in graph (names, kinds, settings and wiring of its nodes),
    /// seed, number of ranks, [`Uneven`](crate::Uneven) or [budget of steps](Builder::max_steps).
    /// Ranks that exchange it before the first step find out if one of them was started with other
    /// settings. The number covers neither the code of closures nor the results of listings: for
    /// those there is [`Graph::digest`](crate::Graph::digest).
    pub fn fingerprint(&self) -> u64 {
        checkpoint::fingerprint(&self.engine.flow, &self.engine.settings)
    }

    /// Returns the plan as a tree, the consumer first: where each part runs, with how many workers,
    /// after which queues, and, once an epoch has run, the measurements.
    pub fn explain(&self) -> String {
        explain(&self.engine, self.stats().as_ref())
    }

    /// Returns the figures of the latest epoch that was started; `None` before the first.
    pub fn stats(&self) -> Option<Stats> {
        Stats::of_all(&self.latest.runs()?)
    }

    /// Begins a question about other settings, which is answered without running anything: by a
    /// model of the plan, with the figures of the latest epoch.
    ///
    /// # Errors
    /// `Config` before an epoch has delivered something.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use datapipes::{DataLoader, Graph};
    /// let graph = Graph::range(0..200)
    ///     .map_async(async |n| datapipes::Ok(n + 1)) // a request, for example
    ///     .batch(10);
    /// let loader = DataLoader::builder(graph).workers(2).build()?;
    /// loader.epoch(0).blocking().for_each(drop);
    ///
    /// let far = loader.what_if()?.round_trip(Duration::from_millis(50)).concurrency(100);
    /// let prediction = far.clone().step(Duration::from_millis(2)).predict()?;
    /// println!("{prediction}");
    /// assert!(prediction.batches_per_second < 201.0); // ten of 100 requests for each batch
    ///
    /// for cache in far.caches()? {
    ///     println!("{cache}");
    /// }
    /// # Ok::<(), datapipes::BoxError>(())
    /// ```
    pub fn what_if(&self) -> Result<WhatIf> {
        self.stats().ok_or_else(stats::no_figures)?.what_if()
    }
}

/// Returns the plan as a tree, with measurements if there are any.
fn explain(engine: &Engine, stats: Option<&Stats>) -> String {
    let remarks = stats.map(|stats| stats.remarks(engine)).unwrap_or_default();
    let Engine {
        flow,
        plan,
        settings,
        ..
    } = engine;
    Explain {
        flow,
        plan,
        settings,
        lengths: lengths(flow, settings.rank, settings.uneven),
        remarks,
    }
    .to_string()
}

opaque_debug!(DataLoader<T> { settings = self.engine.settings });

impl<T: Send + 'static> Graph<T> {
    /// Runs the graph once, inline on this thread, and collects the output: for tests and small
    /// data.
    ///
    /// # Errors
    /// The first error of an item, or the problems that [`Builder::build`] finds in the graph.
    pub fn collect(self) -> Result<Vec<T>> {
        let loader = DataLoader::builder(self)
            .workers(0)
            .collected()
            .build()
            .map_err(|e| crate::Error::new(crate::ErrorKind::Config, e.problems().join("; ")))?;
        loader.epoch(0).blocking().collect()
    }
}
