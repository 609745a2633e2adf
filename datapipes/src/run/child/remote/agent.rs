//! The worker's side: the processes of a worker machine, each with a connection of its own.
//!
//! A program that is started with an address in `DATAPIPES_WORKER` becomes an agent: it starts as
//! many processes as there are CPUs, and starts one again whenever it has ended. Such a process
//! connects to the trainer and works as a child of it, until the connection ends. So a crash costs
//! one process, and a trainer that starts again, or an epoch that begins later, finds its workers.
//!
//! A process tells its agent by a pipe why it ended. One that ended without a word has crashed: the
//! process that takes its place reports that to the trainer, which cannot tell a crash from a
//! connection that was cut.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use blake3::Hash;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal};

use super::Crash;
use super::handshake::{executable_hash, know_executable, nonce};
use super::leave::Leave;
use super::link::Trainer;
use crate::processes::TOKEN;
use crate::run::child::child_main::{self, ChildEnds};
use crate::run::child::queue_ends::{PutEnd, TakeEnd};
use crate::run::child::vitals::words;
use crate::run::child::{executable, isolate};
use crate::sync::lock;
use crate::{Error, ErrorKind};

/// Variable with the number of processes; the number of CPUs if it is not set.
const PROCESSES: &str = "DATAPIPES_WORKER_PROCESSES";
/// Variable with the seconds without a trainer after which the program ends; never if it is not
/// set.
const IDLE: &str = "DATAPIPES_WORKER_IDLE";
/// Variable that is set for the processes of an agent, to their [`Role`].
const AGENT: &str = "DATAPIPES_WORKER_AGENT";

/// Least time between two starts of a process, and the greatest pauses before it is started again after
/// crashes and other failures.
const AGAIN: Duration = Duration::from_millis(50);
const LONGEST_CRASHED: Duration = Duration::from_millis(400);
const LONGEST: Duration = Duration::from_secs(2);
/// Pause after the trainer has refused a process: it will refuse the next one, too, until somebody
/// changes something.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// Time that a process may take to end by itself once the trainer is gone.
const ENDING: Duration = Duration::from_millis(100);

/// Greatest length of the reason for an end, in characters.
const REASON: usize = 500;

/// Kind of end of a worker process, which tells its agent, with the reason.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ended {
    /// Has worked, and the trainer has ended the connection, or it was asked to end.
    Worked,
    /// Found no trainer.
    Alone,
    /// Refused: the trainer does not want it, or it cannot make the part.
    Refused,
    /// Unable to go on.
    Failed,
}

impl Ended {
    const ALL: [Ended; 4] = [Ended::Worked, Ended::Alone, Ended::Refused, Ended::Failed];

    /// Reads what a process has told its agent.
    fn read(told: &str) -> Option<(Ended, &str)> {
        let line = told.lines().next()?;
        let (number, reason) = line.split_at_checked(1)?;
        let ended = Ended::ALL.get(number.parse::<usize>().ok()?)?;
        Some((*ended, reason))
    }
}

/// The agent of a process, to be told why it ended.
#[derive(Clone)]
struct Listener(Arc<OwnedFd>);

impl Listener {
    /// Takes the pipe that came as standard input, and puts a harmless descriptor in its place.
    fn take() -> io::Result<Listener> {
        let pipe = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
        let nothing = std::fs::File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nothing)?;
        Ok(Listener(Arc::new(pipe)))
    }

    /// Tells why this process ends, on one line.
    fn tell(&self, ended: Ended, reason: &str) {
        let reason = reason.chars().take(REASON);
        let reason: String = reason
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let line = format!("{}{reason}\n", ended as usize);
        // The agent is gone if this fails, and ends this process.
        let _ = rustix::io::write(&*self.0, line.as_bytes());
    }
}

/// Facts that a process of an agent has to know.
#[derive(Debug, PartialEq)]
struct Role {
    agent: Pid,
    /// Place among the processes of the agent.
    place: usize,
    /// Number among all of all machines.
    id: u64,
    /// Hash of the executable, which takes some 0.1 s of each 100 MB of it.
    executable: Hash,
    /// Crash of the process before it at the place.
    before: Option<Crash>,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Role {
            agent,
            place,
            id,
            executable,
            ..
        } = self;
        write!(f, "{} {place} {id} {executable}", agent.as_raw_pid())?;
        match &self.before {
            Some(Crash { id, process, how }) => write!(f, " {id} {process} {how}"),
            None => Ok(()),
        }
    }
}

