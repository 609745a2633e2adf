//! Methods for graphs of files or images.

mod batch;
mod erase;

pub use batch::BatchGraphExt;
pub use erase::EraseGraphExt;

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Arity, Context, Graph, Hints, Items, Pipe, Result, Rng, Tensor};

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
pub trait DecodeGraphExt: sealed::Sealed {
    /// Decodes image files to RGB, with the default settings. For other settings, use
    /// `graph.pipe(`[`DecodeImage`]`)`.
    ///
    /// Runs on the CPU workers, on many files at once; order is kept.
    ///
    /// # Errors
    /// A file that is not a complete image is replaced by an error; see [`DecodeImage::decode`].
    fn decode_image(self) -> Graph<Image>;
}

impl DecodeGraphExt for Graph<Bytes> {
    fn decode_image(self) -> Graph<Image> {
        self.pipe(DecodeImage::new())
    }
}

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
pub trait ImageGraphExt: sealed::Sealed {
    /// Scales to a width and height; see [`resize`].
    fn resize(self, width: u32, height: u32, filter: ResizeFilter) -> Graph<Image>;

    /// Scales such that the shorter edge gets this length; see [`resize_shorter`].
    fn resize_shorter(self, shorter: u32, filter: ResizeFilter) -> Graph<Image>;

    /// Crops the middle; see [`center_crop`].
    ///
    /// # Errors
    /// A smaller image is replaced by an error.
    fn center_crop(self, width: u32, height: u32) -> Graph<Image>;

    /// Crops a random part and scales it: `224`, `(width, height)`, or settings; see
    /// [`random_resized_crop`].
    fn random_resized_crop(self, settings: impl Into<RandomResizedCrop>) -> Graph<Image>;

    /// Crops a part; see [`crop`](crate::crop()).
    ///
    /// # Errors
    /// An image that does not contain the part is replaced by an error.
    fn crop(self, part: Rect) -> Graph<Image>;

    /// Mirrors left and right; see [`hflip`].
    fn hflip(self) -> Graph<Image>;

    /// Mirrors left and right with probability `p`; see [`hflip`].
    fn random_hflip(self, p: f64) -> Graph<Image>;

    /// Mirrors top and bottom; see [`vflip`].
    fn vflip(self) -> Graph<Image>;

    /// Mirrors top and bottom with probability `p`; see [`vflip`].
    fn random_vflip(self, p: f64) -> Graph<Image>;

    /// Adds a border: `4`, `(x, y)`, or settings; see [`pad`](pad()).
    ///
    /// # Errors
    /// An image that is too small to be mirrored that far is replaced by an error.
    fn pad(self, padding: impl Into<Border>) -> Graph<Image>;

    /// Crops a random part: `32`, `(width, height)`, or settings; see [`random_crop`].
    ///
    /// # Errors
    /// A smaller image that is not padded is replaced by an error.
    fn random_crop(self, settings: impl Into<RandomCrop>) -> Graph<Image>;

    /// Rotates: `90.0`, or settings; see [`rotate`].
    fn rotate(self, rotation: impl Into<Rotation>) -> Graph<Image>;

    /// Rotates by a random angle: `10.0`, `(least, most)`, or settings; see [`random_rotation`].
    fn random_rotation(self, settings: impl Into<RandomRotation>) -> Graph<Image>;

    /// Rotates, moves, scales and shears; see [`affine`](crate::affine()).
    fn affine(self, affine: Affine) -> Graph<Image>;

    /// Rotates, moves, scales and shears at random; see [`random_affine`].
    fn random_affine(self, settings: impl Into<RandomAffine>) -> Graph<Image>;

    /// Crops the corners and the middle; see [`five_crop`].
    ///
    /// # Errors
    /// A smaller image is replaced by an error.
    fn five_crop(self, width: u32, height: u32) -> Graph<[Image; 5]>;

    /// Blurs; see [`gaussian_blur`](crate::gaussian_blur()).
    ///
    /// # Errors
    /// An image that is too small for the kernel is replaced by an error.
    fn gaussian_blur(self, kernel: u32, sigma: f64) -> Graph<Image>;

