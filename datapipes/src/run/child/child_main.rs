//! Main loop of a child process: builds its part of the graph, and works on the jobs it receives.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep};

use super::isolate;
use super::log::Lines;
use super::part::seldom_waits;
use super::protocol::{
    Counted, Done, Grants, Hello, JobFacts, Order, Report, count, counted, whole,
};
use super::queue_ends::{Prepared, PutEnd, TakeEnd};
use crate::batch_buffer::{Granted, Lender, Pool, RowCursor};
use crate::budget::learn;
use crate::codec::{ChunkWire, Parcel, damaged};
use crate::context::{Counters, Offload, RunInfo, SharedByNode};
use crate::graph::{AnyChunk, Edge, ErasedChunks, Flow, Op, signature};
use crate::items::Demand;
use crate::queue::{Limits, ProcessPut, ProcessTake, Weight};
use crate::run::chain::{Chain, Link, len_of};
use crate::run::morsel::Needed;
use crate::run::near::{InPlace, Waits};
use crate::run::scope::Scope;
use crate::sync::lock;
use crate::{Arity, Context, Error, ErrorKind, Result, Wire, Writer, items};

/// Limits of the output that waits for the parent.
const LIMITS: Limits = Limits {
    items: 4096,
    bytes: 16 << 20,
};
/// Approximate maximum of bytes in a message of small items.
const MESSAGE: usize = 256 << 10;
/// Number of equal parts of the child's room: the output that waits in the queue, the message that
/// fills the queue, a message that the parent has taken and has no room for, the output of later
/// jobs that is ready before its turn, and the output that is made meanwhile. A larger item is made
/// once the parent has allowed it, from the bytes of the edge downstream.
const PARTS_OF_ROOM: usize = 5;
/// Time without output of the first job after which a later job continues, although there is no
/// room for more output that is ready before its turn. The later job may hold a resource that the
/// first job waits for.
const STANDSTILL: Duration = Duration::from_secs(1);
/// Greatest number of items in a message.
const ITEMS: usize = 1024;
/// Multiple of items that may be made in one poll, against those of a thread: a message costs more
/// than a hop between threads. Items of more than 0.2 ms come one by one, unless the reader needs
/// several anyway.
const TOGETHER: f64 = 10.0;
/// Number of log lines sent before the work gets its turn.
const LOGS: usize = 64;

/// The queues of a child, and how it notices the end of its parent.
pub(super) struct ChildEnds {
    pub orders: TakeEnd,
    pub reports: PutEnd,
    /// Socket or pipe that only the parent holds; `None` on another machine.
    pub lifeline: Option<OwnedFd>,
    /// Wish to end after the jobs that it has.
    #[cfg(feature = "remote")]
    pub leave: Option<Arc<super::remote::Leave>>,
}

impl ChildEnds {
    /// Makes the ends for a parent on this machine: `orders` is the take end of one queue,
    /// `reports` the put end of the other. Must be called inside a tokio runtime.
    pub(super) fn local(orders: OwnedFd, reports: OwnedFd) -> Result<ChildEnds> {
        let lifeline = orders.try_clone().map_err(Error::io)?;
        let orders = ProcessTake::new(orders).map_err(Error::io)?.borrowing();
        let reports = ProcessPut::new(reports, LIMITS).map_err(Error::io)?;
        Ok(ChildEnds {
            orders: TakeEnd::Local(Box::new(orders)),
            reports: PutEnd::Local(Box::new(reports)),
            lifeline: Some(lifeline),
            #[cfg(feature = "remote")]
            leave: None,
        })
    }
}