impl Role {
    fn read(text: &str) -> Option<Role> {
        let mut parts = text.splitn(7, ' ');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let (agent, place, id) = (number()?, number()?, number()?);
        let executable = Hash::from_hex(parts.next()?).ok()?;
        let mut number = || parts.next()?.parse::<u64>().ok();
        let before = number().zip(number());
        let how = parts.next();
        Some(Role {
            agent: Pid::from_raw(agent.try_into().ok()?)?,
            place: place as usize,
            id,
            executable,
            before: before.zip(how).map(|((id, process), how)| Crash {
                id,
                process: process as u32,
                how: how.to_owned(),
            }),
        })
    }
}

/// Returns how a process ended if its connection has ended.
fn ended(leave: &Leave) -> (Ended, String) {
    match leave.unable.get() {
        Some(why) => (
            Ended::Refused,
            format!("this machine cannot make the part: {why}"),
        ),
        None => (Ended::Worked, String::new()),
    }
}

/// Returns true if the variable `DATAPIPES_WORKER` has the addresses of trainers.
pub(in crate::run::child) fn are_addresses(urls: &str) -> bool {
    Trainer::are_addresses(urls)
}

/// Runs an agent, or one of its processes, for the trainers at some addresses, and returns its exit
/// code.
pub(in crate::run::child) fn run(url: &str) -> i32 {
    let outcome = match std::env::var(AGENT) {
        Ok(role) => return work(url, &role),
        Err(_) => Agent::new(url).and_then(|agent| agent.run()),
    };
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            say(format_args!("cannot work for {url}: {error}"));
            1
        }
    }
}

/// Prints a line for the person who started the agent.
fn say(what: impl fmt::Display) {
    crate::error::print_line(format_args!("datapipes: {what}"));
}

struct Agent {
    /// Addresses of the trainers.
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
    /// Lines that were said since then, and are not said again.
    said: BTreeSet<String>,
}

impl State {
    fn say(&mut self, what: String) {
        if !self.said.contains(&what) {
            say(&what);
            self.said.insert(what);
        }
    }
}

impl Agent {
    fn new(url: &str) -> io::Result<Agent> {
        // What its processes would find out, each by itself.
        Trainer::all(url).map_err(io::Error::other)?;
        executable::again()?;
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
                said: BTreeSet::new(),
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
        match agent.processes {
            1 => say(format_args!("1 worker process for {}", agent.url)),
            more => say(format_args!("{more} worker processes for {}", agent.url)),
        }
        // A process ends with the thread that started it, so these threads last as long as this
        // process.
        let keep = |place: usize| {
            let agent = agent.clone();
            std::thread::Builder::new()
                .name(format!("datapipes-worker-{place}"))
                .spawn(move || agent.keep_running(place))
        };
        let threads: Vec<_> = (0..agent.processes).map(keep).collect::<io::Result<_>>()?;
        for thread in threads {
            thread
                .join()
                .map_err(|_| io::Error::other("a thread of the agent ended"))?;
        }
        Ok(())
    }

