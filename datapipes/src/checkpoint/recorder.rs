//! Snapshots of nodes that look at their inputs as a whole.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::pace::Pace;
use super::snapshot::{Above, Feed, Feeds, HeldPositions, Places, Snapshot};
use super::{Cursor, History, Log, OVER, Point, Saving, Trim, Wanted};
use crate::sync::lock;
use crate::{Error, Result};

/// Records the snapshots of a node.
pub(crate) struct Recorder {
    node: Arc<str>,
    /// Number of the node, inputs before their readers.
    id: usize,
    /// Position of the next item of each output.
    produced: Box<[Arc<AtomicU64>]>,
    /// Wanted items of each output, if an epoch is resumed and the node itself leaves out the rest;
    /// and whether the node has looked at them.
    wanted: Mutex<(Vec<Option<Wanted>>, bool)>,
    forgotten: Mutex<Vec<u64>>,
    feeds: Mutex<Feeds>,
    snapshots: Mutex<Log<Snapshot>>,
    pace: Pace,
    problem: Mutex<Option<Error>>,
    /// True if a checkpoint records how much of the node's output may have been used downstream.
    tells: bool,
    /// Position up to which outputs were recorded before the stop as possibly used.
    told: u64,
}

impl Recorder {
    /// Makes the recorder of a node that begins, or that resumes from a cursor. If `tells`, a
    /// checkpoint records how much of the output may have been used downstream.
    pub(crate) fn new(
        node: Arc<str>,
        id: usize,
        outputs: usize,
        trim: Trim,
        inputs: Vec<(Wanted, Arc<dyn History>)>,
        cursor: Option<&Cursor>,
        tells: bool,
    ) -> Arc<Self> {
        let starts = cursor.map_or(vec![0; outputs], |cursor| cursor.outputs.clone());
        let produced =
            (0..outputs).map(|at| Arc::new(AtomicU64::new(starts.get(at).copied().unwrap_or(0))));
        let recorder = Recorder {
            node,
            id,
            produced: produced.collect(),
            wanted: Mutex::new((vec![None; outputs], false)),
            forgotten: Mutex::new(vec![0; outputs]),
            feeds: Mutex::new(Feeds {
                feeds: Vec::new(),
                round: cursor.map_or(0, |cursor| cursor.round),
            }),
            snapshots: Mutex::new(Log::new(trim)),
            pace: Pace::new(),
            problem: Mutex::new(None),
            tells,
            told: cursor
                .and_then(|cursor| Some(cursor.outputs.first()? + cursor.pieces.first()?.1))
                .unwrap_or(0),
        };
        let histories: Vec<Arc<dyn History>> =
            inputs.iter().map(|(_, history)| history.clone()).collect();
        for (wanted, history) in inputs {
            recorder.feed(wanted, history);
        }
        let begun = histories.into_iter().enumerate().map(|(at, history)| {
            let input = cursor
                .and_then(|cursor| cursor.inputs.get(at))
                .cloned()
                .unwrap_or_default();
            Above {
                taken: input.from,
                input,
                over: false,
                history,
            }
        });
        let begun = Snapshot {
            outputs: recorder.positions(),
            inputs: begun.collect(),
            state: cursor
                .map(|cursor| cursor.state.clone())
                .unwrap_or_default(),
            round: cursor.map_or(0, |cursor| cursor.round),
        };
        lock(&recorder.snapshots).push(begun, |_, _| ());
        Arc::new(recorder)
    }

    fn positions(&self) -> Vec<u64> {
        self.produced
            .iter()
            .map(|at| at.load(Ordering::Relaxed))
            .collect()
    }

    /// Adds an input; returns its counter.
    fn feed(&self, wanted: Wanted, history: Arc<dyn History>) -> Arc<AtomicU64> {
        let feed = Feed::new(wanted, history);
        let taken = feed.taken.clone();
        lock(&self.feeds).feeds.push(feed);
        taken
    }

    /// Returns the round in which a node that runs its input more than once resumes, and the wanted
    /// items of that round.
    pub(crate) fn resumed_round(&self) -> Option<(u64, Wanted)> {
        let snapshots = lock(&self.snapshots);
        let snapshot = snapshots.iter().next()?;
        Some((snapshot.round, snapshot.inputs.first()?.input.wanted()))
    }

