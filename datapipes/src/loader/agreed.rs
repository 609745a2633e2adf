//! Ranks that agree before each step whether there is another.

use std::fmt;

use super::{Blocking, State};
use crate::{Error, Result};

/// An epoch that ends on all ranks at once; see [`Blocking::agreed`].
#[must_use = "an epoch does nothing until it is iterated"]
pub struct Agreed<T, F> {
    epoch: Blocking<T>,
    agree: F,
    ended: bool,
}

impl<T: Send + 'static> Blocking<T> {
    /// The epoch, which ends on all ranks at once: for data of which nobody knows beforehand how many steps it makes,
    /// such as the samples of a rank's archives. Before each step, `agree` is told whether this rank has an item for
    /// it, and says whether all ranks have: a collective of the training framework, such as an all-reduce of the
    /// minimum. If one has none, the epoch ends on all of them, and what the others had ready is dropped. So no rank
    /// waits in a collective step for one that has ended.
    ///
    /// Every rank calls `agree` equally often, once for each step and once at the end, as long as every rank takes
    /// items until the end. A rank whose item failed says that it has none, and gives the error; a rank for which
    /// `agree` fails gives its error. Costs one exchange a step. If all steps are [known](crate::DataLoader::steps),
    /// take the fewest instead.
    ///
    /// # Examples
    /// ```
    /// use std::sync::{Barrier, atomic::{AtomicUsize, Ordering}};
    /// use datapipes::{DataLoader, Graph, Uneven};
    ///
    /// // What stands for a collective here: each rank adds what it has, and all look at the sum.
    /// let (ready, barrier) = (AtomicUsize::new(0), Barrier::new(2));
    /// let all_have = |mine: bool| {
    ///     ready.fetch_add(usize::from(mine), Ordering::SeqCst);
    ///     barrier.wait();
    ///     let all = ready.load(Ordering::SeqCst) == 2;
    ///     if barrier.wait().is_leader() {
    ///         ready.store(0, Ordering::SeqCst);
    ///     }
    ///     barrier.wait();
    ///     Ok(all)
    /// };
    /// let steps = |rank| {
    ///     // Item n becomes n items, so that rank 0 has 0 + 2 + 4, and rank 1 has 1 + 3 + 5.
    ///     let graph = Graph::range(0..6).sharding_filter().flat_map(|n| vec![n; n as usize]);
    ///     let loader = DataLoader::builder(graph).rank(rank, 2).uneven(Uneven::Drop).workers(0).build().unwrap();
    ///     loader.epoch(0).blocking().agreed(all_have).map(Result::unwrap).count()
    /// };
    /// let counts = std::thread::scope(|scope| {
    ///     let other = scope.spawn(|| steps(1));
    ///     [steps(0), other.join().unwrap()]
    /// });
    /// assert_eq!(counts, [6, 6]);
    /// ```
    pub fn agreed<F>(self, agree: F) -> Agreed<T, F>
    where
        F: FnMut(bool) -> Result<bool>,
    {
        Agreed { epoch: self, agree, ended: false }
    }
}

impl<T: Send + 'static, F> Agreed<T, F> {
    /// Where the epoch stands, behind the last item given; at the end that all agreed on, it is finished. See
    /// [`Epoch::state`](crate::Epoch::state).
    ///
    /// # Errors
    /// As [`Epoch::state`](crate::Epoch::state).
    pub fn state(&self) -> Result<State> {
        self.epoch.state()
    }
}

impl<T: Send + 'static, F: FnMut(bool) -> Result<bool>> Iterator for Agreed<T, F> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        if self.ended {
            return None;
        }
        let next = self.epoch.next();
        let agreed = (self.agree)(matches!(next, Some(Ok(_))));
        if let (Some(Ok(_)), Ok(true)) = (&next, &agreed) {
            return next;
        }
        self.ended = true;
        match (next, agreed) {
            (Some(Err(error)), _) => Some(Err(error)),
            (next, Ok(false)) => {
                self.epoch.end_at(next.is_some(), true);
                None
            }
            (next, Err(error)) => {
                // The step was not taken; a state is one from before it.
                self.epoch.end_at(next.is_some(), next.is_none());
                Some(Err(error))
            }
            // The others were told that there is none.
            (_, Ok(true)) => Some(Err(contradicted())),
        }
    }
}

fn contradicted() -> Error {
    let message =
        "ranks went on with a step for which this one has no item: `agree` has to say whether all have one";
    Error::new(crate::ErrorKind::Config, message)
}

impl<T, F> fmt::Debug for Agreed<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agreed").field("ended", &self.ended).finish_non_exhaustive()
    }
}
