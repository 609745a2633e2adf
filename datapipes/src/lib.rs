//! Composable, deterministic, resumable data loading as a typed dataflow graph.

#![warn(missing_docs)]

mod context;
mod error;
mod item;
mod items;
mod pipe;
mod rng;
mod tensor;

pub mod graph;
pub mod loader;
pub mod pipes;
pub mod plan;
mod queue;
mod run;

pub use context::{Context, Rank, Uneven};
pub use error::{BoxError, Error, ErrorKind, Result};
pub use graph::{BuildError, Graph};
pub use item::{Children, Item, Origin};
pub use items::{Chunk, Chunks, Demand, Emitter, Items};
pub use loader::{Blocking, DataLoader, Epoch, OnError, Order};
pub use pipe::{Arity, Facts, Inputs, Join, Pipe, Rerun, Role, Source, Split, Upstream, Work};
pub use rng::Rng;
pub use tensor::{DType, Element, Mismatch, Tensor, TypedVec};
