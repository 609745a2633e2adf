//! Wires a flow by its plan. One [`Engine`] per loader keeps threads and runtime; one [`EpochRun`] per epoch.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, Runtime, RuntimeFlavor};

use crate::context::{Counters, Offload, RunInfo};
use crate::graph::{AnyItems, Flow, Op};
#[cfg(target_os = "linux")]
use crate::graph::{FlowNode, Part, likeness};
use crate::keep::{
    ByPosition, Cursor, Input, Keeper, Marked, Pieces, Place as On, Recorder, Saving, Trace, Trim, Unordered,
};
#[cfg(target_os = "linux")]
use crate::plan::SegmentPlan;
use crate::plan::{Place, Plan, Prefetch};
use crate::rng::mix;
use crate::rows::{self, RowCursor, Rows};
use crate::run::ahead::AheadGauge;
use crate::run::background::{Background, BackgroundSettings, QueueGauge};
#[cfg(target_os = "linux")]
use crate::run::children::{
    ChildPlan, Crews, Figures, Hello, RunFacts, log_level, overlap_of, shared_memory,
};
use crate::run::driven::Driven;
use crate::run::morsel::{Chain, Link, Spawner};
use crate::run::pieced::pieced;
use crate::run::pool::Pool;
use crate::run::segment::{Learned, Segment, SegmentGauge, SegmentSettings};
use crate::run::sieve::Sieve;
use crate::settings::Settings;
use crate::{Arity, Context, Error, ErrorKind, Items, Order, Rank, Role, Uneven, Wanted, Work};

/// What a loader keeps from epoch to epoch.
pub(crate) struct Engine {
    pub flow: Flow,
    pub plan: Plan,
    pub settings: Settings,
    /// For each segment, what one epoch leaves to the next.
    learned: Vec<Arc<Learned>>,
    /// For each node, the memory of batches that it fills.
    batches: Vec<Arc<rows::Pool>>,
    /// For each segment, the processes that it runs in, if it does.
    #[cfg(target_os = "linux")]
    pub crews: Vec<Option<Arc<Crews>>>,
    pool: OnceLock<Arc<Pool>>,
    runtime: Mutex<Option<Runtime>>,
}

impl Engine {
    pub(crate) fn new(flow: Flow, plan: Plan, settings: Settings) -> Self {
        let learned = plan.segments.iter().map(|_| Arc::default()).collect();
        let batches = plan.rows.iter().map(|_| Arc::new(rows::Pool::new(plan.prefetch.bytes))).collect();
        Engine {
            #[cfg(target_os = "linux")]
            crews: plan.segments.iter().map(|segment| crews(&flow, segment, &plan.rows)).collect(),
            flow,
            plan,
            settings,
            learned,
            batches,
            pool: OnceLock::new(),
            runtime: Mutex::new(None),
        }
    }

    fn pool(&self) -> Arc<Pool> {
        self.pool.get_or_init(|| Arc::new(Pool::new(self.settings.workers))).clone()
    }

    /// The runtime for I/O: the caller's where it has one that runs by itself, else a small one of our own.
    pub(super) fn io(&self, may_use_callers: bool) -> std::io::Result<Handle> {
        // A runtime of one thread stands still while its thread trains; it would not work ahead.
        if may_use_callers
            && let Ok(handle) = Handle::try_current()
            && handle.runtime_flavor() == RuntimeFlavor::MultiThread
        {
            return Ok(handle);
        }
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if runtime.is_none() {
            *runtime = Some(super::runtime::start()?);
        }
        Ok(runtime.as_ref().expect("made above").handle().clone())
    }
}

impl Engine {
    /// Whether nodes can be put where these say.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if neighbours were worked on together that are not now, or the other way round;
    /// [`ErrorKind::Corrupt`] if it is not of this graph.
    pub(crate) fn fits(&self, cursors: &Cursors) -> crate::Result<()> {
        let plan = &self.plan;
        let segments = plan.segments.iter().map(|segment| &segment.nodes).chain(&plan.groups);
        let pieces: HashMap<usize, u64> =
            segments.clone().filter_map(|nodes| self.flow.piece(nodes)).collect();
        let lasts: Vec<usize> = segments.filter_map(|nodes| nodes.last().copied()).collect();
        for (id, node) in self.flow.nodes.iter().enumerate() {
            let Some(cursor) = cursors.get(&node.name) else { continue };
            let (hints, is_pipe) = (node.hints(), matches!(node.node.op, Op::Pipe(_)));
            let whole =
                cursor.outputs.len() == node.node.outputs() && cursor.inputs.len() <= node.inputs.len();
            let passes = hints.arity == Arity::One
                || matches!(hints.facts.role, Role::Shuffle | Role::ShuffleWithinRank | Role::Batch(_));
            if !whole || (cursor.unordered && !(is_pipe && passes)) {
                return Err(
                    Error::new(ErrorKind::Corrupt, "a state that no such node can have").at(&node.name)
                );
            }
            let is_cut = is_pipe && (hints.shardable || pieces.contains_key(&id)) && !hints.facts.by_position;
            let fits = match cursor.unordered {
                true => !hints.shardable || self.settings.workers == 0 || lasts.contains(&id),
                // Of a node that was not there before it is 0.
                false => cursor.round == 0 || pieces.get(&id) == Some(&cursor.round),
            };
            if is_cut && !fits {
                let message = "it was worked on in pieces together with its neighbours that is worked on alone now, or the \
                               other way round: concurrency or processes of one of them are others";
                return Err(Error::new(ErrorKind::Config, message).at(&node.name));
            }
        }
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        drop(self.pool.take());
        if let Some(runtime) = self.runtime.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // Unlike the runtime's own drop this may be called from inside another runtime.
            runtime.shutdown_background();
        }
    }
}

