//! Borders around images.

use datapipes::{Error, Result};

use super::raster::Raster;
use crate::Image;
use crate::image::{MAX_PIXELS, check_edges};

/// A colour for areas outside of an image: one value for all channels, or red, green and blue.
///
/// A gray image takes one value; a colour of three different values is an error for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill([u8; 3]);

impl Fill {
    /// Black.
    pub const BLACK: Fill = Fill([0; 3]);

    pub(crate) fn rgb(self) -> [u8; 3] {
        self.0
    }

    /// Fails with [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if it is a colour and the image is gray.
    pub(crate) fn gray(self) -> Result<u8> {
        let [r, g, b] = self.0;
        if r == g && g == b {
            return Ok(r);
        }
        let message = format!("a gray image cannot be filled with the colour ({r}, {g}, {b})");
        Err(Error::shape(message))
    }
}

datapipes::conversions! {
    |value: u8| -> Fill { Fill([value; 3]) }
    |rgb: [u8; 3]| -> Fill { Fill(rgb) }
}

/// Contents of a border. For the row `1 2 3`, two pixels to the left:
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PadMode {
    /// A colour: `0 0 | 1 2 3`. A mask takes its own value; see
    /// [`Mask::outside`](crate::Mask::outside).
    Constant(Fill),
    /// The pixel at the edge: `1 1 | 1 2 3`.
    Edge,
    /// The mirrored image, without its edge: `3 2 | 1 2 3`. The border must be smaller than the
    /// image.
    Reflect,
    /// The mirrored image: `2 1 | 1 2 3`. The border may not be larger than the image.
    Symmetric,
}

/// Width of a border on each side, and its contents: torchvision's `Pad`. It is black by default.
///
/// A number alone is the border on all sides; two are left and right, top and bottom.
///
/// ```
/// # use datapipes_image::{Image, PadMode, Border, pad};
/// let image = Image::new(2, 1, 1, vec![1, 2])?;
/// assert_eq!(pad(&image, Border::new(1, 0, 2, 0))?.data(), [0, 1, 2, 0, 0]);
/// assert_eq!(pad(&image, Border::new(1, 0, 2, 0).mode(PadMode::Symmetric))?.data(), [1, 1, 2, 2, 1]);
/// assert_eq!(pad(&image, 3)?.height(), 7);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Border {
    sides: [u32; 4],
    mode: PadMode,
}

impl Border {
    /// Makes a black border of this many pixels on each side.
    pub fn new(left: u32, top: u32, right: u32, bottom: u32) -> Self {
        Border {
            sides: [left, top, right, bottom],
            mode: PadMode::Constant(Fill::BLACK),
        }
    }

    datapipes::setters! {
        /// Sets the colour.
        fill(fill: impl Into<Fill>) => mode = PadMode::Constant(fill.into());

        /// Sets the contents.
        mode(mode: PadMode) => mode = mode;
    }

    /// Returns the pixels on the left, at the top, on the right and at the bottom.
    pub fn sides(&self) -> [u32; 4] {
        self.sides
    }

    /// Returns the contents.
    pub fn shows(&self) -> PadMode {
        self.mode
    }

    /// Returns the size of an image of this size with the border.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if an image of this size has no pixels or cannot be mirrored that far;
    /// [`ErrorKind::Limit`](datapipes::ErrorKind::Limit) if the result has more than 178,956,970 pixels.
    pub fn size(&self, width: u32, height: u32) -> Result<(u32, u32)> {
        check_edges("a border around an image", width, height)?;
        let [left, top, right, bottom] = self.sides;
        let most = |edge: u32| match self.mode {
            PadMode::Reflect => edge - 1,
            PadMode::Symmetric => edge,
            _ => u32::MAX,
        };
        if left.max(right) > most(width) || top.max(bottom) > most(height) {
            return Err(Error::shape(format!(
                "a border of {left}, {top}, {right}, {bottom} is more than an image of {width}x{height} has to mirror"
            )));
        }
        let sum = |a, b, c| u64::from(a) + u64::from(b) + u64::from(c);
        let (width, height) = (sum(left, width, right), sum(top, height, bottom));
        // Each is below 2^34, so the product fits.
        if u128::from(width) * u128::from(height) > u128::from(MAX_PIXELS) {
            let message =
                format!("a padded image of {width}x{height} has more than {MAX_PIXELS} pixels");
            return Err(Error::limit(message));
        }
        Ok((width as u32, height as u32))
    }
}

datapipes::conversions! {
    |side: u32| -> Border { Border::new(side, side, side, side) }
    |(x, y): (u32, u32)| -> Border { Border::new(x, y, x, y) }
}

/// Adds a border to an image; see [`Border`].
///
/// # Errors
/// As [`Border::size`]; [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if a gray image is to be filled with a colour.
pub fn pad(image: &Image, padding: impl Into<Border>) -> Result<Image> {
    let padding = padding.into();
    let (width, height) = padding.size(image.width(), image.height())?;
    let fill = match padding.mode {
        PadMode::Constant(fill) => fill,
        _ => Fill::BLACK,
    };
    let data = match image.channels() {
        1 => Raster::new(image.width(), image.data()).pad(&padding, fill.gray()?),
        _ => Raster::new(image.width(), image.data().as_chunks().0)
            .pad(&padding, fill.rgb())
            .into_flattened(),
    };
    Image::new(width, height, image.channels(), data)
}

impl<P: Copy> Raster<'_, P> {
    /// Adds a border. The resulting width and height have been checked by [`Border::size`].
    pub(crate) fn pad(&self, padding: &Border, fill: P) -> Vec<P> {
        let [left, top, right, bottom] = padding.sides().map(|side| side as usize);
        let (width, height) = (left + self.width + right, top + self.height() + bottom);
        let mut out = Vec::with_capacity(width * height);
        for y in 0..height {
            match inside(y, top, self.height(), padding.shows()) {
                None => out.resize(out.len() + width, fill),
                Some(y) => {
                    let row = self.row(y);
                    let beside =
                        |x| inside(x, left, self.width, padding.shows()).map_or(fill, |x| row[x]);
                    out.extend((0..left).map(beside));
                    out.extend_from_slice(row);
                    out.extend((left + self.width..width).map(beside));
                }
            }
        }
        out
    }
}

/// Returns the place in a line of `len` pixels for the place `at` of the line padded by `before`.
fn inside(at: usize, before: usize, len: usize, mode: PadMode) -> Option<usize> {
    if (before..before + len).contains(&at) {
        return Some(at - before);
    }
    // Distance outside, from 1.
    let (is_before, off) = if at < before {
        (true, before - at)
    } else {
        (false, at + 1 - before - len)
    };
    match mode {
        PadMode::Constant(_) => None,
        PadMode::Edge => Some(if is_before { 0 } else { len - 1 }),
        PadMode::Reflect => Some(if is_before { off } else { len - 1 - off }),
        PadMode::Symmetric => Some(if is_before { off - 1 } else { len - off }),
    }
}
