//! Composable, deterministic, resumable data loading as a typed dataflow graph.

#![warn(missing_docs)]

mod chunk;
mod context;
mod error;
mod item;
mod items;
mod pipe;
mod rng;

pub mod graph;
pub mod loader;
pub mod pipes;
pub mod plan;
mod queue;
mod run;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use chunk::Chunk;
pub use context::{Context, Rank, Uneven};
pub use error::{BoxError, Error, ErrorKind, Result};
pub use graph::{BuildError, Graph};
pub use item::{Children, Item, Origin};
pub use items::{Chunks, Demand, Emitter, Items};
pub use loader::{Blocking, DataLoader, Epoch, OnError, Order};
pub use pipe::{Arity, Facts, Inputs, Join, Pipe, Rerun, Role, Source, Split, Upstream, Work};
pub use rng::Rng;
