//! Where streams stand, so that a stopped epoch can go on: what pipes keep, and how positions lead up the graph.
//!
//! A *position* is a number of items and errors that came over an edge since the epoch began. Positions lead from the
//! consumer up: what is one-in-one-out has the position of its input; what distributes over concatenation keeps a log of
//! *pieces* (so many in, so many out); what looks at the stream as a whole *keeps* a value now and then, with the
//! positions of its inputs. A node is then restored to the last such place before the position that is wanted, and what it
//! gives again is left out. So a state holds numbers, and is made when it is asked for.

mod unordered;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub(crate) use self::unordered::{Given, Unordered};
use crate::wire::{pack, unpack};
use crate::{Context, Error, Result, Wire};

/// Which items of a stream are wanted by a resumed epoch: those from some position on, and before them those that
/// had been taken and not been used, such as what was in a shuffle buffer. Positions count items and errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    holes: Arc<[u64]>,
    from: u64,
}

impl Wanted {
    /// What is wanted from `from` on, and before it at `holes`, in ascending order.
    pub(crate) fn new(holes: Vec<u64>, from: u64) -> Self {
        debug_assert!(holes.is_sorted_by(|a, b| a < b) && holes.last().is_none_or(|&last| last < from));
        Wanted { holes: holes.into(), from }
    }

    /// From here on everything is wanted.
    pub fn from(&self) -> u64 {
        self.from
    }

    /// The positions before it that are wanted, ascending.
    pub fn holes(&self) -> &[u64] {
        &self.holes
    }

    /// Whether everything is.
    pub fn is_all(&self) -> bool {
        self.from == 0
    }

    /// The wanted positions below `end`, ascending.
    pub fn positions(&self, end: u64) -> impl Iterator<Item = u64> + Send + use<> {
        let (holes, from) = (self.holes.clone(), self.from);
        let before = (0..holes.len()).map(move |at| holes[at]).take_while(move |&hole| hole < end);
        before.chain(from..end.max(from))
    }

    /// The first wanted position at or behind `position`.
    pub(crate) fn next(&self, position: u64) -> u64 {
        if position >= self.from {
            return position;
        }
        let at = self.holes.partition_point(|&hole| hole < position);
        self.holes.get(at).copied().unwrap_or(self.from)
    }

    /// The first position at or behind `position` that is not wanted; `None` if all are.
    pub(crate) fn gap(&self, position: u64) -> Option<u64> {
        if position >= self.from {
            return None;
        }
        let mut at = self.holes.partition_point(|&hole| hole < position);
        let mut gap = position;
        while self.holes.get(at) == Some(&gap) {
            (at, gap) = (at + 1, gap + 1);
        }
        (gap < self.from).then_some(gap)
    }
}

/// Goes through what is wanted.
#[derive(Debug)]
pub(crate) struct Positions {
    wanted: Option<Wanted>,
    at: u64,
}

impl Positions {
    /// Of what a node gives; in an epoch that begins, all.
    pub(crate) fn of(cx: &Context) -> Self {
        Positions { wanted: cx.wanted().cloned(), at: 0 }
    }

    /// The next consecutive positions that are wanted, at most so many, below `end`; empty at the end.
    pub(crate) fn next(&mut self, most: u64, end: u64) -> std::ops::Range<u64> {
        let from = self.wanted.as_ref().map_or(self.at, |wanted| wanted.next(self.at)).min(end);
        let gap = self.wanted.as_ref().and_then(|wanted| wanted.gap(from));
        self.at = end.min(from.saturating_add(most)).min(gap.unwrap_or(u64::MAX)).max(from);
        from..self.at
    }
}

/// What a place reaches to that is read no more: nothing above it has to be gone over again.
const OVER: u64 = u64::MAX;

/// A place on an edge: everything from `from` on is wanted, and maybe some of what is from `reach` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub from: u64,
    pub reach: u64,
    /// What had been delivered is made of nothing from here on.
    pub most: u64,
}

impl Place {
    pub(crate) fn at(from: u64) -> Place {
        Place { from, reach: from, most: from }
    }
}

