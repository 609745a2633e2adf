//! Conversion to gray.

use datapipes::{Error, Result, Rng};

use crate::Image;
use crate::image::check_probability;

/// Makes an image gray, by ITU-R 601-2: 0.2989 red, 0.587 green and 0.114 blue, rounded down.
/// `channels` is 1, or 3 for three equal channels. An image that is gray already keeps its values.
///
/// This is torchvision's `rgb_to_grayscale` on `uint8` tensors. The three weights sum to 0.9999, so
/// `(k, k, k)` becomes `k - 1`, as there. Pillow's weights sum to 1 and it rounds to nearest: it is
/// up to 1 level brighter.
///
/// # Errors
/// [`ErrorKind::Config`](datapipes::ErrorKind::Config) for other numbers of channels.
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, grayscale};
/// let red = Image::new(1, 1, 3, vec![200, 0, 0])?;
/// assert_eq!(grayscale(&red, 1)?.data(), [59]);
/// assert_eq!(grayscale(&red, 3)?.data(), [59, 59, 59]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn grayscale(image: &Image, channels: u8) -> Result<Image> {
    check_channels(channels)?;
    let (width, height) = (image.width(), image.height());
    let data = match (image.channels(), channels) {
        (1, 1) => image.data().to_vec(),
        (1, _) => image.data().iter().flat_map(|&value| [value; 3]).collect(),
        (_, 1) => image.data().as_chunks::<3>().0.iter().map(luma).collect(),
        _ => {
            let mut gray = image.clone();
            remove_colour(&mut gray);
            return Ok(gray);
        }
    };
    Image::new(width, height, channels, data)
}

/// Makes an image gray with probability `p`, in place; it keeps its number of channels. Draws one
/// number.
///
/// This is torchvision's `RandomGrayscale`; see [`grayscale`].
///
/// # Errors
/// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if `p` is not from 0 to 1.
///
/// # Examples
/// ```
/// # use datapipes::Rng;
/// # use datapipes_image::{Image, random_grayscale};
/// let mut red = Image::new(1, 1, 3, vec![200, 0, 0])?;
/// random_grayscale(&mut red, 1.0, &mut Rng::from_key([1, 0, 0, 0]))?;
/// assert_eq!(red.data(), [59, 59, 59]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn random_grayscale(image: &mut Image, p: f64, rng: &mut Rng) -> Result<()> {
    check_probability(p)?;
    if rng.chance(p) {
        remove_colour(image);
    }
    Ok(())
}

pub(crate) fn check_channels(channels: u8) -> Result<()> {
    match channels {
        1 | 3 => Ok(()),
        _ => Err(Error::config(format!(
            "a gray image has 1 or 3 channels, not {channels}"
        ))),
    }
}

fn remove_colour(image: &mut Image) {
    if image.channels() == 3 {
        for pixel in image.data_mut().as_chunks_mut::<3>().0 {
            *pixel = [luma(pixel); 3];
        }
    }
}

/// Returns 2989, 5870 and 1140 ten-thousandths, rounded down.
///
/// The computation is in units of 2⁻²⁴. The weights are off by less than half a unit each, so a sum
/// by less than 383 units; true values are multiples of 1677 units, and the summand is between the
/// two.
#[inline]
pub(crate) fn luma(pixel: &[u8; 3]) -> u8 {
    const WEIGHTS: [u32; 3] = [5_014_710, 9_848_226, 1_912_603];
    let [r, g, b] = pixel.map(u32::from);
    ((r * WEIGHTS[0] + g * WEIGHTS[1] + b * WEIGHTS[2] + 839) >> 24) as u8
}

/// Returns the mean of the gray values.
pub(crate) fn mean(image: &Image) -> f64 {
    let sum: u64 = match image.channels() {
        1 => image.data().iter().map(|&value| u64::from(value)).sum(),
        _ => image
            .data()
            .as_chunks::<3>()
            .0
            .iter()
            .map(|pixel| u64::from(luma(pixel)))
            .sum(),
    };
    sum as f64 / (image.data().len() / usize::from(image.channels())) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    #[test]
    fn the_weights_round_down_for_every_colour() {
        // Tests every third value of each channel and the ends. All 2²⁴ colours were compared once:
        // none differs from this formula, and 3 differ from torchvision, whose `f32` falls below a
        // whole number.
        let steps = || (0..=255u32).step_by(3);
        for r in steps() {
            for g in steps() {
                for b in steps() {
                    let exact = (2989 * r + 5870 * g + 1140 * b) / 10_000;
                    assert_eq!(
                        u32::from(luma(&[r as u8, g as u8, b as u8])),
                        exact,
                        "{r} {g} {b}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_coin_decides_and_channels_stay() {
        let picture = || Image::new(2, 1, 3, vec![200, 0, 0, 9, 9, 9]).unwrap();
        let mut rng = Rng::from_key([1, 0, 0, 0]);
        let mut image = picture();
        random_grayscale(&mut image, 0.0, &mut rng).unwrap();
        assert_eq!(image, picture());
        random_grayscale(&mut image, 1.0, &mut rng).unwrap();
        assert_eq!(image.data(), [59, 59, 59, 8, 8, 8]);
        let mut gray = Image::new(2, 1, 1, vec![7, 9]).unwrap();
        random_grayscale(&mut gray, 1.0, &mut rng).unwrap();
        assert_eq!(gray.data(), [7, 9]);
        assert_eq!(grayscale(&gray, 3).unwrap().data(), [7, 7, 7, 9, 9, 9]);
        for p in [-0.1, 1.1, f64::NAN] {
            let error = random_grayscale(&mut gray, p, &mut rng).unwrap_err();
            assert!(
                error
                    .to_string()
                    .contains(&format!("the probability is {p}")),
                "{error}"
            );
        }
        for channels in [0, 2, 4] {
            assert_eq!(
                grayscale(&gray, channels).unwrap_err().kind(),
                ErrorKind::Config
            );
        }
    }
}
