//! Figures of an epoch, measured at the edges.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::rank_epoch::Runs;
use crate::Work;
use crate::graph::Op;
use crate::plan::{Placement, segment_letter};
use crate::run::{Engine, EpochRun, SkipStats, Skipped};
use crate::sync::lock;

/// Figures of an epoch so far. Prints as a table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Time from the first poll to the end, or to now.
    pub wall: Duration,
    /// Items that the consumer took.
    pub delivered: u64,
    /// Items that failed and were skipped by the loader's policy.
    pub skipped: u64,
    /// Skipped items, by node and kind of error, in the order in which each came first.
    pub skips: Vec<SkipStats>,
    /// The first thousand skipped items of each rank, in the order in which they were skipped.
    pub skipped_items: Vec<Skipped>,
    /// Figures of each node, inputs before their readers.
    pub nodes: Vec<NodeStats>,
    /// Figures of each segment.
    pub segments: Vec<SegmentStats>,
    /// Time that the consumer waited: for the queue, or for the graph itself if that ran on its
    /// thread; for a batch on the device with
    /// [`prefetch_to_device`](crate::DataLoader::prefetch_to_device).
    pub waited: Duration,
    /// The queue before the consumer, if it paid for itself.
    pub queue: Option<QueueStats>,
    /// The device stage, if the epoch is read by one.
    pub device: Option<DeviceStats>,
    /// The part that sets the pace, with the reason for that conclusion.
    pub bottleneck: String,
}

/// Figures of the output of one node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeStats {
    /// Name of the node.
    pub name: String,
    /// Items that left the node.
    pub items: u64,
    /// Items that the node left out on purpose: filtered, dropped with a last batch, of another
    /// rank.
    pub dropped: u64,
    /// Errors that left the node, its own and those from upstream: one error counts in each node
    /// that it passes.
    pub errors: u64,
    /// Tries of an item beyond its first, by [`retry`](crate::Graph::retry).
    pub retried: u64,
    /// Time spent in the node, summed over threads; estimated from a sample if calls are quick.
    pub busy: Duration,
    /// The segment that the node runs in.
    pub segment: Option<char>,
}

/// Figures of the edges of a segment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SegmentStats {
    /// Letter of the segment in the plan.
    pub letter: char,
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// I/O or CPU. I/O that [seldom waits](field@crate::Hints::seldom_waits) is CPU as long as it
    /// does not wait.
    pub work: Work,
    /// Largest number of applications that run at once.
    pub workers: usize,
    /// True if the segment last ran inline, being cheaper than a hop to a worker.
    pub inline: bool,
    /// Items that went in.
    pub items: u64,
    /// Morsels that its input was cut into.
    pub morsels: u64,
    /// Time spent by workers. For I/O this is the time of the polls, not of the waiting.
    pub busy: Duration,
    /// Time in which the segment could have started more, but had no input: blocked on input.
    pub starved: Duration,
    /// Time in which the concurrency was fully used: blocked on output, or working at its limit.
    pub full: Duration,
    /// Morsels in flight, on average over the polls.
    pub occupancy: f64,
    /// Number of morsels that may be in flight now.
    pub concurrency: u64,
    /// Processes of the segment, if it runs in processes of its own.
    pub processes: Option<ProcessStats>,
}

/// Figures of the processes of a segment, over all epochs of the loader.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ProcessStats {
    /// Number of processes started.
    pub started: u64,
    /// Number of processes that ended without being asked to, were killed for their silence or for
    /// their messages, or could not be started.
    pub died: u64,
    /// Number of processes replaced because of their memory, see
    /// [`Processes::memory`](crate::Processes::memory).
    pub replaced: u64,
    /// Items that were given up because they ended two processes.
    pub crashed: u64,
    /// Processes that run now.
    pub children: Vec<ChildStats>,
}

/// A process that runs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChildStats {
    /// Process number in the system.
    pub process: u32,
    /// Index among the processes of its segment, from 0.
    pub place: usize,
    /// Private memory in bytes, without swapped-out memory, as last measured: ten times a second at
    /// most, or a hundred times if there is a limit.
    pub memory: u64,
    /// Items and errors that came out of the process.
    pub items: u64,
}

/// Figures of the queue before the consumer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueueStats {
    /// Current length, in items.
    pub depth: u64,
    /// Items ready when the consumer came, on average.
    pub occupancy: f64,
    /// Time that the thread filling the queue waited for room.
    pub producer_waited: Duration,
    /// Time that the thread worked.
    pub producer_busy: Duration,
}

