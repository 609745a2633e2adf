//! Reads the figures of monitored loaders.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use super::figures::Figures;
use super::folder;
use crate::{Error, ErrorKind, Result};

/// Longest time that a loader has for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of bytes of an answer.
const LONGEST: usize = 64 << 20;

/// Returns the sockets of this user's monitored loaders, in the order of their names: of the process,
/// then the loader in it. Sockets that killed processes have left are removed.
///
/// # Errors
/// `Config` if a folder of sockets can be used by others.
pub fn sockets() -> Result<Vec<PathBuf>> {
    let mut sockets = Vec::new();
    for folder in folder::all() {
        sockets.extend(sockets_in(&folder)?);
    }
    sockets.sort_by_key(|path| numbers(path));
    Ok(sockets)
}

/// Returns the sockets in a folder.
pub(super) fn sockets_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Ok(Vec::new());
    };
    folder::verify(folder)?;
    let paths = entries.flatten().map(|entry| entry.path());
    Ok(paths
        .filter(|path| numbers(path).is_some() && !is_stale(path))
        .collect())
}

/// Returns the numbers of the process and of its loader that a socket is named after.
fn numbers(path: &Path) -> Option<(u32, u64)> {
    let name = path.file_name()?.to_str()?.strip_suffix(".sock")?;
    let (process, loader) = name.split_once('-')?;
    Some((process.parse().ok()?, loader.parse().ok()?))
}

/// Removes a socket that nobody listens on; returns true if it did.
///
/// A socket gets its name only after its process listens on it, so a refused connection proves that
/// the process has ended. The process number proves nothing: it may have been reused, or belong to
/// another container.
pub(super) fn is_stale(path: &Path) -> bool {
    let refused =
        connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    refused && std::fs::remove_file(path).is_ok()
}

/// Connects without waiting: a process that was stopped takes no connections from its queue.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::from(rustix::net::socket(
        AddressFamily::UNIX,
        SocketType::STREAM,
        None,
    )?);
    rustix::io::fcntl_setfd(&stream, rustix::io::FdFlags::CLOEXEC)?;
    stream.set_nonblocking(true)?;
    rustix::net::connect(&stream, &SocketAddrUnix::new(path)?)?;
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    Ok(stream)
}

/// A connection to a monitored loader.
pub struct Client {
    path: PathBuf,
    stream: UnixStream,
    /// Bytes of answers that are not complete, and how many of them have no end of a line.
    read: Vec<u8>,
    seen: usize,
}

impl Client {
    /// Connects to the loader of a [socket](sockets).
    ///
    /// # Errors
    /// `NotFound` if no loader listens there, `Unavailable` if it has too many clients waiting,
    /// `Denied` if it is another user's.
    pub fn connect(path: impl AsRef<Path>) -> Result<Client> {
        let path = path.as_ref().to_owned();
        match connect(&path) {
            Ok(stream) => Ok(Client {
                path,
                stream,
                read: Vec::new(),
                seen: 0,
            }),
            Err(error) => {
                let (kind, what) = match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                        (ErrorKind::NotFound, "no monitored loader is there")
                    }
                    io::ErrorKind::PermissionDenied => {
                        (ErrorKind::Denied, "the loader of another user")
                    }
                    io::ErrorKind::WouldBlock => (ErrorKind::Unavailable, "does not answer"),
                    _ => (ErrorKind::Io, "cannot connect to a monitored loader"),
                };
                let message = format!("{}: {what}", path.display());
                Err(Error::new(kind, message).with_source(error))
            }
        }
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks for the figures, and waits for them, for two seconds at most. They are at most 50 ms old.
    /// The first answer of a connection has the [description](Figures::description).
    ///
    /// # Errors
    /// `NotFound` if the loader has ended, `Unavailable` if it does not answer in time or has too many
    /// clients, `Protocol` if the answer is that of another version or of something else. After an
    /// error a client is of no more use.
    pub fn figures(&mut self) -> Result<Figures> {
        Figures::parse(&self.line()?).map_err(|error| self.about(error))
    }

    /// Asks for the figures; returns the line of JSON as it came.
    ///
    /// # Errors
    /// Fails as [`figures`](Self::figures) does, except for the content of the line.
    pub fn line(&mut self) -> Result<String> {
        self.ask()?;
        let answer = self.answer(ANSWER_TIMEOUT)?;
        answer.ok_or_else(|| self.error(ErrorKind::Unavailable, "does not answer"))
    }

    /// Asks for the figures, without waiting for the [answer](Self::answer).
    ///
    /// # Errors
    /// `NotFound` if the loader has ended.
    pub fn ask(&mut self) -> Result<()> {
        match (&self.stream).write_all(b"stats\n") {
            // Whoever has too many clients says so, and hangs up.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(self.broken(error)),
            _ => Ok(()),
        }
    }

    /// Waits for a line with the answer to what was [asked](Self::ask), to be [parsed](Figures::parse).
    /// Returns `None` if it is not there in time; the next call goes on waiting for it.
    ///
    /// # Errors
    /// `NotFound` if the loader has ended, `Protocol` if something else answers.
    pub fn answer(&mut self, timeout: Duration) -> Result<Option<String>> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(end) = self.read[self.seen..]
                .iter()
                .position(|&byte| byte == b'\n')
            {
                let rest = self.read.split_off(self.seen + end + 1);
                let mut line = std::mem::replace(&mut self.read, rest);
                (self.seen, _) = (0, line.pop());
                let wrong = |_| self.error(ErrorKind::Protocol, "the answer is no text");
                return String::from_utf8(line).map_err(wrong).map(Some);
            }
            self.seen = self.read.len();
            if self.seen > LONGEST {
                return Err(self.error(ErrorKind::Protocol, "the answer has no end"));
            }
            // Zero would mean without end.
            let left = until.saturating_duration_since(Instant::now());
            let left = left.max(Duration::from_millis(1));
            let mut more = [0; 64 << 10];
            let read = self
                .stream
                .set_read_timeout(Some(left))
                .and_then(|()| self.stream.read(&mut more));
            match read {
                Ok(0) => return Err(self.broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.read.extend_from_slice(&more[..count]),
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted if Instant::now() < until => {}
                    io::ErrorKind::WouldBlock
                    | io::ErrorKind::TimedOut
                    | io::ErrorKind::Interrupted => return Ok(None),
                    _ => return Err(self.broken(error)),
                },
            }
        }
    }

    fn about(&self, error: Error) -> Error {
        self.error(error.kind(), &error.to_string())
    }

    fn error(&self, kind: ErrorKind, what: &str) -> Error {
        Error::new(kind, format!("{}: {what}", self.path.display()))
    }

    fn broken(&self, error: io::Error) -> Error {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        match error.kind() {
            BrokenPipe | ConnectionReset | UnexpectedEof => {
                self.error(ErrorKind::NotFound, "the loader has ended")
            }
            _ => self
                .error(ErrorKind::Io, "the connection is broken")
                .with_source(error),
        }
    }
}

opaque_debug!(Client { path });
