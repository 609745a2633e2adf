//! Ranks that agree before each step whether there is another.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{self, Poll, ready};

use futures::Stream;

use super::{Blocking, Checkpoint, DeviceBlocking, DeviceEpoch, Epoch};
use crate::{Error, Result};

/// An epoch that ends on all ranks at once, as an iterator; see [`Blocking::agreed`].
#[must_use = "an epoch does nothing until it is iterated"]
pub struct Agreed<E, F> {
    epoch: E,
    agree: F,
    ended: bool,
}

/// What can end where ranks agree on it.
pub trait Ends {
    /// Ranks will agree before each step.
    fn will_agree(&mut self);
    /// Of no use: the item comes again.
    fn fail_last(&mut self);
    /// There is no step for the item, nor for what would come behind it.
    fn end_without_last(&mut self);
    /// Where it stands, or where it stood before the last item if that goes `back`.
    fn state_before(&self, back: bool) -> Result<Checkpoint>;
}

macro_rules! ends {
    ($epoch:ident<$($type:ident),*>, $($to:tt)*) => {
        impl<$($type: Send + 'static),*> Ends for $epoch<$($type),*> {
            fn will_agree(&mut self) {
                self$($to)*.will_agree();
            }
            fn fail_last(&mut self) {
                self.fail_last();
            }
            fn end_without_last(&mut self) {
                self.end_without_last();
            }
            fn state_before(&self, back: bool) -> Result<Checkpoint> {
                self$($to)*.state_before(back)
            }
        }
    };
}

ends!(Epoch<T>,);
ends!(DeviceEpoch<T, U>,);
ends!(Blocking<T>, .0);
ends!(DeviceBlocking<T, U>, .0);

impl<T: Send + 'static> Blocking<T> {
    /// The epoch, which ends on all ranks at once: for data of which nobody knows beforehand how
    /// many steps it makes, such as the samples of a rank's archives. Before each step, `agree` is
    /// told whether this rank has an item for it, and says whether all ranks have: a collective of
    /// the training framework, such as an all-reduce of the minimum. If one has none, the epoch
    /// ends on all of them, and what the others had ready is dropped. So no rank waits in a
    /// collective step for one that has ended.
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
    /// What `agree` fails with, as the last item: the step was not taken, and the item that was
    /// ready for it comes again. Of [`Config`](crate::ErrorKind::Config), if `agree` says that all
    /// ranks have an item where this one was said to have none.
    pub fn agreed<F>(self, agree: F) -> Agreed<Self, F>
    where
        F: FnMut(bool) -> Result<bool>,
    {
        Agreed::new(self, agree)
    }
}

impl<T: Send + 'static, U: Send + 'static> DeviceBlocking<T, U> {
    /// The epoch, which ends on all ranks at once: as [`Blocking::agreed`], with batches that are
    /// on the device. Those that others have no step for do not count as delivered, and are
    /// dropped.
    ///
    /// # Errors
    /// As [`Blocking::agreed`].
    ///
    /// # Examples
    /// ```
    /// use datapipes::{BoxError, DataLoader, Graph};
    ///
    /// let loader = DataLoader::builder(Graph::range(0..10)).resumable().build()?;
    /// let on_device = loader.prefetch_to_device(Ok::<_, BoxError>);
    /// // The others have three.
    /// let mut left = 3;
    /// let mut epoch = on_device.epoch(0).blocking().agreed(|mine| {
    ///     left -= 1;
    ///     Ok(mine && left >= 0)
    /// });
    /// assert_eq!(epoch.by_ref().collect::<datapipes::Result<Vec<_>>>()?, [0, 1, 2]);
    /// assert!(epoch.checkpoint()?.is_finished());
    /// # Ok::<(), BoxError>(())
    /// ```
    pub fn agreed<F>(self, agree: F) -> Agreed<Self, F>
    where
        F: FnMut(bool) -> Result<bool>,
    {
        Agreed::new(self, agree)
    }
}

impl<E: Ends, F> Agreed<E, F> {
    fn new(mut epoch: E, agree: F) -> Self {
        epoch.will_agree();
        Agreed {
            epoch,
            agree,
            ended: false,
        }
    }

    /// Where the epoch stands, behind the last item given; at the end that all agreed on, it is
    /// finished. See [`Epoch::checkpoint`].
    ///
    /// # Errors
    /// As [`Epoch::checkpoint`].
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        self.epoch.state_before(false)
    }
}

impl<T, E, F> Iterator for Agreed<E, F>
where
    E: Iterator<Item = Result<T>> + Ends,
    F: FnMut(bool) -> Result<bool>,
{
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        if self.ended {
            return None;
        }
        let next = self.epoch.next();
        let agreed = (self.agree)(matches!(next, Some(Ok(_))));
        let next = settled(&mut self.epoch, next, agreed);
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        at_most(self.epoch.size_hint().1, self.ended, false)
    }
}

