//! The stream of each node, by its place in the plan.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::EpochRun;
use super::inputs::{InlineTrace, NodeInputs, Runs};
use crate::batch_buffer::RowCursor;
use crate::budget::Account;
use crate::checkpoint::{Recorder, SnapshotTrace, Trace};
use crate::graph::{AnyItems, Edge, ErasedChunks, FlowNode, Op};
use crate::plan::{Place, Prefetch};
use crate::rng::mix;
use crate::run::chain::{Chain, Link};
use crate::run::gauge::QueueGauge;
use crate::run::io_driver::IoDriver;
use crate::run::morsel::Spawner;
use crate::run::prefetch::{PrefetchSettings, PrefetchThread};
use crate::run::restore::SkipDelivered;
use crate::run::restore::in_morsels;
use crate::run::segment::{Segment, SegmentSettings};
use crate::run::spawn::{OnPool, OnRuntime};
use crate::sync::lock;
use crate::{Arity, Context, Error, ErrorKind, Order, Wanted, Work};

/// Outputs of splits, by node and round.
pub(super) type Splits = HashMap<(usize, u64), (Vec<Option<Wired>>, Option<Arc<Recorder>>)>;

/// Number of items kept ready for a segment whose input is read on a thread of its own; more if the
/// input is quick.
const FEED: Prefetch = Prefetch {
    items: 4,
    bytes: 0,
    adaptive: true,
};

