//! Blocking work that seldom waits, such as reading files in the page cache.
//!
//! A hop to a blocking thread and back costs as much as reading a small file, and a thousand files
//! in flight need more memory than any CPU cache holds. As long as such work does not wait,
//! its segment therefore runs on the CPU workers and does it in place. Once it waits, for a disk or
//! a network, the segment is one for I/O: many in flight, each on a blocking thread. What decides is
//! measured: if the thread slept in the work, and for how long.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, Ordering};
use std::time::Instant;

use super::gauge::thread_cpu_ns;
use super::scope::Scope;
use crate::context::Offload;

/// Nanoseconds by which waiting has to exceed work before many are to be in flight.
const FAR_NS: i64 = 1_000_000;
/// Maximum excess, so that at most this much work without waiting brings a segment back to the
/// workers.
const MOST_NS: i64 = 4 * FAR_NS;
/// Least duration of work that has read from a device.
const READ_NS: i64 = 50_000;
/// Least time without a core of work that slept without reading from a device, and yet has waited: it
/// may have slept for a lock of the process.
const SLEPT_NS: i64 = 250_000;
/// Most nanoseconds of a sleep that count: the holder of a lock may have lost its core for a whole time
/// slice, while a disk or a network makes most of the works sleep.
const MOST_SLEEP_NS: i64 = 350_000;
/// Duration of waits that count whole: no lock is held for so long.
const WHOLE_NS: i64 = MOST_NS / 4 * 3;
/// Least duration of work that has waited where the system does not count sleeps.
const LONG_NS: i64 = FAR_NS;

/// Number of short works in a row after which the sleeps are not counted until one is long: to ask the
/// system costs a twentieth of reading a small file.
const SHORT: i32 = 64;
/// The same after work that has waited, or may have, so that the next such work is measured.
const SHORT_AFTER_WAIT: i32 = 4096;

/// Recent waits of the blocking work of a segment, passed on to the next epoch.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// Nanoseconds of the waits that count, less those worked.
    excess: AtomicI64,
    far: AtomicBool,
    /// True if the last work that waited did so for long, so that what it waits for is distant.
    distant: AtomicBool,
    /// Number of works in a row that were too short to have waited, up to [`SHORT`]; negative after one
    /// that has waited, or may have.
    short: AtomicI32,
}

impl Waits {
    /// Returns true if the work waits, so that many are to be in flight.
    pub(super) fn is_far(&self) -> bool {
        self.far.load(Ordering::Relaxed)
    }

    /// Returns true if the last work that waited did so for long. Only blocking work is measured, not
    /// a network.
    pub(super) fn is_distant(&self) -> bool {
        self.distant.load(Ordering::Relaxed)
    }

    /// Records that the segment waits for something else than blocking work, such as a network.
    pub(super) fn wait(&self) {
        self.learn(MOST_NS);
        self.learn(MOST_NS);
    }

    /// Adds nanoseconds waited, or subtracts nanoseconds worked. A single wait, however long, may be
    /// an accident.
    fn learn(&self, change: i64) {
        let next = |excess: i64| (excess + change).clamp(0, MOST_NS);
        let before = self
            .excess
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |excess| {
                Some(next(excess))
            });
        let before = before.unwrap_or_else(|excess| excess);
        let excess = next(before);
        if excess == 0 && self.is_far() {
            self.far.store(false, Ordering::Relaxed);
        } else if excess >= FAR_NS && before > 0 && !self.is_far() {
            self.far.store(true, Ordering::Relaxed);
        }
    }

    /// Runs work, and learns if it waits.
    fn measure(&self, work: impl FnOnce()) {
        let short = self.short.load(Ordering::Relaxed);
        let before = (short < SHORT).then(Sleeps::of_this_thread);
        let begun = Instant::now();
        work();
        let ns = begun.elapsed().as_nanos().min(MOST_NS as u128) as i64;
        if ns < READ_NS {
            if short < SHORT {
                self.short.store(short + 1, Ordering::Relaxed);
            }
            return self.learn(-ns);
        }
        let after = Sleeps::of_this_thread();
        let waited = after.waited(before, ns);
        let may_wait = waited > 0 || before.is_none() && ns >= SLEPT_NS;
        let short = if may_wait {
            SHORT - SHORT_AFTER_WAIT
        } else {
            0
        };
        self.short.store(short, Ordering::Relaxed);
        if waited > 0 {
            self.distant.store(ns >= LONG_NS, Ordering::Relaxed);
        }
        self.learn(if waited > 0 { waited } else { -ns });
    }
}