    /// Blurs at random: `23`, or settings; see [`RandomGaussianBlur`].
    ///
    /// # Errors
    /// As [`gaussian_blur`](ImageGraphExt::gaussian_blur).
    fn random_gaussian_blur(self, settings: impl Into<RandomGaussianBlur>) -> Graph<Image>;

    /// Makes tensors of `f32`, `[channels, height, width]`; see [`to_tensor`].
    fn to_tensor(self, normalize: Normalize) -> Graph<Tensor>;

    /// Makes tensors of `u8`, `[channels, height, width]`; see [`to_tensor_u8`].
    fn to_tensor_u8(self) -> Graph<Tensor>;

    /// Changes brightness, contrast, saturation and hue at random; see [`ColorJitter`].
    fn color_jitter(self, jitter: ColorJitter) -> Graph<Image>;

    /// Makes all images gray, with 1 or 3 channels; see [`grayscale`].
    fn grayscale(self, channels: u8) -> Graph<Image>;

    /// Makes images gray with probability `p`; see [`random_grayscale`].
    fn random_grayscale(self, p: f64) -> Graph<Image>;

    /// Applies some augmentations of one strength; see [`RandAugment`].
    fn rand_augment(self, policy: RandAugment) -> Graph<Image>;

    /// Applies one augmentation of a random strength; see [`TrivialAugmentWide`].
    fn trivial_augment(self, policy: TrivialAugmentWide) -> Graph<Image>;
}

impl ImageGraphExt for Graph<Image> {
    fn resize(self, width: u32, height: u32, filter: ResizeFilter) -> Graph<Image> {
        let settings = format!("{width}x{height}, {filter:?}");
        let step = Step::new("resize", move |image, _| {
            resize(&image, width, height, filter)
        });
        self.pipe(step.settings(settings).check(check_size(width, height)))
    }

    fn resize_shorter(self, shorter: u32, filter: ResizeFilter) -> Graph<Image> {
        let settings = format!("{shorter}, {filter:?}");
        let step = Step::new("resize_shorter", move |image, _| {
            resize_shorter(&image, shorter, filter)
        });
        self.pipe(step.settings(settings).check(check_size(shorter, shorter)))
    }

    fn center_crop(self, width: u32, height: u32) -> Graph<Image> {
        let step = Step::new("center_crop", move |image, _| {
            center_crop(&image, width, height)
        });
        self.pipe(
            step.settings(format!("{width}x{height}"))
                .check(check_size(width, height)),
        )
    }

    fn random_resized_crop(self, settings: impl Into<RandomResizedCrop>) -> Graph<Image> {
        let settings = settings.into();
        let step = Step::new("random_resized_crop", move |image, rng| {
            random_resized_crop(&image, settings, rng)
        });
        self.pipe(step.settings(settings.settings()).check(settings.check()))
    }

    fn crop(self, part: Rect) -> Graph<Image> {
        let Rect {
            x,
            y,
            width,
            height,
        } = part;
        let step = Step::new("crop", move |image, _| crop(&image, part));
        let settings = format!("{width}x{height} at ({x}, {y})");
        self.pipe(step.settings(settings).check(check_size(width, height)))
    }

    fn hflip(self) -> Graph<Image> {
        self.pipe(Step::new("hflip", |mut image, _| {
            hflip(&mut image);
            Ok(image)
        }))
    }

    fn random_hflip(self, p: f64) -> Graph<Image> {
        self.pipe(random_flip("random_hflip", p, hflip))
    }

    fn vflip(self) -> Graph<Image> {
        self.pipe(Step::new("vflip", |mut image, _| {
            vflip(&mut image);
            Ok(image)
        }))
    }

    fn random_vflip(self, p: f64) -> Graph<Image> {
        self.pipe(random_flip("random_vflip", p, vflip))
    }

    fn pad(self, padding: impl Into<Border>) -> Graph<Image> {
        let padding = padding.into();
        let step = Step::new("pad", move |image, _| pad(&image, padding));
        self.pipe(step.settings(format!("{:?}, {:?}", padding.sides(), padding.shows())))
    }

