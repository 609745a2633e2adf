//! Settings of the workers of a part of a graph on other machines.

mod sharing;
#[cfg(feature = "remote-tls")]
pub(super) mod tls;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use sharing::Sharing;
pub(crate) use sharing::{Need, Standing};
use tokio::time::Instant;

use super::Processes;
use crate::sync::lock;
use crate::{Error, Result};

/// Variable that both sides take the token from.
pub(crate) const TOKEN: &str = "DATAPIPES_TOKEN";
/// URL scheme of the address of a trainer, in the variable `DATAPIPES_WORKER`.
pub(crate) const TCP: &str = "tcp://";
pub(crate) const TLS: &str = "tls://";
/// Default of [`Remote::at_most`].
const AT_MOST: usize = 64;
/// Default of [`Remote::wait`].
const WAIT: Duration = Duration::from_secs(60);
/// Least silence after which the work of a worker goes to another one.
const SILENCE: Duration = Duration::from_secs(2);

/// Address at which a part of a graph gets workers from other machines, and rules for them; see
/// [`Graph::on_workers`](crate::Graph::on_workers).
///
/// A clone has the same workers: several parts, loaders and running epochs of a program share them.
/// Each has its own exact sequence, whoever works for it. A worker works for one of them at a time;
/// it is handed over after its pieces of work, by starting its process again. Epochs that
/// have work get equal numbers of workers; if there are fewer workers than epochs, they take turns of
/// 0.25 to 3 s: five times as long as it takes to hand a worker over and to make the part, and less if
/// somebody would wait too long. A loader between two epochs hands over all its workers. An epoch that
/// has had no work for 2 s, since its consumer takes nothing, hands over all but one. So where there
/// are enough workers, a new epoch has one a second or two after the others have finished their pieces
/// of work; otherwise it waits for the turns before it.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
/// use datapipes::Remote;
///
/// // Both sides have the same secret in the variable DATAPIPES_TOKEN.
/// let workers = Remote::listen("0.0.0.0:7070")?
///     .or_here(2)                         // two processes of this machine, while no worker is there
///     .wait(Duration::from_secs(300));
/// # Ok::<(), datapipes::BoxError>(())
/// ```
#[derive(Clone)]
#[must_use = "give it to `on_workers`"]
pub struct Remote {
    endpoint: Arc<Endpoint>,
    pub(crate) rules: Rules,
    pub(crate) wait: Duration,
    pub(crate) at_most: usize,
    pub(crate) here: usize,
    pub(crate) time_limit: Option<Duration>,
    pub(crate) silence: Duration,
}

/// Rules by which a worker is let in.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Rules {
    pub token: Option<Arc<str>>,
    #[cfg(feature = "remote-tls")]
    pub identity: Option<tls::Identity>,
}

struct Endpoint {
    listener: TcpListener,
    address: SocketAddr,
    sharing: Mutex<Sharing>,
}

impl Endpoint {
    fn sharing(&self) -> MutexGuard<'_, Sharing> {
        lock(&self.sharing)
    }
}

/// Shows everything but the token and the key.
impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("address", &self.url())
            .field("token", &self.rules.token.as_ref().map(|_| "…"))
            .field("wait", &self.wait)
            .field("at_most", &self.at_most)
            .field("here", &self.here)
            .field("time_limit", &self.time_limit)
            .finish()
    }
}

impl PartialEq for Remote {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.endpoint, &other.endpoint)
            && (self.wait, self.at_most, self.here) == (other.wait, other.at_most, other.here)
            && (self.time_limit, self.silence) == (other.time_limit, other.silence)
            && self.rules == other.rules
    }
}

impl Remote {
    /// Listens for workers at an address. With port 0 the system chooses one, see
    /// [`address`](Remote::address).
    ///
    /// The [token](Remote::token) defaults to the variable `DATAPIPES_TOKEN`.
    ///
    /// # Errors
    /// The error of the system if the address is not one of this machine, or is in use.
    pub fn listen(address: impl ToSocketAddrs + fmt::Display) -> Result<Remote> {
        let listen = || -> io::Result<_> {
            let listener = TcpListener::bind(&address)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(Endpoint {
                listener,
                address,
                sharing: Mutex::default(),
            })
        };
        let endpoint = listen()
            .map_err(|error| Error::io(error).within(format!("cannot listen at {address}")))?;
        Ok(Remote {
            endpoint: Arc::new(endpoint),
            rules: Rules {
                token: std::env::var(TOKEN).ok().map(Into::into),
                ..Rules::default()
            },
            wait: WAIT,
            at_most: AT_MOST,
            here: 0,
            time_limit: None,
            silence: SILENCE,
        })
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.endpoint.address
    }

