//! The timeline of a loader's epochs: events that threads record while somebody writes a trace.
//!
//! A [`TimelineSlot`] is empty unless a trace is being written; asking it then costs one load. The
//! events wait in memory for the writer, up to a limit; those beyond it are lost and counted, so
//! that a slow disk never holds up the epoch.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Origin;
use crate::context::PollLog;
use crate::sync::lock;

/// Events that may wait for the writer, some 10 MiB.
const WAITING: usize = 1 << 16;
/// Items whose last work is remembered, for the arrows to what is made of them.
const WORKED: usize = 1 << 16;
/// Arrows to one slice.
const ARROWS: usize = 8;

/// Amount of detail in a [trace](crate::DataLoader::trace). Each level includes the ones
/// before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum TraceLevel {
    /// The consumer's waits and uses, and the curves of queues and memory.
    Batch,
    /// Each turn of a worker at a morsel, each request and each morsel of a child process, with
    /// arrows by origin.
    #[default]
    Morsel,
    /// Each call of each node that made items, on the row of its thread, inside the calls of the
    /// nodes that read it; also where nodes run inline. Nodes in child processes have none.
    Item,
}

/// The timeline of a loader, if a trace is being written.
#[derive(Debug, Default)]
pub(crate) struct TimelineSlot {
    /// Number of levels that are recorded.
    levels: AtomicU8,
    current: Mutex<Option<Arc<Timeline>>>,
}

impl TimelineSlot {
    /// Returns the timeline that events of a level are recorded in, if there is one.
    #[inline]
    pub(crate) fn get(&self, level: TraceLevel) -> Option<Arc<Timeline>> {
        match self.has(level) {
            true => lock(&self.current).clone(),
            false => None,
        }
    }

    #[inline]
    fn has(&self, level: TraceLevel) -> bool {
        self.levels.load(Relaxed) > level as u8
    }

    /// Begins a timeline of the events up to a level; `None` if there is one already.
    pub(crate) fn begin(&self, level: TraceLevel) -> Option<Arc<Timeline>> {
        let mut current = lock(&self.current);
        if current.is_some() {
            return None;
        }
        let timeline = Arc::new(Timeline::new());
        *current = Some(timeline.clone());
        self.levels.store(level as u8 + 1, Relaxed);
        Some(timeline)
    }

    /// Ends the timeline. The writer gets the events that are left.
    pub(crate) fn end(&self) {
        self.levels.store(0, Relaxed);
        let ended = lock(&self.current).take();
        if let Some(timeline) = ended {
            lock(&timeline.waiting).ended = true;
            timeline.arrived.notify_all();
        }
    }
}

impl PollLog for TimelineSlot {
    fn is_on(&self) -> bool {
        self.has(TraceLevel::Item)
    }

    fn polled(&self, node: &Arc<str>, begun: Instant, items: usize, first: Option<Origin>) {
        if let Some(timeline) = self.get(TraceLevel::Item) {
            let about = (Some(items), first);
            timeline.slice(timeline.thread(), node, begun, begun.elapsed(), about);
        }
    }
}

/// The row of the picture that an event stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Track {
    /// A thread of this process, by a number of its own.
    Thread(u64),
    /// The consumer of a rank.
    Consumer(usize),
    /// A place for a request of a segment. No two requests are at one place at a time.
    Request { segment: usize, place: usize },
    /// A child process of this machine.
    Child(u32),
    /// A worker of another machine, by its place among those of the segment: process numbers of two
    /// machines may be equal.
    Remote { segment: usize, place: usize },
}

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// The name of a track, before its first event.
    Named { track: Track, name: Arc<str> },
    /// Work from a moment on, in nanoseconds since the timeline began.
    Slice {
        track: Track,
        name: Arc<str>,
        at: u64,
        len: u64,
        /// Items in the work, if it is about items.
        items: Option<usize>,
        /// The item, or the first of them.
        origin: Option<Origin>,
    },
    /// Number of morsels of a segment in flight, and how many may be.
    InFlight {
        segment: usize,
        at: u64,
        morsels: usize,
        concurrency: usize,
    },
    /// An arrow from one slice to another, by a number of its own.
    Arrow {
        number: u64,
        from: (Track, u64),
        to: (Track, u64),
    },
}

/// Events on their way to the writer.
#[derive(Debug, Default)]
struct Waiting {
    events: Vec<Event>,
    lost: u64,
    ended: bool,
}

