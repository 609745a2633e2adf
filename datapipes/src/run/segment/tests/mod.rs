//! Segments whose morsels a test takes apart and completes itself, so that nothing depends on time.

mod many_cores;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{self, Poll, Waker};

use futures::FutureExt;

use super::{InputLog, Segment, SegmentSettings};
use crate::budget::{Account, Budget};
use crate::graph::{ErasedChunks, Flow, Op};
use crate::items::Demand;
use crate::queue::conformance::Count;
use crate::queue::{Put, Weight};
use crate::run::chain::{Chain, Link};
use crate::run::morsel::{MorselJob, MorselShared, MorselTask, Spawner};
use crate::settings::Order;
use crate::sync::lock;
use crate::{Arity, Context, Graph, Item, Items, Origin, Work};

/// Jobs that nobody works on until the test does.
#[derive(Clone, Default)]
pub(in crate::run) struct Jobs(Arc<Mutex<VecDeque<MorselJob>>>);

impl Spawner for Jobs {
    fn spawn(&self, job: MorselJob) -> MorselTask {
        lock(&self.0).push_back(job);
        MorselTask::Elsewhere
    }
}

impl Jobs {
    fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// Takes the oldest job.
    pub(in crate::run) fn next(&self) -> Option<MorselJob> {
        lock(&self.0).pop_front()
    }
}

/// Hands on the input of a job as its output, after `ns` nanoseconds for each item.
fn complete(job: MorselJob, ns: u64) {
    let MorselJob {
        shared,
        mut chunk,
        mut credit,
        outcome,
        mut put,
        notification,
        ..
    } = job;
    outcome.spend(ns * chunk.len as u64);
    let (items, bytes) = (chunk.len, chunk.bytes);
    chunk.hold = Some(credit.give(items, bytes, 0));
    shared.awaited.made(credit.id());
    put.put(chunk, Weight { items, bytes });
    outcome.complete();
    drop(put);
    drop(notification);
}

/// Settings of a segment of one step that changes nothing.
pub(in crate::run) fn settings(work: Work, workers: usize, jobs: &Jobs) -> SegmentSettings {
    let graph = Graph::<u64>::from_vec(Vec::new()).map(|n| n);
    let flow = Flow::new(&graph.root());
    let (above, node) = (&flow.nodes[0].node, &flow.nodes[1].node);
    let Op::Pipe(pipe) = &node.op else {
        unreachable!("a map is a pipe")
    };
    let chain = Chain {
        links: vec![Link {
            pipe: pipe.clone(),
            context: Context::default(),
            edge: node.edge.clone(),
            rows: None,
            arity: Arity::One,
            len: crate::graph::Len::Unknown,
        }],
        input: above.edge.clone(),
    };
    let budget = Budget::new(1 << 30, 1, |_, _| true);
    let shared = MorselShared {
        chain,
        work,
        waits: None,
        arity: Arity::One,
        notifier: Arc::default(),
        account: Account::new(&budget, 0, 1 << 30, workers, Default::default(), Vec::new()),
        awaited: Arc::default(),
        pace: Default::default(),
        gauge: Arc::default(),
    };
    SegmentSettings {
        shared: Arc::new(shared),
        spawner: Box::new(jobs.clone()),
        order: Order::Strict,
        concurrency: 32 * workers,
        start: 1,
        workers,
        set_by_user: false,
        processes: false,
        here: None,
        learned: Arc::default(),
        log: InputLog::Off,
    }
}

/// Starts a segment over so many numbers.
pub(in crate::run) fn segment(items: u64, settings: SegmentSettings) -> Segment {
    let results = (0..items).map(|n| Ok(Item::new(n, Origin::root(0, n))));
    Segment::new(
        Box::new(Items::from_results(results.collect::<Vec<_>>())),
        settings,
    )
}

/// Returns the number of items that come at once, if some do.
fn poll(segment: &mut Segment, cx: &mut task::Context<'_>, needed: usize) -> Poll<Option<usize>> {
    let demand = Demand::up_to(needed).needing(needed);
    segment
        .poll_chunk(cx, demand)
        .map(|chunk| chunk.map(|chunk| chunk.len))
}

