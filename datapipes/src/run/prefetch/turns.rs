//! Turns of a thread and of the reader that it works for: which of them polls the upstream.

use std::ops::ControlFlow::{Break, Continue};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use super::{Filled, Need, QueueFiller};
use crate::Error;
use crate::graph::AnyChunk;
use crate::run::block_on_polls;
use crate::sync::lock;

/// Time for which a reader that polled by itself is away before the thread takes over. A reader
/// that comes back sooner has cost no wake of the thread.
const LOOK: Duration = Duration::from_micros(300);

/// Turns of thread and reader. Who polls the upstream takes it out, and puts it back.
pub(super) struct Turns {
    state: Mutex<TurnsState>,
    /// Wakes the thread.
    pub need: Need,
    /// While it is set, the thread polls nothing, and the reader takes the upstream for good.
    here: Arc<AtomicBool>,
}

struct TurnsState {
    /// `None` while somebody polls it, and after the end.
    filler: Option<Box<QueueFiller>>,
    reader: ReaderTurn,
    /// Number of polls of the upstream by the reader.
    visits: u64,
    /// Wakes a reader that would poll the upstream, once the thread has not got it any more.
    wants: Option<task::Waker>,
    /// True if the thread sleeps until it is woken.
    sleeps: bool,
    closed: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum ReaderTurn {
    /// The reader lets the thread poll.
    Thread,
    /// The reader waits, woken by the upstream.
    Waits,
    /// The reader has what it waited for. It is likely to be back soon.
    Left,
}

/// Poller of the upstream for a reader that has to wait.
pub(super) enum Start {
    /// The reader.
    Ours(Box<QueueFiller>),
    /// The reader, when the thread has done what it is at.
    Soon,
    /// The thread, once it is woken.
    Theirs,
}

impl Turns {
    pub(super) fn new(filler: QueueFiller, here: Arc<AtomicBool>) -> Self {
        let state = TurnsState {
            filler: Some(Box::new(filler)),
            reader: ReaderTurn::Thread,
            visits: 0,
            wants: None,
            sleeps: false,
            closed: false,
        };
        Turns {
            state: Mutex::new(state),
            need: Need::default(),
            here,
        }
    }

    /// Begins the wait of a reader, who polls the upstream `itself`, or lets the thread.
    pub(super) fn start(&self, cx: &task::Context<'_>, itself: bool) -> Start {
        if !itself {
            self.let_thread();
            return Start::Theirs;
        }
        let mut state = lock(&self.state);
        state.reader = ReaderTurn::Waits;
        state.visits += 1;
        match state.filler.take() {
            Some(filler) => Start::Ours(filler),
            None => {
                state.wants = Some(cx.waker().clone());
                Start::Soon
            }
        }
    }

    /// Lets the thread poll, if it does not yet.
    fn let_thread(&self) {
        let before = std::mem::replace(&mut lock(&self.state).reader, ReaderTurn::Thread);
        if before != ReaderTurn::Thread {
            self.need.wake();
        }
    }

    /// Records that a reader has what it waited for. A thread that looks by itself now and then is
    /// not woken.
    pub(super) fn leave(&self, filler: Option<Box<QueueFiller>>) {
        let sleeps = {
            let mut state = lock(&self.state);
            state.filler = filler.or(state.filler.take());
            state.reader = ReaderTurn::Left;
            std::mem::replace(&mut state.sleeps, false)
        };
        if sleeps {
            self.need.wake();
        }
    }