/// Collects events.
#[derive(Debug)]
pub(crate) struct Timeline {
    begun: Instant,
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    /// Tracks that have their names.
    named: Mutex<BTreeSet<Track>>,
    /// Places of requests that are in use, by segment.
    places: Mutex<BTreeMap<usize, BTreeSet<usize>>>,
    /// End of the last morsel of each child process.
    children: Mutex<BTreeMap<Track, Instant>>,
    /// Place and time of the last work on each item, by the hash of its origin.
    worked: Mutex<Worked>,
    arrows: AtomicU64,
}

impl Timeline {
    fn new() -> Self {
        Timeline {
            begun: Instant::now(),
            waiting: Mutex::default(),
            arrived: Condvar::new(),
            named: Mutex::default(),
            places: Mutex::default(),
            children: Mutex::default(),
            worked: Mutex::default(),
            arrows: AtomicU64::new(0),
        }
    }

    /// Returns a moment as nanoseconds since the timeline began.
    pub(crate) fn at(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.begun).as_nanos() as u64
    }

    fn push(&self, event: Event) {
        let mut waiting = lock(&self.waiting);
        if waiting.ended {
            return;
        }
        // A track is named once, and there are few of them.
        if waiting.events.len() >= WAITING && !matches!(event, Event::Named { .. }) {
            waiting.lost += 1;
            return;
        }
        waiting.events.push(event);
        if waiting.events.len() == WAITING / 4 {
            self.arrived.notify_one();
        }
    }

    /// Takes the events that have come within this time; `None` after the last.
    pub(crate) fn take(&self, within: Duration) -> Option<Vec<Event>> {
        let waiting = lock(&self.waiting);
        let quiet = |waiting: &mut Waiting| !waiting.ended && waiting.events.len() < WAITING / 4;
        let waited = self.arrived.wait_timeout_while(waiting, within, quiet);
        let mut waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        let events = std::mem::take(&mut waiting.events);
        (!events.is_empty() || !waiting.ended).then_some(events)
    }

    /// Returns the number of events that were lost.
    pub(crate) fn lost(&self) -> u64 {
        lock(&self.waiting).lost
    }

    /// Returns the track of the thread that calls.
    pub(crate) fn thread(&self) -> Track {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        thread_local! {
            static NUMBER: u64 = NEXT.fetch_add(1, Relaxed);
        }
        let track = Track::Thread(NUMBER.with(|number| *number));
        self.name(track, || {
            let thread = std::thread::current();
            thread.name().unwrap_or("thread").into()
        });
        track
    }

    /// Names a track that has none yet.
    pub(crate) fn name(&self, track: Track, name: impl FnOnce() -> Arc<str>) {
        if lock(&self.named).insert(track) {
            let name = name();
            self.push(Event::Named { track, name });
        }
    }

    /// Returns a place for a request that begins. It is to be [left](Self::leave).
    pub(crate) fn place(&self, segment: usize) -> usize {
        let mut places = lock(&self.places);
        let taken = places.entry(segment).or_default();
        let place = (0..).find(|place| !taken.contains(place));
        let place = place.expect("there are fewer requests than numbers");
        taken.insert(place);
        place
    }

    pub(crate) fn leave(&self, segment: usize, place: usize) {
        if let Some(taken) = lock(&self.places).get_mut(&segment) {
            taken.remove(&place);
        }
    }

    /// Records work from `begun` on.
    pub(crate) fn slice(
        &self,
        track: Track,
        name: &Arc<str>,
        begun: Instant,
        len: Duration,
        (items, origin): (Option<usize>, Option<Origin>),
    ) {
        // Of what began before the timeline, only the rest is on it.
        let at = self.at(begun);
        let end = begun.checked_add(len).map_or(at, |end| self.at(end));
        self.push(Event::Slice {
            track,
            name: name.clone(),
            at,
            len: end - at,
            items,
            origin,
        });
    }

    /// Records how many morsels of a segment are in flight.
    pub(crate) fn in_flight(&self, segment: usize, morsels: usize, concurrency: usize) {
        let at = self.at(Instant::now());
        self.push(Event::InFlight {
            segment,
            at,
            morsels,
            concurrency,
        });
    }

    /// Forgets the items of earlier epochs, and of others that run at the same time.
    pub(crate) fn new_epoch(&self) {
        *lock(&self.worked) = Worked::default();
    }

    /// Records that these items are worked on from this moment on a track: their next work follows
    /// from here.
    fn work(&self, items: &[Origin], track: Track, moment: Instant) {
        let at = self.at(moment);
        let mut worked = lock(&self.worked);
        for item in items {
            worked.insert(hash(item), (track, at));
        }
    }

    /// Draws arrows to this moment on a track from the last work on some of the items, on those that
    /// they descend from, or were made of.
    pub(crate) fn arrows<'a>(
        &self,
        items: impl IntoIterator<Item = &'a Origin>,
        track: Track,
        moment: Instant,
    ) {
        let mut from = Vec::new();
        let worked = lock(&self.worked);
        if worked.later.is_empty() {
            return;
        }
        for item in items {
            sources(item, &worked, &mut from);
        }
        drop(worked);
        let to = (track, self.at(moment));
        // The news of a child's morsel may come after the output, and no arrow leads back in time.
        for from in from.into_iter().filter(|from| from.1 <= to.1) {
            let number = self.arrows.fetch_add(1, Relaxed);
            self.push(Event::Arrow { number, from, to });
        }
    }
}