    /// Keeps one process running.
    fn keep_running(&self, place: usize) {
        let mut pause = AGAIN;
        let mut before = None;
        loop {
            let begun = Instant::now();
            let started = {
                // Locked, so that a signal finds the process.
                let mut state = self.lock();
                if state.ends {
                    return;
                }
                let started = self.start(place, before.clone());
                if let Ok(started) = &started {
                    state.running.push(pid_of(&started.process));
                }
                started
            };
            let outcome = started.and_then(|started| started.end(self));
            let mut state = self.lock();
            match outcome {
                // The system may have none now, and some later.
                Err(error) => {
                    pause = LONGEST;
                    state.say(format!("cannot start a worker process: {error}"));
                }
                Ok(Err(crash)) => {
                    if !state.ends {
                        let how = &crash.how;
                        say(format_args!(
                            "a worker process ended, and is replaced: {how}"
                        ));
                    }
                    state.worked = Instant::now();
                    pause = match begun.elapsed() < LONGEST {
                        true => (pause * 2).clamp(AGAIN, LONGEST_CRASHED),
                        false => AGAIN,
                    };
                    before = Some(crash);
                }
                Ok(Ok((Ended::Alone, why))) => {
                    pause = (pause * 2).clamp(AGAIN, LONGEST);
                    state.say(format!("{why}; it tries again"));
                }
                Ok(Ok((Ended::Refused, why))) => {
                    pause = REFUSED_PAUSE;
                    state.say(why);
                }
                Ok(Ok(_)) => {
                    // Another part may wait for it.
                    pause = AGAIN.saturating_sub(begun.elapsed());
                    before = None;
                    state.worked = Instant::now();
                    state.said.clear();
                }
            }
            let is_idle = |idle: Duration| state.worked.elapsed() >= idle;
            state.ends |= state.running.is_empty() && self.idle.is_some_and(is_idle);
            let _ = self
                .ended
                .wait_timeout_while(state, pause, |state| !state.ends);
        }
    }

    /// Starts a process.
    fn start(&self, place: usize, before: Option<Crash>) -> io::Result<Started> {
        let id = nonce().map_err(io::Error::other)?;
        let (id, _) = id.split_first_chunk().expect("there are more bytes");
        let role = Role {
            agent: rustix::process::getpid(),
            place,
            id: u64::from_le_bytes(*id),
            executable: executable_hash().map_err(io::Error::other)?,
            before,
        };
        let (told, tells) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&told, true)?;
        let mut command: Command = executable::again()?;
        let process = command
            .env(executable::VARIABLE, &self.url)
            .env(AGENT, role.to_string())
            .stdin(Stdio::from(tells))
            .spawn()?;
        Ok(Started {
            process,
            id: role.id,
            told,
        })
    }
}

/// A process that was started.
struct Started {
    process: std::process::Child,
    id: u64,
    /// The pipe by which it tells why it ends.
    told: OwnedFd,
}

