//! Random crops and flips.

use datapipes::{Result, Rng};

use super::{Border, Draw, Geometry, PadMode, pad};
use crate::image::{check_edges, check_probability, check_size};
use crate::{Image, Rect, crop};

/// Settings of [`random_crop`]: torchvision's `RandomCrop`.
///
/// A size alone, `224` or `(width, height)`, converts into settings without a border.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct RandomCrop {
    width: u32,
    height: u32,
    padding: Border,
    pad_if_needed: bool,
}

impl RandomCrop {
    /// Sets the width and height of the crop.
    pub fn new(width: u32, height: u32) -> Self {
        RandomCrop {
            width,
            height,
            padding: Border::from(0),
            pad_if_needed: false,
        }
    }

    datapipes::setters! {
        /// Adds a border to the image first.
        padding(padding: impl Into<Border>) => padding = padding.into();

        /// Adds the missing border on both sides if an image is too small, so that the image is at a
        /// random place in the crop. The border has the contents set by
        /// [`padding`](RandomCrop::padding).
        pad_if_needed() => pad_if_needed = true;
    }

    /// Returns the border, and the part of the image with border. Draws the row, then the column,
    /// if there is a choice.
    fn resolve(&self, width: u32, height: u32, rng: &mut Rng) -> Result<(Option<Border>, Rect)> {
        self.check()?;
        let mut sides = self.padding.sides();
        if self.pad_if_needed {
            let [left, top, right, bottom] = &mut sides;
            for (part, edge, before, after) in [
                (self.width, width, left, right),
                (self.height, height, top, bottom),
            ] {
                let has = edge.saturating_add(*before).saturating_add(*after);
                let missing = part.saturating_sub(has);
                *before = before.saturating_add(missing);
                *after = after.saturating_add(missing);
            }
        }
        let [left, top, right, bottom] = sides;
        let padding = Border::new(left, top, right, bottom).mode(self.padding.shows());
        let (width, height) = padding.size(width, height)?;
        let mut part = Rect {
            x: 0,
            y: 0,
            width: self.width,
            height: self.height,
        };
        part.check_within(width, height)?;
        let mut start = |edge: u32, part: u32| match edge - part {
            0 => 0,
            room => rng.below(u64::from(room) + 1) as u32,
        };
        part.y = start(height, self.height);
        part.x = start(width, self.width);
        Ok(((sides != [0; 4]).then_some(padding), part))
    }

    /// Fails with [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a setting is invalid.
    pub(crate) fn check(&self) -> Result<()> {
        check_size(self.width, self.height)
    }

    pub(crate) fn settings(&self) -> String {
        let RandomCrop {
            width,
            height,
            padding,
            pad_if_needed,
        } = self;
        let mut text = format!("{width}x{height}");
        if padding.sides() != [0; 4] {
            text += &format!(", padding {:?}", padding.sides());
        }
        if *pad_if_needed {
            text += ", padded if needed";
        }
        if padding.shows() != PadMode::Constant(Default::default()) {
            text += &format!(", {:?}", padding.shows());
        }
        text
    }
}

datapipes::conversions! {
    |size: u32| -> RandomCrop { RandomCrop::new(size, size) }
    |(width, height): (u32, u32)| -> RandomCrop { RandomCrop::new(width, height) }
}

impl Draw for RandomCrop {
    fn draw(&self, width: u32, height: u32, rng: &mut Rng) -> Result<Geometry> {
        let (padding, part) = self.resolve(width, height, rng)?;
        let geometry = Geometry::new(width, height);
        match padding {
            Some(padding) => geometry.pad(padding)?.crop(part),
            None => geometry.crop(part),
        }
    }
}

/// Crops a random part of an image, with a border if asked for.
///
/// ```
/// # use datapipes::Rng;
/// # use datapipes_image::{Image, RandomCrop, random_crop};
/// # let image = Image::new(32, 32, 3, vec![7; 32 * 32 * 3])?;
/// # let mut rng = Rng::from_key([0; 4]);
/// let cifar = random_crop(&image, RandomCrop::new(32, 32).padding(4), &mut rng)?;
/// assert_eq!((cifar.width(), cifar.height()), (32, 32));
/// assert!(random_crop(&image, 33, &mut rng).is_err());
/// assert!(random_crop(&image, RandomCrop::new(33, 33).pad_if_needed(), &mut rng).is_ok());
/// # Ok::<(), datapipes::Error>(())
/// ```
///
/// # Errors
/// [`Config`](datapipes::ErrorKind::Config) if a size is zero or huge;
/// [`Shape`](datapipes::ErrorKind::Shape) if the part is larger than the image with its border;
/// otherwise as [`pad`](pad()).
pub fn random_crop(image: &Image, settings: impl Into<RandomCrop>, rng: &mut Rng) -> Result<Image> {
    let (padding, part) = settings
        .into()
        .resolve(image.width(), image.height(), rng)?;
    match padding {
        Some(padding) => crop(&pad(image, padding)?, part),
        None => crop(image, part),
    }
}

/// A flip with some probability, for [`Geometry::draw`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomFlip {
    p: f64,
    is_vertical: bool,
}

impl RandomFlip {
    /// Flips left and right with probability `p`.
    pub fn horizontal(p: f64) -> Self {
        RandomFlip {
            p,
            is_vertical: false,
        }
    }

    /// Flips top and bottom with probability `p`.
    pub fn vertical(p: f64) -> Self {
        RandomFlip {
            p,
            is_vertical: true,
        }
    }
}

impl Draw for RandomFlip {
    fn draw(&self, width: u32, height: u32, rng: &mut Rng) -> Result<Geometry> {
        check_probability(self.p)?;
        check_edges("a flip of an image", width, height)?;
        let geometry = Geometry::new(width, height);
        Ok(match (rng.chance(self.p), self.is_vertical) {
            (false, _) => geometry,
            (true, false) => geometry.hflip(),
            (true, true) => geometry.vflip(),
        })
    }
}
