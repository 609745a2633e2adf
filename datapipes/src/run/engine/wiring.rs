//! Opens the stream of each node, by its place in the plan, and those upstream of it.
//!
//! Streams are opened here ([`EpochRun::open`]). The decisions are made in
//! [`restore`](super::restore), which opens nothing and calls nothing of this file: for each node or
//! segment, an [`NodeInputs`] says which part of its inputs is needed, and makes the log of its items
//! over the histories of the opened streams.

use std::collections::hash_map::Entry;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::EpochRun;
use super::restore::{NodeInputs, NodeLog, Ranges, SkipDelivered, Wired};
use crate::batch_buffer::RowCursor;
use crate::budget::Account;
use crate::checkpoint::Recorder;
use crate::graph::{AnyItems, Claim, Edge, ErasedChunks, FlowNode, Len, Op, Output};
use crate::mix_bits;
use crate::plan::{Placement, Prefetch};
use crate::run::chain::{Chain, Link, claimed, len_of};
use crate::run::gauge::QueueGauge;
use crate::run::io_driver::IoDriver;
use crate::run::morsel::{MorselPace, MorselShared, Spawner};
use crate::run::near::InPlace;
use crate::run::prefetch::{Depth, PrefetchSettings, PrefetchThread};
use crate::run::segment::{InputLog, Segment, SegmentSettings, inline_morsels};
use crate::run::spawn::{OnEither, OnPool, OnRuntime};
use crate::sync::lock;
use crate::{Arity, Context, Error, Order, Result, Wanted, Work};

/// Number of items kept ready for a segment whose input is read on a thread of its own; more if the
/// input is quick.
const FEED: Prefetch = Prefetch {
    items: 4,
    bytes: 0,
    adaptive: true,
};

impl EpochRun {
    /// Returns the stream of a node's output; in a resumed epoch, its `wanted` part.
    pub(super) fn stream(
        self: &Arc<Self>,
        (id, port): (usize, usize),
        round: u64,
        wanted: Option<&Wanted>,
    ) -> Wired {
        let place = self.engine.plan.places[id];
        match place {
            Placement::Inline => self.inline(id, port, round, wanted),
            Placement::Queue(queue) => {
                let edge = self.engine.flow.nodes[id].node.edge.clone();
                // The queue comes after the pipe, which may do other work.
                let above = self.inline(id, port, round, wanted);
                let queue = (
                    Prefetch {
                        items: queue.items.max(1),
                        ..queue
                    },
                    self.account(Some(id), &edge),
                );
                let items = self.queue(
                    id,
                    above.items,
                    queue,
                    self.queues[&id].clone(),
                    Arc::default(),
                );
                Wired { items, ..above }
            }
            Placement::Segment(number) => self.segment(number, round, wanted),
        }
    }

    /// Opens the streams that a node needs.
    fn open(self: &Arc<Self>, node_inputs: &NodeInputs<'_>, round: u64) -> Vec<Wired> {
        let inputs = node_inputs.inputs.iter();
        inputs
            .map(|(output, part)| self.stream(*output, round, part.as_ref()))
            .collect()
    }

    /// Makes a queue after a node, filled by a thread of its own.
    fn queue(
        &self,
        id: usize,
        items: AnyItems,
        queue: (Prefetch, Account),
        gauge: Arc<QueueGauge>,
        here: Arc<AtomicBool>,
    ) -> AnyItems {
        let FlowNode { node, name, .. } = &self.engine.flow.nodes[id];
        let above = node.edge.erase(items);
        let (queue, account) = queue;
        let depth = Depth {
            items: Arc::new(queue.items.into()),
            adaptive: queue.adaptive,
        };
        node.edge.restore(Box::new(self.prefetch(
            name.to_string(),
            above,
            (depth, account),
            &node.edge,
            gauge,
            (here, false),
        )))
    }

    /// Leaves out items of an output, at these positions, that are not wanted.
    fn skip_delivered(
        &self,
        id: usize,
        items: AnyItems,
        ranges: Option<Ranges>,
        wanted: Option<&Wanted>,
    ) -> AnyItems {
        match (ranges, wanted) {
            (Some(ranges), Some(wanted)) => {
                let node = &self.engine.flow.nodes[id];
                SkipDelivered::over(
                    items,
                    (&node.node.edge, &node.name),
                    ranges,
                    wanted.clone(),
                    self.other_ranks,
                )
            }
            _ => items,
        }
    }

