//! Checkpoints of running epochs, saved to a file.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Checkpoint;
use crate::error::quietly;
use crate::run::PinnedThread;
use crate::sync::lock;
use crate::{Error, ErrorKind, Result};

/// Time that the drop of the last handle waits for a checkpoint to be on the disk.
const SAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval at which an epoch saves its checkpoint; see
/// [`Builder::autosave`](super::Builder::autosave).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Every {
    /// Interval in items (usually batches); 0 means 1.
    Items(u64),
    /// Interval in time: a checkpoint is saved with the first item that is asked for after this
    /// much time since the last.
    Time(Duration),
}

conversions! {
    |items: u64| -> Every { Every::Items(items) }
    |time: Duration| -> Every { Every::Time(time) }
}

/// Writes the checkpoints of a loader's epochs to one file, on a thread of its own. Its drop waits
/// a moment for the last one.
pub(super) struct Saver {
    path: Arc<Path>,
    every: Every,
    thread: PinnedThread,
    pending: Arc<PendingSave>,
}

/// Place of a checkpoint that waits to be written.
#[derive(Default)]
struct PendingSave {
    work: Mutex<Work>,
    /// Notified when nothing is left to be written.
    idle: Condvar,
}

#[derive(Default)]
struct Work {
    /// Newest checkpoint that was handed in.
    waiting: Option<Checkpoint>,
    is_writing: bool,
    /// Reason why the last checkpoint could not be written, until it is reported.
    problem: Option<Error>,
}

impl Saver {
    pub(super) fn new(path: Arc<Path>, every: Every) -> Self {
        Saver {
            path,
            every,
            thread: PinnedThread::new("autosave"),
            pending: Arc::default(),
        }
    }

    /// Hands in a checkpoint to be written, which replaces one that still waits.
    fn save(&self, checkpoint: Checkpoint) {
        let mut work = lock(&self.pending.work);
        work.waiting = Some(checkpoint);
        if work.is_writing {
            return;
        }
        let (pending, path) = (self.pending.clone(), self.path.clone());
        match self.thread.run(async move { pending.write_all(&path) }) {
            Ok(()) => work.is_writing = true,
            Err(error) => {
                let message = format!(
                    "{}: cannot start the thread that saves checkpoints",
                    self.path.display()
                );
                work.problem = Some(Error::new(ErrorKind::Io, message).with_source(error));
            }
        }
    }

    fn problem(&self) -> Option<Error> {
        lock(&self.pending.work).problem.take()
    }

    /// Waits until nothing is left to be written.
    pub(super) fn flush(&self) -> Result<()> {
        let work = lock(&self.pending.work);
        let mut work = self
            .pending
            .idle
            .wait_while(work, |work| work.is_writing)
            .unwrap_or_else(PoisonError::into_inner);
        work.problem.take().map_or(Ok(()), Err)
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        let work = lock(&self.pending.work);
        let waited = self
            .pending
            .idle
            .wait_timeout_while(work, SAVE_TIMEOUT, |work| work.is_writing);
        if waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
            let path = self.path.display();
            quietly(
                || tracing::warn!(%path, "still writing the last checkpoint; no longer waiting for it"),
            );
        }
    }
}

impl PendingSave {
    fn write_all(&self, path: &Path) {
        while let Some(checkpoint) = self.next() {
            let saved = checkpoint.save(path);
            if let Err(error) = &saved {
                quietly(
                    || tracing::warn!(%error, "a checkpoint was not saved; the file has the one from before"),
                );
            }
            lock(&self.work).problem = saved.err();
        }
    }

    /// Returns the checkpoint to be written; `None` ends the writer.
    fn next(&self) -> Option<Checkpoint> {
        let mut work = lock(&self.work);
        let next = work.waiting.take();
        work.is_writing = next.is_some();
        if !work.is_writing {
            self.idle.notify_all();
        }
        next
    }
}

/// The schedule by which an epoch saves its checkpoint.
pub(super) struct Autosave {
    saver: Arc<Saver>,
    /// Items taken since the last checkpoint was saved, and the time of that.
    items: u64,
    at: Instant,
    /// True if the next item has been asked for, so that the consumer is done with the last one.
    is_asked: bool,
    /// True once an item has come.
    has_begun: bool,
    has_ended: bool,
}

impl Autosave {
    pub(super) fn new(saver: &Arc<Saver>) -> Self {
        Autosave {
            saver: saver.clone(),
            items: 0,
            at: Instant::now(),
            is_asked: false,
            has_begun: false,
            has_ended: false,
        }
    }

    /// Returns true if a checkpoint is to be saved before the next item comes.
    fn is_due(&self) -> bool {
        match self.saver.every {
            Every::Items(items) => self.items >= items.max(1),
            Every::Time(time) => self.items > 0 && self.at.elapsed() >= time,
        }
    }

    fn save(&mut self, checkpoint: Result<Checkpoint>) -> Option<Error> {
        (self.items, self.at) = (0, Instant::now());
        checkpoint
            .map(|checkpoint| self.saver.save(checkpoint))
            .err()
    }

    /// Saves the checkpoint from `stands` if that is due, before the next item comes.
    pub(super) fn before_next(
        &mut self,
        stands: impl FnOnce() -> Result<Checkpoint>,
    ) -> Option<Error> {
        if std::mem::replace(&mut self.is_asked, true) {
            return None;
        }
        if let Some(problem) = self.saver.problem() {
            return Some(problem);
        }
        self.is_due()
            .then(stands)
            .and_then(|checkpoint| self.save(checkpoint))
    }

    /// Counts an item that has come.
    pub(super) fn count(&mut self) {
        (self.items, self.is_asked, self.has_begun) = (self.items + 1, false, true);
    }

    /// Saves the checkpoint of an epoch that an error has ended. One that failed before its first
    /// item has got nowhere, and leaves the checkpoint of an earlier one.
    pub(super) fn at_error(&mut self, stands: impl FnOnce() -> Result<Checkpoint>) {
        if self.has_begun {
            self.at_end(stands);
        }
    }

    /// Saves the checkpoint at the end of the epoch, once.
    pub(super) fn at_end(&mut self, stands: impl FnOnce() -> Result<Checkpoint>) -> Option<Error> {
        let has_ended = std::mem::replace(&mut self.has_ended, true);
        (!has_ended)
            .then(stands)
            .and_then(|checkpoint| self.save(checkpoint))
    }
}

opaque_debug!(Saver { path, every });

#[cfg(test)]
mod tests;
