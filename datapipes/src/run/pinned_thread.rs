//! A thread that lives as long as its handle, for work that has to stay on one thread.

use std::future::{Future, poll_fn};
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError, mpsc as std_mpsc};
use std::task::Poll;
use std::thread::ThreadId;

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, Stream, StreamExt};

use super::JOIN_TIMEOUT;
use crate::sync::lock;

/// Runs futures on one thread of its own, the same for all callers. The thread starts with the
/// first future.
///
/// Dropping the handle ends the thread once its futures have ended, and waits for that briefly. The
/// caller of `run` must make sure that the future ends.
#[derive(Debug)]
pub(crate) struct PinnedThread {
    name: String,
    started: Mutex<Option<Started>>,
}

#[derive(Debug)]
struct Started {
    jobs: UnboundedSender<BoxFuture<'static, ()>>,
    ended: std_mpsc::Receiver<()>,
    thread: ThreadId,
}

impl PinnedThread {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        PinnedThread {
            name: name.into(),
            started: Mutex::new(None),
        }
    }

    /// Returns true on this thread, which would wait for ever if it waited for its own work.
    pub(crate) fn is_here(&self) -> bool {
        let here = std::thread::current().id();
        lock(&self.started)
            .as_ref()
            .is_some_and(|started| started.thread == here)
    }

    /// Runs a future on the thread, beside the futures that run there already. A panic ends only
    /// that future.
    pub(crate) fn run(&self, job: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
        let mut started = lock(&self.started);
        let started = match &mut *started {
            Some(started) => started,
            none => none.insert(Started::new(&self.name)?),
        };
        let job = AssertUnwindSafe(job).catch_unwind().map(drop);
        started
            .jobs
            .unbounded_send(job.boxed())
            .map_err(|_| io::Error::other("the thread has ended"))
    }
}

impl Started {
    fn new(name: &str) -> io::Result<Self> {
        let (jobs, asked) = unbounded();
        let (send_ended, ended) = std_mpsc::channel();
        let thread = super::spawn_thread(format!("datapipes-{name}"), move || {
            super::block_on(serve(asked));
            drop(send_ended);
        })?;
        Ok(Started {
            jobs,
            ended,
            thread: thread.thread().id(),
        })
    }
}

/// Runs the futures it receives, until all senders are gone and all futures have ended.
async fn serve(mut asked: UnboundedReceiver<BoxFuture<'static, ()>>) {
    let mut jobs = FuturesUnordered::new();
    poll_fn(|cx| {
        let open = loop {
            match Pin::new(&mut asked).poll_next(cx) {
                Poll::Ready(Some(job)) => jobs.push(job),
                Poll::Ready(None) => break false,
                Poll::Pending => break true,
            }
        };
        while let Poll::Ready(Some(())) = jobs.poll_next_unpin(cx) {}
        if open || !jobs.is_empty() {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
}

impl Drop for PinnedThread {
    fn drop(&mut self) {
        let started = self
            .started
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(Started { jobs, ended, .. }) = started {
            drop(jobs);
            if super::may_wait() {
                let _ = ended.recv_timeout(JOIN_TIMEOUT);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn all_work_runs_on_one_thread_and_a_panic_ends_one_job() {
        let pinned = PinnedThread::new("test");
        let (send, seen) = channel();
        for panics in [false, true, false] {
            let send = send.clone();
            let job = async move {
                send.send(thread::current().id()).unwrap();
                assert!(!panics, "on purpose");
            };
            pinned.run(job).unwrap();
        }
        let ids: Vec<_> = (0..3).map(|_| seen.recv().unwrap()).collect();
        assert!(
            ids.iter()
                .all(|&id| id == ids[0] && id != thread::current().id())
        );
    }

    #[test]
    fn jobs_take_turns() {
        let pinned = PinnedThread::new("test");
        let (send, seen) = channel();
        let (to_first, wait) = futures::channel::oneshot::channel();
        let first = send.clone();
        let waits = async move {
            wait.await.unwrap();
            first.send("first").unwrap();
        };
        pinned.run(waits).unwrap();
        let tells = async move {
            send.send("second").unwrap();
            to_first.send(()).unwrap();
        };
        pinned.run(tells).unwrap();
        assert_eq!(seen.iter().collect::<Vec<_>>(), ["second", "first"]);
    }

    #[test]
    fn dropped_it_ends_its_thread_behind_its_jobs() {
        struct OnDrop(std_mpsc::Sender<thread::ThreadId>);
        impl Drop for OnDrop {
            fn drop(&mut self) {
                self.0.send(thread::current().id()).unwrap();
            }
        }
        let pinned = PinnedThread::new("test");
        let (send, seen) = channel();
        let (held, dropped) = channel();
        let job = async move {
            let _held = OnDrop(held);
            send.send(thread::current().id()).unwrap();
        };
        pinned.run(job).unwrap();
        drop(pinned);
        assert_eq!(dropped.recv().unwrap(), seen.recv().unwrap());
        // A handle that was not used has no thread.
        assert!(PinnedThread::new("idle").started.lock().unwrap().is_none());
    }
}
