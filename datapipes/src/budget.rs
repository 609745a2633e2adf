//! The bytes that the edges of an epoch share: who has how many of them, and who waits for some.
//!
//! A part of the graph that makes items *reserves* bytes before it is polled, and corrects them to what the items weigh
//! once they are there. They are given back when the consumer of the edge has come back for more. So what is alive is at
//! most what was reserved, but for items that turn out larger than was thought while they were made at the same time:
//!
//! - each poll that may make an item has a *stake*: a part of the bytes that covers an item much larger than those before.
//!   Polls that get theirs run at the same time as others;
//! - where no stake is left, one poll at a time runs without, so that one item at most is above;
//! - where not even what is known can be had, what is polled waits. A future that is not polled makes nothing.
//!
//! Whoever the consumer waits for is polled whatever is held (the head of the line, one item at a time); so nothing stands still.
//! If it waits in turn for what another has begun and holds (a permit, a connection), that one goes on after a while.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::context::Counters;
use crate::sync::lock;

/// An item may be so many times as large as those before it and still be covered, where several are made in one poll.
pub(crate) const JUMP: usize = 1024;
/// Before the first item of an edge is known, it is taken for one of so many that fit.
const UNKNOWN: usize = 32;

/// The bytes of an epoch.
#[derive(Debug)]
pub(crate) struct Budget {
    /// All that was promised.
    bytes: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: usize,
    edges: Vec<Held>,
    /// Whether a poll without a stake runs.
    alone: bool,
    next: u64,
    /// When items were used last, or somebody went on because nothing had moved for long.
    moved: Option<Instant>,
}

#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    /// Who waits for bytes of this edge, the oldest first.
    waiting: BTreeMap<u64, Waker>,
}

impl Budget {
    /// So many bytes for so many edges.
    pub(crate) fn new(bytes: usize, edges: usize) -> Arc<Self> {
        let edges = (0..edges).map(|_| Held::default()).collect();
        Arc::new(Budget { bytes, state: Mutex::new(State { edges, ..State::default() }) })
    }
}

impl State {
    /// The oldest who waits at each edge, to be woken outside of the lock.
    fn first(&mut self) -> Vec<Waker> {
        if self.edges.iter().all(|edge| edge.waiting.is_empty()) {
            return Vec::new();
        }
        self.edges.iter_mut().filter_map(|edge| edge.waiting.pop_first()).map(|(_, waker)| waker).collect()
    }
}

/// What an edge has of the bytes.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    budget: Arc<Budget>,
    edge: usize,
    /// Bytes that are this edge's own.
    share: usize,
    /// What a poll that may make an item puts at stake.
    stake: usize,
    /// What an item weighs: the heaviest of late, 0 before the first.
    seen: Arc<AtomicUsize>,
    /// The nodes inside, whose items may be heavier than what comes out in the end.
    inside: Arc<[Arc<Counters>]>,
}

impl Account {
    /// Of edge number `edge`, with `pollers` threads that may make items for it at the same time.
    pub(crate) fn new(
        budget: &Arc<Budget>,
        edge: usize,
        share: usize,
        pollers: usize,
        seen: Arc<AtomicUsize>,
        inside: Vec<Arc<Counters>>,
    ) -> Self {
        let inside = inside.into();
        Account { budget: budget.clone(), edge, share, stake: stake(share, pollers), seen, inside }
    }

    /// What one item is taken to weigh.
    fn each(&self) -> usize {
        let seen = match self.seen.load(Ordering::Relaxed) {
            0 => (self.share / UNKNOWN).max(1),
            seen => seen,
        };
        let inside = self.inside.iter().map(|counters| counters.weight.load(Ordering::Relaxed));
        inside.fold(seen, usize::max)
    }

    /// Somebody who makes items, or takes them over; without bytes of its own so far.
    pub(crate) fn credit(&self) -> Credit {
        let mut state = lock(&self.budget.state);
        state.next += 1;
        Credit { id: state.next, account: self.clone(), input: 0, held: 0, alone: false }
    }

