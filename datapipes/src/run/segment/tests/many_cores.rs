//! Segments on many workers that exist in virtual time only: the work of the reader for an item.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

/// Work of an item, with durations as recorded on two cores.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Load {
    /// Decoding an image (W2).
    Decode,
    /// A request to a store 20 ms away (W3).
    Request,
    /// An addition (W5).
    Add,
}

impl Load {
    /// Returns the duration of one of the items, in nanoseconds. One in 64 takes ten times as long.
    fn ns(self, number: u64) -> u64 {
        let mean = match self {
            Load::Decode => 900_000,
            Load::Request => 20_000_000,
            Load::Add => 5,
        };
        let draw = crate::mix_bits(number + 1);
        match draw % 64 {
            0 => 10 * mean,
            _ => mean / 2 + mean * (draw >> 32) / (1 << 32),
        }
    }
}

/// Costs of an epoch for its reader, and how it used the workers.
#[derive(Debug)]
struct Costs {
    items: usize,
    /// Number of times that the segment was polled.
    polls: usize,
    /// Number of looks at the output of a morsel, each under a lock.
    looks: usize,
    /// Share of the workers' time in which they worked.
    busy: f64,
}

impl Costs {
    fn looks_per_item(&self) -> f64 {
        self.looks as f64 / self.items as f64
    }

    fn polls_per_item(&self) -> f64 {
        self.polls as f64 / self.items as f64
    }
}

/// Workers that each have a job until its time is over, in order of that time.
struct Machine {
    workers: usize,
    now: u64,
    worked: u64,
    running: BinaryHeap<Reverse<(u64, u64)>>,
    jobs: Vec<Option<(MorselJob, u64)>>,
}

impl Machine {
    /// Gives waiting jobs to idle workers.
    fn begin(&mut self, jobs: &Jobs, load: Load) {
        while self.running.len() < self.workers
            && let Some(job) = jobs.next()
        {
            let each = load.ns(job.first);
            let ns = each * job.chunk.len as u64;
            self.worked += ns;
            self.running
                .push(Reverse((self.now + ns, self.jobs.len() as u64)));
            self.jobs.push(Some((job, each)));
        }
    }

    /// Ends the job that is the next to end.
    fn end_one(&mut self) {
        let Reverse((end, number)) = self.running.pop().expect("the reader waits for a job");
        self.now = end;
        let (job, each) = self.jobs[number as usize].take().expect("it ends once");
        complete(job, each);
    }
}

/// Runs an epoch on so many workers.
fn run(load: Load, order: Order, workers: usize) -> Costs {
    let (jobs, items) = (Jobs::default(), 2000 + 32 * workers);
    let work = match load {
        Load::Request => Work::Io,
        Load::Decode | Load::Add => Work::Cpu,
    };
    let mut settings = settings(work, workers, &jobs);
    (settings.order, settings.set_by_user) = (order, true);
    let mut machine = Machine {
        workers: match work {
            Work::Io => usize::MAX,
            Work::Cpu => workers,
        },
        now: 0,
        worked: 0,
        running: BinaryHeap::new(),
        jobs: Vec::new(),
    };
    let mut segment = segment(items as u64, settings);
    let count = Arc::<Count>::default();
    let woken = || count.0.load(std::sync::atomic::Ordering::SeqCst);
    let waker = Waker::from(count.clone());
    let (mut polls, mut came) = (0, 0);
    loop {
        let before = woken();
        polls += 1;
        match poll(&mut segment, &mut task::Context::from_waker(&waker), 1) {
            Poll::Ready(None) => break,
            Poll::Ready(Some(items)) => came += items,
            Poll::Pending => {
                machine.begin(&jobs, load);
                while woken() == before {
                    machine.end_one();
                    machine.begin(&jobs, load);
                }
            }
        }
    }
    assert_eq!(came, items, "{load:?}, {order}, {workers} workers");
    Costs {
        items,
        polls,
        looks: segment.spawning.flight.looks,
        busy: machine.worked as f64 / (machine.now as f64 * workers as f64),
    }
}

const ORDERS: [Order; 3] = [Order::Strict, Order::Bounded(1000), Order::Arrival];

#[test]
fn the_readers_work_for_an_item_does_not_grow_with_the_workers() {
    for load in [Load::Decode, Load::Request, Load::Add] {
        for order in ORDERS {
            for workers in [8, 128, 256] {
                let costs = run(load, order, workers);
                let what = format!("{load:?}, {order}, {workers} workers: {costs:?}");
                assert!(costs.looks_per_item() < 5.0, "{what}");
                assert!(costs.polls_per_item() < 3.0, "{what}");
            }
        }
    }
}

#[test]
fn hundreds_of_workers_decode_all_the_time() {
    for order in ORDERS {
        for workers in [8, 256] {
            let costs = run(Load::Decode, order, workers);
            assert!(costs.busy > 0.7, "{order}, {workers} workers: {costs:?}");
        }
    }
}
