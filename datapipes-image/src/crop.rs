//! Crops and flips: pixels move, none is computed.

use datapipes::{Error, Result, Rng, wire_struct};

use crate::Image;
use crate::geometry::raster::{self, Raster};

/// A part of an image, in pixels from its upper left corner; see [`crop`](crate::crop()).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rect {
    /// First column.
    pub x: u32,
    /// First row.
    pub y: u32,
    /// Number of columns.
    pub width: u32,
    /// Number of rows.
    pub height: u32,
}

wire_struct! { Rect { x, y, width, height } }

impl Rect {
    /// Fails unless the part has pixels and is inside the image.
    pub(crate) fn check(&self, image: &Image) -> Result<()> {
        self.check_within(image.width(), image.height())
    }

    /// Fails unless the part has pixels and is inside an image of this size.
    pub(crate) fn check_within(&self, edge_x: u32, edge_y: u32) -> Result<()> {
        let fits = |start: u32, len, edge| {
            len > 0 && start.checked_add(len).is_some_and(|end| end <= edge)
        };
        if fits(self.x, self.width, edge_x) && fits(self.y, self.height, edge_y) {
            return Ok(());
        }
        let Rect {
            x,
            y,
            width,
            height,
        } = self;
        Err(Error::shape(format!(
            "a crop of {width}x{height} at ({x}, {y}) does not lie in an image of {edge_x}x{edge_y}"
        )))
    }

    /// Draws the place of a part that fits in an image: its row, and then its column.
    pub(crate) fn draw(image: (u32, u32), (width, height): (u32, u32), rng: &mut Rng) -> Rect {
        let y = rng.below(u64::from(image.1 - height) + 1) as u32;
        let x = rng.below(u64::from(image.0 - width) + 1) as u32;
        Rect {
            x,
            y,
            width,
            height,
        }
    }

    /// Returns the middle of an image of this size, unless the image is smaller.
    pub(crate) fn middle((edge_x, edge_y): (u32, u32), width: u32, height: u32) -> Rect {
        // torchvision rounds half a pixel to even.
        let middle = |edge: u32, part: u32| {
            (f64::from(edge.saturating_sub(part)) / 2.0).round_ties_even() as u32
        };
        Rect {
            x: middle(edge_x, width),
            y: middle(edge_y, height),
            width,
            height,
        }
    }
}

/// Crops a part.
///
/// # Errors
/// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if the part is empty or not inside the image. To add a border first, use
/// [`pad`](crate::pad()).
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, Rect, crop};
/// let image = Image::new(4, 2, 1, vec![1, 2, 3, 4, 5, 6, 7, 8])?;
/// let part = Rect { x: 2, y: 0, width: 2, height: 2 };
/// assert_eq!(crop(&image, part)?.data(), [3, 4, 7, 8]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn crop(image: &Image, part: Rect) -> Result<Image> {
    part.check(image)?;
    let data = match image.channels() {
        1 => Raster::new(image.width(), image.data()).crop(part),
        _ => Raster::new(image.width(), image.data().as_chunks::<3>().0)
            .crop(part)
            .into_flattened(),
    };
    Image::new(part.width, part.height, image.channels(), data)
}

/// Crops the middle. If the part cannot be centred to the pixel, its place is as in torchvision.
///
/// # Errors
/// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if the image is smaller. There is no padding.
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, center_crop};
/// let image = Image::new(4, 2, 1, vec![1, 2, 3, 4, 5, 6, 7, 8])?;
/// assert_eq!(center_crop(&image, 2, 2)?.data(), [2, 3, 6, 7]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn center_crop(image: &Image, width: u32, height: u32) -> Result<Image> {
    crop(
        image,
        Rect::middle((image.width(), image.height()), width, height),
    )
}

/// Crops the corners and the middle: upper left, upper right, lower left, lower right, middle.
///
/// # Errors
/// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if the image is smaller. There is no padding.
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, five_crop};
/// let image = Image::new(3, 3, 1, vec![1, 2, 3, 4, 5, 6, 7, 8, 9])?;
/// assert_eq!(five_crop(&image, 1, 1)?.map(|part| part.data()[0]), [1, 3, 7, 9, 5]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn five_crop(image: &Image, width: u32, height: u32) -> Result<[Image; 5]> {
    let corner = |x, y| {
        crop(
            image,
            Rect {
                x,
                y,
                width,
                height,
            },
        )
    };
    let (right, below) = (
        image.width().saturating_sub(width),
        image.height().saturating_sub(height),
    );
    let middle = center_crop(image, width, height)?;
    Ok([
        corner(0, 0)?,
        corner(right, 0)?,
        corner(0, below)?,
        corner(right, below)?,
        middle,
    ])
}