    fn random_crop(self, settings: impl Into<RandomCrop>) -> Graph<Image> {
        let settings = settings.into();
        let step = Step::new("random_crop", move |image, rng| {
            random_crop(&image, settings, rng)
        });
        self.pipe(step.settings(settings.settings()).check(settings.check()))
    }

    fn rotate(self, rotation: impl Into<Rotation>) -> Graph<Image> {
        let rotation = rotation.into();
        let step = Step::new("rotate", move |image, _| rotate(&image, rotation));
        // Settings that are invalid are invalid for a single pixel, too.
        self.pipe(
            step.settings(rotation.full_settings())
                .check(rotation.resolve(1, 1).map(drop)),
        )
    }

    fn random_rotation(self, settings: impl Into<RandomRotation>) -> Graph<Image> {
        let settings = settings.into();
        let step = Step::new("random_rotation", move |image, rng| {
            random_rotation(&image, settings, rng)
        });
        self.pipe(step.settings(settings.settings()).check(settings.check()))
    }

    fn affine(self, affine: Affine) -> Graph<Image> {
        let step = Step::new("affine", move |image, _| crate::affine(&image, affine));
        self.pipe(
            step.settings(affine.full_settings())
                .check(affine.resolve(1, 1).map(drop)),
        )
    }

    fn random_affine(self, settings: impl Into<RandomAffine>) -> Graph<Image> {
        let settings = settings.into();
        let step = Step::new("random_affine", move |image, rng| {
            random_affine(&image, settings, rng)
        });
        self.pipe(step.settings(settings.settings()).check(settings.check()))
    }

    fn five_crop(self, width: u32, height: u32) -> Graph<[Image; 5]> {
        let step = Step::new("five_crop", move |image, _| {
            five_crop(&image, width, height)
        });
        self.pipe(
            step.settings(format!("{width}x{height}"))
                .check(check_size(width, height)),
        )
    }

    fn gaussian_blur(self, kernel: u32, sigma: f64) -> Graph<Image> {
        let step = Step::new("gaussian_blur", move |image, _| {
            gaussian_blur(&image, kernel, sigma)
        });
        let settings = format!("{kernel} pixels, sigma {sigma}");
        self.pipe(step.settings(settings).check(check_blur(kernel, sigma)))
    }

    fn random_gaussian_blur(self, settings: impl Into<RandomGaussianBlur>) -> Graph<Image> {
        let blur = settings.into();
        let step = Step::new("random_gaussian_blur", move |mut image, rng| {
            blur.apply(&mut image, rng)?;
            Ok(image)
        });
        self.pipe(step.settings(blur.settings()).check(blur.check()))
    }

    fn to_tensor(self, normalize: Normalize) -> Graph<Tensor> {
        let step = Step::new("to_tensor", move |image, _| to_tensor(&image, &normalize));
        self.pipe(step.settings(format!("{normalize:?}")))
    }

    fn to_tensor_u8(self) -> Graph<Tensor> {
        self.pipe(Step::new("to_tensor_u8", |image, _| to_tensor_u8(&image)))
    }

    fn color_jitter(self, jitter: ColorJitter) -> Graph<Image> {
        let step = Step::new("color_jitter", move |mut image, rng| {
            jitter.apply(&mut image, rng)?;
            Ok(image)
        });
        self.pipe(step.settings(jitter.settings()).check(jitter.check()))
    }

    fn grayscale(self, channels: u8) -> Graph<Image> {
        let step = Step::new("grayscale", move |image, _| grayscale(&image, channels));
        self.pipe(
            step.settings(format!("channels {channels}"))
                .check(check_channels(channels)),
        )
    }

    fn random_grayscale(self, p: f64) -> Graph<Image> {
        let step = Step::new("random_grayscale", move |mut image, rng| {
            random_grayscale(&mut image, p, rng)?;
            Ok(image)
        });
        self.pipe(step.settings(format!("p {p}")).check(check_probability(p)))
    }

