//! Images for `datapipes`: decoding and augmentation, as plain functions and as steps of a graph.
//!
//! - **Decode** JPEG, PNG, WebP, GIF, BMP and TIFF to 8-bit RGB: [`decode()`], [`DecodeImage`].
//!   Truncated or damaged files are an error, never an image with a grey lower half. Images that
//!   would not fit in memory are refused after their header was read.
//! - **All in one step**, from files to the rows of a batch, without intermediate images:
//!   [`ImageRows`]. This is the fastest way.
//! - **Transform**: [`resize()`], [`resize_shorter`], [`crop()`], [`center_crop`], [`five_crop`],
//!   [`random_crop`], [`random_resized_crop`], [`pad()`], [`hflip`], [`vflip`], [`rotate`],
//!   [`affine()`], [`random_rotation`], [`random_affine`], [`gaussian_blur`], [`to_tensor`]. All
//!   are functions of an [`Image`] (and a [`Rng`](datapipes::Rng) if they are random), for use in
//!   [`map_with_rng`](datapipes::Graph::map_with_rng) on samples of any type.
//! - **Colours**, with the results of torchvision on `uint8` tensors: [`adjust_brightness`],
//!   [`adjust_contrast`], [`adjust_saturation`], [`adjust_hue`], [`adjust_sharpness`],
//!   [`grayscale`], [`invert`], [`posterize`], [`solarize`], [`autocontrast`], [`equalize`]; at
//!   random, [`ColorJitter`], [`random_grayscale`], [`RandomGaussianBlur`], [`RandomErasing`] and
//!   the policies [`RandAugment`] and [`TrivialAugmentWide`].
//! - **Targets** move with their image: a [`Mask`], [`Boxes`] or [`Keypoints`] go through the same
//!   [`Geometry`], which is drawn once. [`Mask::decode`] reads the classes in a PNG.
//! - **Mix** images and labels of a batch: [`MixUp`], [`CutMix`], [`RandomMix`], [`OneHot`].
//! - **In a graph** of images alone, the methods of [`DecodeGraphExt`], [`ImageGraphExt`] and
//!   [`ImageRowsGraphExt`] do the same. The methods of [`EraseGraphExt`] also work on tensors, those of
//!   [`BatchGraphExt`] on batches.
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
//! The same pipeline with closures, on samples with a label:
//!
//! ```
//! # use datapipes::{Graph, Tensor};
//! # use datapipes_image::{Normalize, decode, hflip, random_resized_crop, to_tensor};
//! # let mut file = Vec::new();
//! # jpeg_encoder::Encoder::new(&mut file, 90).encode(&[99; 64 * 48 * 3], 64, 48, jpeg_encoder::ColorType::Rgb)?;
//! let samples: Graph<(Vec<u8>, u64)> = Graph::from_vec(vec![(file, 7)]);
//! let training = samples.try_map_with_rng(|(file, label), rng| {
//!     let mut image = random_resized_crop(&decode(&file)?, 224, rng)?;
//!     if rng.chance(0.5) {
//!         hflip(&mut image);
//!     }
//!     datapipes::Ok((to_tensor(&image, &Normalize::IMAGENET)?, label))
//! });
//! assert_eq!(training.collect()?[0].1, 7);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//! - `turbo`: decodes JPEGs with libjpeg-turbo and SIMD; see [`DecodeImage`]. The library is built
//!   from the source in `turbojpeg-sys`, which needs a C compiler, cmake and, on x86, nasm (on
//!   Debian, `apt install build-essential cmake nasm`). If one is missing, the build of
//!   `turbojpeg-sys` reports "is `cmake` not installed?", or "No CMAKE_ASM_NASM_COMPILER could be
//!   found", which is nasm. It never falls back to a decoder without SIMD. Programs with this
//!   feature contain work of the Independent JPEG Group, whose licence asks for an acknowledgement.

mod blur;
mod color;
mod crop;
mod decode;
mod erase;
mod geometry;
mod graph_ext;
mod image;
mod layout;
mod mix;
mod policy;
mod portable;
mod random;
mod resize;
mod rows;
mod targets;
mod tensor;

pub use crate::blur::{RandomGaussianBlur, gaussian_blur};
pub use crate::color::{
    ColorJitter, adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation,
    adjust_sharpness, autocontrast, equalize, grayscale, invert, posterize, random_grayscale,
    solarize,
};
pub use crate::crop::{Rect, center_crop, crop, five_crop, hflip, vflip};
pub use crate::decode::{DecodeImage, ImageFormat, decode, decode_jpeg_part, dimensions};
pub use crate::erase::RandomErasing;
pub use crate::geometry::{
    Affine, Border, Draw, Fill, Geometry, Op, PadMode, RandomAffine, RandomCrop, RandomFlip,
    RandomRotation, Rotation, Spatial, Warp, affine, pad, random_affine, random_crop,
    random_rotation, rotate,
};
pub use crate::graph_ext::{BatchGraphExt, DecodeGraphExt, EraseGraphExt, ImageGraphExt};
pub use crate::image::Image;
pub use crate::layout::Layout;
pub use crate::mix::{CutMix, MixUp, OneHot, RandomMix, one_hot};
pub use crate::policy::{RandAugment, TrivialAugmentWide};
pub use crate::random::{RandomResizedCrop, random_resized_crop};
pub use crate::resize::{ResizeFilter, resize, resize_shorter, resized_crop};
pub use crate::rows::{ImageRows, ImageRowsGraphExt};
pub use crate::targets::{Boxes, KeptBoxes, Keypoint, Keypoints, Mask, MaskValue, Visibility};
pub use crate::tensor::{EXTENSIONS, Normalize, decode_tensor, picture, to_tensor, to_tensor_u8};

/// Traits and types for a graph of images.
pub mod prelude {
    pub use crate::{
        Affine, BatchGraphExt, Border, ColorJitter, CutMix, DecodeGraphExt, DecodeImage,
        EraseGraphExt, Geometry, Image, ImageGraphExt, ImageRows, ImageRowsGraphExt, Layout, MixUp,
        Normalize, OneHot, RandAugment, RandomAffine, RandomCrop, RandomErasing, RandomFlip,
        RandomGaussianBlur, RandomMix, RandomResizedCrop, RandomRotation, Rect, ResizeFilter,
        Rotation, TrivialAugmentWide,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts, when it is compiled, that values move between threads and are shared by them.
    fn shared<T: ?Sized + Send + Sync>() {}

    #[test]
    fn images_and_settings_move_between_threads_and_are_shared_by_them() {
        shared::<Image>();
        shared::<DecodeImage>();
        shared::<ImageRows>();
        shared::<Geometry>();
        shared::<Normalize>();
        shared::<RandAugment>();
        shared::<Mask>();
        shared::<Boxes>();
        shared::<Keypoints>();
    }
}