    /// Sets the secret that both sides have to know; a worker has it in the variable
    /// `DATAPIPES_TOKEN`.
    ///
    /// It is never sent: each side proves with a keyed hash (BLAKE3) of fresh random numbers that it
    /// knows the secret. What is sent after that is neither encrypted nor protected against changes
    /// on its way without `Remote::tls` (feature `remote-tls`): use that, or a network that you
    /// trust, or a tunnel. An address that other machines can reach needs a token, since a worker
    /// runs functions of this program as the other side tells it to.
    pub fn token(mut self, secret: impl Into<String>) -> Self {
        self.rules.token = Some(secret.into().into());
        self
    }

    /// Encrypts connections by TLS 1.3, and shows workers the first certificate of a PEM file, whose
    /// key is in the other one. Certificates of its issuers may follow in the first file, as a
    /// worker may know only the last of them.
    ///
    /// A worker then has `tls://HOST:PORT` in `DATAPIPES_WORKER`, with a host that the certificate
    /// names, and the path of a PEM file in `DATAPIPES_WORKER_CA`: certificates that it trusts, of
    /// issuers or of the trainer itself. Workers need no certificates, since the
    /// [token](Remote::token) shows who they are; the proof holds for this one connection, so
    /// nobody between the two can pass it on. The files are read once, here.
    ///
    /// # Errors
    /// A file cannot be read or is not in the PEM format, or the key does not belong to the
    /// certificate.
    ///
    /// # Examples
    /// ```no_run
    /// use datapipes::Remote;
    ///
    /// let workers = Remote::listen("0.0.0.0:7070")?.tls("trainer.pem", "trainer-key.pem")?;
    /// # Ok::<(), datapipes::BoxError>(())
    /// ```
    #[cfg(feature = "remote-tls")]
    pub fn tls(
        mut self,
        certificates: impl AsRef<std::path::Path>,
        key: impl AsRef<std::path::Path>,
    ) -> Result<Self> {
        let identity = tls::Identity::load(certificates.as_ref(), key.as_ref())?;
        self.rules.identity = Some(identity);
        Ok(self)
    }

    setters! {
        /// Sets how long work of a part may wait without any worker for it, before the epoch ends with an error of kind
        /// [`Worker`](crate::ErrorKind::Worker). Defaults to 60 s.
        wait(wait: Duration) => wait = wait;

        /// Sets the greatest number of worker processes that work for a part at once, over all machines;
        /// more have to wait until one leaves, or work for others that share them. Defaults to 64. As much of the input as keeps that many
        /// busy is read ahead, in the limits of [`memory`](crate::loader::Builder::memory).
        at_most(workers: usize) => at_most = workers;

        /// Does the work in this many processes of this machine while no worker is connected, and items
        /// that crashed workers, which are an error only if they end a process here, too. Defaults to 0,
        /// which is none.
        or_here(processes: usize) => here = processes;

        /// Limits how long a worker may give no answer while it has work, as
        /// [`Processes::time_limit`] does.
        ///
        /// Without this limit, a worker that is silent for much longer than others were (8 times the
        /// longest recent silence, and at least 2 s) loses its work to another worker, and the time
        /// doubles for that piece of work each time. The only worker has at least the time of
        /// [`wait`](Remote::wait), in which another one may come; after that the work waits for one.
        time_limit(limit: Duration) => time_limit = Some(limit);

        /// Sets the least silence after which the work of a worker goes to another one: for tests.
        #[doc(hidden)]
        silence(silence: Duration) => silence = silence;
    }

