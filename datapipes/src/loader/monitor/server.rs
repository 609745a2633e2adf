//! The socket of a monitored loader, and the thread that answers on it.
//!
//! Nothing that a client does reaches the loader: the thread reads counters, all its sockets are
//! non-blocking, an answer is made at most every [`PACE`], and each buffer and number has a bound.

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::client::is_stale;
use super::figures::{Description, Figures, PROTOCOL};
use crate::loader::latest::Latest;
use crate::loader::{Stats, explain, left};
use crate::run::{Engine, ObserverThread};
use crate::sync::lock;
use crate::{Error, Result};

/// Shortest time between two answers that are made, or two answers to one client.
const PACE: Duration = Duration::from_millis(50);
/// Time that a client has to take an answer.
const WRITING: Duration = Duration::from_secs(5);
/// Time after which a client that asks for nothing is dropped.
const IDLE: Duration = Duration::from_secs(60);
/// Pause after a connection that could not be taken, for lack of descriptors.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of clients.
pub(super) const CLIENTS: usize = 8;
/// Maximum number of bytes in a request.
const REQUEST: usize = 256;

/// Shows a loader to other processes, until it is dropped.
#[derive(Debug)]
pub(super) struct Monitor {
    pub path: PathBuf,
    /// Process that opened the socket: a fork of it has no say about it.
    process: u32,
    stop: UnixStream,
    _thread: ObserverThread,
}