    pub(super) fn prefetch(
        &self,
        name: String,
        above: Box<dyn ErasedChunks>,
        (depth, account): (Depth, Account),
        edge: &Arc<dyn Edge>,
        gauge: Arc<QueueGauge>,
        (here, reader_blocks): (Arc<AtomicBool>, bool),
    ) -> PrefetchThread {
        let (scope, edge) = (self.scope.clone(), edge.clone());
        PrefetchThread::new(
            above,
            PrefetchSettings {
                name,
                depth,
                account,
                scope,
                edge,
                here,
                reader_blocks,
            },
            gauge,
        )
    }

    /// Makes the stream of a segment's last node.
    fn segment(self: &Arc<Self>, number: usize, round: u64, wanted: Option<&Wanted>) -> Wired {
        let nodes = &self.engine.plan.segments[number].nodes;
        let last = *nodes.last().expect("a segment has a node");
        let node_inputs = NodeInputs::of_segment(self, number, round, wanted);
        let opened = self.open(&node_inputs, round);
        let log = node_inputs.log(&opened);
        let (input, here) = self.feed(number, one(opened).items);
        let segment = Segment::new(input, self.segment_settings(number, round, &log, here));
        let items = self.engine.flow.nodes[last]
            .node
            .edge
            .restore(Box::new(segment));
        let ranges = node_inputs.outputs.map(one);
        Wired {
            items: self.skip_delivered(last, items, ranges, wanted),
            history: log.history(0),
        }
    }

    /// Puts a queue before a segment whose plan asks for one, filled by a thread of its own.
    /// Returns the input, and with a queue the flag that has it filled by its reader instead.
    fn feed(
        self: &Arc<Self>,
        number: usize,
        input: AnyItems,
    ) -> (AnyItems, Option<Arc<AtomicBool>>) {
        let plan = &self.engine.plan.segments[number];
        if !plan.fed {
            return (input, None);
        }
        let above = self.engine.flow.nodes[plan.nodes[0]].inputs[0].0;
        let account = self.feed_account(number, &self.engine.flow.nodes[above].node.edge);
        let here = Arc::<AtomicBool>::default();
        let queued = self.queue(above, input, (FEED, account), Arc::default(), here.clone());
        (queued, Some(here))
    }

    fn segment_settings(
        self: &Arc<Self>,
        number: usize,
        round: u64,
        log: &NodeLog,
        here: Option<Arc<AtomicBool>>,
    ) -> SegmentSettings {
        let plan = &self.engine.plan.segments[number];
        let learned = self.engine.learned[number].clone();
        let waits = plan.seldom_waits.then(|| learned.waits.clone());
        let mut chain = self.chain(&plan.nodes, round);
        if let Some(waits) = &waits {
            chain.offload_to(Arc::new(InPlace {
                scope: self.scope.clone(),
                waits: waits.clone(),
                in_child: false,
            }));
        }
        SegmentSettings {
            shared: Arc::new(MorselShared {
                chain,
                work: plan.work,
                waits,
                arity: plan.arity,
                notifier: Arc::default(),
                account: self.segment_account(number),
                awaited: Arc::default(),
                pace: MorselPace::after(learned.taken.clone()),
                gauge: self.segments[number].clone(),
            }),
            spawner: self.spawner(number, round),
            here,
            // A segment that was stopped in order resumes in order, to its end.
            order: match log {
                NodeLog::Unordered(_) => plan.order,
                _ if self.cursors.is_none() => plan.order,
                _ => Order::Strict,
            },
            concurrency: plan.concurrency,
            start: plan.start,
            workers: plan.workers,
            set_by_user: plan.set_by_user,
            processes: plan.processes.is_some(),
            learned,
            log: match log {
                NodeLog::Segment(log) => InputLog::InOrder(log.clone()),
                NodeLog::Unordered(log) => InputLog::AnyOrder(log.clone()),
                _ => InputLog::Off,
            },
        }
    }

    /// Returns what runs the morsels of a segment.
    fn spawner(&self, number: usize, round: u64) -> Box<dyn Spawner> {
        #[cfg(target_os = "linux")]
        if let Some(supervisors) = &self.engine.supervisors[number] {
            let first = self.engine.plan.segments[number].nodes[0];
            return Box::new(supervisors.lend(self.run_facts(first, round)));
        }
        let (plan, scope) = (&self.engine.plan.segments[number], self.scope.clone());
        if plan.work == Work::Io && !plan.seldom_waits {
            return Box::new(OnRuntime(scope));
        }
        let pool = OnPool {
            pool: self.engine.pool(),
            scope,
            depth: plan.depth,
        };
        match plan.work {
            Work::Cpu => Box::new(pool),
            Work::Io => Box::new(OnEither(pool)),
        }
    }

