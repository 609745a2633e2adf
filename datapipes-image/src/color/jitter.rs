//! Random changes of colours.

use datapipes::{Error, Result, Rng};

use super::adjust::check_factor;
use crate::{Image, adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation};

/// Changes brightness, contrast, saturation and hue at random, in a random order: torchvision's
/// `ColorJitter`.
///
/// By default it changes nothing; each of the four is enabled by a method. Draws the order of the
/// four, and then for each enabled one, in the order brightness, contrast, saturation, hue, a
/// number uniform in its range.
///
/// ```
/// # use datapipes::Rng;
/// # use datapipes_image::{ColorJitter, Image};
/// let jitter = ColorJitter::new().brightness(0.4).contrast(0.4).saturation(0.4).hue(0.1);
/// let mut image = Image::new(2, 1, 3, vec![10, 20, 30, 200, 100, 50])?;
/// jitter.apply(&mut image, &mut Rng::from_key([1, 0, 0, 0]))?;
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[must_use]
pub struct ColorJitter {
    /// Ranges of brightness, contrast, saturation, hue.
    ranges: [Option<(f64, f64)>; 4],
}

const NAMES: [&str; 4] = ["brightness", "contrast", "saturation", "hue"];

impl ColorJitter {
    /// Makes a jitter that changes nothing yet.
    pub fn new() -> Self {
        ColorJitter::default()
    }

    /// Sets the factor of the brightness: from `1 - by` (but not below 0) to `1 + by`; see
    /// [`adjust_brightness`].
    pub fn brightness(self, by: f64) -> Self {
        self.set(0, around_one(by))
    }

    /// Sets the range of the factor of the brightness.
    pub fn brightness_range(self, least: f64, most: f64) -> Self {
        self.set(0, (least, most))
    }

    /// Sets the factor of the contrast: from `1 - by` (but not below 0) to `1 + by`; see
    /// [`adjust_contrast`].
    pub fn contrast(self, by: f64) -> Self {
        self.set(1, around_one(by))
    }

    /// Sets the range of the factor of the contrast.
    pub fn contrast_range(self, least: f64, most: f64) -> Self {
        self.set(1, (least, most))
    }

    /// Sets the factor of the saturation: from `1 - by` (but not below 0) to `1 + by`; see
    /// [`adjust_saturation`].
    pub fn saturation(self, by: f64) -> Self {
        self.set(2, around_one(by))
    }

    /// Sets the range of the factor of the saturation.
    pub fn saturation_range(self, least: f64, most: f64) -> Self {
        self.set(2, (least, most))
    }

    /// Sets the turn of the hue: from `-by` to `by`, where 0.5 is half around the circle; see
    /// [`adjust_hue`].
    pub fn hue(self, by: f64) -> Self {
        self.set(3, (-by, by))
    }

    /// Sets the range of the turn of the hue.
    pub fn hue_range(self, least: f64, most: f64) -> Self {
        self.set(3, (least, most))
    }

    fn set(mut self, which: usize, range: (f64, f64)) -> Self {
        self.ranges[which] = Some(range);
        self
    }

    /// Changes an image, in place. A gray image has no saturation and no hue, but the numbers are
    /// drawn all the same.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a range is not in order, negative for a factor, or not from -0.5 to
    /// 0.5 for the hue.
    pub fn apply(&self, image: &mut Image, rng: &mut Rng) -> Result<()> {
        self.check()?;
        for (which, value) in self.draw(rng) {
            match which {
                0 => adjust_brightness(image, value)?,
                1 => adjust_contrast(image, value)?,
                2 => adjust_saturation(image, value)?,
                _ => adjust_hue(image, value)?,
            }
        }
        Ok(())
    }

    /// Draws the changes, in order.
    fn draw(&self, rng: &mut Rng) -> impl Iterator<Item = (usize, f64)> + use<> {
        let mut order = [0, 1, 2, 3];
        rng.shuffle(&mut order);
        let values = self
            .ranges
            .map(|range| range.map(|(least, most)| rng.range(least, most)));
        order
            .into_iter()
            .filter_map(move |which| Some((which, values[which]?)))
    }

    /// Fails with [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a setting is invalid.
    pub(crate) fn check(&self) -> Result<()> {
        for (which, (name, range)) in NAMES.into_iter().zip(self.ranges).enumerate() {
            let Some((least, most)) = range else { continue };
            let fine = match which {
                3 => least >= -0.5 && least <= most && most <= 0.5,
                _ => {
                    check_factor(name, least)
                        .and(check_factor(name, most))
                        .is_ok()
                        && least <= most
                }
            };
            if !fine {
                let allowed = if which == 3 {
                    "from -0.5 to 0.5"
                } else {
                    "positive"
                };
                let message =
                    format!("{name} from {least} to {most}: it has to be {allowed} and in order");
                return Err(Error::config(message));
            }
        }
        Ok(())
    }

    pub(crate) fn settings(&self) -> String {
        let ranges = NAMES.into_iter().zip(self.ranges);
        let words = ranges.filter_map(|(name, range)| Some(format!("{name} {:?}", range?)));
        words.collect::<Vec<_>>().join(", ")
    }
}

