//! A child that is a process of this machine, as its parent sees it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, waitid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::executable;
use super::log::tell_printed;
use super::plan::ChildrenPlan;
use super::vitals::{LastLines, Vitals};
use crate::queue::{Limits, ProcessPut, ProcessTake, sockets};

/// Number of reads of a child's output before other work gets its turn.
const AT_ONCE: usize = 16;
/// Number of reads that can be left in a pipe when a child has ended; further output comes from
/// other processes that hold the pipe.
const LAST: usize = 256;

/// A child process. Dropping it kills the process with everything that it started, and waits for
/// it.
pub(super) struct ChildProcess {
    process: std::process::Child,
    pid: Pid,
    /// Readable once the process has ended.
    exit: AsyncFd<OwnedFd>,
    /// Output of the process.
    printed: Option<AsyncFd<OwnedFd>>,
    lines: LastLines,
    /// Part that the process works on, and its place, for the log.
    node: Arc<str>,
    place: usize,
    status: Option<ExitStatus>,
}

impl ChildProcess {
    /// Starts a child, and makes its queues. Must be called inside a tokio runtime, by a thread
    /// that lives as long as the child.
    pub(super) fn start(
        plan: &ChildrenPlan,
        place: usize,
        limits: Limits,
    ) -> io::Result<(ChildProcess, ProcessPut, ProcessTake)> {
        let (orders, their_orders) = sockets()?;
        let (reports, their_reports) = sockets()?;
        let (printed, their_errors) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&printed, true)?;
        let mut command = executable::command(&plan.processes)
            .ok_or_else(|| io::Error::other("`datapipes::worker::init()` was not called"))?;
        let process = command
            .arg0(format!("{}/{place}", plan.node))
            .stdin(Stdio::from(their_orders))
            .stdout(Stdio::from(their_reports))
            .stderr(Stdio::from(their_errors))
            .process_group(0)
            .spawn()?;
        let pid = Pid::from_raw(process.id() as i32).expect("a process has a number above zero");
        // From here on a failure must not leave the process running.
        let mut process = Unless(Some(process));
        let exit = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        let child = ChildProcess {
            pid,
            exit: readable(exit)?,
            printed: Some(readable(printed)?),
            lines: LastLines::default(),
            node: plan.node.clone(),
            place,
            process: process.0.take().expect("only taken here"),
            status: None,
        };
        let orders = ProcessPut::new(orders, limits)?.trusted();
        Ok((child, orders, ProcessTake::new(reports)?))
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns its current private memory, in bytes.
    pub(super) fn vitals(&self) -> Option<Vitals> {
        Vitals::of(self.pid).ok()
    }

    /// Returns the exit status once the process has ended.
    pub(super) fn poll_exit(&mut self, cx: &mut Context<'_>) -> Poll<ExitStatus> {
        if let Some(status) = self.status {
            return Poll::Ready(status);
        }
        match self.exit.poll_read_ready(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(_) => Poll::Ready(self.wait()),
        }
    }

    /// Forwards its output.
    pub(super) fn poll_lines(&mut self, cx: &mut Context<'_>) {
        let Some(printed) = &self.printed else { return };
        let mut bytes = [0; 4096];
        for _ in 0..AT_ONCE {
            let Poll::Ready(Ok(mut guard)) = printed.poll_read_ready(cx) else {
                return;
            };
            match guard.try_io(|fd| rustix::io::read(fd, &mut bytes).map_err(io::Error::from)) {
                Err(_would_block) => {}
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Ok(0) | Err(_)) => return self.printed = None,
                Ok(Ok(len)) => {
                    let mut tell = |line: &str| tell_printed(&self.node, self.place, line);
                    self.lines.push(&bytes[..len], &mut tell);
                }
            }
        }
        cx.waker().wake_by_ref();
    }

    /// Ends the process at once, with everything that it started.
    pub(super) fn kill(&self) {
        // The group has the number of the process, which is not reused before the process was
        // waited for. In a program that ignores the ends of its children, the kernel waits for them
        // at once.
        let asked = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if self.status.is_none()
            && !matches!(waitid(WaitId::Pid(self.pid), asked), Err(Errno::CHILD))
        {
            let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
        }
        let _ = rustix::process::pidfd_send_signal(self.exit.get_ref(), Signal::KILL);
    }

    /// Waits for a process that has ended or was killed, and ends what it started.
    fn wait(&mut self) -> ExitStatus {
        if let Some(status) = self.status {
            return status;
        }
        // The processes it started are in its group.
        self.kill();
        let status = self
            .process
            .wait()
            .unwrap_or_else(|_| ExitStatus::from_raw(0));
        *self.status.insert(status)
    }

    /// Returns its last lines of output.
    pub(super) fn last_lines(&self) -> Option<String> {
        self.lines.last()
    }

    /// Ends the process, and forwards its last output.
    pub(super) fn end(&mut self) -> ExitStatus {
        self.kill();
        let status = self.wait();
        // The process and everything that it started have ended, so all of the output is in the
        // pipe.
        let mut tell = |line: &str| tell_printed(&self.node, self.place, line);
        if let Some(printed) = self.printed.take() {
            let mut bytes = [0; 4096];
            for _ in 0..LAST {
                let Ok(len @ 1..) = rustix::io::read(printed.get_ref(), &mut bytes) else {
                    break;
                };
                self.lines.push(&bytes[..len], &mut tell);
            }
            self.lines.finish(&mut tell);
        }
        status
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// Registers a descriptor to be woken when it is readable.
fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is the same open descriptor for as long as it lives.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(Into::into)
}

/// Kills a process unless it is taken out.
struct Unless(Option<std::process::Child>);

impl Drop for Unless {
    fn drop(&mut self) {
        if let Some(process) = &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
