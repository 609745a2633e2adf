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
        fn url(&self) -> &str {
            self.$($inner)+.url()
        }

        fn url_of(&self, key: &str) -> String {
            self.$($inner)+.url_of(key)
        }

        fn identity(&self) -> String {
            self.$($inner)+.identity()
        }

        fn folder(&self) -> Option<&std::path::Path> {
            None
        }
    };
}

mod bucket;
mod controller;
mod disk_cache;
mod flight;
mod hedge;
mod limit;
mod memory_cache;
mod prefix;
mod rate;
mod retry;
mod timeout;
mod verify;

pub use disk_cache::DiskCache;
pub use hedge::{Hedge, Tail};
pub use limit::{InFlight, Limit};
pub use memory_cache::{Evict, MemoryCache};
pub use prefix::Prefix;
pub use rate::{PerSecond, Rate};
pub use retry::Retry;
pub use timeout::{Patience, Timeout};
pub use verify::{Expected, Verify};

use std::collections::HashMap;
use std::path::Path;

use datapipes::{Backoff, Result};

use super::Store;

/// Wraps a remote store that has timeouts of its own in the usual stack: transient errors are
/// retried and cut bodies resumed ([`Retry`]), and there is no limit to the requests in flight
/// until the service is overloaded the first time ([`InFlight::OnOverload`]).
pub fn resilient<S: Store>(store: S) -> Retry<Limit<S>> {
    store.limit(InFlight::OnOverload).retry(Backoff::default())
}

/// Wrappers as methods of every store.
///
/// # Examples
/// ```
/// use datapipes::Backoff;
/// use datapipes_io::stores::wrappers::InFlight;
/// use datapipes_io::stores::{Memory, Store, StoreExt};
/// # futures::executor::block_on(async {
/// let far = Memory::from_iter([("train/1.txt", "one"), ("test/1.txt", "two")]);
/// let store = far.prefix("train").limit(InFlight::Adaptive { most: 256 }).retry(Backoff::default());
/// assert_eq!(store.url_of("1.txt"), "memory:///train/1.txt");
/// assert_eq!(store.read("1.txt").await?, "one");
/// # datapipes::Ok(()) }).unwrap();
/// ```
pub trait StoreExt: Store + Sized {
    /// Retries transient errors, and resumes bodies that were cut.
    ///
    /// # Examples
    /// ```
    /// # use datapipes::Backoff;
    /// # use datapipes_io::stores::{Memory, Store, StoreExt};
    /// # futures::executor::block_on(async {
    /// let store = Memory::from_iter([("k", "v")]).retry(Backoff { tries: 3, ..Backoff::default() });
    /// assert_eq!(store.read("k").await?, "v");
    /// # datapipes::Ok(()) }).unwrap();
    /// ```
    fn retry(self, backoff: Backoff) -> Retry<Self> {
        Retry::new(self, backoff)
    }

    /// Ends requests that make no progress: no answer, a stall, a trickle.
    fn timeout(self, patience: Patience) -> Timeout<Self> {
        Timeout::new(self, patience)
    }

    /// Limits the number of requests in flight, to a fixed or an adaptive number.
    fn limit(self, most: InFlight) -> Limit<Self> {
        Limit::new(self, most)
    }

    /// Makes a second request for the slowest reads.
    fn hedge(self, tail: Tail) -> Hedge<Self> {
        Hedge::new(self, tail)
    }

    /// Limits the requests and bytes per second.
    fn rate(self, most: PerSecond) -> Rate<Self> {
        Rate::new(self, most)
    }

    /// Returns the part of the store whose keys begin with `prefix` and a `/`, with the rest of
    /// each key as the key.
    fn prefix(self, prefix: &str) -> Prefix<Self> {
        Prefix::new(self, prefix)
    }

    /// Returns only objects with the size and the hash that a manifest contains for their key.
    fn verify(self, manifest: HashMap<String, Expected>) -> Verify<Self> {
        Verify::new(self, manifest)
    }

    /// Caches whole objects in memory, up to `limit` bytes.
    ///
    /// # Examples
    /// ```
    /// # use datapipes_io::stores::{Memory, Store, StoreExt, wrappers::Evict};
    /// # futures::executor::block_on(async {
    /// let far = Memory::from_iter([("k", "v")]);
    /// let store = far.clone().cache_in_memory(1 << 30, Evict::Never);
    /// store.read("k").await?;
    /// far.remove("k");
    /// assert_eq!(store.read("k").await?, "v");
    /// # datapipes::Ok(()) }).unwrap();
    /// ```
    fn cache_in_memory(self, limit: u64, evict: Evict) -> MemoryCache<Self> {
        MemoryCache::new(self, limit, evict)
    }

    /// Caches objects in a folder, up to `limit` bytes, for this run and later ones.
    ///
    /// # Errors
    /// `Denied` if the folder is not private to this user; `Io` and others if it cannot be created
    /// or read.
    ///
    /// # Examples
    /// ```
    /// # use datapipes_io::stores::{Memory, Store, StoreExt};
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// let folder = dir.path().join("cache");
    /// let far = Memory::from_iter([("k", "v")]);
    /// far.clone().cache_on_disk(&folder, 10 << 30)?.read("k").await?;
    /// far.remove("k");
    /// assert_eq!(far.cache_on_disk(&folder, 10 << 30)?.read("k").await?, "v");
    /// # datapipes::Ok(()) }).unwrap();
    /// ```
    fn cache_on_disk(self, folder: impl AsRef<Path>, limit: u64) -> Result<DiskCache<Self>> {
        DiskCache::new(self, folder, limit)
    }
}

impl<S: Store> StoreExt for S {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::stores::Memory;
    use crate::testing::{Reaction, Scripted, check_store, fixtures};

    const MS: Duration = Duration::from_millis(1);

    /// Stacks all wrappers in the order of the table.
    fn stack<S: Store>(store: S, dir: &tempfile::TempDir) -> impl Store + use<S> {
        store
            .prefix("")
            .timeout(Patience::default())
            .rate(PerSecond {
                requests: 1e5,
                bytes: 1e9,
            })
            .limit(InFlight::Adaptive { most: 100 })
            .retry(Backoff::default())
            .hedge(Tail::default())
            .verify(HashMap::new())
            .cache_on_disk(dir.path().join("cache"), 1 << 22)
            .expect("a new folder")
            .cache_in_memory(1 << 20, Evict::Oldest)
    }

    #[tokio::test]
    async fn stacks_keep_the_contract_of_a_store() {
        let dir = tempfile::tempdir().unwrap();
        check_store(&resilient(Memory::from_iter(fixtures()))).await;
        let store = stack(Memory::from_iter(fixtures()), &dir);
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
            .timeout(Patience::default())
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
