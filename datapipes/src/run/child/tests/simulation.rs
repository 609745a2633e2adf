//! Workers of other machines in virtual time: the segment, its jobs, the places of a supervisor and the
//! sessions are those of the library, and talk to simulated workers through streams in memory.
//!
//! Not simulated: who lets a worker in, with which delay of the network, and what a worker does with a
//! job besides waiting.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep, timeout};

use crate::codec::{ChunkWire, Parcel, WireOf};
use crate::graph::ErasedChunks;
use crate::items::Demand;
use crate::queue::{Limits, RemotePut, RemoteTake, Weight};
use crate::run::child::child_slot::run_worker;
use crate::run::child::job::Job;
use crate::run::child::plan::{ChildFigures, ChildrenPlan};
use crate::run::child::protocol::{Counted, Done, Hello, JobFacts, Order, Report, RunFacts};
use crate::run::child::queue_ends::{PutEnd, TakeEnd};
use crate::run::child::remote::{Arrival, RemoteWorker};
use crate::run::child::slots::SlotsShared;
use crate::run::segment::tests::{Jobs, segment, settings};
use crate::{Arity, Chunk, Rank, Remote, Rng, Work, Writer};

/// Time of an item at a worker that is not slow: some come together in a job.
const ITEM: Duration = Duration::from_millis(1);
/// Time after which a worker that ended is there again.
const RESTART: Duration = Duration::from_millis(100);
/// Virtual time in which an epoch has to end.
const PATIENCE: Duration = Duration::from_secs(3600);
const WIDE: Limits = Limits {
    items: 1 << 20,
    bytes: 1 << 30,
};
const RUN: RunFacts = RunFacts {
    seed: 0,
    epoch: 0,
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
    /// The process is to end.
    dies: Cell<bool>,
    /// The process is to send something that no worker sends.
    lies: Cell<bool>,
    /// Number of items made.
    made: Cell<u64>,
}