/// What is known of the way that a stream took, to be gone again.
pub(crate) trait Trace: Send + Sync {
    /// Writes down what it takes to have the stream from a place on once more.
    fn save(&self, place: Place, to: &mut Saving);
    /// Nothing before this position will be asked for.
    fn forget(&self, before: u64);
}

/// Where one node stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// For each output, the position of what it gives next.
    pub outputs: Vec<u64>,
    pub inputs: Vec<Input>,
    /// What the pipe kept.
    pub kept: Vec<u8>,
    /// From here on: so many in, so many out. Of a mix, so many out that may have been used below.
    pub pieces: Vec<(u64, u64)>,
    /// Which round of a repeat its input is in; of pieces, how many nodes they go through that are not one in one out.
    pub round: u64,
    /// Whether items come to it, or from it, in any order.
    pub unordered: bool,
}

/// Where a node stands in one of its inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Input {
    /// The position of what it takes next.
    pub from: u64,
    /// Of what it took and still holds, nothing is before this position.
    pub reach: u64,
    /// What it took and still holds, if it said so one by one.
    pub held: Vec<u64>,
}

impl Input {
    pub(crate) fn wanted(&self) -> Wanted {
        Wanted::new(self.held.clone(), self.from)
    }
}

/// A state in the making.
#[derive(Default)]
pub(crate) struct Saving {
    pub cursors: BTreeMap<Arc<str>, Cursor>,
    pub problem: Option<Error>,
    /// Where items come in any order: the positions before the place asked for that were not delivered.
    pending: Option<Vec<u64>>,
    /// Nodes of several outputs, by number, with what is wanted of each output. They are resolved when all that reads
    /// them is.
    splits: BTreeMap<usize, (Arc<Recorder>, Vec<Option<Place>>)>,
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
        self.problem.get_or_insert_with(|| Error::new(crate::ErrorKind::Config, message).at(node));
    }

    /// All that leads to a place of a stream.
    pub(crate) fn all(trace: &dyn Trace, place: Place) -> Saving {
        let mut saving = Saving::default();
        trace.save(place, &mut saving);
        while let Some((_, (recorder, places))) = saving.splits.pop_last() {
            recorder.save_at(&places, &mut saving);
        }
        saving
    }
}

/// Tells the consumer that logs have become long.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trim(Arc<AtomicBool>);

