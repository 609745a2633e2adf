//! Waits for a future on this thread, with or without an async runtime around it.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::ops::ControlFlow::{self, Break, Continue};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::{unconstrained, yield_now};

/// Longest pause on a thread where wakes may be put off until it is free.
const PUT_OFF: Duration = Duration::from_millis(1);

struct Parked {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::Release) {
            self.thread.unpark();
        }
    }
}

impl Parked {
    /// Waits for a wake, and at most so long. Returns true if there was one.
    fn park(&self, pause: Duration) -> bool {
        let since = Instant::now();
        while !self.woken.load(Ordering::Acquire) {
            let Some(left) = pause
                .checked_sub(since.elapsed())
                .filter(|left| !left.is_zero())
            else {
                return false;
            };
            std::thread::park_timeout(left);
        }
        true
    }
}

thread_local! {
    static PARKED: Arc<Parked> =
        Arc::new(Parked { thread: std::thread::current(), woken: AtomicBool::new(false) });
    /// True while this thread waits here although wakes may be put off until it is free.
    static ARE_PUT_OFF: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if this thread waits for polls whose wakes may be put off until it is free, as those
/// of tasks that yield: it then looks again now and then.
pub(crate) fn are_wakes_put_off() -> bool {
    ARE_PUT_OFF.get()
}

/// Waits for a future on this thread. Also works inside an async runtime, whose thread is then
/// blocked.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    block_on_polls(|cx, _| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Break(output),
        Poll::Pending => Continue(Duration::MAX),
    })
}

/// Polls on this thread until there is an output: each time that it is woken, and at the latest after
/// the pause that the last poll asked for. The poll is told if nothing has woken it. Where wakes may be
/// put off, that comes before the pause is over.
pub(crate) fn block_on_polls<T>(
    mut poll: impl FnMut(&mut Context<'_>, bool) -> ControlFlow<T, Duration>,
) -> T {
    let parked = PARKED.with(Arc::clone);
    let waker = Waker::from(parked.clone());
    let mut cx = Context::from_waker(&waker);
    let _restored = Restored(ARE_PUT_OFF.replace(puts_off_wakes(&parked, &mut cx)));
    let longest = match are_wakes_put_off() {
        true => PUT_OFF,
        false => Duration::MAX,
    };
    // A wake meant for an outer `block_on` of this thread may be taken by an inner one: poll once
    // without a wake, and leave a wake for the outer one on return.
    let mut is_over = false;
    let output = loop {
        parked.woken.store(false, Ordering::Release);
        match free(&mut cx, |cx| poll(cx, is_over)) {
            Break(output) => break output,
            Continue(pause) => is_over = !parked.park(pause.min(longest)),
        }
    };
    parked.woken.store(true, Ordering::Release);
    parked.thread.unpark();
    output
}

/// Polls without the share of polls that a task of an async runtime has before it is to give back
/// its thread, which a thread that waits here does not.
fn free<T>(cx: &mut Context<'_>, mut poll: impl FnMut(&mut Context<'_>) -> T) -> T {
    let polled = pin!(unconstrained(poll_fn(|cx| Poll::Ready(poll(cx))))).poll(cx);
    match polled {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("it is always ready"),
    }
}

/// Returns true on a thread of an async runtime that puts off some wakes, such as those of tasks that
/// yield, until it has its thread back. The thread may be woken by this, so a poll has to follow. It is
/// tried with the waker of the polls, since a runtime keeps each wake but those that are equal.
fn puts_off_wakes(parked: &Parked, cx: &mut Context<'_>) -> bool {
    Handle::try_current().is_ok() && {
        parked.woken.store(false, Ordering::Release);
        let _ = pin!(yield_now()).poll(cx);
        !parked.woken.load(Ordering::Acquire)
    }
}

/// Mark that the thread had before, and gets again.
struct Restored(bool);

impl Drop for Restored {
    fn drop(&mut self) {
        ARE_PUT_OFF.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_thread_of_a_runtime_no_share_of_polls_is_used_up_and_no_wake_is_waited_for() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let put_off = || block_on(poll_fn(|_| Poll::Ready(are_wakes_put_off())));
        assert!(!put_off());
        let count = runtime.block_on(async {
            assert!(put_off() && !are_wakes_put_off());
            let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
            (0..1000).for_each(|n| send.send(n).unwrap());
            drop(send);
            block_on(async {
                yield_now().await;
                let mut count = 0;
                while receive.recv().await.is_some() {
                    count += 1;
                }
                count
            })
        });
        assert_eq!(count, 1000);
    }

    #[test]
    fn a_pause_that_is_over_is_told_and_a_wake_is_not_taken_for_one() {
        let (mut polls, mut waker) = (Vec::new(), None);
        block_on_polls(|cx, is_over| {
            polls.push(is_over);
            match polls.len() {
                1 => Continue(Duration::from_millis(1)),
                2 => {
                    waker = Some(cx.waker().clone());
                    waker.iter().for_each(Waker::wake_by_ref);
                    Continue(Duration::ZERO)
                }
                _ => Break(()),
            }
        });
        assert_eq!(polls, [false, true, false]);
    }
}
