//! The stream at the root of an epoch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{self, Poll};

use super::restore::Wired;
use super::{Engine, EpochRun, RankShare, Resume};
use crate::checkpoint::{History, Point, Saving};
use crate::context::Offload;
use crate::graph::{AnyChunk, AnyItems, Edge, ErasedChunks, typed};
use crate::items::Demand;
use crate::run::prefetch::Depth;
use crate::{Items, Result, Wanted};

/// The stream at the root of an epoch. Dropping it ends the epoch.
pub(crate) struct Running<T> {
    pub items: Items<T>,
    /// History for checkpoints, once the stream is wired.
    history: Arc<OnceLock<Arc<dyn History>>>,
    pub run: Arc<EpochRun>,
    thread: RootThread<T>,
    /// True if the consumer blocks its thread while it waits.
    blocks: bool,
}

/// Thread on which functions of the graph's root run.
enum RootThread<T> {
    /// The thread that polls.
    Inline,
    /// A thread of their own, ahead of the consumer. Once this is set and that thread has ended, the
    /// thread that polls.
    Moved(Arc<AtomicBool>),
    /// A thread of their own from the first item to the last, since the polling thread belongs to
    /// an async runtime.
    Apart(Leave<T>),
}

/// Drops a stream, which may hold any value of the user and may wait for a thread.
type Leave<T> = fn(&mut Items<T>, &Arc<EpochRun>);

impl<T: Send + 'static> Running<T> {
    /// Begins an epoch of a rank; see [`Engine::begin`]. A resumed epoch begins at a position, with
    /// each node at its saved position.
    ///
    /// If it is `polled` as a stream, and there are workers, everything from the wiring on runs on
    /// other threads.
    pub(crate) fn start(
        engine: &Arc<Engine>,
        epoch: u64,
        share: RankShare,
        polled: bool,
        resume: Option<Resume>,
    ) -> Result<Self> {
        let run = EpochRun::new(engine, epoch, share, polled, resume.as_ref())?;
        engine.live.begin();
        let wanted = resume.map(|resume| Wanted::since(resume.position));
        let history = Arc::default();
        let wiring = Wiring {
            run: run.clone(),
            wanted,
            history: Arc::clone(&history),
        };
        if polled && engine.settings.workers > 0 {
            let unwired = Box::new(Unwired(Some(wiring), None));
            let items = run.ahead(unwired, Arc::default(), false);
            return Ok(Running {
                items,
                history,
                run,
                thread: RootThread::Apart(leave),
                blocks: false,
            });
        }
        Ok(Running {
            items: typed(wiring.wire()),
            history,
            run,
            thread: RootThread::Inline,
            blocks: !polled,
        })
    }

    /// Saves the position of every node at a number of delivered items and errors; `None` before
    /// the stream is wired.
    pub(crate) fn save(&self, position: u64) -> Option<Saving> {
        self.history
            .get()
            .map(|history| Saving::all(&**history, Point::at(position)))
    }

    /// Returns the history of the output, which can take a checkpoint at any position that was not
    /// forgotten.
    pub(crate) fn history(&self) -> Option<Arc<dyn History>> {
        self.history.get().cloned()
    }

    /// Returns true if logs have become long.
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        self.run.trim.is_asked() && self.history.get().is_some()
    }

    /// Forgets everything that no checkpoint from this position on needs.
    #[cold]
    pub(crate) fn trim(&self, position: u64) {
        if let Some(history) = self.history.get() {
            history.forget(position);
            self.run.trim.done();
        }
    }

    /// Returns true if the graph's root runs on the polling thread.
    pub(crate) fn is_inline(&self) -> bool {
        match &self.thread {
            RootThread::Inline => true,
            RootThread::Moved(_) => self.run.root_queue.inline.load(Ordering::Relaxed),
            RootThread::Apart(_) => false,
        }
    }

    /// Moves everything upstream of the consumer to a thread of its own, which works ahead from now
    /// on. Returns true if it was moved by this call.
    pub(crate) fn move_to_thread(&mut self) -> bool {
        if !self.is_inline() || self.run.engine.plan.prefetch.items == 0 {
            return false;
        }
        match &self.thread {
            RootThread::Moved(here) => here.store(false, Ordering::SeqCst),
            _ => {
                let here = Arc::<AtomicBool>::default();
                self.thread = RootThread::Moved(here.clone());
                let items = std::mem::replace(&mut self.items, Items::empty());
                let above = self.run.root_edge().erase(Box::new(items));
                self.items = self.run.ahead(above, here, self.blocks);
            }
        }
        true
    }

    /// Lets the thread that was [moved](Self::move_to_thread) to end, so that the polling
    /// thread takes over after the items that are ready.
    pub(crate) fn move_back(&mut self) {
        if let RootThread::Moved(here) = &self.thread {
            here.store(true, Ordering::SeqCst);
        }
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.run.cancel();
        self.run.engine.live.end();
        match self.thread {
            RootThread::Apart(leave) => leave(&mut self.items, &self.run),
            _ => self.run.clear(),
        }
    }
}

fn leave<T: Send + 'static>(items: &mut Items<T>, run: &Arc<EpochRun>) {
    let (items, over) = (std::mem::replace(items, Items::empty()), run.clone());
    let work = Box::new(move || {
        over.clear();
        drop(items);
    });
    // If no thread can be started, the runtime panics, and the value is dropped here.
    let _ = catch_unwind(AssertUnwindSafe(|| run.scope.offload(work)));
}

impl EpochRun {
    fn root_edge(&self) -> &Arc<dyn Edge> {
        &self.engine.flow.nodes[self.engine.flow.root.0].node.edge
    }

    /// Makes the items of the root ahead of the consumer, on a thread of its own, which starts now.
    fn ahead<T: Send + 'static>(
        &self,
        above: Box<dyn ErasedChunks>,
        here: Arc<AtomicBool>,
        reader_blocks: bool,
    ) -> Items<T> {
        let (edge, gauge) = (self.root_edge(), self.root_queue.clone());
        let depth = Depth {
            items: self.engine.live.depth.clone(),
            adaptive: self.engine.plan.prefetch.adaptive,
        };
        let queue = (depth, self.account(None, edge));
        let name = "loader".to_owned();
        let mut prefetch = self.prefetch(name, above, queue, edge, gauge, (here, reader_blocks));
        self.log.within(|| prefetch.start());
        typed(edge.restore(Box::new(prefetch)))
    }
}

/// Arguments for the wiring of an epoch.
struct Wiring {
    run: Arc<EpochRun>,
    wanted: Option<Wanted>,
    history: Arc<OnceLock<Arc<dyn History>>>,
}

impl Wiring {
    fn wire(self) -> AnyItems {
        let Wired { items, history } =
            self.run
                .stream(self.run.engine.flow.root, 0, self.wanted.as_ref());
        if let Some(history) = history {
            let _ = self.history.set(history);
        }
        items
    }
}

/// An epoch that is wired by its first poll: wiring runs users' code, too.
struct Unwired(Option<Wiring>, Option<Box<dyn ErasedChunks>>);

impl ErasedChunks for Unwired {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<AnyChunk>> {
        if let Some(wiring) = self.0.take() {
            let run = wiring.run.clone();
            self.1 = Some(run.root_edge().erase(wiring.wire()));
        }
        match &mut self.1 {
            Some(chunks) => chunks.poll_chunk(cx, demand),
            // Wiring panicked, which was returned as an error.
            None => Poll::Ready(None),
        }
    }
}
