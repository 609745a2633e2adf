//! Connections between trainer and worker: TCP, or TLS over it.
//!
//! Each side notices at the first bytes if the other one speaks the other of the two, so that both
//! can say what to change.

use std::io::{self, Cursor};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::Crash;
use super::handshake::{Binding, Ends, enter, refuse, turn_away};
#[cfg(feature = "remote-tls")]
use super::tls::{self, Trust};
use crate::error::escape;
use crate::processes::{Remote, TCP, TLS, TOKEN};
use crate::{Error, ErrorKind, Result};

/// Greatest time for a connection to be made. After that the trainer may take any time: before its
/// first epoch it lets nobody in, and a machine that is gone is noticed by the system.
const CONNECT: Duration = Duration::from_secs(10);
/// First bytes of a TLS connection. As the length of a message, they are more than a greeting has.
const TLS_START: [u8; 2] = [0x16, 0x03];
/// Binding of a connection that is not encrypted.
const UNBOUND: Binding = [0; 32];

/// The trainer of a worker, or one of several.
pub(super) struct Trainer {
    url: String,
    /// Host and port.
    address: String,
    #[cfg(feature = "remote-tls")]
    trust: Option<Trust>,
}

impl Trainer {
    /// Returns true if these are addresses of trainers, with commas between them.
    pub(super) fn are_addresses(urls: &str) -> bool {
        let mut urls = urls.split(',').map(str::trim);
        urls.all(|url| url.starts_with(TCP) || url.starts_with(TLS))
    }

    /// Reads the addresses, and for TLS the certificates that the worker trusts.
    ///
    /// # Errors
    /// Those of [`new`](Trainer::new).
    pub(super) fn all(urls: &str) -> Result<Vec<Trainer>> {
        urls.split(',')
            .map(|url| Trainer::new(url.trim()))
            .collect()
    }

    /// Reads an address, and for TLS the certificates that the worker trusts.
    ///
    /// # Errors
    /// Fails if the certificates cannot be read, or this program has no TLS.
    fn new(url: &str) -> Result<Trainer> {
        if let Some(address) = url.strip_prefix(TCP) {
            return Ok(Trainer {
                url: url.to_owned(),
                address: address.to_owned(),
                #[cfg(feature = "remote-tls")]
                trust: None,
            });
        }
        #[cfg(feature = "remote-tls")]
        {
            let address = url.strip_prefix(TLS).unwrap_or(url);
            Ok(Trainer {
                url: url.to_owned(),
                address: address.to_owned(),
                trust: Some(Trust::of(address)?),
            })
        }
        #[cfg(not(feature = "remote-tls"))]
        Err(Error::unsupported(
            "this program is built without the feature `remote-tls`",
        ))
    }

