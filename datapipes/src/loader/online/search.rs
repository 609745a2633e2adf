//! The decision which settings a running loader tries and keeps: a pure function of its windows.
//!
//! The windows of a trial are in the order A B B A, so that a load that drifts favours neither side.

use std::ops::RangeInclusive;

/// Share of the time that the consumer waits: from the first on it waits, below the second it does
/// not.
const WAITS: f64 = 0.02;
const WAITS_NOT: f64 = 0.01;
/// Share of the time that the queue is full, from which on a longer one could hold more.
const BURSTS: f64 = 0.01;
/// Largest number of items that the tuner keeps ready, beyond those of an adaptive queue.
pub(in crate::loader) const MOST_READY: usize = 16;
/// Relative difference below which two settings are equally fast.
const TIE: f64 = 0.02;
/// Relative loss in the first windows that ends a trial.
const WORSE: f64 = 0.2;
/// Relative change of the time for a batch, for three windows, after which all is tried again.
const CHANGE: f64 = 0.2;
/// Number of windows of a steady load, or of a changed one.
const SOME: u8 = 3;
/// Seconds to the next trial after one that gained nothing: the first pause, and the longest.
const PAUSE: (f64, f64) = (10.0, 600.0);
/// Quantiles of Student's distribution, 98 % between both, for 2, 4, 6 and 8 pairs of windows.
const STUDENT: [f64; 4] = [31.8, 4.54, 3.36, 3.0];

/// Settings that change while an epoch runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// Number of active CPU workers.
    pub workers: usize,
    /// Smallest number of items kept ready.
    pub prefetch: usize,
    /// Number of processes of each part that get work; 0 without such parts.
    pub processes: usize,
}

/// Settings that may be changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MayChange {
    pub workers: bool,
    pub prefetch: bool,
    pub processes: bool,
}

/// Figures of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    pub seconds: f64,
    pub batches: u64,
    /// Share of the time in which the consumer waited.
    pub waited: f64,
    /// Share of the time in which the queue before the consumer was full.
    pub full: f64,
    /// Length of that queue, which may be more than is set.
    pub depth: usize,
    /// True if more items may be kept ready within the memory.
    pub may_grow: bool,
}

/// Search for the settings with which the consumer has its batches fastest.
pub(super) struct Search {
    workers: RangeInclusive<usize>,
    prefetch: RangeInclusive<usize>,
    processes: RangeInclusive<usize>,
    best: Setting,
    trial: Option<Trial>,
    steady: Steady,
    /// Settings that were tried and not kept, since the load last changed or the last pause.
    refused: Vec<Setting>,
    /// True if fewer workers, or processes, were no faster while the consumer waited, since the load
    /// last changed.
    needs_workers: bool,
    needs_processes: bool,
    /// Seconds until the next trial, and of the next pause.
    left: f64,
    pause: f64,
    /// Relative time given up for less work, since the load last changed.
    given: f64,
}

/// Windows with the best settings.
#[derive(Default)]
struct Steady {
    /// Sum of the logarithms of the first windows' times, and their number.
    sum: f64,
    windows: u8,
    /// True if the consumer waited; `None` if neither was clear.
    waits: Option<bool>,
    /// Number of windows in a row that were slower (above 0) or faster.
    changed: i8,
    /// Number of windows in a row in which the consumer waited and had not before, or the reverse.
    turned: u8,
}

/// Reason for a trial.
#[derive(Clone, Copy)]
enum Why {
    Waits,
    Bursts,
    WaitsNot,
    Crowds,
}

struct Trial {
    other: Setting,
    why: Why,
    /// Logarithms of the seconds for a batch, in the order A B B A.
    times: Vec<f64>,
}

/// Result of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Kept(f64),
    Refused,
}

/// A trial that came to its end, in words.
pub(super) struct Tried(String);

formatted! { Display |tried: Tried| "{}", tried.0; }

impl Trial {
    fn is_other(window: usize) -> bool {
        matches!(window % 4, 1 | 2)
    }

    /// Returns the logarithms of B over A of the pairs so far.
    fn gains(&self) -> impl Iterator<Item = f64> + Clone {
        self.times.chunks_exact(2).enumerate().map(|(n, pair)| {
            let gain = pair[1] - pair[0];
            if n % 2 == 0 { gain } else { -gain }
        })
    }

