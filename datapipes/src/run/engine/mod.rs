//! Wires a flow by its plan. One [`Engine`] per loader keeps threads and runtime; one [`EpochRun`]
//! per epoch.
//!
//! - [`epoch_run`]: what the nodes of an epoch share, and what is measured at its edges.
//! - [`wiring`]: the stream of each node, by where the plan puts it.
//! - [`inputs`]: what a node that runs inline is given, and what it takes to stop and to resume
//!   there.
//! - [`running`]: the stream at the root.
//! - [`log`]: what an epoch says to `tracing`.

mod epoch_run;
mod inputs;
mod log;
mod running;
mod wiring;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::runtime::{Handle, Runtime, RuntimeFlavor};

pub(crate) use self::epoch_run::{Cursors, EpochRun, Resume, Share};
pub use self::log::SkipStats;
pub(in crate::run) use self::log::spanned;
pub(crate) use self::running::Running;
use crate::batch_buffer;
use crate::context::{Offload, RunInfo};
use crate::graph::Flow;
use crate::plan::Plan;
use crate::run::pool::Pool;
use crate::run::scope::Scope;
use crate::run::segment::Learned;
#[cfg(target_os = "linux")]
use crate::run::worker::{Supervisors, supervisors};
use crate::settings::Settings;
use crate::sync::lock;
use crate::{Error, ErrorKind};

/// What a loader keeps from epoch to epoch.
pub(crate) struct Engine {
    /// Which loader of the process it is.
    pub id: u64,
    pub flow: Flow,
    pub plan: Plan,
    pub settings: Settings,
    /// For each segment, what one epoch leaves to the next.
    learned: Vec<Arc<Learned>>,
    /// For each node, the memory of batches that it fills.
    batches: Vec<Arc<batch_buffer::Pool>>,
    /// For each segment, the processes that it runs in, if it does.
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
        Engine {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            #[cfg(target_os = "linux")]
            supervisors: plan
                .segments
                .iter()
                .map(|segment| supervisors(&flow, segment, &plan.rows))
                .collect(),
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
        self.pool
            .get_or_init(|| Arc::new(Pool::new(self.settings.workers)))
            .clone()
    }

    /// The runtime for I/O: the caller's where it has one that runs by itself, else a small one of
    /// our own.
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

    /// What the nodes of an epoch need: what their functions run in, and what they are told.
    /// `may_use_callers` runtime says whether the caller's async runtime goes on while it waits for
    /// us.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system starts no thread.
    pub(super) fn begin(
        &self,
        epoch: u64,
        share: Share,
        may_use_callers: bool,
    ) -> crate::Result<(Scope, RunInfo)> {
        let io = self.io(may_use_callers).map_err(|error| {
            Error::new(ErrorKind::Io, "cannot start the async runtime").with_source(error)
        })?;
        let scope = Scope::new(io, Some(self.id));
        let offload: Option<Arc<dyn Offload>> =
            (self.settings.workers > 0).then(|| Arc::new(scope.clone()) as _);
        let info = RunInfo {
            seed: self.settings.seed,
            epoch,
            rank: share.rank,
            uneven: share.uneven,
            max_inflated: self.settings.max_inflated,
            cancelled: Arc::new(AtomicBool::new(false)),
            offload,
            shared: Arc::default(),
            stake: None,
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
            // Unlike the runtime's own drop this may be called from inside another runtime.
            runtime.shutdown_background();
        }
    }
}
