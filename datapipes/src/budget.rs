//! The bytes that the edges of an epoch share: what each edge holds, and which parts wait for more.
//!
//! A part of the graph that makes items *reserves* bytes before it is polled, and corrects them to
//! the items' weight once they are there. The bytes are given back when the consumer of the edge
//! has come back for more. The bytes alive are therefore at most the bytes reserved, except for
//! items that turn out larger than expected while they were made at the same time:
//!
//! - each poll that may make an item has a *margin*: a part of the bytes that covers an item much
//!   larger than those before. Polls that get their margin run at the same time as others;
//! - if no margin is left, one poll at a time runs without, so that one item at most exceeds the
//!   limit;
//! - where the largest item is known before, each poll has its bytes, so that no item is larger than
//!   expected;
//! - an item inside a part of which several are made counts until all of them are given, also while
//!   the part waits for room;
//! - if not even the expected bytes are available, the polled part waits. A future that is not
//!   polled makes nothing. A request that has begun already has its expected bytes, and waits for
//!   nobody's bytes, unless items turn out larger meanwhile.
//!
//! An edge keeps within its share, so that no edge takes the bytes of others. For its first part (the
//! head of the line) the inputs of later parts do not count, as long as the whole has room: they may
//! fill the share.
//!
//! The part that the consumer waits for (that head, one item at a time) is polled whatever is held.
//! The head may wait in turn for something that another part has begun and holds: a permit, a lock,
//! a connection. A clock therefore checks whether the consumer waits although
//! nothing moves, and lets one waiting part go on at each of its ticks, until its item is made.
//! Anything that would finish without a limit thus finishes with it. Before that the consumer is
//! asked whether it still waits: while it is busy with something else, nothing exceeds the limit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::task::{Context, Poll, Waker};

use crate::context::Counters;
use crate::sync::lock;

/// Factor by which an item may exceed those before it and still be covered, if several are made in
/// one poll.
pub(crate) const JUMP: usize = 1024;
/// Number of items that are assumed to fit before the first item of an edge is known: the most
/// requests in flight, so that the first round trip is not limited to a few of them. The margin of
/// each poll bounds the bytes then.
const UNKNOWN: usize = 2048;

/// Number of items made or used after which a waiting part checks whether it can go on.
const LOOK: u32 = 16;

/// Ticks of the clock without movement after which a part that has not even begun goes on.
const LONG: u32 = 5;

/// Starts to call [`Budget::tick`] from time to time, until the receiver ends; returns true if it
/// could.
pub(crate) type Clock = fn(Weak<Budget>, mpsc::Receiver<()>) -> bool;

/// The bytes of an epoch.
#[derive(Debug)]
pub(crate) struct Budget {
    /// The whole limit.
    bytes: usize,
    state: Mutex<BudgetState>,
    clock: Clock,
    /// Handle of the clock, set once somebody had to wait; `None` if no clock could be started.
    ticks: OnceLock<Option<mpsc::Sender<()>>>,
}

#[derive(Debug, Default)]
struct BudgetState {
    held: usize,
    /// The most that was held at once.
    most: usize,
    edges: Vec<EdgeBytes>,
    /// True while a poll without a margin runs.
    alone: bool,
    next: u64,
    /// Number of items made or used, wrapping.
    moves: u32,
    /// Value of `moves` at the last tick.
    ticked: u32,
    /// Ticks since then at which the consumer waited.
    still: u32,
    /// Waker of the consumer, since it last found nothing.
    consumer: Option<Waker>,
    /// Credits that may go on until an item is made, whatever is held.
    freed: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct EdgeBytes {
    bytes: usize,
    /// The most bytes at once.
    most: usize,
    /// Bytes of inputs among them.
    inputs: usize,
    /// Credits that wait for bytes of this edge, the oldest first.
    waiting: BTreeMap<u64, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    waker: Waker,
    needs: Needs,
    /// True if it is in the middle of an item, and may hold something that others need.
    begun: bool,
}

/// A request for bytes.
#[derive(Clone, Copy, Debug)]
struct Needs {
    /// Bytes that it has.
    held: usize,
    /// Bytes without which it waits.
    least: usize,
    /// More of them, with which it runs at the same time as others.
    margin: usize,
    /// Bytes that its edge may have, with those it has.
    limit: usize,
}

impl Needs {
    /// Returns two answers: is there room for the least, and for the margin, beside all that others
    /// hold?
    fn room(&self, bytes: usize, edge: usize, all: usize) -> (bool, bool) {
        let (beside, others) = (
            edge.saturating_sub(self.held),
            all.saturating_sub(self.held),
        );
        let room = |of: usize| others.saturating_add(of) <= bytes;
        // If nothing else is at the edge, an item may be larger than its share, if others leave
        // theirs.
        let has_room =
            room(self.least) && (beside.saturating_add(self.least) <= self.limit || beside == 0);
        let fits = self.held >= self.least || has_room;
        (
            fits,
            self.held >= self.margin || (has_room && room(self.margin)),
        )
    }
}

impl Budget {
    /// Makes a budget of this many bytes for this many edges.
    pub(crate) fn new(bytes: usize, edges: usize, clock: Clock) -> Arc<Self> {
        let edges = (0..edges).map(|_| EdgeBytes::default()).collect();
        let state = Mutex::new(BudgetState {
            edges,
            ..BudgetState::default()
        });
        Arc::new(Budget {
            bytes,
            state,
            clock,
            ticks: OnceLock::new(),
        })
    }

