//! Cache of the content of shards.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use datapipes::{Result, lock};
use tokio::sync::OnceCell;

use super::table::Table;

/// Data that were read of a shard.
#[derive(Clone, Debug)]
pub(super) struct Loaded {
    pub(super) table: Table,
    /// The whole shard, if it is compressed.
    pub(super) data: Option<Bytes>,
}

impl Loaded {
    fn weight(&self) -> usize {
        self.data.as_ref().map_or(self.table.weight(), Bytes::len)
    }
}

/// Cache of the most recently used shards. A shard is read once even if several callers wait for
/// it.
#[derive(Debug)]
pub(super) struct Cache {
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    slots: HashMap<usize, Slot>,
    bytes: usize,
    /// Counter that increases with every use.
    clock: u64,
}

#[derive(Debug, Default)]
struct Slot {
    cell: Arc<OnceCell<Loaded>>,
    used: u64,
    /// Size in bytes; zero until the shard is read.
    weight: usize,
}

impl Cache {
    pub(super) fn new(most: usize) -> Self {
        Cache {
            most,
            state: Mutex::default(),
        }
    }

    /// Returns the data of a shard, reading it if necessary.
    pub(super) async fn get(
        &self,
        shard: usize,
        load: impl Future<Output = Result<Loaded>>,
    ) -> Result<Loaded> {
        let cell = {
            let mut state = lock(&self.state);
            state.clock += 1;
            let clock = state.clock;
            let slot = state.slots.entry(shard).or_default();
            slot.used = clock;
            slot.cell.clone()
        };
        if let Some(loaded) = cell.get() {
            return Ok(loaded.clone());
        }
        // If this read fails or is dropped, the next waiting caller tries.
        let loaded = cell.get_or_try_init(|| load).await?.clone();
        self.keep(shard, &cell, loaded.weight());
        Ok(loaded)
    }

    /// Adds the size of a shard, and evicts the least recently used others until the cache fits.
    fn keep(&self, shard: usize, cell: &Arc<OnceCell<Loaded>>, weight: usize) {
        let mut state = lock(&self.state);
        let state = &mut *state;
        match state.slots.get_mut(&shard) {
            Some(slot) if Arc::ptr_eq(&slot.cell, cell) && slot.weight == 0 => slot.weight = weight,
            _ => return,
        }
        state.bytes += weight;
        while state.bytes > self.most {
            let others = state
                .slots
                .iter()
                .filter(|(other, slot)| **other != shard && slot.weight > 0);
            let Some((&oldest, _)) = others.min_by_key(|(_, slot)| slot.used) else {
                break;
            };
            if let Some(slot) = state.slots.remove(&oldest) {
                state.bytes -= slot.weight;
            }
        }
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (
            state.slots.values().filter(|slot| slot.weight > 0).count(),
            state.bytes,
        )
    }
}
