//! The figures of a report over time, in a bounded number of samples.

use super::Stats;
use super::svg::COLORS;
use crate::Work;

/// Number of samples at which the timeline joins them in pairs.
const MOST: usize = 600;

/// Figures of a stretch of time. Times are seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// End of the stretch, since the report began.
    pub until: f64,
    pub seconds: f64,
    pub delivered: f64,
    /// Time in which epochs ran.
    pub running: f64,
    /// Time in which the consumer waited.
    pub waited: f64,
    /// Most bytes held.
    pub bytes: f64,
    /// Items ready in the queue before the consumer, times seconds.
    pub ready: f64,
    pub segments: Vec<SegmentSample>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct SegmentSample {
    /// Time of its work, summed over threads.
    pub busy: f64,
    /// Morsels in flight, times seconds.
    pub in_flight: f64,
}

impl Sample {
    /// Adds what an epoch did in a part of the stretch. `last` has the levels of segments and of
    /// the queue that were measured last: nothing that is measured has changed where there was no
    /// poll.
    pub fn add(&mut self, delta: &Stats, last: &mut Levels) {
        let seconds = delta.wall.as_secs_f64();
        self.delivered += delta.delivered as f64;
        self.running += seconds;
        self.waited += delta.waited.as_secs_f64();
        self.segments
            .resize_with(delta.segments.len(), SegmentSample::default);
        last.in_flight.resize(delta.segments.len(), 0.0);
        let segments = self.segments.iter_mut().zip(&delta.segments);
        for ((sample, segment), level) in segments.zip(&mut last.in_flight) {
            if segment.polls > 0 {
                *level = segment.occupancy;
            }
            sample.busy += segment.busy.as_secs_f64();
            sample.in_flight += if segment.inline {
                0.0
            } else {
                *level * seconds
            };
        }
        if let Some(queue) = &delta.queue {
            if queue.polls > 0 {
                last.ready = queue.occupancy;
            }
            self.ready += last.ready * seconds;
        }
    }

    /// Adds the sample that follows.
    fn join(&mut self, next: &Sample) {
        self.until = next.until;
        self.seconds += next.seconds;
        self.delivered += next.delivered;
        self.running += next.running;
        self.waited += next.waited;
        self.bytes = self.bytes.max(next.bytes);
        self.ready += next.ready;
        self.segments.resize_with(
            self.segments.len().max(next.segments.len()),
            Default::default,
        );
        for (segment, next) in self.segments.iter_mut().zip(&next.segments) {
            segment.busy += next.busy;
            segment.in_flight += next.in_flight;
        }
    }
}

/// Levels that were measured last.
#[derive(Debug, Default)]
pub(super) struct Levels {
    in_flight: Vec<f64>,
    ready: f64,
}

/// Samples from the begin of a report to now, each as long as the others.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    samples: Vec<Sample>,
}

impl Timeline {
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Adds a sample of an epoch with this many workers. Returns true if samples were joined in
    /// pairs, so that the next ones are to be twice as long.
    ///
    /// Work and waits are counted when they end, so a sample may have more of them than its duration
    /// allows. The excess belongs to the samples before it, and is moved there.
    pub fn push(&mut self, sample: Sample, workers: usize) -> bool {
        let segments = sample.segments.len();
        self.samples.push(sample);
        self.spread(|sample| (sample.running, Some(&mut sample.waited)));
        for place in 0..segments {
            self.spread(|sample| {
                let all = sample.seconds * workers.max(1) as f64;
                let busy = |segment: &SegmentSample| segment.busy;
                let sum: f64 = sample.segments.iter().map(busy).sum();
                let own = sample.segments.get_mut(place).map(|own| &mut own.busy);
                let others = sum - own.as_ref().map_or(0.0, |own| **own);
                ((all - others).max(0.0), own)
            });
        }
        let full = self.samples.len() >= MOST;
        if full {
            self.samples = self
                .samples
                .chunks(2)
                .map(|pair| {
                    let mut joined = pair[0].clone();
                    pair[1..].iter().for_each(|next| joined.join(next));
                    joined
                })
                .collect();
        }
        full
    }

    /// Moves what is above the most of the last sample to those before it. What fits nowhere
    /// remains in the last one.
    fn spread(&mut self, value: impl Fn(&mut Sample) -> (f64, Option<&mut f64>)) {
        let mut more = 0.0;
        for sample in self.samples.iter_mut().rev() {
            let (most, value) = value(sample);
            let Some(value) = value else { break };
            *value += more;
            more = (*value - most).max(0.0);
            *value -= more;
            if more <= 0.0 {
                return;
            }
        }
        if let Some(value) = self.samples.last_mut().and_then(|last| value(last).1) {
            *value += more;
        }
    }
}

/// Meaning of the values of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    /// A stretch has the mean of its parts.
    Mean,
    /// A stretch has the largest value of its parts.
    Most,
}

/// A line of a panel: a value for each sample.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub name: String,
    /// Number of its colour.
    pub color: usize,
    pub join: Join,
    pub values: Vec<f64>,
}

