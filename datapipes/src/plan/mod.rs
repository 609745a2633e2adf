//! The place of each part of a graph: a pure function of graph, hints and settings.

mod explain;
mod pairing;
mod resume_cost;

use std::sync::Arc;

pub(crate) use self::explain::{Explain, segment_letter};
use crate::graph::{Flow, FlowNode, Op, Part};
use crate::settings::{Order, Settings};
use crate::{Arity, Processes, Role, Work};

/// Place of each node of a flow. Made without running anything, so it can be printed and tested.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// Place of each node of the flow.
    pub places: Vec<Placement>,
    /// Number of items in a batch, for each node of the flow that fills rows of batches.
    pub rows: Vec<Option<usize>>,
    pub segments: Vec<SegmentPlan>,
    /// Nodes of each group that would be a segment with workers, by the group's last node. Set
    /// without workers, if an epoch has to know which input each output belongs to, so that a
    /// checkpoint does not depend on the number of workers.
    pub groups: Vec<Vec<usize>>,
    /// Queue before the consumer; 0 for none.
    pub prefetch: Prefetch,
}

/// Place of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// On the thread of its reader.
    Inline,
    /// Runs in a segment.
    Segment(usize),
    /// On a thread of its own, which fills a queue.
    Queue(Prefetch),
}

/// A queue filled ahead of its consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefetch {
    pub items: usize,
    pub bytes: usize,
    /// True if the queue may be longer when items are quick to make.
    pub adaptive: bool,
}

/// A row of shardable pipes with the same kind of work.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SegmentPlan {
    /// Numbers of the nodes, in order.
    pub nodes: Vec<usize>,
    pub work: Work,
    pub workers: usize,
    pub concurrency: usize,
    /// Number of morsels in flight at the start: of I/O as many as the first output needs, once the
    /// data is known not to be near; at workers of other machines the most, once the cost of an item
    /// is known.
    pub start: usize,
    /// True if the user fixed the concurrency.
    pub set_by_user: bool,
    /// True if the segment is for I/O that seldom waits, which the CPU workers do until it does.
    pub seldom_waits: bool,
    pub bytes: usize,
    pub order: Order,
    pub arity: Arity,
    /// True if a node makes children, so that siblings are never in two morsels.
    pub children: bool,
    /// Number of segments on the longest way up to a source.
    pub depth: usize,
    /// Processes that the segment runs in, if it does not run on threads.
    pub processes: Option<Processes>,
    /// True if the input is read on a thread of its own, since reading may block: ready items are
    /// delivered meanwhile.
    pub fed: bool,
}

impl SegmentPlan {
    /// Returns true if the segment runs on its reader's thread as long as its items are cheap.
    pub(crate) fn may_be_inline(&self) -> bool {
        self.work == Work::Cpu && !self.set_by_user && self.processes.is_none()
    }
}

/// Morsels in flight for each CPU worker: one slow item may take the time of that many, so that
/// strict order does not idle the other workers.
const PER_WORKER: usize = 32;
/// Default limit on the requests in flight for I/O; the actual number is found at run time.
const IO_IN_FLIGHT: usize = 2048;
/// Maximum number of requests in flight at the start of I/O.
const IO_START: usize = 512;
/// Default number of items kept ready for the consumer.
const PREFETCH: usize = 4;

/// True if parts of a graph can run in child processes.
pub(crate) const PROCESSES: bool = cfg!(target_os = "linux");

