//! Measures how much faster a training loop would be without loading.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use super::{DataLoader, PartKind, PartPace, Stats};
use crate::{BoxError, Error, ErrorKind, Histogram, Result};

/// Number of batches that are repeated.
const CACHED: usize = 8;
/// Largest gain that is printed as a number. Beyond it what is left takes next to no time, and its
/// measurement is chance.
const LARGEST: f64 = 100.0;

/// Result of [`DataLoader::headroom`]. Prints as a few lines.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Headroom {
    /// Times from one batch to the next with the loader at work: the wait and the step.
    pub with_loading: Histogram,
    /// Times of the same steps over batches that are in memory.
    pub without_loading: Histogram,
    /// Time that each part of the loader needs for a batch, the slowest first: the time of the loop
    /// if all else were free.
    pub parts: Vec<PartPace>,
    /// Figures of all measured epochs together, each without its first batch.
    pub stats: Stats,
}

impl<T: Clone + Send + 'static> DataLoader<T> {
    /// Measures the headroom of a training loop: runs `steps` steps with the loader at work, then as
    /// many over the last eight of its batches again and again, which cost nothing to load. `step`
    /// is the consumer; it runs on this thread.
    ///
    /// This is SPDL's headroom analysis. The epochs are 0, 1, … as far as needed;
    /// each first batch of an epoch is left out of the figures, as is the time that it takes to
    /// start. The loader holds at most eight batches more than usual.
    ///
    /// # Errors
    /// Those of the loader and of `step`; `Config` for 0 steps or an empty epoch.
    ///
    /// # Examples
    /// ```
    /// # use datapipes::{DataLoader, Graph};
    /// let loader = DataLoader::builder(Graph::range(0..1000).batch(10)).build()?;
    /// let headroom = loader.headroom(50, |batch| {
    ///     // The training step would be here.
    ///     assert_eq!(batch.len(), 10);
    ///     datapipes::Ok(())
    /// })?;
    /// println!("{headroom}");
    /// assert!(headroom.gain() > 0.0);
    /// # Ok::<(), datapipes::BoxError>(())
    /// ```
    pub fn headroom<E: Into<BoxError>>(
        &self,
        steps: u64,
        mut step: impl FnMut(T) -> std::result::Result<(), E>,
    ) -> Result<Headroom> {
        let config = |message| Err(Error::config(message));
        if steps == 0 {
            return config("headroom: no steps to measure");
        }
        let mut run = |batch| {
            let begun = Instant::now();
            step(batch)
                .map_err(|error| Error::new(ErrorKind::User, "headroom").with_source(error))?;
            Ok::<Duration, Error>(begun.elapsed())
        };
        // The checkpoint of a training stays as it is.
        let loader = self.without_autosave();
        let mut with_loading = Histogram::default();
        let mut cached = VecDeque::with_capacity(CACHED);
        let mut stats: Option<Stats> = None;
        let mut epoch = 0;
        while with_loading.count() < steps {
            let mut batches = loader.epoch(epoch).blocking();
            let (Some(first), before) = (batches.next().transpose()?, with_loading.count()) else {
                return config("headroom: an epoch without a batch");
            };
            run(first)?;
            let (mut last, begun) = (Instant::now(), batches.stats());
            for batch in batches.by_ref() {
                let batch: T = batch?;
                let copying = Instant::now();
                if cached.len() == CACHED {
                    cached.pop_front();
                }
                cached.push_back(batch.clone());
                // The copy is the experiment's own.
                last += copying.elapsed();
                run(batch)?;
                let now = Instant::now();
                with_loading.add(now - last);
                last = now;
                if with_loading.count() == steps {
                    break;
                }
            }
            if with_loading.count() == before {
                return config("headroom: an epoch of one batch, which only starts the loader");
            }
            let now = batches.stats().zip(begun);
            let now = now.map(|(now, begun)| now.since(&begun));
            stats = match (now, stats) {
                (Some(now), Some(earlier)) => Some(now.after(&earlier)),
                (now, earlier) => now.or(earlier),
            };
            epoch += 1;
        }
        let mut without_loading = Histogram::default();
        for batch in cached.iter().cycle().take(steps as usize) {
            without_loading.add(run(batch.clone())?);
        }
        let stats = stats.expect("an epoch has run");
        Ok(Headroom {
            parts: (stats.what_if()?.step(without_loading.mean()))
                .predict()?
                .parts,
            with_loading,
            without_loading,
            stats,
        })
    }
}

impl Headroom {
    /// Returns how many times as fast the loop would be if loading cost nothing. The number means
    /// little if the step takes next to no time.
    pub fn gain(&self) -> f64 {
        self.with_loading.mean().as_secs_f64() / self.without_loading.mean().as_secs_f64().max(1e-9)
    }

    /// Returns the most that each remedy can give by itself, in multiples of the rate: the slowest
    /// part, compared with the slowest one that the remedy leaves as it is. None gives more than
    /// the loop without loading did.
    fn remedies(&self) -> [(&'static str, f64); 3] {
        use PartKind::{Cores, Link, Requests, Segment, Workers};
        let slowest = |is_free: fn(PartKind) -> bool| {
            let left = self.parts.iter().filter(|part| !is_free(part.kind));
            left.map(|part| part.seconds).fold(0.0, f64::max)
        };
        let now = slowest(|_| false);
        let bound = self.gain().max(1.0);
        let gain = |is_free| (now / slowest(is_free).max(1e-9)).min(bound);
        [
            (
                "faster storage",
                gain(|kind| matches!(kind, Requests(_) | Link(_))),
            ),
            (
                "faster decoding",
                gain(|kind| matches!(kind, Workers | Cores | Segment(_))),
            ),
            (
                "more workers and cores",
                gain(|kind| matches!(kind, Workers | Cores)),
            ),
        ]
    }
}

impl fmt::Display for Headroom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (now, alone) = (self.with_loading.mean(), self.without_loading.mean());
        write!(
            f,
            "a step takes {now:.1?} with loading, {alone:.1?} without: "
        )?;
        match self.gain() {
            LARGEST.. => writeln!(f, "loading is nearly all of it")?,
            ..1.0 => writeln!(f, "loading costs nothing")?,
            gain => writeln!(f, "at most {gain:.2} times as fast")?,
        }
        writeln!(f, "  with:    {}", self.with_loading)?;
        writeln!(f, "  without: {}", self.without_loading)?;
        write!(f, "  what each part needs for a batch:")?;
        for part in &self.parts {
            write!(f, "\n    {part}")?;
        }
        // Without workers all parts are one.
        if self.stats.workers > 0 {
            for (remedy, gain) in self.remedies() {
                write!(f, "\n  the most that {remedy} can give: ")?;
                match gain {
                    LARGEST.. => write!(f, "over {LARGEST} times, as the rest takes no time")?,
                    gain => write!(f, "{gain:.2} times")?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
