//! Types that a geometry can be applied to.

use datapipes::Result;

use super::warp::warp_image;
use super::{Geometry, Op, pad};
use crate::{Image, crop, hflip, resize, resized_crop, vflip};

/// A target that lies in an image and moves with it.
///
/// For a struct of your own, apply the geometry to each part:
///
/// ```
/// # use datapipes::Result;
/// # use datapipes_image::{Boxes, Geometry, Image, Spatial};
/// struct Sample {
///     image: Image,
///     boxes: Boxes,
///     labels: Vec<u32>,
/// }
///
/// impl Spatial for Sample {
///     fn place(self, geometry: &Geometry) -> Result<Self> {
///         let Sample { image, boxes, labels } = self;
///         Ok(Sample { image: geometry.apply(image)?, boxes: geometry.apply(boxes)?, labels })
///     }
/// }
/// # let sample = Sample { image: Image::new(2, 1, 1, vec![1, 2])?, boxes: Boxes::new(2, 1, vec![])?, labels: vec![] };
/// assert_eq!(Geometry::new(2, 1).hflip().apply(sample)?.image.data(), [2, 1]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub trait Spatial: Sized {
    /// Returns the target after the geometry.
    ///
    /// # Errors
    /// As [`Geometry::apply`].
    fn place(self, geometry: &Geometry) -> Result<Self>;
}

impl Spatial for Image {
    fn place(mut self, geometry: &Geometry) -> Result<Self> {
        geometry.check("an image", (self.width(), self.height()))?;
        for (op, _, _) in geometry.steps() {
            self = match op {
                Op::Crop(part) => crop(&self, *part)?,
                Op::Resize {
                    width,
                    height,
                    filter,
                } => resize(&self, *width, *height, *filter)?,
                Op::ResizedCrop {
                    part,
                    width,
                    height,
                    filter,
                } => resized_crop(&self, *part, *width, *height, *filter)?,
                Op::HFlip => {
                    hflip(&mut self);
                    self
                }
                Op::VFlip => {
                    vflip(&mut self);
                    self
                }
                Op::Pad(padding) => pad(&self, *padding)?,
                Op::Warp(warp) => warp_image(&self, warp)?,
            };
        }
        Ok(self)
    }
}

impl<T: Spatial> Spatial for Vec<T> {
    fn place(self, geometry: &Geometry) -> Result<Self> {
        self.into_iter().map(|part| part.place(geometry)).collect()
    }
}

impl<T: Spatial> Spatial for Option<T> {
    fn place(self, geometry: &Geometry) -> Result<Self> {
        self.map(|part| part.place(geometry)).transpose()
    }
}

macro_rules! tuples {
    ($($($name:ident)+;)+) => {$(
        #[allow(non_snake_case, reason = "the parts are named as their types")]
        impl<$($name: Spatial),+> Spatial for ($($name,)+) {
            fn place(self, geometry: &Geometry) -> Result<Self> {
                let ($($name,)+) = self;
                Ok(($($name.place(geometry)?,)+))
            }
        }
    )+};
}

tuples! {
    A B;
    A B C;
    A B C D;
}
