//! Workers of other machines in virtual time: the segment, its jobs, the places of a supervisor and the
//! sessions are those of the library, and talk to simulated workers through streams in memory.
//!
//! Not simulated: how a worker is let in, and what it does with a job besides waiting.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::codec::{ChunkWire, Parcel, WireOf};
use crate::context::Counters;
use crate::graph::ErasedChunks;
use crate::items::Demand;
use crate::processes::Share;
use crate::queue::{Limits, RemotePut, RemoteTake, Weight};
use crate::run::child::child_slot::run_worker;
use crate::run::child::job::Job;
use crate::run::child::log::{Forward, Lines};
use crate::run::child::plan::{ChildFigures, ChildrenPlan};
use crate::run::child::protocol::{Counted, Done, Hello, JobFacts, Order, Report, RunFacts};
use crate::run::child::queue_ends::{PutEnd, TakeEnd};
use crate::run::child::remote::{Arrival, Entrance, RemoteWorker, Workers};
use crate::run::child::slots::SlotsShared;
use crate::run::segment::Segment;
use crate::run::segment::tests::{Jobs, segment, settings as segment_settings};
use crate::{Arity, Chunk, Rank, Remote, Result, Rng, Wire, Work, Writer, settings};

/// Time of an item at a worker that is not slow: some come together in a job.
const ITEM: Duration = Duration::from_millis(1);
/// Time after which a worker that ended is there again, and one that was handed over.
const RESTART: Duration = Duration::from_millis(100);
const HANDED_OVER: Duration = Duration::from_millis(25);
/// Virtual time in which an epoch has to end.
const PATIENCE: Duration = Duration::from_secs(3600);
const WIDE: Limits = Limits {
    items: 1 << 20,
    bytes: 1 << 30,
};
const RUN: RunFacts = RunFacts {
    seed: 0,
    epoch: 0,
    for_cache: false,
    rank: Rank { index: 0, world: 1 },
    uneven: None,
    max_inflated: None,
    largest_item: None,
    round: 0,
};

/// A worker machine with one process.
struct Machine {
    /// Time of an item.
    item: Duration,
    /// Factor by which it is slower than others.
    slow: Cell<u32>,
    /// Time until which it stands still.
    stopped: Cell<Option<Instant>>,
    /// Time that a message takes to it, and from it.
    distance: Cell<Duration>,
    /// Bytes that its network carries in a second, in each direction; any number if it is `None`.
    rate: Cell<Option<u32>>,
    /// Bytes that it has sent.
    sent: Cell<u64>,
    /// Time in which a process makes the part.
    making: Cell<Duration>,
    /// The next step, or making the part, is to take for ever.
    hangs: Cell<bool>,
    /// Number of orders that it got.
    orders: Cell<u64>,
    /// The process is to end.
    dies: Cell<bool>,
    /// The process is to send something that no worker sends.
    lies: Cell<bool>,
    /// Number of processes that ended by themselves.
    ended: Cell<u64>,
    /// Number of items made.
    made: Cell<u64>,
}

impl Machine {
    fn new(item: Duration) -> Machine {
        Machine {
            item,
            slow: Cell::new(1),
            stopped: Cell::new(None),
            distance: Cell::default(),
            rate: Cell::new(None),
            sent: Cell::new(0),
            making: Cell::default(),
            hangs: Cell::new(false),
            orders: Cell::new(0),
            dies: Cell::new(false),
            lies: Cell::new(false),
            ended: Cell::new(0),
            made: Cell::new(0),
        }
    }

    async fn stands_still(&self) {
        while let Some(until) = self.stopped.get().filter(|&until| until > Instant::now()) {
            tokio::time::sleep_until(until).await;
        }
    }

    fn item(&self) -> Duration {
        self.item * self.slow.get()
    }
}

/// A job at a simulated process.
struct Doing {
    facts: JobFacts,
    chunk: Box<dyn Any + Send>,
    made: usize,
    cancelled: bool,
}

/// A process of a machine, until it ends or is given up.
struct Process {
    machine: Rc<Machine>,
    orders: RemoteTake,
    reports: RemotePut,
    wire: Arc<dyn ChunkWire>,
    jobs: VecDeque<Doing>,
}

impl Process {
    /// Works until the connection ends, or the process does.
    async fn run(mut self, rng: Rc<Cell<u64>>) -> Option<()> {
        loop {
            let waits = self.jobs.is_empty();
            let parcel = poll_fn(|cx| match self.orders.poll_parcel(cx) {
                Poll::Pending if !waits => Poll::Ready(Some(None)),
                polled => polled.map(|parcel| parcel.map(Some)),
            });
            let parcel = parcel.await?;
            self.machine.stands_still().await;
            if self.machine.dies.replace(false) {
                self.machine.ended.set(self.machine.ended.get() + 1);
                return None;
            }
            if self.machine.lies.replace(false) {
                self.lie(&mut draw(&rng)).await?;
            }
            match parcel {
                Some(parcel) => self.order(&parcel).await?,
                None => self.work().await?,
            }
        }
    }