    /// Replaces the input of the last round by that of a new one. In the resumed round, the
    /// snapshot belongs to it.
    pub(crate) fn begin_round(
        &self,
        round: u64,
        resumed: Option<Wanted>,
        history: Arc<dyn History>,
    ) -> Arc<AtomicU64> {
        *lock(&self.feeds) = Feeds {
            feeds: Vec::new(),
            round,
        };
        if resumed.is_some()
            && let Some(above) = lock(&self.snapshots)
                .first_mut()
                .and_then(|snapshot| snapshot.inputs.first_mut())
        {
            above.history = history.clone();
        }
        self.feed(resumed.unwrap_or_else(|| Wanted::since(0)), history)
    }

    /// Takes snapshots whenever possible, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn always(&self) {
        self.pace.always();
    }

    /// Returns the counter of an input.
    pub(crate) fn taken(&self, input: usize) -> Arc<AtomicU64> {
        lock(&self.feeds).feeds[input].taken.clone()
    }

    /// Returns the held positions of the input with this counter, and the position of its next
    /// item.
    pub(crate) fn input(
        &self,
        is_counter: impl Fn(&Arc<AtomicU64>) -> bool,
    ) -> Option<(Arc<Places>, u64)> {
        let feeds = lock(&self.feeds);
        let feed = feeds.feeds.iter().find(|feed| is_counter(&feed.taken))?;
        Some((feed.held.clone(), feed.position()))
    }

    /// Returns the position of the next item taken of an input.
    pub(crate) fn position(&self, input: usize) -> u64 {
        lock(&self.feeds).feeds.get(input).map_or(0, Feed::position)
    }

    /// Returns the counter of an output.
    pub(crate) fn produced(&self, output: usize) -> &Arc<AtomicU64> {
        &self.produced[output]
    }

    /// Restricts the wanted items of an output. Returns true if the node will know before its first
    /// item.
    pub(crate) fn want(&self, output: usize, wanted: Wanted) -> bool {
        let (all, begun) = &mut *lock(&self.wanted);
        if !*begun {
            all[output] = Some(wanted);
        }
        !*begun
    }

    /// Returns, for each output, the position of its first item, and the wanted items.
    pub(crate) fn wanted(&self) -> Vec<(u64, Option<Wanted>)> {
        let (all, begun) = &mut *lock(&self.wanted);
        *begun = true;
        self.positions()
            .into_iter()
            .zip(all.iter().cloned())
            .collect()
    }

    /// Returns true if a snapshot is due; `pending` outputs came out and were not counted yet.
    #[inline]
    pub(crate) fn is_due(&self, pending: u64) -> bool {
        let progress = match &*self.produced {
            [one] => one.load(Ordering::Relaxed) + pending,
            many => many.iter().map(|at| at.load(Ordering::Relaxed)).sum(),
        };
        self.pace.is_due(progress)
    }

    #[cold]
    pub(crate) fn record(
        &self,
        pending: u64,
        write: impl FnOnce(&mut HeldPositions) -> Result<Vec<u8>>,
    ) {
        if lock(&self.feeds).feeds.iter().any(Feed::takes_again) {
            // Held items are being taken again; the last snapshot is still right.
            return;
        }
        let begun = Instant::now();
        let mut held = HeldPositions::default();
        let written = write(&mut held);
        let (inputs, round) = {
            let Feeds { feeds, round } = &*lock(&self.feeds);
            if let Some(place) = held.not_taken(feeds) {
                let message = format!(
                    "says that it holds what is at place {place} of its input, and has not taken it"
                );
                let error = Error::config(message).at(&self.node);
                lock(&self.problem).get_or_insert(error);
                return;
            }
            let inputs = feeds
                .iter()
                .enumerate()
                .map(|(at, feed)| held.above(at, feed));
            (inputs.collect(), *round)
        };
        let state = match written {
            Ok(state) => state,
            Err(error) => {
                lock(&self.problem).get_or_insert(error.at(&self.node));
                return;
            }
        };
        let mut outputs = self.positions();
        outputs[0] += pending;
        let progress: u64 = outputs.iter().sum();
        let outputs = held.outputs.unwrap_or(outputs);
        // More can be reached from a snapshot than from the next.
        lock(&self.snapshots).push(
            Snapshot {
                outputs,
                inputs,
                state,
                round,
            },
            |_, _| (),
        );
        self.pace.taken(progress, begun);
    }

    /// Saves the last snapshot from which all of these points can be reached.
    pub(crate) fn save_at(&self, points: &[Option<Point>], to: &mut Saving) {
        if let Some(problem) = &*lock(&self.problem) {
            to.problem.get_or_insert_with(|| problem.copied());
        }
        let (round, taken) = {
            let Feeds { feeds, round } = &*lock(&self.feeds);
            (*round, feeds.iter().map(Feed::taken).collect::<Vec<_>>())
        };
        let snapshots = lock(&self.snapshots);
        let before = |snapshot: &&Snapshot| snapshot.is(points, |at, point| at <= point.reach);
        let Some(snapshot) = snapshots
            .iter()
            .rev()
            .find(before)
            .or(snapshots.iter().next())
        else {
            return;
        };
        // No delivered output contains an input taken after the first snapshot that lies after all
        // delivered outputs; without such a snapshot, none contains an input taken from now on.
        let after = |snapshot: &&Snapshot| snapshot.is(points, |at, point| at >= point.most);
        let after = snapshots.iter().find(after);
        let most = |input: usize| match after {
            Some(after) if after.round == snapshot.round => {
                after.inputs.get(input).map(|above| above.taken)
            }
            None if round == snapshot.round => taken.get(input).copied(),
            _ => None,
        };
        let used = |point: &Point| {
            let most = point.most.min(self.produced[0].load(Ordering::Relaxed));
            most.max(self.told).saturating_sub(snapshot.outputs[0])
        };
        let pieces = match points {
            [Some(point)] if self.tells => vec![(0, used(point))],
            _ => Vec::new(),
        };
        let cursor = Cursor {
            outputs: snapshot.outputs.clone(),
            inputs: snapshot
                .inputs
                .iter()
                .map(|above| above.input.clone())
                .collect(),
            state: snapshot.state.clone(),
            pieces,
            round: snapshot.round,
            unordered: false,
        };
        let over = points
            .iter()
            .all(|point| point.is_some_and(|point| point.reach == OVER));
        let above: Vec<_> = snapshot
            .inputs
            .iter()
            .enumerate()
            .map(|(at, above)| {
                let point = above.point();
                let most = most(at).unwrap_or(u64::MAX).max(point.from);
                (
                    Point {
                        reach: if over { OVER } else { point.reach },
                        most,
                        ..point
                    },
                    above.history.clone(),
                )
            })
            .collect();
        drop(snapshots);
        to.cursor(&self.node, cursor);
        for (point, history) in above {
            history.save(point, to);
        }
    }

    fn forget_at(&self, output: usize, before: u64) {
        let reaches = {
            let mut forgotten = lock(&self.forgotten);
            forgotten[output] = forgotten[output].max(before);
            forgotten.clone()
        };
        let over = reaches.iter().all(|&reach| reach == OVER);
        let above: Vec<_> = {
            let mut snapshots = lock(&self.snapshots);
            snapshots.trim(|snapshots| {
                snapshots.get(1).is_some_and(|next| {
                    next.outputs
                        .iter()
                        .zip(&reaches)
                        .all(|(out, reach)| out <= reach)
                })
            });
            let first = snapshots.iter().next().expect("one snapshot is left");
            // A later snapshot may reach back further.
            let reach = |at: usize, above: &Above| {
                let all = snapshots
                    .iter()
                    .filter(|snapshot| snapshot.round == first.round);
                let reaches =
                    all.filter_map(|snapshot| Some(snapshot.inputs.get(at)?.point().reach));
                if over {
                    OVER
                } else {
                    reaches.fold(above.point().reach, u64::min)
                }
            };
            let inputs = first.inputs.iter().enumerate();
            inputs
                .map(|(at, above)| (reach(at, above), above.history.clone()))
                .collect()
        };
        for (reach, history) in above {
            history.forget(reach);
        }
    }
}

/// The history of one output of a node that takes snapshots.
pub(crate) struct SnapshotHistory(pub Arc<Recorder>, pub usize);

impl History for SnapshotHistory {
    fn save(&self, point: Point, to: &mut Saving) {
        let SnapshotHistory(recorder, output) = self;
        let outputs = recorder.produced.len();
        if outputs == 1 {
            return recorder.save_at(&[Some(point)], to);
        }
        let (first, points) = to
            .splits
            .entry(recorder.id)
            .or_insert_with(|| (recorder.clone(), vec![None; outputs]));
        points[*output] = Some(point);
        if !Arc::ptr_eq(first, recorder) {
            to.several(&recorder.node);
        }
    }

    fn forget(&self, before: u64) {
        self.0.forget_at(self.1, before);
    }
}
