//! Checks that a node goes on where it was stopped, run as a resumable loader runs it.

use std::fmt::Debug;
use std::sync::Arc;

use super::node::{Node, Reading, Way, is_overrun, nothing};
use super::{Outcome, outcome};
use crate::Wanted;
use crate::checkpoint::{
    ByPosition, Cursor, History, InputCursor, NodeState, Point, Recorder, Saving, SnapshotHistory,
    Trim,
};

const NODE: &str = "node";

/// The cursor of a stopped node, and the wanted items of each of its outputs.
pub(super) type Stop = (Cursor, Vec<Wanted>);

/// All outputs of a node at once.
struct Outputs(Vec<(SnapshotHistory, Point)>);

impl History for Outputs {
    fn save(&self, _: Point, to: &mut Saving) {
        self.0
            .iter()
            .for_each(|(output, place)| output.save(*place, to));
    }

    fn forget(&self, _: u64) {}
}

/// A running node.
pub(super) struct Running<T> {
    reading: Reading<T>,
    recorder: Arc<Recorder>,
    /// Wanted items, position of the next item, and delivered items of each output.
    wanted: Vec<Wanted>,
    places: Vec<u64>,
    delivered: Vec<Vec<u64>>,
    /// True if outputs leave out unwanted items by themselves.
    leaves_out: bool,
    chunk: usize,
}

/// The way in which a node is run.
#[derive(Clone, Copy)]
pub(super) struct How {
    pub way: Way,
    pub chunk: usize,
    /// True if it takes a snapshot whenever it can.
    pub always: bool,
    /// True if the reader still holds some of the items that it took, when the node is stopped.
    pub held: bool,
}

impl<T: Send + 'static> Running<T> {
    pub fn start(
        node: &Node<'_, T>,
        sequences: &[Vec<Option<usize>>],
        stopped: Option<&Stop>,
        How {
            way, chunk, always, ..
        }: How,
    ) -> Self {
        let cursor = stopped.map(|(cursor, _)| cursor);
        let state = cursor.map(|cursor| cursor.state.clone().into());
        let node_state = NodeState {
            state,
            ..NodeState::default()
        };
        let held = cursor.and_then(|_| {
            let cx = node.context.with_node_state(node_state.clone());
            (node.held)(&cx)
        });
        let of_input = |at: usize| match cursor {
            Some(cursor) => {
                let input = cursor.inputs.get(at).map(InputCursor::wanted);
                let wanted = input.expect("a place in each input");
                match &held {
                    Some(held) => Wanted::new(held.clone(), wanted.from()),
                    None => wanted,
                }
            }
            None => Wanted::since(0),
        };
        let history =
            |at: usize| Arc::new(ByPosition(format!("input {at}").into())) as Arc<dyn History>;
        let inputs = (0..node.feeds.len())
            .map(|at| (of_input(at), history(at)))
            .collect();
        let recorder = Recorder::new(
            NODE.into(),
            0,
            node.outputs,
            Trim::default(),
            inputs,
            cursor,
            node.hints.may_change.is_some(),
        );
        if always {
            recorder.always();
        }
        let inputs = node.open(sequences, |at, opening| {
            (opening.wanted, opening.taken) = (of_input(at), Some(recorder.taken(at)));
        });
        let used = cursor
            .and_then(|cursor| cursor.pieces.first())
            .map_or(0, |&(_, used)| used);
        let node_state = NodeState {
            used,
            recorder: Some(recorder.clone()),
            ..node_state
        };
        let outputs = node
            .apply(inputs, &node.context.with_node_state(node_state))
            .into_iter()
            .enumerate();
        let outputs =
            outputs.map(|(at, items)| items.counted(None, Some(recorder.produced(at).clone())));
        let outputs = outputs.collect();
        let wanted = stopped.map_or_else(
            || vec![Wanted::new(Vec::new(), 0); node.outputs],
            |(_, wanted)| wanted.clone(),
        );
        let leaves_out = node.hints.by_position && stopped.is_some();
        if leaves_out {
            (0..).zip(&wanted).for_each(|(at, wanted)| {
                recorder.want(at, wanted.clone());
            });
        }
        Running {
            reading: Reading::new(outputs, way),
            places: cursor.map_or(vec![0; node.outputs], |cursor| cursor.outputs.clone()),
            delivered: vec![Vec::new(); node.outputs],
            wanted,
            recorder,
            leaves_out,
            chunk,
        }
    }

    /// Reads up to `left` wanted items, of all outputs together; `most` bounds each output.
    pub fn read(&mut self, mut left: usize, most: usize) -> Vec<Outcome<T>> {
        let mut seen = nothing(self.places.len());
        while left > 0
            && let Some((at, chunk)) = self.reading.next(self.chunk)
        {
            for item in chunk {
                let place = match self.leaves_out {
                    true => {
                        let holes = self.wanted[at].holes();
                        let count = self.delivered[at].len();
                        let behind =
                            self.wanted[at].from() + count.saturating_sub(holes.len()) as u64;
                        holes.get(count).copied().unwrap_or(behind)
                    }
                    false => self.places[at],
                };
                self.places[at] = place + 1;
                assert!(
                    place <= most as u64,
                    "goes on and on, where it gave {most} items in one go"
                );
                self.reading.overrun |= is_overrun(&item);
                if left > 0 && self.wanted[at].next(place) == place {
                    seen[at].push(outcome(item));
                    self.delivered[at].push(place);
                    left -= 1;
                }
            }
        }
        seen
    }

    /// Returns its cursor; with `held`, some of the last delivered items of each output have to
    /// come again.
    pub fn stop(self, held: bool) -> Stop {
        let Running {
            recorder,
            wanted,
            delivered,
            ..
        } = self;
        let rest = |(wanted, delivered): (&Wanted, &Vec<u64>)| {
            let last = delivered.last().copied();
            let from = last.map_or(0, |last| last + 1).max(wanted.from());
            let mut holes: Vec<u64> = wanted
                .holes()
                .iter()
                .copied()
                .filter(|hole| !delivered.contains(hole))
                .collect();
            if held {
                let places = delivered.iter().rev().step_by(2).take(2);
                holes.extend(places.filter(|&&place| place < from));
                holes.sort_unstable();
            }
            Wanted::new(holes, from)
        };
        let wanted: Vec<Wanted> = wanted.iter().zip(&delivered).map(rest).collect();
        let places = wanted.iter().enumerate().map(|(at, wanted)| {
            let (from, first) = (wanted.from(), wanted.holes().first().copied());
            let place = Point {
                reach: first.unwrap_or(from),
                ..Point::at(from)
            };
            (SnapshotHistory(recorder.clone(), at), place)
        });
        let cursor = saved(&Outputs(places.collect()), Point::at(0), NODE);
        let late = (0..)
            .zip(&cursor.outputs)
            .find(|&(at, &place): &(usize, _)| place > wanted[at].next(0));
        assert!(
            late.is_none(),
            "it was recorded too late: of what is wanted it has come {late:?} too far"
        );
        (cursor, wanted)
    }
}