/// Figures of the device stage.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceStats {
    /// Batches that were uploaded.
    pub uploaded: u64,
    /// Time spent in uploads.
    pub busy: Duration,
    /// Number of batches kept ready, besides the batch that the consumer holds.
    pub depth: u64,
}

fn ns(counter: &AtomicU64) -> Duration {
    Duration::from_nanos(counter.load(Relaxed))
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
        .map(|(process, alive)| ChildStats {
            process,
            place: alive.place,
            memory: alive.resident,
            items: alive.items,
        });
    Some(ProcessStats {
        started: figures.started.load(Relaxed),
        died: figures.died.load(Relaxed),
        replaced: figures.replaced.load(Relaxed),
        crashed: figures.crashed.load(Relaxed),
        children: children.collect(),
    })
}

#[cfg(not(target_os = "linux"))]
fn processes(_: &Engine, _: usize) -> Option<ProcessStats> {
    None
}

impl Stats {
    /// Returns the figures of all ranks that an epoch reads; `None` before the first has begun.
    pub(super) fn of_all(runs: &Runs) -> Option<Stats> {
        let runs = lock(runs);
        let mut stats = Stats::of(runs.first()?);
        for run in &runs[1..] {
            stats.add(Stats::of(run));
        }
        stats.bottleneck = stats.find_bottleneck(runs[0].engine.settings.workers);
        Some(stats)
    }

    /// Adds the figures of another rank of the same epoch. Figures shared by all ranks stay as they
    /// are: processes, the device stage, and the time that the consumer waited for it.
    fn add(&mut self, other: Stats) {
        self.wall = self.wall.max(other.wall);
        self.delivered += other.delivered;
        self.skipped += other.skipped;
        self.skipped_items.extend(other.skipped_items);
        for skips in other.skips {
            match self
                .skips
                .iter_mut()
                .find(|own| own.node == skips.node && own.kind == skips.kind)
            {
                Some(own) => (own.items, own.last) = (own.items + skips.items, skips.last),
                None => self.skips.push(skips),
            }
        }
        for (node, other) in self.nodes.iter_mut().zip(other.nodes) {
            node.items += other.items;
            node.dropped += other.dropped;
            node.errors += other.errors;
            node.retried += other.retried;
            node.busy += other.busy;
        }
        for (segment, other) in self.segments.iter_mut().zip(other.segments) {
            segment.inline &= other.inline;
            segment.items += other.items;
            segment.morsels += other.morsels;
            segment.busy += other.busy;
            segment.starved += other.starved;
            segment.full += other.full;
            segment.occupancy += other.occupancy;
            segment.concurrency += other.concurrency;
        }
        if self.device.is_none() {
            self.waited += other.waited;
        }
        self.queue = match (self.queue.take(), other.queue) {
            (Some(queue), Some(other)) => Some(QueueStats {
                depth: queue.depth + other.depth,
                occupancy: queue.occupancy + other.occupancy,
                producer_waited: queue.producer_waited + other.producer_waited,
                producer_busy: queue.producer_busy + other.producer_busy,
            }),
            (queue, other) => queue.or(other),
        };
    }

