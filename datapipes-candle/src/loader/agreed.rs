//! Ranks that agree before each step whether there is another.

use std::fmt;

use candle_core::Result;
use datapipes::{Checkpoint, Error, ErrorKind};

use super::{Batches, CandleBlocking};
use crate::tensor::wrapped;

/// An epoch of candle's tensors that ends on all ranks at once; see [`CandleBlocking::agreed`].
#[must_use = "an epoch does nothing until it is iterated"]
pub struct CandleAgreed<U, F> {
    batches: Box<dyn Batches<U> + Send>,
    agree: F,
    ended: bool,
}

impl<U> CandleBlocking<U> {
    /// The epoch, which ends on all ranks at once: before each step `agree` is told whether this
    /// rank has a batch for it, on its device, and says whether all ranks have; see
    /// [`Blocking::agreed`](datapipes::Blocking::agreed).
    ///
    /// # Errors
    /// As [`Blocking::agreed`](datapipes::Blocking::agreed), in candle's form.
    ///
    /// # Examples
    /// ```
    /// use candle_core::Device;
    /// use datapipes::{DataLoader, Graph};
    /// use datapipes_candle::CandleLoader;
    ///
    /// let graph = Graph::range(0..10).map(|n| n as f32).batch(2).collate();
    /// let loader = CandleLoader::new(&DataLoader::builder(graph).resumable().build()?, &Device::Cpu);
    /// // The others have three.
    /// let mut left = 3;
    /// let mut epoch = loader.epoch(0).blocking().agreed(|mine| {
    ///     left -= 1;
    ///     Ok(mine && left >= 0)
    /// });
    /// assert_eq!(epoch.by_ref().collect::<candle_core::Result<Vec<_>>>()?.len(), 3);
    /// assert!(epoch.checkpoint()?.is_finished());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn agreed<F>(self, agree: F) -> CandleAgreed<U, F>
    where
        F: FnMut(bool) -> Result<bool>,
    {
        CandleAgreed {
            batches: self.0,
            agree,
            ended: false,
        }
    }
}

impl<U, F> CandleAgreed<U, F> {
    /// Where the epoch stands, behind the last batch given; at the end that all agreed on, it is
    /// finished.
    ///
    /// # Errors
    /// As [`CandleBlocking::state`].
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        self.batches.checkpoint().map_err(wrapped)
    }
}

impl<U, F: FnMut(bool) -> Result<bool>> Iterator for CandleAgreed<U, F> {
    type Item = Result<U>;

    fn next(&mut self) -> Option<Result<U>> {
        if self.ended {
            return None;
        }
        let next = self.batches.next();
        let agreed = (self.agree)(matches!(next, Some(Ok(_))));
        if let (Some(Ok(_)), Ok(true)) = (&next, &agreed) {
            return next;
        }
        self.ended = true;
        match (next, agreed) {
            (Some(Ok(_)), Ok(_)) => {
                self.batches.end_without_last();
                None
            }
            (Some(Ok(_)), Err(error)) => {
                self.batches.fail_last();
                Some(Err(error))
            }
            (Some(Err(error)), _) | (None, Err(error)) => Some(Err(error)),
            (None, Ok(false)) => None,
            (None, Ok(true)) => {
                let message = "ranks went on with a step for which this one has no batch: `agree` has to say whether \
                               all have one";
                Some(Err(wrapped(Error::new(ErrorKind::Config, message))))
            }
        }
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        // With the error of an agreement besides.
        let most = self
            .batches
            .size_hint()
            .1
            .and_then(|most| most.checked_add(1));
        (0, if self.ended { Some(0) } else { most })
    }
}

impl<U, F> fmt::Debug for CandleAgreed<U, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CandleAgreed")
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
