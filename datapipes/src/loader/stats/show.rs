//! Prints the figures of an epoch.

use std::fmt;
use std::time::Duration;

use super::{ChildStats, DeviceStats, MemoryStats, NodeStats, ProcessStats, SegmentStats, Stats};
use crate::graph::Op;
use crate::plan::Placement;
use crate::run::{Engine, SkipStats};

/// Silence of a child with work from which on it is shown.
const SILENT: Duration = Duration::from_secs(1);

impl Stats {
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
            "{:<22} {:>3} {:>10} {:>9} {:>7} {:>11} {:>9} {:>9}",
            "node", "", "items", "dropped", "errors", "busy", "p50", "p99"
        )?;
        self.nodes.iter().try_for_each(|node| show_node(node, f))?;
        self.skips
            .iter()
            .try_for_each(|skips| show_skips(skips, f))?;
        (self.segments.iter()).try_for_each(|segment| show_segment(segment, f))?;
        self.show_edges(f)?;
        if let MemoryStats {
            most,
            limit: Some(limit),
            ..
        } = self.memory
        {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            writeln!(
                f,
                "memory: at most {:.1} of {:.1} MiB held or reserved",
                mib(most),
                mib(limit)
            )?;
        }
        for tried in &self.tuned {
            writeln!(f, "tuned: {tried}")?;
        }
        write!(f, "bottleneck: {}", self.bottleneck)
    }
}

impl Stats {
    /// Prints the queue, the device stage and the consumer.
    fn show_edges(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.queue {
            None if self.device.is_some() => {
                writeln!(
                    f,
                    "queue: none; the graph runs on the device stage's thread"
                )?;
            }
            None => writeln!(f, "queue: none; the graph runs on the consumer's thread")?,
            Some(q) => {
                writeln!(
                    f,
                    "queue: {:.1} of {} ready; producer waited {:.3} s for room",
                    q.occupancy,
                    q.depth,
                    q.producer_waited.as_secs_f64()
                )?;
                if !q.item_wait.is_empty() {
                    writeln!(f, "  items wait: {}", q.item_wait)?;
                }
            }
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
            "consumer waited {:.3} s ({share:.1} %); {:.1} % of the items were ready",
            self.waited.as_secs_f64(),
            self.readiness() * 100.0
        )?;
        if !self.waits.is_empty() {
            writeln!(f, "  waits: {}", self.waits)?;
        }
        Ok(())
    }
}

fn show_node(node: &NodeStats, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
    if !node.item_time.is_empty() {
        for share in [0.5, 0.99] {
            let time = format!("{:.1?}", node.item_time.quantile(share));
            write!(f, " {time:>9}")?;
        }
    }
    match node.retried {
        0 => writeln!(f),
        tries => writeln!(f, ", {tries} tries again"),
    }
}

fn show_skips(skips: &SkipStats, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "skipped {skips}: {}", skips.first)?;
    if skips.items > 1 {
        writeln!(f, "  the last: {}", skips.last)?;
    }
    Ok(())
}

fn show_segment(s: &SegmentStats, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
    if !s.morsel_time.is_empty() {
        writeln!(f, "  morsels: {}", s.morsel_time)?;
    }
    match &s.processes {
        Some(processes) => show_processes(processes, f),
        None => Ok(()),
    }
}

fn show_processes(stats: &ProcessStats, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let ProcessStats {
        started,
        died,
        replaced,
        crashed,
        pending,
        late,
        children,
    } = stats;
    write!(
        f,
        "  processes: {started} started, {died} died, {replaced} replaced; {crashed} items given up"
    )?;
    if *pending > 0 {
        write!(f, ", {pending} morsels wait")?;
    }
    match late {
        0 => {}
        1 => write!(f, ", 1 late morsel given to a second worker")?,
        _ => write!(f, ", {late} late morsels given to a second worker")?,
    }
    for child in children {
        let ChildStats {
            process,
            machine,
            place,
            memory,
            items,
            jobs,
            bytes,
            morsel_time,
            silence,
        } = child;
        write!(f, "; {place}: ")?;
        match machine {
            Some(machine) => write!(
                f,
                "{} process {process}, {items} items, {} MiB sent, {jobs} morsels in hand",
                crate::error::escape(machine),
                bytes >> 20
            )?,
            None => write!(f, "process {process}, {items} items, {} MiB", memory >> 20)?,
        }
        if machine.is_some() && !morsel_time.is_zero() {
            write!(f, " of {morsel_time:.1?}")?;
        }
        if *silence >= SILENT {
            write!(f, ", silent for {:.1} s", silence.as_secs_f64())?;
        }
    }
    writeln!(f)
}
