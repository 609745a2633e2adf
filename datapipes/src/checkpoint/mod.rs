//! Where streams stand, so that a stopped epoch can be resumed: what pipes keep, and how positions
//! lead up the graph.
//!
//! A *position* is a number of items and errors that came over an edge since the epoch began.
//! Positions lead from the consumer up: what is one-in-one-out has the position of its input; what
//! distributes over concatenation keeps a log of *pieces* (so many in, so many out); what looks at
//! the stream as a whole *keeps* a value now and then, with the positions of its inputs. A node is
//! then restored to the last such value before the position that is wanted, and what it gives again
//! is left out. So a state holds numbers, and is made when it is asked for.

mod cursor;
mod log;
mod node_state;
mod pace;
mod recorder;
mod segment_log;
mod snapshot;
mod unordered;
mod wanted;

use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use self::cursor::{Cursor, Input};
pub(crate) use self::log::Trim;
use self::log::{LONG, Log};
pub(crate) use self::node_state::NodeState;
pub(crate) use self::recorder::{Recorder, SnapshotTrace};
pub(crate) use self::segment_log::SegmentLog;
pub use self::snapshot::HeldPositions;
pub(crate) use self::snapshot::Places;
pub use self::unordered::Lineage;
pub(crate) use self::unordered::{Given, Unordered};
pub(crate) use self::wanted::Positions;
pub use self::wanted::Wanted;
use crate::Error;

/// The reach of a point whose reader has dropped the edge: nothing above it has to be gone over
/// again.
const OVER: u64 = u64::MAX;

/// A point on an edge: everything from `from` on is wanted, and maybe some of what is from `reach`
/// on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub from: u64,
    pub reach: u64,
    /// Nothing delivered so far was made of anything from this position on.
    pub most: u64,
}

impl Point {
    pub(crate) fn at(from: u64) -> Point {
        Point {
            from,
            reach: from,
            most: from,
        }
    }
}

/// What is known of how a stream came about, so that it can be had again.
pub(crate) trait Trace: Send + Sync {
    /// Writes down what it takes to have the stream from a point on once more.
    fn save(&self, point: Point, to: &mut Saving);
    /// Nothing before this position will be asked for.
    fn forget(&self, before: u64);
}

/// A state in the making.
#[derive(Default)]
pub(crate) struct Saving {
    pub cursors: BTreeMap<Arc<str>, Cursor>,
    pub problem: Option<Error>,
    /// Where items come in any order: the positions before the point asked for that were not
    /// delivered.
    pending: Option<Vec<u64>>,
    /// Nodes of several outputs, by number, with what is wanted of each output. They are resolved
    /// when all that reads them is.
    splits: BTreeMap<usize, (Arc<Recorder>, Vec<Option<Point>>)>,
}

impl Saving {
    pub(crate) fn cursor(&mut self, node: &Arc<str>, cursor: Cursor) {
        if let Some(other) = self.cursors.insert(node.clone(), cursor) {
            // A node that runs for several readers stands in several places.
            if other != self.cursors[node] {
                self.several(node);
            }
        }
    }

    fn several(&mut self, node: &Arc<str>) {
        let message = "runs in several places at once, whose states cannot be told apart";
        self.problem
            .get_or_insert_with(|| Error::new(crate::ErrorKind::Config, message).at(node));
    }

    /// All that leads to a point of a stream.
    pub(crate) fn all(trace: &dyn Trace, point: Point) -> Saving {
        let mut saving = Saving::default();
        trace.save(point, &mut saving);
        while let Some((_, (recorder, points))) = saving.splits.pop_last() {
            recorder.save_at(&points, &mut saving);
        }
        saving
    }
}

/// A source, or a node that gives what is at a position without its input.
pub(crate) struct ByPosition(pub Arc<str>);

impl Trace for ByPosition {
    fn save(&self, point: Point, to: &mut Saving) {
        to.cursor(
            &self.0,
            Cursor {
                outputs: vec![point.from],
                ..Cursor::default()
            },
        );
    }

    fn forget(&self, _: u64) {}
}
