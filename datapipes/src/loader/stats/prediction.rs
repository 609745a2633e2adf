//! Predictions of a model of the plan, in figures and in words.

use std::fmt;
use std::time::Duration;

/// Figures predicted by [`WhatIf::predict`](super::WhatIf::predict). Prints as a few lines.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Prediction {
    /// Batches per second, once the epoch has started.
    pub batches_per_second: f64,
    /// Share of the time in which the consumer waits for the loader, in `[0, 1]`.
    pub wait_share: f64,
    /// Time that each part needs for a batch, the slowest first: that one sets the pace.
    pub parts: Vec<PartPace>,
    /// Rate in multiples of what the model has for the epoch that has run.
    pub gain: f64,
    /// The most bytes of items in the loader, extrapolated from what was measured: a segment holds
    /// as many times more as it has more morsels in flight. An estimate of the magnitude.
    pub memory_bytes: u64,
}

/// Time that a part of a loader needs for each batch.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PartPace {
    /// The part, in words.
    pub part: String,
    /// The part, for programs.
    pub kind: PartKind,
    /// Seconds for each batch.
    pub seconds: f64,
    /// The node that most of that time is spent in, if the part runs nodes.
    pub node: Option<String>,
}

/// A part of a loader that may set its pace. Segments have the letters of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum PartKind {
    /// The consumer's own step.
    Consumer,
    /// The upload to the device.
    Device,
    /// The CPU workers, which all segments share.
    Workers,
    /// The cores of the machine, for work that computes.
    Cores,
    /// A thread that runs what looks at the stream as a whole, or the futures of a segment of I/O.
    Thread,
    /// A segment in processes of its own, or with a number of morsels in flight that was given.
    Segment(char),
    /// The requests that a segment of I/O may have in flight.
    Requests(char),
    /// The store or link that a segment of I/O reads from.
    Link(char),
}

/// A cache of the items of a node, as [`WhatIf::caches`](super::WhatIf::caches) weighs it up.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CacheGain {
    /// The node whose items are kept.
    pub node: String,
    /// Number of its items in an epoch, as far as epochs have come: of an epoch that was cut short
    /// fewer than the data have, of one that reads the data several times, as after a
    /// [`cycle`](crate::Graph::cycle), more.
    pub items: u64,
    /// Bytes of these items; `None` if their weight is [unknown](crate::Weigh).
    pub bytes: Option<u64>,
    /// Batches per second once the cache is full.
    pub batches_per_second: f64,
    /// The rate in multiples of the one without the cache.
    pub gain: f64,
}

impl Prediction {
    /// Returns the part that sets the pace.
    pub fn bottleneck(&self) -> &PartPace {
        &self.parts[0]
    }
}

impl CacheGain {
    /// Returns how much a byte of the cache adds to the rate, as a multiple of it; `None` if the
    /// bytes are not known.
    pub fn gain_per_byte(&self) -> Option<f64> {
        let bytes = self.bytes.filter(|&bytes| bytes > 0)?;
        Some((self.gain - 1.0) / bytes as f64)
    }
}

impl fmt::Display for PartPace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = Duration::try_from_secs_f64(self.seconds).unwrap_or(Duration::MAX);
        write!(f, "{time:>10.1?}  {}", self.part)?;
        match &self.node {
            Some(node) if !self.part.contains(node.as_str()) => write!(f, ", mostly `{node}`"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:.1} batches/s, {:.2} times the rate of now; the consumer waits for {:.1} % of the \
             time; at most about {} in the loader",
            self.batches_per_second,
            self.gain,
            self.wait_share * 100.0,
            Bytes(self.memory_bytes)
        )?;
        write!(f, "  what each part needs for a batch:")?;
        for part in &self.parts {
            write!(f, "\n    {part}")?;
        }
        Ok(())
    }
}

impl fmt::Display for CacheGain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CacheGain {
            node, items, gain, ..
        } = self;
        write!(
            f,
            "Caching the {items} items of `{node}` in an epoch needs "
        )?;
        match self.bytes {
            Some(bytes) => write!(f, "{}", Bytes(bytes))?,
            None => write!(f, "an unknown number of bytes")?,
        }
        write!(f, " and gives {gain:.1} times the rate")
    }
}

/// Bytes in a unit that fits.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 as f64 {
            bytes if bytes < 1e3 => write!(f, "{bytes} bytes"),
            bytes if bytes < 1e6 => write!(f, "{:.1} kB", bytes / 1e3),
            bytes if bytes < 1e9 => write!(f, "{:.1} MB", bytes / 1e6),
            bytes => write!(f, "{:.1} GB", bytes / 1e9),
        }
    }
}
