//! Random resized crops, as used for training on ImageNet.

use datapipes::{Error, Result, Rng};

use crate::image::{check_edges, check_size};
use crate::portable::{exp, ln};
use crate::{Draw, Geometry, Image, Rect, ResizeFilter, resized_crop};

/// Settings of [`random_resized_crop`]: torchvision's `RandomResizedCrop`.
///
/// A size alone, `224` or `(width, height)`, converts into the usual settings of that size.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct RandomResizedCrop {
    width: u32,
    height: u32,
    scale: (f64, f64),
    ratio: (f64, f64),
    filter: ResizeFilter,
}

impl RandomResizedCrop {
    /// Sets the width and height of the result. The crop has 8 % to 100 % of the image's area and
    /// an aspect ratio of 3:4 to 4:3.
    pub fn new(width: u32, height: u32) -> Self {
        let (scale, ratio) = ((0.08, 1.0), (3.0 / 4.0, 4.0 / 3.0));
        RandomResizedCrop {
            width,
            height,
            scale,
            ratio,
            filter: ResizeFilter::Bilinear,
        }
    }

    datapipes::setters! {
        /// Sets the least and the largest part of the image's area.
        scale(least: f64, most: f64) => scale = (least, most);

        /// Sets the least and the largest ratio of width to height, before the part is scaled.
        ratio(least: f64, most: f64) => ratio = (least, most);

        /// Sets the filter for scaling.
        filter(filter: ResizeFilter) => filter = filter;
    }

    /// Draws the part of an image of this size, by torchvision's algorithm. Draws up to ten times
    /// an area, uniformly, and a ratio, uniformly in its logarithm. For the first pair that fits,
    /// draws its row and then its column. If none fits, returns the largest part in the middle
    /// whose ratio is allowed.
    ///
    /// # Panics
    /// Panics if an edge is 0.
    pub fn part(&self, width: u32, height: u32, rng: &mut Rng) -> Rect {
        let (w, h) = (f64::from(width), f64::from(height));
        let (least, most) = self.ratio;
        for _ in 0..10 {
            let area = w * h * rng.range(self.scale.0, self.scale.1);
            let ratio = exp(rng.range(ln(least), ln(most)));
            // Rounds as Python's `round` does. The conversion saturates, and NaN becomes 0.
            let part_w = (area * ratio).sqrt().round_ties_even() as u32;
            let part_h = (area / ratio).sqrt().round_ties_even() as u32;
            if (1..=width).contains(&part_w) && (1..=height).contains(&part_h) {
                return Rect::draw((width, height), (part_w, part_h), rng);
            }
        }
        let (part_w, part_h) = match w / h {
            ratio if ratio < least => (width, (w / least).round_ties_even() as u32),
            ratio if ratio > most => ((h * most).round_ties_even() as u32, height),
            _ => (width, height),
        };
        let (part_w, part_h) = (part_w.clamp(1, width), part_h.clamp(1, height));
        Rect {
            x: (width - part_w) / 2,
            y: (height - part_h) / 2,
            width: part_w,
            height: part_h,
        }
    }

    /// Returns width and height of the result.
    pub(crate) fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    /// Returns the filter for scaling.
    pub(crate) fn resampling(&self) -> ResizeFilter {
        self.filter
    }

    /// Fails with [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a setting is invalid.
    pub(crate) fn check(&self) -> Result<()> {
        check_size(self.width, self.height)?;
        for (name, (least, most)) in [("scale", self.scale), ("ratio", self.ratio)] {
            if !(least > 0.0 && least <= most && most.is_finite()) {
                let message =
                    format!("{name} from {least} to {most}: it has to be positive and in order");
                return Err(Error::config(message));
            }
        }
        Ok(())
    }

    pub(crate) fn settings(&self) -> String {
        let RandomResizedCrop {
            width,
            height,
            scale,
            ratio,
            filter,
        } = self;
        format!(
            "{width}x{height}, scale {scale:?}, ratio ({:.4}, {:.4}), {filter:?}",
            ratio.0, ratio.1
        )
    }
}

datapipes::conversions! {
    |size: u32| -> RandomResizedCrop { RandomResizedCrop::new(size, size) }
    |(width, height): (u32, u32)| -> RandomResizedCrop { RandomResizedCrop::new(width, height) }
}

impl Draw for RandomResizedCrop {
    fn draw(&self, width: u32, height: u32, rng: &mut Rng) -> Result<Geometry> {
        self.check()?;
        check_edges("a part of an image", width, height)?;
        let part = self.part(width, height, rng);
        Geometry::new(width, height).resized_crop(part, self.width, self.height, self.filter)
    }
}

