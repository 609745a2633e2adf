//! Collects the figures of an epoch from its counters.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::{
    ChildStats, DeviceStats, MemoryStats, NodeStats, ProcessStats, QueueStats, SegmentStats, Stats,
    Total as _,
};
use crate::context::Counters;
use crate::loader::latest::Runs;
use crate::plan::{Placement, segment_letter};
use crate::run::{Engine, EpochRun, QueueGauge};
use crate::settings::Order;
use crate::sync::lock;
use crate::{Processes, Work};

fn ns(counter: &AtomicU64) -> Duration {
    Duration::from_nanos(counter.load(Relaxed))
}

/// Adds the queue of another rank, if there is one.
fn add_queue(queue: &mut Option<QueueStats>, other: Option<QueueStats>) {
    match (queue, other) {
        (Some(queue), Some(other)) => queue.add_rank(&other),
        (queue, other) => *queue = queue.take().or(other),
    }
}

/// Returns the figures of a queue that pays for itself, with its bytes now and at most.
fn queue(gauge: &QueueGauge, (now, most): (usize, usize)) -> Option<QueueStats> {
    (gauge.depth.load(Relaxed) > 0 && !gauge.inline.load(Relaxed)).then(|| QueueStats {
        depth: gauge.most_depth.load(Relaxed),
        occupancy: mean(&gauge.occupancy_sum, &gauge.occupancy_polls),
        polls: gauge.occupancy_polls.load(Relaxed),
        item_wait: gauge.item_wait.histogram(),
        memory: MemoryStats {
            bytes: now as u64,
            most: most as u64,
            limit: None,
        },
        producer_waited: ns(&gauge.full_ns),
        producer_busy: ns(&gauge.busy_ns),
    })
}

/// Returns the bytes of all items that left a node, estimated from the sample that was weighed.
fn bytes_of(counters: &Counters, is_unknown: bool) -> Option<u64> {
    let items = counters.sample_items.load(Relaxed);
    let mean = counters.sample_bytes.load(Relaxed) as f64 / items.max(1) as f64;
    (items > 0 && !is_unknown).then(|| (mean * counters.items.load(Relaxed) as f64) as u64)
}

fn mean(sum: &AtomicU64, count: &AtomicU64) -> f64 {
    sum.load(Relaxed) as f64 / count.load(Relaxed).max(1) as f64
}

#[cfg(target_os = "linux")]
fn processes(engine: &Engine, segment: usize) -> Option<ProcessStats> {
    let figures = &engine.supervisors[segment].as_ref()?.plan.figures;
    let children = figures
        .alive()
        .into_iter()
        .map(|((process, place), alive)| ChildStats {
            process,
            machine: alive.machine,
            place,
            memory: alive.resident,
            items: alive.items,
            jobs: alive.jobs,
            bytes: alive.bytes,
            morsel_time: alive.job_time,
            silence: match alive.jobs {
                0 => Duration::ZERO,
                _ => alive.heard.elapsed(),
            },
        });
    Some(ProcessStats {
        started: figures.started.load(Relaxed),
        died: figures.died.load(Relaxed),
        replaced: figures.replaced.load(Relaxed),
        crashed: figures.crashed.load(Relaxed),
        pending: figures.pending.load(Relaxed),
        late: figures.late.load(Relaxed),
        children: children.collect(),
    })
}

#[cfg(not(target_os = "linux"))]
fn processes(_: &Engine, _: usize) -> Option<ProcessStats> {
    None
}

impl Stats {
    /// Returns the figures of all ranks that an epoch reads; `None` before the first has begun.
    pub(in crate::loader) fn of_all(runs: &Runs) -> Option<Stats> {
        let runs = lock(runs);
        let mut stats = Stats::of(runs.first()?);
        for run in &runs[1..] {
            stats.add_rank(Stats::of(run));
        }
        stats.bottleneck = stats.find_bottleneck();
        Some(stats)
    }

    /// Adds the figures of another rank of the same epoch. Figures shared by all ranks stay as they
    /// are: processes, the device stage, and the consumer's waits for it.
    pub(super) fn add_rank(&mut self, other: Stats) {
        self.wall = self.wall.max(other.wall);
        self.memory.add(other.memory);
        self.ranks += other.ranks;
        self.delivered += other.delivered;
        self.skipped += other.skipped;
        self.skipped_items.extend(other.skipped_items);
        self.add_skips(other.skips);
        for (node, other) in self.nodes.iter_mut().zip(other.nodes) {
            node.add(&other);
            add_queue(&mut node.queue, other.queue);
        }
        for (segment, other) in self.segments.iter_mut().zip(&other.segments) {
            segment.add(other);
            segment.inline &= other.inline;
            segment.occupancy += other.occupancy;
            segment.polls = segment.polls.max(other.polls);
            segment.memory.add(other.memory);
            segment.concurrency += other.concurrency;
        }
        if self.device.is_none() {
            self.waited += other.waited;
            self.waits.merge(&other.waits);
        }
        add_queue(&mut self.queue, other.queue);
    }

