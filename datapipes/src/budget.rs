//! The bytes that the edges of an epoch share: who has how many of them, and who waits for some.
//!
//! A part of the graph that makes items *reserves* bytes before it is polled, and corrects them to
//! what the items weigh once they are there. They are given back when the consumer of the edge has
//! come back for more. So what is alive is at most what was reserved, but for items that turn out
//! larger than was thought while they were made at the same time:
//!
//! - each poll that may make an item has a *stake*: a part of the bytes that covers an item much
//!   larger than those before. Polls that get theirs run at the same time as others;
//! - where no stake is left, one poll at a time runs without, so that one item at most is above;
//! - where not even what is known can be had, what is polled waits. A future that is not polled
//!   makes nothing. Who has what is known already, as a request has that has begun, waits for
//!   nobody's bytes; only where items turn out larger meanwhile it does.
//!
//! Whoever the consumer waits for is polled whatever is held (the head of the line, one item at a
//! time). That head may wait in turn for what another has begun and holds: a permit, a lock, a
//! connection. So a clock of its own looks whether the consumer waits although nothing moves, and
//! lets one go on at each of its ticks, until its item is made. So whatever would come to its end
//! without a bound does so with it. It is asked whether it still waits before that: one that is
//! busy with something else gets nothing above the bound.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::task::{Context, Poll, Waker};

use crate::context::Counters;
use crate::sync::lock;

/// An item may be so many times as large as those before it and still be covered, where several are
/// made in one poll.
pub(crate) const JUMP: usize = 1024;
/// Before the first item of an edge is known, it is taken for one of so many that fit: as many as
/// there are requests in flight at most, so that a first round trip is not waited for by a few of
/// them alone. What bounds the bytes then is the stake of each poll.
const UNKNOWN: usize = 2048;

/// Whoever waits looks whether it can go on after so many items that were made or used.
const LOOK: u32 = 16;

/// So many ticks of the clock without movement, and one that has not even begun goes on.
const LONG: u32 = 5;

/// Starts to call [`Budget::tick`] from time to time, until the receiver ends; says whether it
/// could.
pub(crate) type Clock = fn(Weak<Budget>, mpsc::Receiver<()>) -> bool;

/// The bytes of an epoch.
#[derive(Debug)]
pub(crate) struct Budget {
    /// All that was promised.
    bytes: usize,
    state: Mutex<State>,
    clock: Clock,
    /// There once somebody had to wait; `None` in it where no clock could be started.
    ticks: OnceLock<Option<mpsc::Sender<()>>>,
}

#[derive(Debug, Default)]
struct State {
    held: usize,
    edges: Vec<Held>,
    /// Whether a poll without a stake runs.
    alone: bool,
    next: u64,
    /// Items that were made or used, modulo some.
    moves: u32,
    /// How many there were at the last tick.
    ticked: u32,
    /// Ticks since then at which the consumer waited.
    still: u32,
    /// The consumer, since it last found nothing.
    consumer: Option<Waker>,
    /// Who may go on until an item is made, whatever is held.
    freed: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    /// Who waits for bytes of this edge, the oldest first.
    waiting: BTreeMap<u64, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    waker: Waker,
    needs: Needs,
    /// Whether it is in the middle of an item, and may hold what others need.
    begun: bool,
}

/// What somebody asks for.
#[derive(Clone, Copy, Debug)]
struct Needs {
    /// What it has.
    held: usize,
    /// Bytes without which it waits.
    least: usize,
    /// More of them, with which it runs at the same time as others.
    stake: usize,
    /// What its edge may have with it.
    limit: usize,
}

impl Needs {
    /// Whether there is room for the least, and for the stake, beside all that others hold.
    fn room(&self, bytes: usize, edge: usize, all: usize) -> (bool, bool) {
        let (beside, others) = (
            edge.saturating_sub(self.held),
            all.saturating_sub(self.held),
        );
        let room = |of: usize| others.saturating_add(of) <= bytes;
        // Where nothing else is at the edge, an item may be larger than its share, if others leave
        // theirs.
        let has_room =
            room(self.least) && (beside.saturating_add(self.least) <= self.limit || beside == 0);
        let fits = self.held >= self.least || has_room;
        (
            fits,
            self.held >= self.stake || (has_room && room(self.stake)),
        )
    }
}