impl Trim {
    pub(crate) fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn done(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// A log that asks to be trimmed when it is long, and seldom if that does not help.
#[derive(Debug)]
pub(crate) struct Log<T> {
    entries: VecDeque<T>,
    most: usize,
    trim: Trim,
}

const LONG: usize = 256;
/// Entries of a log, at most.
const LONGEST: usize = 1 << 14;

impl<T> Log<T> {
    pub(crate) fn new(trim: Trim) -> Self {
        Log { entries: VecDeque::new(), most: LONG, trim }
    }

    /// `join` puts an entry and the one behind it into one, where the log has become so long that it has to be coarser: nothing
    /// of it may have been forgotten for a while, since nothing was delivered, or what is old is still held.
    pub(crate) fn push(&mut self, entry: T, join: impl Fn(&mut T, T)) {
        if self.entries.len() >= LONGEST {
            let mut entries = std::mem::take(&mut self.entries).into_iter();
            while let Some(mut entry) = entries.next() {
                if let Some(next) = entries.next() {
                    join(&mut entry, next);
                }
                self.entries.push_back(entry);
            }
        }
        self.entries.push_back(entry);
        if self.entries.len() > self.most {
            self.most = 2 * self.entries.len();
            self.trim.ask();
        }
    }

    /// Forgets from the front while `old` says so.
    pub(crate) fn trim(&mut self, mut old: impl FnMut(&VecDeque<T>) -> bool) {
        while old(&self.entries) {
            self.entries.pop_front();
        }
        self.most = (2 * self.entries.len()).max(LONG);
    }

    pub(crate) fn iter(&self) -> std::collections::vec_deque::Iter<'_, T> {
        self.entries.iter()
    }
}

/// What a node that looks at its input as a whole kept, and where it was then.
struct Mark {
    outputs: Vec<u64>,
    inputs: Vec<Above>,
    kept: Vec<u8>,
    round: u64,
}

/// Where a node was in one of its inputs.
struct Above {
    input: Input,
    /// It had let go of it, and will not ask for it where it goes on from here.
    over: bool,
    trace: Arc<dyn Trace>,
}

impl Above {
    fn place(&self) -> Place {
        Place {
            from: self.input.from,
            reach: if self.over { OVER } else { self.input.reach },
            most: u64::MAX,
        }
    }
}

/// Where a node reads.
struct Feed {
    /// The position of what is taken next; less than that while what was held is taken again.
    taken: Arc<AtomicU64>,
    wanted: Wanted,
    trace: Arc<dyn Trace>,
}

impl Feed {
    fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// The position of what is taken next.
    fn position(&self) -> u64 {
        let (taken, holes) = (self.taken(), self.wanted.holes());
        let begin = self.wanted.from - holes.len() as u64;
        holes.get((taken - begin) as usize).copied().unwrap_or(taken)
    }
}

struct Feeds {
    feeds: Vec<Feed>,
    round: u64,
}

/// Writes down what a node keeps.
pub(crate) struct Recorder {
    node: Arc<str>,
    /// The node's number, inputs before those who read them.
    id: usize,
    /// For each output, the position of what comes out next.
    produced: Box<[Arc<AtomicU64>]>,
    /// For each output, what is wanted of it, where an epoch goes on and the node itself leaves out the rest; and whether it
    /// has looked.
    wanted: Mutex<(Vec<Option<Wanted>>, bool)>,
    forgotten: Mutex<Vec<u64>>,
    feeds: Mutex<Feeds>,
    marks: Mutex<Log<Mark>>,
    /// The progress at which something is to be kept again.
    due: AtomicU64,
    step: Mutex<(u64, Option<Instant>)>,
    problem: Mutex<Option<Error>>,
    /// Whether a state tells how much of what it gave may have been used below.
    tells: AtomicBool,
    /// Up to where it was told of before the epoch went on: that may have been used, too.
    told: u64,
}

/// Keeping a value costs about as much as some items; it should not be done more often than this without need.
const SELDOM_NS: u128 = 200_000;
const MOST_STEP: u64 = 1 << 16;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    /// For a node that begins, or that goes on from a cursor.
    pub(crate) fn new(
        node: Arc<str>,
        id: usize,
        outputs: usize,
        trim: Trim,
        inputs: Vec<(Wanted, Arc<dyn Trace>)>,
        cursor: Option<&Cursor>,
    ) -> Arc<Self> {
        let starts = cursor.map_or(vec![0; outputs], |cursor| cursor.outputs.clone());
        let produced = (0..outputs).map(|at| Arc::new(AtomicU64::new(starts.get(at).copied().unwrap_or(0))));
        let recorder = Recorder {
            node,
            id,
            produced: produced.collect(),
            wanted: Mutex::new((vec![None; outputs], false)),
            forgotten: Mutex::new(vec![0; outputs]),
            feeds: Mutex::new(Feeds { feeds: Vec::new(), round: cursor.map_or(0, |cursor| cursor.round) }),
            marks: Mutex::new(Log::new(trim)),
            due: AtomicU64::new(0),
            step: Mutex::new((1, None)),
            problem: Mutex::new(None),
            tells: AtomicBool::new(false),
            told: cursor
                .and_then(|cursor| Some(cursor.outputs.first()? + cursor.pieces.first()?.1))
                .unwrap_or(0),
        };
        let traces: Vec<Arc<dyn Trace>> = inputs.iter().map(|(_, trace)| trace.clone()).collect();
        for (wanted, trace) in inputs {
            recorder.feed(wanted, trace);
        }
        let begun = traces.into_iter().enumerate().map(|(at, trace)| {
            let input = cursor.and_then(|cursor| cursor.inputs.get(at)).cloned().unwrap_or_default();
            Above { input, over: false, trace }
        });
        let begun = Mark {
            outputs: recorder.positions(),
            inputs: begun.collect(),
            kept: cursor.map(|cursor| cursor.kept.clone()).unwrap_or_default(),
            round: cursor.map_or(0, |cursor| cursor.round),
        };
        lock(&recorder.marks).push(begun, |_, _| ());
        Arc::new(recorder)
    }