/// What an agreement makes of the most that can come: it may fail once besides, and be about one
/// that is there already.
fn at_most(most: Option<usize>, ended: bool, asked: bool) -> (usize, Option<usize>) {
    (
        0,
        if ended {
            Some(0)
        } else {
            most.and_then(|most| most.checked_add(1 + usize::from(asked)))
        },
    )
}

/// What comes of an item, or of its absence, and of what the ranks say to it; the epoch has ended
/// unless it is an item.
fn settled<T>(
    epoch: &mut impl Ends,
    next: Option<Result<T>>,
    agreed: Result<bool>,
) -> Option<Result<T>> {
    match (next, agreed) {
        (Some(Ok(item)), Ok(true)) => Some(Ok(item)),
        (Some(Ok(_)), Ok(false)) => {
            epoch.end_without_last();
            None
        }
        (Some(Ok(_)), Err(error)) => {
            // The step was not taken; a state is one from before it.
            epoch.fail_last();
            Some(Err(error))
        }
        (Some(Err(error)), _) => Some(Err(error)),
        // It has ended by itself, and knows whether by its data or its budget.
        (None, Ok(false)) => None,
        (None, Err(error)) => Some(Err(error)),
        // The others were told that there is none.
        (None, Ok(true)) => Some(Err(contradicted())),
    }
}

fn contradicted() -> Error {
    let message = "ranks went on with a step for which this one has no item: `agree` has to say whether all have one";
    Error::new(crate::ErrorKind::Config, message)
}

impl<E, F> fmt::Debug for Agreed<E, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agreed")
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// An epoch that ends on all ranks at once, as a stream; see [`Epoch::agreed`].
#[must_use = "an epoch does nothing until it is polled"]
pub struct AgreedStream<E: Stream, F, A> {
    epoch: E,
    agree: F,
    asked: Option<Asked<E::Item, A>>,
    ended: bool,
}

/// What came, if anything did, and what the ranks say to it.
struct Asked<I, A> {
    next: Option<I>,
    agree: Pin<Box<A>>,
}

impl<T: Send + 'static> Epoch<T> {
    /// The epoch as a stream that ends on all ranks at once: as [`Blocking::agreed`], with an
    /// `agree` that is awaited. A box is allocated for each step.
    ///
    /// # Errors
    /// As [`Blocking::agreed`].
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
    pub fn agreed<F, A>(self, agree: F) -> AgreedStream<Self, F, A>
    where
        F: FnMut(bool) -> A,
        A: Future<Output = Result<bool>>,
    {
        AgreedStream::new(self, agree)
    }
}

impl<T: Send + 'static, U: Send + 'static> DeviceEpoch<T, U> {
    /// The epoch as a stream that ends on all ranks at once; see [`Epoch::agreed`] and
    /// [`DeviceBlocking::agreed`].
    ///
    /// # Errors
    /// As [`Blocking::agreed`].
    pub fn agreed<F, A>(self, agree: F) -> AgreedStream<Self, F, A>
    where
        F: FnMut(bool) -> A,
        A: Future<Output = Result<bool>>,
    {
        AgreedStream::new(self, agree)
    }
}

impl<T, E: Stream<Item = Result<T>> + Ends, F, A> AgreedStream<E, F, A> {
    fn new(mut epoch: E, agree: F) -> Self {
        epoch.will_agree();
        AgreedStream {
            epoch,
            agree,
            asked: None,
            ended: false,
        }
    }

    /// Where the epoch stands, behind the last item given, also while ranks agree on the next; at
    /// the end that all agreed on, it is finished. See [`Epoch::checkpoint`].
    ///
    /// # Errors
    /// As [`Epoch::checkpoint`].
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        self.epoch.state_before(matches!(
            &self.asked,
            Some(Asked {
                next: Some(Ok(_)),
                ..
            })
        ))
    }
}

impl<E: Stream, F, A> Unpin for AgreedStream<E, F, A> {}

impl<T, E, F, A> Stream for AgreedStream<E, F, A>
where
    E: Stream<Item = Result<T>> + Ends + Unpin,
    F: FnMut(bool) -> A,
    A: Future<Output = Result<bool>>,
{
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Option<Result<T>>> {
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
        let next = settled(&mut this.epoch, next, agreed);
        this.ended = !matches!(next, Some(Ok(_)));
        Poll::Ready(next)
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        let asked = matches!(&self.asked, Some(Asked { next: Some(_), .. }));
        at_most(self.epoch.size_hint().1, self.ended, asked)
    }
}

impl<E: Stream, F, A> fmt::Debug for AgreedStream<E, F, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgreedStream")
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