/// Works until the parent closes the queue. `connect` makes the two queues.
pub(super) fn serve(connect: impl AsyncFnOnce() -> Result<ChildEnds>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("datapipes-blocking")
        .build()
        .map_err(Error::io)?;
    let outcome = runtime.block_on(async {
        let ChildEnds {
            mut orders,
            mut reports,
            lifeline,
            #[cfg(feature = "remote")]
            leave,
        } = connect().await?;
        let Some(hello) = poll_fn(|cx| orders.poll_parcel(cx)).await else {
            return Ok(());
        };
        let part = catch_unwind(AssertUnwindSafe(|| LoadedPart::make(&hello, lifeline)));
        let part = part.unwrap_or_else(|payload| Err(Error::panic(payload)));
        let (answer, part) = match part {
            Ok(part) => (Report::Ready, Some(part)),
            Err(error) => (Report::Refused(error), None),
        };
        #[cfg(feature = "remote")]
        if let (Report::Refused(error), Some(leave)) = (&answer, &leave) {
            leave.set_unable(error);
        }
        let mut writer = Writer::new();
        answer.encode(&mut writer)?;
        poll_fn(|cx| reports.poll_ready(cx)).await;
        reports.send(writer, Weight { items: 1, bytes: 0 })?;
        poll_fn(|cx| reports.poll_flush(cx)).await?;
        let Some(part) = part else { return Ok(()) };
        reports.set_limits(Limits {
            bytes: LIMITS.bytes.min(part.room),
            ..LIMITS
        });
        let pool = Arc::new(Pool::new(LIMITS.bytes.min(part.room)));
        let mut server = Server {
            #[cfg(feature = "remote")]
            heartbeat_timeout: part.heartbeat_timeout.map(HeartbeatTimeout::new),
            part,
            orders,
            reports,
            pool,
            jobs: VecDeque::new(),
            still: None,
            freed: 0,
            heaviest: AtomicUsize::new(0),
            #[cfg(feature = "remote")]
            leave,
        };
        poll_fn(|cx| server.poll(cx)).await?;
        poll_fn(|cx| server.reports.poll_flush(cx)).await
    });
    // A user's thread may still be running; nobody waits for it.
    runtime.shutdown_background();
    outcome
}

/// The part of the graph that runs in this process.
struct LoadedPart {
    flow: Flow,
    input: Arc<dyn ChunkWire>,
    output: Arc<dyn ChunkWire>,
    overlap: usize,
    /// Waits of its blocking work, if that seldom waits: it is done in place until it does.
    waits: Option<Arc<Waits>>,
    /// True if each item makes one.
    is_one_to_one: bool,
    /// Number of the node that fills rows of batches, if one does.
    fills: Option<usize>,
    /// Maximum of bytes that may wait in the queue, be made without asking the parent, or be made in
    /// one poll if items turn out much larger than earlier items.
    room: usize,
    lines: Arc<Lines>,
    /// Time after which a parent on another machine is given up if nothing is heard of it.
    #[cfg(feature = "remote")]
    heartbeat_timeout: Option<Duration>,
    /// State shared by the nodes, of the epoch of the last job.
    shared: Mutex<(u64, Arc<SharedByNode>)>,
}

impl LoadedPart {
    fn make(hello: &Parcel, lifeline: Option<OwnedFd>) -> Result<LoadedPart> {
        let hello = whole(hello, |from| match Order::decode(from)? {
            Order::Hello => Hello::decode(from),
            other => Err(Error::protocol(format!("{other:?} before anything else"))),
        })?;
        // The order matters, and the limits come before any user code runs.
        isolate::apply(&hello.processes)?;
        if let Some(lifeline) = lifeline {
            isolate::watch(lifeline).map_err(|error| {
                Error::new(
                    ErrorKind::Worker,
                    "cannot start the thread that watches its parent",
                )
                .with_source(error)
            })?;
        }
        let lines = Lines::collect(hello.level);
        let mut ends = None;
        let mut above = None;
        for recipe in &hello.recipes {
            let made = recipe.make(above)?;
            let first = ends.take().map_or(made.input, |(first, _)| first);
            ends = Some((first, made.output));
            above = Some(made.root);
        }
        let (Some(root), Some((input, output))) = (above, ends) else {
            return Err(Error::protocol("a part without steps"));
        };
        let mut flow = Flow::new(&root);
        let is = signature(
            flow.nodes[1..].iter().map(|node| &*node.node),
            &*input,
            &*output,
        );
        if is != hello.signature {
            let differ = hello
                .signature
                .lines()
                .zip(is.lines())
                .find(|(parent, child)| parent != child);
            let (parent, child) = differ.unwrap_or((&hello.signature, &is));
            let message = format!(
                "the function of its part makes another part in a child than in the parent (it may depend on nothing but its \
                 settings): `{child}` instead of `{parent}`"
            );
            return Err(Error::config(message));
        }
        for (node, (name, source)) in flow.nodes[1..]
            .iter_mut()
            .zip(hello.names.iter().zip(hello.sources))
        {
            (node.name, node.source) = (name.as_str().into(), source);
        }
        let hints = || flow.nodes[1..].iter().map(|node| node.hints());
        let waits = seldom_waits(hints()).then(Arc::default);
        let is_one_to_one = hints().all(|hints| hints.arity == Arity::One);
        Ok(LoadedPart {
            flow,
            input,
            output,
            overlap: hello.overlap.max(1),
            waits,
            is_one_to_one,
            fills: hello.fills,
            room: hello.room / PARTS_OF_ROOM,
            lines,
            #[cfg(feature = "remote")]
            heartbeat_timeout: hello.heartbeat_timeout,
            shared: Mutex::default(),
        })
    }

