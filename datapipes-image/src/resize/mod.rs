//! Scaling of images: exactly as Pillow does, without an allocation for each image.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod coefficients;
mod passes;
mod resampler;
#[cfg(test)]
mod tests;
mod view;

use std::cell::RefCell;

use datapipes::{Error, Result};

use crate::image::{MAX_PIXELS, check_size};
use crate::{Image, Rect};

pub(crate) use self::resampler::Resampler;
pub(crate) use self::view::{Part, View};

/// Filter for scaling an image. All filters except `Nearest` widen their kernel when they shrink,
/// as Pillow and torchvision with `antialias=True` do.
///
/// Each result equals that of Pillow 13's `Image.resize`, bit by bit, and therefore of torchvision
/// on Pillow's images:
///
/// - Pillow before 13 always scales across first. Pillow 13 and this library scale down first if
///   more than twice as many rows as columns are removed. Only in that case do older versions
///   differ, in a fifth to a third of the values: by 1 (`Bilinear`), up to 3 (`CatmullRom`) or 5
///   (`Lanczos3`) for an image with grain, up to 34 for noise.
/// - torchvision for a tensor of `u8` (0.29, `antialias=True`) has weights of fewer bits: off by at
///   most 1, for 0.2 % of the values (`Bilinear`) or 0.4 % (`CatmullRom`) from 500x375 to 224x224;
///   for none or 0.3 % to 600x450.
/// - torchvision without antialiasing is another computation, which this library does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResizeFilter {
    /// The nearest pixel.
    Nearest,
    /// The mean of the pixels whose centres lie in a box of 1 pixel. Nearly `Nearest` when it
    /// enlarges.
    Box,
    /// A triangle over 2 pixels, the default of torchvision.
    #[default]
    Bilinear,
    /// A windowed sinc over 2 pixels.
    Hamming,
    /// A cubic over 4 pixels with `a = -0.5`: Pillow's `BICUBIC`.
    CatmullRom,
    /// A windowed sinc over 6 pixels.
    Lanczos3,
}

/// Scales to a width and height, whatever the aspect ratio.
///
/// Allocates the result. The thread keeps intermediate buffers for the next image; buffers of more
/// than 16 MiB are freed.
///
/// # Errors
/// - [`ErrorKind::Config`](datapipes::ErrorKind::Config) if an edge is zero or the result would be huge.
/// - [`ErrorKind::Limit`](datapipes::ErrorKind::Limit) if weights and intermediate rows would take more than 512 MiB: a line of
///   millions of pixels.
///
/// # Examples
/// ```
/// # use datapipes_image::{ResizeFilter, Image, resize};
/// let image = Image::new(2, 1, 1, vec![0, 100])?;
/// assert_eq!(resize(&image, 1, 1, ResizeFilter::Box)?.data(), [50]);
/// assert_eq!(resize(&image, 4, 1, ResizeFilter::Nearest)?.data(), [0, 0, 100, 100]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn resize(image: &Image, width: u32, height: u32, filter: ResizeFilter) -> Result<Image> {
    let all = Rect {
        x: 0,
        y: 0,
        width: image.width(),
        height: image.height(),
    };
    resized_crop(image, all, width, height, filter)
}

/// Scales such that the shorter edge gets this length and the aspect ratio is kept; the longer edge
/// is rounded down, as torchvision does.
///
/// # Errors
/// As [`resize`].
///
/// # Examples
/// ```
/// # use datapipes_image::{ResizeFilter, Image, resize_shorter};
/// let image = Image::new(500, 375, 1, vec![7; 500 * 375])?;
/// let small = resize_shorter(&image, 30, ResizeFilter::Bilinear)?;
/// assert_eq!((small.width(), small.height()), (40, 30));
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn resize_shorter(image: &Image, shorter: u32, filter: ResizeFilter) -> Result<Image> {
    let (width, height) = shorter_size(image.width(), image.height(), shorter)?;
    resize(image, width, height, filter)
}

/// Returns the size of an image whose shorter edge becomes `shorter`.
///
/// # Errors
/// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if `shorter` is invalid; [`ErrorKind::Limit`](datapipes::ErrorKind::Limit) if only this image would
/// become huge.
pub(crate) fn shorter_size(width: u32, height: u32, shorter: u32) -> Result<(u32, u32)> {
    check_size(shorter, shorter)?;
    let longer = u64::from(shorter) * u64::from(width.max(height)) / u64::from(width.min(height));
    let longer = u32::try_from(longer).unwrap_or(u32::MAX);
    if u64::from(shorter) * u64::from(longer) > MAX_PIXELS {
        return Err(Error::limit(format!(
            "an image of {width}x{height} scaled to {shorter} has more than {MAX_PIXELS} pixels"
        )));
    }
    Ok(if width < height {
        (shorter, longer)
    } else {
        (longer, shorter)
    })
}

/// Crops a part and scales it, in one pass. Equal to [`crop`](crate::crop), then [`resize`].
///
/// # Errors
/// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if the part is empty or not inside the image; otherwise as [`resize`].
///
/// # Examples
/// ```
/// # use datapipes_image::{ResizeFilter, Image, Rect, resized_crop};
/// let image = Image::new(4, 1, 1, vec![0, 100, 200, 50])?;
/// let middle = Rect { x: 1, y: 0, width: 2, height: 1 };
/// assert_eq!(resized_crop(&image, middle, 1, 1, ResizeFilter::Box)?.data(), [150]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn resized_crop(
    image: &Image,
    part: Rect,
    width: u32,
    height: u32,
    filter: ResizeFilter,
) -> Result<Image> {
    thread_local!(static RESAMPLER: RefCell<Resampler> = RefCell::default());

    let source = View::from(image).crop(part)?;
    check_size(width, height)?;
    let mut out = Image::black(width, height, image.channels());
    RESAMPLER.with_borrow_mut(|resampler| {
        resampler.resize(
            source,
            source.whole(),
            width,
            height,
            filter,
            out.data_mut(),
        )
    })?;
    Ok(out)
}