    async fn order(&mut self, parcel: &Parcel) -> Option<()> {
        let mut from = parcel.reader();
        match Order::decode(&mut from).expect("an order") {
            Order::Hello => {
                self.may_hang().await?;
                sleep(self.machine.making.get()).await;
                self.send(&Report::Ready, None).await?;
            }
            Order::Job(facts, _) => {
                self.machine.orders.set(self.machine.orders.get() + 1);
                let chunk = self.wire.decode(&mut from).expect("a chunk");
                self.jobs.push_back(Doing {
                    facts,
                    chunk,
                    made: 0,
                    cancelled: false,
                });
            }
            Order::Cancel(number) => {
                let jobs = self.jobs.iter_mut();
                jobs.filter(|job| job.facts.number <= number)
                    .for_each(|job| job.cancelled = true);
            }
            Order::Alive(at) => self.send(&Report::Alive(at), None).await?,
            Order::Allow(_) => {}
        }
        Some(())
    }

    /// Does nothing any more if a step is to hang, until the connection ends.
    async fn may_hang(&mut self) -> Option<()> {
        if self.machine.hangs.replace(false) {
            while poll_fn(|cx| self.orders.poll_parcel(cx)).await.is_some() {}
            return None;
        }
        Some(())
    }

    /// Makes the next items of the first job.
    async fn work(&mut self) -> Option<()> {
        self.may_hang().await?;
        let job = self.jobs.front_mut()?;
        let number = job.facts.number;
        let len = job.chunk.downcast_ref::<Chunk<u64>>()?.len();
        let most = match job.facts.alone {
            true => 1,
            false => len.div_ceil(3),
        };
        let more = match job.cancelled {
            true => 0,
            false => most.min(len - job.made),
        };
        let spent = self.machine.item() * more as u32;
        sleep(spent).await;
        self.machine.stands_still().await;
        self.machine.made.set(self.machine.made.get() + more as u64);
        let places = job.made..job.made + more;
        job.made += more;
        let spent = self.machine.item().as_nanos() as u64 * len as u64;
        let done = |counted| Done {
            number,
            busy: spent,
            spent,
            counted,
            ..Done::default()
        };
        let counted: Counted = vec![vec![more as u64, 0, 0, 0, 0, 0]];
        let is_last = job.cancelled || job.made == len;
        let (report, chunk) = match more {
            0 => (Report::Done(done(Counted::new())), None),
            // Its end comes with its last output, or after it.
            _ if is_last && number % 2 == 0 => {
                let done = done(Counted::new());
                let job = self.jobs.pop_front()?;
                (Report::Output(number, counted, Some(done)), Some(job.chunk))
            }
            _ => {
                let report = Report::Output(number, counted, None);
                let mut writer = Writer::new();
                report.encode(&mut writer).ok()?;
                self.wire.encode(&*job.chunk, places, &mut writer);
                let weight = Weight { items: 1, bytes: 0 };
                self.reports.send(writer, weight).ok()?;
                return poll_fn(|cx| self.reports.poll_flush(cx)).await.ok();
            }
        };
        if chunk.is_none() {
            self.jobs.pop_front();
        }
        let chunk = chunk.as_ref().map(|chunk| (&**chunk, places));
        self.send(&report, chunk).await
    }

    async fn send(
        &mut self,
        report: &Report,
        chunk: Option<(&(dyn Any + Send), std::ops::Range<usize>)>,
    ) -> Option<()> {
        let mut writer = Writer::new();
        report.encode(&mut writer).ok()?;
        if let Some((chunk, places)) = chunk {
            self.wire.encode(chunk, places, &mut writer);
        }
        self.reports
            .send(writer, Weight { items: 1, bytes: 0 })
            .ok()?;
        poll_fn(|cx| self.reports.poll_flush(cx)).await.ok()
    }

    /// Sends what no worker sends: bytes of no meaning, or reports about jobs that it does not have.
    async fn lie(&mut self, rng: &mut Rng) -> Option<()> {
        let first = self.jobs.front().map_or(0, |job| job.facts.number);
        let number = match rng.next_u64() % 3 {
            0 => first + 1 + rng.next_u64() % 4,
            1 => first.wrapping_sub(1 + rng.next_u64() % 4),
            _ => rng.next_u64(),
        };
        let done = Done {
            number,
            ..Done::default()
        };
        let report = match rng.next_u64() % 5 {
            0 => Report::Done(done),
            1 => Report::Output(number, Counted::new(), Some(done)),
            2 => Report::Output(number, vec![vec![u64::MAX; 70]; 9], None),
            3 => Report::Ask(rng.next_u64(), usize::MAX),
            _ => {
                let mut writer = Writer::new();
                let len = rng.next_u64() % 64;
                let bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
                writer.raw(&bytes);
                self.reports
                    .send(writer, Weight { items: 1, bytes: 0 })
                    .ok()?;
                return poll_fn(|cx| self.reports.poll_flush(cx)).await.ok();
            }
        };
        self.send(&report, None).await
    }
}

