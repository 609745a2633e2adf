//! I/O that begins on its consumer's thread and goes on while the consumer does something else.
//!
//! A request that is not polled may hold a resource that others wait for: a permit, a lock, an
//! object that is fetched once for several readers. If the consumer then waits for one of those
//! others, as with two epochs read in turn by one thread, both would wait for ever. Therefore a
//! poll that ends with I/O in progress is continued to its next chunk on the async runtime: the
//! stream, with everything upstream of it, runs as blocking work. When dropped, it ends a moment
//! later, on the runtime.
//!
//! Work that seldom waits, such as reading files in the page cache, is done inside the poll, so that
//! nothing is in progress after it. Its items are made several at a time, until something waits.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{self, Poll, Wake, Waker, ready};
use std::time::Instant;

use futures::task::AtomicWaker;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

use super::prefetch::Need;
use super::scope::{Scope, Scoped};
use crate::graph::{AnyChunk, Edge, ErasedChunks};
use crate::items::Demand;
use crate::{Error, ErrorKind};

/// A stream with I/O in it, polled by its reader. Its next chunk arrives even if it is not polled
/// again.
pub(super) struct IoDriver {
    state: DriverState,
    /// Items that are made together; `None` if one at a time.
    together: Option<Together>,
    scope: Scope,
    edge: Arc<dyn Edge>,
    node: Arc<str>,
}

enum DriverState {
    Here(Box<dyn ErasedChunks>),
    Away(Away),
    /// The runtime was shut down while it had the stream. This is not an end: each poll reports it.
    Lost,
}

/// A chunk, or the end; and the stream with the last chunk that is made away.
type Returned = (Option<AnyChunk>, Option<Box<dyn ErasedChunks>>);

struct Away {
    task: JoinHandle<()>,
    back: UnboundedReceiver<Returned>,
    need: Arc<Need>,
}

/// Number of items of work that does not wait which are made in one poll.
struct Together {
    most: usize,
    watch: Arc<Watch>,
}

/// Most nanoseconds of work in one poll: as many as for a worker.
const TOGETHER_NS: u128 = 100_000;

/// Passes wakes on. Whatever waits holds a waker, and with it one more reference to this.
#[derive(Default)]
struct Watch(AtomicWaker);

impl Wake for Watch {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}

impl Together {
    fn new() -> Self {
        Together {
            most: 1,
            watch: Arc::default(),
        }
    }

    /// Polls for the next items, and learns how many to make in the next poll. If something waits,
    /// also returns how many items besides those of the chunk may be in progress.
    fn poll(
        &mut self,
        chunks: &mut dyn ErasedChunks,
        cx: &task::Context<'_>,
        demand: Demand,
    ) -> (Poll<Option<AnyChunk>>, Option<usize>) {
        let demand = demand.at_most(self.most);
        self.watch.0.register(cx.waker());
        let begun = Instant::now();
        let polled = {
            let waker = Waker::from(self.watch.clone());
            chunks.poll_chunk(&mut task::Context::from_waker(&waker), demand)
        };
        let made = match &polled {
            Poll::Ready(Some(chunk)) => chunk.len,
            Poll::Ready(None) => return (polled, None),
            Poll::Pending => 0,
        };
        if made == 0 || Arc::strong_count(&self.watch) > 1 {
            return (polled, Some(demand.max.saturating_sub(made)));
        }
        // Grows quickly, since what was made did not wait, and the time of the next ones is about
        // the same.
        let each = begun.elapsed().as_nanos() / made as u128;
        let worth = TOGETHER_NS / each.max(1);
        self.most = (2 * self.most).min(worth as usize).max(1);
        (polled, None)
    }
}

impl IoDriver {
    /// Drives a stream of I/O; its items may come together if the I/O `seldom_waits`.
    pub(super) fn new(
        chunks: Box<dyn ErasedChunks>,
        seldom_waits: bool,
        scope: Scope,
        edge: Arc<dyn Edge>,
        node: Arc<str>,
    ) -> Self {
        IoDriver {
            state: DriverState::Here(chunks),
            together: seldom_waits.then(Together::new),
            scope,
            edge,
            node,
        }
    }

    /// Goes on with the stream on the runtime, until it has made this many items: they were begun
    /// together, so each may hold what another one waits for.
    fn send_away(&mut self, items: usize, demand: Demand) {
        let DriverState::Here(mut chunks) = std::mem::replace(&mut self.state, DriverState::Lost)
        else {
            unreachable!("a stream is sent away from here")
        };
        let need = Arc::new(Need::default());
        let (told, (send, back)) = (need.clone(), unbounded_channel());
        let task = async move {
            let mut made = 0;
            loop {
                let next = poll_fn(|cx| {
                    told.register(cx);
                    // Everything upstream is polled with the stream, and may block.
                    let demand = Demand {
                        ahead: !told.waits(),
                        ..demand.at_most(1)
                    };
                    tokio::task::block_in_place(|| chunks.poll_chunk(cx, demand))
                });
                let chunk = next.await;
                made += chunk.as_ref().map_or(items, |chunk| chunk.len);
                // If there is no receiver, the stream is dropped.
                if made >= items {
                    let _ = send.send((chunk, Some(chunks)));
                    return;
                }
                let _ = send.send((chunk, None));
            }
        };
        let task = super::spawn_task(self.scope.io(), Scoped::new(&self.scope, task));
        self.state = DriverState::Away(Away { task, back, need });
    }

    fn lost(&self) -> AnyChunk {
        let what = "the async runtime was shut down with a request in work";
        self.edge
            .fail_chunk(Error::new(ErrorKind::Config, what).at(&self.node))
    }
}

impl ErasedChunks for IoDriver {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<AnyChunk>> {
        if let DriverState::Here(chunks) = &mut self.state {
            let (polled, begun) = match &mut self.together {
                Some(together) => together.poll(&mut **chunks, cx, demand),
                // With one item wanted, no second request is begun before the first result is
                // returned.
                None => {
                    let polled = chunks.poll_chunk(cx, demand.at_most(1));
                    let begun = polled.is_pending().then_some(1);
                    (polled, begun)
                }
            };
            if let Some(begun) = begun {
                self.together = None;
                if begun > 0 {
                    self.send_away(begun, demand);
                }
            }
            if polled.is_ready() {
                return polled;
            }
        }
        let DriverState::Away(away) = &mut self.state else {
            return Poll::Ready(Some(self.lost()));
        };
        // A poll ahead of need does not end the wait of an earlier one.
        if !demand.ahead {
            away.need.tell();
        }
        let Some((chunk, stream)) = ready!(away.back.poll_recv(cx)) else {
            self.state = DriverState::Lost;
            return Poll::Ready(Some(self.lost()));
        };
        if let Some(stream) = stream {
            self.state = DriverState::Here(stream);
        }
        Poll::Ready(chunk)
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        self.task.abort();
    }
}