    fn shared(&self, epoch: u64) -> Arc<SharedByNode> {
        let mut shared = lock(&self.shared);
        if shared.0 != epoch {
            *shared = (epoch, Arc::default());
        }
        shared.1.clone()
    }

    /// Starts a job.
    fn begin(
        &self,
        facts: JobFacts,
        granted: Arc<Granted>,
        chunk: Box<dyn std::any::Any + Send>,
    ) -> RunningJob {
        let cancelled = Arc::new(AtomicBool::new(false));
        let largest = facts.run.largest_item.map(|bytes| bytes as usize);
        let scope = Scope::new(Handle::current(), None, cancelled.clone());
        let offload: Arc<dyn Offload> = Arc::new(scope.clone());
        // Only nodes that say so run in place: other blocking work may wait for the async runtime,
        // which is on this thread.
        let in_place = self.waits.clone().map(|waits| {
            Arc::new(InPlace {
                scope,
                waits,
                in_child: true,
            })
        });
        let run = RunInfo {
            seed: facts.run.seed,
            epoch: facts.run.epoch,
            for_cache: facts.run.for_cache,
            rank: facts.run.rank,
            uneven: facts.run.uneven,
            max_inflated: facts.run.max_inflated,
            cancelled: cancelled.clone(),
            offload: Some(offload),
            shared: self.shared(facts.run.epoch),
            margin: Some(self.room),
            largest_item: largest,
            ..RunInfo::default()
        };
        let counters: Vec<Arc<Counters>> = self.flow.nodes[1..]
            .iter()
            .map(|_| Arc::default())
            .collect();
        let links = self.flow.nodes[1..].iter().zip(&counters).enumerate().map(
            |(place, (node, counters))| {
                let Op::Pipe(pipe) = &node.node.op else {
                    unreachable!("a part is made of pipes, as the parent checked")
                };
                let fills = self.fills == Some(place);
                let mut run = run.clone();
                if fills {
                    // The parent counts the memory of the rows that it granted.
                    run.largest_item = run.largest_item.max(granted.row_bytes());
                }
                let context = Context::new(
                    node.name.clone(),
                    node.source,
                    run,
                    facts.run.round,
                    counters.clone(),
                );
                let context = match &in_place {
                    Some(in_place) if node.hints().seldom_waits => {
                        context.with_offload(in_place.clone())
                    }
                    _ => context,
                };
                let context = match fills {
                    true => context.with_rows(RowCursor::granted(granted.clone())),
                    false => context,
                };
                Link {
                    pipe: pipe.clone(),
                    context,
                    edge: node.node.edge.clone(),
                    rows: None,
                    arity: node.hints().arity,
                    len: len_of(pipe, node.hints()),
                }
            },
        );
        let input = self.flow.nodes[0].node.edge.clone();
        let chain = Chain {
            links: links.collect(),
            input,
        };
        let mut items = 0;
        let applied = catch_unwind(AssertUnwindSafe(|| {
            let chunk = chain.input.weigh(chunk);
            items = chunk.len;
            chain.output().erase(chain.apply(chain.input.one(chunk), 0))
        }));
        let edge = chain.output().clone();
        let (stream, ready) = match applied {
            Ok(stream) => (Some(stream), None),
            // Instruments catch panics of running pipes; this is a pipe that panics when applied.
            Err(payload) => (
                None,
                Some(edge.fail_chunk(chain.name(Error::panic(payload)))),
            ),
        };
        RunningJob {
            number: facts.number,
            each: granted.row_bytes().unwrap_or(0),
            granted,
            alone: facts.alone,
            taken: facts.taken,
            needed: facts.needed,
            made: 0,
            made_all: self.is_one_to_one.then_some(items),
            stream,
            ready,
            edge,
            counters,
            cancelled,
            begun: None,
            waited: false,
            busy: 0,
            largest: largest.unwrap_or(0),
            leave: Leave::None,
        }
    }
}

