//! Settings of the processes of a part of a graph, on this machine (plain data) or on others (with
//! the listener that they connect to).

mod problems;
#[cfg(feature = "remote")]
mod remote;
mod wire;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::escape;

#[cfg(feature = "remote")]
pub use remote::Remote;
#[cfg(all(feature = "remote-tls", target_os = "linux"))]
pub(crate) use remote::tls::{Identity, certificates};
#[cfg(all(feature = "remote", target_os = "linux"))]
pub(crate) use remote::{Need, Share, Standing, TCP, TLS, TOKEN};

/// Number of processes for a part of a graph, and their permissions; see
/// [`Graph::in_processes`](crate::Graph::in_processes).
///
/// A number is enough if there are no other settings: `in_processes(2, …)`. Settings hold for each
/// process, and for programs it starts. A setting that cannot be kept is an error of `build()`, or
/// of the first epoch if only the process itself can find out. All settings need processes, and so
/// Linux: elsewhere limits of memory, CPUs, paths and network are errors of `build()`, and time
/// limit, restarts and environment have no effect. With `workers(0)` no setting holds, and a limit
/// of paths or network is an error.
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
/// assert_eq!(careful.to_string(), "2 processes, 2 GiB each, 10 s a job, nice 10");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "give it to `in_processes`"]
pub struct Processes {
    pub(crate) count: usize,
    pub(crate) memory: Option<u64>,
    pub(crate) time_limit: Option<Duration>,
    pub(crate) restarts: usize,
    pub(crate) nice: Option<i32>,
    /// CPU numbers, ascending, each once.
    pub(crate) cpus: Option<Vec<usize>>,
    /// Variables that a child keeps, if it does not keep all.
    pub(crate) env: Option<Vec<String>>,
    /// Paths below which a child may read, if it may not read everywhere.
    pub(crate) reads: Option<Vec<PathBuf>>,
    /// Paths below which a child may write, and read.
    pub(crate) writes: Option<Vec<PathBuf>>,
    pub(crate) no_network: bool,
    /// Settings of workers on other machines, if those do the work. `count` is then the greatest
    /// number of workers and of processes here together.
    #[cfg(feature = "remote")]
    pub(crate) remote: Option<Remote>,
}

/// Default of [`Processes::restarts`].
const RESTARTS: usize = 16;

impl Processes {
    /// Makes settings for this many processes.
    pub fn new(count: usize) -> Self {
        Processes {
            count,
            memory: None,
            time_limit: None,
            restarts: RESTARTS,
            nice: None,
            cpus: None,
            env: None,
            reads: None,
            writes: None,
            no_network: false,
            #[cfg(feature = "remote")]
            remote: None,
        }
    }

    setters! {
        /// Limits the private memory of each process, in bytes: at least 16 MiB.
        ///
        /// An allocation that would exceed the limit fails. This ends a Rust program by `SIGABRT` and
        /// costs the process its piece of work, like any crash. A process whose private memory exceeds
        /// 7/8 of the limit is replaced between two pieces of work, which costs only the start of
        /// another process; a slow leak therefore never reaches the limit.
        ///
        /// The limit on allocations is `RLIMIT_DATA`. It counts reserved memory, not touched memory,
        /// including the full size of thread stacks. Memory shared with this process (the items) and
        /// mapped files do not count.
        memory(bytes: u64) => memory = Some(bytes);

        /// Limits how long a process may give no answer (an item, or the end of a piece of work) while
        /// it has work. A process that is silent for longer is killed, and counts as crashed; an item
        /// that hangs costs the limit twice, since it is tried once more.
        ///
        /// Time in which the consumer takes nothing does not count; time in which the process is
        /// stopped does. A process has 60 s to start. Without a limit, a process that hangs is waited
        /// for, with a warning to `tracing` after 60 s.
        time_limit(limit: Duration) => time_limit = Some(limit);

        /// Sets how many times in a row processes may end without an item getting through, before the
        /// epoch ends with an error of kind [`Worker`](crate::ErrorKind::Worker). Defaults to 16.
        ///
        /// An item that is given up because it ended two processes counts as through, so 1 is enough to
        /// find such items. With several processes, each but one may end once more, since all of them
        /// may work on such items at the same time. With 0 the end of the first process ends the epoch.
        restarts(in_a_row: usize) => restarts = in_a_row;

        /// Sets the priority: from -20, served first, to 19, served last. A number lower than this
        /// process's own needs a privilege.
        nice(nice: i32) => nice = Some(nice);
    }