impl Budget {
    /// So many bytes for so many edges.
    pub(crate) fn new(bytes: usize, edges: usize, clock: Clock) -> Arc<Self> {
        let edges = (0..edges).map(|_| Held::default()).collect();
        let state = Mutex::new(State {
            edges,
            ..State::default()
        });
        Arc::new(Budget {
            bytes,
            state,
            clock,
            ticks: OnceLock::new(),
        })
    }

    /// The consumer of the whole finds nothing, and waits.
    pub(crate) fn consumer_waits(&self, cx: &Context<'_>) {
        let mut state = lock(&self.state);
        if !state
            .consumer
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            let old = state.consumer.replace(cx.waker().clone());
            // To drop it may be to drop a task, and all that this has.
            drop(state);
            drop(old);
        }
    }

    /// Lets somebody go on where the consumer waits and nothing has moved since the last tick.
    pub(crate) fn tick(&self) {
        let woken = {
            let mut state = lock(&self.state);
            let state = &mut *state;
            if std::mem::replace(&mut state.ticked, state.moves) != state.moves {
                state.still = 0;
                return;
            }
            if state.edges.iter().all(|edge| edge.waiting.is_empty()) {
                return;
            }
            // It comes back if it still waits.
            let Some(consumer) = state.consumer.take() else {
                return;
            };
            let freed = match state.still {
                0 => None,
                still => state.oldest(!still.is_multiple_of(LONG)),
            };
            state.still += 1;
            state.freed.extend(freed.as_ref().map(|(id, _)| *id));
            [Some(consumer), freed.map(|(_, waker)| waker)]
        };
        woken.into_iter().flatten().for_each(Waker::wake);
    }

    /// Whether there is somebody who looks after those who wait.
    fn is_watched(self: &Arc<Self>) -> bool {
        let start = || {
            let (send, receive) = mpsc::channel();
            (self.clock)(Arc::downgrade(self), receive).then_some(send)
        };
        self.ticks.get_or_init(start).is_some()
    }
}

impl State {
    /// The oldest who waits at each edge, if it can go on with so many `bytes` in all; to be woken
    /// outside of the lock. What it needs may have become less meanwhile: so it looks itself from
    /// time to time, and where nothing else is at its edge.
    fn first(&mut self, bytes: usize) -> Vec<Waker> {
        let (held, alone) = (self.held, self.alone);
        let looks = self.moves.is_multiple_of(LOOK);
        let oldest = |edge: &mut Held| {
            let first = edge.waiting.first_entry()?;
            let needs = &first.get().needs;
            let (fits, covered) = needs.room(bytes, edge.bytes, held);
            let goes_on = covered || (fits && !alone) || edge.bytes <= needs.held;
            (goes_on || looks).then(|| first.remove().waker)
        };
        self.edges.iter_mut().filter_map(oldest).collect()
    }

    /// Who has waited longest, of those that have `begun` or of all; it waits no more.
    fn oldest(&mut self, begun: bool) -> Option<(u64, Waker)> {
        let edges = self.edges.iter_mut().filter_map(|edge| {
            let id = edge
                .waiting
                .iter()
                .find(|(_, of)| of.begun || !begun)
                .map(|(id, _)| *id)?;
            Some((id, &mut edge.waiting))
        });
        let (id, waiting) = edges.min_by_key(|(id, _)| *id)?;
        waiting.remove(&id).map(|of| (id, of.waker))
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
        Account {
            budget: budget.clone(),
            edge,
            share,
            stake: stake(share, pollers),
            seen,
            inside,
        }
    }

    /// What one item is taken to weigh.
    fn each(&self) -> usize {
        let seen = match self.seen.load(Ordering::Relaxed) {
            0 => (self.share / UNKNOWN).max(1),
            seen => seen,
        };
        let inside = self
            .inside
            .iter()
            .map(|counters| counters.weight.load(Ordering::Relaxed));
        inside.fold(seen, usize::max)
    }