/// Returns other random numbers each time.
fn draw(seed: &Cell<u64>) -> Rng {
    seed.set(seed.get() + 1);
    Rng::from_key([seed.get(), 2, 3, 4])
}

/// Passes bytes on, one piece after the other at the rate of a machine's network, and each after the
/// distance. `sends` is true of what the machine sends.
async fn pass_on(mut from: DuplexStream, mut to: DuplexStream, machine: Rc<Machine>, sends: bool) {
    let (send, mut pieces) = mpsc::unbounded_channel();
    let near = async move {
        let mut buffer = vec![0; 1500];
        while let Ok(len @ 1..) = from.read(&mut buffer).await {
            if let Some(rate) = machine.rate.get() {
                sleep(Duration::from_secs(len as u64) / rate).await;
            }
            if sends {
                machine.sent.set(machine.sent.get() + len as u64);
            }
            let due = Instant::now() + machine.distance.get();
            if send.send((due, buffer[..len].to_vec())).is_err() {
                break;
            }
        }
    };
    let far = async move {
        while let Some((due, bytes)) = pieces.recv().await {
            sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    futures::join!(near, far);
}

/// Makes a connection through which one side sends to the other: the machine, or the trainer.
fn link(machine: &Rc<Machine>, sends: bool) -> (RemotePut, RemoteTake) {
    let (put, near) = tokio::io::duplex(1 << 20);
    let (far, take) = tokio::io::duplex(1 << 20);
    spawn_local(pass_on(near, far, machine.clone(), sends));
    let take = RemoteTake::new(Box::pin(take), 1 << 30);
    (RemotePut::new(Box::pin(put), WIDE), take)
}

/// Starts a process of a machine.
fn start(
    machine: &Rc<Machine>,
    (place, process): (usize, u32),
    seed: &Rc<Cell<u64>>,
) -> (Arrival, JoinHandle<Option<()>>) {
    let (to_worker, orders) = link(machine, false);
    let (to_trainer, reports) = link(machine, true);
    let body = Process {
        machine: machine.clone(),
        orders,
        reports: to_trainer,
        wire: WireOf::<u64>::new(),
        jobs: VecDeque::new(),
    };
    let arrival = Arrival {
        worker: RemoteWorker {
            id: (place as u64) << 32 | u64::from(process),
            machine: format!("machine {place}"),
            process,
            round_trip: machine.distance.get() * 2,
        },
        orders: PutEnd::Remote(to_worker),
        reports: TakeEnd::Remote(Box::new(reports)),
    };
    (arrival, spawn_local(body.run(seed.clone())))
}

fn plan(remote: Remote) -> Arc<ChildrenPlan> {
    let processes = remote.processes();
    let flow = segment_settings(Work::Cpu, 1, &Jobs::default());
    let hello = Hello {
        recipes: Vec::new(),
        names: Vec::new(),
        sources: Vec::new(),
        signature: String::new(),
        processes: processes.clone(),
        level: 0,
        overlap: 1,
        fills: None,
        room: 1 << 30,
        heartbeat_timeout: processes.heartbeat_timeout(),
    };
    Arc::new(ChildrenPlan {
        processes,
        active: Arc::default(),
        hello,
        node: "part".into(),
        input: WireOf::<u64>::new(),
        output: WireOf::<u64>::new(),
        edge: flow.shared.chain.output().clone(),
        arity: Arity::One,
        seldom_waits: true,
        figures: ChildFigures::default(),
    })
}

fn listen() -> Remote {
    Remote::listen("127.0.0.1:0").unwrap()
}

fn machines(count: usize, item: Duration) -> Vec<Rc<Machine>> {
    (0..count).map(|_| Rc::new(Machine::new(item))).collect()
}

/// Runs something in virtual time.
fn simulate<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, future)
}

/// Keeps a worker of a machine at a place, for ever.
async fn keep_worker(
    shared: Rc<SlotsShared>,
    place: usize,
    machine: Rc<Machine>,
    seed: Rc<Cell<u64>>,
) {
    for process in 0.. {
        let (arrival, body) = start(&machine, (place, process), &seed);
        shared.set_workers(1);
        run_worker(shared.clone(), place, arrival).await;
        shared.set_workers(-1);
        body.abort();
        machine.stands_still().await;
        sleep(RESTART).await;
    }
}

