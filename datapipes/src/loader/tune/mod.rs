//! Finds settings for a loader by trying them: the grid of DPT (Park and Synn, "Dataloader
//! Parameter Tuner"), and a search.
//!
//! Settings change how fast batches come, never which or in what order.

mod question;
mod search;
#[cfg(test)]
mod tests;
mod tuning;

use std::sync::Arc;
use std::time::Instant;

pub use tuning::Tuning;

use super::checkpoint::SavedNode;
use super::settings_file::{MOST_PREFETCH, MOST_WORKERS};
use super::{Builder, DataLoader, Stats};
use crate::graph::BuildError;
use crate::graph::check::check;
use crate::plan::Plan;
use crate::run::{Engine, Requests};
use crate::settings::Settings;
use crate::{BoxError, Error, ErrorKind, Result};
use search::{Outcome, Space};

/// Settings that a [`Tuner`] tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Point {
    /// Number of CPU workers, [`Builder::workers`].
    pub workers: usize,
    /// Number of batches kept ready, [`Builder::prefetch`].
    pub prefetch: usize,
}

impl Point {
    fn cannot_run(self, error: BuildError) -> Error {
        let message = format!("a loader with {self} cannot be built");
        Error::config(message).with_source(error)
    }
}

formatted! { Display |point: Point| "workers {}, prefetch {}", point.workers, point.prefetch; }

/// A run with some settings.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Trial {
    /// The settings.
    pub point: Point,
    /// Seconds for each batch; `None` if the run was stopped because it passed the
    /// [bound](Tuner::memory) of memory.
    pub seconds: Option<f64>,
    /// Most bytes of items that the loader held; see
    /// [`MemoryStats::most`](super::MemoryStats::most).
    pub memory: u64,
}

/// Finds the number of workers and the length of the queue with which a loader is fastest, by
/// running it with each.
///
/// [`grid`](Self::grid) is the algorithm of the paper *DataLoader Parameter Tuner* (Park, Synn,
/// Piao, Kim): it runs all combinations once. [`search`](Self::search) runs few of them, and those
/// more than once. Each run builds a loader, reads the epochs 0, 1, … until it has the given number
/// of batches, and takes the time from the start to the last batch. The first run of each tuning
/// does not count, so that no settings have to wait for a disk that later ones find in memory.
///
/// Without a [`step`](Self::step) batches are dropped as soon as they come, which tells the
/// throughput of the loader alone; a queue helps only beside a step that takes time.
///
/// # Examples
/// ```
/// # use datapipes::{DataLoader, Graph};
/// # use datapipes::loader::tune::Tuner;
/// # let dir = std::env::temp_dir().join(format!("datapipes-tune-{}", std::process::id()));
/// # std::fs::create_dir_all(&dir)?;
/// # let path = dir.join("settings.json");
/// let graph = Graph::range(0..1000).map(|n| n * n).batch(10);
/// let mut tuner = Tuner::new(|| DataLoader::builder(graph.clone()).seed(7))
///     .cores(2)
///     .most_prefetch(3)
///     .batches(20);
/// let tuning = tuner.grid()?;
/// println!("{tuning}"); // the table of times, and the best settings
/// assert_eq!(tuning.trials.len(), 2 * 3);
/// tuning.save(&path)?;
///
/// let loader = DataLoader::builder(graph.clone()).seed(7).settings_from(&path)?.build()?;
/// # assert_eq!(loader.epoch(0).blocking().count(), 100);
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Tuner<'a, T> {
    /// Makes the loader with some settings.
    build: Box<dyn FnMut(Point) -> Result<DataLoader<T>> + 'a>,
    step: Box<dyn FnMut(T) -> Result<()> + 'a>,
    cores: usize,
    gpus: usize,
    most_prefetch: usize,
    batches: u64,
    memory: Option<u64>,
}