    /// Returns the bytes that all edges have together.
    pub(crate) fn limit(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes held now and the most at once: of all edges, and of each.
    pub(crate) fn figures(&self) -> ((usize, usize), Vec<(usize, usize)>) {
        let state = lock(&self.state);
        let edges = state.edges.iter().map(|edge| (edge.bytes, edge.most));
        ((state.held, state.most), edges.collect())
    }

    /// Records that the consumer of the whole finds nothing, and waits.
    pub(crate) fn consumer_waits(&self, cx: &Context<'_>) {
        let mut state = lock(&self.state);
        if !state
            .consumer
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            let old = state.consumer.replace(cx.waker().clone());
            // Dropping the waker may drop a task, and everything that it has.
            drop(state);
            drop(old);
        }
    }

    /// Lets a credit go on if the consumer waits and nothing has moved since the last tick.
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
            // The consumer comes back if it still waits.
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

    /// Returns true if a clock looks after those who wait.
    fn is_watched(self: &Arc<Self>) -> bool {
        let start = || {
            let (send, receive) = mpsc::channel();
            (self.clock)(Arc::downgrade(self), receive).then_some(send)
        };
        self.ticks.get_or_init(start).is_some()
    }
}

impl BudgetState {
    /// Changes the bytes that somebody holds at an edge from the first to the second number.
    fn hold(&mut self, edge: usize, from: usize, to: usize) {
        let edge = &mut self.edges[edge];
        edge.bytes = edge.bytes - from + to;
        edge.most = edge.most.max(edge.bytes);
        self.held = self.held - from + to;
        self.most = self.most.max(self.held);
    }

    /// Returns the wakers of the oldest waiting part of each edge, if it can go on with `bytes` in
    /// all. The caller wakes them after it has released the lock.
    ///
    /// A part may need fewer bytes by now. So it is also woken after every few items, and when its
    /// edge is empty, to check again. It is not woken if nothing `moved`: a part that has just given
    /// up its bytes would wake itself without end.
    fn first(&mut self, bytes: usize, moved: bool) -> Vec<Waker> {
        let (held, alone) = (self.held, self.alone);
        let looks = moved && self.moves.is_multiple_of(LOOK);
        let oldest = |edge: &mut EdgeBytes| {
            let first = edge.waiting.first_entry()?;
            let needs = &first.get().needs;
            let (fits, covered) = needs.room(bytes, edge.bytes, held);
            let goes_on = covered || (fits && !alone) || edge.bytes <= needs.held;
            (goes_on || looks).then(|| first.remove().waker)
        };
        self.edges.iter_mut().filter_map(oldest).collect()
    }

    /// Returns the credit that has waited longest, of those that have `begun` or of all, and
    /// removes it from those that wait.
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

/// Bytes that an edge may have for one of its parts to go on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    /// Three quarters of its share: the rest is left to the first part.
    Most,
    Share,
    /// Share of the part, without what the inputs of other parts take of it: they are not used up
    /// before the first part is done.
    BesideInputs,
}

/// The share of an edge in the bytes.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    budget: Arc<Budget>,
    edge: usize,
    /// Bytes that are this edge's own.
    share: usize,
    /// Margin of a poll that may make an item, in bytes.
    margin: usize,
    /// Weight of an item: the heaviest recent item, 0 before the first.
    seen: Arc<AtomicUsize>,
    /// Bytes of the largest item, if they are known before.
    largest: Option<usize>,
    /// Steps whose items may be heavier than the output.
    inside: Arc<[Inside]>,
}

/// A step of a part that makes items for an edge.
#[derive(Clone, Debug)]
pub(crate) struct Inside {
    pub counters: Arc<Counters>,
    /// Bytes of each of its items, if they are always the same.
    pub exact: Option<usize>,
    /// True if the next step makes several items of one, so that one of this step's items lives on
    /// while the next step's items are given.
    pub is_kept: bool,
}

