//! RandAugment: a few augmentations of one strength.

use datapipes::{Error, Result, Rng};

use super::{Look, Op, Space};
use crate::{Image, ResizeFilter};

/// Applies some augmentations one after another, each chosen at random out of 14, all of one
/// strength: torchvision's `RandAugment` (Cubuk et al. 2020).
///
/// The 14 are: nothing; shear by up to 0.3 and translation by up to 150/331 of the edge, along x or
/// y; rotation by up to 30 degrees; brightness, color, contrast and sharpness by up to 0.9;
/// posterize to 4 bits at least; solarize; autocontrast; equalize. Draws for each a number for the
/// choice, and a number for the sign if there is one.
///
/// Images are sheared and rotated by exact fixed-point positions, while torchvision computes them
/// in `f32`: if a position is half-way between two pixels, the other pixel may be taken.
///
/// ```
/// # use datapipes::Rng;
/// # use datapipes_image::{Image, RandAugment};
/// let mut image = Image::new(8, 6, 3, (0..144).collect())?;
/// RandAugment::new(2, 9).apply(&mut image, &mut Rng::from_key([1, 0, 0, 0]))?;
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct RandAugment {
    ops: u32,
    magnitude: u32,
    bins: u32,
    look: Look,
}

pub(super) const SPACE: Space = Space {
    shear: 0.3,
    translate: |edge| 150.0 / 331.0 * f64::from(edge),
    rotate: 30.0,
    factor: 0.9,
    posterize: 4.0,
};

impl RandAugment {
    /// Sets the number of augmentations and their strength from 0 to 30; usual values are 2 and 9.
    pub fn new(ops: u32, magnitude: u32) -> Self {
        RandAugment {
            ops,
            magnitude,
            bins: 31,
            look: Look::default(),
        }
    }

    datapipes::setters! {
        /// Sets the number of strengths; 31 by default.
        bins(bins: u32) => bins = bins;

        /// Sets the filter for moved images: [`ResizeFilter::Nearest`], the default, or [`ResizeFilter::Bilinear`].
        filter(filter: ResizeFilter) => look.filter = filter;

        /// Sets the colour of new areas; black by default. A gray image takes the first value.
        fill(fill: [u8; 3]) => look.fill = fill;
    }

    /// Changes an image. Its size stays the same.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if the strength is not below the number of bins, there are fewer than
    /// 2 bins, more than 1000 augmentations, or the filter is another.
    pub fn apply(&self, image: &mut Image, rng: &mut Rng) -> Result<()> {
        self.check()?;
        for _ in 0..self.ops {
            Op::draw(&SPACE, Some(self.magnitude), self.bins, image, rng)
                .apply(image, &self.look)?;
        }
        Ok(())
    }

    /// Fails with [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a setting is invalid.
    pub(crate) fn check(&self) -> Result<()> {
        let RandAugment {
            ops,
            magnitude,
            bins,
            look,
        } = *self;
        if ops > 1000 || bins < 2 || magnitude >= bins {
            let message = format!("{ops} augmentations of magnitude {magnitude} of {bins}");
            return Err(Error::config(message));
        }
        look.check()
    }

    pub(crate) fn settings(&self) -> String {
        let RandAugment {
            ops,
            magnitude,
            bins,
            look,
        } = self;
        format!(
            "{ops} of magnitude {magnitude} of {bins}, {:?}, fill {:?}",
            look.filter, look.fill
        )
    }
}
