//! Language data for `datapipes`: from texts to packed, masked batches.
//!
//! - **Pack** documents into rows of a fixed length, with labels, positions and the bounds of
//!   documents: [`PackGraphExt::pack`], [`Pack`]. Attention masks are made from the bounds alone:
//!   [`attention_mask`], [`PackedBatch::mask`].

mod document;
mod mask;
mod pack;
mod packed;

pub use document::{Document, Tokens};
pub use mask::{Attention, MaskForm, attention_mask};
pub use pack::{Labels, Overflow, Pack, PackGraphExt};
pub use packed::{Packed, PackedBatch};

/// Traits with the methods that this crate adds to a [`Graph`](datapipes::Graph).
pub mod prelude {
    pub use crate::PackGraphExt;
}
