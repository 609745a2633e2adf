//! The parts of running epochs that share the workers of one listener: who lets the next worker in,
//! and who hands one over.
//!
//! A worker works for one part of one epoch at a time. It is handed over by the end of its
//! connection: its machine starts the process again, which connects anew, and whoever is first in
//! line lets it in. So nothing moves between threads, and a part of another loader begins in a
//! process that has seen no other.
//!
//! - With equal needs the numbers of workers differ by one at most.
//! - A part whose epoch has ended, and that waits for the next one, hands over all.
//! - A part for which nothing could be done for some time, mostly because the consumer takes nothing,
//!   keeps one, which notices when the consumer goes on.
//! - Where there are fewer workers than parts, they take turns. A turn begins when the worker has made
//!   the part, and is five times as long as it takes to hand a worker over, but nobody waits for all of
//!   its `Remote::wait` because of turns. A part that loses its worker in the middle of its turn is the
//!   first in line for the rest of it.
//! - A part that takes long to make, maybe for ever, has half of the time for it that others wait, and
//!   three quarters once that was not enough.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;

use super::Rules;

/// Time that a part keeps its only worker while another part has none: so many times as long as a
/// worker recently took to start again and to make another part, within limits.
const TURN: u32 = 5;
const SHORTEST_TURN: Duration = Duration::from_millis(250);
const LONGEST_TURN: Duration = Duration::from_secs(3);
/// The same for a part that has nothing to do for it.
const QUIET_TURN: Duration = Duration::from_millis(100);
/// Time in which a worker that was handed over should be there again.
const ON_THE_WAY: Duration = Duration::from_secs(5);

/// Need of a part for workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// Has no epoch.
    Nothing,
    /// Has workers, and nothing could be done for some time.
    One,
    /// Has work.
    Share,
}

/// Workers of a part, and its need.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Standing {
    /// Number of connected workers.
    pub workers: usize,
    /// Number of them that have made the part.
    pub ready: usize,
    /// Greatest number of workers.
    pub most: usize,
    pub need: Need,
}

/// The parts that share a listener.
#[derive(Default)]
pub(super) struct Sharing {
    next: u64,
    parts: BTreeMap<u64, Part>,
    moves: Vec<Move>,
    /// Times when workers that were handed over had left a part, until some come.
    left: VecDeque<Instant>,
    /// Recent time until they come.
    restart: Duration,
    /// The last worker that could not work, by its number if it was let in, and the reason.
    pub(super) refused: Option<(u64, String)>,
    /// Crashes of workers, as their machines report: the last of them.
    crashes: VecDeque<(u64, String)>,
}

/// Number of crashes that are remembered.
const CRASHES: usize = 1024;

struct Part {
    rules: Rules,
    /// Time without a worker after which it fails.
    wait: Duration,
    standing: Standing,
    /// Time of its last change from no workers to some, or back; or time when its turn began.
    since: Instant,
    /// Longest recent time in which a worker made it, or did not manage to.
    making: Option<Duration>,
    /// Length of the part of its turn that was over when it lost its worker.
    used: Option<Duration>,
    waker: Option<Waker>,
}

impl Part {
    /// Returns its place among parts with the same need and equally many workers.
    fn place(&self) -> impl Ord {
        (self.used.is_none(), self.since)
    }

    /// Returns the time in which a worker may make it, while another part waits so long for one.
    fn tries(&self, wait: Duration) -> Duration {
        let known = self.making.unwrap_or_default();
        known.saturating_mul(2).clamp(wait / 2, wait - wait / 4)
    }
}

/// A worker that goes from one part to another.
struct Move {
    from: u64,
    to: u64,
    /// Time when it had left the first.
    left: Option<Instant>,
}

impl Sharing {
    pub(super) fn join(
        &mut self,
        rules: Rules,
        (most, wait): (usize, Duration),
        now: Instant,
    ) -> u64 {
        let id = self.next;
        self.next += 1;
        let standing = Standing {
            workers: 0,
            ready: 0,
            most,
            need: Need::Share,
        };
        let part = Part {
            rules,
            wait,
            standing,
            since: now,
            making: None,
            used: None,
            waker: None,
        };
        self.parts.insert(id, part);
        self.wake_others(id);
        id
    }

