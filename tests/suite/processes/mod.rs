//! Parts of graphs in processes of their own.

#![expect(
    clippy::ptr_arg,
    reason = "functions of parts get a reference to the type of the settings as it is"
)]

mod crimes;
mod crossing;
mod faults;
mod gates;
mod killed;
mod parents;
mod placing;
mod ready;
mod resuming;
mod rows;
mod scribbles;
mod shapes;
mod soak;
mod starting;

use datapipes::{DataLoader, Graph, OnError};

/// Runs an epoch that skips up to so many items, and returns what came out of it.
fn skipping<T: Send + 'static>(graph: Graph<T>, items: u64) -> (DataLoader<T>, Vec<T>) {
    let loader = DataLoader::builder(graph)
        .on_error(OnError::skip(items))
        .build()
        .unwrap();
    let epoch = loader.epoch(0).blocking();
    let delivered = epoch.collect::<datapipes::Result<_>>().unwrap();
    (loader, delivered)
}

/// The children of the first segment in processes, by their places.
fn pids<T: Send + 'static>(loader: &DataLoader<T>) -> Vec<u32> {
    let stats = loader.stats().expect("an epoch ran");
    let processes = stats
        .segments
        .iter()
        .find_map(|segment| segment.processes.as_ref());
    let mut children: Vec<_> = processes
        .expect("there are processes")
        .children
        .iter()
        .map(|child| (child.place, child.process))
        .collect();
    children.sort_unstable();
    children.into_iter().map(|(_, pid)| pid).collect()
}
