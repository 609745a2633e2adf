//! What a child may do, which it sets itself before any user code runs, and that it ends with its
//! parent.
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

/// Gives a child the variables that it keeps. The parent calls it before it sets its own for the
/// child.
pub(super) fn environment(processes: &Processes, command: &mut Command) {
    let Some(names) = &processes.env else { return };
    command.env_clear();
    // Without the last one a child may not find the libraries that it is linked to.
    for name in names.iter().map(String::as_str).chain(["LD_LIBRARY_PATH"]) {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
}

/// Takes from this process, and from the threads and processes that it starts later, what was not
/// allowed.
///
/// It must have one thread, since most of this holds for a thread and what comes from it.
///
/// # Errors
/// [`ErrorKind::Worker`] if the system refuses something that was asked for. Nothing of the user
/// may run then.
pub(super) fn apply(processes: &Processes) -> Result<()> {
    // A crash is expected here, and its core file would be as large as the memory. With 0 the
    // kernel would still hand it to a program that wants them; 1 means none at all (core(5)).
    let none = Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    setrlimit(Resource::Core, none).map_err(refused("no core files"))?;
    // Where memory runs out, the kernel takes a child before the job: with 1000, one of any size
    // comes before anything else. Nobody asked for this, so where it cannot be had (no `/proc`), it
    // is left.
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
    // Both of what follows need it. Without them, it keeps the promise that a child ends with its
    // parent: a program with the privileges of another user could not be killed.
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
    // The kernel leaves out those which the control group forbids, and says nothing.
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

/// The error for what the system refuses.
fn refused<E: Display>(what: impl Display) -> impl FnOnce(E) -> Error {
    move |error| {
        Error::new(
            ErrorKind::Worker,
            format!("a process cannot be given {what}: {error}"),
        )
    }
}

/// Makes this process end when its parent does, as long as it has not started anything itself, and
/// makes it the first of a group of processes, so that what it will start can be ended with it.
///
/// It ends at once if the parent is no longer `parent`. The first call of a child, on its first
/// thread. The thread of the parent that started the child has to live until the child has called
/// [`watch`], since the kernel takes its end for that of the parent.
pub(super) fn die_with(parent: Pid) -> io::Result<()> {
    if getpgrp() != getpid() {
        setpgid(None, None)?;
    }
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have ended before that.
    if getppid() != Some(parent) {
        std::process::exit(1);
    }
    Ok(())
}

/// Makes this process and its group end when the parent does: however that ends, whatever this
/// process does then. Called after [`die_with`], on the same thread, before any user code.
///
/// The lifeline is a socket or a pipe whose other end nobody but the parent holds. It is not read
/// from.
///
/// # Why so
/// A death signal that kills reaches this process only, and before it could do anything about what
/// it has started. So that is for the time before there is anything. From now on a thread waits for
/// the parent's end and kills the whole group, itself included. It needs nothing of the others:
/// native code may compute or wait without end on them.
///
/// - It waits for two things. The lifeline ends also where the parent only lets go of this child.
///   The parent's descriptor (Linux 5.3) tells its end even if a process that it has forked still
///   holds the lifeline's other end.
/// - A process that is stopped has no thread that could act. So the death signal becomes `SIGCONT`,
///   which has no effect on one that is not stopped.
///
/// What has left the group (`setsid`) is not found. If the child ends first, its group is the
/// parent's to end, before it waits for the child.
pub(super) fn watch(lifeline: OwnedFd) -> io::Result<()> {
    // Still the one of `die_with`: its end would have killed us.
    let parent = getppid().and_then(|parent| pidfd_open(parent, PidfdFlags::empty()).ok());
    spawn_thread("lifeline".into(), move || {
        wait_for_end(&lifeline, parent.as_ref());
        let _ = kill_current_process_group(Signal::KILL);
    })?;
    Ok(set_parent_process_death_signal(Some(Signal::CONT))?)
}

fn wait_for_end(lifeline: &OwnedFd, parent: Option<&OwnedFd>) {
    // Of the socket nothing is asked, so only its end is told; what comes through it is read
    // elsewhere.
    let mut fds = vec![PollFd::from_borrowed_fd(
        lifeline.as_fd(),
        PollFlags::empty(),
    )];
    fds.extend(parent.map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)));
    while let Err(Errno::INTR) | Ok(0) = poll(&mut fds, None) {}
}
