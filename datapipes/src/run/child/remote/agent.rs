//! The worker's side: the processes of a worker machine, each with a connection of its own.
//!
//! A program that is started with an address in `DATAPIPES_WORKER` becomes an agent: it starts as
//! many processes as there are CPUs, and starts one again whenever it has ended. Such a process
//! connects to the trainer and works as a child of it, until the connection ends. So a crash costs
//! one process, and a trainer that starts again, or an epoch that begins later, finds its workers.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal};

use super::leave::Leave;
use super::link::Trainer;
use crate::processes::TOKEN;
use crate::run::child::child_main::{self, ChildEnds};
use crate::run::child::queue_ends::{PutEnd, TakeEnd};
use crate::run::child::{executable, isolate};
use crate::sync::lock;
use crate::{Error, ErrorKind};

/// Variable with the number of processes; the number of CPUs if it is not set.
const PROCESSES: &str = "DATAPIPES_WORKER_PROCESSES";
/// Variable with the seconds without a trainer after which the program ends; never if it is not
/// set.
const IDLE: &str = "DATAPIPES_WORKER_IDLE";
/// Variable that is set for the processes of an agent, to the number of their parent.
const AGENT: &str = "DATAPIPES_WORKER_AGENT";

/// Pauses before a process is started again: after work, and the greatest after failures.
const AGAIN: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);
/// Pause after the trainer has refused a process: it will refuse the next one, too, until somebody
/// changes something.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// Time that a process may take to end by itself once the trainer is gone.
const ENDING: Duration = Duration::from_millis(100);

/// Exit codes of a worker process: it has worked, it found no trainer, it was refused.
const WORKED: i32 = 0;
const ALONE: i32 = 3;
const REFUSED: i32 = 4;

/// Returns true if the variable `DATAPIPES_WORKER` has the address of a trainer.
pub(in crate::run::child) fn is_address(url: &str) -> bool {
    Trainer::is_address(url)
}

/// Runs an agent, or one of its processes, for the trainer at an address, and returns its exit
/// code.
pub(in crate::run::child) fn run(url: &str) -> i32 {
    let outcome = match std::env::var(AGENT) {
        Ok(parent) => return work(url, &parent),
        Err(_) => Agent::new(url).and_then(|agent| agent.run()),
    };
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("datapipes: cannot work for {url}: {error}");
            1
        }
    }
}

struct Agent {
    /// Address of the trainer.
    url: String,
    processes: usize,
    idle: Option<Duration>,
    state: Mutex<State>,
    /// Told when no more processes are started.
    ended: Condvar,
}

struct State {
    /// Numbers of the processes that run, and which are not waited for yet.
    running: Vec<Pid>,
    /// True once no more processes are started.
    ends: bool,
    /// Last time at which a process was seen to work.
    worked: Instant,
}

