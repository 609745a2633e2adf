//! Positions if items do not come in order: the inputs whose outputs have come out, and were
//! delivered.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::{Cursor, History, InputCursor, LONG, Point, Saving, Trim, Wanted};
use crate::Error;
use crate::sync::lock;

/// Outputs of a node, in the order in which they came, as positions of inputs.
#[derive(Debug)]
pub(crate) enum Given {
    /// Outputs of one input each, consecutive: the first and the number.
    Run(u64, u64),
    /// Outputs of one input each.
    Each(Vec<u64>),
    /// One output of several inputs.
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

    /// Returns the inputs of one of its outputs.
    fn inputs(&self, output: u64) -> impl Iterator<Item = u64> {
        let (one, many): (_, &[u64]) = match self {
            Given::Run(first, _) => (Some(first + output), &[]),
            Given::Each(inputs) => (Some(inputs[output as usize]), &[]),
            Given::All(inputs) => (None, inputs),
        };
        one.into_iter().chain(many.iter().copied())
    }
}

/// Records the inputs of each output of a pipe if items come in any order: for a pipe that
/// [promises to tell them](crate::Hints::lineage), by
/// [`Context::lineage`](crate::Context::lineage).
///
/// In any order nothing can be repeated exactly, since the items would come in yet another order. A
/// resumed epoch therefore takes again the inputs that were not delivered, and nothing else: a pipe
/// begins anew, with all inputs of which no output was delivered. The restored
/// [snapshot](crate::Context::snapshot) is the pipe's last one, though some of the outputs it gave
/// by then may not have been delivered. The snapshot must therefore not decide whether an item
/// comes out: the number of a batch is suitable, a set of all items seen is not.
///
/// Each input is in one output at most, and each output is recorded in the poll that gives it, in
/// their order; otherwise the epoch ends in an error. [`Emitter::emit_of`](crate::Emitter::emit_of)
/// records the outputs that it emits. Positions are those of
/// [`Context::position`](crate::Context::position).
#[derive(Clone)]
pub struct Lineage(Arc<Unordered>);

impl Lineage {
    pub(crate) fn new(unordered: Arc<Unordered>) -> Self {
        Lineage(unordered)
    }

    /// Records that the next output is made of the inputs at these positions.
    pub fn gave(&self, inputs: Vec<u64>) {
        self.0.gave(Given::All(inputs));
    }

    /// Records that the next outputs are made of one input each, at these positions. An error that
    /// is passed on counts as an output.
    pub fn gave_each(&self, inputs: Vec<u64>) {
        if !inputs.is_empty() {
            self.0.gave(Given::Each(inputs));
        }
    }

    /// Returns the positions of the last `len` items and errors that were taken of the input.
    pub fn taken(&self, len: usize) -> Vec<u64> {
        self.0.last(len)
    }

    /// Records that no output is made of the inputs at these positions.
    pub fn left_out(&self, inputs: Vec<u64>) {
        self.0.left_out(inputs);
    }

    pub(crate) fn unordered(&self) -> &Arc<Unordered> {
        &self.0
    }
}

impl fmt::Debug for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lineage")
            .field("outputs", &self.0.log().recorded)
            .finish_non_exhaustive()
    }
}

/// The history of a node that gives its inputs in another order: a segment in bounded or arrival
/// order, and the nodes downstream. A repetition would come in yet another order, so nothing is
/// repeated: inputs that were not delivered go through once more, and nothing else.
pub(crate) struct Unordered {
    node: Arc<str>,
    above: Arc<dyn History>,
    /// True if its input comes in any order, too.
    unordered_input: bool,
    /// True if each output is of the next input.
    identity: bool,
    taken: Arc<AtomicU64>,
    /// Number of outputs, including errors.
    produced: Arc<AtomicU64>,
    begun: Wanted,
    /// Position of its first output.
    start: u64,
    trim: Trim,
    log: Mutex<LineageLog>,
}

struct LineageLog {
    /// Position of the first output in the list.
    first: u64,
    given: VecDeque<Given>,
    /// Number of outputs recorded in all.
    recorded: u64,
    /// Position before which all inputs were delivered, except for those that the epoch resumed
    /// with.
    low: u64,
    /// Delivered inputs after it, and of those that the epoch resumed with.
    delivered: BTreeSet<u64>,
    most: usize,
    state: Vec<u8>,
    /// True if something was recorded since the last snapshot.
    is_old: bool,
    /// Reason why no checkpoint can be made.
    problem: Option<String>,
}

/// Outputs in one entry, about: only whole entries are forgotten.
const LONGEST: u64 = 1024;