/// Crops a random part of an image and scales it, in one pass.
///
/// ```
/// # use datapipes::Rng;
/// # use datapipes_image::{Image, RandomResizedCrop, random_resized_crop};
/// # let image = Image::new(40, 30, 3, vec![7; 40 * 30 * 3])?;
/// # let mut rng = Rng::from_key([0; 4]);
/// let usual = random_resized_crop(&image, 224, &mut rng)?;
/// let gentle = random_resized_crop(&image, RandomResizedCrop::new(224, 160).scale(0.5, 1.0), &mut rng)?;
/// assert_eq!((gentle.width(), gentle.height()), (224, 160));
/// # Ok::<(), datapipes::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a size is zero or huge, or a range is not positive or not in order.
pub fn random_resized_crop(
    image: &Image,
    settings: impl Into<RandomResizedCrop>,
    rng: &mut Rng,
) -> Result<Image> {
    let settings = settings.into();
    settings.check()?;
    let part = settings.part(image.width(), image.height(), rng);
    resized_crop(
        image,
        part,
        settings.width,
        settings.height,
        settings.filter,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    fn rng(key: u64) -> Rng {
        Rng::from_key([key, 0, 0, 0])
    }

    #[test]
    fn parts_have_the_distribution_asked_for() {
        let (settings, mut rng) = (RandomResizedCrop::new(224, 224), rng(1));
        let (width, height, draws) = (500, 375, 20_000);
        let (mut areas, mut log_ratios, mut rights) = (0.0, 0.0, 0.0);
        for _ in 0..draws {
            let part = settings.part(width, height, &mut rng);
            assert!(part.x + part.width <= width && part.y + part.height <= height);
            let (w, h) = (f64::from(part.width), f64::from(part.height));
            let area = w * h / f64::from(width * height);
            assert!((0.078..=1.0).contains(&area), "{part:?}");
            assert!((0.74..1.35).contains(&(w / h)), "{part:?}");
            areas += area;
            log_ratios += (w / h).ln();
            if part.width < width {
                rights += f64::from(part.x) / f64::from(width - part.width) - 0.5;
            }
        }
        // Results of Python for torchvision's algorithm, over a million draws. The area is below
        // the middle of the scale, and the ratio above 1, as large or upright parts fit less often.
        let mean = |sum: f64| sum / f64::from(draws);
        assert!((mean(areas) - 0.4329).abs() < 0.006, "{}", mean(areas));
        assert!(
            (mean(log_ratios) - 0.0308).abs() < 0.005,
            "{}",
            mean(log_ratios)
        );
        assert!(mean(rights).abs() < 0.01, "{}", mean(rights));
    }

    #[test]
    fn the_same_numbers_give_the_same_part() {
        let settings = RandomResizedCrop::from(224);
        let parts = |key| {
            let mut rng = rng(key);
            (0..5)
                .map(|_| settings.part(500, 375, &mut rng))
                .collect::<Vec<_>>()
        };
        assert_eq!(parts(1), parts(1));
        assert_ne!(parts(1), parts(2));
    }

    #[test]
    fn what_does_not_fit_falls_back_to_the_middle() {
        let settings = RandomResizedCrop::new(224, 224).scale(1.0, 1.0);
        let part = settings.part(1000, 10, &mut rng(1));
        assert_eq!(
            part,
            Rect {
                x: 493,
                y: 0,
                width: 13,
                height: 10
            }
        );
        let part = settings.part(10, 1000, &mut rng(1));
        assert_eq!(
            part,
            Rect {
                x: 0,
                y: 493,
                width: 10,
                height: 13
            }
        );
        let part = settings.part(1, 1, &mut rng(1));
        assert_eq!(
            part,
            Rect {
                x: 0,
                y: 0,
                width: 1,
                height: 1
            }
        );
        let whole = RandomResizedCrop::new(8, 8)
            .scale(2.0, 3.0)
            .part(40, 36, &mut rng(1));
        assert_eq!(
            whole,
            Rect {
                x: 0,
                y: 0,
                width: 40,
                height: 36
            }
        );
    }

    #[test]
    fn settings_without_sense_are_refused_with_their_numbers() {
        let image = Image::new(4, 4, 3, vec![0; 48]).unwrap();
        let usual = RandomResizedCrop::new(224, 224);
        for (settings, number) in [
            (RandomResizedCrop::new(0, 224), "0x224"),
            (usual.scale(0.0, 1.0), "0 to 1"),
            (usual.scale(0.9, 0.1), "0.9 to 0.1"),
            (usual.scale(f64::NAN, 1.0), "NaN"),
            (usual.ratio(-1.0, 1.0), "-1 to 1"),
            (usual.ratio(1.0, f64::INFINITY), "inf"),
        ] {
            let error = random_resized_crop(&image, settings, &mut rng(1)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(number), "{error}");
        }
    }
}
