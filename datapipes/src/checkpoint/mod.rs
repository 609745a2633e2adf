//! Positions in streams, so that a stopped epoch can be resumed: snapshots of pipes, and the way in
//! which positions lead up the graph.
//!
//! A *position* is a number of items and errors that came over an edge since the epoch began.
//! Positions lead from the consumer up the graph. A one-in-one-out node has the position of its
//! input. A node that distributes over concatenation keeps a log of its *morsels*: the numbers of
//! inputs and outputs of each. A node that looks at the stream as a whole takes a *snapshot* now and
//! then, with the positions of its inputs. It is restored to the last snapshot before the wanted
//! position, and outputs that it repeats are left out. A checkpoint therefore holds numbers, and is
//! made when it is asked for.

mod cursor;
mod log;
mod node_state;
mod pace;
mod recorder;
mod segment_log;
#[cfg(feature = "serde")]
pub(crate) mod serial;
mod snapshot;
mod unordered;
mod wanted;

use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use self::cursor::{Cursor, InputCursor};
pub(crate) use self::log::Trim;
use self::log::{LONG, Log};
pub(crate) use self::node_state::NodeState;
pub(crate) use self::recorder::{Recorder, SnapshotHistory};
pub(crate) use self::segment_log::SegmentLog;
pub(crate) use self::snapshot::Places;
pub use self::snapshot::{HeldPositions, PipeSnapshot};
pub use self::unordered::Lineage;
pub(crate) use self::unordered::{Given, Unordered};
pub use self::wanted::Wanted;
use crate::Error;

/// Bound on the positions in a checkpoint: a file with greater ones is damaged, and their sums would
/// overflow.
pub(crate) const MAX_POSITION: u64 = 1 << 62;
/// The reach of a point whose reader has dropped the edge: nothing upstream has to be repeated.
const OVER: u64 = u64::MAX;

/// A position on an edge: what a resumed epoch needs of the edge's items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// All items from here on are wanted.
    pub from: u64,
    /// Some of the items between here and `from` may be wanted.
    pub reach: u64,
    /// Bound on the positions from which anything delivered so far was made.
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

/// The history of a stream, as needed to produce it again.
pub(crate) trait History: Send + Sync {
    /// Records how to produce the stream from a point on once more.
    fn save(&self, point: Point, to: &mut Saving);
    /// Declares that nothing before this position will be asked for.
    fn forget(&self, before: u64);
}

/// A checkpoint in the making.
#[derive(Default)]
pub(crate) struct Saving {
    pub cursors: BTreeMap<Arc<str>, Cursor>,
    pub problem: Option<Error>,
    /// Positions before the wanted point that were not delivered, if items come in any order.
    pending: Option<Vec<u64>>,
    /// Nodes of several outputs, by number, with the wanted point of each output. They are resolved
    /// after all their readers.
    splits: BTreeMap<usize, (Arc<Recorder>, Vec<Option<Point>>)>,
}

impl Saving {
    pub(crate) fn cursor(&mut self, node: &Arc<str>, cursor: Cursor) {
        if let Some(other) = self.cursors.insert(node.clone(), cursor) {
            // A node that runs for several readers has several cursors.
            if other != self.cursors[node] {
                self.several(node);
            }
        }
    }

    fn several(&mut self, node: &Arc<str>) {
        let message = "runs in several places at once, whose snapshots cannot be told apart";
        self.problem
            .get_or_insert_with(|| Error::config(message).at(node));
    }

    /// Collects the cursors of everything that leads to a point of a stream.
    pub(crate) fn all(history: &dyn History, point: Point) -> Saving {
        let mut saving = Saving::default();
        history.save(point, &mut saving);
        while let Some((_, (recorder, points))) = saving.splits.pop_last() {
            recorder.save_at(&points, &mut saving);
        }
        saving
    }
}

/// A source, or a node that gives the item at a position without its input.
pub(crate) struct ByPosition(pub Arc<str>);

impl History for ByPosition {
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
