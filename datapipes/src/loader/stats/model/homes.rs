//! Places where the work of each node is done: on a thread, or in a segment.

use std::time::Duration;

use crate::loader::stats::{SegmentStats, Stats};

/// Place where the work of a node is done, by number.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Home {
    Thread(usize),
    Segment(usize),
}

/// A thread that runs nodes.
pub(super) struct Thread {
    pub name: String,
    /// Time measured for the thread, in multiples of that of its nodes.
    pub scale: f64,
}

/// Finds where the work of each node is done. The first thread is that of the last node.
pub(super) fn homes(stats: &Stats) -> (Vec<Home>, Vec<Thread>) {
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

/// Sets how much longer each thread was busy than its nodes, where it was measured.
pub(super) fn scale(threads: &mut [Thread], homes: &[Home], stats: &Stats) {
    for (number, thread) in threads.iter_mut().enumerate() {
        let on_it = || {
            let nodes = stats.nodes.iter().zip(homes);
            nodes.filter(|(_, home)| **home == Home::Thread(number))
        };
        let measured = match (number, &stats.queue) {
            (0, Some(queue)) => Some(queue.producer_busy),
            // A consumer that runs the whole graph waits for nothing else.
            (0, None) => {
                let is_whole = !homes.iter().any(|home| matches!(home, Home::Segment(_)));
                (is_whole && stats.device.is_none()).then_some(stats.waited)
            }
            _ => on_it().find_map(|(node, _)| Some(node.queue.as_ref()?.producer_busy)),
        };
        let nodes: f64 = on_it().map(|(node, _)| node.busy.as_secs_f64()).sum();
        if let Some(measured) = measured.filter(|_| nodes > 0.0) {
            thread.scale = measured.as_secs_f64() / nodes;
        }
    }
}

/// A thread that runs nodes ahead of a segment or a queue in the middle of the graph.
pub(in crate::loader::stats) struct Ahead {
    pub name: String,
    pub busy: Duration,
    /// Index of the node that takes most of its time.
    pub slowest: usize,
}

/// Returns the busiest thread of those in the middle of the graph, if there are any.
pub(in crate::loader::stats) fn busiest_ahead(stats: &Stats) -> Option<Ahead> {
    let (homes, mut threads) = homes(stats);
    scale(&mut threads, &homes, stats);
    let ahead = threads.into_iter().enumerate().skip(1);
    let ahead = ahead.filter_map(|(number, thread)| {
        let nodes = stats.nodes.iter().enumerate();
        let on_it = nodes.filter(|(id, _)| homes[*id] == Home::Thread(number));
        let busy: Duration = on_it.clone().map(|(_, node)| node.busy).sum();
        let (slowest, _) = on_it.max_by_key(|(_, node)| node.busy)?;
        Some(Ahead {
            name: thread.name,
            busy: busy.mul_f64(thread.scale),
            slowest,
        })
    });
    ahead.max_by_key(|ahead| ahead.busy)
}
