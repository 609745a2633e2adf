//! The public API, on burn's CPU backend.

mod datasets;
#[cfg(feature = "train")]
mod killed;
mod loaders;
mod packed;
mod tensors;