    fn positions(&self) -> Vec<u64> {
        self.produced.iter().map(|at| at.load(Ordering::Relaxed)).collect()
    }

    /// One more input; its counter.
    fn feed(&self, wanted: Wanted, trace: Arc<dyn Trace>) -> Arc<AtomicU64> {
        let taken = Arc::new(AtomicU64::new(wanted.from - wanted.holes.len() as u64));
        lock(&self.feeds).feeds.push(Feed { taken: taken.clone(), wanted, trace });
        taken
    }

    /// In which round a node that runs its input more than once goes on, and what is wanted of it.
    pub(crate) fn goes_on(&self) -> Option<(u64, Wanted)> {
        let marks = lock(&self.marks);
        let mark = marks.iter().next()?;
        Some((mark.round, mark.inputs.first()?.input.wanted()))
    }

    /// The input of a round takes the place of the last round's. In the round that an epoch goes on in, what was kept
    /// belongs to it.
    pub(crate) fn begin_round(
        &self,
        round: u64,
        goes_on: Option<Wanted>,
        trace: Arc<dyn Trace>,
    ) -> Arc<AtomicU64> {
        *lock(&self.feeds) = Feeds { feeds: Vec::new(), round };
        if goes_on.is_some()
            && let Some(above) =
                lock(&self.marks).entries.front_mut().and_then(|mark| mark.inputs.first_mut())
        {
            above.trace = trace.clone();
        }
        self.feed(goes_on.unwrap_or_else(|| Wanted::new(Vec::new(), 0)), trace)
    }