/// A stream, with its trace for checkpoints.
pub(super) struct Wired {
    pub items: AnyItems,
    /// Set if checkpoints can be taken.
    pub trace: Option<Arc<dyn Trace>>,
}

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
            Place::Inline => self.inline(id, port, round, wanted),
            Place::Queue(queue) => {
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
            Place::Segment(number) => self.segment(number, round, wanted),
        }
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
        node.edge.restore(Box::new(self.prefetch(
            name.to_string(),
            above,
            queue,
            &node.edge,
            gauge,
            here,
        )))
    }

    fn skip_delivered(
        &self,
        id: usize,
        items: AnyItems,
        runs: Option<Runs>,
        wanted: Option<&Wanted>,
    ) -> AnyItems {
        match (runs, wanted) {
            (Some(runs), Some(wanted)) => {
                let node = &self.engine.flow.nodes[id];
                SkipDelivered::over(
                    items,
                    (&node.node.edge, &node.name),
                    runs,
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
        (queue, account): (Prefetch, Account),
        edge: &Arc<dyn Edge>,
        gauge: Arc<QueueGauge>,
        here: Arc<AtomicBool>,
    ) -> PrefetchThread {
        let Prefetch {
            items: depth,
            bytes: _,
            adaptive,
        } = queue;
        let (scope, edge) = (self.scope.clone(), edge.clone());
        PrefetchThread::new(
            above,
            PrefetchSettings {
                name,
                depth,
                adaptive,
                account,
                scope,
                edge,
                here,
            },
            gauge,
        )
    }

    fn segment(self: &Arc<Self>, number: usize, round: u64, wanted: Option<&Wanted>) -> Wired {
        let flow = &self.engine.flow;
        let plan = &self.engine.plan.segments[number];
        let above = flow.nodes[plan.nodes[0]].inputs[0];
        let last = *plan.nodes.last().expect("a segment has a node");
        let mut unordered = None;
        let (input, trace, pieces, runs) = if self.unordered[last] {
            let (input, trace) = self.unordered_input(last, above, round, wanted, false);
            unordered = Some(trace.clone());
            (input, Some(trace as Arc<dyn Trace>), None, None)
        } else if plan.arity == Arity::One {
            let Wired { items, trace } = self.stream(above, round, wanted);
            (items, trace, None, None)
        } else {
            let (items, pieces, runs) = self.pieces(&plan.nodes, round, wanted);
            (
                items,
                pieces.clone().map(|pieces| pieces as Arc<dyn Trace>),
                pieces,
                runs,
            )
        };
        let here = plan.fed.then(Arc::<AtomicBool>::default);
        let input = match &here {
            None => input,
            Some(here) => {
                let queue = (
                    FEED,
                    self.feed_account(number, &flow.nodes[above.0].node.edge),
                );
                self.queue(above.0, input, queue, Arc::default(), here.clone())
            }
        };
        let settings = SegmentSettings {
            here,
            work: plan.work,
            // A segment that was stopped in order resumes in order, to its end.
            order: if self.cursors.is_some() && unordered.is_none() {
                Order::Strict
            } else {
                plan.order
            },
            concurrency: plan.concurrency,
            start: plan.start,
            workers: plan.workers,
            account: self.segment_account(number),
            arity: plan.arity,
            set_by_user: plan.set_by_user,
            processes: plan.processes.is_some(),
        };
        let spawner = self.spawner(number, round);
        let edge = &flow.nodes[last].node.edge;
        let (gauge, learned) = (
            self.segments[number].clone(),
            self.engine.learned[number].clone(),
        );
        let chain = self.chain(&plan.nodes, round);
        let segment = Segment::new(
            chain,
            input,
            settings,
            spawner,
            gauge,
            learned,
            (pieces, unordered),
        );
        let items = self.skip_delivered(last, edge.restore(Box::new(segment)), runs, wanted);
        Wired { items, trace }
    }

    /// Returns what runs the morsels of a segment.
    fn spawner(&self, number: usize, round: u64) -> Box<dyn Spawner> {
        #[cfg(target_os = "linux")]
        if let Some(supervisors) = &self.engine.supervisors[number] {
            return Box::new(supervisors.lend(self.run_facts(round)));
        }
        let (plan, scope) = (&self.engine.plan.segments[number], self.scope.clone());
        match plan.work {
            Work::Cpu => Box::new(OnPool {
                pool: self.engine.pool(),
                scope,
                depth: plan.depth,
            }),
            Work::Io => Box::new(OnRuntime(scope)),
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
            }
        };
        let above = self.engine.flow.nodes[nodes[0]].inputs[0].0;
        let input = self.engine.flow.nodes[above].node.edge.clone();
        Chain {
            links: nodes.iter().map(link).collect(),
            input,
        }
    }

    fn inline(
        self: &Arc<Self>,
        id: usize,
        port: usize,
        round: u64,
        wanted: Option<&Wanted>,
    ) -> Wired {
        let flow_node = &self.engine.flow.nodes[id];
        let node = &flow_node.node;
        if let Op::Split(_) = node.op
            && let Some((output, recorder)) = self.waiting(id, port, round)
        {
            let runs = self
                .cursor(id, wanted)
                .map(|cursor| vec![(cursor.outputs[port], u64::MAX)]);
            return self.output(id, port, output, recorder, runs, wanted);
        }
        let NodeInputs {
            mut context,
            inputs,
            trace,
            runs,
            recorder,
        } = self.inputs_of(id, round, wanted);
        if let Some(rows) = self.rows(id) {
            context = context.with_rows(RowCursor::new(rows, 0));
        }
        let applies = |inputs: Vec<AnyItems>| match &node.op {
            Op::Source(source) => vec![source.open(&context)],
            Op::Pipe(pipe) => vec![pipe.apply(one(inputs), &context)],
            Op::Join(join) => vec![join.join(inputs, &context)],
            Op::Split(split) => split.split(one(inputs), &context),
            Op::Rerun(rerun) => {
                vec![rerun.rerun(self.upstream(id, round, recorder.clone()), &context)]
            }
        };
        // A pipe's `apply` is a user's code, too.
        let applied = catch_unwind(AssertUnwindSafe(|| match (&node.op, &trace) {
            (Op::Pipe(_), Some(InlineTrace::SegmentLog(pieces))) => {
                let chain = self.chain(&self.engine.plan.groups[id], round);
                let edge = chain.input.clone();
                let apply = move |piece, first| chain.apply_caught(piece, first);
                vec![in_morsels(
                    one(inputs),
                    &edge,
                    &node.edge,
                    pieces.clone(),
                    apply,
                )]
            }
            _ => applies(inputs),
        }));
        let outputs = match applied {
            Ok(outputs) => outputs,
            Err(payload) => {
                let items = node.edge.fail(Error::panic(payload).at(&flow_node.name));
                return Wired {
                    items,
                    trace: trace.map(InlineTrace::into_trace),
                };
            }
        };
        let mut outputs: Vec<Option<Wired>> = outputs
            .into_iter()
            .enumerate()
            .map(|(port, items)| Some(self.behind(id, port, items, (&context, &trace, &recorder))))
            .collect();
        let output = outputs.get_mut(port).and_then(Option::take);
        if let Op::Split(_) = node.op {
            let mut splits = lock(&self.splits);
            // A dropped epoch has been cleared already.
            if outputs.iter().any(Option::is_some) && !self.info.cancelled.load(Ordering::Relaxed) {
                splits.insert((id, round), (outputs, recorder.clone()));
            }
        }
        match output {
            Some(output) => {
                let runs = runs.map(|mut runs| runs.swap_remove(port));
                self.output(id, port, output, recorder, runs, wanted)
            }
            None => {
                let error =
                    Error::new(ErrorKind::Config, "fewer outputs than it said").at(&flow_node.name);
                Wired {
                    items: node.edge.fail(error),
                    trace: trace.map(InlineTrace::into_trace),
                }
            }
        }
    }

    /// Adds the guards and filters after a node that runs inline, at one of its outputs.
    fn behind(
        &self,
        id: usize,
        port: usize,
        items: AnyItems,
        (context, trace, recorder): (&Context, &Option<InlineTrace>, &Option<Arc<Recorder>>),
    ) -> Wired {
        let FlowNode { node, name, .. } = &self.engine.flow.nodes[id];
        let produced = match (recorder, context.lineage()) {
            (Some(recorder), _) => Some(recorder.produced(port)),
            (None, lineage) => lineage.map(|lineage| lineage.unordered().produced()),
        };
        let items = match produced {
            Some(produced) => node.edge.counted(items, None, Some(produced.clone())),
            None => items,
        };
        let mut items = match trace {
            // Each link of the chain has a guard of its own.
            Some(InlineTrace::SegmentLog(_)) => items,
            _ => node.edge.guard(items, context.clone()),
        };
        if matches!(node.op, Op::Pipe(_)) && self.engine.flow.nodes[id].hints().work == Work::Io {
            let (edge, scope) = (node.edge.clone(), self.scope.clone());
            let driven = IoDriver::new(edge.erase(items), scope, edge, name.clone());
            items = node.edge.restore(Box::new(driven));
        }
        let trace = match (recorder, trace) {
            (Some(recorder), _) => {
                Some(Arc::new(SnapshotTrace(recorder.clone(), port)) as Arc<dyn Trace>)
            }
            (None, trace) => trace.clone().map(InlineTrace::into_trace),
        };
        Wired { items, trace }
    }

    /// Makes an output of a node that ends with its wanted items.
    fn output(
        &self,
        id: usize,
        port: usize,
        output: Wired,
        recorder: Option<Arc<Recorder>>,
        runs: Option<Runs>,
        wanted: Option<&Wanted>,
    ) -> Wired {
        let node = &self.engine.flow.nodes[id];
        if let (Some(recorder), Some(wanted), Some(_)) = (recorder, wanted, &runs)
            && matches!(node.node.op, Op::Split(_))
            && node.hints().by_position
            && recorder.want(port, wanted.clone())
        {
            // The node itself leaves out unwanted items, which would fill its queues.
            return output;
        }
        Wired {
            items: self.skip_delivered(id, output.items, runs, wanted),
            ..output
        }
    }

    /// Returns an output of a split that was made when another output was asked for.
    fn waiting(
        &self,
        id: usize,
        port: usize,
        round: u64,
    ) -> Option<(Wired, Option<Arc<Recorder>>)> {
        let mut splits = lock(&self.splits);
        let Entry::Occupied(mut entry) = splits.entry((id, round)) else {
            return None;
        };
        let (outputs, recorder) = entry.get_mut();
        let waiting = outputs
            .get_mut(port)
            .and_then(Option::take)
            .map(|output| (output, recorder.clone()));
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
        // The round in which an epoch is resumed; later rounds begin.
        let mut resumed = recorder
            .as_ref()
            .and_then(|recorder| recorder.resumed_round());
        Box::new(move |next: u64| {
            let inner = if round == 0 {
                next
            } else {
                mix(round).wrapping_add(next)
            };
            let first = resumed
                .take()
                .filter(|(from, _)| *from == next)
                .map(|(_, wanted)| wanted);
            let Wired { items, trace } = run.stream(above, inner, first.as_ref());
            match (&recorder, trace) {
                (Some(recorder), Some(trace)) => {
                    let taken = recorder.begin_round(next, first, trace);
                    edge.counted(items, Some(taken), None)
                }
                _ => items,
            }
        })
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
    use crate::run::{Engine, Running, Share};
    use crate::settings::Settings;

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
                Running::<u64>::start(&engine, 0, Share::default(), false, None).unwrap();
            for _ in 0..400 {
                crate::run::block_on(running.items.next()).unwrap().unwrap();
            }
            assert!(lock(&running.run.splits).is_empty(), "{workers} workers");
        }
    }
}