/// Makes a range around 1. Negative numbers and NaN are kept for the check.
fn around_one(by: f64) -> (f64, f64) {
    (if by > 1.0 { 0.0 } else { 1.0 - by }, 1.0 + by)
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    #[test]
    fn golden_draws() {
        let jitter = ColorJitter::new()
            .brightness(0.4)
            .contrast_range(0.5, 2.0)
            .hue(0.1);
        let mut rng = Rng::from_key([1, 2, 3, 4]);
        let draws: Vec<Vec<(usize, f64)>> =
            (0..3).map(|_| jitter.draw(&mut rng).collect()).collect();
        assert_eq!(draws, GOLDEN, "{draws:?}");
    }

    const GOLDEN: [[(usize, f64); 3]; 3] = [
        [
            (3, 0.0028504690282307454),
            (1, 1.975295038282994),
            (0, 1.3220690871300653),
        ],
        [
            (3, 0.06347491948677891),
            (1, 1.5731698290326763),
            (0, 0.9798681945087824),
        ],
        [
            (0, 1.2027520204646331),
            (3, -0.05041128974179587),
            (1, 0.8417778057974397),
        ],
    ];

    #[test]
    fn without_settings_it_changes_nothing() {
        let mut image = Image::new(2, 2, 3, (0..12).collect()).unwrap();
        let before = image.clone();
        ColorJitter::new()
            .apply(&mut image, &mut Rng::from_key([0; 4]))
            .unwrap();
        assert_eq!(image, before);
        ColorJitter::new()
            .brightness(0.0)
            .hue(0.0)
            .apply(&mut image, &mut Rng::from_key([0; 4]))
            .unwrap();
        assert_eq!(image, before);
    }

    #[test]
    fn factors_are_drawn_in_the_range_that_was_set() {
        let draws = |jitter: ColorJitter| {
            let mut rng = Rng::from_key([5, 0, 0, 0]);
            let drawn: Vec<(usize, f64)> = (0..200).flat_map(|_| jitter.draw(&mut rng)).collect();
            let ends = |(least, most): (f64, f64), &(_, value): &(usize, f64)| {
                (least.min(value), most.max(value))
            };
            let which = drawn[0].0;
            assert!(drawn.iter().all(|draw| draw.0 == which));
            (which, drawn.iter().fold((f64::MAX, f64::MIN), ends))
        };
        let new = ColorJitter::new;
        for (jitter, place, (least, most)) in [
            (new().brightness_range(1.25, 1.5), 0, (1.25, 1.5)),
            (new().contrast_range(0.25, 0.75), 1, (0.25, 0.75)),
            (new().saturation_range(2.0, 3.0), 2, (2.0, 3.0)),
            (new().hue_range(-0.25, -0.125), 3, (-0.25, -0.125)),
        ] {
            let (which, found) = draws(jitter);
            let width = most - least;
            assert_eq!(which, place);
            assert!((least..least + width / 8.0).contains(&found.0), "{found:?}");
            assert!((most - width / 8.0..most).contains(&found.1), "{found:?}");
        }
        let mut image = Image::new(1, 1, 1, vec![40]).unwrap();
        let twice = new().brightness_range(2.0, 2.0);
        twice.apply(&mut image, &mut Rng::from_key([0; 4])).unwrap();
        assert_eq!(image, Image::new(1, 1, 1, vec![80]).unwrap());
    }

    #[test]
    fn the_order_matters_and_each_is_drawn() {
        let jitter = ColorJitter::new()
            .brightness(0.5)
            .contrast(0.5)
            .saturation(0.5)
            .hue(0.5);
        let mut rng = Rng::from_key([1, 0, 0, 0]);
        let orders: std::collections::BTreeSet<Vec<usize>> = (0..500)
            .map(|_| jitter.draw(&mut rng).map(|(which, _)| which).collect())
            .collect();
        assert_eq!(orders.len(), 24);
    }

    #[test]
    fn settings_without_sense_are_refused_with_their_numbers() {
        let mut image = Image::new(1, 1, 1, vec![0]).unwrap();
        let new = ColorJitter::new;
        for (jitter, text) in [
            (new().brightness(-0.1), "brightness from 1.1 to 0.9"),
            (new().brightness(f64::NAN), "brightness from NaN to NaN"),
            (new().contrast(f64::INFINITY), "contrast from 0 to inf"),
            (new().contrast_range(-1.0, 1.0), "contrast from -1 to 1"),
            (new().saturation_range(2.0, 1.0), "saturation from 2 to 1"),
            (new().hue(0.6), "hue from -0.6 to 0.6"),
            (new().hue(-0.1), "hue from 0.1 to -0.1"),
            (new().hue_range(f64::NAN, 0.0), "hue from NaN to 0"),
        ] {
            let error = jitter
                .apply(&mut image, &mut Rng::from_key([0; 4]))
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(text), "{error}");
        }
        // As torchvision: a range that would begin below 0 begins at 0.
        assert_eq!(new().brightness(3.0).ranges[0], Some((0.0, 4.0)));
    }
}
