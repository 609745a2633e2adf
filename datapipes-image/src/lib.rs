//! Pictures for `datapipes`: decoding and augmentation, as plain functions and as steps of a graph.
//!
//! - **Decode** JPEG and PNG to 8-bit RGB: [`decode`], [`DecodeImage`]. What is cut short or damaged is an error,
//!   never a picture with a grey lower half; what would not fit in memory is refused from its header.
//! - **Transform**: [`resize`], [`resize_shorter`], [`crop`], [`center_crop`], [`random_resized_crop`], [`hflip`],
//!   [`to_tensor`]. All are functions of an [`Image`] (and a [`Rng`](datapipes::Rng) where they are random), for
//!   use in [`map_random`](datapipes::Graph::map_random) on samples of any type.
//! - **Colours**, as torchvision makes them of `uint8` tensors: [`adjust_brightness`], [`adjust_contrast`],
//!   [`adjust_saturation`], [`adjust_hue`], [`adjust_sharpness`], [`grayscale`], [`invert`], [`posterize`], [`solarize`],
//!   [`autocontrast`], [`equalize`]; at random, [`ColorJitter`], [`random_grayscale`], [`RandomErasing`] and the policies
//!   [`RandAugment`] and [`TrivialAugmentWide`].
//! - **Mix** pictures and labels of a batch: [`MixUp`], [`CutMix`], [`RandomMix`], [`OneHot`].
//! - **In a graph** of pictures alone, the methods of [`DecodeGraph`], [`ImageGraph`] and [`ColorGraph`] say the same;
//!   those of [`EraseGraph`] are also for tensors, those of [`BatchGraph`] for batches.
//!
//! ```
//! use bytes::Bytes;
//! use datapipes::{Graph, Tensor};
//! use datapipes_image::prelude::*;
//!
//! # let mut file = Vec::new();
//! # jpeg_encoder::Encoder::new(&mut file, 90).encode(&[99; 64 * 48 * 3], 64, 48, jpeg_encoder::ColorType::Rgb)?;
//! let files: Graph<Bytes> = Graph::from_vec(vec![Bytes::from(file)]);
//! let training: Graph<Tensor> = files
//!     .decode_image()
//!     .random_resized_crop(224)
//!     .random_hflip(0.5)
//!     .to_tensor(Normalize::IMAGENET);
//! assert_eq!(training.collect()?[0].shape(), [3, 224, 224]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The same on samples that carry a label, with closures:
//!
//! ```
//! # use datapipes::{Graph, Tensor};
//! # use datapipes_image::{Normalize, decode, hflip, random_resized_crop, to_tensor};
//! # let mut file = Vec::new();
//! # jpeg_encoder::Encoder::new(&mut file, 90).encode(&[99; 64 * 48 * 3], 64, 48, jpeg_encoder::ColorType::Rgb)?;
//! let samples: Graph<(Vec<u8>, u64)> = Graph::from_vec(vec![(file, 7)]);
//! let training = samples.try_map_random(|(file, label), rng| {
//!     let mut image = random_resized_crop(&decode(&file)?, 224, rng)?;
//!     if rng.chance(0.5) {
//!         hflip(&mut image);
//!     }
//!     datapipes::Ok((to_tensor(&image, &Normalize::IMAGENET)?, label))
//! });
//! assert_eq!(training.collect()?[0].1, 7);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adjust;
mod crop;
mod decode;
mod erase;
mod graph;
mod gray;
mod hue;
mod image;
mod jitter;
mod mix;
mod planes;
mod policy;
mod portable;
mod random;
mod resize;
mod tensor;
mod tone;

pub use crate::adjust::{adjust_brightness, adjust_contrast, adjust_saturation, adjust_sharpness};
pub use crate::crop::{Rect, center_crop, crop, hflip};
pub use crate::decode::{DecodeImage, ImageFormat, decode, dimensions};
pub use crate::erase::RandomErasing;
pub use crate::graph::{BatchGraph, ColorGraph, EraseGraph};
pub use crate::graph::{DecodeGraph, ImageGraph};
pub use crate::gray::{grayscale, random_grayscale};
pub use crate::hue::adjust_hue;
pub use crate::image::Image;
pub use crate::jitter::ColorJitter;
pub use crate::mix::{CutMix, MixUp, OneHot, RandomMix, one_hot};
pub use crate::policy::{RandAugment, TrivialAugmentWide};
pub use crate::random::{RandomResizedCrop, random_resized_crop};
pub use crate::resize::{Filter, resize, resize_shorter, resized_crop};
pub use crate::tensor::{EXTENSIONS, Normalize, decode_tensor, to_tensor, to_tensor_u8};
pub use crate::tone::{autocontrast, equalize, invert, posterize, solarize};

/// What a graph of pictures needs in scope.
pub mod prelude {
    pub use crate::{BatchGraph, ColorGraph, ColorJitter, CutMix, EraseGraph, MixUp, OneHot};
    pub use crate::{DecodeGraph, DecodeImage, Filter, Image, ImageGraph, Normalize, RandomResizedCrop};
    pub use crate::{RandAugment, RandomErasing, RandomMix, TrivialAugmentWide};
}
