//! Runs everything upstream on a thread of its own, ahead of its consumer.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use futures::future::{AbortHandle, Abortable};
use futures::task::AtomicWaker;

use crate::budget::{Account, Credit, Limit};
use crate::graph::{AnyChunk, Edge, ErasedChunks};
use crate::items::{self, Demand};
use crate::queue::{Limits, Put, Take, Weight, thread};
use crate::run::JOIN_TIMEOUT;
use crate::run::gauge::{QueueGauge, Wait, WaitTime};
use crate::run::scope::Scope;
use crate::sync::lock;
use crate::{Error, ErrorKind};

pub(crate) struct PrefetchSettings {
    pub name: String,
    pub depth: Depth,
    pub account: Account,
    pub scope: Scope,
    pub edge: Arc<dyn Edge>,
    /// While it is set, the reader itself polls the upstream, after the ready items.
    pub here: Arc<AtomicBool>,
}

/// Length of a queue.
#[derive(Clone)]
pub(crate) struct Depth {
    /// Maximum number of items kept ready, which may change while the queue is read. With 0, no item
    /// is made before the consumer waits for it.
    pub items: Arc<AtomicUsize>,
    /// True if more items may be kept ready when they are quick to make.
    pub adaptive: bool,
}

/// A queue with a thread that fills it. Nothing starts before the first poll.
pub(crate) struct PrefetchThread {
    state: PrefetchState,
    gauge: Arc<QueueGauge>,
    here: Arc<AtomicBool>,
    /// Wait that the reader is in.
    wait: Option<Wait>,
}

enum PrefetchState {
    Fresh(Box<dyn ErasedChunks>, PrefetchSettings),
    Running(Driver),
    Failed(Option<AnyChunk>),
}

struct Driver {
    /// Chunks, each with the time when it was put.
    take: Option<Box<dyn Take<(Instant, AnyChunk)>>>,
    consumed: Arc<AtomicUsize>,
    need: Arc<Need>,
    abort: AbortHandle,
    ended: mpsc::Receiver<()>,
    /// The upstream, once the thread has returned it.
    back: Arc<Mutex<Option<Upstream>>>,
}

type Upstream = (Box<dyn ErasedChunks>, PrefetchSettings);

/// Tells a task that a reader waits for it. The upstream may refuse to run ahead, and is asked
/// again then.
#[derive(Default)]
pub(super) struct Need {
    waits: AtomicBool,
    waker: AtomicWaker,
}

impl Need {
    /// Records that a reader waits.
    pub(super) fn tell(&self) {
        self.waits.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Wakes the task, so that it looks at what else it may have to do.
    fn wake(&self) {
        self.waker.wake();
    }

    /// Records that no reader waits; returns true if one did.
    fn clear(&self) -> bool {
        self.waits.swap(false, Ordering::SeqCst)
    }

    /// Wakes the task when a reader waits.
    pub(super) fn register(&self, cx: &task::Context<'_>) {
        self.waker.register(cx.waker());
    }

    pub(super) fn waits(&self) -> bool {
        self.waits.load(Ordering::SeqCst)
    }
}

impl PrefetchThread {
    pub(crate) fn new(
        above: Box<dyn ErasedChunks>,
        settings: PrefetchSettings,
        gauge: Arc<QueueGauge>,
    ) -> Self {
        let here = settings.here.clone();
        PrefetchThread {
            state: PrefetchState::Fresh(above, settings),
            gauge,
            here,
            wait: None,
        }
    }

    /// Starts to work ahead. Otherwise the first poll does.
    pub(crate) fn start(&mut self) {
        if let PrefetchState::Fresh(..) = self.state {
            let PrefetchState::Fresh(above, settings) =
                std::mem::replace(&mut self.state, PrefetchState::Failed(None))
            else {
                unreachable!("matched in the line above")
            };
            self.gauge.inline.store(false, Ordering::Relaxed);
            self.state = Self::launch(above, settings, self.gauge.clone());
        }
    }

    fn launch(
        above: Box<dyn ErasedChunks>,
        settings: PrefetchSettings,
        gauge: Arc<QueueGauge>,
    ) -> PrefetchState {
        let limits = Limits {
            items: 1,
            bytes: usize::MAX,
        };
        let (mut put, take) = thread::<(Instant, AnyChunk)>(limits);
        let back = Arc::default();
        let consumed = Arc::new(AtomicUsize::new(0));
        let need = Arc::new(Need::default());
        let (abort, registration) = AbortHandle::new_pair();
        let (send_ended, ended) = mpsc::channel();
        let (name, scope, edge) = (
            settings.name.clone(),
            settings.scope.clone(),
            settings.edge.clone(),
        );
        let (count, told, left) = (consumed.clone(), need.clone(), Arc::clone(&back));
        let loop_ = async move {
            // The queue must end after the upstream has been returned.
            let given = drive(above, &mut put, count, told, settings, gauge).await;
            *lock(&left) = given;
        };
        let body = move || {
            let _entered = scope.enter();
            // Aborted or not, the upstream is dropped here, on its own thread.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                super::block_on(Abortable::new(loop_, registration)).is_ok()
            }));
            drop(send_ended);
        };
        match super::spawn_thread_within(
            &tracing::Span::current(),
            format!("datapipes-{name}"),
            body,
        ) {
            Ok(_) => PrefetchState::Running(Driver {
                take: Some(Box::new(take)),
                consumed,
                need,
                abort,
                ended,
                back,
            }),
            Err(error) => {
                let error =
                    Error::new(ErrorKind::Worker, "cannot start a thread").with_source(error);
                PrefetchState::Failed(Some(edge.fail_chunk(error)))
            }
        }
    }
}