    /// Wakes who has this number, if it waits.
    pub(crate) fn wake(&self, id: u64) {
        let waker = lock(&self.budget.state).edges[self.edge].waiting.remove(&id);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Changes what is held from `from` to `to`, whatever there is. `alone` ends a poll without a stake.
    fn change(&self, from: usize, to: usize, alone: bool) {
        if from == to && !alone {
            return;
        }
        let woken = {
            let mut state = lock(&self.budget.state);
            state.alone &= !alone;
            state.held = state.held - from + to;
            let edge = &mut state.edges[self.edge];
            edge.bytes = edge.bytes - from + to;
            if to < from || alone { state.first() } else { Vec::new() }
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Gives bytes back, `used` at this time, and wakes who waits even if there are none.
    fn release(&self, bytes: usize, alone: bool, used: Option<Instant>) {
        let woken = {
            let mut state = lock(&self.budget.state);
            state.alone &= !alone;
            state.moved = used.or(state.moved);
            state.held -= bytes;
            state.edges[self.edge].bytes -= bytes;
            state.first()
        };
        woken.into_iter().for_each(Waker::wake);
    }
}

/// What a poll puts at stake at an edge with such a share, where so many threads may poll at once.
pub(crate) fn stake(share: usize, pollers: usize) -> usize {
    share / (2 * pollers.max(1))
}

/// How many items whose weight is as those before may be made at once with so many bytes at stake.
pub(crate) fn at_once(stake: usize, seen: &AtomicUsize) -> usize {
    match seen.load(Ordering::Relaxed) {
        0 => 1,
        seen => (stake / seen.saturating_mul(JUMP)).max(1),
    }
}

/// Learns what some items weigh: the heaviest of late, which is slowly forgotten.
pub(crate) fn learn(seen: &AtomicUsize, items: usize, bytes: usize) {
    if items > 0 {
        let (each, known) = (bytes.div_ceil(items).max(1), seen.load(Ordering::Relaxed));
        seen.store(each.max(known - known / 64), Ordering::Relaxed);
    }
}

/// Who the consumer of an edge waits for; it may go on whatever is held.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    waits: AtomicBool,
    head: AtomicU64,
}

impl Awaited {
    /// What has this number comes first.
    pub(crate) fn lead(&self, id: u64) {
        self.head.store(id, Ordering::SeqCst);
    }

    /// The consumer waits for what comes first.
    pub(crate) fn wait(&self, account: &Account) {
        self.waits.store(true, Ordering::SeqCst);
        account.wake(self.head.load(Ordering::SeqCst));
    }

    /// It waits no more.
    pub(crate) fn clear(&self) {
        self.waits.store(false, Ordering::SeqCst);
    }

    /// Whether this one comes first.
    pub(crate) fn leads(&self, id: u64) -> bool {
        self.head.load(Ordering::SeqCst) == id
    }

    /// Whether the consumer waits for this one.
    pub(crate) fn is(&self, id: u64) -> bool {
        self.leads(id) && self.waits.load(Ordering::SeqCst)
    }

    /// This one has made something: the consumer waits no more, if it did for this.
    pub(crate) fn made(&self, id: u64) {
        if self.leads(id) {
            self.clear();
        }
    }
}

/// The bytes of somebody who makes items. Dropped, it gives them back.
#[derive(Debug)]
pub(crate) struct Credit {
    account: Account,
    id: u64,
    /// What went in, and is still there.
    input: usize,
    /// All that it has, `input` with it.
    held: usize,
    /// Whether a poll runs that has no stake.
    alone: bool,
}

impl Credit {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Reserves what an item is taken to weigh. Where that is not there, the task is woken when it may be.
    pub(crate) fn reserve(&mut self, cx: &Context<'_>) -> bool {
        self.acquire(cx, self.account.each(), 0, self.account.share).is_some()
    }

    /// The same, whatever there is.
    pub(crate) fn reserve_anyway(&mut self) {
        self.stop_waiting();
        self.set(self.input.saturating_add(self.account.each()));
    }

    /// The same, if nobody has used an item for so long.
    pub(crate) fn reserve_if_stalled(&mut self, long: Duration) -> bool {
        let now = Instant::now();
        {
            let mut state = lock(&self.account.budget.state);
            if state.moved.is_some_and(|moved| now.duration_since(moved) < long) {
                return false;
            }
            state.moved = Some(now);
        }
        self.reserve_anyway();
        true
    }

    fn stop_waiting(&self) {
        lock(&self.account.budget.state).edges[self.account.edge].waiting.remove(&self.id);
    }

    /// Has bytes of input, which live until they are used.
    pub(crate) fn set_input(&mut self, bytes: usize) {
        let held = self.held - self.input + bytes;
        self.input = bytes;
        self.set(held);
    }

    /// Before a poll that may make up to `max` items: how many it may make, as soon as there are bytes for one at least.
    /// `all` says whether it may use all of its edge's share; `awaited`, whether somebody waits for just this.
    pub(crate) fn poll_begin(
        &mut self,
        cx: &Context<'_>,
        max: usize,
        all: bool,
        awaited: impl FnOnce() -> bool,
    ) -> Poll<usize> {
        let Account { share, stake, .. } = self.account;
        let limit = if all { share } else { share - share / 4 };
        let (each, max) = (self.account.each(), max.min(at_once(stake, &self.account.seen)));
        if let Some(covered) = self.acquire(cx, each, stake.max(each.saturating_mul(max)), limit) {
            return Poll::Ready(if covered { max } else { 1 });
        }
        if !awaited() {
            return Poll::Pending;
        }
        self.stop_waiting();
        self.set(self.held.max(self.input.saturating_add(each)));
        Poll::Ready(1)
    }

    /// Before items are taken over that weigh so much: ready as soon as there is room for them, or somebody waits for just
    /// these.
    pub(crate) fn poll_take(
        &mut self,
        cx: &Context<'_>,
        bytes: usize,
        awaited: impl FnOnce() -> bool,
    ) -> Poll<()> {
        let limit = self.account.share;
        if self.acquire(cx, bytes, 0, limit).is_some() || awaited() {
            self.stop_waiting();
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// After a poll that made nothing yet: keeps what up to `max` items are taken to weigh.
    pub(crate) fn poll_pending(&mut self, max: usize) {
        self.set(self.held.min(self.input.saturating_add(self.account.each().saturating_mul(max))));
    }

    /// After a poll that made items: learns what they weigh, and parts with that. `input` is what is left of what went in.
    pub(crate) fn give(&mut self, items: usize, bytes: usize, input: usize) -> Hold {
        learn(&self.account.seen, items, bytes);
        self.set(input + bytes);
        (self.input, self.held) = (input, input);
        Hold { account: self.account.clone(), bytes }
    }

    fn set(&mut self, held: usize) {
        let alone = std::mem::take(&mut self.alone);
        self.account.change(self.held, held, alone);
        self.held = held;
    }

    /// Reserves `least` bytes, and a larger `stake` if that is there. Says whether the stake was; `None` if it has to wait,
    /// with nothing but its input.
    fn acquire(&mut self, cx: &Context<'_>, least: usize, stake: usize, limit: usize) -> Option<bool> {
        let budget = self.account.budget.clone();
        let mut state = lock(&budget.state);
        let least = self.input.saturating_add(least);
        let stake = least.max(self.input.saturating_add(stake));
        let edge = &mut state.edges[self.account.edge];
        let waited = edge.waiting.remove(&self.id).is_some();
        let (beside, others) = (edge.bytes - self.held, state.held - self.held);
        let room = |bytes: usize| others.saturating_add(bytes) <= budget.bytes;
        // Where nothing else is at the edge, an item may be larger than its share, if others leave theirs.
        let fits = room(least) && (beside.saturating_add(least) <= limit || beside == 0);
        let covered = fits && room(stake);
        let alone = fits && !covered && !state.alone;
        let held = match (covered, alone) {
            (true, _) => stake,
            (_, true) => least,
            _ => self.input,
        };
        self.alone = alone;
        state.alone |= alone;
        state.edges[self.account.edge].bytes = beside + held;
        state.held = others + held;
        let freed = held < self.held;
        self.held = held;
        let granted = covered || alone;
        // There may be some for the next one, too.
        let woken = if freed || (granted && waited) { state.first() } else { Vec::new() };
        if !granted {
            state.edges[self.account.edge].waiting.insert(self.id, cx.waker().clone());
        }
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        granted.then_some(covered)
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        self.stop_waiting();
        // It may have been woken, and somebody else not.
        self.account.release(self.held, self.alone, None);
    }
}

/// Bytes of items that are there. Dropped, they are given back.
#[derive(Debug)]
pub(crate) struct Hold {
    account: Account,
    bytes: usize,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.account.release(self.bytes, false, Some(Instant::now()));
    }
}