    /// Sets that a worker could not begin. If its machine has yet to report why, the reason of the one
    /// before stays so long.
    pub(super) fn set_unable(&mut self, worker: u64, how: &str, is_known: bool) {
        match &mut self.refused {
            Some((before, _)) if *before != 0 && !is_known => *before = worker,
            refused => *refused = Some((worker, format!("could not begin: {how}"))),
        }
    }

    pub(super) fn set_crashed(&mut self, worker: u64, how: String) {
        if let Some((unable, _)) = self.refused
            && unable == worker
        {
            self.set_unable(worker, &how, true);
        }
        self.crashes.push_back((worker, how));
        if self.crashes.len() > CRASHES {
            self.crashes.pop_front();
        }
    }

    pub(super) fn crash_of(&self, worker: u64) -> Option<String> {
        let mut crashes = self.crashes.iter();
        let (_, how) = crashes.find(|(crashed, _)| *crashed == worker)?;
        Some(how.clone())
    }

    /// Returns true if a part lets workers in by other rules.
    pub(super) fn has_other_rules(&self, rules: &Rules) -> bool {
        self.parts.values().any(|part| part.rules != *rules)
    }

    pub(super) fn leave(&mut self, id: u64) {
        self.parts.remove(&id);
        self.moves.retain(|moving| moving.to != id);
        for moving in &mut self.moves {
            if moving.from == id {
                moving.left.get_or_insert_with(Instant::now);
            }
        }
        self.wake_others(id);
    }