/// A job: the input of a morsel, worked on in this process.
struct RunningJob {
    number: u64,
    /// True if output is sent item by item.
    alone: bool,
    /// Number of items that the reader had taken when the job was sent.
    taken: usize,
    /// Items of which the reader needs all.
    needed: Needed,
    /// Number of items of the job so far.
    made: usize,
    /// Number of items when all were made, if it is known before the end.
    made_all: Option<usize>,
    /// The output stream; `None` at its end.
    stream: Option<Box<dyn ErasedChunks>>,
    /// Output that came while it was another job's turn.
    ready: Option<AnyChunk>,
    edge: Arc<dyn Edge>,
    counters: Vec<Arc<Counters>>,
    granted: Arc<Granted>,
    cancelled: Arc<AtomicBool>,
    /// Time of the first poll, without the time in which the parent was asked for room.
    begun: Option<Instant>,
    /// True if a poll had to wait for something outside.
    waited: bool,
    /// Nanoseconds of work.
    busy: u64,
    /// Bytes of an output item, known before the first one only if it fills a row; otherwise 0.
    each: usize,
    /// Bytes of the largest item of any step, if the parent was told; otherwise 0.
    largest: usize,
    leave: Leave,
}

/// The parent's leave to make an item that does not fit in the child's room.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Leave {
    None,
    Asked(Instant),
    Given,
}

impl RunningJob {
    /// Returns the bytes of the job's items that the parent has not allowed: those that wait for
    /// its turn, or are between its steps.
    fn held(&self) -> usize {
        match (&self.ready, &self.stream) {
            _ if self.leave == Leave::Given => 0,
            (Some(chunk), _) => chunk.bytes,
            (None, None) => 0,
            // Before it is polled it holds its input alone.
            (None, Some(_)) if self.busy == 0 => 0,
            (None, Some(_)) => self.heaviest(),
        }
    }

    /// Returns the bytes of the heaviest item of any of its steps: recent, or known before.
    fn heaviest(&self) -> usize {
        let weights = self
            .counters
            .iter()
            .map(|counters| counters.weight.load(Ordering::Relaxed));
        weights.fold(self.largest, usize::max)
    }

    /// Returns true if all of its items were made. The process of an item that runs alone may still
    /// end when the chain does.
    fn is_complete(&self) -> bool {
        self.made_all == Some(self.made) && !self.alone
    }

    /// Returns true if a poll would make an item.
    fn makes_items(&self) -> bool {
        self.ready.is_none() && self.stream.is_some() && !self.cancelled.load(Ordering::Relaxed)
    }

    /// Records that the parent allows an item, if the job has asked.
    fn allow(&mut self) {
        if let Leave::Asked(since) = self.leave {
            // The wait is no time of the job.
            if let Some(begun) = &mut self.begun {
                *begun += since.elapsed();
            }
            self.leave = Leave::Given;
        }
    }

    /// Returns the counts since the last call.
    fn counted(&self) -> Counted {
        self.counters
            .iter()
            .map(|counters| counted(counters))
            .collect()
    }

