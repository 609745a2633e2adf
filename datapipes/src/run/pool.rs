//! Threads for CPU work. They run async tasks: a task that must wait releases its thread.

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
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Time in which an active thread must take a job, if there are any and other threads rest.
const STANDSTILL: Duration = Duration::from_millis(250);

/// Threads for CPU work, started at first use and kept until the pool is dropped.
pub(crate) struct Pool {
    shared: Arc<PoolShared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    workers: usize,
}

#[derive(Default)]
struct PoolShared {
    state: Mutex<PoolState>,
    /// Signals active threads that a job came, that their number changed, or that the pool closed.
    wake: Condvar,
    /// Signals resting threads that the number of active threads changed, or that the pool closed.
    rest: Condvar,
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
    /// Number of active threads that wait for a job, and how many of them were signalled since. One
    /// too few of these, after a thread woke by itself, costs a signal.
    idle: usize,
    signalled: usize,
    /// Epochs of the jobs that run.
    running: Vec<Scope>,
    /// Number of jobs that were begun.
    begun: u64,
    /// Number of threads that take jobs; the others rest.
    active: usize,
    /// True once the active threads stood still while jobs waited: a function of the user may wait
    /// for another item, so that all threads are needed.
    needs_all: bool,
}

impl PoolState {
    fn has_jobs(&self) -> bool {
        self.jobs.iter().any(|jobs| !jobs.is_empty())
    }
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
        let is_awaited = state.idle > state.signalled;
        state.signalled += usize::from(is_awaited);
        drop(state);
        // A signal is a call of the system, also if nobody waits.
        if is_awaited {
            self.wake.notify_one();
        }
    }

    /// Rests while enough other threads are active. Each resting thread looks now and then if those
    /// still take jobs, since any of the others may be in a job; if not, all threads become active
    /// for good.
    fn rest<'a>(&self, mut state: MutexGuard<'a, PoolState>) -> MutexGuard<'a, PoolState> {
        let begun = state.begun;
        let had_jobs = state.has_jobs();
        let (woken, timeout) = self
            .rest
            .wait_timeout(state, STANDSTILL)
            .unwrap_or_else(PoisonError::into_inner);
        state = woken;
        if timeout.timed_out() && had_jobs && state.begun == begun && state.has_jobs() {
            state.needs_all = true;
            state.active = usize::MAX;
            self.rest.notify_all();
        }
        state
    }

    fn work(&self, place: usize) {
        let mut state = self.lock();
        while !state.closed {
            if place >= state.active {
                state = self.rest(state);
                continue;
            }
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
                    state.idle += 1;
                    state = self
                        .wake
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                    state.idle -= 1;
                    state.signalled = state.signalled.saturating_sub(1);
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
        let state = PoolState {
            active: workers,
            ..PoolState::default()
        };
        let shared = PoolShared {
            state: Mutex::new(state),
            ..PoolShared::default()
        };
        Pool {
            shared: Arc::new(shared),
            threads: Mutex::default(),
            workers,
        }
    }

    /// Sets how many threads take jobs, at least one; the others rest. A thread ends its job before
    /// it rests. Without effect once the active threads stood still while others rested.
    pub(crate) fn set_active(&self, workers: usize) {
        let mut state = self.shared.lock();
        let workers = workers.max(1);
        // To wake threads that have nothing to do costs a consumer of quick batches half of its time.
        if !state.needs_all && state.active != workers {
            state.active = workers;
            drop(state);
            self.shared.wake.notify_all();
            self.shared.rest.notify_all();
        }
    }

    /// Returns how many threads take jobs.
    pub(crate) fn active(&self) -> usize {
        self.shared.lock().active.min(self.workers)
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
        if running.len() < state.alive.min(state.active) || running.iter().any(Scope::is_cancelled)
        {
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
            let place = threads.len();
            let name = format!("datapipes-cpu-{place}");
            shared.lock().alive += 1;
            let body = move || {
                shared.work(place);
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
        self.shared.rest.notify_all();
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
        let deadline = Instant::now() + JOIN_TIMEOUT;
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Returns a runtime, and the scope of an epoch on it.
    fn scope() -> (tokio::runtime::Runtime, Scope) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let scope = Scope::new(runtime.handle().clone(), None, Arc::default());
        (runtime, scope)
    }

    #[test]
    fn only_active_threads_take_jobs() {
        let (_runtime, scope) = scope();
        let pool = Pool::new(4);
        pool.set_active(1);
        pool.start().unwrap();
        let (send, names) = channel();
        let jobs = Vec::from_iter((0..200).map(|_| {
            let send = send.clone();
            pool.spawn((0, &scope), async move {
                let name = std::thread::current().name().map(str::to_owned);
                send.send(name).unwrap();
            })
        }));
        drop(send);
        let names = Vec::from_iter(names);
        assert_eq!(names.len(), jobs.len());
        // A machine that stops a thread for a quarter of a second makes all of them active.
        if pool.active() == 1 {
            assert!(names.iter().flatten().all(|name| name == "datapipes-cpu-0"));
        }
    }

    /// The thread beyond the active ones is in a job when it should rest, so another one has to look.
    #[test]
    fn jobs_that_wait_for_each_other_do_not_stand_still_wherever_they_run() {
        let (_runtime, scope) = scope();
        let pool = Pool::new(3);
        pool.start().unwrap();
        let barrier = Arc::new(std::sync::Barrier::new(3));
        let (done, ended) = channel();
        let begins = |begun: std::sync::mpsc::Sender<()>| {
            let (barrier, done) = (barrier.clone(), done.clone());
            pool.spawn((0, &scope), async move {
                begun.send(()).unwrap();
                barrier.wait();
                done.send(()).unwrap();
            })
        };
        let (begun, has_begun) = channel();
        let _first = [begins(begun.clone()), begins(begun.clone())];
        (0..2).for_each(|_| has_begun.recv().unwrap());
        pool.set_active(1);
        let _last = begins(begun);
        for _ in 0..3 {
            ended.recv_timeout(Duration::from_secs(20)).unwrap();
        }
    }

    #[test]
    fn a_job_that_waits_for_another_does_not_stand_still_on_one_active_thread() {
        let (_runtime, scope) = scope();
        let pool = Pool::new(3);
        pool.start().unwrap();
        pool.set_active(1);
        let (send, receive) = channel();
        let (done, ended) = channel();
        let _waits = pool.spawn((0, &scope), async move {
            receive.recv().unwrap();
            done.send(()).unwrap();
        });
        // Without the resting threads this job would never be taken.
        let _awaited = pool.spawn((0, &scope), async move { send.send(()).unwrap() });
        ended.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(pool.active(), 3);
        pool.set_active(1);
        assert_eq!(pool.active(), 3);
    }
}