/// The moments at which items were worked on last, by the hashes of their origins: at least of the
/// last [`WORKED`] of them, and at most of twice as many.
#[derive(Debug, Default)]
struct Worked {
    earlier: HashMap<u64, (Track, u64)>,
    later: HashMap<u64, (Track, u64)>,
}

impl Worked {
    fn insert(&mut self, item: u64, at: (Track, u64)) {
        if self.later.len() >= WORKED {
            self.earlier = std::mem::take(&mut self.later);
        }
        self.later.insert(item, at);
    }

    fn get(&self, item: u64) -> Option<&(Track, u64)> {
        self.later.get(&item).or_else(|| self.earlier.get(&item))
    }
}

fn hash(origin: &Origin) -> u64 {
    let mut hasher = DefaultHasher::new();
    origin.hash(&mut hasher);
    hasher.finish()
}

/// Collects where an item was worked on last: it, or the nearest item that it descends from; or else
/// those that it was made of.
fn sources(item: &Origin, worked: &Worked, found: &mut Vec<(Track, u64)>) {
    if found.len() >= ARROWS {
        return;
    }
    let mut above = Some(item);
    let mut last = item;
    while let Some(item) = above {
        if let Some(from) = worked.get(hash(item)) {
            if !found.contains(from) {
                found.push(*from);
            }
            return;
        }
        (last, above) = (item, item.parent());
    }
    for part in last.parts() {
        sources(part, worked, found);
    }
}

/// The means by which the morsels of a segment record events.
#[derive(Debug, Default)]
pub(crate) struct SegmentTimeline {
    pub slot: Arc<TimelineSlot>,
    /// Number of the segment.
    pub segment: usize,
    /// Names of its nodes.
    pub label: Arc<str>,
}

/// A morsel on the timeline.
pub(crate) struct MorselEvents {
    timeline: Arc<Timeline>,
    label: Arc<str>,
    segment: usize,
    /// Place of a request.
    place: Option<usize>,
    /// Input of the morsel.
    items: Vec<Origin>,
    /// True once the arrows to its first turn are drawn.
    begun: bool,
}

impl SegmentTimeline {
    /// Begins to record a morsel of items with these origins, if a trace is written. A request gets
    /// a track of its own.
    pub(crate) fn morsel(
        &self,
        is_request: bool,
        origins: impl FnOnce() -> Vec<Origin>,
    ) -> Option<MorselEvents> {
        let timeline = self.slot.get(TraceLevel::Morsel)?;
        let place = is_request.then(|| timeline.place(self.segment));
        Some(MorselEvents {
            timeline,
            label: self.label.clone(),
            segment: self.segment,
            place,
            items: origins(),
            begun: false,
        })
    }
}

impl Timeline {
    /// Records work on items. The first time, arrows lead to it.
    fn worked_on(
        &self,
        items: &[Origin],
        first: bool,
        track: Track,
        label: &Arc<str>,
        begun: Instant,
        len: Duration,
    ) {
        // The trace may end at any moment: no arrow without the slice that it leads to.
        let about = (Some(items.len()), items.first().cloned());
        self.slice(track, label, begun, len, about);
        if first {
            self.arrows(items, track, begun);
        }
        self.work(items, track, begun);
    }
}

impl MorselEvents {
    /// Records a turn of a worker with the morsel; nothing for a request.
    pub(crate) fn turn(&mut self, begun: Instant, len: Duration) {
        if self.place.is_none() {
            self.work(self.timeline.thread(), begun, len);
        }
    }

    /// Records that a request has come to its end, and how long it took; nothing for other work.
    pub(crate) fn answered(&mut self, begun: Instant, len: Duration) {
        let (Some(place), segment) = (self.place, self.segment) else {
            return;
        };
        let track = Track::Request { segment, place };
        let name = || format!("{} {place}", self.label).into();
        self.timeline.name(track, name);
        self.work(track, begun, len);
    }

