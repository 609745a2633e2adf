//! A model of an epoch that has run: the time that each of its parts would need for one batch with
//! other settings.
//!
//! A part is the consumer's step, a thread, the workers, the cores, or what a segment reads from. The
//! parts work beside each other, so that the slowest sets the pace (the bottleneck law), if the
//! buffers between them hold some items. Work on `n` servers takes the `n`th part of its time, a
//! request in flight is a server (Little's law).
//!
//! 1. [`homes`] finds where the work of each node is done: on a thread or in a segment.
//! 2. [`Model::segments`] adds up the work of the segments, on workers, cores and processes, and makes
//!    a part for each limit of requests or morsels in flight. Only a segment in strict order with few
//!    of them is simulated ([`in_order`]).
//! 3. [`Model::needs`] adds the other parts, and takes the slowest.
//!
//! # Units
//! The figures of [`Stats`] are sums over the whole epoch, as `Duration`. All numbers here are seconds
//! for one batch (`f64`), except those whose description says otherwise.

mod homes;
mod in_order;

use std::time::Duration;

pub(super) use self::homes::{Ahead, busiest_ahead};
use self::homes::{Home, Thread, homes, scale};
use self::in_order::Times;
use super::bottleneck::Pace;
use super::{NodeStats, PartKind, PartPace, SegmentStats, Stats};
use crate::Work;
use crate::loader::ahead;

/// Share of the cores in use from which work that has no core waits for one, and not in itself.
const SATURATED: f64 = 0.85;

/// Settings that differ from those of the plan that has run.
#[derive(Clone, Debug, Default)]
pub(super) struct Change {
    pub workers: Option<usize>,
    pub cores: Option<usize>,
    /// Requests in flight of each segment of I/O.
    pub concurrency: Option<usize>,
    /// Morsels in flight of the segment with this number.
    pub concurrency_of: Vec<(usize, usize)>,
    pub step: Option<Duration>,
    pub round_trip: Option<Duration>,
    /// The node after which items come from a cache.
    pub cached: Option<usize>,
}

impl Change {
    /// Returns the number in flight of a segment, if it is set.
    fn in_flight(&self, segment: usize, work: Work) -> Option<usize> {
        let own = self.concurrency_of.iter().rev();
        let own = own.filter(|(of, _)| *of == segment).map(|(_, set)| *set);
        let all = self.concurrency.filter(|_| work == Work::Io);
        own.chain(all).next()
    }
}

/// Times of the parts with a change.
pub(super) struct Needs {
    /// Parts, the slowest first.
    pub parts: Vec<PartPace>,
    /// Time from one batch to the next.
    pub seconds: f64,
    /// Time of the consumer's step.
    pub step: f64,
    /// Most memory of the loader, in bytes.
    pub memory_bytes: f64,
}

/// Sums of what the segments need.
struct Sum<'a> {
    parts: Vec<PartPace>,
    /// Work of the pool's workers.
    work: f64,
    /// Segment with the most of it, and the slowest node of that.
    slowest: (f64, Option<&'a NodeStats>),
    /// Time on cores.
    computed: f64,
    /// Time if everything ran on the consumer's thread.
    serial: f64,
    /// Polls of futures by the one thread of the async runtime, the nodes of these, and the slowest of
    /// the first ones.
    polled: f64,
    polled_of: Vec<String>,
    slowest_polled: Option<&'a NodeStats>,
    /// Bytes of the epoch.
    memory: f64,
}

/// A segment, and what a change makes of it.
struct SegmentChange<'a> {
    segment: &'a SegmentStats,
    /// Names of its nodes.
    nodes: String,
    slowest: Option<&'a NodeStats>,
    /// Share of its work that is left.
    left: f64,
    /// Number in flight, if it is set.
    set: Option<usize>,
    workers: usize,
    /// True if the measured run computed on all cores.
    is_saturated: bool,
}

/// An epoch that has run, with its figures.
pub(super) struct Model<'a> {
    stats: &'a Stats,
    homes: Vec<Home>,
    threads: Vec<Thread>,
    /// Number of batches that were delivered.
    batches: f64,
    /// Number of cores, here.
    cores: usize,
}

