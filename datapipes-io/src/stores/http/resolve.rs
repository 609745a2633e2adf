//! Resolution of host names, with a check of the addresses to which a redirect may lead.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::address::is_public;
use super::fault::{Forbidden, NoAddress};

/// A resolver that uses the system's. A host other than the store's own, to which a redirect led,
/// must have public addresses if the store's own host has.
pub(super) struct Guard {
    own: String,
    /// True if the store itself is on this machine or a private network.
    private: Arc<AtomicBool>,
}

impl Guard {
    pub fn new(own: &str, private: bool) -> Self {
        Guard {
            own: own.to_ascii_lowercase(),
            private: Arc::new(AtomicBool::new(private)),
        }
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let own = name.as_str().eq_ignore_ascii_case(&self.own);
        let private = self.private.clone();
        Box::pin(async move {
            let name = name.as_str();
            let found: Vec<SocketAddr> = match tokio::net::lookup_host((name, 0)).await {
                Ok(found) => found.collect(),
                Err(error) => return Err(NoAddress(error.to_string()).into()),
            };
            if found.is_empty() {
                return Err(NoAddress("it has no address".into()).into());
            }
            let all_public = found.iter().all(|address| is_public(address.ip()));
            if own {
                if !all_public {
                    private.store(true, Ordering::Relaxed);
                }
            } else if !all_public && !private.load(Ordering::Relaxed) {
                return Err(
                    Forbidden(format!("{name} is on a private net, and the store is not")).into(),
                );
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn resolve(guard: &Guard, name: &str) -> Result<usize, String> {
        let found = guard.resolve(name.parse().expect("a name")).await;
        found
            .map(Iterator::count)
            .map_err(|error| format!("{error:?}"))
    }

    #[tokio::test]
    async fn row_64_a_public_store_does_not_lead_to_a_private_net_by_name() {
        let public = Guard::new("data.example.org", false);
        let error = resolve(&public, "localhost").await.unwrap_err();
        assert!(
            error.contains("Forbidden") && error.contains("localhost is on a private net"),
            "{error}"
        );
        assert!(
            resolve(&Guard::new("data.example.org", true), "localhost")
                .await
                .unwrap()
                > 0
        );
        // A lookup of the store's own name finds that the store is on this machine.
        let own = Guard::new("LocalHost", false);
        assert!(resolve(&own, "localhost").await.unwrap() > 0);
        assert!(own.private.load(Ordering::Relaxed));
        let error = resolve(&public, "no-such-host.invalid").await.unwrap_err();
        assert!(error.contains("NoAddress"), "{error}");
    }
}
