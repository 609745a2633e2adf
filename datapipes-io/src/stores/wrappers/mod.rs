//! Wrappers that make a store robust and fast: each is a store around a store.
//!
//! A wrapper does one thing, and may be used alone. If several are used, stack them in this order,
//! outermost first:
//!
//! | wrapper | purpose | reason for its place |
//! |---|---|---|
//! | [`MemoryCache`] | objects that are read again | the nearest; concurrent requests become one |
//! | [`DiskCache`] | objects that the next run reads again | outside all that costs requests |
//! | [`Verify`] | content against a manifest | caches hold only verified content |
//! | [`Hedge`] | the slowest reads | while one request waits for a retry, the second may run |
//! | [`Retry`] | transient errors, bodies that were cut | sees the errors of all wrappers below |
//! | [`Limit`] | requests in flight | inside `Retry`: a request that waits for a retry holds no place |
//! | [`Rate`] | requests and bytes a second | each try counts |
//! | [`Timeout`] | requests that make no progress | waiting for a place is not counted; a timeout is retried |
//! | [`Locked`] | the files of a [lock](crate::stores::Lockfile), and no others | outside caches, which may hold what has changed; it lists before anything is read |
//! | [`Prefix`] | a part of a store | anywhere; innermost, caches are shared between parts |
//!
//! [`resilient`] is the stack for remote stores that have timeouts of their own.
//!
//! Pauses and timeouts use tokio's clock: futures of these stores must be polled inside a tokio
//! runtime with time enabled, once they have to wait.

/// Passes on the names of the store inside, which a wrapper does not change, and names no folder,
/// since graphs would bypass the wrapper.
macro_rules! names_of {
    ($($inner:tt)+) => {
        datapipes::forward! { self.$($inner)+ =>
            fn url(&self) -> &str;
            fn url_of(&self, key: &str) -> String;
            fn identity(&self) -> String;
            fn pin_revision(&self, revision: &str) -> datapipes::Result<()>;
            fn known_revision(&self) -> datapipes::Revision;
        }

        fn folder(&self) -> Option<&std::path::Path> {
            None
        }
    };
}

/// Passes on the revision of the store inside.
macro_rules! revision_of {
    ($inner:tt) => {
        fn revision(&self) -> futures::future::BoxFuture<'_, datapipes::Result<Option<String>>> {
            self.$inner.revision()
        }
    };
}

mod bucket;
mod controller;
mod disk_cache;
mod hedge;
mod limit;
mod locked;
mod memory_cache;
mod prefix;
mod rate;
mod retry;
mod single_flight;
mod timeout;
mod verify;

pub use disk_cache::DiskCache;
pub use hedge::{Hedge, HedgePolicy};
pub use limit::{InFlight, Limit};
pub use locked::Locked;
pub use memory_cache::{Evict, MemoryCache};
pub use prefix::Prefix;
pub use rate::{PerSecond, Rate};
pub use retry::Retry;
pub use timeout::{TimeLimits, Timeout};
pub use verify::{Expected, Verify};

use datapipes::Backoff;

use super::Store;

/// Wraps a remote store that has timeouts of its own in the usual stack. Transient errors are
/// retried and cut bodies resumed ([`Retry`]). Requests in flight are limited once the service was
/// overloaded ([`InFlight::OnOverload`]).
pub fn resilient<S: Store>(store: S) -> Retry<Limit<S>> {
    let limited = Limit::new(store, InFlight::OnOverload);
    Retry::new(limited, Backoff::default())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::stores::{InMemory, StoreExt};
    use crate::testing::{Reaction, Scripted, check_store, fixtures};

    const MS: Duration = Duration::from_millis(1);

    /// Stacks all wrappers in the order of the table.
    fn stack<S: Store>(store: S, dir: &tempfile::TempDir) -> impl Store + use<S> {
        store
            .prefix("")
            .timeout(TimeLimits::default())
            .rate(PerSecond {
                requests: 1e5,
                bytes: 1e9,
            })
            .limit(InFlight::Adaptive { most: 100 })
            .retry(Backoff::default())
            .hedge(HedgePolicy::default())
            .verify(HashMap::new())
            .cache_on_disk(dir.path().join("cache"), 1 << 22)
            .expect("a new folder")
            .cache_in_memory(1 << 20, Evict::Oldest)
    }

    #[tokio::test]
    async fn stacks_keep_the_contract_of_a_store() {
        let dir = tempfile::tempdir().unwrap();
        check_store(&resilient(InMemory::from_iter(fixtures()))).await;
        let store = stack(InMemory::from_iter(fixtures()), &dir);
        check_store(&store).await;
        check_store(&store).await;
    }

    #[tokio::test(start_paused = true)]
    async fn row_71_one_stalled_request_of_64_holds_up_no_other() {
        let script = Scripted::from_iter((0..64).map(|n| (format!("k{n}"), vec![n; 1000])));
        script.usual(Reaction::default().after(20 * MS).pieces(100, MS));
        script.script("k17", [Reaction::default().stall(300)]);
        let store = script
            .clone()
            .timeout(TimeLimits::default())
            .limit(InFlight::Fixed(64))
            .retry(Backoff::default());
        let begun = Instant::now();
        let reads = (0..64).map(|n| {
            let store = store.clone();
            async move { (store.read(&format!("k{n}")).await.unwrap(), begun.elapsed()) }
        });
        for (n, (data, took)) in futures::future::join_all(reads)
            .await
            .into_iter()
            .enumerate()
        {
            assert_eq!(data, vec![n as u8; 1000]);
            assert_eq!(took > 40 * MS, n == 17, "{n}: {took:?}");
        }
        assert_eq!(script.requests().last().unwrap().get.range, Some(300..1000));
    }

    #[tokio::test(start_paused = true)]
    async fn whatever_happens_what_is_read_is_right() {
        let dir = tempfile::tempdir().unwrap();
        let script =
            Scripted::from_iter((0..20).map(|n| (format!("k{n}"), vec![n; 100 + 10 * n as usize])));
        script.usual(Reaction::default().after(5 * MS));
        let mut seed = 1u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let mut failed = 0;
        for round in 0..20 {
            let store = stack(script.clone(), &dir);
            for n in 0..20 {
                let reactions = (0..random(4)).map(|_| {
                    let (at, usual) = (
                        random(300),
                        Reaction::default().after(random(50) as u32 * MS),
                    );
                    let usual = usual.pieces(1 + random(100) as usize, random(3) as u32 * MS);
                    match random(5) {
                        0 => usual.unavailable(),
                        1 => usual.cut(at),
                        2 => usual.short(at),
                        3 => usual.stall(at),
                        _ => usual,
                    }
                });
                script.script(format!("k{n}"), reactions.collect::<Vec<_>>());
            }
            let keys = (0..60).map(|n| (n * 7 + round) % 20);
            let reads = keys.map(|n| {
                let store = &store;
                async move { (n, store.read(&format!("k{n}")).await) }
            });
            for (n, data) in futures::future::join_all(reads).await {
                match data {
                    Ok(data) => assert_eq!(data, vec![n as u8; 100 + 10 * n]),
                    Err(_) => failed += 1,
                }
            }
            drop(store);
            assert_eq!(script.in_flight(), 0);
            // The next round starts with an empty cache.
            std::fs::remove_dir_all(dir.path().join("cache")).unwrap();
        }
        assert_eq!(failed, 0, "ten tries are enough for three faults");
    }
}