/// The crews of a segment, if it runs in processes of its own.
#[cfg(target_os = "linux")]
fn crews(flow: &Flow, segment: &SegmentPlan, rows: &[Option<usize>]) -> Option<Arc<Crews>> {
    let processes = segment.processes.clone()?;
    let nodes: Vec<&FlowNode> = segment.nodes.iter().map(|&id| &flow.nodes[id]).collect();
    let mut parts: Vec<&Arc<Part>> = nodes.iter().filter_map(|node| node.node.part.as_ref()).collect();
    parts.dedup_by(|a, b| Arc::ptr_eq(a, b));
    let (input, output) = (parts.first()?.input.clone(), parts.last()?.output.clone());
    let names: Vec<String> = nodes.iter().map(|node| node.name.to_string()).collect();
    let level = tracing::level_filters::LevelFilter::current().into_level().map_or(0, log_level);
    let fills = segment.nodes.iter().position(|&id| rows[id].is_some());
    let hello = Hello {
        recipes: parts.iter().map(|part| part.recipe.clone()).collect(),
        likeness: likeness(nodes.iter().map(|node| &*node.node), &*input, &*output),
        sources: nodes.iter().map(|node| node.source).collect(),
        processes: processes.clone(),
        level,
        overlap: overlap_of(
            nodes.iter().map(|node| node.hints().work),
            segment.in_flight / segment.workers.max(1),
        ),
        names: names.clone(),
        fills,
    };
    let edge = nodes.last()?.node.edge.clone();
    Some(Crews::new(ChildPlan {
        processes,
        hello,
        node: names.join(" → ").into(),
        input,
        output,
        edge,
        arity: segment.arity,
        figures: Figures::default(),
    }))
}

/// Outputs of splits, by node and round.
type Splits = HashMap<(usize, u64), (Vec<Option<Wired>>, Option<Arc<Recorder>>)>;

/// One epoch on its way: what its nodes share, and what is measured at its edges.
pub(crate) struct EpochRun {
    pub engine: Arc<Engine>,
    info: RunInfo,
    pub io: Handle,
    begun: Instant,
    /// Nanoseconds from `begun` to the end; 0 while it runs.
    ended: AtomicU64,
    delivered: AtomicU64,
    skipped: AtomicU64,
    /// Nanoseconds that the consumer spent in the graph itself, while no queue stood between.
    inline_ns: AtomicU64,
    pub counters: Vec<Arc<Counters>>,
    pub segments: Vec<Arc<SegmentGauge>>,
    pub queues: HashMap<usize, Arc<QueueGauge>>,
    pub root_queue: Arc<QueueGauge>,
    /// Measured at the device stage, where one reads the epoch.
    pub device: OnceLock<Arc<AheadGauge>>,
    /// Outputs of splits that nobody has asked for yet.
    splits: Mutex<Splits>,
    /// How far an epoch that goes on had come, by node.
    cursors: Option<Arc<Cursors>>,
    /// Nodes whose items come, or leave, in any order, where states can be asked for.
    unordered: Vec<bool>,
    /// Whether an epoch goes on that other ranks began.
    elsewhere: bool,
    /// Whether a log has become long.
    pub trim: Trim,
}

/// Positions, one range after the other.
type Runs = Vec<(u64, u64)>;

/// Where each node stands, by name.
pub(crate) type Cursors = BTreeMap<Arc<str>, Cursor>;

/// Where an epoch goes on.
#[derive(Clone, Debug)]
pub(crate) struct GoesOn {
    /// Items and errors that came out of the graph before.
    pub position: u64,
    pub cursors: Arc<Cursors>,
    /// Whether it were other ranks that began it: the last step of all may have had fewer items than the others.
    pub elsewhere: bool,
}

/// Whose part of the data an epoch gives: the loader's own, or that of a rank of the job that began it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub rank: Rank,
    pub uneven: Option<Uneven>,
}

/// A stream, and how it is gone on with.
struct Wired {
    items: AnyItems,
    /// Where states can be asked for.
    trace: Option<Arc<dyn Trace>>,
}

impl EpochRun {
    /// The epoch is over, by its end or by being dropped.
    pub(crate) fn finish(&self) {
        self.info.cancelled.store(true, Ordering::Relaxed);
        let now = self.begun.elapsed().as_nanos() as u64;
        let _ = self.ended.compare_exchange(0, now.max(1), Ordering::Relaxed, Ordering::Relaxed);
        self.splits().clear();
    }

