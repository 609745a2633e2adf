//! MDS: the shards of MosaicML's `streaming`, by index or as a stream.
//!
//! Layout of a shard: `u32` n | `u32` offset of each of n samples and of the end, from the start of
//! the file | JSON with the columns | samples, all little endian. A sample has a `u32` size for
//! each column whose size is not fixed, then the columns. `index.json` beside the shards tells
//! their names, sizes, compression, numbers of samples and columns. Source:
//! `streaming/base/format/mds` of mosaicml-streaming 0.13.

mod cache;
mod columns;
mod data;
mod encoding;
mod hash;
mod index;
mod packing;
mod sample;
mod shards;
mod table;

pub use data::Mds;
pub use index::MdsIndex;
pub use sample::{MdsImage, MdsSample, MdsValue};
pub use shards::MdsShards;

/// Version of the layout, of index and of shards.
const VERSION: u64 = 2;

#[cfg(test)]
mod tests;
