//! Tuning while epochs run: measures windows of batches at the consumer, and applies what
//! [`search`] decides.

mod search;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[cfg(feature = "tune")]
pub(super) use self::search::MOST_READY;
use self::search::{Figures, MayChange, Search, Setting};
use crate::run::{Engine, EpochRun, EpochsSeen};
#[cfg(feature = "tune")]
use crate::settings::TunedSettings;
use crate::sync::lock;

/// Smallest number of batches of a window, and its shortest time.
const WINDOW: (u64, Duration) = (16, Duration::from_millis(250));
/// Number of batches beyond those in the queue that are left out after a change, and the time.
const SETTLE: (u64, Duration) = (2, Duration::from_millis(100));
/// Greatest number of trials that are kept in words.
const TRIED: usize = 16;

/// Tuner of a loader, which goes on from epoch to epoch.
pub(super) struct OnlineTuner {
    search: Search,
    /// True while all planned workers are active, whatever was found: at the start of an epoch, which
    /// has more to do than later, and while several epochs run.
    is_resting: bool,
}

impl OnlineTuner {
    /// Returns the tuner of a loader; `None` if there is nothing that it may change.
    pub fn of(engine: &Engine) -> Option<Self> {
        let settings = &engine.settings;
        let may_change = may_change(engine);
        let may_tune = settings.tune != Some(false) && settings.workers > 0;
        (may_tune && may_change != MayChange::default()).then(|| {
            let mut tuner = OnlineTuner::new(planned(engine), may_change);
            if let Some(workers) = settings.found.workers {
                tuner.search.begin_with(workers);
            }
            tuner
        })
    }

    fn new(begin: Setting, may_change: MayChange) -> Self {
        OnlineTuner {
            search: Search::new(begin, may_change),
            is_resting: false,
        }
    }

    /// Returns workers and prefetch where others are better than those of the plan, and otherwise what
    /// an earlier run found.
    #[cfg(feature = "tune")]
    pub fn found(&self, engine: &Engine) -> TunedSettings {
        let Setting {
            workers, prefetch, ..
        } = self.search.best();
        let settings = &engine.settings;
        let is_other = |found: usize, planned| (found != planned).then_some(found);
        TunedSettings {
            workers: match may_change(engine).workers {
                // All of the planned workers are what a run begins with.
                true => is_other(workers, settings.workers),
                false => settings.found.workers,
            },
            prefetch: is_other(prefetch, engine.plan.prefetch.items).or(settings.found.prefetch),
        }
    }

    /// Adds a window, and applies the settings of the next. Returns true if they are others.
    fn window(&mut self, figures: &Figures, engine: &Engine) -> bool {
        let before = self.search.now();
        // The pool takes back all workers if it stands still.
        if engine.active_workers() != before.workers {
            self.search.need_all_workers();
        } else if let Some(tried) = self.search.window(figures) {
            let mut words = lock(&engine.live.tried);
            if words.len() == TRIED {
                words.remove(0);
            }
            words.push(tried.to_string());
        }
        self.apply(before, engine)
    }

    /// Ends the trial that runs, if one does, without a result, and makes all workers active.
    fn rest(&mut self, engine: &Engine) {
        self.search.end_trial();
        self.is_resting = true;
        let all = Setting {
            prefetch: self.search.now().prefetch,
            ..planned(engine)
        };
        set(all, engine);
    }

    /// Returns to the best settings after a rest. Returns true if they are others.
    fn resume(&mut self, engine: &Engine) -> bool {
        let all = Setting {
            prefetch: self.search.now().prefetch,
            ..planned(engine)
        };
        std::mem::take(&mut self.is_resting) && self.apply(all, engine)
    }

    /// Applies the settings of the next window. Returns true if they are others than before.
    fn apply(&self, before: Setting, engine: &Engine) -> bool {
        let now = self.search.now();
        if now != before {
            set(now, engine);
        }
        now != before
    }
}

/// Returns the settings that may be changed.
fn may_change(engine: &Engine) -> MayChange {
    let (settings, prefetch) = (&engine.settings, &engine.plan.prefetch);
    let all = settings.tune == Some(true);
    MayChange {
        workers: all && settings.cpu_share.is_some() && settings.workers > 1,
        prefetch: prefetch.adaptive && prefetch.items > 0,
        processes: all && planned(engine).processes > 1,
    }
}

/// Returns the settings of the plan, with the processes of the part that has most on this machine.
fn planned(engine: &Engine) -> Setting {
    let parts = engine.plan.segments.iter();
    let parts = parts.filter_map(|segment| segment.processes.as_ref());
    let here = parts.filter(|processes| !processes.is_remote());
    Setting {
        workers: engine.settings.workers,
        prefetch: engine.plan.prefetch.items,
        processes: here.map(|processes| processes.count).max().unwrap_or(0),
    }
}