impl Machine {
    fn new(item: Duration) -> Machine {
        Machine {
            item,
            slow: Cell::new(1),
            stopped: Cell::new(None),
            dies: Cell::new(false),
            lies: Cell::new(false),
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
        match Order::read(&mut from).expect("an order") {
            Order::Hello => self.send(&Report::Ready, None).await?,
            Order::Job(facts, _) => {
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
            Order::Allow(_) | Order::Alive => {}
        }
        Some(())
    }

    /// Makes the next items of the first job.
    async fn work(&mut self) -> Option<()> {
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
                report.write(&mut writer).ok()?;
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
        report.write(&mut writer).ok()?;
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
            3 => Report::Ask {
                number: rng.next_u64(),
                bytes: usize::MAX,
            },
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

fn plan(workers: usize) -> Arc<ChildrenPlan> {
    let remote = Remote::listen("127.0.0.1:0").unwrap().at_most(workers);
    let processes = remote.processes();
    let flow = settings(Work::Cpu, 1, &Jobs::default());
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

/// Keeps a worker of a machine at a place, for ever.
async fn keep_worker(
    shared: Rc<SlotsShared>,
    place: usize,
    machine: Rc<Machine>,
    seed: Rc<Cell<u64>>,
) {
    for process in 0.. {
        let (to_worker, orders) = tokio::io::duplex(1 << 20);
        let (to_trainer, reports) = tokio::io::duplex(1 << 20);
        let body = Process {
            machine: machine.clone(),
            orders: RemoteTake::new(Box::pin(orders), 1 << 30),
            reports: RemotePut::new(Box::pin(to_trainer), WIDE),
            wire: shared.plan.input.clone(),
            jobs: VecDeque::new(),
        };
        let body = spawn_local(body.run(seed.clone()));
        let arrival = Arrival {
            worker: RemoteWorker {
                id: (place as u64) << 32 | process as u64,
                machine: format!("machine {place}"),
                process,
                round_trip: Duration::from_millis(1),
            },
            orders: PutEnd::Remote(RemotePut::new(Box::pin(to_worker), WIDE)),
            reports: TakeEnd::Remote(RemoteTake::new(Box::pin(reports), 1 << 30)),
        };
        shared.set_workers(1);
        run_worker(shared.clone(), place, arrival).await;
        shared.set_workers(-1);
        body.abort();
        machine.stands_still().await;
        sleep(RESTART).await;
    }
}

/// Cost of an epoch.
#[derive(Debug)]
struct Epoch {
    time: Duration,
    /// Longest time between two items at the consumer, after the first.
    pause: Duration,
    made: u64,
    late: u64,
    died: u64,
}

/// Reads an epoch of so many items, made by so many workers, and checks that each comes once and in
/// order, and is counted once. `faults` runs beside it.
fn epoch<F: Future<Output = ()> + 'static>(
    items: u64,
    (workers, item): (usize, Duration),
    faults: impl FnOnce(Vec<Rc<Machine>>) -> F,
) -> Epoch {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let jobs = Jobs::default();
    let mut settings = settings(Work::Cpu, workers, &jobs);
    // As many jobs as there may be: how many are worth it is measured by another clock.
    (settings.processes, settings.set_by_user) = (true, true);
    let counters = settings.shared.chain.links[0].context.counters().clone();
    let mut segment = segment(items, settings);
    let machines: Vec<Rc<Machine>> = (0..workers).map(|_| Rc::new(Machine::new(item))).collect();
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let shared = Rc::new(SlotsShared::new(plan(workers)));
        let seed = Rc::new(Cell::new(0));
        for (place, machine) in machines.iter().enumerate() {
            let (shared, machine) = (shared.clone(), machine.clone());
            spawn_local(keep_worker(shared, place, machine, seed.clone()));
        }
        spawn_local(faults(machines.clone()));
        let begun = Instant::now();
        let (mut next, mut last, mut pause) = (0, None, Duration::ZERO);
        let whole = poll_fn(|cx| {
            loop {
                let mut is_idle = true;
                while let Some(job) = jobs.next() {
                    shared.add(Job::new(job, RUN));
                    is_idle = false;
                }
                match segment.poll_chunk(cx, Demand::up_to(1 << 20)) {
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Ready(Some(chunk)) => {
                        let chunk = chunk.chunk.downcast::<Chunk<u64>>().unwrap();
                        for item in *chunk {
                            assert_eq!(item.unwrap().into_inner(), next);
                            next += 1;
                        }
                        let now = Instant::now();
                        pause = pause.max(now - last.replace(now).unwrap_or(now));
                    }
                    Poll::Pending if is_idle => return Poll::Pending,
                    Poll::Pending => {}
                }
            }
        });
        if timeout(PATIENCE, whole).await.is_err() {
            panic!("not in time: {next} of {items} items");
        }
        assert_eq!(next, items);
        assert_eq!(
            counters.items.load(Ordering::Relaxed),
            items,
            "counted once"
        );
        let figures = &shared.plan.figures;
        Epoch {
            time: begun.elapsed(),
            pause,
            made: machines.iter().map(|machine| machine.made.get()).sum(),
            late: figures.late.load(Ordering::Relaxed),
            died: figures.died.load(Ordering::Relaxed),
        }
    })
}

#[test]
fn without_faults_nothing_is_done_twice() {
    let item = Duration::from_millis(50);
    let made = epoch(19_200, (16, item), |_| async {});
    assert_eq!((made.made, made.late, made.died), (19_200, 0, 0));
    let ideal = item * 19_200 / 16;
    assert!(
        made.time < ideal * 105 / 100,
        "{made:?} instead of {ideal:?}"
    );
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

/// All workers are slow with late work: one that has taken it back must not share it with workers of
/// the time before, whose answers would be taken for its own.
#[test]
fn row_151_what_all_workers_are_late_with_comes_once() {
    let mut late = 0;
    for seed in 0..60 {
        let made = epoch(
            600,
            (3, Duration::from_millis(50)),
            move |machines| async move {
                let mut rng = Rng::from_key([seed, 3, 1, 1]);
                loop {
                    sleep(Duration::from_millis(3000 + rng.next_u64() % 1000)).await;
                    for machine in &machines {
                        let until = Instant::now() + Duration::from_millis(rng.next_u64() % 2000);
                        machine.stopped.set(Some(until));
                        machine.slow.set(2 + rng.next_u64() as u32 % 12);
                    }
                    sleep(Duration::from_millis(rng.next_u64() % 6000)).await;
                    machines.iter().for_each(|machine| machine.slow.set(1));
                }
            },
        );
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
            let made = epoch(items, (workers, item), move |machines| async move {
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
