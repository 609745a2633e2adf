//! Indexed data, cached in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tokio::sync::OnceCell;

use super::Lookup;
use super::order::Index;
use super::transformed::IndexLookup;
use crate::{Result, Revision, lock};

/// Keeps samples in memory, as many as fit into a number of bytes.
///
/// A cached sample is never evicted: in passes that read every sample once, replacing one sample by
/// another never pays (Mohan et al. 2021, "Analyzing and Mitigating Data Stalls in DNN Training").
pub(super) struct Cached<T> {
    above: IndexLookup<T>,
    bytes: usize,
    kept: Mutex<CachedSamples<T>>,
}

struct CachedSamples<T> {
    cells: HashMap<Index, Arc<OnceCell<T>>>,
    bytes: usize,
}

impl<T> Cached<T> {
    pub(super) fn new(above: IndexLookup<T>, bytes: usize) -> Self {
        Cached {
            above,
            bytes,
            kept: Mutex::new(CachedSamples {
                cells: HashMap::new(),
                bytes: 0,
            }),
        }
    }
}

impl<T: Clone + Send + Sync + 'static> Cached<T> {
    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        lock(&self.kept).cells.len()
    }

    /// Accounts for a new sample, or removes its cell if there is no room. Callers that wait for
    /// the cell still receive the sample.
    fn keep(&self, key: &Index, sample: &T) {
        let own = size_of::<(Index, Arc<OnceCell<T>>)>() + size_of::<OnceCell<T>>();
        let weight = self
            .above
            .weigh(sample)
            .unwrap_or(size_of_val(sample))
            .saturating_add(own);
        let mut kept = lock(&self.kept);
        match kept
            .bytes
            .checked_add(weight)
            .filter(|&bytes| bytes <= self.bytes)
        {
            Some(bytes) => kept.bytes = bytes,
            None => drop(kept.cells.remove(key)),
        }
    }
}

/// Removes a cell whose read did not succeed: it failed, or its caller was dropped.
struct Asking<'a, T: Clone + Send + Sync + 'static> {
    cache: &'a Cached<T>,
    key: Index,
    cell: Arc<OnceCell<T>>,
}

impl<T: Clone + Send + Sync + 'static> Drop for Asking<'_, T> {
    fn drop(&mut self) {
        if self.cell.initialized() {
            return;
        }
        let mut kept = lock(&self.cache.kept);
        // One reference in the map and this one: nobody else waits for the cell.
        if Arc::strong_count(&self.cell) == 2
            && kept
                .cells
                .get(&self.key)
                .is_some_and(|cell| Arc::ptr_eq(cell, &self.cell))
        {
            kept.cells.remove(&self.key);
        }
    }
}

#[async_trait]
impl<T: Clone + Send + Sync + 'static> Lookup<Index> for Cached<T> {
    type Out = T;

    async fn get(&self, key: Index) -> Result<T> {
        let cell = lock(&self.kept)
            .cells
            .entry(key.clone())
            .or_default()
            .clone();
        if let Some(sample) = cell.get() {
            return Ok(sample.clone());
        }
        let asking = Asking {
            cache: self,
            key,
            cell,
        };
        // Concurrent callers wait. If this read fails or is dropped, the next caller reads.
        let sample = asking.cell.get_or_try_init(|| async {
            let sample = self.above.get(asking.key.clone()).await?;
            self.keep(&asking.key, &sample);
            Ok(sample)
        });
        sample.await.cloned()
    }
    forward! { self.above =>
        fn name(&self) -> String;
        fn sample_name(&self, key: &Index) -> Option<Arc<str>>;
        fn revision(&self) -> Revision;
        fn seldom_waits(&self) -> bool;
        fn weigh(&self, sample: &T) -> Option<usize>;
    }
}
