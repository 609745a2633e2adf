//! Resumed epochs of files, archives and their samples; and checkpoints as text.

mod files;
mod json;
mod shards;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use datapipes::loader::Builder;
use datapipes::{Checkpoint, DataLoader, Graph, OnError, Result};
use datapipes_io::stores::{Get, InMemory, Meta, Object, Store};
use futures::stream::BoxStream;

/// A store that counts its requests.
#[derive(Clone, Debug)]
struct Counting {
    store: InMemory,
    gets: Arc<AtomicU64>,
    keys: Arc<Mutex<Vec<String>>>,
}

impl Counting {
    fn new(store: InMemory) -> Self {
        Counting {
            store,
            gets: Arc::default(),
            keys: Arc::default(),
        }
    }

    /// Returns the number of requests since the last call, and the number of objects they were for.
    fn counted(&self) -> (u64, usize) {
        let mut keys = std::mem::take(&mut *self.keys.lock().unwrap());
        keys.sort();
        keys.dedup();
        (self.gets.swap(0, SeqCst), keys.len())
    }
}

#[async_trait::async_trait]
impl Store for Counting {
    fn url(&self) -> &str {
        self.store.url()
    }
    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        self.gets.fetch_add(1, SeqCst);
        self.keys.lock().unwrap().push(key.to_owned());
        self.store.get(key, get).await
    }
    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        self.store.list(prefix)
    }
    fn folder(&self) -> Option<&Path> {
        None
    }
}

fn builder<T: Send + 'static>(graph: &Graph<T>, workers: usize) -> Builder<T> {
    DataLoader::builder(graph.clone())
        .seed(11)
        .workers(workers)
        .on_error(OnError::skip(1000))
        .resumable()
}

fn loader<T: Send + 'static>(graph: &Graph<T>, workers: usize) -> DataLoader<T> {
    builder(graph, workers).concurrency(2).build().unwrap()
}

fn all<T: Send + 'static>(epoch: datapipes::Epoch<T>) -> Vec<T> {
    epoch.blocking().map(Result::unwrap).collect()
}

/// Returns the first `stop` items of epoch 1, and the checkpoint after them, read back from its
/// bytes.
fn begun<T: Send + 'static>(loader: &DataLoader<T>, stop: usize) -> (Vec<T>, Checkpoint) {
    let mut epoch = loader.epoch(1).blocking();
    let first = epoch.by_ref().take(stop).map(Result::unwrap).collect();
    let state = epoch.checkpoint().unwrap();
    (first, Checkpoint::from_bytes(&state.to_bytes()).unwrap())
}

/// Checks that an epoch gives the same items with interruptions as without: stopped after the first
/// items, after the last ones and in between, stopped again two items later, and resumed each time
/// with another number of workers.
fn goes_on<T: PartialEq + std::fmt::Debug + Send + 'static>(graph: &Graph<T>) {
    let whole = all(loader(graph, 0).epoch(1));
    assert!(whole.len() > 3);
    for (one, other) in [(0, 0), (0, 2), (2, 0), (2, 2)] {
        let between = (3..whole.len() - 2).step_by(whole.len() / 9 + 1);
        for stop in (0..3)
            .chain(between)
            .chain(whole.len() - 2..=whole.len() + 1)
        {
            let (mut seen, state) = begun(&loader(graph, one), stop);
            // Without a number of requests workers read local files.
            let near = builder(graph, other).build().unwrap();
            let mut epoch = near.resume(&state).unwrap().blocking();
            seen.extend(epoch.by_ref().take(2).map(Result::unwrap));
            let state = epoch.checkpoint().unwrap();
            drop(epoch);
            seen.extend(all(loader(graph, one).resume(&state).unwrap()));
            assert_eq!(
                seen, whole,
                "stopped at {stop}, workers {one} and {other}, {state:?}"
            );
        }
    }
}