/// Amount of work an adaptive queue keeps ready, so that two threads need not wake each other for
/// each small item.
const READY_NS: f64 = 4e6;
/// Amount of work that is worth a wake of the consumer.
const HOP_NS: f64 = 200_000.0;
/// Maximum number of items an adaptive queue keeps ready.
const MAX_READY: usize = 1024;

/// Keeps the queue filled. The queue grows gradually: of every four items taken, one makes it
/// longer, up to its full length, so that the start of an epoch asks for no more than 1.25 times
/// the steady rate. Returns the upstream if it is to be polled elsewhere.
async fn drive(
    above: Box<dyn ErasedChunks>,
    put: &mut impl Put<(Instant, AnyChunk)>,
    consumed: Arc<AtomicUsize>,
    need: Arc<Need>,
    settings: PrefetchSettings,
    gauge: Arc<QueueGauge>,
) -> Option<Upstream> {
    let mut filler = QueueFiller {
        credit: settings.account.credit(),
        scope: settings.scope.clone(),
        started: Instant::now(),
        full_ns: 0,
        made: 0,
        gauge,
        settings,
        need,
        consumed,
        put,
        above,
    };
    loop {
        let (least, length, cost) = filler.adapt_length();
        let begun = Instant::now();
        let room = match poll_fn(|cx| filler.poll_room(cx, least)).await {
            None => return None,
            Some(0) => break,
            Some(room) => room,
        };
        filler.count_full(begun.elapsed());
        let max = room.min(items::at_once_across(HOP_NS, cost, filler.made));
        let mut refused = None;
        let next = poll_fn(|cx| filler.poll_next(cx, max, length, &mut refused));
        let (chunk, last) = match next.await {
            None => break,
            Some(Ok(Some(chunk))) => (chunk, false),
            Some(Ok(None)) => return None,
            Some(Err(payload)) => {
                let error = Error::panic(payload);
                (filler.settings.edge.fail_chunk(error), true)
            }
        };
        filler.put(chunk);
        if last {
            return None;
        }
    }
    Some((filler.above, filler.settings))
}

/// A queue that is being filled.
struct QueueFiller<'a, P> {
    credit: Credit,
    scope: Scope,
    started: Instant,
    /// Nanoseconds without room or bytes.
    full_ns: u64,
    /// Number of items and errors that were made.
    made: usize,
    gauge: Arc<QueueGauge>,
    settings: PrefetchSettings,
    need: Arc<Need>,
    /// Number of items that were taken.
    consumed: Arc<AtomicUsize>,
    put: &'a mut P,
    above: Box<dyn ErasedChunks>,
}