    /// Returns the result once it is clear, by the relative time that may still be given up.
    fn verdict(&self, is_cheaper: bool, may_give: f64) -> Option<Verdict> {
        let gains = self.gains();
        let pairs = gains.clone().count();
        let mean = gains.clone().sum::<f64>() / pairs.max(1) as f64;
        if pairs == 1 && self.times.len() == 2 && mean > WORSE {
            return Some(Verdict::Refused);
        }
        if pairs == 0 || !self.times.len().is_multiple_of(4) {
            return None;
        }
        let variance = gains.map(|gain| (gain - mean).powi(2)).sum::<f64>() / (pairs - 1) as f64;
        // Fewer workers are rarely faster, so noise would often be taken for a gain: more evidence
        // is needed.
        let doubt = if let Why::Crowds = self.why { 2.0 } else { 1.0 };
        let error = doubt * STUDENT[pairs / 2 - 1] * (variance / pairs as f64).sqrt();
        let (least, most) = (mean - error, mean + error);
        if most < -TIE / 2.0 {
            return Some(Verdict::Kept(mean));
        }
        if is_cheaper && most < may_give {
            return Some(Verdict::Kept(mean));
        }
        let no_gain = least > 0.0 || (!is_cheaper && least > -TIE);
        (no_gain || pairs / 2 == STUDENT.len()).then_some(Verdict::Refused)
    }

    fn words(&self, best: Setting, verdict: Verdict) -> Tried {
        let other = self.other;
        let (name, from, to) = if best.workers != other.workers {
            ("workers", best.workers, other.workers)
        } else if best.processes != other.processes {
            ("processes", best.processes, other.processes)
        } else {
            ("prefetch", best.prefetch, other.prefetch)
        };
        let crowds = format!("{name} may hold each other up");
        let why = match self.why {
            Why::Waits => "the consumer waits",
            Why::Bursts => "the consumer waits, and the queue is full at times",
            Why::WaitsNot => "the consumer does not wait",
            Why::Crowds => &crowds,
        };
        let mean = |is_other| {
            let times = self.times.iter().enumerate();
            let times = times.filter(|&(n, _)| Trial::is_other(n) == is_other);
            // Half of the windows of each pair.
            let sum: f64 = times.map(|(_, time)| time).sum();
            1e3 * (sum / (self.times.len() / 2) as f64).exp()
        };
        let end = match verdict {
            Verdict::Kept(gain) if gain < -TIE / 2.0 => "kept: faster",
            Verdict::Kept(_) => "kept: equally fast with less",
            Verdict::Refused => "not kept",
        };
        Tried(format!(
            "{name} {from} → {to}, as {why}: {:.3} ms → {:.3} ms a batch, {end}",
            mean(false),
            mean(true)
        ))
    }
}

impl Search {
    /// Begins with the settings of the plan, of which some may be changed.
    pub fn new(begin: Setting, may_change: MayChange) -> Self {
        let Setting {
            workers,
            prefetch,
            processes,
        } = begin;
        let up_to = |most, may_change| if may_change { 1 } else { most }..=most;
        Search {
            workers: up_to(workers, may_change.workers),
            prefetch: match may_change.prefetch {
                true => 1..=MOST_READY,
                false => prefetch..=prefetch,
            },
            processes: up_to(processes, may_change.processes),
            best: begin,
            trial: None,
            steady: Steady::default(),
            refused: Vec::new(),
            needs_workers: false,
            needs_processes: false,
            left: 0.0,
            pause: PAUSE.0,
            given: 0.0,
        }
    }

    /// Begins with this number of workers, if it may be chosen.
    pub fn begin_with(&mut self, workers: usize) {
        if self.workers.contains(&workers) {
            self.best.workers = workers;
        }
    }

    /// Returns the settings of the window that runs.
    pub fn now(&self) -> Setting {
        match &self.trial {
            Some(trial) if Trial::is_other(trial.times.len()) => trial.other,
            _ => self.best,
        }
    }

    /// Returns the best settings so far.
    #[cfg(feature = "tune")]
    pub fn best(&self) -> Setting {
        self.best
    }

    /// Records that all workers have to be active: with fewer, the epoch stood still.
    pub fn need_all_workers(&mut self) {
        self.workers = *self.workers.end()..=*self.workers.end();
        self.best.workers = *self.workers.end();
        self.trial = None;
        self.steady = Steady::default();
    }

    /// Ends the trial that runs, if one does, without a result.
    pub fn end_trial(&mut self) {
        self.trial = None;
    }

