//! Deduplication of concurrent requests for the same object. Their number is limited by
//! [`limit`](super::limit).

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use datapipes::{Result, lock};

/// Requests in flight, by their key.
#[derive(Debug)]
pub(super) struct Flights<K, V>(Mutex<HashMap<K, Arc<tokio::sync::Mutex<Option<V>>>>>);

impl<K, V> Default for Flights<K, V> {
    fn default() -> Self {
        Flights(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash, V: Clone> Flights<K, V> {
    /// Returns the result of `fetch`, or the result of an earlier concurrent call for the same key.
    /// An error goes only to the caller that met it: the next caller in line makes the request
    /// itself, also if the previous caller was dropped.
    pub(super) async fn join(
        &self,
        key: &K,
        fetch: impl Future<Output = Result<V>> + Send,
    ) -> Result<V> {
        let flight = {
            let mut flights = lock(&self.0);
            flights.entry(key.clone()).or_default().clone()
        };
        let _landing = Landing {
            flights: self,
            key,
            flight: Some(flight.clone()),
        };
        let mut place = flight.lock_owned().await;
        if let Some(value) = &*place {
            return Ok(value.clone());
        }
        let value = fetch.await?;
        *place = Some(value.clone());
        Ok(value)
    }
}

/// Guard by which the last caller removes the entry.
struct Landing<'a, K: Eq + Hash, V> {
    flights: &'a Flights<K, V>,
    key: &'a K,
    flight: Option<Arc<tokio::sync::Mutex<Option<V>>>>,
}

impl<K: Eq + Hash, V> Drop for Landing<'_, K, V> {
    fn drop(&mut self) {
        let mut flights = lock(&self.flights.0);
        drop(self.flight.take());
        // Other callers join only under the lock.
        if flights
            .get(self.key)
            .is_some_and(|flight| Arc::strong_count(flight) == 1)
        {
            flights.remove(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use datapipes::{Error, ErrorKind};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_asks_for_all_and_an_error_is_for_one() {
        let flights = Flights::<&str, u32>::default();
        let calls = AtomicUsize::new(0);
        let fetch = async |fail: usize| {
            tokio::time::sleep(Duration::from_millis(5)).await;
            match calls.fetch_add(1, Ordering::Relaxed) < fail {
                true => Err(Error::new(ErrorKind::Io, "no")),
                false => Ok(7),
            }
        };
        let all = futures::future::join_all((0..10).map(|_| flights.join(&"k", fetch(0)))).await;
        assert!(all.into_iter().all(|value| value.unwrap() == 7));
        assert_eq!(calls.swap(0, Ordering::Relaxed), 1);

        let all = futures::future::join_all((0..10).map(|_| flights.join(&"k", fetch(3)))).await;
        assert_eq!(all.iter().filter(|value| value.is_err()).count(), 3);
        assert_eq!(calls.swap(0, Ordering::Relaxed), 4);

        let mut first = Box::pin(flights.join(&"k", fetch(0)));
        assert!(futures::poll!(&mut first).is_pending());
        let mut second = Box::pin(flights.join(&"k", fetch(0)));
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        assert_eq!(second.await.unwrap(), 7);
        assert!(flights.0.lock().unwrap().is_empty());
    }
}