    /// Continues the job, for output of at most about `message` bytes; of `room` bytes, if the
    /// reader needs all of the items.
    fn poll(
        &mut self,
        cx: &mut task::Context<'_>,
        (message, room): (usize, usize),
    ) -> Poll<Option<AnyChunk>> {
        if let Some(chunk) = self.ready.take() {
            return Poll::Ready(Some(chunk));
        }
        let Some(stream) = self
            .stream
            .as_mut()
            .filter(|_| !self.cancelled.load(Ordering::Relaxed))
        else {
            return Poll::Ready(None);
        };
        let max = if self.each == 0 || self.alone {
            1
        } else {
            // An item that never completes holds up those that are made together with it.
            let cost = self.busy as f64 / self.made.max(1) as f64;
            let together = match self.made {
                0 => 1,
                made => items::at_once(cost / TOGETHER, self.taken + made),
            };
            let each = self.each.max(self.largest);
            let small = (message / each).min(ITEMS).min(together);
            small
                .max((room / each).min(self.needed.after(self.made)))
                .max(1)
        };
        let begun = Instant::now();
        self.begun.get_or_insert(begun);
        let demand = Demand {
            ahead: true,
            ..Demand::up_to(max)
        };
        let polled = catch_unwind(AssertUnwindSafe(|| stream.poll_chunk(cx, demand)));
        self.busy += begun.elapsed().as_nanos() as u64;
        self.waited |= matches!(polled, Ok(Poll::Pending));
        match polled {
            Ok(Poll::Ready(None)) => {
                self.stream = None;
                Poll::Ready(None)
            }
            Ok(Poll::Ready(Some(chunk))) => {
                self.made += chunk.len;
                if self.is_complete() {
                    self.look_for_more(cx);
                }
                Poll::Ready(Some(chunk))
            }
            Ok(Poll::Pending) => Poll::Pending,
            Err(payload) => {
                self.stream = None;
                Poll::Ready(Some(self.edge.fail_chunk(Error::panic(payload))))
            }
        }
    }

    /// Polls the end of a job that has made all its items. A chain that makes more than it says gives
    /// an error there.
    fn look_for_more(&mut self, cx: &mut task::Context<'_>) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        let polled = catch_unwind(AssertUnwindSafe(|| stream.poll_chunk(cx, Demand::up_to(1))));
        if let Ok(Poll::Ready(Some(more))) = polled {
            (self.ready, self.made_all) = (Some(more), None);
        }
    }
}

struct Server {
    part: LoadedPart,
    orders: TakeEnd,
    reports: PutEnd,
    /// Memory of rows that are not filled in place, until they are sent.
    pool: Arc<Pool>,
    /// Jobs in the order of arrival, which is the order of their output.
    jobs: VecDeque<RunningJob>,
    /// Timer that runs while there is no room for output that is ready before its turn.
    still: Option<Pin<Box<Sleep>>>,
    /// Number of later jobs that may continue without room.
    freed: usize,
    /// Bytes of the heaviest recent item, made or between two steps, as [`learn`] keeps it.
    heaviest: AtomicUsize,
    /// Time for which the parent may say nothing, if it is on another machine.
    #[cfg(feature = "remote")]
    heartbeat_timeout: Option<HeartbeatTimeout>,
    /// Wish to end, until the parent knows of it.
    #[cfg(feature = "remote")]
    leave: Option<Arc<super::remote::Leave>>,
}

/// Time for which a parent on another machine may say nothing. It says something several times in that
/// time, so that its machine, or the network, is gone after it.
#[cfg(feature = "remote")]
struct HeartbeatTimeout {
    time: Duration,
    timer: Pin<Box<Sleep>>,
    /// Number of bytes that had come when the timer was set.
    heard: u64,
}

#[cfg(feature = "remote")]
impl HeartbeatTimeout {
    fn new(time: Duration) -> HeartbeatTimeout {
        HeartbeatTimeout {
            time,
            timer: Box::pin(sleep(time)),
            heard: 0,
        }
    }

