//! Settings of the workers of a part of a graph on other machines.

#[cfg(feature = "remote-tls")]
pub(super) mod tls;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Processes;
use crate::{Error, Result};

/// Variable that both sides take the token from.
pub(crate) const TOKEN: &str = "DATAPIPES_TOKEN";
/// Starts of the address of a trainer in the variable `DATAPIPES_WORKER`.
pub(crate) const TCP: &str = "tcp://";
pub(crate) const TLS: &str = "tls://";
/// Default of [`Remote::at_most`].
const AT_MOST: usize = 64;
/// Default of [`Remote::wait`].
const WAIT: Duration = Duration::from_secs(60);

/// Address at which a part of a graph gets workers from other machines, and rules for them; see
/// [`Graph::on_workers`](crate::Graph::on_workers).
///
/// It belongs to one part of one loader at a time.
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
    door: Arc<Door>,
    pub(crate) token: Option<Arc<str>>,
    #[cfg(feature = "remote-tls")]
    pub(crate) identity: Option<tls::Identity>,
    pub(crate) wait: Duration,
    pub(crate) at_most: usize,
    pub(crate) here: usize,
    pub(crate) time_limit: Option<Duration>,
}

struct Door {
    listener: TcpListener,
    address: SocketAddr,
    in_use: AtomicBool,
}

/// Shows everything but the token and the key.
impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("address", &self.url())
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("wait", &self.wait)
            .field("at_most", &self.at_most)
            .field("here", &self.here)
            .field("time_limit", &self.time_limit)
            .finish()
    }
}

impl PartialEq for Remote {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.door, &other.door)
            && (self.wait, self.at_most, self.here, self.time_limit)
                == (other.wait, other.at_most, other.here, other.time_limit)
            && self.is_alike(other)
    }
}

impl Remote {
    /// Listens for workers at an address. With port 0 the system chooses one, see
    /// [`address`](Remote::address).
    ///
    /// The [token](Remote::token) is that of the variable `DATAPIPES_TOKEN`, if it is set.
    ///
    /// # Errors
    /// The error of the system if the address is not one of this machine, or is in use.
    pub fn listen(address: impl ToSocketAddrs + fmt::Display) -> Result<Remote> {
        let listen = || -> io::Result<_> {
            let listener = TcpListener::bind(&address)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(Door {
                listener,
                address,
                in_use: AtomicBool::new(false),
            })
        };
        let door = listen()
            .map_err(|error| Error::io(error).within(format!("cannot listen at {address}")))?;
        Ok(Remote {
            door: Arc::new(door),
            token: std::env::var(TOKEN).ok().map(Into::into),
            #[cfg(feature = "remote-tls")]
            identity: None,
            wait: WAIT,
            at_most: AT_MOST,
            here: 0,
            time_limit: None,
        })
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.door.address
    }

    /// Sets the secret that both sides have to know; a worker has it in the variable
    /// `DATAPIPES_TOKEN`.
    ///
    /// It is never sent: each side proves with a keyed hash (BLAKE3) of fresh random numbers that it
    /// knows the secret. What is sent after that is neither encrypted nor protected against changes
    /// on its way without `Remote::tls` (feature `remote-tls`): use that, or a network that you
    /// trust, or a tunnel. An address that other machines can reach needs a token, since a worker
    /// runs functions of this program as the other side tells it to.
    pub fn token(self, secret: impl Into<String>) -> Self {
        Remote {
            token: Some(secret.into().into()),
            ..self
        }
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
    /// A file cannot be read or is none in the PEM format, or the key is not that of the
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
        self,
        certificates: impl AsRef<std::path::Path>,
        key: impl AsRef<std::path::Path>,
    ) -> Result<Self> {
        let identity = tls::Identity::load(certificates.as_ref(), key.as_ref())?;
        Ok(Remote {
            identity: Some(identity),
            ..self
        })
    }

    /// Sets how long work may wait without any worker, before the epoch ends with an error of kind
    /// [`Worker`](crate::ErrorKind::Worker). Defaults to 60 s.
    pub fn wait(self, wait: Duration) -> Self {
        Remote { wait, ..self }
    }

    /// Sets the greatest number of worker processes that are given work at once, over all machines;
    /// more have to wait until one leaves. Defaults to 64. As much of the input as keeps that many
    /// busy is read ahead, in the limits of [`memory`](crate::loader::Builder::memory).
    pub fn at_most(self, workers: usize) -> Self {
        Remote {
            at_most: workers,
            ..self
        }
    }

    /// Does the work in this many processes of this machine while no worker is connected. Defaults
    /// to 0, which is none.
    pub fn or_here(self, processes: usize) -> Self {
        Remote {
            here: processes,
            ..self
        }
    }

    /// Limits how long a worker may give no answer while it has work, as
    /// [`Processes::time_limit`] does.
    ///
    /// Without this limit, a worker that is silent for much longer than others were (8 times the
    /// longest recent silence, and at least 2 s) loses its work to another worker, and the time
    /// doubles for that piece of work each time.
    pub fn time_limit(self, limit: Duration) -> Self {
        Remote {
            time_limit: Some(limit),
            ..self
        }
    }

    /// Returns true if workers are let in by the same rules.
    fn is_alike(&self, other: &Remote) -> bool {
        #[cfg(feature = "remote-tls")]
        let same_identity = match (&self.identity, &other.identity) {
            (Some(ours), Some(theirs)) => Arc::ptr_eq(&ours.0, &theirs.0),
            (ours, theirs) => ours.is_none() && theirs.is_none(),
        };
        #[cfg(not(feature = "remote-tls"))]
        let same_identity = true;
        same_identity && self.token == other.token
    }

    /// Returns the start of the address that a worker gets.
    pub(crate) fn scheme(&self) -> &'static str {
        #[cfg(feature = "remote-tls")]
        if self.identity.is_some() {
            return TLS;
        }
        TCP
    }

    fn url(&self) -> String {
        format!("{}{}", self.scheme(), self.door.address)
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
        if self.token.as_ref().is_none_or(|token| token.is_empty())
            && !self.door.address.ip().is_loopback()
        {
            problems.push(format!(
                "other machines can reach {}, so it needs a token: set the variable {TOKEN} on both sides, or call \
                 `Remote::token`",
                self.door.address
            ));
        }
        problems
    }

    /// Takes the listener, until the guard is dropped; `None` if somebody else has it.
    pub(crate) fn claim(&self) -> Option<Claim> {
        let was = self.door.in_use.swap(true, Ordering::AcqRel);
        (!was).then(|| Claim(self.door.clone()))
    }
}

/// The use of a listener by one supervisor.
pub(crate) struct Claim(Arc<Door>);

impl Claim {
    pub(crate) fn listener(&self) -> io::Result<TcpListener> {
        self.0.listener.try_clone()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.in_use.store(false, Ordering::Release);
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
