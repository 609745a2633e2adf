//! One geometry for an image and its targets.
//!
//! Random operations are drawn once, for a size, and become a list of resolved operations: a
//! [`Geometry`]. It is a value that is applied to any number of parts (an image, masks, boxes,
//! points) one after another. The parts cannot get out of step, as they can with two generators of
//! the same seed if one of them draws once more. No part depends on the others, and the operations
//! can be inspected, compared and stored. A part whose size is not that of the geometry is an
//! error.
//!
//! Settings that differ between parts belong to the part: a mask takes the nearest pixels whatever
//! the filter, and has its own value for the outside.

mod affine;
mod pad;
mod random;
mod random_affine;
pub(crate) mod raster;
mod spatial;
mod warp;

use datapipes::{Error, Result, Rng};

use crate::image::{check_edges, check_size};
use crate::{Image, Rect, ResizeFilter};

pub use affine::{Affine, Rotation, affine, rotate};
pub use pad::{Border, Fill, PadMode, pad};
pub use random::{RandomCrop, RandomFlip, random_crop};
pub use random_affine::{RandomAffine, RandomRotation, random_affine, random_rotation};
pub use spatial::Spatial;
pub use warp::Warp;

/// Operations applied to an image and its targets, with all numbers known, for one size.
///
/// Fixed operations are methods; random ones are drawn by [`draw`](Geometry::draw), once for all
/// parts.
///
/// ```
/// use datapipes::{Graph, Result};
/// use datapipes_image::{
///     Boxes, ResizeFilter, Geometry, Image, Mask, RandomFlip, RandomResizedCrop, RandomRotation,
/// };
///
/// # let image = Image::new(40, 30, 3, vec![7; 40 * 30 * 3])?;
/// # let (mask, boxes) = (Mask::new(40, 30, vec![1_u8; 1200])?, Boxes::new(40, 30, vec![[1.0, 2.0, 30.0, 20.0]])?);
/// let samples: Graph<(Image, Mask, Boxes)> = Graph::from_vec(vec![(image, mask.outside(255), boxes)]);
/// let training = samples.try_map_with_rng(|(image, mask, boxes), rng| {
///     let geometry = Geometry::of(&image)
///         .draw(&RandomResizedCrop::new(32, 32), rng)?
///         .draw(&RandomFlip::horizontal(0.5), rng)?
///         .draw(&RandomRotation::new(10.0).filter(ResizeFilter::Bilinear), rng)?;
///     geometry.apply((image, mask, boxes))
/// });
/// let (image, mask, boxes) = training.collect()?.remove(0);
/// assert_eq!((image.width(), mask.width(), boxes.width()), (32, 32, 32));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Geometry {
    from: (u32, u32),
    to: (u32, u32),
    /// Operations, each with the size after it.
    ops: Vec<(Op, (u32, u32))>,
}

/// One operation of a [`Geometry`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Op {
    /// Crops a part.
    Crop(Rect),
    /// Scales.
    Resize {
        /// New width.
        width: u32,
        /// New height.
        height: u32,
        /// Filter of the image; masks take the nearest pixel.
        filter: ResizeFilter,
    },
    /// Crops a part and scales it.
    ResizedCrop {
        /// The part.
        part: Rect,
        /// New width.
        width: u32,
        /// New height.
        height: u32,
        /// Filter of the image; masks take the nearest pixel.
        filter: ResizeFilter,
    },
    /// Mirrors left and right.
    HFlip,
    /// Mirrors top and bottom.
    VFlip,
    /// Adds a border.
    Pad(Border),
    /// Rotates, moves, scales, shears.
    Warp(Warp),
}

impl Op {
    /// Maps a point in an image that had this size. Points are in pixels from the upper left corner
    /// of the first pixel, so that the middle of that pixel is `[0.5, 0.5]`. The result may be
    /// outside.
    pub fn point(&self, (from_width, from_height): (u32, u32), [x, y]: [f64; 2]) -> [f64; 2] {
        let scaled = |at: f64, to: u32, from: u32| at * (f64::from(to) / f64::from(from));
        match self {
            Op::Crop(part) => [x - f64::from(part.x), y - f64::from(part.y)],
            Op::Resize { width, height, .. } => [
                scaled(x, *width, from_width),
                scaled(y, *height, from_height),
            ],
            Op::ResizedCrop {
                part,
                width,
                height,
                ..
            } => {
                let [x, y] = [x - f64::from(part.x), y - f64::from(part.y)];
                [
                    scaled(x, *width, part.width),
                    scaled(y, *height, part.height),
                ]
            }
            Op::HFlip => [f64::from(from_width) - x, y],
            Op::VFlip => [x, f64::from(from_height) - y],
            Op::Pad(padding) => {
                let [left, top, ..] = padding.sides();
                [x + f64::from(left), y + f64::from(top)]
            }
            Op::Warp(warp) => warp.point([x, y]),
        }
    }
}

impl Geometry {
    /// Makes a geometry without operations, for images of this size. If an edge is zero, every
    /// method that can fail does: nothing has that size.
    pub fn new(width: u32, height: u32) -> Self {
        Geometry {
            from: (width, height),
            to: (width, height),
            ops: Vec::new(),
        }
    }

    /// Makes a geometry without operations, for images of this image's size.
    pub fn of(image: &Image) -> Self {
        Geometry::new(image.width(), image.height())
    }

    /// Returns the width and height of the result.
    pub fn size(&self) -> (u32, u32) {
        self.to
    }

    /// Returns the operations, in order.
    pub fn ops(&self) -> impl ExactSizeIterator<Item = &Op> {
        self.ops.iter().map(|(op, _)| op)
    }

