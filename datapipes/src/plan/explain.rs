//! The plan as text.

use std::fmt;

use super::{PROCESSES, Placement, Plan, pairing};
use crate::Work;
use crate::graph::Flow;
use crate::settings::Settings;

/// Prints a plan as a tree, the consumer first.
pub(crate) struct Explain<'a> {
    pub flow: &'a Flow,
    pub plan: &'a Plan,
    pub settings: &'a Settings,
    /// Number of items that each node gives, where it is known.
    pub lengths: Vec<Option<u64>>,
    /// Remarks after each node or segment: the measurements.
    pub remarks: Vec<String>,
}

impl fmt::Display for Explain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = self.settings;
        writeln!(
            f,
            "loader: seed {}, {} worker{}, order {}, rank {} of {}",
            settings.seed,
            settings.workers,
            if settings.workers == 1 { "" } else { "s" },
            settings.order,
            settings.rank.index,
            settings.rank.world
        )?;
        let held: usize = self.flow.nodes.iter().map(|n| n.hints().buffered).sum();
        if settings.workers == 0 {
            writeln!(
                f,
                "everything runs on the consumer's thread; pipes hold at most {held} items"
            )?;
        } else {
            let prefetch = &self.plan.prefetch;
            let bytes = self.plan.bytes() + self.plan.kept() * prefetch.bytes;
            let most = match bytes >> 20 {
                0 => format!("{bytes} bytes"),
                mib => format!("{mib} MiB"),
            };
            let bytes: usize = self
                .flow
                .nodes
                .iter()
                .map(|n| n.hints().buffered_bytes)
                .sum();
            let pieces = match bytes.div_ceil(1 << 20) {
                0 => String::new(),
                mib => format!(" and about {mib} MiB"),
            };
            writeln!(
                f,
                "at most {most} and one item wait between steps or are in work; pipes hold at most {held} items{pieces} besides"
            )?;
            writeln!(
                f,
                "consumer ← queue, up to {} ready, filled by its own thread",
                prefetch.items
            )?;
        }
        if settings.resumable {
            writeln!(
                f,
                "resume: nothing is delivered twice; to come back to its place, a step makes some items again, mostly those of \
                 its last 2 ms, at most as many as it says below"
            )?;
        }
        self.node(f, self.flow.root.0, "", true)
    }
}

impl Explain<'_> {
    /// Returns true if the weight of a node's items counts: in a queue, or in a segment, which
    /// reserves bytes for the heaviest item of its nodes.
    fn is_weighed(&self, id: usize) -> bool {
        !matches!(self.plan.places[id], Placement::Inline)
            || (id == self.flow.root.0 && self.plan.prefetch.items > 0)
    }

    /// Writes where a node runs.
    fn placement(&self, f: &mut fmt::Formatter<'_>, id: usize) -> fmt::Result {
        let number = match self.plan.places[id] {
            Placement::Inline => return Ok(()),
            Placement::Queue(queue) => {
                return write!(f, "  [queue, up to {} ready, own thread]", queue.items);
            }
            Placement::Segment(number) => number,
        };
        let (letter, segment) = (segment_letter(number), &self.plan.segments[number]);
        if segment.nodes.last() != Some(&id) {
            return write!(f, "  [{letter}]");
        }
        let (start, most, workers) = (segment.start, segment.concurrency, segment.workers);
        write!(f, "  [segment {letter}: ")?;
        match (segment.work, &segment.processes) {
            (_, Some(processes)) => write!(f, "{processes}, up to {most} morsels in flight"),
            (Work::Cpu, None) => {
                write!(f, "CPU, {workers} workers, up to {most} morsels in flight")
            }
            (Work::Io, None) => {
                match segment.seldom_waits {
                    true => write!(f, "I/O by the {workers} workers; where it waits, ")?,
                    false => f.write_str("I/O, ")?,
                }
                match start == most {
                    true => write!(f, "up to {most} in flight"),
                    false => write!(f, "{start} in flight at first and up to {most} as it pays"),
                }
            }
        }?;
        write!(f, ", {} order]", segment.order)
    }

    fn node(&self, f: &mut fmt::Formatter<'_>, id: usize, indent: &str, last: bool) -> fmt::Result {
        let node = &self.flow.nodes[id];
        let hints = node.hints();
        write!(
            f,
            "{indent}{} {}",
            if last { "└─" } else { "├─" },
            node.name
        )?;
        if !hints.settings.is_empty() {
            write!(f, "({})", hints.settings)?;
        }
        self.placement(f, id)?;
        if self.is_weighed(id) && node.node.edge.is_unknown() {
            write!(f, "  (bytes unknown: `weighed` tells them)")?;
        }
        if let Some(batch) = self.plan.rows[id] {
            write!(f, "  (straight into batches of {batch})")?;
        }
        if node.node.part.is_some() && !matches!(self.plan.places[id], Placement::Segment(_)) {
            write!(f, "  (in this process, since there are no workers)")?;
        } else if node.node.part.is_some() && !PROCESSES {
            write!(
                f,
                "  (on threads: processes of their own are for Linux only)"
            )?;
        }
        if let Some(remark) = pairing::remark(self.flow, id) {
            write!(f, "  {remark}")?;
        }
        if self.settings.resumable
            && let Some(cost) = self.plan.cost_of_resuming(self.flow, &self.lengths, id)
        {
            write!(f, "  ({cost})")?;
        }
        if let Some(remark) = self.remarks.get(id).filter(|r| !r.is_empty()) {
            write!(f, "  {remark}")?;
        }
        writeln!(f)?;
        let indent = format!("{indent}{}", if last { "   " } else { "│  " });
        for (i, &(above, _)) in node.inputs.iter().enumerate() {
            self.node(f, above, &indent, i + 1 == node.inputs.len())?;
        }
        Ok(())
    }
}

pub(crate) fn segment_letter(number: usize) -> char {
    (b'A' + (number % 26) as u8) as char
}