    /// Records that a child process has come to its end with the morsel just now; if it is on another
    /// machine, with its place among the workers and the name of the machine.
    #[cfg(target_os = "linux")]
    pub(crate) fn in_child(&mut self, process: u32, remote: Option<(usize, &str)>, ns: u64) {
        let (now, len) = (Instant::now(), Duration::from_nanos(ns));
        let begun = now.checked_sub(len).unwrap_or(self.timeline.begun);
        if self.place.is_some() {
            return self.answered(begun, len);
        }
        let segment = self.segment;
        let track = match remote {
            None => Track::Child(process),
            Some((place, _)) => Track::Remote { segment, place },
        };
        // The news may be late: one morsel of a child ends before the next begins.
        let before = lock(&self.timeline.children).insert(track, now);
        let begun = before.map_or(begun, |before| begun.max(before));
        self.timeline.name(track, || match remote {
            None => format!("process {process}").into(),
            Some((place, machine)) => format!("worker {place}: {machine}").into(),
        });
        self.work(track, begun, now - begun);
    }

    fn work(&mut self, track: Track, begun: Instant, len: Duration) {
        let first = !std::mem::replace(&mut self.begun, true);
        self.timeline
            .worked_on(&self.items, first, track, &self.label, begun, len);
    }
}

impl Drop for MorselEvents {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.timeline.leave(self.segment, place);
        }
    }
}

/// The consumer of a rank on the timeline: it waits for items, and uses them.
#[derive(Debug, Default)]
pub(crate) struct ConsumerEvents {
    /// Start of the use of the last item, and the item's origin.
    using: Option<(Instant, Origin)>,
}

impl ConsumerEvents {
    /// Records that it has an item, which it uses from now on.
    #[cold]
    pub(crate) fn delivered(&mut self, timeline: &Timeline, rank: usize, origin: &Origin) {
        let (now, track) = (Instant::now(), Track::Consumer(rank));
        timeline.name(track, || format!("consumer of rank {rank}").into());
        self.used(timeline, rank, now);
        self.using = Some((now, origin.clone()));
    }

    /// Records that it has used its last item, and asks for another, for which it waits until `to`.
    #[cold]
    pub(crate) fn asked(
        &mut self,
        timeline: &Timeline,
        rank: usize,
        since: Instant,
        to: Option<Instant>,
    ) {
        self.used(timeline, rank, since);
        if let Some(to) = to {
            let track = Track::Consumer(rank);
            timeline.slice(track, &"wait".into(), since, to - since, (None, None));
        }
    }

    fn used(&mut self, timeline: &Timeline, rank: usize, until: Instant) {
        // An item that came during an earlier trace is none of this one.
        let using = self.using.take();
        if let Some((begun, origin)) = using.filter(|(begun, _)| *begun >= timeline.begun) {
            let track = Track::Consumer(rank);
            let about = (None, Some(origin.clone()));
            timeline.slice(track, &"use".into(), begun, until - begun, about);
            timeline.arrows([&origin], track, begun);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_wait_are_bounded_and_names_are_not_lost() {
        let slot = TimelineSlot::default();
        let timeline = slot.begin(TraceLevel::Item).unwrap();
        assert!(slot.begin(TraceLevel::Item).is_none());
        for _ in 0..WAITING + 7 {
            timeline.in_flight(0, 1, 2);
        }
        timeline.name(Track::Consumer(3), || "consumer".into());
        assert_eq!(timeline.lost(), 7);
        slot.end();
        assert!(slot.get(TraceLevel::Batch).is_none());
        // After the take, handles on the timeline record nothing.
        timeline.in_flight(0, 1, 2);
        let events = timeline.take(Duration::ZERO).unwrap();
        assert_eq!(events.len(), WAITING + 1);
        assert!(matches!(events.last(), Some(Event::Named { .. })));
        assert!(timeline.take(Duration::ZERO).is_none());
        assert_eq!(timeline.lost(), 7);
    }

    #[test]
    fn the_last_items_worked_on_are_known() {
        let mut worked = Worked::default();
        let at = |n| (Track::Consumer(0), n);
        for item in 0..3 * WORKED as u64 {
            worked.insert(item, at(item));
            let first = (item + 1).saturating_sub(WORKED as u64);
            assert_eq!(worked.get(first), Some(&at(first)));
        }
        assert!(worked.get(0).is_none());
        worked.insert(5, at(1));
        worked.insert(5, at(2));
        assert_eq!(worked.get(5), Some(&at(2)));
    }

    #[test]
    fn work_that_began_before_the_timeline_is_cut() {
        let begun = Instant::now();
        let timeline = Timeline::new();
        let len = timeline.begun - begun + Duration::from_secs(1);
        timeline.slice(Track::Consumer(0), &"wait".into(), begun, len, (None, None));
        let events = timeline.take(Duration::ZERO).unwrap();
        let [Event::Slice { at: 0, len, .. }] = events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(len, 1_000_000_000);
    }
}
