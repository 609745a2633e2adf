//! I/O that begins on its consumer's thread and goes on while the consumer does something else.
//!
//! A request that is not polled may hold a resource that others wait for: a permit, a lock, an
//! object that is fetched once for several readers. If the consumer then waits for one of those
//! others, as with two epochs read in turn by one thread, both would wait for ever. Therefore a
//! poll that ends with I/O in progress is continued to its next chunk on the async runtime: the
//! stream, with everything upstream of it, runs as blocking work. When dropped, it ends a moment
//! later, on the runtime.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{self, Poll, ready};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::prefetch::Need;
use super::scope::{Scope, Scoped};
use crate::Error;
use crate::graph::{AnyChunk, Edge, ErasedChunks};
use crate::items::Demand;

/// A stream with I/O in it, polled by its reader. Its next chunk arrives even if it is not polled
/// again.
pub(super) struct IoDriver {
    state: DriverState,
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

type Returned = (Box<dyn ErasedChunks>, Option<AnyChunk>);

struct Away {
    task: JoinHandle<()>,
    back: oneshot::Receiver<Returned>,
    need: Arc<Need>,
}

impl IoDriver {
    pub(super) fn new(
        chunks: Box<dyn ErasedChunks>,
        scope: Scope,
        edge: Arc<dyn Edge>,
        node: Arc<str>,
    ) -> Self {
        IoDriver {
            state: DriverState::Here(chunks),
            scope,
            edge,
            node,
        }
    }
}

impl IoDriver {
    fn lost(&self) -> AnyChunk {
        let what = "the async runtime was shut down with a request in work";
        self.edge.fail_chunk(Error::config(what).at(&self.node))
    }
}

impl ErasedChunks for IoDriver {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<AnyChunk>> {
        // No second request is begun before the first result is returned.
        let demand = demand.one_request();
        if let DriverState::Here(chunks) = &mut self.state {
            if let Poll::Ready(chunk) = chunks.poll_chunk(cx, demand) {
                return Poll::Ready(chunk);
            }
            let DriverState::Here(mut chunks) =
                std::mem::replace(&mut self.state, DriverState::Lost)
            else {
                unreachable!("matched above")
            };
            let need = Arc::new(Need::default());
            let (told, (send, back)) = (need.clone(), oneshot::channel());
            let task = async move {
                let next = poll_fn(|cx| {
                    told.register(cx);
                    // Everything upstream is polled with the stream, and may block.
                    let demand = Demand {
                        ahead: !told.waits(),
                        ..demand
                    };
                    tokio::task::block_in_place(|| chunks.poll_chunk(cx, demand))
                });
                let chunk = next.await;
                // If there is no receiver, the stream is dropped.
                let _ = send.send((chunks, chunk));
            };
            let task = super::spawn_task(self.scope.io(), Scoped::new(&self.scope, task));
            self.state = DriverState::Away(Away { task, back, need });
        }
        let DriverState::Away(away) = &mut self.state else {
            return Poll::Ready(Some(self.lost()));
        };
        // A poll ahead of need does not end the wait of an earlier one.
        if !demand.ahead {
            away.need.tell();
        }
        let returned = ready!(std::pin::Pin::new(&mut away.back).poll(cx));
        Poll::Ready(match returned {
            Ok((chunks, chunk)) => {
                self.state = DriverState::Here(chunks);
                chunk
            }
            Err(_) => {
                self.state = DriverState::Lost;
                Some(self.lost())
            }
        })
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        self.task.abort();
    }
}
