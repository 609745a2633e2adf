//! Entry of a child process: the first line of `main`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

#[cfg(feature = "remote")]
use super::remote;
use super::{child_main, isolate};
use crate::Processes;

/// Variable that is set for a child, to the process number of its parent; or, by the user, to the
/// addresses of trainers on other machines.
pub(super) const VARIABLE: &str = "DATAPIPES_WORKER";

/// Time that a child waits for its end after its parent has closed the queue.
const ENDING: Duration = Duration::from_secs(1);

/// This executable, held open since the start: its path may later be another file.
static EXECUTABLE: OnceLock<OwnedFd> = OnceLock::new();

/// True if this process is a child, whose part cannot have children of its own.
static CHILD: AtomicBool = AtomicBool::new(false);

/// Implements `datapipes::worker::init`.
pub(crate) fn init() {
    match std::env::var(VARIABLE) {
        Err(_) => hold_executable(),
        #[cfg(feature = "remote")]
        Ok(url) if remote::are_addresses(&url) => {
            hold_executable();
            std::process::exit(remote::run_agent(&url))
        }
        Ok(parent) => {
            let code = match be_a_child(&parent) {
                Ok(()) => {
                    // The parent has closed the queue. If the parent is gone, only the lifeline's
                    // thread ends the processes that this one started; it ends this process, too.
                    std::thread::sleep(ENDING);
                    0
                }
                Err(error) => {
                    eprintln!("datapipes: a child process cannot go on: {error}");
                    1
                }
            };
            std::process::exit(code)
        }
    }
}

fn hold_executable() {
    let open = rustix::fs::open(
        "/proc/self/exe",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    // Without /proc no child can be started; the loader reports that.
    if let Ok(executable) = open {
        let _ = EXECUTABLE.set(executable);
    }
}

/// Returns a path of this executable, whatever is at its own path by now. It is resolved by whoever
/// opens it, here or in a new process, which has the descriptor until it executes the file.
fn path() -> Option<String> {
    let held = EXECUTABLE.get()?;
    Some(format!("/proc/self/fd/{}", held.as_raw_fd()))
}

#[cfg(feature = "remote")]
fn path_or_error() -> io::Result<String> {
    path().ok_or_else(|| io::Error::other("this executable is not held open"))
}

/// Opens this executable, at its start.
#[cfg(feature = "remote")]
pub(super) fn executable() -> io::Result<std::fs::File> {
    std::fs::File::open(path_or_error()?)
}

/// Makes the command that starts this executable again, with its environment.
#[cfg(feature = "remote")]
pub(super) fn again() -> io::Result<Command> {
    path_or_error().map(Command::new)
}

/// Sets that this process is a child.
pub(super) fn become_child() {
    CHILD.store(true, Ordering::Relaxed);
}

/// Returns true if children can be started.
pub(crate) fn is_ready() -> bool {
    EXECUTABLE.get().is_some()
}

/// Returns true if this process is a child itself.
pub(crate) fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}

/// Makes the command that starts this executable as a child.
pub(super) fn command(processes: &Processes) -> Option<Command> {
    let mut command = Command::new(path()?);
    isolate::environment(processes, &mut command);
    command.env(VARIABLE, std::process::id().to_string());
    Some(command)
}

fn be_a_child(parent: &str) -> crate::Result<()> {
    let wrong = || {
        io::Error::other(format!(
            "{VARIABLE} is set to `{parent}`, but no loader started this process"
        ))
    };
    let parent = parent
        .parse()
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(wrong)?;
    isolate::die_with(parent)?;
    become_child();
    let (orders, reports) = take_queues()?;
    // SAFETY: this is the first line of `main`, and nothing has started a thread.
    unsafe { std::env::remove_var(VARIABLE) };
    child_main::serve(async || child_main::ChildEnds::local(orders, reports))
}

/// Takes the two queues, which came as standard input and output, and puts harmless descriptors in
/// their places: output of a part goes to standard error.
fn take_queues() -> io::Result<(OwnedFd, OwnedFd)> {
    let take = |fd| rustix::io::fcntl_dupfd_cloexec(fd, 3);
    let queues = (
        take(rustix::stdio::stdin())?,
        take(rustix::stdio::stdout())?,
    );
    let nothing = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    Ok(queues)
}
