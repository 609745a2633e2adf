//! Methods for graphs of files or images.

mod batch;
mod erase;

pub use batch::BatchGraphExt;
pub use erase::EraseGraphExt;

use std::fmt::Display;

use bytes::Bytes;
use datapipes::pipes::MapWithRng;
use datapipes::{Graph, Result, Rng, Tensor, Weigh};

use crate::blur::check_blur;
use crate::color::check_channels;
use crate::image::{check_probability, check_size};
use crate::{
    Affine, Border, ColorJitter, DecodeImage, Image, Normalize, RandAugment, RandomAffine,
    RandomCrop, RandomGaussianBlur, RandomResizedCrop, RandomRotation, Rect, ResizeFilter,
    Rotation, TrivialAugmentWide, center_crop, crop, five_crop, gaussian_blur, grayscale, hflip,
    pad, random_affine, random_crop, random_grayscale, random_resized_crop, random_rotation,
    resize, resize_shorter, rotate, to_tensor, to_tensor_u8, vflip,
};

/// Decoding, for a graph of files. Import it with the [`prelude`](crate::prelude).
///
/// # Examples
/// ```
/// use datapipes_image::prelude::*;
///
/// # let mut file = Vec::new();
/// # jpeg_encoder::Encoder::new(&mut file, 90).encode(&[99; 64 * 48 * 3], 64, 48, jpeg_encoder::ColorType::Rgb)?;
/// let images = datapipes::Graph::from_vec(vec![bytes::Bytes::from(file)]).decode_image().collect()?;
/// assert_eq!((images[0].width(), images[0].height(), images[0].channels()), (64, 48, 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait DecodeGraphExt: Into<Graph<Bytes>> + sealed::Sealed {
    /// Decodes image files to RGB, with the default settings. For other settings, use
    /// `graph.pipe(`[`DecodeImage`]`)`.
    ///
    /// Runs on the CPU workers, on many files at once; order is kept.
    ///
    /// # Errors
    /// A file that is not a complete image is replaced by an error; see [`DecodeImage::decode`].
    fn decode_image(self) -> Graph<Image> {
        self.into().pipe(DecodeImage::new())
    }
}

impl DecodeGraphExt for Graph<Bytes> {}

