//! The children of a segment, and the work that waits for them.
//!
//! One thread manages all children of a supervisor. It starts them (they end with the thread,
//! however it ends), gives them work, takes their output and passes it to the segment. A supervisor
//! works for one segment of one epoch at a time; in between, its children wait for the next epoch.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc as std_mpsc};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::child_slot::run_slot;
use super::protocol::{Hello, RunFacts};
use crate::batch_buffer::{Maker, Memory, Rows, SlabPart};
use crate::budget::{Awaited, Credit};
use crate::codec::ChunkWire;
use crate::context::Counters;
use crate::graph::{AnyChunk, Edge};
use crate::queue::{Put, SharedMemory, ThreadPut, Weight};
use crate::run::gauge::SegmentGauge;
use crate::run::morsel::{Fate, MorselJob, MorselTask, Ringer, Spawner};
use crate::sync::lock;
use crate::{Arity, Error, ErrorKind, Processes};

/// Time that a drop waits for the thread of a supervisor, which has to kill its children.
const PATIENCE: Duration = Duration::from_secs(2);

/// Settings shared by the children of a segment, in all epochs.
pub(crate) struct ChildrenPlan {
    pub processes: Processes,
    pub hello: Hello,
    /// Names of the part's nodes, for messages and errors.
    pub node: Arc<str>,
    pub input: Arc<dyn ChunkWire>,
    pub output: Arc<dyn ChunkWire>,
    /// Edge downstream of the part.
    pub edge: Arc<dyn Edge>,
    /// Number of output items for each input item.
    pub arity: Arity,
    pub figures: ChildFigures,
}

/// Figures about children, over all epochs of a loader.
#[derive(Debug, Default)]
pub(crate) struct ChildFigures {
    /// Number of children started.
    pub started: AtomicU64,
    /// Number of children that ended without being asked to.
    pub died: AtomicU64,
    /// Number of children replaced because of their memory.
    pub replaced: AtomicU64,
    /// Number of items that were given up.
    pub crashed: AtomicU64,
    alive: Mutex<BTreeMap<u32, Alive>>,
}

/// A running child.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Alive {
    /// Place among the children of its part.
    pub place: usize,
    /// Private memory, in bytes, at the last check.
    pub resident: u64,
    /// Number of output items.
    pub items: u64,
}

impl ChildFigures {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Alive>> {
        lock(&self.alive)
    }

    /// Returns the running children, by process number.
    pub(crate) fn alive(&self) -> BTreeMap<u32, Alive> {
        self.lock().clone()
    }

    pub(super) fn set(&self, pid: u32, alive: Alive) {
        self.lock().insert(pid, alive);
    }

    /// Sets the number of output items of a child.
    pub(super) fn count(&self, pid: u32, items: u64) {
        if let Some(alive) = self.lock().get_mut(&pid) {
            alive.items = items;
        }
    }

    pub(super) fn gone(&self, pid: u32) {
        self.lock().remove(&pid);
    }
}

/// A job on its way. If it is dropped before it is finished, it is lost, and the segment notices
/// that.
pub(crate) struct Job {
    pub run: RunFacts,
    /// Number of its first item in the segment's input.
    pub first: u64,
    /// Rows that the part fills.
    pub rows: Option<Arc<Rows>>,
    /// Rows that were granted to a child, by the places of the items; `None` once a row has been
    /// returned.
    pub granted: Vec<Option<SlabPart>>,
    /// Input, kept until all of its output has come.
    pub chunk: AnyChunk,
    pub counters: Vec<Arc<Counters>>,
    pub gauge: Arc<SegmentGauge>,
    pub fate: Arc<Fate>,
    /// Bytes of the input and the output.
    pub credit: Credit,
    pub awaited: Arc<Awaited>,
    // The queue must end before the bell rings, so it is dropped first.
    pub put: ThreadPut<AnyChunk>,
    pub ringer: Ringer,
}