    /// Returns the figures of one rank, without those derived from others.
    pub(in crate::loader) fn of(run: &EpochRun) -> Stats {
        let Engine { flow, plan, .. } = &*run.engine;
        let ((held, most), bytes) = run.bytes();
        let inclusive: Vec<u64> = run
            .counters
            .iter()
            .map(|c| c.busy_ns.load(Relaxed))
            .collect();
        let nodes = flow.nodes.iter().enumerate().map(|(id, node)| NodeStats {
            name: node.name.to_string(),
            inputs: node.inputs.iter().map(|&(above, _)| above).collect(),
            items: run.counters[id].items.load(Relaxed),
            dropped: run.counters[id].dropped.load(Relaxed),
            errors: run.counters[id].errors.load(Relaxed),
            retried: run.counters[id].retried.load(Relaxed),
            busy: own_time(run, &inclusive, id),
            item_time: run.counters[id].item_time.histogram(),
            bytes: bytes_of(&run.counters[id], node.node.edge.is_unknown()),
            segment: matching!(plan.places[id], Placement::Segment(number) => segment_letter(number)),
            queue: run.queues.get(&id).and_then(|gauge| {
                // In the budget queues are in the order of their nodes, after segments.
                let earlier = run.queues.keys().filter(|&&other| other < id).count();
                queue(gauge, bytes[plan.segments.len() + earlier])
            }),
        });
        let segments = 0..plan.segments.len();
        let segments = segments.map(|number| segment_stats(run, number, bytes[number]));
        let device = run.device.get();
        Stats {
            wall: run.wall(),
            delivered: run.counts().0,
            skipped: run.counts().1,
            skips: run.log.skips(),
            skipped_items: run.log.skipped_items(),
            nodes: nodes.collect(),
            segments: segments.collect(),
            waited: device.map_or_else(|| run.consumer_waited(), |gauge| gauge.waited.total()),
            waits: match device {
                Some(gauge) => gauge.waits.histogram(),
                None => run.waits.histogram(),
            },
            memory: MemoryStats {
                bytes: held as u64,
                most: most as u64,
                limit: Some(run.limit() as u64),
            },
            workers: run.engine.active_workers(),
            tuned: lock(&run.engine.live.tried).clone(),
            epochs: 1,
            ranks: 1,
            queue: queue(
                &run.root_queue,
                bytes[plan.segments.len() + run.queues.len()],
            ),
            device: device.map(|gauge| DeviceStats {
                uploaded: gauge.uploaded.load(Relaxed),
                busy: ns(&gauge.busy_ns),
                depth: gauge.depth.load(Relaxed),
            }),
            bottleneck: String::new(),
        }
    }
}

/// Returns the time of a node without that of the nodes that it runs inside of itself; `inclusive`
/// has the nanoseconds of each node with them.
fn own_time(run: &EpochRun, inclusive: &[u64], id: usize) -> Duration {
    let Engine { flow, plan, .. } = &*run.engine;
    let inputs = flow.nodes[id].inputs.iter().map(|&(above, _)| above);
    let inside: u64 = match plan.places[id] {
        Placement::Segment(number) => {
            let nodes = &plan.segments[number].nodes;
            if nodes[0] == id {
                // The first node of a segment gets the time measured for the segment, less its
                // other nodes.
                let last = inclusive[*nodes.last().expect("not empty")];
                let whole = run.segments[number].busy_ns.load(Relaxed);
                let rest = last.saturating_sub(inclusive[id]);
                return Duration::from_nanos(whole.saturating_sub(rest));
            }
            inputs.map(|above| inclusive[above]).sum()
        }
        _ => {
            let is_inside = |above: &usize| match plan.places[*above] {
                Placement::Inline => true,
                Placement::Segment(number) => run.segments[number].inline.load(Relaxed),
                Placement::Queue(_) => false,
            };
            let inputs = inputs.filter(is_inside);
            inputs.map(|above| inclusive[above]).sum()
        }
    };
    Duration::from_nanos(inclusive[id].saturating_sub(inside))
}

/// Returns the figures of a segment; `bytes` are those that it holds, and the most so far.
fn segment_stats(run: &EpochRun, number: usize, bytes: (usize, usize)) -> SegmentStats {
    let Engine { flow, plan, .. } = &*run.engine;
    let (segment, gauge) = (&plan.segments[number], &run.segments[number]);
    SegmentStats {
        letter: segment_letter(number),
        nodes: segment
            .nodes
            .iter()
            .map(|&id| flow.nodes[id].name.to_string())
            .collect(),
        work: match gauge.on_workers.load(Relaxed) {
            true => Work::Cpu,
            false => segment.work,
        },
        workers: match &segment.processes {
            Some(here) if !here.is_remote() => {
                segment.workers.min(run.engine.live.processes.load(Relaxed))
            }
            _ => segment.workers,
        },
        inline: gauge.inline.load(Relaxed),
        items: gauge.items_in.load(Relaxed),
        morsels: gauge.morsels.load(Relaxed),
        busy: ns(&gauge.busy_ns),
        starved: ns(&gauge.starved_ns),
        full: ns(&gauge.full_ns),
        cpu: ns(&gauge.cpu_ns),
        most: segment.concurrency as u64,
        is_set: segment.set_by_user,
        is_remote: (segment.processes.as_ref()).is_some_and(Processes::is_remote),
        is_fed: segment.fed,
        is_ordered: segment.order == Order::Strict,
        morsel_time: gauge.morsel_time.histogram(),
        memory: MemoryStats {
            bytes: bytes.0 as u64,
            most: bytes.1 as u64,
            limit: None,
        },
        occupancy: mean(&gauge.occupancy_sum, &gauge.occupancy_polls),
        polls: gauge.occupancy_polls.load(Relaxed),
        concurrency: gauge.concurrency.load(Relaxed),
        processes: processes(&run.engine, number),
    }
}

impl MemoryStats {
    /// Adds the bytes of another rank, which has its part of the limit.
    pub(super) fn add(&mut self, other: MemoryStats) {
        self.bytes += other.bytes;
        self.most += other.most;
        self.limit = self.limit.zip(other.limit).map(|(own, other)| own + other);
    }
}
