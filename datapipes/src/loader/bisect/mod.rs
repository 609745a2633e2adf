//! Finds the sample that makes a batch bad, by making halves of the batch again.

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use super::{DataLoader, Replay};
use crate::chunk::Chunk;
use crate::error::escape;
use crate::run::batch;
use crate::{Error, Origin, Result};

/// Result of [`DataLoader::bisect`]. Prints as a few lines.
#[derive(Debug)]
#[non_exhaustive]
pub struct Bisection {
    /// Origin of the batch.
    pub batch: Origin,
    /// Number of calls of the judge.
    pub tries: usize,
    /// The cause, as far as it was found.
    pub cause: Cause,
}

/// The cause of a bad batch.
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// One sample is bad alone. If there are several, it is one of them.
    Sample {
        /// Place of the sample in the batch, from 0.
        place: usize,
        /// Output of each node for the sample; its [`origin`](Replay::origin) names the sample.
        replay: Replay,
    },
    /// Samples of the batch that are bad together. Neither half of them is bad alone.
    Together(Range<usize>),
    /// Nothing is bad: the judge accepts the whole batch.
    Nothing,
    /// Samples that were judged bad, and later good. Either the judge or a node of the graph
    /// depends on something other than the samples, such as a random number of its own.
    Changing(Range<usize>),
}

impl<T: Send + 'static> DataLoader<T> {
    /// Finds the sample that makes a batch bad, for example its loss NaN, by halving. `batch` is
    /// the origin of a batch of this epoch, as returned by [`items`](crate::Epoch::items). `is_bad`
    /// is the judge.
    ///
    /// The samples are made again as in the epoch, with the same random numbers. The nodes that
    /// made the batch make batches of halves of the samples, for the judge. If one sample is bad,
    /// the judge is called `log2(size) + 1` times at most, the last time with that sample alone. If
    /// the last call contradicts the earlier ones, about as many calls again tell why: nothing is
    /// bad, some samples are bad together only, or a judgement changes.
    ///
    /// Each sample is made as by [`replay`](DataLoader::replay), alone and on this thread: about
    /// twice the samples of the batch are made, one after the other, and half a batch is held. A
    /// member of an archive reads its whole archive each time. Random numbers of nodes downstream
    /// of the step that batches belong to the batch: a smaller batch gets others.
    ///
    /// Works for any order, rank, resumed epoch and processes. The number of an epoch and of a step
    /// are enough to find an origin: `loader.epoch(epoch).blocking().items().nth(step)`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported), with the node that prevents it, if the batch cannot be made
    /// again in parts. Before the step that batches, that is a step that looks at the stream as a
    /// whole (a zip, a scan, packing; see [`replay`](DataLoader::replay)). After it, it is a step
    /// that mixes batches or leaves some out. Batches must be made by a node of the graph (data
    /// read by index: [`batch`](crate::Graph::batch) after `fetch`), and a loader must not be
    /// [converted](DataLoader::convert). [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such sample; the
    /// error of a node that fails now.
    ///
    /// # Panics
    /// Panics if the judge panics.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph, loader::Cause};
    ///
    /// let graph = Graph::range(0..1000)
    ///     .map(|n| if n == 700 { f32::NAN } else { n as f32 })
    ///     .shuffle(100)
    ///     .batch(16)
    ///     .collate();
    /// let loader = DataLoader::builder(graph).seed(7).build()?;
    /// let loss = |batch: &datapipes::Tensor| batch.as_slice::<f32>().unwrap().iter().sum::<f32>();
    ///
    /// for batch in loader.epoch(0).blocking().items() {
    ///     let batch = batch?;
    ///     if loss(&batch).is_nan() {
    ///         let found = loader.bisect(0, batch.origin(), |part| loss(&part).is_nan())?;
    ///         println!("{found}");
    ///         let Cause::Sample { replay, .. } = found.cause else { panic!() };
    ///         assert_eq!(replay.origin().to_string(), "0:700");
    ///         assert!(found.tries <= 5);
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bisect(
        &self,
        epoch: u64,
        batch: &Origin,
        is_bad: impl FnMut(T) -> bool,
    ) -> Result<Bisection> {
        let mut trial = Trial {
            loader: self,
            epoch,
            batch,
            tries: 0,
            is_bad,
        };
        let cause = trial.cause()?;
        Ok(Bisection {
            batch: batch.clone(),
            tries: trial.tries,
            cause,
        })
    }
}