impl LineageLog {
    /// Records that nothing more will be made of this input. `begun` are the inputs wanted at the
    /// beginning.
    fn deliver(&mut self, input: u64, begun: &Wanted) {
        let is_new = begun.next(input) == input && (input >= self.low || input < begun.from());
        if !is_new || !self.delivered.insert(input) {
            self.problem.get_or_insert_with(|| told_wrongly(input));
        }
    }

    /// Replaces the gapless inputs from `low` on by a higher `low`.
    fn settle(&mut self) {
        while self.delivered.remove(&self.low) {
            self.low += 1;
        }
    }
}

fn told_wrongly(input: u64) -> String {
    format!(
        "names the inputs of its outputs (`Hints::lineage`), but named the input at place {input} for two outputs, \
         or before it was taken"
    )
}

impl Unordered {
    /// Makes the history; `begun` are the wanted inputs.
    pub(crate) fn new(
        node: Arc<str>,
        above: Arc<dyn History>,
        (unordered_input, identity): (bool, bool),
        trim: Trim,
        begun: Wanted,
        cursor: Option<&Cursor>,
    ) -> Arc<Self> {
        let log = LineageLog {
            first: cursor.map_or(0, |cursor| cursor.outputs[0]),
            given: VecDeque::new(),
            recorded: 0,
            low: begun.from(),
            delivered: BTreeSet::new(),
            most: LONG,
            state: cursor
                .map(|cursor| cursor.state.clone())
                .unwrap_or_default(),
            is_old: true,
            problem: None,
        };
        let taken = Arc::new(AtomicU64::new(begun.from() - begun.holes().len() as u64));
        let start = log.first;
        Arc::new(Unordered {
            node,
            above,
            unordered_input,
            identity,
            taken,
            produced: Arc::default(),
            begun,
            start,
            trim,
            log: Mutex::new(log),
        })
    }