/// A picture of some lines over time.
#[derive(Clone, Debug)]
pub(super) struct Panel {
    pub title: &'static str,
    /// Unit of its values, after the number.
    pub unit: &'static str,
    pub lines: Vec<Line>,
    /// True if each line stands on the one before.
    pub stacked: bool,
    /// Largest value that there can be, and its name.
    pub limit: Option<(f64, String)>,
}

/// Greatest number of segments that are shown, the busiest ones.
const SEGMENTS: usize = 8;

/// Returns the panels of a timeline that ends with the given figures.
pub(super) fn panels(samples: &[Sample], stats: &Stats) -> Vec<Panel> {
    let line = |name: &str, color: usize, join: Join, value: &dyn Fn(&Sample) -> f64| Line {
        name: name.to_owned(),
        color,
        join,
        values: samples.iter().map(value).collect(),
    };
    let over = |value: f64, sample: &Sample| value / sample.seconds.max(1e-9);
    // A line for each of the segments with most of a figure, in the order of the graph.
    let by_segment = |total: &dyn Fn(usize) -> f64, value: fn(&SegmentSample) -> f64| {
        let mut places: Vec<usize> = (0..stats.segments.len()).collect();
        places.sort_by(|&a, &b| total(b).total_cmp(&total(a)));
        places.truncate(SEGMENTS);
        places.sort_unstable();
        let lines = places.into_iter().map(|place| {
            let segment = &stats.segments[place];
            let name = format!("{}: {}", segment.letter, segment.nodes.join(" → "));
            let value = |s: &Sample| over(s.segments.get(place).map_or(0.0, value), s);
            line(&name, place % (COLORS - 1), Join::Mean, &value)
        });
        lines.collect::<Vec<_>>()
    };
    let rate = line("batches", 0, Join::Mean, &|s| over(s.delivered, s));
    let waits = line("waits for data", 1, Join::Mean, &|s| {
        over(s.waited, s).min(1.0)
    });
    let uses = line("uses it", 2, Join::Mean, &|s| {
        over(s.running - s.waited, s).clamp(0.0, 1.0)
    });
    let busy = by_segment(&|place| stats.segments[place].busy.as_secs_f64(), |s| {
        s.busy
    });
    let in_flight = |s: &Sample, place: usize| s.segments.get(place).map_or(0.0, |s| s.in_flight);
    let sum = |place| samples.iter().map(|s| in_flight(s, place)).sum();
    let mut flight = by_segment(&sum, |s| s.in_flight);
    flight.retain(|line| line.values.iter().any(|&value| value > 0.0));
    let has_io = stats.segments.iter().any(|s| s.work == Work::Io);
    if stats.queue.is_some() {
        let value = |s: &Sample| over(s.ready, s);
        let name = "ready for the consumer";
        flight.push(line(name, COLORS - 1, Join::Mean, &value));
    }
    let bytes = line("held", 4, Join::Most, &|s| s.bytes / f64::from(1 << 20));
    let limit = stats
        .memory
        .limit
        .map(|limit| limit as f64 / f64::from(1 << 20));
    let all = vec![
        Panel {
            title: "Batches per second",
            unit: "/s",
            lines: vec![rate],
            stacked: true,
            limit: None,
        },
        Panel {
            title: "The consumer",
            unit: "of the time",
            lines: vec![waits, uses],
            stacked: true,
            limit: Some((1.0, String::new())),
        },
        Panel {
            title: "Busy workers",
            unit: "workers",
            lines: busy,
            stacked: true,
            limit: Some((stats.workers as f64, format!("{} workers", stats.workers))),
        },
        Panel {
            title: if has_io {
                "Requests and morsels in flight, items ready"
            } else {
                "Morsels in flight, items ready"
            },
            unit: "",
            lines: flight,
            stacked: false,
            limit: None,
        },
        Panel {
            title: "Bytes held",
            unit: "MiB",
            lines: vec![bytes],
            stacked: true,
            limit: limit.map(|limit| (limit, format!("at most {limit:.0} MiB"))),
        },
    ];
    let shown = all.into_iter();
    shown.filter(|panel| !panel.lines.is_empty()).collect()
}

/// Returns the values of a line in stretches of equal length between two times.
pub(super) fn resample(
    samples: &[Sample],
    line: &Line,
    (from, to): (f64, f64),
    number: usize,
) -> Vec<f64> {
    let step = (to - from) / number as f64;
    let mut at = 0;
    let stretch = |place: usize| {
        let (begin, end) = (from + step * place as f64, from + step * (place + 1) as f64);
        while at + 1 < samples.len() && samples[at].until <= begin {
            at += 1;
        }
        let (mut sum, mut seconds, mut most) = (0.0, 0.0, 0.0f64);
        for (sample, &value) in samples[at..].iter().zip(&line.values[at..]) {
            let begun = sample.until - sample.seconds;
            if begun >= end {
                break;
            }
            let both = (sample.until.min(end) - begun.max(begin)).max(0.0);
            sum += value * both;
            seconds += both;
            most = most.max(value);
        }
        match line.join {
            Join::Mean => sum / f64::max(seconds, 1e-9),
            Join::Most => most,
        }
    };
    (0..number).map(stretch).collect()
}