    /// Keeps whenever it can be done, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn always(&self) {
        lock(&self.step).0 = 0;
    }

    /// The counter of an input.
    pub(crate) fn taken(&self, input: usize) -> Arc<AtomicU64> {
        lock(&self.feeds).feeds[input].taken.clone()
    }

    /// The counter of an output.
    pub(crate) fn produced(&self, output: usize) -> &Arc<AtomicU64> {
        &self.produced[output]
    }

    /// No more than this is wanted of an output. Says whether the node will know before its first item.
    pub(crate) fn want(&self, output: usize, wanted: Wanted) -> bool {
        let (all, begun) = &mut *lock(&self.wanted);
        if !*begun {
            all[output] = Some(wanted);
        }
        !*begun
    }

    /// For each output, the position of what comes out first, and what is wanted of it.
    pub(crate) fn wanted(&self) -> Vec<(u64, Option<Wanted>)> {
        let (all, begun) = &mut *lock(&self.wanted);
        *begun = true;
        self.positions().into_iter().zip(all.iter().cloned()).collect()
    }

    /// Whether it is time to keep something; `pending` came out and was not counted yet.
    #[inline]
    fn is_due(&self, pending: u64) -> bool {
        let progress = match &*self.produced {
            [one] => one.load(Ordering::Relaxed) + pending,
            many => many.iter().map(|at| at.load(Ordering::Relaxed)).sum(),
        };
        progress >= self.due.load(Ordering::Relaxed)
    }

    #[cold]
    fn keep(&self, pending: u64, write: impl FnOnce(&mut Keep) -> Result<Vec<u8>>) {
        if lock(&self.feeds).feeds.iter().any(|feed| feed.taken() < feed.wanted.from) {
            // What was held is being taken again; the last mark still says what there is to be said.
            return;
        }
        let begun = Instant::now();
        let mut keep = Keep::default();
        let written = write(&mut keep);
        let feeds = lock(&self.feeds);
        let mut inputs = Vec::with_capacity(feeds.feeds.len());
        for (at, feed) in feeds.feeds.iter().enumerate() {
            let taken = feed.taken();
            let rewound = keep.rewound.get(at).copied().unwrap_or(0);
            let from = taken.checked_sub(rewound).expect("no more is taken back than was taken");
            let held = keep.held.get_mut(at).map(std::mem::take).unwrap_or_default();
            let reach =
                keep.reach.get(at).copied().unwrap_or(from).min(held.first().copied().unwrap_or(from));
            // Whoever counts what is taken holds the counter.
            let over = Arc::strong_count(&feed.taken) == 1;
            inputs.push(Above {
                input: Input { from, reach: reach.min(from), held },
                over,
                trace: feed.trace.clone(),
            });
        }
        let round = feeds.round;
        drop(feeds);
        let kept = match written {
            Ok(kept) => kept,
            Err(error) => {
                lock(&self.problem).get_or_insert(error.at(&self.node));
                return;
            }
        };
        let mut outputs = self.positions();
        outputs[0] += pending;
        let progress: u64 = outputs.iter().sum();
        let outputs = keep.outputs.unwrap_or(outputs);
        // From a mark more can be reached than from the one behind it.
        lock(&self.marks).push(Mark { outputs, inputs, kept, round }, |_, _| ());
        let (step, last) = &mut *lock(&self.step);
        let now = Instant::now();
        // What is dear to keep is kept less often.
        let dear = (now - begun).as_nanos();
        match last.map(|last| begun.duration_since(last).as_nanos()) {
            Some(quick) if quick < SELDOM_NS.max(50 * dear) => *step = (*step * 2).min(MOST_STEP),
            Some(slow) if slow > 10 * SELDOM_NS.max(50 * dear) => *step = (*step / 2).max(1.min(*step)),
            _ => {}
        }
        *last = Some(now);
        self.due.store(progress + *step, Ordering::Relaxed);
    }

    /// The last mark from which all of these places can be reached.
    fn save_at(&self, places: &[Option<Place>], to: &mut Saving) {
        if let Some(problem) = &*lock(&self.problem) {
            to.problem.get_or_insert_with(|| Error::new(problem.kind(), problem.to_string()));
        }
        let (round, taken) = {
            let feeds = lock(&self.feeds);
            let taken: Vec<u64> = feeds.feeds.iter().map(|feed| feed.taken.load(Ordering::Relaxed)).collect();
            (feeds.round, taken)
        };
        let marks = lock(&self.marks);
        let before = |mark: &&Mark| {
            mark.outputs.iter().zip(places).all(|(&at, place)| place.is_none_or(|place| at <= place.reach))
        };
        let Some(mark) = marks.iter().rev().find(before).or(marks.iter().next()) else { return };
        // Nothing of what came in behind the first mark that lies behind all that was delivered, or not at all yet, is in it.
        let behind = |mark: &&Mark| {
            mark.outputs.iter().zip(places).all(|(&at, place)| place.is_none_or(|place| at >= place.most))
        };
        let behind = marks.iter().find(behind);
        let most = |input: usize| match behind {
            Some(behind) if behind.round == mark.round => {
                behind.inputs.get(input).map(|above| above.input.from)
            }
            None if round == mark.round => taken.get(input).copied(),
            _ => None,
        };
        let used = |place: &Place| {
            let most = place.most.min(self.produced[0].load(Ordering::Relaxed));
            most.max(self.told).saturating_sub(mark.outputs[0])
        };
        let pieces = match places {
            [Some(place)] if self.tells.load(Ordering::Relaxed) => vec![(0, used(place))],
            _ => Vec::new(),
        };
        let cursor = Cursor {
            outputs: mark.outputs.clone(),
            inputs: mark.inputs.iter().map(|above| above.input.clone()).collect(),
            kept: mark.kept.clone(),
            pieces,
            round: mark.round,
            unordered: false,
        };
        let over = places.iter().all(|place| place.is_some_and(|place| place.reach == OVER));
        let above: Vec<_> = mark
            .inputs
            .iter()
            .enumerate()
            .map(|(at, above)| {
                let place = above.place();
                let most = most(at).unwrap_or(u64::MAX).max(place.from);
                (Place { reach: if over { OVER } else { place.reach }, most, ..place }, above.trace.clone())
            })
            .collect();
        drop(marks);
        to.cursor(&self.node, cursor);
        for (place, trace) in above {
            trace.save(place, to);
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
            let mut marks = lock(&self.marks);
            marks.trim(|marks| {
                marks
                    .get(1)
                    .is_some_and(|next| next.outputs.iter().zip(&reaches).all(|(out, reach)| out <= reach))
            });
            let first = marks.iter().next().expect("one mark is left");
            // A later mark may reach back further.
            let reach = |at: usize, above: &Above| {
                let all = marks.iter().filter(|mark| mark.round == first.round);
                let reaches = all.filter_map(|mark| Some(mark.inputs.get(at)?.place().reach));
                if over { OVER } else { reaches.fold(above.place().reach, u64::min) }
            };
            let inputs = first.inputs.iter().enumerate();
            inputs.map(|(at, above)| (reach(at, above), above.trace.clone())).collect()
        };
        for (reach, trace) in above {
            trace.forget(reach);
        }
    }
}

