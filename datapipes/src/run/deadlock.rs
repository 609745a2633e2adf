//! Detection of a consumer that blocks the async runtime its data comes from.
//!
//! A runtime of one thread runs none of its tasks while that thread waits. A source may wait for
//! such a task, for a network, or for a thread of the user, and the cause cannot be observed. A
//! deadlock is most likely if the runtime stands still and has tasks while no function, request or
//! blocking work of the epoch is in progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::error::quietly;
use crate::{Error, ErrorKind};

/// Time without output before the first check, and between the first check and the report.
pub(crate) const QUIET: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 1000 });
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 9000 });

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
        if probe.since.elapsed() < PATIENCE {
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
            return Some(Error::new(ErrorKind::Config, said));
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
mod tests {
    use futures::SinkExt;
    use futures::channel::mpsc;
    use tokio::runtime::{Builder, Runtime};

    use super::*;
    use crate::{BoxError, DataLoader, Graph};

    fn single() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// A graph that is fed by a task of the surrounding runtime, which sends five numbers.
    fn fed(slow: Duration) -> Graph<u64> {
        let (mut send, receive) = mpsc::channel::<u64>(1);
        #[expect(clippy::disallowed_methods, reason = "a user's own task")]
        let _detached = tokio::spawn(async move {
            tokio::time::sleep(slow).await;
            for n in 0..5 {
                send.send(n).await.unwrap();
            }
        });
        Graph::from_channel(receive).map(|n| n * 2)
    }

    #[test]
    fn blocking_on_a_runtime_of_one_thread_says_that_its_producer_cannot_run() {
        for workers in [0, 1, 2] {
            for device in [false, true] {
                single().block_on(async {
                    let loader = DataLoader::builder(fed(Duration::ZERO))
                        .workers(workers)
                        .build()
                        .unwrap();
                    let on_device = loader.prefetch_to_device(Ok::<_, BoxError>);
                    let mut epoch: Box<dyn Iterator<Item = crate::Result<u64>> + Send> =
                        match device {
                            false => Box::new(loader.epoch(0).blocking()),
                            true => Box::new(on_device.epoch(0).blocking()),
                        };
                    let error = epoch.next().unwrap().unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Config);
                    let said = error.to_string();
                    assert!(
                        said.contains("has one thread, this one: 1 of its tasks cannot run"),
                        "{said}"
                    );
                    // Nothing is lost: on a thread of its own the iterator receives all numbers.
                    let rest = crate::blocking(move || epoch.collect::<crate::Result<Vec<_>>>());
                    assert_eq!(rest.await.unwrap().unwrap(), [0, 2, 4, 6, 8]);
                });
            }
        }
    }

    #[test]
    fn what_is_slow_but_not_held_up_is_waited_for() {
        let slow = 3 * (QUIET + PATIENCE);
        let runtime = single();
        runtime.block_on(async {
            // The runtime runs on while another thread waits.
            let loader = DataLoader::builder(fed(slow)).workers(1).build().unwrap();
            let all = crate::blocking(move || {
                loader
                    .epoch(0)
                    .blocking()
                    .collect::<crate::Result<Vec<_>>>()
            });
            assert_eq!(all.await.unwrap().unwrap(), [0, 2, 4, 6, 8]);
            // The runtime stands still and has a task, while work is in progress.
            #[expect(clippy::disallowed_methods, reason = "a user's own task")]
            let other = tokio::spawn(async {});
            let graphs: [Graph<u64>; 3] = [
                Graph::range(0..3).map(move |n| {
                    std::thread::sleep(if n == 1 { slow } else { Duration::ZERO });
                    n
                }),
                Graph::range(0..3).map_async(move |n| async move {
                    tokio::time::sleep(if n == 1 { slow } else { Duration::ZERO }).await;
                    Ok::<_, BoxError>(n)
                }),
                Graph::range(0..3).map_async(move |n| {
                    crate::blocking(move || {
                        std::thread::sleep(if n == 1 { slow } else { Duration::ZERO });
                        n
                    })
                }),
            ];
            for graph in graphs {
                for workers in [0, 1, 2] {
                    let loader = DataLoader::builder(graph.clone())
                        .workers(workers)
                        .build()
                        .unwrap();
                    let all: Vec<_> = loader.epoch(0).blocking().map(Result::unwrap).collect();
                    assert_eq!(all, [0, 1, 2]);
                }
            }
            other.await.unwrap();
        });
    }
}
