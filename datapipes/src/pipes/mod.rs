//! The built-in pipes: one file each, with the method that adds it to a [`Graph`](crate::Graph).

mod batch;
mod filter;
mod map;
mod shuffle;
mod sources;

pub use batch::Batch;
pub use filter::Filter;
pub use map::{Map, MapRandom, TryMap};
pub use shuffle::Shuffle;
pub use sources::{FromIterator, FromStream};
