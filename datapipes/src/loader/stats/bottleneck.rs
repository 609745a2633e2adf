//! Finds the part that sets the pace of an epoch.

use super::{SegmentStats, Stats};
use crate::Work;

impl Stats {
    /// Returns the part that sets the pace, in words.
    pub(super) fn find_bottleneck(&self) -> String {
        let workers = self.workers;
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
}
