//! Epochs whose ranks agree before each step whether there is another.

use std::future::Future;
use std::pin::Pin;
use std::task::{self, Poll, ready};

use futures::Stream;

use super::{Blocking, Checkpoint, Epoch};
use crate::{Error, Item, Result};

/// An epoch that ends on all ranks at once: an iterator by [`Blocking::agreed`], a stream by
/// [`Epoch::agreed`].
#[must_use = "an epoch does nothing until it is read"]
pub struct Agreed<T, E, F, A = ()> {
    epoch: Epoch<T, E>,
    agree: F,
    /// Step of a stream about which the ranks are being asked.
    asked: Option<Asked<T, E, A>>,
    ended: bool,
}

/// The item for a step, if there is one, and the answer of the ranks.
struct Asked<T, E, A> {
    next: Option<Result<T, E>>,
    agree: Pin<Box<A>>,
}

impl<T: Send + 'static, E> Blocking<T, E> {
    /// Returns the epoch, which ends on all ranks at the same step: for data whose number of steps
    /// is not known beforehand, such as the samples of a rank's archives.
    ///
    /// Before each step, `agree` gets true if this rank has an item, and returns true if all ranks
    /// have one: a collective of the training framework, such as an all-reduce of the minimum. If
    /// one rank has none, the epoch ends on all ranks, and items that are ready are dropped. So no
    /// rank waits in a collective step for a rank that has ended.
    ///
    /// Every rank calls `agree` equally often, once for each step and once at the end, as long as
    /// every rank takes items until the end. A rank whose item failed says that it has none, and
    /// gives the error; a rank for which `agree` fails gives its error. Costs one exchange a step.
    /// If all steps are [known](crate::DataLoader::steps), take the fewest instead.
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
    ///     let builder = DataLoader::builder(graph).rank(rank, 2).uneven(Uneven::Drop).ranks_agree();
    ///     let loader = builder.workers(0).build().unwrap();
    ///     loader.epoch(0).blocking().agreed(all_have).map(Result::unwrap).count()
    /// };
    /// let counts = std::thread::scope(|scope| {
    ///     let other = scope.spawn(|| steps(1));
    ///     [steps(0), other.join().unwrap()]
    /// });
    /// assert_eq!(counts, [6, 6]);
    /// ```
    ///
    /// # Errors
    /// The error of `agree`, as the last item: the step was not taken, and the item that was
    /// ready for it comes again. Of [`Config`](crate::ErrorKind::Config), if `agree` says that all
    /// ranks have an item where this one was said to have none.
    pub fn agreed<F>(self, agree: F) -> Agreed<T, E, F>
    where
        F: FnMut(bool) -> Result<bool, E>,
    {
        Agreed::new(self.0, agree)
    }
}

impl<T: Send + 'static, E> Epoch<T, E> {
    /// Returns the epoch as a stream that ends on all ranks at once: as [`Blocking::agreed`], with
    /// an `agree` that is awaited. A box is allocated for each step.
    ///
    /// # Errors
    /// Fails as [`Blocking::agreed`] does.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph};
    /// use futures::TryStreamExt;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), datapipes::BoxError> {
    /// let loader = DataLoader::builder(Graph::range(0..10)).build()?;
    /// // The others have three.
    /// let mut left = 3;
    /// let epoch = loader.epoch(0).agreed(|mine| {
    ///     left -= 1;
    ///     let all = mine && left >= 0;
    ///     async move { Ok(all) } // a collective
    /// });
    /// assert_eq!(epoch.try_collect::<Vec<_>>().await?, [0, 1, 2]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn agreed<F, A>(self, agree: F) -> Agreed<T, E, F, A>
    where
        F: FnMut(bool) -> A,
        A: Future<Output = Result<bool, E>>,
    {
        Agreed::new(self, agree)
    }
}