impl Monitor {
    pub fn open(folder: &Path, engine: &Arc<Engine>, latest: &Arc<Latest>) -> Result<Monitor> {
        let (path, listener) = listen(folder, engine.id).map_err(|error| {
            let message = format!(
                "{}: cannot open the socket of a monitored loader; its path has to be shorter than 104 bytes, \
                 XDG_RUNTIME_DIR sets another folder",
                folder.display()
            );
            Error::config(message).with_source(error)
        })?;
        let source = Source {
            engine: Arc::downgrade(engine),
            latest: Arc::downgrade(latest),
            program: program(),
            made: [None, None],
        };
        let started = UnixStream::pair().and_then(|(stop, stopped)| {
            let serve = move || serve(&listener, &stopped, source);
            Ok((stop, ObserverThread::start("monitor", serve)?))
        });
        match started {
            Ok((stop, thread)) => Ok(Monitor {
                path,
                process: std::process::id(),
                stop,
                _thread: thread,
            }),
            Err(error) => {
                let _ = std::fs::remove_file(path);
                let message = "cannot start the thread of a monitored loader";
                Err(Error::config(message).with_source(error))
            }
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        if std::process::id() == self.process {
            let _ = self.stop.write_all(&[0]);
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Opens the socket of a loader. It gets its name when it is ready, so that a name without a listener
/// is that of a process which has died.
fn listen(folder: &Path, loader: u64) -> io::Result<(PathBuf, UnixListener)> {
    let process = std::process::id();
    let unnamed = folder.join(format!("{process}-{loader}.new"));
    match std::fs::remove_file(&unnamed) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&unnamed)?;
    let named: io::Result<PathBuf> = (|| {
        std::fs::set_permissions(&unnamed, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        // Containers that share the folder may have processes of the same number.
        let names = (0..).map(|again: u64| loader + again * 1_000_000);
        let mut paths = names.map(|loader| folder.join(format!("{process}-{loader}.sock")));
        let is_free = |path: &PathBuf| is_stale(path) || std::fs::symlink_metadata(path).is_err();
        let path = paths.find(is_free).expect("there is no end of names");
        std::fs::rename(&unnamed, &path)?;
        Ok(path)
    })();
    if named.is_err() {
        let _ = std::fs::remove_file(&unnamed);
    }
    Ok((named?, listener))
}

/// Returns the file name of this program.
fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Makes answers.
struct Source {
    engine: Weak<Engine>,
    latest: Weak<Latest>,
    program: String,
    /// The last answer without and with a description, and when it was made.
    made: [Option<(Instant, Arc<[u8]>)>; 2],
}

impl Source {
    /// Returns an answer that is not older than [`PACE`]; `None` if the loader has ended.
    fn answer(&mut self, described: bool, now: Instant) -> Option<Arc<[u8]>> {
        let made = &mut self.made[usize::from(described)];
        if let Some((at, line)) = made
            && now.saturating_duration_since(*at) < PACE
        {
            return Some(line.clone());
        }
        let (engine, latest) = (self.engine.upgrade()?, self.latest.upgrade()?);
        let shown = figures(&engine, &latest, &self.program, described);
        let line = match serde_json::to_vec(&shown) {
            Ok(mut line) => {
                line.push(b'\n');
                line.into()
            }
            Err(error) => refusal(&error.to_string()),
        };
        *made = Some((now, Arc::clone(&line)));
        Some(line)
    }
}

fn figures(engine: &Engine, latest: &Latest, program: &str, described: bool) -> Figures {
    let runs = latest.runs();
    let mut stats = runs.as_ref().and_then(Stats::of_all);
    let (mut epoch, mut running) = (None, false);
    for run in runs.iter().flat_map(|runs| lock(runs).clone()) {
        epoch = Some(run.log.epoch());
        running |= !run.has_ended();
    }
    if let Some(stats) = &mut stats {
        stats.skipped_items.clear();
    }
    let description = described.then(|| Description {
        explain: explain(engine, stats.as_ref()),
        length: left::len_hint(&engine.flow, &engine.settings),
        inputs: (engine.flow.nodes.iter())
            .map(|node| node.inputs.iter().map(|&(input, _)| input).collect())
            .collect(),
    });
    Figures {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        process: std::process::id(),
        program: program.to_owned(),
        loader: engine.id,
        epoch,
        running,
        stats,
        description,
    }
}

/// Returns the answer to a client that is refused.
fn refusal(problem: &str) -> Arc<[u8]> {
    let mut line = serde_json::json!({ "protocol": PROTOCOL, "error": problem }).to_string();
    line.push('\n');
    line.into_bytes().into()
}

/// Answers clients until a byte arrives on `stopped`, or the loader has ended.
fn serve(listener: &UnixListener, stopped: &UnixStream, mut source: Source) {
    let mut clients: Vec<Connection> = Vec::new();
    let mut next_client = Instant::now();
    loop {
        let now = Instant::now();
        let mut waits = vec![PollFd::new(stopped, PollFlags::IN)];
        let mut wake = None;
        let mut wake_at = |at: Instant| wake = Some(wake.map_or(at, |wake: Instant| wake.min(at)));
        if now >= next_client {
            waits.push(PollFd::new(listener, PollFlags::IN));
        } else {
            wake_at(next_client);
        }
        for client in &clients {
            match client.interest(now) {
                // A client without interest would end each poll at once, if it has hung up.
                None => wake_at(client.rests_until),
                // The socket does not report a request that has been read already.
                Some(_) if client.has_request() => wake_at(now),
                Some(flags) => {
                    waits.push(PollFd::new(&client.stream, flags));
                    wake_at(client.deadline);
                }
            }
        }
        let timeout = wake.map(|at| at.saturating_duration_since(now));
        let timeout = timeout.map(|time| Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        match poll(&mut waits, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => {
                tracing::warn!(%error, "the loader is no longer monitored");
                return;
            }
            Ok(_) if !waits[0].revents().is_empty() => return,
            Ok(_) => {}
        }
        drop(waits);
        let now = Instant::now();
        if now >= next_client {
            match listener.accept() {
                Ok((stream, _)) => {
                    next_client = now + PACE / 10;
                    clients.extend(Connection::new(stream, clients.len(), now));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => next_client = now + PAUSE,
            }
        }
        let mut has_ended = false;
        clients.retain_mut(|client| match client.step(&mut source, now) {
            Ok(goes_on) => goes_on,
            Err(Ended) => {
                has_ended = true;
                false
            }
        });
        if has_ended {
            return;
        }
    }
}

/// The loader has ended.
struct Ended;

/// A client that is connected.
struct Connection {
    stream: UnixStream,
    /// Bytes that were read and not used.
    request: Vec<u8>,
    /// An answer, and the number of its bytes that were written.
    answer: Option<(Arc<[u8]>, usize)>,
    has_description: bool,
    /// True if the connection ends after the answer.
    is_last: bool,
    rests_until: Instant,
    deadline: Instant,
}

impl Connection {
    /// Takes a client, or refuses it if there are too many `others`.
    fn new(stream: UnixStream, others: usize, now: Instant) -> Option<Connection> {
        stream.set_nonblocking(true).ok()?;
        if others >= CLIENTS {
            // It fits into an empty socket.
            let refused = refusal(&format!("the loader has {CLIENTS} clients already"));
            let _ = (&stream).write(&refused);
            return None;
        }
        Some(Connection {
            stream,
            request: Vec::new(),
            answer: None,
            has_description: false,
            is_last: false,
            rests_until: now,
            deadline: now + IDLE,
        })
    }

    /// Returns the events that the client waits for; none while it rests.
    fn interest(&self, now: Instant) -> Option<PollFlags> {
        match self.answer {
            Some(_) => Some(PollFlags::OUT),
            None => (now >= self.rests_until).then_some(PollFlags::IN),
        }
    }

    /// Returns true if a whole request has been read, and the answer to the last is written.
    fn has_request(&self) -> bool {
        self.answer.is_none() && self.request.contains(&b'\n')
    }

    /// Does what is possible without waiting. Returns false if the client is to be dropped.
    fn step(&mut self, source: &mut Source, now: Instant) -> Result<bool, Ended> {
        if now >= self.deadline {
            return Ok(false);
        }
        if self.answer.is_none() {
            if now < self.rests_until {
                return Ok(true);
            }
            let Some(asked) = self.read() else {
                return Ok(false);
            };
            let Some(asked) = asked else {
                return Ok(true);
            };
            let answer = match &*asked {
                b"stats" => {
                    let answer = source.answer(!self.has_description, now).ok_or(Ended)?;
                    self.has_description = true;
                    answer
                }
                _ => {
                    self.is_last = true;
                    refusal("there is no such request; there is `stats`, a line each")
                }
            };
            (self.answer, self.deadline) = (Some((answer, 0)), now + WRITING);
        }
        Ok(self.write(now))
    }

    /// Returns the next request, if there is a whole one; `None` if the client has hung up.
    fn read(&mut self) -> Option<Option<Vec<u8>>> {
        let mut more = [0; REQUEST];
        loop {
            if let Some(end) = self.request.iter().position(|&byte| byte == b'\n') {
                let rest = self.request.split_off(end + 1);
                let mut asked = std::mem::replace(&mut self.request, rest);
                asked.truncate(asked.trim_ascii_end().len());
                return Some(Some(asked));
            }
            let room = REQUEST - self.request.len();
            if room == 0 {
                return Some(Some(std::mem::take(&mut self.request)));
            }
            match self.stream.read(&mut more[..room]) {
                Ok(0) => return None,
                Ok(count) => self.request.extend_from_slice(&more[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(None),
                Err(_) => return None,
            }
        }
    }

    /// Writes what the client takes of the answer; returns false if it is to be dropped.
    fn write(&mut self, now: Instant) -> bool {
        while let Some((answer, written)) = &mut self.answer {
            match self.stream.write(&answer[*written..]) {
                Ok(0) => return false,
                Ok(count) => *written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
            if *written == answer.len() {
                self.answer = None;
                (self.rests_until, self.deadline) = (now + PACE, now + IDLE);
                return !self.is_last;
            }
        }
        true
    }
}