/// The way of one output of a node that keeps something.
pub(crate) struct Marked(pub Arc<Recorder>, pub usize);

impl Trace for Marked {
    fn save(&self, place: Place, to: &mut Saving) {
        let Marked(recorder, output) = self;
        let outputs = recorder.produced.len();
        if outputs == 1 {
            return recorder.save_at(&[Some(place)], to);
        }
        let (first, places) =
            to.splits.entry(recorder.id).or_insert_with(|| (recorder.clone(), vec![None; outputs]));
        places[*output] = Some(place);
        if !Arc::ptr_eq(first, recorder) {
            to.several(&recorder.node);
        }
    }

    fn forget(&self, before: u64) {
        self.0.forget_at(self.1, before);
    }
}

/// A source, or a node that gives what is at a position without its input.
pub(crate) struct ByPosition(pub Arc<str>);

impl Trace for ByPosition {
    fn save(&self, place: Place, to: &mut Saving) {
        to.cursor(&self.0, Cursor { outputs: vec![place.from], ..Cursor::default() });
    }

    fn forget(&self, _: u64) {}
}

/// The log of what distributes over concatenation.
pub(crate) struct Pieces {
    node: Arc<str>,
    /// How many nodes they go through that are not one in one out.
    through: u64,
    log: Mutex<PieceLog>,
    above: Arc<dyn Trace>,
}

struct PieceLog {
    /// Where the first piece begins.
    input: u64,
    output: u64,
    pieces: Log<(u64, u64)>,
    /// So many of the input belong to pieces that are in the log already: what is left of them to be taken, and to be through.
    again: (u64, u64),
}

impl PieceLog {
    /// Behind what is before this place of the output, no more was taken than up to here.
    fn most(&self, output: u64) -> u64 {
        let (mut end_in, mut end_out) = (self.input, self.output);
        for &(inside, outside) in self.pieces.iter() {
            if end_out >= output {
                break;
            }
            (end_in, end_out) = (end_in + inside, end_out + outside);
        }
        if end_out >= output { end_in } else { u64::MAX }
    }
}

/// Most pieces of a segment in a state; neighbours are joined.
const MOST_PIECES: usize = 256;

impl Pieces {
    pub(crate) fn new(node: Arc<str>, through: u64, trim: Trim, above: Arc<dyn Trace>) -> Arc<Self> {
        let log = PieceLog { input: 0, output: 0, pieces: Log::new(trim), again: (0, 0) };
        Arc::new(Pieces { node, through, log: Mutex::new(log), above })
    }

    /// What is wanted of the input, and the positions of what comes out then, one range after the other, where this
    /// much of the output is wanted.
    pub(crate) fn again(cursor: &Cursor, wanted: &Wanted) -> (Wanted, Vec<(u64, u64)>) {
        let (mut input, mut output) =
            (cursor.inputs.first().map_or(0, |input| input.from), cursor.outputs[0]);
        let (mut holes, mut runs) = (Vec::new(), Vec::new());
        for &(inside, outside) in &cursor.pieces {
            if wanted.next(output) < output + outside {
                holes.extend(input..input + inside);
                runs.push((output, output + outside));
            }
            (input, output) = (input + inside, output + outside);
        }
        runs.push((output, u64::MAX));
        (Wanted::new(holes, input), runs)
    }

    /// Goes on from a cursor: `again` many of the input are of pieces that it knows.
    pub(crate) fn resume(&self, cursor: &Cursor, again: u64) {
        let mut log = lock(&self.log);
        (log.input, log.output) = (cursor.inputs.first().map_or(0, |input| input.from), cursor.outputs[0]);
        cursor.pieces.iter().for_each(|&piece| log.pieces.push(piece, join));
        log.again = (again, again);
    }