impl<T: Send + 'static, E, F, A> Agreed<T, E, F, A> {
    fn new(mut epoch: Epoch<T, E>, agree: F) -> Self {
        epoch.will_agree();
        Agreed {
            epoch,
            agree,
            asked: None,
            ended: false,
        }
    }

    /// Returns a checkpoint of the epoch after the last item given, also while ranks agree on the
    /// next; at the end that all agreed on, it is finished. See [`Epoch::checkpoint`].
    ///
    /// # Errors
    /// Fails as [`Epoch::checkpoint`] does.
    pub fn checkpoint(&self) -> Result<Checkpoint, E> {
        self.epoch.checkpoint_before(matches!(
            &self.asked,
            Some(Asked {
                next: Some(Ok(_)),
                ..
            })
        ))
    }

    /// Returns the result of a step from the item, or its absence, and the answer of the ranks; the
    /// epoch has ended unless the result is an item.
    fn settled(
        &mut self,
        next: Option<Result<T, E>>,
        agreed: Result<bool, E>,
    ) -> Option<Result<T, E>> {
        let settled = match (next, agreed) {
            (Some(Ok(item)), Ok(true)) => return Some(Ok(item)),
            (Some(Ok(_)), Ok(false)) => {
                self.epoch.end_without_last();
                None
            }
            (Some(Ok(_)), Err(error)) => {
                // The step was not taken; a checkpoint is from before the item.
                self.epoch.fail_last();
                Some(Err(error))
            }
            (Some(Err(error)), _) | (None, Err(error)) => Some(Err(error)),
            // The epoch has ended by itself, and knows whether its data or its budget ended.
            (None, Ok(false)) => None,
            // The other ranks were told that there is no item.
            (None, Ok(true)) => Some(Err(self.epoch.wrapped(contradicted()))),
        };
        self.ended = true;
        settled
    }

    /// Returns the bounds of the size hint: the agreement may add an error, and may be about an
    /// item that is there already.
    fn at_most(&self) -> (usize, Option<usize>) {
        let asked = matches!(&self.asked, Some(Asked { next: Some(_), .. }));
        let most = Stream::size_hint(&self.epoch).1;
        (
            0,
            if self.ended {
                Some(0)
            } else {
                most.and_then(|most| most.checked_add(1 + usize::from(asked)))
            },
        )
    }
}

fn contradicted() -> Error {
    let message = "ranks went on with a step for which this one has no item: `agree` has to say whether all have one";
    Error::config(message)
}

impl<T, E, F> Iterator for Agreed<T, E, F>
where
    T: Send + 'static,
    F: FnMut(bool) -> Result<bool, E>,
{
    type Item = Result<T, E>;

    fn next(&mut self) -> Option<Result<T, E>> {
        if self.ended {
            return None;
        }
        let next = self
            .epoch
            .wait_next()
            .map(|item| item.map(Item::into_inner));
        let agreed = (self.agree)(matches!(next, Some(Ok(_))));
        self.settled(next, agreed)
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.at_most()
    }
}

impl<T, E, F, A> Unpin for Agreed<T, E, F, A> {}

impl<T, E, F, A> Stream for Agreed<T, E, F, A>
where
    T: Send + 'static,
    F: FnMut(bool) -> A,
    A: Future<Output = Result<bool, E>>,
{
    type Item = Result<T, E>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Option<Result<T, E>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        if this.asked.is_none() {
            let next = ready!(Pin::new(&mut this.epoch).poll_next(cx));
            let agree = Box::pin((this.agree)(matches!(next, Some(Ok(_)))));
            this.asked = Some(Asked { next, agree });
        }
        let asked = this.asked.as_mut().expect("it was asked above");
        let (agreed, next) = (ready!(asked.agree.as_mut().poll(cx)), asked.next.take());
        this.asked = None;
        Poll::Ready(this.settled(next, agreed))
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.at_most()
    }
}

opaque_debug!(Agreed<T, E, F, A> { epoch, ended });

#[cfg(test)]
mod tests;
