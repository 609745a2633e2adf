//! Settings of a loader: plain data, which the checker, the planner and the executor read.

use std::fmt;

use crate::{Processes, Rank, Uneven};

/// The order in which items reach the consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// The order of one thread running the graph inline, for any number of workers.
    #[default]
    Strict,
    /// An item may move by at most this many places where it is worked on, so that as many others may
    /// pass a slow one; a shuffle downstream moves it further. With 0 the order is strict. Parts of
    /// the graph that fan out (one archive, many members) keep strict order, since there the distance
    /// that an item moves cannot be bounded.
    Bounded(usize),
    /// First come, first served.
    Arrival,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Strict => f.write_str("strict"),
            Order::Bounded(places) => write!(f, "bounded({places})"),
            Order::Arrival => f.write_str("arrival"),
        }
    }
}

impl std::str::FromStr for Order {
    type Err = String;

    /// Reads `strict`, `arrival` or `bounded(16)`.
    fn from_str(text: &str) -> Result<Self, String> {
        let places = text
            .strip_prefix("bounded(")
            .and_then(|rest| rest.strip_suffix(')'));
        match (text, places.map(str::parse)) {
            ("strict", _) => Ok(Order::Strict),
            ("arrival", _) => Ok(Order::Arrival),
            (_, Some(Ok(places))) => Ok(Order::Bounded(places)),
            _ => Err(format!(
                "`{text}` is no order: strict, bounded(N) or arrival"
            )),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub seed: u64,
    pub workers: usize,
    /// Share of the cores that the number of workers follows from.
    pub cpu_share: Option<f64>,
    /// True if what the user did not set may change while an epoch runs.
    pub tune: Option<bool>,
    pub order: Order,
    pub prefetch: Option<usize>,
    pub found: TunedSettings,
    pub concurrency: Option<usize>,
    pub memory: Option<usize>,
    /// Bytes of the largest item, if they are known before.
    pub largest_item: Option<usize>,
    /// True for a graph that a program collects: it may do so before it builds the loader that
    /// answers a question of the command line.
    pub is_collected: bool,
    /// Maximum number of bytes that a file may inflate to.
    pub max_inflated: Option<u64>,
    pub rank: Rank,
    pub uneven: Option<Uneven>,
    /// True if ranks agree before each step whether there is another.
    pub ranks_agree: bool,
    /// Number of items after which an epoch ends, though there may be more.
    pub max_steps: Option<u64>,
    /// True if checkpoints of an epoch can be taken.
    pub resumable: bool,
    /// Settings of the processes of pipes that want a process of their own.
    pub processes: Option<Processes>,
}

/// Settings that an earlier run tuned by itself: this run begins with them, where nothing was chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TunedSettings {
    pub workers: Option<usize>,
    pub prefetch: Option<usize>,
}

/// Bytes that may wait on all edges together, if no limit is given.
const DEFAULT_BYTES: usize = 1 << 30;

/// Limit that no memory reaches: sums of a few of it do not overflow.
const NO_LIMIT: usize = usize::MAX >> 8;

impl Settings {
    /// Returns the limit on bytes that wait on all edges together.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.unwrap_or(DEFAULT_BYTES).min(NO_LIMIT)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            seed: 0,
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_share: Some(1.0),
            tune: None,
            order: Order::Strict,
            prefetch: None,
            found: TunedSettings::default(),
            concurrency: None,
            memory: None,
            largest_item: None,
            is_collected: false,
            max_inflated: None,
            rank: Rank::default(),
            uneven: None,
            ranks_agree: false,
            max_steps: None,
            resumable: false,
            processes: None,
        }
    }
}
