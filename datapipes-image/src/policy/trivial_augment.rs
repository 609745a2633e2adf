//! TrivialAugment: one augmentation of any strength.

use datapipes::{Error, Result, Rng};

use super::{Look, Op, Space};
use crate::{Image, ResizeFilter};

/// Applies one augmentation, chosen at random out of 14, of a random strength: torchvision's
/// `TrivialAugmentWide` (Müller and Hutter 2021).
///
/// The 14 steps are the same as in [`RandAugment`](crate::RandAugment), in wider ranges: shear by
/// up to 0.99, translation by up to 32 pixels, rotation by up to 135 degrees, brightness, color,
/// contrast and sharpness by up to 0.99, posterize to 2 bits at least. Draws one number for the
/// choice, one for the strength and one for the sign, if there is one.
///
/// # Examples
/// ```
/// # use datapipes::Rng;
/// # use datapipes_image::{Image, TrivialAugmentWide};
/// let mut image = Image::new(8, 6, 3, (0..144).collect())?;
/// TrivialAugmentWide::new().apply(&mut image, &mut Rng::from_key([1, 0, 0, 0]))?;
/// assert_eq!((image.width(), image.height()), (8, 6));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct TrivialAugmentWide {
    bins: u32,
    look: Look,
}

pub(super) const SPACE: Space = Space {
    shear: 0.99,
    translate: |_| 32.0,
    rotate: 135.0,
    factor: 0.99,
    posterize: 6.0,
};

impl Default for TrivialAugmentWide {
    fn default() -> Self {
        TrivialAugmentWide {
            bins: 31,
            look: Look::default(),
        }
    }
}

impl TrivialAugmentWide {
    /// Makes a policy with 31 strengths.
    pub fn new() -> Self {
        TrivialAugmentWide::default()
    }

    datapipes::setters! {
        /// Sets the number of strengths.
        bins(bins: u32) => bins = bins;

        /// Sets the filter for moved images: [`ResizeFilter::Nearest`], the default, or [`ResizeFilter::Bilinear`].
        filter(filter: ResizeFilter) => look.filter = filter;

        /// Sets the colour of new areas; black by default. A gray image takes the first value.
        fill(fill: [u8; 3]) => look.fill = fill;
    }

    /// Changes an image. Its size stays the same.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if there are fewer than 2 bins, or the filter is another.
    pub fn apply(&self, image: &mut Image, rng: &mut Rng) -> Result<()> {
        self.check()?;
        Op::draw(&SPACE, None, self.bins, image, rng).apply(image, &self.look)
    }

    /// Fails with [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a setting is invalid.
    pub(crate) fn check(&self) -> Result<()> {
        if self.bins < 2 {
            return Err(Error::config(format!(
                "{} strengths: 2 at least",
                self.bins
            )));
        }
        self.look.check()
    }

    pub(crate) fn settings(&self) -> String {
        format!(
            "{} strengths, {:?}, fill {:?}",
            self.bins, self.look.filter, self.look.fill
        )
    }
}