    /// Sets the CPUs to run on, by the numbers that the system gives them.
    pub fn cpus(self, cpus: impl IntoIterator<Item = usize>) -> Self {
        let mut cpus: Vec<usize> = cpus.into_iter().collect();
        cpus.sort_unstable();
        cpus.dedup();
        Processes {
            cpus: Some(cpus),
            ..self
        }
    }

    /// Keeps these variables of the environment, if they are set, and no others: no keys and
    /// tokens.
    ///
    /// `LD_LIBRARY_PATH` is always kept, since the process may not start without it.
    /// `DATAPIPES_WORKER` tells the process that it is a child, and is removed before the part is
    /// made.
    pub fn only_env<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.env = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Restricts reading files and listing folders to these absolute paths and everything below
    /// them. Without [`only_writes`](Processes::only_writes), writing is forbidden altogether.
    /// Feature `isolation`; Linux 5.13, by Landlock.
    ///
    /// The restriction holds from before the part is made (constructors of libraries, and code
    /// before `worker::init()`, run without it), cannot be taken back, and holds for threads and
    /// for programs that the process starts. A restricted process
    ///
    /// - may still read what any program needs: its own executable, the libraries that are mapped
    ///   at that time, `/lib*`, `/usr/lib*`, `/usr/local/lib*`, `/etc/ld.so.cache`, the time zone,
    ///   the system's files on CPUs and memory, and on the process itself in `/proc/self`; and may
    ///   use `/dev/null`, `/dev/zero`, `/dev/full`, `/dev/random` and `/dev/urandom`;
    /// - may still use descriptors that it was given, and see names, sizes and dates of files,
    ///   which Landlock does not hide;
    /// - may not start programs, from anywhere;
    /// - may not trace other processes; nor send signals to any that it did not start, or connect
    ///   to their abstract Unix sockets, since Linux 6.12.
    ///
    /// Libraries that are loaded later from another place (CUDA's, say) need their folder in the
    /// list. Paths are resolved when a process starts, symbolic links included. Before Linux 6.2
    /// files elsewhere can still be truncated, though not read.
    pub fn only_reads<P: Into<PathBuf>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.reads = Some(paths.into_iter().map(Into::into).collect());
        self
    }

    /// Restricts writing, creating and removing files to these absolute paths and everything below
    /// them, which may be read as well. Everything else is forbidden, except for the paths of
    /// [`only_reads`](Processes::only_reads). Feature `isolation`; Linux.
    pub fn only_writes<P: Into<PathBuf>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.writes = Some(paths.into_iter().map(Into::into).collect());
        self
    }

    /// Forbids all sockets but Unix ones. Feature `isolation`; Linux on x86-64 and AArch64, by
    /// seccomp and Landlock.
    ///
    /// `socket` fails with `EACCES`, as if permission was denied. So do `io_uring_setup`, which can
    /// also make sockets, and `pidfd_getfd`, which can take those of other processes. Signals to
    /// others and abstract Unix sockets are forbidden if the kernel supports this. Unix sockets in
    /// the file system are not the network: their listener may be a way out, such as a container
    /// engine's. On x86-64 a call of the 32-bit interface ends the process.
    pub fn no_network(mut self) -> Self {
        self.no_network = true;
        self
    }

    /// Returns true if anything is forbidden.
    pub(crate) fn restricts(&self) -> bool {
        self.limits_paths() || self.no_network
    }

    /// Returns true if workers on other machines do the work.
    pub(crate) fn is_remote(&self) -> bool {
        #[cfg(feature = "remote")]
        return self.remote.is_some();
        #[cfg(not(feature = "remote"))]
        false
    }

    /// Returns the least silence after which a worker of another machine is given up, if others can
    /// take its work; if there are none, they get the time in which they may come.
    pub(crate) fn silence(&self, has_others: bool) -> Option<Duration> {
        #[cfg(feature = "remote")]
        return self.remote.as_ref().map(|remote| match has_others {
            true => remote.silence,
            false => remote.silence.max(remote.wait),
        });
        #[cfg(not(feature = "remote"))]
        {
            let _ = has_others;
            None
        }
    }

    /// Returns the time after which a worker of another machine gives up a trainer of which it hears
    /// nothing.
    pub(crate) fn heartbeat_timeout(&self) -> Option<Duration> {
        // In multiples of the silence after which a worker is given up.
        const SILENCES: u32 = 15;
        Some(self.silence(true)?.saturating_mul(SILENCES))
    }

    /// Returns how those of some workers crashed of which their machines have reported that.
    pub(crate) fn crashes(&self, workers: &[u64]) -> Vec<String> {
        #[cfg(feature = "remote")]
        if let Some(remote) = &self.remote {
            let crashes = workers.iter().map(|&worker| remote.crash_of(worker));
            return crashes.flatten().collect();
        }
        let _ = workers;
        Vec::new()
    }

    /// Returns the number of processes of this machine.
    pub(crate) fn here(&self) -> usize {
        #[cfg(feature = "remote")]
        if let Some(remote) = &self.remote {
            return remote.here;
        }
        self.count
    }

    /// Returns true if the paths are limited.
    pub(crate) fn limits_paths(&self) -> bool {
        self.reads.is_some() || self.writes.is_some()
    }
}

