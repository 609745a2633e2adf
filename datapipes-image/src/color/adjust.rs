//! Brightness, contrast, saturation and sharpness, changed by a factor: 0 removes the property, 1
//! changes nothing, 2 doubles it.
//!
//! The formulas are those of torchvision's `transforms.v2` on `uint8` tensors. Pillow's
//! `ImageEnhance`, which torchvision uses on PIL images, returns the same brightness and sharpness.
//! It rounds gray values and their mean to nearest, so contrast and saturation differ by 1 level in
//! up to half of the values.

use datapipes::{Error, Result};

use super::gray::mean;
use super::planes::by_blocks;
use super::tone::map;
use crate::Image;

/// Multiplies all values, in place: torchvision's `adjust_brightness`. Values above 255 become 255,
/// and fractions are cut off.
///
/// # Errors
/// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if the factor is negative or not finite.
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, adjust_brightness};
/// let mut image = Image::new(1, 1, 3, vec![10, 99, 200])?;
/// adjust_brightness(&mut image, 1.5)?;
/// assert_eq!(image.data(), [15, 148, 255]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn adjust_brightness(image: &mut Image, factor: f64) -> Result<()> {
    check_factor("brightness", factor)?;
    let factor = factor as f32;
    map(image, |value| (f32::from(value) * factor) as u8);
    Ok(())
}

/// Moves all values away from the mean of the gray image, or towards it, in place: torchvision's
/// `adjust_contrast`.
///
/// The mean is exact here; torchvision sums it in `f32`, which may move a value by 1 level.
///
/// # Errors
/// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if the factor is negative or not finite.
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, adjust_contrast};
/// let mut image = Image::new(2, 1, 1, vec![100, 200])?;
/// adjust_contrast(&mut image, 2.0)?;
/// assert_eq!(image.data(), [50, 250]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn adjust_contrast(image: &mut Image, factor: f64) -> Result<()> {
    check_factor("contrast", factor)?;
    let mean = f64::from(mean(image) as f32) * f64::from((1.0 - factor) as f32);
    let factor = factor as f32;
    // The sum is rounded once, as in a fused multiplication and addition.
    map(image, |value| {
        (f64::from(f32::from(value) * factor) + mean) as f32 as u8
    });
    Ok(())
}

/// Moves each pixel away from its gray value, or towards it, in place: torchvision's
/// `adjust_saturation`. A gray image does not change.
///
/// # Errors
/// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if the factor is negative or not finite.
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, adjust_saturation};
/// let mut red = Image::new(1, 1, 3, vec![200, 0, 0])?;
/// adjust_saturation(&mut red, 0.5)?;
/// assert_eq!(red.data(), [129, 29, 29]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn adjust_saturation(image: &mut Image, factor: f64) -> Result<()> {
    check_factor("saturation", factor)?;
    if image.channels() == 1 || factor == 1.0 {
        return Ok(());
    }
    let (factor, rest) = (factor as f32, f64::from((1.0 - factor) as f32));
    by_blocks(image, |[r, g, b]| {
        for ((r, g), b) in r.iter_mut().zip(g).zip(b) {
            // As `luma`: 5e-5 is more than rounding takes off, and half of the distance to the next
            // true value.
            let gray = f64::from((*r * 0.2989 + *g * 0.587 + *b * 0.114 + 5e-5) as i32) * rest;
            // The sum is rounded once, as in a fused multiplication and addition.
            let blend = |value: f32| (f64::from(value * factor) + gray) as f32;
            (*r, *g, *b) = (blend(*r), blend(*g), blend(*b));
        }
    });
    Ok(())
}

/// Moves each pixel away from the mean of its surroundings, or towards it, in place: torchvision's
/// `adjust_sharpness`.
///
/// The surroundings are the pixel, five times, and its 8 neighbours, rounded to a whole number.
/// Pixels at the edges do not change, and neither does an image of 2 rows or columns. Allocates
/// three rows.
///
/// # Errors
/// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if the factor is negative or not finite.
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, adjust_sharpness};
/// let mut image = Image::new(3, 3, 1, vec![0, 0, 0, 0, 130, 0, 0, 0, 0])?;
/// adjust_sharpness(&mut image, 0.0)?;
/// assert_eq!(image.data(), [0, 0, 0, 0, 50, 0, 0, 0, 0]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn adjust_sharpness(image: &mut Image, factor: f64) -> Result<()> {
    check_factor("sharpness", factor)?;
    let (width, height, step) = (image.width(), image.height(), usize::from(image.channels()));
    if width <= 2 || height <= 2 || factor == 1.0 {
        return Ok(());
    }
    let (rest, stride) = (f64::from((1.0 - factor) as f32), width as usize * step);
    let inner = step..stride - step;
    let data = image.data_mut();
    // The sums of three values of a column need the original row above.
    let (mut above, mut row, mut sums) =
        (data[..stride].to_vec(), vec![0; stride], vec![0u16; stride]);
    for start in (stride..data.len() - stride).step_by(stride) {
        let (here, below) = data[start..start + 2 * stride].split_at_mut(stride);
        row.copy_from_slice(here);
        for (((sum, &a), &b), &c) in sums.iter_mut().zip(&above).zip(&row).zip(&*below) {
            *sum = u16::from(a) + u16::from(b) + u16::from(c);
        }
        let columns = sums.iter().zip(&sums[step..]).zip(&sums[2 * step..]);
        for ((out, &value), ((&a, &b), &c)) in here[inner.clone()]
            .iter_mut()
            .zip(&row[inner.clone()])
            .zip(columns)
        {
            // Thirteenths are never half-way between two numbers. The sum is below 2¹².
            let mean = i32::from(u16::div_euclid(a + b + c + 4 * u16::from(value) + 6, 13));
            let value = i32::from(value);
            *out = ((f64::from(value) + f64::from(mean - value) * rest) as f32).clamp(0.0, 255.0)
                as i32 as u8;
        }
        std::mem::swap(&mut above, &mut row);
    }
    Ok(())
}

pub(crate) fn check_factor(what: &str, factor: f64) -> Result<()> {
    // Checked in `f32`, in which it is used.
    if factor >= 0.0 && (factor as f32).is_finite() {
        return Ok(());
    }
    Err(Error::config(format!(
        "a {what} factor of {factor}: it has to be positive or 0"
    )))
}