    /// Connects to the first of some trainers that listens.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if it is not to be worked for; others, with the reasons, if nobody
    /// listens.
    pub(super) async fn connect_to_one<'a>(
        trainers: impl Iterator<Item = &'a Trainer>,
        token: &str,
    ) -> Result<(&'a Trainer, TcpStream)> {
        let mut nobody = Vec::new();
        for trainer in trainers {
            match trainer.connect(token).await {
                Ok(stream) => return Ok((trainer, stream)),
                Err(error) if error.kind() == ErrorKind::Denied => return Err(error),
                Err(error) => nobody.push(error.to_string()),
            }
        }
        Err(Error::new(ErrorKind::Io, nobody.join("; ")))
    }

    async fn connect(&self, token: &str) -> Result<TcpStream> {
        let url = || format!("no trainer at {}", escape(&self.url));
        let stream = tokio::time::timeout(CONNECT, TcpStream::connect(&self.address)).await;
        let late = |_| Error::new(ErrorKind::Io, format!("no answer for {CONNECT:?}"));
        let stream = stream
            .map_err(late)
            .and_then(|made| made.map_err(Error::io));
        let stream = stream.map_err(|error| error.within(url()))?;
        let peer = stream.peer_addr().map_err(Error::io)?;
        if token.is_empty() && !peer.ip().to_canonical().is_loopback() {
            // It would run functions of this program as whoever is there tells it to.
            let message = format!(
                "the trainer at {} is on another machine, so this worker needs a token: set the variable {TOKEN} on both \
                 sides",
                escape(&self.url)
            );
            return Err(Error::denied(message));
        }
        Ok(stream)
    }

    /// Shows the trainer at the end of a connection what this process is. The second value is the
    /// socket once more, to watch.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if the trainer is not to be worked for, or refuses; others if the
    /// connection is lost.
    pub(super) async fn enter(
        &self,
        stream: TcpStream,
        token: &str,
        id: u64,
        before: Option<&Crash>,
    ) -> Result<(Ends, io::Result<OwnedFd>)> {
        let lifeline = stream.as_fd().try_clone_to_owned();
        let (read, write) = halves(stream)?;
        #[cfg(feature = "remote-tls")]
        let mut ends = match &self.trust {
            Some(trust) => trust.connect(read, write).await?,
            None => Ends::new(Box::pin(read), Box::pin(write), UNBOUND),
        };
        #[cfg(not(feature = "remote-tls"))]
        let mut ends = Ends::new(Box::pin(read), Box::pin(write), UNBOUND);
        enter(&mut ends, token, id, before).await?;
        Ok((ends, lifeline))
    }
}

/// Makes the trainer's ends of a connection that was accepted.
///
/// # Errors
/// [`ErrorKind::Denied`] if the other side is a worker that cannot be understood, or that does not
/// trust this side; it was told so, if it did not say so itself.
pub(super) async fn accept(stream: TcpStream, remote: &Remote) -> Result<Ends> {
    let (mut read, write) = halves(stream)?;
    let mut first = [0; TLS_START.len()];
    read.read_exact(&mut first).await.map_err(Error::io)?;
    let is_tls = first == TLS_START;
    let encrypts = remote.scheme() == TLS;
    if is_tls && !encrypts {
        // A TLS client does not read text, but knows that this is no TLS. What it has sent is read
        // before, as a connection that is closed with unread bytes may lose the answer.
        let _ = read.read(&mut [0; 4096]).await;
        let mut ends = Ends::new(Box::pin(read), Box::pin(write), UNBOUND);
        let why = format!(
            "it speaks TLS, and this trainer does not: start it with DATAPIPES_WORKER={TCP}…, or call `Remote::tls`"
        );
        return refuse(&mut ends, why).await;
    }
    let read = Cursor::new(first).chain(read);
    #[cfg(feature = "remote-tls")]
    if let Some(identity) = remote.rules.identity.as_ref().filter(|_| is_tls) {
        return tls::accept(identity, read, write).await;
    }
    let mut ends = Ends::new(Box::pin(read), Box::pin(write), UNBOUND);
    if encrypts {
        let why = format!(
            "it does not speak TLS, and this trainer does: start it with DATAPIPES_WORKER={TLS}…, and \
             DATAPIPES_WORKER_CA for the certificates that it trusts"
        );
        return turn_away(&mut ends, &why).await;
    }
    Ok(ends)
}

/// Sets what a connection needs, and splits it.
fn halves(stream: TcpStream) -> Result<(OwnedReadHalf, OwnedWriteHalf)> {
    use rustix::net::sockopt;
    let set = || -> io::Result<()> {
        stream.set_nodelay(true)?;
        // A machine that is gone without a word is noticed after some seconds while nothing is on its
        // way there. Otherwise the system sends that again for a quarter of an hour; either side is then
        // given up for its silence. `TCP_USER_TIMEOUT` would end connections to a side that
        // pauses, too: its full buffer lets nothing through, for as long as it likes.
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, Duration::from_secs(5))?;
        sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(2))?;
        Ok(sockopt::set_tcp_keepcnt(&stream, 3)?)
    };
    set().map_err(Error::io)?;
    Ok(stream.into_split())
}