/// Returns the number of files whose reading begins before the first is there.
fn near_reads(start: usize, workers: usize) -> usize {
    let jobs = Jobs::default();
    let mut settings = settings(Work::Io, workers, &jobs);
    settings.start = start;
    Arc::get_mut(&mut settings.shared)
        .expect("not shared yet")
        .waits = Some(Arc::default());
    let mut segment = segment(1000, settings);
    let mut cx = task::Context::from_waker(Waker::noop());
    assert!(poll(&mut segment, &mut cx, 1).is_pending());
    jobs.len()
}

#[test]
fn a_fan_out_begins_with_two_whole_files_and_leaves_the_workers_to_decode_them() {
    assert_eq!([1, 2, 8].map(|workers| near_reads(1, workers)), [2, 2, 2]);
}

#[test]
fn a_batch_of_small_files_begins_with_what_keeps_the_workers_busy() {
    assert_eq!(
        [1, 2, 8].map(|workers| near_reads(256, workers)),
        [4, 8, 32]
    );
}

#[test]
fn a_given_number_of_requests_is_in_flight_from_the_first_one_on() {
    let jobs = Jobs::default();
    let mut settings = settings(Work::Io, 2, &jobs);
    (settings.concurrency, settings.set_by_user) = (300, true);
    let mut segment = segment(1000, settings);
    let mut cx = task::Context::from_waker(Waker::noop());
    for _ in 0..600 {
        assert!(poll(&mut segment, &mut cx, 1).is_pending());
        assert_eq!(jobs.len(), 300);
        complete(jobs.next().expect("the first one"), 1_000);
        assert_eq!(poll(&mut segment, &mut cx, 1), Poll::Ready(Some(1)));
    }
}

/// A wake takes a core from a worker where there are no more cores than workers.
#[test]
fn a_reader_in_order_is_woken_once_for_a_morsel_and_not_for_a_later_one() {
    let jobs = Jobs::default();
    let mut settings = settings(Work::Cpu, 2, &jobs);
    settings.set_by_user = true;
    let mut segment = segment(1000, settings);
    let count = Arc::<Count>::default();
    let woken = || count.0.load(std::sync::atomic::Ordering::SeqCst);
    let waker = Waker::from(count.clone());
    let mut cx = task::Context::from_waker(&waker);
    assert!(poll(&mut segment, &mut cx, 1).is_pending());
    let run_next = || {
        let job = jobs.next().expect("the reader waits for several");
        job.run().now_or_never().expect("it waits for nothing");
    };
    let first = jobs.next().expect("the reader waits for it");
    run_next();
    assert_eq!(woken(), 0);
    first.run().now_or_never().expect("it waits for nothing");
    assert_eq!(woken(), 1);
    for _ in 0..2 {
        assert_eq!(poll(&mut segment, &mut cx, 1), Poll::Ready(Some(1)));
    }
    assert!(poll(&mut segment, &mut cx, 1).is_pending());
    run_next();
    assert_eq!(woken(), 2);
}

#[test]
fn small_files_come_in_pieces_from_the_begin_of_a_later_epoch() {
    let jobs = Jobs::default();
    let mut learned = None;
    for epoch in 0..2 {
        let mut settings = settings(Work::Io, 2, &jobs);
        settings.start = 256;
        settings.learned = learned.get_or_insert(settings.learned).clone();
        Arc::get_mut(&mut settings.shared)
            .expect("not shared yet")
            .waits = Some(Arc::default());
        let mut segment = segment(1000, settings);
        let mut cx = task::Context::from_waker(Waker::noop());
        assert!(poll(&mut segment, &mut cx, 1).is_pending());
        let expected = [1, 16][epoch];
        assert_eq!(items(&jobs), [expected; 8], "epoch {epoch}");
        complete(jobs.next().expect("it was there"), 4_000);
        assert!(poll(&mut segment, &mut cx, 1).is_ready());
        while poll(&mut segment, &mut cx, 1).is_ready() {}
        while jobs.next().is_some() {}
    }
}

