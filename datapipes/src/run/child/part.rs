//! Information for the children of a segment, from the flow and its plan.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::log;
use super::plan::{ChildFigures, ChildrenPlan};
use super::protocol::Hello;
use super::supervisor::Supervisors;
use crate::graph::{Flow, FlowNode, Part, signature};
use crate::plan::SegmentPlan;
use crate::{Hints, Work};

/// Bytes that a worker of another machine may keep, in its own memory, of what it has made.
const REMOTE_ROOM: usize = 512 << 20;

/// Returns the supervisors of a segment, if it runs in child processes. `rows` are those of the
/// plan, and `active` is the number of processes that get work.
pub(crate) fn supervisors(
    flow: &Flow,
    segment: &SegmentPlan,
    rows: &[Option<usize>],
    active: &Arc<AtomicUsize>,
) -> Option<Arc<Supervisors>> {
    let processes = segment.processes.clone()?;
    let nodes: Vec<&FlowNode> = segment.nodes.iter().map(|&id| &flow.nodes[id]).collect();
    let mut parts: Vec<&Arc<Part>> = nodes
        .iter()
        .filter_map(|node| node.node.part.as_ref())
        .collect();
    parts.dedup_by(|a, b| Arc::ptr_eq(a, b));
    let (input, output) = (parts.first()?.input.clone(), parts.last()?.output.clone());
    let names: Vec<String> = nodes.iter().map(|node| node.name.to_string()).collect();
    let level = tracing::level_filters::LevelFilter::current()
        .into_level()
        .map_or(0, log::number);
    let fills = segment.nodes.iter().position(|&id| rows[id].is_some());
    let hello = Hello {
        recipes: parts.iter().map(|part| part.recipe.clone()).collect(),
        signature: signature(nodes.iter().map(|node| &*node.node), &*input, &*output),
        sources: nodes.iter().map(|node| node.source).collect(),
        processes: processes.clone(),
        level,
        overlap: overlap_of(
            nodes.iter().map(|node| node.hints().work),
            segment.concurrency / segment.workers.max(1),
        ),
        names: names.clone(),
        fills,
        room: match processes.is_remote() {
            true => REMOTE_ROOM,
            false => segment.bytes / processes.count.max(1),
        },
        heartbeat_timeout: processes.heartbeat_timeout(),
    };
    let edge = nodes.last()?.node.edge.clone();
    Some(Supervisors::new(ChildrenPlan {
        processes,
        active: active.clone(),
        hello,
        node: names.join(" → ").into(),
        input,
        output,
        edge,
        arity: segment.arity,
        seldom_waits: seldom_waits(nodes.iter().map(|node| node.hints())),
        figures: ChildFigures::default(),
    }))
}

/// Returns true if all I/O of a part is blocking work that seldom waits.
pub(super) fn seldom_waits<'a>(mut hints: impl Iterator<Item = &'a Hints>) -> bool {
    hints.all(|hints| hints.work == Work::Cpu || hints.seldom_waits)
}

/// Returns the number of jobs a child should begin at once: more than one if the part waits for
/// something.
fn overlap_of(works: impl Iterator<Item = Work>, share: usize) -> usize {
    /// Number of jobs that wait at once in one child.
    const WAITING: usize = 64;
    if works.into_iter().any(|work| work == Work::Io) {
        WAITING.min(share).max(1)
    } else {
        1
    }
}