impl Plan {
    pub(crate) fn new(flow: &Flow, settings: &Settings) -> Plan {
        let mut plan = Plan {
            places: vec![Placement::Inline; flow.nodes.len()],
            rows: vec![None; flow.nodes.len()],
            segments: Vec::new(),
            groups: vec![Vec::new(); flow.nodes.len()],
            prefetch: Prefetch {
                items: if settings.workers == 0 {
                    0
                } else {
                    let items = settings.prefetch.or(settings.found.prefetch);
                    items.unwrap_or(PREFETCH)
                },
                bytes: 0,
                adaptive: settings.prefetch.is_none(),
            },
        };
        if settings.workers == 0 {
            plan.set_rows(flow);
            plan.share_out(settings);
            if settings.resumable {
                let segments = Plan::new(
                    flow,
                    &Settings {
                        workers: 1,
                        ..settings.clone()
                    },
                )
                .segments;
                for segment in segments
                    .into_iter()
                    .filter(|segment| segment.arity != Arity::One)
                {
                    let last = *segment.nodes.last().expect("a segment has a node");
                    plan.groups[last] = segment.nodes;
                }
            }
            return plan;
        }
        let mut depths = vec![0; flow.nodes.len()];
        for (id, node) in flow.nodes.iter().enumerate() {
            let above = node
                .inputs
                .iter()
                .map(|&(above, _)| match plan.places[above] {
                    Placement::Segment(number) => plan.segments[number].depth + 1,
                    _ => depths[above],
                });
            depths[id] = above.max().unwrap_or(0);
            plan.place(flow, settings, id, node, depths[id]);
        }
        plan.set_starts(flow);
        plan.set_orders(flow, settings);
        plan.set_rows(flow);
        plan.share_out(settings);
        plan
    }

    fn place(
        &mut self,
        flow: &Flow,
        settings: &Settings,
        id: usize,
        node: &FlowNode,
        depth: usize,
    ) {
        let hints = node.hints();
        if let Role::Prefetch(items) = hints.role {
            self.places[id] = Placement::Queue(Prefetch {
                items,
                bytes: 0,
                adaptive: false,
            });
            return;
        }
        if !(hints.is_shardable || hints.is_shardable_by_parent)
            || !matches!(node.node.op, Op::Pipe(_))
        {
            return;
        }
        let above = node.inputs[0].0;
        if self.joins_segment(flow, id, node, above) || !hints.is_shardable {
            return;
        }
        let processes = part_of(node).map(|part| {
            let default = || {
                settings
                    .processes
                    .clone()
                    .unwrap_or(Processes::new(settings.workers))
            };
            part.processes.clone().unwrap_or_else(default)
        });
        let work = if processes.is_some() {
            Work::Cpu
        } else {
            hints.work
        };
        let workers = processes
            .as_ref()
            .map_or(settings.workers, |processes| processes.count);
        let concurrency = node.node.concurrency.or(match work {
            Work::Cpu => None,
            Work::Io => settings.concurrency,
        });
        // Bounded, so that sums and small multiples of it do not overflow.
        let concurrency = concurrency.map(|morsels| morsels.min(u32::MAX as usize));
        self.places[id] = Placement::Segment(self.segments.len());
        self.segments.push(SegmentPlan {
            nodes: vec![id],
            work,
            workers,
            set_by_user: concurrency.is_some(),
            seldom_waits: work == Work::Io && hints.seldom_waits && concurrency.is_none(),
            concurrency: concurrency.unwrap_or(match work {
                Work::Cpu => workers.saturating_mul(PER_WORKER),
                Work::Io => IO_IN_FLIGHT,
            }),
            // Once the cost of an item is known, the round trip limits the morsels at a distant worker,
            // so that this limit must not.
            start: match &processes {
                Some(processes) if processes.is_remote() => workers.saturating_mul(PER_WORKER),
                _ => 1,
            },
            bytes: 0,
            order: settings.order,
            arity: hints.arity,
            children: hints.children,
            depth,
            processes,
            fed: self.may_block(flow, above),
        });
    }

