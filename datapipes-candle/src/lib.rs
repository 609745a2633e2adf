//! Batches of [`datapipes`] in candle: without a copy on the CPU, by one upload ahead of the step
//! on a GPU.
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
//! - [`CandleLoader`] runs a [`DataLoader`](datapipes::DataLoader) and gives candle's tensors and
//!   candle's errors: an iterator, or a `Stream`.
//! - [`IntoCandle`] says what becomes of a batch: tensors, tuples, arrays, `Vec`s, `Option`s and
//!   maps of them. Implement it for a struct of your own, or give [`CandleLoader::with`] a
//!   function.
//! - [`to_candle`] moves one tensor, and says what is copied.
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
//! This crate has no features. Switch on candle's own in your `Cargo.toml`, which holds for all
//! that use it: `candle-core = { version = "0.11", features = ["cuda"] }`, or `metal`. Then each
//! batch is uploaded by a thread of its own while the step before is computed; see
//! [`DataLoader::prefetch_to_device`](datapipes::DataLoader::prefetch_to_device).
//!
//! A CUDA device of candle has one stream, which all threads share: an upload is queued after the
//! kernels of the step, and the next kernels wait for it. With bytes instead of floats that costs
//! some per cent of a fast step; see `BENCHMARKS.md`.

mod batch;
mod loader;
mod tensor;

pub use batch::IntoCandle;
pub use loader::{CandleAgreed, CandleBlocking, CandleEpoch, CandleLoader};
pub use tensor::{to_candle, to_candle_widened};
