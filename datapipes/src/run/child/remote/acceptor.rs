//! The trainer's side: lets workers in.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt;
use futures::future::{AbortHandle, Abortable};
use futures::stream::FuturesUnordered;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::handshake::let_in;
use super::link::accept;
use super::{Arrival, Entrance, RemoteWorker};
use crate::error::escape;
use crate::processes::{Remote, Share};
use crate::run::child::queue_ends::{PutEnd, TakeEnd};
use crate::{Error, ErrorKind, Result};

/// Greatest time that a worker may take to show what it is.
const SHAKE: Duration = Duration::from_secs(10);
/// Greatest number of connections that are not known yet. The oldest makes room for the next one, if
/// it has had this time; until then, others wait in the system's queue.
const UNKNOWN: usize = 64;
const LEAST: Duration = Duration::from_millis(200);
/// Pause after the system refused a connection, for want of descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection, by its number and address, and what became of it.
type Greeted = (u64, SocketAddr, Result<Arrival>);

/// A connection that has not shown yet what it is.
struct Unknown {
    number: u64,
    since: Instant,
    end: AbortHandle,
}

/// A listener, and the connections that have not shown yet what they are.
pub(in crate::run::child) struct Acceptor {
    listener: TcpListener,
    remote: Remote,
    greetings: FuturesUnordered<Pin<Box<dyn Future<Output = Greeted>>>>,
    /// Those whose greetings are awaited, the oldest first.
    unknown: VecDeque<Unknown>,
    next: u64,
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
    share: Share,
}

impl Entrance for Acceptor {
    fn open(remote: &Remote) -> Result<Acceptor> {
        let (share, listener) = remote.join()?;
        Ok(Acceptor {
            listener: TcpListener::from_std(listener).map_err(Error::io)?,
            remote: remote.clone(),
            greetings: FuturesUnordered::new(),
            unknown: VecDeque::new(),
            next: 0,
            pause: None,
            share,
        })
    }

    fn poll_worker(&mut self, cx: &mut Context<'_>) -> Poll<Arrival> {
        loop {
            if let Poll::Ready(Some((number, address, greeted))) =
                self.greetings.poll_next_unpin(cx)
            {
                self.unknown.retain(|unknown| unknown.number != number);
                match greeted {
                    Ok(worker) => return Poll::Ready(worker),
                    Err(error) => self.refuse(address, &error),
                }
                continue;
            }
            if let Some(pause) = &mut self.pause {
                if pause.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                self.pause = None;
            }
            if !self.share.is_first() {
                return Poll::Pending;
            }
            if let Some(oldest) = self
                .unknown
                .front()
                .filter(|_| self.unknown.len() >= UNKNOWN)
            {
                let due = oldest.since + LEAST;
                if due > Instant::now() {
                    self.pause = Some(Box::pin(tokio::time::sleep_until(due)));
                    continue;
                }
            }
            match self.listener.poll_accept(cx) {
                Poll::Ready(Ok((stream, address))) => {
                    if self.unknown.len() >= UNKNOWN
                        && let Some(oldest) = self.unknown.pop_front()
                    {
                        oldest.end.abort();
                    }
                    self.begin(stream, address);
                }
                Poll::Ready(Err(error)) => {
                    let remote = &self.remote;
                    crate::error::quietly(|| {
                        tracing::warn!(address = %remote.address(), %error, "cannot accept a worker");
                    });
                    self.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn share(&self) -> &Share {
        &self.share
    }
}

impl Acceptor {
    /// Begins to greet a connection.
    fn begin(&mut self, stream: tokio::net::TcpStream, address: SocketAddr) {
        let (end, ended) = AbortHandle::new_pair();
        let number = self.next;
        self.next += 1;
        self.unknown.push_back(Unknown {
            number,
            since: Instant::now(),
            end,
        });
        let remote = self.remote.clone();
        let greeted = async move {
            let greeted = tokio::time::timeout(SHAKE, greet(stream, &remote)).await;
            greeted.unwrap_or_else(|_| Err(silent(&format!("for {SHAKE:?}"))))
        };
        let greeted = Abortable::new(greeted, ended);
        self.greetings.push(Box::pin(async move {
            let greeted = greeted.await;
            let greeted = greeted.unwrap_or_else(|_| Err(silent("and others came")));
            (number, address, greeted)
        }));
    }

    fn refuse(&mut self, address: SocketAddr, error: &Error) {
        // The message may have text of an unknown machine.
        let why = escape(error.message()).into_owned();
        // One that is gone, or says nothing, is as likely a port scanner, or came long ago.
        if error.kind() == ErrorKind::Io {
            crate::error::quietly(|| tracing::debug!(%address, "not a worker: {why}"));
            return;
        }
        crate::error::quietly(|| tracing::warn!(%address, "a worker was not let in: {why}"));
        self.share.set_refused(&format!("{address}: {why}"));
    }
}

fn silent(how: &str) -> Error {
    Error::new(ErrorKind::Io, format!("it said nothing {how}"))
}

/// Prints that no worker came, and what to do.
impl fmt::Display for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, wait) = (self.remote.address(), self.remote.wait);
        write!(
            f,
            "no worker is connected to {address}, and none came for {wait:?}; on each worker machine start this program \
             with DATAPIPES_WORKER={}HOST:{}",
            self.remote.scheme(),
            address.port()
        )?;
        match self.share.elsewhere() {
            0 => {}
            1 => f.write_str("; 1 worker there works for another part, loader or epoch")?,
            count => write!(
                f,
                "; {count} workers there work for other parts, loaders or epochs"
            )?,
        }
        match self.share.refused() {
            Some(refused) => write!(f, "; the last one {refused}"),
            None => Ok(()),
        }
    }
}

async fn greet(stream: tokio::net::TcpStream, remote: &Remote) -> Result<Arrival> {
    let mut ends = accept(stream, remote).await?;
    let token = remote.rules.token.as_deref().unwrap_or_default();
    let (greeting, round_trip) = let_in(&mut ends, token).await?;
    if let Some(crash) = &greeting.before {
        remote.set_crashed(crash.id, crash.told(&greeting.machine));
    }
    Ok(Arrival {
        worker: RemoteWorker {
            id: greeting.id,
            machine: greeting.machine,
            process: greeting.process,
            round_trip,
        },
        orders: PutEnd::Remote(ends.put),
        reports: TakeEnd::Remote(Box::new(ends.take)),
    })
}