    /// Returns the figures of one rank, without those derived from others.
    fn of(run: &EpochRun) -> Stats {
        let Engine { flow, plan, .. } = &*run.engine;
        let inclusive: Vec<u64> = run
            .counters
            .iter()
            .map(|c| c.busy_ns.load(Relaxed))
            .collect();
        let own = |id: usize| {
            let above: u64 = match plan.places[id] {
                Placement::Segment(number) => {
                    let nodes = &plan.segments[number].nodes;
                    if nodes[0] == id {
                        // The first node of a segment gets the time measured for the segment, less
                        // its other nodes.
                        let rest = inclusive[*nodes.last().expect("not empty")]
                            .saturating_sub(inclusive[id]);
                        return run.segments[number]
                            .busy_ns
                            .load(Relaxed)
                            .saturating_sub(rest);
                    }
                    flow.nodes[id]
                        .inputs
                        .iter()
                        .map(|&(above, _)| inclusive[above])
                        .sum()
                }
                _ => {
                    let inputs = flow.nodes[id].inputs.iter();
                    inputs
                        .filter(|(above, _)| plan.places[*above] == Placement::Inline)
                        .map(|&(above, _)| inclusive[above])
                        .sum()
                }
            };
            inclusive[id].saturating_sub(above)
        };
        let nodes = flow.nodes.iter().enumerate().map(|(id, node)| NodeStats {
            name: node.name.to_string(),
            items: run.counters[id].items.load(Relaxed),
            dropped: run.counters[id].dropped.load(Relaxed),
            errors: run.counters[id].errors.load(Relaxed),
            retried: run.counters[id].retried.load(Relaxed),
            busy: Duration::from_nanos(own(id)),
            segment: match plan.places[id] {
                Placement::Segment(number) => Some(segment_letter(number)),
                _ => None,
            },
        });
        let segments = plan.segments.iter().zip(&run.segments).enumerate().map(
            |(number, (segment, gauge))| SegmentStats {
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
                workers: segment.workers,
                inline: gauge.inline.load(Relaxed),
                items: gauge.items_in.load(Relaxed),
                morsels: gauge.morsels.load(Relaxed),
                busy: ns(&gauge.busy_ns),
                starved: ns(&gauge.starved_ns),
                full: ns(&gauge.full_ns),
                occupancy: mean(&gauge.occupancy_sum, &gauge.occupancy_polls),
                concurrency: gauge.concurrency.load(Relaxed),
                processes: processes(&run.engine, number),
            },
        );
        let gauge = &run.root_queue;
        let queue =
            (gauge.depth.load(Relaxed) > 0 && !gauge.inline.load(Relaxed)).then(|| QueueStats {
                depth: gauge.depth.load(Relaxed),
                occupancy: mean(&gauge.occupancy_sum, &gauge.occupancy_polls),
                producer_waited: ns(&gauge.full_ns),
                producer_busy: ns(&gauge.busy_ns),
            });
        let device = run.device.get();
        Stats {
            wall: run.wall(),
            delivered: run.counts().0,
            skipped: run.counts().1,
            skips: run.log.skips(),
            skipped_items: run.log.skipped_items(),
            nodes: nodes.collect(),
            segments: segments.collect(),
            waited: device.map_or_else(|| run.consumer_waited(), |gauge| ns(&gauge.waited_ns)),
            queue,
            device: device.map(|gauge| DeviceStats {
                uploaded: gauge.uploaded.load(Relaxed),
                busy: ns(&gauge.busy_ns),
                depth: gauge.depth.load(Relaxed),
            }),
            bottleneck: String::new(),
        }
    }