impl Started {
    /// Waits for its end, and returns why it ended, or its crash.
    fn end(mut self, agent: &Agent) -> io::Result<Result<(Ended, String), Crash>> {
        let status = wait(&mut self.process, agent)?;
        let mut told = vec![0; 5 * REASON];
        let len = rustix::io::read(&self.told, &mut told[..]).unwrap_or(0);
        let told = String::from_utf8_lossy(&told[..len]);
        let how = match Ended::read(&told) {
            Some((Ended::Failed, why)) => format!("could not go on: {why}"),
            Some((ended, why)) => return Ok(Ok((ended, why.to_owned()))),
            None => words(status, false),
        };
        Ok(Err(Crash {
            id: self.id,
            process: self.process.id(),
            how,
        }))
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

/// Works for a trainer until it has no more work.
fn work(urls: &str, role: &str) -> i32 {
    let token = std::env::var(TOKEN).unwrap_or_default();
    for variable in [executable::VARIABLE, AGENT, TOKEN] {
        // SAFETY: this is the first line of `main`, and nothing has started a thread. The part's
        // code is to see the environment of the program, without the secret.
        unsafe { std::env::remove_var(variable) };
    }
    let begin = || -> io::Result<(Role, Listener, Arc<Leave>)> {
        let wrong = || io::Error::other(format!("{AGENT} is `{role}`, but no agent started it"));
        let role = Role::read(role).ok_or_else(wrong)?;
        isolate::die_with(role.agent)?;
        know_executable(role.executable);
        executable::become_child();
        let agent = Listener::take()?;
        let end = block_end_signals()?;
        let leave = Arc::new(Leave::default());
        let (wished, told) = (leave.clone(), agent.clone());
        crate::run::spawn_thread("datapipes-signals".into(), move || {
            wait_for(&end);
            wished.wished.store(true, Ordering::Relaxed);
            if !wished.at_work.load(Ordering::Relaxed) {
                told.tell(Ended::Worked, "");
                std::process::exit(0);
            }
            wished.waker.wake();
        })?;
        Ok((role, agent, leave))
    };
    let (role, agent, leave) = match begin() {
        Ok(begun) => begun,
        Err(error) => {
            say(format_args!("a worker process cannot start: {error}"));
            return 1;
        }
    };
    let outcome = child_main::serve(async || {
        let trainers = Trainer::all(urls)?;
        // Those of a machine go to different trainers, as far as there are some.
        let (before, first) = trainers.split_at(role.place % trainers.len());
        let mut left = first.iter().chain(before);
        let mut refused = None;
        let (ends, lifeline) = loop {
            let connected = Trainer::connect_to_one(&mut left, &token).await;
            let (trainer, stream) = connected.map_err(|error| refused.take().unwrap_or(error))?;
            let entered = trainer.enter(stream, &token, role.id, role.before.as_ref());
            match entered.await {
                // The trainer of another program, for instance: the next one may take it.
                Err(error) if error.kind() == ErrorKind::Denied => _ = refused.get_or_insert(error),
                entered => break entered?,
            }
        };
        leave.at_work.store(true, Ordering::Relaxed);
        watch(lifeline.map_err(Error::io)?, agent.clone(), leave.clone()).map_err(Error::io)?;
        Ok(ChildEnds {
            orders: TakeEnd::Remote(Box::new(ends.take)),
            reports: PutEnd::Remote(ends.put),
            lifeline: None,
            leave: Some(leave.clone()),
        })
    });
    let entered = leave.at_work.load(Ordering::Relaxed);
    let (ended, why) = match outcome {
        Ok(()) => ended(&leave),
        // The connection was lost: the trainer has ended, or gave the work to another worker.
        Err(error) if entered && error.kind() == ErrorKind::Io => ended(&leave),
        Err(error) if entered => (Ended::Failed, error.to_string()),
        Err(error) if error.kind() == ErrorKind::Denied => {
            (Ended::Refused, error.message().to_owned())
        }
        Err(error) => (Ended::Alone, error.to_string()),
    };
    agent.tell(ended, &why);
    0
}

/// Ends this process some time after the trainer has ended the connection, whatever it is doing: a
/// step that hangs, or work that was given to another worker.
fn watch(lifeline: OwnedFd, agent: Listener, leave: Arc<Leave>) -> io::Result<()> {
    crate::run::spawn_thread("datapipes-lifeline".into(), move || {
        let mut fds = [PollFd::new(&lifeline, PollFlags::RDHUP)];
        while let Err(rustix::io::Errno::INTR) | Ok(0) = poll(&mut fds, None) {}
        std::thread::sleep(ENDING);
        let (ended, why) = ended(&leave);
        agent.tell(ended, &why);
        // SAFETY: it ends the process, at once, and returns to nobody.
        unsafe { libc::_exit(0) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_role_of_a_process_travels() {
        let crash = Crash {
            id: u64::MAX,
            process: 17,
            how: "ended by SIGABRT (signal 6)".to_owned(),
        };
        for before in [None, Some(crash)] {
            let role = Role {
                agent: rustix::process::getpid(),
                place: 3,
                id: 1 << 63,
                executable: blake3::hash(b"any"),
                before,
            };
            assert_eq!(Role::read(&role.to_string()), Some(role));
        }
        for wrong in ["", "0 1 2", "1 2", "x 1 2", "1 1 2", "1 1 2 33"] {
            assert_eq!(Role::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn why_a_process_ended_is_read_from_one_line() {
        let (told, tells) = rustix::pipe::pipe().unwrap();
        let agent = Listener(Arc::new(tells));
        agent.tell(Ended::Refused, &format!("no\nmodel {}", "ü".repeat(REASON)));
        agent.tell(Ended::Worked, "");
        let mut bytes = [0; 4 * REASON];
        let len = rustix::io::read(&told, &mut bytes).unwrap();
        let told = std::str::from_utf8(&bytes[..len]).unwrap();
        let (ended, why) = Ended::read(told).unwrap();
        assert_eq!(ended, Ended::Refused);
        assert!(why.starts_with("no model ü") && why.chars().count() == REASON);
        for nothing in ["", "\n", "9", "x"] {
            assert_eq!(Ended::read(nothing), None);
        }
    }
}
