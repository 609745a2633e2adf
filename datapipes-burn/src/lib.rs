//! Batches of `datapipes` in [burn](https://burn.dev) 0.22.
//!
//! - [`IntoBurn`]: converts a batch to burn's tensors, without a copy of its numbers on the CPU.
//! - [`BurnLoader`]: a loader of this library as one of burn's, for its learner or a loop of your
//!   own.
//! - `resumable_training` (feature `train`): burn's learner with checkpoints in the middle of an
//!   epoch, each with the loader's checkpoint, to resume after a kill.
//! - [`BurnDataset`] and [`FromDataset`]: indexed data, converted from this library to burn and
//!   from burn to this library.
//!
//! ```
//! use std::sync::Arc;
//!
//! use burn_core::data::dataloader::DataLoader as _;
//! use burn_core::tensor::{Device, Int, Tensor};
//! use datapipes::{DataLoader, Graph};
//! use datapipes_burn::BurnLoader;
//!
//! // A batch of samples `(pixels, label)`, each pixel from the sample's own generator.
//! let graph = Graph::range(0..96)
//!     .shuffle(96)
//!     .map_with_rng(|n, rng| ([(); 28 * 28].map(|_| rng.f32()), (n % 10) as i64))
//!     .batch(32)
//!     .collate()
//!     .try_map(|(pixels, labels)| datapipes::Ok((pixels.reshape([32, 1, 28, 28])?, labels)));
//! let loader = DataLoader::builder(graph).seed(42).build()?;
//!
//! // In burn: what a batch becomes is said by its type.
//! type Batch = (Tensor<4>, Tensor<1, Int>);
//! let device = Device::flex();
//! let loader: BurnLoader<_, Batch> = BurnLoader::new(loader, &device).items(96);
//! for _epoch in 0..2 {
//!     for batch in loader.iter() {
//!         let (pixels, labels) = batch?;
//!         assert_eq!((pixels.dims(), labels.dims()), ([32, 1, 28, 28], [32]));
//!     }
//! }
//! println!("{}", loader.waits()); // how long the steps waited for data
//!
//! // For `SupervisedTraining::new(folder, training, validation)`:
//! let training: Arc<dyn burn_core::data::dataloader::DataLoader<Batch>> = Arc::new(loader);
//! assert_eq!(training.num_items(), 96);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Backends
//! This crate selects no backend: it uses the `Device` that it is given. Enable your backend on
//! burn, in your own `Cargo.toml`; the setting holds for the whole program:
//!
//! ```toml
//! burn = { version = "0.22", features = ["cuda", "train", "tui"] }
//! datapipes-burn = "0.1"
//! ```
//!
//! It needs Rust 1.95, as burn does.

#![warn(missing_docs)]

mod batch;
#[cfg(feature = "train")]
mod checkpoints;
mod count;
mod dataset;
mod epoch;
mod loader;
mod tensor;
mod waits;

pub use batch::IntoBurn;
#[cfg(feature = "train")]
pub use checkpoints::resumable_training;
pub use dataset::{BurnDataset, FromDataset};
pub use loader::BurnLoader;
pub use tensor::Kind;
pub use waits::Waits;

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts, when it is compiled, that values move between threads and are shared by them.
    fn shared<T: Send + Sync>() {}

    /// An item type that is not `Sync`.
    type Local = std::cell::Cell<u64>;

    #[test]
    fn loaders_and_data_sets_move_between_threads_and_are_shared_by_them() {
        shared::<BurnLoader<Local, Local>>();
        shared::<BurnDataset<Local>>();
        shared::<FromDataset<dyn burn_core::data::dataset::Dataset<Local>, Local>>();
        shared::<Waits>();
    }
}