    fn log(&self) -> std::sync::MutexGuard<'_, LineageLog> {
        lock(&self.log)
    }

    /// Returns the counter of the inputs taken.
    pub(crate) fn counter(&self) -> &Arc<AtomicU64> {
        &self.taken
    }

    /// Records that this many inputs were taken; returns the number of the first.
    pub(crate) fn took(&self, items: usize) -> u64 {
        self.taken.fetch_add(items as u64, Ordering::Relaxed)
    }

    /// Returns the position of input number `index`, as the counter counts.
    pub(crate) fn position(&self, index: u64) -> u64 {
        let holes = self.begun.holes();
        match (self.begun.from() - index.min(self.begun.from())) as usize {
            0 => index,
            left => holes[holes.len() - left],
        }
    }

    /// Returns the position of the next input.
    pub(crate) fn next(&self) -> u64 {
        self.position(self.taken.load(Ordering::Relaxed))
    }

    /// Returns the positions of the last `len` inputs taken.
    fn last(&self, len: usize) -> Vec<u64> {
        let end = self.taken.load(Ordering::Relaxed);
        (end - len as u64..end)
            .map(|index| self.position(index))
            .collect()
    }

    /// Records an output, as the last so far.
    pub(crate) fn gave(&self, given: Given) {
        let mut log = self.log();
        log.recorded += given.outputs();
        log.is_old = true;
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

    /// Records that nothing will come out of these inputs.
    pub(crate) fn left_out(&self, inputs: Vec<u64>) {
        let mut log = self.log();
        inputs
            .into_iter()
            .for_each(|input| log.deliver(input, &self.begun));
        log.settle();
    }

    /// Stores the snapshot of the pipe with all outputs so far.
    pub(crate) fn record(&self, write: impl FnOnce() -> crate::Result<Vec<u8>>) {
        if !self.log().is_old {
            return;
        }
        let written = write();
        let mut log = self.log();
        match written {
            Ok(state) => (log.state, log.is_old) = (state, false),
            Err(error) => log.problem = Some(error.to_string()),
        }
    }

    /// Returns the inputs of each recorded output, for the testing kit, which compares them with
    /// origins.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn recorded(&self) -> Vec<Vec<u64>> {
        let log = self.log();
        let outputs = |given: &Given| -> Vec<Vec<u64>> {
            (0..given.outputs())
                .map(|at| given.inputs(at).collect())
                .collect()
        };
        log.given.iter().flat_map(outputs).collect()
    }

    /// Returns the counter of the outputs.
    pub(crate) fn produced(&self) -> &Arc<AtomicU64> {
        &self.produced
    }

    /// Returns the error if other outputs were recorded than came out.
    pub(crate) fn unrecorded(&self) -> Option<Error> {
        let (recorded, given) = (self.log().recorded, self.produced.load(Ordering::Relaxed));
        (recorded != given).then(|| {
            let message = format!(
                "names the inputs of its outputs (`Hints::lineage`), but has named those of {recorded} outputs, and given \
                 {given} items and errors; see `Emitter::emit_of` and `Context::lineage`"
            );
            Error::config(message)
        })
    }

    /// Records outputs of consecutive inputs, by number as the counter counts.
    pub(crate) fn gave_run(&self, mut index: u64, len: usize) {
        let end = index + len as u64;
        while index < end {
            let first = self.position(index);
            let mut run = 1;
            while index + run < end && self.position(index + run) == first + run {
                run += 1;
            }
            self.gave(Given::Run(first, run));
            index += run;
        }
    }

    /// Returns the inputs that were taken and not delivered, ascending, and the position after all
    /// of them.
    ///
    /// # Errors
    /// Describes the contradiction in the records.
    fn pending(&self, from: u64, holes: &[u64]) -> Result<(Vec<u64>, u64), String> {
        let log = self.log();
        let counted = self.taken.load(Ordering::Relaxed);
        let end = counted.max(self.begun.from());
        let is_delivered = |output: u64| output < from && holes.binary_search(&output).is_err();
        let mut output = log.first;
        if self.identity {
            let begin = self.begun.from() - self.begun.holes().len() as u64;
            let indices = begin + (log.first - self.start)..end;
            let pending = indices.filter(|index| !is_delivered(self.start + (index - begin)));
            return Ok((pending.map(|index| self.position(index)).collect(), end));
        }
        let mut given: Vec<(u64, bool)> = Vec::new();
        for some in &log.given {
            for at in 0..some.outputs() {
                let is_delivered = is_delivered(output + at);
                given.extend(some.inputs(at).map(|input| (input, is_delivered)));
            }
            output += some.outputs();
        }
        given.sort_unstable();
        let twice = given
            .windows(2)
            .find(|pair| pair[0].0 == pair[1].0)
            .map(|pair| pair[0].0);
        let untaken = given
            .last()
            .map(|&(input, _)| input)
            .filter(|&input| input >= end);
        let is_old = |input: &u64| {
            (self.begun.from()..log.low).contains(input) || log.delivered.contains(input)
        };
        let again = || given.iter().map(|(input, _)| *input).find(is_old);
        if let Some(problem) = &log.problem {
            return Err(problem.clone());
        } else if let Some(input) = twice.or(untaken).or_else(again) {
            return Err(told_wrongly(input));
        }
        let delivered: Vec<u64> = given
            .into_iter()
            .filter(|(_, is_delivered)| *is_delivered)
            .map(|(input, _)| input)
            .collect();
        let candidates = self.begun.holes().iter().copied().chain(log.low..end);
        let pending = candidates
            .filter(|position| {
                !log.delivered.contains(position) && delivered.binary_search(position).is_err()
            })
            .collect();
        Ok((pending, end))
    }
}

impl History for Unordered {
    fn save(&self, point: Point, to: &mut Saving) {
        let holes = to.pending.take().unwrap_or_default();
        let (pending, end) = match self.pending(point.from, &holes) {
            Ok(pending) => pending,
            Err(problem) => {
                to.problem
                    .get_or_insert_with(|| Error::config(problem).at(&self.node));
                return;
            }
        };
        let reach = pending.first().copied().unwrap_or(end);
        let input = match self.unordered_input {
            // The upstream part gives no position the same item twice; it counts anew.
            true => InputCursor {
                from: end - pending.len() as u64,
                reach: end - pending.len() as u64,
                held: Vec::new(),
            },
            false => InputCursor {
                from: end,
                reach,
                held: pending.clone(),
            },
        };
        let state = self.log().state.clone();
        let outputs = vec![point.from - holes.len() as u64];
        to.cursor(
            &self.node,
            Cursor {
                outputs,
                inputs: vec![input],
                state,
                unordered: true,
                ..Cursor::default()
            },
        );
        if self.unordered_input {
            to.pending = Some(pending);
        }
        self.above.save(
            Point {
                from: end,
                reach,
                most: u64::MAX,
            },
            to,
        );
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
                let given = log.given.pop_front().expect("it was there");
                log.first += given.outputs();
                for at in 0..given.outputs() {
                    given
                        .inputs(at)
                        .for_each(|input| log.deliver(input, &self.begun));
                }
            }
            log.settle();
            log.most = (2 * log.given.len()).max(LONG);
            let hole = self
                .begun
                .holes()
                .iter()
                .find(|hole| !log.delivered.contains(hole));
            hole.copied().unwrap_or(log.low)
        };
        self.above.forget(first);
    }
}
