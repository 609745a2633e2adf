//! The queue between two threads of one process.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::{Limits, Put, Take, Weight};
use crate::sync::lock;

/// Makes a queue between two threads. Its lock is held for a few instructions at a time, and never
/// during a wait.
pub(crate) fn thread<M: Send>(limits: Limits) -> (ThreadPut<M>, ThreadTake<M>) {
    let state = QueueState {
        messages: VecDeque::new(),
        held: Weight::default(),
        limits,
        put_gone: false,
        take_gone: false,
        put_waits: None,
        take_waits: None,
        wanted: 1,
    };
    let shared = Arc::new(Mutex::new(state));
    (ThreadPut(shared.clone()), ThreadTake(shared))
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
}

impl<M> QueueState<M> {
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
            state.held.items += weight.items;
            state.held.bytes += weight.bytes;
            state.messages.push_back((message, weight));
            if state.held.items >= state.wanted {
                state.take_waits.take()
            } else {
                None
            }
        };
        wake(waker);
    }

    fn set_limits(&mut self, limits: Limits) {
        lock(&self.0).limits = limits;
    }
}

impl<M> ThreadPut<M> {
    /// Wakes the waiting task at the other end, even if there are fewer items than it wants: no
    /// more come for now.
    pub(crate) fn flush(&mut self) {
        let waker = lock(&self.0).take_waits.take();
        wake(waker);
    }
}

impl<M> Drop for ThreadPut<M> {
    fn drop(&mut self) {
        let waker = {
            let mut state = lock(&self.0);
            state.put_gone = true;
            state.take_waits.take()
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
