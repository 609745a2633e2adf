//! The children of a segment, and the work that waits for them.
//!
//! One thread manages all children of a supervisor. It starts them (they end with the thread,
//! however it ends), gives them work, takes their output and passes it to the segment. A supervisor
//! works for one segment of one epoch at a time; in between, its children wait for the next epoch.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, mpsc as std_mpsc};
use std::task::Poll;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::child_slot::run_slot;
use super::job::Job;
use super::plan::ChildrenPlan;
use super::protocol::RunFacts;
#[cfg(feature = "remote")]
use super::remote::Workers;
use super::slots::SlotsShared;
use crate::batch_buffer::{Maker, Memory};
use crate::queue::SharedMemory;
use crate::run::morsel::{MorselJob, MorselTask, Spawner};
use crate::sync::lock;
use crate::{Error, ErrorKind};

/// Time that a drop waits for the thread of a supervisor, which has to kill its children.
const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes memory for rows that children fill.
pub(crate) fn shared_memory() -> Maker {
    Arc::new(|len| {
        let memory: Arc<dyn Memory> = SharedMemory::new(len).ok()?;
        Some(memory)
    })
}

enum Command {
    Job(Box<Job>),
    /// Cancels everything that was asked for so far.
    Release,
}

/// Supervisors of a segment that wait for work. They end with the loader.
pub(crate) struct Supervisors {
    pub plan: Arc<ChildrenPlan>,
    idle: Mutex<Vec<Supervisor>>,
}

impl Supervisors {
    pub(crate) fn new(plan: ChildrenPlan) -> Arc<Self> {
        Arc::new(Supervisors {
            plan: Arc::new(plan),
            idle: Mutex::default(),
        })
    }

    /// Returns an idle supervisor whose thread has not ended.
    fn take_idle(&self) -> Option<Supervisor> {
        let mut idle = lock(&self.idle);
        std::iter::from_fn(|| idle.pop()).find(|supervisor| !supervisor.commands.is_closed())
    }

    /// Lends a supervisor for one segment of one epoch; it starts with the first job.
    pub(crate) fn lend(self: &Arc<Self>, run: RunFacts) -> Lease {
        Lease {
            supervisors: self.clone(),
            supervisor: Mutex::new(None),
            run,
        }
    }
}

/// A supervisor that works for one segment. Dropping the lease cancels its jobs and returns the
/// supervisor.
pub(crate) struct Lease {
    supervisors: Arc<Supervisors>,
    supervisor: Mutex<Option<Supervisor>>,
    run: RunFacts,
}

impl Spawner for Lease {
    fn spawn(&self, job: MorselJob) -> MorselTask {
        self.send(Job::new(job, self.run));
        MorselTask::Elsewhere
    }

    /// The parent keeps a copy, to send it again.
    fn copies(&self) -> usize {
        2
    }
}

impl Lease {
    fn plan(&self) -> &ChildrenPlan {
        &self.supervisors.plan
    }

    fn send(&self, job: Job) {
        let mut supervisor = lock(&self.supervisor);
        if supervisor.is_none() {
            let idle = self.supervisors.take_idle();
            *supervisor =
                match idle.map_or_else(|| Supervisor::start(self.supervisors.plan.clone()), Ok) {
                    Ok(supervisor) => Some(supervisor),
                    Err(error) => {
                        let message = format!(
                            "{}: cannot start the thread that looks after its processes",
                            self.plan().node
                        );
                        let error = Error::new(ErrorKind::Worker, message).with_source(error);
                        return job.fail(error.at(&self.plan().node), &self.plan().edge);
                    }
                };
        }
        let supervisor = supervisor.as_ref().expect("started above");
        // A supervisor that has ended drops the job, and the segment notices that.
        let _ = supervisor.commands.send(Command::Job(Box::new(job)));
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let supervisor = self
            .supervisor
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(supervisor) =
            supervisor.filter(|supervisor| supervisor.commands.send(Command::Release).is_ok())
        else {
            return;
        };
        let mut idle = lock(&self.supervisors.idle);
        // One supervisor is kept; there is a second one if two epochs ran at once.
        let surplus = if idle.is_empty() {
            idle.push(supervisor);
            None
        } else {
            Some(supervisor)
        };
        drop(idle);
        drop(surplus);
    }
}

/// The thread that manages some children. Dropping it ends them and waits for that.
struct Supervisor {
    commands: mpsc::UnboundedSender<Command>,
    ended: Option<std_mpsc::Receiver<()>>,
}

impl Supervisor {
    fn start(plan: Arc<ChildrenPlan>) -> std::io::Result<Supervisor> {
        let (commands, receive) = mpsc::unbounded_channel();
        let (send_ended, ended) = std_mpsc::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        crate::run::spawn_thread(format!("datapipes-{}", plan.node), move || {
            let _told_at_the_end = send_ended;
            let body = AssertUnwindSafe(|| runtime.block_on(look_after(plan, receive)));
            if let Err(payload) = catch_unwind(body) {
                // The `drop` of a value, for instance. Jobs in progress are lost, and the segment
                // notices that.
                let error = Error::panic(payload);
                crate::error::quietly(
                    || tracing::error!(%error, "the thread that looks after processes ended"),
                );
            }
        })?;
        Ok(Supervisor {
            commands,
            ended: Some(ended),
        })
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // Closing the channel ends the thread.
        drop(std::mem::replace(
            &mut self.commands,
            mpsc::unbounded_channel().0,
        ));
        if let Some(ended) = self.ended.take()
            && ended.recv_timeout(JOIN_TIMEOUT) == Err(std_mpsc::RecvTimeoutError::Timeout)
        {
            crate::error::quietly(|| tracing::warn!("a process does not end; left running"));
        }
    }
}

/// Cancels everything. A value that panics when it is dropped costs no later epoch.
fn release(shared: &SlotsShared) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| shared.release())) {
        let error = Error::panic(payload);
        crate::error::quietly(|| tracing::error!(%error, "a value was dropped with a panic"));
    }
}

/// Runs the child slots until all senders of commands are gone.
async fn look_after(plan: Arc<ChildrenPlan>, mut commands: mpsc::UnboundedReceiver<Command>) {
    let shared = Rc::new(SlotsShared::new(plan));
    let mut slots: FuturesUnordered<_> = (0..shared.plan.processes.here())
        .map(|place| run_slot(shared.clone(), place))
        .collect();
    #[cfg(feature = "remote")]
    let mut workers: Option<Workers> = Workers::new(&shared);
    let mut work = pin!(poll_fn(|cx| {
        loop {
            // Child slots never end; they are polled when something happens to one of them.
            let _ = slots.poll_next_unpin(cx);
            #[cfg(feature = "remote")]
            if let Some(workers) = &mut workers {
                workers.poll(cx);
            }
            match commands.poll_recv(cx) {
                Poll::Ready(Some(Command::Job(job))) => shared.add(*job),
                Poll::Ready(Some(Command::Release)) => release(&shared),
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }));
    work.as_mut().await;
}
