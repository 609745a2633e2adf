//! Reads the figures of a loader's epochs while they run.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::Stats;
use super::timeline::{Levels, Sample, Timeline};
use crate::loader::latest::{Runs, StartedEpoch, have_ended};
use crate::run::BatchTimes;

/// Time between the first samples.
const INTERVAL: Duration = Duration::from_millis(25);
/// Greatest number of epochs in the table.
const EPOCHS: usize = 200;

/// Everything that was recorded.
#[derive(Default)]
pub(super) struct Recorded {
    pub timeline: Timeline,
    /// Figures of all epochs together; `None` if there was none.
    pub stats: Option<Stats>,
    /// The last epochs, in the order in which they ended.
    pub epochs: VecDeque<EpochFigures>,
    /// Number of all epochs.
    pub number: u64,
    /// Length of the report, in seconds.
    pub seconds: f64,
    /// The last batches that were taken.
    pub batches: Vec<Batch>,
}

/// A batch at its consumer, in seconds since the report began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    /// Moment at which the consumer asked for it.
    pub asked: f64,
    /// Moment at which it had it.
    pub ready: f64,
    /// Moment at which it asked for the next one.
    pub used: f64,
}

impl Batch {
    pub fn new(times: &BatchTimes, begun: Instant) -> Batch {
        let since = |moment: Instant| moment.saturating_duration_since(begun).as_secs_f64();
        Batch {
            asked: since(times.asked),
            ready: since(times.ready),
            used: since(times.used),
        }
    }
}

/// Figures of an epoch.
pub(super) struct EpochFigures {
    /// Number of the epoch; `None` if it began before the report.
    pub number: Option<u64>,
    /// Begin, in seconds since the report began.
    pub begun: f64,
    pub seconds: f64,
    pub delivered: u64,
    pub skipped: u64,
    /// Share of the time in which the consumer waited.
    pub waited: f64,
    /// Share of the items that were ready.
    pub readiness: f64,
}

/// An epoch that may still run.
struct Live {
    number: Option<u64>,
    runs: Runs,
    begun: f64,
    /// Figures before the report.
    before: Option<Stats>,
    /// Figures at the last sample.
    last: Option<Stats>,
    levels: Levels,
    is_over: bool,
}

pub(super) struct Sampler {
    workers: usize,
    begun: Instant,
    live: Vec<Live>,
    /// Work since the last sample.
    sample: Sample,
    recorded: Recorded,
}

impl Sampler {
    pub fn new(workers: usize) -> Sampler {
        Sampler {
            workers,
            begun: Instant::now(),
            live: Vec::new(),
            sample: Sample::default(),
            recorded: Recorded::default(),
        }
    }

    /// Returns the begin of the report.
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// Adds an epoch that began before the report.
    pub fn add_running(&mut self, runs: Runs) {
        if !have_ended(&runs) {
            let before = Stats::of_all(&runs);
            self.add(None, runs, before);
        }
    }

    fn add(&mut self, number: Option<u64>, runs: Runs, before: Option<Stats>) {
        self.live.push(Live {
            number,
            runs,
            begun: self.begun.elapsed().as_secs_f64(),
            last: before.clone(),
            before,
            levels: Levels::default(),
            is_over: false,
        });
    }

    /// Samples until nobody tells of epochs any more.
    pub fn run(mut self, epochs: &Receiver<StartedEpoch>) -> Recorded {
        let (mut interval, mut next) = (INTERVAL, self.begun + INTERVAL);
        loop {
            match epochs.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok((number, runs)) => {
                    self.advance();
                    self.add(Some(number), runs, None);
                }
                Err(ended) => {
                    self.advance();
                    let sample = std::mem::take(&mut self.sample);
                    let now = self.begun.elapsed();
                    let sample = Sample {
                        seconds: now.as_secs_f64() - self.recorded.seconds,
                        until: now.as_secs_f64(),
                        ..sample
                    };
                    self.recorded.seconds = sample.until;
                    if self.recorded.timeline.push(sample, self.workers) {
                        interval *= 2;
                    }
                    if ended == RecvTimeoutError::Disconnected {
                        while let Some(live) = self.live.pop() {
                            self.end(live);
                        }
                        return self.recorded;
                    }
                    next = Instant::now() + interval;
                }
            }
        }
    }

    /// Adds what the epochs did since the last time to the sample, and forgets those that have
    /// ended.
    fn advance(&mut self) {
        // Before the figures are read, so that those of an epoch that is over are its last. An epoch
        // that nobody else knows failed before it began.
        for live in &mut self.live {
            live.is_over = have_ended(&live.runs) || Arc::strong_count(&live.runs) == 1;
        }
        let mut bytes = 0;
        for live in &mut self.live {
            let Some(stats) = Stats::of_all(&live.runs) else {
                continue;
            };
            match &live.last {
                Some(last) => self.sample.add(&stats.since(last), &mut live.levels),
                None => self.sample.add(&stats, &mut live.levels),
            }
            bytes += stats.memory.bytes;
            live.last = Some(stats);
        }
        self.sample.bytes = self.sample.bytes.max(bytes as f64);
        let over: Vec<Live> = self.live.extract_if(.., |live| live.is_over).collect();
        over.into_iter().for_each(|live| self.end(live));
    }

    /// Adds the figures of an epoch that has ended.
    fn end(&mut self, live: Live) {
        let Some(mut stats) = live.last else {
            return;
        };
        if let Some(before) = &live.before {
            stats = stats.since(before);
        }
        let Recorded {
            stats: total,
            epochs,
            number,
            ..
        } = &mut self.recorded;
        *number += 1;
        if epochs.len() == EPOCHS {
            epochs.pop_front();
        }
        epochs.push_back(EpochFigures {
            number: live.number,
            begun: live.begun,
            seconds: stats.wall.as_secs_f64(),
            delivered: stats.delivered,
            skipped: stats.skipped,
            waited: stats.consumer_waited(),
            readiness: stats.readiness(),
        });
        *total = Some(match total.take() {
            Some(earlier) => stats.after(&earlier),
            None => stats,
        });
    }
}
