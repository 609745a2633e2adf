//! Finds the part that sets the pace of an epoch.

use std::time::Duration;

use super::model::{Ahead, busiest_ahead};
use super::{NodeStats, SegmentStats, Stats};
use crate::Work;

/// The part that sets the pace of an epoch.
pub(super) enum Pace<'a> {
    Consumer,
    /// The upload to the device, and the share of the time in which it is busy.
    Upload(f64),
    /// The graph, on the thread that reads it.
    Inline,
    /// Work of a segment on the workers, or in processes, and the share of their time in which they are
    /// busy.
    Cpu(&'a SegmentStats, f64),
    /// Steps on the thread ahead of the consumer, and the share of the time in which it is busy.
    Sequential(f64),
    /// Steps on another thread, and the share of the time in which it is busy.
    Ahead(Ahead, f64),
    /// A segment on workers of other machines, and the number of those.
    Elsewhere(&'a SegmentStats, usize),
    /// I/O of a segment.
    Io(&'a SegmentStats),
    Unclear {
        workers: f64,
        sequential: f64,
    },
}

/// Remedy for a thread that is busy.
const LESS_WORK: &str = "More workers do not help; less work there does, such as moving steps to where they are \
                         shardable.";

/// Words about the part that sets the pace.
pub(super) struct Said {
    pub subject: String,
    pub figures: String,
    /// Sentence about what would help; may be empty.
    pub remedy: &'static str,
}

impl Stats {
    /// Returns the part that sets the pace.
    pub(super) fn pace(&self) -> Pace<'_> {
        let wall = self.wall.as_secs_f64().max(1e-9);
        if self.consumer_waited() < 0.05 {
            return Pace::Consumer;
        }
        let upload = self
            .device
            .as_ref()
            .map_or(0.0, |device| device.busy.as_secs_f64() / wall);
        if upload >= 0.5 {
            return Pace::Upload(upload);
        }
        if self.queue.is_none() && self.segments.iter().all(|segment| segment.inline) {
            return Pace::Inline;
        }
        let cpu = self
            .segments
            .iter()
            .filter(|s| s.work == Work::Cpu && !s.inline && !s.is_remote);
        let (parts, on_workers): (Vec<_>, Vec<_>) = cpu.partition(|s| s.processes.is_some());
        let busy = |segment: &SegmentStats| segment.busy.as_secs_f64() / wall;
        let workers = on_workers.iter().map(|s| busy(s)).sum::<f64>() / self.workers.max(1) as f64;
        let of_workers = workers;
        let most = on_workers.into_iter().max_by_key(|s| s.busy);
        // Each part has processes of its own.
        let parts = parts
            .into_iter()
            .map(|s| (s, busy(s) / s.workers.max(1) as f64));
        let most = most.map(|s| (s, workers)).into_iter().chain(parts);
        let most = most.max_by(|(_, a), (_, b)| a.total_cmp(b));
        let workers = most.map_or(0.0, |(_, busy)| busy);
        let ahead = self
            .queue
            .as_ref()
            .map_or(Duration::ZERO, |q| q.producer_busy);
        let share = |busy: Duration| busy.as_secs_f64() / (wall * self.ranks.max(1) as f64);
        let sequential = share(ahead);
        let ahead = busiest_ahead(self).map(|ahead| {
            let busy = share(ahead.busy).min(1.0);
            (ahead, busy)
        });
        let ahead = ahead.filter(|(_, busy)| *busy >= 0.5 && *busy >= workers.max(sequential));
        let io = self
            .segments
            .iter()
            .filter(|s| s.work == Work::Io)
            .max_by_key(|s| s.full);
        // Those of which each worker always has another morsel to begin.
        let elsewhere = self.segments.iter().filter(|s| s.is_remote).map(|s| {
            let processes = s.processes.as_ref();
            (s, processes.map_or(0, |processes| processes.children.len()))
        });
        let elsewhere = elsewhere
            .filter(|(s, workers)| s.occupancy >= 2.0 * (*workers).max(1) as f64)
            .max_by_key(|(s, _)| s.busy);
        if let Some((ahead, busy)) = ahead {
            return Pace::Ahead(ahead, busy);
        }
        match (most, io) {
            (Some((segment, _)), _) if workers >= 0.5 && workers >= sequential => {
                Pace::Cpu(segment, workers)
            }
            _ if sequential >= 0.5 => Pace::Sequential(sequential),
            (_, io) => match (elsewhere, io) {
                (Some((segment, there)), _) => Pace::Elsewhere(segment, there),
                (None, Some(segment)) => Pace::Io(segment),
                (None, None) => Pace::Unclear {
                    workers: of_workers,
                    sequential,
                },
            },
        }
    }

    /// Returns the index in [`nodes`](Self::nodes) of the node that takes most of the time in the
    /// part that sets the pace; `None` if that is the consumer, an upload, or no part in
    /// particular.
    pub fn slowest_node(&self) -> Option<usize> {
        let in_segment = |letter| move |node: &NodeStats| node.segment == Some(letter);
        let most = |is_of: &dyn Fn(&NodeStats) -> bool| {
            let nodes = self.nodes.iter().enumerate();
            nodes
                .filter(|(_, node)| is_of(node))
                .max_by_key(|(_, node)| node.busy)
                .map(|(place, _)| place)
        };
        match self.pace() {
            Pace::Inline => most(&|_| true),
            Pace::Ahead(ahead, _) => Some(ahead.slowest),
            Pace::Sequential(_) => most(&|node| !self.is_on_workers(node)),
            Pace::Cpu(segment, _) | Pace::Elsewhere(segment, _) | Pace::Io(segment) => {
                most(&in_segment(segment.letter))
            }
            Pace::Consumer | Pace::Upload(_) | Pace::Unclear { .. } => None,
        }
    }

    /// Returns the share of the time in which the futures of a segment were polled, all by one thread; 0
    /// if they were on the workers for a while, which shows if one thread could not have done it.
    pub(super) fn runtime_share(&self, segment: &SegmentStats) -> f64 {
        let share = segment.busy.as_secs_f64() / self.wall.as_secs_f64().max(1e-9);
        if share > 1.05 { 0.0 } else { share.min(1.0) }
    }

    /// Returns true if a node runs in a segment of its own threads or requests.
    fn is_on_workers(&self, node: &NodeStats) -> bool {
        let mut segments = self.segments.iter();
        segments.any(|segment| Some(segment.letter) == node.segment && !segment.inline)
    }

    /// Returns the name of the [slowest node](Self::slowest_node), or nothing.
    pub(super) fn slowest_name(&self) -> &str {
        self.slowest_node().map_or("", |at| &self.nodes[at].name)
    }

    /// Returns the node that left out all items that came to it, in words, if that is why none was
    /// delivered.
    pub(in crate::loader) fn emptied(&self) -> Option<String> {
        let left_out = |node: &&NodeStats| (node.items, node.errors) == (0, 0) && node.dropped > 0;
        let node = self.nodes.iter().find(left_out);
        let NodeStats { name, dropped, .. } = node.filter(|_| self.delivered == 0)?;
        Some(format!("`{name}` left out all {dropped} items"))
    }

    /// Returns the part that sets the pace, in words.
    pub(super) fn find_bottleneck(&self) -> String {
        if let Some(emptied) = self.emptied() {
            return format!("no item was delivered: {emptied}");
        }
        let said = self.say_pace();
        format!("{}: {}", said.subject, said.figures)
    }

    /// Returns what can be said about the part that sets the pace.
    pub(super) fn say_pace(&self) -> Said {
        let percent = |share: f64| format!("{:.0} % of the time", share * 100.0);
        let nodes = |segment: &SegmentStats| {
            format!("segment {} ({})", segment.letter, segment.nodes.join(" → "))
        };
        let node = self.slowest_name();
        let (subject, figures, remedy) = match self.pace() {
            Pace::Consumer => (
                "the consumer".to_owned(),
                format!(
                    "it waited for {:.1} % of the time",
                    self.consumer_waited() * 100.0
                ),
                "That is all that faster loading could gain.",
            ),
            Pace::Upload(busy) => (
                "the upload to the device".to_owned(),
                format!("busy for {}", percent(busy)),
                "",
            ),
            Pace::Inline => {
                let whose = if self.device.is_some() {
                    "device stage's"
                } else {
                    "consumer's"
                };
                let remedy = match self.workers {
                    0 => "With `workers`, steps run beside each other and ahead of the consumer.",
                    _ => "Its steps are too short to be worth a queue.",
                };
                (
                    format!("the graph, inline on the {whose} thread"),
                    format!("most of it in `{node}`"),
                    remedy,
                )
            }
            Pace::Cpu(segment, busy) => (
                format!("{}, mostly `{node}`", nodes(segment)),
                match &segment.processes {
                    Some(_) if segment.workers == 1 => "its process is".to_owned(),
                    Some(_) => format!("the {} processes are", segment.workers),
                    None => format!("the {} workers are", self.workers),
                } + &format!(" busy for {}", percent(busy.min(1.0))),
                "",
            ),
            Pace::Sequential(busy) => (
                format!("the sequential part, mostly `{node}`"),
                format!("its thread is busy for {}", percent(busy)),
                LESS_WORK,
            ),
            Pace::Ahead(ahead, busy) => (
                format!("{}, mostly `{node}`", ahead.name),
                format!("busy for {}", percent(busy)),
                LESS_WORK,
            ),
            Pace::Elsewhere(segment, workers) => (
                format!("{} on other machines, mostly `{node}`", nodes(segment)),
                format!(
                    "{workers} worker{} there for {:.1} morsels in flight",
                    if workers == 1 { "" } else { "s" },
                    segment.occupancy
                ),
                "More workers there help.",
            ),
            Pace::Io(segment) if self.runtime_share(segment) >= 0.5 => (
                nodes(segment),
                format!(
                    "its futures occupy the thread of the async runtime for {}",
                    percent(self.runtime_share(segment))
                ),
                "They are to request and to read; what computes or blocks belongs in a `map` after them, \
                 which runs on all workers.",
            ),
            Pace::Io(segment) => {
                let each = match segment.morsel_time.quantile(0.5) {
                    Duration::ZERO => String::new(),
                    p50 => format!(", each for {p50:.1?} (p50)"),
                };
                let remedy = match segment.occupancy >= 0.9 * segment.concurrency as f64 {
                    false => {
                        "Fewer are in flight than may be: their input comes too slowly, or memory \
                         is short."
                    }
                    true => "More at once (`concurrency`), or larger files, may help.",
                };
                (
                    nodes(segment),
                    format!(
                        "waiting for I/O, with {:.1} of at most {} morsels in flight{each}",
                        segment.occupancy, segment.concurrency
                    ),
                    remedy,
                )
            }
            Pace::Unclear {
                workers,
                sequential,
            } => (
                "no part in particular".to_owned(),
                format!(
                    "the workers are busy for {}, the sequential part for {}",
                    percent(workers),
                    percent(sequential)
                ),
                "",
            ),
        };
        Said {
            subject,
            figures,
            remedy,
        }
    }
}
