//! A running epoch: the shared state of its nodes, and the measurements at its edges.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task;
use std::time::{Duration, Instant};

use super::Engine;
use super::events::EpochLog;
use super::first_steps::StepsOf;
use super::restore::{Cursors, RankShare, Resume, Splits, unordered};
use crate::batch_buffer::Rows;
use crate::budget::{Account, Budget, Inside, margin};
use crate::checkpoint::Trim;
use crate::context::{Counters, RunInfo};
use crate::graph::Edge;
use crate::histogram::DurationRecorder;
use crate::plan::Placement;
#[cfg(target_os = "linux")]
use crate::run::child::{RunFacts, shared_memory};
use crate::run::device_prefetch::DevicePrefetchGauge;
use crate::run::gauge::{QueueGauge, SegmentGauge, WaitTime};
use crate::run::memory_watch::watch;
use crate::run::pool::Starved;
use crate::run::scope::Scope;
use crate::run::timeline::{SegmentTimeline, TraceLevel};
use crate::sync::lock;
use crate::{Arity, Context, Error, Result, Work};

/// A running epoch: the shared state of its nodes, and the measurements at its edges.
pub(crate) struct EpochRun {
    pub engine: Arc<Engine>,
    pub(super) info: RunInfo,
    /// Scope in which the user's functions run.
    pub scope: Scope,
    pub log: EpochLog,
    begun: Instant,
    /// Nanoseconds from `begun` to the end; 0 while it runs.
    ended: AtomicU64,
    delivered: AtomicU64,
    skipped: AtomicU64,
    /// Time that the consumer spent in the graph itself, while there was no queue between.
    pub inline: WaitTime,
    /// Waits of the consumer for items that were not ready.
    pub waits: DurationRecorder,
    pub counters: Vec<Arc<Counters>>,
    pub segments: Vec<Arc<SegmentGauge>>,
    pub queues: HashMap<usize, Arc<QueueGauge>>,
    pub root_queue: Arc<QueueGauge>,
    /// Measurements of the device stage, if one reads the epoch.
    pub device: OnceLock<Arc<DevicePrefetchGauge>>,
    /// Outputs of splits that were not asked for yet.
    pub(super) splits: Mutex<Splits>,
    /// Positions of the nodes in a resumed epoch.
    pub(super) cursors: Option<Arc<Cursors>>,
    /// Nodes whose items arrive or leave in any order, if checkpoints can be taken.
    pub(super) unordered: Vec<bool>,
    /// True if the resumed epoch was begun by other ranks.
    pub(super) other_ranks: bool,
    /// Set if a log has become long.
    pub trim: Trim,
    /// Bytes that the edges share: first segments, then queues, then the queue before the consumer,
    /// and the items read ahead for segments.
    budget: Arc<Budget>,
}

impl EpochRun {
    /// Makes an epoch of a rank that begins or is resumed; see [`Engine::begin`].
    pub(super) fn new(
        engine: &Arc<Engine>,
        epoch: u64,
        share: RankShare,
        may_use_callers: bool,
        resume: Option<&Resume>,
    ) -> Result<Arc<Self>> {
        let (scope, mut info) = engine.begin(epoch, share, may_use_callers)?;
        if let Some(timeline) = engine.timeline.get(TraceLevel::Batch) {
            timeline.new_epoch();
        }
        let queues = engine.plan.places.iter().enumerate();
        let queues = queues.filter(|(_, place)| matches!(place, Placement::Queue(_)));
        let queues: HashMap<_, _> = queues.map(|(id, _)| (id, Arc::default())).collect();
        let plan = &engine.plan;
        let budget = Budget::new(
            plan.bytes() / resume.map_or(1, |resume| resume.in_turn.len().max(1)),
            2 * plan.segments.len() + queues.len() + 1,
            watch,
        );
        let pollers = engine
            .settings
            .workers
            .max(scope.io().metrics().num_workers());
        info.margin = Some(margin(plan.prefetch.bytes, pollers));
        let in_turn = resume.map(|resume| resume.in_turn.clone());
        let in_turn = in_turn.filter(|ranks| !ranks.is_empty());
        let in_turn = in_turn.unwrap_or_else(|| [share].into());
        info.first_steps = Some(Arc::new(StepsOf::new(engine, &info, in_turn)));
        Ok(Arc::new(EpochRun {
            info,
            scope,
            log: EpochLog::new(epoch, share),
            begun: Instant::now(),
            ended: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            inline: WaitTime::default(),
            waits: DurationRecorder::default(),
            counters: engine.flow.nodes.iter().map(|_| Arc::default()).collect(),
            segments: engine
                .plan
                .segments
                .iter()
                .enumerate()
                .map(|(number, segment)| {
                    let names = segment.nodes.iter().map(|&id| &*engine.flow.nodes[id].name);
                    Arc::new(SegmentGauge {
                        timeline: SegmentTimeline {
                            slot: engine.timeline.clone(),
                            segment: number,
                            label: Vec::from_iter(names).join(" → ").into(),
                        },
                        ..SegmentGauge::default()
                    })
                })
                .collect(),
            queues,
            budget,
            root_queue: Arc::default(),
            device: OnceLock::new(),
            splits: Mutex::default(),
            unordered: unordered(engine, resume.map(|resume| &*resume.cursors)),
            other_ranks: resume.is_some_and(|resume| resume.other_ranks),
            // If no node had begun, every node begins.
            cursors: resume
                .map(|resume| resume.cursors.clone())
                .filter(|cursors| !cursors.is_empty()),
            trim: Trim::default(),
            engine: engine.clone(),
        }))
    }