    pub(crate) fn count_delivered(&self) {
        self.delivered.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_skipped(&self) {
        self.skipped.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_inline(&self, time: Duration) {
        self.inline_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// How long the consumer was inside the graph, or waited for its queue.
    pub(crate) fn consumer_waited(&self) -> Duration {
        let queue = self.root_queue.empty_ns.load(Ordering::Relaxed);
        Duration::from_nanos(self.inline_ns.load(Ordering::Relaxed) + queue)
    }

    /// Items delivered, and items skipped.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.delivered.load(Ordering::Relaxed), self.skipped.load(Ordering::Relaxed))
    }

    pub(crate) fn wall(&self) -> Duration {
        match self.ended.load(Ordering::Relaxed) {
            0 => self.begun.elapsed(),
            ns => Duration::from_nanos(ns),
        }
    }

    fn context(&self, id: usize, round: u64) -> Context {
        let node = &self.engine.flow.nodes[id];
        Context::new(node.name.clone(), node.source, self.info.clone(), round, self.counters[id].clone())
    }

    /// The rows that a node fills in one stream of items.
    fn rows(&self, id: usize) -> Option<Arc<Rows>> {
        let batch = self.engine.plan.rows[id]?;
        let rows = Rows::new(self.engine.batches[id].clone(), batch);
        #[cfg(target_os = "linux")]
        if let Place::Segment(number) = self.engine.plan.places[id]
            && self.engine.crews[number].is_some()
        {
            return Some(Arc::new(rows.filled_elsewhere(shared_memory())));
        }
        Some(Arc::new(rows))
    }

    /// The stream of a node's output; of an epoch that goes on, what is `wanted` of it.
    fn stream(self: &Arc<Self>, (id, port): (usize, usize), round: u64, wanted: Option<&Wanted>) -> Wired {
        let place = self.engine.plan.places[id];
        match place {
            Place::Inline => self.inline(id, port, round, wanted),
            Place::Queue(queue) => {
                let edge = self.engine.flow.nodes[id].node.edge.clone();
                let above = self.stream(self.engine.flow.nodes[id].inputs[0], round, wanted);
                let name = self.engine.flow.nodes[id].name.to_string();
                let background = self.background(name, above.items, queue, &edge, self.queues[&id].clone());
                let items = edge.guard(edge.restore(Box::new(background)), self.context(id, round));
                Wired { items, trace: above.trace }
            }
            Place::Segment(number) => self.segment(number, round, wanted),
        }
    }

    /// Where a node stood, if an epoch goes on in the middle of what it gives.
    fn cursor(&self, id: usize, wanted: Option<&Wanted>) -> Option<&Cursor> {
        wanted?;
        self.cursors.as_ref()?.get(&self.engine.flow.nodes[id].name)
    }

    /// The input of what distributes over concatenation, with a log of pieces, and what sifts its output.
    fn pieces(
        self: &Arc<Self>,
        nodes: &[usize],
        round: u64,
        wanted: Option<&Wanted>,
    ) -> (AnyItems, Option<Arc<Pieces>>, Option<Runs>) {
        let flow = &self.engine.flow;
        let above = flow.nodes[nodes[0]].inputs[0];
        let (key, through) = flow.piece(nodes).expect("one of them is not one in one out");
        let cursor = self.cursor(key, wanted);
        let again = cursor.zip(wanted).map(|(cursor, wanted)| Pieces::again(cursor, wanted));
        let (of_input, runs) = match again {
            Some((of_input, runs)) => (Some(of_input), Some(runs)),
            None => (wanted.cloned(), None),
        };
        let Wired { items, trace } = self.stream(above, round, of_input.as_ref());
        let name = flow.nodes[key].name.clone();
        let pieces = trace.map(|trace| Pieces::new(name, through, self.trim.clone(), trace));
        if let (Some(pieces), Some(cursor), Some(of_input)) = (&pieces, cursor, &of_input) {
            pieces.resume(cursor, of_input.holes().len() as u64);
        }
        (items, pieces, runs)
    }

    /// The input of a node whose items come, or leave, in any order, and the log of it.
    fn mixed(
        self: &Arc<Self>,
        id: usize,
        above: (usize, usize),
        round: u64,
        wanted: Option<&Wanted>,
        identity: bool,
    ) -> (AnyItems, Arc<Unordered>) {
        let cursor = self.cursor(id, wanted);
        let of_input = cursor.and_then(|cursor| cursor.inputs.first()).map(Input::wanted).or(wanted.cloned());
        let Wired { items, trace } = self.stream(above, round, of_input.as_ref());
        let trace = trace.expect("everything in a loader that can go on has a way");
        let begun = of_input.unwrap_or_else(|| Wanted::new(Vec::new(), 0));
        let name = self.engine.flow.nodes[id].name.clone();
        let marks = (self.is_mixed(above.0), identity);
        (items, Unordered::new(name, trace, marks, self.trim.clone(), begun, cursor))
    }

    /// Whether what a node gives is counted anew by who goes on, since it comes in any order.
    fn is_mixed(&self, id: usize) -> bool {
        let node = &self.engine.flow.nodes[id];
        let passes = matches!(node.hints().facts.role, Role::Prefetch(_)) || node.hints().arity == Arity::One;
        self.unordered[id] || (passes && node.inputs.first().is_some_and(|&(above, _)| self.is_mixed(above)))
    }

    fn sifted(&self, id: usize, items: AnyItems, runs: Option<Runs>, wanted: Option<&Wanted>) -> AnyItems {
        match (runs, wanted) {
            (Some(runs), Some(wanted)) => {
                let node = &self.engine.flow.nodes[id];
                Sieve::over(items, (&node.node.edge, &node.name), runs, wanted.clone(), self.elsewhere)
            }
            _ => items,
        }
    }

    fn background(
        &self,
        name: String,
        above: AnyItems,
        queue: Prefetch,
        edge: &Arc<dyn crate::graph::Edge>,
        gauge: Arc<QueueGauge>,
    ) -> Background {
        let Prefetch { items, bytes, adaptive } = queue;
        let (depth, io) = (items.max(1), self.io.clone());
        let settings = BackgroundSettings { name, depth, adaptive, bytes, io, edge: edge.clone() };
        Background::new(edge.erase(above), settings, gauge)
    }

    fn segment(self: &Arc<Self>, number: usize, round: u64, wanted: Option<&Wanted>) -> Wired {
        let flow = &self.engine.flow;
        let plan = &self.engine.plan.segments[number];
        let above = flow.nodes[plan.nodes[0]].inputs[0];
        let last = *plan.nodes.last().expect("a segment has a node");
        let mut unordered = None;
        let (input, trace, pieces, runs) = if self.unordered[last] {
            let (input, trace) = self.mixed(last, above, round, wanted, false);
            unordered = Some(trace.clone());
            (input, Some(trace as Arc<dyn Trace>), None, None)
        } else if plan.arity == Arity::One {
            let Wired { items, trace } = self.stream(above, round, wanted);
            (items, trace, None, None)
        } else {
            let (items, pieces, runs) = self.pieces(&plan.nodes, round, wanted);
            (items, pieces.clone().map(|pieces| pieces as Arc<dyn Trace>), pieces, runs)
        };
        let chain =
            Chain { links: self.links(&plan.nodes, round), input: flow.nodes[above.0].node.edge.clone() };
        let settings = SegmentSettings {
            work: plan.work,
            // What was stopped in order goes on in order, to its end.
            order: if self.cursors.is_some() && unordered.is_none() { Order::Strict } else { plan.order },
            in_flight: plan.in_flight,
            start: plan.start,
            workers: plan.workers,
            bytes: plan.bytes,
            depth: plan.depth,
            arity: plan.arity,
            fixed: plan.fixed,
            processes: plan.processes.is_some(),
        };
        #[cfg(target_os = "linux")]
        let crew = self.engine.crews[number]
            .as_ref()
            .map(|crews| Spawner::Crew(crews.lend(), self.run_facts(round)));
        #[cfg(not(target_os = "linux"))]
        let crew = None;
        let spawner = crew.unwrap_or_else(|| match plan.work {
            Work::Cpu => Spawner::Pool(self.engine.pool(), self.io.clone()),
            Work::Io => Spawner::Io(self.io.clone()),
        });
        let edge = &flow.nodes[last].node.edge;
        let (gauge, learned) = (self.segments[number].clone(), self.engine.learned[number].clone());
        let segment = Segment::new(chain, input, settings, spawner, gauge, learned, (pieces, unordered));
        let items = self.sifted(last, edge.restore(Box::new(segment)), runs, wanted);
        Wired { items, trace }
    }

    fn links(&self, nodes: &[usize], round: u64) -> Vec<Link> {
        let link = |&id: &usize| {
            let node = &self.engine.flow.nodes[id].node;
            let Op::Pipe(pipe) = &node.op else { unreachable!("only pipes are put into segments") };
            Link {
                pipe: pipe.clone(),
                context: self.context(id, round),
                edge: node.edge.clone(),
                rows: self.rows(id),
            }
        };
        nodes.iter().map(link).collect()
    }

    #[cfg(target_os = "linux")]
    fn run_facts(&self, round: u64) -> RunFacts {
        let RunInfo { seed, epoch, rank, uneven, .. } = self.info;
        RunFacts { seed, epoch, rank, uneven, round }
    }

    fn inline(self: &Arc<Self>, id: usize, port: usize, round: u64, wanted: Option<&Wanted>) -> Wired {
        let flow_node = &self.engine.flow.nodes[id];
        let node = &flow_node.node;
        if let Op::Split(_) = node.op
            && let Some((output, recorder)) = self.waiting(id, port, round)
        {
            let runs = self.cursor(id, wanted).map(|cursor| vec![(cursor.outputs[port], u64::MAX)]);
            return self.output(id, port, output, recorder, runs, wanted);
        }
        let hints = flow_node.hints();
        let Keeping { mut context, inputs, trace, runs, recorder } = self.keeping(id, round, wanted);
        if let Some(rows) = self.rows(id) {
            context = context.with_rows(RowCursor::new(rows, 0));
        }
        let applies = |inputs: Vec<AnyItems>| match &node.op {
            Op::Source(source) => vec![source.open(&context)],
            Op::Pipe(pipe) => vec![pipe.apply(one(inputs), &context)],
            Op::Join(join) => vec![join.join(inputs, &context)],
            Op::Split(split) => split.split(one(inputs), &context),
            Op::Rerun(rerun) => vec![rerun.rerun(self.upstream(id, round, recorder.clone()), &context)],
        };
        // A pipe's `apply` is a user's code too.
        let applied = catch_unwind(AssertUnwindSafe(|| match (&node.op, &trace) {
            (Op::Pipe(_), Some(Ways::Pieces(pieces))) => {
                let group = &self.engine.plan.groups[id];
                let edge =
                    self.engine.flow.nodes[self.engine.flow.nodes[group[0]].inputs[0].0].node.edge.clone();
                let chain = Chain { links: self.links(group, round), input: edge.clone() };
                let apply = move |piece, first| chain.apply_caught(piece, first);
                vec![pieced(one(inputs), &edge, &node.edge, pieces.clone(), apply)]
            }
            _ => applies(inputs),
        }));
        let outputs = match applied {
            Ok(outputs) => outputs,
            Err(payload) => {
                let items = node.edge.fail(Error::panic(payload).at(&flow_node.name));
                return Wired { items, trace: trace.map(Ways::into_trace) };
            }
        };
        let mut outputs: Vec<Option<Wired>> = outputs
            .into_iter()
            .enumerate()
            .map(|(port, items)| {
                let produced = recorder.as_ref().map(|recorder| recorder.produced(port).clone());
                let items = match produced {
                    Some(produced) => node.edge.counted(items, None, Some(produced)),
                    None => items,
                };
                let mut items = match trace {
                    // Each link of the chain has a guard of its own.
                    Some(Ways::Pieces(_)) => items,
                    _ => node.edge.guard(items, context.clone()),
                };
                if matches!(node.op, Op::Pipe(_)) && hints.work == Work::Io {
                    items = node.edge.restore(Box::new(Driven::new(
                        node.edge.erase(items),
                        self.io.clone(),
                        node.edge.clone(),
                        flow_node.name.clone(),
                    )));
                }
                let trace = match (&recorder, &trace) {
                    (Some(recorder), _) => Some(Arc::new(Marked(recorder.clone(), port)) as Arc<dyn Trace>),
                    (None, trace) => trace.clone().map(Ways::into_trace),
                };
                Some(Wired { items, trace })
            })
            .collect();
        let output = outputs.get_mut(port).and_then(Option::take);
        if let Op::Split(_) = node.op {
            let mut splits = self.splits();
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
                let error = Error::new(ErrorKind::Config, "fewer outputs than it said").at(&flow_node.name);
                Wired { items: node.edge.fail(error), trace: trace.map(Ways::into_trace) }
            }
        }
    }

    /// An output of a node, of which no more is given than is wanted.
    fn output(
        &self,
        id: usize,
        port: usize,
        output: Wired,
        recorder: Option<Arc<Recorder>>,
        runs: Option<Runs>,
        wanted: Option<&Wanted>,
    ) -> Wired {
        if let (Some(recorder), Some(wanted), Some(_)) = (recorder, wanted, &runs)
            && self.engine.flow.nodes[id].hints().facts.by_position
            && recorder.want(port, wanted.clone())
        {
            // It leaves out by itself what would fill its queues and is not wanted.
            return output;
        }
        Wired { items: self.sifted(id, output.items, runs, wanted), ..output }
    }

    /// An output of a split that was made when another was asked for.
    fn waiting(&self, id: usize, port: usize, round: u64) -> Option<(Wired, Option<Arc<Recorder>>)> {
        let mut splits = self.splits();
        let Entry::Occupied(mut entry) = splits.entry((id, round)) else { return None };
        let (outputs, recorder) = entry.get_mut();
        let waiting = outputs.get_mut(port).and_then(Option::take).map(|output| (output, recorder.clone()));
        // Each round of a repeat has its own; what all have asked for is not kept.
        if outputs.iter().all(Option::is_none) {
            entry.remove();
        }
        waiting
    }

    /// The inputs of a node that runs inline, and what it takes to go on with it.
    fn keeping(self: &Arc<Self>, id: usize, round: u64, wanted: Option<&Wanted>) -> Keeping {
        let context = self.context(id, round);
        let flow_node = &self.engine.flow.nodes[id];
        let (node, hints, name) = (&flow_node.node, flow_node.hints(), &flow_node.name);
        let above = |wanted: Option<&Wanted>| -> Vec<Wired> {
            flow_node.inputs.iter().map(|&input| self.stream(input, round, wanted)).collect()
        };
        let nothing = Keeper { wanted: wanted.cloned(), ..Keeper::default() };
        if !self.engine.settings.resumable {
            let inputs = if let Op::Rerun(_) = node.op { Vec::new() } else { above(None) };
            let inputs = inputs.into_iter().map(|input| input.items).collect();
            return Keeping { context, inputs, trace: None, runs: None, recorder: None };
        }
        let is_pipe = matches!(node.op, Op::Pipe(_));
        if self.unordered[id] {
            let identity = hints.arity == Arity::One;
            let (items, unordered) = self.mixed(id, flow_node.inputs[0], round, wanted, identity);
            let edge = &self.engine.flow.nodes[flow_node.inputs[0].0].node.edge;
            let items = edge.counted(items, Some(unordered.counter().clone()), None);
            let kept = self.cursor(id, wanted).map(|cursor| cursor.kept.clone().into());
            let trace = Some(Ways::Plain(unordered.clone()));
            let keeper = Keeper { kept, unordered: Some(unordered), ..Keeper::default() };
            return Keeping {
                context: context.with_keeper(keeper),
                inputs: vec![items],
                trace,
                runs: None,
                recorder: None,
            };
        }
        if let Op::Source(_) = node.op
            && !hints.keeps
        {
            let runs = wanted.filter(|_| !hints.facts.by_position).map(|_| vec![vec![(0, u64::MAX)]]);
            let trace = Some(Ways::Plain(Arc::new(ByPosition(name.clone()))));
            return Keeping {
                context: context.with_keeper(nothing),
                inputs: Vec::new(),
                trace,
                runs,
                recorder: None,
            };
        }
        let group = &self.engine.plan.groups[id];
        if !group.is_empty() {
            let (items, pieces, runs) = self.pieces(group, round, wanted);
            let trace = pieces.map(Ways::Pieces);
            let (context, runs) = (context.with_keeper(nothing), runs.map(|runs| vec![runs]));
            return Keeping { context, inputs: vec![items], trace, runs, recorder: None };
        }
        if is_pipe && (hints.facts.by_position || hints.shardable) && hints.arity == Arity::One {
            let Wired { items, trace } = one(above(wanted));
            let trace = trace.map(Ways::Plain);
            return Keeping {
                context: context.with_keeper(nothing),
                inputs: vec![items],
                trace,
                runs: None,
                recorder: None,
            };
        }
        if is_pipe && hints.facts.by_position {
            let inputs = above(None).into_iter().map(|input| input.items).collect();
            let trace = Some(Ways::Plain(Arc::new(ByPosition(name.clone()))));
            return Keeping {
                context: context.with_keeper(nothing),
                inputs,
                trace,
                runs: None,
                recorder: None,
            };
        }
        // It looks at its inputs as a whole.
        let cursor = self.cursor(id, wanted);
        let kept = cursor.map(|cursor| cursor.kept.clone().into());
        let outputs = node.outputs();
        let begins = |outputs: &[u64]| outputs.iter().map(|&output| vec![(output, u64::MAX)]).collect();
        let runs = match (&node.op, cursor, wanted) {
            (_, Some(cursor), _) => Some(begins(&cursor.outputs)),
            // A source that was not there before has to be opened from the beginning.
            (Op::Source(_), None, Some(_)) => Some(begins(&[0])),
            _ => None,
        };
        let again = cursor.and_then(|cursor| cursor.pieces.first()).map_or(0, |&(_, used)| used);
        let keeper = Keeper { kept, again, ..Keeper::default() };
        let (trim, name) = (self.trim.clone(), name.clone());
        if let Op::Rerun(_) = node.op {
            let untouched = cursor.and_then(|cursor| {
                let trace: Arc<dyn Trace> = Arc::new(Untouched(self.cursors.clone()?, self.above(id)));
                Some((cursor.inputs.first()?.wanted(), trace))
            });
            let recorder = Recorder::new(name, id, outputs, trim, untouched.into_iter().collect(), cursor);
            let context = context.with_keeper(Keeper { recorder: Some(recorder.clone()), ..keeper });
            return Keeping { context, inputs: Vec::new(), trace: None, runs, recorder: Some(recorder) };
        }
        let mut wanteds: Vec<Option<Wanted>> = (0..flow_node.inputs.len())
            .map(|at| match cursor {
                Some(cursor) => cursor.inputs.get(at).map(Input::wanted),
                // A node that was not there before: it stands where its reader does.
                None => wanted.cloned(),
            })
            .collect();
        if let (Op::Pipe(pipe), Some(cursor), Some(first)) = (&node.op, cursor, wanteds.first_mut())
            && let Some(held) = pipe.held(&context.with_keeper(keeper.clone()))
            && let Some(input) = cursor.inputs.first()
        {
            let sound = held.is_sorted_by(|a, b| a < b) && held.last().is_none_or(|&last| last < input.from);
            // What is no list of places in the input fails where the pipe reads what it kept.
            let held = if sound { held } else { Vec::new() };
            *first = Some(Wanted::new(held, input.from));
        }
        let (mut inputs, mut traces) = (Vec::new(), Vec::new());
        for (&input, wanted) in flow_node.inputs.iter().zip(wanteds) {
            let Wired { items, trace } = self.stream(input, round, wanted.as_ref());
            inputs.push((items, self.engine.flow.nodes[input.0].node.edge.clone()));
            let trace = trace.expect("everything in a loader that can go on has a way");
            traces.push((wanted.unwrap_or_else(|| Wanted::new(Vec::new(), 0)), trace));
        }
        let recorder = Recorder::new(name, id, outputs, trim, traces, cursor);
        let inputs = inputs
            .into_iter()
            .enumerate()
            .map(|(at, (items, edge))| edge.counted(items, Some(recorder.taken(at)), None))
            .collect();
        let context = context.with_keeper(Keeper { recorder: Some(recorder.clone()), ..keeper });
        Keeping { context, inputs, trace: None, runs, recorder: Some(recorder) }
    }

    /// Starts what is above a node that runs it more than once.
    fn upstream(
        self: &Arc<Self>,
        id: usize,
        round: u64,
        recorder: Option<Arc<Recorder>>,
    ) -> Box<dyn FnMut(u64) -> AnyItems + Send> {
        let (run, above) = (self.clone(), self.engine.flow.nodes[id].inputs[0]);
        let edge = self.engine.flow.nodes[above.0].node.edge.clone();
        // The round that an epoch goes on in; those behind it begin.
        let mut goes_on = recorder.as_ref().and_then(|recorder| recorder.goes_on());
        Box::new(move |again: u64| {
            let inner = if round == 0 { again } else { mix(round).wrapping_add(again) };
            let first = goes_on.take().filter(|(from, _)| *from == again).map(|(_, wanted)| wanted);
            let Wired { items, trace } = run.stream(above, inner, first.as_ref());
            match (&recorder, trace) {
                (Some(recorder), Some(trace)) => {
                    let taken = recorder.begin_round(again, first, trace);
                    edge.counted(items, Some(taken), None)
                }
                _ => items,
            }
        })
    }

    /// The names of all nodes above one.
    fn above(&self, id: usize) -> Vec<Arc<str>> {
        let nodes = &self.engine.flow.nodes;
        let mut is_above = vec![false; nodes.len()];
        for node in (0..=id).rev() {
            if node == id || is_above[node] {
                nodes[node].inputs.iter().for_each(|&(above, _)| is_above[above] = true);
            }
        }
        (0..id).filter(|&node| is_above[node]).map(|node| nodes[node].name.clone()).collect()
    }

    fn splits(&self) -> std::sync::MutexGuard<'_, Splits> {
        self.splits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a node that runs inline is given.
struct Keeping {
    context: Context,
    inputs: Vec<AnyItems>,
    trace: Option<Ways>,
    /// For each output the positions of what it gives, one range after the other, where some of that is not wanted.
    runs: Option<Vec<Runs>>,
    /// Of a node that keeps something.
    recorder: Option<Arc<Recorder>>,
}

#[derive(Clone)]
enum Ways {
    Plain(Arc<dyn Trace>),
    Pieces(Arc<Pieces>),
}

impl Ways {
    fn into_trace(self) -> Arc<dyn Trace> {
        match self {
            Ways::Plain(trace) => trace,
            Ways::Pieces(pieces) => pieces,
        }
    }
}

/// Nodes whose items come, or leave, in any order, where states can be asked for; of an epoch that goes on, those for which
/// it was so.
fn unordered(engine: &Engine, goes_on: Option<&Cursors>) -> Vec<bool> {
    let nodes = || engine.flow.nodes.iter();
    match goes_on {
        _ if !engine.settings.resumable => vec![false; engine.flow.nodes.len()],
        Some(cursors) if !cursors.is_empty() => {
            nodes().map(|node| cursors.get(&node.name).is_some_and(|cursor| cursor.unordered)).collect()
        }
        _ => {
            let unordered = engine.plan.unordered(&engine.flow);
            let own = |id: usize| match engine.plan.places[id] {
                Place::Segment(number) => engine.plan.segments[number].nodes.last() == Some(&id),
                Place::Inline => true,
                Place::Queue(_) => false,
            };
            (0..nodes().len()).map(|id| unordered[id] && own(id)).collect()
        }
    }
}

/// What stands above a node that has not asked for it yet: as it was.
struct Untouched(Arc<Cursors>, Vec<Arc<str>>);

impl Trace for Untouched {
    fn save(&self, _: On, to: &mut Saving) {
        for name in &self.1 {
            if let Some(cursor) = self.0.get(name) {
                to.cursor(name, cursor.clone());
            }
        }
    }

    fn forget(&self, _: u64) {}
}

fn one<T>(inputs: Vec<T>) -> T {
    inputs.into_iter().next().expect("a pipe has one input")
}

/// The stream at the root of an epoch, wired and alive. Dropping it ends the epoch.
pub(crate) struct Running<T> {
    pub items: Items<T>,
    trace: Option<Arc<dyn Trace>>,
    pub run: Arc<EpochRun>,
    in_background: bool,
}

impl<T: Send + 'static> Running<T> {
    /// Wires an epoch of a rank. Nothing runs before the first poll. `may_use_callers` runtime says whether the caller's
    /// async runtime goes on while it waits for us. An epoch that `goes_on` begins at a position, with each node where it
    /// stood.
    pub(crate) fn start(
        engine: &Arc<Engine>,
        epoch: u64,
        share: Share,
        may_use_callers: bool,
        goes_on: Option<GoesOn>,
    ) -> crate::Result<Self> {
        let io = engine.io(may_use_callers).map_err(|error| {
            Error::new(ErrorKind::Io, "cannot start the async runtime").with_source(error)
        })?;
        let offload: Option<Arc<dyn Offload>> =
            if engine.settings.workers == 0 { None } else { Some(Arc::new(BlockingPool(io.clone()))) };
        let info = RunInfo {
            seed: engine.settings.seed,
            epoch,
            rank: share.rank,
            uneven: share.uneven,
            cancelled: Arc::new(AtomicBool::new(false)),
            offload,
        };
        let queues = engine.plan.places.iter().enumerate();
        let run = Arc::new(EpochRun {
            info,
            io,
            begun: Instant::now(),
            ended: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            inline_ns: AtomicU64::new(0),
            counters: engine.flow.nodes.iter().map(|_| Arc::default()).collect(),
            segments: engine.plan.segments.iter().map(|_| Arc::default()).collect(),
            queues: queues
                .filter(|(_, place)| matches!(place, Place::Queue(_)))
                .map(|(id, _)| (id, Arc::default()))
                .collect(),
            root_queue: Arc::default(),
            device: OnceLock::new(),
            splits: Mutex::default(),
            unordered: unordered(engine, goes_on.as_ref().map(|goes_on| &*goes_on.cursors)),
            elsewhere: goes_on.as_ref().is_some_and(|goes_on| goes_on.elsewhere),
            // Where nothing had begun, everything begins.
            cursors: goes_on
                .as_ref()
                .map(|goes_on| goes_on.cursors.clone())
                .filter(|cursors| !cursors.is_empty()),
            trim: Trim::default(),
            engine: engine.clone(),
        });
        let wanted = goes_on.map(|goes_on| Wanted::new(Vec::new(), goes_on.position));
        let Wired { items, trace } = run.stream(engine.flow.root, 0, wanted.as_ref());
        Ok(Running { items: crate::graph::typed(items), trace, run, in_background: false })
    }

    /// Where every node stands when so many items and errors have been delivered.
    pub(crate) fn save(&self, position: u64) -> Option<Saving> {
        self.trace.as_ref().map(|trace| Saving::all(&**trace, On::at(position)))
    }

    /// The way of what comes out, from which it can be saved where it stands at any position that was not forgotten.
    pub(crate) fn way(&self) -> Option<Arc<dyn Trace>> {
        self.trace.clone()
    }

    /// Whether logs have become long.
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        self.trace.is_some() && self.run.trim.is_asked()
    }

