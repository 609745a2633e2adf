//! Connections that are polled by whoever uses them.

use std::sync::{Mutex, PoisonError};

use reqwest::Client;
use reqwest::header::{CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};
use tokio::runtime::{Handle, Id};

/// Clients of HTTP, all alike, one for each runtime of tokio that they are used in.
///
/// What moves a connection is a task of the runtime that it was made in. A runtime of a single
/// thread stands still while that thread does something else (it trains, or waits for a loader),
/// and with it the connections that it left in a pool: another runtime that took one of them would
/// wait for an answer that nobody reads. A runtime that is ending takes its connections with it,
/// also from under whoever has just taken one.
pub(super) struct Clients {
    make: Box<dyn Fn() -> reqwest::Result<Client> + Send + Sync>,
    /// By whose they are; the last one was used last.
    known: Mutex<Vec<(Option<Id>, Client)>>,
    /// The first, before it is anybody's.
    first: Client,
}

/// Most clients that are kept. The one that was not used for the longest time gives way.
const MOST: usize = 16;

impl Clients {
    /// # Errors
    /// If no client can be made so.
    pub fn new(
        make: impl Fn() -> reqwest::Result<Client> + Send + Sync + 'static,
    ) -> reqwest::Result<Clients> {
        let first = make()?;
        Ok(Clients {
            make: Box::new(make),
            known: Mutex::default(),
            first,
        })
    }

    /// The client of the runtime that this is called in.
    pub fn here(&self) -> Client {
        let whose = Handle::try_current().ok().map(|handle| handle.id());
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = known.iter().rposition(|(home, _)| *home == whose) {
            known[at..].rotate_left(1);
            return known
                .last()
                .map_or_else(|| self.first.clone(), |(_, client)| client.clone());
        }
        // What could be made once can be made again; a client that is shared is better than none.
        let made = if known.is_empty() {
            None
        } else {
            (self.make)().ok()
        };
        let client = made.unwrap_or_else(|| self.first.clone());
        if known.len() == MOST {
            known.remove(0);
        }
        known.push((whose, client.clone()));
        client
    }

    /// Refuses an answer whose end is told in two ways, a length and a transfer coding (RFC 9112,
    /// 6.3). Who believes the other one, a proxy on the way, takes a part of the body for the next
    /// answer, or the next answer for a part of the body. So the connections that are kept are not
    /// used again.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check_framing(&self, headers: &HeaderMap) -> Result<(), &'static str> {
        if !headers.contains_key(CONTENT_LENGTH) || !headers.contains_key(TRANSFER_ENCODING) {
            return Ok(());
        }
        let whose = Handle::try_current().ok().map(|handle| handle.id());
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = known.iter_mut().find(|(home, _)| *home == whose)
            && let Ok(made) = (self.make)()
        {
            *client = made;
        }
        Err(
            "Content-Length together with Transfer-Encoding, so that nobody can tell where the answer ends",
        )
    }
}
