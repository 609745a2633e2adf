//! The queue between two threads of one process.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::{Limits, Put, Take, Weight};
use crate::sync::lock;

/// Makes a queue between two threads. Its lock is held for a few instructions at a time, and never
/// during a wait.
pub(crate) fn thread<M: Send>(limits: Limits) -> (ThreadPut<M>, ThreadTake<M>) {
    queue(limits, None)
}

/// Makes a queue that says in `arrivals` under its number if there is something to take. Its reader
/// waits there, not at the queue.
pub(crate) fn arriving<M: Send>(
    limits: Limits,
    arrivals: &Arc<Arrivals>,
    number: u64,
) -> (ThreadPut<M>, ThreadTake<M>) {
    queue(limits, Some((arrivals.clone(), number)))
}

fn queue<M: Send>(
    limits: Limits,
    arrivals: Option<(Arc<Arrivals>, u64)>,
) -> (ThreadPut<M>, ThreadTake<M>) {
    let state = QueueState {
        messages: VecDeque::new(),
        held: Weight::default(),
        limits,
        put_gone: false,
        take_gone: false,
        put_waits: None,
        take_waits: None,
        wanted: 1,
        arrivals,
        arrived: false,
    };
    let shared = Arc::new(Mutex::new(state));
    (ThreadPut(shared.clone()), ThreadTake(shared))
}

/// The queues of one reader that have something to take, so that it need not look at all of them.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(Mutex<ArrivalsState>);

#[derive(Debug, Default)]
struct ArrivalsState {
    /// Numbers of the queues that have got something, or have ended, since it found them empty.
    numbers: Vec<u64>,
    /// Number of items in one queue below which the reader need not be woken.
    wanted: usize,
    waits: Option<Waker>,
}

impl Arrivals {
    /// Takes the numbers of the queues that have something new. The task is woken when one has
    /// `wanted` items, ends, or flushes.
    pub(crate) fn take(&self, cx: &Context<'_>, wanted: usize) -> Vec<u64> {
        let mut state = lock(&self.0);
        state.wanted = wanted;
        wait(&mut state.waits, cx);
        std::mem::take(&mut state.numbers)
    }
}

#[derive(Debug)]
struct QueueState<M> {
    messages: VecDeque<(M, Weight)>,
    held: Weight,
    limits: Limits,
    put_gone: bool,
    take_gone: bool,
    put_waits: Option<Waker>,
    take_waits: Option<Waker>,
    /// Number of items below which the other end need not be woken.
    wanted: usize,
    /// Place where the reader of several queues waits, and the number of this one.
    arrivals: Option<(Arc<Arrivals>, u64)>,
    /// True if the reader knows, or finds there, that this queue has something or has ended.
    arrived: bool,
}

impl<M> QueueState<M> {
    /// Records that there is something, or the end. Returns the waker of a reader that is content
    /// with so many items.
    fn arrive(&mut self, items: usize) -> Option<Waker> {
        let Some((arrivals, number)) = &self.arrivals else {
            return self.take_waits.take_if(|_| items >= self.wanted);
        };
        let mut state = lock(&arrivals.0);
        if !std::mem::replace(&mut self.arrived, true) {
            state.numbers.push(*number);
        }
        let is_content = items >= state.wanted;
        state.waits.take_if(|_| is_content)
    }

    fn push(&mut self, message: M, weight: Weight) {
        self.held.items += weight.items;
        self.held.bytes += weight.bytes;
        self.messages.push_back((message, weight));
    }

    fn room(&self) -> usize {
        if self.messages.is_empty() {
            self.limits.items.max(1)
        } else if self.held.bytes >= self.limits.bytes {
            0
        } else {
            self.limits.items.saturating_sub(self.held.items)
        }
    }
}

fn wait(slot: &mut Option<Waker>, cx: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *slot = Some(cx.waker().clone()),
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[derive(Debug)]
pub(crate) struct ThreadPut<M>(Arc<Mutex<QueueState<M>>>);

impl<M: Send> Put<M> for ThreadPut<M> {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        let mut state = lock(&self.0);
        match state.room() {
            _ if state.take_gone => Poll::Ready(None),
            0 => {
                wait(&mut state.put_waits, cx);
                Poll::Pending
            }
            room => Poll::Ready(Some(room)),
        }
    }

    fn put(&mut self, message: M, weight: Weight) {
        let waker = {
            let mut state = lock(&self.0);
            if state.take_gone {
                // The message is dropped outside the lock: its `drop` may run any code.
                drop(state);
                return;
            }
            state.push(message, weight);
            let items = state.held.items;
            state.arrive(items)
        };
        wake(waker);
    }

    fn set_limits(&mut self, limits: Limits) {
        lock(&self.0).limits = limits;
    }
}

impl<M> ThreadPut<M> {
    /// Puts the last message, if there is one more, and ends the queue. Returns the waker of a reader
    /// that waits, for the caller to wake it, once, when all else is done that it has to find.
    pub(crate) fn end(&mut self, last: Option<(M, Weight)>) -> Option<Waker> {
        let mut state = lock(&self.0);
        if state.take_gone {
            // The message is dropped outside the lock: its `drop` may run any code.
            drop(state);
            return None;
        }
        if let Some((message, weight)) = last {
            state.push(message, weight);
        }
        state.put_gone = true;
        state.arrive(usize::MAX)
    }

    /// Wakes the waiting task at the other end, even if there are fewer items than it wants: no
    /// more come for now.
    pub(crate) fn flush(&mut self) {
        let mut state = lock(&self.0);
        let waker = match state.arrivals {
            // An empty queue is no news.
            Some(_) if !state.arrived => None,
            _ => state.arrive(usize::MAX),
        };
        drop(state);
        wake(waker);
    }
}