    /// Makes one chain of neighbouring nodes.
    fn chain(&self, nodes: &[usize], round: u64) -> Chain {
        let link = |&id: &usize| {
            let node = &self.engine.flow.nodes[id].node;
            let Op::Pipe(pipe) = &node.op else {
                unreachable!("only pipes are put into segments")
            };
            Link {
                pipe: pipe.clone(),
                context: self.context(id, round),
                edge: node.edge.clone(),
                rows: self.rows(id),
                arity: node.hints.arity,
                len: len_of(pipe, &node.hints),
            }
        };
        let above = self.engine.flow.nodes[nodes[0]].inputs[0].0;
        let input = self.engine.flow.nodes[above].node.edge.clone();
        Chain {
            links: nodes.iter().map(link).collect(),
            input,
        }
    }

    /// Runs a node in the thread of its reader.
    fn inline(
        self: &Arc<Self>,
        id: usize,
        port: usize,
        round: u64,
        wanted: Option<&Wanted>,
    ) -> Wired {
        if let Some((output, log)) = self.waiting(id, port, round) {
            let cursor = self.cursor(id, wanted);
            let ranges = cursor.map(|cursor| vec![(cursor.outputs[port], u64::MAX)]);
            return self.output(id, port, output, &log, ranges, wanted);
        }
        let FlowNode { node, name, .. } = &self.engine.flow.nodes[id];
        let node_inputs = NodeInputs::of_node(self, id, round, wanted);
        let opened = self.open(&node_inputs, round);
        let log = node_inputs.log(&opened);
        let mut context = node_inputs.context(&log);
        if let Some(rows) = self.rows(id) {
            context = context.with_rows(RowCursor::new(rows, 0));
        }
        let (inputs, mut claim) = self.claim(id, node_inputs.counted(opened, &log), &log);
        let output = self
            .apply(id, round, inputs, &context, &log)
            .and_then(|outputs| {
                let outputs = outputs.into_iter().enumerate();
                let wired = outputs.map(|(port, items)| {
                    self.instrument(id, port, items, &context, claim.take(), &log)
                });
                self.take_output(id, port, round, wired.collect(), &log)
            });
        match output {
            Ok(output) => {
                let ranges = node_inputs.outputs.map(|mut all| all.swap_remove(port));
                self.output(id, port, output, &log, ranges, wanted)
            }
            Err(error) => Wired {
                items: node.edge.fail(error.at(name)),
                history: log.history(port),
            },
        }
    }

    /// Makes the claim of a node whose number of outputs is checked, and counts the input of a pipe.
    fn claim(
        &self,
        id: usize,
        inputs: Vec<AnyItems>,
        log: &NodeLog,
    ) -> (Vec<AnyItems>, Option<Claim>) {
        let FlowNode {
            node,
            inputs: above,
            ..
        } = &self.engine.flow.nodes[id];
        let hints = &node.hints;
        // A pipe that goes on from a snapshot may give what it took before, and a cache that is full
        // does not take its input.
        let is_free = self.cursors.is_some() && !hints.is_shardable || hints.renames;
        match (&node.op, log) {
            // Each link of a chain has a claim of its own.
            (Op::Pipe(_), NodeLog::Segment(_)) => (inputs, None),
            (Op::Source(source), _) if self.cursors.is_none() => {
                let claim = Claim::of(Arity::Any, Len::of_source(hints, source.len_hint()));
                (inputs, claim.map(|(claim, _)| claim))
            }
            (Op::Pipe(pipe), _) if !is_free => {
                let above = &self.engine.flow.nodes[above[0].0];
                let len = match above.hints().many_readers {
                    // It reads an order of an index, whose samples are not counted.
                    true => Len::Unknown,
                    false => len_of(pipe, hints),
                };
                let (input, claim) = claimed((hints.arity, len), &above.node.edge, one(inputs));
                (vec![input], claim)
            }
            _ => (inputs, None),
        }
    }