/// The trainer's side of an epoch: the segment, and who reads it.
struct Trainer {
    segment: Segment,
    jobs: Jobs,
    counters: Arc<Counters>,
    items: u64,
    order: settings::Order,
}

impl Trainer {
    fn new(items: u64, workers: usize, order: settings::Order) -> Trainer {
        let jobs = Jobs::default();
        let mut settings = segment_settings(Work::Cpu, workers, &jobs);
        settings.order = order;
        // As many jobs as there may be: how many are worth it is measured by another clock.
        (settings.processes, settings.set_by_user) = (true, true);
        Trainer {
            counters: settings.shared.chain.links[0].context.counters().clone(),
            segment: segment(items, settings),
            jobs,
            items,
            order,
        }
    }

    /// Reads the epoch, and checks that each item comes once and in order, and is counted once.
    /// `beside` is polled, too. Returns the time of the first item, and the longest between two.
    async fn read(
        mut self,
        shared: &SlotsShared,
        mut beside: impl FnMut(&mut Context<'_>),
    ) -> [Duration; 2] {
        let begun = Instant::now();
        let (mut next, mut first, mut last, mut pause) = (0, None, begun, Duration::ZERO);
        let may_move = match self.order {
            settings::Order::Bounded(places) => places as u64,
            _ => 0,
        };
        let mut came = vec![false; self.items as usize];
        let whole = poll_fn(|cx| {
            loop {
                let polled = self.segment.poll_chunk(cx, Demand::up_to(1 << 20));
                while let Some(job) = self.jobs.next() {
                    shared.add(Job::new(job, RUN));
                }
                beside(cx);
                let chunk = match polled {
                    Poll::Ready(Some(chunk)) => chunk,
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                };
                for item in *chunk.chunk.downcast::<Chunk<u64>>().unwrap() {
                    let item = item.unwrap().into_inner();
                    assert!(item.abs_diff(next) <= may_move, "{item} at place {next}");
                    assert!(
                        !std::mem::replace(&mut came[item as usize], true),
                        "{item} twice"
                    );
                    next += 1;
                }
                let silence = last.elapsed();
                match first {
                    None => first = Some(silence),
                    Some(_) => pause = pause.max(silence),
                }
                last = Instant::now();
            }
        });
        if timeout(PATIENCE, whole).await.is_err() {
            panic!("not in time: {next} of {} items", self.items);
        }
        assert_eq!(next, self.items);
        let counted = self.counters.items.load(Ordering::Relaxed);
        assert_eq!(counted, self.items, "counted once");
        [first.unwrap_or_default(), pause]
    }
}

/// Cost of an epoch.
#[derive(Debug, Default)]
struct Epoch {
    time: Duration,
    /// Time of the first item.
    first: Duration,
    /// Longest time between two items at the consumer, after the first.
    pause: Duration,
    made: u64,
    late: u64,
    died: u64,
    /// Number of pieces of work that were given to workers.
    orders: u64,
}

impl Epoch {
    /// Counts an epoch that was read beside others.
    fn add(&mut self, [first, pause]: [Duration; 2], figures: &ChildFigures) {
        self.first = self.first.max(first);
        self.pause = self.pause.max(pause);
        self.late += figures.late.load(Ordering::Relaxed);
        self.died += figures.died.load(Ordering::Relaxed);
    }

    /// Sets what all machines have done since a time.
    fn count(mut self, begun: Instant, machines: &[Rc<Machine>]) -> Epoch {
        self.time = begun.elapsed();
        self.made = machines.iter().map(|machine| machine.made.get()).sum();
        self.orders = machines.iter().map(|machine| machine.orders.get()).sum();
        self
    }
}

/// Epochs that are read at once, each with workers of its own.
struct Epochs {
    remote: Remote,
    order: settings::Order,
    ranks: usize,
}

impl Default for Epochs {
    fn default() -> Epochs {
        Epochs {
            remote: listen(),
            order: settings::Order::Strict,
            ranks: 1,
        }
    }
}

impl Epochs {
    /// Reads so many items by each rank, made by so many workers of each. `faults` runs beside it.
    fn read<F: Future<Output = ()> + 'static>(
        self,
        items: u64,
        (workers, item): (usize, Duration),
        faults: impl FnOnce(Vec<Rc<Machine>>) -> F,
    ) -> Epoch {
        let machines = machines(self.ranks * workers, item);
        simulate(async {
            let seed = Rc::new(Cell::new(0));
            spawn_local(faults(machines.clone()));
            let remote = self.remote.at_most(workers);
            let begun = Instant::now();
            let mut reads = FuturesUnordered::new();
            for of_rank in machines.chunks(workers) {
                let shared = Rc::new(SlotsShared::new(plan(remote.clone())));
                for (place, machine) in of_rank.iter().enumerate() {
                    let (shared, machine) = (shared.clone(), machine.clone());
                    spawn_local(keep_worker(shared, place, machine, seed.clone()));
                }
                let trainer = Trainer::new(items, workers, self.order);
                reads.push(async move { (trainer.read(&shared, |_| {}).await, shared) });
            }
            let mut all = Epoch::default();
            while let Some((times, shared)) = reads.next().await {
                all.add(times, &shared.plan.figures);
            }
            all.count(begun, &machines)
        })
    }
}

