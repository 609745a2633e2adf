//! Decoded images.

use datapipes::{Error, Result, Weigh, wire_struct};

use crate::Rect;

/// Default limit on the pixels of an image: the limit of Pillow, as an error instead of a warning.
pub(crate) const MAX_PIXELS: u64 = 178_956_970;

/// A decoded image: 8 bits a channel, channels interleaved, rows from the top.
///
/// - Its width and height are at least 1, and it has 1 channel (gray) or 3 (RGB).
/// - Its data is `height * width * channels` long, without padding.
/// - From another process, pixels of 64 KiB or more are copied once, since an image owns them. A
///   [`Tensor`](datapipes::Tensor), made by [`to_tensor_u8`](crate::to_tensor_u8) or the like, is
///   not copied.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    width: u32,
    height: u32,
    channels: u8,
    data: Vec<u8>,
}

impl Image {
    /// Makes an image of these bytes, which are not copied.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if an edge is zero, the number of channels is neither 1 nor 3, or the
    /// length does not fit.
    ///
    /// # Examples
    /// ```
    /// # use datapipes_image::Image;
    /// let image = Image::new(2, 1, 3, vec![1, 2, 3, 4, 5, 6])?;
    /// assert_eq!(image.pixel(1, 0), [4, 5, 6]);
    /// assert!(Image::new(2, 2, 3, vec![0; 6]).is_err());
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn new(width: u32, height: u32, channels: u8, data: Vec<u8>) -> Result<Image> {
        let wanted = u128::from(width) * u128::from(height) * u128::from(channels);
        if wanted == 0 || !matches!(channels, 1 | 3) || wanted != data.len() as u128 {
            return Err(Error::shape(format!(
                "{} bytes for an image of {width}x{height}x{channels}",
                data.len()
            )));
        }
        Ok(Image {
            width,
            height,
            channels,
            data,
        })
    }

    /// Makes a black image of a size that the caller has checked.
    pub(crate) fn black(width: u32, height: u32, channels: u8) -> Image {
        let data = vec![0; width as usize * height as usize * usize::from(channels)];
        Image {
            width,
            height,
            channels,
            data,
        }
    }

    /// Copies the pixels of a frame to a place inside of this RGB image. A frame of RGBA loses its
    /// alpha.
    pub(crate) fn paste(&mut self, frame: &[u8], at: Rect) {
        let channels = frame.len() / at.width as usize / at.height as usize;
        let (width, left) = (self.width as usize * 3, at.x as usize * 3);
        let rows = self.data.chunks_exact_mut(width).skip(at.y as usize);
        for (row, from) in rows.zip(frame.chunks_exact(at.width as usize * channels)) {
            let to = row[left..].as_chunks_mut::<3>().0.iter_mut();
            for (to, from) in to.zip(from.chunks_exact(channels)) {
                to.copy_from_slice(&from[..3]);
            }
        }
    }

    /// Returns the number of pixels in a row.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Returns the number of rows.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Returns the number of channels: 1 for gray, 3 for RGB.
    pub fn channels(&self) -> u8 {
        self.channels
    }

    /// Returns the pixels.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Returns the pixels for modification.
    pub fn data_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }

    /// Returns the pixels, without a copy.
    pub fn into_data(self) -> Vec<u8> {
        self.data
    }

    /// Returns the channels of one pixel.
    ///
    /// # Panics
    /// Panics if the pixel is outside of the image.
    pub fn pixel(&self, x: u32, y: u32) -> &[u8] {
        assert!(
            x < self.width && y < self.height,
            "({x}, {y}) is outside {self:?}"
        );
        let start = (y as usize * self.width as usize + x as usize) * usize::from(self.channels);
        &self.data[start..start + usize::from(self.channels)]
    }
}

wire_struct!(Image { width, height, channels, data } by Image::new);

impl Weigh for Image {
    fn weigh(&self) -> usize {
        size_of::<Self>() + self.data.len()
    }
}

datapipes::formatted! {
    Debug |image: Image|
        "Image({}x{}x{})", image.width, image.height, image.channels;
}

/// Fails for a size that no image can have.
pub(crate) fn check_size(width: u32, height: u32) -> Result<()> {
    if width == 0 || height == 0 {
        return Err(Error::config(format!(
            "an image of {width}x{height} has no pixels"
        )));
    }
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        let message = format!("an image of {width}x{height} has more than {MAX_PIXELS} pixels");
        return Err(Error::config(message));
    }
    Ok(())
}

/// Fails with [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if there are no pixels. `what` names the part of the image.
pub(crate) fn check_edges(what: &str, width: u32, height: u32) -> Result<()> {
    if width > 0 && height > 0 {
        return Ok(());
    }
    Err(Error::shape(format!(
        "{what} of {width}x{height}, which has no pixels"
    )))
}

/// Fails with [`ErrorKind::Config`](datapipes::ErrorKind::Config) unless `p` is from 0 to 1.
pub(crate) fn check_probability(p: f64) -> Result<()> {
    if (0.0..=1.0).contains(&p) {
        return Ok(());
    }
    Err(Error::config(format!(
        "the probability is {p}, not from 0 to 1"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    #[test]
    fn its_data_fits_its_size() {
        assert!(Image::new(2, 3, 3, vec![0; 18]).is_ok());
        for (width, height, channels, len) in
            [(2, 3, 3, 17), (0, 3, 3, 0), (2, 3, 4, 24), (2, 3, 0, 0)]
        {
            let error = Image::new(width, height, channels, vec![0; len]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Shape);
            assert!(
                error.to_string().contains(&format!("{len} bytes")),
                "{error}"
            );
        }
        let huge = Image::new(u32::MAX, u32::MAX, 3, vec![]).unwrap_err();
        assert_eq!(huge.kind(), ErrorKind::Shape);
    }
}