    /// Returns the operations, each with the size before and after it: the steps for a [`Spatial`]
    /// type of your own.
    pub fn steps(&self) -> impl Iterator<Item = (&Op, (u32, u32), (u32, u32))> {
        let before = std::iter::once(self.from).chain(self.ops.iter().map(|(_, to)| *to));
        before
            .zip(&self.ops)
            .map(|(from, (op, to))| (op, from, *to))
    }

    /// Appends operations that are drawn now, for the current size.
    ///
    /// # Errors
    /// Errors of `random`.
    pub fn draw(self, random: &(impl Draw + ?Sized), rng: &mut Rng) -> Result<Self> {
        self.check_from()?;
        let (width, height) = self.to;
        self.then(random.draw(width, height, rng)?)
    }

    /// Appends another geometry.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if it is for another size than the result of this one.
    pub fn then(mut self, next: Geometry) -> Result<Self> {
        next.check("a geometry", self.to)?;
        self.ops.extend(next.ops);
        self.to = next.to;
        Ok(self)
    }

    /// Appends a crop.
    ///
    /// # Errors
    /// As [`crop`](crate::crop()).
    pub fn crop(self, part: Rect) -> Result<Self> {
        part.check_within(self.to.0, self.to.1)?;
        Ok(self.push(Op::Crop(part), (part.width, part.height)))
    }

    /// Appends a crop of the middle.
    ///
    /// # Errors
    /// As [`center_crop`](crate::center_crop()).
    pub fn center_crop(self, width: u32, height: u32) -> Result<Self> {
        let part = Rect::middle(self.to, width, height);
        self.crop(part)
    }

    /// Appends a change of size.
    ///
    /// # Errors
    /// As [`resize`](crate::resize()).
    pub fn resize(self, width: u32, height: u32, filter: ResizeFilter) -> Result<Self> {
        self.check_from()?;
        check_size(width, height)?;
        Ok(self.push(
            Op::Resize {
                width,
                height,
                filter,
            },
            (width, height),
        ))
    }

    /// Appends a crop that is then scaled.
    ///
    /// # Errors
    /// As [`resized_crop`](crate::resized_crop()).
    pub fn resized_crop(
        self,
        part: Rect,
        width: u32,
        height: u32,
        filter: ResizeFilter,
    ) -> Result<Self> {
        part.check_within(self.to.0, self.to.1)?;
        check_size(width, height)?;
        Ok(self.push(
            Op::ResizedCrop {
                part,
                width,
                height,
                filter,
            },
            (width, height),
        ))
    }

    /// Appends a flip of left and right.
    pub fn hflip(self) -> Self {
        let size = self.to;
        self.push(Op::HFlip, size)
    }

    /// Appends a flip of top and bottom.
    pub fn vflip(self) -> Self {
        let size = self.to;
        self.push(Op::VFlip, size)
    }

    /// Appends a border.
    ///
    /// # Errors
    /// As [`Border::size`].
    pub fn pad(self, padding: impl Into<Border>) -> Result<Self> {
        let padding = padding.into();
        let size = padding.size(self.to.0, self.to.1)?;
        Ok(self.push(Op::Pad(padding), size))
    }

    /// Appends a rotation.
    ///
    /// With [`expand`](Rotation::expand), boxes and points keep their places in the image. In
    /// torchvision they are up to a pixel off, and have another size than the image's.
    ///
    /// # Errors
    /// As [`rotate`].
    pub fn rotate(self, rotation: impl Into<Rotation>) -> Result<Self> {
        let warp = rotation.into().resolve(self.to.0, self.to.1)?;
        self.warp(warp)
    }

    /// Appends a shear, scale, rotation and translation.
    ///
    /// # Errors
    /// As [`affine`](affine()).
    pub fn affine(self, affine: Affine) -> Result<Self> {
        let warp = affine.resolve(self.to.0, self.to.1)?;
        self.warp(warp)
    }

    /// Appends a map that was resolved for the current size.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if it was resolved for another size.
    pub fn warp(self, warp: Warp) -> Result<Self> {
        warp.check(self.to)?;
        let size = warp.size();
        Ok(self.push(Op::Warp(warp), size))
    }

    /// Applies the operations to an image, a mask, boxes, points, or a tuple, `Vec` or `Option` of
    /// these.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) for a part whose size differs from the geometry; otherwise the
    /// errors of the operations.
    pub fn apply<T: Spatial>(&self, part: T) -> Result<T> {
        self.check_from()?;
        part.place(self)
    }

    /// Checks that this geometry is for the size of `what`.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if it is for another size.
    pub fn check(&self, what: &str, (width, height): (u32, u32)) -> Result<()> {
        self.check_from()?;
        if (width, height) == self.from {
            return Ok(());
        }
        Err(Error::shape(format!(
            "{what} of {width}x{height} in a geometry for {}x{}",
            self.from.0, self.from.1
        )))
    }

    /// Fails with [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if it is for images without pixels.
    fn check_from(&self) -> Result<()> {
        check_edges("a geometry for an image", self.from.0, self.from.1)
    }

    fn push(mut self, op: Op, to: (u32, u32)) -> Self {
        self.ops.push((op, to));
        self.to = to;
        self
    }
}

/// A random [`Geometry`], drawn for a size.
pub trait Draw {
    /// Draws a geometry.
    ///
    /// # Errors
    /// If the settings are invalid, or invalid for this size.
    fn draw(&self, width: u32, height: u32, rng: &mut Rng) -> Result<Geometry>;
}