    /// Adds a window that ran with the settings of [`now`](Self::now), which may be others after
    /// it. Returns the trial that it ended.
    pub fn window(&mut self, figures: &Figures) -> Option<Tried> {
        let time = (figures.seconds / figures.batches as f64).ln();
        let Some(trial) = &mut self.trial else {
            if self.is_due(time, figures) {
                self.trial = self.next(figures).map(|(other, why)| Trial {
                    other,
                    why,
                    times: Vec::with_capacity(4 * STUDENT.len()),
                });
                if self.trial.is_none() {
                    self.rest();
                }
            }
            return None;
        };
        trial.times.push(time);
        let (best, other, why) = (self.best, trial.other, trial.why);
        let cost = |setting: Setting| setting.workers + setting.prefetch + setting.processes;
        let is_cheaper = cost(other) < cost(best);
        let verdict = trial.verdict(is_cheaper, TIE - self.given)?;
        let tried = trial.words(best, verdict);
        self.trial = None;
        match verdict {
            Verdict::Kept(gain) => {
                if gain < -TIE / 2.0 {
                    // It was seen to be slower.
                    self.refused.push(best);
                }
                self.best = other;
                self.given += gain.max(0.0);
                self.pause = PAUSE.0;
                self.steady = Steady::default();
            }
            Verdict::Refused => {
                let crowds = matches!(why, Why::Crowds);
                self.needs_workers |= crowds && other.workers != best.workers;
                self.needs_processes |= crowds && other.processes != best.processes;
                self.refused.push(other);
            }
        }
        Some(tried)
    }

    /// Adds a window with the best settings; returns true if it is time for a trial.
    fn is_due(&mut self, time: f64, figures: &Figures) -> bool {
        self.left -= figures.seconds;
        let waits = match figures.waited {
            share if share >= WAITS => Some(true),
            share if share < WAITS_NOT => Some(false),
            _ => None,
        };
        let steady = &mut self.steady;
        if steady.windows < SOME {
            steady.windows += 1;
            steady.sum += time;
            steady.waits = waits;
            return steady.windows == SOME && self.left <= 0.0;
        }
        let change = time - steady.sum / f64::from(SOME);
        steady.changed = match change.abs() > CHANGE {
            false => 0,
            // Slower and faster windows in turn are noise.
            true if change > 0.0 => steady.changed.max(0) + 1,
            true => steady.changed.min(0) - 1,
        };
        steady.turned = match waits.is_some() && waits != steady.waits {
            true => steady.turned + 1,
            false => 0,
        };
        if steady.changed.unsigned_abs() >= SOME {
            self.refused.clear();
            (self.needs_workers, self.needs_processes) = (false, false);
            (self.left, self.pause, self.given) = (0.0, PAUSE.0, 0.0);
            self.steady = Steady::default();
            return false;
        }
        if steady.turned >= SOME {
            self.refused.clear();
            (self.needs_workers, self.needs_processes) = (false, false);
            self.left = 0.0;
            self.steady = Steady::default();
            return false;
        }
        self.left <= 0.0
    }

    /// Begins a pause, after which what was refused may be tried again.
    fn rest(&mut self) {
        self.refused.clear();
        self.left = self.pause;
        self.pause = (2.0 * self.pause).min(PAUSE.1);
    }

    /// Returns what to try next, of what can help.
    fn next(&self, figures: &Figures) -> Option<(Setting, Why)> {
        let Setting {
            workers,
            prefetch,
            processes,
        } = self.best;
        let with_workers = |workers| Setting {
            workers,
            ..self.best
        };
        let with_prefetch = |prefetch| Setting {
            prefetch,
            ..self.best
        };
        let with_processes = |processes| Setting {
            processes,
            ..self.best
        };
        let is_in_use = figures.depth <= prefetch;
        // Many at once first, then one.
        let many_fewer = |of: usize| of.saturating_sub((of / 4).max(1));
        let fewer_workers = with_workers(many_fewer(workers));
        let fewer_processes = with_processes(many_fewer(processes));
        let mut tries = Vec::new();
        if figures.waited >= WAITS {
            tries.push((with_workers(*self.workers.end()), Why::Waits));
            tries.push((with_processes(*self.processes.end()), Why::Waits));
            if figures.full >= BURSTS && is_in_use && figures.may_grow {
                let longer = (2 * prefetch).min(*self.prefetch.end());
                tries.push((with_prefetch(longer), Why::Bursts));
            }
        }
        if figures.waited >= WAITS_NOT {
            // They may hold each other up where they share a bus, a cache or a disk.
            let crowds = |needs: bool, setting| (!needs).then_some((setting, Why::Crowds));
            tries.extend(crowds(self.needs_workers, fewer_workers));
            tries.extend(crowds(self.needs_processes, fewer_processes));
        } else {
            tries.push((fewer_workers, Why::WaitsNot));
            tries.push((with_workers(workers.saturating_sub(1)), Why::WaitsNot));
            tries.push((fewer_processes, Why::WaitsNot));
            tries.push((with_processes(processes.saturating_sub(1)), Why::WaitsNot));
            if is_in_use {
                tries.push((with_prefetch(prefetch / 2), Why::WaitsNot));
            }
        }
        tries.into_iter().find(|(setting, _)| {
            *setting != self.best
                && self.workers.contains(&setting.workers)
                && self.prefetch.contains(&setting.prefetch)
                && self.processes.contains(&setting.processes)
                && !self.refused.contains(setting)
        })
    }
}

#[cfg(test)]
mod tests;