impl<'a, T: Send + 'static> Tuner<'a, T> {
    /// Makes a tuner of the loaders that `builder` describes, always with the same graph. The
    /// tuner sets workers and prefetch, and saves no checkpoints ([`Builder::autosave`]); all other
    /// settings stay as they are.
    pub fn new(mut builder: impl FnMut() -> Builder<T> + 'a) -> Self {
        Tuner::with(move |point| {
            let builder = builder().without_autosave();
            let builder = builder.workers(point.workers).prefetch(point.prefetch);
            builder.build().map_err(|error| point.cannot_run(error))
        })
    }

    /// Makes a tuner of a loader that is built. Its runs save no checkpoints, and are not among the
    /// figures of the loader itself.
    ///
    /// # Examples
    /// ```
    /// # use datapipes::{DataLoader, Graph};
    /// # use datapipes::loader::tune::Tuner;
    /// let loader = DataLoader::builder(Graph::range(0..1000).batch(10)).build()?;
    /// let tuning = Tuner::of(&loader).cores(2).most_prefetch(2).batches(20).grid()?;
    /// assert_eq!(tuning.trials.len(), 2 * 2);
    /// assert!(loader.stats().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(loader: &'a DataLoader<T>) -> Self {
        Tuner::with(|point| loader.with_point(point))
    }

    fn with(build: impl FnMut(Point) -> Result<DataLoader<T>> + 'a) -> Self {
        Tuner {
            build: Box::new(build),
            step: Box::new(|_| Ok(())),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            gpus: 1,
            most_prefetch: 4,
            batches: 100,
            memory: None,
        }
    }

    setters! {
        /// Sets the largest number of workers to try. Defaults to the number of cores.
        #[must_use]
        cores(cores: usize) => cores = cores;

        /// Sets the first number of workers, which is also the step by which the number grows. Defaults
        /// to 1. The paper uses the number of GPUs, so that each GPU has the same number of workers. As
        /// in the paper, the last step may exceed the number of cores.
        #[must_use]
        gpus(gpus: usize) => gpus = gpus;

        /// Sets the longest queue to try, in batches. Defaults to 4. The shortest has 1, as in the
        /// paper's experiments; its listing counts from 0.
        #[must_use]
        most_prefetch(batches: usize) => most_prefetch = batches;

        /// Sets the number of batches of each run. Defaults to 100. A run should take at least some
        /// tenths of a second, and many more batches than the longest queue holds.
        #[must_use]
        batches(batches: u64) => batches = batches;

        /// Sets a bound, in bytes, for the items that the loader holds: in work, in queues and between
        /// them. A run that passes it is stopped at the next batch, and its settings are not chosen;
        /// the grid then goes on with the next number of workers. Without it there is no bound.
        ///
        /// The figure is [`MemoryStats::most`](super::MemoryStats::most), which does not cover items of
        /// [unknown weight](crate::Weigh). The loader's own limit, [`Builder::memory`], stays in force,
        /// so that no run takes more than that.
        #[must_use]
        memory(bytes: u64) => memory = Some(bytes);
    }

    /// Sets the function that is called with each batch, on this thread: a training step, or
    /// something that takes as long. Its time is part of the run.
    #[must_use]
    pub fn step<E: Into<BoxError>>(
        mut self,
        mut step: impl FnMut(T) -> Result<(), E> + 'a,
    ) -> Self {
        self.step = Box::new(move |batch| {
            step(batch).map_err(|error| {
                Error::new(
                    ErrorKind::User,
                    "the step that `Tuner::step` was given failed",
                )
                .with_source(error)
            })
        });
        self
    }

    /// Runs all settings, once each: the paper's algorithm. The best is the first of the quickest.
    ///
    /// # Errors
    /// `Config` for a graph or settings that cannot run, an epoch without batches, and if
    /// no settings stay within the bound of memory; errors of the loader and of the step.
    pub fn grid(&mut self) -> Result<Tuning> {
        self.tune("grid", |space, measure| search::grid(space, measure))
    }

    /// Finds the best settings with fewer runs: some 20 to 100, depending on their noise, where the
    /// grid has up to thousands. Among settings whose times differ by less than 2 %, it chooses fewer
    /// workers and a shorter queue.
    ///
    /// It searches one setting at a time: compares values that double, then values between, in runs
    /// that take turns and are repeated up to four times, until the difference is larger than the
    /// noise or too small to matter. [`Tuning::noise`] tells how much runs with the same settings
    /// differ; if that is more than some per cent, a run needs more batches, or the machine has other
    /// work. Where times have several minima along a line, it may find another than the lowest. Up to
    /// 12 points are compared all at once; with so few, the repeats can be more runs than the grid
    /// has.
    ///
    /// # Errors
    /// Those of [`grid`](Self::grid).
    pub fn search(&mut self) -> Result<Tuning> {
        self.tune("search", |space, measure| search::search(space, measure))
    }

    fn tune(
        &mut self,
        method: &'static str,
        run: impl FnOnce(&Space, &mut dyn FnMut(Point) -> Result<Trial>) -> Result<Outcome>,
    ) -> Result<Tuning> {
        let config = |message: String| Error::config(format!("tune: {message}"));
        let among = |what: &str, value: usize, most: usize| match value {
            value if (1..=most).contains(&value) => Ok(()),
            _ => Err(config(format!(
                "{what} is {value}, and has to be 1 to {most}"
            ))),
        };
        among("the number of cores", self.cores, MOST_WORKERS)?;
        among("the number of GPUs", self.gpus, MOST_WORKERS)?;
        among("the longest queue", self.most_prefetch, MOST_PREFETCH)?;
        if self.batches == 0 {
            return Err(config("a run has no batches".to_owned()));
        }
        let space = Space::new(self.cores, self.gpus, self.most_prefetch);
        let most = space.workers[space.workers.len() - 1];
        among("the last step of workers", most, MOST_WORKERS)?;
        let first = Point {
            workers: space.workers[0],
            prefetch: space.prefetch[0],
        };
        let begun = Instant::now();
        let nodes = self.measure(first)?.1;
        let mut learned = Vec::new();
        let outcome = run(&space, &mut |point| {
            let (trial, _, requests) = self.measure(point)?;
            learned.push((point, requests));
            Ok(trial)
        })?;
        let Some(best) = outcome.best else {
            let bound = self.memory.unwrap_or_default();
            let held = outcome.trials.iter().map(|trial| trial.memory).min();
            let held = held.unwrap_or_default();
            return Err(config(format!(
                "no settings stayed within the bound of {bound} bytes in all their runs; the least that a run held is {held}. \
                 Give more, or make smaller batches, or read smaller files"
            )));
        };
        let of_best = learned.into_iter().rfind(|(point, _)| *point == best);
        Ok(Tuning {
            method,
            best,
            trials: outcome.trials,
            noise: outcome.noise,
            batches: self.batches,
            seconds: begun.elapsed().as_secs_f64(),
            space,
            requests: of_best.map(|(_, requests)| requests).unwrap_or_default(),
            nodes,
        })
    }

    /// Runs a loader with these settings; returns its nodes and what it learned, too.
    fn measure(&mut self, point: Point) -> Result<(Trial, Vec<SavedNode>, Vec<Requests>)> {
        let loader = (self.build)(point)?;
        let nodes = super::checkpoint::nodes(&loader.engine.flow, |_| None);
        let bound = self.memory.unwrap_or(u64::MAX);
        let mut memory = 0;
        let mut trial = |stats: Option<Stats>, seconds| {
            memory = memory.max(stats.map_or(0, |stats| stats.memory.most));
            Trial {
                point,
                seconds: (memory <= bound).then_some(seconds),
                memory,
            }
        };
        let (mut left, begun) = (self.batches, Instant::now());
        for epoch in 0.. {
            let (mut batches, before) = (loader.epoch(epoch).blocking(), left);
            while let Some(batch) = batches.next() {
                (self.step)(batch?)?;
                left -= 1;
                let seconds = begun.elapsed().as_secs_f64().max(1e-9) / self.batches as f64;
                if left > 0 && self.memory.is_none() {
                    continue;
                }
                let trial = trial(batches.stats(), seconds);
                if left == 0 || trial.seconds.is_none() {
                    return Ok((trial, nodes, loader.engine.requests()));
                }
            }
            if left == before {
                break;
            }
        }
        Err(Error::config("tune: an epoch without a batch"))
    }
}

impl<T> DataLoader<T> {
    /// Returns the loader with other settings: with an engine and figures of its own, and without
    /// checkpoints.
    fn with_point(&self, point: Point) -> Result<DataLoader<T>> {
        let flow = self.engine.flow.clone();
        let settings = Settings {
            workers: point.workers,
            cpu_share: None,
            prefetch: Some(point.prefetch),
            ..self.engine.settings.clone()
        };
        check(&flow, &settings, self.on_error.most()).map_err(|error| point.cannot_run(error))?;
        let plan = Plan::new(&flow, &settings);
        Ok(DataLoader {
            engine: Arc::new(Engine::new(flow, plan, settings)),
            latest: Arc::default(),
            ..self.without_autosave()
        })
    }
}

opaque_debug!(Tuner<'a, T> { cores, gpus, most_prefetch, batches, memory });