/// Mirrors left and right, in place.
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, hflip};
/// let mut image = Image::new(2, 2, 1, vec![1, 2, 3, 4])?;
/// hflip(&mut image);
/// assert_eq!(image.data(), [2, 1, 4, 3]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn hflip(image: &mut Image) {
    let (width, channels) = (image.width(), image.channels());
    match channels {
        1 => raster::hflip(width, image.data_mut()),
        _ => raster::hflip(width, image.data_mut().as_chunks_mut::<3>().0),
    }
}

/// Mirrors top and bottom, in place.
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, vflip};
/// let mut image = Image::new(2, 2, 1, vec![1, 2, 3, 4])?;
/// vflip(&mut image);
/// assert_eq!(image.data(), [3, 4, 1, 2]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn vflip(image: &mut Image) {
    let (width, channels) = (image.width(), image.channels());
    match channels {
        1 => raster::vflip(width, image.data_mut()),
        _ => raster::vflip(width, image.data_mut().as_chunks_mut::<3>().0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    /// An image whose pixels hold their column and row.
    fn grid(width: u32, height: u32) -> Image {
        let data = (0..height)
            .flat_map(|y| (0..width).flat_map(move |x| [x as u8, y as u8, 0]))
            .collect();
        Image::new(width, height, 3, data).unwrap()
    }

    #[test]
    fn a_crop_keeps_its_pixels() {
        let part = crop(
            &grid(7, 5),
            Rect {
                x: 2,
                y: 1,
                width: 4,
                height: 3,
            },
        )
        .unwrap();
        assert_eq!((part.width(), part.height()), (4, 3));
        assert_eq!(part.pixel(0, 0), [2, 1, 0]);
        assert_eq!(part.pixel(3, 2), [5, 3, 0]);
        assert_eq!(
            crop(
                &grid(7, 5),
                Rect {
                    x: 0,
                    y: 0,
                    width: 7,
                    height: 5
                }
            )
            .unwrap(),
            grid(7, 5)
        );
    }

    #[test]
    fn a_crop_that_does_not_fit_is_an_error_with_numbers() {
        for (x, y, width, height) in [
            (0, 0, 8, 5),
            (4, 0, 4, 1),
            (0, 0, 0, 1),
            (u32::MAX, 0, 2, 1),
            (7, 0, 1, 1),
        ] {
            let error = crop(
                &grid(7, 5),
                Rect {
                    x,
                    y,
                    width,
                    height,
                },
            )
            .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Shape);
            assert!(error.to_string().contains("7x5"), "{error}");
        }
        let error = center_crop(&grid(7, 5), 224, 224).unwrap_err();
        assert_eq!(
            error.to_string(),
            "shape mismatch: a crop of 224x224 at (0, 0) does not lie in an image of 7x5"
        );
    }

    #[test]
    fn the_middle_is_torchvisions() {
        // int(round((7 - 4) / 2.0)) == 2, int(round((5 - 4) / 2.0)) == 0
        assert_eq!(
            center_crop(&grid(7, 5), 4, 4).unwrap().pixel(0, 0),
            [2, 0, 0]
        );
    }

    #[test]
    fn a_flip_is_its_own_inverse() {
        let mut image = grid(7, 5);
        hflip(&mut image);
        assert_eq!(image.pixel(0, 3), [6, 3, 0]);
        assert_eq!(image.pixel(3, 3), [3, 3, 0]);
        hflip(&mut image);
        assert_eq!(image, grid(7, 5));
        let mut gray = Image::new(3, 2, 1, vec![1, 2, 3, 4, 5, 6]).unwrap();
        hflip(&mut gray);
        assert_eq!(gray.data(), [3, 2, 1, 6, 5, 4]);
        vflip(&mut gray);
        assert_eq!(gray.data(), [6, 5, 4, 3, 2, 1]);
        vflip(&mut image);
        assert_eq!(
            (image.pixel(6, 0), image.pixel(3, 2)),
            (&[6, 4, 0][..], &[3, 2, 0][..])
        );
        vflip(&mut image);
        assert_eq!(image, grid(7, 5));
    }

    #[test]
    fn five_parts_come_in_torchvisions_order() {
        let parts = five_crop(&grid(7, 5), 4, 4).unwrap();
        assert_eq!(
            parts.each_ref().map(|part| part.pixel(0, 0)[..2].to_vec()),
            [[0, 0], [3, 0], [0, 1], [3, 1], [2, 0]]
        );
        for (width, height) in [(8, 1), (1, 6), (0, 1)] {
            assert_eq!(
                five_crop(&grid(7, 5), width, height).unwrap_err().kind(),
                ErrorKind::Shape
            );
        }
    }
}