    /// Somebody who makes items, or takes them over; without bytes of its own so far.
    pub(crate) fn credit(&self) -> Credit {
        let mut state = lock(&self.budget.state);
        state.next += 1;
        let id = state.next;
        drop(state);
        let account = self.clone();
        Credit {
            id,
            account,
            input: 0,
            held: 0,
            alone: false,
            begun: false,
            freed: false,
            waited: false,
        }
    }

    /// Wakes who has this number, if it waits.
    pub(crate) fn wake(&self, id: u64) {
        let waiting = lock(&self.budget.state).edges[self.edge]
            .waiting
            .remove(&id);
        if let Some(Waiting { waker, .. }) = waiting {
            waker.wake();
        }
    }

    /// Changes what is held from `from` to `to`, whatever there is. `alone` ends a poll without a
    /// stake. `made` says whether that is for an item that is there now.
    fn change(&self, from: usize, to: usize, alone: bool, made: bool) {
        if from == to && !alone && !made {
            return;
        }
        let woken = {
            let mut state = lock(&self.budget.state);
            state.moves = state.moves.wrapping_add(made.into());
            state.alone &= !alone;
            state.held = state.held - from + to;
            let edge = &mut state.edges[self.edge];
            edge.bytes = edge.bytes - from + to;
            if to < from || alone {
                state.first(self.budget.bytes)
            } else {
                Vec::new()
            }
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Gives bytes back, and wakes who waits even if there are none: those of an item that was
    /// used, or those of a credit.
    fn release(&self, bytes: usize, credit: Option<(u64, bool)>) {
        let mut state = lock(&self.budget.state);
        let mut waiting = None;
        match credit {
            Some((id, alone)) => {
                waiting = state.edges[self.edge].waiting.remove(&id);
                state.freed.remove(&id);
                state.alone &= !alone;
            }
            None => state.moves = state.moves.wrapping_add(1),
        }
        state.held -= bytes;
        state.edges[self.edge].bytes -= bytes;
        let woken = state.first(self.budget.bytes);
        drop(state);
        drop(waiting);
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
    /// Whether it is in the middle of an item.
    begun: bool,
    /// Whether it may go on until that is made, whatever is held.
    freed: bool,
    /// Whether it had to wait since it last got bytes.
    waited: bool,
}

impl Credit {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Reserves what an item is taken to weigh. Where that is not there, the task is woken when it
    /// may be.
    pub(crate) fn reserve(&mut self, cx: &Context<'_>) -> bool {
        self.acquire(cx, self.account.each(), 0, self.account.share)
            .is_some()
    }

    /// The same, whatever there is.
    pub(crate) fn reserve_anyway(&mut self) {
        self.stop_waiting();
        self.set(
            self.held
                .max(self.input.saturating_add(self.account.each())),
        );
    }

    fn stop_waiting(&self) {
        let waiting = lock(&self.account.budget.state).edges[self.account.edge]
            .waiting
            .remove(&self.id);
        drop(waiting);
    }

    /// Has bytes of input, which live until they are used.
    pub(crate) fn set_input(&mut self, bytes: usize) {
        let held = self.held - self.input + bytes;
        self.input = bytes;
        self.set(held);
    }

    /// There is more of its input, so many bytes in all, before it has begun: reserves what an item
    /// is taken to weigh again, if there is room. If not it has nothing but its input, and waits
    /// for more when it is polled.
    pub(crate) fn add_input(&mut self, cx: &Context<'_>, bytes: usize) -> bool {
        self.input = bytes;
        self.set(self.held.max(bytes));
        self.reserve(cx)
    }

    /// Before a poll that may make up to `max` items: how many it may make, as soon as there are
    /// bytes for one at least. `all` says whether it may use all of its edge's share; `awaited`,
    /// whether somebody waits for just this.
    pub(crate) fn poll_begin(
        &mut self,
        cx: &Context<'_>,
        max: usize,
        all: bool,
        awaited: impl FnOnce() -> bool,
    ) -> Poll<usize> {
        let Account { share, stake, .. } = self.account;
        let limit = if all { share } else { share - share / 4 };
        let (each, max) = (
            self.account.each(),
            max.min(at_once(stake, &self.account.seen)),
        );
        if let Some(covered) = self.acquire(cx, each, stake.max(each.saturating_mul(max)), limit) {
            return Poll::Ready(if covered { max } else { 1 });
        }
        if !awaited() {
            return Poll::Pending;
        }
        self.reserve_anyway();
        Poll::Ready(1)
    }

    /// Before items are taken over that weigh so much: ready as soon as there is room for them, or
    /// somebody waits for just these.
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
        self.begun = true;
        self.set(
            self.held.min(
                self.input
                    .saturating_add(self.account.each().saturating_mul(max)),
            ),
        );
    }

    /// After a poll that made items: learns what they weigh, and parts with that. `input` is what
    /// is left of what went in.
    pub(crate) fn give(&mut self, items: usize, bytes: usize, input: usize) -> Hold {
        learn(&self.account.seen, items, bytes);
        let alone = std::mem::take(&mut self.alone);
        self.account.change(self.held, input + bytes, alone, true);
        (self.input, self.held) = (input, input);
        (self.begun, self.freed) = (false, false);
        Hold {
            account: Some(self.account.clone()),
            bytes,
        }
    }

    fn set(&mut self, held: usize) {
        let alone = std::mem::take(&mut self.alone);
        self.account.change(self.held, held, alone, false);
        self.held = held;
    }

    /// Reserves `least` bytes, and a larger `stake` if that is there. Says whether the stake was;
    /// `None` if it has to wait.
    fn acquire(
        &mut self,
        cx: &Context<'_>,
        least: usize,
        stake: usize,
        limit: usize,
    ) -> Option<bool> {
        let budget = self.account.budget.clone();
        let mut state = lock(&budget.state);
        let least = self.input.saturating_add(least);
        let stake = least.max(self.input.saturating_add(stake));
        let edge = &mut state.edges[self.account.edge];
        let before = edge.waiting.remove(&self.id);
        let needs = Needs {
            held: self.held,
            least,
            stake,
            limit,
        };
        let (fits, covered) = needs.room(budget.bytes, edge.bytes, state.held);
        let alone = fits && !covered && !state.alone;
        self.freed |= state.freed.remove(&self.id);
        // Nobody waits where nobody would see that it waits for ever.
        let granted = covered || alone || self.freed || !budget.is_watched();
        let held = match covered {
            true => stake,
            false if granted || fits => least,
            // With nothing but its input.
            false => self.input,
        };
        self.alone = alone;
        state.alone |= alone;
        let edge = &mut state.edges[self.account.edge];
        edge.bytes = edge.bytes - self.held + held;
        state.held = state.held - self.held + held;
        let lost = held < self.held;
        self.held = held;
        // There may be some for the next one, too.
        let waited = std::mem::replace(&mut self.waited, !granted);
        let woken = if lost || (granted && waited) {
            state.first(budget.bytes)
        } else {
            Vec::new()
        };
        if !granted {
            let waiting = Waiting {
                waker: cx.waker().clone(),
                needs: Needs { held, ..needs },
                begun: self.begun,
            };
            state.edges[self.account.edge]
                .waiting
                .insert(self.id, waiting);
        }
        drop(state);
        drop(before);
        woken.into_iter().for_each(Waker::wake);
        granted.then_some(covered)
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        // It may have been woken, and somebody else not.
        self.account.release(self.held, Some((self.id, self.alone)));
    }
}

/// Bytes of items that are there. Dropped, they are given back.
#[derive(Debug)]
pub(crate) struct Hold {
    /// `None` once another has its bytes.
    account: Option<Account>,
    bytes: usize,
}

impl Hold {
    /// Takes over the bytes of another of the same edge.
    pub(crate) fn join(&mut self, mut other: Hold) {
        self.bytes += other.bytes;
        other.account = None;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            account.release(self.bytes, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn account(budget: &Arc<Budget>, edge: usize, seen: usize) -> Account {
        Account::new(
            budget,
            edge,
            8 * MIB,
            1,
            Arc::new(AtomicUsize::new(seen)),
            Vec::new(),
        )
    }

    fn cx() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    /// A request of 1 MiB that has begun, when items turned out as large as all there is and others
    /// have taken the rest.
    fn begun(budget: &Arc<Budget>) -> (Credit, Hold) {
        let account = account(budget, 0, MIB);
        let (mut large, mut begun) = (account.credit(), account.credit());
        assert!(large.reserve(&cx()) && begun.reserve(&cx()));
        assert!(begun.poll_begin(&cx(), 1, true, || false).is_ready());
        begun.poll_pending(1);
        assert!(large.poll_begin(&cx(), 1, true, || false).is_ready());
        (begun, large.give(1, 16 * MIB, 0))
    }

    fn may_go_on(credit: &mut Credit) -> bool {
        credit.poll_begin(&cx(), 1, true, || false).is_ready()
    }

    #[test]
    fn who_has_begun_goes_on_where_the_consumer_waits_and_nothing_moves() {
        let budget = Budget::new(16 * MIB, 1, |_, _| true);
        let (mut credit, held) = begun(&budget);
        assert!(!may_go_on(&mut credit));
        // Since then something has moved.
        budget.consumer_waits(&cx());
        budget.tick();
        assert!(!may_go_on(&mut credit));
        // It is asked whether it still waits, and does.
        budget.tick();
        assert!(!may_go_on(&mut credit));
        budget.consumer_waits(&cx());
        budget.tick();
        assert!(may_go_on(&mut credit));
        // In as many polls as that takes, until it is made.
        credit.poll_pending(1);
        assert!(may_go_on(&mut credit));
        drop(credit.give(1, 16 * MIB, 0));
        assert!(!may_go_on(&mut credit));
        drop(held);
        assert!(may_go_on(&mut credit));
    }

    #[test]
    fn items_that_were_joined_give_back_the_bytes_of_all() {
        let budget = Budget::new(16 * MIB, 1, |_, _| true);
        let held = || lock(&budget.state).held;
        let mut credit = account(&budget, 0, MIB).credit();
        let mut first = credit.give(1, 3 * MIB, 0);
        first.join(credit.give(1, 5 * MIB, 0));
        assert_eq!(held(), 8 * MIB);
        drop(first);
        assert_eq!(held(), 0);
    }

    #[test]
    fn nobody_goes_above_while_the_consumer_is_busy() {
        let budget = Budget::new(16 * MIB, 1, |_, _| true);
        let (mut credit, _held) = begun(&budget);
        assert!(!may_go_on(&mut credit));
        // It found nothing once, and has not come back.
        budget.consumer_waits(&cx());
        for _ in 0..100 {
            budget.tick();
        }
        assert!(!may_go_on(&mut credit));
    }

    #[test]
    fn nobody_waits_where_no_clock_can_be_started() {
        let budget = Budget::new(16 * MIB, 1, |_, _| false);
        let (mut credit, _held) = begun(&budget);
        assert!(may_go_on(&mut credit));
    }

    #[test]
    fn what_has_not_begun_goes_on_too_after_a_longer_time() {
        let budget = Budget::new(16 * MIB, 1, |_, _| true);
        let (_begun, _held) = begun(&budget);
        let mut credit = account(&budget, 0, MIB).credit();
        let mut ticks = 0;
        while !may_go_on(&mut credit) {
            ticks += 1;
            budget.consumer_waits(&cx());
            budget.tick();
        }
        assert_eq!(ticks, 2 + LONG as usize);
    }

    #[test]
    fn a_request_that_has_its_bytes_is_not_suspended_for_want_of_more() {
        let budget = Budget::new(16 * MIB, 2, |_, _| true);
        let mut credit = account(&budget, 0, MIB).credit();
        assert!(credit.reserve(&cx()));
        // Everything else is taken, and there is more than that.
        let mut other = account(&budget, 1, MIB).credit();
        assert!(other.reserve(&cx()));
        let _held = other.give(1, 20 * MIB, 0);
        for _ in 0..3 {
            assert!(may_go_on(&mut credit));
            credit.poll_pending(1);
        }
    }
}
