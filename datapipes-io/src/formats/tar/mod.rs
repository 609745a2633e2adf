//! Tar archives: read as they arrive, by index, and written.

mod ends;
mod feed;
mod header;
mod index;
mod indexed;
mod sample_writer;
mod shard_writer;
mod stream;
#[cfg(test)]
mod tests;
mod untar;
mod walk;
mod writer;

pub use ends::Trailing;
pub use index::{TarIndex, TarMember};
pub use indexed::{IndexedSamples, IndexedTar};
pub use sample_writer::SampleWriter;
pub use shard_writer::{Shard, ShardWriter};
pub use stream::StreamUntar;
pub use untar::{Tar, Untar};
pub use writer::TarWriter;
