//! Waits for a future on this thread, with or without an async runtime around it.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

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

thread_local! {
    static PARKED: Arc<Parked> =
        Arc::new(Parked { thread: std::thread::current(), woken: AtomicBool::new(false) });
}

/// Waits for a future on this thread. Also works inside an async runtime, whose thread is then
/// blocked.
pub fn block_on<F: Future>(future: F) -> F::Output {
    block_on_unless(future, || Duration::MAX, || None)
}

/// Waits for a future as [`block_on`] does. Each time that nothing wakes it for a `quiet` time, calls
/// `give_up`, which may return an output instead.
pub(crate) fn block_on_unless<F: Future>(
    future: F,
    quiet: impl Fn() -> Duration,
    mut give_up: impl FnMut() -> Option<F::Output>,
) -> F::Output {
    let mut future = pin!(future);
    let parked = PARKED.with(Arc::clone);
    let waker = Waker::from(parked.clone());
    let mut cx = Context::from_waker(&waker);
    // A wake meant for an outer `block_on` of this thread may be taken by an inner one: poll once
    // without a wake, and leave a wake for the outer one on return.
    let output = 'woken: loop {
        parked.woken.store(false, Ordering::Release);
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            break output;
        }
        let (mut since, quiet) = (Instant::now(), quiet());
        while !parked.woken.load(Ordering::Acquire) {
            std::thread::park_timeout(quiet);
            if since.elapsed() >= quiet {
                if let Some(output) = give_up() {
                    break 'woken output;
                }
                since = Instant::now();
            }
        }
    };
    parked.woken.store(true, Ordering::Release);
    parked.thread.unpark();
    output
}