    fn rand_augment(self, policy: RandAugment) -> Graph<Image> {
        let step = Step::new("rand_augment", move |mut image, rng| {
            policy.apply(&mut image, rng)?;
            Ok(image)
        });
        self.pipe(step.settings(policy.settings()).check(policy.check()))
    }

    fn trivial_augment(self, policy: TrivialAugmentWide) -> Graph<Image> {
        let step = Step::new("trivial_augment", move |mut image, rng| {
            policy.apply(&mut image, rng)?;
            Ok(image)
        });
        self.pipe(step.settings(policy.settings()).check(policy.check()))
    }
}

/// A flip in place, with a probability.
fn random_flip(
    name: &'static str,
    p: f64,
    flip: fn(&mut Image),
) -> Step<impl Fn(Image, &mut Rng) -> Result<Image> + Send + Sync + 'static> {
    let step = Step::new(name, move |mut image, rng| {
        if rng.chance(p) {
            flip(&mut image);
        }
        Ok(image)
    });
    step.settings(format!("p {p}")).check(check_probability(p))
}

mod sealed {
    /// Graphs that have these methods; more may be added to the traits.
    pub trait Sealed {}

    impl Sealed for datapipes::Graph<bytes::Bytes> {}
    impl Sealed for datapipes::Graph<crate::Image> {}
    impl Sealed for datapipes::Graph<datapipes::Tensor> {}
    impl<L: Send + 'static> Sealed for datapipes::Graph<(datapipes::Tensor, L)> {}
}

/// A one-to-one step, mostly of images.
struct Step<F> {
    name: &'static str,
    settings: String,
    problem: Option<String>,
    f: Arc<F>,
}

impl<F> Step<F> {
    fn new<Out>(name: &'static str, f: F) -> Self
    where
        F: Fn(Image, &mut Rng) -> Result<Out> + Send + Sync + 'static,
    {
        Step::over(name, f)
    }

    fn over<In, Out>(name: &'static str, f: F) -> Self
    where
        F: Fn(In, &mut Rng) -> Result<Out> + Send + Sync + 'static,
    {
        Step {
            name,
            settings: String::new(),
            problem: None,
            f: Arc::new(f),
        }
    }

    fn settings(self, settings: String) -> Self {
        Step { settings, ..self }
    }

    /// Adds an error that every item would cause.
    fn check(mut self, checked: Result<()>) -> Self {
        self.problem = checked.err().map(|error| error.to_string());
        self
    }
}

impl<In: Send + 'static, Out: Weigh, F> Pipe<In> for Step<F>
where
    F: Fn(In, &mut Rng) -> Result<Out> + Send + Sync + 'static,
{
    type Out = Out;

    fn apply(&self, input: Items<In>, cx: &Context) -> Items<Out> {
        let (f, context) = (self.f.clone(), cx.clone());
        input.each(cx, move |item| {
            let mut rng = context.rng(item.origin());
            Some(item.try_map(|value| f(value, &mut rng)))
        })
    }
    fn name(&self) -> String {
        self.name.to_owned()
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .arity(Arity::One)
            .settings(&self.settings)
            .problem(self.problem.as_deref())
    }
    fn weigh(&self, item: &Out) -> Option<usize> {
        Some(item.bytes())
    }
}

/// Number of bytes that a value keeps alive.
trait Weigh: Send + 'static {
    fn bytes(&self) -> usize;
}

impl Weigh for Image {
    fn bytes(&self) -> usize {
        self.data().len()
    }
}

impl Weigh for [Image; 5] {
    fn bytes(&self) -> usize {
        self.iter().map(Weigh::bytes).sum()
    }
}

impl Weigh for Tensor {
    fn bytes(&self) -> usize {
        self.byte_len()
    }
}

/// An image with its label, or a batch of both. Only labels that are tensors are counted.
impl<L: Send + 'static> Weigh for (Tensor, L) {
    fn bytes(&self) -> usize {
        let label = (&self.1 as &dyn Any).downcast_ref::<Tensor>();
        self.0.byte_len() + label.map_or(0, Tensor::byte_len)
    }
}
