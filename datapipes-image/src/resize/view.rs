//! Views of images that are scaled, and parts of them.

use datapipes::{Error, Result};

use crate::{Image, Rect};

/// A borrowed image of 8 bits a channel, channels interleaved; its stride may be longer than a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    data: &'a [u8],
    width: u32,
    height: u32,
    channels: u8,
    stride: usize,
}

impl<'a> View<'a> {
    /// Makes a view of an image whose rows begin `stride` bytes apart.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if an edge is zero, the number of channels is neither 1 nor 3, or there
    /// are too few bytes.
    pub(crate) fn new(
        data: &'a [u8],
        width: u32,
        height: u32,
        channels: u8,
        stride: usize,
    ) -> Result<Self> {
        let row = u128::from(width) * u128::from(channels);
        let wanted = stride as u128 * u128::from(height.saturating_sub(1)) + row;
        if row * u128::from(height) == 0
            || !matches!(channels, 1 | 3)
            || row > stride as u128
            || wanted > data.len() as u128
        {
            return Err(Error::shape(format!(
                "{} bytes in rows of {stride} for an image of {width}x{height}x{channels}",
                data.len()
            )));
        }
        Ok(View {
            data,
            width,
            height,
            channels,
            stride,
        })
    }

    /// Returns a part as an image of its own: pixels outside of the part are not accessible.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if the part is empty or not inside.
    pub(crate) fn crop(self, part: Rect) -> Result<Self> {
        part.check_within(self.width, self.height)?;
        let start = part.y as usize * self.stride + part.x as usize * self.channels();
        View::new(
            &self.data[start..],
            part.width,
            part.height,
            self.channels,
            self.stride,
        )
    }

    pub(crate) fn width(&self) -> u32 {
        self.width
    }

    pub(crate) fn height(&self) -> u32 {
        self.height
    }

    pub(crate) fn channels(&self) -> usize {
        usize::from(self.channels)
    }

    /// Returns the whole view as a part.
    pub(crate) fn whole(&self) -> Part {
        Part {
            left: 0.0,
            top: 0.0,
            width: f64::from(self.width),
            height: f64::from(self.height),
        }
    }

    /// Returns the offset of a row from the first.
    pub(crate) fn place(&self, y: usize) -> usize {
        y * self.stride
    }

    /// Returns the pixels of a row.
    pub(crate) fn row(&self, y: usize) -> &'a [u8] {
        &self.rest(y)[..self.width as usize * self.channels()]
    }

    /// Returns the pixels from a row on, with all bytes between and after the rows.
    pub(crate) fn rest(&self, y: usize) -> &'a [u8] {
        &self.data[self.place(y)..]
    }
}

impl<'a> From<&'a Image> for View<'a> {
    fn from(image: &'a Image) -> Self {
        let stride = image.width() as usize * usize::from(image.channels());
        View {
            data: image.data(),
            width: image.width(),
            height: image.height(),
            channels: image.channels(),
            stride,
        }
    }
}

/// A part of a view in pixels, also in fractions of them: Pillow's `box`.
///
/// As with Pillow, a filter also weighs the pixels just outside of the part, as long as they are in
/// the view. To scale a part without the pixels outside, apply [`View::crop`] first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Part {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl Part {
    /// Returns its edges in single precision, as in Pillow: left and right, top and bottom.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) unless the part has an area and lies inside the view.
    pub(crate) fn edges(&self, view: &View<'_>) -> Result<[(f32, f32); 2]> {
        let edges = |start: f64, len: f64| (start as f32, (start + len) as f32);
        let (across, down) = (edges(self.left, self.width), edges(self.top, self.height));
        let fits =
            |(start, end): (f32, f32), edge: u32| start >= 0.0 && start < end && end <= edge as f32;
        if fits(across, view.width) && fits(down, view.height) {
            return Ok([across, down]);
        }
        let Part {
            left,
            top,
            width,
            height,
        } = self;
        Err(Error::shape(format!(
            "a part of {width}x{height} at ({left}, {top}) does not lie in an image of {}x{}",
            view.width, view.height
        )))
    }
}
