//! Composable, deterministic, resumable data loading as a typed dataflow graph.

#![warn(missing_docs)]

mod chunk;
mod collate;
mod context;
mod error;
mod item;
mod items;
mod pipe;
mod rng;
mod settings;
mod tensor;

pub mod graph;
pub mod loader;
pub mod pipes;
pub mod plan;
mod queue;
mod run;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use chunk::Chunk;
pub use collate::{Collate, Sequence};
pub use context::{Context, Rank, Uneven};
/// Makes a batch type of a struct; see the trait [`Collate`].
#[cfg(feature = "derive")]
pub use datapipes_derive::Collate;
pub use error::{BoxError, Error, ErrorKind, Ok, Result};
pub use graph::{BuildError, Graph};
pub use item::{Children, Item, Origin};
pub use items::{Chunks, Demand, Emitter, Items};
pub use loader::{Blocking, DataLoader, Epoch, OnError};
pub use pipe::{Arity, Facts, Inputs, Join, Pipe, Rerun, Role, Source, Split, Upstream, Work};
pub use rng::Rng;
pub use settings::Order;
pub use tensor::{DType, Element, Mismatch, Tensor, TypedVec};

/// What derived code calls; no part of the interface.
#[doc(hidden)]
pub mod derived {
    pub use crate::collate::{field, named};
}