/// Returns the number of cores of this machine.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl<'a> Model<'a> {
    /// Makes the model of figures in which something was delivered.
    pub fn new(stats: &'a Stats) -> Self {
        let (homes, mut threads) = homes(stats);
        scale(&mut threads, &homes, stats);
        Model {
            stats,
            homes,
            threads,
            batches: stats.delivered as f64,
            cores: cores(),
        }
    }

    /// Returns a batch's part of a time of the whole epoch.
    fn per_batch(&self, time: Duration) -> f64 {
        time.as_secs_f64() / self.batches
    }

    /// Returns true if a segment has a part of the work for itself.
    pub fn is_active(&self, segment: usize) -> bool {
        self.homes.contains(&Home::Segment(segment))
    }

    /// Returns the nodes without work if the items of one come from a cache: it, and those that
    /// nothing else reads.
    fn gone(&self, cached: Option<usize>) -> Vec<bool> {
        let nodes = &self.stats.nodes;
        let mut gone = vec![cached.is_some(); nodes.len()];
        let Some(cached) = cached else { return gone };
        if let Some(root) = gone.last_mut() {
            *root = false;
        }
        for id in (0..nodes.len()).rev() {
            if !gone[id] && id != cached {
                nodes[id]
                    .inputs
                    .iter()
                    .for_each(|&above| gone[above] = false);
            }
        }
        gone[cached] = true;
        gone
    }

    /// Returns the time that each part needs for a batch.
    pub fn needs(&self, change: &Change) -> Needs {
        let gone = self.gone(change.cached);
        let own_step = || self.per_batch(self.stats.wall.saturating_sub(self.stats.waited));
        let step = change.step.map_or_else(own_step, |step| step.as_secs_f64());
        let workers = change.workers.unwrap_or(self.stats.workers);
        let sum = self.segments(change, workers, &gone);
        let limit = self
            .stats
            .memory
            .limit
            .map_or(f64::MAX, |limit| limit as f64);
        let memory_bytes = sum.memory.clamp(0.0, limit);
        let consumer = part(PartKind::Consumer, "the step".to_owned(), step, None);
        let (mut parts, seconds) = if workers == 0 {
            let name = "the graph on the consumer's thread".to_owned();
            let node = self.slowest(|id| !gone[id]);
            let graph = part(PartKind::Thread, name, sum.serial, node);
            (vec![consumer, graph], step + sum.serial)
        } else {
            let cores = change.cores.unwrap_or(self.cores);
            self.side_by_side(consumer, sum, (workers, cores), &gone)
        };
        parts.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Needs {
            parts,
            seconds,
            step,
            memory_bytes,
        }
    }

    /// Returns the parts that work beside each other, and the time from one batch to the next.
    fn side_by_side(
        &self,
        consumer: PartPace,
        sum: Sum<'a>,
        (workers, cores): (usize, usize),
        gone: &[bool],
    ) -> (Vec<PartPace>, f64) {
        let step = consumer.seconds;
        let mut parts = vec![consumer];
        if let Some(device) = &self.stats.device {
            let name = "the upload to the device".to_owned();
            let seconds = self.per_batch(device.busy);
            parts.push(part(PartKind::Device, name, seconds, None));
        }
        parts.extend(sum.parts);
        if sum.work > 0.0 {
            let name = format!("the work of {workers} workers");
            let seconds = sum.work / workers as f64;
            parts.push(part(PartKind::Workers, name, seconds, sum.slowest.1));
        }
        let name = format!("the computing of {cores} cores");
        let (seconds, node) = (sum.computed / cores as f64, self.slowest(|id| !gone[id]));
        parts.push(part(PartKind::Cores, name, seconds, node));
        let graph = self.thread(0, gone);
        let graph_seconds = graph.seconds;
        parts.push(graph);
        parts.extend((1..self.threads.len()).map(|number| self.thread(number, gone)));
        let slowest = parts.iter().map(|part| part.seconds).fold(0.0, f64::max);
        let has_queue = self.active_segments().next().is_some()
            || self.stats.device.is_some()
            || ahead::pays(graph_seconds * 1e9, step * 1e9, 1.0);
        match has_queue {
            true => (parts, slowest),
            // The consumer makes its batches itself.
            false => (parts, slowest.max(graph_seconds + step)),
        }
    }

    /// Returns the time of a batch on the threads that look at the stream as a whole.
    fn on_threads(&self, gone: &[bool]) -> f64 {
        let threads = 0..self.threads.len();
        threads.map(|number| self.work(number, gone)).sum()
    }

    /// Returns true if the measured run computed on all cores.
    fn is_saturated(&self) -> bool {
        let stats = self.stats;
        let on_workers = |segment: &&SegmentStats| {
            segment.work == Work::Cpu && segment.processes.is_none() && !segment.inline
        };
        let segments = stats.segments.iter().filter(on_workers);
        let computed: f64 = segments.map(|segment| segment.cpu.as_secs_f64()).sum();
        let on_threads = self.on_threads(&vec![false; self.homes.len()]) * self.batches;
        computed + on_threads >= SATURATED * self.cores as f64 * stats.wall.as_secs_f64()
    }

    fn active_segments(&self) -> impl Iterator<Item = (usize, &'a SegmentStats)> {
        let segments = self.stats.segments.iter().enumerate();
        segments.filter(|(number, _)| self.is_active(*number))
    }

    /// Sums what the segments need.
    fn segments(&self, change: &Change, workers: usize, gone: &[bool]) -> Sum<'a> {
        let (on_threads, is_saturated) = (self.on_threads(gone), self.is_saturated());
        let mut sum = Sum {
            parts: Vec::new(),
            work: 0.0,
            slowest: (0.0, None),
            computed: on_threads,
            serial: on_threads,
            polled: 0.0,
            polled_of: Vec::new(),
            slowest_polled: None,
            memory: self.stats.memory.most as f64,
        };
        for (number, segment) in self.active_segments() {
            let left = self.left(number, gone);
            let set = change.in_flight(number, segment.work);
            let growth = self.growth(segment, set, workers, left);
            sum.memory += segment.memory.most as f64 * (growth - 1.0);
            if left == 0.0 {
                continue;
            }
            let of = SegmentChange {
                segment,
                nodes: segment.nodes.join(" → "),
                slowest: self.slowest(|id| self.homes[id] == Home::Segment(number) && !gone[id]),
                left,
                set,
                workers,
                is_saturated,
            };
            match segment.work {
                Work::Io => self.add_requests(of, change.round_trip, &mut sum),
                Work::Cpu => self.add_work(of, &mut sum),
            }
        }
        if sum.polled > 0.0 {
            let nodes = sum.polled_of.join(", and of ");
            let name = format!("the thread of the async runtime, with the futures of {nodes}");
            let part = part(PartKind::Thread, name, sum.polled, sum.slowest_polled);
            sum.parts.push(part);
        }
        sum
    }

    /// Adds a segment of I/O: its requests, and what it reads from.
    fn add_requests(&self, of: SegmentChange<'a>, round_trip: Option<Duration>, sum: &mut Sum<'a>) {
        let SegmentChange { segment, nodes, .. } = of;
        // Polls of requests take a core: one thread's, unless they were on the workers for a while.
        let polled = self.per_batch(segment.busy);
        sum.computed += polled;
        if self.stats.runtime_share(segment) > 0.0 {
            sum.polled += polled;
            sum.polled_of.push(nodes.clone());
            sum.slowest_polled = sum.slowest_polled.or(of.slowest);
        } else {
            sum.work += polled;
        }
        // Items of short requests share a morsel, one after another.
        let (requests, part_of, more) = match round_trip {
            None => (segment.morsels as f64 / self.batches, 1.0, 0.0),
            Some(round_trip) => {
                let part_of = segment.morsels as f64 / segment.items.max(1) as f64;
                let least = segment.morsel_time.quantile(0.0).as_secs_f64();
                let more = round_trip.as_secs_f64() - least * part_of;
                (segment.items as f64 / self.batches, part_of, more)
            }
        };
        let times = Times::of(segment);
        let most = of.set.unwrap_or(segment.most as usize).max(1);
        let each = times.pace(most, most, |time| time * part_of + more);
        sum.serial += requests * times.pace(1, 1, |time| time * part_of + more);
        let name = format!("{nodes}, at most {most} in flight");
        let kind = PartKind::Requests(segment.letter);
        (sum.parts).push(part(kind, name, requests * each, of.slowest));
        if self.is_link(segment) {
            let name = format!("what {nodes} reads from, at its rate of now");
            let kind = PartKind::Link(segment.letter);
            let seconds = self.per_batch(self.stats.wall);
            sum.parts.push(part(kind, name, seconds, of.slowest));
        }
    }

    /// Adds a segment of CPU work, on workers or in processes.
    fn add_work(&self, of: SegmentChange<'a>, sum: &mut Sum<'a>) {
        let SegmentChange { segment, nodes, .. } = of;
        let kind = PartKind::Segment(segment.letter);
        let busy = self.per_batch(segment.busy) * of.left;
        if segment.processes.is_some() {
            let count = segment.workers.max(1);
            let name = format!("{nodes}, in {count} processes");
            (sum.parts).push(part(kind, name, busy / count as f64, of.slowest));
            sum.serial += busy;
            return;
        }
        let computed = self.per_batch(segment.cpu) * of.left;
        let busy = if of.is_saturated { computed } else { busy };
        sum.work += busy;
        sum.serial += busy;
        sum.computed += computed;
        if busy > sum.slowest.0 {
            sum.slowest = (busy, of.slowest);
        }
        if let Some(most) = of.set.or(segment.is_set.then_some(segment.most as usize)) {
            let measured = self.per_batch(segment.busy).max(f64::MIN_POSITIVE);
            let each = Times::of(segment).pace(of.workers.clamp(1, most), most, |time| time);
            let morsels = segment.morsels as f64 / self.batches;
            let name = format!("{nodes}, at most {most} at once");
            (sum.parts).push(part(
                kind,
                name,
                morsels * each * busy / measured,
                of.slowest,
            ));
        }
    }

    /// Returns what a thread needs for a batch.
    fn thread(&self, number: usize, gone: &[bool]) -> PartPace {
        let name = self.threads[number].name.clone();
        let on = |id: usize| self.homes[id] == Home::Thread(number) && !gone[id];
        // Each rank has such a thread, except that the consumer is one.
        let is_consumer = number == 0 && self.stats.queue.is_none();
        let ranks = if is_consumer { 1 } else { self.stats.ranks };
        let seconds = self.work(number, gone) / ranks.max(1) as f64;
        part(PartKind::Thread, name, seconds, self.slowest(on))
    }

    /// Returns the time that a thread, of all ranks together, works for a batch.
    fn work(&self, number: usize, gone: &[bool]) -> f64 {
        let on = |id: &usize| self.homes[*id] == Home::Thread(number) && !gone[*id];
        let nodes = (0..gone.len()).filter(on);
        let busy: f64 = nodes
            .map(|id| self.stats.nodes[id].busy.as_secs_f64())
            .sum();
        busy * self.threads[number].scale / self.batches
    }

    /// Returns the share of a segment's work that is left. Its requests are left as long as one of
    /// its nodes is.
    fn left(&self, segment: usize, gone: &[bool]) -> f64 {
        let of = |id: &usize| self.homes[*id] == Home::Segment(segment);
        let busy = |id: usize| self.stats.nodes[id].busy.as_secs_f64();
        let (ids, left) = ((0..gone.len()).filter(of), |id: &usize| !gone[*id]);
        let (all, left): (f64, Vec<_>) = (ids.clone().map(busy).sum(), ids.filter(left).collect());
        match (left.len(), self.stats.segments[segment].work) {
            (0, _) => 0.0,
            (_, Work::Io) => 1.0,
            _ if all == 0.0 => 1.0,
            _ => left.into_iter().map(busy).sum::<f64>() / all,
        }
    }

    /// Returns how many times the morsels of now a segment has in flight.
    fn growth(&self, segment: &SegmentStats, set: Option<usize>, workers: usize, left: f64) -> f64 {
        let now = match (segment.work, segment.is_set) {
            (Work::Cpu, false) => self.stats.workers.max(1) as f64,
            _ => segment.concurrency.max(1) as f64,
        };
        match (set, segment.work) {
            _ if left == 0.0 => 0.0,
            (Some(set), Work::Io) => set as f64 / now,
            (Some(set), Work::Cpu) => set as f64 / segment.concurrency.max(1) as f64,
            (None, Work::Cpu) if !segment.is_set => workers as f64 / now,
            _ => 1.0,
        }
    }

    /// Returns true if more requests in flight have not made a segment of I/O faster: what it reads
    /// from sets the pace.
    fn is_link(&self, segment: &SegmentStats) -> bool {
        let paced = matches!(self.stats.pace(), Pace::Io(slow) if slow.letter == segment.letter);
        paced && segment.occupancy < 0.9 * segment.most as f64
    }

    /// Returns the slowest of some nodes.
    fn slowest(&self, is_of: impl Fn(usize) -> bool) -> Option<&'a NodeStats> {
        let nodes = self.stats.nodes.iter().enumerate();
        nodes
            .filter(|(id, _)| is_of(*id))
            .map(|(_, node)| node)
            .max_by_key(|node| node.busy)
    }
}

fn part(kind: PartKind, part: String, seconds: f64, node: Option<&NodeStats>) -> PartPace {
    let node = node.map(|node| node.name.clone());
    PartPace {
        part,
        kind,
        seconds,
        node,
    }
}
