//! Threads for CPU work. They run async tasks: a task that must wait releases its thread.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use async_task::{Runnable, Task};

use super::scope::Scope;
use crate::sync::lock;

/// Time that the drop of a [`Pool`] waits for its threads. A thread in a user's endless loop cannot
/// be ended.
const PATIENCE: Duration = Duration::from_secs(1);

thread_local! {
    /// True on the threads of pools.
    static IS_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Threads for CPU work, started at first use and kept until the pool is dropped.
pub(crate) struct Pool {
    shared: Arc<PoolShared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    workers: usize,
}

struct PoolShared {
    state: Mutex<PoolState>,
    /// Signals that a job came, or that the pool closed.
    wake: Condvar,
    /// Signals that a thread ended.
    ended: Condvar,
}

#[derive(Default)]
struct PoolState {
    /// Jobs by depth in the graph. Jobs nearest to the consumer run first, so that finished work
    /// flows out.
    jobs: Vec<VecDeque<Job>>,
    closed: bool,
    alive: usize,
    /// Epochs of the jobs that run.
    running: Vec<Scope>,
    /// Number of jobs that were begun.
    begun: u64,
}

/// A job, and its epoch.
type Job = (Scope, Runnable);

/// Work of an epoch that waits while other epochs have all threads of a pool.
pub(crate) struct Starved {
    /// Number of jobs that the pool has begun.
    pub begun: u64,
    /// True if it is the work of the epoch that was asked for, else that epoch has threads.
    pub is_own_work: bool,
}

impl PoolShared {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        lock(&self.state)
    }

    fn push(&self, depth: usize, job: Job) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            return drop(job);
        }
        if state.jobs.len() <= depth {
            state.jobs.resize_with(depth + 1, VecDeque::new);
        }
        state.jobs[depth].push_back(job);
        drop(state);
        self.wake.notify_one();
    }

    fn work(&self) {
        IS_HERE.set(true);
        let mut state = self.lock();
        while !state.closed {
            match state.jobs.iter_mut().rev().find_map(VecDeque::pop_front) {
                Some((scope, job)) => {
                    state.begun += 1;
                    state.running.push(scope.clone());
                    drop(state);
                    // Tasks catch their own panics; a `drop` inside may still panic, and must not
                    // end the thread.
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.run()));
                    state = self.lock();
                    let running = &mut state.running;
                    let place = running.iter().position(|other| other.is_same(&scope));
                    running.swap_remove(place.expect("it was pushed above"));
                }
                None => {
                    state = self
                        .wake
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner)
                }
            }
        }
        // Cancelled tasks hold values of the user.
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(jobs)));
    }
}

impl Pool {
    pub(crate) fn new(workers: usize) -> Self {
        let shared = PoolShared {
            state: Mutex::default(),
            wake: Condvar::new(),
            ended: Condvar::new(),
        };
        Pool {
            shared: Arc::new(shared),
            threads: Mutex::default(),
            workers,
        }
    }

    /// Returns true on the threads of a pool.
    pub(super) fn is_here() -> bool {
        IS_HERE.get()
    }

    /// Spawns a task of an epoch for threads that were [started](Pool::start). Dropping the returned
    /// handle cancels the task, at its next await at the latest.
    pub(crate) fn spawn(
        &self,
        (depth, scope): (usize, &Scope),
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Task<()> {
        let (shared, scope) = (self.shared.clone(), scope.clone());
        let push = move |job| shared.push(depth, (scope.clone(), job));
        let (runnable, task) = async_task::spawn(future, push);
        runnable.schedule();
        task
    }

    /// Looks for jobs that wait for a thread while none of their epoch runs, since jobs of other
    /// epochs run on all threads. `is_own` tells the jobs of one epoch, which has to be on either
    /// side. An epoch that was dropped gives its threads back by itself.
    pub(crate) fn starved(&self, is_own: impl Fn(&Scope) -> bool) -> Option<Starved> {
        let state = self.shared.lock();
        let running = &state.running;
        if running.len() < state.alive || running.iter().any(Scope::is_cancelled) {
            return None;
        }
        let is_own_work = !running.iter().any(&is_own);
        let runs = |scope: &Scope| running.iter().any(|other| other.is_same(scope));
        let mut waiting = state.jobs.iter().flatten().map(|(scope, _)| scope);
        let found = waiting.any(|scope| is_own(scope) == is_own_work && !runs(scope));
        found.then_some(Starved {
            begun: state.begun,
            is_own_work,
        })
    }

    /// Starts the missing threads. Fewer than asked for are enough.
    ///
    /// # Errors
    /// Fails if the pool has no thread and none can be started.
    pub(crate) fn start(&self) -> io::Result<()> {
        let mut threads = lock(&self.threads);
        while threads.len() < self.workers {
            let shared = self.shared.clone();
            let name = format!("datapipes-cpu-{}", threads.len());
            shared.lock().alive += 1;
            let body = move || {
                shared.work();
                shared.lock().alive -= 1;
                shared.ended.notify_all();
            };
            match super::spawn_thread(name, body) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    self.shared.lock().alive -= 1;
                    if threads.is_empty() {
                        return Err(error);
                    }
                    let started = threads.len();
                    crate::error::quietly(|| {
                        tracing::warn!(%error, started, "fewer worker threads than asked for");
                    });
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let jobs = {
            let mut state = self.shared.lock();
            state.closed = true;
            // The threads drop the remaining jobs, if there are threads.
            if state.alive == 0 {
                std::mem::take(&mut state.jobs)
            } else {
                Vec::new()
            }
        };
        self.shared.wake.notify_all();
        drop(jobs);
        if !super::may_wait() {
            return;
        }
        let threads = std::mem::take(
            self.threads
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner),
        );
        let me = std::thread::current().id();
        // The last handle on the loader may be dropped by one of its own threads.
        let mine = threads.iter().filter(|t| t.thread().id() == me).count();
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.shared.lock();
        while state.alive > mine {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                crate::error::quietly(|| {
                    tracing::warn!(
                        threads = state.alive,
                        "worker threads are still in a user's function; left running"
                    );
                });
                return;
            }
            state = self
                .shared
                .ended
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        drop(state);
        for thread in threads.into_iter().filter(|t| t.thread().id() != me) {
            drop(thread.join());
        }
    }
}