    /// Sets the standing of a part, which is woken when that of another changes. Returns true if
    /// there are others.
    pub(super) fn set(&mut self, id: u64, standing: Standing, waker: &Waker, now: Instant) -> bool {
        let Some(before) = self.parts.get(&id).map(|part| part.standing) else {
            return false;
        };
        let has = |standing: Standing| (standing.workers > 0, standing.ready > 0);
        if has(before) != has(standing) {
            self.turn_of(id, standing, now);
        }
        if let Some(part) = self.parts.get_mut(&id) {
            match &mut part.waker {
                Some(known) => known.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
            part.standing = standing;
            part.used.take_if(|_| standing.need < Need::Share);
        }
        for _ in standing.workers..before.workers {
            let mut leaving = self.moves.iter_mut();
            if let Some(moving) = leaving.find(|moving| moving.from == id && moving.left.is_none())
            {
                moving.left = Some(now);
                self.left.push_back(now);
            }
        }
        for _ in before.workers..standing.workers {
            self.left.retain(|&left| now - left < ON_THE_WAY);
            if let Some(left) = self.left.pop_front() {
                self.restart = self.restart * 3 / 4 + (now - left) / 4;
            }
            if let Some(at) = self.moves.iter().position(|moving| moving.to == id) {
                self.moves.remove(at);
            }
        }
        if before != standing {
            self.wake_others(id);
        }
        self.parts.len() > 1
    }

    /// Begins the turn of a part that a worker has made, or interrupts it where the last one is lost.
    fn turn_of(&mut self, id: u64, next: Standing, now: Instant) {
        let (turn, is_given) = (self.turn(), self.leaving(id) > 0);
        let Some(part) = self.parts.get_mut(&id) else {
            return;
        };
        let (before, spent) = (part.standing, now - part.since);
        part.since = now;
        if next.ready > 0 && before.ready == 0 {
            if before.workers > 0 {
                // A time is forgotten over some turns.
                let longest = part.making.unwrap_or_default();
                part.making = Some(spent.max(longest - longest / 8));
            }
            let used = part.used.unwrap_or_default();
            part.since = now.checked_sub(used).unwrap_or(now);
        } else if next.workers == 0 {
            // Once in a turn, so that a part that ends its workers does not keep them from others.
            let goes_on = before.ready > 0 && !is_given && spent < turn && part.used.is_none();
            part.used = goes_on.then_some(spent);
        }
    }

    fn wake_others(&mut self, id: u64) {
        for (&other, part) in &mut self.parts {
            if other != id
                && let Some(waker) = part.waker.take()
            {
                waker.wake();
            }
        }
    }

    /// Returns true if the part is the first in line for a worker that connects.
    pub(super) fn is_first(&self, id: u64) -> bool {
        let first = self
            .parts
            .iter()
            .filter(|(_, part)| part.standing.workers < part.standing.most)
            .min_by_key(|&(&id, part)| {
                let Standing { need, workers, .. } = part.standing;
                (Reverse(need), workers, part.place(), id)
            });
        first.is_some_and(|(&first, _)| first == id)
    }

    /// Returns true if the part is to hand over a worker now, and then expects that it does.
    pub(super) fn take_surplus(&mut self, id: u64, now: Instant) -> bool {
        self.moves
            .retain(|moving| moving.left.is_none_or(|left| now - left < ON_THE_WAY));
        let receiver = self
            .parts
            .iter()
            .filter(|&(&other, part)| {
                other != id
                    && part.standing.need == Need::Share
                    && self.expected(other) < part.standing.most
            })
            .min_by_key(|&(&other, part)| (self.expected(other), part.place(), other));
        let Some((&to, receiver)) = receiver else {
            return false;
        };
        let has = self.expected(to);
        let Some(part) = self.parts.get(&id) else {
            return false;
        };
        let need = part.standing.need;
        let others = |gives: &dyn Fn(u64, Need) -> bool| {
            let mut others = self.parts.iter();
            others.any(|(&other, part)| {
                other != id && other != to && gives(other, part.standing.need)
            })
        };
        // Those who need theirs least hand them over first.
        let gives = match self.can_give(id, need, has) {
            true => !others(&|other, its| its < need && self.can_give(other, its, has)),
            false => {
                let keeps = || match need {
                    Need::Share if part.standing.ready == 0 => part.tries(receiver.wait),
                    Need::Share => self.turn(),
                    Need::One | Need::Nothing => QUIET_TURN,
                };
                self.kept(id) == 1
                    && has == 0
                    && now - part.since >= keeps()
                    && !others(&|other, its| self.can_give(other, its, has))
            }
        };
        if gives {
            self.moves.push(Move {
                from: id,
                to,
                left: None,
            });
            self.end_turn(id, now);
        }
        gives
    }

    fn end_turn(&mut self, id: u64, now: Instant) {
        let Some(part) = self.parts.get_mut(&id) else {
            return;
        };
        part.used = None;
        if part.standing.ready == 0 {
            part.making = part.making.max(Some(now - part.since));
        }
    }

    /// Returns the time that a part keeps its only worker. All get one in three quarters of the time
    /// that they wait for it, if to hand over and to make parts takes less.
    fn turn(&self) -> Duration {
        let parts = || {
            let parts = self.parts.values();
            parts.filter(|part| part.standing.need == Need::Share)
        };
        let longest = parts().filter_map(|part| part.making).max();
        let longest = longest.unwrap_or_default();
        let making = parts().map(|part| part.making.unwrap_or(longest));
        let cost: Duration = making.map(|making| self.restart + making).sum();
        let on_the_way = self.moves.iter().filter(|moving| moving.left.is_some());
        let workers = parts().map(|part| part.standing.workers).sum::<usize>();
        let workers = (workers + on_the_way.count()) as u32;
        let wait = parts().map(|part| part.wait).min().unwrap_or_default();
        let most = (wait - wait / 4).saturating_mul(workers);
        let most = most.saturating_sub(cost) / (parts().count() as u32).max(1);
        let turn = (self.restart + longest) * TURN;
        turn.min(LONGEST_TURN).min(most).max(SHORTEST_TURN)
    }

    /// Returns true if a part can hand over a worker to one that has so many.
    fn can_give(&self, id: u64, need: Need, has: usize) -> bool {
        self.kept(id)
            > match need {
                Need::Nothing => 0,
                Need::One => 1,
                Need::Share => has + 1,
            }
    }

    /// Returns the number of workers that a part has, and does not hand over.
    fn kept(&self, id: u64) -> usize {
        self.workers(id).saturating_sub(self.leaving(id))
    }

    /// Returns the number of workers that are to leave a part.
    fn leaving(&self, id: u64) -> usize {
        let leaving = self.moves.iter();
        let leaving = leaving.filter(|moving| moving.from == id && moving.left.is_none());
        leaving.count()
    }

    /// Returns the number of workers that a part keeps, and of those that are on their way to it.
    fn expected(&self, id: u64) -> usize {
        self.kept(id) + self.moves.iter().filter(|moving| moving.to == id).count()
    }

    fn workers(&self, id: u64) -> usize {
        self.parts.get(&id).map_or(0, |part| part.standing.workers)
    }

    /// Returns the number of workers of the other parts.
    pub(super) fn elsewhere(&self, id: u64) -> usize {
        let others = self.parts.iter().filter(|&(&other, _)| other != id);
        others.map(|(_, part)| part.standing.workers).sum()
    }
}

#[cfg(test)]
mod tests;
