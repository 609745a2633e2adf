//! Pixel buffers that are kept between images, to avoid allocations.

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
    /// Sets the size, and returns the memory for the pixels, which has old contents. Allocates only
    /// the missing bytes.
    pub(crate) fn set_size(&mut self, width: u32, height: u32) -> &mut [u8] {
        (self.width, self.height) = (width, height);
        self.set_len(width as usize * height as usize * 3);
        &mut self.data
    }

    /// Sets the number of bytes; their contents are arbitrary.
    pub(crate) fn set_len(&mut self, len: usize) {
        if len > self.data.capacity() {
            self.data = vec![0; len];
        } else {
            self.data.resize(len, 0);
        }
    }

    /// Takes the pixels of an RGB image.
    pub(crate) fn take(&mut self, image: Image) {
        (self.width, self.height) = (image.width(), image.height());
        self.data = image.into_data();
    }

    /// Returns a view of all pixels, for scaling.
    pub(crate) fn view(&self) -> Result<View<'_>> {
        View::new(
            &self.data,
            self.width,
            self.height,
            3,
            self.width as usize * 3,
        )
    }

    /// Frees the memory if it is more than `kept` bytes.
    pub(crate) fn release(&mut self, kept: usize) {
        if self.data.capacity() > kept {
            *self = Pixels::default();
        }
    }
}
