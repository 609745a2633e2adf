//! HTTP clients, separate for each runtime.

use std::sync::Mutex;

use datapipes::lock;
use reqwest::Client;
use reqwest::header::{CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};
use tokio::runtime::{Handle, Id};

/// HTTP clients with the same settings, one for each tokio runtime that uses them.
///
/// A connection is driven by a task of the runtime in which it was made. A single-threaded runtime
/// stands still while its thread does something else (it trains, or waits for a loader), and so do
/// its connections. If another runtime took such a connection from a pool, it would wait for an
/// answer that nobody reads. A runtime that ends closes its connections, even if another runtime
/// has just taken them from the pool.
pub(super) struct Clients {
    make: Box<dyn Fn() -> reqwest::Result<Client> + Send + Sync>,
    /// Clients with the runtime that they belong to, the last used last.
    known: Mutex<Vec<(Option<Id>, Client)>>,
    /// The first client, before it belongs to a runtime.
    first: Client,
}

/// Maximum number of clients. The least recently used client is dropped.
const MOST: usize = 16;

impl Clients {
    /// Makes clients with these settings, when they are needed; the first at once.
    ///
    /// # Errors
    /// Returns an error if no client can be made with these settings.
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

    /// Returns the client of the current runtime.
    pub fn here(&self) -> Client {
        let whose = Handle::try_current().ok().map(|handle| handle.id());
        let mut known = lock(&self.known);
        if let Some(at) = known.iter().rposition(|(home, _)| *home == whose) {
            known[at..].rotate_left(1);
            return known
                .last()
                .map_or_else(|| self.first.clone(), |(_, client)| client.clone());
        }
        // Making a client again should succeed; if it fails, sharing a client is better than none.
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

    /// Refuses an answer with two indications of its end, a length and a transfer coding (RFC 9112,
    /// 6.3). A proxy on the way that believes the other indication takes a part of the body for the
    /// next answer, or the next answer for a part of the body. The idle connections are therefore
    /// not used again.
    ///
    /// # Errors
    /// Returns the problem in words.
    pub fn check_framing(&self, headers: &HeaderMap) -> Result<(), &'static str> {
        if !headers.contains_key(CONTENT_LENGTH) || !headers.contains_key(TRANSFER_ENCODING) {
            return Ok(());
        }
        let whose = Handle::try_current().ok().map(|handle| handle.id());
        let mut known = lock(&self.known);
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
