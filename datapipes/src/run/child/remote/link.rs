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

use super::handshake::{Binding, Ends, enter, refuse, turn_away};
#[cfg(feature = "remote-tls")]
use super::tls::{self, Trust};
use crate::processes::{Remote, TCP, TLS};
use crate::{Error, ErrorKind, Result};

/// Greatest time for a connection to be made. After that the trainer may take any time: before its
/// first epoch it lets nobody in, and a machine that is gone is noticed by the system.
const CONNECT: Duration = Duration::from_secs(10);
/// First bytes of a TLS connection. As the length of a message, they are more than a greeting has.
const TLS_START: [u8; 2] = [0x16, 0x03];
/// Binding of a connection that is not encrypted.
const UNBOUND: Binding = [0; 32];

/// The trainer of a worker.
pub(super) struct Trainer {
    /// Host and port.
    address: String,
    #[cfg(feature = "remote-tls")]
    trust: Option<Trust>,
}

impl Trainer {
    /// Returns true if this is the address of a trainer.
    pub(super) fn is_address(url: &str) -> bool {
        url.starts_with(TCP) || url.starts_with(TLS)
    }

    /// Reads the address, and for TLS the certificates that the worker trusts.
    ///
    /// # Errors
    /// Fails if the certificates cannot be read, or this program has no TLS.
    pub(super) fn new(url: &str) -> Result<Trainer> {
        if let Some(address) = url.strip_prefix(TCP) {
            return Ok(Trainer {
                address: address.to_owned(),
                #[cfg(feature = "remote-tls")]
                trust: None,
            });
        }
        #[cfg(feature = "remote-tls")]
        {
            let address = url.strip_prefix(TLS).unwrap_or(url);
            Ok(Trainer {
                address: address.to_owned(),
                trust: Some(Trust::of(address)?),
            })
        }
        #[cfg(not(feature = "remote-tls"))]
        Err(Error::new(
            ErrorKind::Unsupported,
            "this program is built without the feature `remote-tls`",
        ))
    }

    /// Connects to the trainer, and shows it what this process is. The second value is the socket
    /// once more, to watch.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if the trainer is not to be worked for, or refuses; others if nobody
    /// is there.
    pub(super) async fn connect(&self, token: &str) -> Result<(Ends, io::Result<OwnedFd>)> {
        let stream = tokio::time::timeout(CONNECT, TcpStream::connect(&self.address)).await;
        let late = |_| Error::new(ErrorKind::Io, format!("no answer for {CONNECT:?}"));
        let stream = stream.map_err(late)?.map_err(Error::io)?;
        let lifeline = stream.as_fd().try_clone_to_owned();
        let (read, write) = halves(stream)?;
        #[cfg(feature = "remote-tls")]
        let mut ends = match &self.trust {
            Some(trust) => trust.connect(tokio::io::join(read, write)).await?,
            None => Ends::new(Box::pin(read), Box::pin(write), UNBOUND),
        };
        #[cfg(not(feature = "remote-tls"))]
        let mut ends = Ends::new(Box::pin(read), Box::pin(write), UNBOUND);
        enter(&mut ends, token).await?;
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
        return tls::accept(identity, tokio::io::join(read, write)).await;
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
        // A machine that is gone without a word is noticed after some seconds.
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, Duration::from_secs(5))?;
        sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(2))?;
        Ok(sockopt::set_tcp_keepcnt(&stream, 3)?)
    };
    set().map_err(Error::io)?;
    Ok(stream.into_split())
}