impl Job {
    /// Hands on what came out. It has to have room. What went in stays, here and in the child.
    pub(super) fn hand_on(&mut self, mut chunk: AnyChunk) {
        chunk.hold = Some(self.credit.give(
            chunk.len - chunk.errors,
            chunk.bytes,
            2 * self.chunk.bytes,
        ));
        self.awaited.made(self.credit.id());
        let weight = Weight {
            items: chunk.len,
            bytes: chunk.bytes,
        };
        let failed = chunk.errors > 0;
        self.put.put(chunk, weight);
        if failed {
            // An error may end the epoch; its reader is not to wait for later items.
            self.put.flush();
        }
    }

    pub(super) fn finish(self) {
        self.fate.complete();
    }

    /// Fails the job as a whole.
    fn fail(mut self, error: Error, edge: &Arc<dyn Edge>) {
        self.put
            .put(edge.fail_chunk(error), Weight { items: 1, bytes: 0 });
        self.finish();
    }
}

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
        let links = &job.shared.chain.links;
        self.send(Job {
            run: self.run,
            first: job.first,
            rows: links.iter().find_map(|link| link.rows.clone()),
            granted: Vec::new(),
            counters: links
                .iter()
                .map(|link| link.context.counters().clone())
                .collect(),
            chunk: job.chunk,
            gauge: job.shared.gauge.clone(),
            fate: job.fate,
            credit: job.credit,
            awaited: job.shared.awaited.clone(),
            put: job.put,
            ringer: job.ringer,
        });
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
            let idle = lock(&self.supervisors.idle).pop();
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
            && ended.recv_timeout(PATIENCE) == Err(std_mpsc::RecvTimeoutError::Timeout)
        {
            crate::error::quietly(|| tracing::warn!("a process does not end; left running"));
        }
    }
}

