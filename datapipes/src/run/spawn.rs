//! Executors of morsels in this process: the pool for work that computes, the async runtime for work
//! that waits.

use std::sync::Arc;

use crate::run::morsel::{MorselJob, MorselTask, Spawner};
use crate::run::pool::Pool;
use crate::run::scope::{Scope, Scoped};
use crate::run::spawn_task;
use crate::{Error, ErrorKind, Work};

/// Runs morsels on the threads of a pool.
pub(crate) struct OnPool {
    pub pool: Arc<Pool>,
    pub scope: Scope,
    /// Depth in the graph, for the priority in the pool.
    pub depth: usize,
}

impl Spawner for OnPool {
    fn spawn(&self, job: MorselJob) -> MorselTask {
        if let Err(error) = self.pool.start() {
            let error =
                Error::new(ErrorKind::Worker, "cannot start a worker thread").with_source(error);
            let error = job.shared.chain.name(error);
            job.fail(error);
            return MorselTask::Elsewhere;
        }
        let work = Scoped::new(&self.scope, job.run());
        MorselTask::Pool {
            _task: self.pool.spawn((self.depth, &self.scope), work),
        }
    }

    fn prepare(&self) {
        // The first morsel has the error.
        let _ = self.pool.start();
    }
}

/// Runs morsels on the pool or as tasks, by the work that they do at the time.
pub(crate) struct OnEither(pub OnPool);

impl Spawner for OnEither {
    fn spawn(&self, job: MorselJob) -> MorselTask {
        match job.work {
            Work::Cpu => self.0.spawn(job),
            Work::Io => OnRuntime(self.0.scope.clone()).spawn(job),
        }
    }

    fn prepare(&self) {
        self.0.prepare();
    }
}

/// Runs morsels as tasks of the async runtime.
pub(crate) struct OnRuntime(pub Scope);

impl Spawner for OnRuntime {
    fn spawn(&self, job: MorselJob) -> MorselTask {
        MorselTask::Io(spawn_task(self.0.io(), Scoped::new(&self.0, job.run())))
    }
}