    /// Polls the upstream for a reader that waits.
    pub(super) fn poll_awaited(
        &self,
        cx: &mut task::Context<'_>,
        mut filler: Box<QueueFiller>,
    ) -> Poll<Option<AnyChunk>> {
        let last = match filler.poll_awaited(cx) {
            Poll::Pending => {
                lock(&self.state).filler = Some(filler);
                return Poll::Pending;
            }
            Poll::Ready(Filled::Chunk(chunk)) => {
                self.leave(Some(filler));
                return Poll::Ready(Some(chunk));
            }
            Poll::Ready(Filled::Last(chunk)) => Some(chunk),
            Poll::Ready(Filled::End) => None,
        };
        // As on its own thread, an upstream that panics as it goes costs no item.
        let gone = catch_unwind(AssertUnwindSafe(|| drop(filler)));
        let _ = gone.map_err(Error::panic);
        self.close();
        Poll::Ready(last)
    }

    /// Lets the thread end.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.need.wake();
    }

    /// Fills the queue on this thread, whenever it is its turn.
    pub(super) fn work_ahead(&self) {
        let mut look = Look::default();
        block_on_polls(|cx, _| match self.poll_thread(cx, &mut look) {
            Poll::Ready(()) => Break(()),
            Poll::Pending if look.is_due() => Continue(LOOK),
            Poll::Pending => Continue(Duration::MAX),
        });
    }

    fn poll_thread(&self, cx: &mut task::Context<'_>, look: &mut Look) -> Poll<()> {
        self.need.register(cx);
        loop {
            let mut filler = match self.thread_turn(look) {
                Turn::Poll(filler) => filler,
                Turn::Sleep => return Poll::Pending,
                Turn::End(filler) => {
                    drop(filler);
                    return Poll::Ready(());
                }
            };
            match filler.poll_ahead(cx, &self.need) {
                Poll::Ready(Filled::Chunk(chunk)) => {
                    filler.put(chunk);
                    self.put_down(filler, false);
                }
                Poll::Ready(last) => {
                    if let Filled::Last(chunk) = last {
                        filler.put(chunk);
                    }
                    return Poll::Ready(());
                }
                Poll::Pending => {
                    self.put_down(filler, true);
                    return Poll::Pending;
                }
            }
        }
    }

    /// Ends a poll by the thread, which sleeps then or goes on. A reader that has asked for the
    /// upstream meanwhile may have it.
    fn put_down(&self, filler: Box<QueueFiller>, sleeps: bool) {
        let wants = {
            let mut state = lock(&self.state);
            state.filler = Some(filler);
            state.sleeps = sleeps;
            state.wants.take()
        };
        wants.into_iter().for_each(task::Waker::wake);
    }

    fn thread_turn(&self, look: &mut Look) -> Turn {
        let mut state = lock(&self.state);
        state.sleeps = false;
        if state.closed {
            return Turn::End(state.filler.take());
        }
        if state.reader != ReaderTurn::Thread && !look.is_over(state.visits) {
            return Turn::Sleep;
        }
        look.since = None;
        if self.here.load(Ordering::SeqCst) {
            state.reader = ReaderTurn::Waits;
        }
        if state.reader != ReaderTurn::Waits {
            state.reader = ReaderTurn::Thread;
            if let Some(filler) = state.filler.take() {
                return Turn::Poll(filler);
            }
        }
        state.sleeps = true;
        Turn::Sleep
    }
}

/// Next step of the thread.
enum Turn {
    Poll(Box<QueueFiller>),
    Sleep,
    /// The end, with what is to be dropped there.
    End(Option<Box<QueueFiller>>),
}

/// Looks of the thread after a reader that polls by itself.
#[derive(Default)]
struct Look {
    /// Polls by the reader so far, and the time at which there were as many for the first time.
    visits: u64,
    since: Option<Instant>,
}

impl Look {
    /// Returns true if the reader has polled nothing for a while.
    fn is_over(&mut self, visits: u64) -> bool {
        match self.since {
            Some(since) if visits == self.visits => since.elapsed() >= LOOK,
            _ => {
                (self.visits, self.since) = (visits, Some(Instant::now()));
                false
            }
        }
    }

    /// Returns true if another one is to follow.
    fn is_due(&self) -> bool {
        self.since.is_some()
    }
}