/// Runs the child slots until all senders of commands are gone.
async fn look_after(plan: Arc<ChildrenPlan>, mut commands: mpsc::UnboundedReceiver<Command>) {
    let shared = Rc::new(SlotsShared::new(plan));
    let mut slots: FuturesUnordered<_> = (0..shared.plan.processes.count)
        .map(|place| run_slot(shared.clone(), place))
        .collect();
    let mut work = pin!(poll_fn(|cx| {
        loop {
            // Child slots never end; they are polled when something happens to one of them.
            let _ = slots.poll_next_unpin(cx);
            match commands.poll_recv(cx) {
                Poll::Ready(Some(Command::Job(job))) => shared.add(*job),
                Poll::Ready(Some(Command::Release)) => shared.release(),
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }));
    work.as_mut().await;
}

/// State shared by the child slots of a supervisor, all on one thread.
pub(super) struct SlotsShared {
    pub plan: Arc<ChildrenPlan>,
    /// Jobs that no child has, by number.
    pending: RefCell<BTreeMap<u64, Job>>,
    next: Cell<u64>,
    /// Number below which jobs are cancelled.
    released: Cell<u64>,
    /// Number of children that ended in a row, without an item getting through.
    deaths: Cell<usize>,
    /// Error that stops all work until the next epoch.
    broken: RefCell<Option<(ErrorKind, String)>>,
    wakers: RefCell<Vec<Option<Waker>>>,
    /// True for each place whose child is ready and has nothing to do.
    idle: RefCell<Vec<bool>>,
}

impl SlotsShared {
    fn new(plan: Arc<ChildrenPlan>) -> Self {
        let wakers = RefCell::new(vec![None; plan.processes.count]);
        let idle = RefCell::new(vec![false; plan.processes.count]);
        SlotsShared {
            plan,
            pending: RefCell::default(),
            next: Cell::new(0),
            released: Cell::new(0),
            deaths: Cell::new(0),
            broken: RefCell::default(),
            wakers,
            idle,
        }
    }

    fn add(&self, job: Job) {
        if let Some(error) = self.why_broken() {
            return job.fail(error, &self.plan.edge);
        }
        let number = self.next.replace(self.next.get() + 1);
        self.pending.borrow_mut().insert(number, job);
        self.wake();
    }

    fn release(&self) {
        self.released.set(self.next.get());
        self.pending.borrow_mut().clear();
        self.deaths.set(0);
        self.broken.replace(None);
        self.wake();
    }

    fn wake(&self) {
        let wakers: Vec<Waker> = self
            .wakers
            .borrow_mut()
            .iter_mut()
            .filter_map(Option::take)
            .collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes a child slot when there is work, or when earlier work was cancelled.
    pub(super) fn register(&self, place: usize, waker: &Waker) {
        match &mut self.wakers.borrow_mut()[place] {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// Sets if the child at a place has nothing to do. When it gets work, child slots that had
    /// left the work to it look again.
    pub(super) fn set_idle(&self, place: usize, idle: bool) {
        let was = std::mem::replace(&mut self.idle.borrow_mut()[place], idle);
        if was && !idle && self.has_pending() {
            self.wake();
        }
    }

    pub(super) fn has_idle(&self) -> bool {
        self.idle.borrow().contains(&true)
    }

    /// Returns the number of children that ended in a row, without an item getting through.
    pub(super) fn deaths(&self) -> usize {
        self.deaths.get()
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.borrow().is_empty()
    }

    /// Returns the next job, if it is later than the jobs of the child. A child works and answers
    /// in order, so an earlier job after a later one could wait for ever, for a consumer that waits
    /// for the earlier one.
    pub(super) fn take(&self, behind: Option<u64>) -> Option<(u64, Job)> {
        let mut pending = self.pending.borrow_mut();
        let entry = pending
            .first_entry()
            .filter(|first| behind.is_none_or(|behind| behind < *first.key()))?;
        Some(entry.remove_entry())
    }

    /// Returns a job that a child had not begun.
    pub(super) fn give_back(&self, number: u64, job: Job) {
        if self.why_broken().is_some() {
            self.fail(job);
        } else if self.is_wanted(number) {
            self.pending.borrow_mut().insert(number, job);
            self.wake();
        }
    }

    pub(super) fn is_wanted(&self, number: u64) -> bool {
        number >= self.released.get()
    }

    /// Returns the number below which jobs are cancelled.
    pub(super) fn released(&self) -> u64 {
        self.released.get()
    }

    /// Records that an item got through, or that it is known not to.
    pub(super) fn progress(&self) {
        self.deaths.set(0);
    }

    /// Records the end of a child. Returns true if another child is to be started. The end of an
    /// idle child is not counted.
    pub(super) fn death(&self, place: usize, how: &str, idle: bool) -> bool {
        let deaths = self.deaths.get() + usize::from(!idle);
        self.deaths.set(deaths);
        self.plan.figures.died.fetch_add(1, Ordering::Relaxed);
        let ChildrenPlan {
            node, processes, ..
        } = &*self.plan;
        crate::error::quietly(|| {
            tracing::warn!(node = &**node, child = place, "a process ended: {how}")
        });
        // Each child may end once before the guilty item is known, all of them at the same time.
        let others = if processes.restarts > 0 {
            processes.count - 1
        } else {
            0
        };
        if deaths <= processes.restarts.saturating_add(others) {
            return true;
        }
        let message = match deaths {
            1 => format!("1 process ended, where none may; it {how}"),
            _ => format!(
                "{deaths} processes ended one after the other, and no item got through; the last {how}"
            ),
        };
        self.break_off(Error::new(ErrorKind::Worker, message).at(node));
        false
    }

    /// Stops all work: everything that is asked for fails.
    pub(super) fn break_off(&self, error: Error) {
        // The error is about none of the items, whatever its kind: no policy may skip it.
        let kind = if error.kind().is_about_an_item() {
            ErrorKind::Worker
        } else {
            error.kind()
        };
        let said = error.cause();
        let said = said
            .strip_prefix(&format!("{kind}: "))
            .map(str::to_owned)
            .unwrap_or(said);
        self.broken.borrow_mut().get_or_insert((kind, said));
        let pending = std::mem::take(&mut *self.pending.borrow_mut());
        for job in pending.into_values() {
            self.fail(job);
        }
        self.wake();
    }

    /// Fails a job with the error that stopped all work.
    pub(super) fn fail(&self, job: Job) {
        if let Some(error) = self.why_broken() {
            job.fail(error, &self.plan.edge);
        }
    }

    fn why_broken(&self) -> Option<Error> {
        let broken = self.broken.borrow();
        let (kind, said) = broken.as_ref()?;
        Some(Error::new(*kind, said).at(&self.plan.node))
    }
}
