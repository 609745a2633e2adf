//! A model of a plan that has run: the time that each part of it needs for a batch.
//!
//! The parts work beside each other, so that the slowest sets the pace (the bottleneck law), if
//! the buffers between them hold some items. Work on `n` servers takes the `n`th part of its time,
//! a request in flight is a server (Little's law). Only a segment in strict order with few morsels
//! in flight is simulated, since the morsels after a slow one wait for it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::bottleneck::Pace;
use super::{NodeStats, PartKind, PartPace, SegmentStats, Stats};
use crate::loader::ahead;
use crate::mix_bits;
use crate::{Histogram, Work};

/// Share of the cores in use from which work that has no core waits for one, and not in itself.
const SATURATED: f64 = 0.85;
/// Number of durations of a histogram in a simulation, and how often they are drawn.
const SAMPLES: u64 = 1024;
const ROUNDS: u64 = 4;

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

/// Times of the parts with a change.
pub(super) struct Needs {
    /// Seconds for each batch, the slowest first.
    pub parts: Vec<PartPace>,
    /// Seconds from one batch to the next.
    pub seconds: f64,
    pub step: f64,
    pub memory_bytes: f64,
}

/// Sums of what the segments need for a batch, in seconds.
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
    /// Bytes.
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

/// Place where the work of a node is done.
#[derive(Clone, Copy, PartialEq)]
enum Home {
    Thread(usize),
    Segment(usize),
}

/// A thread that runs nodes.
struct Thread {
    name: String,
    /// Time measured for the thread, in multiples of that of its nodes.
    scale: f64,
}

