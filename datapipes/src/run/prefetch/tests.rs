//! Turns of the thread ahead and its reader, over an upstream whose items a test puts in.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::task::Waker;
use std::thread::ThreadId;

use super::*;
use crate::budget::Budget;
use crate::graph::Flow;
use crate::queue::conformance::Count;
use crate::sync::lock;
use crate::{Graph, Item, Items, Origin};

/// An upstream that has what a test puts in.
struct Manual(Arc<Mutex<ManualState>>);

#[derive(Default)]
struct ManualState {
    ready: VecDeque<AnyChunk>,
    ended: bool,
    waker: Option<Waker>,
    /// Threads of the polls so far.
    polled_on: Vec<ThreadId>,
    dropped_on: Option<ThreadId>,
    /// True if its drop panics.
    is_armed: bool,
}

impl ErasedChunks for Manual {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, _: Demand) -> Poll<Option<AnyChunk>> {
        let mut state = lock(&self.0);
        state.polled_on.push(std::thread::current().id());
        match state.ready.pop_front() {
            Some(chunk) => Poll::Ready(Some(chunk)),
            None if state.ended => Poll::Ready(None),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Manual {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.dropped_on = Some(std::thread::current().id());
        let is_armed = state.is_armed;
        drop(state);
        assert!(!is_armed, "armed");
    }
}

/// A queue with its upstream, read on the thread of the test.
struct Reader {
    queue: PrefetchThread,
    upstream: Arc<Mutex<ManualState>>,
    _runtime: tokio::runtime::Runtime,
    edge: Arc<dyn Edge>,
    woken: Arc<Count>,
    made: u64,
}

impl Reader {
    fn new(reader_blocks: bool) -> Self {
        let flow = Flow::new(&Graph::<u64>::from_vec(Vec::new()).root());
        let edge = flow.nodes[0].node.edge.clone();
        let budget = Budget::new(1 << 30, 1, |_, _| true);
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        let scope = Scope::new(runtime.handle().clone(), None, Arc::default());
        let upstream = Arc::<Mutex<ManualState>>::default();
        let settings = PrefetchSettings {
            name: "test".to_owned(),
            depth: Depth {
                items: Arc::new(2.into()),
                adaptive: false,
            },
            account: Account::new(&budget, 0, 1 << 30, 1, Default::default(), Vec::new()),
            scope,
            edge: edge.clone(),
            here: Arc::default(),
            reader_blocks,
        };
        let above = Box::new(Manual(upstream.clone()));
        Reader {
            queue: PrefetchThread::new(above, settings, Arc::default()),
            upstream,
            _runtime: runtime,
            edge,
            woken: Arc::default(),
            made: 0,
        }
    }