thread_local! {
    /// Waits of the work that is done on this thread because it seldom waits, and the epoch that it
    /// belongs to.
    static HERE: RefCell<Option<(Scope, Arc<Waits>)>> = const { RefCell::new(None) };
}

/// Marks this thread, until the guard is dropped, as one that does work which seldom waits.
pub(super) fn enter(waits: &Arc<Waits>) -> Here {
    let scope = Scope::current();
    Here(HERE.replace(scope.map(|scope| (scope, waits.clone()))))
}

/// A thread that does work which seldom waits; what it did before.
pub(super) struct Here(Option<(Scope, Arc<Waits>)>);

impl Drop for Here {
    fn drop(&mut self) {
        HERE.set(self.0.take());
    }
}

/// Returns what does blocking work for code without a [`Context`](crate::Context) that is part of work
/// which seldom waits, and not of another epoch that is read there.
pub(super) fn here() -> Option<InPlace> {
    let (scope, waits) = HERE.with_borrow(Clone::clone)?;
    let is_current = Scope::current().is_some_and(|current| current.is_same(&scope));
    is_current.then_some(InPlace {
        scope,
        waits,
        in_child: false,
    })
}

/// Sleeps of a thread so far. A thread that lost its core to another did not sleep.
#[derive(Clone, Copy)]
struct Sleeps {
    /// Number of sleeps; 0 where the system does not count them.
    sleeps: i64,
    /// Blocks that were read from a device.
    reads: i64,
    /// Nanoseconds with a core.
    cpu_ns: i64,
}

impl Sleeps {
    /// Returns how many of the nanoseconds `ns` of work, which has ended, were waits that count; 0 if
    /// none. `before` is `None` where sleeps were not counted, since many short works preceded it.
    fn waited(self, before: Option<Sleeps>, ns: i64) -> i64 {
        match before {
            Some(before) if self.sleeps != 0 => {
                // Work on many files may include one short sleep, so only the time without a core counts.
                let waited = (ns - (self.cpu_ns - before.cpu_ns)).clamp(0, ns);
                let sleeps = self.sleeps - before.sleeps;
                match sleeps > 0 && waited >= SLEPT_NS || self.reads != before.reads {
                    true if waited < WHOLE_NS => waited.min(sleeps.max(1) * MOST_SLEEP_NS),
                    true => waited,
                    false => 0,
                }
            }
            None if self.sleeps != 0 && (LONG_NS..WHOLE_NS).contains(&ns) => MOST_SLEEP_NS,
            // The system does not count sleeps, or the work took long.
            _ if ns >= LONG_NS => ns,
            _ => 0,
        }
    }

