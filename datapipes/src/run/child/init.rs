//! Entry of a child process: the first line of `main`.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

use super::executable::{VARIABLE, become_child, hold_executable};
#[cfg(feature = "remote")]
use super::remote;
use super::{child_main, isolate};

/// Time that a child waits for its end after its parent has closed the queue.
const ENDING: Duration = Duration::from_secs(1);

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
                    crate::error::print_line(format_args!(
                        "datapipes: a child process cannot go on: {error}"
                    ));
                    1
                }
            };
            std::process::exit(code)
        }
    }
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
