//! What the processes of a part of a graph are like: plain data.

use std::path::PathBuf;
use std::time::Duration;

/// How many processes a part of a graph gets, and what they may do; see [`Graph::in_processes`](crate::Graph::in_processes).
///
/// A number is enough where nothing else is to be said: `in_processes(2, …)`.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use datapipes::Processes;
///
/// let careful = Processes::new(2)
///     .memory(2 << 30)                        // bytes, each
///     .time_limit(Duration::from_secs(10))    // for a piece of work
///     .nice(10);
/// assert_eq!(careful, careful.clone());
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "give it to `in_processes`"]
pub struct Processes {
    pub(crate) count: usize,
    pub(crate) memory: Option<u64>,
    pub(crate) time_limit: Option<Duration>,
    pub(crate) restarts: usize,
    pub(crate) nice: Option<i32>,
    pub(crate) cpus: Option<Vec<usize>>,
    /// The variables that a child keeps, where it does not keep all.
    pub(crate) env: Option<Vec<String>>,
    /// Below which paths a child may read, where it may not everywhere.
    pub(crate) reads: Option<Vec<PathBuf>>,
    /// Below which paths a child may write.
    pub(crate) writes: Option<Vec<PathBuf>>,
    pub(crate) no_network: bool,
}

impl Processes {
    /// So many processes.
    pub fn new(count: usize) -> Self {
        Processes {
            count,
            memory: None,
            time_limit: None,
            restarts: 16,
            nice: None,
            cpus: None,
            env: None,
            reads: None,
            writes: None,
            no_network: false,
        }
    }
}

impl From<usize> for Processes {
    fn from(count: usize) -> Self {
        Processes::new(count)
    }
}
