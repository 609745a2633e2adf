//! Scales pictures: exactly as Pillow does, without memory of its own for each picture.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod coefficients;
mod passes;
mod resampler;
mod view;

use std::cell::RefCell;

use datapipes::Result;

use crate::image::check_size;
use crate::{Image, Rect};

pub(crate) use self::resampler::Resampler;
pub(crate) use self::view::View;

/// How pixels are weighed when a picture is scaled. All but `Nearest` widen their kernel when they shrink, as
/// Pillow and torchvision with `antialias=True` do.
///
/// Results are Pillow's, bit by bit. Those of torchvision for a tensor of `u8` differ from Pillow's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Filter {
    /// The nearest pixel.
    Nearest,
    /// The mean of the pixels whose centres lie in a box of 1 pixel. The same as `Nearest` where it enlarges.
    Box,
    /// A triangle over 2 pixels. What torchvision takes by default.
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
/// # Errors
/// [`ErrorKind::Config`] if an edge is zero or the result would be huge.
pub fn resize(image: &Image, width: u32, height: u32, filter: Filter) -> Result<Image> {
    let all = Rect { x: 0, y: 0, width: image.width(), height: image.height() };
    resized_crop(image, all, width, height, filter)
}

/// Scales such that the shorter edge gets this length and the aspect ratio stays; the longer edge is rounded
/// down, as torchvision does.
///
/// # Errors
/// As [`resize`].
pub fn resize_shorter(image: &Image, shorter: u32, filter: Filter) -> Result<Image> {
    let (width, height) = (image.width(), image.height());
    let longer = u64::from(shorter) * u64::from(width.max(height)) / u64::from(width.min(height));
    let longer = u32::try_from(longer).unwrap_or(u32::MAX);
    let (width, height) = if width < height { (shorter, longer) } else { (longer, shorter) };
    resize(image, width, height, filter)
}

/// Cuts a part out and scales it, in one pass. The same as [`crop`](crate::crop), then [`resize`].
///
/// # Errors
/// [`ErrorKind::Shape`] if the part is empty or not inside the picture; else as [`resize`].
pub fn resized_crop(image: &Image, part: Rect, width: u32, height: u32, filter: Filter) -> Result<Image> {
    thread_local!(static RESAMPLER: RefCell<Resampler> = RefCell::default());

    let source = View::from(image).crop(part)?;
    check_size(width, height)?;
    let mut out = Image::black(width, height, image.channels());
    RESAMPLER.with_borrow_mut(|resampler| {
        resampler.resize(source, source.whole(), width, height, filter, out.data_mut())
    })?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use datapipes::ErrorKind;

    use super::*;
    use crate::crop;

    fn noise(width: u32, height: u32, channels: u8) -> Image {
        let len = width * height * u32::from(channels);
        let data = (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        Image::new(width, height, channels, data).unwrap()
    }

    const FILTERS: [Filter; 4] = [Filter::Nearest, Filter::Bilinear, Filter::CatmullRom, Filter::Lanczos3];

    #[test]
    fn the_same_size_is_the_same_picture() {
        for filter in FILTERS {
            assert_eq!(resize(&noise(31, 17, 3), 31, 17, filter).unwrap(), noise(31, 17, 3));
        }
    }

    #[test]
    fn in_one_pass_is_the_same_as_in_two() {
        let part = Rect { x: 5, y: 3, width: 21, height: 11 };
        for channels in [1, 3] {
            let image = noise(40, 30, channels);
            for filter in FILTERS {
                let two = resize(&crop(&image, part).unwrap(), 16, 16, filter).unwrap();
                assert_eq!(resized_crop(&image, part, 16, 16, filter).unwrap(), two, "{filter:?}");
            }
        }
    }

    #[test]
    fn sizes_without_pixels_or_without_end_are_errors() {
        for (width, height) in [(0, 5), (5, 0), (u32::MAX, u32::MAX), (20_000, 20_000)] {
            let error = resize(&noise(4, 4, 3), width, height, Filter::Bilinear).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(&format!("{width}x{height}")), "{error}");
        }
        assert_eq!(
            resize_shorter(&noise(4, 4, 3), 0, Filter::Bilinear).unwrap_err().kind(),
            ErrorKind::Config
        );
        assert!(resize_shorter(&noise(4000, 1, 3), u32::MAX, Filter::Bilinear).is_err());
    }

    #[test]
    fn the_shorter_edge_leads() {
        let size = |image: Image| (image.width(), image.height());
        assert_eq!(size(resize_shorter(&noise(50, 37, 3), 20, Filter::Bilinear).unwrap()), (27, 20));
        assert_eq!(size(resize_shorter(&noise(37, 50, 3), 20, Filter::Bilinear).unwrap()), (20, 27));
        assert_eq!(size(resize_shorter(&noise(1, 1, 3), 20, Filter::Bilinear).unwrap()), (20, 20));
    }
}
