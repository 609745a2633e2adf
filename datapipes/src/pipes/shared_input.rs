//! One input that several outputs share: the output that is polled drives it, and items for the
//! others wait in bounded buffers.
//!
//! - Nobody blocks: an output that finds the input driven by another thread registers its waker and
//!   is woken.
//! - The input is polled with a waker that wakes every waiting output, so an output that is dropped
//!   or that rests takes no wake-up with it.
//! - An output that was dropped gets nothing any more, and holds up nobody.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{self, Poll, Wake, Waker};

use futures::StreamExt;

use crate::{Chunk, Chunks, Context, Demand, Error, Item, Items, Result, Wanted};

/// Selects the outputs for an item, and hands it to them.
pub(super) trait Deal<T>: Send + 'static {
    /// True if an item goes to one output only, so that an error is the failure of one item.
    fn goes_to_one(&self) -> bool;
    fn deal(&mut self, item: Item<T>, to: &mut Queues<T>) -> Result<()>;
}

/// Makes the outputs of `input`; at most `buffer` items wait in each.
pub(super) fn share<T: Send + 'static>(
    input: Items<T>,
    outputs: usize,
    buffer: usize,
    deal: impl Deal<T>,
    cx: &Context,
) -> Vec<Items<T>> {
    let outs = (0..outputs).map(|_| Out::default()).collect();
    let queues = Queues {
        queues: (0..outputs).map(|_| VecDeque::new()).collect(),
        dealt: vec![0; outputs],
        wanted: None,
        outs: Arc::new(Outs {
            outs,
            missed: AtomicBool::new(false),
        }),
    };
    let outs = queues.outs.clone();
    let state = SharedInput {
        input: Some(input),
        queues,
        deal: Box::new(deal),
        buffer,
        cx: cx.clone(),
    };
    let state = Arc::new(Mutex::new(state));
    (0..outputs)
        .map(|index| {
            Items::from_chunks(OutputStream {
                state: state.clone(),
                outs: outs.clone(),
                index,
            })
        })
        .collect()
}

/// State of the outputs that is accessible without holding the input.
struct Outs {
    outs: Vec<Out>,
    /// True if an output found the input driven by another, and waits to be woken.
    missed: AtomicBool,
}

#[derive(Default)]
struct Out {
    reader: Mutex<Reader>,
    closed: AtomicBool,
}

#[derive(Default)]
struct Reader {
    waker: Option<Waker>,
    /// True if the output waited, was woken, and has not come back yet.
    coming: bool,
}

impl Outs {
    fn is_open(&self, index: usize) -> bool {
        !self.outs[index].closed.load(Ordering::Acquire)
    }