/// Reads an epoch of so many items, made by so many workers. `faults` runs beside it.
fn epoch<F: Future<Output = ()> + 'static>(
    items: u64,
    workers: (usize, Duration),
    faults: impl FnOnce(Vec<Rc<Machine>>) -> F,
) -> Epoch {
    Epochs::default().read(items, workers, faults)
}

#[test]
fn without_faults_nothing_is_done_twice() {
    let item = Duration::from_millis(50);
    for workers in [1, 2, 8, 16] {
        let items = 1200 * workers as u64;
        let made = epoch(items, (workers, item), |_| async {});
        assert_eq!((made.made, made.late, made.died), (items, 0, 0));
        assert!(made.first < item * 2, "{made:?}");
        assert!(
            made.time < item * 1260,
            "{made:?} instead of {:?}",
            item * 1200
        );
    }
}

#[test]
fn work_begins_when_the_first_worker_is_ready() {
    let (item, ready) = (Duration::from_millis(50), Duration::from_secs(1));
    for workers in [1, 2, 8, 16] {
        let made = epoch(100, (workers, item), |machines| async move {
            for machine in machines {
                machine.stopped.set(Some(Instant::now() + ready));
            }
        });
        assert!(made.first < ready + item * 2, "{workers}: {made:?}");
    }
}

#[test]
fn row_139_a_worker_that_may_stand_still_for_ever_is_told_of() {
    let lines = Arc::new(Lines::default());
    let log = Forward {
        lines: lines.clone(),
        level: 2,
    };
    let made = tracing::subscriber::with_default(log, || {
        let epochs = Epochs {
            remote: listen().time_limit(Duration::MAX),
            ..Epochs::default()
        };
        let workers = (2, Duration::from_millis(50));
        epochs.read(2400, workers, |machines| async move {
            sleep(Duration::from_secs(1)).await;
            let until = Instant::now() + PATIENCE;
            machines[0].stopped.set(Some(until));
        })
    });
    assert!(made.late > 0 && made.died == 0, "{made:?}");
    let told: Vec<_> = std::iter::from_fn(|| lines.next()).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].text.starts_with("no answer for 60s"), "{told:?}");
}

/// A worker of whose network nothing but the best time is known would have work for a third of the
/// time.
#[test]
fn a_worker_whose_network_becomes_slower_gets_more_work_ahead() {
    let item = Duration::from_millis(50);
    let made = epoch(4000, (1, item), |machines| async move {
        sleep(Duration::from_secs(20)).await;
        machines[0].distance.set(Duration::from_millis(200));
    });
    // It is noticed after three heartbeats.
    assert!(
        made.time < item * 4000 + Duration::from_secs(15),
        "{made:?}"
    );
}

/// Bytes that a slow network carries in a second: of some 280 items, where a worker makes 1,000.
const SLOW_NETWORK: u32 = 5000;

/// A worker whose network is the slowest part has work for all of the time, and no more of it than there
/// is on the way anyway.
#[test]
fn a_slow_network_is_in_use_all_the_time() {
    let known = Rc::new(Cell::new(0));
    let sent = known.clone();
    let made = epoch(20_000, (1, ITEM), |machines| async move {
        machines[0].rate.set(Some(SLOW_NETWORK));
        loop {
            sleep(Duration::from_secs(1)).await;
            sent.set(machines[0].sent.get());
        }
    });
    let needed = Duration::from_secs(known.get()) / SLOW_NETWORK;
    println!("{made:?}, the network {needed:?}");
    assert!(made.time > ITEM * 40_000, "the network is slower: {made:?}");
    assert!(
        made.time < needed * 21 / 20,
        "{made:?} instead of {needed:?}"
    );
    assert_eq!((made.late, made.died), (0, 0), "{made:?}");
}

/// Others do what a worker with a slow network is late with, and wait for nothing else.
#[test]
fn row_151_a_slow_network_of_one_worker_costs_others_nothing() {
    let made = epoch(40_000, (4, ITEM), |machines| async move {
        machines[0].rate.set(Some(SLOW_NETWORK));
    });
    println!("{made:?}");
    // The other three make as much without it.
    assert!(made.time < ITEM * 40_000 / 3 * 21 / 20, "{made:?}");
    assert!(made.pause < Duration::from_millis(800), "{made:?}");
    assert_eq!(made.died, 0, "{made:?}");
}

