//! What a node kept at one moment, and where it was in its inputs then.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::{Input, OVER, Point, Trace, Wanted};
use crate::sync::lock;

/// What a node that looks at its input as a whole kept, and where it was then.
pub(super) struct Snapshot {
    pub outputs: Vec<u64>,
    pub inputs: Vec<Above>,
    pub kept: Vec<u8>,
    pub round: u64,
}

impl Snapshot {
    /// Whether this is so for each output of which a point is known.
    pub(super) fn is(&self, points: &[Option<Point>], so: impl Fn(u64, Point) -> bool) -> bool {
        self.outputs
            .iter()
            .zip(points)
            .all(|(&at, point)| point.is_none_or(|point| so(at, point)))
    }
}

/// Where a node was in one of its inputs.
pub(super) struct Above {
    pub input: Input,
    /// Nothing from this position on had been taken.
    pub taken: u64,
    /// It had let go of it, and will not ask for it where it resumes from here.
    pub over: bool,
    pub trace: Arc<dyn Trace>,
}

impl Above {
    pub(super) fn point(&self) -> Point {
        Point {
            from: self.input.from,
            reach: if self.over { OVER } else { self.input.reach },
            most: u64::MAX,
        }
    }
}

/// Positions, which whoever holds an item knows, too.
pub(crate) type Places = Mutex<BTreeSet<u64>>;

/// Where a node reads.
pub(super) struct Feed {
    /// The position of what is taken next; less than that while what was held is taken again.
    pub taken: Arc<AtomicU64>,
    /// The places of what the pipe holds of it.
    pub held: Arc<Places>,
    wanted: Wanted,
    trace: Arc<dyn Trace>,
}

impl Feed {
    pub(super) fn new(wanted: Wanted, trace: Arc<dyn Trace>) -> Self {
        let taken = Arc::new(AtomicU64::new(wanted.from() - wanted.holes().len() as u64));
        Feed {
            taken,
            held: Arc::default(),
            wanted,
            trace,
        }
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether what was held is being taken again.
    pub(super) fn takes_again(&self) -> bool {
        self.taken() < self.wanted.from()
    }

    /// The position of what is taken next.
    pub(super) fn position(&self) -> u64 {
        let (taken, holes) = (self.taken(), self.wanted.holes());
        let begin = self.wanted.from() - holes.len() as u64;
        holes
            .get((taken - begin) as usize)
            .copied()
            .unwrap_or(taken)
    }
}

/// The inputs of a node, in one round of what is above it.
pub(super) struct Feeds {
    pub feeds: Vec<Feed>,
    pub round: u64,
}

/// Positions that a pipe holds of its inputs while it [keeps](crate::Context::snapshot_with)
/// something, by [position](crate::Context::position).
#[derive(Debug, Default)]
pub struct HeldPositions {
    pub(super) outputs: Option<Vec<u64>>,
    /// For each input.
    held: Vec<Vec<u64>>,
    /// Of the first input.
    reach: Option<u64>,
    /// For each input, from where on it comes again.
    again: Vec<u64>,
}

impl HeldPositions {
    /// Holds what is at these positions of the input, which will come again, in their order, before
    /// all that was not taken.
    pub fn hold(&mut self, positions: impl IntoIterator<Item = u64>) {
        self.hold_of(0, positions);
    }

    /// Holds what is at these positions of one of several inputs; see
    /// [`hold`](HeldPositions::hold).
    pub fn hold_of(&mut self, input: usize, positions: impl IntoIterator<Item = u64>) {
        self.held.resize(self.held.len().max(input + 1), Vec::new());
        self.held[input] = positions.into_iter().collect();
    }

    /// Takes all of an input again from this position on, its errors too, as if nothing of that had
    /// been taken: for what is made again, such as the table of a join.
    pub fn take_again(&mut self, input: usize, position: u64) {
        self.again.resize(self.again.len().max(input + 1), u64::MAX);
        self.again[input] = position;
    }

    /// Holds some of the input from this position on: those that [`Pipe::held`](crate::Pipe::held)
    /// finds from what is kept, which may be far less than their positions.
    pub fn hold_since(&mut self, position: u64) {
        self.reach = Some(position);
    }

    /// Tells how much has been given to each output since the epoch began, though some of it may
    /// wait there. For a node whose outputs are not what it is asked for at the moment.
    pub fn outputs(&mut self, dealt: Vec<u64>) {
        self.outputs = Some(dealt);
    }

    /// What it says that it holds of an input and has not taken.
    pub(super) fn not_taken(&self, feeds: &[Feed]) -> Option<u64> {
        self.held.iter().enumerate().find_map(|(at, held)| {
            let taken = feeds.get(at).map_or(0, Feed::taken);
            held.iter().copied().find(|&held| held >= taken)
        })
    }

    /// Where it is in input number `at` with that.
    pub(super) fn above(&mut self, at: usize, feed: &Feed) -> Above {
        let taken = feed.taken();
        let mut from = self.again.get(at).map_or(taken, |&again| again.min(taken));
        let mut held = self
            .held
            .get_mut(at)
            .map(std::mem::take)
            .unwrap_or_default();
        let reach = self.reach.filter(|_| at == 0);
        held.extend(&*lock(&feed.held));
        held.sort_unstable();
        held.dedup();
        held.retain(|&held| held < from);
        // What was taken last comes again as if it had not been taken.
        while held.last().is_some_and(|&last| last + 1 == from) {
            held.pop();
            from -= 1;
        }
        let reach = reach
            .unwrap_or(from)
            .min(held.first().copied().unwrap_or(from));
        let input = Input {
            from,
            reach: reach.min(from),
            held,
        };
        // Whoever counts what is taken holds the counter.
        let over = Arc::strong_count(&feed.taken) == 1 && from == taken && input.held.is_empty();
        Above {
            input,
            taken,
            over,
            trace: feed.trace.clone(),
        }
    }
}