impl Account {
    /// Makes the account of edge number `edge`, with `pollers` threads that may make items for it
    /// at the same time.
    pub(crate) fn new(
        budget: &Arc<Budget>,
        edge: usize,
        share: usize,
        pollers: usize,
        (seen, largest): (Arc<AtomicUsize>, Option<usize>),
        inside: Vec<Inside>,
    ) -> Self {
        let inside = inside.into();
        Account {
            budget: budget.clone(),
            edge,
            share,
            margin: margin(share, pollers),
            seen,
            largest,
            inside,
        }
    }

    /// Returns the expected bytes of one item while it is made, with those of the item that it is made
    /// of and of the items inside that live on; and the bytes of these last ones.
    fn each(&self) -> (usize, usize) {
        let seen = match self.seen.load(Ordering::Relaxed) {
            0 => (self.share / UNKNOWN).max(1),
            seen => seen,
        };
        let (mut most, mut kept, mut before) = (seen.max(self.largest.unwrap_or(0)), 0usize, 0);
        for step in &*self.inside {
            let weight = self.weight(step);
            most = most.max(kept.saturating_add(before).saturating_add(weight));
            if step.is_kept {
                (kept, before) = (kept.saturating_add(weight), 0);
            } else {
                before = weight;
            }
        }
        (most, kept)
    }

    /// Returns the bytes of an item of a step inside.
    fn weight(&self, step: &Inside) -> usize {
        let recent = || {
            self.largest
                .unwrap_or(0)
                .max(step.counters.weight.load(Ordering::Relaxed))
        };
        step.exact.unwrap_or_else(recent)
    }

    /// Returns the weight of the heaviest recent item; 0 before the first.
    pub(crate) fn heaviest(&self) -> usize {
        self.seen.load(Ordering::Relaxed)
    }

    /// Returns how many items a poll may make.
    fn at_once(&self) -> usize {
        match self.largest {
            // None of them is larger, so that their bytes are reserved before.
            Some(largest) => (self.margin / largest.max(1)).max(1),
            None => at_once(self.margin, &self.seen),
        }
    }