/// Others have work for two seconds when it begins to stand still.
#[test]
fn row_151_a_worker_that_stands_still_holds_up_others_for_about_the_usual_time_of_its_work() {
    let item = Duration::from_millis(50);
    let made = epoch(4000, (4, item), |machines| async move {
        sleep(Duration::from_secs(10)).await;
        let until = Instant::now() + Duration::from_secs(60);
        machines[0].stopped.set(Some(until));
    });
    assert!(made.late > 0, "{made:?}");
    assert!(made.pause < Duration::from_millis(800), "{made:?}");
}

#[test]
fn row_151_in_bounded_order_a_worker_that_stands_still_holds_up_nobody() {
    let item = Duration::from_millis(50);
    let epochs = Epochs {
        order: settings::Order::Bounded(2000),
        ..Epochs::default()
    };
    let made = epochs.read(4000, (4, item), |machines| async move {
        sleep(Duration::from_secs(10)).await;
        let until = Instant::now() + Duration::from_secs(60);
        machines[0].stopped.set(Some(until));
    });
    println!("{made:?}");
    assert!(made.pause < item * 2, "{made:?}");
}

/// A worker that does late work, too, answers in part and is late with the rest before the first one
/// answers: who answers first has the work for good, and the other one's answers are not taken for its
/// own.
#[test]
fn row_151_what_all_workers_are_late_with_comes_once() {
    let mut late = 0;
    // From any place of a piece of work on, for any time.
    let cases = (0..8).flat_map(|begin| (300..1500).step_by(40).map(move |stop| (begin, stop)));
    for (begin, stop) in cases {
        let made = epoch(1200, (3, ITEM), move |machines| async move {
            sleep(Duration::from_millis(200 + begin)).await;
            let until = Instant::now() + Duration::from_millis(stop);
            machines[0].stopped.set(Some(until));
            machines.iter().for_each(|machine| machine.slow.set(80));
            sleep(Duration::from_secs(5)).await;
            machines.iter().for_each(|machine| machine.slow.set(1));
        });
        late += made.late;
    }
    assert!(late > 0);
}

/// Any faults in any order: machines that stand still, are slow, crash, or send what nobody expects.
fn faulty(seed: u64, workers: usize, items: u64) {
    let made = epoch(items, (workers, ITEM), move |machines| async move {
        let mut rng = Rng::from_key([seed, 1, 1, 1]);
        loop {
            let mut below = |n: u64| rng.next_u64() % n;
            sleep(Duration::from_millis(below(200))).await;
            let machine = &machines[below(machines.len() as u64) as usize];
            match below(6) {
                0 => machine.dies.set(true),
                // One after the other: an item that three of them lie about is given up.
                1 if machines.iter().all(|machine| !machine.lies.get()) => machine.lies.set(true),
                2 | 3 => {
                    let time = match below(8) {
                        0 => below(20_000),
                        _ => below(1000),
                    };
                    let until = Instant::now() + Duration::from_millis(time);
                    machine.stopped.set(Some(until));
                }
                4 => machine.slow.set(1 + below(30) as u32),
                _ => machine.slow.set(1),
            }
        }
    });
    println!("{seed}: {made:?}");
    assert!(made.pause < Duration::from_secs(120), "{seed}: {made:?}");
}

#[test]
fn rows_137_to_139_and_151_any_faults_cost_no_item() {
    let seeds = match std::env::var_os("DATAPIPES_ALL_CASES") {
        Some(_) => 20,
        None => 4,
    };
    for seed in 0..seeds {
        faulty(seed, 2 + seed as usize % 7, 20_000);
    }
}

/// Workers that nobody has let in, and who waits for one.
#[derive(Default)]
struct Pool {
    waiting: RefCell<VecDeque<Arrival>>,
    wakers: RefCell<Vec<Waker>>,
}

thread_local! {
    static POOL: Rc<Pool> = Rc::default();
}

impl Pool {
    /// Keeps a process of a machine waiting, or at work for whoever let it in, for ever.
    async fn keep(self: Rc<Pool>, place: usize, machine: Rc<Machine>, seed: Rc<Cell<u64>>) {
        for process in 0.. {
            let (arrival, body) = start(&machine, (place, process), &seed);
            self.waiting.borrow_mut().push_back(arrival);
            self.wakers.take().into_iter().for_each(Waker::wake);
            let ended = machine.ended.get();
            let _ = body.await;
            machine.stands_still().await;
            let is_handed_over = machine.ended.get() == ended;
            sleep(if is_handed_over { HANDED_OVER } else { RESTART }).await;
        }
    }
}

