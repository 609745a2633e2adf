//! The life of one child: its jobs, its answers, and its end.

mod ahead;
mod late;
mod reports;
mod rows;
mod silence;
mod work;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use self::ahead::RoundTrips;
use self::late::Late;
use super::child_handle::Child;
use super::job::Task;
use super::plan::Alive;
use super::protocol::{Counted, Done, Order};
use super::slots::{ChildSlot, ChildState};
use crate::graph::AnyChunk;
use crate::queue::{SharedMemory, Weight};
use crate::{Error, ErrorKind, Result, Wire, Writer};

/// Least number of bytes that a job on its way to a child counts: what a worker holds of it before it
/// begins, besides its input.
const LEAST_JOB: usize = 16 << 10;
/// Greatest time in which a child must build its part of the graph.
const START: Duration = Duration::from_secs(60);
/// Time without room for its output after which a worker is given up, if another part waits for it,
/// or work that is due before its own.
const STUCK: Duration = Duration::from_secs(1);
/// Number of times that a worker of another machine is told within its heartbeat timeout that this process is there.
const BEATS: u32 = 6;
/// Interval between two checks of a child's memory, without a limit and with one.
const LOOK: Duration = Duration::from_millis(100);
const LOOK_CLOSELY: Duration = Duration::from_millis(10);

/// Reason for the end of a child.
pub(super) enum End {
    /// The child ended by itself, or was killed by somebody.
    Died,
    /// The child did not answer in time, and was killed.
    Silent(Duration),
    /// The worker is silent for much longer than others were: its work goes to another one.
    Slow(Duration),
    /// The child sent an invalid message, and was killed.
    Garbage(Error),
    /// The child closed its queue, but did not end, and was killed.
    Closed,
    /// Memory was missing to send a message to the child.
    Unsent(Error),
    /// The child cannot do the work.
    Refused(Error),
    /// The child was ended on purpose.
    Dismissed,
    /// The worker is needed elsewhere, and there is no room for its output.
    HandedOver,
}

/// The life of one child.
pub(super) struct Session<'a> {
    slot: &'a mut ChildSlot,
    pub child: Child,
    /// True once the child has built its part of the graph.
    pub ready: bool,
    /// Tasks of the child, in the order in which it works on them.
    pub tasks: VecDeque<Task>,
    /// A late task, which it has before those, and which is in [`LateTasks`](super::late::LateTasks).
    late: Option<Late>,
    /// Numbers of jobs that it has before those, and that others do: what is sent of them is dropped.
    lost: VecDeque<u64>,
    late_timer: Pin<Box<Sleep>>,
    /// Time when it last waited for room.
    had_no_room: Instant,
    /// Number of bytes of the messages with which it got the tasks, each at least [`LEAST_JOB`].
    input: usize,
    /// Output of the first task that waits for room, what is counted with it, and the end of the
    /// task if it is the last.
    held: Option<(AnyChunk, Counted, Option<Done>)>,
    exited: bool,
    /// True if the child gets no more tasks, and is ended after its last one.
    leaving: bool,
    /// Time since when it has tasks, and can do none of them.
    stuck: Option<Instant>,
    /// Time of the child's last answer or last new task.
    heard: Instant,
    /// Time when the child closed its queue, after which it should end.
    closed: Option<Instant>,
    looked: Instant,
    /// Number up to which jobs were cancelled in the child.
    cancelled: u64,
    /// True if the part waits for something, so that jobs overlap.
    waits: bool,
    items: u64,
    /// Bytes of the output that came.
    bytes: u64,
    round_trips: RoundTrips,
    /// Recent time of a job.
    job_time: Option<Duration>,
    /// Memory lent to the child, by its number. Each piece costs the child a descriptor, and stays
    /// there even if it is gone in this process.
    lent: HashMap<u64, Weak<SharedMemory>>,
    timer: Pin<Box<Sleep>>,
    /// Interval in which a worker of another machine is told that this process is there, and the timer
    /// of the next time.
    beat: Option<(Duration, Pin<Box<Sleep>>)>,
    begun: Instant,
    warned: bool,
}