impl<M> Drop for ThreadPut<M> {
    fn drop(&mut self) {
        let waker = {
            let mut state = lock(&self.0);
            match std::mem::replace(&mut state.put_gone, true) {
                true => None,
                false => state.arrive(usize::MAX),
            }
        };
        wake(waker);
    }
}

#[derive(Debug)]
pub(crate) struct ThreadTake<M>(Arc<Mutex<QueueState<M>>>);

impl<M> ThreadTake<M> {
    /// Returns the next message. A waiting task is woken for `wanted` items, at the end, or when
    /// the other end flushes.
    pub(crate) fn poll_take_of(&mut self, cx: &Context<'_>, wanted: usize) -> Poll<Option<M>> {
        let (message, waker) = {
            let mut state = lock(&self.0);
            match state.messages.pop_front() {
                Some((message, weight)) => {
                    state.held.items -= weight.items;
                    state.held.bytes -= weight.bytes;
                    // Half a queue of room is worth a wake; one place is not.
                    let waker = if 2 * state.room() >= state.limits.items {
                        state.put_waits.take()
                    } else {
                        None
                    };
                    (message, waker)
                }
                None if state.put_gone => return Poll::Ready(None),
                None if state.arrivals.is_some() => {
                    state.arrived = false;
                    return Poll::Pending;
                }
                None => {
                    wait(&mut state.take_waits, cx);
                    state.wanted = wanted;
                    return Poll::Pending;
                }
            }
        };
        wake(waker);
        Poll::Ready(Some(message))
    }
}

impl<M: Send> Take<M> for ThreadTake<M> {
    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Option<M>> {
        self.poll_take_of(cx, 1)
    }

    fn held(&self) -> Weight {
        lock(&self.0).held
    }
}

impl<M> Drop for ThreadTake<M> {
    fn drop(&mut self) {
        let (waker, messages) = {
            let mut state = lock(&self.0);
            state.take_gone = true;
            (state.put_waits.take(), std::mem::take(&mut state.messages))
        };
        drop(messages);
        wake(waker);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::super::conformance::Count;
    use super::*;

    #[test]
    fn conforms() {
        super::super::conformance::run(|limits| {
            let (put, take) = thread(limits);
            (Box::new(put), Box::new(take))
        });
    }

    #[test]
    fn arriving_queues_conform() {
        let one = Weight { items: 1, bytes: 0 };
        let count = Arc::<Count>::default();
        let (waker, woken) = (Waker::from(count.clone()), || {
            count.0.load(Ordering::SeqCst)
        });
        let cx = Context::from_waker(&waker);
        let arrivals = Arc::<Arrivals>::default();
        let limits = Limits {
            items: 10,
            bytes: usize::MAX,
        };
        let (mut ends, mut takes): (Vec<_>, Vec<_>) =
            (0..3).map(|n| arriving(limits, &arrivals, n)).unzip();
        assert_eq!(arrivals.take(&cx, 2), [0; 0]);
        ends[1].put("a", one);
        assert_eq!(woken(), 0);
        ends[1].put("b", one);
        assert_eq!((woken(), arrivals.take(&cx, 2)), (1, vec![1]));
        // A queue is named once, until its reader has found it empty.
        assert_eq!(takes[1].poll_take_of(&cx, 1), Poll::Ready(Some("a")));
        ends[1].put("c", one);
        assert_eq!(arrivals.take(&cx, 2), [0; 0]);
        assert_eq!(takes[1].poll_take_of(&cx, 1), Poll::Ready(Some("b")));
        assert_eq!(takes[1].poll_take_of(&cx, 1), Poll::Ready(Some("c")));
        assert!(takes[1].poll_take_of(&cx, 1).is_pending());
        let before = woken();
        ends[2].put("d", one);
        ends[2].flush();
        assert_eq!((woken(), arrivals.take(&cx, 2)), (before + 1, vec![2]));
        drop(ends);
        assert_eq!((woken(), arrivals.take(&cx, 2)), (before + 2, vec![0, 1]));
        assert_eq!(takes[0].poll_take_of(&cx, 1), Poll::Ready(None));
    }

    #[test]
    fn who_wants_many_is_woken_for_those_or_when_no_more_come() {
        let count = Arc::<Count>::default();
        let (waker, woken) = (Waker::from(count.clone()), || {
            count.0.load(Ordering::SeqCst)
        });
        let cx = Context::from_waker(&waker);
        let one = Weight { items: 1, bytes: 0 };
        let (mut put, mut take) = thread(Limits {
            items: 10,
            bytes: usize::MAX,
        });
        assert!(take.poll_take_of(&cx, 3).is_pending());
        put.put(0, one);
        put.put(1, one);
        assert_eq!(woken(), 0);
        put.put(2, one);
        assert_eq!(woken(), 1);
        for n in 0..3 {
            assert_eq!(take.poll_take_of(&cx, 3), Poll::Ready(Some(n)));
        }
        assert!(take.poll_take_of(&cx, 3).is_pending());
        put.put(3, one);
        put.flush();
        assert_eq!(
            (woken(), take.poll_take_of(&cx, 3)),
            (2, Poll::Ready(Some(3)))
        );
        assert!(take.poll_take_of(&cx, 3).is_pending());
        put.put(4, one);
        drop(put);
        assert_eq!(
            (woken(), take.poll_take_of(&cx, 3)),
            (3, Poll::Ready(Some(4)))
        );
    }
}