impl Agent {
    fn new(url: &str) -> io::Result<Agent> {
        // What its processes would find out, each by itself.
        Trainer::new(url).map_err(io::Error::other)?;
        let number = |name: &str| match std::env::var(name) {
            Err(_) => Ok(None),
            Ok(text) => text.parse::<usize>().map(Some).map_err(|_| {
                io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("{name} is `{text}`, which is no number"),
                )
            }),
        };
        let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Agent {
            url: url.to_owned(),
            processes: number(PROCESSES)?.unwrap_or_else(cpus).max(1),
            idle: number(IDLE)?.map(|seconds| Duration::from_secs(seconds as u64)),
            state: Mutex::new(State {
                running: Vec::new(),
                ends: false,
                worked: Instant::now(),
            }),
            ended: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn run(self) -> io::Result<()> {
        // Before any thread starts, so that it holds for all.
        let end = block_end_signals()?;
        let agent = Arc::new(self);
        {
            let agent = agent.clone();
            // The signal ends the processes after their jobs, and then this one.
            crate::run::spawn_thread("datapipes-signals".into(), move || {
                wait_for(&end);
                let mut state = agent.lock();
                state.ends = true;
                for pid in &state.running {
                    let _ = rustix::process::kill_process(*pid, Signal::TERM);
                }
                drop(state);
                agent.ended.notify_all();
                // A second signal ends them at once.
                wait_for(&end);
                std::process::exit(1);
            })?;
        }
        eprintln!(
            "datapipes: {} worker processes for {}",
            agent.processes, agent.url
        );
        // A process ends with the thread that started it, so these threads last as long as this
        // process.
        let keep = |place: usize| {
            let agent = agent.clone();
            std::thread::Builder::new()
                .name(format!("datapipes-worker-{place}"))
                .spawn(move || agent.keep_running())
        };
        let threads: Vec<_> = (0..agent.processes).map(keep).collect::<io::Result<_>>()?;
        for thread in threads {
            thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a thread of the agent ended")))?;
        }
        Ok(())
    }

    /// Keeps one process running.
    fn keep_running(&self) -> io::Result<()> {
        let mut pause = AGAIN;
        loop {
            let mut process = {
                // Locked, so that a signal finds the process.
                let mut state = self.lock();
                if state.ends {
                    return Ok(());
                }
                let mut command: Command = executable::again()?;
                let process = command
                    .env(executable::VARIABLE, &self.url)
                    .env(AGENT, std::process::id().to_string())
                    .stdin(Stdio::null())
                    .spawn()?;
                state.running.push(pid_of(&process));
                process
            };
            let status = wait(&mut process, self)?;
            let mut state = self.lock();
            match status.code() {
                Some(ALONE) => pause = (pause * 2).min(LONGEST),
                Some(REFUSED) => pause = REFUSED_PAUSE,
                code => {
                    pause = AGAIN;
                    state.worked = Instant::now();
                    if code != Some(WORKED) && !state.ends {
                        eprintln!("datapipes: a worker process ended, and is replaced: {status}");
                    }
                }
            }
            let is_idle = |idle: Duration| state.worked.elapsed() >= idle;
            state.ends |= state.running.is_empty() && self.idle.is_some_and(is_idle);
            let _ = self
                .ended
                .wait_timeout_while(state, pause, |state| !state.ends);
        }
    }
}

fn pid_of(process: &std::process::Child) -> Pid {
    Pid::from_raw(process.id() as i32).expect("a process has a number above zero")
}

/// Waits for a process, and removes it from those that signals are sent to before its number can be
/// used again.
fn wait(process: &mut std::process::Child, agent: &Agent) -> io::Result<std::process::ExitStatus> {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let pid = pid_of(process);
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
    let mut state = agent.lock();
    state.running.retain(|running| *running != pid);
    process.wait()
}

/// Works for the trainer until it has no more work.
fn work(url: &str, parent: &str) -> i32 {
    let token = std::env::var(TOKEN).unwrap_or_default();
    for variable in [executable::VARIABLE, AGENT, TOKEN] {
        // SAFETY: this is the first line of `main`, and nothing has started a thread. The part's
        // code is to see the environment of the program, without the secret.
        unsafe { std::env::remove_var(variable) };
    }
    let begin = || -> io::Result<Arc<Leave>> {
        let agent = parent.parse().ok().and_then(Pid::from_raw);
        let agent = agent.ok_or_else(|| io::Error::other(format!("no agent `{parent}`")))?;
        isolate::die_with(agent)?;
        executable::become_child();
        let end = block_end_signals()?;
        let leave = Arc::new(Leave::default());
        let wished = leave.clone();
        crate::run::spawn_thread("datapipes-signals".into(), move || {
            wait_for(&end);
            wished.wished.store(true, Ordering::Relaxed);
            if !wished.at_work.load(Ordering::Relaxed) {
                std::process::exit(WORKED);
            }
            wished.waker.wake();
        })?;
        Ok(leave)
    };
    let leave = match begin() {
        Ok(leave) => leave,
        Err(error) => {
            eprintln!("datapipes: a worker process cannot start: {error}");
            return ALONE;
        }
    };
    let mut entered = false;
    let outcome = child_main::serve(async || {
        let (ends, lifeline) = Trainer::new(url)?.connect(&token).await?;
        entered = true;
        leave.at_work.store(true, Ordering::Relaxed);
        watch(lifeline.map_err(Error::io)?).map_err(Error::io)?;
        Ok(ChildEnds {
            orders: TakeEnd::Remote(ends.take),
            reports: PutEnd::Remote(ends.put),
            lifeline: None,
            leave: Some(leave.clone()),
        })
    });
    match outcome {
        Ok(()) => WORKED,
        // The connection was lost: the trainer has ended, or gave the work to another worker.
        Err(_) if entered => WORKED,
        Err(error) if error.kind() == ErrorKind::Denied => {
            eprintln!("datapipes: {}", error.message());
            REFUSED
        }
        Err(_) => ALONE,
    }
}

/// Ends this process some time after the trainer has ended the connection, whatever it is doing: a
/// step that hangs, or work that was given to another worker.
fn watch(lifeline: OwnedFd) -> io::Result<()> {
    crate::run::spawn_thread("datapipes-lifeline".into(), move || {
        let mut fds = [PollFd::new(&lifeline, PollFlags::RDHUP)];
        while let Err(rustix::io::Errno::INTR) | Ok(0) = poll(&mut fds, None) {}
        std::thread::sleep(ENDING);
        // SAFETY: it ends the process, at once, and returns to nobody.
        unsafe { libc::_exit(WORKED) }
    })
    .map(drop)
}

/// Blocks SIGTERM and SIGINT for this thread and those that it starts, for [`wait_for`].
fn block_end_signals() -> io::Result<libc::sigset_t> {
    // SAFETY: the set is initialised by `sigemptyset` before it is used.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        match libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) {
            0 => Ok(set),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Waits for one of the blocked signals.
fn wait_for(set: &libc::sigset_t) {
    let mut signal = 0;
    // SAFETY: both point to values of this function's callers, which outlive the call.
    while unsafe { libc::sigwait(set, &mut signal) } != 0 {}
}