/// Sets what is active from now on.
fn set(setting: Setting, engine: &Engine) {
    let Setting {
        workers,
        prefetch,
        processes,
    } = setting;
    engine.set_active_workers(workers);
    engine.live.depth.store(prefetch, Ordering::Relaxed);
    engine.live.processes.store(processes, Ordering::Relaxed);
}

/// Windows of the epoch of a rank.
pub(super) struct Windows {
    tuner: Option<Arc<Mutex<OnlineTuner>>>,
    /// Number of delivered items at which to look again.
    next: u64,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    /// Before anything was delivered by a thread ahead of the consumer.
    Fresh,
    /// Batches that are left out, since this moment and number.
    Settling(Instant, u64),
    Measuring(Begin),
}

/// State at the beginning of a window.
#[derive(Clone, Copy)]
struct Begin {
    at: Instant,
    delivered: u64,
    waited: Duration,
    full_ns: u64,
    epochs: EpochsSeen,
}

impl Begin {
    fn new(at: Instant, delivered: u64, run: &EpochRun) -> Self {
        Begin {
            at,
            delivered,
            waited: run.consumer_waited(),
            full_ns: run.root_queue.full_ns.load(Ordering::Relaxed),
            epochs: run.engine.live.epochs(),
        }
    }

    /// Returns the figures of the window that ends now.
    fn figures(&self, end: &Begin, run: &EpochRun) -> Figures {
        let Engine { flow, plan, .. } = &*run.engine;
        let seconds = (end.at - self.at).as_secs_f64();
        let ((_, most), _) = run.bytes();
        let is_known = !flow.nodes[flow.root.0].node.edge.is_unknown();
        Figures {
            seconds,
            batches: end.delivered - self.delivered,
            waited: (end.waited.saturating_sub(self.waited)).as_secs_f64() / seconds,
            full: (end.full_ns - self.full_ns) as f64 / 1e9 / seconds,
            depth: run.root_queue.depth.load(Ordering::Relaxed) as usize,
            may_grow: is_known && (most as f64) < 0.8 * plan.bytes() as f64,
        }
    }
}

impl Windows {
    pub fn new(tuner: Option<Arc<Mutex<OnlineTuner>>>) -> Self {
        Windows {
            next: if tuner.is_some() { 0 } else { u64::MAX },
            tuner,
            stage: Stage::Fresh,
        }
    }

    /// Returns true if a window may begin or end after this number of delivered items.
    #[inline]
    pub fn is_due(&self, delivered: u64) -> bool {
        delivered >= self.next
    }

    /// Begins or ends a window. Nothing is measured while the consumer runs the graph itself.
    #[cold]
    pub fn look(&mut self, now: Instant, delivered: u64, run: &EpochRun, is_inline: bool) {
        let Some(tuner) = &self.tuner else { return };
        let depth = run.root_queue.depth.load(Ordering::Relaxed);
        let settling = Stage::Settling(now, delivered);
        let settled = (depth + SETTLE.0, SETTLE.1);
        let window = (WINDOW.0.max(2 * depth), WINDOW.1);
        if let Stage::Fresh = self.stage {
            // An epoch begins with all workers, even where it begins on the consumer's thread.
            lock(tuner).rest(&run.engine);
        }
        if is_inline {
            self.stage = Stage::Fresh;
            self.next = delivered + WINDOW.0;
            return;
        }
        // Batches and time since the stage began, and what it takes.
        let (so_far, takes) = match &self.stage {
            Stage::Fresh => ((0, Duration::ZERO), settled),
            Stage::Settling(since, from) => ((delivered - from, now - *since), settled),
            Stage::Measuring(begin) => ((delivered - begin.delivered, now - begin.at), window),
        };
        if so_far.0 < takes.0 || so_far.1 < takes.1 {
            if let Stage::Fresh = self.stage {
                self.stage = settling;
            }
            // At most twice as long as needed.
            self.next = delivered + takes.0.saturating_sub(so_far.0).max(so_far.0 / 2).max(1);
            return;
        }
        let end = Begin::new(now, delivered, run);
        self.stage = match &self.stage {
            _ if !end.epochs.is_alone() => {
                lock(tuner).rest(&run.engine);
                settling
            }
            Stage::Measuring(begin) if begin.epochs != end.epochs => settling,
            Stage::Measuring(begin) => {
                let is_other = tuner
                    .try_lock()
                    .is_ok_and(|mut tuner| tuner.window(&begin.figures(&end, run), &run.engine));
                match is_other {
                    true => settling,
                    false => Stage::Measuring(end),
                }
            }
            _ if lock(tuner).resume(&run.engine) => settling,
            _ => Stage::Measuring(end),
        };
        self.next = delivered + settled.0;
    }
}

#[cfg(test)]
mod tests;
