//! Detection of a consumer that blocks the async runtime or the workers its data comes from.
//!
//! A runtime of one thread runs none of its tasks while that thread waits. A source may wait for
//! such a task, for a network, or for a thread of the user, and the cause cannot be observed. A
//! deadlock is most likely if the runtime stands still and has tasks while no function, request or
//! blocking work of the epoch is in progress.
//!
//! A function of the graph may start a thread that reads another epoch of the same loader, and wait
//! for that thread. If such functions keep all workers, the other epoch gets none. A function that
//! takes long looks the same, so an epoch is reported only if nothing of it runs at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::pool::Starved;
use crate::Error;
use crate::error::quietly;

/// Time without output before the first check, and between the first check and the report.
pub(crate) const QUIET: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 1000 });
const REPORT_AFTER: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 9000 });

/// Time for which all workers have to stay in the same jobs of other epochs.
const HELD: Duration = Duration::from_millis(if cfg!(test) { 400 } else { 10_000 });

/// Checks, during one wait of a consumer, that workers get to its epoch.
#[derive(Default)]
pub(crate) struct StarvedCheck {
    /// Number of jobs begun when the workers were first seen in jobs of other epochs, and the time.
    since: Option<(u64, Instant)>,
    done: bool,
}

impl StarvedCheck {
    /// Looks at the workers. Returns an error if they have stayed in jobs of other epochs; `names`
    /// returns the names of the nodes that they run.
    pub(crate) fn look(
        &mut self,
        starved: Option<Starved>,
        names: impl FnOnce() -> String,
    ) -> Option<Error> {
        let starved = starved.filter(|_| !self.done);
        let same = self.since.filter(|since| {
            let begun = starved.as_ref().map(|starved| starved.begun);
            begun == Some(since.0)
        });
        let Some((_, since)) = same else {
            self.since = starved.map(|starved| (starved.begun, Instant::now()));
            return None;
        };
        if since.elapsed() < HELD {
            return None;
        }
        self.done = true;
        let said = format!(
            "all workers of the loader have been in the same functions ({}) of one epoch for {HELD:?}, and another epoch of \
             this loader waits for a worker. If such a function waits for that epoch, on a thread or in a task that it \
             started, both wait for ever: build another loader for what the function needs. If the function only takes \
             long, read on",
            names()
        );
        if starved.is_some_and(|starved| starved.is_own_work) {
            let said = format!("{said}. The epoch has not ended; the next call waits on");
            return Some(Error::config(said));
        }
        quietly(|| tracing::warn!("{said}"));
        None
    }
}

/// One wait of a consumer, checked while it lasts.
#[derive(Default)]
pub(crate) struct DeadlockCheck {
    probe: Option<Probe>,
    /// True if there is nothing to report, or if it was reported.
    done: bool,
}

/// A task that runs if the runtime runs.
struct Probe {
    runtime: Handle,
    since: Instant,
    ran: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl DeadlockCheck {
    /// Checks the runtime around the waiting thread, on that thread. Returns an error if the
    /// runtime stands still because of it. `is_idle` returns true if no work of the epoch is in
    /// progress.
    pub(crate) fn look(&mut self, is_idle: impl FnOnce() -> bool) -> Option<Error> {
        if self.done {
            return None;
        }
        let Some(probe) = &self.probe else {
            let runtime = Handle::try_current()
                .ok()
                .filter(|runtime| runtime.metrics().num_workers() == 1);
            self.done = runtime.is_none();
            self.probe = runtime.map(Probe::new);
            return None;
        };
        if probe.ran.load(Ordering::Acquire) {
            self.done = true;
            return None;
        }
        if probe.since.elapsed() < REPORT_AFTER {
            return None;
        }
        self.done = true;
        // The probe is one of the tasks.
        let tasks = probe.runtime.metrics().num_alive_tasks().saturating_sub(1);
        let said = format!(
            "`blocking` waits on this thread, and the async runtime it is called in has one thread, this one: {tasks} of its \
             tasks cannot run meanwhile. If one of them is to give the graph its data, none will come: poll the epoch as a \
             stream (`next().await`), or iterate inside `tokio::task::spawn_blocking`. The epoch has not ended; the next \
             call waits on"
        );
        if tasks > 0 && is_idle() {
            return Some(Error::config(said));
        }
        quietly(|| tracing::warn!("nothing came for some seconds; {said}"));
        None
    }
}

impl Probe {
    fn new(runtime: Handle) -> Self {
        let ran = Arc::<AtomicBool>::default();
        let told = ran.clone();
        let task = super::spawn_task(&runtime, async move { told.store(true, Ordering::Release) });
        Probe {
            runtime,
            since: Instant::now(),
            ran,
            task,
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests;
