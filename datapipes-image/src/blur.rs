//! Gaussian blur.

use datapipes::{Error, Result, Rng};

use crate::Image;
use crate::portable::exp;

/// Blurs an image with a Gaussian. `kernel` is the number of columns and rows that are weighed,
/// `sigma` the standard deviation in pixels. Edges are mirrored, without the edge itself.
///
/// The result equals that of torchvision's `gaussian_blur` on an image or a tensor of `u8`. A value
/// may differ by 1, since 32-bit floats are summed in another order before rounding; in noise, one
/// value in 20,000 did. The two directions are computed one after the other. Allocates the result
/// and `kernel` rows of `f32`. For a range of sigmas, see [`RandomGaussianBlur`].
///
/// # Errors
/// - [`ErrorKind::Config`](datapipes::ErrorKind::Config) if the kernel is even, or sigma is not positive and finite.
/// - [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if the image is too small for mirrored edges: its edges have to be longer
///   than half of the kernel.
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, gaussian_blur};
/// let dot = Image::new(3, 3, 1, vec![0, 0, 0, 0, 255, 0, 0, 0, 0])?;
/// assert_eq!(gaussian_blur(&dot, 3, 0.5)?.pixel(1, 1), [158]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn gaussian_blur(image: &Image, kernel: u32, sigma: f64) -> Result<Image> {
    check_blur(kernel, sigma)?;
    blur(image, (kernel, kernel), (sigma, sigma))
}

/// Blurs images with a Gaussian of random width: torchvision's `GaussianBlur`.
///
/// Draws one sigma for both directions, uniform in its range.
///
/// ```
/// # use datapipes::Rng;
/// # use datapipes_image::{Image, RandomGaussianBlur};
/// let mut dot = Image::new(3, 3, 1, vec![0, 0, 0, 0, 255, 0, 0, 0, 0])?;
/// RandomGaussianBlur::new(3).sigma(0.5, 2.0).apply(&mut dot, &mut Rng::from_key([1, 0, 0, 0]))?;
/// assert!(dot.pixel(1, 1)[0] < 159);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct RandomGaussianBlur {
    kernel: u32,
    sigma: (f64, f64),
}

impl RandomGaussianBlur {
    /// Sets the size of the kernel, an odd number of columns and rows. Sigma is from 0.1 to 2.
    pub fn new(kernel: u32) -> Self {
        RandomGaussianBlur {
            kernel,
            sigma: (0.1, 2.0),
        }
    }

    /// Sets the range of sigma, in pixels.
    pub fn sigma(mut self, least: f64, most: f64) -> Self {
        self.sigma = (least, most);
        self
    }

    /// Blurs an image; see [`gaussian_blur`].
    ///
    /// # Errors
    /// As [`gaussian_blur`]; [`ErrorKind::Config`](datapipes::ErrorKind::Config) also if the range is not in order.
    pub fn apply(&self, image: &mut Image, rng: &mut Rng) -> Result<()> {
        self.check()?;
        *image = gaussian_blur(image, self.kernel, self.draw(rng))?;
        Ok(())
    }

    fn draw(&self, rng: &mut Rng) -> f64 {
        rng.range(self.sigma.0, self.sigma.1)
    }

    /// Fails with [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a setting is invalid.
    pub(crate) fn check(&self) -> Result<()> {
        let (least, most) = self.sigma;
        check_blur(self.kernel, least).and(check_blur(self.kernel, most))?;
        if least <= most {
            return Ok(());
        }
        let message = format!("a blur with sigma from {least} to {most}: it has to be in order");
        Err(Error::config(message))
    }

    pub(crate) fn settings(&self) -> String {
        format!("{} pixels, sigma {:?}", self.kernel, self.sigma)
    }
}

datapipes::conversions! {
    |kernel: u32| -> RandomGaussianBlur { RandomGaussianBlur::new(kernel) }
}

