//! Clients of HTTP, with their connections, where they can be used.

use std::sync::{Mutex, PoisonError};

use reqwest::Client;
use tokio::runtime::{Handle, Id, RuntimeFlavor};

/// Connections of so many runtimes of one thread are kept.
const KEPT: usize = 8;

/// One client for all runtimes that run by themselves, and one for each that runs on its caller's thread only.
///
/// A connection is driven by a task of the runtime that made it. While nobody waits in a runtime of one thread, its
/// connections stand still, and a request of another runtime that were given one would wait until its time is up.
pub(super) struct Clients {
    make: Box<dyn Fn() -> reqwest::Result<Client> + Send + Sync>,
    shared: Client,
    of_one_thread: Mutex<Vec<(Id, Client)>>,
}

impl Clients {
    pub fn new(make: impl Fn() -> reqwest::Result<Client> + Send + Sync + 'static) -> reqwest::Result<Self> {
        Ok(Clients { shared: make()?, make: Box::new(make), of_one_thread: Mutex::default() })
    }

    /// The one for the current runtime.
    pub fn here(&self) -> Client {
        let here = Handle::try_current().ok();
        let Some(here) = here.filter(|here| here.runtime_flavor() == RuntimeFlavor::CurrentThread) else {
            return self.shared.clone();
        };
        let mut clients = self.of_one_thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = clients.iter().find(|(id, _)| *id == here.id()) {
            return client.clone();
        }
        // It was made before.
        let client = (self.make)().unwrap_or_else(|_| self.shared.clone());
        if clients.len() == KEPT {
            clients.remove(0);
        }
        clients.push((here.id(), client.clone()));
        client
    }
}
