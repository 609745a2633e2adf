//! Computes again which samples made the batches of some steps, and what each node made of them.

mod picture;
mod question;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::replay::{Replay, Step};
use super::{Checkpoint, DataLoader, Skipped};
use crate::settings::Order;
use crate::{Error, Rank, Result};

pub(super) use question::refuse_unanswered;
#[cfg(feature = "tune")]
pub(super) use question::{TUNE, begin_answer, write_answer};

/// Samples of the batches of some steps, returned by [`DataLoader::blame`]. As text it is a table
/// for each step.
#[derive(Debug)]
#[non_exhaustive]
pub struct Blame {
    /// Number of the epoch.
    pub epoch: u64,
    /// Seed of the loader; it determines all random numbers.
    pub seed: u64,
    /// Each step of the range, in order.
    pub batches: Vec<BlamedBatch>,
    /// Items that failed while the batches were computed again, and were skipped by the loader's
    /// policy. If more fail now than then, because a file has gone, the batches are others.
    pub skipped: Vec<Skipped>,
}

/// The samples of one batch.
#[derive(Debug)]
#[non_exhaustive]
pub struct BlamedBatch {
    /// Number of the step in its epoch, from 0.
    pub step: u64,
    /// Output of each node for each sample. Its [`origin`](Replay::origin) is that of the batch; it
    /// holds no items.
    pub replay: Replay,
}

impl<T: Send + 'static> DataLoader<T> {
    /// Computes again which samples made the batches of some steps of an epoch, and what each node
    /// made of each sample. Nothing was recorded for that: a checkpoint of the epoch is enough.
    ///
    /// Steps are counted from 0 in each epoch. If the first step is after the checkpoint, the epoch
    /// is resumed from there; otherwise it is read from its beginning, which needs a checkpoint of
    /// this same rank. The batches before the first step are made and dropped, by all workers. Then
    /// each sample is [replayed](DataLoader::replay) on this thread, one after the other. The
    /// result holds some hundred bytes for each sample and node, and one batch at a time.
    ///
    /// No checkpoint is saved, and no running epoch is disturbed. Nodes downstream of a step that
    /// looks at the stream as a whole, such as a batch, are not shown; `replay` tells more about
    /// that.
    ///
    /// # Errors
    /// Those of [`resume`](DataLoader::resume): a checkpoint of another graph or seed, with the
    /// differences. [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the epoch has no such steps, or a sample is not
    /// there any more; [`ErrorKind::Config`](crate::ErrorKind::Config) for an empty range, for steps before a checkpoint of
    /// other ranks, and for an order in which batches depend on time. Errors of the data, with the
    /// step.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph};
    ///
    /// let graph = Graph::range(0..100).map(|n| n * n).named("square").shuffle(50).batch(4);
    /// let loader = DataLoader::builder(graph).seed(7).resumable().build()?;
    /// let mut epoch = loader.epoch(0).blocking();
    /// epoch.next().unwrap()?;
    /// let checkpoint = epoch.checkpoint()?;
    /// let batches: Vec<_> = epoch.take(3).collect::<Result<_, _>>()?; // steps 1 to 3
    ///
    /// let blame = loader.blame(&checkpoint, 3..4)?;
    /// println!("{blame}");
    /// let samples = blame.batches[0].replay.origin().parts();
    /// let squares = samples.iter().map(|sample| sample.index() * sample.index());
    /// assert!(squares.eq(batches[2].iter().copied()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn blame(&self, checkpoint: &Checkpoint, steps: Range<u64>) -> Result<Blame> {
        self.blame_with(checkpoint, steps, |_, _, _| {})
    }

    /// Replays as [`blame`](DataLoader::blame) does, and calls `look` with each node's output for
    /// each sample, and the number of its step; see [`replay_with`](DataLoader::replay_with).
    ///
    /// # Errors
    /// Fails as [`blame`](DataLoader::blame) does.
    pub fn blame_with(
        &self,
        checkpoint: &Checkpoint,
        steps: Range<u64>,
        mut look: impl FnMut(u64, &Step, &[&dyn Any]),
    ) -> Result<Blame> {
        if steps.is_empty() {
            return Err(Error::config(format!(
                "no steps in {}..{}",
                steps.start, steps.end
            )));
        }
        let settings = &self.engine.settings;
        if settings.order != Order::Strict {
            let message = "which samples a batch has depends on time in this order of the loader; \
                           only strict order can be computed again";
            return Err(Error::config(message.to_owned()));
        }
        // No checkpoint is saved, and the figures of the latest epoch stay.
        let quiet = DataLoader {
            latest: Arc::default(),
            ..self.without_autosave()
        };
        let mut epoch = quiet.resume(checkpoint)?.blocking();
        let mut step = epoch.checkpoint()?.delivered();
        if steps.start < step {
            if !checkpoint.has(settings.rank) {
                return Err(Error::config(format!(
                    "step {} is before the checkpoint, which is of other ranks and after {step} steps",
                    steps.start
                )));
            }
            (epoch, step) = (quiet.epoch(checkpoint.epoch()).blocking(), 0);
        }
        let mut batches = Vec::new();
        while step < steps.end {
            let Some(batch) = epoch.next_item() else {
                return Err(Error::not_found(format!(
                    "no step {}: epoch {} has {step} steps",
                    steps.start.max(step),
                    epoch.number()
                )));
            };
            let batch = batch.map_err(|error| within(step, error))?;
            if steps.contains(&step) {
                let origin = batch.into_parts().1;
                let mut replay = self
                    .replay_with(epoch.number(), &origin, |stage, values| {
                        look(step, stage, values);
                    })
                    .map_err(|error| within(step, error))?;
                replay.forget_items();
                batches.push(BlamedBatch { step, replay });
            }
            step += 1;
        }
        let skipped = epoch.stats().map(|stats| stats.skipped_items);
        Ok(Blame {
            epoch: epoch.number(),
            seed: settings.seed,
            batches,
            skipped: skipped.unwrap_or_default(),
        })
    }
}

/// Names the step in which an error came.
fn within(step: u64, error: Error) -> Error {
    Error::new(error.kind(), format!("step {step}")).with_source(error)
}

impl Checkpoint {
    /// Returns true if the checkpoint is of this rank of this job, maybe among others.
    fn has(&self, rank: Rank) -> bool {
        let own = (rank.index as u64, rank.world as u64);
        self.0.iter().any(|saved| (saved.rank, saved.world) == own)
    }
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}, seed {}", self.epoch, self.seed)?;
        for BlamedBatch { step, replay } in &self.batches {
            write!(f, "\nstep {step}: {replay}")?;
        }
        if !self.skipped.is_empty() {
            write!(
                f,
                "\n{} items failed and were skipped now; if they did not then, the batches are others:",
                self.skipped.len()
            )?;
        }
        self.skipped
            .iter()
            .try_for_each(|skipped| write!(f, "\n  {skipped}"))
    }
}