/// Blurs with one kernel across and one down.
fn blur(image: &Image, kernel: (u32, u32), sigma: (f64, f64)) -> Result<Image> {
    let across = weights(kernel.0, sigma.0, image.width())?;
    let down = weights(kernel.1, sigma.1, image.height())?;
    let (width, height) = (image.width() as usize, image.height() as usize);
    let channels = usize::from(image.channels());
    let row = width * channels;
    let (wing, reach) = (across.len() / 2, down.len() / 2);
    let mut wide = vec![0.0; (width + 2 * wing) * channels];
    // Rows that are blurred across: as many as a row of the result needs.
    let mut ring = vec![0.0; row * down.len()];
    let place = |y: usize| y % down.len() * row;
    let mut sums = vec![0.0; row];
    let mut out = Image::black(image.width(), image.height(), image.channels());
    let mut next = 0;
    for (y, to) in out.data_mut().chunks_exact_mut(row).enumerate() {
        while next < height.min(y + reach + 1) {
            widen(
                &image.data()[next * row..][..row],
                wing,
                channels,
                &mut wide,
            );
            let sums = &mut ring[place(next)..][..row];
            weigh(
                sums,
                across
                    .iter()
                    .enumerate()
                    .map(|(t, &w)| (w, &wide[t * channels..][..row])),
            );
            next += 1;
        }
        let rows =
            (0..down.len()).map(|t| mirrored(y as isize + t as isize - reach as isize, height));
        weigh(
            &mut sums,
            down.iter()
                .zip(rows)
                .map(|(&w, y)| (w, &ring[place(y)..][..row])),
        );
        to.iter_mut()
            .zip(&sums)
            .for_each(|(to, sum)| *to = sum.round_ties_even() as u8);
    }
    Ok(out)
}

/// Fails with [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a setting is invalid.
pub(crate) fn check_blur(kernel: u32, sigma: f64) -> Result<()> {
    if kernel.is_multiple_of(2) || !(sigma > 0.0 && sigma.is_finite()) {
        let message =
            format!("a blur of {kernel} pixels with sigma {sigma}: it has to be odd and positive");
        return Err(Error::config(message));
    }
    Ok(())
}

/// Returns the weights of a kernel, for an edge of this length.
fn weights(len: u32, sigma: f64, edge: u32) -> Result<Vec<f32>> {
    if len / 2 >= edge {
        return Err(Error::shape(format!(
            "a blur of {len} pixels mirrors {} at an edge of {edge}",
            len / 2
        )));
    }
    let weight = |t: u32| exp(-0.5 * ((f64::from(t) - f64::from(len / 2)) / sigma).powi(2));
    let sum: f64 = (0..len).map(weight).sum();
    Ok((0..len).map(|t| (weight(t) / sum) as f32).collect())
}

/// Converts a row to floats, with mirrored pixels at both ends.
fn widen(row: &[u8], wing: usize, channels: usize, wide: &mut [f32]) {
    let width = row.len() / channels;
    for (x, to) in wide.chunks_exact_mut(channels).enumerate() {
        let from = &row[mirrored(x as isize - wing as isize, width) * channels..];
        to.iter_mut()
            .zip(from)
            .for_each(|(to, &value)| *to = f32::from(value));
    }
}

/// Returns the mirrored place of a place outside, at most one edge away.
fn mirrored(place: isize, len: usize) -> usize {
    let last = len - 1;
    last - last.abs_diff(place.unsigned_abs())
}