    /// A piece that begins now may take so many.
    pub(crate) fn limit(&self) -> usize {
        match lock(&self.log).again.0 {
            0 => usize::MAX,
            again => usize::try_from(again).unwrap_or(usize::MAX),
        }
    }

    /// So many were taken of the input.
    pub(crate) fn took(&self, items: usize) {
        let left = &mut lock(&self.log).again.0;
        *left = left.saturating_sub(items as u64);
    }

    /// A piece is through: so many in, so many out.
    pub(crate) fn push(&self, inside: u64, outside: u64) {
        let mut log = lock(&self.log);
        match &mut log.again.1 {
            0 => log.pieces.push((inside, outside), join),
            again => *again = again.saturating_sub(inside),
        }
    }
}

/// Two pieces are one.
fn join(piece: &mut (u64, u64), next: (u64, u64)) {
    *piece = (piece.0 + next.0, piece.1 + next.1);
}

impl Trace for Pieces {
    fn save(&self, place: Place, to: &mut Saving) {
        let (cursor, above) = {
            let log = lock(&self.log);
            let (mut input, mut output) = (log.input, log.output);
            let mut pieces = Vec::new();
            let (mut end_in, mut end_out) = (input, output);
            for &(inside, outside) in log.pieces.iter() {
                if pieces.is_empty() && end_out + outside <= place.reach {
                    (input, output) = (end_in + inside, end_out + outside);
                } else if end_out < place.from {
                    pieces.push((inside, outside));
                } else {
                    break;
                }
                (end_in, end_out) = (end_in + inside, end_out + outside);
            }
            while pieces.len() > MOST_PIECES {
                let joined = |pair: &[(u64, u64)]| {
                    pair.iter().fold((0, 0), |sum, piece| (sum.0 + piece.0, sum.1 + piece.1))
                };
                pieces = pieces.chunks(2).map(joined).collect();
            }
            // What begins behind the wanted place is the business of the epoch that goes on.
            let inputs = vec![Input { from: input, reach: input, held: Vec::new() }];
            let cursor =
                Cursor { outputs: vec![output], inputs, pieces, round: self.through, ..Cursor::default() };
            let most = log.most(place.most).max(end_in);
            (cursor, Place { from: end_in, reach: if place.reach == OVER { OVER } else { input }, most })
        };
        to.cursor(&self.node, cursor);
        self.above.save(above, to);
    }

    fn forget(&self, before: u64) {
        let above = {
            let mut guard = lock(&self.log);
            let log = &mut *guard;
            let (input, output) = (&mut log.input, &mut log.output);
            log.pieces.trim(|pieces| match pieces.front() {
                Some(&(inside, outside)) if *output + outside <= before => {
                    (*input, *output) = (*input + inside, *output + outside);
                    true
                }
                _ => false,
            });
            if before == OVER { OVER } else { *input }
        };
        self.above.forget(above);
    }
}

/// What a pipe holds of its inputs while it keeps something.
#[derive(Default)]
pub(crate) struct Keep {
    outputs: Option<Vec<u64>>,
    rewound: Vec<u64>,
    held: Vec<Vec<u64>>,
    reach: Vec<u64>,
}

impl Keep {
    /// As if the last `items` of its only input had not been taken: they will come again.
    pub(crate) fn rewind(&mut self, items: u64) {
        self.rewound = vec![items];
    }

    /// So much has been given to each output since the epoch began, though some of it may wait there. For a node whose
    /// outputs are not what it is asked for at the moment.
    pub(crate) fn outputs(&mut self, dealt: Vec<u64>) {
        self.outputs = Some(dealt);
    }

    /// It holds what is at these positions of its only input, ascending; they will come again, before all others.
    pub(crate) fn hold(&mut self, positions: Vec<u64>) {
        self.held = vec![positions];
    }

    /// It holds some of its only input from this position on; which it says by [`Pipe::held`](crate::Pipe::held).
    pub(crate) fn hold_since(&mut self, position: u64) {
        self.reach = vec![position];
    }
}