    /// Returns the items that the consumer took, per second.
    pub fn items_per_second(&self) -> f64 {
        self.delivered as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// Returns the share of the epoch in which the consumer waited for the loader, in `[0, 1]`.
    pub fn consumer_waited(&self) -> f64 {
        (self.waited.as_secs_f64() / self.wall.as_secs_f64().max(1e-9)).min(1.0)
    }

    fn find_bottleneck(&self, workers: usize) -> String {
        let wall = self.wall.as_secs_f64().max(1e-9);
        let busiest = self
            .nodes
            .iter()
            .max_by_key(|n| n.busy)
            .map(|n| n.name.clone())
            .unwrap_or_default();
        let waited = self.consumer_waited();
        if waited < 0.05 {
            return format!(
                "the consumer: it waited for {:.1} % of the time",
                waited * 100.0
            );
        }
        let upload = self
            .device
            .as_ref()
            .map_or(0.0, |device| device.busy.as_secs_f64() / wall);
        if upload >= 0.5 {
            return format!(
                "the upload to the device: busy for {:.0} % of the time",
                upload * 100.0
            );
        }
        let Some(queue) = &self.queue else {
            let whose = if self.device.is_some() {
                "device stage's"
            } else {
                "consumer's"
            };
            return format!("the graph, inline on the {whose} thread; most of it in `{busiest}`");
        };
        let cpu = self
            .segments
            .iter()
            .filter(|s| s.work == Work::Cpu && !s.inline);
        let pool =
            cpu.clone().map(|s| s.busy.as_secs_f64()).sum::<f64>() / (wall * workers.max(1) as f64);
        let driver = queue.producer_busy.as_secs_f64() / wall;
        let most = cpu.max_by_key(|s| s.busy);
        let io = self
            .segments
            .iter()
            .filter(|s| s.work == Work::Io)
            .max_by_key(|s| s.full);
        let nodes = |segment: &SegmentStats| {
            format!("segment {} ({})", segment.letter, segment.nodes.join(" → "))
        };
        match (most, io) {
            (Some(segment), _) if pool >= 0.5 && pool >= driver => {
                let node = self
                    .nodes
                    .iter()
                    .filter(|n| n.segment == Some(segment.letter))
                    .max_by_key(|n| n.busy);
                format!(
                    "{}, mostly `{}`: the {workers} workers are busy for {:.0} % of the time",
                    nodes(segment),
                    node.map_or("", |n| &n.name),
                    pool * 100.0
                )
            }
            _ if driver >= 0.5 => {
                format!(
                    "the sequential part (busy for {:.0} % of the time), mostly `{busiest}`",
                    driver * 100.0
                )
            }
            (_, Some(segment)) => format!(
                "{}: waiting for I/O, with {:.1} of at most {} morsels in flight",
                nodes(segment),
                segment.occupancy,
                segment.concurrency
            ),
            _ => format!(
                "none in particular: workers busy for {:.0} %, the sequential part for {:.0} % of the time",
                pool * 100.0,
                driver * 100.0
            ),
        }
    }

    /// Returns a remark for each node of the plan.
    pub(crate) fn remarks(&self, engine: &Engine) -> Vec<String> {
        let inline = |place: &Placement| match place {
            Placement::Segment(number) => self.segments[*number].inline,
            _ => false,
        };
        let nodes = self
            .nodes
            .iter()
            .zip(&engine.flow.nodes)
            .zip(&engine.plan.places);
        nodes
            .map(|((stats, node), place)| {
                let per_item = stats.busy.as_nanos() as f64 / stats.items.max(1) as f64;
                let place = if inline(place) {
                    ", inline: cheaper than a hop"
                } else {
                    ""
                };
                match node.node.op {
                    _ if stats.items == 0 => String::new(),
                    Op::Split(_) => format!("— {} items", stats.items),
                    _ => format!("— {} items, {}{place}", stats.items, Nanos(per_item)),
                }
            })
            .collect()
    }
}

/// Nanoseconds for each item, printed in a unit that fits.
struct Nanos(f64);

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ns if ns < 1e3 => write!(f, "{ns:.0} ns an item"),
            ns if ns < 1e6 => write!(f, "{:.1} µs an item", ns / 1e3),
            ns => write!(f, "{:.2} ms an item", ns / 1e6),
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wall = self.wall.as_secs_f64();
        writeln!(
            f,
            "{} items in {wall:.3} s ({:.1}/s), {} skipped",
            self.delivered,
            self.items_per_second(),
            self.skipped
        )?;
        writeln!(
            f,
            "{:<22} {:>3} {:>10} {:>9} {:>7} {:>11}",
            "node", "", "items", "dropped", "errors", "busy"
        )?;
        for node in &self.nodes {
            let (segment, busy) = (node.segment.unwrap_or(' '), node.busy.as_secs_f64());
            let NodeStats {
                name,
                items,
                dropped,
                errors,
                ..
            } = node;
            write!(
                f,
                "{name:<22} {segment:>3} {items:>10} {dropped:>9} {errors:>7} {busy:>9.3} s"
            )?;
            match node.retried {
                0 => writeln!(f)?,
                tries => writeln!(f, ", {tries} tries again")?,
            }
        }
        for SkipStats {
            node,
            kind,
            items,
            first,
            last,
            ..
        } in &self.skips
        {
            writeln!(f, "skipped {items} in {node} ({kind}): {first}")?;
            if items > &1 {
                writeln!(f, "  the last: {last}")?;
            }
        }
        for s in &self.segments {
            write!(f, "segment {}: ", s.letter)?;
            if s.inline {
                write!(f, "inline, ")?;
            }
            writeln!(
                f,
                "{} items in {} morsels; busy {:.3} s, blocked on input {:.3} s, full {:.3} s, {:.1} of {} in flight",
                s.items,
                s.morsels,
                s.busy.as_secs_f64(),
                s.starved.as_secs_f64(),
                s.full.as_secs_f64(),
                s.occupancy,
                s.concurrency
            )?;
            if let Some(p) = &s.processes {
                let ProcessStats {
                    started,
                    died,
                    replaced,
                    crashed,
                    children,
                } = p;
                write!(
                    f,
                    "  processes: {started} started, {died} died, {replaced} replaced; {crashed} items given up"
                )?;
                for ChildStats {
                    process,
                    place,
                    memory,
                    items,
                } in children
                {
                    write!(
                        f,
                        "; {place}: process {process}, {items} items, {} MiB",
                        memory >> 20
                    )?;
                }
                writeln!(f)?;
            }
        }
        match &self.queue {
            None if self.device.is_some() => {
                writeln!(
                    f,
                    "queue: none; the graph runs on the device stage's thread"
                )?;
            }
            None => writeln!(f, "queue: none; the graph runs on the consumer's thread")?,
            Some(q) => writeln!(
                f,
                "queue: {:.1} of {} ready; producer waited {:.3} s for room",
                q.occupancy,
                q.depth,
                q.producer_waited.as_secs_f64()
            )?,
        }
        if let Some(DeviceStats {
            uploaded,
            busy,
            depth,
        }) = &self.device
        {
            writeln!(
                f,
                "device: {uploaded} uploaded in {:.3} s, {depth} ahead",
                busy.as_secs_f64()
            )?;
        }
        let share = self.consumer_waited() * 100.0;
        writeln!(
            f,
            "consumer waited {:.3} s ({share:.1} %)",
            self.waited.as_secs_f64()
        )?;
        write!(f, "bottleneck: {}", self.bottleneck)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn node(name: &str, busy_ms: u64, segment: Option<char>) -> NodeStats {
        let (name, busy) = (name.to_owned(), Duration::from_millis(busy_ms));
        NodeStats {
            name,
            items: 1,
            dropped: 0,
            errors: 0,
            retried: 0,
            busy,
            segment,
        }
    }

