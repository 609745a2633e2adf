//! Pixels that are kept between pictures, so that none is allocated for each.

use datapipes::Result;

use crate::Image;
use crate::resize::View;

/// RGB, eight bits a channel, channels interleaved, rows from the top.
#[derive(Debug, Default)]
pub(crate) struct Pixels {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// `width * height * 3` bytes.
    pub(crate) data: Vec<u8>,
}

impl Pixels {
    /// Gives it a size, and the place for its pixels: what stands there is left over from before.
    /// Allocates only what is missing.
    pub(crate) fn set_size(&mut self, width: u32, height: u32) -> &mut [u8] {
        (self.width, self.height) = (width, height);
        self.set_len(width as usize * height as usize * 3);
        &mut self.data
    }

    /// As many bytes, of whatever they are.
    pub(crate) fn set_len(&mut self, len: usize) {
        if len > self.data.capacity() {
            self.data = vec![0; len];
        } else {
            self.data.resize(len, 0);
        }
    }

    /// Those of a picture of RGB.
    pub(crate) fn take(&mut self, image: Image) {
        (self.width, self.height) = (image.width(), image.height());
        self.data = image.into_data();
    }

    /// All of them, to be scaled.
    pub(crate) fn view(&self) -> Result<View<'_>> {
        View::new(
            &self.data,
            self.width,
            self.height,
            3,
            self.width as usize * 3,
        )
    }

    /// Gives memory back, if it is more than so many bytes.
    pub(crate) fn release(&mut self, kept: usize) {
        if self.data.capacity() > kept {
            *self = Pixels::default();
        }
    }
}
