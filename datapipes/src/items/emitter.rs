//! Streams that are a loop which emits.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{self, Poll};

use futures::Stream;

use super::demand::{AHEAD, Demand};
use super::{Fill, Held, HeldPlace, Items};
use crate::checkpoint::HeldPositions;
use crate::sync::lock;
use crate::{Chunk, Context, Item, Result};

/// Output of the body of [`Items::generate`].
#[derive(Debug)]
pub struct Emitter<T>(Arc<Mutex<EmitSlot<T>>>);

#[derive(Debug)]
struct EmitSlot<T> {
    chunk: Chunk<T>,
    wanted: usize,
    /// The same of a single piece of work.
    together: usize,
}

impl<T> EmitSlot<T> {
    /// Returns the number of further items wanted now, at least 1.
    fn room(&self) -> usize {
        self.wanted.saturating_sub(self.chunk.len()).max(1)
    }

    /// Returns the same of a single piece of work.
    fn room_together(&self) -> usize {
        self.room()
            .max(self.together.saturating_sub(self.chunk.len()))
    }

    fn is_full(&self) -> bool {
        self.chunk.len() >= self.wanted
    }
}

impl<T: Send + 'static> Emitter<T> {
    /// Emits an item or an error, and waits while nobody wants more.
    pub async fn emit(&self, item: Result<Item<T>>) {
        let full = {
            let mut slot = lock(&self.0);
            slot.chunk.push(item);
            slot.is_full()
        };
        self.emitted(full).await;
    }

    /// Emits the items and errors of a chunk, and waits while nobody wants more. Costs less than to
    /// emit them one by one.
    pub async fn emit_chunk(&self, chunk: Chunk<T>) {
        if chunk.is_empty() {
            return;
        }
        let (full, more) = {
            let mut slot = lock(&self.0);
            let mut more = None;
            match slot.chunk.is_empty() {
                _ if chunk.len() > slot.room_together() => more = Some(chunk),
                true => slot.chunk = chunk,
                false => slot.chunk.extend(chunk),
            }
            (slot.is_full(), more)
        };
        match more {
            None => self.emitted(full).await,
            Some(chunk) => {
                for item in chunk {
                    self.emit(item).await;
                }
            }
        }
    }

    /// Waits while nobody wants more, if all that was wanted was emitted.
    async fn emitted(&self, full: bool) {
        // After the first item nobody waits for more.
        AHEAD.set(true);
        if full {
            let mut waited = false;
            // The stream is polled again only when somebody wants more, so a second poll is the
            // signal.
            std::future::poll_fn(|_| {
                if std::mem::replace(&mut waited, true) {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
        }
    }

    /// Emits an item or an error that is made of the inputs at these places, and releases them; see
    /// [`Held`].
    ///
    /// If items come in any order, this call records the inputs of the output. A pipe has to use it
    /// for every output if it [promises lineage](crate::Hints::lineage).
    pub async fn emit_of(
        &self,
        places: impl IntoIterator<Item = HeldPlace>,
        item: Result<Item<T>>,
    ) {
        HeldPlace::give(places);
        self.emit(item).await;
    }

    /// Takes a snapshot to go on from here: exactly the items emitted so far have come out, and
    /// exactly the items taken and not [held](Held) have gone in. Held items come again in a
    /// resumed epoch, so `state` need not include them. See [`Context::snapshot`].
    ///
    /// # Examples
    /// ```
    /// use datapipes::{Context, DataLoader, Graph, Held, Hints, Items, Pipe};
    ///
    /// /// Groups neighbours that are equal.
    /// struct Runs;
    ///
    /// impl Pipe<u64> for Runs {
    ///     type Out = (u64, usize);
    ///     fn apply(&self, mut input: Items<u64>, cx: &Context) -> Items<(u64, usize)> {
    ///         let cx = cx.clone();
    ///         Items::generate(async move |out| {
    ///             let mut run: Vec<Held<u64>> = Vec::new();
    ///             loop {
    ///                 out.snapshot(&cx, || ());
    ///                 let next = out.hold_from(&cx, &mut input).await;
    ///                 if let Some(first) = run.first()
    ///                     && next.as_ref().is_none_or(|next| ***next != ***first)
    ///                 {
    ///                     let len = run.len();
    ///                     let (mut items, places): (Vec<_>, Vec<_>) = run.drain(..).map(Held::into_parts).unzip();
    ///                     out.emit_of(places, Ok(items.swap_remove(0).map(|value| (value, len)))).await;
    ///                 }
    ///                 let Some(next) = next else { return };
    ///                 run.push(next);
    ///             }
    ///         })
    ///     }
    ///     fn hints(&self) -> Hints {
    ///         Hints::default().is_resumable(true)
    ///     }
    /// }
    ///
    /// let graph = Graph::from_vec(vec![5, 5, 7, 8, 8, 8]).pipe(Runs);
    /// let loader = DataLoader::builder(graph).resumable().build()?;
    /// let mut epoch = loader.epoch(0).blocking();
    /// assert_eq!(epoch.next().transpose()?, Some((5, 2)));
    /// let rest = loader.resume(&epoch.checkpoint()?)?.blocking();
    /// assert_eq!(rest.collect::<datapipes::Result<Vec<_>>>()?, [(7, 1), (8, 3)]);
    /// # #[cfg(feature = "testing")]
    /// datapipes::testing::check_pipe(&Runs, vec![5, 5, 5, 7, 8, 8, 8, 9]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn snapshot<S: crate::Wire>(&self, cx: &Context, state: impl FnOnce() -> S) {
        self.snapshot_encoded(cx, |_| crate::codec::pack(&state()));
    }

    /// Takes a snapshot for a pipe that records by [position](Context::position) which inputs it
    /// holds; see [`Context::snapshot_with`]. Prefer [`hold_from`](Emitter::hold_from) with
    /// [`emit_of`](Emitter::emit_of): errors have positions, too, so after an error inside a group
    /// of `len` items these are no longer the last `len` positions.
    #[inline]
    pub fn snapshot_with<S: crate::Wire>(
        &self,
        cx: &Context,
        state: impl FnOnce(&mut HeldPositions) -> S,
    ) {
        self.snapshot_encoded(cx, |held| crate::codec::pack(&state(held)));
    }

    #[inline]
    fn snapshot_encoded(
        &self,
        cx: &Context,
        write: impl FnOnce(&mut HeldPositions) -> Result<Vec<u8>>,
    ) {
        if cx.is_resumable() {
            let pending = lock(&self.0).chunk.len();
            cx.snapshot_encoded(pending, write);
        }
    }

    /// Returns the number of further items wanted now, at least 1.
    pub fn wanted(&self) -> usize {
        lock(&self.0).room()
    }

    /// Returns the number of further items wanted now if one piece of work makes them all, such as
    /// reading several files in a row: at least [`wanted`](Emitter::wanted). It is more where a second
    /// request may not begin before the first item was returned, as without workers. For
    /// [`emit_chunk`](Emitter::emit_chunk).
    pub fn wanted_together(&self) -> usize {
        lock(&self.0).room_together()
    }

    /// Returns the next item of an input; the errors before it are passed on.
    pub async fn next_from<In: Send + 'static>(&self, input: &mut Items<In>) -> Option<Item<In>> {
        loop {
            match std::future::poll_fn(|cx| Pin::new(&mut *input).poll_next(cx)).await? {
                Ok(item) => return Some(item),
                Err(error) => self.emit(Err(error)).await,
            }
        }
    }

    /// Returns the next item of an input, to be [held](Held) until it is emitted: for a pipe that
    /// groups, sorts or shuffles. The errors before it are passed on.
    ///
    /// `input` has to be a stream that the pipe was given, not another one made from it. Otherwise
    /// the next item is an error of kind `Config`, if checkpoints can be taken.
    pub async fn hold_from<In: Send + 'static>(
        &self,
        cx: &Context,
        input: &mut Items<In>,
    ) -> Option<Held<In>> {
        loop {
            let place = match HeldPlace::next(cx, input) {
                Ok(place) => place,
                Err(error) => {
                    self.emit(Err(error)).await;
                    return None;
                }
            };
            match std::future::poll_fn(|cx| Pin::new(&mut *input).poll_next(cx)).await? {
                Ok(item) => {
                    place.hold();
                    return Some(Held::new(item, place));
                }
                Err(error) => self.emit_of([place], Err(error)).await,
            }
        }
    }
}