/// Sums rows by weights.
fn weigh<'a>(sums: &mut [f32], rows: impl Iterator<Item = (f32, &'a [f32])>) {
    sums.fill(0.0);
    for (weight, row) in rows {
        sums.iter_mut()
            .zip(row)
            .for_each(|(sum, value)| *sum += weight * value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode;

    #[test]
    fn edges_are_mirrored_without_the_edge() {
        let places: Vec<usize> = (-3..8).map(|place| mirrored(place, 4)).take(10).collect();
        assert_eq!(places, [3, 2, 1, 0, 1, 2, 3, 2, 1, 0]);
        // By hand: sigma is so large that all three pixels have the same weight.
        let image = Image::new(4, 1, 1, vec![30, 60, 90, 240]).unwrap();
        assert_eq!(
            blur(&image, (3, 1), (1e9, 1.0)).unwrap().data(),
            [50, 60, 130, 140]
        );
        let image = Image::new(1, 4, 1, vec![30, 60, 90, 240]).unwrap();
        assert_eq!(
            blur(&image, (1, 3), (1.0, 1e9)).unwrap().data(),
            [50, 60, 130, 140]
        );
    }

    #[test]
    fn one_color_stays_and_one_pixel_of_a_kernel_changes_nothing() {
        let flat = Image::new(9, 7, 3, [255, 0, 77].repeat(63)).unwrap();
        assert_eq!(blur(&flat, (17, 13), (2.5, 9.0)).unwrap(), flat);
        let data = (0..=251).collect();
        let image = Image::new(12, 7, 3, data).unwrap();
        assert_eq!(blur(&image, (1, 1), (3.0, 3.0)).unwrap(), image);
        // The kernel is so narrow that only the middle has weight.
        assert_eq!(blur(&image, (5, 5), (1e-9, 1e-300)).unwrap(), image);
    }

    #[test]
    fn what_makes_no_sense_is_an_error_with_numbers() {
        let mut image = Image::new(4, 3, 1, vec![0; 12]).unwrap();
        for (kernel, sigma, text) in [
            (2, 1.0, "2 pixels with sigma 1"),
            (0, 1.0, "0 pixels"),
            (3, 0.0, "sigma 0"),
            (3, -1.0, "sigma -1"),
            (3, f64::NAN, "sigma NaN"),
            (3, f64::INFINITY, "sigma inf"),
        ] {
            let error = gaussian_blur(&image, kernel, sigma).unwrap_err();
            assert_eq!(error.kind(), datapipes::ErrorKind::Config);
            assert!(error.to_string().contains(text), "{error}");
        }
        for (kernel, edge) in [
            ((9, 1), "an edge of 4"),
            ((1, 7), "an edge of 3"),
            ((u32::MAX, 1), "an edge of 4"),
        ] {
            let error = blur(&image, kernel, (1.0, 1.0)).unwrap_err();
            assert_eq!(error.kind(), datapipes::ErrorKind::Shape);
            assert!(error.to_string().contains(edge), "{error}");
        }
        assert!(blur(&image, (7, 5), (1.0, 1.0)).is_ok());
        assert_eq!(
            gaussian_blur(&image, 7, 1.0).unwrap_err().kind(),
            datapipes::ErrorKind::Shape
        );
        let new = RandomGaussianBlur::new;
        for (random, text) in [
            (new(4), "4 pixels"),
            (new(3).sigma(0.0, 1.0), "sigma 0"),
            (new(3).sigma(1.0, f64::INFINITY), "sigma inf"),
            (new(3).sigma(2.0, 1.0), "from 2 to 1"),
        ] {
            let error = random
                .apply(&mut image, &mut Rng::from_key([0; 4]))
                .unwrap_err();
            assert_eq!(error.kind(), datapipes::ErrorKind::Config);
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn golden_draws() {
        let (random, mut rng) = (RandomGaussianBlur::new(5), Rng::from_key([1, 2, 3, 4]));
        let draws: Vec<f64> = (0..3).map(|_| random.draw(&mut rng)).collect();
        assert_eq!(draws, GOLDEN, "{draws:?}");
    }

    const GOLDEN: [f64; 3] = [0.2260549918963703, 0.7559879867710416, 0.5769343389931398];

    #[test]
    fn at_random_it_is_the_blur_with_the_sigma_drawn() {
        let before = Image::new(
            12,
            7,
            3,
            (0..=251).rev().map(|n: u8| n.wrapping_mul(37)).collect(),
        )
        .unwrap();
        let random = RandomGaussianBlur::new(5).sigma(0.3, 4.0);
        let mut seen = Vec::new();
        for key in 0..20 {
            let rng = || Rng::from_key([key, 0, 0, 0]);
            let mut image = before.clone();
            random.apply(&mut image, &mut rng()).unwrap();
            assert_eq!(
                image,
                gaussian_blur(&before, 5, random.draw(&mut rng())).unwrap()
            );
            seen.push(image.into_data());
        }
        seen.sort();
        seen.dedup();
        assert!(seen.len() > 10, "{}", seen.len());
    }

    #[test]
    fn pictures_are_blurred_as_by_torchvision() {
        let picture = |name: &str| {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/data")
                .join(name);
            decode(&std::fs::read(path).unwrap()).unwrap()
        };
        let rgb = picture("resize.source.png");
        let green = rgb.data().iter().skip(1).step_by(3).copied().collect();
        let gray = Image::new(rgb.width(), rgb.height(), 1, green).unwrap();
        for (kernel, sigma) in [
            ((3, 3), (0.5, 0.5)),
            ((9, 5), (1.7, 0.9)),
            ((23, 39), (4.0, 7.0)),
        ] {
            for (image, name, step) in [(&rgb, "rgb", 1), (&gray, "gray", 3)] {
                let expected = picture(&format!("blur.{name}.{}x{}.png", kernel.0, kernel.1));
                let expected: Vec<u8> = expected.data().iter().step_by(step).copied().collect();
                let blurred = blur(image, kernel, sigma).unwrap();
                let off = blurred
                    .data()
                    .iter()
                    .zip(&expected)
                    .map(|(a, b)| a.abs_diff(*b))
                    .max();
                assert_eq!(
                    (expected.len(), off <= Some(1)),
                    (blurred.data().len(), true),
                    "{kernel:?}: {off:?}"
                );
            }
        }
        assert_eq!(
            gaussian_blur(&rgb, 3, 0.5).unwrap(),
            blur(&rgb, (3, 3), (0.5, 0.5)).unwrap()
        );
    }
}