    /// Makes a credit for a part that makes items, or takes them over; without bytes of its own so
    /// far.
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
            kept: 0,
            held: 0,
            alone: false,
            begun: false,
            freed: false,
            waited: false,
        }
    }

    /// Wakes the credit with this number, if it waits.
    pub(crate) fn wake(&self, id: u64) {
        let waiting = lock(&self.budget.state).edges[self.edge]
            .waiting
            .remove(&id);
        if let Some(Waiting { waker, .. }) = waiting {
            waker.wake();
        }
    }

    /// Changes the bytes held from the first to the second number, and those of the input among
    /// them, whatever is available. `alone` ends a poll without a margin. `made` is true if an item
    /// was made.
    fn change(&self, held: (usize, usize), input: (usize, usize), alone: bool, made: bool) {
        let (from, to) = held;
        if from == to && input.0 == input.1 && !alone && !made {
            return;
        }
        let woken = {
            let mut state = lock(&self.budget.state);
            state.moves = state.moves.wrapping_add(made.into());
            state.alone &= !alone;
            state.hold(self.edge, from, to);
            let edge = &mut state.edges[self.edge];
            edge.inputs = edge.inputs - input.0 + input.1;
            if to < from || alone {
                state.first(self.budget.bytes, made)
            } else {
                Vec::new()
            }
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Gives bytes back, and wakes waiting credits even if there are none: the bytes of an item
    /// that was used, or of a credit.
    fn release(&self, bytes: usize, credit: Option<&Credit>) {
        let mut state = lock(&self.budget.state);
        let mut waiting = None;
        match credit {
            Some(credit) => {
                let edge = &mut state.edges[self.edge];
                edge.inputs -= credit.input;
                waiting = edge.waiting.remove(&credit.id);
                state.freed.remove(&credit.id);
                state.alone &= !credit.alone;
            }
            None => state.moves = state.moves.wrapping_add(1),
        }
        state.hold(self.edge, bytes, 0);
        let woken = state.first(self.budget.bytes, credit.is_none());
        drop(state);
        drop(waiting);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Returns the margin of a poll at an edge with this share, if this many threads may poll at once.
pub(crate) fn margin(share: usize, pollers: usize) -> usize {
    share / (2 * pollers.max(1))
}

/// Returns how many items of the expected weight may be made at once with a margin of so many
/// bytes.
pub(crate) fn at_once(margin: usize, seen: &AtomicUsize) -> usize {
    match seen.load(Ordering::Relaxed) {
        0 => 1,
        seen => (margin / seen.saturating_mul(JUMP)).max(1),
    }
}

/// Learns the weight of some items: the heaviest recent one, which is slowly forgotten.
pub(crate) fn learn(seen: &AtomicUsize, items: usize, bytes: usize) {
    if items > 0 {
        let (each, known) = (bytes.div_ceil(items).max(1), seen.load(Ordering::Relaxed));
        seen.store(each.max(known - known / 64), Ordering::Relaxed);
    }
}

/// The part that the consumer of an edge waits for; it may go on whatever is held.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    waits: AtomicBool,
    head: AtomicU64,
}

impl Awaited {
    /// Makes the part with this number the first.
    pub(crate) fn lead(&self, id: u64) {
        self.head.store(id, Ordering::SeqCst);
    }

    /// Records that the consumer waits for the first part.
    pub(crate) fn wait(&self, account: &Account) {
        self.waits.store(true, Ordering::SeqCst);
        account.wake(self.head.load(Ordering::SeqCst));
    }

    /// Records that the consumer waits no more.
    pub(crate) fn clear(&self) {
        self.waits.store(false, Ordering::SeqCst);
    }

    /// Returns true if this part is the first.
    pub(crate) fn leads(&self, id: u64) -> bool {
        self.head.load(Ordering::SeqCst) == id
    }

    /// Returns true if the consumer waits for this part.
    pub(crate) fn is(&self, id: u64) -> bool {
        self.leads(id) && self.waits.load(Ordering::SeqCst)
    }

    /// Records that this part has made something: the consumer waits no more, if it waited for this
    /// part.
    pub(crate) fn made(&self, id: u64) {
        if self.leads(id) {
            self.clear();
        }
    }
}

/// The bytes of a part that makes items. Its drop gives them back.
#[derive(Debug)]
pub(crate) struct Credit {
    account: Account,
    id: u64,
    /// Bytes of the input that is still there, and those that are `kept`.
    input: usize,
    /// Bytes of items inside, of which more output is made. They are also part of what is expected
    /// for an item.
    kept: usize,
    /// All bytes held, including `input`.
    held: usize,
    /// True while a poll without a margin runs.
    alone: bool,
    /// True if it is in the middle of an item.
    begun: bool,
    /// True if it may go on until that item is made, whatever is held.
    freed: bool,
    /// True if it had to wait since it last got bytes.
    waited: bool,
}

impl Credit {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the weight of the heaviest recent item; 0 before the first.
    pub(crate) fn heaviest(&self) -> usize {
        self.account.heaviest()
    }

    /// Reserves the expected weight of an item. If the bytes are not available, the task is woken
    /// when they may be.
    pub(crate) fn reserve(&mut self, cx: &Context<'_>) -> bool {
        let each = self.expected(1);
        self.acquire(cx, each, 0, Limit::Share, self.input)
            .is_some()
    }

    /// Reserves the expected weight of an item, whatever is available.
    pub(crate) fn reserve_anyway(&mut self) {
        self.stop_waiting();
        let least = self.input.saturating_add(self.expected(1));
        self.set(self.held.max(least), self.input);
    }

    /// Gives up waiting for bytes; what is held stays.
    pub(crate) fn stop_waiting(&self) {
        let waiting = lock(&self.account.budget.state).edges[self.account.edge]
            .waiting
            .remove(&self.id);
        drop(waiting);
    }

    /// Sets the bytes of the input, which live until they are used.
    pub(crate) fn set_input(&mut self, bytes: usize) {
        self.set(self.held - self.input + bytes, bytes);
    }

    /// Extends the input to this many bytes in all, before the part has begun: reserves the
    /// expected weight of an item again, if there is room. If not, the credit has nothing but its
    /// input, and waits for more when it is polled.
    pub(crate) fn add_input(&mut self, cx: &Context<'_>, bytes: usize) -> bool {
        self.set(self.held.max(bytes), bytes);
        self.reserve(cx)
    }

    /// Prepares a poll that may make up to `max` items: returns how many it may make, as soon as
    /// there are bytes for one at least. `awaited` is true if somebody waits for this part.
    pub(crate) fn poll_begin(
        &mut self,
        cx: &Context<'_>,
        max: usize,
        limit: Limit,
        awaited: impl FnOnce() -> bool,
    ) -> Poll<usize> {
        let margin = self.account.margin;
        let max = max.min(self.account.at_once());
        let margin = margin.max(self.expected(max));
        if let Some(covered) = self.acquire(cx, self.expected(1), margin, limit, self.input) {
            return Poll::Ready(if covered { max } else { 1 });
        }
        if !awaited() {
            return Poll::Pending;
        }
        self.reserve_anyway();
        Poll::Ready(1)
    }

    /// Reserves the bytes of items that are made elsewhere, or are about to be: ready as soon as
    /// there is room for them, or somebody waits for these. Until then it keeps what it has, since
    /// the items may be there already.
    pub(crate) fn poll_take(
        &mut self,
        cx: &Context<'_>,
        bytes: usize,
        limit: Limit,
        awaited: impl FnOnce() -> bool,
    ) -> Poll<()> {
        // The part that makes the items may hold something that others need.
        self.begun = true;
        let held = self.held;
        if self.acquire(cx, bytes, 0, limit, held).is_some() {
            return Poll::Ready(());
        }
        if !awaited() {
            return Poll::Pending;
        }
        self.stop_waiting();
        self.set(held.max(self.input.saturating_add(bytes)), self.input);
        Poll::Ready(())
    }

    /// Ends a poll that made nothing yet: keeps the expected weight of up to `max` items.
    pub(crate) fn poll_pending(&mut self, max: usize) {
        self.begun = true;
        let expected = self.expected(max);
        self.set(
            self.held.min(self.input.saturating_add(expected)),
            self.input,
        );
    }

    /// Returns the expected bytes of so many items beside what is there.
    fn expected(&self, items: usize) -> usize {
        // Items inside that live on do so once, however many items are made of them.
        let (each, kept) = self.account.each();
        let bytes = each.saturating_sub(kept).saturating_mul(items);
        bytes.saturating_add(kept).saturating_sub(self.kept)
    }

    /// Returns the bytes that are left of an input until all of the output is given, and of items
    /// inside that live as long.
    pub(crate) fn keep(&mut self, input: usize) -> usize {
        (_, self.kept) = self.account.each();
        input.saturating_add(self.kept)
    }

    /// Ends a poll that made items: learns their weight, and parts with their bytes. `input` is the
    /// rest of the input.
    pub(crate) fn give(&mut self, items: usize, bytes: usize, input: usize) -> Hold {
        learn(&self.account.seen, items, bytes);
        let alone = std::mem::take(&mut self.alone);
        let (held, inputs) = ((self.held, input + bytes), (self.input, input));
        self.account.change(held, inputs, alone, true);
        (self.input, self.held) = (input, input);
        (self.begun, self.freed) = (false, false);
        Hold {
            account: Some(self.account.clone()),
            bytes,
        }
    }

    fn set(&mut self, held: usize, input: usize) {
        let alone = std::mem::take(&mut self.alone);
        let (all, inputs) = ((self.held, held), (self.input, input));
        self.account.change(all, inputs, alone, false);
        (self.held, self.input) = (held, input);
    }

    /// Reserves `least` bytes, and a larger `margin` if that is available. Returns true if the margin
    /// was reserved; `None` if the credit has to wait, with no more than the bytes that it `keeps`.
    fn acquire(
        &mut self,
        cx: &Context<'_>,
        least: usize,
        margin: usize,
        limit: Limit,
        keeps: usize,
    ) -> Option<bool> {
        let budget = self.account.budget.clone();
        let mut state = lock(&budget.state);
        let least = self.input.saturating_add(least);
        let margin = least.max(self.input.saturating_add(margin));
        let share = self.account.share;
        let edge = &mut state.edges[self.account.edge];
        let limit = match limit {
            Limit::Most => share - share / 4,
            Limit::Share => share,
            Limit::BesideInputs => share.saturating_add(edge.inputs - self.input),
        };
        let before = edge.waiting.remove(&self.id);
        let needs = Needs {
            held: self.held,
            least,
            margin,
            limit,
        };
        let (fits, covered) = needs.room(budget.bytes, edge.bytes, state.held);
        let alone = fits && !covered && !state.alone;
        self.freed |= state.freed.remove(&self.id);
        // Nobody waits if no clock would notice a wait without end.
        let granted = covered || alone || self.freed || !budget.is_watched();
        let held = match covered {
            true => margin,
            false if granted || fits => least,
            false => keeps,
        };
        self.alone = alone;
        state.alone |= alone;
        state.hold(self.account.edge, self.held, held);
        let lost = held < self.held;
        self.held = held;
        // There may be bytes for the next one, too.
        let waited = std::mem::replace(&mut self.waited, !granted);
        let woken = if lost || (granted && waited) {
            state.first(budget.bytes, false)
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
        // This credit may have been woken, and another one not.
        self.account.release(self.held, Some(self));
    }
}

/// Bytes of items that are there. Its drop gives them back.
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
mod tests;