    /// Puts an item into the upstream, which wakes whoever polled it last.
    fn make(&mut self) {
        let item = Item::new(self.made, Origin::root(0, self.made));
        self.made += 1;
        let mut one = self.edge.erase(Box::new(Items::from_results([Ok(item)])));
        let Poll::Ready(Some(chunk)) = one.poll_chunk(&mut noop(), Demand::up_to(1)) else {
            unreachable!("an item is there")
        };
        let mut state = lock(&self.upstream);
        state.ready.push_back(chunk);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn poll(&mut self) -> Poll<Option<usize>> {
        let waker = Waker::from(self.woken.clone());
        let mut cx = task::Context::from_waker(&waker);
        let polled = self.queue.poll_chunk(&mut cx, Demand::up_to(1));
        polled.map(|chunk| chunk.map(|chunk| chunk.len))
    }

    fn times_woken(&self) -> usize {
        self.woken.0.load(Ordering::SeqCst)
    }

    /// Waits until something is true of the upstream.
    fn until(&self, is_true: impl Fn(&ManualState) -> bool) {
        let begun = Instant::now();
        while !is_true(&lock(&self.upstream)) {
            assert!(begun.elapsed() < Duration::from_secs(20), "it never came");
            std::thread::yield_now();
        }
    }

    /// Polls until there are items, and returns how many; `None` at the end.
    fn next(&mut self) -> Option<usize> {
        let begun = Instant::now();
        loop {
            if let Poll::Ready(next) = self.poll() {
                return next;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "it never came");
            std::thread::yield_now();
        }
    }

    /// Polls until the reader itself has polled the upstream. The thread may be at the end of a poll.
    fn poll_upstream(&mut self) {
        let begun = Instant::now();
        while !self.polls().contains(&true) {
            assert!(self.poll().is_pending());
            assert!(begun.elapsed() < Duration::from_secs(20), "it never did");
            std::thread::yield_now();
        }
    }

    /// Waits until the thread waits for the upstream.
    fn until_thread_waits(&self) {
        let here = std::thread::current().id();
        self.until(|state| state.polled_on.last().is_some_and(|&last| last != here));
    }

    fn polls(&self) -> Vec<bool> {
        let here = std::thread::current().id();
        let state = lock(&self.upstream);
        state
            .polled_on
            .iter()
            .map(|&thread| thread == here)
            .collect()
    }
}

fn noop() -> task::Context<'static> {
    task::Context::from_waker(Waker::noop())
}

#[test]
fn a_reader_that_waits_is_woken_by_the_upstream_and_wakes_no_thread() {
    let all_by_itself = || {
        let mut reader = Reader::new(true);
        reader.queue.start();
        reader.until_thread_waits();
        reader.poll_upstream();
        let (before, woken) = (reader.polls().len(), reader.times_woken());
        (1..=20).all(|n| {
            reader.make();
            let once = reader.times_woken() == woken + n;
            let polled = (reader.poll(), reader.poll());
            once && polled == (Poll::Ready(Some(1)), Poll::Pending)
        }) && reader.polls()[before..] == [true; 40]
    };
    // A test that does not run for a while is as good as a reader that stays away.
    assert!((0..100).any(|_| all_by_itself()));
}

#[test]
fn a_thread_works_ahead_of_a_reader_that_stays_away() {
    for rounds in [1, 3] {
        let mut reader = Reader::new(true);
        reader.queue.start();
        for _ in 0..rounds {
            reader.make();
            assert_eq!(reader.next(), Some(1));
            // While the reader is away, the thread is to find what comes next.
            let before = reader.polls().len();
            reader.make();
            reader.until(|state| state.ready.is_empty() && state.polled_on.len() > before);
            assert!(!reader.polls()[before..].contains(&true));
            assert_eq!(reader.next(), Some(1));
        }
    }
}

#[test]
fn a_reader_that_may_not_block_never_polls_the_upstream() {
    let mut reader = Reader::new(false);
    for _ in 0..10 {
        let woken = reader.times_woken();
        assert!(reader.poll().is_pending());
        reader.until_thread_waits();
        reader.make();
        while reader.times_woken() == woken {
            std::thread::yield_now();
        }
        assert_eq!(reader.poll(), Poll::Ready(Some(1)));
    }
    assert!(!reader.polls().contains(&true));
}

#[test]
fn a_reader_that_is_often_away_leaves_the_upstream_to_the_thread() {
    let mut reader = Reader::new(true);
    reader.queue.away.ns = 2.0 * AWAY_NS;
    for _ in 0..3 {
        assert!(reader.poll().is_pending());
        reader.until_thread_waits();
        reader.make();
        assert_eq!(reader.next(), Some(1));
        reader.queue.away.ns = 2.0 * AWAY_NS;
    }
    assert!(!reader.polls().contains(&true));
}

#[test]
fn items_keep_their_order_while_the_turns_change() {
    let (items, graph) = (2000_u64, Graph::range(0..2000));
    let slow = graph.map_async(|n| async move {
        if n % 7 == 0 {
            tokio::task::yield_now().await;
        }
        Ok::<_, Error>(n)
    });
    let loader = crate::DataLoader::builder(slow).workers(2).build().unwrap();
    let mut next = 0;
    for n in loader.epoch(0) {
        assert_eq!(n.unwrap(), next);
        next += 1;
        if next % 97 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(next, items);
}

#[test]
fn the_upstream_is_dropped_at_its_end_or_with_the_queue() {
    for ended in [false, true] {
        let mut reader = Reader::new(true);
        reader.queue.start();
        reader.make();
        assert_eq!(reader.next(), Some(1));
        assert!(reader.poll().is_pending());
        let upstream = reader.upstream.clone();
        if ended {
            lock(&upstream).ended = true;
            assert_eq!(reader.next(), None);
            assert_eq!(reader.poll(), Poll::Ready(None));
        }
        assert_eq!(lock(&upstream).dropped_on.is_some(), ended);
        let Reader { queue, .. } = reader;
        drop(queue);
        assert!(lock(&upstream).dropped_on.is_some());
    }
}

#[test]
fn an_upstream_that_panics_when_it_is_dropped_at_its_end_costs_no_item() {
    let here = std::thread::current().id();
    let dropped_here = || {
        let mut reader = Reader::new(true);
        lock(&reader.upstream).is_armed = true;
        reader.queue.start();
        reader.make();
        assert_eq!(reader.next(), Some(1));
        assert!(reader.poll().is_pending());
        lock(&reader.upstream).ended = true;
        assert_eq!(reader.next(), None);
        let dropped_on = lock(&reader.upstream).dropped_on;
        dropped_on == Some(here)
    };
    assert!((0..100).any(|_| dropped_here()));
}

#[test]
fn the_thread_goes_on_with_the_graph_of_a_reader_that_may_give_up() {
    let mut reader = Reader::new(true);
    reader.queue.start();
    reader.until_thread_waits();
    reader.poll_upstream();
    // A consumer gives up after several looks at its wait.
    std::thread::sleep(PATIENCE);
    assert!(reader.poll().is_pending());
    reader.until_thread_waits();
    reader.make();
    assert_eq!(reader.next(), Some(1));
}