/// The stream of [`Items::generate`](super::Items::generate), whose body emits its items.
pub(super) struct Generate<T, F, Fut> {
    state: GenerateState<F, Fut>,
    slot: Arc<Mutex<EmitSlot<T>>>,
}

enum GenerateState<F, Fut> {
    Fresh(F),
    Running(Pin<Box<Fut>>),
    Done,
}

impl<T, F, Fut> Generate<T, F, Fut> {
    pub(super) fn new(body: F) -> Self {
        Generate {
            state: GenerateState::Fresh(body),
            slot: Arc::new(Mutex::new(EmitSlot {
                chunk: Chunk::default(),
                wanted: 1,
                together: 1,
            })),
        }
    }
}

impl<T, F, Fut> Fill<T> for Generate<T, F, Fut>
where
    T: Send + 'static,
    F: FnOnce(Emitter<T>) -> Fut + Send,
    Fut: Future<Output = ()> + Send,
{
    fn fill(
        &mut self,
        cx: &mut task::Context<'_>,
        demand: Demand,
        chunk: &mut Chunk<T>,
    ) -> Poll<()> {
        {
            let mut slot = lock(&self.slot);
            (slot.wanted, slot.together) = (demand.max, demand.together);
        }
        loop {
            match &mut self.state {
                GenerateState::Fresh(_) => {
                    let GenerateState::Fresh(body) =
                        std::mem::replace(&mut self.state, GenerateState::Done)
                    else {
                        unreachable!("matched in the line above")
                    };
                    self.state = GenerateState::Running(Box::pin(body(Emitter(self.slot.clone()))));
                }
                GenerateState::Done => return Poll::Ready(()),
                GenerateState::Running(body) => {
                    let body = AssertUnwindSafe(|| demand.scope(|| body.as_mut().poll(cx)));
                    let ended = catch_unwind(body);
                    *chunk = std::mem::take(&mut lock(&self.slot).chunk);
                    return match ended {
                        Ok(Poll::Pending) => Poll::Pending,
                        Ok(Poll::Ready(())) => {
                            self.state = GenerateState::Done;
                            Poll::Ready(())
                        }
                        Err(payload) => resume_unwind(payload),
                    };
                }
            }
        }
    }
}
