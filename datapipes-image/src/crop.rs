//! Cuts and flips: pixels move, none is computed.

use datapipes::{Error, ErrorKind, Result};

use crate::Image;

/// A part of a picture, in pixels from its upper left corner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rect {
    /// The first column.
    pub x: u32,
    /// The first row.
    pub y: u32,
    /// How many columns.
    pub width: u32,
    /// How many rows.
    pub height: u32,
}

impl Rect {
    /// An error unless it has pixels and lies inside the picture.
    pub(crate) fn check(&self, image: &Image) -> Result<()> {
        self.check_within(image.width(), image.height())
    }

    /// An error unless it has pixels and lies inside a picture of this size.
    pub(crate) fn check_within(&self, width: u32, height: u32) -> Result<()> {
        let fits = |start: u32, len, edge| len > 0 && start.checked_add(len).is_some_and(|end| end <= edge);
        if fits(self.x, self.width, width) && fits(self.y, self.height, height) {
            return Ok(());
        }
        let message = format!(
            "a crop of {}x{} at ({}, {}) does not lie in an image of {width}x{height}",
            self.width, self.height, self.x, self.y
        );
        Err(Error::new(ErrorKind::Shape, message))
    }
}

/// Cuts a part out.
///
/// # Errors
/// [`ErrorKind::Shape`] if the part is empty or not inside the picture. There is no padding.
pub fn crop(image: &Image, part: Rect) -> Result<Image> {
    part.check(image)?;
    let pixel = usize::from(image.channels());
    let (stride, start) = (image.width() as usize * pixel, part.x as usize * pixel);
    let mut data = Vec::with_capacity(part.width as usize * part.height as usize * pixel);
    for row in image.data().chunks_exact(stride).skip(part.y as usize).take(part.height as usize) {
        data.extend_from_slice(&row[start..start + part.width as usize * pixel]);
    }
    Image::new(part.width, part.height, image.channels(), data)
}

/// Cuts the middle out. Where it cannot be centred to the pixel, it lies as with torchvision.
///
/// # Errors
/// [`ErrorKind::Shape`] if the picture is smaller. There is no padding.
pub fn center_crop(image: &Image, width: u32, height: u32) -> Result<Image> {
    // torchvision rounds half a pixel to even.
    let middle = |edge: u32, part: u32| (f64::from(edge.saturating_sub(part)) / 2.0).round_ties_even() as u32;
    let (x, y) = (middle(image.width(), width), middle(image.height(), height));
    crop(image, Rect { x, y, width, height })
}

/// Mirrors left and right, in place.
pub fn hflip(image: &mut Image) {
    let (stride, channels) = (image.width() as usize * usize::from(image.channels()), image.channels());
    for row in image.data_mut().chunks_exact_mut(stride) {
        match channels {
            1 => row.reverse(),
            _ => row.as_chunks_mut::<3>().0.reverse(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each pixel holds its column and row.
    fn grid(width: u32, height: u32) -> Image {
        let data = (0..height).flat_map(|y| (0..width).flat_map(move |x| [x as u8, y as u8, 0])).collect();
        Image::new(width, height, 3, data).unwrap()
    }

    #[test]
    fn a_crop_keeps_its_pixels() {
        let part = crop(&grid(7, 5), Rect { x: 2, y: 1, width: 4, height: 3 }).unwrap();
        assert_eq!((part.width(), part.height()), (4, 3));
        assert_eq!(part.pixel(0, 0), [2, 1, 0]);
        assert_eq!(part.pixel(3, 2), [5, 3, 0]);
        assert_eq!(crop(&grid(7, 5), Rect { x: 0, y: 0, width: 7, height: 5 }).unwrap(), grid(7, 5));
    }

    #[test]
    fn a_crop_that_does_not_fit_is_an_error_with_numbers() {
        for (x, y, width, height) in
            [(0, 0, 8, 5), (4, 0, 4, 1), (0, 0, 0, 1), (u32::MAX, 0, 2, 1), (7, 0, 1, 1)]
        {
            let error = crop(&grid(7, 5), Rect { x, y, width, height }).unwrap_err();
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
        assert_eq!(center_crop(&grid(7, 5), 4, 4).unwrap().pixel(0, 0), [2, 0, 0]);
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
    }
}