    /// Returns the start of the address that a worker gets.
    pub(crate) fn scheme(&self) -> &'static str {
        #[cfg(feature = "remote-tls")]
        if self.rules.identity.is_some() {
            return TLS;
        }
        TCP
    }

    fn url(&self) -> String {
        format!("{}{}", self.scheme(), self.endpoint.address)
    }

    /// Returns the settings of processes that stand for the workers.
    pub(crate) fn processes(self) -> Processes {
        Processes {
            time_limit: self.time_limit,
            remote: Some(self.clone()),
            ..Processes::new(self.at_most.saturating_add(self.here))
        }
    }

    /// Returns what is wrong with the settings; one line each.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.at_most == 0 {
            problems.push("at most 0 workers do no work".to_owned());
        }
        if self
            .rules
            .token
            .as_ref()
            .is_none_or(|token| token.is_empty())
            && !self.endpoint.address.ip().is_loopback()
        {
            problems.push(format!(
                "other machines can reach {}, so it needs a token: set the variable {TOKEN} on both sides, or call \
                 `Remote::token`",
                self.endpoint.address
            ));
        }
        problems
    }

    /// Sets that a worker cannot do the work, and why, if that is known now.
    pub(crate) fn set_unable(&self, worker: u64, how: &str, is_known: bool) {
        self.endpoint.sharing().set_unable(worker, how, is_known);
    }

    /// Sets how a worker crashed, as its machine reports.
    pub(crate) fn set_crashed(&self, worker: u64, how: String) {
        self.endpoint.sharing().set_crashed(worker, how);
    }

    /// Returns how a worker crashed, if its machine has reported that.
    pub(crate) fn crash_of(&self, worker: u64) -> Option<String> {
        self.endpoint.sharing().crash_of(worker)
    }

    /// Begins to share the workers with others, until the value is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if others let workers in by other rules; that of the system.
    pub(crate) fn join(&self) -> Result<(Share, TcpListener)> {
        let listener = self.endpoint.listener.try_clone().map_err(Error::io)?;
        let mut sharing = self.endpoint.sharing();
        if sharing.has_other_rules(&self.rules) {
            return Err(Error::config(format!(
                "another part or loader shares the workers at {}, with another token or certificate: set both before \
                 `Remote` is cloned",
                self.endpoint.address
            )));
        }
        Ok((
            Share {
                endpoint: self.endpoint.clone(),
                id: sharing.join(
                    self.rules.clone(),
                    (self.at_most, self.wait),
                    Instant::now(),
                ),
            },
            listener,
        ))
    }
}

/// The place of a part of an epoch among those that share workers.
pub(crate) struct Share {
    endpoint: Arc<Endpoint>,
    id: u64,
}

impl Share {
    /// Sets what the part has and needs. The waker is woken when that of another part changes.
    /// Returns true if there are others.
    pub(crate) fn set(&self, standing: Standing, waker: &Waker) -> bool {
        self.endpoint
            .sharing()
            .set(self.id, standing, waker, Instant::now())
    }

    /// Returns true if the part is to let in the next worker that connects.
    pub(crate) fn is_first(&self) -> bool {
        self.endpoint.sharing().is_first(self.id)
    }

    /// Returns true if the part is to hand over a worker.
    pub(crate) fn take_surplus(&self) -> bool {
        self.endpoint
            .sharing()
            .take_surplus(self.id, Instant::now())
    }

    /// Returns the number of workers of other parts.
    pub(crate) fn elsewhere(&self) -> usize {
        self.endpoint.sharing().elsewhere(self.id)
    }

    /// Sets that a connection was not let in, and why.
    pub(crate) fn set_refused(&self, why: &str) {
        self.endpoint.sharing().refused = Some((0, format!("was not let in, {why}")));
    }

    /// Returns what happened to the last worker that could not work for any part.
    pub(crate) fn refused(&self) -> Option<String> {
        let sharing = self.endpoint.sharing();
        sharing.refused.as_ref().map(|(_, how)| how.clone())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.endpoint.sharing().leave(self.id);
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "up to {} workers at {}", self.at_most, self.url())?;
        match self.here {
            0 => Ok(()),
            1 => write!(f, ", or 1 process here"),
            here => write!(f, ", or {here} processes here"),
        }
    }
}