    fn reader(&self, index: usize) -> MutexGuard<'_, Reader> {
        let reader = self.outs[index].reader.lock();
        reader.unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_others(&self, index: usize) {
        for other in (0..self.outs.len()).filter(|&other| other != index) {
            let waker = {
                let mut reader = self.reader(other);
                reader.coming |= reader.waker.is_some();
                reader.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Wake for Outs {
    fn wake(self: Arc<Self>) {
        self.wake_others(usize::MAX);
    }
}

/// Items that wait for each output.
pub(super) struct Queues<T> {
    queues: Vec<VecDeque<Result<Item<T>>>>,
    /// Number of items dealt to each since the epoch began.
    dealt: Vec<u64>,
    /// Wanted positions of each, in a resumed epoch; `None` before the first item.
    wanted: Option<Vec<Option<Wanted>>>,
    outs: Arc<Outs>,
}

impl<T> Queues<T> {
    /// Returns the outputs that are still read.
    pub(super) fn open(&self) -> impl DoubleEndedIterator<Item = usize> + use<T> {
        let outs = self.outs.clone();
        (0..self.queues.len()).filter(move |&index| outs.is_open(index))
    }

    pub(super) fn count(&self) -> usize {
        self.queues.len()
    }

    pub(super) fn push(&mut self, index: usize, item: Item<T>) {
        self.put(index, Ok(item));
    }

    fn put(&mut self, index: usize, item: Result<Item<T>>) {
        let place = self.dealt[index];
        self.dealt[index] += 1;
        let wanted = self
            .wanted
            .as_ref()
            .and_then(|wanted| wanted[index].as_ref());
        // An error that ends the stream is wanted anywhere.
        let is_end = item.as_ref().is_err_and(|error| !error.is_about_an_item());
        if self.outs.is_open(index)
            && (is_end || wanted.is_none_or(|wanted| wanted.contains(place)))
        {
            self.queues[index].push_back(item);
        }
    }

    /// Gives an error that belongs to no output in particular to all; the others get its text. If it
    /// counts `once`, the first copy that is read counts.
    fn push_error(&mut self, error: Error, once: bool) {
        let is_known = error.node().is_some() && error.item().is_some();
        let mut open = self.open();
        let Some(first) = open.next() else { return };
        let error = match once && is_known {
            true => error.counted_once(),
            false => error,
        };
        for index in open {
            let copy = error.copied();
            let is_echo = once && !is_known;
            self.put(index, Err(if is_echo { copy.echo() } else { copy }));
        }
        self.put(first, Err(error));
    }
}

struct SharedInput<T> {
    /// `None` once it has ended.
    input: Option<Items<T>>,
    queues: Queues<T>,
    deal: Box<dyn Deal<T>>,
    buffer: usize,
    cx: Context,
}

struct OutputStream<T> {
    state: Arc<Mutex<SharedInput<T>>>,
    outs: Arc<Outs>,
    index: usize,
}

impl<T: Send + 'static> OutputStream<T> {
    fn try_lock(&self) -> Option<MutexGuard<'_, SharedInput<T>>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<T: Send + 'static> Chunks<T> for OutputStream<T> {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>> {
        *self.outs.reader(self.index) = Reader {
            waker: Some(cx.waker().clone()),
            coming: false,
        };
        let locked = self.try_lock().or_else(|| {
            // Set before the second try: the holder of the lock sees it when it lets go.
            self.outs.missed.store(true, Ordering::SeqCst);
            self.try_lock()
        });
        let Some(mut state) = locked else {
            return Poll::Pending;
        };
        let Polled { items, progress } = state.poll(self.index, &self.outs, demand);
        drop(state);
        // The outputs have got items or room, or have found the lock taken.
        if self.outs.missed.swap(false, Ordering::SeqCst) || progress {
            self.outs.wake_others(self.index);
        }
        if items.is_ready() {
            // This output has its items, so a wake-up by another output is no longer needed.
            *self.outs.reader(self.index) = Reader::default();
        }
        items.map(|items| if items.is_empty() { None } else { Some(items) })
    }
}

impl<T> Drop for OutputStream<T> {
    fn drop(&mut self) {
        self.outs.outs[self.index]
            .closed
            .store(true, Ordering::Release);
        if let Ok(mut state) = self.state.try_lock() {
            state.queues.queues[self.index].clear();
        }
        self.outs.wake_others(self.index);
    }
}

struct Polled<T> {
    /// Items that the output gets now; an empty chunk at the end.
    items: Poll<Chunk<T>>,
    /// True if something changed that another output may wait for.
    progress: bool,
}

impl<T: Send + 'static> SharedInput<T> {
    fn poll(&mut self, index: usize, outs: &Arc<Outs>, demand: Demand) -> Polled<T> {
        for closed in (0..outs.outs.len()).filter(|&other| !outs.is_open(other)) {
            self.queues.queues[closed].clear();
        }
        let mut progress = false;
        while self.queues.queues[index].is_empty() && self.input.is_some() {
            let full = self
                .queues
                .open()
                .find(|&o| o != index && self.queues.queues[o].len() >= self.buffer);
            match full {
                None => {
                    let (waits, dealt) = self.drive(index, outs, demand);
                    progress |= dealt;
                    if waits && self.queues.queues[index].is_empty() {
                        return Polled {
                            items: Poll::Pending,
                            progress,
                        };
                    }
                }
                // It will be read soon, or nobody waits here.
                Some(full) if demand.ahead || outs.reader(full).coming => {
                    return Polled {
                        items: Poll::Pending,
                        progress,
                    };
                }
                Some(full) => {
                    // Unless the input happens to be at its end, this would wait for ever.
                    match self.poll_input(outs) {
                        Poll::Pending => {
                            return Polled {
                                items: Poll::Pending,
                                progress,
                            };
                        }
                        Poll::Ready(None) => break,
                        Poll::Ready(Some(_)) => {}
                    }
                    let message = format!(
                        "output {index} ran {} items ahead of output {full}, which nobody reads meanwhile; make \
                         the buffer larger, or read the outputs side by side",
                        self.buffer
                    );
                    self.queues.put(index, Err(Error::config(message)));
                    self.input = None;
                    progress = true;
                }
            }
        }
        let queue = &mut self.queues.queues[index];
        // An output that ran ahead waits for room.
        progress |= queue.len() >= self.buffer;
        let most = queue.len().min(demand.max);
        Polled {
            items: Poll::Ready(queue.drain(..most).collect::<Chunk<T>>()),
            progress,
        }
    }

    /// Returns the next item of the input; a panic of the input is an error at its end.
    fn poll_input(&mut self, outs: &Arc<Outs>) -> Poll<Option<Result<Item<T>>>> {
        let Some(input) = &mut self.input else {
            return Poll::Ready(None);
        };
        let waker = Waker::from(outs.clone());
        let mut cx = task::Context::from_waker(&waker);
        let polled = catch_unwind(AssertUnwindSafe(|| input.poll_next_unpin(&mut cx)));
        if !matches!(polled, Ok(Poll::Pending | Poll::Ready(Some(_)))) {
            self.input = None;
        }
        polled.unwrap_or_else(|payload| {
            Poll::Ready(Some(Err(Error::panic(payload).at(self.cx.node()))))
        })
    }

    /// Takes the ready items from the input, until the output has enough or another output's buffer
    /// is full. Returns whether the input had no more for now, and whether it had anything.
    fn drive(&mut self, index: usize, outs: &Arc<Outs>, demand: Demand) -> (bool, bool) {
        let mut dealt = false;
        if self.queues.wanted.is_none()
            && let Some(outputs) = self.cx.wanted_of_outputs()
        {
            let (places, wanted) = outputs.into_iter().unzip();
            (self.queues.dealt, self.queues.wanted) = (places, Some(wanted));
        }
        while self.queues.queues[index].len() < demand.max
            && self
                .queues
                .open()
                .all(|other| other == index || self.queues.queues[other].len() < self.buffer)
        {
            let Queues { dealt: places, .. } = &self.queues;
            self.cx.snapshot_with(|held| held.outputs(places.clone()));
            let ahead = demand.ahead || !self.queues.queues[index].is_empty();
            match (Demand { ahead, ..demand }).scope(|| self.poll_input(outs)) {
                Poll::Pending => return (true, dealt),
                Poll::Ready(None) => return (false, true),
                Poll::Ready(Some(item)) => {
                    dealt = true;
                    let SharedInput { queues, deal, .. } = self;
                    let dealing =
                        AssertUnwindSafe(|| item.and_then(|item| deal.deal(item, queues)));
                    if let Err(error) = catch_unwind(dealing).unwrap_or_else(|payload| {
                        self.input = None;
                        Err(Error::panic(payload).at(self.cx.node()))
                    }) {
                        self.queues.push_error(error, self.deal.goes_to_one());
                    }
                }
            }
        }
        (false, dealt)
    }
}