    /// Returns one of the outputs of a node, which were made together. The others of a split wait
    /// for their readers.
    fn take_output(
        &self,
        id: usize,
        port: usize,
        round: u64,
        outputs: Vec<Wired>,
        log: &NodeLog,
    ) -> Result<Wired> {
        let mut outputs: Vec<_> = outputs.into_iter().map(Some).collect();
        let output = outputs.get_mut(port).and_then(Option::take);
        let node = &self.engine.flow.nodes[id];
        let is_split = matches!(node.node.op, Op::Split(_));
        if round > 0 {
            // Nobody will ask for the others, which would hold up this one.
            let outputs = outputs.iter_mut().zip(&node.repeats);
            let unread = outputs.filter(|(_, repeats)| repeats.is_empty());
            unread.for_each(|(output, _)| *output = None);
        }
        // A dropped epoch has been cleared already.
        if is_split
            && outputs.iter().any(Option::is_some)
            && !self.info.cancelled.load(Ordering::Relaxed)
        {
            // Not dropped under the lock: that may open other outputs.
            let before = lock(&self.splits).insert((id, round), (outputs, log.clone()));
            drop(before);
        }
        output.ok_or_else(|| Error::config("fewer outputs than it said"))
    }

    /// Applies a node to its inputs, which calls a user's code: a panic of it is an error.
    fn apply(
        self: &Arc<Self>,
        id: usize,
        round: u64,
        inputs: Vec<AnyItems>,
        context: &Context,
        log: &NodeLog,
    ) -> Result<Vec<AnyItems>> {
        let node = &self.engine.flow.nodes[id].node;
        let applied = catch_unwind(AssertUnwindSafe(|| match (&node.op, log) {
            (Op::Pipe(_), NodeLog::Segment(log)) => {
                let chain = self.chain(&self.engine.plan.groups[id], round);
                let edge = chain.input.clone();
                let apply = move |morsel, first| chain.apply_caught(morsel, first);
                vec![inline_morsels(
                    one(inputs),
                    &edge,
                    &node.edge,
                    log.clone(),
                    apply,
                )]
            }
            (Op::Source(source), _) => vec![source.open(context)],
            (Op::Pipe(pipe), _) => vec![pipe.apply(one(inputs), context)],
            (Op::Join(join), _) => vec![join.join(inputs, context)],
            (Op::Split(split), _) => split.split(one(inputs), context),
            (Op::Rerun(rerun), _) => {
                let recorder = log.recorder().cloned();
                vec![rerun.rerun(self.upstream(id, round, recorder), context)]
            }
        }));
        applied.map_err(Error::panic)
    }

    /// Counts and checks the items of one output of a node that runs inline, and drives its I/O.
    fn instrument(
        &self,
        id: usize,
        port: usize,
        items: AnyItems,
        context: &Context,
        claim: Option<Claim>,
        log: &NodeLog,
    ) -> Wired {
        let FlowNode { node, name, .. } = &self.engine.flow.nodes[id];
        let produced = match log {
            NodeLog::Snapshots(recorder) => Some(recorder.produced(port)),
            _ => context
                .lineage()
                .map(|lineage| lineage.unordered().produced()),
        };
        let mut items = match produced {
            Some(produced) => node.edge.counted(items, None, Some(produced.clone())),
            None => items,
        };
        // Each link of a chain has an instrument of its own.
        if !matches!(log, NodeLog::Segment(_)) {
            items = node.edge.instrument(items, context.clone(), claim);
        }
        if matches!(node.op, Op::Pipe(_)) && node.hints.work == Work::Io {
            let (edge, scope) = (node.edge.clone(), self.scope.clone());
            let driven = IoDriver::new(edge.erase(items), scope, edge, name.clone());
            items = node.edge.restore(Box::new(driven));
        }
        Wired {
            items,
            history: log.history(port),
        }
    }

    /// Makes an output of a node of its wanted items only.
    fn output(
        &self,
        id: usize,
        port: usize,
        output: Wired,
        log: &NodeLog,
        ranges: Option<Ranges>,
        wanted: Option<&Wanted>,
    ) -> Wired {
        let node = &self.engine.flow.nodes[id];
        if let (Some(recorder), Some(wanted), Some(_)) = (log.recorder(), wanted, &ranges)
            && matches!(node.node.op, Op::Split(_))
            && node.hints().by_position
            && recorder.want(port, wanted.clone())
        {
            // The node itself leaves out unwanted items, which would fill its queues.
            return output;
        }
        Wired {
            items: self.skip_delivered(id, output.items, ranges, wanted),
            ..output
        }
    }

    /// Returns an output of a split that was made when another output was asked for.
    fn waiting(&self, id: usize, port: usize, round: u64) -> Option<(Wired, NodeLog)> {
        let mut splits = lock(&self.splits);
        let Entry::Occupied(mut entry) = splits.entry((id, round)) else {
            return None;
        };
        let (outputs, log) = entry.get_mut();
        let output = outputs.get_mut(port).and_then(Option::take);
        let waiting = output.map(|output| (output, log.clone()));
        // Each round of a repeat has its own outputs; they are removed when all have been asked
        // for.
        if outputs.iter().all(Option::is_none) {
            entry.remove();
        }
        waiting
    }