    fn segment(
        letter: char,
        work: Work,
        busy_ms: u64,
        full: Duration,
        nodes: &[&str],
    ) -> SegmentStats {
        SegmentStats {
            letter,
            nodes: nodes.iter().map(|n| (*n).to_owned()).collect(),
            work,
            workers: 2,
            inline: false,
            items: 1,
            morsels: 1,
            busy: Duration::from_millis(busy_ms),
            starved: Duration::ZERO,
            full,
            occupancy: 3.5,
            concurrency: 4,
            processes: None,
        }
    }

    /// Returns the text for a second in which the consumer waited for `waited_ms`, the driver
    /// worked for `driver_ms` and two workers for `cpu_ms` together.
    fn said(waited_ms: u64, driver_ms: u64, cpu_ms: u64) -> String {
        stats(waited_ms, driver_ms, cpu_ms).find_bottleneck(2)
    }

    fn stats(waited_ms: u64, driver_ms: u64, cpu_ms: u64) -> Stats {
        Stats {
            wall: SECOND,
            delivered: 1,
            skipped: 0,
            skipped_items: vec![],
            skips: Vec::new(),
            nodes: vec![
                node("load", 1, Some('A')),
                node("decode", cpu_ms, Some('B')),
                node("batch", driver_ms, None),
            ],
            segments: vec![
                segment('A', Work::Io, 1, SECOND, &["load"]),
                segment('B', Work::Cpu, cpu_ms, SECOND, &["decode"]),
            ],
            waited: Duration::from_millis(waited_ms),
            queue: Some(QueueStats {
                depth: 4,
                occupancy: 1.0,
                producer_waited: Duration::ZERO,
                producer_busy: Duration::from_millis(driver_ms),
            }),
            device: None,
            bottleneck: String::new(),
        }
    }

    #[test]
    fn the_part_that_sets_the_pace_is_named() {
        assert_eq!(
            said(10, 100, 1900),
            "the consumer: it waited for 1.0 % of the time"
        );
        let cpu =
            "segment B (decode), mostly `decode`: the 2 workers are busy for 95 % of the time";
        assert_eq!(said(900, 100, 1900), cpu);
        let sequential = "the sequential part (busy for 97 % of the time), mostly `batch`";
        assert_eq!(said(900, 970, 900), sequential);
        assert_eq!(
            said(900, 50, 200),
            "segment A (load): waiting for I/O, with 3.5 of at most 4 morsels in flight"
        );
    }

    #[test]
    fn a_device_stage_is_named_where_it_sets_the_pace() {
        let with = |busy_ms| {
            let busy = Duration::from_millis(busy_ms);
            Stats {
                device: Some(DeviceStats {
                    uploaded: 9,
                    busy,
                    depth: 1,
                }),
                ..stats(900, 970, 900)
            }
        };
        assert_eq!(
            with(800).find_bottleneck(2),
            "the upload to the device: busy for 80 % of the time"
        );
        assert_eq!(with(100).find_bottleneck(2), said(900, 970, 900));
        let inline = Stats {
            queue: None,
            ..with(100)
        };
        let place = "the graph, inline on the device stage's thread; most of it in `batch`";
        assert_eq!(inline.find_bottleneck(2), place);
        assert!(
            inline
                .to_string()
                .contains("device: 9 uploaded in 0.100 s, 1 ahead\n"),
            "{inline}"
        );
    }
}
