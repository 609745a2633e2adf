//! The built-in pipes: one file each, with the method that adds it to a [`Graph`](crate::Graph).

mod batch;
mod bucket_batch;
mod collate;
mod enumerate;
mod filter;
mod flat_map;
mod inspect;
mod map;
mod map_async;
mod padded_batch;
mod prefetch;
mod repeat;
mod scan;
mod shuffle;
mod skip;
mod sources;
mod take;
mod unbatch;

pub use batch::Batch;
pub use bucket_batch::BucketBatch;
pub use collate::{Collate, CollateWith};
pub use enumerate::Enumerate;
pub use filter::Filter;
pub use flat_map::FlatMap;
pub use inspect::Inspect;
pub use map::{Map, MapRandom, TryMap};
pub use map_async::MapAsync;
pub use padded_batch::Pad;
pub use prefetch::Prefetch;
pub use repeat::Repeat;
pub use scan::Scan;
pub use shuffle::Shuffle;
pub use skip::Skip;
pub use sources::{FromIterator, FromStream};
pub use take::Take;
pub use unbatch::Unbatch;