    #[cfg(target_os = "linux")]
    fn of_this_thread() -> Self {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the call writes a `rusage` to a place of that type, for which zeros are valid.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init()
        };
        Sleeps {
            sleeps: usage.ru_nvcsw as i64,
            reads: usage.ru_inblock as i64,
            // The CPU times of `getrusage` may be as old as the last tick of the scheduler.
            cpu_ns: thread_cpu_ns().map_or(0, |ns| ns as i64),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn of_this_thread() -> Self {
        Sleeps {
            sleeps: 0,
            reads: 0,
            cpu_ns: 0,
        }
    }
}

/// Does blocking work in place as long as it does not wait: on a CPU worker, or in a child process,
/// whose threads have nothing else to do.
pub(super) struct InPlace {
    pub scope: Scope,
    pub waits: Arc<Waits>,
    /// True in a child process.
    pub in_child: bool,
}

impl Offload for InPlace {
    fn offload(&self, work: Box<dyn FnOnce() + Send>) {
        let is_here = self.in_child || HERE.with_borrow(Option::is_some);
        if is_here && !self.waits.is_far() {
            return self.waits.measure(work);
        }
        let waits = self.waits.clone();
        self.scope.offload(Box::new(move || waits.measure(work)));
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    #[test]
    fn long_waits_are_noticed_soon_and_forgotten_after_much_work() {
        let waits = Waits::default();
        let long = || waits.measure(|| sleep(Duration::from_millis(2)));
        long();
        assert!(!waits.is_far());
        (0..3).for_each(|_| long());
        assert!(waits.is_far());
        let mut calls = 0;
        while waits.is_far() {
            waits.learn(-50_000);
            calls += 1;
        }
        assert!((FAR_NS / 50_000..=MOST_NS / 50_000).contains(&calls));
    }

    #[test]
    fn long_waits_are_noticed_after_and_among_much_short_work() {
        let waits = Waits::default();
        let counts_sleeps = cfg!(target_os = "linux");
        for micros in [Some(2000), counts_sleeps.then_some(600)]
            .into_iter()
            .flatten()
        {
            let mut long = 0;
            while !waits.is_far() {
                (0..2 * SHORT).for_each(|_| waits.measure(|| ()));
                waits.measure(|| sleep(Duration::from_micros(micros)));
                long += 1;
                assert!(long < 100);
            }
            waits.learn(-MOST_NS);
        }
    }

    #[test]
    fn few_short_waits_among_much_work_do_not_count() {
        let waits = Waits::default();
        for _ in 0..1000 {
            waits.learn(100_000);
            (0..4).for_each(|_| waits.learn(-30_000));
        }
        assert!(!waits.is_far());
        (0..11).for_each(|_| waits.learn(100_000));
        assert!(waits.is_far());
    }

    #[test]
    fn only_time_without_a_core_counts_and_little_of_one_sleep() {
        let before = Sleeps {
            sleeps: 7,
            reads: 0,
            cpu_ns: 1_000_000,
        };
        let after = |sleeps: i64, cpu_ns: i64, ns| {
            let after = Sleeps {
                sleeps: 7 + sleeps,
                cpu_ns: 1_000_000 + cpu_ns,
                ..before
            };
            after.waited(Some(before), ns)
        };
        // Much work with a moment of sleep; work that lost its core; a lock whose holder did; a disk.
        assert_eq!(after(1, 900_000, 1_000_000), 0);
        assert_eq!(after(0, 100_000, 3_000_000), 0);
        assert_eq!(after(1, 100_000, 2_900_000), MOST_SLEEP_NS);
        assert_eq!(after(1, 100_000, MOST_NS), MOST_NS - 100_000);
        assert_eq!(after(20, 500_000, 4_500_000), 4_000_000);
        let read = Sleeps { reads: 8, ..before };
        assert_eq!(read.waited(Some(before), 80_000), 80_000);
        assert_eq!(before.waited(None, LONG_NS), MOST_SLEEP_NS);
        // A system that counts no sleeps reports 0 of them.
        let uncounted = Sleeps {
            sleeps: 0,
            ..before
        };
        assert_eq!(uncounted.waited(None, 3_000_000), 3_000_000);
    }

    #[test]
    fn work_that_computes_for_long_does_not_wait() {
        // A thread that never slept counts none yet.
        sleep(Duration::from_millis(1));
        let waits = Waits::default();
        for _ in 0..3 {
            waits.measure(|| {
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_millis(2) {
                    std::hint::black_box(());
                }
            });
        }
        assert!(!waits.is_far() || cfg!(not(target_os = "linux")));
    }
}
