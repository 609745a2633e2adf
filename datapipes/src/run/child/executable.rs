//! The executable of this process, which is started again for each child.

#[cfg(feature = "remote")]
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags};

use super::isolate;
use crate::Processes;

/// Variable that is set for a child, to the process number of its parent; or, by the user, to the
/// addresses of trainers on other machines.
pub(super) const VARIABLE: &str = "DATAPIPES_WORKER";

/// Executable of this process, held open since the start.
static EXECUTABLE: OnceLock<OwnedFd> = OnceLock::new();

/// True if this process is a child, whose part cannot have children of its own.
static CHILD: AtomicBool = AtomicBool::new(false);

/// Opens this executable, whose path may later be another file.
pub(super) fn hold_executable() {
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
pub(super) fn open() -> io::Result<std::fs::File> {
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