    /// Records that the consumer finds nothing, and waits.
    pub(crate) fn consumer_waits(&self, cx: &task::Context<'_>) {
        self.budget.consumer_waits(cx);
    }

    /// Cancels the epoch, which came to its end or was dropped. Every stream of it ends at its next
    /// item.
    pub(super) fn cancel(&self) {
        self.info.cancelled.store(true, Ordering::Relaxed);
        self.info.shared.clear();
        let now = self.begun.elapsed().as_nanos() as u64;
        if self
            .ended
            .compare_exchange(0, now.max(1), Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        {
            self.log.finish(self.counts().0);
        }
    }

    /// Drops what is owned by no stream of a cancelled epoch. The drop runs users' code.
    pub(super) fn clear(&self) {
        drop(std::mem::take(&mut *lock(&self.splits)));
    }

    /// Returns true if no work of the epoch is in progress, as far as is known: work of child
    /// processes is not counted.
    pub(crate) fn is_idle(&self) -> bool {
        #[cfg(target_os = "linux")]
        if self.engine.supervisors.iter().any(Option::is_some) {
            return false;
        }
        self.scope.is_idle() && self.device.get().is_none_or(|gauge| gauge.is_idle())
    }

    /// Looks for work that waits for a worker of the loader while other epochs have all of them;
    /// `runs` are those of one epoch, which is one of either.
    pub(crate) fn starved(runs: &[Arc<EpochRun>]) -> Option<Starved> {
        let pool = runs.first()?.engine.pool.get()?;
        pool.starved(|scope| runs.iter().any(|run| run.scope.is_same(scope)))
    }

    /// Returns the names of the nodes that run on the loader's workers.
    pub(crate) fn names_on_workers(&self) -> Vec<&str> {
        let on_workers = |place: &Placement| match place {
            Placement::Segment(number) => self.engine.plan.segments[*number].processes.is_none(),
            Placement::Inline | Placement::Queue(_) => false,
        };
        let places = self.engine.plan.places.iter().zip(&self.engine.flow.nodes);
        let there = places.filter(|(place, _)| on_workers(place));
        there.map(|(_, node)| &*node.name).collect()
    }

    pub(crate) fn count_delivered(&self) {
        self.delivered.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_skipped(&self, error: &Error) {
        self.skipped.fetch_add(1, Ordering::Relaxed);
        self.log.skip(error);
    }

    /// Returns the limit of the bytes.
    pub(crate) fn limit(&self) -> usize {
        self.budget.limit()
    }

    /// Returns the bytes reserved now and the most at once: of all edges, and of each segment.
    pub(crate) fn bytes(&self) -> ((usize, usize), Vec<(usize, usize)>) {
        self.budget.figures()
    }

    /// Returns the time that the consumer was inside the graph, or waited for its queue, with the
    /// wait that goes on.
    pub(crate) fn consumer_waited(&self) -> Duration {
        self.inline.total() + self.root_queue.empty.total()
    }

    /// Returns the nanoseconds spent in the graph by the consumer, or by the thread ahead of it, and
    /// the number of polls by that thread that found nothing.
    pub(crate) fn spent(&self) -> (u64, u64) {
        let ahead = self.root_queue.busy_ns.load(Ordering::Relaxed);
        let pending_polls = self.root_queue.pending_polls.load(Ordering::Relaxed);
        (self.inline.total().as_nanos() as u64 + ahead, pending_polls)
    }

    /// Returns true if every segment runs inline, so that a thread ahead of the consumer feeds no
    /// workers and begins no requests.
    pub(crate) fn is_all_inline(&self) -> bool {
        let mut segments = self.segments.iter();
        segments.all(|gauge| gauge.inline.load(Ordering::Relaxed))
    }

    /// Returns the numbers of items delivered and skipped.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (
            self.delivered.load(Ordering::Relaxed),
            self.skipped.load(Ordering::Relaxed),
        )
    }

