//! Tar archives: read as they arrive, by index, and written.

mod feed;
mod header;
mod untar;
mod walk;

pub use untar::{Tar, Untar};