/// The way from the pool of this thread to a part.
struct Door {
    pool: Rc<Pool>,
    share: Share,
}

impl Entrance for Door {
    fn open(remote: &Remote) -> Result<Door> {
        let (share, _) = remote.join()?;
        let pool = POOL.with(Rc::clone);
        Ok(Door { pool, share })
    }

    fn poll_worker(&mut self, cx: &mut Context<'_>) -> Poll<Arrival> {
        let first = self
            .share
            .is_first()
            .then(|| self.pool.waiting.borrow_mut().pop_front());
        let Some(arrival) = first.flatten() else {
            let wakers = &mut self.pool.wakers.borrow_mut();
            if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
            return Poll::Pending;
        };
        Poll::Ready(arrival)
    }

    fn share(&self) -> &Share {
        &self.share
    }
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody came")
    }
}

/// Reads an epoch of so many items by each of some parts that share so many workers. Returns the cost
/// of all.
fn shared_epochs<F: Future<Output = ()> + 'static>(
    (parts, items): (usize, u64),
    (workers, item): (usize, Duration),
    faults: impl FnOnce(Vec<Rc<Machine>>) -> F,
) -> Epoch {
    let machines = machines(workers, item);
    simulate(async {
        let pool = POOL.with(|pool| pool.clone());
        pool.waiting.borrow_mut().clear();
        let seed = Rc::new(Cell::new(0));
        spawn_local(faults(machines.clone()));
        for (place, machine) in machines.iter().enumerate() {
            spawn_local(pool.clone().keep(place, machine.clone(), seed.clone()));
        }
        let remote = listen().at_most(workers);
        let begun = Instant::now();
        let (send, mut results) = mpsc::unbounded_channel();
        for _ in 0..parts {
            let shared = Rc::new(SlotsShared::new(plan(remote.clone())));
            let mut there: Workers<Door> = Workers::new(&shared).unwrap();
            let send = send.clone();
            spawn_local(async move {
                let trainer = Trainer::new(items, workers, settings::Order::Strict);
                let times = trainer.read(&shared, |cx| there.poll(cx)).await;
                send.send((times, shared.clone())).unwrap();
                drop(send);
                // Others get its workers.
                shared.release();
                poll_fn(|cx| {
                    there.poll(cx);
                    Poll::<()>::Pending
                })
                .await
            });
        }
        drop(send);
        let mut all = Epoch::default();
        for _ in 0..parts {
            let (times, shared) = results.recv().await.expect("no epoch fails");
            all.add(times, &shared.plan.figures);
        }
        all.count(begun, &machines)
    })
}

#[test]
fn parts_that_share_workers_lose_no_time() {
    let item = Duration::from_millis(50);
    for (parts, workers) in [(2, 5), (4, 4), (5, 3)] {
        let items = 600 * workers as u64 / parts as u64;
        let made = shared_epochs((parts, items), (workers, item), |_| async {});
        println!("{parts} parts, {workers} workers: {made:?}");
        assert!(
            made.time < item * 800,
            "{made:?} instead of {:?}",
            item * 600
        );
    }
}

/// A turn that began before the part is made would be over by then, and nobody would ever work.
#[test]
fn row_149_a_worker_that_takes_longer_than_a_turn_to_make_parts_works_for_all() {
    let item = Duration::from_millis(50);
    for making in [500, 3000] {
        let made = shared_epochs((3, 400), (1, item), move |machines| async move {
            machines[0].making.set(Duration::from_millis(making));
        });
        println!("{making} ms: {made:?}");
        assert!(made.time < item * 1200 * 3, "{made:?}");
        assert_eq!(made.made, 1200);
    }
}

/// The worker would stay there, and the other parts would fail.
#[test]
fn row_149_a_worker_that_hangs_while_it_makes_a_part_is_handed_over() {
    let item = Duration::from_millis(50);
    let made = shared_epochs((3, 400), (1, item), |machines| async move {
        machines[0].hangs.set(true);
    });
    println!("{made:?}");
    // Half of the time that the others wait, which is a minute.
    assert!(made.first < Duration::from_secs(45), "{made:?}");
    assert!(made.time < item * 1200 * 2, "{made:?}");
}

#[test]
fn row_149_a_step_that_hangs_holds_up_others_for_seconds() {
    let item = Duration::from_millis(50);
    let made = shared_epochs((3, 400), (1, item), |machines| async move {
        sleep(Duration::from_secs(10)).await;
        machines[0].hangs.set(true);
    });
    println!("{made:?}");
    assert!(made.pause < Duration::from_secs(10), "{made:?}");
}

