//! The life of one child: its jobs, its answers, and its end.

mod late;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use self::late::Late;
use super::child_handle::Child;
use super::job::{Job, Task};
use super::log::tell;
use super::plan::Alive;
use super::protocol::{Counted, Done, Grants, JobFacts, Order, Report};
use super::slots::ChildSlot;
use crate::batch_buffer::SlabPart;
use crate::codec::{Parcel, damaged};
use crate::graph::AnyChunk;
use crate::queue::{Put, SharedMemory, Weight};
use crate::{Error, ErrorKind, Result, Writer};

/// Number of jobs that a child has at once: a current one and the next.
const AT_ONCE: usize = 2;
/// Number of bytes of the messages of jobs of a distant worker above which no more are on their way to it, and
/// the least that a job counts: what a worker holds of a job before it begins, besides its input.
const ON_THE_WAY: usize = 16 << 20;
const LEAST_JOB: usize = 16 << 10;
/// Least time of a job at a distant worker: that of its messages.
const LEAST_TIME: Duration = Duration::from_micros(20);
/// Number of the last round trips of which the shortest counts: an answer has to wait for the item
/// in progress.
const ROUND_TRIPS: usize = 3;
/// Time by which a round trip may be longer than the shortest one. More of it is a queue before a
/// network that is full, which more work would make longer.
const FARTHER: Duration = Duration::from_millis(500);
/// Greatest time in which a child must build its part of the graph.
const START: Duration = Duration::from_secs(60);
/// Greatest time that a child may spend on cancelled work.
const GRACE: Duration = Duration::from_secs(1);
/// Time without an answer after which the log reports it, if there is no time limit.
const SILENCE: Duration = Duration::from_secs(60);
/// Least size of a row, in bytes, that a child fills in place.
const WORTH_A_GRANT: usize = 16 << 10;
/// Number of lent pieces of memory above which pieces without granted rows are taken back at once.
const LENT: usize = 16;
/// Greatest number of bytes that a child may ask for: more than a process can have.
const MOST_ASKED: usize = 1 << 48;
/// Greatest time that a child may take to end after it has closed its queue.
const CLOSING: Duration = Duration::from_millis(100);
/// A worker of another machine that is silent for so many times as long as the longest recent
/// silence, and at least the time that its `Remote` says, is given up. A cause in
/// the item itself makes the next worker as slow, so the time doubles.
const SLOW: u32 = 8;
/// Silence that is assumed before the first answer of any worker.
const FIRST_SILENCE: Duration = Duration::from_secs(5);
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
    /// Times of the last round trips to a worker of another machine.
    round_trips: VecDeque<Duration>,
    shortest_trip: Duration,
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
            round_trips: child.round_trip().into_iter().collect(),
            shortest_trip: child.round_trip().unwrap_or(Duration::MAX),
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
            let is_free = self.ready && !self.leaving && self.closed.is_none() && !self.is_busy();
            let idle = is_free && self.is_at_work(cx);
            self.slot.shared.set_idle(place, idle);
            self.set_working();
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
        });
    }

    fn set_working(&mut self) {
        let front = self.tasks.front();
        // The child works in order: while it has a late task, the others have not begun.
        let waits = self.late.is_none()
            && (self.held.is_some() || front.is_some_and(|task| task.asked.is_some()));
        let is_stuck = self.ready && front.is_some() && waits;
        self.stuck = is_stuck.then(|| self.stuck.unwrap_or_else(Instant::now));
        let working = (front.is_some() || self.late.is_some()) && !waits;
        self.slot.shared.set_working(self.slot.place, working);
    }

    /// Chooses this worker if one is to be handed over. Returns true if the child has waited long
    /// enough for room for its output, and is to leave, or to do what is due before.
    fn is_given_up(&mut self) -> bool {
        let is_worker = self.is_worker();
        if !self.ready || !self.slot.plan().processes.is_remote() {
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

    /// Reads the child's reports, as long as their output can be delivered.
    fn poll_reports(&mut self, cx: &mut Context<'_>) -> Result<Poll<End>> {
        loop {
            if let Some((chunk, counted, done)) = self.held.take() {
                let task = self
                    .tasks
                    .front_mut()
                    .ok_or_else(|| damaged("an output of nothing"))?;
                match task.job.poll_room(chunk.bytes, cx) {
                    Poll::Pending => {
                        self.held = Some((chunk, counted, done));
                        // The wait is not the child's fault.
                        self.heard = Instant::now();
                        self.had_no_room = self.heard;
                        return Ok(Poll::Pending);
                    }
                    Poll::Ready(false) => task.count(counted),
                    Poll::Ready(true) => {
                        task.count(counted);
                        task.delivered += chunk.len;
                        self.items += chunk.len as u64;
                        self.slot.shared.progress();
                        task.job.hand_on(chunk);
                    }
                }
                if let Some(done) = done {
                    self.done(done)?;
                }
            }
            match self.child.reports.poll_parcel(cx) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(None) => {
                    let meant = |error: &&Error| {
                        matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Limit)
                    };
                    if let Some(error) = self.child.reports.fault().filter(meant) {
                        return Err(Error::new(error.kind(), error.message()));
                    }
                    if self.exited {
                        return Ok(Poll::Ready(End::Died));
                    }
                    // The child has closed its queue, so it is about to end, or will be killed.
                    self.closed.get_or_insert_with(Instant::now);
                    return Ok(Poll::Pending);
                }
                Poll::Ready(Some(parcel)) => {
                    if let Some(end) = self.report(&parcel)? {
                        return Ok(Poll::Ready(end));
                    }
                    if self.looked.elapsed() > self.look_every() {
                        self.look();
                    }
                }
            }
        }
    }

    fn report(&mut self, parcel: &Parcel) -> Result<Option<End>> {
        let mut from = parcel.reader();
        let report = Report::read(&mut from)?;
        if !matches!(report, Report::Output(..)) {
            from.end()?;
        }
        if !matches!(report, Report::Log(_) | Report::Alive(_)) {
            let now = Instant::now();
            if self.ready && self.is_busy() {
                self.slot.shared.heard_after(now - self.heard);
            }
            (self.heard, self.warned) = (now, false);
        }
        if self.is_of_others(&report)? {
            return Ok(None);
        }
        match report {
            Report::Ready if !self.ready => {
                self.ready = true;
                self.slot.shared.set_ready(self.slot.place, true);
            }
            Report::Leaving => self.leaving = true,
            Report::Alive(at) => self.answered_after(at),
            Report::Ready => return Err(damaged("ready twice")),
            Report::Refused(_) if self.ready => return Err(damaged("refused once it was ready")),
            Report::Refused(error) => {
                self.child.kill();
                return Ok(Some(End::Refused(error)));
            }
            Report::Log(log) => tell(&self.slot.plan().node, self.slot.place, &log),
            Report::Output(number, counted, done) => {
                let task = self.tasks.front_mut().filter(|task| task.number == number);
                let task = task.ok_or_else(|| {
                    damaged(format_args!(
                        "an output of job {number}, which it does not have"
                    ))
                })?;
                let granted = match task.alone {
                    None => &mut task.job.granted[..],
                    Some(item) => task.job.granted.get_mut(item..item + 1).unwrap_or_default(),
                };
                let plan = &self.slot.shared.plan;
                let mut from = from.with_grants(granted);
                let decoded = catch_unwind(AssertUnwindSafe(|| {
                    plan.output
                        .decode(&mut from)
                        .map(|chunk| plan.edge.weigh(chunk))
                }));
                let mut chunk =
                    decoded.unwrap_or_else(|payload| Err(damaged(Error::panic(payload))))?;
                from.end()?;
                task.asked = None;
                let known = task.delivered.saturating_sub(task.seen).min(chunk.len);
                task.seen += chunk.len;
                if known > 0 {
                    chunk = plan.edge.without_first(chunk, known);
                }
                self.bytes += parcel.len() as u64;
                // The encoded length is known here, whatever weight the steps report.
                chunk.bytes = chunk.bytes.max(parcel.len());
                if chunk.len > 0 {
                    self.held = Some((chunk, counted, done));
                } else {
                    task.count(counted);
                    if let Some(done) = done {
                        self.done(done)?;
                    }
                }
            }
            Report::Done(done) => self.done(done)?,
            Report::Ask { number, bytes } => {
                let task = self.tasks.iter_mut().find(|task| task.number == number);
                let task = task.ok_or_else(|| {
                    damaged(format_args!(
                        "a question about job {number}, which it does not have"
                    ))
                })?;
                if bytes > MOST_ASKED {
                    return Err(damaged(format_args!("a question about {bytes} bytes")));
                }
                task.asked = Some(bytes);
            }
        }
        Ok(None)
    }

    /// Tells a worker of another machine from time to time that this process is there, which it
    /// answers, unless something waits to be sent.
    fn tell_alive(&mut self, cx: &mut Context<'_>) -> Result<()> {
        // Before, it would answer once it has made its part.
        let Some((every, timer)) = self.beat.as_mut().filter(|_| self.ready) else {
            return Ok(());
        };
        if timer.as_mut().poll(cx).is_pending() {
            return Ok(());
        }
        timer.as_mut().reset(Instant::now() + *every);
        // To be woken for the next one.
        let _ = timer.as_mut().poll(cx);
        if self.closed.is_none() && self.child.orders.poll_flush(cx).is_ready() {
            let at = self.begun.elapsed().as_micros();
            self.send(cx, &Order::Alive(at as u64), None)?;
        }
        Ok(())
    }

    /// Learns the time of a round trip from the answer to what was said so many microseconds after
    /// the begin. An answer may have waited for room, which tells nothing about the network.
    fn answered_after(&mut self, at: u64) {
        let said = self.begun.checked_add(Duration::from_micros(at));
        let Some(said) = said.filter(|&said| said > self.had_no_room) else {
            return;
        };
        if self.round_trips.len() >= ROUND_TRIPS {
            self.round_trips.pop_front();
        }
        let round_trip = said.elapsed();
        self.shortest_trip = self.shortest_trip.min(round_trip);
        self.round_trips
            .push_back(round_trip.min(self.shortest_trip + FARTHER));
    }

    /// Allows the jobs that have asked to make an item to do so, as far as there is room.
    fn allow(&mut self, cx: &mut Context<'_>) -> Result<()> {
        for at in 0..self.tasks.len() {
            let task = &mut self.tasks[at];
            let is_wanted = self.slot.shared.is_wanted(task.number);
            let Some(bytes) = task.asked.filter(|_| is_wanted) else {
                continue;
            };
            // The wait is not the child's fault. A later job does not count: its question says
            // nothing about the first, which may hang.
            if at == 0 && self.late.is_none() {
                self.heard = Instant::now();
                self.had_no_room = self.heard;
            }
            let room = match task.delivered {
                0 => task.job.poll_bytes(bytes, cx),
                _ => task.job.poll_room(bytes, cx),
            };
            if room.is_ready() {
                task.asked = None;
                let number = task.number;
                self.send(cx, &Order::Allow(number), None)?;
            }
        }
        Ok(())
    }

    fn done(&mut self, done: Done) -> Result<()> {
        let front = self.tasks.front();
        let is_front = front.is_some_and(|task| task.number == done.number);
        // If the report is wrong, the task stays, so that others do it.
        let task = is_front.then(|| self.tasks.pop_front()).flatten();
        let mut task = task.ok_or_else(|| {
            damaged(format_args!(
                "the end of job {}, which it does not have",
                done.number
            ))
        })?;
        self.input -= task.bytes;
        self.slot.shared.progress();
        self.publish();
        self.waits = done.waits;
        // A job that was cancelled before it began tells nothing.
        if done.spent > 0 && self.slot.shared.is_wanted(done.number) {
            self.learn(Duration::from_nanos(done.spent));
            if task.alone.is_none() {
                let time = task.sent.max(self.had_no_room).elapsed();
                if self.slot.shared.late.learn(time) {
                    // Those that wait since before can be late from now on.
                    self.slot.shared.wake();
                }
            }
        }
        task.count(done.counted);
        if let (Some(rows), Some((dtype, len))) = (&task.job.rows, done.wanted)
            && len.checked_mul(dtype.size()).is_some()
        {
            rows.want((dtype, len));
        }
        task.job.outcome.spend(done.spent);
        if let Some(events) = &mut task.job.events {
            let remote = self
                .child
                .machine()
                .map(|machine| (self.slot.place, machine));
            events.in_child(self.child.id(), remote, done.spent);
        }
        task.job
            .gauge
            .busy_ns
            .fetch_add(done.busy, Ordering::Relaxed);
        match task.alone {
            None => task.job.finish(),
            Some(item) => {
                task.turn_to(item + 1, task.seen);
                if item + 1 >= task.job.chunk.len {
                    task.job.finish();
                } else {
                    self.slot.redo.push_front(task);
                }
            }
        }
        Ok(())
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

    /// Learns from a job that has ended, and that took this time there.
    fn learn(&mut self, spent: Duration) {
        // Jobs that wait, wait at the same time.
        let spent = spent / self.overlap() as u32;
        self.job_time = Some(match self.job_time {
            Some(known) => known - known / 4 + spent / 4,
            None => spent,
        });
    }

    /// Returns the number of jobs that the child works on at once.
    fn overlap(&self) -> usize {
        match self.waits {
            true => self.slot.plan().hello.overlap,
            false => 1,
        }
    }

    /// Returns the number of jobs that the child may have at once: as many as it works on, the next,
    /// and those that are done while an answer and the next order are on their way, but no more than
    /// its share of all that are there.
    fn most_jobs(&self) -> usize {
        let most = self.overlap() - 1 + AT_ONCE;
        let (Some(round_trip), Some(job_time)) = (self.round_trips.iter().min(), self.job_time)
        else {
            return most;
        };
        if self.input >= ON_THE_WAY {
            return most;
        }
        let job_time = job_time.max(LEAST_TIME).as_nanos();
        let on_the_way = round_trip.as_nanos().div_ceil(job_time);
        let on_the_way = usize::try_from(on_the_way).unwrap_or(usize::MAX);
        let shared = &self.slot.shared;
        let share = (shared.pending() + self.tasks.len()).div_ceil(shared.ready_workers().max(1));
        most.saturating_add(on_the_way).min(most.max(share))
    }

    /// Gives the child as much work as it may have at once. Returns true if anything was done.
    fn give_work(&mut self, cx: &mut Context<'_>) -> Result<bool> {
        if self.closed.is_some() {
            return Ok(false);
        }
        if let Poll::Ready(Err(error)) = self.child.orders.poll_flush(cx) {
            return self.unreachable(error);
        }
        if let Some(last) = self.lose() {
            return self.send(cx, &Order::Cancel(last), None);
        }
        let released = self.slot.shared.released();
        if self.cancelled < released {
            self.cancelled = released;
            self.slot.redo.retain(|task| task.number >= released);
            if self.first_job().is_some_and(|first| first < released) {
                self.heard = Instant::now();
                return self.send(cx, &Order::Cancel(released - 1), None);
            }
        }
        // A child may stay for long with work that was cancelled.
        let alone = self
            .tasks
            .front()
            .is_some_and(|task| task.alone.is_some() || !self.slot.shared.is_wanted(task.number));
        // A worker that has lost work is too slow for more until that is over.
        let is_full = !self.lost.is_empty() || self.jobs() >= self.most_jobs();
        if !self.ready || self.leaving || alone || is_full {
            return Ok(false);
        }
        let is_worker = self.is_worker();
        let has_redo = !self.slot.redo.is_empty() || self.slot.shared.is_redo_first(is_worker);
        if !has_redo && !self.is_at_work(cx) {
            return Ok(false);
        }
        let is_busy = self.is_busy();
        let take_late = || (is_worker && !is_busy).then(|| self.slot.shared.take_late())?;
        let (late, late_task) = if has_redo { None } else { take_late() }.unzip();
        let task = match has_redo {
            true if is_busy => return Ok(false),
            true => self
                .slot
                .redo
                .pop_front()
                .or_else(|| self.slot.shared.take_redo(is_worker)),
            false if late.is_some() => late_task,
            // An idle child is a better place for the next job.
            false if is_busy && self.slot.shared.has_idle() => None,
            false if is_busy && self.slot.shared.is_late_first() => None,
            false => self
                .slot
                .shared
                .take(self.last_job())
                .map(|(number, job)| Task::new(number, job)),
        };
        let Some(mut task) = task else {
            return Ok(false);
        };
        // Cancelled work is not begun.
        if let Poll::Ready(None) = task
            .job
            .put
            .poll_ready(&mut Context::from_waker(std::task::Waker::noop()))
        {
            return Ok(true);
        }
        let now = Instant::now();
        if !is_busy {
            self.heard = now;
        }
        let places = task
            .alone
            .map_or(0..task.job.chunk.len, |item| item..item + 1);
        if self.lent.len() >= LENT {
            let parts = self
                .tasks
                .iter()
                .flat_map(|task| task.job.granted.iter().flatten());
            let granted: HashSet<u64> = parts.filter_map(|part| Some(shared(part)?.0.id)).collect();
            self.unlend(|id, _| granted.contains(&id));
        }
        let grants = self.grants(&mut task.job, places.clone());
        let facts = JobFacts {
            number: task.number,
            run: task.job.run,
            alone: task.alone.is_some(),
            heaviest: task.job.credit.heaviest(),
            taken: task.job.morsels.pace.taken(),
            needed: task.job.needed,
        };
        if late.is_none() {
            (task.asked, task.sent, task.answered) = (None, now, false);
        }
        self.tasks.push_back(task);
        let sent = self.send(cx, &Order::Job(facts, grants), Some(places))?;
        if let Some(key) = late
            && let Some(task) = self.tasks.pop_back()
        {
            self.input -= task.bytes;
            let second = Some(now);
            self.late = Some(Late { key, second });
            self.slot
                .plan()
                .figures
                .late
                .fetch_add(1, Ordering::Relaxed);
            self.slot.shared.late.share(key, task);
            // Others take what comes after it.
            self.slot.shared.wake();
        }
        Ok(sent)
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

    /// Takes back the memory that is not kept: what is gone here, or has no granted rows. If the
    /// queue was closed by an error, the next send reports it.
    fn unlend(&mut self, keeps: impl Fn(u64, &Weak<SharedMemory>) -> bool) {
        let Some(orders) = self.child.orders.shares_memory() else {
            return;
        };
        self.lent
            .retain(|id, memory| keeps(*id, memory) || orders.unlend(*id).is_err());
    }

    /// Grants the rows of a job's items to the child.
    fn grants(&mut self, job: &mut Job, places: Range<usize>) -> Option<Grants> {
        let orders = self.child.orders.shares_memory()?;
        let rows = job.rows.as_ref()?;
        let wanted = rows
            .wanted()
            .filter(|(dtype, len)| dtype.size() * len >= WORTH_A_GRANT)?;
        if job.granted.is_empty() && job.chunk.errors == 0 {
            let numbers = job.first..job.first + job.chunk.len as u64;
            job.granted = numbers.map(|number| rows.grant(number)).collect();
        }
        let mut granted = Vec::new();
        for part in job.granted.get(places)? {
            // The shape of the rows may have changed since they were granted.
            let fits = |part: &&SlabPart| (part.dtype(), part.len()) == wanted;
            let Some((memory, place)) = part.as_ref().filter(fits).and_then(shared) else {
                granted.push(None);
                continue;
            };
            if let Entry::Vacant(new) = self.lent.entry(memory.id) {
                orders.lend(&memory).ok()?;
                new.insert(Arc::downgrade(&memory));
            }
            granted.push(Some((memory.id, place)));
        }
        Some(Grants {
            wanted,
            rows: granted,
        })
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
        order.write(&mut writer);
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

    /// Ends a child that exceeds a time limit.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Option<End> {
        loop {
            let (limit, since) = match self.closed {
                Some(closed) => (Some(CLOSING), closed),
                None => (self.limit(), self.heard),
            };
            // A limit that overflows is no limit.
            let deadline = since
                .checked_add(limit.unwrap_or(SILENCE))
                .unwrap_or(since + SILENCE);
            let limit = limit.filter(|limit| since.checked_add(*limit).is_some());
            if self.timer.deadline() != deadline {
                self.timer.as_mut().reset(deadline);
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return None;
            }
            match limit {
                Some(limit) => {
                    self.child.kill();
                    if self.closed.is_some() {
                        return Some(End::Closed);
                    }
                    if self.ready && self.is_cancelled() {
                        return Some(End::Dismissed);
                    }
                    if self.slow_limit().is_none() {
                        return Some(End::Silent(limit));
                    }
                    match (&self.late, self.tasks.front_mut()) {
                        (Some(late), _) => {
                            let late_tasks = &self.slot.shared.late;
                            late_tasks.with(late.key, |task| task.slow += 1);
                        }
                        (None, front) => front.into_iter().for_each(|front| front.slow += 1),
                    }
                    return Some(End::Slow(limit));
                }
                None => {
                    if self.is_busy() && !std::mem::replace(&mut self.warned, true) {
                        self.warn_of_silence();
                    }
                    self.heard = Instant::now();
                }
            }
        }
    }

    /// Warns that the child gives no answer. Work that it lost to others has no name any more.
    fn warn_of_silence(&self) {
        let ChildSlot { shared, place, .. } = &*self.slot;
        let origin = |task: &Task| {
            let (chunk, item) = (&*task.job.chunk.chunk, task.alone.unwrap_or(0));
            shared.plan.input.origin(chunk, item)
        };
        let first = match &self.late {
            Some(late) => shared.late.with(late.key, |task| origin(task)),
            None => self
                .tasks
                .front()
                .filter(|_| self.lost.is_empty())
                .map(origin),
        };
        let item = first.flatten().map(|origin| origin.to_string());
        let item = item.unwrap_or_default();
        let (node, child) = (&*shared.plan.node, *place);
        crate::error::quietly(|| {
            tracing::warn!(
                node,
                child,
                item,
                "no answer for {SILENCE:?}, and no time limit"
            );
        });
    }

    /// Returns true if nobody wants what the child does.
    fn is_cancelled(&self) -> bool {
        let first = self.first_job();
        first.is_some_and(|first| !self.slot.shared.is_wanted(first))
    }

    /// Returns the time that the child may be silent now.
    fn limit(&self) -> Option<Duration> {
        if !self.ready {
            return Some(START);
        }
        if self.is_cancelled() {
            return Some(GRACE);
        }
        if !self.is_busy() {
            return None;
        }
        self.slot.plan().processes.time_limit.or(self.slow_limit())
    }

    /// Returns the time after which the work of a silent worker goes to another one, unless the
    /// user gave a limit.
    fn slow_limit(&self) -> Option<Duration> {
        let processes = &self.slot.plan().processes;
        let late = || {
            let late = self.late.as_ref()?;
            self.slot.shared.late.with(late.key, |task| task.slow)
        };
        let front = || self.tasks.front().map(|front| front.slow);
        let slow = late().or_else(front).unwrap_or(0);
        if !self.ready || !self.is_busy() || processes.time_limit.is_some() {
            return None;
        }
        let workers = self.slot.shared.ready_workers();
        let has_others = match self.is_worker() {
            true => workers > 1 || processes.here() > 0,
            false if workers == 0 => return None,
            false => true,
        };
        let at_least = processes.silence(has_others)?;
        let silence = self.slot.shared.longest_silence().unwrap_or(FIRST_SILENCE);
        let silence = silence.saturating_mul(SLOW).max(at_least);
        Some(silence.saturating_mul(1 << slow.min(16)))
    }
}

/// Returns the memory of a row, if it is shared with other processes, and the offset in bytes.
fn shared(part: &SlabPart) -> Option<(Arc<SharedMemory>, usize)> {
    let (memory, place) = part.place()?;
    Some((memory.as_any().downcast().ok()?, place))
}
