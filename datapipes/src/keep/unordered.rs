//! Positions where items do not come in order: which of what went in has come out, and was delivered.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::{Cursor, Input, LONG, Point, Saving, Trace, Trim, Wanted};
use crate::sync::lock;

/// What came out of a node, in the order in which it did: of which input, by position.
#[derive(Debug)]
pub(crate) enum Given {
    /// So many, each of one of consecutive inputs.
    Run(u64, u64),
    /// Several, each of one input.
    Each(Vec<u64>),
    /// One, of several inputs.
    All(Vec<u64>),
}

impl Given {
    fn outputs(&self) -> u64 {
        match self {
            Given::Run(_, len) => *len,
            Given::Each(inputs) => inputs.len() as u64,
            Given::All(_) => 1,
        }
    }

    /// The inputs of one of its outputs.
    fn inputs(&self, output: u64) -> impl Iterator<Item = u64> {
        let (one, many): (_, &[u64]) = match self {
            Given::Run(first, _) => (Some(first + output), &[]),
            Given::Each(inputs) => (Some(inputs[output as usize]), &[]),
            Given::All(inputs) => (None, inputs),
        };
        one.into_iter().chain(many.iter().copied())
    }
}

/// The trace of a node that gives what it got in another order: a segment in bounded or arrival order, and what is
/// below one. What is done again would come in yet another order, so nothing is: what was not delivered goes through once
/// more, and nothing else.
pub(crate) struct Unordered {
    node: Arc<str>,
    above: Arc<dyn Trace>,
    /// Whether its input comes in any order, too.
    unordered_input: bool,
    /// Whether each output is of the next input.
    identity: bool,
    taken: Arc<AtomicU64>,
    begun: Wanted,
    /// The position of its first output.
    start: u64,
    trim: Trim,
    log: Mutex<Log>,
}

struct Log {
    /// The position of the first output that is in the list.
    first: u64,
    given: VecDeque<Given>,
    /// All inputs from the beginning on and before this one were delivered, but for what the epoch went on with.
    low: u64,
    /// Of those behind it and of what the epoch went on with: what was delivered.
    delivered: BTreeSet<u64>,
    most: usize,
    kept: Vec<u8>,
}

/// Outputs in one entry, about: what is forgotten is whole entries.
const LONGEST: u64 = 1024;

impl Unordered {
    /// `begun` is what is wanted of the input.
    pub(crate) fn new(
        node: Arc<str>,
        above: Arc<dyn Trace>,
        (unordered_input, identity): (bool, bool),
        trim: Trim,
        begun: Wanted,
        cursor: Option<&Cursor>,
    ) -> Arc<Self> {
        let log = Log {
            first: cursor.map_or(0, |cursor| cursor.outputs[0]),
            given: VecDeque::new(),
            low: begun.from(),
            delivered: BTreeSet::new(),
            most: LONG,
            kept: cursor.map(|cursor| cursor.kept.clone()).unwrap_or_default(),
        };
        let taken = Arc::new(AtomicU64::new(begun.from() - begun.holes().len() as u64));
        let start = log.first;
        Arc::new(Unordered {
            node,
            above,
            unordered_input,
            identity,
            taken,
            begun,
            start,
            trim,
            log: Mutex::new(log),
        })
    }

    fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        lock(&self.log)
    }

    /// Counts what is taken of the input.
    pub(crate) fn counter(&self) -> &Arc<AtomicU64> {
        &self.taken
    }

    /// So many were taken of the input; which number the first of them has.
    pub(crate) fn took(&self, items: usize) -> u64 {
        self.taken.fetch_add(items as u64, Ordering::Relaxed)
    }

    /// The position of input number `index`, counted as the counter does.
    pub(crate) fn position(&self, index: u64) -> u64 {
        let holes = self.begun.holes();
        match (self.begun.from() - index.min(self.begun.from())) as usize {
            0 => index,
            left => holes[holes.len() - left],
        }
    }

    /// The positions of the last `len` that were taken.
    pub(crate) fn last(&self, len: usize) -> Vec<u64> {
        let end = self.taken.load(Ordering::Relaxed);
        (end - len as u64..end).map(|index| self.position(index)).collect()
    }

    /// Something came out, as the last so far; `kept` goes with it.
    pub(crate) fn gave(&self, given: Given, kept: Option<Vec<u8>>) {
        let mut log = self.log();
        log.kept = kept.unwrap_or_else(|| std::mem::take(&mut log.kept));
        match (log.given.back_mut(), &given) {
            (Some(Given::Run(first, len)), Given::Run(next, more))
                if *first + *len == *next && *len < LONGEST =>
            {
                *len += more;
            }
            _ => log.given.push_back(given),
        }
        if log.given.len() > log.most {
            log.most = 2 * log.given.len();
            self.trim.ask();
        }
    }

    /// What came out is of consecutive inputs, by number as the counter counts.
    pub(crate) fn gave_run(&self, mut index: u64, len: usize) {
        let end = index + len as u64;
        while index < end {
            let first = self.position(index);
            let mut run = 1;
            while index + run < end && self.position(index + run) == first + run {
                run += 1;
            }
            self.gave(Given::Run(first, run), None);
            index += run;
        }
    }

    /// What was taken of the input and has not been delivered, ascending, and the position behind all of it.
    fn pending(&self, from: u64, holes: &[u64]) -> (Vec<u64>, u64) {
        let log = self.log();
        let counted = self.taken.load(Ordering::Relaxed);
        let end = counted.max(self.begun.from());
        let mut delivered: Vec<u64> = Vec::new();
        let is_delivered = |output: u64| output < from && holes.binary_search(&output).is_err();
        let mut output = log.first;
        if self.identity {
            let begin = self.begun.from() - self.begun.holes().len() as u64;
            let indices = begin + (log.first - self.start)..end;
            let pending = indices.filter(|index| !is_delivered(self.start + (index - begin)));
            return (pending.map(|index| self.position(index)).collect(), end);
        }
        for given in &log.given {
            for at in 0..given.outputs() {
                if is_delivered(output + at) {
                    delivered.extend(given.inputs(at));
                }
            }
            output += given.outputs();
        }
        delivered.sort_unstable();
        let candidates = self.begun.holes().iter().copied().chain(log.low..end);
        let pending = candidates
            .filter(|position| {
                !log.delivered.contains(position) && delivered.binary_search(position).is_err()
            })
            .collect();
        (pending, end)
    }
}

impl Trace for Unordered {
    fn save(&self, point: Point, to: &mut Saving) {
        let holes = to.pending.take().unwrap_or_default();
        let (pending, end) = self.pending(point.from, &holes);
        let reach = pending.first().copied().unwrap_or(end);
        let input = match self.unordered_input {
            // What is above gives no position twice the same item; it counts anew.
            true => Input {
                from: end - pending.len() as u64,
                reach: end - pending.len() as u64,
                held: Vec::new(),
            },
            false => Input { from: end, reach, held: pending.clone() },
        };
        let kept = self.log().kept.clone();
        let outputs = vec![point.from - holes.len() as u64];
        to.cursor(
            &self.node,
            Cursor { outputs, inputs: vec![input], kept, unordered: true, ..Cursor::default() },
        );
        if self.unordered_input {
            to.pending = Some(pending);
        }
        self.above.save(Point { from: end, reach, most: u64::MAX }, to);
    }

    fn forget(&self, before: u64) {
        let first = {
            let mut guard = self.log();
            let log = &mut *guard;
            if self.identity {
                log.first = log.first.max(before);
                let begin = self.begun.from() - self.begun.holes().len() as u64;
                let index = begin + (log.first - self.start);
                drop(guard);
                return self.above.forget(self.position(index));
            }
            while let Some(given) = log.given.front()
                && log.first + given.outputs() <= before
            {
                for at in 0..given.outputs() {
                    log.delivered.extend(given.inputs(at));
                }
                log.first += given.outputs();
                log.given.pop_front();
            }
            while log.delivered.remove(&log.low) {
                log.low += 1;
            }
            log.most = (2 * log.given.len()).max(LONG);
            let hole = self.begun.holes().iter().find(|hole| !log.delivered.contains(hole));
            hole.copied().unwrap_or(log.low)
        };
        self.above.forget(first);
    }
}
