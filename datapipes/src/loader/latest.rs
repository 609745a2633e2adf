//! The latest epoch of a loader, and the observers that are told when an epoch begins.

#[cfg(any(feature = "metrics", feature = "monitor"))]
use std::any::Any;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};

use crate::run::EpochRun;
use crate::sync::lock;

/// Running epochs of all ranks that an epoch reads, each once it has begun; for figures.
pub(super) type Runs = Arc<Mutex<Vec<Arc<EpochRun>>>>;

/// Returns true if all that have begun came to their ends, or were dropped.
pub(super) fn have_ended(runs: &Runs) -> bool {
    let runs = lock(runs);
    !runs.is_empty() && runs.iter().all(|run| run.has_ended())
}

/// An epoch that was started: its number, and its running epochs of ranks.
pub(super) type StartedEpoch = (u64, Runs);

/// The latest epoch of a loader, and its observers. Lives as long as the loader or one of its
/// epochs.
#[derive(Default)]
pub(super) struct Latest {
    /// Receivers of each epoch that begins. Dropped first, which ends the threads that listen.
    watchers: Mutex<Vec<Watcher>>,
    /// Handles of the threads that read the figures, each of which ends when its handle is dropped.
    /// Dropped before the runs, so that their last handle is not one of those threads'.
    #[cfg(any(feature = "metrics", feature = "monitor"))]
    observers: Mutex<Vec<Box<dyn Any + Send>>>,
    runs: Mutex<Option<Runs>>,
}

/// Receiver of epochs that begin.
struct Watcher {
    id: Arc<()>,
    to: SyncSender<StartedEpoch>,
    /// Epochs that it was not told of, since it was busy.
    untold: u64,
}

/// Name of a watcher.
pub(super) struct WatcherId(Arc<()>);

impl Latest {
    /// Returns the runs of the latest epoch; `None` before the first has begun.
    pub fn runs(&self) -> Option<Runs> {
        lock(&self.runs).clone()
    }

    pub fn set(&self, number: u64, runs: Runs) {
        let mut watchers = lock(&self.watchers);
        for watcher in &mut *watchers {
            // Figures are not worth a wait.
            watcher.untold += u64::from(watcher.to.try_send((number, runs.clone())).is_err());
        }
        // Dropped after the locks: the drop of an epoch may run a user's code.
        let before = lock(&self.runs).replace(runs);
        drop(watchers);
        drop(before);
    }

    /// Sends each epoch that begins from now on to this channel, unless the channel is full. Also
    /// returns the latest epoch that has begun already.
    pub fn watch(&self, to: SyncSender<StartedEpoch>) -> (WatcherId, Option<Runs>) {
        let mut watchers = lock(&self.watchers);
        let id = Arc::default();
        watchers.push(Watcher {
            id: Arc::clone(&id),
            to,
            untold: 0,
        });
        (WatcherId(id), self.runs())
    }

    /// Ends what [`watch`](Self::watch) began. Returns the number of epochs that were not sent.
    pub fn unwatch(&self, id: &WatcherId) -> u64 {
        let mut watchers = lock(&self.watchers);
        let is_it = |watcher: &mut Watcher| Arc::ptr_eq(&watcher.id, &id.0);
        watchers
            .extract_if(.., is_it)
            .map(|watcher| watcher.untold)
            .sum()
    }

    #[cfg(any(feature = "metrics", feature = "monitor"))]
    pub fn observe(&self, observer: impl Any + Send) {
        lock(&self.observers).push(Box::new(observer));
    }
}
