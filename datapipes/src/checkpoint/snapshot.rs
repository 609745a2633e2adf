//! The snapshot of a node at one moment, with its positions in its inputs.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::{Cursor, History, InputCursor, OVER, Point, Wanted};
use crate::codec::pack;
use crate::sync::lock;
use crate::{Result, Wire};

/// The snapshot of a node that looks at its input as a whole, with its positions.
pub(super) struct Snapshot {
    pub outputs: Vec<u64>,
    pub inputs: Vec<Above>,
    pub state: Vec<u8>,
    pub round: u64,
}

impl Snapshot {
    /// Returns true if `so` holds for each output of which a point is known.
    pub(super) fn is(&self, points: &[Option<Point>], so: impl Fn(u64, Point) -> bool) -> bool {
        self.outputs
            .iter()
            .zip(points)
            .all(|(&at, point)| point.is_none_or(|point| so(at, point)))
    }
}

/// The position of a node in one of its inputs.
pub(super) struct Above {
    pub input: InputCursor,
    /// Position from which nothing had been taken.
    pub taken: u64,
    /// True if the node had dropped the input, and will not ask for it when resumed from here.
    pub over: bool,
    pub history: Arc<dyn History>,
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

/// Positions, shared with the holders of the items.
pub(crate) type Places = Mutex<BTreeSet<u64>>;

/// An input of a node.
pub(super) struct Feed {
    /// Position of the next item; less than that while held items are taken again.
    pub taken: Arc<AtomicU64>,
    /// Places of the items that the pipe holds of it.
    pub held: Arc<Places>,
    wanted: Wanted,
    history: Arc<dyn History>,
}

impl Feed {
    pub(super) fn new(wanted: Wanted, history: Arc<dyn History>) -> Self {
        let taken = Arc::new(AtomicU64::new(wanted.from() - wanted.holes().len() as u64));
        Feed {
            taken,
            held: Arc::default(),
            wanted,
            history,
        }
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns true while held items are being taken again.
    pub(super) fn takes_again(&self) -> bool {
        self.taken() < self.wanted.from()
    }

    /// Returns the position of the next item.
    pub(super) fn position(&self) -> u64 {
        let (taken, holes) = (self.taken(), self.wanted.holes());
        let begin = self.wanted.from() - holes.len() as u64;
        holes
            .get((taken - begin) as usize)
            .copied()
            .unwrap_or(taken)
    }
}

/// The inputs of a node, in one round of its upstream part.
pub(super) struct Feeds {
    pub feeds: Vec<Feed>,
    pub round: u64,
}

/// Snapshot that a pipe computes, instead of taking it while it runs; see
/// [`Pipe::snapshot_at`](crate::Pipe::snapshot_at).
#[derive(Clone, Debug)]
pub struct PipeSnapshot {
    state: Vec<u8>,
    held: Vec<u64>,
}

impl PipeSnapshot {
    /// Makes the snapshot of a pipe that holds no item. `state` is the value that the pipe finds by
    /// [`restored`](crate::Context::restored).
    ///
    /// # Errors
    /// Errors of the value's encoding.
    pub fn new(state: &impl Wire) -> Result<Self> {
        Ok(PipeSnapshot {
            state: pack(state)?,
            held: Vec::new(),
        })
    }

    /// Holds the items at these positions of the input, ascending, which come again before all
    /// others, as with [`HeldPositions::hold`].
    pub fn hold(mut self, positions: impl IntoIterator<Item = u64>) -> Self {
        self.held = positions.into_iter().collect();
        self
    }

    /// Returns the place of a pipe that has taken `inputs` items and given `outputs`.
    pub(crate) fn cursor(self, inputs: u64, outputs: u64) -> Cursor {
        let input = InputCursor {
            from: inputs,
            reach: self.held.first().copied().unwrap_or(inputs),
            held: self.held,
        };
        Cursor {
            outputs: vec![outputs],
            inputs: vec![input],
            state: self.state,
            ..Cursor::default()
        }
    }
}

/// Positions of its inputs that a pipe holds when it takes a
/// [snapshot](crate::Context::snapshot_with), by [position](crate::Context::position).
#[derive(Debug, Default)]
pub struct HeldPositions {
    pub(super) outputs: Option<Vec<u64>>,
    /// Held positions of each input.
    held: Vec<Vec<u64>>,
    /// Lower bound on the held positions of the first input.
    reach: Option<u64>,
    /// Position from which each input comes again.
    again: Vec<u64>,
}

impl HeldPositions {
    /// Holds the items at these positions of the input, which will come again, in their order,
    /// before all items that were not taken.
    pub fn hold(&mut self, positions: impl IntoIterator<Item = u64>) {
        self.hold_of(0, positions);
    }

    /// Holds the items at these positions of one of several inputs; see
    /// [`hold`](HeldPositions::hold).
    pub fn hold_of(&mut self, input: usize, positions: impl IntoIterator<Item = u64>) {
        self.held.resize(self.held.len().max(input + 1), Vec::new());
        self.held[input] = positions.into_iter().collect();
    }

    /// Takes all of an input again from this position on, including errors, as if none had been
    /// taken: for structures that are built again, such as the table of a join.
    pub fn take_again(&mut self, input: usize, position: u64) {
        self.again.resize(self.again.len().max(input + 1), u64::MAX);
        self.again[input] = position;
    }

    /// Holds some items of the input from this position on: those that
    /// [`Pipe::held`](crate::Pipe::held) derives from the snapshot, which may be much smaller than
    /// the list of positions.
    pub fn hold_since(&mut self, position: u64) {
        self.reach = Some(position);
    }

    /// Records how much has been given to each output since the epoch began, though some of it may
    /// wait there. For a node that makes items for other outputs than the polled one.
    pub fn outputs(&mut self, dealt: Vec<u64>) {
        self.outputs = Some(dealt);
    }

    /// Returns a position of an input that the node claims to hold and has not taken.
    pub(super) fn not_taken(&self, feeds: &[Feed]) -> Option<u64> {
        self.held.iter().enumerate().find_map(|(at, held)| {
            let taken = feeds.get(at).map_or(0, Feed::taken);
            held.iter().copied().find(|&held| held >= taken)
        })
    }

    /// Returns its position in input number `at`.
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
        // An item that was taken last comes again as if it had not been taken.
        while held.last().is_some_and(|&last| last + 1 == from) {
            held.pop();
            from -= 1;
        }
        let reach = reach
            .unwrap_or(from)
            .min(held.first().copied().unwrap_or(from));
        let input = InputCursor {
            from,
            reach: reach.min(from),
            held,
        };
        // A reader of the input holds the counter.
        let over = Arc::strong_count(&feed.taken) == 1 && from == taken && input.held.is_empty();
        Above {
            input,
            taken,
            over,
            history: feed.history.clone(),
        }
    }
}