/// Transforms, for a graph of images. Import it with the [`prelude`](crate::prelude).
///
/// All run on the CPU workers, on many images at once, and keep order; neighbouring steps run as
/// one segment. Random numbers depend on seed, epoch, node and item alone. An invalid setting is
/// reported when the loader is built. For images inside of samples, use the functions of the same
/// names in [`map_with_rng`](Graph::map_with_rng); for images with masks, boxes or points, use a
/// [`Geometry`](crate::Geometry) there.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_image::prelude::*;
///
/// let images = Graph::from_vec(vec![Image::new(4, 2, 1, vec![1, 2, 3, 4, 5, 6, 7, 8])?]);
/// let tensors = images.center_crop(2, 2).hflip().to_tensor_u8().collect()?;
/// assert_eq!(tensors[0].shape(), [1, 2, 2]);
/// assert_eq!(tensors[0].as_slice::<u8>()?, [3, 2, 7, 6]);
/// # Ok::<(), datapipes::Error>(())
/// ```
/// All steps; the guide's page *Image steps* (`docs/src/gallery.md`) has a picture of each:
/// ```
/// use datapipes::Graph;
/// use datapipes_image::prelude::*;
///
/// let image = Image::new(40, 30, 3, vec![9; 40 * 30 * 3])?;
/// let images = || Graph::from_vec(vec![image.clone()]);
/// let size = |graph: Graph<Image>| graph.collect().map(|made| (made[0].width(), made[0].height()));
/// assert_eq!(size(images().resize(20, 15, ResizeFilter::Bilinear))?, (20, 15));
/// assert_eq!(size(images().resize_shorter(15, ResizeFilter::Bilinear))?, (20, 15));
/// assert_eq!(size(images().center_crop(10, 8))?, (10, 8));
/// assert_eq!(size(images().crop(Rect { x: 1, y: 2, width: 10, height: 8 }))?, (10, 8));
/// assert_eq!(size(images().random_crop(16))?, (16, 16));
/// assert_eq!(size(images().random_resized_crop(16))?, (16, 16));
/// assert_eq!(size(images().pad(4))?, (48, 38));
/// assert_eq!(images().five_crop(10, 8).collect()?[0].len(), 5);
/// let of_the_same_size = [
///     images().hflip(),
///     images().random_hflip(0.5),
///     images().vflip(),
///     images().random_vflip(0.5),
///     images().rotate(10.0),
///     images().random_rotation(10.0),
///     images().affine(Affine::new().scale(0.8)),
///     images().random_affine(RandomAffine::new(10.0)),
///     images().gaussian_blur(3, 1.0),
///     images().random_gaussian_blur(3),
///     images().color_jitter(ColorJitter::new().brightness(0.4)),
///     images().grayscale(3),
///     images().random_grayscale(0.5),
///     images().rand_augment(RandAugment::new(2, 9)),
///     images().trivial_augment(TrivialAugmentWide::new()),
/// ];
/// for graph in of_the_same_size {
///     assert_eq!(size(graph)?, (40, 30));
/// }
/// assert_eq!(images().to_tensor(Normalize::IMAGENET).collect()?[0].shape(), [3, 30, 40]);
/// assert_eq!(images().to_tensor_u8().collect()?[0].shape(), [3, 30, 40]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub trait ImageGraphExt: Into<Graph<Image>> + sealed::Sealed {
    /// Scales to a width and height; see [`resize`].
    fn resize(self, width: u32, height: u32, filter: ResizeFilter) -> Graph<Image> {
        let step = step("resize", move |image, _| {
            resize(&image, width, height, filter)
        });
        let settings = format!("{width}x{height}, {filter:?}");
        add(self, step, settings, check_size(width, height))
    }

    /// Scales such that the shorter edge gets this length; see [`resize_shorter`].
    fn resize_shorter(self, shorter: u32, filter: ResizeFilter) -> Graph<Image> {
        let step = step("resize_shorter", move |image, _| {
            resize_shorter(&image, shorter, filter)
        });
        let settings = format!("{shorter}, {filter:?}");
        add(self, step, settings, check_size(shorter, shorter))
    }

    /// Crops the middle; see [`center_crop`].
    ///
    /// # Errors
    /// A smaller image is replaced by an error.
    fn center_crop(self, width: u32, height: u32) -> Graph<Image> {
        let step = step("center_crop", move |image, _| {
            center_crop(&image, width, height)
        });
        let settings = format!("{width}x{height}");
        add(self, step, settings, check_size(width, height))
    }

    /// Crops a random part and scales it: `224`, `(width, height)`, or settings; see
    /// [`random_resized_crop`].
    fn random_resized_crop(self, settings: impl Into<RandomResizedCrop>) -> Graph<Image> {
        let settings = settings.into();
        let step = step("random_resized_crop", move |image, rng| {
            random_resized_crop(&image, settings, rng)
        });
        add(self, step, settings.settings(), settings.check())
    }

    /// Crops a part; see [`crop`](crate::crop()).
    ///
    /// # Errors
    /// An image that does not contain the part is replaced by an error.
    fn crop(self, part: Rect) -> Graph<Image> {
        let Rect {
            x,
            y,
            width,
            height,
        } = part;
        let step = step("crop", move |image, _| crop(&image, part));
        let settings = format!("{width}x{height} at ({x}, {y})");
        add(self, step, settings, check_size(width, height))
    }

    /// Mirrors left and right; see [`hflip`].
    fn hflip(self) -> Graph<Image> {
        add(self, step("hflip", flips(1.0, hflip)), "", Ok(()))
    }

    /// Mirrors left and right with probability `p`; see [`hflip`].
    fn random_hflip(self, p: f64) -> Graph<Image> {
        let step = step("random_hflip", flips(p, hflip));
        let settings = format!("p {p}");
        add(self, step, settings, check_probability(p))
    }

    /// Mirrors top and bottom; see [`vflip`].
    fn vflip(self) -> Graph<Image> {
        add(self, step("vflip", flips(1.0, vflip)), "", Ok(()))
    }

    /// Mirrors top and bottom with probability `p`; see [`vflip`].
    fn random_vflip(self, p: f64) -> Graph<Image> {
        let step = step("random_vflip", flips(p, vflip));
        let settings = format!("p {p}");
        add(self, step, settings, check_probability(p))
    }

    /// Adds a border: `4`, `(x, y)`, or settings; see [`pad`](pad()).
    ///
    /// # Errors
    /// An image that is too small to be mirrored that far is replaced by an error.
    fn pad(self, padding: impl Into<Border>) -> Graph<Image> {
        let padding = padding.into();
        let step = step("pad", move |image, _| pad(&image, padding));
        let settings = format!("{:?}, {:?}", padding.sides(), padding.shows());
        add(self, step, settings, Ok(()))
    }

    /// Crops a random part: `32`, `(width, height)`, or settings; see [`random_crop`].
    ///
    /// # Errors
    /// A smaller image that is not padded is replaced by an error.
    fn random_crop(self, settings: impl Into<RandomCrop>) -> Graph<Image> {
        let settings = settings.into();
        let step = step("random_crop", move |image, rng| {
            random_crop(&image, settings, rng)
        });
        add(self, step, settings.settings(), settings.check())
    }

    /// Rotates: `90.0`, or settings; see [`rotate`].
    fn rotate(self, rotation: impl Into<Rotation>) -> Graph<Image> {
        let rotation = rotation.into();
        // Settings that are invalid are invalid for a single pixel, too.
        let check = rotation.resolve(1, 1).map(drop);
        let step = step("rotate", move |image, _| rotate(&image, rotation));
        add(self, step, rotation.full_settings(), check)
    }

    /// Rotates by a random angle: `10.0`, `(least, most)`, or settings; see [`random_rotation`].
    fn random_rotation(self, settings: impl Into<RandomRotation>) -> Graph<Image> {
        let settings = settings.into();
        let step = step("random_rotation", move |image, rng| {
            random_rotation(&image, settings, rng)
        });
        add(self, step, settings.settings(), settings.check())
    }

    /// Rotates, moves, scales and shears; see [`affine`](crate::affine()).
    fn affine(self, affine: Affine) -> Graph<Image> {
        let check = affine.resolve(1, 1).map(drop);
        let step = step("affine", move |image, _| crate::affine(&image, affine));
        add(self, step, affine.full_settings(), check)
    }

    /// Rotates, moves, scales and shears at random; see [`random_affine`].
    fn random_affine(self, settings: impl Into<RandomAffine>) -> Graph<Image> {
        let settings = settings.into();
        let step = step("random_affine", move |image, rng| {
            random_affine(&image, settings, rng)
        });
        add(self, step, settings.settings(), settings.check())
    }

    /// Crops the corners and the middle; see [`five_crop`].
    ///
    /// # Errors
    /// A smaller image is replaced by an error.
    fn five_crop(self, width: u32, height: u32) -> Graph<[Image; 5]> {
        let step = step("five_crop", move |image, _| {
            five_crop(&image, width, height)
        });
        let settings = format!("{width}x{height}");
        add(self, step, settings, check_size(width, height))
    }

    /// Blurs; see [`gaussian_blur`](crate::gaussian_blur()).
    ///
    /// # Errors
    /// An image that is too small for the kernel is replaced by an error.
    fn gaussian_blur(self, kernel: u32, sigma: f64) -> Graph<Image> {
        let step = step("gaussian_blur", move |image, _| {
            gaussian_blur(&image, kernel, sigma)
        });
        let settings = format!("{kernel} pixels, sigma {sigma}");
        add(self, step, settings, check_blur(kernel, sigma))
    }

    /// Blurs at random: `23`, or settings; see [`RandomGaussianBlur`].
    ///
    /// # Errors
    /// As [`gaussian_blur`](ImageGraphExt::gaussian_blur).
    fn random_gaussian_blur(self, settings: impl Into<RandomGaussianBlur>) -> Graph<Image> {
        let blur = settings.into();
        let step = step(
            "random_gaussian_blur",
            in_place(move |image, rng| blur.apply(image, rng)),
        );
        add(self, step, blur.settings(), blur.check())
    }

    /// Makes tensors of `f32`, `[channels, height, width]`; see [`to_tensor`].
    fn to_tensor(self, normalize: Normalize) -> Graph<Tensor> {
        let step = step("to_tensor", move |image, _| to_tensor(&image, &normalize));
        let settings = format!("{normalize:?}");
        add(self, step, settings, Ok(()))
    }

    /// Makes tensors of `u8`, `[channels, height, width]`; see [`to_tensor_u8`].
    fn to_tensor_u8(self) -> Graph<Tensor> {
        let step = step("to_tensor_u8", |image, _| to_tensor_u8(&image));
        add(self, step, "", Ok(()))
    }

    /// Changes brightness, contrast, saturation and hue at random; see [`ColorJitter`].
    fn color_jitter(self, jitter: ColorJitter) -> Graph<Image> {
        let step = step(
            "color_jitter",
            in_place(move |image, rng| jitter.apply(image, rng)),
        );
        add(self, step, jitter.settings(), jitter.check())
    }

    /// Makes all images gray, with 1 or 3 channels; see [`grayscale`].
    fn grayscale(self, channels: u8) -> Graph<Image> {
        let step = step("grayscale", move |image, _| grayscale(&image, channels));
        let settings = format!("channels {channels}");
        add(self, step, settings, check_channels(channels))
    }

    /// Makes images gray with probability `p`; see [`random_grayscale`].
    fn random_grayscale(self, p: f64) -> Graph<Image> {
        let step = step(
            "random_grayscale",
            in_place(move |image, rng| random_grayscale(image, p, rng)),
        );
        let settings = format!("p {p}");
        add(self, step, settings, check_probability(p))
    }

    /// Applies some augmentations of one strength; see [`RandAugment`].
    fn rand_augment(self, policy: RandAugment) -> Graph<Image> {
        let step = step(
            "rand_augment",
            in_place(move |image, rng| policy.apply(image, rng)),
        );
        add(self, step, policy.settings(), policy.check())
    }

    /// Applies one augmentation of a random strength; see [`TrivialAugmentWide`].
    fn trivial_augment(self, policy: TrivialAugmentWide) -> Graph<Image> {
        let step = step(
            "trivial_augment",
            in_place(move |image, rng| policy.apply(image, rng)),
        );
        add(self, step, policy.settings(), policy.check())
    }
}