/// What a node of a loader that can go on is given.
#[derive(Clone, Default)]
pub(crate) struct Keeper {
    pub recorder: Option<Arc<Recorder>>,
    pub kept: Option<Arc<[u8]>>,
    pub wanted: Option<Wanted>,
    /// For a node to which items come in any order.
    pub unordered: Option<Arc<Unordered>>,
    /// So many items are given again that may have been used below before the stop.
    pub again: u64,
}

impl Context {
    /// Whether states of this epoch can be asked for, so that pipes have to keep what it takes.
    pub fn is_resumable(&self) -> bool {
        self.keeper().is_some()
    }

    /// What this pipe kept last before the epoch was stopped; `None` in an epoch that begins, or if it had kept nothing.
    ///
    /// # Errors
    /// `Config`, which no policy skips, if what was kept is not of this type.
    pub fn kept<S: Wire>(&self) -> Result<Option<S>> {
        match self.keeper().and_then(|keeper| keeper.kept.as_ref()) {
            Some(kept) if !kept.is_empty() => unpack(kept).map(Some).map_err(|error| {
                let message = "the state holds something else for it than it keeps";
                Error::new(crate::ErrorKind::Config, message).with_source(error).at(self.node())
            }),
            _ => Ok(None),
        }
    }

    /// Which positions are wanted of what this node gives, where it said that it goes
    /// [by position](crate::Facts::by_position) and an epoch is resumed. `None` in an epoch that begins.
    pub fn wanted(&self) -> Option<&Wanted> {
        self.keeper()?.wanted.as_ref()
    }

    /// Keeps what it takes to go on from here, for a pipe that [says that it does](crate::Pipe::is_resumable).
    ///
    /// "Here" is between two items: what `state` says has to be right for exactly the items that were taken from the
    /// inputs and those that were given out. In a [`Chunks`](crate::Chunks) that is the beginning of `poll_chunk`; where
    /// items are emitted one by one it is [`Emitter::keep`](crate::Emitter::keep). Call it as often as you can: `state` is
    /// asked only now and then, about five thousand times a second at most. A resumed epoch applies the pipe again,
    /// which finds the last value that it needs by [`kept`](Context::kept) and its input behind what had been taken
    /// then; what it gives again is left out behind it. Does nothing where the loader was not told that it will be
    /// [resumed](crate::loader::Builder::resumable).
    #[inline]
    pub fn keep<S: Wire>(&self, state: impl FnOnce() -> S) {
        self.keep_with(0, |_| pack(&state()));
    }

    /// The same for a pipe that holds some of its input, and with so many that came out and were not counted yet.
    #[inline]
    pub(crate) fn keep_with(&self, pending: usize, write: impl FnOnce(&mut Keep) -> Result<Vec<u8>>) {
        if let Some(recorder) = self.recorder()
            && recorder.is_due(pending as u64)
        {
            recorder.keep(pending as u64, write);
        }
    }

    /// Whether it is time to keep something.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.recorder().is_some_and(|recorder| recorder.is_due(0))
    }

    /// Says that a state is to tell how much of what this pipe gave may have been used below it.
    pub(crate) fn tell_used(&self) {
        if let Some(recorder) = self.recorder() {
            recorder.tells.store(true, Ordering::Relaxed);
        }
    }

    /// How many items and errors this pipe gives again, from what it [kept](Context::kept) on, in an epoch that goes on: they
    /// may have been used by what is below it before the stop, if it [asked](Context::tell_used).
    pub(crate) fn again(&self) -> u64 {
        self.keeper().map_or(0, |keeper| keeper.again)
    }

    /// The position of what is taken next of an input; 0 where no states are made.
    pub(crate) fn position(&self, input: usize) -> u64 {
        self.recorder().map_or(0, |recorder| lock(&recorder.feeds).feeds.get(input).map_or(0, Feed::position))
    }

    /// Where items come in any order, and states can be asked for: who is told which of them came out.
    pub(crate) fn unordered(&self) -> Option<&Arc<Unordered>> {
        self.keeper()?.unordered.as_ref()
    }

    pub(crate) fn recorder(&self) -> Option<&Arc<Recorder>> {
        self.keeper()?.recorder.as_ref()
    }
}