/// A plan that has run, with its figures.
pub(super) struct Model<'a> {
    stats: &'a Stats,
    homes: Vec<Home>,
    threads: Vec<Thread>,
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
        let batches = stats.delivered as f64;
        for (number, thread) in threads.iter_mut().enumerate() {
            let on = |id: &usize| homes[*id] == Home::Thread(number);
            let ids = (0..homes.len()).filter(on);
            let queue = |id: usize| stats.nodes[id].queue.as_ref();
            let measured = match number {
                0 if stats.queue.is_some() => stats.queue.as_ref().map(|queue| queue.producer_busy),
                // The consumer waits for nothing else.
                0 if !homes.iter().any(|home| matches!(home, Home::Segment(_))) => {
                    stats.device.is_none().then_some(stats.waited)
                }
                0 => None,
                _ => (ids.clone().find_map(queue)).map(|queue| queue.producer_busy),
            };
            let nodes: f64 = ids.map(|id| stats.nodes[id].busy.as_secs_f64()).sum();
            if let Some(measured) = measured.filter(|_| nodes > 0.0) {
                thread.scale = measured.as_secs_f64() / nodes;
            }
        }
        Model {
            stats,
            homes,
            threads,
            batches,
            cores: cores(),
        }
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
        let stats = self.stats;
        let gone = self.gone(change.cached);
        let step = change.step.map_or_else(
            || stats.wall.saturating_sub(stats.waited).as_secs_f64() / self.batches,
            |step| step.as_secs_f64(),
        );
        let threads: Vec<_> = (0..self.threads.len())
            .map(|number| self.thread(number, &gone))
            .collect();
        let mut parts = vec![part(PartKind::Consumer, "the step".to_owned(), step, None)];
        if let Some(device) = &stats.device {
            let seconds = device.busy.as_secs_f64() / self.batches;
            let name = "the upload to the device".to_owned();
            parts.push(part(PartKind::Device, name, seconds, None));
        }
        let workers = change.workers.unwrap_or(stats.workers);
        let Sum {
            mut parts,
            work,
            slowest,
            computed,
            serial,
            memory,
        } = self.segments(change, workers, &gone, parts);
        let memory_bytes = match stats.memory.limit {
            Some(limit) => memory.clamp(0.0, limit as f64),
            None => memory.max(0.0),
        };
        let needs = |mut parts: Vec<PartPace>, seconds: f64| {
            parts.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
            Needs {
                parts,
                seconds,
                step,
                memory_bytes,
            }
        };
        if workers == 0 {
            parts.truncate(1);
            let node = self.slowest(|id| !gone[id]);
            let name = "the graph on the consumer's thread".to_owned();
            parts.push(part(PartKind::Thread, name, serial, node));
            return needs(parts, step + serial);
        }
        if work > 0.0 {
            let name = format!("the work of {workers} workers");
            let seconds = work / workers as f64;
            parts.push(part(PartKind::Workers, name, seconds, slowest.1));
        }
        let cores = change.cores.unwrap_or(self.cores);
        let name = format!("the computing of {cores} cores");
        parts.push(part(
            PartKind::Cores,
            name,
            computed / cores as f64,
            self.slowest(|id| !gone[id]),
        ));
        let graph = threads[0].seconds;
        parts.extend(threads);
        let most = |parts: &[PartPace]| parts.iter().map(|p| p.seconds).fold(0.0, f64::max);
        let has_queue = self.active_segments().next().is_some()
            || stats.device.is_some()
            || ahead::pays(graph * 1e9, step * 1e9, 1.0);
        if has_queue {
            let seconds = most(&parts);
            return needs(parts, seconds);
        }
        let seconds = most(&parts).max(graph + step);
        needs(parts, seconds)
    }

    /// Returns the seconds of a batch on the threads that look at the stream as a whole.
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

    /// Sums what the segments need, after these parts.
    fn segments(
        &self,
        change: &Change,
        workers: usize,
        gone: &[bool],
        parts: Vec<PartPace>,
    ) -> Sum<'a> {
        let (on_threads, is_saturated) = (self.on_threads(gone), self.is_saturated());
        let mut sum = Sum {
            parts,
            work: 0.0,
            slowest: (0.0, None),
            computed: on_threads,
            serial: on_threads,
            memory: self.stats.memory.most as f64,
        };
        for (number, segment) in self.active_segments() {
            let left = self.left(number, gone);
            let set = change.concurrency_of.iter().rev();
            let set = set
                .filter(|(of, _)| *of == number)
                .map(|(_, set)| *set)
                .next();
            let set = set.or(change.concurrency.filter(|_| segment.work == Work::Io));
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
        sum
    }

    /// Adds a segment of I/O: its requests, and what it reads from.
    fn add_requests(&self, of: SegmentChange<'a>, round_trip: Option<Duration>, sum: &mut Sum<'a>) {
        let SegmentChange { segment, nodes, .. } = of;
        // Polls of requests are no work of the pool, but take a core.
        sum.computed += segment.busy.as_secs_f64() / self.batches;
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
            let seconds = self.stats.wall.as_secs_f64() / self.batches;
            sum.parts.push(part(kind, name, seconds, of.slowest));
        }
    }

    /// Adds a segment of CPU work, on workers or in processes.
    fn add_work(&self, of: SegmentChange<'a>, sum: &mut Sum<'a>) {
        let SegmentChange { segment, nodes, .. } = of;
        let kind = PartKind::Segment(segment.letter);
        let busy = segment.busy.as_secs_f64() / self.batches * of.left;
        if segment.processes.is_some() {
            let count = segment.workers.max(1);
            let name = format!("{nodes}, in {count} processes");
            (sum.parts).push(part(kind, name, busy / count as f64, of.slowest));
            sum.serial += busy;
            return;
        }
        let computed = segment.cpu.as_secs_f64() / self.batches * of.left;
        let busy = if of.is_saturated { computed } else { busy };
        sum.work += busy;
        sum.serial += busy;
        sum.computed += computed;
        if busy > sum.slowest.0 {
            sum.slowest = (busy, of.slowest);
        }
        if let Some(most) = of.set.or(segment.is_set.then_some(segment.most as usize)) {
            let measured = segment.busy.as_secs_f64().max(f64::MIN_POSITIVE) / self.batches;
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

/// Finds where the work of each node is done. The first thread is that of the last node.
fn homes(stats: &Stats) -> (Vec<Home>, Vec<Thread>) {
    let thread = |name: String| Thread { name, scale: 1.0 };
    let first = match &stats.queue {
        Some(_) => "the sequential part",
        None => "the graph on the consumer's thread",
    };
    let mut threads = vec![thread(first.to_owned())];
    let mut homes = vec![Home::Thread(0); stats.nodes.len()];
    let mut read_on = vec![None; stats.nodes.len()];
    for (id, node) in stats.nodes.iter().enumerate().rev() {
        let here = read_on[id].unwrap_or(0);
        let active =
            |segment: &SegmentStats| Some(segment.letter) == node.segment && !segment.inline;
        let mut inputs_on = here;
        homes[id] = Home::Thread(here);
        if let Some(number) = stats.segments.iter().position(active) {
            homes[id] = Home::Segment(number);
            let mut inputs = node.inputs.iter();
            let is_first = inputs.all(|&above| stats.nodes[above].segment != node.segment);
            if is_first && stats.segments[number].is_fed {
                inputs_on = threads.len();
                threads.push(thread(format!("the thread ahead of `{}`", node.name)));
            }
        } else if node.queue.is_some() {
            inputs_on = threads.len();
            homes[id] = Home::Thread(inputs_on);
            threads.push(thread(format!("the thread of `{}`", node.name)));
        }
        for &above in &node.inputs {
            read_on[above].get_or_insert(inputs_on);
        }
    }
    (homes, threads)
}

/// Times of the morsels of a segment.
struct Times<'a> {
    histogram: &'a Histogram,
    is_ordered: bool,
}

impl<'a> Times<'a> {
    fn of(segment: &'a SegmentStats) -> Times<'a> {
        Times {
            histogram: &segment.morsel_time,
            is_ordered: segment.is_ordered,
        }
    }

    /// Returns the seconds from one morsel to the next with so many servers, if at most `window`
    /// morsels are between the first that is not delivered yet and the last that has begun.
    fn pace(&self, servers: usize, window: usize, change: impl Fn(f64) -> f64) -> f64 {
        let mean = self.histogram.mean().as_secs_f64();
        let change = |seconds: f64| change(seconds).max(0.0);
        if !self.is_ordered || window as u64 >= SAMPLES {
            return change(mean) / servers as f64;
        }
        let samples: Vec<f64> = (0..SAMPLES)
            .map(|rank| (rank as f64 + 0.5) / SAMPLES as f64)
            .map(|share| self.histogram.quantile(share).as_secs_f64())
            .collect();
        // The quantiles are those of buckets, and a little too large.
        let scale = mean * SAMPLES as f64 / samples.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let mut draws: Vec<u64> = (0..ROUNDS * SAMPLES).collect();
        draws.sort_by_key(|&draw| (draw / SAMPLES, mix_bits(draw + 1)));
        let times = draws
            .iter()
            .map(|draw| change(samples[(draw % SAMPLES) as usize] * scale));
        in_order(times, servers, window) / draws.len() as f64
    }
}

/// Returns the seconds until morsels that take these times are delivered in order.
fn in_order(times: impl Iterator<Item = f64>, servers: usize, window: usize) -> f64 {
    // Times of the ends as bits, which are ordered as the numbers are, if none is negative.
    let mut free = BinaryHeap::from(vec![Reverse(0u64); servers.max(1)]);
    let mut delivered = vec![0.0f64; window.max(1)];
    let mut last = 0.0f64;
    for (number, time) in times.enumerate() {
        let room = delivered[number % window.max(1)];
        let Reverse(server) = free.pop().expect("as many as servers");
        let end = f64::from_bits(server).max(room) + time;
        free.push(Reverse(end.to_bits()));
        last = last.max(end);
        delivered[number % window.max(1)] = last;
    }
    last
}
