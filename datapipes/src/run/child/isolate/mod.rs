//! Limits that a child sets itself before any user code runs, and its end with its parent.
//!
//! A child calls, on its first thread and in this order: [`die_with`], [`apply`], [`watch`].

#[cfg(feature = "isolation")]
mod sandbox;
#[cfg(all(
    feature = "isolation",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod sockets;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getpgrp, getpid, getppid, getrlimit,
    kill_current_process_group, pidfd_open, set_parent_process_death_signal, setpgid,
    setpriority_process, setrlimit,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity, set_no_new_privs};

use crate::run::spawn_thread;
use crate::{Error, ErrorKind, Processes, Result};

/// Sets the environment variables that a child keeps. The parent calls this before it sets its own
/// variables for the child.
pub(super) fn environment(processes: &Processes, command: &mut Command) {
    let Some(names) = &processes.env else { return };
    command.env_clear();
    // Without the last one a child may not find its shared libraries.
    for name in names.iter().map(String::as_str).chain(["LD_LIBRARY_PATH"]) {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
}

/// Removes the rights that were not granted from this process, and from the threads and processes
/// that it starts later.
///
/// The process must have one thread, since most limits apply to a thread and its descendants.
///
/// # Errors
/// [`ErrorKind::Worker`] if the system refuses a requested limit. No user code may run then.
pub(super) fn apply(processes: &Processes) -> Result<()> {
    // A crash is expected here, and its core file would be as large as the memory. With 0 the
    // kernel would still pipe a core to a handler program; 1 means no core at all (core(5)).
    let none = Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    setrlimit(Resource::Core, none).map_err(refused("no core files"))?;
    // If memory runs out, the kernel should kill a child before the parent: with 1000, a child of
    // any size comes first. The user did not ask for this setting, so a failure (no `/proc`) is
    // ignored.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    if let Some(memory) = processes.memory {
        let most = getrlimit(Resource::Data)
            .maximum
            .map_or(memory, |most| most.min(memory));
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        setrlimit(Resource::Data, limit)
            .map_err(refused(format_args!("{memory} bytes of memory")))?;
    }
    if let Some(nice) = processes.nice {
        setpriority_process(None, nice).map_err(refused(format_args!("nice {nice}")))?;
    }
    if let Some(cpus) = &processes.cpus {
        pin(cpus)?;
    }
    // The next two limits need this. Without them, it ensures that a child ends with its parent: a
    // program with the privileges of another user could not be killed.
    set_no_new_privs(true).map_err(refused("no new privileges"))?;
    restrict(processes)
}

fn pin(cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        if *cpu >= CpuSet::MAX_CPU {
            return Err(refused("the set of CPUs")(format_args!(
                "CPU {cpu} of at most {}",
                CpuSet::MAX_CPU
            )));
        }
        set.set(*cpu);
    }
    sched_setaffinity(None, &set).map_err(refused("the set of CPUs"))?;
    // The kernel silently leaves out the CPUs that the control group forbids.
    match sched_getaffinity(None).map_err(refused("the set of CPUs"))? {
        now if now == set => Ok(()),
        now => Err(refused("the set of CPUs")(format_args!(
            "{} of {} are allowed",
            now.count(),
            set.count()
        ))),
    }
}

#[cfg(feature = "isolation")]
fn restrict(processes: &Processes) -> Result<()> {
    sandbox::restrict(processes)
}

#[cfg(not(feature = "isolation"))]
fn restrict(processes: &Processes) -> Result<()> {
    match processes.limits_paths() || processes.no_network {
        true => Err(refused("a limit of paths or network")(
            "this program was built without it",
        )),
        false => Ok(()),
    }
}

/// Makes the error for a request that the system refuses.
fn refused<E: Display>(what: impl Display) -> impl FnOnce(E) -> Error {
    move |error| {
        Error::new(
            ErrorKind::Worker,
            format!("a process cannot be given {what}: {error}"),
        )
    }
}

/// Makes this process end when its parent does, as long as it has not started anything itself, and
/// makes it the leader of a group of processes, so that its later children can be ended with it.
///
/// The process ends at once if the parent is no longer `parent`. This is the first call of a child,
/// on its first thread. The thread of the parent that started the child has to live until the child
/// has called [`watch`], since the kernel takes its end for that of the parent.
pub(super) fn die_with(parent: Pid) -> io::Result<()> {
    if getpgrp() != getpid() {
        setpgid(None, None)?;
    }
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before the call.
    if getppid() != Some(parent) {
        std::process::exit(1);
    }
    Ok(())
}

/// Makes this process and its group end when the parent does, however the parent ends and whatever
/// this process is doing. Called after [`die_with`], on the same thread, before any user code.
///
/// The lifeline is a socket or a pipe whose other end nobody but the parent holds. It is not read
/// from.
///
/// # Design
/// A death signal that kills reaches only this process, which then cannot end the processes it has
/// started. That signal therefore covers the time before any exist. From now on a thread waits for
/// the parent's end and kills the whole group, including this process. The thread does not depend
/// on other threads: native code may compute or wait without end on them.
///
/// - The thread waits for two descriptors. The lifeline also ends if the parent only releases this
///   child. The parent's pidfd (Linux 5.3) reports its end even if a process that it has forked
///   still holds the lifeline's other end.
/// - A stopped process has no thread that could act. The death signal therefore becomes `SIGCONT`,
///   which has no effect on a process that is not stopped.
///
/// Processes that have left the group (`setsid`) are not found. If the child ends first, the parent
/// ends its group, before it waits for the child.
pub(super) fn watch(lifeline: OwnedFd) -> io::Result<()> {
    // The parent is still the one of `die_with`: its end would have killed this process.
    let parent = getppid().and_then(|parent| pidfd_open(parent, PidfdFlags::empty()).ok());
    spawn_thread("lifeline".into(), move || {
        wait_for_end(&lifeline, parent.as_ref());
        let _ = kill_current_process_group(Signal::KILL);
    })?;
    Ok(set_parent_process_death_signal(Some(Signal::CONT))?)
}

fn wait_for_end(lifeline: &OwnedFd, parent: Option<&OwnedFd>) {
    // No events of the socket are requested, so only its end is reported; its data is read
    // elsewhere.
    let mut fds = vec![PollFd::from_borrowed_fd(
        lifeline.as_fd(),
        PollFlags::empty(),
    )];
    fds.extend(parent.map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)));
    while let Err(Errno::INTR) | Ok(0) = poll(&mut fds, None) {}
}