/// Stops at every place, goes on, stops again, and goes on to the end; with errors in the inputs
/// and without. `says` is the node's declaration.
pub(super) fn check_stopped<T>(node: &Node<'_, T>, ways: &[Way], says: &str)
where
    T: PartialEq + Debug + Send + 'static,
{
    for sequences in &node.sequences() {
        for &way in ways {
            for (chunk, always, held) in [
                (1, true, false),
                (1, true, true),
                (1, false, false),
                (1, false, true),
                (3, true, false),
                (64, false, true),
            ] {
                check(
                    node,
                    sequences,
                    How {
                        way,
                        chunk,
                        always,
                        held,
                    },
                    says,
                );
            }
        }
    }
}

fn check<T>(node: &Node<'_, T>, sequences: &[Vec<Option<usize>>], how: How, says: &str)
where
    T: PartialEq + Debug + Send + 'static,
{
    let plain = node.apply(node.open(sequences, |_, _| ()), &node.context);
    let mut plain = Reading::new(plain, how.way);
    let whole = plain.read(usize::MAX, 1);
    let most = whole.iter().map(Vec::len).max().unwrap_or(0);
    let total: usize = whole.iter().map(Vec::len).sum();
    let start = |stopped: Option<&Stop>| Running::start(node, sequences, stopped, how);
    let mut first = start(None);
    let seen = first.read(usize::MAX, most);
    if node.outputs > 1 && (plain.overrun || first.reading.overrun) {
        // Its buffers have no room for additional errors, or for chunks of that size.
        return;
    }
    assert_eq!(
        seen, whole,
        "in an epoch that may be stopped it gives something else"
    );
    for stop in 0..=total {
        let mut at: Option<Stop> = None;
        for (round, some) in [stop, 2, 5, usize::MAX, usize::MAX].into_iter().enumerate() {
            let mut run = start(at.as_ref());
            let seen = run.read(some, most);
            if run.reading.overrun && node.outputs > 1 {
                break;
            }
            for (output, seen) in seen.iter().enumerate() {
                let (wanted, whole) = (&run.wanted[output], &whole[output]);
                let expected: Vec<_> = wanted
                    .positions(whole.len() as u64)
                    .map(|place| &whole[place as usize])
                    .collect();
                let some = if some == usize::MAX {
                    expected.len()
                } else {
                    seen.len()
                };
                assert!(
                    seen.iter().eq(expected.iter().take(some).copied()),
                    "says that {says}, but stopped after {stop} items (resumed {round} times since) its output \
                     {output} gives {seen:?}, and not {expected:?}"
                );
            }
            at = Some(run.stop(how.held && round < 2));
        }
    }
}

/// Returns the cursor of a node that leads to a point of a stream.
pub(super) fn saved(history: &dyn History, point: Point, node: &str) -> Cursor {
    let mut saving = Saving::all(history, point);
    if let Some(problem) = saving.problem {
        panic!("cannot take a snapshot: {problem}");
    }
    let cursor = saving.cursors.remove(node);
    cursor.expect("a node that runs has a place")
}
