//! Batches of [`datapipes`] in candle: without a copy on the CPU, and on a GPU by one upload ahead
//! of the step.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use datapipes::{DataLoader, Graph};
//! use datapipes_candle::CandleLoader;
//!
//! // Samples of four numbers with a label; a batch is a pair of tensors.
//! let samples = Graph::range(0..100).shuffle(100).map(|n| ([n as f32; 4], (n % 10) as u32));
//! let loader = DataLoader::builder(samples.batch(32).collate()).seed(42).build()?;
//!
//! let device = Device::cuda_if_available(0)?;
//! let loader = CandleLoader::new(&loader, &device);
//! for epoch in 0..2 {
//!     for batch in loader.epoch(epoch).blocking() {
//!         let (x, y): (Tensor, Tensor) = batch?;
//!         assert_eq!(x.dims(), [y.elem_count(), 4]);
//!         // let loss = candle_nn::loss::cross_entropy(&model.forward(&x)?, &y)?;
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`CandleLoader`] runs a [`DataLoader`](datapipes::DataLoader) and returns candle's tensors and
//!   candle's errors, as an iterator or a `Stream`.
//! - [`IntoCandle`] converts a batch: tensors, tuples, arrays, `Vec`s, `Option`s and maps of them.
//!   Implement it for a struct of your own, or pass a function to [`CandleLoader::with`].
//! - [`to_candle`] moves one tensor, and documents what is copied.
//!
//! # Types of elements
//!
//! | `datapipes` | candle |
//! |---|---|
//! | `u8`, `u32`, `i16`, `i32`, `i64`, `bf16`, `f16`, `f32`, `f64` | the same |
//! | `bool` | `u8`, 0 and 1 |
//! | `i8`, `u16`, `u64` | none: an error that names the type; or by [`to_candle_widened`] |
//!
//! # On a GPU
//!
//! Enable candle's own features in your `Cargo.toml`, which hold for the whole program:
//! `candle-core = { version = "0.11", features = ["cuda"] }`, or `metal`. Then each batch is
//! uploaded by a thread of its own while the previous step is computed; see
//! [`DataLoader::prefetch_to_device`](datapipes::DataLoader::prefetch_to_device).
//!
//! For NVIDIA's GPUs enable the feature `cuda` of this crate, too. That thread then copies batches
//! to page-locked memory, from which the device fetches them while kernels run. Without it, CUDA's
//! driver copies them, and starts no kernel of the step meanwhile: at 4,000 images per second a
//! step takes up to a sixth longer (see `BENCHMARKS.md`).
//!
//! A CUDA device of candle stands for one stream in each thread: uploads and steps do not wait for
//! each other. One that is made by `Device::new_cuda_with_stream` has a single stream, on which an
//! upload is queued after the kernels of the step.

mod batch;
mod loader;
#[cfg(feature = "cuda")]
mod staging;
mod tensor;

pub use batch::IntoCandle;
pub use loader::{CandleEpoch, CandleLoader};
pub use tensor::{to_candle, to_candle_widened};

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts, when it is compiled, that values move between threads and are shared by them.
    fn shared<T: Send + Sync>() {}
    /// Asserts, when it is compiled, that values move between threads.
    fn sent<T: Send>() {}

    /// An item type that is not `Sync`.
    type Local = std::cell::Cell<u64>;

    #[test]
    fn loaders_are_shared_by_threads_and_epochs_move_between_them() {
        shared::<CandleLoader<Local>>();
        sent::<CandleEpoch<Local>>();
    }
}