impl ImageGraphExt for Graph<Image> {}

/// Makes something of each item.
fn step<In, Out, F>(kind: &'static str, f: F) -> MapWithRng<F>
where
    F: Fn(In, &mut Rng) -> Result<Out> + Clone + Send + Sync + 'static,
{
    MapWithRng::new(f).kind(kind)
}

/// Makes a function that changes items one that takes and returns them.
fn in_place<T>(
    f: impl Fn(&mut T, &mut Rng) -> Result<()> + Clone + Send + Sync + 'static,
) -> impl Fn(T, &mut Rng) -> Result<T> + Clone + Send + Sync + 'static {
    move |mut item, rng| {
        f(&mut item, rng)?;
        Ok(item)
    }
}

fn flips(
    p: f64,
    flip: fn(&mut Image),
) -> impl Fn(Image, &mut Rng) -> Result<Image> + Clone + Send + Sync + 'static {
    in_place(move |image, rng| {
        if rng.chance(p) {
            flip(image);
        }
        Ok(())
    })
}

/// Adds a step of images. The loader is refused if the settings are wrong.
fn add<Out: Weigh + Send + 'static, F>(
    images: impl Into<Graph<Image>>,
    step: MapWithRng<F>,
    settings: impl Display,
    check: Result<()>,
) -> Graph<Out>
where
    F: Fn(Image, &mut Rng) -> Result<Out> + Clone + Send + Sync + 'static,
{
    let step = step.settings(settings).problem(check.err());
    images.into().pipe(step).weighed(Weigh::weigh)
}

mod sealed {
    /// Graphs that have these methods; more may be added to the traits.
    pub trait Sealed {}

    impl Sealed for datapipes::Graph<bytes::Bytes> {}
    impl Sealed for datapipes::Graph<crate::Image> {}
    impl Sealed for datapipes::Graph<datapipes::Tensor> {}
    impl<L: Send + 'static> Sealed for datapipes::Graph<(datapipes::Tensor, L)> {}
}