#[test]
fn small_files_come_in_larger_pieces_after_the_first_batch() {
    let jobs = Jobs::default();
    let mut settings = settings(Work::Io, 1, &jobs);
    settings.start = 256;
    Arc::get_mut(&mut settings.shared)
        .expect("not shared yet")
        .waits = Some(Arc::default());
    let mut segment = segment(4_000, settings);
    let mut cx = task::Context::from_waker(Waker::noop());
    let (mut most, mut came) = ([0; 3], 0);
    for most in &mut most {
        while came < 256 {
            if let Poll::Ready(more) = poll(&mut segment, &mut cx, 256 - came) {
                came += more.expect("there are more");
                continue;
            }
            *most = items(&jobs).into_iter().fold(*most, usize::max);
            complete(jobs.next().expect("one is waited for"), 4_000);
        }
        came -= 256;
    }
    // A quarter of what may be in flight, and then twice as many.
    assert_eq!(most, [8, 16, 16]);
}

/// Numbers of the items of all jobs that are there.
fn items(jobs: &Jobs) -> Vec<usize> {
    lock(&jobs.0).iter().map(|job| job.chunk.len).collect()
}

/// Morsels of one item are few: each costs messages, and as many as fill a long way would be slower
/// than the items.
#[test]
fn pieces_for_processes_are_of_one_item_only_until_the_cost_of_an_item_is_known() {
    let jobs = Jobs::default();
    let mut learned = None;
    for epoch in 0..2 {
        let mut settings = settings(Work::Cpu, 2, &jobs);
        settings.processes = true;
        settings.learned = learned.get_or_insert(settings.learned).clone();
        let mut segment = segment(100_000, settings);
        let mut cx = task::Context::from_waker(Waker::noop());
        assert!(poll(&mut segment, &mut cx, 1).is_pending());
        let expected = [1, 40][epoch];
        assert_eq!(items(&jobs), [expected; 8], "epoch {epoch}");
        for _ in 0..8 {
            complete(jobs.next().expect("it was there"), 100_000);
            assert!(poll(&mut segment, &mut cx, 1).is_ready());
        }
        assert!(poll(&mut segment, &mut cx, 1).is_pending());
        assert!(items(&jobs).starts_with(&[40; 8]), "epoch {epoch}");
        while jobs.next().is_some() {}
    }
}

/// Input that notes how many items were needed each time.
struct Asked(Box<dyn ErasedChunks>, Arc<Mutex<Vec<usize>>>);

impl ErasedChunks for Asked {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> super::ChunkPoll {
        lock(&self.1).push(demand.needed);
        self.0.poll_chunk(cx, demand)
    }
}

/// Items that come one by one from another segment would each wake the reader, for a morsel of one.
#[test]
fn a_whole_morsel_is_asked_for_if_the_reader_needs_several_items() {
    for needed in [1, 100] {
        let (jobs, asked) = (Jobs::default(), Arc::<Mutex<Vec<usize>>>::default());
        let mut settings = settings(Work::Cpu, 2, &jobs);
        settings.set_by_user = true;
        let input = settings.shared.chain.input.clone();
        let results = (0..1000).map(|n| Ok(Item::new(n, Origin::root(0, n))));
        let items = input.erase(Box::new(Items::from_results(results.collect::<Vec<_>>())));
        let items = input.restore(Box::new(Asked(items, asked.clone())));
        let mut segment = Segment::new(items, settings);
        let mut cx = task::Context::from_waker(Waker::noop());
        let mut got = 0;
        while got < 400 {
            match poll(&mut segment, &mut cx, needed) {
                Poll::Ready(items) => got += items.expect("there are more"),
                Poll::Pending => complete(jobs.next().expect("the reader waits"), 10_000),
            }
        }
        assert_eq!(lock(&asked).iter().any(|&asked| asked > 1), needed > 1);
    }
}