    /// Forgets what no state from this position on needs.
    #[cold]
    pub(crate) fn trim(&self, position: u64) {
        if let Some(trace) = &self.trace {
            trace.forget(position);
            self.run.trim.done();
        }
    }

    pub(crate) fn is_inline(&self) -> bool {
        !self.in_background
    }

    /// Moves what is above the consumer to a thread of its own, which works ahead from now on. Says whether it
    /// was moved just now.
    pub(crate) fn move_to_background(&mut self) -> bool {
        let plan = &self.run.engine.plan;
        if self.in_background || plan.prefetch.items == 0 {
            return false;
        }
        self.in_background = true;
        let edge = &self.run.engine.flow.nodes[self.run.engine.flow.root.0].node.edge;
        let above: AnyItems = Box::new(std::mem::replace(&mut self.items, Items::empty()));
        let gauge = self.run.root_queue.clone();
        let mut background = self.run.background("loader".to_owned(), above, plan.prefetch, edge, gauge);
        background.start();
        self.items = crate::graph::typed(edge.restore(Box::new(background)));
        true
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.run.finish();
    }
}

/// Blocking work goes to the async runtime's blocking threads.
pub(super) struct BlockingPool(pub(super) Handle);

impl Offload for BlockingPool {
    #[expect(clippy::disallowed_methods, reason = "the one place that starts blocking work")]
    fn offload(&self, work: Box<dyn FnOnce() + Send>) {
        drop(self.0.spawn_blocking(work));
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;
    use crate::Graph;

    #[test]
    fn a_repeat_keeps_nothing_of_the_forks_of_earlier_rounds() {
        let graph = Graph::mux(Graph::range(0..2).fork::<2>()).cycle();
        for workers in [0, 2] {
            let settings = Settings { workers, ..Settings::default() };
            let flow = Flow::new(&graph.root());
            let plan = Plan::new(&flow, &settings);
            let engine = Arc::new(Engine::new(flow, plan, settings));
            let mut running = Running::<u64>::start(&engine, 0, Share::default(), false, None).unwrap();
            for _ in 0..400 {
                crate::run::block_on(running.items.next()).unwrap().unwrap();
            }
            assert!(running.run.splits().is_empty(), "{workers} workers");
        }
    }
}
