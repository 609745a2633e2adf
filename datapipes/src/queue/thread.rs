//! The queue between two threads of one process.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::{Limits, Put, Take, Weight};
use crate::sync::lock;

/// A queue between two threads. A lock is held for a few instructions at a time; nobody ever waits
/// with it.
pub(crate) fn thread<M: Send>(limits: Limits) -> (ThreadPut<M>, ThreadTake<M>) {
    let state = State {
        messages: VecDeque::new(),
        held: Weight::default(),
        limits,
        put_gone: false,
        take_gone: false,
        put_waits: None,
        take_waits: None,
    };
    let shared = Arc::new(Mutex::new(state));
    (ThreadPut(shared.clone()), ThreadTake(shared))
}

#[derive(Debug)]
struct State<M> {
    messages: VecDeque<(M, Weight)>,
    held: Weight,
    limits: Limits,
    put_gone: bool,
    take_gone: bool,
    put_waits: Option<Waker>,
    take_waits: Option<Waker>,
}

impl<M> State<M> {
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
pub(crate) struct ThreadPut<M>(Arc<Mutex<State<M>>>);

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
                // Outside the lock `message` is dropped: a message's own `drop` may do anything.
                drop(state);
                return;
            }
            state.held.items += weight.items;
            state.held.bytes += weight.bytes;
            state.messages.push_back((message, weight));
            state.take_waits.take()
        };
        wake(waker);
    }

    fn set_limits(&mut self, limits: Limits) {
        lock(&self.0).limits = limits;
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
pub(crate) struct ThreadTake<M>(Arc<Mutex<State<M>>>);

impl<M: Send> Take<M> for ThreadTake<M> {
    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Option<M>> {
        let (message, waker) = {
            let mut state = lock(&self.0);
            match state.messages.pop_front() {
                Some((message, weight)) => {
                    state.held.items -= weight.items;
                    state.held.bytes -= weight.bytes;
                    // Half a queue of room is worth waking a thread for; a place is not.
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
                    return Poll::Pending;
                }
            }
        };
        wake(waker);
        Poll::Ready(Some(message))
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
    use super::*;

    #[test]
    fn conforms() {
        super::super::conformance::run(|limits| {
            let (put, take) = thread(limits);
            (Box::new(put), Box::new(take))
        });
    }
}
