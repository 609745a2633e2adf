//! The crate as its users see it, on burn's CPU backend.

mod datasets;
mod loaders;
mod tensors;