impl<P: Put<(Instant, AnyChunk)>> QueueFiller<'_, P> {
    /// Sets the length of the queue. Returns the least that it may have, its length now, and the
    /// nanoseconds that an item costs.
    fn adapt_length(&mut self) -> (usize, usize, f64) {
        let depth = &self.settings.depth;
        let least = depth.items.load(Ordering::Relaxed);
        let mut most = least;
        let spent = self.started.elapsed().as_nanos() as f64 - self.full_ns as f64;
        let cost = spent / self.made.max(1) as f64;
        if depth.adaptive && self.made > 0 {
            most = ((READY_NS / cost) as usize).clamp(least, MAX_READY);
        }
        let grown = 1 + self.consumed.load(Ordering::Relaxed) / 4;
        let length = grown.min(most).max(1);
        self.put.set_limits(Limits {
            items: length,
            bytes: usize::MAX,
        });
        self.gauge.depth.store(length as u64, Ordering::Relaxed);
        (least, length, cost)
    }

    /// Waits for room, and returns how much there is: none if the upstream is to be polled
    /// elsewhere.
    fn poll_room(&mut self, cx: &mut task::Context<'_>, least: usize) -> Poll<Option<usize>> {
        self.need.register(cx);
        if self.settings.here.load(Ordering::SeqCst) {
            return Poll::Ready(Some(0));
        }
        if least == 0 && !self.need.waits() {
            return Poll::Pending;
        }
        self.put.poll_ready(cx)
    }

    /// Makes the next items, if there are bytes for them; `None` if the upstream is to be polled
    /// elsewhere. `refused` becomes the time since when there are no bytes.
    #[expect(clippy::type_complexity, reason = "an item, the end or a panic")]
    fn poll_next(
        &mut self,
        cx: &mut task::Context<'_>,
        max: usize,
        length: usize,
        refused: &mut Option<Instant>,
    ) -> Poll<Option<std::result::Result<Option<AnyChunk>, Box<dyn Any + Send>>>> {
        self.need.register(cx);
        if self.settings.here.load(Ordering::SeqCst) {
            return Poll::Ready(None);
        }
        // The order of the two checks matters: a reader that has just emptied the queue is not
        // waiting.
        let empty = self.put.poll_ready(cx) == Poll::Ready(Some(length));
        let waits = empty && self.need.waits();
        let Poll::Ready(max) = self.credit.poll_begin(cx, max, Limit::Share, || waits) else {
            refused.get_or_insert_with(Instant::now);
            return Poll::Pending;
        };
        let demand = Demand {
            ahead: !waits,
            ..Demand::up_to(max)
        };
        let begun = Instant::now();
        let _busy = self.scope.busy();
        if let Some(since) = refused.take() {
            self.full_ns += count_full(&self.gauge, begun - since);
        }
        let polled = catch_unwind(AssertUnwindSafe(|| self.above.poll_chunk(cx, demand)));
        let busy = begun.elapsed().as_nanos() as u64;
        self.gauge.busy_ns.fetch_add(busy, Ordering::Relaxed);
        match polled {
            Ok(Poll::Pending) => {
                self.gauge.pending_polls.fetch_add(1, Ordering::Relaxed);
                self.credit.poll_pending(max);
                Poll::Pending
            }
            Ok(Poll::Ready(chunk)) => Poll::Ready(Some(Ok(chunk))),
            Err(payload) => Poll::Ready(Some(Err(payload))),
        }
    }

    fn count_full(&mut self, waited: Duration) {
        self.full_ns += count_full(&self.gauge, waited);
    }

    fn put(&mut self, mut chunk: AnyChunk) {
        let weight = Weight {
            items: chunk.len,
            bytes: chunk.bytes,
        };
        self.made += chunk.len;
        let counted = chunk.len - chunk.errors;
        chunk.hold = Some(self.credit.give(counted, chunk.bytes, 0));
        self.put.put((Instant::now(), chunk), weight);
    }
}

/// Counts time without room or bytes, and returns its nanoseconds.
fn count_full(gauge: &QueueGauge, waited: Duration) -> u64 {
    let waited = waited.as_nanos() as u64;
    gauge.full_ns.fetch_add(waited, Ordering::Relaxed);
    waited
}

impl ErasedChunks for PrefetchThread {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<AnyChunk>> {
        let here = self.here.load(Ordering::SeqCst);
        if !here {
            self.start();
        }
        match &mut self.state {
            PrefetchState::Fresh(above, _) => above.poll_chunk(cx, demand),
            PrefetchState::Failed(error) => Poll::Ready(error.take()),
            PrefetchState::Running(driver) => {
                let take = driver.take.as_mut().expect("there until dropped");
                self.gauge
                    .occupancy_sum
                    .fetch_add(take.held().items as u64, Ordering::Relaxed);
                self.gauge.occupancy_polls.fetch_add(1, Ordering::Relaxed);
                // Before the take: the thread must not find the queue empty and a reader that has
                // just got its item.
                let waited = driver.need.clear();
                if here {
                    driver.need.wake();
                }
                let polled = take.poll_take(cx).map(|taken| {
                    taken.map(|(since, chunk)| {
                        let in_queue = since.elapsed().as_nanos() as u64;
                        self.gauge.item_wait.record(in_queue, chunk.len as u64);
                        chunk
                    })
                });
                if let Poll::Ready(None) = polled {
                    let back = lock(&driver.back).take();
                    if let Some((above, settings)) = back {
                        self.wait = None;
                        self.gauge.inline.store(true, Ordering::Relaxed);
                        self.state = PrefetchState::Fresh(above, settings);
                        return self.poll_chunk(cx, demand);
                    }
                }
                match &polled {
                    Poll::Pending => {
                        let empty = &self.gauge.empty;
                        self.wait.get_or_insert_with(|| WaitTime::start(empty));
                        // A poll ahead of need does not end the wait of an earlier one.
                        if waited || !demand.ahead {
                            driver.need.tell();
                        }
                    }
                    Poll::Ready(chunk) => {
                        self.wait = None;
                        if let Some(chunk) = chunk {
                            driver.consumed.fetch_add(chunk.len, Ordering::Relaxed);
                            self.gauge
                                .taken
                                .fetch_add(chunk.len as u64, Ordering::Relaxed);
                        }
                    }
                }
                polled
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.abort.abort();
        drop(self.take.take());
        let _ = self.ended.recv_timeout(JOIN_TIMEOUT);
    }
}