impl<'a> Session<'a> {
    /// Begins the session of a child that has just been started.
    pub(super) fn new(slot: &'a mut ChildSlot, child: Child) -> Self {
        let seldom_waits = slot.plan().seldom_waits;
        let heartbeat_timeout = slot.plan().hello.heartbeat_timeout;
        let heartbeat_timeout = heartbeat_timeout.filter(|_| child.machine().is_some());
        let mut session = Session {
            slot,
            round_trips: RoundTrips::new(child.round_trip()),
            job_time: None,
            child,
            ready: false,
            tasks: VecDeque::new(),
            late: None,
            lost: VecDeque::new(),
            late_timer: Box::pin(tokio::time::sleep(START)),
            had_no_room: Instant::now(),
            input: 0,
            held: None,
            exited: false,
            leaving: false,
            stuck: None,
            heard: Instant::now(),
            closed: None,
            looked: Instant::now(),
            cancelled: 0,
            waits: !seldom_waits,
            items: 0,
            bytes: 0,
            lent: HashMap::new(),
            timer: Box::pin(tokio::time::sleep(START)),
            beat: heartbeat_timeout.map(|heartbeat_timeout| {
                let every = heartbeat_timeout / BEATS;
                (every, Box::pin(tokio::time::sleep(every)))
            }),
            begun: Instant::now(),
            warned: false,
        };
        session.look();
        session
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let place = self.slot.place;
        self.slot.shared.register(place, cx.waker());
        self.child.poll_lines(cx);
        loop {
            match self.poll_reports(cx) {
                Ok(Poll::Pending) => {}
                Ok(Poll::Ready(end)) => return Poll::Ready(end),
                Err(error) => return self.garbage(error),
            }
            if !self.exited && self.child.poll_exit(cx).is_ready() {
                // The reports that it sent before are read first.
                self.exited = true;
                continue;
            }
            if self.exited {
                // Held output waits for room; everything else was read.
                return if self.held.is_some() {
                    Poll::Pending
                } else {
                    Poll::Ready(End::Died)
                };
            }
            if self.is_given_up() {
                return Poll::Ready(End::HandedOver);
            }
            if self.leaving && !self.is_busy() {
                return Poll::Ready(End::Dismissed);
            }
            let gave = self
                .tell_alive(cx)
                .and_then(|()| self.allow(cx))
                .and_then(|()| self.give_work(cx));
            let state = self.state(cx);
            self.slot.shared.set_state(place, state);
            match gave {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    self.child.kill();
                    return Poll::Ready(End::Unsent(error));
                }
            }
            self.poll_late(cx);
            if let Some(end) = self.poll_timer(cx) {
                return Poll::Ready(end);
            }
            self.publish();
            return Poll::Pending;
        }
    }

    fn is_worker(&self) -> bool {
        self.child.machine().is_some()
    }

    /// Returns true if the child has anything to do.
    fn is_busy(&self) -> bool {
        self.first_job().is_some()
    }

    /// Returns true if the child takes part in the work: processes of this machine do not while
    /// workers of other machines do, or while fewer are enough.
    fn is_at_work(&self, cx: &mut Context<'_>) -> bool {
        let (shared, place) = (&self.slot.shared, self.slot.place);
        self.is_worker() || shared.ready_workers() == 0 && !shared.is_parked(place, cx)
    }

    /// Publishes what the child has done, and has to do.
    fn publish(&self) {
        let key = (self.child.id(), self.slot.place);
        self.slot.plan().figures.count(key, |alive| {
            alive.items = self.items;
            alive.jobs = self.jobs();
            alive.bytes = self.bytes;
            alive.heard = self.heard.into_std();
            alive.job_time = self.job_time.unwrap_or_default();
        });
    }

    /// Returns what the child does, and notes since when it has waited for room.
    fn state(&mut self, cx: &mut Context<'_>) -> ChildState {
        let no_room = self.has_no_room();
        self.stuck = no_room.then(|| self.stuck.unwrap_or_else(Instant::now));
        if !self.ready {
            return ChildState::NotReady;
        }
        if no_room {
            return ChildState::Waiting;
        }
        if self.late.is_some() || !self.tasks.is_empty() {
            return ChildState::Working;
        }
        let is_free = !self.leaving && self.closed.is_none() && !self.is_busy();
        match is_free && self.is_at_work(cx) {
            true => ChildState::Idle,
            false => ChildState::Waiting,
        }
    }

    /// Returns true if the first task waits for room for its output. The child works in order: while
    /// it has a late task, the others have not begun.
    fn has_no_room(&self) -> bool {
        let is_first = self.late.is_none();
        let front = self.tasks.front().filter(|_| is_first);
        front.is_some_and(|front| self.held.is_some() || front.asked.is_some())
    }

    /// Chooses this worker if one is to be handed over, also while it makes the part. Returns true if
    /// the child has waited long enough for room for its output, and is to leave, or to do what is due
    /// before.
    fn is_given_up(&mut self) -> bool {
        let is_worker = self.is_worker();
        if !self.slot.plan().processes.is_remote() {
            return false;
        }
        let ChildSlot {
            shared,
            place,
            handed_over,
            ..
        } = &mut *self.slot;
        if is_worker && !self.leaving && shared.is_handed_over(*place) {
            (self.leaving, *handed_over) = (true, true);
        }
        let Some(front) = self.tasks.front() else {
            return false;
        };
        self.stuck.is_some_and(|since| since.elapsed() >= STUCK)
            && (self.leaving || shared.waits_before(front.number, is_worker))
    }

    /// Returns the child, and its tasks in the state in which another child can do them.
    pub(super) fn into_parts(mut self) -> (Child, VecDeque<Task>) {
        if let (Some((chunk, ..)), Some(front)) = (self.held.take(), self.tasks.front_mut()) {
            // It was seen, but is not delivered, and comes again.
            front.seen -= chunk.len;
        }
        if self.late.is_some() || !self.lost.is_empty() {
            // None of the others was begun.
            self.give_back();
        }
        let late = self.late.take();
        let left = late.and_then(|late| self.slot.shared.late.leave(late.key));
        self.tasks.extend(left);
        for task in &mut self.tasks {
            task.asked = None;
            task.job.credit.stop_waiting();
        }
        (self.child, self.tasks)
    }

    fn garbage(&mut self, error: Error) -> Poll<End> {
        self.child.kill();
        Poll::Ready(End::Garbage(error))
    }

    fn look_every(&self) -> Duration {
        if self.slot.plan().processes.memory.is_some() {
            LOOK_CLOSELY
        } else {
            LOOK
        }
    }

    /// Checks the child's memory, and dismisses the child before its limit is reached.
    fn look(&mut self) {
        self.looked = Instant::now();
        let vitals = self.child.vitals();
        let alive = Alive {
            machine: self.child.machine().map(str::to_owned),
            resident: vitals.map_or(0, |vitals| vitals.resident),
            items: self.items,
            jobs: self.jobs(),
            bytes: self.bytes,
            heard: self.heard.into_std(),
            job_time: self.job_time.unwrap_or_default(),
        };
        self.unlend(|_, memory| memory.strong_count() > 0);
        let plan = self.slot.plan();
        plan.figures.set((self.child.id(), self.slot.place), alive);
        let Some(vitals) = vitals else { return };
        if plan
            .processes
            .memory
            .is_some_and(|memory| vitals.near(memory))
            && !self.leaving
        {
            plan.figures.replaced.fetch_add(1, Ordering::Relaxed);
            let (node, child, bytes) = (&*plan.node, self.slot.place, vitals.resident);
            crate::error::quietly(|| {
                tracing::warn!(
                    node,
                    child,
                    bytes,
                    "a process comes near its limit of memory, and is replaced"
                );
            });
            self.leaving = true;
        }
    }

    /// Returns the number of jobs that the child has.
    fn jobs(&self) -> usize {
        self.lost.len() + usize::from(self.late.is_some()) + self.tasks.len()
    }

    /// Returns the number of the first job that the child has.
    fn first_job(&self) -> Option<u64> {
        let late = || self.late.as_ref().map(|late| late.key.number);
        let task = || self.tasks.front().map(|task| task.number);
        self.lost.front().copied().or_else(late).or_else(task)
    }

    /// Returns the number of the last job that the child has, without those that it lost.
    fn last_job(&self) -> Option<u64> {
        let late = || self.late.as_ref().map(|late| late.key.number);
        self.tasks.back().map(|task| task.number).or_else(late)
    }

    /// Sends an order, with these places of the chunk of the last task, which is counted as on its
    /// way.
    fn send(
        &mut self,
        cx: &mut Context<'_>,
        order: &Order,
        places: Option<Range<usize>>,
    ) -> Result<bool> {
        let mut writer = Writer::new();
        order.encode(&mut writer)?;
        let has_input = places.is_some();
        if let Some(places) = places {
            let task = self.tasks.back().expect("the order is about it");
            let input = &self.slot.shared.plan.input;
            let encode = || input.encode(&*task.job.chunk.chunk, places, &mut writer);
            catch_unwind(AssertUnwindSafe(encode)).map_err(Error::panic)?;
        }
        let bytes = writer.len();
        let sent = self
            .child
            .orders
            .send(writer, Weight { items: 1, bytes: 0 });
        if has_input && let Some(task) = self.tasks.back_mut() {
            task.bytes = bytes.max(LEAST_JOB);
            self.input += task.bytes;
        }
        let flushed = sent.map(|()| self.child.orders.poll_flush(cx));
        match flushed {
            Ok(Poll::Ready(Err(error))) | Err(error) => self.unreachable(error),
            Ok(_) => Ok(true),
        }
    }

    /// Handles a failed send. If the child has ended, its end is reported instead.
    fn unreachable(&mut self, error: Error) -> Result<bool> {
        if error.kind() == ErrorKind::Limit {
            // The memory for sending is missing in this process.
            return Err(error);
        }
        self.closed.get_or_insert_with(Instant::now);
        Ok(false)
    }
}