    /// Returns true if the epoch came to its end, or was dropped.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn wall(&self) -> Duration {
        match self.ended.load(Ordering::Relaxed) {
            0 => self.begun.elapsed(),
            ns => Duration::from_nanos(ns),
        }
    }

    pub(super) fn context(&self, id: usize, round: u64) -> Context {
        let node = &self.engine.flow.nodes[id];
        node.context(&self.info, round, self.counters[id].clone())
    }

    /// Returns the account of a segment in the budget.
    pub(super) fn segment_account(&self, number: usize) -> Account {
        let plan = &self.engine.plan.segments[number];
        let last = *plan.nodes.last().expect("a segment has a node");
        let seen = self.engine.learned[number].weight.clone();
        if let Some(exact) = self.engine.flow.nodes[last].node.edge.exact() {
            seen.store(exact.max(1), Ordering::Relaxed);
        }
        let tasks = self.scope.io().metrics().num_workers();
        let pollers = match plan.work {
            Work::Cpu => plan.workers,
            Work::Io if plan.seldom_waits => tasks + plan.workers,
            Work::Io => tasks,
        };
        let node = |id: usize| &self.engine.flow.nodes[id];
        let next = plan.nodes.iter().skip(1).map(Some).chain([None]);
        let inside = plan.nodes.iter().zip(next).map(|(&id, next)| Inside {
            counters: self.counters[id].clone(),
            exact: node(id).node.edge.exact(),
            is_kept: next.is_some_and(|&next| node(next).hints().arity == Arity::Any),
        });
        let share = if plan.fed { plan.bytes / 2 } else { plan.bytes };
        let seen = (seen, self.engine.settings.largest_item);
        Account::new(&self.budget, number, share, pollers, seen, inside.collect())
    }

    /// Returns the account of the items that are read ahead for a segment.
    pub(super) fn feed_account(&self, number: usize, edge: &Arc<dyn Edge>) -> Account {
        let plan = &self.engine.plan;
        let at = plan.segments.len() + self.queues.len() + 1 + number;
        let seen = Arc::new(AtomicUsize::new(edge.exact().unwrap_or(0)));
        Account::new(
            &self.budget,
            at,
            plan.segments[number].bytes / 2,
            1,
            (seen, self.engine.settings.largest_item),
            Vec::new(),
        )
    }

    /// Returns the account of a node's queue, or of the queue before the consumer.
    pub(super) fn account(&self, node: Option<usize>, edge: &Arc<dyn Edge>) -> Account {
        let earlier = |&&id: &&usize| node.is_none_or(|node| id < node);
        let number = self.engine.plan.segments.len() + self.queues.keys().filter(earlier).count();
        let seen = Arc::new(AtomicUsize::new(edge.exact().unwrap_or(0)));
        Account::new(
            &self.budget,
            number,
            self.engine.plan.prefetch.bytes,
            1,
            (seen, self.engine.settings.largest_item),
            Vec::new(),
        )
    }

    #[cfg(target_os = "linux")]
    pub(super) fn run_facts(&self, id: usize, round: u64) -> RunFacts {
        let node = &self.engine.flow.nodes[id];
        let RunInfo {
            seed,
            epoch,
            rank,
            uneven,
            max_inflated,
            largest_item,
            ..
        } = self.info;
        RunFacts {
            seed,
            epoch,
            for_cache: node.is_for_cache(),
            rank,
            uneven,
            max_inflated,
            largest_item: largest_item.map(|bytes| bytes as u64),
            round: node.own_round(round),
        }
    }

    /// Returns the rows that a node fills in one stream of items.
    pub(super) fn rows(&self, id: usize) -> Option<Arc<Rows>> {
        let batch = self.engine.plan.rows[id]?;
        let rows = Rows::new(self.engine.batches[id].clone(), batch);
        #[cfg(target_os = "linux")]
        if let Placement::Segment(number) = self.engine.plan.places[id]
            && self.engine.supervisors[number].is_some()
        {
            return Some(Arc::new(rows.filled_elsewhere(shared_memory())));
        }
        Some(Arc::new(rows))
    }
}