conversions! {
    |count: usize| -> Processes { Processes::new(count) }
}

/// Prints all settings on one line: `2 processes, 2 GiB each, nice 10, reads /data only, no
/// network`.
impl fmt::Display for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[cfg(feature = "remote")]
        if let Some(remote) = &self.remote {
            return remote.fmt(f);
        }
        match self.count {
            1 => f.write_str("1 process")?,
            count => write!(f, "{count} processes")?,
        }
        if let Some(memory) = self.memory {
            write!(f, ", {}", bytes(memory))?;
            if self.count != 1 {
                f.write_str(" each")?;
            }
        }
        if let Some(limit) = self.time_limit {
            match limit.as_micros() as f64 {
                micros if micros >= 1e6 => write!(f, ", {} s a job", micros / 1e6)?,
                micros => write!(f, ", {} ms a job", micros / 1e3)?,
            }
        }
        if self.restarts != RESTARTS {
            write!(f, ", {} restarts", self.restarts)?;
        }
        if let Some(nice) = self.nice {
            write!(f, ", nice {nice}")?;
        }
        if let Some(cpus) = &self.cpus {
            write!(f, ", CPUs {}", ranges(cpus))?;
        }
        if let Some(names) = &self.env {
            let names: Vec<_> = names.iter().map(|name| escape(name)).collect();
            match names.as_slice() {
                [] => f.write_str(", no environment")?,
                names => write!(f, ", environment {} only", names.join(" and "))?,
            }
        }
        if let Some(paths) = &self.reads {
            write!(f, ", reads {}", below(paths))?;
        }
        if let Some(paths) = &self.writes {
            write!(f, ", writes {}", below(paths))?;
        }
        if self.no_network {
            f.write_str(", no network")?;
        }
        Ok(())
    }
}

/// Formats a number of bytes: `2 GiB`, `1.5 GiB`, `512 MiB`.
fn bytes(bytes: u64) -> String {
    let (unit, name) = if bytes >= 1 << 30 {
        (1u64 << 30, "GiB")
    } else {
        (1 << 20, "MiB")
    };
    format!(
        "{} {name}",
        (bytes as f64 / unit as f64 * 10.0).round() / 10.0
    )
}

/// Formats ascending numbers as `0-3,8`.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let runs = runs.map(|run| match run {
        [one] => one.to_string(),
        run => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    runs.collect::<Vec<_>>().join(",")
}

fn below(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths
        .iter()
        .map(|path| escape(&path.display().to_string()).into_owned())
        .collect();
    match paths.as_slice() {
        [] => "nothing".into(),
        paths => format!("{} only", paths.join(" and ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn full() -> Processes {
        Processes::new(2)
            .memory(2 << 30)
            .time_limit(Duration::from_millis(10_500))
            .restarts(4)
            .nice(-3)
            .cpus([8, 1, 0, 2, 1])
            .only_env(["PATH", "HOME"])
            .only_reads(["/data", "/etc/models\n"])
            .only_writes(["/scratch"])
            .no_network()
    }

    #[test]
    fn says_all_on_one_line() {
        assert_eq!(
            Processes::new(1).memory(3 << 29).to_string(),
            "1 process, 1.5 GiB"
        );
        assert_eq!(
            Processes::new(2)
                .memory(2 << 30)
                .time_limit(Duration::from_secs(10))
                .nice(10)
                .only_reads(["/data"])
                .no_network()
                .to_string(),
            "2 processes, 2 GiB each, 10 s a job, nice 10, reads /data only, no network"
        );
        assert_eq!(
            full().to_string(),
            "2 processes, 2 GiB each, 10.5 s a job, 4 restarts, nice -3, CPUs 0-2,8, environment PATH and HOME only, \
             reads /data and /etc/models\\n only, writes /scratch only, no network"
        );
        let nothing = Processes::from(3)
            .memory(100 << 20)
            .time_limit(Duration::from_micros(1500))
            .only_env([""; 0])
            .only_writes([""; 0]);
        assert_eq!(
            nothing.to_string(),
            "3 processes, 100 MiB each, 1.5 ms a job, no environment, writes nothing"
        );
    }
}