    /// Adds a node to the segment of the node above, if it is the last one there and does the same
    /// kind of work in the same place.
    fn joins_segment(&mut self, flow: &Flow, id: usize, node: &FlowNode, above: usize) -> bool {
        let Placement::Segment(number) = self.places[above] else {
            return false;
        };
        let (hints, fixed) = (node.hints(), node.node.concurrency);
        let segment = &mut self.segments[number];
        let last = &flow.nodes[above];
        let alone = last.readers.iter().sum::<usize>() == 1;
        let same = match (&last.node.part, part_of(node)) {
            (Some(above), Some(part)) if PROCESSES => {
                // Pipes that ask for processes by themselves share them.
                Arc::ptr_eq(above, part) || (above.processes.is_none() && part.processes.is_none())
            }
            (above, part) if PROCESSES && (above.is_some() || part.is_some()) => false,
            _ => segment.work == hints.work && (fixed.is_none() || last.node.concurrency == fixed),
        };
        // A pipe that groups the children of one parent must be downstream of the fan-out that
        // made them.
        let same = same && (hints.is_shardable || segment.children);
        let joins = alone && same && segment.nodes.last() == Some(&above);
        if joins {
            segment.nodes.push(id);
            segment.arity = segment.arity.max(hints.arity);
            segment.children |= hints.children;
            segment.seldom_waits &= hints.seldom_waits;
            self.places[id] = Placement::Segment(number);
        }
        joins
    }

    /// Returns true if reading a node's output may run users' functions on the reading thread.
    fn may_block(&self, flow: &Flow, id: usize) -> bool {
        let node = &flow.nodes[id];
        match self.places[id] {
            Placement::Queue(_) => return false,
            // Cheap work runs where it is read; the input of a segment is no concern of its reader.
            Placement::Segment(number) => return self.segments[number].may_be_inline(),
            _ => {}
        }
        !node.hints().never_blocks
            || node
                .inputs
                .iter()
                .any(|&(above, _)| self.may_block(flow, above))
    }

    /// Computes how many items the first output of the graph needs from each I/O segment: these are
    /// requested at once.
    fn set_starts(&mut self, flow: &Flow) {
        let mut needed = vec![1usize; flow.nodes.len()];
        for (id, node) in flow.nodes.iter().enumerate().rev() {
            let hints = node.hints();
            let each = match (hints.arity, hints.role) {
                (_, Role::Shuffle | Role::ShuffleWithinRank) => {
                    needed[id].saturating_add(hints.buffered)
                }
                (Arity::One, _) => needed[id],
                // A batch, or a sum of several items, needs all of its items.
                _ if hints.buffered > 0 => needed[id].saturating_mul(hints.buffered),
                (Arity::AtMostOne, _) => needed[id],
                // If one item becomes many, one may be enough.
                (Arity::Any, _) => 1,
            };
            for &(above, _) in &node.inputs {
                needed[above] = needed[above].max(each);
            }
        }
        for segment in self
            .segments
            .iter_mut()
            .filter(|segment| segment.work == Work::Io)
        {
            let above = flow.nodes[segment.nodes[0]].inputs[0].0;
            segment.start = match segment.set_by_user {
                true => segment.concurrency,
                false => needed[above].min(IO_START).min(segment.concurrency),
            };
        }
    }

    /// Keeps strict order upstream of everything that depends on it.
    fn set_orders(&mut self, flow: &Flow, settings: &Settings) {
        let mut needed = vec![false; flow.nodes.len()];
        for id in (0..flow.nodes.len()).rev() {
            let node = &flow.nodes[id];
            let in_segment = matches!(self.places[id], Placement::Segment(_));
            // A pipe in a segment treats each morsel by itself.
            let own = !node.hints().ignores_order && !in_segment;
            // If an item becomes any number of items, the distance that they move is not bounded.
            let fans_out = node.hints().is_shardable && node.hints().arity == Arity::Any;
            let own = own || (fans_out && matches!(settings.order, Order::Bounded(_)));
            let own = own || (settings.resumable && !resumes_unordered(node, in_segment));
            for &(above, _) in &node.inputs {
                needed[above] |= needed[id] || own;
            }
        }
        for segment in &mut self.segments {
            let last = *segment.nodes.last().expect("a segment has a node");
            let fans_out =
                segment.arity == Arity::Any && matches!(settings.order, Order::Bounded(_));
            let fans_out = fans_out || (settings.resumable && segment.arity != Arity::One);
            segment.order = if needed[last] || fans_out {
                Order::Strict
            } else {
                settings.order
            };
        }
    }