    /// Starts the upstream of a node that runs it more than once.
    fn upstream(
        self: &Arc<Self>,
        id: usize,
        round: u64,
        recorder: Option<Arc<Recorder>>,
    ) -> Box<dyn FnMut(u64) -> AnyItems + Send> {
        let (run, above) = (self.clone(), self.engine.flow.nodes[id].inputs[0]);
        let edge = self.engine.flow.nodes[above.0].node.edge.clone();
        let round = self.engine.flow.nodes[id].own_round(round);
        // The round in which an epoch is resumed; later rounds begin.
        let mut resumed = recorder
            .as_ref()
            .and_then(|recorder| recorder.resumed_round());
        let begins = resumed.as_ref().map_or(0, |(from, _)| *from);
        let mut unread = Unread {
            run: run.clone(),
            above,
            round: inner_round(round, begins),
            is_read: false,
        };
        Box::new(move |next: u64| {
            unread.is_read();
            let inner = inner_round(round, next);
            let first = resumed
                .take()
                .filter(|(from, _)| *from == next)
                .map(|(_, wanted)| wanted);
            let Wired { items, history } = run.stream(above, inner, first.as_ref());
            match (&recorder, history) {
                (Some(recorder), Some(history)) => {
                    let taken = recorder.begin_round(next, first, history);
                    edge.counted(items, Some(taken), None)
                }
                _ => items,
            }
        })
    }
}

/// Returns the round of what is upstream of a repeat that works in a round itself.
fn inner_round(round: u64, next: u64) -> u64 {
    match round {
        0 => next,
        _ => mix_bits(round).wrapping_add(next),
    }
}

/// The upstream of a node that has not started it. If the node is dropped before it does, as one
/// above a cache that is full, the outputs of splits that it would have read must not wait for it.
struct Unread {
    run: Arc<EpochRun>,
    above: Output,
    round: u64,
    is_read: bool,
}

impl Unread {
    fn is_read(&mut self) {
        self.is_read = true;
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let Unread { run, above, .. } = &*self;
        let is_cancelled = run.info.cancelled.load(Ordering::Relaxed);
        if !self.is_read && !is_cancelled && run.engine.flow.has_split(above.0) {
            drop(run.stream(*above, self.round, None));
        }
    }
}

pub(super) fn one<T>(inputs: Vec<T>) -> T {
    inputs.into_iter().next().expect("a pipe has one input")
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;
    use crate::Graph;
    use crate::graph::Flow;
    use crate::plan::Plan;
    use crate::run::{Engine, RankShare, Running};
    use crate::settings::Settings;

    /// A pipe that panics before it has a stream.
    struct Panics;

    impl crate::Pipe<u64> for Panics {
        type Out = u64;

        fn apply(&self, _: crate::Items<u64>, _: &Context) -> crate::Items<u64> {
            panic!("no stream")
        }
        fn hints(&self) -> crate::Hints {
            crate::Hints::default().is_resumable(true)
        }
    }

    #[test]
    fn a_pipe_that_panics_as_it_is_applied_has_a_trace_for_the_nodes_that_read_it() {
        let graph = Graph::range(0..3).pipe(Panics).shuffle(2);
        let builder = crate::DataLoader::builder(graph).workers(0).resumable();
        let mut epoch = builder.build().unwrap().epoch(0).blocking();
        let error = epoch.next().unwrap().unwrap_err().to_string();
        assert_eq!(error, "panics: panicked: no stream");
        assert!(epoch.checkpoint().is_ok());
    }

    #[test]
    fn a_repeat_keeps_nothing_of_the_forks_of_earlier_rounds() {
        let graph = Graph::mux(Graph::range(0..2).fork::<2>()).cycle();
        for workers in [0, 2] {
            let settings = Settings {
                workers,
                ..Settings::default()
            };
            let flow = Flow::new(&graph.root());
            let plan = Plan::new(&flow, &settings);
            let engine = Arc::new(Engine::new(flow, plan, settings));
            let mut running =
                Running::<u64>::start(&engine, 0, RankShare::default(), false, None).unwrap();
            for _ in 0..400 {
                crate::run::block_on(running.items.next()).unwrap().unwrap();
            }
            assert!(lock(&running.run.splits).is_empty(), "{workers} workers");
        }
    }
}