/// Makes some machines ten times slower, and lets another one end each second if some are to be lost.
async fn slow_and_lost(machines: Vec<Rc<Machine>>, is_slow: impl Fn(usize) -> bool, lost: bool) {
    for (place, machine) in machines.iter().enumerate() {
        machine.slow.set(if is_slow(place) { 10 } else { 1 });
    }
    let mut rng = Rng::from_key([7; 4]);
    if !lost {
        return;
    }
    loop {
        sleep(Duration::from_secs(1)).await;
        let place = rng.next_u64() as usize % machines.len();
        machines[place].dies.set(true);
    }
}

/// `cargo test -- simulation::rates --ignored --nocapture`
#[test]
#[ignore = "prints figures"]
fn rates() {
    let item = Duration::from_millis(50);
    for workers in [1, 2, 4, 16, 64, 250, 1000] {
        for (stragglers, lost) in [(0, false), (10, false), (10, true)] {
            let is_slow = move |place: usize| stragglers > 0 && place % stragglers == 5;
            let slow = (0..workers).filter(|&place| is_slow(place)).count();
            let speed = workers as f64 - slow as f64 * 0.9;
            let seconds = if workers > 64 { 20.0 } else { 60.0 };
            let items = (speed * seconds / item.as_secs_f64()) as u64;
            let made = epoch(items, (workers, item), move |machines| {
                slow_and_lost(machines, is_slow, lost)
            });
            println!(
                "{workers} workers, {slow} of them 10 times slower, one lost each second: {lost}: rate {:.3} of the ideal, \
                 work done twice {:.4}, longest pause {:?}, {} late, {} ended",
                seconds / made.time.as_secs_f64(),
                made.made as f64 / items as f64 - 1.0,
                made.pause,
                made.late,
                made.died,
            );
        }
    }
}

/// `cargo test -- simulation::rates_of_shares --ignored --nocapture`
#[test]
#[ignore = "prints figures"]
fn rates_of_shares() {
    let item = Duration::from_millis(50);
    for (parts, workers) in [(2, 16), (8, 64), (64, 16), (64, 64), (64, 256), (64, 1000)] {
        for faulty in [false, true] {
            let is_slow = move |place: usize| faulty && place % 10 == 5;
            let slow = (0..workers).filter(|&place| is_slow(place)).count();
            let speed = workers as f64 - slow as f64 * 0.9;
            let seconds = 60.0;
            let items = (speed * seconds / item.as_secs_f64() / parts as f64) as u64;
            let made = shared_epochs((parts, items), (workers, item), move |machines| {
                slow_and_lost(machines, is_slow, faulty)
            });
            println!(
                "{parts} parts, {workers} workers, {slow} of them 10 times slower, one lost each second: {faulty}: rate {:.3} \
                 of the ideal, work done twice {:.4}, first items after {:?}, longest pause {:?}, {} late, {} ended",
                seconds / made.time.as_secs_f64(),
                made.made as f64 / (items * parts as u64) as f64 - 1.0,
                made.first,
                made.pause,
                made.late,
                made.died,
            );
        }
    }
}

/// `cargo test -- simulation::rates_of_ranks --ignored --nocapture`
#[test]
#[ignore = "prints figures"]
fn rates_of_ranks() {
    let item = Duration::from_millis(50);
    for (ranks, workers) in [(1, 16), (8, 16), (64, 4), (64, 16)] {
        for faulty in [false, true] {
            let is_slow = move |place: usize| faulty && place % 10 == 5;
            let slow = (0..ranks * workers).filter(|&place| is_slow(place)).count();
            // The rank with the most slow machines is the last.
            let slow_of_rank = |rank: usize| {
                (0..workers)
                    .filter(|at| is_slow(rank * workers + at))
                    .count()
            };
            let most = (0..ranks).map(slow_of_rank).max().unwrap_or(0);
            let seconds = 60.0;
            let speed = workers as f64 - most as f64 * 0.9;
            let items = (speed * seconds / item.as_secs_f64()) as u64;
            let begun = std::time::Instant::now();
            let epochs = Epochs {
                ranks,
                ..Epochs::default()
            };
            let made = epochs.read(items, (workers, item), move |machines| {
                slow_and_lost(machines, is_slow, faulty)
            });
            println!(
                "{ranks} ranks with {workers} workers each, {slow} of all 10 times slower, one lost each second: {faulty}: rate \
                 {:.3} of the ideal of the slowest rank, work done twice {:.4}, first items after {:?}, longest pause {:?}, \
                 {:.0} pieces of work a second, {} late, {} ended; took {:.1} s",
                seconds / made.time.as_secs_f64(),
                made.made as f64 / (items * ranks as u64) as f64 - 1.0,
                made.first,
                made.pause,
                made.orders as f64 / made.time.as_secs_f64(),
                made.late,
                made.died,
                begun.elapsed().as_secs_f64(),
            );
        }
    }
}
