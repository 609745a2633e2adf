//! Wiring of a flow by its plan. One [`Engine`] per loader holds threads and runtime; there is one
//! [`EpochRun`] per epoch.
//!
//! - [`epoch_run`]: the shared state of the nodes of an epoch, and the measurements at its edges.
//! - [`wiring`]: the stream of each node, by its place in the plan.
//! - [`restore`]: what is needed to resume: what a node reads again, records and leaves out.
//! - [`first_steps`]: the steps that use items of a source, where they follow from the graph alone.
//! - [`live`]: settings that change while epochs run.
//! - [`running`]: the stream at the root.
//! - [`events`]: events of an epoch for `tracing`.

mod epoch_run;
mod events;
mod first_steps;
mod live;
mod restore;
mod running;
mod wiring;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::runtime::{Handle, Runtime, RuntimeFlavor};

pub(crate) use self::epoch_run::EpochRun;
pub use self::events::{SkipStats, Skipped};
pub(crate) use self::live::{EpochsSeen, Live};
pub(crate) use self::restore::{Cursors, RankShare, Resume};
pub(crate) use self::running::Running;
use crate::batch_buffer;
use crate::context::{Offload, RunInfo};
use crate::graph::Flow;
use crate::plan::Plan;
#[cfg(target_os = "linux")]
use crate::run::child::{Supervisors, supervisors};
use crate::run::pool::Pool;
use crate::run::recent_batches::RecentBatches;
use crate::run::scope::Scope;
use crate::run::segment::Learned;
use crate::run::timeline::TimelineSlot;
use crate::settings::Settings;
use crate::sync::lock;
use crate::{Error, ErrorKind};

/// Number of requests in flight that a segment found, and the best duration of a morsel.
#[cfg(feature = "tune")]
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Requests {
    /// First node of the segment.
    pub node: String,
    pub in_flight: usize,
    pub best_ns: u64,
}

/// State that a loader keeps from epoch to epoch.
pub(crate) struct Engine {
    /// Number of the loader in the process.
    pub id: u64,
    pub flow: Flow,
    pub plan: Plan,
    pub settings: Settings,
    /// Events, while a trace is written.
    pub timeline: Arc<TimelineSlot>,
    /// The last batches that were taken, while a report is recorded.
    pub recent: RecentBatches,
    /// Settings that change while epochs run.
    pub live: Live,
    /// Measured values of each segment, passed from one epoch to the next.
    learned: Vec<Arc<Learned>>,
    /// Memory of batches that each node fills.
    batches: Vec<Arc<batch_buffer::Pool>>,
    /// Child processes of each segment, if it runs in any.
    #[cfg(target_os = "linux")]
    pub supervisors: Vec<Option<Arc<Supervisors>>>,
    pool: OnceLock<Arc<Pool>>,
    runtime: Mutex<Option<Runtime>>,
}

impl Engine {
    pub(crate) fn new(flow: Flow, plan: Plan, settings: Settings) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let learned = plan.segments.iter().map(|_| Arc::default()).collect();
        let batches = plan
            .rows
            .iter()
            .map(|_| Arc::new(batch_buffer::Pool::new(plan.prefetch.bytes)))
            .collect();
        let live = Live::new(plan.prefetch.items);
        Engine {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            #[cfg(target_os = "linux")]
            supervisors: plan
                .segments
                .iter()
                .map(|segment| supervisors(&flow, segment, &plan.rows, &live.processes))
                .collect(),
            live,
            flow,
            plan,
            settings,
            timeline: Arc::default(),
            recent: RecentBatches::default(),
            learned,
            batches,
            pool: OnceLock::new(),
            runtime: Mutex::new(None),
        }
    }

    /// Returns what the segments have found of their requests.
    #[cfg(feature = "tune")]
    pub(crate) fn requests(&self) -> Vec<Requests> {
        let segments = self.plan.segments.iter().zip(&self.learned);
        let found = segments.filter_map(|(segment, learned)| {
            let (in_flight, best_ns) = learned.found()?;
            Some(Requests {
                node: self.flow.nodes[segment.nodes[0]].name.to_string(),
                in_flight,
                best_ns,
            })
        });
        found.collect()
    }

    /// Begins with what an earlier run found.
    #[cfg(feature = "tune")]
    pub(crate) fn begin_with(&self, requests: &[Requests]) {
        for (segment, learned) in self.plan.segments.iter().zip(&self.learned) {
            let name = &*self.flow.nodes[segment.nodes[0]].name;
            if let Some(found) = requests.iter().find(|found| found.node == name) {
                learned.begin_with(found.in_flight, found.best_ns);
            }
        }
    }

    fn pool(&self) -> Arc<Pool> {
        self.pool
            .get_or_init(|| Arc::new(Pool::new(self.settings.workers)))
            .clone()
    }

    /// Sets how many of the planned CPU workers are active. Without effect before any was started.
    pub(crate) fn set_active_workers(&self, workers: usize) {
        if let Some(pool) = self.pool.get() {
            pool.set_active(workers);
        }
    }

    /// Returns the number of CPU workers that are active.
    pub(crate) fn active_workers(&self) -> usize {
        let pool = self.pool.get();
        pool.map_or(self.settings.workers, |pool| pool.active())
    }

    /// Returns the runtime for I/O: the caller's if it has one that runs by itself, otherwise a
    /// small one of the loader.
    fn io(&self, may_use_callers: bool) -> std::io::Result<Handle> {
        // A runtime of one thread stands still while its thread trains; it would not work ahead.
        if may_use_callers
            && let Ok(handle) = Handle::try_current()
            && handle.runtime_flavor() == RuntimeFlavor::MultiThread
        {
            return Ok(handle);
        }
        let mut runtime = lock(&self.runtime);
        if runtime.is_none() {
            *runtime = Some(crate::run::runtime::start()?);
        }
        Ok(runtime.as_ref().expect("made above").handle().clone())
    }

    /// Makes what the nodes of an epoch need: the scope of their functions, and their information
    /// about the epoch. `may_use_callers` is true if the caller's async runtime runs on while the
    /// caller waits for the epoch.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system does not start a thread.
    pub(super) fn begin(
        &self,
        epoch: u64,
        share: RankShare,
        may_use_callers: bool,
    ) -> crate::Result<(Scope, RunInfo)> {
        let io = self.io(may_use_callers).map_err(|error| {
            Error::new(ErrorKind::Io, "cannot start the async runtime").with_source(error)
        })?;
        let cancelled = Arc::<AtomicBool>::default();
        let scope = Scope::new(io, Some(self.id), cancelled.clone());
        let offload: Option<Arc<dyn Offload>> =
            (self.settings.workers > 0).then(|| Arc::new(scope.clone()) as _);
        let info = RunInfo {
            seed: self.settings.seed,
            epoch,
            rank: share.rank,
            uneven: share.uneven,
            max_inflated: self.settings.max_inflated,
            cancelled,
            offload,
            poll_log: Some(self.timeline.clone()),
            largest_item: self.settings.largest_item,
            ..RunInfo::default()
        };
        Ok((scope, info))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        drop(self.pool.take());
        if let Some(runtime) = self
            .runtime
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            // Unlike the runtime's own drop, this may be called from inside another runtime.
            runtime.shutdown_background();
        }
    }
}