    /// Returns true for each node in or downstream of a segment that does not keep order.
    pub(crate) fn unordered(&self, flow: &Flow) -> Vec<bool> {
        let mut unordered = vec![false; flow.nodes.len()];
        for (id, node) in flow.nodes.iter().enumerate() {
            let own = match self.places[id] {
                Placement::Segment(number) => self.segments[number].order != Order::Strict,
                _ => false,
            };
            unordered[id] = own || node.inputs.iter().any(|&(above, _)| unordered[above]);
        }
        unordered
    }

    /// Finds the pipes whose output becomes the rows of batches, in order, so that the rows can be
    /// filled in place.
    fn set_rows(&mut self, flow: &Flow) {
        for (id, node) in flow
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| node.hints().rows)
        {
            if let Placement::Segment(number) = self.places[id] {
                let segment = &self.segments[number];
                let above = segment.nodes.iter().take_while(|&&above| above != id);
                // The number of an item is known where the input is cut, and must not change before
                // this pipe.
                let counted = above
                    .into_iter()
                    .all(|&above| flow.nodes[above].hints().arity == Arity::One);
                if segment.order != Order::Strict || !counted {
                    continue;
                }
            }
            let (mut last, mut batch) = ((id, node), None);
            self.rows[id] = loop {
                let mut below = flow
                    .nodes
                    .iter()
                    .enumerate()
                    .filter(|(_, n)| n.inputs.contains(&(last.0, 0)));
                last = match (last.1.readers[..].iter().sum::<usize>(), below.next()) {
                    (1, Some(reader)) => reader,
                    _ => break None,
                };
                match (last.1.hints().role, last.1.hints().arity, &last.1.node.op) {
                    (Role::Collate, ..) => break batch,
                    (Role::Batch(size), ..) if batch.is_none() => batch = Some(size),
                    (Role::Plain | Role::Prefetch(_), Arity::One, Op::Pipe(_)) => {}
                    _ => break None,
                }
            };
        }
    }

    /// Divides the bytes among the edges, and a bound on displacement among the segments.
    fn share_out(&mut self, settings: &Settings) {
        let queues = self
            .places
            .iter()
            .filter(|p| matches!(p, Placement::Queue(_)))
            .count();
        let edges = self.segments.len() + queues + 1 + self.kept();
        let share = settings.bytes() / edges;
        self.prefetch.bytes = share;
        let relaxed = self
            .segments
            .iter()
            .filter(|s| s.order != Order::Strict)
            .count()
            .max(1);
        for segment in &mut self.segments {
            segment.bytes = share;
            if let Order::Bounded(places) = segment.order {
                segment.order = match places / relaxed {
                    0 => Order::Strict,
                    places => Order::Bounded(places),
                };
            }
        }
        for place in &mut self.places {
            if let Placement::Queue(queue) = place {
                queue.bytes = share;
            }
        }
    }

    /// Returns the number of shares of the bytes that belong to no edge. Pipes have such a share to
    /// keep the memory of batches for later batches, and processes of a segment to hold output that
    /// the parent has not taken over yet.
    fn kept(&self) -> usize {
        let apart = self
            .segments
            .iter()
            .filter(|segment| segment.processes.is_some());
        self.rows.iter().flatten().count() + apart.count()
    }

    /// Returns the bytes that all edges share.
    pub(crate) fn bytes(&self) -> usize {
        let queues = self.places.iter().map(|p| {
            if let Placement::Queue(q) = p {
                q.bytes
            } else {
                0
            }
        });
        self.prefetch.bytes
            + self.segments.iter().map(|s| s.bytes).sum::<usize>()
            + queues.sum::<usize>()
    }
}

/// Returns the part in processes that a node belongs to, where there are processes.
fn part_of(node: &FlowNode) -> Option<&Arc<Part>> {
    node.node.part.as_ref().filter(|_| PROCESSES)
}

/// Returns true if a checkpoint can include a node whose items arrive in any order: the node knows
/// the items that its outputs are made of, or each output is made of the item at the same place.
fn resumes_unordered(node: &FlowNode, in_segment: bool) -> bool {
    let hints = node.hints();
    hints.lineage || (hints.arity == Arity::One && (in_segment || hints.by_position))
}

#[cfg(test)]
mod tests;