/// A search for the bad sample of a batch.
struct Trial<'a, T, F> {
    loader: &'a DataLoader<T>,
    epoch: u64,
    batch: &'a Origin,
    tries: usize,
    is_bad: F,
}

impl<T: Send + 'static, F: FnMut(T) -> bool> Trial<'_, T, F> {
    fn cause(&mut self) -> Result<Cause> {
        let samples = self.batch.parts();
        if samples.is_empty() {
            let message = format!("{} is no batch: it was not made of samples", self.batch);
            return Err(Error::unsupported(message));
        }
        // The bad one is in the right half if it is not in the left half.
        let (mut part, mut bad) = (0..samples.len(), None);
        while part.len() > 1 {
            let [left, right] = halves(&part);
            if self.judge(&left)? {
                bad = Some(left.clone());
                part = left;
            } else {
                part = right;
            }
        }
        if self.judge(&part)? {
            let place = part.start;
            let replay = self.loader.replay(self.epoch, &samples[place])?;
            return Ok(Cause::Sample { place, replay });
        }
        self.contradiction(bad, part)
    }

    /// Finds out why no sample is bad alone. `bad` is the smallest part that was judged bad, `last`
    /// the sample that was left of it.
    fn contradiction(&mut self, bad: Option<Range<usize>>, last: Range<usize>) -> Result<Cause> {
        let was_bad = bad.is_some();
        let mut part = bad.unwrap_or(0..self.batch.parts().len());
        if !was_bad && part == last {
            return Ok(Cause::Nothing);
        }
        if !self.judge(&part)? {
            return Ok(match was_bad {
                true => Cause::Changing(part),
                false => Cause::Nothing,
            });
        }
        // The left halves were judged good.
        while part.len() > 1 {
            let [_, right] = halves(&part);
            if right == last || !self.judge(&right)? {
                return Ok(Cause::Together(part));
            }
            part = right;
        }
        Ok(Cause::Changing(part))
    }

    /// Makes a batch of these samples and returns the judgement.
    fn judge(&mut self, part: &Range<usize>) -> Result<bool> {
        let samples = &self.batch.parts()[part.clone()];
        let engine = &self.loader.engine;
        let made = batch(engine, self.epoch, samples, self.batch.index())?;
        let Ok(made) = made.chunk.chunk.downcast::<Chunk<T>>() else {
            let message = "the graph's batches are converted; bisect with the loader before that";
            return Err(Error::unsupported(message));
        };
        self.tries += 1;
        let mut made = made.into_iter();
        let batch = made.next().expect("it is made of one item")?;
        Ok((self.is_bad)(batch.into_inner()))
    }
}

/// Cuts a part into two halves. The left one may be longer by one sample.
fn halves(part: &Range<usize>) -> [Range<usize>; 2] {
    let middle = part.start + part.len().div_ceil(2);
    [part.start..middle, middle..part.end]
}

impl Bisection {
    /// Returns the origins of the samples that were found, if any were.
    pub fn samples(&self) -> &[Origin] {
        let part = match &self.cause {
            Cause::Sample { place, .. } => *place..place + 1,
            Cause::Together(part) | Cause::Changing(part) => part.clone(),
            Cause::Nothing => 0..0,
        };
        &self.batch.parts()[part]
    }
}

impl fmt::Display for Bisection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, tries) = (self.batch.parts().len(), self.tries);
        let name = |sample: &Origin| escape(&sample.to_string()).into_owned();
        let names: Vec<String> = self.samples().iter().map(name).collect();
        let names = names.join(", ");
        match &self.cause {
            Cause::Sample { place, replay } => write!(
                f,
                "sample {place} of {size} is bad: {names}, found in {tries} tries\n{replay}"
            ),
            Cause::Together(part) => write!(
                f,
                "samples {} to {} of {size} are bad together, and neither half of them is, found in \
                 {tries} tries: {names}",
                part.start,
                part.end - 1
            ),
            Cause::Nothing => write!(
                f,
                "none of {size} samples is bad, nor are all, in {tries} tries"
            ),
            Cause::Changing(part) => write!(
                f,
                "samples {} to {} of {size} were judged bad and then good, in {tries} tries: the judge \
                 or the graph depends on something else: {names}",
                part.start,
                part.end - 1
            ),
        }
    }
}