    /// Fails once nothing has come for too long; `heard` is the number of bytes so far.
    fn poll(&mut self, cx: &mut task::Context<'_>, heard: u64) -> Result<()> {
        if std::mem::replace(&mut self.heard, heard) != heard {
            self.timer.set(sleep(self.time));
        }
        match self.timer.as_mut().poll(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => {
                let why = format!("nothing was heard of the trainer for {:?}", self.time);
                Err(Error::new(ErrorKind::Io, why))
            }
        }
    }
}

impl Server {
    /// Continues all jobs; ready when the parent has closed the queue.
    fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<()>> {
        let mut logs = 0;
        loop {
            loop {
                match self.orders.poll_parcel(cx) {
                    Poll::Ready(Some(parcel)) => self.order(&parcel)?,
                    // Nobody is left to take the rest.
                    Poll::Ready(None) => return Poll::Ready(Ok(())),
                    Poll::Pending => break,
                }
            }
            self.part.lines.waker.register(cx.waker());
            #[cfg(feature = "remote")]
            {
                if let Some(heartbeat_timeout) = &mut self.heartbeat_timeout {
                    heartbeat_timeout.poll(cx, self.orders.read_bytes())?;
                }
                self.take_leave(cx)?;
            }
            match self.reports.poll_ready(cx) {
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
            if logs < LOGS
                && let Some(log) = self.part.lines.next()
            {
                self.report(&Report::Log(log))?;
                logs += 1;
                continue;
            }
            let more = std::mem::take(&mut logs) == LOGS;
            let message = MESSAGE.min(self.part.room);
            let polled = match self.jobs.is_empty() {
                true => Poll::Pending,
                false => self.poll_job(cx, 0, message)?,
            };
            match polled {
                Poll::Ready(Some(chunk)) => self.output(chunk)?,
                Poll::Ready(None) => self.done()?,
                Poll::Pending => {
                    self.poll_later(cx)?;
                    if let Poll::Ready(Err(error)) = self.reports.poll_flush(cx) {
                        return Poll::Ready(Err(error));
                    }
                    if more {
                        cx.waker().wake_by_ref();
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// Tells the parent if this process is to end.
    #[cfg(feature = "remote")]
    fn take_leave(&mut self, cx: &mut task::Context<'_>) -> Result<()> {
        let Some(leave) = &self.leave else {
            return Ok(());
        };
        leave.waker.register(cx.waker());
        if leave.is_wished() {
            self.leave = None;
            self.report(&Report::Leaving)?;
        }
        Ok(())
    }

    /// Continues a job, for output of about `message` bytes if items are small; for one item, once
    /// the parent has allowed it, if items do not fit in the room.
    fn poll_job(
        &mut self,
        cx: &mut task::Context<'_>,
        at: usize,
        message: usize,
    ) -> Result<Poll<Option<AnyChunk>>> {
        let heaviest = self.heaviest(at);
        let (job, fits) = (&mut self.jobs[at], heaviest <= self.part.room);
        match job.leave {
            Leave::Asked(_) if job.makes_items() => return Ok(Poll::Pending),
            Leave::None if !fits && job.makes_items() => {
                job.leave = Leave::Asked(Instant::now());
                // The item, and its copy in the message.
                let ask = Report::Ask(job.number, 2 * heaviest);
                self.report(&ask)?;
                return Ok(Poll::Pending);
            }
            _ => {}
        }
        let (message, room) = match (fits, at) {
            (false, _) => (0, 0),
            // The output of later jobs waits here for its turn.
            (true, 1..) => (message, 0),
            (true, 0) => (message, self.part.room),
        };
        let polled = job.poll(cx, (message, room));
        if let (Poll::Pending, Some(waits)) = (&polled, &self.part.waits)
            && !waits.is_far()
        {
            // For something else than blocking work in place.
            waits.wait();
        }
        self.heaviest.fetch_max(job.heaviest(), Ordering::Relaxed);
        Ok(polled)
    }

    /// Returns the bytes that a poll of a job may add: those of the heaviest item so far, or of the
    /// largest, if the parent was told.
    fn heaviest(&self, at: usize) -> usize {
        let heaviest = self.heaviest.load(Ordering::Relaxed);
        heaviest.max(self.jobs[at].largest)
    }

    /// Polls the jobs after the first for one item each, while there is room for their output, so
    /// that they start to wait for what they need.
    fn poll_later(&mut self, cx: &mut task::Context<'_>) -> Result<()> {
        if let Some(still) = &mut self.still
            && still.as_mut().poll(cx).is_ready()
        {
            (self.still, self.freed) = (None, self.freed + 1);
        }
        let mut bytes: usize = self.jobs.iter().skip(1).map(RunningJob::held).sum();
        let mut freed = self.freed;
        for at in 1..self.jobs.len().min(self.part.overlap) {
            let job = &self.jobs[at];
            if job.ready.is_some() || job.stream.is_none() {
                continue;
            }
            // A job that the parent has allowed, or is asked to allow, takes no room here.
            let has_room = bytes < self.part.room
                || job.leave == Leave::Given
                || self.heaviest(at) > self.part.room;
            if !has_room {
                if freed == 0 {
                    let still = self
                        .still
                        .get_or_insert_with(|| Box::pin(sleep(STANDSTILL)));
                    if still.as_mut().poll(cx).is_ready() {
                        cx.waker().wake_by_ref();
                    }
                    continue;
                }
                freed -= 1;
            }
            bytes -= job.held();
            if let Poll::Ready(ready) = self.poll_job(cx, at, 0)? {
                self.jobs[at].ready = ready;
            }
            bytes += self.jobs[at].held();
        }
        Ok(())
    }

    fn order(&mut self, parcel: &Parcel) -> Result<()> {
        let mut from = parcel.reader();
        match Order::decode(&mut from)? {
            Order::Job(facts, grants) => {
                let chunk = self.part.input.decode(&mut from)?;
                from.end()?;
                let granted = Arc::new(self.granted(grants, facts.number)?);
                self.heaviest.fetch_max(facts.heaviest, Ordering::Relaxed);
                self.jobs.push_back(self.part.begin(facts, granted, chunk));
            }
            Order::Cancel(number) => {
                let cancelled = self.jobs.iter_mut().filter(|job| job.number <= number);
                cancelled.for_each(|job| job.cancelled.store(true, Ordering::Relaxed));
            }
            Order::Allow(number) => {
                // The job may have ended meanwhile.
                let mut jobs = self.jobs.iter_mut();
                if let Some(job) = jobs.find(|job| job.number == number) {
                    job.allow();
                }
            }
            Order::Alive(at) => self.report(&Report::Alive(at))?,
            Order::Hello => return Err(Error::protocol("a second greeting")),
        }
        Ok(())
    }

    /// Returns the rows that came with a job.
    fn granted(&self, grants: Option<Grants>, job: u64) -> Result<Granted> {
        let Some(Grants { wanted, rows }) = grants else {
            return Ok(Granted::default());
        };
        let missing = || damaged("a row of memory that was not lent");
        let rows = rows.into_iter().map(|row| {
            let Some((memory, place)) = row else {
                return Ok(None);
            };
            let lent = self.orders.shares_memory().and_then(|end| end.lent(memory));
            let memory: Arc<dyn Lender> = lent.ok_or_else(missing)?.clone();
            Ok(Some((memory, place)))
        });
        let rows = rows.collect::<Result<Vec<_>>>()?;
        Granted::new(rows, wanted, job, &self.pool).ok_or_else(missing)
    }

    fn output(&mut self, chunk: AnyChunk) -> Result<()> {
        (self.still, self.freed) = (None, 0);
        let is_last = self.jobs.front().is_some_and(|job| job.is_complete());
        match self.prepare(&chunk, 0..chunk.len, is_last) {
            Err(error) if error.kind() == ErrorKind::Limit => {}
            prepared => {
                let (message, weight) = prepared?;
                // Rows that the part has not kept are not in use any more.
                drop(chunk);
                if is_last {
                    self.end_job();
                    return self.reports.put(message, weight);
                }
                return self.put(message, weight);
            }
        }
        // Shared memory or descriptors may run out: an error of the items that need them.
        for place in 0..chunk.len {
            match self.send(&chunk, place..place + 1) {
                Err(error) if error.kind() == ErrorKind::Limit => {
                    let error = match self.part.output.origin(&*chunk.chunk, place) {
                        Some(origin) => error.of(&origin),
                        None => error,
                    };
                    let name = &self.part.flow.nodes.last().expect("a part has nodes").name;
                    let edge = &self.jobs.front().expect("it gave the chunk").edge;
                    self.send(&edge.fail_chunk(error.at(name)), 0..1)?;
                }
                sent => sent?,
            }
        }
        Ok(())
    }

    /// Sends a part of the first job's output.
    fn send(&mut self, chunk: &AnyChunk, places: Range<usize>) -> Result<()> {
        let (message, weight) = self.prepare(chunk, places, false)?;
        self.put(message, weight)
    }

    /// Encodes a part of the first job's output, and fills the rows that it was granted. The last
    /// part ends the job, too.
    fn prepare(
        &mut self,
        chunk: &AnyChunk,
        places: Range<usize>,
        is_last: bool,
    ) -> Result<(Prepared, Weight)> {
        let job = self.jobs.front().expect("it gave the chunk");
        let (number, counted) = (job.number, job.counted());
        let done = is_last.then(|| self.end_of(job, Counted::new()));
        let report = Report::Output(number, counted, done);
        let mut writer = Writer::of_job(number);
        report.encode(&mut writer)?;
        let (items, known) = (places.len(), chunk.bytes / chunk.len.max(1) * places.len());
        self.part.output.encode(&*chunk.chunk, places, &mut writer);
        // A user's step may not report the weight of its output; the encoded length is known here.
        let bytes = known.max(writer.len());
        let job = self.jobs.front_mut().expect("as above");
        (job.each, job.leave) = ((bytes / items.max(1)).max(1), Leave::None);
        learn(&self.heaviest, items, bytes);
        let prepared = self.reports.prepare(writer);
        if let (Err(_), Report::Output(_, counted, _)) = (&prepared, &report) {
            // The next report has them.
            let job = self.jobs.front().expect("as above");
            let counters = job.counters.iter().zip(counted);
            counters.for_each(|(counters, counted)| count(counters, counted));
        }
        Ok((prepared?, Weight { items, bytes }))
    }

    fn put(&mut self, message: Prepared, weight: Weight) -> Result<()> {
        let job = self.jobs.front().expect("it gave the output");
        job.granted.let_go(false);
        self.reports.put(message, weight)
    }

    fn done(&mut self) -> Result<()> {
        // The values that its pipes hold are dropped first.
        let job = self.end_job();
        let done = self.end_of(&job, job.counted());
        self.report(&Report::Done(done))
    }

    /// Ends the first job. Its rows are not in use after that.
    fn end_job(&mut self) -> RunningJob {
        let mut job = self.jobs.pop_front().expect("it has ended");
        job.stream = None;
        job.granted.let_go(true);
        job
    }

    /// Returns what the parent is told at the end of a job.
    fn end_of(&self, job: &RunningJob, counted: Counted) -> Done {
        // A part that waits is measured by its time in flight. That begins with the first poll:
        // before it, the job waited for other jobs.
        let spent = match job.begun {
            Some(begun) if job.waited && self.part.overlap > 1 => begun.elapsed().as_nanos() as u64,
            _ => job.busy,
        };
        Done {
            number: job.number,
            busy: job.busy,
            spent,
            counted,
            wanted: job.granted.asked(),
            waits: self.part.waits.as_ref().is_none_or(|waits| waits.is_far()),
        }
    }

    fn report(&mut self, report: &Report) -> Result<()> {
        let mut writer = Writer::new();
        report.encode(&mut writer)?;
        self.reports.send(writer, Weight { items: 1, bytes: 0 })
    }
}
